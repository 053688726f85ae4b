//! Inputs on the CPU whose elements do not follow each other: block by block in memory that stays in the nearest cache, or
//! where they lie.

use bytemuck::{cast_slice, cast_slice_mut};
use half::{bf16, f16};

use super::function::Kind;
use crate::cpu::parallel::Walk;
use crate::cpu::{self, narrow};
use crate::dtype::{DType, by_size};
use crate::road::HostInput;

/// A block of values of any kind, aligned for all of them.
pub(super) type Register = Vec<u64>;

/// Beside a block's values: else registers lie pages apart, and a processor that compares the ends of
/// addresses takes loads from one for loads of what it just stored to another.
pub(super) const APART: usize = 32;

/// An input and its values in a block.
pub(super) struct Walked<'a> {
    input: &'a HostInput<'a>,
    walk: Walk,
    /// After how many elements the same come again, if these are few: they are kept so often that from each of them on there
    /// is a block.
    period: Option<usize>,
    /// Where in the input the block's begin that are read there.
    start: Option<usize>,
    values: Register,
    /// Bits of elements before they are widened.
    raw: Register,
}

impl<'a> Walked<'a> {
    /// For blocks of `most` elements.
    pub(super) fn new(input: &'a HostInput<'a>, most: usize) -> Self {
        let walk = Walk::new(&[input.layout]);
        let period = walk.period().filter(|&period| period <= most);
        let repeated = period.unwrap_or(0);
        let raw = if is_narrow(input.dtype) { most } else { 0 };
        let mut walked = Self {
            input,
            walk,
            period,
            start: None,
            values: vec![0; most + repeated + APART],
            raw: vec![0; raw],
        };
        if repeated > 0 {
            walked.gather(0, repeated);
            let size = Kind::of(input.dtype).bytes();
            let values: &mut [u8] = cast_slice_mut(&mut walked.values);
            let (mut done, all) = (repeated * size, (repeated + most) * size);
            while done < all {
                let count = done.min(all - done);
                values.copy_within(..count, done);
                done += count;
            }
        }
        walked
    }

    /// Makes ready the block of `count` elements from `from` on.
    pub(super) fn load(&mut self, from: usize, count: usize) {
        if self.period.is_some() {
            return;
        }
        let dtype = self.input.dtype;
        let straight = self.walk.straight(from, count);
        self.start = straight.filter(|_| !is_narrow(dtype));
        match straight {
            None => self.gather(from, count),
            Some(first) if is_narrow(dtype) => {
                let elements = self.input.bytes_of(first, count);
                widen(dtype, elements, cast_slice_mut(&mut self.values));
            }
            Some(_) => {}
        }
    }

    fn gather(&mut self, from: usize, count: usize) {
        let dtype = self.input.dtype;
        let into = if is_narrow(dtype) {
            &mut self.raw
        } else {
            &mut self.values
        };
        by_size!(dtype, Bits => {
            let into = &mut cast_slice_mut(into)[..count];
            gather::<Bits>(&self.walk, (self.input.elements(), 0), from, into);
        });
        if is_narrow(dtype) {
            let elements = &cast_slice(&self.raw)[..count * dtype.size()];
            widen(dtype, elements, cast_slice_mut(&mut self.values));
        }
    }

    /// Those of the block that was made ready.
    pub(super) fn values(&self, from: usize, count: usize) -> &[u8] {
        if let Some(first) = self.start {
            return self.input.bytes_of(first, count);
        }
        let values: &[u8] = cast_slice(&self.values);
        let size = Kind::of(self.input.dtype).bytes();
        let first = self.period.map_or(0, |period| from % period);
        &values[first * size..][..count * size]
    }
}

pub(super) fn is_narrow(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

/// Halves as f32.
pub(super) fn widen(dtype: DType, elements: &[u8], target: &mut [f32]) {
    match dtype {
        DType::F16 => narrow::widen::<f16>(cast_slice(elements), target),
        _ => narrow::widen::<bf16>(cast_slice(elements), target),
    }
}

/// Elements of a view from `from` on, as many as `into` holds; `elements` begin with the storage's `base`th.
pub(super) fn gather<T: bytemuck::Pod>(
    walk: &Walk,
    (elements, base): (&[T], usize),
    from: usize,
    into: &mut [T],
) {
    walk.blocks(from, into.len(), &mut |block| {
        let at = block.grids[0].after(base);
        cpu::copy_block(block, (elements, at), (into, block.in_order()));
    });
}
