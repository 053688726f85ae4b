//! Renders kernel templates to WGSL. Needs no device, so tests validate every specialisation
//! under the capabilities of any vendor.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use minijinja::value::Rest;
use minijinja::{Environment, ErrorKind, UndefinedBehavior, Value as Jinja};

use super::halves::Conversions;
use crate::error::{Error, Result};
use crate::launch::{KernelKey, Value};

macro_rules! templates {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_str!(concat!("../../shaders/", $name, ".wgsl")))),*]
    };
}

/// The templates of `shaders/`, by their path without `.wgsl`; those in `part/` are included by others.
const TEMPLATES: &[(&str, &str)] = &templates![
    "elementwise",
    "fill",
    "halves",
    "index/scatter",
    "index/take",
    "nonzero/mark",
    "nonzero/places",
    "normalise/apply",
    "normalise/rows",
    "part/body",
    "part/digits",
    "part/exp",
    "part/functions",
    "part/held",
    "part/keys",
    "part/normal",
    "part/passes",
    "part/states",
    "part/steps",
    "part/storage",
    "part/transcendental",
    "position",
    "random",
    "reduce",
    "scan",
    "sort/count",
    "sort/line",
    "sort/move",
    "sort/rank",
    "sort/search",
    "turned",
    "matmul/cooperative_tile",
    "matmul/few_tile",
    "matmul/pack",
    "matmul/part/batch",
    "matmul/part/block",
    "matmul/part/epilogue",
    "matmul/part/epilogue_params",
    "matmul/part/finish",
    "matmul/part/finish_tile",
    "matmul/part/load",
    "matmul/part/operands",
    "matmul/part/packed",
    "matmul/part/result",
    "matmul/part/rows",
    "matmul/part/staged",
    "matmul/part/store",
    "matmul/part/threads",
    "matmul/part/tile",
    "matmul/part/turns",
    "matmul/quad_tile",
    "matmul/reduce",
    "matmul/register_tile",
    "matmul/subgroup_tile",
    "matmul/texel_tile",
    "matmul/vector_tile",
    "matmul/wide_tile",
    "matmul/wide_vector",
    "matmul/workgroup_tile",
];

/// Binds a page of 4 KiB, whatever it is given: for tests of work that the device refuses.
#[cfg(test)]
pub(super) const PAGE: (&str, &str) = (
    "test/page",
    "struct Params { index: u32 }
     {{ params_var }}
     @group(0) @binding(0) var<storage, read_write> page: array<u32, 1024>;
     @group(0) @binding(1) var<storage, read_write> out: array<u32>;
     @compute @workgroup_size(1) fn main() { out[0] = page[params.index]; }",
);

/// Where a kernel finds its `Params`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ParamsSpace {
    /// In the command itself.
    Immediate,
    /// In a slot of the batch's uniform buffer, group 1.
    Uniform,
}

/// The WGSL of one specialisation, with conversions of the GPU's own.
///
/// # Errors
/// [`Error::KernelCompile`] with the template's line when it does not render.
pub(crate) fn render(key: &KernelKey, space: ParamsSpace, own: Conversions) -> Result<String> {
    if key.is_users() {
        let wanted = match space {
            ParamsSpace::Immediate => "immediate",
            ParamsSpace::Uniform => "uniform",
        };
        let found = key.values.iter().find(|(name, _)| *name == wanted);
        return Ok(found.map(|(_, text)| text.to_string()).unwrap_or_default());
    }
    let f16 = key.values.iter().any(|(_, value)| *value == "f16".into());
    let enables = if f16 { "enable f16;" } else { "" };
    let params_var = match space {
        ParamsSpace::Immediate => "var<immediate> params: Params;",
        ParamsSpace::Uniform => "@group(1) @binding(0) var<uniform> params: Params;",
    };
    let values = key.values.iter().map(|(name, value)| {
        let value = match value {
            Value::Text(text) => Jinja::from(*text),
            Value::Number(number) => Jinja::from(*number),
            Value::Shared(text) => Jinja::from(Arc::clone(text)),
        };
        (*name, value)
    });
    let context = Jinja::from_pairs(values.chain([
        ("enables", Jinja::from(enables)),
        ("params_var", Jinja::from(params_var)),
        ("bindings", Jinja::from(key.bindings)),
        ("unpacks", Jinja::from(own.unpacks)),
        ("packs", Jinja::from(own.packs)),
    ]));
    environment(key)?
        .get_template(key.template)
        .and_then(|template| template.render(context))
        .map_err(|error| Error::kernel_compile(key.name(), format!("{error:#}")))
}

