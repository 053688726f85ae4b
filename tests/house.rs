//! The rules of the house, read from the source: floors, sizes, unsafe, panics, dependencies.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// The floors of docs/architecture.md, lowest first. Modules of one floor that may use each other share a
/// list; `apart` ones must not.
const FLOORS: &[Floor] = &[
    Floor::shared(&[
        "error",
        "faults",
        "dtype",
        "shape",
        "layout",
        "local",
        "launch",
        "capabilities",
        "matmul_kernel",
        "matmul_table",
        "sync",
        "promise",
        "background",
        "turns",
    ]),
    Floor::apart(&["memory"]),
    Floor::apart(&["gpu", "cpu"]),
    Floor::apart(&["device"]),
    Floor::apart(&["tensor"]),
    Floor::apart(&["road"]),
    Floor::apart(&["ops"]),
    Floor::apart(&["interop"]),
    Floor::apart(&["kernels"]),
];

/// Uses nothing but std and itself.
const PURE: &str = "memory";
const MOST_LINES: usize = 600;
const UNSAFE: &[&str] = &[
    "cpu/arena/mod.rs",
    "cpu/arena/region.rs",
    "cpu/helpers.rs",
    "cpu/pages.rs",
    "cpu/pairs.rs",
    "cpu/product/gemm.rs",
    "cpu/stores.rs",
    "gpu/hal.rs",
    "gpu/pipelines.rs",
    "gpu/serial.rs",
];
const SINGLE: &[&str] = &[
    "naga",
    "wgpu",
    "wgpu-core",
    "wgpu-hal",
    "wgpu-types",
    "ash",
    "half",
];

struct Floor {
    modules: &'static [&'static str],
    apart: bool,
}

