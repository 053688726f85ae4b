//! The traces that figures are told of: recorded ones, the same with other sizes, and generated ones
//! of the same kinds.

pub mod serving;

use std::path::Path;

use crate::trace::{Event, Trace};

/// Recorded from real training and inference runs; `tests/traces`.
const RECORDED: [&str; 4] = ["gpt2_train", "llm_decode", "lstm_train", "resnet_train"];

/// All of them, with their names.
///
/// # Errors
/// When one cannot be read.
pub fn all() -> Result<Vec<(String, Trace)>, Box<dyn std::error::Error>> {
    let mut all = Vec::new();
    for name in RECORDED {
        all.push((name.to_owned(), recorded(name)?));
    }
    for name in RECORDED {
        for factor in [0.6, 1.7, 6.0] {
            let trace = scaled(&recorded(name)?, factor);
            all.push((format!("{name} x {factor}"), trace));
        }
    }
    for seed in 1..=3 {
        let layers = 8 * seed;
        all.push((format!("training {seed}"), training(seed, layers, 40)));
        let sequences = layers as usize;
        all.push((format!("caches {seed}"), caches(seed, sequences, 2000)));
    }
    Ok(all)
}

/// Runs of one kind, each made when it is asked for: all of them would take a gigabyte.
pub struct Family {
    pub name: &'static str,
    pub runs: Box<dyn Iterator<Item = Trace>>,
}

/// Families of runs like the recorded ones.
///
/// # Errors
/// When a recorded one cannot be read.
pub fn families() -> Result<Vec<Family>, Box<dyn std::error::Error>> {
    let scales = all_recorded()?.into_iter().flat_map(|trace| {
        let factors = [0.3, 0.6, 1.0, 1.7, 2.7, 6.0, 20.0];
        factors.map(|factor| scaled(&trace, factor))
    });
    let mut families = vec![
        Family {
            name: "recorded x 0.3 to 20",
            runs: Box::new(scales),
        },
        family("training", 30, |seed| training(seed, 4 + seed % 13 * 3, 30)),
    ];
    families.extend(like_the_recorded(100));
    families.push(family("caches alone", 15, |seed| {
        caches(seed, (seed * 7 % 40 + 2) as usize, 2000)
    }));
    Ok(families)
}

fn all_recorded() -> Result<Vec<Trace>, Box<dyn std::error::Error>> {
    RECORDED.into_iter().map(recorded).collect()
}

fn family(name: &'static str, count: u64, run: fn(u64) -> Trace) -> Family {
    Family {
        name,
        runs: Box::new((1..=count).map(run)),
    }
}

/// The recorded serving program under other requests, with other models, with other loads.
fn like_the_recorded(count: u64) -> impl Iterator<Item = Family> {
    [
        family("llm_decode, requests", count, serving::other_requests),
        family("llm_decode, models", count, serving::other_models),
        family("llm_decode, loads", count, serving::other_loads),
    ]
    .into_iter()
}

/// Runs that are to be repeated, and how often.
///
/// # Errors
/// When a recorded one cannot be read.
pub fn over_and_over() -> Result<Vec<(Family, usize)>, Box<dyn std::error::Error>> {
    let mut families = vec![(
        Family {
            name: "recorded",
            runs: Box::new(all_recorded()?.into_iter()),
        },
        40,
    )];
    families.extend(like_the_recorded(20).map(|family| (family, 10)));
    Ok(families)
}

/// A run so many times: its events, and what is left of it freed in between.
pub fn repeated(run: &Trace, times: usize) -> Trace {
    let mut is_left = vec![true; run.sizes.len()];
    for event in &run.events {
        if let Event::Free { index } = *event {
            is_left[index] = false;
        }
    }
    let left = is_left.iter().enumerate().filter(|(_, is_left)| **is_left);
    let left = left.map(|(index, _)| Event::Free { index });
    let round: Vec<Event> = run.events.iter().copied().chain(left).collect();
    let events = (0..times).flat_map(|time| {
        let before = time * run.sizes.len();
        round.iter().map(move |&event| match event {
            Event::Allocate { index, bytes } => Event::Allocate {
                index: before + index,
                bytes,
            },
            Event::Free { index } => Event::Free {
                index: before + index,
            },
        })
    });
    rebuilt(events)
}

/// A recorded trace.
///
/// # Errors
/// When its file cannot be read, or has a line that is no event.
pub fn recorded(name: &str) -> Result<Trace, Box<dyn std::error::Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = root.ancestors().map(|folder| folder.join("tests/traces"));
    let file = folder
        .map(|folder| folder.join(format!("{name}.trace")))
        .find(|file| file.exists())
        .ok_or("there is no folder tests/traces")?;
    Ok(Trace::parse(&std::fs::read_to_string(file)?)?)
}

