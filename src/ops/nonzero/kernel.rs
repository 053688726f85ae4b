//! The kernels' launches: marks of elements, with running sums of how many there are, and then the places of what is marked.

use std::ops::Range;

use smallvec::{SmallVec, smallvec};

use super::{Places, WORD, words};
use crate::capabilities::Capabilities;
use crate::dtype::DType;
use crate::error::Result;
use crate::launch::{KernelKey, Launches, Words, check_count};
use crate::ops::plan::{self, PER_THREAD, WORKGROUP};
use crate::ops::ranges::{self, Area, written};
use crate::ops::scan;
use crate::road::Problem;
use crate::road::window::Limits;

/// Words of a workgroup of hardware.
const SHARED_WORDS: u64 = 64;
/// Elements of a load.
const FOUR: usize = 4;
/// Operations of an element, about.
const STEPS: f64 = 8.0;

/// Bits of an element that zero has none of: all but the sign of floats.
pub(super) fn bits(dtype: DType) -> u64 {
    let all = u64::MAX >> (64 - 8 * dtype.size());
    match dtype.is_float() {
        true => all >> 1,
        false => all,
    }
}

/// An operand from a word of it on.
fn words_at(operand: usize, offset: usize) -> Area {
    Area {
        operand,
        offset: (offset * size_of::<u32>()) as u64,
    }
}

/// Marks in the output's first row, running sums in its second one.
pub(super) fn marks(
    op: &'static str,
    problem: &Problem<'_>,
    capabilities: &Capabilities,
) -> Result<Launches> {
    let [x] = &problem.inputs[..] else {
        return Ok(Launches::new());
    };
    let (count, size) = (x.layout.elements(), x.dtype.size());
    let all = words(count);
    let row = problem.output.layout.shape()[1];
    let (marks, sums, counts) = (words_at(1, 0), words_at(1, row), words_at(2, 0));
    let merged = plan::merged(&[x.layout]);
    let (dims, strides) = (&merged.dims[..], &merged.strides[0]);
    let is_shared = !plan::is_software(capabilities);
    let is_run = strides[..] == [1] && x.layout.offset().is_multiple_of(FOUR);
    let key = Name {
        element: element(x.dtype),
        is_four: is_run && size < size_of::<u64>() && !is_shared,
        is_shared,
        rank: dims.len() as u32,
    };
    let flops = WORD as f64 * STEPS;
    let bytes = (WORD * size + 2 * size_of::<u32>()) as f64;
    let limits = Limits::new(capabilities, flops, bytes);
    let windows = |range: &Range<usize>| {
        let elements = range.start * WORD..(range.end * WORD).min(count);
        let places = ranges::reach(dims, x.layout.offset(), strides, &elements);
        let given = ranges::window(&places, size);
        [given, marks.window(range, 4), counts.window(range, 4)]
    };
    let fits = |range: &Range<usize>| {
        let mut windows = windows(range).into_iter();
        windows.all(|window| window.bytes <= limits.binding_bytes)
    };
    let mask = bits(x.dtype);
    let mut launches = Launches::new();
    for range in ranges::ranges(op, &[all], 0..all, limits.elements, fits)? {
        let windows = windows(&range);
        let given = Area {
            operand: 0,
            offset: (x.layout.offset() * size) as u64,
        };
        let mut words: Words = smallvec![
            range.start as u32,
            range.end as u32,
            count as u32,
            given.place(&windows[0], size),
            marks.place(&windows[1], 4),
            counts.place(&windows[2], 4),
            mask as u32,
            (mask >> 32) as u32,
        ];
        words.extend(ranges::size_words(dims));
        words.extend(strides.iter().map(|&step| step as u32));
        let per_workgroup = match is_shared {
            true => SHARED_WORDS,
            false => WORKGROUP * u64::from(PER_THREAD),
        };
        launches.push(ranges::launch(
            (op, key.key(), capabilities),
            [given, marks, counts].into_iter().zip(windows),
            words,
            (range.len() as u64, per_workgroup),
            [flops, bytes].map(|of_word| of_word * range.len() as f64),
        )?);
    }
    let free = words_at(2, row);
    let running = scan::running(op, capabilities, [1, all], [counts, sums], free)?;
    launches.extend(running);
    Ok(launches)
}

