//! Puts another address space into a variable's declaration, and leaves the rest of the text as it is.

/// The source with the declaration `var<..> name` as `before var<space> name`. `None` when there is none.
pub(super) fn respace(source: &str, name: &str, before: &str, space: &str) -> Option<String> {
    let mut at = 0;
    while let Some(start) = next_word(source, &mut at) {
        if &source[start..at] != "var" {
            continue;
        }
        let mut rest = skip_blank(source, at);
        if !source[rest..].starts_with('<') {
            continue;
        }
        let close = rest + source[rest..].find('>')?;
        rest = close + 1;
        let Some(word) = next_word(source, &mut rest) else {
            continue;
        };
        if &source[word..rest] == name {
            let head = &source[..start];
            let tail = &source[close + 1..];
            return Some(format!("{head}{before}var<{space}>{tail}"));
        }
    }
    None
}

/// The start of the next word outside of comments; `at` is left behind its end.
fn next_word(source: &str, at: &mut usize) -> Option<usize> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    loop {
        *at = skip_blank(source, *at);
        let first = source[*at..].chars().next()?;
        let start = *at;
        if is_part(first) {
            let length = source[start..].find(|c| !is_part(c));
            *at = length.map_or(source.len(), |length| start + length);
            return Some(start);
        }
        *at += first.len_utf8();
    }
}

/// Where what is neither blank nor a comment begins.
fn skip_blank(source: &str, mut at: usize) -> usize {
    loop {
        let rest = &source[at..];
        let trimmed = rest.trim_start();
        at += rest.len() - trimmed.len();
        at += if trimmed.starts_with("//") {
            trimmed.find('\n').unwrap_or(trimmed.len())
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
        let rest = &text[at..];
        match (rest.find("/*"), rest.find("*/")) {
            (Some(open), Some(close)) if open < close => {
                depth += 1;
                at += open + 2;
            }
            (_, Some(close)) => {
                depth -= 1;
                at += close + 2;
            }
            (_, None) => return text.len(),
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use super::respace;

    #[test]
    fn finds_the_declaration_alone() {
        let source = "// var<storage> x : y;\n/* var<storage> x /* nested */ */ var < storage , read > /* é */ x: f32; var<private> xy: u32;";
        let made = respace(source, "x", "", "storage, read_write").unwrap();
        assert_eq!(
            made,
            source.replace("var < storage , read >", "var<storage, read_write>")
        );
        assert!(
            respace(source, "xy", "@group(1) ", "uniform")
                .unwrap()
                .contains("@group(1) var<uniform> xy")
        );
        assert_eq!(respace(source, "y", "", "uniform"), None);
        assert_eq!(
            respace("fn f() { var x = 1; } /* open", "x", "", "uniform"),
            None
        );
    }
}