/// The same events with other sizes.
fn scaled(trace: &Trace, factor: f64) -> Trace {
    let scale = |bytes: u64| (bytes as f64 * factor).round() as u64;
    rebuilt(trace.events.iter().map(|&event| match event {
        Event::Allocate { index, bytes } => Event::Allocate {
            index,
            bytes: scale(bytes),
        },
        free => free,
    }))
}

/// Training of a network: weights and their moments, then steps of forward activations, kept until
/// the backward pass frees them in reverse, with temporaries in both. Batches differ in length.
fn training(seed: u64, layers: u64, steps: u64) -> Trace {
    let mut random = Random(seed);
    let mut tape = Tape::default();
    let width = 64 << random.below(4);
    let weights: Vec<u64> = (0..layers)
        .flat_map(|_| [width * width * 4, width * 16 * width, width * 4])
        .collect();
    let mut moments = Vec::new();
    for &bytes in &weights {
        moments.push([(); 3].map(|()| tape.allocate(bytes)));
    }
    for _ in 0..steps {
        let tokens = 32 * (1 + random.below(12));
        let mut kept = Vec::new();
        for _ in 0..layers {
            for wide in [1, 3, 4, 1] {
                let temporary = tape.allocate(tokens * width * 4);
                kept.push(tape.allocate(tokens * width * 4 * wide));
                tape.free(temporary);
            }
            kept.push(tape.allocate(tokens * tokens * 4));
        }
        let mut gradients = Vec::new();
        for (at, &block) in kept.iter().enumerate().rev() {
            let gradient = tape.allocate(tape.sizes[block]);
            if at % 5 < 3 {
                gradients.push(tape.allocate(weights[(at / 5) * 3 + at % 5]));
            }
            tape.free(block);
            tape.free(gradient);
        }
        for gradient in gradients {
            tape.free(gradient);
        }
    }
    rebuilt(tape.events.into_iter())
}

/// Caches alone: sequences come and go; each grows its cache piece by piece, by copying it into a larger
/// one, beside temporaries.
fn caches(seed: u64, sequences: usize, tokens: u64) -> Trace {
    let mut random = Random(seed);
    let mut tape = Tape::default();
    for _ in 0..48 {
        tape.allocate((1 + random.below(16)) << 18);
    }
    let mut caches: Vec<(usize, u64)> = Vec::new();
    for _ in 0..tokens {
        if caches.len() < sequences && random.below(20) == 0 {
            let length = 1 + random.below(64);
            caches.push((tape.allocate(length * 6144), length));
        }
        for cache in &mut caches {
            let temporary = tape.allocate(3072 * (1 + random.below(8)));
            let grown = tape.allocate((cache.1 + 1) * 6144);
            tape.free(cache.0);
            *cache = (grown, cache.1 + 1);
            tape.free(temporary);
        }
        if !caches.is_empty() && random.below(60) == 0 {
            let gone = random.below(caches.len() as u64) as usize;
            tape.free(caches.swap_remove(gone).0);
        }
    }
    rebuilt(tape.events.into_iter())
}

/// Events as they are made.
#[derive(Default)]
struct Tape {
    events: Vec<Event>,
    sizes: Vec<u64>,
}

impl Tape {
    fn allocate(&mut self, bytes: u64) -> usize {
        let index = self.sizes.len();
        self.sizes.push(bytes);
        self.events.push(Event::Allocate { index, bytes });
        index
    }

    fn free(&mut self, index: usize) {
        self.events.push(Event::Free { index });
    }

    fn free_all(&mut self, indices: impl IntoIterator<Item = usize>) {
        for index in indices {
            self.free(index);
        }
    }
}

/// A trace of these events.
fn rebuilt(events: impl Iterator<Item = Event>) -> Trace {
    let mut trace = Trace::default();
    let mut live = 0;
    for event in events {
        match event {
            Event::Allocate { bytes, .. } => {
                trace.sizes.push(bytes);
                live += bytes;
                trace.peak_live = trace.peak_live.max(live);
            }
            Event::Free { index } => live -= trace.sizes[index],
        }
        trace.events.push(event);
    }
    trace
}

struct Random(u64);

impl Random {
    /// Numbers that have nothing to do with those of a seed nearby.
    fn new(seed: u64) -> Self {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        random.below(1);
        random
    }

    /// A number below `end`.
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (self.0 >> 33) % end
    }
}
