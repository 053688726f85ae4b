//! How deep a kernel's WGSL nests: naga and drivers go through it by recursion, on the stack of whoever asks.

use super::rewrite::{is_part, tokens};

/// Most levels: naga takes up to 700 bytes of stack for one where it is compiled for speed, a few times that else,
/// and threads have 2 MiB.
const MOST: usize = 500;
/// What an `else` takes, in levels of an expression.
const ELSE: usize = 3;
/// Most declarations of a module: one may need the next one, and so on.
const DECLARATIONS: usize = 1000;

const NESTS: &str = "nests too deeply: break the expression, or the `else if`, into several";
const DECLARES: &str = "is one declaration too many: a kernel has 1000 at most";

/// What is open at a place.
#[derive(Default)]
struct Level {
    /// By `(`, `[`, the `<` of a type or, 0, by `{`: commas are between its parts but in a block.
    opened: char,
    /// Operators since the last part began: each may be a level.
    operators: usize,
    /// `else` behind `else`.
    branches: usize,
    /// A block has just ended.
    after_block: bool,
}

impl Level {
    fn of(opened: char) -> Self {
        Self {
            opened,
            ..Self::default()
        }
    }

    fn levels(&self) -> usize {
        1 + self.operators + ELSE * self.branches
    }
}

/// Where a source goes too deep, in bytes, and what is wrong there.
pub(super) fn too_deep(source: &str) -> Option<(usize, &'static str)> {
    let mut outside: Vec<Level> = Vec::new();
    let mut top = Level::of('{');
    // Of all levels outside of the top one.
    let mut below = 0;
    let (mut declarations, mut last) = (0, "");
    for (start, token) in tokens(source) {
        let next = token.chars().next()?;
        if std::mem::take(&mut top.after_block) && token != "else" {
            top.branches = 0;
        }
        // No type goes on behind what ends here: that was a comparison.
        while top.opened == '<' && matches!(next, ';' | ')' | ']' | '{' | '}') {
            let Some(level) = outside.pop() else { break };
            below -= level.levels();
            top = level;
        }
        match next {
            _ if token == "else" => top.branches += 1,
            _ if is_part(next) => {}
            // The point of a number.
            '.' if source[start + 1..].starts_with(|c: char| c.is_ascii_digit()) => {}
            ',' => top.operators = 0,
            ';' => (top.operators, top.branches) = (0, 0),
            '(' | '[' | '{' | '<' if next != '<' || is_generic(last) => {
                match next {
                    '{' => top.operators = 0,
                    // The first index of a name is no deeper than its terms are.
                    '[' if last.starts_with(is_part) => {}
                    '<' => {}
                    _ => top.operators += 1,
                }
                below += top.levels();
                outside.push(std::mem::replace(&mut top, Level::of(next)));
            }
            ')' | ']' | '}' | '>' if next != '>' || top.opened == '<' => {
                // Of what closes nothing naga tells.
                if let Some(level) = outside.pop() {
                    below -= level.levels();
                    top = level;
                }
                top.after_block = next == '}';
            }
            _ => top.operators += 1,
        }
        if below + top.levels() > MOST {
            return Some((start, NESTS));
        }
        if outside.is_empty() && matches!(next, ';' | '}') {
            declarations += 1;
            if declarations > DECLARATIONS {
                return Some((start, DECLARES));
            }
        }
        last = token;
    }
    None
}

/// Whether a `<` behind the name begins what a type or a `bitcast` is of.
fn is_generic(name: &str) -> bool {
    let sized = name.strip_prefix("vec").or(name.strip_prefix("mat"));
    ["array", "atomic", "ptr", "bitcast", "binding_array", "var"].contains(&name)
        || sized.is_some_and(|size| size.starts_with(['2', '3', '4']))
        || name.starts_with("texture_")
}

#[cfg(test)]
mod tests {
    use super::too_deep;

    fn body(text: &str) -> String {
        format!("fn main() {{ let x = {text}; }}")
    }

    #[test]
    fn chains_are_counted() {
        for (chain, count) in [
            (" + a", 3290),
            (" + f(a, b)", 700),
            (" + vec2<u32,>(a, b).x", 400),
            (".x", 3190),
            ("[0]", 800),
            ("(", 600),
        ] {
            let text = "a".to_owned() + &chain.repeat(count);
            assert!(too_deep(&body(&text)).is_some(), "{chain}");
            assert!(
                too_deep(&body(&format!("f(1, (b + {text}))"))).is_some(),
                "{chain}"
            );
        }
        assert!(too_deep(&body(&("!".repeat(3290) + "a"))).is_some());
        let parts = format!("{} + vec2<u32,>().x", " + y".repeat(400));
        assert!(too_deep(&body(&("y".to_owned() + &parts.repeat(2)))).is_some());
        let branches = "if c {} ".to_owned() + &"else if c {} ".repeat(200);
        assert!(too_deep(&format!("fn main() {{ {branches} }}")).is_some());
        let half = "if c {} ".to_owned() + &"else if c {} ".repeat(100);
        assert_eq!(too_deep(&format!("fn main() {{ {half} {half} }}")), None);
        let inside = format!("{half} else {{ {half} }}");
        assert!(too_deep(&format!("fn main() {{ {inside} }}")).is_some());
        assert!(too_deep(&"const a = b; ".repeat(1001)).is_some());
    }

    #[test]
    fn lists_and_statements_are_not() {
        let numbers = "1.5 * -a[i] + vec2<f32>(0.5, 1.5).x, ".repeat(2000);
        assert_eq!(
            too_deep(&body(&format!("array<f32, 2000>({numbers})"))),
            None
        );
        let statements =
            "x += a.x * (b + 1); if x < 2 && y > 3 { y = 1; } else { y = 2; } ".repeat(900);
        assert_eq!(too_deep(&format!("fn main() {{ {statements} }}")), None);
        let compared = "if vec2 < 4 && (mat4x4 < b) { y[array < 1] = 1; } ".repeat(900);
        assert_eq!(too_deep(&format!("fn main() {{ {compared} }}")), None);
        let named = "let matériau = 1; if matériau < 2 && vecπ < 3 {} ";
        assert_eq!(too_deep(&format!("fn main() {{ {named} }}")), None);
        let members = "@align(16) m: f32, ".repeat(600);
        assert_eq!(too_deep(&format!("struct Params {{ {members} }}")), None);
        let taps = "a[i] * 1.5 + ".repeat(200) + "b";
        assert_eq!(too_deep(&body(&taps)), None);
        assert_eq!(too_deep("/* + + */ } ) ]"), None);
    }

    /// What is long takes no longer than it is.
    #[test]
    fn any_text_is_read_once() {
        for symbol in [";", "{", "}", "(", "<", ">", "a ", "/**/", "1.5"] {
            for text in [symbol.repeat(60_000), symbol.repeat(30_000) + "word"] {
                too_deep(&text);
            }
        }
    }
}
