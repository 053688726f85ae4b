//! Norms on the CPU of rows with few elements: many rows side by side, so that vectors go across them. They are worked on
//! in tiles, which lie in the first cache, with an element of each row after the other.

use super::Norm;
use super::cpu::{ENOUGH, Norms};
use crate::cpu::{Loops, parallel, vectorised};
use crate::error::Result;
use crate::ops::reduce::{Float, Lanes, Made, Space};

/// Elements of a row up to which its sums are one chain.
const LONGEST: usize = 64;
/// The same where an element of each row is in another part of the output: so many parts are written at once.
const PARTS: usize = 16;
/// Elements of a tile, and rows of it at most.
const TILE: usize = 4096;
const MOST: usize = Lanes::APART;

/// A part of the output that has whole rows and whose neighbours are in the same place of theirs.
#[derive(Clone, Copy)]
pub(super) struct Block {
    /// Elements of a row.
    length: usize,
    /// Elements from one of a row to the next one: the rows of a block.
    pitch: usize,
}

impl Block {
    /// `None` where rows are long, or the output's neighbours are those of several axes with others between them.
    pub(super) fn of<W>(norms: &Norms<'_, W>, are_rows_together: bool) -> Option<Self> {
        let (shape, axes) = (norms.layout.shape(), &norms.op.along.axes);
        let is_row = |axis: &usize| shape[*axis] > 1 && axes.contains(axis);
        let is_between = |axis: usize| shape[axis] > 1 && !axes.contains(&axis);
        let all = 0..shape.rank();
        let length = norms.length;
        let (Some(first), Some(last)) = (all.clone().find(is_row), all.clone().rev().find(is_row))
        else {
            // Rows of one element, one after the other.
            return Some(Self { length, pitch: 1 });
        };
        let pitch = all.skip(last + 1).map(|axis| shape[axis]).product();
        let is_short = match norms.op.what {
            // Rows one after the other fill vectors sooner where they are read fewer times.
            Norm::Rms if are_rows_together => length < 8,
            Norm::Softmax | Norm::LogSoftmax if are_rows_together => length < 24,
            Norm::Layer if are_rows_together => length < 32,
            _ if length * pitch > ENOUGH => length <= PARTS,
            _ => length <= LONGEST,
        };
        (is_short && !(first..last).any(is_between)).then_some(Self { length, pitch })
    }
}

pub(super) fn beside<W: Float>(
    norms: &Norms<'_, W>,
    space: &Space,
    block: Block,
    out: &mut [u8],
) -> Result<()> {
    let Block { length, pitch } = block;
    let (size, made) = (norms.size, norms.made);
    let is_much = out.len() / size > parallel::PARALLEL;
    let tiles = |first: usize, rows: usize, out: Out<'_, '_, W>| {
        vectorised(Tiles {
            norms,
            space,
            block,
            first,
            rows,
            out,
        });
    };
    if length * pitch <= ENOUGH {
        let blocks = ENOUGH / (length * pitch);
        let pieces = out.chunks_mut(blocks * length * pitch * size).enumerate();
        parallel::share(is_much, pieces, |(at, piece)| {
            made(piece, &mut |out| {
                let rows = out.len() / length;
                tiles(at * blocks * pitch, rows, Out::Blocks(out));
            });
        });
        return Ok(());
    }
    // Parts of one block: as many pieces of the output as a row has elements.
    let width = ENOUGH.div_ceil(length).next_multiple_of(MOST);
    let blocks = out.chunks_mut(length * pitch * size).enumerate();
    let pieces = blocks.flat_map(|(at, block)| {
        let lines = block.chunks_mut(pitch * size);
        let mut lines: Vec<_> = lines.map(|line| line.chunks_mut(width * size)).collect();
        (0..pitch).step_by(width).map(move |from| {
            let parts: Vec<&mut [u8]> = lines.iter_mut().filter_map(Iterator::next).collect();
            (at * pitch + from, width.min(pitch - from), parts)
        })
    });
    parallel::share(is_much, pieces, |(first, rows, mut lines)| {
        let lines = &mut lines;
        tiles(first, rows, Out::Lines { lines, made, size });
    });
    Ok(())
}

/// Where results go.
enum Out<'a, 'b, W> {
    /// Whole blocks.
    Blocks(&'a mut [W]),
    /// Of one block, an element of each row in each.
    Lines {
        lines: &'a mut [&'b mut [u8]],
        made: Made<W>,
        size: usize,
    },
}

/// Rows from the `first` on.
struct Tiles<'a, 'b, W> {
    norms: &'a Norms<'a, W>,
    space: &'a Space,
    block: Block,
    first: usize,
    rows: usize,
    out: Out<'a, 'b, W>,
}

impl<W: Float> Loops for Tiles<'_, '_, W> {
    const WIDEST: bool = true;

    #[inline(always)]
    fn run<const FUSED: bool>(mut self) {
        let most = (TILE / self.block.length).min(MOST);
        let mut lanes = Lanes::default();
        let (mut buffer, mut tile) = (Vec::new(), Vec::new());
        let mut done = 0;
        while done < self.rows {
            let left = (self.rows - done).min(most);
            let count = lanes.take(self.space, self.first + done, left);
            tile.resize(count * self.block.length, W::ZERO);
            for (at, line) in tile.chunks_exact_mut(count).enumerate() {
                let from = self.space.along(at);
                line.copy_from_slice(lanes.row(self.norms.data, from, &mut buffer));
            }
            match self.norms.op.what {
                Norm::Softmax | Norm::LogSoftmax => self.softmax::<FUSED>(&mut tile, count),
                Norm::Layer | Norm::Rms => self.scaled(&mut tile, count),
            }
            self.write(&tile, done, count);
            done += count;
        }
    }
}

