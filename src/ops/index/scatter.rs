//! Sums into the entries of a tensor that an index names.

use std::ops::Range;

use smallvec::{SmallVec, smallvec};

use super::IndexReader;
use crate::capabilities::Capabilities;
use crate::cpu::parallel;
use crate::cpu::stores::LINE;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::launch::{
    Bound, KernelKey, Launch, Launches, WINDOW_ALIGNMENT, Window, Words, check_count,
};
use crate::layout::{Layout, Merged, SliceRange};
use crate::ops::contiguous::Copy;
use crate::ops::plan::{ENOUGH_INVOCATIONS, HARD_INVOCATIONS};
use crate::ops::{plan, ranges};
use crate::road::window::Limits;
use crate::road::{HostInput, HostOutput, Op, Operand, Problem, check_walk, missing_dtype};
use crate::shape::Shape;

/// The inputs, then the output; the kernel binds the last three.
const TARGET: usize = 0;
pub(super) const INDEX: usize = 1;
pub(super) const SOURCE: usize = 2;
const OUT: usize = 3;

/// Turns of the kernel's loop: llvmpipe ends loops at 65,535.
const LONGEST_LOOP: usize = 32 << 10;
/// Outputs on the CPU that are work enough for a thread.
const ENOUGH: usize = 16 << 10;
/// Bytes of entries that a core adds to, within its second cache.
const STRIP: usize = 512 << 10;
/// Entries of which a thread writes the columns of strips back.
const ROWS: usize = 64;
/// Invocations of a workgroup; those that look through the index together.
const WORKGROUP: u64 = 64;
const SHARED: usize = 256;
/// Lines of one index from which on hardware has workgroups share it.
const SHARED_LINES: usize = 32;

/// `out = target; out[.., index[..], ..] += source[..]`, in the order of the axis.
pub(in crate::ops) struct ScatterAdd {
    pub op: &'static str,
    pub axis: usize,
    /// The index has the source's dimensions; else only the axis.
    pub along: bool,
}

/// What is walked, in the shape of the source: the output at entry 0 of the axis, which goes on by
/// `stride`, the index, the source.
struct Seen {
    layouts: [Layout; 3],
    size: usize,
    stride: isize,
}

impl ScatterAdd {
    /// The part of the source that is added.
    fn shape(&self, index: &Layout, source: &Layout) -> Shape {
        match self.along {
            true => index.shape().clone(),
            false => source.shape().clone(),
        }
    }

    /// A layout at entry 0 of the axis, without the axis.
    fn lines(&self, layout: &Layout) -> Result<Layout> {
        let mut first: SmallVec<[SliceRange; 6]> = smallvec![(..).into(); self.axis];
        first.push(0.into());
        layout.slice(&first)
    }

    /// About how many launches there are with bindings of at most `limit` bytes, for one of the operands, whose elements have
    /// so many bytes: parts of the axis reach half a binding ([`Walk::launches`]), lines the other half.
    pub(super) fn launches(
        &self,
        [target, index, source]: [&Layout; 3],
        (which, element_bytes): (usize, usize),
        limit: u64,
    ) -> Result<u64> {
        if target.elements() == 0 || self.shape(index, source).elements() == 0 {
            return Ok(0);
        }
        let half = (limit / 2).max(1);
        let seen = &self.seen(target, index, source)?.layouts[which];
        let count = seen.shape()[self.axis];
        let step = seen.strides()[self.axis].unsigned_abs();
        let reach = count.saturating_mul(step).saturating_mul(element_bytes);
        let parts = (reach as u64).div_ceil(half).clamp(1, count as u64);
        let of_part = ranges::launches(&self.lines(seen)?, element_bytes, half);
        Ok(parts.saturating_mul(of_part.max(1)))
    }

    fn seen(&self, target: &Layout, index: &Layout, source: &Layout) -> Result<Seen> {
        let shape = self.shape(index, source);
        let whole = |size: &usize| SliceRange::from(0..*size);
        let all: SmallVec<[SliceRange; 6]> = shape.iter().map(whole).collect();
        let mut first = all.clone();
        first[self.axis] = (0..1).into();
        let out = Layout::contiguous(target.shape().clone());
        let stride = out.strides()[self.axis];
        let mut index = index.clone();
        if !self.along {
            for _ in self.axis + 1..shape.rank() {
                index = index.unsqueeze(index.rank())?;
            }
        }
        Ok(Seen {
            layouts: [
                out.slice(&first)?.broadcast_to(&shape)?,
                index.broadcast_to(&shape)?,
                source.slice(&all)?,
            ],
            size: target.shape()[self.axis],
            stride,
        })
    }
}

