//! Renders a program's own template, and refuses what would take the stack, the memory, or for ever.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use minijinja::Value as Jinja;

use super::templates::empty;

/// Bytes of a program's template, and of its WGSL: naga and drivers work on expressions by recursion.
pub(crate) const LONGEST_TEXT: usize = 64 << 10;
/// Steps of rendering it, and items of lists that it makes.
const FUEL: u64 = 1 << 20;
/// Levels of a template, which minijinja goes through by recursion, on the stack of whoever asks: blocks and `elif`s one
/// within another, operators, indices and calls behind each other.
const MOST_LEVELS: usize = 200;
/// Levels that values gain from tag to tag, all together: minijinja prints, compares and drops them by recursion.
const MOST_GROWTH: usize = 500;
/// Loops, `with`s and calls in each other, each of a macro counted as [`OF_MACRO`].
const RECURSION: usize = 32;
/// What minijinja counts for a macro at least: four, its frame, and that of the template's values.
const OF_MACRO: usize = 6;

/// A program's own template, with its values; what is wrong with it else.
pub(crate) fn render_text<'a>(
    template: &str,
    values: impl Iterator<Item = (&'a str, Jinja)>,
) -> Result<String, String> {
    if template.len() > LONGEST_TEXT {
        let bytes = template.len();
        return Err(format!(
            "{bytes} bytes of a template are above {LONGEST_TEXT}"
        ));
    }
    if let Some((line, what)) = too_deep(template) {
        return Err(format!("line {line} {what}"));
    }
    let mut rendered = Limited::default();
    let render = || {
        let mut environment = empty(FUEL);
        environment.set_fuel(Some(FUEL));
        environment.set_recursion_limit(RECURSION);
        let template = environment.template_from_str(template);
        let values = Jinja::from_pairs(values);
        template
            .and_then(|template| template.render_captured_to(values, &mut rendered))
            .map(drop)
            .map_err(|error| format!("{error:#}"))
    };
    // It panics where a loop goes through no values in turns; what is left half done is dropped here.
    let done = catch_unwind(AssertUnwindSafe(render))
        .unwrap_or_else(|payload| Err(format!("minijinja panicked: {}", told(&*payload))));
    match done {
        _ if rendered.is_over => Err(format!("it becomes more than {LONGEST_TEXT} bytes")),
        Err(error) => Err(error),
        Ok(()) => String::from_utf8(rendered.text).map_err(|error| error.to_string()),
    }
}

/// What a panic said.
pub(crate) fn told(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("without a word")
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

/// The line on which a template nests too deeply, or its values do, and how.
fn too_deep(template: &str) -> Option<(usize, String)> {
    let mut blocks: Vec<Block> = Vec::new();
    let (mut at, mut growth) = (0, 0);
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
        // What trims blanks is no operator.
        let tag = tag.strip_prefix(['-', '+']).unwrap_or(&tag);
        let tag = tag.strip_suffix(['-', '+']).unwrap_or(tag);
        let line = || 1 + template[..start].matches('\n').count();
        let mut is_deep = levels(tag) > MOST_LEVELS;
        let mut word = "";
        if kind == '%' {
            let statement = tag.trim_start();
            let first = statement.split(|c: char| !c.is_alphanumeric()).next();
            word = first.unwrap_or_default();
            match word {
                // Nothing in it is a tag.
                "raw" => at += raw(&template[at..]),
                "if" | "filter" | "with" | "autoescape" => blocks.push(Block::of(1)),
                "macro" | "call" => blocks.push(Block::of(RECURSION / OF_MACRO)),
                // A loop that calls itself from within a block never ends (minijinja 3.0).
                "block" | "extends" | "include" | "import" | "from" => {
                    let what = format!("has `{word}`, which is for templates of several texts");
                    return Some((line(), what));
                }
                "for" => blocks.push(Block::of(match statement.contains("recursive") {
                    true => RECURSION,
                    false => 1,
                })),
                // All up to its end is the value.
                "set" if !has_outside(statement, '=') => blocks.push(Block::of(1)),
                "elif" => blocks
                    .last_mut()
                    .into_iter()
                    .for_each(|block| block.elifs += 1),
                "endif" | "endfor" | "endmacro" | "endcall" | "endfilter" | "endwith"
                | "endautoescape" | "endset" => drop(blocks.pop()),
                _ => {}
            }
            is_deep |= blocks.iter().map(|block| 1 + block.elifs).sum::<usize>() > MOST_LEVELS;
        }
        if is_deep {
            let what = format!(
                "nests too deeply: more than {MOST_LEVELS} operators, indices, calls, blocks or `elif`s"
            );
            return Some((line(), what));
        }
        let times = blocks.iter().map(|block| block.times).max().unwrap_or(1);
        growth += times * grows(word, tag, times > 1);
        if growth > MOST_GROWTH {
            let what = format!(
                "may make values that nest too deeply: with it, tags that set variables have more than {MOST_GROWTH} operators \
                 and brackets in each other, where those of macros count {} times",
                RECURSION / OF_MACRO
            );
            return Some((line(), what));
        }
    }
    None
}

