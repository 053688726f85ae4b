//! What lives in a device's memory: snapshots, live tensors, leaks.

#[cfg(feature = "snapshots")]
mod json;
#[cfg(feature = "snapshots")]
mod page;
#[cfg(feature = "snapshots")]
mod pickle;

use std::backtrace::Backtrace;

use super::{Backend, Device, Storage};
use crate::error::{Error, Leaks, LiveTensor, Result};
use crate::memory::order;
use crate::memory::{CallSite, MemorySnapshot};

impl Device {
    /// The device's memory at this moment: every region and chunk, what each holds, and the latest
    /// events if [`DeviceBuilder::record_history`](super::DeviceBuilder::record_history) asked for
    /// them. Consistent: allocations of other threads wait meanwhile (about 0.1 ms for 1000 blocks).
    ///
    /// ```
    /// # use orlop::{DType, Device, Tensor};
    /// # fn main() -> orlop::Result<()> {
    /// let device = Device::builder().select("cpu").build()?;
    /// let before = device.memory_snapshot();
    /// let kept = orlop::tagged("cache", || Tensor::zeros(&device, [100], DType::F32))?;
    /// let new = device.memory_snapshot().diff(&before);
    /// assert_eq!((new[0].tag.to_string(), new[0].requested), ("cache".to_owned(), 400));
    /// # drop(kept);
    /// # Ok(())
    /// # }
    /// ```
    pub fn memory_snapshot(&self) -> MemorySnapshot {
        let mut snapshot = match self.backend() {
            Backend::Cpu(pool) => pool.snapshot(),
            Backend::Gpu(gpu) => gpu.snapshot(),
        };
        snapshot.device = self.to_string();
        snapshot
    }

    /// The memory of every tensor that lives on the device, oldest first. Tensors that share memory
    /// (views) are one. What holds it, when no handle seems to: a read or write in progress.
    pub fn live_tensors(&self) -> Vec<LiveTensor> {
        self.live_since(0)
    }

    /// An error that lists every tensor that lives on the device, for the end of tests.
    ///
    /// ```
    /// # use orlop::{DType, Device, Error, Tensor};
    /// # fn main() -> orlop::Result<()> {
    /// let device = Device::builder().select("cpu").build()?;
    /// let kept = Tensor::zeros(&device, [100], DType::F32)?;
    /// let Err(Error::Leaks(leaks)) = device.check_leaks() else {
    ///     panic!("one tensor lives");
    /// };
    /// assert_eq!(leaks.tensors[0].requested, 400);
    /// drop(kept);
    /// device.check_leaks()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Leaks`].
    pub fn check_leaks(&self) -> Result<()> {
        self.leaks(self.live_tensors(), "")
    }

    /// [`Device::check_leaks`] for tensors made after `before` was taken, a snapshot of this device:
    /// what lived then may live on.
    ///
    /// ```
    /// # use orlop::{DType, Device, Tensor};
    /// # fn main() -> orlop::Result<()> {
    /// let device = Device::builder().select("cpu").build()?;
    /// let weights = Tensor::ones(&device, [64, 64], DType::F32)?;
    /// let before = device.memory_snapshot();
    /// let result = weights.matmul(&weights)?;
    /// assert!(device.check_leaks_since(&before).is_err());
    /// drop(result);
    /// device.check_leaks_since(&before)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Leaks`].
    pub fn check_leaks_since(&self, before: &MemorySnapshot) -> Result<()> {
        let since = ", made since the snapshot";
        self.leaks(self.live_since(before.allocations), since)
    }

    fn leaks(&self, tensors: Vec<LiveTensor>, since: &'static str) -> Result<()> {
        if tensors.is_empty() {
            return Ok(());
        }
        Err(Error::Leaks(Box::new(Leaks {
            device: self.to_string(),
            tensors,
            since,
        })))
    }

    /// What was made after the allocation of a number, and lives.
    fn live_since(&self, number: u64) -> Vec<LiveTensor> {
        let snapshot = self.memory_snapshot();
        let spilled = snapshot.spilled.iter();
        let spilled = spilled.map(|spilled| (spilled.bytes, &spilled.block, true));
        let mut live: Vec<LiveTensor> = snapshot
            .blocks()
            .map(|(chunk, block)| (chunk.bytes, block, false))
            .chain(spilled)
            .filter(|(_, block, _)| block.number > number)
            .map(|(bytes, block, spilled)| LiveTensor {
                number: block.number,
                bytes,
                requested: block.requested,
                tag: block.tag.to_string(),
                age: block.age,
                spilled,
                call_site: block.call_site.as_ref().map(ToString::to_string),
            })
            .collect();
        order::sort(&mut live, |tensor| (tensor.number, 0));
        live
    }