impl<W: Float> Tiles<'_, '_, W> {
    #[inline(always)]
    fn softmax<const FUSED: bool>(&self, tile: &mut [W], count: usize) {
        let mut tops = [W::of(f64::NEG_INFINITY); MOST];
        let mut sums = [W::ZERO; MOST];
        let (tops, sums) = (&mut tops[..count], &mut sums[..count]);
        for line in tile.chunks_exact(count) {
            for (top, &x) in tops.iter_mut().zip(line) {
                *top = if x > *top { x } else { *top };
            }
        }
        let is_log = self.norms.op.what == Norm::LogSoftmax;
        for line in tile.chunks_exact_mut(count) {
            for ((x, sum), &top) in line.iter_mut().zip(&mut *sums).zip(&*tops) {
                let share = (*x - top).exp_below::<FUSED>();
                *sum = *sum + share;
                *x = if is_log { *x - top } else { share };
            }
        }
        if is_log {
            for sum in &mut *sums {
                *sum = sum.ln::<FUSED>();
            }
        } else {
            for sum in &mut *sums {
                *sum = W::ONE / *sum;
            }
        }
        for line in tile.chunks_exact_mut(count) {
            for (x, &sum) in line.iter_mut().zip(&*sums) {
                *x = if is_log { *x - sum } else { *x * sum };
            }
        }
    }

    /// In f64, where no square of a narrower float goes over or under, and from a mean that is mended once.
    #[inline(always)]
    fn scaled(&self, tile: &mut [W], count: usize) {
        let is_centred = self.norms.op.what == Norm::Layer;
        let (each, epsilon) = (1.0 / self.block.length as f64, self.norms.op.epsilon);
        let mut means = [0.0; MOST];
        let mut rests = [0.0; MOST];
        let mut factors = [0.0; MOST];
        let (means, rests) = (&mut means[..count], &mut rests[..count]);
        let factors = &mut factors[..count];
        if is_centred {
            let first = &tile[..count];
            for line in tile.chunks_exact(count) {
                for ((mean, x), first) in means.iter_mut().zip(line).zip(first.chunks_exact(1)) {
                    *mean += x.wider() - near(first).wider();
                }
            }
            for (mean, first) in means.iter_mut().zip(first.chunks_exact(1)) {
                *mean = near(first).wider() + *mean * each;
            }
        }
        for line in tile.chunks_exact(count) {
            let all = line.iter().zip(&*means);
            for ((x, mean), (rest, square)) in all.zip(rests.iter_mut().zip(&mut *factors)) {
                let apart = x.wider() - mean;
                *rest += apart;
                *square += apart * apart;
            }
        }
        for (rest, factor) in rests.iter_mut().zip(&mut *factors) {
            *rest = if is_centred { *rest * each } else { 0.0 };
            let square = *factor * each - *rest * *rest;
            let square = if square < 0.0 { 0.0 } else { square };
            *factor = 1.0 / (square + epsilon).sqrt();
        }
        let of = |of: Option<&[W]>, at: usize, none: W| of.map_or(none, |all| all[at]);
        for (at, line) in tile.chunks_exact_mut(count).enumerate() {
            let weight = of(self.norms.weight, at, W::ONE);
            let bias = of(self.norms.bias, at, W::of(-0.0));
            let all = line.iter_mut().zip(&*means);
            for ((x, mean), (rest, factor)) in all.zip(rests.iter().zip(&*factors)) {
                let normal = W::of(((x.wider() - mean) - rest) * factor);
                *x = normal * weight + bias;
            }
        }
    }

    #[inline(always)]
    fn write(&mut self, tile: &[W], done: usize, count: usize) {
        let Block { length, pitch } = self.block;
        match &mut self.out {
            Out::Lines { lines, made, size } => {
                for (line, from) in lines.iter_mut().zip(tile.chunks_exact(count)) {
                    let to = &mut line[done * *size..(done + count) * *size];
                    made(to, &mut |out| out.copy_from_slice(from));
                }
            }
            Out::Blocks(out) if pitch == 1 => {
                let out = &mut out[done * length..][..count * length];
                for (at, line) in tile.chunks_exact(count).enumerate() {
                    for (row, &x) in out.chunks_exact_mut(length).zip(line) {
                        row[at] = x;
                    }
                }
            }
            Out::Blocks(out) => {
                // Run by run: the rows of one block.
                let mut row = 0;
                while row < count {
                    let (block, first) = ((done + row) / pitch, (done + row) % pitch);
                    let run = (pitch - first).min(count - row);
                    let out = &mut out[block * length * pitch..][..length * pitch];
                    let lines = out.chunks_exact_mut(pitch).zip(tile.chunks_exact(count));
                    for (line, from) in lines {
                        for (to, &x) in line[first..first + run].iter_mut().zip(&from[row..]) {
                            *to = x;
                        }
                    }
                    row += run;
                }
            }
        }
    }
}

/// What elements are summed without: a sum of f64 may go over where their distances do not, wider ones of narrower floats do
/// not. The mean is mended afterwards.
#[inline(always)]
fn near<W: Float>(x: &[W]) -> W {
    match x.first() {
        Some(&first) if !W::IS_WIDENED => first,
        _ => W::ZERO,
    }
}
