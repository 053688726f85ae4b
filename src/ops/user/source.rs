//! What a kernel's WGSL says of itself, read by naga: bindings, access, dtypes, params, workgroup size,
//! and what it needs of a device.

use std::borrow::Cow;
use std::panic::catch_unwind;
use std::sync::Arc;

use naga::valid::{Capabilities as Features, ValidationFlags, Validator};
use naga::{AddressSpace, ArraySize, ScalarKind, ShaderStage, StorageAccess, TypeInner};

use super::op::about;
use super::rewrite::{Edit, edited, enabled};
use super::{constants, cost, depth, inlined, lacking};
use crate::capabilities::Capabilities;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::gpu::program_text::{LONGEST_TEXT, told};
use crate::memory::order;

const PANICKED: &str = "most likely where it works constant expressions out: one of them is no number that there is (an f16 above \
                        65504, NaN), or is made of vectors of vectors; write it otherwise, or with a `var`";
/// Bytes of private and function memory of an invocation: eight times what WGSL promises.
const PRIVATE_BYTES: u64 = 64 << 10;
/// Bytes of values that are arrays or structs, those of smaller ones aside: not all of them are there at once.
const VALUE_BYTES: u64 = 1 << 20;
const LARGE_VALUE: u64 = 256;
/// Bytes of params: some launches of them go into one buffer of uniforms.
const PARAMS_BYTES: u32 = 16 << 10;
/// What orlop opens devices with, where they have it.
const FEATURES: Features = Features::SHADER_FLOAT16
    .union(Features::FLOAT64)
    .union(Features::SHADER_INT64)
    .union(Features::SUBGROUP)
    .union(Features::IMMEDIATES)
    .union(Features::SHADER_FLOAT16_IN_FLOAT32);

/// One storage binding.
#[derive(Debug)]
pub(super) struct Binding {
    /// The variable's name.
    pub name: String,
    /// Declared `read`: an input. Else an output.
    pub is_input: bool,
    pub dtype: DType,
    /// Bytes that the kernel's type takes at least.
    pub least_bytes: u64,
    /// Its array has a length.
    pub is_fixed: bool,
}

/// One number of the params.
#[derive(Debug)]
pub(super) struct Member {
    pub name: String,
    /// The first of its 32-bit words.
    pub word: usize,
    /// Its numbers: 1, or those of a vector.
    pub lanes: usize,
    /// `f32`, `i32` or `u32`.
    pub dtype: DType,
}

/// A kernel's WGSL, and what was read from it.
#[derive(Debug)]
pub(super) struct Source {
    /// As it goes to a device that has immediates, and to one that has none.
    pub immediate: Arc<str>,
    pub uniform: Arc<str>,
    /// By their number.
    pub bindings: Vec<Binding>,
    pub members: Vec<Member>,
    /// 32-bit words of the params.
    pub words: usize,
    pub workgroup: [u32; 3],
    pub workgroup_bytes: u64,
    f16: bool,
    f64: bool,
    int64: bool,
    subgroups: bool,
    /// A function of it that no adapter has.
    lacking: Option<String>,
    /// Operations of an invocation, about.
    pub operations: u64,
}

impl Source {
    /// # Errors
    /// `KernelCompile` with naga's rendering of what is wrong and where, or with what orlop asks
    /// of a kernel.
    pub(super) fn read(kernel: &str, text: &str) -> Result<Self> {
        let broken = |rendered: String| Error::kernel_compile(kernel, rendered);
        if text.len() > LONGEST_TEXT {
            let bytes = text.len();
            return Err(broken(format!(
                "{bytes} bytes of WGSL are above {LONGEST_TEXT}"
            )));
        }
        if let Some((at, what)) = depth::too_deep(text).or_else(|| constants::too_large(text)) {
            let line = text[..at].lines().count().max(1);
            return Err(broken(format!("line {line} {what}")));
        }
        // It panics where it folds some constants; nothing of ours is open.
        catch_unwind(|| Self::parsed(kernel, text)).unwrap_or_else(|payload| {
            let told = told(&*payload);
            Err(broken(format!("naga panicked: {told}; {PANICKED}")))
        })
    }

