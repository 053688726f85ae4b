//! Sums that go through scratch in f32: parts of k side by side, where a product has too few tiles
//! for the device, and results whose elements no invocation could store on its own.

use smallvec::{SmallVec, smallvec};

use super::kernel::{packs, reduce_key};
use super::panel::{Axis, Panel};
use super::product::{A, B, C, Product, SCRATCH, sides};
use super::rule::Finish;
use crate::capabilities::{Capabilities, LONGEST_LAUNCH};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::launch::{
    Bound, Dispatch, Launch, Launches, WINDOW_ALIGNMENT, Window, Words, fold_grid,
};
use crate::shape::Dims;

const OP: &str = "matmul";
/// Steps of k of which a part has a whole number: those that kernels take at a time.
const UNIT: usize = 32;
/// Entries that an invocation of the last kernel has, and its workgroup.
const ENTRIES: usize = 4;
const THREADS: usize = 64;

/// A product as parts that write sums of f32, and what adds them up.
pub(super) struct Summed {
    /// Parts of k of one size side by side, then what is left of k.
    pub products: SmallVec<[Product; 2]>,
    pub reduce: Launches,
}

impl Product {
    /// Entries of the result that are halves of words and lie so that words belong to several
    /// invocations: `sizes` are those of panels, stored by vectors or not.
    pub(super) fn shares_words(&self, sizes: &[usize], by_vectors: bool) -> bool {
        let (_, [_, n, _]) = sides(sizes);
        // Of the whole product: a panel of one row steps by whole rows, too.
        let c = self.matrix(C, &self.nest.sizes(), 0);
        let whole = by_vectors && c.runs_along_inner() && c.width() >= 4 && n.is_multiple_of(4);
        packs(self.result) && !whole
    }

    /// The product by way of sums in scratch, k in `parts` side by side; `None` when they do not
    /// fit a binding.
    ///
    /// # Errors
    /// `InvalidArgument` when what is added spans more than a binding.
    pub(super) fn summed(
        &self,
        parts: usize,
        capabilities: &Capabilities,
    ) -> Result<Option<Summed>> {
        let rank = self.nest.axes.len();
        let entries: usize = self.nest.axes[..rank - 1]
            .iter()
            .map(|axis| axis.size)
            .product();
        let pitch = entries.next_multiple_of(ENTRIES);
        let k = self.k();
        let part = match parts {
            0 | 1 => k,
            _ => k.div_ceil(parts).next_multiple_of(UNIT).min(k),
        };
        let whole = k / part;
        let rest = k - whole * part;
        let slices = whole + usize::from(rest > 0);
        let bytes = (slices as u64).checked_mul(4 * pitch as u64);
        let bytes = bytes.and_then(|bytes| bytes.checked_next_multiple_of(WINDOW_ALIGNMENT));
        let Some(bytes) = bytes.filter(|&bytes| bytes <= self.storages.limit) else {
            return Ok(None);
        };
        let place = Window {
            offset: self.scratch(),
            bytes,
        };

        let mut sides = self.clone();
        sides.finish = Finish::NONE;
        sides.result = DType::F32.name();
        sides.sums = Some(place);
        sides.storages.bytes[C] = bytes;
        let mut last = sides.clone();
        let mut products: SmallVec<[Product; 2]> = SmallVec::new();
        let strides = self.nest.axes[rank - 1].strides;
        if whole > 1 {
            let mut step = strides.map(|stride| stride * part as isize);
            step[C] = pitch as isize;
            sides.nest.axes[rank - 1].size = part;
            let axis = Axis {
                size: whole,
                strides: step,
            };
            sides.nest.axes.insert(0, axis);
        } else {
            sides.nest.axes[rank - 1].size = part;
        }
        products.push(sides);
        if rest > 0 {
            last.nest.axes[rank - 1].size = rest;
            for operand in [A, B] {
                let start = strides[operand] * (whole * part) as isize;
                last.nest.offsets[operand] = last.nest.offsets[operand].wrapping_add_signed(start);
            }
            last.nest.offsets[C] += whole * pitch;
            products.push(last);
        }
        let reduce = self.reduce(place, slices, entries, capabilities)?;
        Ok(Some(Summed { products, reduce }))
    }

    /// Adds up `slices` of sums in scratch, finishes them and stores them as they are wanted.
    fn reduce(
        &self,
        sums: Window,
        slices: usize,
        entries: usize,
        capabilities: &Capabilities,
    ) -> Result<Launches> {
        let all: Dims = self.nest.axes.iter().map(|axis| axis.size).collect();
        let (batch, [m, n, _]) = sides(&all);
        let panel = Panel {
            starts: all.iter().map(|_| 0).collect(),
            sizes: all.clone(),
        };
        let windows = self.storages.without_factors().windows(&self.nest, &panel);
        let scratch = self.inputs.len() + SCRATCH;
        let mut operands: SmallVec<[Bound; 4]> = smallvec![Bound {
            operand: scratch,
            window: Some(sums),
        }];
        let mut slots = [0; super::panel::OPERANDS];
        for (at, &operand) in self.inputs.iter().enumerate().skip(2) {
            let joined = |&&other: &&usize| windows.joined[other] == windows.joined[operand];
            if let Some(&earlier) = self.inputs[2..at].iter().find(joined) {
                slots[operand] = slots[earlier];
                continue;
            }
            let window = windows.of[operand];
            if window.is_some_and(|window| window.bytes > self.storages.limit) {
                return Err(Error::invalid(
                    OP,
                    "what is added to the product spans more of its storage than can be bound: copy it first",
                ));
            }
            slots[operand] = operands.len() as u32;
            operands.push(Bound {
                operand: at,
                window,
            });
        }
        slots[C] = operands.len() as u32;
        operands.push(Bound::whole(self.inputs.len()));

        let fours = entries.div_ceil(ENTRIES);
        let bytes = fours as f64 * (16.0 * (slices + 1) as f64);
        let launches = (capabilities.seconds(0.0, bytes) / LONGEST_LAUNCH).ceil();
        let count = fours.div_ceil((launches as usize).max(1));
        let key = reduce_key(
            self.element,
            self.result,
            batch.len() as u32,
            slots,
            self.finish,
        );
        let mut all = Launches::new();
        for first in (0..fours).step_by(count) {
            let end = (first + count).min(fours);
            let mut words: Words = [first, end, fours, slices, m, n]
                .iter()
                .chain(batch)
                .map(|&word| word as u32)
                .collect();
            if self.finish != Finish::NONE {
                words.push((self.finish.scale as f32).to_bits());
                for &operand in self.added() {
                    let start = windows.of[operand]
                        .map_or(0, |window| window.offset / self.storages.element);
                    let offset = self.nest.offsets[operand] - start as usize;
                    let matrix = self.matrix(operand, &panel.sizes, offset);
                    let strides = [matrix.outer, matrix.inner].map(|stride| stride as u32);
                    words.push(offset as u32);
                    words.extend(strides);
                    words.extend(matrix.batch.iter().map(|&stride| stride as u32));
                }
            }
            let groups = (end - first).div_ceil(THREADS) as u64;
            let groups = fold_grid(groups, capabilities.max_workgroups)
                .ok_or_else(|| Error::invalid(OP, "sums above the adapter's grid"))?;
            let part = (end - first) as f64 / fours as f64;
            all.push(Launch {
                kernel: key.clone(),
                operands: operands.clone(),
                dispatches: smallvec![Dispatch { words, groups }],
                flops: 0.0,
                bytes: bytes * part,
                texels: SmallVec::new(),
            });
        }
        Ok(all)
    }
}
