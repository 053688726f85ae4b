//! Operands in the device's texels: where the texel tile finds them, and what is copied there.

use smallvec::{SmallVec, smallvec};

use super::product::Matrix;
use crate::launch::{TEXEL_BYTES, TEXEL_LAYERS, TEXEL_ROWS, TEXEL_WIDTH, TexelCopy};
use crate::shape::Dims;

/// Elements of a texel, and of a row of them: the columns of a strip.
const TEXEL: usize = 4;
pub(super) const STRIP: usize = TEXEL_WIDTH as usize * TEXEL;
const ROWS: usize = TEXEL_ROWS as usize;
/// Bands of rows are multiples of it, so that no tile lies in two.
const BAND: usize = 64;
/// The most steps of k that every operand has room for.
const MAX_K: usize = ROWS;

/// The next free row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cursor {
    layer: usize,
    row: usize,
}

impl Cursor {
    /// Layers that are taken.
    pub(super) fn layers(self) -> usize {
        self.layer + usize::from(self.row > 0)
    }
}

/// Where an operand of a panel lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Placed {
    /// Its first unit.
    pub first: usize,
    /// Rows of a band, where strips lie along k.
    pub band: usize,
    /// Units of a layer.
    pub units: usize,
    /// Units from one matrix of the batch to the next.
    pub batch: Dims,
}

/// How an operand is cut: along k, strips of a band lie one below the other; else each is a unit.
struct Cut {
    along_k: bool,
    band: usize,
    unit_rows: usize,
    units_per_matrix: usize,
}

impl Cut {
    fn of(matrix: &Matrix) -> Option<Self> {
        let (side, k) = (matrix.outer_size, matrix.inner_size);
        if k > MAX_K {
            return None;
        }
        if !matrix.runs_along_inner() {
            return Some(Self {
                along_k: false,
                band: 0,
                unit_rows: k,
                units_per_matrix: side.div_ceil(STRIP),
            });
        }
        let strips = k.div_ceil(STRIP);
        let band = (ROWS / strips / BAND * BAND).min(side.next_multiple_of(BAND));
        Some(Self {
            along_k: true,
            band,
            unit_rows: band * strips,
            units_per_matrix: side.div_ceil(band),
        })
    }
}

/// Where an operand goes from the cursor on, which moves behind it. `None` where it has no room.
pub(super) fn place(matrix: &Matrix, batch: &[usize], cursor: &mut Cursor) -> Option<Placed> {
    let cut = Cut::of(matrix)?;
    let units = ROWS / cut.unit_rows;
    let mut first = cursor.layer * units + cursor.row.div_ceil(cut.unit_rows);
    if cursor.row.div_ceil(cut.unit_rows) >= units {
        first = (cursor.layer + 1) * units;
    }
    let mut all = cut.units_per_matrix;
    let mut strides: Dims = smallvec![0; batch.len()];
    for axis in (0..batch.len()).rev() {
        if matrix.batch[axis] != 0 {
            strides[axis] = all;
            all = all.checked_mul(batch[axis])?;
        }
    }
    let last = first.checked_add(all)? - 1;
    *cursor = Cursor {
        layer: last / units,
        row: (last % units + 1) * cut.unit_rows,
    };
    (cursor.layers() <= TEXEL_LAYERS as usize).then_some(Placed {
        first,
        band: cut.band,
        units,
        batch: strides,
    })
}

