//! Renders kernel templates to WGSL. Needs no device, so tests validate every specialisation
//! under the capabilities of any vendor.

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
    "normalise/apply",
    "normalise/rows",
    "part/body",
    "part/exp",
    "part/functions",
    "part/held",
    "part/normal",
    "part/states",
    "part/steps",
    "part/storage",
    "part/transcendental",
    "position",
    "random",
    "reduce",
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
            let mut environment = empty();
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

/// A filter, or `range`. minijinja's own ones (its feature `builtins`) are a quarter of what it takes to compile.
type Function = fn(Rest<Jinja>) -> Evaluated;
type Evaluated = std::result::Result<Jinja, minijinja::Error>;

const FILTERS: [(&str, Function); 5] = [
    ("default", default),
    ("int", int),
    ("length", length),
    ("reverse", reverse),
    ("split", split),
];
/// How many numbers `range` makes at most.
const LONGEST: i64 = 100_000;

/// No templates yet, with what all of them may call.
fn empty() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.add_function("range", range as Function);
    for (name, filter) in FILTERS {
        environment.add_filter(name, filter);
    }
    environment
}

fn default(values: Rest<Jinja>) -> Evaluated {
    match &values[..] {
        [value, other] if value.is_undefined() => Ok(other.clone()),
        [value, _] => Ok(value.clone()),
        _ => Err(wrong("`default` takes what there is else")),
    }
}

fn int(values: Rest<Jinja>) -> Evaluated {
    let [value] = &values[..] else {
        return Err(wrong("`int` takes no arguments"));
    };
    let parsed = value.as_str().and_then(|text| text.trim().parse().ok());
    let number = value.as_i64().or(parsed);
    number
        .map(Jinja::from)
        .ok_or_else(|| wrong("`int` takes a number"))
}

fn length(values: Rest<Jinja>) -> Evaluated {
    let length = match &values[..] {
        [value] => value.len(),
        _ => None,
    };
    length
        .map(Jinja::from)
        .ok_or_else(|| wrong("`length` takes a list or text"))
}

fn reverse(values: Rest<Jinja>) -> Evaluated {
    match &values[..] {
        [value] => value.reverse(),
        _ => Err(wrong("`reverse` takes no arguments")),
    }
}

fn split(values: Rest<Jinja>) -> Evaluated {
    let texts: Option<Vec<&str>> = values.iter().map(Jinja::as_str).collect();
    match texts.as_deref() {
        Some([text]) => Ok(text.split_whitespace().collect()),
        Some([text, by]) => Ok(text.split(by).collect()),
        _ => Err(wrong("`split` takes text, and text between its parts")),
    }
}

fn range(values: Rest<Jinja>) -> Evaluated {
    let numbers: Option<Vec<i64>> = values.iter().map(Jinja::as_i64).collect();
    let (from, to, step) = match numbers.as_deref() {
        Some(&[to]) => (0, to, 1),
        Some(&[from, to]) => (from, to, 1),
        Some(&[from, to, step]) if step > 0 => (from, to, step),
        _ => return Err(wrong("`range` takes up to three numbers, the last above 0")),
    };
    // Which the last one is, from 0 on.
    match to.saturating_sub(from).saturating_sub(1) / step < LONGEST {
        true => Ok((0..)
            .map_while(|nth: i64| from.checked_add(nth.checked_mul(step)?))
            .take_while(|&number| number < to)
            .collect()),
        false => Err(wrong("`range` makes 100,000 numbers at most")),
    }
}

fn wrong(what: &'static str) -> minijinja::Error {
    minijinja::Error::new(ErrorKind::InvalidOperation, what)
}

/// Bytes of a program's template, and of its WGSL: naga and drivers work on expressions by recursion.
pub(crate) const LONGEST_TEXT: usize = 64 << 10;
/// Steps of rendering it.
const FUEL: u64 = 1 << 20;
/// Levels of a template, which minijinja goes through by recursion, on the stack of whoever asks: blocks and `elif`s one
/// within another, operators, indices and calls behind each other.
const MOST_LEVELS: usize = 200;

/// A program's own template, with its values; what is wrong with it else.
pub(crate) fn render_text<'a>(
    template: &str,
    values: impl Iterator<Item = (&'a str, Jinja)>,
) -> std::result::Result<String, String> {
    if template.len() > LONGEST_TEXT {
        let bytes = template.len();
        return Err(format!(
            "{bytes} bytes of a template are above {LONGEST_TEXT}"
        ));
    }
    if let Some(line) = too_deep(template) {
        return Err(format!(
            "line {line} nests too deeply: more than {MOST_LEVELS} operators, indices, calls, blocks or `elif`s"
        ));
    }
    let mut environment = empty();
    environment.set_fuel(Some(FUEL));
    let mut rendered = Limited::default();
    let done = environment
        .template_from_str(template)
        .and_then(|template| template.render_captured_to(Jinja::from_pairs(values), &mut rendered))
        .map(drop);
    match done {
        _ if rendered.is_over => Err(format!("it becomes more than {LONGEST_TEXT} bytes")),
        Err(error) => Err(format!("{error:#}")),
        Ok(()) => String::from_utf8(rendered.text).map_err(|error| error.to_string()),
    }
}

