//! The first product of a process: from its start to the result on the host.

use std::time::Instant;

use orlop::DType;
use serde_json::{Value, json};

use crate::peer::Peer;
use crate::shapes::{Operands, Problem};

const PROBLEM: Problem = Problem {
    batch: 1,
    m: 256,
    k: 256,
    n: 256,
    turned: false,
};
/// Processes after the first, which may fill caches of drivers and of tuning.
const REPEATS: usize = 5;

/// In a process of its own: one product, checked.
pub fn child(device: &str, peer: &str) {
    let operands = Operands::of(&PROBLEM, DType::F32);
    let mut peer: Box<dyn Peer> = match peer {
        "orlop" => Box::new(crate::orlop::Orlop::on(
            crate::open(device, false),
            DType::F32,
        )),
        #[cfg(feature = "burn")]
        "burn-wgpu" => Box::new(crate::burn::Burn::open()),
        other => crate::fail(&format!("nobody is called {other}")),
    };
    let name = peer.name();
    let result = peer
        .prepare(&PROBLEM, &operands)
        .map(|mut run| run.result());
    operands.check(&PROBLEM, &result.unwrap_or_default(), name, 0.0);
}

/// One line a peer: seconds of the first process and the median of those after it.
pub fn measure(device: &str) -> Vec<Value> {
    let mut peers = vec!["orlop"];
    if cfg!(feature = "burn") && crate::takes("burn-wgpu", device) {
        peers.push("burn-wgpu");
    }
    let run = |peer: &str| {
        let start = Instant::now();
        let status = crate::on(device)
            .args(["--device", device, "--first-by", peer])
            .status();
        match status {
            Ok(status) if status.success() => start.elapsed().as_secs_f64(),
            other => crate::fail(&format!("{peer} on {device}: {other:?}")),
        }
    };
    let mut seconds: Vec<Vec<f64>> = peers.iter().map(|peer| vec![run(peer)]).collect();
    for _ in 0..REPEATS {
        for (peer, seconds) in peers.iter().zip(&mut seconds) {
            seconds.push(run(peer));
        }
    }
    peers
        .iter()
        .zip(seconds)
        .map(|(peer, mut seconds)| {
            let first = seconds.remove(0);
            seconds.sort_by(f64::total_cmp);
            json!({
                "device": device, "problem": "first product of a process, 256^3", "who": peer,
                "first_seconds": first, "seconds": seconds[seconds.len() / 2],
            })
        })
        .collect()
}

pub fn print(line: &Value) {
    println!(
        "{:<12} {:<12} first product of a process, start to result: {:.3} s ({:.3} s in the first)",
        line["device"].as_str().unwrap_or_default(),
        line["who"].as_str().unwrap_or_default(),
        line["seconds"].as_f64().unwrap_or(f64::NAN),
        line["first_seconds"].as_f64().unwrap_or(f64::NAN),
    );
}
