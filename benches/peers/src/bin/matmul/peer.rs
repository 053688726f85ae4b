//! Who multiplies, and how long it takes.

use std::time::{Duration, Instant};

use orlop::DType;

use crate::shapes::{Operands, Problem};

/// Somebody who multiplies.
pub trait Peer {
    fn name(&self) -> &'static str;

    /// How much of sum |a||b| an entry may be off beside the roundings of its sum: what it does to factors.
    fn rounding(&self) -> f64 {
        0.0
    }

    /// How long its threads go on to spin when it is done: nobody else is measured meanwhile.
    fn spins(&self) -> Duration {
        Duration::ZERO
    }

    /// A product that can be repeated, or `None` where it would take too long or cannot be.
    fn prepare<'a>(
        &'a mut self,
        problem: &Problem,
        operands: &'a Operands,
    ) -> Option<Box<dyn Run + 'a>>;
}

/// One product, ready to run.
pub trait Run {
    /// So many times, until the results are there.
    fn run(&mut self, times: usize);

    /// The result.
    fn result(&mut self) -> Vec<f32>;
}

/// How long each runs before it is measured: after a pause a virtual machine's second processor may take tens of
/// milliseconds to come back.
const WAKING: Duration = Duration::from_millis(100);

/// Seconds per product of each peer: the median of rounds in which all take their turn.
pub fn measure(
    peers: &mut [Box<dyn Peer>],
    problem: &Problem,
    rounds: usize,
    round_seconds: f64,
    dtype: DType,
) -> Vec<Option<f64>> {
    let operands = Operands::of(problem, dtype);
    let spins: Vec<Duration> = peers.iter().map(|peer| peer.spins()).collect();
    let mut prepared: Vec<Option<(usize, Vec<f64>, Box<dyn Run + '_>)>> = peers
        .iter_mut()
        .map(|peer| {
            let (name, rounding) = (peer.name(), peer.rounding());
            let mut run = peer.prepare(problem, &operands)?;
            operands.check(problem, &run.result(), name, rounding);
            // How often, by doubling.
            let mut times = 1;
            loop {
                let start = Instant::now();
                run.run(times);
                let seconds = start.elapsed().as_secs_f64();
                if seconds >= round_seconds / 2.0 {
                    times = ((times as f64 * round_seconds / seconds) as usize).max(1);
                    break;
                }
                times *= 2;
            }
            Some((times, Vec::new(), run))
        })
        .collect();
    for round in 0..rounds {
        let count = prepared.len();
        for turn in 0..count {
            let who = (round + turn) % count;
            if let Some((times, seconds, run)) = &mut prepared[who] {
                let start = Instant::now();
                while start.elapsed() < WAKING {
                    run.run(*times);
                }
                let start = Instant::now();
                run.run(*times);
                seconds.push(start.elapsed().as_secs_f64() / *times as f64);
                std::thread::sleep(spins[who]);
            }
        }
    }
    prepared
        .into_iter()
        .map(|entry| {
            let (_, mut seconds, _) = entry?;
            seconds.sort_by(f64::total_cmp);
            seconds.get(seconds.len() / 2).copied()
        })
        .collect()
}
