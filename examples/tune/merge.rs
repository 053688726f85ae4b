//! Sizes that were measured become ranges, and ranges that touch and agree become one.

use std::ops::RangeInclusive;

use orlop::{MatmulChoice, MatmulProblem};

use crate::measure::Way;

/// One of a choice's ranges.
type Side = fn(&mut MatmulChoice) -> &mut RangeInclusive<usize>;

/// The choices for what was found, few of them.
pub fn choices(
    found: Vec<(MatmulProblem, Way)>,
    sizes: &[usize],
    batches: &[usize],
) -> Vec<MatmulChoice> {
    let mut choices: Vec<MatmulChoice> = found
        .into_iter()
        .map(|(problem, way)| MatmulChoice {
            m: around(problem.m, sizes),
            k: around(problem.k, sizes),
            n: around(problem.n, sizes),
            batches: around(problem.batches, batches),
            a_along_k: Some(problem.a.along_k),
            b_along_k: Some(problem.b.along_k),
            vectors: Some(problem.vectors()),
            split: way.split,
            ..MatmulChoice::new(problem.dtype, way.kernel)
        })
        .collect();
    let sides: [Side; 4] = [
        |choice| &mut choice.k,
        |choice| &mut choice.n,
        |choice| &mut choice.m,
        |choice| &mut choice.batches,
    ];
    for side in sides {
        choices = merged(choices, side);
    }
    choices
}

/// The sizes that one of the ladder stands for: from and to the geometric mean with its neighbours, without
/// end at the ends. A size of one is itself only: products with vectors have kernels of their own.
fn around(size: usize, ladder: &[usize]) -> RangeInclusive<usize> {
    if size == 1 {
        return 1..=1;
    }
    let mean = |a: usize, b: usize| (a as f64 * b as f64).sqrt() as usize;
    let below = ladder.iter().copied().filter(|&other| other < size).max();
    let above = ladder.iter().copied().filter(|&other| other > size).min();
    let from = below.map_or(0, |below| mean(below, size) + 1);
    let to = above.map_or(usize::MAX, |above| mean(size, above));
    from..=to
}

/// Choices that differ along one side only, where their ranges touch, become one.
fn merged(choices: Vec<MatmulChoice>, side: Side) -> Vec<MatmulChoice> {
    let mut merged: Vec<MatmulChoice> = Vec::new();
    for mut choice in choices {
        let range = side(&mut choice).clone();
        let earlier = merged.iter_mut().find(|earlier| {
            let mut moved = (*earlier).clone();
            let end = *side(&mut moved).end();
            *side(&mut moved) = range.clone();
            end.checked_add(1) == Some(*range.start()) && moved == choice
        });
        match earlier {
            Some(earlier) => {
                let whole = side(earlier);
                *whole = *whole.start()..=*range.end();
            }
            None => merged.push(choice),
        }
    }
    merged
}
