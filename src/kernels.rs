//! The WGSL of every kernel that orlop can ask for: to read, and to validate with other compilers.

use crate::error::Result;
use crate::gpu::templates::{self, ParamsSpace};
use crate::ops;

/// One specialisation of a kernel template.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct KernelSource {
    /// The template's path in `shaders/` and its variables.
    pub name: String,
    /// The rendered WGSL.
    pub wgsl: String,
    /// It computes with f16.
    pub f16: bool,
    /// It computes with f64.
    pub f64: bool,
    /// It computes with 64-bit integers.
    pub int64: bool,
    /// It uses subgroups.
    pub subgroups: bool,
    /// It uses cooperative matrices.
    pub cooperative: bool,
    /// Its scalars are immediates (else a uniform buffer).
    pub immediates: bool,
}

/// Every specialisation that plans can ask for, each with immediates and with a uniform buffer
/// (ranks up to 6 after merging; higher ones follow the same templates).
///
/// # Errors
/// [`Error::KernelCompile`](crate::Error::KernelCompile) when a template does not render.
pub fn sources() -> Result<Vec<KernelSource>> {
    let mut all = Vec::new();
    for key in ops::specialisations() {
        // A value, or a word of one: `f32/0/1 f64/1/1`.
        let has = |text: &str| {
            let mut values = key.values.iter().map(|(_, value)| value.to_string());
            values.any(|value| value.split([' ', '/']).any(|word| word == text))
        };
        for space in [ParamsSpace::Immediate, ParamsSpace::Uniform] {
            // 128 bytes of immediates are what desktop adapters have.
            if space == ParamsSpace::Immediate && key.words > 32 {
                continue;
            }
            let wgsl = templates::render(&key, space)?;
            all.push(KernelSource {
                name: key.to_string(),
                f16: wgsl.contains("enable f16;"),
                f64: has("f64"),
                int64: wgsl.contains("u64"),
                subgroups: wgsl.contains("subgroup"),
                cooperative: wgsl.contains("coopMultiplyAdd"),
                immediates: space == ParamsSpace::Immediate,
                wgsl,
            });
        }
    }
    Ok(all)
}
