//! A small generator of random test cases: the same seed gives the same cases everywhere.

use std::panic::{AssertUnwindSafe, catch_unwind};

use orlop::Result;

/// Without `ORLOP_TEST_SEED`.
const DEFAULT_SEED: u64 = 20_240_607;

/// The seed of this run.
pub fn seed() -> u64 {
    std::env::var("ORLOP_TEST_SEED")
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(DEFAULT_SEED)
}

/// SplitMix64.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Below `end`, which is not 0.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// From `low` to `high`, both included.
    pub fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low + 1)
    }

    /// True once in `times`.
    pub fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// One of `choices`.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len())]
    }

    /// Uniform in `[-1, 1)`, in steps of 2^-52.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }

    /// The numbers `0..count` in random order.
    pub fn shuffled(&mut self, count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        for at in (1..count).rev() {
            order.swap(at, self.below(at + 1));
        }
        order
    }
}

/// Runs `case` with a generator of its own `count` times; a failure says how to get it again.
pub fn cases(count: usize, mut case: impl FnMut(&mut Rng) -> Result<()>) -> Result<()> {
    let seed = seed();
    for index in 0..count {
        let mut rng = Rng::new(seed ^ (index as u64).wrapping_mul(0xD134_2543_DE82_EF95));
        let problem = match catch_unwind(AssertUnwindSafe(|| case(&mut rng))) {
            Ok(Ok(())) => continue,
            Ok(Err(error)) => error.to_string(),
            Err(panic) => panic_text(&*panic),
        };
        panic!("seed {seed} (ORLOP_TEST_SEED), case {index} of {count}: {problem}");
    }
    Ok(())
}

/// What a caught panic said.
pub fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_else(|| "a panic without text".to_owned())
}