impl Op for ScatterAdd {
    fn name(&self) -> &'static str {
        self.op
    }

    fn infer(&self, inputs: &[Operand<'_>]) -> Result<(Shape, DType)> {
        let [target, index, source] = inputs else {
            return Err(Error::invalid(
                self.op,
                "takes a tensor, an index and a source",
            ));
        };
        if source.dtype != target.dtype {
            return Err(Error::dtype_mismatch(self.op, target.dtype, source.dtype));
        }
        if target.dtype == DType::Bool {
            return Err(Error::invalid(
                self.op,
                "adds numbers, not bool: cast first",
            ));
        }
        if !matches!(index.dtype, DType::I32 | DType::U32) {
            return Err(Error::no_index(self.op, index.dtype));
        }
        let [sizes, named, given] = [target, index, source].map(|input| input.layout.shape());
        let mut others = (0..sizes.rank()).filter(|&axis| axis != self.axis);
        let (fits_target, fits_source) = match self.along {
            true => (
                named.rank() == sizes.rank() && others.all(|axis| named[axis] <= sizes[axis]),
                named.rank() == given.rank() && named.iter().zip(given.iter()).all(|(a, b)| a <= b),
            ),
            false => (
                given.rank() == sizes.rank() && others.all(|axis| given[axis] == sizes[axis]),
                given.get(self.axis..=self.axis) == Some(named.dims()),
            ),
        };
        if !fits_target || !fits_source {
            let [left, right] = match fits_target {
                true => [named, given],
                false if self.along => [sizes, named],
                false => [sizes, given],
            };
            let rule = match self.along {
                true => {
                    "all have one rank, the index at most the source's sizes and, but for the axis, \
                     the tensor's"
                }
                false => {
                    "but for the axis the source has the tensor's sizes, and the index is as long as \
                     its axis"
                }
            };
            return Err(Error::shape_mismatch(self.op, left, right, rule));
        }
        check_walk(self.op, if self.along { named } else { given })?;
        Ok((sizes.clone(), target.dtype))
    }

    fn missing(
        &self,
        capabilities: &Capabilities,
        inputs: &[Operand<'_>],
        output: DType,
    ) -> Option<String> {
        let layouts: SmallVec<[&Layout; 4]> = inputs.iter().map(|input| input.layout).collect();
        let elements = layouts.first()?.elements();
        missing_dtype(capabilities, inputs, output)
            .or_else(|| ranges::missing(capabilities, output, &layouts, elements))
    }

    fn plan(&self, problem: &Problem<'_>, capabilities: &Capabilities) -> Result<Launches> {
        let [target, index, source] = &problem.inputs[..] else {
            return Err(Error::invalid(
                self.op,
                "takes a tensor, an index and a source",
            ));
        };
        let copy = Problem {
            inputs: smallvec![*target],
            output: problem.output,
            fresh: true,
            spare: problem.spare,
            slots: smallvec![0],
        };
        let mut launches = Copy(self.op).plan(&copy, capabilities)?;
        for bound in launches.iter_mut().flat_map(|launch| &mut launch.operands) {
            bound.operand = if bound.operand == 0 { TARGET } else { OUT };
        }
        if self.shape(index.layout, source.layout).elements() == 0 {
            return Ok(launches);
        }
        let seen = self.seen(target.layout, index.layout, source.layout)?;
        let count = seen.layouts[0].shape()[self.axis];
        let [out, named, given] = &seen.layouts;
        let lines = [self.lines(out)?, self.lines(named)?, self.lines(given)?];
        let Merged { dims, strides } = plan::merged(&[&lines[0], &lines[1], &lines[2]]);
        let walk = Walk {
            op: self.op,
            dims: &dims,
            strides: [&strides[0], &strides[1], &strides[2]],
            offsets: lines.each_ref().map(Layout::offset),
            axes: [
                seen.stride,
                named.strides()[self.axis],
                given.strides()[self.axis],
            ],
            size: seen.size,
            count,
            dtype: source.dtype,
            signed: index.dtype == DType::I32,
        };
        launches.extend(walk.launches(capabilities)?);
        Ok(launches)
    }

    fn twin(&self, inputs: &[HostInput<'_>], output: &mut HostOutput<'_>) -> Result<()> {
        let [target, index, source] = inputs else {
            return Ok(());
        };
        Copy(self.op).twin(&inputs[..1], output)?;
        if self.shape(index.layout, source.layout).elements() == 0 {
            return Ok(());
        }
        let seen = self.seen(target.layout, index.layout, source.layout)?;
        let of = (target.layout.shape(), self.axis);
        match output.dtype {
            DType::F32 => seen.twin::<f32>(of, index, source, output, |a, b| a + b),
            DType::F64 => seen.twin::<f64>(of, index, source, output, |a, b| a + b),
            DType::I32 => seen.twin::<i32>(of, index, source, output, i32::wrapping_add),
            DType::U32 => seen.twin::<u32>(of, index, source, output, u32::wrapping_add),
            // Summed in f32, which the caller has seen to.
            _ => {}
        }
        Ok(())
    }
}

impl Seen {
    /// Each core has outputs of its own: those at some places of the axes before the index's, or, where whole rows are
    /// added, at some entries of that axis: then it goes through all of the index, and passes over the others.
    fn twin<T: bytemuck::Pod + Send + Sync>(
        &self,
        (target, axis): (&Shape, usize),
        index: &HostInput<'_>,
        source: &HostInput<'_>,
        output: &mut HostOutput<'_>,
        add: impl Fn(T, T) -> T + Sync,
    ) {
        let place = IndexReader::new(index, self.size);
        let given = source.elements::<T>();
        let out = output.elements::<T>();
        let Some(out) = out.get_mut(..target.elements()) else {
            return;
        };
        let [base, named, seen] = &self.layouts;
        let walk = parallel::Walk::new(&[base, named, seen]);
        let strides = walk.inner_strides();
        let are_rows = strides[..] == [1, 0, 1];
        let stride = self.stride as usize;
        if out.len() == self.size * stride
            && !are_rows
            && self.by_strips(&walk, (&place, given), out, &add)
        {
            return;
        }
        // Places of the axes before, which are as many in the source but for the first.
        let leading = (target.iter().zip(seen.shape().iter()))
            .scan(true, |is_first, (&size, &seen)| {
                let goes_on = size == seen || *is_first;
                *is_first &= size == 1;
                goes_on.then_some((size, seen))
            })
            .take(axis);
        let (places, of_seen) = leading.fold((1, 1), |(all, of_seen), (size, seen)| {
            (all * size, of_seen * seen)
        });
        let of_place = out.len() / places;
        let is_much = seen.elements() > parallel::PARALLEL;
        // One part for each core, but of enough outputs: each goes through all of the index.
        let entries = self.size.div_ceil(parallel::width());
        let entries = entries.max(ENOUGH.div_ceil(stride.max(1)));
        let is_by_entries = is_much && places == 1 && of_place == self.size * stride && are_rows;
        let part = match is_by_entries && out.len() >= 2 * ENOUGH {
            true => stride * entries,
            false => of_place * (ENOUGH / of_place).max(1),
        };
        let parts = out.chunks_mut(part).enumerate();
        parallel::share(is_much, parts, |(at, out)| {
            let before = at * part;
            // Of the axis, those in this part.
            let mine = match part < of_place {
                true => before / stride..(before + out.len()) / stride,
                false => 0..self.size,
            };
            let each = seen.elements() / of_seen;
            let [from, to] = [before, before + out.len()]
                .map(|element| element.div_ceil(of_place).min(of_seen) * each);
            let seen = if part < of_place {
                0..seen.elements()
            } else {
                from..to
            };
            let start = |to: isize, entry: usize| to as usize + entry * stride - before;
            if are_rows {
                walk.blocks(seen.start, seen.len(), &mut |block| {
                    let [to, number, from] = [0, 1, 2].map(|of| block.grids[of]);
                    for row in 0..block.rows {
                        let entry = place.of(number.at(row, 0));
                        let Some(entry) = entry.filter(|entry| mine.contains(entry)) else {
                            continue;
                        };
                        let out = &mut out[start(to.at(row, 0), entry)..][..block.columns];
                        let given = &given[from.at(row, 0) as usize..][..block.columns];
                        add_row(out, given, &add);
                    }
                });
                return;
            }
            walk.runs(seen.start, seen.len(), &mut |_, starts, count| {
                let [mut to, mut number, mut from] = [starts[0], starts[1], starts[2]];
                for _ in 0..count {
                    if let Some(entry) = place.of(number) {
                        let out = &mut out[start(to, entry)];
                        *out = add(*out, given[from as usize]);
                    }
                    to += strides[0];
                    number += strides[1];
                    from += strides[2];
                }
            });
        });
    }
}

impl Seen {
    /// Where rows' elements go each to an entry of its own: strips of columns, of which a near cache holds all entries. They are
    /// apart from the output meanwhile, which has them between others. `false` where that would be more work.
    fn by_strips<T: bytemuck::Pod + Send + Sync>(
        &self,
        walk: &parallel::Walk,
        (place, given): (&IndexReader<'_>, &[T]),
        out: &mut [T],
        add: &(impl Fn(T, T) -> T + Sync),
    ) -> bool {
        let (size, pitch) = (self.size, self.stride as usize);
        let Some(([rows, columns], grids)) = walk.whole() else {
            return false;
        };
        let [base, named, seen] = [0, 1, 2].map(|of| grids[of]);
        // All cores have some, in whole lines, or as many as there are lines of.
        let line = LINE / size_of::<T>();
        let share = columns.div_ceil(parallel::width());
        let share = share.max(if columns < 2 * line { 0 } else { line });
        let width = (STRIP / size_of::<T>() / size).min(share) / line * line;
        let is_much = rows * columns > parallel::PARALLEL && 2 * rows * columns >= out.len();
        if !is_much || width == 0 || (base.start, base.row, base.column) != (0, 0, 1) {
            return false;
        }
        let strips: Vec<usize> = (0..columns).step_by(width).collect();
        let together = (2 * parallel::width()).min(strips.len());
        let mut memory = vec![vec![T::zeroed(); size * width]; together];
        for strips in strips.chunks(together) {
            let sums = memory.iter_mut().zip(strips);
            parallel::share(true, sums, |(sums, &first)| {
                let width = width.min(columns - first);
                for (sums, out) in sums.chunks_mut(width).zip(out.chunks(pitch)) {
                    sums.copy_from_slice(&out[first..first + width]);
                }
                for row in 0..rows {
                    let [mut number, mut from] = [named, seen].map(|grid| grid.at(row, first));
                    for column in 0..width {
                        if let Some(entry) = place.of(number) {
                            let sum = &mut sums[entry * width + column];
                            *sum = add(*sum, given[from as usize]);
                        }
                        number += named.column;
                        from += seen.column;
                    }
                }
            });
            let entries = out.chunks_mut(pitch * ROWS).enumerate();
            parallel::share(true, entries, |(at, out)| {
                for (sums, &first) in memory.iter().zip(strips) {
                    let width = width.min(columns - first);
                    let sums = sums.chunks(width).skip(at * ROWS);
                    for (out, sums) in out.chunks_mut(pitch).zip(sums) {
                        out[first..first + width].copy_from_slice(sums);
                    }
                }
            });
        }
        true
    }
}

/// By fours first: a loop over the whole row takes longer to begin than a short row does.
#[inline(always)]
fn add_row<T: bytemuck::Pod>(out: &mut [T], given: &[T], add: impl Fn(T, T) -> T) {
    let (fours, rest) = out.as_chunks_mut::<4>();
    let (given_fours, given_rest) = given.as_chunks::<4>();
    for (out, given) in fours.iter_mut().zip(given_fours) {
        *out = std::array::from_fn(|at| add(out[at], given[at]));
    }
    for (out, &given) in rest.iter_mut().zip(given_rest) {
        *out = add(*out, given);
    }
}

/// What the kernel sees, of the output, the index and the source.
struct Walk<'a> {
    op: &'static str,
    /// Of the lines.
    dims: &'a [usize],
    strides: [&'a [isize]; 3],
    offsets: [usize; 3],
    /// Strides along the axis.
    axes: [isize; 3],
    /// Entries of the output's axis, and of the source's.
    size: usize,
    count: usize,
    dtype: DType,
    signed: bool,
}

impl Walk<'_> {
    fn element_bytes(&self) -> [usize; 3] {
        [self.dtype.size(), 4, self.dtype.size()]
    }

    /// What lines and entries of the axis reach of an operand.
    fn window(&self, which: usize, lines: &Range<usize>, entries: &Range<usize>) -> Window {
        let places = ranges::reach(self.dims, self.offsets[which], self.strides[which], lines);
        let [first, last] = [entries.start, entries.end - 1].map(|j| j as isize * self.axes[which]);
        ranges::window(
            &(places.start + first.min(last)..places.end + first.max(last)),
            self.element_bytes()[which],
        )
    }

    /// Launches for lines, then parts of the source's axis in order, then windows of the output.
    fn launches(&self, capabilities: &Capabilities) -> Result<Launches> {
        let size = self.dtype.size() as f64;
        let limits = Limits::new(capabilities, 2.0, 3.0 * size + 4.0);
        let limit = limits.binding_bytes;
        let step = self.axes[1].unsigned_abs().max(self.axes[2].unsigned_abs());
        let most = limit as usize / (2 * self.dtype.size() * step.max(1));
        let each = self.count.min(LONGEST_LOOP).min(most.max(1));
        // Later parts may begin at other places of their windows, which are that much larger then.
        let slack = if each < self.count {
            WINDOW_ALIGNMENT
        } else {
            0
        };
        let fits = |lines: &Range<usize>| {
            let windows = [1, 2].map(|which| self.window(which, lines, &(0..each)));
            windows.iter().all(|window| window.bytes + slack <= limit)
        };
        let all: usize = self.dims.iter().product();
        let mut launches = Launches::new();
        for lines in ranges::ranges(self.dims, 0..all, (limits.elements / each).max(1), fits) {
            let out = self.window(0, &lines, &(0..self.size));
            for start in (0..self.count).step_by(each) {
                let entries = start..(start + each).min(self.count);
                let mut at = out.offset;
                while at < out.end() {
                    let bytes = limit.min(out.end() - at);
                    let window = Window { offset: at, bytes };
                    check_count(self.op, launches.len())?;
                    launches.push(self.launch(&lines, &entries, window, capabilities)?);
                    at += bytes;
                }
            }
        }
        Ok(launches)
    }

    fn launch(
        &self,
        lines: &Range<usize>,
        entries: &Range<usize>,
        out: Window,
        capabilities: &Capabilities,
    ) -> Result<Launch> {
        let bytes = self.element_bytes();
        let windows = [
            out,
            self.window(1, lines, entries),
            self.window(2, lines, entries),
        ];
        let first = |which: usize| {
            let base = windows[which].offset / bytes[which] as u64;
            (self.offsets[which] as u32).wrapping_sub(base as u32)
        };
        // As many invocations as keep the adapter busy: each walks all of a line's index.
        let is_software = plan::is_software(capabilities);
        let is_shared = !is_software
            && lines.len() >= SHARED_LINES
            && self.strides[1].iter().all(|&stride| stride == 0);
        let wide = lines.len().next_multiple_of(SHARED);
        let (wanted, each) = match (is_software, is_shared) {
            (true, _) => (16, lines.len()),
            (false, false) => (ENOUGH_INVOCATIONS, lines.len()),
            (false, true) => (HARD_INVOCATIONS, wide),
        };
        let workgroup = if is_shared { SHARED as u64 } else { WORKGROUP };
        let parts = (wanted / each).clamp(1, self.size).next_power_of_two();
        let mut words: Words = smallvec![
            lines.start as u32,
            lines.end as u32,
            entries.start as u32,
            // An end of 2^32 would be none.
            entries.len() as u32,
            parts as u32,
            first(0),
            first(1),
            first(2),
            (out.bytes / bytes[0] as u64) as u32,
            self.size as u32,
        ];
        words.extend(self.axes.map(|stride| stride as u32));
        words.extend(ranges::size_words(self.dims));
        let strides = self.strides.iter().copied().flatten();
        words.extend(strides.map(|&stride| stride as u32));
        let bound = |which: usize, operand| Bound {
            operand,
            window: Some(windows[which]),
        };
        let added = (lines.len() * entries.len()) as f64;
        // Each invocation goes through the index, or those of a workgroup do together.
        let walks = (each * parts) as f64 / if is_shared { SHARED as f64 } else { 1.0 };
        let walked = walks * entries.len() as f64;
        Ok(Launch {
            kernel: key(self.dtype, self.signed, self.dims.len() as u32, is_shared),
            operands: smallvec![bound(1, INDEX), bound(2, SOURCE), bound(0, OUT)],
            texels: smallvec![],
            dispatches: smallvec![plan::dispatch(
                self.op,
                words,
                (each * parts) as u64,
                workgroup,
                capabilities.max_workgroups,
            )?],
            flops: 2.0 * added + 8.0 * walked,
            bytes: added * (3.0 * bytes[0] as f64 + 4.0),
        })
    }
}

fn key(dtype: DType, signed: bool, rank: u32, shared: bool) -> KernelKey {
    let values = [
        ("shared", u32::from(shared).into()),
        ("element", dtype.name().into()),
        ("signed", u32::from(signed).into()),
        ("rank", rank.into()),
    ];
    KernelKey {
        template: "index/scatter",
        values: values.into_iter().collect(),
        bindings: 3,
        words: 13 + 4 * rank - 1,
    }
}

pub(super) fn specialisations(ranks: u32) -> Vec<KernelKey> {
    let mut all = Vec::new();
    for dtype in [DType::F32, DType::I32, DType::U32, DType::F64] {
        for rank in 1..=ranks {
            let ways = [(false, false), (false, true), (true, false), (true, true)];
            all.extend(ways.map(|(signed, shared)| key(dtype, signed, rank, shared)));
        }
    }
    all
}