impl Floor {
    const fn shared(modules: &'static [&'static str]) -> Self {
        Self {
            modules,
            apart: false,
        }
    }

    const fn apart(modules: &'static [&'static str]) -> Self {
        Self {
            modules,
            apart: true,
        }
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// One source file.
struct Source {
    /// Below `src/`, with slashes.
    path: String,
    text: String,
    /// Without comments, strings and `#[cfg(test)]` items; lines stay where they are.
    code: String,
}

impl Source {
    /// The top-level module that the file belongs to.
    fn module(&self) -> &str {
        let end = self.path.find(['/', '.']).unwrap_or(self.path.len());
        &self.path[..end]
    }
}

fn sources() -> Vec<Source> {
    let src = root().join("src");
    let mut found = Vec::new();
    let mut folders = vec![src.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("src/ is readable") {
            let path: PathBuf = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).expect("source is text");
                let inside = path.strip_prefix(&src).expect("inside src/");
                let path = inside.to_string_lossy().replace('\\', "/");
                let code = without_tests(&without_comments_and_strings(&text));
                found.push(Source { path, text, code });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(found.len() > 10);
    found
}

/// Blanks comments, string literals and character literals.
fn without_comments_and_strings(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut code = String::with_capacity(text.len());
    let mut at = 0;
    let blank = |c: char| if c == '\n' { '\n' } else { ' ' };
    while at < chars.len() {
        let rest = &chars[at..];
        let length = match rest {
            ['/', '/', ..] => rest.iter().position(|&c| c == '\n').unwrap_or(rest.len()),
            ['/', '*', ..] => block_comment(rest),
            ['r', '"' | '#', ..] if !ends_word(&code) => raw_string(rest).unwrap_or(0),
            ['"', ..] => quoted(rest, '"'),
            ['\'', '\\', ..] => quoted(rest, '\''),
            ['\'', _, '\'', ..] => 3,
            _ => 0,
        };
        if length == 0 {
            code.push(chars[at]);
            at += 1;
        } else {
            code.extend(rest[..length].iter().map(|&c| blank(c)));
            at += length;
        }
    }
    code
}

fn ends_word(code: &str) -> bool {
    code.chars()
        .next_back()
        .is_some_and(|c| c.is_alphanumeric() || c == '_')
}

fn block_comment(rest: &[char]) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        match rest[at..] {
            ['/', '*', ..] => (depth, at) = (depth + 1, at + 2),
            ['*', '/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

fn quoted(rest: &[char], end: char) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != end {
        at += if rest[at] == '\\' { 2 } else { 1 };
    }
    (at + 1).min(rest.len())
}

fn raw_string(rest: &[char]) -> Option<usize> {
    let hashes = rest[1..].iter().take_while(|&&c| c == '#').count();
    if rest.get(1 + hashes) != Some(&'"') {
        return None;
    }
    let end: String = format!("\"{}", "#".repeat(hashes));
    let body: String = rest[2 + hashes..].iter().collect();
    let length = body.find(&end).map(|bytes| body[..bytes].chars().count());
    Some(2 + hashes + length? + end.len())
}

/// Blanks each item after `#[cfg(test)]` (from code without strings).
fn without_tests(code: &str) -> String {
    let mut kept = String::with_capacity(code.len());
    let mut rest = code;
    while let Some(start) = rest.find("#[cfg(test)]") {
        kept.push_str(&rest[..start]);
        let item = &rest[start..];
        let mut depth = 0;
        // An item ends with its block, a field or variant with its comma, a use with its semicolon.
        let end = item
            .char_indices()
            .skip("#[cfg(test)]".len())
            .find_map(|(at, c)| {
                match c {
                    '{' | '(' => depth += 1,
                    '}' | ')' => depth -= 1,
                    _ => {}
                }
                (depth < 0 || depth == 0 && matches!(c, '}' | ';' | ','))
                    .then_some(at + c.len_utf8())
            });
        let end = end.unwrap_or(item.len());
        kept.extend(item[..end].chars().filter(|&c| c == '\n'));
        rest = &item[end..];
    }
    kept.push_str(rest);
    kept
}

/// Top-level modules named in `crate::` paths, `use crate::{a, b}` included.
fn crate_paths(code: &str) -> BTreeSet<String> {
    let mut named = BTreeSet::new();
    for (at, _) in code.match_indices("crate::") {
        // `$crate::`, `pub(crate)` and names that end in crate are something else.
        if ends_word(&code[..at]) {
            continue;
        }
        let rest = &code[at + "crate::".len()..];
        if let Some(group) = rest.strip_prefix('{') {
            let mut depth = 0;
            let mut start = true;
            for (offset, c) in group.char_indices() {
                match c {
                    '{' => depth += 1,
                    '}' if depth == 0 => break,
                    '}' => depth -= 1,
                    ',' if depth == 0 => start = true,
                    _ if start && !c.is_whitespace() => {
                        named.insert(word(&group[offset..]));
                        start = false;
                    }
                    _ => {}
                }
            }
        } else {
            named.insert(word(rest));
        }
    }
    named
}

fn word(text: &str) -> String {
    text.chars()
        .take_while(|c| c.is_alphanumeric() || *c == '_')
        .collect()
}

fn floor_of(module: &str) -> Option<usize> {
    FLOORS
        .iter()
        .position(|floor| floor.modules.contains(&module))
}

/// Where a line of code has one of the words, as `path:line: text`.
fn lines_with(source: &Source, words: &[&str]) -> Vec<String> {
    let hits = source.code.lines().enumerate().filter(|(_, line)| {
        words.iter().any(|word| {
            line.match_indices(word).any(|(at, _)| {
                let starts =
                    !word.starts_with(|c: char| c.is_alphanumeric()) || !ends_word(&line[..at]);
                let after = line[at + word.len()..].chars().next();
                let ends = !word.ends_with(|c: char| c.is_alphanumeric())
                    || !after.is_some_and(|c| c.is_alphanumeric() || c == '_');
                starts && ends
            })
        })
    });
    hits.map(|(at, line)| format!("src/{}:{}: {}", source.path, at + 1, line.trim()))
        .collect()
}

#[test]
fn every_module_has_a_floor() {
    for source in sources().iter().filter(|source| source.path != "lib.rs") {
        assert!(
            floor_of(source.module()).is_some(),
            "src/{}: module `{}` is on no floor; add it to FLOORS in tests/house.rs where it belongs",
            source.path,
            source.module()
        );
    }
}

#[test]
fn floors_use_only_those_below() {
    let mut wrong = Vec::new();
    for source in sources().iter().filter(|source| source.path != "lib.rs") {
        let own = source.module();
        let Some(floor) = floor_of(own) else { continue };
        for used in crate_paths(&source.code) {
            if used == own {
                continue;
            }
            let Some(other) = floor_of(&used) else {
                // A name that lib.rs exports: floors name modules, not re-exports.
                wrong.push(format!(
                    "src/{}: crate::{used} is no module of the house",
                    source.path
                ));
                continue;
            };
            if other > floor {
                wrong.push(format!(
                    "src/{}: `{own}` uses `{used}`, a floor above it",
                    source.path
                ));
            } else if other == floor && FLOORS[floor].apart {
                wrong.push(format!(
                    "src/{}: `{own}` uses its neighbour `{used}`",
                    source.path
                ));
            } else if own == PURE {
                wrong.push(format!(
                    "src/{}: `{own}` uses `{used}`, but only std is allowed",
                    source.path
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn memory_uses_only_std() {
    for source in sources().iter().filter(|source| source.module() == PURE) {
        for line in source.code.lines().map(str::trim) {
            if let Some(path) = line.strip_prefix("use ") {
                let first = word(path);
                assert!(
                    ["std", "core", "alloc", "super", "self"].contains(&first.as_str())
                        || path.starts_with("crate::memory"),
                    "src/{}: {line}",
                    source.path
                );
            }
        }
    }
}

#[test]
fn files_are_short() {
    for source in sources() {
        let lines = source.text.lines().count();
        assert!(
            lines <= MOST_LINES,
            "src/{}: {lines} lines, at most {MOST_LINES}",
            source.path
        );
    }
}

#[test]
fn the_architecture_names_every_file() {
    let text = fs::read_to_string(root().join("docs/architecture.md")).expect("it is there");
    let is_of_name = |letter: char| letter.is_alphanumeric() || letter == '_';
    let words: BTreeSet<&str> = text.split(|letter| !is_of_name(letter)).collect();
    for source in sources() {
        let path = Path::new(&source.path);
        let stem = path.file_stem().and_then(|stem| stem.to_str());
        let name = stem.filter(|stem| !matches!(*stem, "mod" | "lib"));
        assert!(
            name.is_none_or(|name| words.contains(name)),
            "docs/architecture.md, \"Floors\", has no src/{}",
            source.path
        );
    }
}

#[test]
fn unsafe_is_where_it_may_be() {
    for source in sources() {
        let found = lines_with(&source, &["unsafe"]);
        if UNSAFE.contains(&source.path.as_str()) {
            assert!(
                !found.is_empty(),
                "src/{} needs no place in UNSAFE",
                source.path
            );
            assert!(
                source.text.contains("SAFETY:"),
                "src/{}: each with its reason",
                source.path
            );
        } else {
            assert!(found.is_empty(), "{}", found.join("\n"));
        }
    }
}

#[test]
fn nothing_panics_or_prints() {
    let words = [
        ".unwrap()",
        ".expect(",
        "panic!",
        "todo!",
        "unimplemented!",
        "unreachable!",
        "println!",
        "eprintln!",
        "print!",
        "eprint!",
        "dbg!",
    ];
    let found: Vec<String> = sources()
        .iter()
        .flat_map(|source| lines_with(source, &words))
        .collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// Else the model checker does not see them.
#[test]
fn locks_come_from_one_place() {
    let words = [
        "parking_lot",
        "thread::spawn",
        "thread::sleep",
        "thread::Builder",
    ];
    let found: Vec<String> = sources()
        .iter()
        .filter(|source| source.module() != "sync")
        .flat_map(|source| {
            let ours = source.code.contains("crate::sync");
            let words = if ours { &words[..1] } else { &words[..] };
            lines_with(source, words)
        })
        .collect();
    assert!(found.is_empty(), "use crate::sync:\n{}", found.join("\n"));
}

/// A variant of `Error` that no test names could say anything.
#[test]
fn every_error_is_named_by_a_test() {
    let sources = sources();
    let error = sources.iter().find(|source| source.path == "error/mod.rs");
    let code = &error.expect("src/error/mod.rs").code;
    let start = code.find("pub enum Error {").expect("the enum");
    let body = &code[start..start + code[start..].find("\n}").expect("its end")];
    let variants: Vec<&str> = body
        .lines()
        .filter_map(|line| line.trim().split_once("(Box<").map(|(name, _)| name))
        .collect();
    assert!(variants.len() > 10, "{variants:?}");
    let mut tests: Vec<String> = Vec::new();
    let mut folders = vec![root().join("tests")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("tests/ is readable") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).expect("source is text");
                tests.push(without_comments_and_strings(&text));
            }
        }
    }
    for variant in variants {
        let name = format!("Error::{variant}(");
        let in_tests = tests.iter().any(|text| text.contains(&name));
        let in_units = sources.iter().any(|source| {
            let all = without_comments_and_strings(&source.text);
            all.matches(&name).count() > source.code.matches(&name).count()
        });
        assert!(in_tests || in_units, "no test names {name}..)");
    }
}

/// The reader of these tests reads what it should.
#[test]
fn comments_strings_and_tests_are_no_code() {
    let text = r##"
use crate::{a::{b, c}, d};
// crate::no
let s = "crate::no"; let r = r#"crate::"no"#; let c = '"'; fn f<'a>(x: &'a str) { crate::e::f() }
/* crate::no /* nested */ unsafe */
#[cfg(test)]
mod tests { use crate::no; fn g() { x.unwrap() } }
#[cfg(test)]
KeepsIdle,
pub(crate) fn h() {}
"##;
    let code = without_tests(&without_comments_and_strings(text));
    let named: Vec<String> = crate_paths(&code).into_iter().collect();
    assert_eq!(named, ["a", "d", "e"]);
    assert!(!code.contains("unwrap") && !code.contains("KeepsIdle") && !code.contains("unsafe"));
    assert!(code.contains("pub(crate) fn h() {}"));
    assert_eq!(code.lines().count(), text.lines().count());
}

fn metadata() -> Value {
    let run = |offline: &[&str]| {
        let output = Command::new(env!("CARGO"))
            .args(["metadata", "--locked", "--format-version", "1"])
            .args(offline)
            .current_dir(root())
            .output()
            .expect("cargo runs");
        output.status.success().then_some(output.stdout)
    };
    let text = run(&["--offline"]).or_else(|| run(&[]));
    let text = text.expect("cargo metadata --locked gives the graph: is Cargo.lock up to date?");
    serde_json::from_slice(&text).expect("cargo metadata is JSON")
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

/// Packages by id.
fn packages(metadata: &Value) -> BTreeMap<&str, &Value> {
    let all = metadata["packages"].as_array().expect("packages");
    all.iter()
        .map(|package| (text(package, "id"), package))
        .collect()
}

#[test]
fn one_version_of_what_must_be_one() {
    let lock = fs::read_to_string(root().join("Cargo.lock")).expect("Cargo.lock is committed");
    for name in SINGLE {
        let line = format!("name = \"{name}\"");
        let count = lock.lines().filter(|other| *other == line).count();
        assert_eq!(count, 1, "Cargo.lock has {count} versions of {name}");
    }
}

/// `1.88` or `1.88.1` as numbers.
fn version(text: &str) -> Vec<u64> {
    text.split('.')
        .map(|part| part.parse().unwrap_or(0))
        .collect()
}

#[test]
fn rust_version_is_enough_for_the_dependencies() {
    let metadata = metadata();
    let packages = packages(&metadata);
    let nodes: BTreeMap<&str, &Value> = metadata["resolve"]["nodes"]
        .as_array()
        .expect("nodes")
        .iter()
        .map(|node| (text(node, "id"), node))
        .collect();
    let own = text(&metadata["resolve"], "root");
    let ours = text(packages[own], "rust_version");
    assert!(!ours.is_empty(), "Cargo.toml says its rust-version");
    let mut seen = BTreeSet::from([own]);
    let mut next = vec![own];
    while let Some(id) = next.pop() {
        let needs = text(packages[id], "rust_version");
        assert!(
            version(ours) >= version(needs),
            "{} {} needs Rust {needs}, Cargo.toml promises {ours}",
            text(packages[id], "name"),
            text(packages[id], "version"),
        );
        for dependency in nodes[id]["deps"].as_array().expect("deps") {
            let is_dev = |kind: &Value| kind["kind"].as_str() == Some("dev");
            let kinds = dependency["dep_kinds"].as_array().expect("dep_kinds");
            let id = text(dependency, "pkg");
            if !kinds.iter().all(is_dev) && seen.insert(id) {
                next.push(id);
            }
        }
    }
    assert!(seen.len() > 30, "only {} packages", seen.len());
}
