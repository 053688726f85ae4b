//! The steps of sorts by digits, and the kernels of all.

use std::collections::HashSet;

use smallvec::SmallVec;

use super::Wanted;
use super::kernel::THREADS;
use super::keys::bits;
use crate::dtype::DType;
use crate::launch::KernelKey;

/// Of a pass. With eight, lavapipe sorts up to 1.9 times as fast, but compiles each kernel for a second more.
const DIGIT_BITS: usize = 4;
pub(super) const DIGITS: usize = 1 << DIGIT_BITS;

/// The walks of a pass.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Walk {
    Count,
    Move,
}

/// What a pass reads: elements (of f64 their lower words); keys that the pass before moved, or pairs of one and where it was;
/// elements (of f64 their higher words) where places say that it moved.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Source {
    X,
    Keys,
    Pairs,
    Places,
}

impl Source {
    fn name(self) -> &'static str {
        match self {
            Source::X => "x",
            Source::Keys => "keys",
            Source::Pairs => "pairs",
            Source::Places => "places",
        }
    }

    /// Of what the pass before moved.
    pub(super) fn bytes(self) -> usize {
        match self {
            Source::Pairs => 8,
            _ => 4,
        }
    }
}

/// What a pass moves.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Target {
    Keys,
    Pairs,
    Places,
    Values,
}

impl Target {
    fn name(self) -> &'static str {
        match self {
            Target::Keys => "keys",
            Target::Pairs => "pairs",
            Target::Places => "places",
            Target::Values => "values",
        }
    }

    pub(super) fn bytes(self) -> usize {
        match self {
            Target::Pairs => 8,
            _ => 4,
        }
    }
}

/// A pass by one digit.
#[derive(Clone, Copy)]
pub(super) struct Step {
    pub shift: u32,
    pub source: Source,
    pub target: Target,
}

/// The passes of a dtype's keys, from the lowest digit to the highest.
pub(super) fn all_passes(dtype: DType, wanted: Wanted) -> Vec<Step> {
    let rounds: &[Source] = match dtype {
        DType::F64 => &[Source::X, Source::Places],
        _ => &[Source::X],
    };
    let shifts = || (0..bits(dtype).min(32)).step_by(DIGIT_BITS);
    let moved = match wanted {
        Wanted::Values => Source::Keys,
        Wanted::Places { .. } => Source::Pairs,
    };
    let sources = rounds.iter().flat_map(|&first| {
        shifts().map(move |shift| match shift {
            0 => (shift, first),
            _ => (shift, moved),
        })
    });
    let sources: Vec<_> = sources.collect();
    let nexts = sources.iter().skip(1).map(|&(_, source)| Some(source));
    let all = sources.iter().zip(nexts.chain([None]));
    let step = |(&(shift, source), next): (&(u32, Source), Option<Source>)| Step {
        shift,
        source,
        target: match (wanted, next) {
            (Wanted::Values, None) => Target::Values,
            (_, Some(Source::Keys)) => Target::Keys,
            (_, Some(Source::Pairs)) => Target::Pairs,
            _ => Target::Places,
        },
    };
    all.map(step).collect()
}

pub(super) fn whole_key(dtype: DType, target: Target, threads: Option<usize>) -> KernelKey {
    let mut values = SmallVec::from_iter([
        ("element", dtype.name().into()),
        ("target", target.name().into()),
    ]);
    values.extend(threads.map(|threads| ("threads", (threads as u32).into())));
    KernelKey {
        template: if threads.is_some() {
            "sort/line"
        } else {
            "sort/rank"
        },
        values,
        bindings: 2,
        words: 8,
    }
}

pub(super) fn pass_key(dtype: DType, step: Step, walk: Walk, is_shared: bool) -> KernelKey {
    let is_moving = walk == Walk::Move;
    // Keys are the same of all dtypes, until they are values again.
    let is_any = matches!(step.source, Source::Keys | Source::Pairs)
        && !(is_moving && step.target == Target::Values);
    let element = if is_any { DType::U32 } else { dtype };
    let mut values = SmallVec::from_iter([
        ("element", element.name().into()),
        ("source", step.source.name().into()),
        ("shared", u32::from(is_shared).into()),
    ]);
    if is_moving {
        values.push(("target", step.target.name().into()));
    }
    KernelKey {
        template: if is_moving { "sort/move" } else { "sort/count" },
        values,
        bindings: 2 + u32::from(step.source == Source::Places) + u32::from(is_moving),
        words: 14,
    }
}

pub(in crate::ops) fn specialisations() -> Vec<KernelKey> {
    let mut all = Vec::new();
    let all_wanted = [
        (Wanted::Values, Target::Values),
        (
            Wanted::Places {
                of_equal_zeros: true,
            },
            Target::Places,
        ),
    ];
    let dtypes = DType::ALL
        .iter()
        .flat_map(|&dtype| all_wanted.map(|wanted| (dtype, wanted)));
    for (dtype, (wanted, target)) in dtypes {
        if (dtype, wanted) == (DType::F64, Wanted::Values) {
            continue;
        }
        let threads = [None].into_iter().chain(THREADS.map(Some));
        all.extend(threads.map(|threads| whole_key(dtype, target, threads)));
        for is_shared in [false, true] {
            for step in all_passes(dtype, wanted) {
                let walks = [Walk::Count, Walk::Move];
                all.extend(walks.map(|walk| pass_key(dtype, step, walk, is_shared)));
            }
        }
    }
    let mut seen = HashSet::new();
    all.retain(|key| seen.insert(key.clone()));
    all
}