    /// # Errors
    /// As [`Source::read`].
    fn parsed(kernel: &str, text: &str) -> Result<Self> {
        let broken = |rendered: String| Error::kernel_compile(kernel, rendered);
        let parse = |text: &str| {
            let parsed = naga::front::wgsl::parse_str(text);
            parsed.map_err(|error| broken(error.emit_to_string_with_path(text, kernel)))
        };
        // naga has them without, and takes no such line.
        if enabled(text).contains(&"subgroups") {
            return Err(broken(
                "`enable subgroups;` is not asked for: kernels have subgroup functions without it"
                    .into(),
            ));
        }
        let module = parse(text)?;
        let bounded = without_long_params(&module);
        let validate = |features| {
            let checked = Validator::new(ValidationFlags::all(), features).validate(&bounded);
            checked.map_err(|error| broken(error.emit_to_string_with_path(text, kernel)))
        };
        validate(Features::all())?;
        // Only that much is asked of devices.
        if let Some(other) = enabled(text).into_iter().find(|&name| name != "f16") {
            return Err(broken(format!(
                "`enable {other};` is not what orlop asks devices for: f16 is"
            )));
        }
        let info = validate(FEATURES)?;
        if let Some(what) = inlined::too_large(&module) {
            return Err(broken(what));
        }
        let needs = |feature| validate(FEATURES - feature).is_err();
        let reader = Reader {
            module: &module,
            info: &info,
            text,
        };
        let mut source = reader.source().map_err(broken)?;
        // They may come and go within an expression: no type tells.
        source.f16 = enabled(text).contains(&"f16") || needs(Features::SHADER_FLOAT16);
        source.f64 = needs(Features::FLOAT64);
        source.int64 = needs(Features::SHADER_INT64);
        source.subgroups = needs(Features::SUBGROUP);
        // What devices get is read too: a pointer that is declared `read`, say, fits it no more.
        for text in [&source.immediate, &source.uniform] {
            parse(text)?;
        }
        Ok(source)
    }

    /// Members that are named as what orlop says of an operand, and the operand.
    pub(super) fn about_operands(&self) -> impl Iterator<Item = (&str, &str)> {
        self.members.iter().filter_map(|member| {
            let mut bindings = self.bindings.iter();
            let of = bindings.find(|binding| about(&member.name, &binding.name).is_some())?;
            Some((member.name.as_str(), of.name.as_str()))
        })
    }

    /// What of it a device lacks, if anything.
    pub(super) fn missing(&self, capabilities: &Capabilities) -> Option<String> {
        let [x, y, z] = self.workgroup.map(u64::from);
        let bindings = self.bindings.len() as u32;
        let lacking = [
            (self.f16 && !capabilities.f16, "f16 in kernels"),
            (self.f64 && !capabilities.f64, "f64 in kernels"),
            (
                self.int64 && !capabilities.int64,
                "64-bit integers in kernels",
            ),
            (
                self.subgroups && capabilities.subgroup_sizes.is_none(),
                "subgroups",
            ),
            (
                !capabilities.bounds_checks,
                "bounds checks for kernels of a program",
            ),
        ];
        // x is within the invocations, all of which it may have.
        let [_, along_y, along_z] = capabilities.max_workgroup_size.map(u64::from);
        let limits = [
            (
                "workgroup of",
                x * y * z,
                u64::from(capabilities.max_invocations),
                "invocations",
            ),
            ("workgroup along y of", y, along_y, "invocations"),
            ("workgroup along z of", z, along_z, "invocations"),
            (
                "kernel with",
                u64::from(bindings),
                u64::from(capabilities.max_bindings),
                "bindings",
            ),
            (
                "workgroup with",
                self.workgroup_bytes,
                u64::from(capabilities.workgroup_memory_bytes),
                "bytes of memory",
            ),
        ];
        let above = limits.into_iter().find(|&(_, has, most, _)| has > most);
        lacking
            .into_iter()
            .find(|&(lacks, _)| lacks)
            .map(|(_, what)| format!("it has no {what}"))
            .or_else(|| self.lacking.clone())
            .or_else(|| {
                above.map(|(what, has, most, of)| {
                    format!("a {what} {has} {of} is above its limit of {most}")
                })
            })
    }
}

