//! Products larger than a device's memory, tile by tile from and to the host.

use std::ops::Range;

use super::rule::check_work;
use crate::cpu::host_vec;
use crate::device::Device;
use crate::dtype::{DType, Element};
use crate::error::{Error, Result};
use crate::memory::QUANTUM;
use crate::promise::Pending;
use crate::shape::Shape;
use crate::tensor::Tensor;

/// A matrix that need not be in memory as a whole: an operand of [`matmul_streamed`].
///
/// A pair of a shape and a closure `FnMut(rows, columns, into)` is one, too.
pub trait MatrixSource<T> {
    /// Rows and columns.
    fn shape(&self) -> [usize; 2];

    /// Writes the elements of these rows and columns into `into`, row by row without gaps.
    ///
    /// # Errors
    /// The source's own (`map_err(`[`Error::custom`]`)`); they end the product.
    fn read(&mut self, rows: Range<usize>, columns: Range<usize>, into: &mut [T]) -> Result<()>;

    /// The elements of whole rows, where they lie in memory one after the other: they are then not
    /// copied on the way.
    fn rows(&self, _rows: Range<usize>) -> Option<&[T]> {
        None
    }
}

/// A matrix that takes the result of [`matmul_streamed`].
pub trait MatrixTarget<T> {
    /// Rows and columns.
    fn shape(&self) -> [usize; 2];

    /// Takes the elements of these rows and columns, row by row without gaps. Each element comes
    /// once.
    ///
    /// # Errors
    /// The target's own (`map_err(`[`Error::custom`]`)`); they end the product.
    fn write(&mut self, rows: Range<usize>, columns: Range<usize>, from: &[T]) -> Result<()>;
}

impl<T, F> MatrixSource<T> for ([usize; 2], F)
where
    F: FnMut(Range<usize>, Range<usize>, &mut [T]) -> Result<()>,
{
    fn shape(&self) -> [usize; 2] {
        self.0
    }

    fn read(&mut self, rows: Range<usize>, columns: Range<usize>, into: &mut [T]) -> Result<()> {
        (self.1)(rows, columns, into)
    }
}

/// A row-major matrix in host memory.
#[derive(Clone, Copy, Debug)]
pub struct HostMatrix<E> {
    elements: E,
    shape: [usize; 2],
}

impl<E> HostMatrix<E> {
    /// From what has a slice of `rows * columns` elements (`&[T]`, `&Vec<T>`, `Arc<[T]>`; for the result `&mut [T]`, `&mut Vec<T>`).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when the length is another.
    pub fn new<T>(elements: E, shape: [usize; 2]) -> Result<Self>
    where
        E: AsRef<[T]>,
    {
        let length = elements.as_ref().len();
        if shape[0].checked_mul(shape[1]) != Some(length) {
            let [rows, columns] = shape;
            return Err(Error::invalid(
                "HostMatrix::new",
                format!("{length} elements for {rows} rows of {columns}"),
            ));
        }
        Ok(Self { elements, shape })
    }

    /// Rows and columns.
    pub fn shape(&self) -> [usize; 2] {
        self.shape
    }

    /// What it was made from.
    pub fn into_inner(self) -> E {
        self.elements
    }
}

/// Whether these are rows and columns of a matrix, and as many elements.
///
/// # Errors
/// [`Error::InvalidArgument`] for others, which would be read from or written to elsewhere.
pub(crate) fn check_part(
    [height, width]: [usize; 2],
    rows: &Range<usize>,
    columns: &Range<usize>,
    elements: usize,
) -> Result<()> {
    let is_inside = |part: &Range<usize>, size| part.start <= part.end && part.end <= size;
    if !is_inside(rows, height) || !is_inside(columns, width) {
        let problem =
            format!("rows {rows:?} and columns {columns:?} of a matrix of {height} x {width}");
        return Err(Error::invalid(OP, problem));
    }
    match rows.len().checked_mul(columns.len()) == Some(elements) {
        true => Ok(()),
        false => Err(Error::invalid(
            OP,
            format!("{elements} elements for rows {rows:?} and columns {columns:?}"),
        )),
    }
}