    /// Keeps the place in the program that asked for a storage, where the device was told to.
    pub(crate) fn record_call_site(&self, storage: &Storage) {
        if !self.0.call_sites {
            return;
        }
        let Some(site) = call_site(&Backtrace::force_capture().to_string()) else {
            return;
        };
        match storage {
            Storage::Gpu(block) => block.gpu().set_call_site(block.id(), site),
            Storage::Host(block) => block.set_call_site(site),
            Storage::Empty => {}
        }
    }
}

/// This file in a backtrace, as paths are compared.
const THIS: &str = "src/device/snapshot/mod.rs:";

/// The first frame outside of orlop, from a backtrace as the standard library prints it: a line
/// `12: path::of::function`, then, where there is debug information, `at file.rs:34:5`. Where there are tables of lines
/// alone, functions that were inlined have no path: files tell whose they are.
fn call_site(backtrace: &str) -> Option<CallSite> {
    let compared = |at: &str| at["at ".len()..].replace('\\', "/");
    let ours = backtrace.lines().map(str::trim).find_map(|line| {
        let file = line.starts_with("at ").then(|| compared(line))?;
        let (root, _) = file.split_once(THIS)?;
        Some(format!("{root}src/"))
    });
    let mut lines = backtrace.lines().map(str::trim).peekable();
    let mut inside = false;
    while let Some(line) = lines.next() {
        let Some((number, function)) = line.split_once(": ") else {
            continue;
        };
        if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
            continue;
        }
        let at = lines.next_if(|next| next.starts_with("at "));
        let file = at.map(compared).unwrap_or_default();
        let is_ours = is_own(function) || ours.as_ref().is_some_and(|ours| file.starts_with(ours));
        inside |= is_ours;
        // Before the first frame of orlop's are those that made the backtrace.
        let is_system = is_of_libraries(function)
            || file.starts_with("/rustc/")
            || file.contains("/rustlib/src/rust/library/");
        if !inside || is_ours || is_system {
            continue;
        }
        let mut parts = at.map_or("", |at| &at["at ".len()..]).rsplitn(3, ':');
        let (_column, line, file) = (parts.next(), parts.next(), parts.next());
        return Some(CallSite {
            function: function.to_owned(),
            file: file.unwrap_or_default().to_owned(),
            line: line.and_then(|line| line.parse().ok()).unwrap_or(0),
        });
    }
    None
}

/// Whether a trait's name, or a type's, begins with one of these crates.
fn is_of(crates: &[&str], name: &str) -> bool {
    crates.iter().any(|of| name.starts_with(of))
}

/// The trait of a function `<T as Trait>::f`, whose name here begins with the type: not one that generics name further in.
fn trait_of(name: &str) -> Option<&str> {
    let mut depth = 0;
    for (at, byte) in name.bytes().enumerate() {
        match byte {
            b'<' => depth += 1,
            b'>' if !name[..at].ends_with('-') => depth -= 1,
            b' ' if depth == 0 => {
                if let Some(name) = name[at..].strip_prefix(" as ") {
                    return Some(name);
                }
            }
            _ => {}
        }
        if depth < 0 {
            break;
        }
    }
    None
}

/// Whether a function is Rust's own, or of a crate that calls orlop back, by its name. A program's own trait is its own code.
fn is_of_libraries(function: &str) -> bool {
    let crates = ["std::", "core::", "alloc::", "smallvec::"];
    match function.strip_prefix('<') {
        Some(name) => {
            is_of(&crates, name) && trait_of(name).is_none_or(|name| is_of(&crates, name))
        }
        None => is_of(&crates, function),
    }
}

