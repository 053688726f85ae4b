//! Finding, selecting and opening devices.

use std::collections::HashSet;
use std::process::{Command, ExitCode};

use orlop::{Device, DeviceKind, Error, Result, Tensor};

use crate::adapters::Context;
use crate::{OnceTest, Scope, Test};

pub fn tests() -> Vec<Test> {
    vec![
        Test::new("devices::identity", Scope::Device, identity),
        Test::new("devices::selectors", Scope::Device, selectors),
        Test::new("devices::info", Scope::Device, info),
    ]
}

pub fn tests_once() -> Vec<OnceTest> {
    vec![
        ("devices::list", list),
        ("devices::unknown", unknown),
        ("devices::best_without_a_name", best_without_a_name),
        ("devices::best_by_name", best_by_name),
        ("devices::no_gpu_at_all", no_gpu_at_all),
        ("devices::async_opening", async_opening),
        ("devices::visible_by_environment", visible_by_environment),
        ("devices::visible_by_builder", visible_by_builder),
    ]
}

const CHILD: &str = "ORLOP_SUITE_CHILD";

/// This process was started by [`best_of_a_child`].
pub fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// Prints what `Device::list()` and `Device::best()` give in this environment.
pub fn child() -> ExitCode {
    match Device::list() {
        Ok(all) => {
            let all: Vec<String> = all.iter().map(|info| info.to_string()).collect();
            println!("list {}", all.join("; "));
        }
        Err(error) => println!("list error {error}"),
    }
    match Device::best() {
        Ok(device) => {
            // Nobody asked for one of its own.
            assert!(!device.is_cpu() || device == Device::cpu());
            println!("best {}", device.info().selector);
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("error {error}");
            ExitCode::FAILURE
        }
    }
}

/// What `Device::best()` gives in another environment.
fn best_of_a_child(environment: &[(&str, Option<&str>)]) -> String {
    line_of_a_child(environment, &["best ", "error "])
}