/// What has fewer elements than when the matrix was made.
fn shrunk() -> Error {
    Error::invalid("HostMatrix", "its elements have become fewer")
}

impl<T: Copy, E: AsRef<[T]>> MatrixSource<T> for HostMatrix<E> {
    fn shape(&self) -> [usize; 2] {
        self.shape
    }

    fn read(&mut self, rows: Range<usize>, columns: Range<usize>, into: &mut [T]) -> Result<()> {
        check_part(self.shape, &rows, &columns, into.len())?;
        let elements = self.elements.as_ref();
        let lines = into.chunks_mut(columns.len().max(1));
        for (row, line) in rows.zip(lines) {
            let start = row * self.shape[1] + columns.start;
            let from = elements.get(start..start + line.len());
            line.copy_from_slice(from.ok_or_else(shrunk)?);
        }
        Ok(())
    }

    fn rows(&self, rows: Range<usize>) -> Option<&[T]> {
        if rows.start > rows.end || rows.end > self.shape[0] {
            return None;
        }
        self.elements
            .as_ref()
            .get(rows.start * self.shape[1]..rows.end * self.shape[1])
    }
}

impl<T: Copy, E: AsMut<[T]>> MatrixTarget<T> for HostMatrix<E> {
    fn shape(&self) -> [usize; 2] {
        self.shape
    }

    fn write(&mut self, rows: Range<usize>, columns: Range<usize>, from: &[T]) -> Result<()> {
        check_part(self.shape, &rows, &columns, from.len())?;
        let elements = self.elements.as_mut();
        let lines = from.chunks(columns.len().max(1));
        for (row, line) in rows.zip(lines) {
            let start = row * self.shape[1] + columns.start;
            let into = elements.get_mut(start..start + line.len());
            into.ok_or_else(shrunk)?.copy_from_slice(line);
        }
        Ok(())
    }
}

/// What [`matmul_streamed`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Streamed {
    /// m, k and n of a tile.
    pub tile: [usize; 3],
    /// Bytes that went to the device; more than the operands have where tiles went again.
    pub uploaded: u64,
    /// Bytes that came back: the result's.
    pub downloaded: u64,
}

const OP: &str = "matmul_streamed";
/// Tiles are whole multiples of it where they can be: kernels like them so.
const ROUND: usize = 128;
/// Rows and columns of small tiles: below them products take more rounds than anybody waits for.
const SMALL: usize = 16;
/// What a device without a budget is asked for.
const UNLIMITED: u64 = 1 << 30;

