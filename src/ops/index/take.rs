//! Entries of a table, by an index.

use smallvec::{SmallVec, smallvec};

use crate::capabilities::{Capabilities, DeviceKind};
use crate::cpu;
use crate::cpu::parallel::{self, Block};
use crate::dtype::{DType, by_size};
use crate::error::{Error, Result};
use crate::launch::{Bound, KernelKey, Launch, Launches, Window, Words, check_count};
use crate::layout::{Layout, Merged, SliceRange};
use crate::ops::plan::{self, PER_THREAD, WORKGROUP};
use crate::ops::ranges;
use crate::road::window::Limits;
use crate::road::{HostInput, HostOutput, Op, Operand, Problem};
use crate::shape::Shape;

/// The inputs.
const TABLE: usize = 0;
const INDEX: usize = 1;
const OUT: usize = 2;

/// `out[i] = table[.., index[..], ..]`.
pub(super) struct Take {
    op: &'static str,
    axis: usize,
    /// The index has the table's dimensions; else it stands in the axis's place.
    along: bool,
}

/// Both operands as large as the output: the table at entry 0 of the axis, which goes on by `stride`.
struct Seen {
    table: Layout,
    index: Layout,
    size: usize,
    stride: isize,
}

impl Take {
    pub(super) fn select(op: &'static str, axis: usize) -> Self {
        Self {
            op,
            axis,
            along: false,
        }
    }

    pub(super) fn gather(op: &'static str, axis: usize) -> Self {
        Self {
            op,
            axis,
            along: true,
        }
    }

    fn shape(&self, table: &Layout, index: &Layout) -> Shape {
        let (sizes, named) = (table.shape(), index.shape());
        if self.along {
            return named.clone();
        }
        let outer = sizes.iter().take(self.axis);
        let inner = sizes.iter().skip(self.axis + 1);
        outer.chain(named.iter()).chain(inner).copied().collect()
    }

    /// About how many launches an index that lies so takes, with bindings of at most `limit` bytes.
    pub(super) fn launches(&self, table: &Layout, index: &Layout, limit: u64) -> Result<u64> {
        if self.shape(table, index).elements() == 0 {
            return Ok(0);
        }
        let seen = self.seen(table, index)?;
        Ok(ranges::launches(&seen.index, 4, limit))
    }

    /// The operands of an output with elements.
    fn seen(&self, table: &Layout, index: &Layout) -> Result<Seen> {
        let shape = self.shape(table, index);
        let first: SmallVec<[SliceRange; 6]> = (0..table.rank())
            .map(|axis| match (axis == self.axis, self.along) {
                (true, _) => (0..1).into(),
                (false, true) => (0..index.shape()[axis]).into(),
                (false, false) => (..).into(),
            })
            .collect();
        let mut seen = table.slice(&first)?;
        let mut named = index.clone();
        if !self.along {
            seen = seen.squeeze(self.axis)?;
            for _ in 0..index.rank() {
                seen = seen.unsqueeze(self.axis)?;
            }
            for _ in self.axis + 1..table.rank() {
                named = named.unsqueeze(named.rank())?;
            }
        }
        Ok(Seen {
            table: seen.broadcast_to(&shape)?,
            index: named.broadcast_to(&shape)?,
            size: table.shape()[self.axis],
            stride: table.strides()[self.axis],
        })
    }
}

