//! How deep a kernel's WGSL nests: naga and drivers go through it by recursion, on the stack of whoever asks.

use super::rewrite::{next_word, skip_blank};

/// Most levels: naga takes up to 600 bytes of stack for one where it is compiled for speed, a few times that else,
/// and threads have 2 MiB.
const MOST: usize = 500;
/// What an `else` takes, in levels of an expression.
const ELSE: usize = 3;

/// What is open at a place.
#[derive(Default)]
struct Level {
    /// Operators since the last comma or statement: each may be a level.
    operators: usize,
    /// `else` behind `else`.
    branches: usize,
    /// A block has just ended.
    after_block: bool,
}

/// Where a source nests too deeply, in bytes. Brackets alone naga counts itself.
pub(super) fn too_deep(source: &str) -> Option<usize> {
    let mut open = vec![Level::default()];
    let mut at = skip_blank(source, 0);
    while let Some(next) = source[at..].chars().next() {
        let start = at;
        let top = open.last_mut()?;
        let was_block = std::mem::take(&mut top.after_block);
        let word = next_word(source, &mut at).filter(|&word| word == start);
        if word.is_none() {
            at = start + next.len_utf8();
        }
        let is_else = word.is_some() && &source[start..at] == "else";
        if was_block && !is_else {
            top.branches = 0;
        }
        match next {
            _ if is_else => top.branches += 1,
            _ if word.is_some() => {}
            ',' => top.operators = 0,
            ';' => *top = Level::default(),
            '(' | '[' => {
                top.operators += 1;
                open.push(Level::default());
            }
            '{' => {
                top.operators = 0;
                open.push(Level::default());
            }
            ')' | ']' | '}' => {
                // Of what closes nothing naga tells.
                if open.len() > 1 {
                    open.pop();
                }
                if let Some(top) = open.last_mut().filter(|_| next == '}') {
                    top.after_block = true;
                }
            }
            _ => top.operators += 1,
        }
        let levels = open
            .iter()
            .map(|level| level.operators + ELSE * level.branches);
        if levels.sum::<usize>() > MOST {
            return Some(start);
        }
        at = skip_blank(source, at);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::too_deep;

    #[test]
    fn chains_are_counted_and_lists_are_not() {
        let body = |text: &str| format!("fn main() {{ let x = {text}; }}");
        for (chain, count) in [
            ("!", 3290),
            (" + a", 3290),
            (" + f(a, b)", 700),
            (".x", 3190),
            ("[0]", 800),
        ] {
            let text = match chain {
                "!" => chain.repeat(count) + "a",
                _ => "a".to_owned() + &chain.repeat(count),
            };
            assert!(too_deep(&body(&text)).is_some(), "{chain}");
        }
        let branches = "if c {} ".to_owned() + &"else if c {} ".repeat(200);
        assert!(too_deep(&format!("fn main() {{ {branches} }}")).is_some());
        let half = "if c {} ".to_owned() + &"else if c {} ".repeat(100);
        assert_eq!(too_deep(&format!("fn main() {{ {half} {half} }}")), None);
        let inside = format!("{half} else {{ {half} }}");
        assert!(too_deep(&format!("fn main() {{ {inside} }}")).is_some());
        let numbers = "1.5 * -a[i], ".repeat(5000);
        assert_eq!(too_deep(&body(&format!("array({numbers})"))), None);
        let statements = "x += a.x * (b + 1); if x > 2 { y = 1; } else { y = 2; } ".repeat(1000);
        assert_eq!(too_deep(&format!("fn main() {{ {statements} }}")), None);
        assert_eq!(
            too_deep(&body(&("a".to_owned() + &" + a * b".repeat(100)))),
            None
        );
        assert_eq!(too_deep("/* + + */ } ) ]"), None);
    }
}