/// `c = a x b` on a device whose memory need not hold them: tiles go there and come back while it
/// multiplies those before. Operands and result may be slices ([`HostMatrix`]; those of a file that is
/// mapped into memory, too), NumPy files (with the feature `npy`: `NpyMatrix`, `NpyMatrixMut`, which read
/// and write at positions, as the system caches them), or a program's own [`MatrixSource`] and
/// [`MatrixTarget`]; operands also closures with a shape. It multiplies on `device`, inside of scopes of
/// others too; where that cannot and its placement is soft (f64 on many GPUs), on the CPU.
///
/// It uses at most three quarters of what the device's budget leaves (1 GiB without one) and the adapter says it has, in tiles that are no larger than a
/// buffer of the adapter; as many rows of `a` stay there as fit, so that `a` goes up once and `b` once for each band of rows.
/// Where few rows of all of `a`'s columns do not fit, those are cut, too: then `a` goes up once for each band of columns of
/// `b`. On a device whose tensors may go to the host ([`WhenFull::SpillToHost`](crate::memory::WhenFull::SpillToHost)) some
/// do where little is left: half of what is left and what may go there is used then. Sums of f16 and bf16 are kept in f32.
///
/// ```
/// use orlop::{Device, HostMatrix, matmul_streamed};
///
/// let (a, b) = (vec![1.0f32; 300 * 200], vec![0.5f32; 200 * 100]);
/// let mut c = vec![0.0f32; 300 * 100];
/// matmul_streamed(
///     &Device::cpu(),
///     &mut HostMatrix::new(&a, [300, 200])?,
///     &mut HostMatrix::new(&b, [200, 100])?,
///     &mut HostMatrix::new(&mut c[..], [300, 100])?,
/// )?;
/// assert!(c.iter().all(|&sum| sum == 100.0));
/// # Ok::<(), orlop::Error>(())
/// ```
///
/// # Errors
/// [`Error::ShapeMismatch`] when the three do not go together; [`Error::DTypeMismatch`] of a file whose elements are no `T`;
/// [`Error::Unsupported`] on a strict device that has no `T`; [`Error::TooLarge`] for sizes that overflow,
/// [`Error::InvalidArgument`] for more than 2^55 multiply-adds; [`Error::OutOfMemory`] when not even
/// tiles of 16 rows and columns fit (or all, where there are fewer); what sources and target say; a wait over its limit, a lost device. Part of the
/// target may be written then; the device holds nothing of it.
pub fn matmul_streamed<T: Element + bytemuck::Pod>(
    device: &Device,
    a: &mut (impl MatrixSource<T> + ?Sized),
    b: &mut (impl MatrixSource<T> + ?Sized),
    c: &mut (impl MatrixTarget<T> + ?Sized),
) -> Result<Streamed> {
    let ([m, k], [inner, n]) = (a.shape(), b.shape());
    let mismatch = |left: [usize; 2], right: [usize; 2], rule| {
        Error::shape_mismatch(OP, &Shape::from(left), &Shape::from(right), rule)
    };
    if k != inner {
        let rule = "the columns of the first must be as many as the rows of the second";
        return Err(mismatch([m, k], [inner, n], rule));
    }
    if c.shape() != [m, n] {
        let rule = "the result has the rows of the first and the columns of the second";
        return Err(mismatch([m, n], c.shape(), rule));
    }
    for sizes in [[m, k], [k, n]] {
        Shape::from(sizes).count(OP)?;
    }
    check_work(OP, Shape::from([m, n]).count(OP)?, k)?;
    if let Some(gpu) = device.gpu() {
        gpu.takes_larger_share();
    }
    let statistics = device.memory();
    let left = match statistics.limit {
        Some(limit) => {
            // A budget may be above what there is; what regions have beside tensors is there.
            let there = device.adapter_ledger().memory_free.unwrap_or(u64::MAX);
            let there = there.saturating_add(statistics.reserved - statistics.allocated);
            let free = limit.saturating_sub(statistics.allocated).min(there);
            let spillable = device.gpu().map_or(0, |gpu| gpu.spillable());
            // Not all that may go to the host has to: tiles of half as much are as fast.
            free.max(free.saturating_add(spillable) / 2)
        }
        None => UNLIMITED,
    };
    let element = T::DTYPE.accumulator().size() as u64;
    let quantum = QUANTUM / element;
    let most = device.capabilities().max_buffer_bytes / element;
    let mut room = left / 4 * 3 / element;
    if T::DTYPE != T::DTYPE.accumulator() {
        // An operand is there as it came, too, while it is widened.
        room = room / 3 * 2;
    }
    if m == 0 || n == 0 {
        // However long the other sides are.
        return Ok(Streamed {
            tile: tile([m, k, n], room, most, quantum),
            uploaded: 0,
            downloaded: 0,
        });
    }
    loop {
        let mut run = Run {
            device,
            tile: tile([m, k, n], room, most, quantum),
            buffer: Vec::new(),
            streamed: Streamed {
                tile: [0; 3],
                uploaded: 0,
                downloaded: 0,
            },
            coming: None,
            wrote: false,
        };
        let result = run.run([m, k, n], a, b, c);
        if let Some(coming) = run.coming.take() {
            // It failed: nothing of it is on the device when this returns.
            let _ = coming.elements.wait();
        }
        match result {
            // Others use the device, too: with smaller tiles, as long as nothing is written.
            Err(Error::OutOfMemory(_)) if !run.wrote && run.tile != smallest([m, k, n]) => {
                room /= 2;
            }
            Err(error) => return Err(error),
            Ok(()) => return Ok(run.streamed),
        }
    }
}

/// The tile that is tried where none fits: the device says whether it does.
fn smallest(sizes: [usize; 3]) -> [usize; 3] {
    sizes.map(|size| size.clamp(1, SMALL))
}