impl Op for Take {
    fn name(&self) -> &'static str {
        self.op
    }

    fn infer(&self, inputs: &[Operand<'_>]) -> Result<(Shape, DType)> {
        let [table, index] = inputs else {
            return Err(Error::invalid(self.op, "takes a table and an index"));
        };
        if !matches!(index.dtype, DType::I32 | DType::U32) {
            return Err(Error::no_index(self.op, index.dtype));
        }
        let (sizes, named) = (table.layout.shape(), index.layout.shape());
        let size = sizes[self.axis];
        if self.along {
            let fits = |axis: usize| axis == self.axis || named[axis] <= sizes[axis];
            if named.rank() != sizes.rank() || !(0..sizes.rank()).all(fits) {
                return Err(Error::shape_mismatch(
                    self.op,
                    sizes,
                    named,
                    "the index has the tensor's rank and, but for the axis, at most its sizes",
                ));
            }
        }
        let shape = self.shape(table.layout, index.layout);
        if size == 0 && shape.elements() > 0 {
            let why = format!("axis {} of shape {sizes} is empty", self.axis);
            return Err(Error::invalid(self.op, why));
        }
        Ok((shape, table.dtype))
    }

    fn missing(
        &self,
        capabilities: &Capabilities,
        inputs: &[Operand<'_>],
        output: DType,
    ) -> Option<String> {
        let [table, index] = inputs else { return None };
        let size = table.layout.shape()[self.axis];
        if capabilities.kind != DeviceKind::Cpu && size > u32::MAX as usize {
            return Some(format!("the op's kernels name {} entries", u32::MAX));
        }
        let elements = self.shape(table.layout, index.layout).elements();
        ranges::missing(
            capabilities,
            output,
            &[table.layout, index.layout],
            elements,
        )
    }

    fn plan(&self, problem: &Problem<'_>, capabilities: &Capabilities) -> Result<Launches> {
        let [table, index] = &problem.inputs[..] else {
            return Err(Error::invalid(self.op, "takes a table and an index"));
        };
        let Seen {
            table: layout,
            index: named,
            size,
            stride,
        } = self.seen(table.layout, index.layout)?;
        let Merged { mut dims, strides } = plan::merged(&[&layout, &named]);
        let last = dims.len() - 1;
        // Rows of neighbours are moved in units as wide as all steps allow.
        let unit = match (strides[TABLE][last], strides[INDEX][last]) {
            (1, 0) => {
                let outer = strides[TABLE][..last].iter().copied();
                let steps = outer.chain([layout.offset() as isize, stride]);
                ranges::unit(table.dtype.size(), dims[last], steps)
            }
            _ => 1,
        };
        dims[last] /= unit;
        let walk = Walk {
            op: self.op,
            dims: &dims,
            table: &ranges::widened(&strides[TABLE], unit),
            index: &strides[INDEX],
            offsets: [layout.offset() / unit, named.offset()],
            axis: (size, stride / unit as isize),
            element_bytes: table.dtype.size() * unit,
            signed: index.dtype == DType::I32,
        };
        walk.launches(capabilities)
    }

    fn twin(&self, inputs: &[HostInput<'_>], output: &mut HostOutput<'_>) -> Result<()> {
        let [table, index] = inputs else {
            return Ok(());
        };
        let seen = self.seen(table.layout, index.layout)?;
        by_size!(output.dtype, Bits => seen.twin::<Bits>(table, index, output));
        Ok(())
    }
}

impl Seen {
    fn twin<T: bytemuck::Pod + Send + Sync>(
        &self,
        table: &HostInput<'_>,
        index: &HostInput<'_>,
        output: &mut HostOutput<'_>,
    ) {
        let place = IndexReader::new(index, self.size);
        let from: &[T] = bytemuck::cast_slice(table.bytes);
        let walk = parallel::Walk::new(&[&self.table, &self.index]);
        let strides = walk.inner_strides();
        let count = output.layout.elements();
        let Some(out) = bytemuck::cast_slice_mut::<u8, T>(output.bytes).get_mut(..count) else {
            return;
        };
        let is_looked_up = (strides[TABLE], strides[INDEX], self.stride) == (0, 1, 1);
        parallel::pieces(out, |start, piece| {
            walk.blocks(start, piece.len(), &mut |block| {
                let out = &mut piece[block.first..][..block.rows * block.columns];
                match strides[INDEX] {
                    0 => self.take_rows(from, &place, block, out),
                    1 if is_looked_up => self.look_up_rows(from, &place, block, out),
                    _ => self.take_elements(from, &place, block, out),
                }
            });
        });
    }

    /// A block whose rows are of one entry each.
    fn take_rows<T: bytemuck::Pod>(
        &self,
        from: &[T],
        place: &IndexReader<'_>,
        block: &Block<'_>,
        out: &mut [T],
    ) {
        let [table, index] = [block.grids[TABLE], block.grids[INDEX]];
        for (row, out) in out.chunks_mut(block.columns).enumerate() {
            let Some(entry) = place.of(index.at(row, 0)) else {
                out.fill(T::zeroed());
                continue;
            };
            let at = table.at(row, 0) + entry as isize * self.stride;
            match table.column {
                1 => cpu::copy_run(&from[at as usize..][..out.len()], out),
                step => cpu::gather(from, at, step, out),
            }
        }
    }

    /// A block whose rows are looked up in rows of the table.
    fn look_up_rows<T: bytemuck::Pod>(
        &self,
        from: &[T],
        place: &IndexReader<'_>,
        block: &Block<'_>,
        out: &mut [T],
    ) {
        let [table, index] = [block.grids[TABLE], block.grids[INDEX]];
        for (row, out) in out.chunks_mut(block.columns).enumerate() {
            let entries = &from[table.at(row, 0) as usize..][..self.size];
            let numbers = &place.numbers[index.at(row, 0) as usize..][..out.len()];
            match place.signed {
                true => look_up(entries, numbers, out, |number| place.entry(number)),
                false => look_up(entries, numbers, out, |number| Some(number as usize)),
            }
        }
    }

    fn take_elements<T: bytemuck::Pod>(
        &self,
        from: &[T],
        place: &IndexReader<'_>,
        block: &Block<'_>,
        out: &mut [T],
    ) {
        let [table, index] = [block.grids[TABLE], block.grids[INDEX]];
        for (row, out) in out.chunks_mut(block.columns).enumerate() {
            let [mut at, mut named] = [table.at(row, 0), index.at(row, 0)];
            let mut taken = |entry: Option<usize>| {
                let start = at;
                at += table.column;
                entry.map_or(T::zeroed(), |entry| {
                    from[(start + entry as isize * self.stride) as usize]
                })
            };
            if index.column == 1 {
                for (out, entry) in out.iter_mut().zip(place.run(named as usize, block.columns)) {
                    *out = taken(entry);
                }
                continue;
            }
            for out in out {
                *out = taken(place.of(named));
                named += index.column;
            }
        }
    }
}

#[inline(always)]
fn look_up<T: bytemuck::Pod>(
    row: &[T],
    numbers: &[u32],
    out: &mut [T],
    entry: impl Fn(u32) -> Option<usize>,
) {
    for (out, &number) in out.iter_mut().zip(numbers) {
        let taken = entry(number).and_then(|entry| row.get(entry));
        *out = taken.copied().unwrap_or(T::zeroed());
    }
}

/// Entries of an axis by an index on the host.
pub(in crate::ops) struct IndexReader<'a> {
    numbers: &'a [u32],
    signed: bool,
    size: usize,
}

impl<'a> IndexReader<'a> {
    pub(in crate::ops) fn new(index: &HostInput<'a>, size: usize) -> Self {
        Self {
            numbers: bytemuck::cast_slice(index.bytes),
            signed: index.dtype == DType::I32,
            size,
        }
    }

    /// The entry that the number at a storage index names, if it is in range.
    pub(in crate::ops) fn of(&self, at: isize) -> Option<usize> {
        self.entry(self.numbers[at as usize])
    }

    /// The same of so many numbers in a row.
    pub(in crate::ops) fn run(
        &self,
        at: usize,
        count: usize,
    ) -> impl Iterator<Item = Option<usize>> {
        let numbers = self.numbers[at..][..count].iter();
        numbers.map(|&number| self.entry(number))
    }

    #[inline(always)]
    fn entry(&self, number: u32) -> Option<usize> {
        // Too far from the end wraps to what is beyond it.
        let from_end = self.size.wrapping_add_signed(number as i32 as isize);
        let entry = match self.signed && (number as i32) < 0 {
            true => from_end,
            false => number as usize,
        };
        (entry < self.size).then_some(entry)
    }
}

/// What a kernel sees, in units that it moves at once.
struct Walk<'a> {
    op: &'static str,
    dims: &'a [usize],
    table: &'a [isize],
    index: &'a [isize],
    offsets: [usize; 2],
    axis: (usize, isize),
    element_bytes: usize,
    signed: bool,
}