/// The module with params above 256 bytes as a storage, which asks the same of their types: naga 30.0.1 counts words of
/// immediates in 64 bits, and shifts by more than these (a panic where overflows are checked).
fn without_long_params(module: &naga::Module) -> Cow<'_, naga::Module> {
    let is_long = |variable: &naga::GlobalVariable| {
        let bytes = module.types[variable.ty].inner.try_size(module.to_ctx());
        variable.space == AddressSpace::Immediate && bytes.is_none_or(|bytes| bytes > 256)
    };
    let long = module
        .global_variables
        .iter()
        .filter(|(_, variable)| is_long(variable));
    let long: Vec<_> = long.map(|(handle, _)| handle).collect();
    if long.is_empty() {
        return Cow::Borrowed(module);
    }
    let mut module = module.clone();
    for (binding, handle) in (0..).zip(long) {
        let variable = &mut module.global_variables[handle];
        variable.space = AddressSpace::Storage {
            access: StorageAccess::LOAD,
        };
        // No kernel has this group.
        variable.binding = Some(naga::ResourceBinding {
            group: u32::MAX,
            binding,
        });
    }
    Cow::Owned(module)
}

/// Bytes and alignment of each type: a bool has four, of which naga counts one. Types come after those that they are made of.
fn layouts(module: &naga::Module) -> std::result::Result<Vec<[u64; 2]>, String> {
    let mut layouter = naga::proc::Layouter::default();
    let told = layouter.update(module.to_ctx());
    told.map_err(|error| error.to_string())?;
    let mut layouts: Vec<[u64; 2]> = Vec::with_capacity(module.types.len());
    for (handle, ty) in module.types.iter() {
        let own = layouter[handle];
        let [size, align] = [own.size, own.alignment * 1].map(u64::from);
        layouts.push(match ty.inner {
            TypeInner::Scalar(scalar) if scalar.kind == ScalarKind::Bool => [4, 4],
            TypeInner::Vector { scalar, .. } if scalar.kind == ScalarKind::Bool => {
                [4 * size, (4 * size).next_power_of_two()]
            }
            TypeInner::Array {
                base,
                size: ArraySize::Constant(count),
                stride,
            } => {
                let [size, align] = layouts[base.index()];
                let each = size.next_multiple_of(align).max(u64::from(stride));
                [each.saturating_mul(u64::from(count.get())), align]
            }
            TypeInner::Struct { ref members, span } => {
                let (mut end, mut align) = (0u64, 1);
                for member in members {
                    let [size, of_member] = layouts[member.ty.index()];
                    let start = end
                        .next_multiple_of(of_member)
                        .max(u64::from(member.offset));
                    (end, align) = (start.saturating_add(size), of_member.max(align));
                }
                [end.next_multiple_of(align).max(u64::from(span)), align]
            }
            _ => [size, align],
        });
    }
    Ok(layouts)
}

/// A module, and the text that it was read from.
struct Reader<'a> {
    module: &'a naga::Module,
    info: &'a naga::valid::ModuleInfo,
    text: &'a str,
}

