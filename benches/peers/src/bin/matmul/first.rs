//! The first product of a process: from its start to the result on the host, and the call alone.

use std::process::Stdio;
use std::time::Instant;

use orlop::DType;
use serde_json::{Value, json};

use crate::peer::Peer;
use crate::shapes::{LARGE, Operands, PROBLEMS, Problem};

/// Where no shape is asked for.
const DEFAULT: &str = "256^3";
/// Processes after the first, which may fill caches of drivers and of tuning.
const REPEATS: usize = 5;

/// Those whose name contains one of `shapes`.
pub fn problems(shapes: &[String]) -> Vec<Problem> {
    let is_asked = |problem: &&Problem| {
        let name = problem.name();
        match shapes {
            [] => name == DEFAULT,
            _ => shapes.iter().any(|part| name.contains(part.as_str())),
        }
    };
    let all = PROBLEMS.iter().chain(&LARGE);
    let asked: Vec<Problem> = all.filter(is_asked).copied().collect();
    match asked.is_empty() {
        true => crate::fail("no product is called so"),
        false => asked,
    }
}

/// Who multiplies on the device.
pub fn peers(device: &str, alone: bool) -> Vec<&'static str> {
    let mut peers = vec!["orlop"];
    if cfg!(feature = "burn") && !alone && crate::takes("burn-wgpu", device) {
        peers.push("burn-wgpu");
    }
    peers
}

/// In a process of its own: one product, checked. Prints the seconds of the call, whose operands are on the device.
pub fn child(device: &str, peer: &str, problem: &str) {
    let mut all = PROBLEMS.iter().chain(&LARGE);
    let Some(problem) = all.find(|one| one.name() == problem) else {
        crate::fail(&format!("no product is called {problem}"))
    };
    let operands = Operands::of(problem, DType::F32);
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
    let Some(mut run) = peer.prepare(problem, &operands) else {
        crate::fail(&format!("{name} does not do {}", problem.name()))
    };
    // Waits for what is on its way.
    run.run(0);
    let start = Instant::now();
    let result = run.result();
    println!("{}", start.elapsed().as_secs_f64());
    operands.check(problem, &result, name, 0.0);
}

/// Seconds of a process with one product, and of the call in it.
fn run(device: &str, peer: &str, problem: &str) -> (f64, f64) {
    let start = Instant::now();
    let output = crate::on(device)
        .args(["--device", device, "--first-by", peer, "--shape", problem])
        .stderr(Stdio::inherit())
        .output();
    let whole = start.elapsed().as_secs_f64();
    let output = match output {
        Ok(output) if output.status.success() => output.stdout,
        Ok(output) => crate::fail(&format!("{peer} on {device}: {}", output.status)),
        Err(error) => crate::fail(&format!("{peer} on {device}: {error}")),
    };
    // Others may print, too.
    let said = String::from_utf8_lossy(&output);
    match said.lines().rev().find_map(|line| line.parse().ok()) {
        Some(call) => (whole, call),
        None => crate::fail(&format!("{peer} on {device} told no seconds")),
    }
}

/// One line a peer: seconds of the first process and the medians of those after it.
pub fn measure(device: &str, problem: &Problem, peers: &[&str]) -> Vec<Value> {
    let name = problem.name();
    let mut seconds: Vec<_> = peers
        .iter()
        .map(|peer| vec![run(device, peer, &name)])
        .collect();
    for _ in 0..REPEATS {
        for (peer, seconds) in peers.iter().zip(&mut seconds) {
            seconds.push(run(device, peer, &name));
        }
    }
    peers
        .iter()
        .zip(seconds)
        .map(|(peer, mut seconds)| {
            let first = seconds.remove(0);
            let (wholes, calls): (Vec<f64>, Vec<f64>) = seconds.into_iter().unzip();
            json!({
                "device": device, "problem": format!("first product of a process, {name}"), "who": peer,
                "first_seconds": first.0, "seconds": median(wholes),
                "first_call_seconds": first.1, "call_seconds": median(calls),
            })
        })
        .collect()
}

fn median(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}

pub fn print(line: &Value) {
    let seconds = |name: &str| line[name].as_f64().unwrap_or(f64::NAN);
    println!(
        "{:<12} {:<12} {}: start to result {:.3} s ({:.3} s in the first process), the call {:.3} s ({:.3} s)",
        line["device"].as_str().unwrap_or_default(),
        line["who"].as_str().unwrap_or_default(),
        line["problem"].as_str().unwrap_or_default(),
        seconds("seconds"),
        seconds("first_seconds"),
        seconds("call_seconds"),
        seconds("first_call_seconds"),
    );
}
