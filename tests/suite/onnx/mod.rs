//! The node tests of ONNX, an outside judge: every case whose ops orlop has, at 1e-3 relative and 1e-7
//! absolute. `scripts/onnx.sh` fetches them; without them the test fails.

mod math;
mod ops;
mod proto;
mod value;
mod windows;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use orlop::{Device, Result};

use crate::adapters::{Context, project};
use crate::{Scope, Test};
use ops::{Call, Skip};
use value::{Data, FLOAT, Value, is_float};

/// Cases of f32 that must pass on each device.
const LEAST: usize = 534;

pub fn tests() -> Vec<Test> {
    vec![Test::new("onnx::nodes", Scope::Device, nodes)]
}

/// The folder of the cases, or why there is none.
fn folder() -> &'static std::result::Result<PathBuf, String> {
    static FOLDER: OnceLock<std::result::Result<PathBuf, String>> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let script = project().join("scripts/onnx.sh");
        let output = Command::new("bash")
            .arg(&script)
            .output()
            .map_err(|error| format!("{} does not run: {error}", script.display()))?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).trim().into()),
            false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        }
    })
}

/// A case: a graph, nearly always of one node, and what comes in and out.
struct Case {
    name: String,
    graph: proto::Graph,
    inputs: Vec<Data>,
    outputs: Vec<Data>,
}

impl Case {
    /// Nothing where inputs or outputs are no tensors.
    fn read(folder: &Path) -> Option<Self> {
        let bytes = std::fs::read(folder.join("model.onnx")).ok()?;
        let graph = proto::model(&bytes).unwrap_or_else(|e| panic!("{folder:?}: {e}"))?;
        let tensors = |what: &str, count: usize| -> Option<Vec<Data>> {
            let file = |at| folder.join(format!("test_data_set_0/{what}_{at}.pb"));
            (0..count)
                .map(|at| {
                    let bytes = std::fs::read(file(at)).ok()?;
                    Data::of(&proto::tensor(&bytes).ok()?)
                })
                .collect()
        };
        let mut infos = graph.inputs.iter().chain(&graph.outputs);
        let are_tensors = infos.all(|info| info.is_tensor);
        if !are_tensors {
            return None;
        }
        Some(Self {
            name: folder.file_name()?.to_string_lossy().into_owned(),
            inputs: tensors("input", graph.inputs.len())?,
            outputs: tensors("output", graph.outputs.len())?,
            graph,
        })
    }

    /// The op, or `graph` where there are several.
    fn op(&self) -> String {
        match &self.graph.nodes[..] {
            [node] if node.domain.is_empty() => node.op.clone(),
            [node] => format!("{}.{}", node.domain, node.op),
            _ => "graph".to_owned(),
        }
    }

    /// Its floats are f32.
    fn is_f32(&self) -> bool {
        let kinds = || {
            self.inputs
                .iter()
                .chain(&self.outputs)
                .map(|data| data.kind)
        };
        kinds().any(|kind| kind == FLOAT) && kinds().all(|kind| kind == FLOAT || !is_float(kind))
    }

    fn run(&self, device: &Device) -> std::result::Result<(), Skip> {
        let mut values: BTreeMap<&str, Value> = BTreeMap::new();
        let initial = self.graph.initializers;
        if initial > 0 {
            return Err(Skip::Unsupported("initializers".to_owned()));
        }
        for (info, data) in self.graph.inputs.iter().zip(&self.inputs) {
            values.insert(&info.name, Value::new(device, data.clone())?);
        }
        for node in &self.graph.nodes {
            let inputs = node.inputs.iter();
            let inputs = inputs
                .map(|name| values.get(name.as_str()).cloned())
                .collect();
            let call = Call {
                device,
                node,
                inputs,
            };
            for (name, value) in node.outputs.iter().zip(ops::run(&call)?) {
                values.insert(name, value);
            }
        }
        for (info, want) in self.graph.outputs.iter().zip(&self.outputs) {
            let Some(got) = values.get(info.name.as_str()) else {
                return Err(Skip::Unsupported(format!("output {}", info.name)));
            };
            got.compare(want).map_err(Skip::Wrong)?;
        }
        Ok(())
    }
}

#[derive(Default)]
struct Tally {
    passed: usize,
    passed_f32: usize,
    unsupported: usize,
}

fn nodes(context: &Context) -> Result<()> {
    let folder = folder().as_ref().unwrap_or_else(|why| panic!("{why}"));
    let mut folders: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.unwrap_or_else(|error| panic!("{error}")).path())
        .collect();
    folders.sort();
    assert_eq!(folders.len(), 1653, "cases in {}", folder.display());
    let device = context.device();
    let mut by_op: BTreeMap<String, Tally> = BTreeMap::new();
    let mut wrong = Vec::new();
    let only = std::env::var("ORLOP_TEST_ONNX").unwrap_or_default();
    for folder in &folders {
        let Some(case) = Case::read(folder) else {
            by_op
                .entry("no tensors".to_owned())
                .or_default()
                .unsupported += 1;
            continue;
        };
        if !case.name.contains(&only) {
            continue;
        }
        let tally = by_op.entry(case.op()).or_default();
        match case.run(device) {
            Ok(()) => {
                tally.passed += 1;
                // Those of several nodes are a bonus.
                tally.passed_f32 += usize::from(case.is_f32() && case.graph.nodes.len() == 1);
            }
            Err(Skip::Unsupported(why)) => {
                if !only.is_empty() {
                    println!("{}: {why}", case.name);
                }
                tally.unsupported += 1;
            }
            Err(Skip::Wrong(why)) => wrong.push(format!("{}: {why}", case.name)),
        }
    }
    let sum = |count: fn(&Tally) -> usize| by_op.values().map(count).sum::<usize>();
    let list = |count: fn(&Tally) -> usize| {
        let counted = by_op.iter().map(|(op, tally)| (op, count(tally)));
        let named = counted.filter(|&(_, count)| count > 0);
        let named: Vec<String> = named.map(|(op, count)| format!("{op} {count}")).collect();
        named.join(", ")
    };
    let (passed, passed_f32) = (sum(|tally| tally.passed), sum(|tally| tally.passed_f32));
    println!(
        "ONNX on {}: {passed} passed ({passed_f32} of one node in f32), {} failed, {} unsupported\n\
         passed: {}\nunsupported: {}",
        context.adapter.name,
        wrong.len(),
        sum(|tally| tally.unsupported),
        list(|tally| tally.passed),
        list(|tally| tally.unsupported),
    );
    assert!(
        wrong.is_empty(),
        "{} failed:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    assert!(
        passed_f32 >= LEAST || !only.is_empty(),
        "{passed_f32} cases of f32 passed, not {LEAST}"
    );
    Ok(())
}