/// Text of [`LONGEST_TEXT`] bytes at most.
#[derive(Default)]
struct Limited {
    text: Vec<u8>,
    is_over: bool,
}

impl std::io::Write for Limited {
    fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
        self.is_over |= self.text.len() + text.len() > LONGEST_TEXT;
        if self.is_over {
            return Err(std::io::ErrorKind::Other.into());
        }
        self.text.extend_from_slice(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The line on which a template nests too deeply.
fn too_deep(template: &str) -> Option<usize> {
    // Of each open block, its `elif`s so far.
    let mut blocks: Vec<usize> = Vec::new();
    let mut at = 0;
    while let Some(found) = template[at..].find('{') {
        let start = at + found;
        at = start + 1;
        let Some(kind @ ('{' | '%' | '#')) = template[at..].chars().next() else {
            continue;
        };
        at += 1;
        let rest = &template[at..];
        let (tag, length) = match kind {
            '{' => code(rest, "}}"),
            '%' => code(rest, "%}"),
            _ => (String::new(), rest.find("#}").unwrap_or(rest.len())),
        };
        at += length;
        let mut is_deep = levels(&tag) > MOST_LEVELS;
        if kind == '%' {
            let statement = tag.trim_start_matches(['-', '+']).trim_start();
            let word = statement.split(|c: char| !c.is_alphanumeric()).next();
            match word.unwrap_or_default() {
                // Nothing in it is a tag.
                "raw" => at += raw(&template[at..]),
                "if" | "for" | "macro" | "call" | "filter" | "with" | "block" | "autoescape" => {
                    blocks.push(0);
                }
                "set" if !assigns(statement) => blocks.push(0),
                "elif" => blocks.last_mut().into_iter().for_each(|elifs| *elifs += 1),
                "endif" | "endfor" | "endmacro" | "endcall" | "endfilter" | "endwith"
                | "endblock" | "endautoescape" | "endset" => drop(blocks.pop()),
                _ => {}
            }
            is_deep |= blocks.len() + blocks.iter().sum::<usize>() > MOST_LEVELS;
        }
        if is_deep {
            return Some(1 + template[..start].matches('\n').count());
        }
    }
    None
}

/// The code of a tag, without what is in quotes, up to its end, and how many bytes it has.
fn code(rest: &str, end: &str) -> (String, usize) {
    let (mut code, mut open) = (String::new(), 0usize);
    let mut chars = rest.char_indices();
    while let Some((at, c)) = chars.next() {
        if open == 0 && rest[at..].starts_with(end) {
            return (code, at);
        }
        match c {
            '(' | '[' | '{' => open += 1,
            ')' | ']' | '}' => open = open.saturating_sub(1),
            '"' | '\'' => {
                let mut is_escaped = false;
                chars.find(|&(_, inner)| {
                    let ends = !is_escaped && inner == c;
                    is_escaped = !is_escaped && inner == '\\';
                    ends
                });
            }
            _ => {}
        }
        code.push(c);
    }
    (code, rest.len())
}

/// Bytes up to the end of what is raw.
fn raw(rest: &str) -> usize {
    let tags = rest.match_indices("{%");
    // One sign, and the blanks that minijinja takes for such.
    fn unsigned(tag: &str) -> &str {
        tag.strip_prefix(['-', '+']).unwrap_or(tag)
    }
    let blank = |c: char| c.is_ascii_whitespace();
    let is_end = |tag: &str| {
        let tag = unsigned(tag).trim_start_matches(blank);
        let tail = tag.strip_prefix("endraw");
        tail.is_some_and(|tail| unsigned(tail.trim_start_matches(blank)).starts_with("%}"))
    };
    let mut ends = tags.filter(|(at, tag)| is_end(&rest[at + tag.len()..]));
    ends.next().map_or(rest.len(), |(at, tag)| at + tag.len())
}

/// Whether a `set` gives a value, else what is up to its end.
fn assigns(statement: &str) -> bool {
    let mut open = 0i32;
    statement.chars().any(|c| {
        open += i32::from(matches!(c, '(' | '[' | '{')) - i32::from(matches!(c, ')' | ']' | '}'));
        open == 0 && c == '='
    })
}

/// The levels of an expression: what is open, and operators, indices and calls behind each other, which commas end.
fn levels(tag: &str) -> usize {
    let mut open = vec![0usize];
    let mut most = 0;
    let words = tag.split(|c: char| !c.is_alphanumeric() && c != '_');
    let named = ["not", "and", "or", "is", "in", "if", "else"];
    let all = words.filter(|word| named.contains(word)).count();
    for c in tag.chars() {
        match c {
            '(' | '[' | '{' => {
                *open.last_mut().unwrap_or(&mut 0) += 1;
                open.push(0);
            }
            ')' | ']' | '}' if open.len() > 1 => drop(open.pop()),
            ',' => *open.last_mut().unwrap_or(&mut 0) = 0,
            '_' | '"' | '\'' => {}
            c if c.is_ascii_punctuation() => *open.last_mut().unwrap_or(&mut 0) += 1,
            _ => {}
        }
        most = most.max(open.iter().sum());
        if most > MOST_LEVELS {
            break;
        }
    }
    most + all
}
