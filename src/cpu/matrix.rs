//! Where a product's operands lie, and how large it is.

/// Bytes between columns, and multiples of them, with which the lines that are packed at a time push each other out of the first
/// cache: 48 of f32 in the `gemm` crate.
const CLASH: usize = 1024;

/// One matrix in a slice: its element (0, 0) comes first; strides are in elements.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a, T> {
    pub elements: &'a [T],
    pub row: isize,
    pub column: isize,
}

impl<T> Matrix<'_, T> {
    /// The part from an element on.
    pub(crate) fn from(self, row: usize, column: usize) -> Self {
        let start = row as isize * self.row + column as isize * self.column;
        Self {
            elements: self.elements.get(start as usize..).unwrap_or_default(),
            ..self
        }
    }

    /// Rows as columns.
    pub(crate) fn turned(self) -> Self {
        Self {
            row: self.column,
            column: self.row,
            ..self
        }
    }

    /// Whether packing some of its columns is slow, since they lie so far apart.
    pub(super) fn clashes(self) -> bool {
        self.row == 1
            && self.column > 1
            && (self.column as usize * size_of::<T>()).is_multiple_of(CLASH)
    }

    /// True when every element of `rows x columns` lies inside the slice.
    pub(super) fn holds(&self, rows: usize, columns: usize) -> bool {
        let reach = |count: usize, stride: isize| {
            isize::try_from(count.saturating_sub(1))
                .ok()?
                .checked_mul(stride)
        };
        let last = reach(rows, self.row)
            .zip(reach(columns, self.column))
            .and_then(|(down, across)| down.checked_add(across));
        self.row >= 0
            && self.column >= 0
            && last.is_some_and(|last| (last as usize) < self.elements.len())
    }
}

/// m, k, n: `[m, k] x [k, n]`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub m: usize,
    pub k: usize,
    pub n: usize,
}

impl Size {
    /// Multiply-adds.
    pub(crate) fn work(&self) -> usize {
        self.m.saturating_mul(self.k).saturating_mul(self.n)
    }
}
