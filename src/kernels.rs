//! The WGSL of the kernels that orlop can ask for: to read, and to validate with other compilers.

use rayon::prelude::*;

use crate::error::Result;
use crate::gpu::templates::{self, ParamsSpace};
use crate::gpu::{Conversions, halves};
use crate::launch::KernelKey;
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
    /// It leaves conversions of f16 to `unpack2x16float` and `pack2x16float`.
    pub own_conversions: bool,
    /// It uses subgroups.
    pub subgroups: bool,
    /// It uses cooperative matrices.
    pub cooperative: bool,
    /// Its scalars are immediates (else a uniform buffer).
    pub immediates: bool,
}

/// The specialisations that plans can ask for, each with immediates and with a uniform buffer, and those of f16 with
/// conversions of the GPU's own. Ranks up to 6 after merging; higher ones follow the same templates. Of elementwise functions
/// each by itself, of tensors, with a number and in place, as operands lie most; of `add` in every way that they can lie. What
/// [`fused`](crate::fused) makes of several, powers by products, and programs' own kernels, are not among them.
///
/// # Errors
/// [`Error::KernelCompile`](crate::Error::KernelCompile) when a template does not render.
pub fn sources() -> Result<Vec<KernelSource>> {
    let mut keys = ops::specialisations();
    keys.push(halves::key());
    let sources: Result<Vec<_>> = keys.par_iter().map(sources_of).collect();
    Ok(sources?.into_iter().flatten().collect())
}

fn sources_of(key: &KernelKey) -> Result<Vec<KernelSource>> {
    let mut all = Vec::new();
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
        let by_bits = templates::render(key, space, Conversions::default())?;
        let own = match has("f16") || has("packed_f16") {
            true => Some(templates::render(key, space, Conversions::OWN)?),
            false => None,
        };
        let own = own.filter(|own| *own != by_bits);
        let named = own.map(|own| (format!("{key} own conversions"), own));
        for (name, wgsl) in [(key.to_string(), by_bits)].into_iter().chain(named) {
            all.push(KernelSource {
                name,
                f16: wgsl.contains("enable f16;"),
                f64: has("f64"),
                int64: wgsl.contains("u64"),
                own_conversions: wgsl.contains("pack2x16float"),
                subgroups: wgsl.contains("subgroup"),
                cooperative: wgsl.contains("coopMultiplyAdd"),
                immediates: space == ParamsSpace::Immediate,
                wgsl,
            });
        }
    }
    Ok(all)
}
