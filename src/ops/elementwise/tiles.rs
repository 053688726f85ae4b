//! Inputs on the CPU that lie transposed: tiles of them are turned into memory that stays in a near cache, and what is
//! computed of them goes row by row of a tile. Element by element each would come from another page.

use std::ops::Range;

use bytemuck::{cast_slice, cast_slice_mut};
use smallvec::SmallVec;

use crate::cpu::parallel;
use crate::cpu::stores::{LINE, Stores};
use crate::cpu::transpose::Transposed;
use crate::dtype::by_size;
use crate::road::HostInput;

/// Elements that the nearest caches hold in any order.
const FEW: usize = 4096;
/// Bytes of a tile.
const BYTES: usize = 256 << 10;
/// Bytes along which wide ones are read, one column after the other.
const READ: usize = 256;
/// Elements that are work enough for a thread.
const PIECE: usize = 16 << 10;
/// Columns below which rows of tiles, computed one by one, take longer than elements gathered one by one.
const SHORT: usize = 128;

/// How outputs are cut into tiles: bands of rows that follow each other, and of these the columns at one place of the
/// axes between.
pub(super) struct Tiles {
    /// Of each input that lies transposed along one axis, the same for all of them.
    ways: SmallVec<[Option<Transposed>; 3]>,
    rows: usize,
    columns: usize,
    /// Elements from a row to the next one.
    pitch: usize,
    /// Of a tile, at most.
    height: usize,
    width: usize,
    /// Bytes of the inputs' largest elements.
    size: usize,
}

impl Tiles {
    /// `None` where no input that is read lies so, or rows are too short.
    pub(super) fn of(inputs: &[HostInput<'_>], is_read: impl Fn(usize) -> bool) -> Option<Self> {
        let may_be_turned = |(at, input): (usize, &HostInput<'_>)| {
            input.layout.elements() > FEW && !input.layout.is_contiguous() && is_read(at)
        };
        // Most have none, and small ones take no longer than ways for their inputs do.
        if !inputs.iter().enumerate().any(may_be_turned) {
            return None;
        }
        let mut ways: SmallVec<[Option<Transposed>; 3]> = inputs
            .iter()
            .enumerate()
            .map(|(at, input)| {
                may_be_turned((at, input))
                    .then(|| Transposed::by_rows(input.layout))
                    .flatten()
            })
            .collect();
        let first = ways.iter().position(Option::is_some)?;
        let (before, others) = ways.split_at_mut(first + 1);
        let of_first = before.last()?.as_ref()?;
        for way in others {
            *way = way.take().filter(|way| way.is_like(of_first));
        }
        let (rows, columns, pitch) = (of_first.rows(), of_first.columns(), of_first.pitch());
        let turned = ways.iter().zip(inputs).filter(|(way, _)| way.is_some());
        let size = turned.map(|(_, input)| input.dtype.size()).max()?;
        let widest = BYTES / READ;
        let (height, width) = match columns == pitch && columns <= widest {
            // Whole rows, which follow each other.
            true => (BYTES / size / columns, columns),
            false => (READ / size, columns.min(widest)),
        };
        // Each thread gets some, in whole squares.
        let outer = inputs[first].layout.elements() / (rows * pitch);
        let shares = (2 * parallel::width()).div_ceil(outer);
        let shared = rows.div_ceil(shares).next_multiple_of(LINE / size);
        let is_short = width < SHORT && width < pitch;
        (!is_short).then_some(Self {
            ways,
            rows,
            columns,
            pitch,
            height: height.min(shared),
            width,
            size,
        })
    }

    /// Hands parts of `out`, elements of `size` bytes, to `work`, with the number of their first element: whole bands.
    pub(super) fn share(
        &self,
        out: &mut [u8],
        size: usize,
        work: impl Fn(usize, &mut [u8]) + Sync,
    ) {
        let (band, whole) = (self.height * self.pitch, self.rows * self.pitch);
        // Many small matrices, or one that is large by parts.
        let group = whole * (PIECE / whole).max(1);
        let part = match whole < group {
            true => group,
            false => band * (PIECE / band).max(1),
        };
        let is_much = out.len() / size > parallel::PARALLEL;
        let groups = out.chunks_mut(group * size).enumerate();
        let parts = groups.flat_map(|(at, out)| {
            let parts = out.chunks_mut(part * size).enumerate();
            parts.map(move |(of_group, out)| (at * group + of_group * part, out))
        });
        parallel::share(is_much, parts, |(first, out)| work(first, out));
    }

    /// Rows of the band that begins with the `first` element.
    fn rows(&self, first: usize) -> usize {
        self.height.min(self.rows - first / self.pitch % self.rows)
    }

    /// Its elements.
    pub(super) fn band(&self, first: usize) -> usize {
        self.rows(first) * self.pitch
    }

    /// The tiles of a band: which place of the axes between rows and columns, and which columns.
    pub(super) fn places(&self) -> impl Iterator<Item = (usize, Range<usize>)> {
        let starts = move || (0..self.columns).step_by(self.width);
        (0..self.pitch / self.columns).flat_map(move |middle| {
            starts().map(move |start| (middle, start..self.columns.min(start + self.width)))
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
}

impl<'a> Tile<'a> {
    pub(super) fn new(tiles: &'a Tiles) -> Self {
        let memory = tiles.ways.iter().map(|way| match way {
            Some(_) => {
                let bytes = tiles.width * tiles.height.min(tiles.rows) * tiles.size;
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
        self.first = first + middle * self.tiles.columns + columns.start;
        (self.rows, self.width) = (self.tiles.rows(first), columns.len());
        let lines = Stores::Plain.lines();
        let all = self.tiles.ways.iter().zip(inputs).zip(&mut self.memory);
        for ((way, input), memory) in all {
            let Some(way) = way else { continue };
            let band = way.band(first, self.rows);
            let matrix = way.matrix(&band, middle, columns.clone());
            by_size!(input.dtype, Bits => {
                let memory = cast_slice_mut::<_, Bits>(memory);
                matrix.copy(cast_slice(input.bytes), (memory, columns.len()), &lines)
            });
        }
    }

    /// Its elements that are neighbours in the output too, at most so many: the first one's number there, and how many.
    pub(super) fn runs(&self, most: usize) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (runs, length) = match self.width == self.tiles.pitch {
            true => (1, self.rows * self.width),
            false => (self.rows, self.width),
        };
        let (first, pitch) = (self.first, self.tiles.pitch);
        (0..runs).flat_map(move |run| {
            let starts = (0..length).step_by(most);
            starts.map(move |at| (first + run * pitch + at, most.min(length - at)))
        })
    }

    /// The bytes of an input's elements from the output's `from`th on, all of one run.
    pub(super) fn values(&self, input: usize, from: usize, count: usize, size: usize) -> &[u8] {
        let (row, column) = (
            (from - self.first) / self.tiles.pitch,
            (from - self.first) % self.tiles.pitch,
        );
        let start = (row * self.width + column) * size;
        &cast_slice(&self.memory[input])[start..start + count * size]
    }
}
