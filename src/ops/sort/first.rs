//! The first elements of long lines on hardware: those of every tile that a workgroup sorts, and then the first of these. So
//! a line is read once, not once for each digit.

use super::{Sort, kernel};
use crate::dtype::DType;
use crate::error::Result;
use crate::layout::SliceRange;
use crate::road;
use crate::shape::Dims;
use crate::tensor::Tensor;

/// Of a tile at most one in so many is kept: what is left is sorted again.
const SPARSE: usize = 4;

/// Ways to cut a line that are tried for one without a rest.
const TRIED: usize = 64;

/// How lines are cut: so many tiles of a size, and what is left behind them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tiles {
    count: usize,
    size: usize,
    rest: usize,
}

impl Tiles {
    /// `None` where a line is no longer than a tile of `most` elements, or too much of a tile is kept.
    fn of(size: usize, kept: usize, most: usize) -> Option<Self> {
        if size <= most || kept == 0 || kept > most / SPARSE {
            return None;
        }
        // Without a rest lines are read as they lie.
        let least = size.div_ceil(most);
        let mut counts = (least..=2 * size / most).take(TRIED);
        let even = counts.find(|&count| size.is_multiple_of(count));
        let count = even.unwrap_or(size / most);
        let tile = even.map_or(most, |count| size / count);
        Some(Self {
            count,
            size: tile,
            rest: size - count * tile,
        })
    }
}

/// Where the first elements of lines are, which lie along the last axis.
pub(super) fn places(sort: &Sort, lines: &Tensor) -> Result<Tensor> {
    let Some(tiles) = tiles(sort, lines)? else {
        return road::run(sort, &[lines]);
    };
    let last = lines.rank() - 1;
    let candidates = candidates(sort, lines, tiles)?;
    let again = places(sort, &lines.gather(last, &candidates)?)?;
    candidates.gather(last, &again)
}

/// Where the first elements of all tiles are, in the order of the line where they are equal.
fn candidates(sort: &Sort, lines: &Tensor, tiles: Tiles) -> Result<Tensor> {
    let last = lines.rank() - 1;
    let Tiles { count, size, rest } = tiles;
    let sized = |inner: &[usize]| -> Dims {
        let outer = &lines.shape()[..last];
        outer.iter().chain(inner).copied().collect()
    };
    // Of a part of each line, the same of every tile.
    let found = |from: usize, tiles: [usize; 2]| {
        let mut ranges = vec![SliceRange::from(..); lines.rank()];
        ranges[last] = SliceRange::from(from..from + tiles[0] * tiles[1]);
        let part = lines.slice(&ranges[..])?.reshape(&sized(&tiles)[..])?;
        let kept = sort.kept.map(|kept| kept.min(tiles[1]));
        road::run(&Sort { kept, ..*sort }, &[&part.contiguous_for(sort.op)?])
    };
    let of_tiles = found(0, [count, size])?;
    let (home, whole) = (of_tiles.device(), (count * size) as i64);
    let firsts = Tensor::arange(home, 0, whole, size as i64, DType::U32)?;
    // From places in tiles to those in lines.
    of_tiles.add_assign(&firsts.reshape([count, 1])?)?;
    drop(firsts);
    let flat = |places: &Tensor| {
        let of_line = places.shape()[last..].iter().product();
        places.reshape(&sized(&[of_line])[..])
    };
    if rest == 0 {
        return flat(&of_tiles);
    }
    let behind = found(count * size, [1, rest])?;
    behind.add_assign(whole)?;
    Tensor::concat(&[&flat(&of_tiles)?, &flat(&behind)?], last)
}

/// The tiles that lines are cut into, where kernels sort what is kept of them.
fn tiles(sort: &Sort, lines: &Tensor) -> Result<Option<Tiles>> {
    let (Some(kept), Some(&size)) = (sort.kept, lines.shape().last()) else {
        return Ok(None);
    };
    let home = road::home(sort.op, &[lines])?;
    if home.is_cpu() || lines.elements() == 0 || lines.device() != &home {
        return Ok(None);
    }
    // Before sizes are reckoned with.
    road::check(sort, &[lines], None)?;
    let most = kernel::tile(lines.dtype(), home.capabilities());
    Ok(most.and_then(|most| Tiles::of(size, kept, most)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_are_all_of_a_line() {
        for most in [64, 2048] {
            for size in (0..5 * most).chain([20_000, 128_000, 1 << 20, 999_983]) {
                for kept in [0, 1, most / SPARSE, most / SPARSE + 1] {
                    let Some(tiles) = Tiles::of(size, kept, most) else {
                        assert!(size <= most || kept == 0 || kept > most / SPARSE);
                        continue;
                    };
                    assert_eq!(tiles.count * tiles.size + tiles.rest, size);
                    assert!(tiles.size <= most && 2 * tiles.size >= most);
                    assert!(tiles.rest < most && kept <= tiles.size / 2);
                    // So that there is an end.
                    assert!(tiles.count * kept + kept.min(tiles.rest) < size);
                }
            }
        }
        let tiles = |count, size, rest| Some(Tiles { count, size, rest });
        assert_eq!(Tiles::of(128_000, 50, 2048), tiles(64, 2000, 0));
        assert_eq!(Tiles::of(4099, 50, 2048), tiles(2, 2048, 3));
    }
}