/// The copies that bring an operand to its place: `start` bytes from the start of the storage of
/// `operand`. Neighbours go together.
pub(super) fn copies(
    matrix: &Matrix,
    batch: &[usize],
    placed: &Placed,
    (operand, start): (usize, u64),
    into: &mut SmallVec<[TexelCopy; 1]>,
) {
    let Some(cut) = Cut::of(matrix) else {
        return;
    };
    let (side, k) = (matrix.outer_size, matrix.inner_size);
    let (row_stride, rows, columns) = match cut.along_k {
        true => (matrix.outer, side, k),
        false => (matrix.inner, k, side),
    };
    let bytes = |elements: isize| (elements as i64 * 4) as u64;
    let first_copy = into.len();
    let matrices: usize = batch
        .iter()
        .zip(&matrix.batch)
        .map(|(&size, &stride)| if stride == 0 { 1 } else { size })
        .product();
    for number in 0..matrices {
        let mut rest = number;
        let mut offset = matrix.offset as isize;
        for axis in (0..batch.len()).rev() {
            if matrix.batch[axis] != 0 {
                offset += (rest % batch[axis]) as isize * matrix.batch[axis];
                rest /= batch[axis];
            }
        }
        for within in 0..cut.units_per_matrix {
            let unit = placed.first + number * cut.units_per_matrix + within;
            let (layer, top) = (unit / placed.units, unit % placed.units * cut.unit_rows);
            let (band_first, strips) = match cut.along_k {
                true => (within * cut.band, 0..k.div_ceil(STRIP)),
                false => (0, within..within + 1),
            };
            let height = match cut.along_k {
                true => cut.band.min(rows - band_first),
                false => rows,
            };
            for strip in strips {
                let from = band_first as isize * row_stride + (strip * STRIP) as isize;
                let below = if cut.along_k { strip * cut.band } else { 0 };
                let copy = TexelCopy {
                    operand,
                    offset: start + bytes(offset + from),
                    pitch: bytes(row_stride),
                    width: (columns - strip * STRIP).min(STRIP).div_ceil(TEXEL) as u32,
                    rows: height as u32,
                    layer: layer as u32,
                    row: (top + below) as u32,
                };
                match into[first_copy..].last_mut() {
                    Some(last) if goes_on(last, &copy) => last.rows += copy.rows,
                    _ => into.push(copy),
                }
            }
        }
    }
}

/// Whether a copy's rows follow those of the one before, here and there.
fn goes_on(before: &TexelCopy, copy: &TexelCopy) -> bool {
    (before.width, before.pitch, before.layer) == (copy.width, copy.pitch, copy.layer)
        && before.row + before.rows == copy.row
        && before.offset + u64::from(before.rows) * before.pitch == copy.offset
}

/// Whether an operand can be copied into texels as it lies.
pub(super) fn can_be_copied(matrix: &Matrix) -> bool {
    let whole = |stride: isize, unit: isize| stride >= 0 && stride % unit == 0;
    let (unit, other, other_size) = if matrix.runs_along_inner() {
        (matrix.inner, matrix.outer, matrix.outer_size)
    } else {
        (matrix.outer, matrix.inner, matrix.inner_size)
    };
    // Rows of copies are 256 bytes apart, or multiples of it.
    unit == 1
        && (other > 0 || other_size == 1)
        && whole(other, STRIP as isize)
        && other < 1 << 26
        && matrix.offset.is_multiple_of(TEXEL)
        && matrix.inner_size.is_multiple_of(2 * TEXEL)
        && matrix
            .batch
            .iter()
            .all(|&stride| whole(stride, TEXEL as isize))
}

