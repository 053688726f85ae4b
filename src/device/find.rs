//! What devices there are, and which one a selector means.

use std::fmt;
use std::path::Path;

use crate::capabilities::{Capabilities, DeviceKind};
use crate::error::{Error, Result, UnknownDevice};
use crate::gpu::{Adapter, adapter_memory, adapters, features_off};

/// What is known of a device without opening it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// `gpu:0`, `soft:0`, `cpu`: what [`DeviceBuilder::select`](crate::DeviceBuilder::select)
    /// takes; `lent` for a device that was opened elsewhere and cannot be selected.
    pub selector: String,
    /// The adapter's name, or the CPU's.
    pub name: String,
    /// `Vulkan`, `Metal`, `Dx12`, `Gl`, or `native` for the CPU.
    pub backend: &'static str,
    /// The driver and its version, where known.
    pub driver: String,
    /// What it can do, its kind and its limits; of an open device as it was opened: [`Device::capabilities`](crate::Device::capabilities).
    pub capabilities: Capabilities,
    /// Bytes of memory of its own, where it can be known.
    pub memory_total: Option<u64>,
    /// Bytes of it that were free when this was asked, where it can be known.
    pub memory_free: Option<u64>,
}

impl fmt::Display for DeviceInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}, {})", self.selector, self.name, self.backend)
    }
}

impl DeviceInfo {
    /// The kind of device.
    pub fn kind(&self) -> DeviceKind {
        self.capabilities.kind
    }

    pub(super) fn cpu() -> Self {
        let memory = host_memory();
        Self {
            selector: "cpu".to_owned(),
            name: format!(
                "{}, {} threads",
                std::env::consts::ARCH,
                std::thread::available_parallelism().map_or(1, usize::from)
            ),
            backend: "native",
            driver: String::new(),
            capabilities: Capabilities::cpu(),
            memory_total: memory.0,
            memory_free: memory.1,
        }
    }

    pub(super) fn adapter(selector: String, adapter: &Adapter) -> Self {
        let memory = adapter_memory(&adapter.adapter);
        Self {
            selector,
            name: adapter.name.clone(),
            backend: adapter.backend,
            driver: adapter.driver.clone(),
            capabilities: adapter.capabilities.clone(),
            memory_total: memory.total,
            memory_free: memory.free,
        }
    }

    /// What a piece of a name is looked for in.
    fn haystack(&self) -> String {
        // Mesa calls its Vulkan driver by the name of its GL renderer.
        let alias = if self.backend == "Vulkan" && self.name.contains("llvmpipe") {
            "lavapipe"
        } else {
            ""
        };
        format!("{} {} {} {alias}", self.name, self.driver, self.backend).to_lowercase()
    }
}

/// Total and available bytes of the host, or of the part of it that this process may have, where Linux tells.
pub(super) fn host_memory() -> (Option<u64>, Option<u64>) {
    memory_by(|path| std::fs::read_to_string(path).ok())
}

fn memory_by(read: impl Fn(&Path) -> Option<String>) -> (Option<u64>, Option<u64>) {
    let number = |path: &Path, name: &str| -> Option<u64> {
        let text = read(path)?;
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse().ok()
    };
    let of_host = |name: &str| Some(number(Path::new("/proc/meminfo"), name)? * 1024);
    let (mut total, mut free) = (of_host("MemTotal:"), of_host("MemAvailable:"));
    // Control groups (of version 2) that this process is in, from its own to the outermost that it sees.
    let groups = Path::new("/sys/fs/cgroup");
    let own = read(Path::new("/proc/self/cgroup"));
    let own = own.as_deref().unwrap_or_default();
    let own = own.lines().find_map(|line| line.strip_prefix("0::/"));
    let own = own.map(|own| groups.join(own));
    let all = own.iter().flat_map(|own| own.ancestors());
    for group in all.take_while(|group| group.starts_with(groups)) {
        let of_group = |file: &str, name: &str| number(&group.join(file), name);
        // `max` is no limit.
        let Some(limit) = of_group("memory.max", "") else {
            continue;
        };
        // Files that were read count as used, but go when memory is asked for.
        let used = of_group("memory.current", "").unwrap_or(0);
        let read = ["inactive_file ", "active_file "];
        let read = read.map(|files| of_group("memory.stat", files).unwrap_or(0));
        let used = used.saturating_sub(read.iter().sum());
        total = total.map(|total| total.min(limit));
        free = free.map(|free| free.min(limit.saturating_sub(used)));
    }
    (total, free)
}