/// Whether a function is orlop's by its name, as either mangling writes it: `orlop::f`, `<&orlop::T>::f`, of a trait that is
/// Rust's or orlop's `<&orlop::T as core::ops::arith::Add>::add`, and of numbers `<f64 as core::ops::arith::Mul<&orlop::T>>::mul`.
fn is_own(function: &str) -> bool {
    let mut name = function;
    while let Some(rest) = ["<", "&", "mut "]
        .iter()
        .find_map(|&mark| name.strip_prefix(mark))
    {
        name = rest;
    }
    let of_number = ["f64 as core::ops::", "i64 as core::ops::"];
    // A program's own trait is its own code.
    let roots = ["core::", "std::", "alloc::", "orlop::"];
    let is_of_its_trait = trait_of(name).is_none_or(|name| is_of(&roots, name));
    name.starts_with("orlop::") && is_of_its_trait
        || of_number.iter().any(|start| name.starts_with(start)) && name.contains("orlop::")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_call_site_is_the_first_frame_outside() {
        let text = "   0: std::backtrace::Backtrace::create
             at /rustc/1/library/std/src/backtrace.rs:331:13
   1: orlop::device::snapshot::<impl orlop::device::Device>::record_call_site
             at ./src/device/snapshot.rs:9:5
   2: orlop::memory::tags::tagged
   3: <orlop::tensor::Tensor as core::ops::Add>::add
   4: <smallvec::SmallVec<A> as core::iter::traits::collect::Extend<A::Item>>::extend
   5: core::ops::function::FnOnce::call_once
   6: net::layer::forward::{{closure}}
             at C:\\net\\src\\layer.rs:34:5
   7: main
";
        let site = call_site(text).unwrap();
        assert_eq!(
            site.to_string(),
            "net::layer::forward::{{closure}} at C:\\net\\src\\layer.rs:34"
        );
        let of_its_trait =
            "0: orlop::f\n 1: <alloc::vec::Vec<orlop::tensor::Tensor> as net::Layer>::forward\n";
        let site = call_site(of_its_trait).unwrap();
        assert!(site.to_string().ends_with("net::Layer>::forward"), "{site}");
        let generics = "0: orlop::f
 1: core::ops::function::FnOnce::call_once::<<net::A as net::Layer>::forward::{closure#0}, ()>
 2: <core::iter::Map<I, <net::A as net::Layer>::f::{closure#0}> as core::iter::Iterator>::fold
 3: net::forward\n";
        assert_eq!(call_site(generics).unwrap().to_string(), "net::forward");
        let without_debug_information = "0: orlop::f\n 1: net::g\n 2: main\n";
        let site = call_site(without_debug_information).unwrap();
        assert_eq!((site.to_string().as_str(), site.line), ("net::g", 0));
        let tables_of_lines_alone = "   0: record_call_site
             at /cargo/orlop-0.1.0/src/device/snapshot/mod.rs:133:35
   1: {closure#0}
             at /cargo/orlop-0.1.0/src/device/mod.rs:9:5
   2: map<&str, i32>
             at /rustc/1/library/core/src/option.rs:1:2
   3: forward
             at ./src/layer.rs:34:5
";
        let site = call_site(tables_of_lines_alone).unwrap();
        assert_eq!(site.to_string(), "forward at ./src/layer.rs:34");
        assert_eq!(call_site("disabled backtrace"), None);
        assert_eq!(call_site("0: orlop::f\n"), None);
    }

    #[test]
    fn names_tell_whose_a_function_is() {
        for (function, own) in [
            ("orlop::tensor::Tensor::zeros", true),
            (
                "<orlop::tensor::Tensor as core::ops::arith::Add>::add",
                true,
            ),
            (
                "<&orlop::tensor::Tensor as core::ops::arith::Add>::add",
                true,
            ),
            (
                "<&mut orlop::tensor::Tensor as core::fmt::Debug>::fmt",
                true,
            ),
            (
                "<f64 as core::ops::arith::Mul<&orlop::tensor::Tensor>>::mul",
                true,
            ),
            (
                "<i64 as core::ops::arith::Sub<orlop::tensor::Tensor>>::sub",
                true,
            ),
            ("<orlop::tensor::Tensor as net::Layer>::forward", false),
            ("<&orlop::tensor::Tensor as net::Layer>::forward", false),
            ("<f64 as core::ops::arith::Mul>::mul", false),
            ("<f64 as net::Scale<orlop::tensor::Tensor>>::scale", false),
            ("net::orlop::forward", false),
            (
                "<&net::Layer as core::ops::arith::Mul<&orlop::tensor::Tensor>>::mul",
                false,
            ),
        ] {
            assert_eq!(is_own(function), own, "{function}");
        }
    }
}
