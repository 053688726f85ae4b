//! A result in tiles that cores write side by side.

use smallvec::SmallVec;

use super::parallel;

/// Some rows and columns of a result.
pub(crate) struct Tile<'a, T> {
    pub row: usize,
    pub column: usize,
    pub rows: usize,
    pub columns: usize,
    /// Its entries in order: one line for each row, or all in one where they have no gaps.
    pub lines: SmallVec<[&'a mut [T]; 1]>,
}

/// Hands `work` the tiles of `c`, which is row-major without gaps, of at most this many rows and columns.
pub(crate) fn share<T: Send>(
    in_parallel: bool,
    c: &mut [T],
    n: usize,
    [rows, columns]: [usize; 2],
    work: impl Fn(Tile<'_, T>) + Sync,
) {
    let bands = c.chunks_mut(rows * n).enumerate();
    let tiles = bands.flat_map(|(band, c)| {
        let height = c.len() / n;
        let (length, part) = match columns < n {
            true => (n, columns),
            false => (c.len(), c.len()),
        };
        let mut lines: SmallVec<[&mut [T]; 1]> = c.chunks_mut(length).collect();
        (0..n).step_by(columns).map(move |column| Tile {
            row: band * rows,
            column,
            rows: height,
            columns: columns.min(n - column),
            lines: lines
                .iter_mut()
                .map(|line| {
                    let at = part.min(line.len());
                    let (part, rest) = std::mem::take(line).split_at_mut(at);
                    *line = rest;
                    part
                })
                .collect(),
        })
    });
    parallel::share(in_parallel, tiles, work);
}