/// A device and how to reach it.
pub(super) struct Found {
    pub info: DeviceInfo,
    /// `None` is the CPU.
    pub adapter: Option<&'static Adapter>,
}

impl Found {
    pub(super) fn cpu() -> Self {
        Self {
            info: DeviceInfo::cpu(),
            adapter: None,
        }
    }
}

/// Every device, best first, the CPU last.
pub(super) fn find() -> Vec<Found> {
    let mut all: Vec<Found> = adapters()
        .iter()
        .map(|adapter| Found {
            info: DeviceInfo::adapter(String::new(), adapter),
            adapter: Some(adapter),
        })
        .collect();
    all.push(Found::cpu());
    count(&mut all);
    all
}

/// Gives each its selector: GPUs and software adapters count from 0 in the order they stand in.
fn count(all: &mut [Found]) {
    let (mut gpus, mut software) = (0, 0);
    for Found { info, .. } in all {
        let (class, count) = match info.kind() {
            DeviceKind::Cpu => continue,
            DeviceKind::Software => ("soft", &mut software),
            _ => ("gpu", &mut gpus),
        };
        info.selector = format!("{class}:{count}");
        *count += 1;
    }
}

/// The devices that `names` leave visible: in their order, counted anew, the CPU always and last.
/// `setting` is where the names come from, `hides` what hid others before.
///
/// # Errors
/// `UnknownDevice`, listing those that exist; `InvalidArgument` for one that is named twice.
pub(super) fn visible(
    setting: &'static str,
    names: &[String],
    hides: &[&str],
    all: Vec<Found>,
) -> Result<Vec<Found>> {
    let mut chosen: Vec<usize> = Vec::new();
    for (at, name) in names.iter().enumerate() {
        let found =
            position(name, &all).ok_or_else(|| unknown(name, Some(setting), hides, &all))?;
        if let Some(earlier) = chosen.iter().position(|&other| other == found) {
            return Err(Error::invalid(
                setting,
                format!(
                    "`{}` and `{}` are one device, {}; name it once",
                    names[earlier].trim(),
                    names[at].trim(),
                    all[found].info
                ),
            ));
        }
        chosen.push(found);
    }
    let mut all: Vec<Option<Found>> = all.into_iter().map(Some).collect();
    let cpu = all.pop().flatten();
    let mut kept: Vec<Found> = chosen
        .into_iter()
        .filter_map(|at| all.get_mut(at)?.take())
        .chain(cpu)
        .collect();
    count(&mut kept);
    Ok(kept)
}

fn unknown(asked: &str, setting: Option<&'static str>, hides: &[&str], all: &[Found]) -> Error {
    Error::UnknownDevice(Box::new(UnknownDevice {
        asked: asked.to_owned(),
        setting,
        available: all.iter().map(|found| found.info.to_string()).collect(),
        help: unseen(hides, &features_off()),
    }))
}

