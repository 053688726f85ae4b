//! Puts other address spaces into declarations of variables, and leaves the rest of a text as it is.

use std::ops::Range;

use crate::memory::order;

/// What is put into a text, and where.
pub(super) struct Edit {
    place: Range<usize>,
    text: String,
}

impl Edit {
    /// Turns `var<..>` of the declaration that `span` holds into `before var<space>`. `None` when it
    /// holds none.
    pub(super) fn respace(
        source: &str,
        span: Range<usize>,
        before: &str,
        space: &str,
    ) -> Option<Self> {
        let end = span.end.min(source.len());
        let text = source.get(..end)?;
        let mut at = span.start;
        loop {
            let start = next_word(text, &mut at)?;
            if &text[start..at] == "var" {
                let open = skip_blank(text, at);
                text[open..].strip_prefix('<')?;
                return Some(Self {
                    place: start..close(text, open + 1)?,
                    text: format!("{before}var<{space}>"),
                });
            }
        }
    }
}

/// The text with edits that do not overlap.
pub(super) fn edited(source: &str, edits: &mut [Edit]) -> String {
    order::sort(edits, |edit| (edit.place.start as u64, 0));
    let mut made = String::with_capacity(source.len() + 64);
    let mut at = 0;
    for edit in edits {
        made.push_str(&source[at..edit.place.start]);
        made.push_str(&edit.text);
        at = edit.place.end;
    }
    made + &source[at..]
}

/// What the text's directives enable.
pub(super) fn enabled(source: &str) -> Vec<&str> {
    let (mut at, mut in_directive) = (0, false);
    let mut names = Vec::new();
    while let Some(start) = next_word(source, &mut at) {
        let word = &source[start..at];
        if in_directive {
            names.push(word);
        }
        in_directive |= word == "enable";
        let mut next = skip_blank(source, at);
        if source[next..].starts_with(',') {
            next = skip_blank(source, next + 1);
        }
        in_directive &= !source[next..].starts_with(';');
    }
    names
}

/// One past the `>` that ends a template, from inside of it.
fn close(source: &str, at: usize) -> Option<usize> {
    let (start, end) = tokens(&source[at..]).find(|&(_, token)| token == ">")?;
    Some(at + start + end.len())
}

/// The start of the next word outside of comments; `at` is left behind its end.
fn next_word(source: &str, at: &mut usize) -> Option<usize> {
    let from = *at;
    let mut words = tokens(&source[from..]).filter(|(_, token)| token.starts_with(is_part));
    let (start, word) = words.next()?;
    *at = from + start + word.len();
    Some(from + start)
}

/// Words, and other characters one by one, outside of comments, with where they begin.
pub(super) fn tokens(source: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        at = skip_blank(source, at);
        let start = at;
        let first = source[start..].chars().next()?;
        at += first.len_utf8();
        if is_part(first) {
            let length = source[start..].find(|c| !is_part(c));
            at = length.map_or(source.len(), |length| start + length);
        }
        Some((start, &source[start..at]))
    })
}

/// Whether words have it.
pub(super) fn is_part(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || !(c.is_ascii() || is_blank(c))
}

/// White space as WGSL has it.
fn is_blank(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{200e}' | '\u{200f}')
}

/// What ends a line in WGSL.
const LINE_ENDS: [char; 7] = [
    '\n', '\r', '\u{b}', '\u{c}', '\u{85}', '\u{2028}', '\u{2029}',
];

/// Where what is neither blank nor a comment begins.
fn skip_blank(source: &str, mut at: usize) -> usize {
    loop {
        let rest = &source[at..];
        let trimmed = rest.trim_start_matches(is_blank);
        at += rest.len() - trimmed.len();
        at += if trimmed.starts_with("//") {
            trimmed.find(LINE_ENDS).unwrap_or(trimmed.len())
        } else if trimmed.starts_with("/*") {
            comment(trimmed)
        } else {
            return at;
        };
    }
}

/// Bytes of the comment that `text` begins with; such comments nest.
fn comment(text: &str) -> usize {
    let (mut at, mut depth) = (2, 1);
    while depth > 0 {
        // Each byte once: what is searched from each comment on takes the square of their number.
        match text.as_bytes().get(at..at + 2) {
            Some(b"/*") => (depth, at) = (depth + 1, at + 2),
            Some(b"*/") => (depth, at) = (depth - 1, at + 2),
            Some(_) => at += 1,
            None => return text.len(),
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use super::{Edit, edited, enabled};

    fn respaced(source: &str, from: &str, space: &str) -> Option<String> {
        let start = source.find(from)?;
        let edit = Edit::respace(source, start..source.len(), "", space)?;
        Some(edited(source, &mut [edit]))
    }

    #[test]
    fn declarations_are_found_whatever_is_in_them() {
        for declaration in [
            "var<storage>",
            "var < storage , read >",
            "var<storage, /* > /* nested > */ */ read>",
            "var\u{200e}<storage, // a > b \r read>",
            "var // var<x> \u{2028}<storage>",
        ] {
            let source = format!("// var<private> y\n@group(0) {declaration} x: array<f32>;");
            let want = source.replace(declaration, "var<storage, read_write>");
            assert_eq!(
                respaced(&source, "@group", "storage, read_write"),
                Some(want)
            );
        }
        assert_eq!(respaced("fn f() { let x = 1; }", "fn", "uniform"), None);
        assert_eq!(respaced("var x = 1;", "var", "uniform"), None);
        assert_eq!(respaced("var<storage", "var", "uniform"), None);
        assert_eq!(respaced("/* open", "/", "uniform"), None);
    }

    #[test]
    fn directives_are_found() {
        assert_eq!(enabled("/* */ enable f16;"), ["f16"]);
        assert_eq!(enabled("/*/* π */*/enable f16;/**/"), ["f16"]);
        assert_eq!(enabled("/*/ enable f16;"), [""; 0]);
        // As deep as that, and still read at once.
        let deep = format!(
            "{}{}enable f16;",
            "/*".repeat(4 << 20),
            "*/".repeat(4 << 20)
        );
        assert_eq!(enabled(&deep), ["f16"]);
        assert_eq!(enabled("enable subgroups, f16 ;"), ["subgroups", "f16"]);
        assert_eq!(enabled("enable f16 , ; @group(0)"), ["f16"]);
        let source = "// enable f16;\nenable subgroups; const f16x = 1; fn f16() {}";
        assert_eq!(enabled(source), ["subgroups"]);
    }
}