/// The places of what is marked: of each range of marks for all windows of the output, as none knows how many come before.
pub(super) fn places(
    places: &Places,
    problem: &Problem<'_>,
    capabilities: &Capabilities,
) -> Result<Launches> {
    let [given] = &problem.inputs[..] else {
        return Ok(Launches::new());
    };
    let (op, dims) = (places.op, &places.dims[..]);
    let count: usize = dims.iter().product();
    let all = words(count);
    let first = given.layout.offset();
    let (marks, out) = (words_at(0, first), words_at(1, 0));
    let sums = words_at(0, first + given.layout.shape()[1]);
    let rank = dims.len();
    let is_shared = !plan::is_software(capabilities);
    let flops = (WORD * rank) as f64 * STEPS;
    let bytes = (WORD * rank * 4 + 8) as f64;
    let limits = Limits::new(capabilities, flops, bytes);
    let fits = |range: &Range<usize>| marks.window(range, 4).bytes <= limits.binding_bytes;
    let mut launches = Launches::new();
    for range in ranges::ranges(op, &[all], 0..all, limits.elements, fits)? {
        let steps = match is_shared {
            true => range.start * WORD..(range.end * WORD).min(count),
            false => range.clone(),
        };
        let end = places.count * rank;
        for bound in written(&(0..end), limits.binding_bytes as usize / 4) {
            check_count(op, launches.len() + 1)?;
            let areas = [marks, sums, out];
            let windows = [
                marks.window(&range, 4),
                sums.window(&range, 4),
                out.window(&bound, 4),
            ];
            let mut words: Words = smallvec![
                steps.start as u32,
                steps.end as u32,
                marks.place(&windows[0], 4),
                sums.place(&windows[1], 4),
                bound.start as u32,
                bound.len() as u32,
            ];
            words.extend(ranges::size_words(dims));
            launches.push(ranges::launch(
                (op, places_key(is_shared, rank as u32), capabilities),
                areas.into_iter().zip(windows),
                words,
                (steps.len() as u64, WORKGROUP * u64::from(PER_THREAD)),
                [flops, bytes].map(|of_word| of_word * range.len() as f64),
            )?);
        }
    }
    Ok(launches)
}

/// What kernels read an element as.
fn element(dtype: DType) -> &'static str {
    match dtype.size() {
        1 => "bits8",
        2 => "bits16",
        4 => "u32",
        _ => "vec2<u32>",
    }
}

/// Everything that makes a kernel of marks another one.
struct Name {
    element: &'static str,
    is_four: bool,
    is_shared: bool,
    rank: u32,
}

impl Name {
    fn key(&self) -> KernelKey {
        let mut values = SmallVec::from_iter([
            ("element", self.element.into()),
            ("four", u32::from(self.is_four).into()),
            ("shared", u32::from(self.is_shared).into()),
            ("rank", self.rank.into()),
        ]);
        if !self.is_shared {
            values.push(("per_thread", PER_THREAD.into()));
        }
        KernelKey {
            template: "nonzero/mark",
            values,
            bindings: 3,
            words: 8 + 2 * self.rank - 1,
        }
    }
}

fn places_key(is_shared: bool, rank: u32) -> KernelKey {
    let by = if is_shared { "mark" } else { "word" };
    let values = [
        ("by", by.into()),
        ("rank", rank.into()),
        ("per_thread", PER_THREAD.into()),
    ];
    KernelKey {
        template: "nonzero/places",
        values: values.into_iter().collect(),
        bindings: 3,
        words: 6 + rank - 1,
    }
}

pub(in crate::ops) fn specialisations(ranks: u32) -> Vec<KernelKey> {
    let mut all = Vec::new();
    for rank in 1..=ranks {
        for is_shared in [false, true] {
            all.push(places_key(is_shared, rank));
            for element in [DType::Bool, DType::F16, DType::F32, DType::F64].map(element) {
                let is_wide = element == "vec2<u32>";
                let fours = [false, true].into_iter();
                let fours =
                    fours.filter(|&is_four| !is_four || !(is_wide || is_shared || rank > 1));
                all.extend(fours.map(|is_four| {
                    Name {
                        element,
                        is_four,
                        is_shared,
                        rank,
                    }
                    .key()
                }));
            }
        }
    }
    all
}