/// What may keep devices from sight.
fn unseen(hides: &[&str], features: &[&str]) -> Option<String> {
    let hides = hides
        .iter()
        .map(|setting| format!("{setting} hides what it does not name"));
    let built = (!features.is_empty()).then(|| {
        let features = features.join("`, `");
        format!("orlop was built without its features `{features}`, each a backend of this system")
    });
    let all: Vec<String> = hides.chain(built).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

/// The device that a selector means; `setting` is where it comes from, if not from the call, `hides` what hid others.
///
/// # Errors
/// `UnknownDevice`, listing those that exist.
pub(super) fn select(
    selector: &str,
    setting: Option<&'static str>,
    hides: &[&str],
    mut all: Vec<Found>,
) -> Result<Found> {
    match position(selector, &all) {
        Some(at) => Ok(all.swap_remove(at)),
        None => Err(unknown(selector, setting, hides, &all)),
    }
}

fn position(selector: &str, all: &[Found]) -> Option<usize> {
    let asked = selector.trim().to_lowercase();
    if let Some(at) = all.iter().position(|found| found.info.selector == asked) {
        return Some(at);
    }
    if !asked.starts_with('+')
        && let Ok(index) = asked.parse::<usize>()
    {
        // Nobody has hundreds of devices: `4090` is a word of a name.
        return match index < all.len() {
            true => Some(index),
            false if asked.len() < 3 => None,
            false => of_word(None, &asked, all),
        };
    }
    let (class, piece) = match asked.split_once(':') {
        Some((class @ ("gpu" | "soft"), piece)) => (Some(class), piece.trim_start()),
        None if asked == "gpu" || asked == "soft" => (Some(asked.as_str()), ""),
        _ => (None, asked.as_str()),
    };
    // No piece of a version: `-1` is in Mesa's `23.2.1-1ubuntu3`.
    let number = piece.strip_prefix(['-', '+']);
    let has_sign = number.is_some_and(|number| number.parse::<u64>().is_ok());
    if has_sign || !asked.contains(char::is_alphanumeric) {
        return None;
    }
    // `gpu:7` names the eighth GPU, not a GPU with a 7 in its name; `gpu:4090` does not.
    if let Some(class) = class
        && piece.parse::<usize>().is_ok()
    {
        let selector = format!("{class}:{piece}");
        return match all.iter().position(|found| found.info.selector == selector) {
            None if piece.len() >= 3 => of_word(Some(class), piece, all),
            found => found,
        };
    }
    all.iter().position(|found| {
        let haystack = found.info.haystack();
        is_of(class, found) && piece.split_whitespace().all(|word| haystack.contains(word))
    })
}

/// The first device of a class, or of any, whose name has a whole word.
fn of_word(class: Option<&str>, asked: &str, all: &[Found]) -> Option<usize> {
    all.iter().position(|found| {
        let haystack = found.info.haystack();
        is_of(class, found) && haystack.split_whitespace().any(|word| word == asked)
    })
}

fn is_of(class: Option<&str>, found: &Found) -> bool {
    class.is_none_or(|class| found.info.selector.starts_with(class))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fake(selector: &str, name: &str, backend: &'static str) -> Found {
        Found {
            info: DeviceInfo {
                selector: selector.to_owned(),
                name: name.to_owned(),
                backend,
                capabilities: Capabilities {
                    kind: match selector.get(..3) {
                        Some("gpu") => DeviceKind::DiscreteGpu,
                        Some("sof") => DeviceKind::Software,
                        _ => DeviceKind::Cpu,
                    },
                    ..Capabilities::cpu()
                },
                ..DeviceInfo::cpu()
            },
            adapter: None,
        }
    }

    #[test]
    fn memory_is_what_the_process_may_have() {
        let meminfo = "MemTotal:       1000 kB\nMemFree: 7 kB\nMemAvailable:    600 kB\n";
        let files = |own: &'static str, inner: &'static str, outer: &'static str| {
            memory_by(move |path| {
                let text = match path.to_str()? {
                    "/proc/meminfo" => meminfo,
                    "/proc/self/cgroup" => own,
                    "/sys/fs/cgroup/a/b/memory.max" => inner,
                    "/sys/fs/cgroup/a/b/memory.current" => "150000\n",
                    "/sys/fs/cgroup/a/b/memory.stat" => {
                        "anon 9\ninactive_file 20000\nactive_file 30000\nfile 7\n"
                    }
                    "/sys/fs/cgroup/a/memory.max" => outer,
                    _ => return None,
                };
                Some(text.to_owned())
            })
        };
        let kibibytes = |total: u64, free: u64| (Some(total * 1024), Some(free * 1024));
        let own = "4:memory:/a\n0::/a/b\n";
        assert_eq!(files("", "1", "1"), kibibytes(1000, 600));
        assert_eq!(files("4:memory:/a\n", "1", "1"), kibibytes(1000, 600));
        assert_eq!(files("0::/\n", "1", "1"), kibibytes(1000, 600));
        assert_eq!(files(own, "max\n", "max\n"), kibibytes(1000, 600));
        assert_eq!(
            files(own, "120000\n", "max\n"),
            (Some(120_000), Some(20_000))
        );
        assert_eq!(files(own, "90000\n", "max\n"), (Some(90_000), Some(0)));
        assert_eq!(files(own, "max\n", "102400\n"), kibibytes(100, 100));
        assert_eq!(files(own, "9000000\n", "max\n"), kibibytes(1000, 600));
        assert_eq!(memory_by(|_| None), (None, None));
    }

    #[test]
    fn visible_devices_count_anew_in_their_order() {
        let names = |text: &str| -> Vec<String> { text.split(',').map(str::to_owned).collect() };
        let shown = |text: &str| -> Vec<String> {
            let kept = visible("visible", &names(text), &[], all()).unwrap();
            kept.iter()
                .map(|found| format!("{} {}", found.info.selector, found.info.name))
                .collect()
        };
        let cpu = "cpu x86_64, 2 threads";
        assert_eq!(
            shown("radeon, gpu:0"),
            ["gpu:0 AMD Radeon 780M", "gpu:1 NVIDIA H200", cpu]
        );
        assert_eq!(
            shown("soft:1,1"),
            ["soft:0 llvmpipe (LLVM 15)", "gpu:0 AMD Radeon 780M", cpu]
        );
        assert_eq!(shown("cpu"), [cpu]);
        let none = visible("visible", &[], &[], all()).unwrap();
        assert_eq!(none[0].info.selector, "cpu");
        assert_eq!(none.len(), 1);
        for (text, part) in [
            ("gpu:0,nvidia", "`gpu:0` and `nvidia` are one device"),
            ("gpu:0,", "`` of visible"),
            ("gpu:5", "`gpu:5` of visible; there are: gpu:0 (NVIDIA"),
        ] {
            let error = visible("visible", &names(text), &[], all()).err().unwrap();
            assert!(error.to_string().contains(part), "{error}");
        }
    }

    fn all() -> Vec<Found> {
        vec![
            fake("gpu:0", "NVIDIA H200", "Vulkan"),
            fake("gpu:1", "AMD Radeon 780M", "Vulkan"),
            fake("soft:0", "SwiftShader Device", "Vulkan"),
            fake("soft:1", "llvmpipe (LLVM 15)", "Vulkan"),
            fake("soft:2", "llvmpipe (LLVM 15)", "Gl"),
            fake("cpu", "x86_64, 2 threads", "native"),
        ]
    }

    #[test]
    fn selectors_name_devices() {
        for (asked, found) in [
            ("gpu:1", Some("gpu:1")),
            ("1", Some("gpu:1")),
            ("gpu", Some("gpu:0")),
            ("soft", Some("soft:0")),
            ("cpu", Some("cpu")),
            ("CPU", Some("cpu")),
            ("nvidia", Some("gpu:0")),
            ("gpu:radeon", Some("gpu:1")),
            ("gpu: 1", Some("gpu:1")),
            ("soft: 2", Some("soft:2")),
            ("gpu: 2", None),
            ("gpu: radeon", Some("gpu:1")),
            ("soft:llvmpipe", Some("soft:1")),
            ("soft:llvmpipe gl", Some("soft:2")),
            ("lavapipe", Some("soft:1")),
            ("gpu:llvmpipe", None),
            ("gpu:2", None),
            ("soft:7", None),
            ("17", None),
            ("intel", None),
            ("", None),
        ] {
            let selected = select(asked, None, &[], all())
                .ok()
                .map(|found| found.info.selector);
            assert_eq!(selected.as_deref(), found, "{asked}");
        }
    }

    #[test]
    fn numbers_of_names_are_words() {
        let mut all = all();
        all[1].info.name = "NVIDIA GeForce RTX 4090".to_owned();
        all[1].info.driver = "Mesa 23.2.1-1ubuntu3".to_owned();
        for (asked, found) in [
            ("4090", Some("gpu:1")),
            ("409", None),
            ("gpu:4090", Some("gpu:1")),
            ("gpu:409", None),
            ("soft:4090", None),
            ("-1", None),
            ("gpu:-1", None),
            ("+1", None),
            ("-", None),
            ("23.2.1-1ubuntu3", Some("gpu:1")),
        ] {
            let selected = position(asked, &all).map(|at| all[at].info.selector.as_str());
            assert_eq!(selected, found, "{asked}");
        }
    }

    #[test]
    fn unknown_devices_list_the_others() {
        let Err(error) = select("intel", None, &["ORLOP_VISIBLE_DEVICES"], all()) else {
            panic!("there is no such device");
        };
        let text = error.to_string();
        assert!(text.contains("`intel`") && text.contains("gpu:1 (AMD Radeon 780M, Vulkan)"));
        assert!(text.contains("cpu"));
        assert!(text.contains("; ORLOP_VISIBLE_DEVICES hides"), "{text}");
    }

    #[test]
    fn what_keeps_devices_from_sight_is_said() {
        assert_eq!(unseen(&[], &[]), None);
        let text = unseen(&["visible"], &["vulkan", "gles"]).unwrap();
        assert!(text.contains("visible hides"), "{text}");
        assert!(text.contains("`vulkan`, `gles`"), "{text}");
    }
}