/// The largest tile for which operands, sums, a product and their sum fit `room` elements, each in whole quanta and none
/// of more than `most`; the smallest where none does.
fn tile([m, k, n]: [usize; 3], room: u64, most: u64, quantum: u64) -> [usize; 3] {
    let taken = |[m, k, n]: [usize; 3]| {
        let elements = |rows: usize, columns: usize| {
            let quanta = (rows as u128 * columns as u128).div_ceil(u128::from(quantum));
            quanta.saturating_mul(u128::from(quantum))
        };
        let product = elements(m, n).saturating_mul(3);
        product
            .saturating_add(elements(m, k))
            .saturating_add(elements(k, n))
    };
    let is_over =
        |rows: usize, columns: usize| rows as u128 * columns as u128 > u128::from(most.max(1));
    let smallest = smallest([m, k, n]);
    let mut tile = [m, k, n].map(|size| size.max(1));
    while tile != smallest {
        // n first: `a` stays then, and `b` goes up once. Not to slivers: those are slow.
        let [m, k, n] = tile;
        let at = match () {
            () if is_over(m, k) => usize::from(m < k / 16),
            () if is_over(k, n) => 2 - usize::from(n < k / 16),
            () if is_over(m, n) => 2 * usize::from(m < n),
            () if taken(tile) <= u128::from(room) => break,
            () if n > 2 * ROUND => 2,
            () if m > 4 * ROUND && m >= k / 16 => 0,
            () if k > 16 * m.max(n) => 1,
            () if m == 1 && n == 1 => 1,
            () if m >= n => 0,
            () => 2,
        };
        // What is small already stays so.
        let others = (0..3).filter(|&at| tile[at] > smallest[at]);
        let at = match tile[at] > smallest[at] {
            true => at,
            false => others.max_by_key(|&at| tile[at]).unwrap_or(at),
        };
        let half = tile[at].div_ceil(2);
        tile[at] = match half > ROUND {
            true => half / ROUND * ROUND,
            false => half.max(smallest[at]),
        };
    }
    tile
}

/// Ranges of `step` that cover `0..size`.
fn ranges(size: usize, step: usize) -> impl Iterator<Item = Range<usize>> {
    (0..size)
        .step_by(step.max(1))
        .map(move |start| start..start.saturating_add(step).min(size))
}

/// A part of the result on its way.
struct Coming<T> {
    rows: Range<usize>,
    columns: Range<usize>,
    elements: Pending<Vec<T>>,
}

struct Run<'a, T> {
    device: &'a Device,
    tile: [usize; 3],
    /// A tile on its way to staging.
    buffer: Vec<T>,
    streamed: Streamed,
    coming: Option<Coming<T>>,
    wrote: bool,
}