/// All templates, parsed once.
fn environment(key: &KernelKey) -> Result<&'static Environment<'static>> {
    static ENVIRONMENT: OnceLock<std::result::Result<Environment<'static>, String>> =
        OnceLock::new();
    ENVIRONMENT
        .get_or_init(|| {
            // As many as they like: they are not from elsewhere.
            let mut environment = empty(u64::MAX);
            #[cfg(test)]
            let _ = environment.add_template(PAGE.0, PAGE.1);
            for &(name, source) in TEMPLATES {
                environment
                    .add_template(name, source)
                    .map_err(|error| format!("{error:#}"))?;
            }
            Ok(environment)
        })
        .as_ref()
        .map_err(|error| Error::kernel_compile(key.name(), error.clone()))
}

/// A filter, or `range`, with how many items its rendering's lists may still have. minijinja's own ones (its feature
/// `builtins`) are a quarter of what it takes to compile.
type Function = fn(&[Jinja], &AtomicU64) -> Evaluated;
type Evaluated = std::result::Result<Jinja, minijinja::Error>;

const FILTERS: [(&str, Function); 5] = [
    ("default", default),
    ("int", int),
    ("length", length),
    ("reverse", reverse),
    ("split", split),
];
/// How many items `range`, `split` and `reverse` make at most, each time.
const LONGEST: u64 = 1 << 16;

/// No templates yet, with what all of them may call: lists that it makes have `items` at most, all together.
pub(super) fn empty(items: u64) -> Environment<'static> {
    let left = Arc::new(AtomicU64::new(items));
    let counted = |function: Function| {
        let left = Arc::clone(&left);
        move |values: Rest<Jinja>| function(&values, &left)
    };
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.add_function("range", counted(range));
    for (name, filter) in FILTERS {
        environment.add_filter(name, counted(filter));
    }
    environment
}

fn default(values: &[Jinja], _: &AtomicU64) -> Evaluated {
    match values {
        [value, other] if value.is_undefined() => Ok(other.clone()),
        [value, _] => Ok(value.clone()),
        _ => Err(wrong("`default` takes what there is else")),
    }
}

fn int(values: &[Jinja], _: &AtomicU64) -> Evaluated {
    let [value] = values else {
        return Err(wrong("`int` takes no arguments"));
    };
    let parsed = value.as_str().and_then(|text| text.trim().parse().ok());
    let number = value.as_i64().or(parsed);
    number
        .map(Jinja::from)
        .ok_or_else(|| wrong("`int` takes a number"))
}

fn length(values: &[Jinja], _: &AtomicU64) -> Evaluated {
    let length = match values {
        [value] => value.len(),
        _ => None,
    };
    length
        .map(Jinja::from)
        .ok_or_else(|| wrong("`length` takes a list or text"))
}

fn reverse(values: &[Jinja], left: &AtomicU64) -> Evaluated {
    match values {
        [text] if text.as_str().is_some() => text.reverse(),
        [value] => {
            let mut items = listed(value.try_iter()?, left)?;
            items.reverse();
            Ok(items.into())
        }
        _ => Err(wrong("`reverse` takes no arguments")),
    }
}

fn split(values: &[Jinja], left: &AtomicU64) -> Evaluated {
    let texts: Option<Vec<&str>> = values.iter().map(Jinja::as_str).collect();
    let parts = match texts.as_deref() {
        Some([text]) => listed(text.split_whitespace().map(Jinja::from), left)?,
        Some([text, by]) => listed(text.split(by).map(Jinja::from), left)?,
        _ => return Err(wrong("`split` takes text, and text between its parts")),
    };
    Ok(parts.into())
}

fn range(values: &[Jinja], left: &AtomicU64) -> Evaluated {
    let numbers: Option<Vec<i64>> = values.iter().map(Jinja::as_i64).collect();
    let (from, to, step) = match numbers.as_deref() {
        Some(&[to]) => (0, to, 1),
        Some(&[from, to]) => (from, to, 1),
        Some(&[from, to, step]) if step > 0 => (from, to, step),
        _ => return Err(wrong("`range` takes up to three numbers, the last above 0")),
    };
    let numbers = (0..)
        .map_while(|nth: i64| from.checked_add(nth.checked_mul(step)?))
        .take_while(|&number| number < to);
    Ok(listed(numbers.map(Jinja::from), left)?.into())
}

/// A list of its own, not one that asks others for its items: those nest.
fn listed(
    items: impl Iterator<Item = Jinja>,
    left: &AtomicU64,
) -> std::result::Result<Vec<Jinja>, minijinja::Error> {
    let most = left.load(Ordering::Relaxed).min(LONGEST) as usize;
    let made: Vec<Jinja> = items.take(most + 1).collect();
    if made.len() > most {
        let problem = "`range`, `split` and `reverse` make 65,536 items at most, and 1,048,576 in a rendering";
        return Err(wrong(problem));
    }
    left.fetch_sub(made.len() as u64, Ordering::Relaxed);
    Ok(made)
}

fn wrong(what: &'static str) -> minijinja::Error {
    minijinja::Error::new(ErrorKind::InvalidOperation, what)
}
