//! What was measured, as text and as JSON.

use std::fmt::Write;

use orlop::memory::MemoryStatistics;
use orlop::{DType, Device, Shape};
use serde_json::json;

use crate::check::{Check, Roundings};

/// Everything that the example says.
pub struct Report {
    /// Where it was asked to run.
    pub device: Device,
    /// Where the product ran, when that was elsewhere, and why.
    pub elsewhere: Option<(String, String)>,
    /// Shapes of both operands and of the product.
    pub shapes: [Shape; 3],
    /// Rows, inner size and columns of each matrix.
    pub sizes: [usize; 3],
    /// What was computed in.
    pub dtype: DType,
    /// Which kernel multiplied, and why: none on the CPU.
    pub plan: Option<String>,
    /// The first call, kernel compilation included.
    pub first_seconds: f64,
    /// Of one product, the median of runs.
    pub seconds: f64,
    /// How many runs those are.
    pub repeats: u32,
    /// Products of a run, between two waits.
    pub in_a_row: u32,
    /// The check against the reference.
    pub check: Check,
    pub roundings: Roundings,
    /// Bytes and seconds of the upload of both operands.
    pub upload: (usize, f64),
    /// Bytes and seconds of the download of the product.
    pub download: (usize, f64),
    /// The device's memory at the end.
    pub memory: MemoryStatistics,
}

impl Report {
    /// 10^9 multiplies and adds a second.
    fn gflops(&self) -> f64 {
        let operations = 2.0 * self.sizes[1] as f64 * self.shapes[2].elements() as f64;
        if self.seconds > 0.0 {
            operations / self.seconds / 1e9
        } else {
            0.0
        }
    }

    fn ran_on(&self) -> String {
        match &self.elsewhere {
            Some((device, _)) => device.clone(),
            None => self.device.to_string(),
        }
    }

    /// One JSON object.
    pub fn json(&self) -> String {
        let info = self.device.info();
        let [m, k, n] = self.sizes;
        // Of what has no elements, sizes may have any product.
        let batch = m
            .checked_mul(n)
            .and_then(|product| self.shapes[2].elements().checked_div(product));
        let object = json!({
            "device": info.selector,
            "adapter": info.name,
            "backend": info.backend,
            "ran_on": self.ran_on(),
            "m": m,
            "k": k,
            "n": n,
            "batch": batch.unwrap_or(0),
            "dtype": self.dtype.name(),
            "plan": self.plan,
            "seconds": self.seconds,
            "products_in_a_row": self.in_a_row,
            "first_seconds": self.first_seconds,
            "gflops": self.gflops(),
            "error": self.check.error,
            "error_bound": self.check.bound,
            "entries_checked": self.check.checked,
            "upload_seconds": self.upload.1,
            "download_seconds": self.download.1,
            "memory": {
                "allocated": self.memory.allocated,
                "reserved": self.memory.reserved,
                "peak_allocated": self.memory.peak_allocated,
                "peak_reserved": self.memory.peak_reserved,
            },
        });
        format!("{object}\n")
    }

    /// For people.
    pub fn text(&self) -> String {
        let [a, b, c] = &self.shapes;
        let dtype = self.dtype;
        let mut text = String::new();
        let mut line = |name: &str, value: String| {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{name:<10}{value}");
        };
        line("device", self.device.to_string());
        if let Some((device, reason)) = &self.elsewhere {
            line(
                "ran on",
                format!("{device}, because of {}: {reason}", self.device),
            );
        }
        line("shape", format!("{a} x {b} = {c}, {dtype}"));
        if let Some(plan) = &self.plan {
            line("kernel", plan.clone());
        }
        line(
            "time",
            format!(
                "{:.6} s, median of {}{} ({}: {:.6} s)",
                self.seconds,
                self.repeats,
                match self.in_a_row {
                    1 => String::new(),
                    products => format!(" runs of {products} products"),
                },
                if self.device.is_cpu() || self.elsewhere.is_some() {
                    "first call"
                } else {
                    "first call, kernel compiled"
                },
                self.first_seconds
            ),
        );
        line("speed", format!("{:.2} GFLOP/s", self.gflops()));
        line("error", self.verdict());
        line(
            "upload",
            transfer(self.upload, "the first, which makes memory for it"),
        );
        line("download", transfer(self.download, "the first"));
        text.push_str(&self.device.memory_summary());
        text
    }

    fn verdict(&self) -> String {
        let Check {
            checked,
            error,
            bound,
        } = self.check;
        let entries = self.shapes[2].elements();
        let reference = match self.dtype {
            DType::I32 | DType::U32 => "exact reference",
            DType::F64 => "reference of twice f64's precision",
            _ => "f64 reference",
        };
        let roundings = self.roundings.text();
        let which = match self.dtype {
            DType::I32 | DType::U32 => "0: integers wrap and are exact".to_owned(),
            DType::F64 => format!("{roundings} 2^-52 sum|a||b|"),
            DType::F16 => format!("{roundings} 2^-23 sum|a||b| + 2^-11 |c|"),
            _ => format!("{roundings} 2^-23 sum|a||b|"),
        };
        let how = if self.check.holds() {
            "within"
        } else {
            "ABOVE"
        };
        format!(
            "{error:.3e}, {how} the bound {bound:.3e} ({which}); the worst of {checked} of {entries} entries against the {reference}"
        )
    }
}

fn transfer((bytes, seconds): (usize, f64), which: &str) -> String {
    let mebibytes = bytes as f64 / f64::from(1 << 20);
    let rate = if seconds > 0.0 {
        bytes as f64 / seconds / 1e9
    } else {
        0.0
    };
    format!("{mebibytes:.2} MiB in {seconds:.6} s ({rate:.2} GB/s; {which})")
}