impl<T: Element + bytemuck::Pod> Run<'_, T> {
    fn run(
        &mut self,
        [m, k, n]: [usize; 3],
        a: &mut (impl MatrixSource<T> + ?Sized),
        b: &mut (impl MatrixSource<T> + ?Sized),
        c: &mut (impl MatrixTarget<T> + ?Sized),
    ) -> Result<()> {
        self.streamed.tile = self.tile;
        let [tile_m, tile_k, tile_n] = self.tile;
        for rows in ranges(m, tile_m) {
            // All of k: the band stays for all columns.
            let mut band = None;
            for columns in ranges(n, tile_n) {
                let mut sums: Option<Tensor> = None;
                for steps in ranges(k, tile_k) {
                    let left = match band.take() {
                        Some(left) => left,
                        None => self.upload(a, rows.clone(), steps.clone())?,
                    };
                    let right = self.upload(b, steps, columns.clone())?;
                    let product = self.device.scope(|| left.matmul(&right))?;
                    if tile_k >= k {
                        band = Some(left);
                    }
                    sums = Some(match sums {
                        None => product,
                        Some(sums) => self.device.scope(|| sums.add(&product))?,
                    });
                }
                let sums = match sums {
                    Some(sums) if sums.dtype() == T::DTYPE => sums,
                    Some(sums) => self.device.scope(|| sums.cast(T::DTYPE))?,
                    None => {
                        let shape = [rows.len(), columns.len()];
                        Tensor::zeros(self.device, shape, T::DTYPE)?
                    }
                };
                let next = Coming {
                    rows: rows.clone(),
                    columns,
                    elements: sums.to_vec_async(),
                };
                drop(sums);
                // The one before, while this one is computed.
                if let Some(before) = self.coming.replace(next) {
                    self.finish(before, c)?;
                }
                // Where there may be no room for two, each comes by itself: what fits once fits to the end.
                if self.tile == smallest([m, k, n])
                    && let Some(only) = self.coming.take()
                {
                    self.finish(only, c)?;
                }
            }
        }
        match self.coming.take() {
            Some(last) => self.finish(last, c),
            None => Ok(()),
        }
    }

    /// A tile on the device, in the type that sums are kept in.
    fn upload(
        &mut self,
        source: &mut (impl MatrixSource<T> + ?Sized),
        rows: Range<usize>,
        columns: Range<usize>,
    ) -> Result<Tensor> {
        let shape = [rows.len(), columns.len()];
        let count = Shape::from(shape).count(OP)?;
        let whole = columns.len() == source.shape()[1];
        let there = match whole {
            true => source.rows(rows.clone()),
            false => None,
        };
        let tile = match there {
            Some(elements) => Tensor::from_slice(self.device, elements, shape)?,
            None => {
                if self.buffer.capacity() < count {
                    self.buffer = host_vec(OP, count)?;
                }
                self.buffer.resize(count, bytemuck::Zeroable::zeroed());
                source.read(rows, columns, &mut self.buffer)?;
                Tensor::from_slice(self.device, &self.buffer, shape)?
            }
        };
        self.streamed.uploaded += (count * size_of::<T>()) as u64;
        match T::DTYPE {
            DType::F16 | DType::BF16 => self.device.scope(|| tile.cast(DType::F32)),
            _ => Ok(tile),
        }
    }

    fn finish(&mut self, coming: Coming<T>, c: &mut (impl MatrixTarget<T> + ?Sized)) -> Result<()> {
        let elements = coming.elements.wait()?;
        self.wrote = true;
        self.streamed.downloaded += size_of_val(&elements[..]) as u64;
        c.write(coming.rows, coming.columns, &elements)
    }
}

#[cfg(test)]
mod tests {
    use super::tile;

    #[test]
    fn tiles_fit_and_are_no_slivers() {
        for sizes in [
            [10_000, 10_000, 10_000],
            [100_000, 64, 100_000],
            [64, 1 << 30, 64],
            [1, 5, 1],
        ] {
            for room in [1u64 << 12, 1 << 16, 1 << 20, 1 << 26, 1 << 34] {
                let [m, k, n] = tile(sizes, room, u64::MAX, 64);
                let taken: u128 = [(m, k), (k, n), (m, n), (m, n), (m, n)]
                    .map(|(rows, columns)| (rows as u128 * columns as u128).next_multiple_of(64))
                    .iter()
                    .sum();
                assert!(taken <= u128::from(room), "{sizes:?} {room}: {m}x{k}x{n}");
                assert!(taken >= u128::from(room / 16) || [m, k, n] == sizes);
            }
        }
        // Much room, but no buffer as large as an operand or the result.
        for sizes in [
            [20_000, 1, 20_000],
            [1 << 30, 1, 1],
            [1, 1 << 30, 1],
            [40_000; 3],
        ] {
            let most = 1 << 28;
            let [m, k, n] = tile(sizes, 1 << 40, most, 64);
            let largest = (m * k).max(k * n).max(m * n) as u64;
            assert!(largest <= most && largest > most / 4, "{m}x{k}x{n}");
        }
        // Nothing fits: the smallest, and the device says so.
        assert_eq!(tile([8, 800, 1], 0, u64::MAX, 64), [8, 16, 1]);
        assert_eq!(tile([1000; 3], 0, u64::MAX, 64), [16; 3]);
        assert_eq!(tile([1000; 3], u64::MAX, 1, 64), [16; 3]);
        assert!(
            tile([usize::MAX; 3], 1 << 20, 1 << 30, 64)
                .iter()
                .all(|&size| size < 1 << 20)
        );
    }
}