/// What is open in a template.
struct Block {
    /// Its `elif`s so far.
    elifs: usize,
    /// How often it may be within itself.
    times: usize,
}

impl Block {
    fn of(times: usize) -> Self {
        Self { elifs: 0, times }
    }
}

/// The levels that a value may gain by a tag which gives it a name, which calls do where macros call each other.
fn grows(word: &str, tag: &str, is_called: bool) -> usize {
    // Lists behind each other, maybe, or numbers.
    let joined = tag.chars().filter(|mark| matches!(mark, '+' | '*'));
    if !makes(tag) {
        let is_named = matches!(word, "with" | "macro" | "call" | "set" | "for");
        return match is_named || is_called && tag.contains('(') {
            true => joined.count(),
            false => 0,
        };
    }
    let levels = || levels(tag) + usize::from(has_outside(tag, ','));
    match word {
        // Each of their values may hold the one before it.
        "with" | "macro" | "call" => {
            let marks = tag.chars().filter(char::is_ascii_punctuation);
            marks.filter(|mark| !matches!(mark, ',' | '_')).count()
        }
        "set" | "for" => levels(),
        _ if is_called && tag.contains('(') => levels(),
        _ => 0,
    }
}

/// Whether a tag may make a value that holds another by brackets or commas: a list, a map, a tuple, named arguments, a slice.
fn makes(tag: &str) -> bool {
    const BEFORE_GROUPS: [&str; 11] = [
        "set", "with", "call", "do", "if", "elif", "else", "in", "and", "or", "not",
    ];
    // Of what is open, whether it is a call.
    let mut calls = Vec::new();
    for (at, c) in tag.char_indices() {
        let before = || tag[..at].trim_end();
        let is_in_call = calls.last() == Some(&true);
        match c {
            '[' | '{' => return true,
            ',' if !is_in_call => return true,
            // Not of a comparison.
            '=' if is_in_call => {
                let is_second = before().ends_with(['=', '!', '<', '>']);
                if !is_second && !tag[at + 1..].starts_with('=') {
                    return true;
                }
            }
            '(' => {
                let before = before();
                let mut names = before.rsplit(|c: char| !c.is_alphanumeric() && c != '_');
                let name = names.next().unwrap_or_default();
                let ends = |word: &&str| name == *word || is_behind_digit(name, word);
                let is_name = !name.is_empty() && !BEFORE_GROUPS.iter().any(ends);
                calls.push(is_name || before.ends_with([')', ']', '}', '"', '\'']));
            }
            ')' => drop(calls.pop()),
            _ => {}
        }
    }
    false
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

/// Whether there is a mark that stands in no brackets.
fn has_outside(code: &str, mark: char) -> bool {
    let mut open = 0i32;
    code.chars().any(|c| {
        open += i32::from(matches!(c, '(' | '[' | '{')) - i32::from(matches!(c, ')' | ']' | '}'));
        open == 0 && c == mark
    })
}

/// Whether a word ends with a keyword that stands right behind a number, which ends there.
fn is_behind_digit(word: &str, keyword: &str) -> bool {
    let before = word.strip_suffix(keyword);
    before.is_some_and(|before| before.ends_with(|c: char| c.is_ascii_digit()))
}

/// The levels of an expression: what is open, and operators, indices and calls behind each other, which commas end.
fn levels(tag: &str) -> usize {
    let mut open = vec![0usize];
    let mut most = 0;
    let words = tag.split(|c: char| !c.is_alphanumeric() && c != '_');
    let named = ["not", "and", "or", "is", "in", "if", "else"];
    let keywords = words.map(|word| {
        // As many as there may be in `1or 1or1` and `0.e1or`.
        let starts = word.starts_with(|c: char| c.is_ascii_digit());
        match starts || named.iter().any(|keyword| is_behind_digit(word, keyword)) {
            true => {
                let runs = word.split(|c: char| !c.is_alphabetic());
                runs.filter(|run| !run.is_empty()).count()
            }
            false => usize::from(named.contains(&word)),
        }
    });
    let all: usize = keywords.sum();
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

#[cfg(test)]
mod tests {
    use super::{MOST_LEVELS, grows, levels, makes, render_text};

    #[test]
    fn what_may_hold_another_value_is_seen() {
        for tag in [
            "set x = [x]",
            "set x = {1: x}",
            "set x = x,",
            "set x = (x,)",
            "set x = y in (x, y)",
            "set x = x[1:]",
            "set x = u | default(a=x)",
            "set x = loop.cycle(a = x)",
            "set x = f((x, x))",
            "for y in(x,)",
            "with a = (x, x)",
            "set x = not(x,)",
            "set x = 1and(x,)",
            "set x=0.e1or(x,)",
            "set x = n*(x,)",
        ] {
            assert!(makes(tag), "{tag}");
        }
        for tag in [
            "set x = load4(a, 'b', 3) | int",
            "set x = f(a == b, a <= b, a != b)",
            "for i in range(0, n, 2)",
            "macro load(a, b)",
            "set x = (a - b) // 2",
            "set x = f(a)(b, c).d(e, f)",
        ] {
            assert!(!makes(tag), "{tag}");
        }
        assert_eq!(grows("with", "with a=[x], b=[a], c=[b]", false), 9);
        assert_eq!(grows("", " f([x]) ", false), 0);
        assert_eq!(grows("", " f([x]) ", true), 2);
        assert_eq!(grows("", " f(x * 4 + y) ", true), 2);
        assert_eq!(grows("set", "set x = x * 1", false), 1);
        assert_eq!(grows("set", "set x = 1, (x,)", false), 2);
    }

    #[test]
    fn keywords_behind_numbers_are_levels() {
        for tag in ["1or ", "1or1if", "0.e1or ", "not "] {
            assert!(levels(&tag.repeat(201)) > MOST_LEVELS, "{tag}");
        }
        let problem = |text: &str| render_text(text, std::iter::empty()).unwrap_err();
        let deep = format!("{{{{ {}1 }}}}", "1or ".repeat(16_000));
        assert!(problem(&deep).contains("nests too deeply"));
        let endless = "{% for a in [1] recursive %}{% block b %}{% set x = [x] %}{{ loop(1) }}{% endblock %}{% endfor %}";
        assert!(problem(endless).contains("`block`"), "{endless}");
    }

    #[test]
    fn values_nest_only_so_much() {
        let many = "{% set x = [x] %}".repeat(240);
        let deep = format!("{{% set x = 1 %}}{many}{{{{ x }}}}{{{{ x == [x] }}}}");
        let rendered = render_text(&deep, std::iter::empty());
        assert_eq!(rendered.map(|text| text.len()), Ok(2 * 240 + 1 + 5));
        // Macros call themselves five times at most, so that what they make nests no deeper.
        let macros =
            "{% macro f(x, n) %}{{ n }}{% if n < 9 %}{{ f([x], n + 1) }}{% endif %}{% endmacro %}";
        let rendered = render_text(&format!("{macros}{{{{ f(1, 5) }}}}"), std::iter::empty());
        assert_eq!(rendered.as_deref(), Ok("56789"));
        let rendered = render_text(&format!("{macros}{{{{ f(1, 4) }}}}"), std::iter::empty());
        assert!(rendered.is_err_and(|problem| problem.contains("recursion")));
    }
}
