//! Inputs on the CPU that lie transposed: tiles of them are turned into memory that stays in a near cache, and what is
//! computed of them goes row by row of a tile. Element by element each would come from another page.

use std::ops::Range;

use bytemuck::{cast_slice, cast_slice_mut};
use smallvec::SmallVec;

use crate::cpu::parallel;
use crate::cpu::stores::Stores;
use crate::cpu::transpose::Transposed;
use crate::dtype::by_size;
use crate::road::HostInput;

/// Elements that the nearest caches hold in any order.
const FEW: usize = 4096;
/// Bytes of a tile, and those along which it is read, one column after the other.
const BYTES: usize = 256 << 10;
const HEIGHT: usize = 256;
/// Elements that are one piece of work.
const PIECE: usize = 64 << 10;
/// Columns below which rows of tiles are too short to be computed one by one.
const SHORT: usize = 64;

/// How outputs are cut into tiles.
pub(super) struct Tiles {
    /// Of each input that lies transposed along one axis, the same for all of them.
    ways: SmallVec<[Option<Transposed>; 3]>,
    first: usize,
    height: usize,
    width: usize,
    /// Bytes of their largest elements.
    size: usize,
}

impl Tiles {
    /// `None` where no input lies so, or rows are too short.
    pub(super) fn of(inputs: &[HostInput<'_>]) -> Option<Self> {
        let mut ways: SmallVec<[Option<Transposed>; 3]> = inputs
            .iter()
            .map(|input| {
                let is_much = input.layout.elements() > FEW && !input.layout.is_contiguous();
                is_much.then(|| Transposed::by_rows(input.layout)).flatten()
            })
            .collect();
        let first = ways.iter().position(Option::is_some)?;
        let (before, others) = ways.split_at_mut(first + 1);
        let of_first = before.last()?.as_ref()?;
        for way in others {
            *way = way.take().filter(|way| way.is_like(of_first));
        }
        let of_first = ways[first].as_ref()?;
        let turned = ways.iter().zip(inputs).filter(|(way, _)| way.is_some());
        let size = turned.map(|(_, input)| input.dtype.size()).max()?;
        let (columns, widest) = (of_first.columns(), BYTES / HEIGHT);
        let (height, width) = match columns == of_first.pitch() && columns <= widest {
            // Whole rows, which follow each other.
            true => (BYTES / size / columns, columns),
            false => (HEIGHT / size, columns.min(widest)),
        };
        let is_short = width < SHORT && width < of_first.pitch();
        (!is_short).then_some(Self {
            ways,
            first,
            height,
            width,
            size,
        })
    }

    fn way(&self) -> Option<&Transposed> {
        self.ways[self.first].as_ref()
    }

    /// Hands parts of `out`, elements of `size` bytes, to `work`, with the number of their first element: whole bands.
    pub(super) fn share(
        &self,
        out: &mut [u8],
        size: usize,
        work: impl Fn(usize, &mut [u8]) + Sync,
    ) {
        let Some(way) = self.way() else { return };
        let (band, whole) = (self.height * way.pitch(), way.rows() * way.pitch());
        // Many small matrices, or one that is large by parts.
        let group = whole * (PIECE / whole).max(1);
        let part = if whole < group {
            group
        } else {
            band * (PIECE / band).max(1)
        };
        let is_much = out.len() / size > parallel::PARALLEL;
        let parts = out
            .chunks_mut(group * size)
            .enumerate()
            .flat_map(|(at, out)| {
                let parts = out.chunks_mut(part * size).enumerate();
                parts.map(move |(of_group, out)| (at * group + of_group * part, out))
            });
        parallel::share(is_much, parts, |(first, out)| work(first, out));
    }

    /// Elements of the band that begins with the `first`.
    pub(super) fn band(&self, first: usize) -> usize {
        self.way()
            .map_or(0, |way| way.band(first, self.height).rows * way.pitch())
    }

    /// The tiles of a band: which place of the axes between rows and columns, and which columns.
    pub(super) fn places(&self) -> impl Iterator<Item = (usize, Range<usize>)> {
        let (columns, middles) = self
            .way()
            .map_or((0, 0), |way| (way.columns(), way.middles()));
        let width = self.width;
        let starts = move || (0..columns).step_by(width);
        (0..middles).flat_map(move |middle| {
            starts().map(move |start| (middle, start..columns.min(start + width)))
        })
    }
}

/// One tile of inputs.
pub(super) struct Tile<'a> {
    tiles: &'a Tiles,
    /// Of each input, aligned for all dtypes.
    memory: SmallVec<[Vec<u64>; 3]>,
    /// Which element of the output its first one is.
    first: usize,
    rows: usize,
    width: usize,
    pitch: usize,
}

impl<'a> Tile<'a> {
    pub(super) fn new(tiles: &'a Tiles) -> Self {
        let memory = tiles.ways.iter().map(|way| match way {
            Some(way) => {
                let bytes = tiles.width * tiles.height.min(way.rows()) * tiles.size;
                vec![0; bytes.div_ceil(size_of::<u64>())]
            }
            None => Vec::new(),
        });
        Self {
            memory: memory.collect(),
            tiles,
            first: 0,
            rows: 0,
            width: 1,
            pitch: 1,
        }
    }

    pub(super) fn has(&self, input: usize) -> bool {
        self.tiles.ways[input].is_some()
    }

    /// Turns the inputs' part of the band that begins with the `first` element.
    pub(super) fn turn(
        &mut self,
        inputs: &[HostInput<'_>],
        first: usize,
        (middle, columns): (usize, Range<usize>),
    ) {
        let Some(way) = self.tiles.way() else { return };
        let band = way.band(first, self.tiles.height);
        self.pitch = way.pitch();
        self.first = first + middle * way.columns() + columns.start;
        (self.rows, self.width) = (band.rows, columns.len());
        let lines = Stores::Plain.lines();
        let all = self.tiles.ways.iter().zip(inputs).zip(&mut self.memory);
        for ((way, input), memory) in all {
            let Some(way) = way else { continue };
            let matrix = way.matrix(&band, middle, columns.clone());
            by_size!(input.dtype, Bits => {
                let memory = cast_slice_mut::<_, Bits>(memory);
                matrix.copy(cast_slice(input.bytes), (memory, columns.len()), &lines)
            });
        }
    }

    /// Its elements that are neighbours in the output too, at most so many: the first one's number there, and how many.
    pub(super) fn runs(&self, most: usize) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (runs, length) = match self.width == self.pitch {
            true => (1, self.rows * self.width),
            false => (self.rows, self.width),
        };
        let (first, pitch) = (self.first, self.pitch);
        (0..runs).flat_map(move |run| {
            let starts = (0..length).step_by(most);
            starts.map(move |at| (first + run * pitch + at, most.min(length - at)))
        })
    }

    /// The bytes of an input's elements from the output's `from`th on, all of one run.
    pub(super) fn values(&self, input: usize, from: usize, count: usize, size: usize) -> &[u8] {
        let (row, column) = (
            (from - self.first) / self.pitch,
            (from - self.first) % self.pitch,
        );
        let start = (row * self.width + column) * size;
        &cast_slice(&self.memory[input])[start..start + count * size]
    }
}