impl Walk<'_> {
    /// A launch for each range of the output and, of what that may take, each window of the table.
    fn launches(&self, capabilities: &Capabilities) -> Result<Launches> {
        let bytes = self.element_bytes as f64 * 2.0 + 4.0;
        let limits = Limits::new(capabilities, 1.0, bytes);
        let fits = |range: &std::ops::Range<usize>| {
            let places = ranges::reach(self.dims, self.offsets[INDEX], self.index, range);
            ranges::window(&places, 4).bytes <= limits.binding_bytes
                && ranges::window(
                    &(range.start as isize..range.end as isize),
                    self.element_bytes,
                )
                .bytes
                    <= limits.binding_bytes
        };
        let total = self.dims.iter().product();
        let mut launches = Launches::new();
        for range in ranges::ranges(self.op, self.dims, 0..total, limits.elements, fits)? {
            let (size, stride) = self.axis;
            let ends = stride * (size as isize - 1);
            let places = ranges::reach(self.dims, self.offsets[TABLE], self.table, &range);
            let table = ranges::window(
                &(places.start + ends.min(0)..places.end + ends.max(0)),
                self.element_bytes,
            );
            let mut at = table.offset;
            while at < table.end() {
                let bytes = limits.binding_bytes.min(table.end() - at);
                let window = Window { offset: at, bytes };
                check_count(self.op, launches.len() + 1)?;
                launches.push(self.launch(&range, window, at > table.offset, capabilities)?);
                at += bytes;
            }
        }
        Ok(launches)
    }

    /// Whether four neighbours of a range have their indices side by side, from a multiple of four.
    fn by_fours(&self, range: &std::ops::Range<usize>) -> bool {
        let is_whole = |step: isize| step % 4 == 0;
        let Some((&1, outer)) = self.index.split_last() else {
            return false;
        };
        let starts = [range.start, range.end, self.offsets[INDEX]];
        self.element_bytes == 4
            && self.dims.last().is_some_and(|size| size.is_multiple_of(4))
            && starts.into_iter().all(|start| start.is_multiple_of(4))
            && outer.iter().all(|&step| is_whole(step))
    }

    fn launch(
        &self,
        range: &std::ops::Range<usize>,
        table: Window,
        keep: bool,
        capabilities: &Capabilities,
    ) -> Result<Launch> {
        let size = self.element_bytes;
        let index = ranges::reach(self.dims, self.offsets[INDEX], self.index, range);
        let windows = [
            table,
            ranges::window(&index, 4),
            ranges::window(&(range.start as isize..range.end as isize), size),
        ];
        let first = |operand: usize, size: usize| {
            (self.offsets[operand] as u32)
                .wrapping_sub((windows[operand].offset / size as u64) as u32)
        };
        let mut words: Words = smallvec![
            range.start as u32,
            range.end as u32,
            (windows[OUT].offset / size as u64) as u32,
            first(TABLE, size),
            first(INDEX, 4),
            (table.bytes / size as u64) as u32,
            self.axis.0 as u32,
            self.axis.1 as u32,
        ];
        words.extend(ranges::size_words(self.dims));
        words.extend(self.table.iter().chain(self.index).map(|&s| s as u32));
        let four = self.by_fours(range);
        let lanes = if four { 4 } else { ranges::lanes(size) };
        let steps = (range.len() / lanes + 2) as u64;
        let per_workgroup = WORKGROUP * u64::from(PER_THREAD);
        let bound = |operand| Bound {
            operand,
            window: Some(windows[operand]),
        };
        Ok(Launch {
            kernel: key(
                ranges::moved(size),
                [self.signed, keep, four],
                self.dims.len() as u32,
            ),
            operands: smallvec![bound(TABLE), bound(INDEX), bound(OUT)],
            texels: smallvec![],
            dispatches: smallvec![plan::dispatch(
                self.op,
                words,
                steps,
                per_workgroup,
                capabilities.max_workgroups,
            )?],
            flops: range.len() as f64,
            bytes: range.len() as f64 * (2.0 * size as f64 + 4.0),
        })
    }
}

fn key(element: &'static str, [signed, keep, four]: [bool; 3], rank: u32) -> KernelKey {
    let values = [
        ("element", element.into()),
        ("four", u32::from(four).into()),
        ("signed", u32::from(signed).into()),
        ("keep", u32::from(keep).into()),
        ("rank", rank.into()),
        ("per_thread", PER_THREAD.into()),
    ];
    KernelKey {
        template: "index/take",
        values: values.into_iter().collect(),
        bindings: 3,
        words: 8 + 3 * rank - 1,
    }
}

pub(super) fn specialisations(ranks: u32) -> Vec<KernelKey> {
    let mut all = Vec::new();
    for element in ranges::MOVED {
        for rank in 1..=ranks {
            for (signed, keep) in [(false, false), (false, true), (true, false), (true, true)] {
                all.push(key(element, [signed, keep, false], rank));
                if element == "u32" {
                    all.push(key(element, [signed, keep, true], rank));
                }
            }
        }
    }
    all
}