/// The line with one of these starts that a child prints in another environment.
fn line_of_a_child(environment: &[(&str, Option<&str>)], starts: &[&str]) -> String {
    let this = std::env::current_exe().expect("the test's own path");
    let mut command = Command::new(this);
    command.env(CHILD, "1");
    command
        .env_remove("ORLOP_DEVICE")
        .env_remove("ORLOP_VISIBLE_DEVICES");
    for (name, value) in environment {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let output = command.output().expect("the test starts itself");
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines()
        .find(|line| starts.iter().any(|start| line.starts_with(start)))
        .unwrap_or_else(|| panic!("the child said nothing: {output:?}"))
        .to_owned()
}

// Hashed by identity, which nothing inside changes.
#[allow(clippy::mutable_key_type)]
fn identity(context: &Context) -> Result<()> {
    let (a, b) = (context.open(), context.open());
    assert_eq!(a, a.clone());
    assert_ne!(a, b);
    let devices: HashSet<Device> = [&a, &b, &a].into_iter().cloned().collect();
    assert_eq!(devices.len(), 2);
    assert!(devices.contains(&a.clone()) && devices.contains(&b));
    assert!(!devices.contains(&Device::cpu()));
    drop(devices);
    let tensor = Tensor::zeros(&a, 3, orlop::DType::F32)?;
    assert_eq!(tensor.device(), &a);
    // The tensor keeps its device.
    drop(a);
    assert_eq!(tensor.to_vec::<f32>()?, [0.0; 3]);
    assert_eq!(Device::cpu(), Device::cpu());
    assert_ne!(Device::select("cpu")?, Device::cpu(), "a pool of its own");
    Ok(())
}

fn selectors(context: &Context) -> Result<()> {
    let info = &context.adapter.info;
    let all = Device::list()?;
    let index = all.iter().position(|other| other.selector == info.selector);
    let index = index.expect("the adapter is in the list").to_string();
    for selector in [&info.selector, &info.selector.to_uppercase(), &index] {
        let device = Device::select(selector)?;
        assert_eq!(
            (&device.info().selector, &device.info().name),
            (&info.selector, &info.name)
        );
    }
    // By its name and backend: the first of that name.
    if context.adapter.name != "cpu" {
        let device = Device::select(&format!("{} {}", info.name, info.backend))?;
        assert_eq!(device.info().name, info.name);
        assert_eq!(device.info().backend, info.backend);
    }
    Ok(())
}

fn info(context: &Context) -> Result<()> {
    let device = context.device();
    let info = device.info();
    assert!(!info.name.is_empty());
    assert_eq!(
        info.to_string(),
        format!("{} ({}, {})", info.selector, info.name, info.backend)
    );
    assert_eq!(unnumbered(device), info.to_string());
    assert!(format!("{device:?}").contains(&info.selector));
    let capabilities = device.capabilities();
    assert_eq!(info.capabilities, *capabilities);
    if !device.is_cpu() {
        // Settings leave it less than its adapter has, and both say so.
        let bounded = context.builder().max_binding_bytes(4 << 10).build()?;
        let found = [bounded.capabilities(), &bounded.info().capabilities];
        assert_eq!(found.map(|found| found.max_binding_bytes), [4 << 10; 2]);
    }
    assert_eq!(device.is_cpu(), capabilities.kind == DeviceKind::Cpu);
    assert!(capabilities.max_binding_bytes <= capabilities.max_buffer_bytes);
    assert!(capabilities.max_workgroups >= 65_535 && capabilities.max_bindings >= 4);
    if let (Some(total), Some(free)) = (info.memory_total, info.memory_free) {
        assert!(free <= total && total > 1 << 20);
    }
    if cfg!(target_os = "linux") && device.is_cpu() {
        assert!(info.memory_total.is_some());
    }
    Ok(())
}

fn list() -> Result<()> {
    let all = Device::list()?;
    let selectors: HashSet<_> = all.iter().map(|info| &info.selector).collect();
    assert_eq!(selectors.len(), all.len());
    let last = all.last().expect("the CPU is always there");
    assert_eq!(
        (last.selector.as_str(), last.kind(), last.backend),
        ("cpu", DeviceKind::Cpu, "native")
    );
    let kinds: Vec<DeviceKind> = all.iter().map(orlop::DeviceInfo::kind).collect();
    assert!(
        kinds.is_sorted(),
        "discrete, integrated, other, software, CPU: {kinds:?}"
    );
    for info in &all {
        let class = match info.kind() {
            DeviceKind::Cpu => "cpu",
            DeviceKind::Software => "soft:",
            _ => "gpu:",
        };
        assert!(info.selector.starts_with(class), "{info}");
    }
    Ok(())
}

fn unknown() -> Result<()> {
    for asked in ["no such device", "gpu:77", "soft:77", "4096", " ", "cpu:1"] {
        let Err(error) = Device::select(asked) else {
            panic!("`{asked}` is no device");
        };
        let Error::UnknownDevice(unknown) = &error else {
            panic!("{error:?}");
        };
        assert_eq!(unknown.asked, asked);
        assert_eq!(unknown.available.len(), Device::list()?.len());
        let text = error.to_string();
        for info in Device::list()? {
            assert!(text.contains(&info.to_string()), "{info} is not in: {text}");
        }
    }
    Ok(())
}

/// The first GPU, or the CPU; never a software adapter.
fn best_without_a_name() -> Result<()> {
    let gpu = Device::list()?
        .into_iter()
        .find(|info| info.kind().is_gpu());
    let want = gpu.map_or("cpu".to_owned(), |info| info.selector);
    assert_eq!(best_of_a_child(&[]), format!("best {want}"));
    for blank in ["", " "] {
        let best = best_of_a_child(&[("ORLOP_DEVICE", Some(blank))]);
        assert_eq!(best, format!("best {want}"));
    }
    Ok(())
}

fn best_by_name() -> Result<()> {
    for info in Device::list()? {
        let best = best_of_a_child(&[("ORLOP_DEVICE", Some(&info.selector))]);
        assert_eq!(best, format!("best {}", info.selector));
    }
    let best = best_of_a_child(&[("ORLOP_DEVICE", Some("nonsense"))]);
    assert!(
        best.starts_with("error ") && best.contains("`nonsense`"),
        "{best}"
    );
    Ok(())
}

/// Without a driver, or without a backend for this system, there is the CPU.
fn no_gpu_at_all() -> Result<()> {
    let other = if cfg!(windows) { "metal" } else { "dx12" };
    assert_eq!(
        best_of_a_child(&[("WGPU_BACKEND", Some(other))]),
        "best cpu"
    );
    let nothing = [
        ("VK_DRIVER_FILES", Some("/nonexistent")),
        ("VK_ICD_FILENAMES", Some("/nonexistent")),
        ("VK_ADD_DRIVER_FILES", None),
        ("WGPU_BACKEND", Some("vulkan")),
    ];
    if cfg!(target_os = "linux") {
        assert_eq!(best_of_a_child(&nothing), "best cpu");
    }
    Ok(())
}

fn async_opening() -> Result<()> {
    let device = pollster::block_on(Device::builder().select("cpu").build_async())?;
    assert!(device.is_cpu());
    let error = pollster::block_on(Device::builder().select("nothing").build_async());
    assert!(matches!(error, Err(Error::UnknownDevice(_))));
    // Without an executor.
    assert!(
        Device::builder()
            .select("cpu")
            .build_async()
            .wait()?
            .is_cpu()
    );
    let error = Device::builder().select("nothing").build_async().wait();
    assert!(matches!(error, Err(Error::UnknownDevice(_))));
    Ok(())
}

/// A device's name without the number that tells virtual devices apart.
fn unnumbered(device: &Device) -> String {
    let name = device.to_string();
    let (selector, rest) = name.split_once(" (").expect("a name in brackets");
    let selector = selector.split('#').next().unwrap_or_default();
    format!("{selector} ({rest}")
}

/// The list as a child prints it, of devices by their names, the selectors counted anew.
fn renumbered(infos: &[&orlop::DeviceInfo]) -> String {
    let (mut gpus, mut software) = (0, 0);
    let mut shown = Vec::new();
    for info in infos {
        let selector = match info.kind() {
            DeviceKind::Cpu => "cpu".to_owned(),
            DeviceKind::Software => {
                software += 1;
                format!("soft:{}", software - 1)
            }
            _ => {
                gpus += 1;
                format!("gpu:{}", gpus - 1)
            }
        };
        shown.push(format!("{selector} ({}, {})", info.name, info.backend));
    }
    format!("list {}", shown.join("; "))
}

/// As `CUDA_VISIBLE_DEVICES`: the order given is the new numbering. Wrong names are errors.
fn visible_by_environment() -> Result<()> {
    let all = Device::list()?;
    let list = |value: &str| line_of_a_child(&[(VISIBLE, Some(value))], &["list "]);
    let (cpu, others) = all.split_last().expect("the CPU is always there");
    assert_eq!(
        line_of_a_child(&[], &["list "]),
        renumbered(&all.iter().collect::<Vec<_>>())
    );
    for nothing in ["", " ", "cpu"] {
        assert_eq!(list(nothing), renumbered(&[cpu]));
    }
    assert_eq!(best_of_a_child(&[(VISIBLE, Some(""))]), "best cpu");
    // Backwards, by selector; the last alone, by index and by words.
    let backwards: Vec<&orlop::DeviceInfo> = others.iter().rev().chain([cpu]).collect();
    let names: Vec<&str> = backwards
        .iter()
        .map(|info| info.selector.as_str())
        .collect();
    assert_eq!(list(&names.join(" , ")), renumbered(&backwards));
    if let Some((last, at)) = others.last().zip(others.len().checked_sub(1)) {
        let words = format!("{} {}", last.name.replace(',', ""), last.backend);
        let first_match = Device::select(&words)?.info().clone();
        assert_eq!(list(&at.to_string()), renumbered(&[last, cpu]));
        assert_eq!(list(&words), renumbered(&[&first_match, cpu]));
        // What is named is chosen among the visible, by its new number.
        let class = last.selector.split(':').next().unwrap_or_default();
        let chosen = |device: &str| {
            best_of_a_child(&[
                (VISIBLE, Some(&last.selector)),
                ("ORLOP_DEVICE", Some(device)),
            ])
        };
        assert_eq!(chosen(class), format!("best {class}:0"));
        let hidden = chosen(&format!("{class}:1"));
        assert!(
            hidden.starts_with("error ") && hidden.contains("of ORLOP_DEVICE; there are:"),
            "{hidden}"
        );
        let reason = "; ORLOP_VISIBLE_DEVICES hides what it does not name";
        assert!(hidden.contains(reason), "{hidden}");
        let twice = list(&format!("{at},{}", last.selector));
        assert!(
            twice.contains("one device") && twice.contains("once"),
            "{twice}"
        );
    }
    for unknown in ["nonsense", "gpu:77", "cpu,nonsense", "cpu,,"] {
        let best = best_of_a_child(&[(VISIBLE, Some(unknown)), ("ORLOP_DEVICE", Some("cpu"))]);
        for said in [list(unknown), best] {
            assert!(said.contains("error "), "{said}");
            assert!(
                said.contains("of ORLOP_VISIBLE_DEVICES; there are:"),
                "{said}"
            );
            assert!(said.contains(&cpu.to_string()), "{said}");
        }
    }
    Ok(())
}

const VISIBLE: &str = "ORLOP_VISIBLE_DEVICES";

fn visible_by_builder() -> Result<()> {
    let all = Device::list()?;
    let (cpu, others) = all.split_last().expect("the CPU is always there");
    let none = Device::builder().visible(Vec::<String>::new());
    assert_eq!(none.list()?.len(), 1);
    assert!(none.clone().build()?.is_cpu());
    let Err(Error::UnknownDevice(error)) = none.select("soft:0").build() else {
        panic!("it is hidden");
    };
    assert_eq!((error.setting, error.available.len()), (None, 1));
    let help = error.help.unwrap_or_default();
    assert!(help.contains("visible hides"), "{help}");
    let backwards: Vec<&str> = others
        .iter()
        .rev()
        .map(|info| info.selector.as_str())
        .collect();
    let builder = Device::builder().visible(backwards);
    let listed = builder.list()?;
    for (info, old) in listed.iter().zip(others.iter().rev().chain([cpu])) {
        assert_eq!((&info.name, info.backend), (&old.name, old.backend));
        let device = builder.clone().select(&info.selector).build()?;
        assert_eq!(device.info().name, old.name);
        assert_eq!(unnumbered(&device), info.to_string());
    }
    let Err(Error::UnknownDevice(error)) = Device::builder().visible(["cpu", "abacus"]).list()
    else {
        panic!("there is no abacus");
    };
    assert_eq!(
        (error.asked.as_str(), error.setting),
        ("abacus", Some("visible"))
    );
    let twice = Device::builder().visible(["cpu", "CPU"]).build();
    assert!(matches!(twice, Err(Error::InvalidArgument(_))));
    // The host device is there whatever is hidden.
    assert!(Device::cpu().is_cpu());
    Ok(())
}