const _: () = assert!(TEXEL_BYTES == 4 * TEXEL as u64);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A matrix of `side` by `k` (along k, or the other way round) with rows `pitch` apart.
    fn matrix(
        [side, k]: [usize; 2],
        along_k: bool,
        pitch: usize,
        offset: usize,
        batch: &[isize],
    ) -> Matrix {
        let [outer, inner] = match along_k {
            true => [pitch as isize, 1],
            false => [1, pitch as isize],
        };
        Matrix {
            offset,
            outer,
            outer_size: side,
            inner,
            inner_size: k,
            batch: batch.iter().copied().collect(),
            padded: false,
        }
    }

    /// Layer, row and element where the kernel looks for an element.
    fn looked_up(
        matrix: &Matrix,
        placed: &Placed,
        at: &[usize],
        [side, k]: [usize; 2],
    ) -> [usize; 3] {
        let steps = at.iter().zip(&placed.batch);
        let base = placed.first + steps.map(|(at, stride)| at * stride).sum::<usize>();
        if matrix.runs_along_inner() {
            let unit = base + side / placed.band;
            let rows = matrix.inner_size.div_ceil(64) * placed.band;
            let row = unit % placed.units * rows + k / 64 * placed.band + side % placed.band;
            [unit / placed.units, row, k % 64]
        } else {
            let unit = base + side / 64;
            let row = unit % placed.units * matrix.inner_size + k;
            [unit / placed.units, row, side % 64]
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
        /// Two operands, one after the other: every element is copied to where the kernel looks, and
        /// nothing is overwritten.
        #[test]
        fn elements_are_where_the_kernel_looks(
            sides in (1usize..300, 1usize..300),
            k in prop_oneof![1usize..40, 100usize..300, 2040usize..2048],
            along_k in (any::<bool>(), any::<bool>()),
            gaps in (0usize..3, 0usize..3),
            batch in prop::collection::vec((1usize..4, any::<bool>()), 0..3),
        ) {
            let k = k * 8;
            let sizes: Vec<usize> = batch.iter().map(|&(size, _)| size).collect();
            let mut cursor = Cursor::default();
            let mut texels = std::collections::HashMap::new();
            let mut looked = Vec::new();
            for (operand, (side, along_k, gap)) in
                [(sides.0, along_k.0, gaps.0), (sides.1, along_k.1, gaps.1)].into_iter().enumerate()
            {
                let (rows, columns) = if along_k { (side, k) } else { (k, side) };
                let pitch = (columns + gap).next_multiple_of(64);
                let mut step = rows * pitch;
                let mut strides = vec![0; batch.len()];
                for (axis, &(size, moves)) in batch.iter().enumerate().rev() {
                    if moves {
                        strides[axis] = step as isize;
                        step *= size;
                    }
                }
                let matrix = matrix([side, k], along_k, pitch, 4 * gap, &strides);
                prop_assert!(can_be_copied(&matrix));
                let Some(placed) = place(&matrix, &sizes, &mut cursor) else {
                    return Ok(());
                };
                let mut copied = SmallVec::new();
                copies(&matrix, &sizes, &placed, (operand, 512), &mut copied);
                for copy in copied {
                    prop_assert!(copy.layer < TEXEL_LAYERS && copy.row + copy.rows <= TEXEL_ROWS);
                    prop_assert!(copy.width <= TEXEL_WIDTH && copy.pitch.is_multiple_of(256));
                    prop_assert!(copy.offset.is_multiple_of(TEXEL_BYTES));
                    for row in 0..copy.rows {
                        let at = (copy.layer, copy.row + row);
                        let from = copy.offset + u64::from(row) * copy.pitch;
                        let before = texels.insert(at, (copy.operand, from, copy.width));
                        prop_assert!(before.is_none(), "{at:?}");
                    }
                }
                let all: usize = sizes.iter().product();
                for number in 0..all {
                    let mut rest = number;
                    let mut at = vec![0; sizes.len()];
                    for axis in (0..sizes.len()).rev() {
                        at[axis] = rest % sizes[axis];
                        rest /= sizes[axis];
                    }
                    for (i, j) in [(0, 0), (side - 1, k - 1), (side / 2, k / 3), (side / 3, k - 1)] {
                        let batches: isize =
                            at.iter().zip(&strides).map(|(&at, &stride)| at as isize * stride).sum();
                        let element = matrix.offset as isize
                            + batches
                            + i as isize * matrix.outer
                            + j as isize * matrix.inner;
                        let place = looked_up(&matrix, &placed, &at, [i, j]);
                        looked.push((operand, 512 + element as u64 * 4, place));
                    }
                }
            }
            for (operand, byte, [layer, row, element]) in looked {
                let (of, from, width) = texels[&(layer as u32, row as u32)];
                prop_assert_eq!((of, from + element as u64 * 4), (operand, byte));
                prop_assert!(element < width as usize * TEXEL);
            }
        }
    }
}