impl Reader<'_> {
    fn source(&self) -> std::result::Result<Source, String> {
        let module = self.module;
        let [entry] = &module.entry_points[..] else {
            return Err(format!(
                "a kernel has one entry point, there are {}",
                module.entry_points.len()
            ));
        };
        if entry.stage != ShaderStage::Compute {
            return Err(format!("`{}` is no @compute entry point", entry.name));
        }
        if !module.overrides.is_empty() {
            return Err("`override` constants are not set by orlop: use Kernel::template".into());
        }
        let mut bindings = Vec::new();
        let mut params = None;
        let (mut workgroup_bytes, mut private_bytes) = (0u64, 0u64);
        let mut edits = Vec::new();
        let layouts = layouts(module)?;
        let size = |ty: naga::Handle<naga::Type>| layouts[ty.index()][0];
        for (handle, variable) in module.global_variables.iter() {
            let name = variable.name.clone().unwrap_or_default();
            let span = module.global_variables.get_span(handle).to_range();
            let lost = || format!("the declaration of `{name}` was not found");
            let span = span.ok_or_else(lost)?;
            match variable.space {
                AddressSpace::Storage { access } => {
                    let number = match &variable.binding {
                        Some(at) if at.group == 0 => at.binding as usize,
                        _ => return Err(format!("`{name}` is not in @group(0)")),
                    };
                    let is_input = !access.contains(StorageAccess::STORE);
                    bindings.push((number, self.binding(name.clone(), variable.ty, is_input)?));
                    // Memory of a pool is bound for reading and writing, as are its neighbours.
                    let edit = Edit::respace(self.text, span, "", "storage, read_write");
                    edits.push(edit.ok_or_else(lost)?);
                }
                AddressSpace::Immediate if params.is_some() => {
                    return Err(format!("`{name}` is a second var<immediate>"));
                }
                AddressSpace::Immediate => {
                    let group = "@group(1) @binding(0) ";
                    let edit = Edit::respace(self.text, span, group, "uniform");
                    params = Some((name.clone(), variable.ty, edit.ok_or_else(lost)?));
                }
                AddressSpace::WorkGroup => {
                    // As WebGPU counts them.
                    let bytes = size(variable.ty).next_multiple_of(16);
                    workgroup_bytes = workgroup_bytes.saturating_add(bytes);
                }
                AddressSpace::Private => private_bytes += size(variable.ty),
                _ => {
                    return Err(format!(
                        "`{name}` is neither var<storage>, var<immediate>, var<workgroup> nor \
                         var<private>; numbers belong into a struct as var<immediate>"
                    ));
                }
            }
        }
        order::sort(&mut bindings, |&(number, _)| (number as u64, 0));
        if let Some(pair) = bindings.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            let [(number, one), (_, other)] = pair else {
                return Err("bindings are paired wrongly".into());
            };
            return Err(format!(
                "`{}` and `{}` are both @binding({number})",
                one.name, other.name
            ));
        }
        if let Some((at, _)) = bindings
            .iter()
            .enumerate()
            .find(|(at, (number, _))| at != number)
        {
            return Err(format!(
                "there is no @binding({at}): they count from 0 without gaps"
            ));
        }
        let bindings: Vec<Binding> = bindings.into_iter().map(|(_, binding)| binding).collect();
        if bindings.iter().all(|binding| binding.is_input) {
            return Err("it has no output: a var<storage, read_write>".into());
        }
        // Drivers make one function of all, with variables of its own for each call.
        let functions = inlined::largest(module, 0, |_, function| {
            let locals = function.local_variables.iter();
            locals.map(|(_, local)| size(local.ty)).sum::<u64>()
        });
        private_bytes = private_bytes.saturating_add(functions);
        if private_bytes > PRIVATE_BYTES {
            return Err(format!(
                "its variables, with every call replaced by what it calls, take {private_bytes} bytes of an invocation, \
                 above {PRIVATE_BYTES}"
            ));
        }
        let values = inlined::largest(module, 0, |handle, function| {
            let sizes = self.values(handle, function);
            let large = sizes.filter(|&bytes| bytes >= LARGE_VALUE);
            large.fold(0, u64::saturating_add)
        });
        if values > VALUE_BYTES {
            return Err(format!(
                "its values that are arrays, with every call replaced by what it calls, take {values} bytes of an invocation, \
                 above {VALUE_BYTES}: a var<private>, or a binding, is there once"
            ));
        }
        let immediate: Arc<str> = edited(self.text, &mut edits).into();
        let (members, words, uniform) = match params {
            None => (Vec::new(), 0, Arc::clone(&immediate)),
            Some((name, ty, edit)) => {
                edits.push(edit);
                let (members, words) = self.params(&name, ty)?;
                (members, words, edited(self.text, &mut edits).into())
            }
        };
        Ok(Source {
            immediate,
            uniform,
            bindings,
            members,
            words,
            workgroup: entry.workgroup_size,
            workgroup_bytes,
            f16: false,
            f64: false,
            int64: false,
            subgroups: false,
            lacking: lacking::function(module, self.info),
            operations: cost::operations(module),
        })
    }

    /// Bytes of each of a function's values that are arrays or structs; of a constant once, however often it is named.
    fn values(
        &self,
        handle: Option<naga::Handle<naga::Function>>,
        function: &naga::Function,
    ) -> impl Iterator<Item = u64> {
        let info = match handle {
            Some(handle) => &self.info[handle],
            None => self.info.get_entry_point(0),
        };
        let mut constants = std::collections::HashSet::new();
        let once = function
            .expressions
            .iter()
            .filter(move |(_, value)| match value {
                naga::Expression::Constant(constant) => constants.insert(*constant),
                _ => true,
            });
        once.map(|(expression, _)| {
            let inner = info[expression].ty.inner_with(&self.module.types);
            match inner {
                TypeInner::Array { .. } | TypeInner::Struct { .. } => {
                    u64::from(inner.size(self.module.to_ctx()))
                }
                _ => 0,
            }
        })
    }

    fn binding(
        &self,
        name: String,
        ty: naga::Handle<naga::Type>,
        is_input: bool,
    ) -> std::result::Result<Binding, String> {
        let context = self.module.to_ctx();
        let what = || {
            format!(
                "`{name}` is no array of f32, f16, f64, i32, u32, vectors of two or four of them, \
                 or atomics of i32 or u32"
            )
        };
        let inner = &self.module.types[ty].inner;
        let TypeInner::Array { base, size, .. } = inner else {
            return Err(what());
        };
        let element = &self.module.types[*base].inner;
        let scalar = match element {
            TypeInner::Scalar(scalar) => scalar,
            TypeInner::Atomic(scalar) if scalar.kind != ScalarKind::Float => scalar,
            TypeInner::Vector { size, scalar } if *size != naga::VectorSize::Tri => scalar,
            _ => return Err(what()),
        };
        let dtype = match (scalar.kind, scalar.width) {
            (ScalarKind::Float, 4) => DType::F32,
            (ScalarKind::Float, 2) => DType::F16,
            (ScalarKind::Float, 8) => DType::F64,
            (ScalarKind::Sint, 4) => DType::I32,
            (ScalarKind::Uint, 4) => DType::U32,
            _ => return Err(what()),
        };
        let least_bytes = match size {
            ArraySize::Dynamic => element.size(context),
            _ => inner.size(context),
        };
        Ok(Binding {
            name,
            is_input,
            dtype,
            least_bytes: u64::from(least_bytes),
            is_fixed: !matches!(size, ArraySize::Dynamic),
        })
    }

    fn params(
        &self,
        name: &str,
        ty: naga::Handle<naga::Type>,
    ) -> std::result::Result<(Vec<Member>, usize), String> {
        let TypeInner::Struct { members, span } = &self.module.types[ty].inner else {
            return Err(format!("`{name}` is no struct"));
        };
        let member = |member: &naga::StructMember| {
            let inner = &self.module.types[member.ty].inner;
            let (scalar, lanes) = match inner {
                TypeInner::Scalar(scalar) => (scalar, 1),
                TypeInner::Vector { size, scalar } => (scalar, *size as usize),
                _ => return None,
            };
            let dtype = match (scalar.kind, scalar.width) {
                (ScalarKind::Float, 4) => DType::F32,
                (ScalarKind::Sint, 4) => DType::I32,
                (ScalarKind::Uint, 4) => DType::U32,
                _ => return None,
            };
            Some(Member {
                name: member.name.clone()?,
                word: member.offset as usize / 4,
                lanes,
                dtype,
            })
        };
        let members: Option<Vec<Member>> = members.iter().map(member).collect();
        let members = members.ok_or_else(|| {
            format!("`{name}` has a member that is no f32, i32, u32 or vector of them")
        })?;
        if *span > PARAMS_BYTES {
            return Err(format!("`{name}` takes {span} bytes, above {PARAMS_BYTES}"));
        }
        Ok((members, *span as usize / 4))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workgroup_memory_is_counted_as_it_lies() {
        let doubled: String = (1..20)
            .map(|at| format!("struct S{at} {{ a: S{0}, b: S{0} }}", at - 1))
            .collect();
        for (variables, bytes) in [
            ("var<workgroup> part: array<f32, 64>;", 256),
            ("var<workgroup> seen: array<bool, 16384>;", 65_536),
            (
                "struct S { a: u32, b: bool } var<workgroup> s: array<S, 4>;",
                32,
            ),
            (
                "struct S { v: vec3<bool>, b: bool } var<workgroup> s: array<S, 64>;",
                1024,
            ),
            (
                "struct S { a: bool, v: vec4<u32>, b: array<bool, 8> } var<workgroup> s: S;",
                64,
            ),
            ("var<workgroup> b: vec2<bool>; var<workgroup> n: u32;", 32),
            (
                &format!("struct S0 {{ a: bool }} {doubled} var<workgroup> s: S19;"),
                4 << 19,
            ),
        ] {
            let text = format!(
                "{variables} @group(0) @binding(0) var<storage, read_write> out: array<f32>;
                 @compute @workgroup_size(1) fn main() {{ out[0] = 1.0; }}"
            );
            let source = Source::read("counted", &text).map(|source| source.workgroup_bytes);
            assert_eq!(source.ok(), Some(bytes), "{variables}");
        }
    }
}
