//! How large a module's constants are where they are written out: naga copies all of one into a function that names a part of it, and
//! each of its parts as often as it is named.

use std::collections::{HashMap, HashSet};

use super::rewrite::{is_part, tokens};

/// Most tokens: eight for each expression that a kernel may have.
const MOST: u64 = 1 << 20;

const TOO_LARGE: &str = "has constants of constants that are too large when written out, or named too often: a kernel has 1048576 tokens \
                         of them at most";

/// A constant of the module.
struct Constant<'s> {
    /// Where it is declared, in bytes.
    at: usize,
    tokens: u64,
    /// What it may name.
    names: Vec<&'s str>,
}

/// Where a source's constants are too large, in bytes, and what is wrong there.
pub(super) fn too_large(source: &str) -> Option<(usize, &'static str)> {
    let tokens: Vec<(usize, &str)> = tokens(source).collect();
    let mut constants: Vec<Constant<'_>> = Vec::new();
    let mut numbers: HashMap<&str, usize> = HashMap::new();
    // What may make arrays and structs.
    let mut constructors = vec!["array"];
    // Words of functions that may name constants; and the function's own constants.
    let mut elsewhere: Vec<usize> = Vec::new();
    let mut own: HashSet<&str> = HashSet::new();
    let (mut depth, mut is_inside) = (0usize, false);
    let token = |index: usize| tokens.get(index).map_or("", |&(_, token)| token);
    let mut index = 0;
    while index < tokens.len() {
        let (at, word) = tokens[index];
        match word {
            "{" => depth += 1,
            "}" => depth = depth.saturating_sub(1),
            ";" => is_inside = false,
            "struct" | "alias" if depth == 0 => constructors.push(token(index + 1)),
            "const" if depth == 0 => {
                // The name is no use of it.
                index += 1;
                numbers.insert(token(index), constants.len());
                constants.push(Constant {
                    at,
                    tokens: 0,
                    names: Vec::new(),
                });
                is_inside = true;
            }
            _ => {
                let is_name = word.starts_with(is_part) && (index == 0 || token(index - 1) != ".");
                match constants.last_mut().filter(|_| is_inside) {
                    Some(constant) => {
                        constant.tokens += 1;
                        constant.names.extend(is_name.then_some(word));
                    }
                    None if word == "const" => {
                        own.insert(token(index + 1));
                    }
                    None if is_name => elsewhere.push(index),
                    None => {}
                }
            }
        }
        index += 1;
    }
    let weights = match weights(&constants, &numbers, &constructors) {
        Ok(weights) => weights,
        Err(at) => return Some((at, TOO_LARGE)),
    };
    let mut all = 0u64;
    let declared = constants.iter().map(|constant| constant.at).zip(&weights);
    let named = elsewhere.into_iter().filter_map(|index| {
        let (at, name) = tokens[index];
        let weight = &weights[*numbers.get(name)?];
        // What a variable picks while the kernel runs is not copied.
        let pick = token(index + 2);
        let is_picked = token(index + 1) == "["
            && pick.starts_with(|c: char| is_part(c) && !c.is_ascii_digit())
            && !(numbers.contains_key(pick) || own.contains(pick))
            && !matches!(token(index + 3), "(" | "<");
        (!is_picked).then_some((at, weight))
    });
    for (at, &weight) in declared.chain(named) {
        all = all.saturating_add(weight);
        if all > MOST {
            return Some((at, TOO_LARGE));
        }
    }
    None
}

/// The tokens of each constant with those of all that it names, as often as it does; or where one has too many. Without a
/// constructor it is a number, or at most as large as the largest that it names.
fn weights(
    constants: &[Constant<'_>],
    numbers: &HashMap<&str, usize>,
    constructors: &[&str],
) -> Result<Vec<u64>, usize> {
    let mut weights = vec![0; constants.len()];
    let mut is_seen = vec![false; constants.len()];
    for first in 0..constants.len() {
        // What a constant names is weighed before it; naga refuses circles.
        let mut open = vec![(first, 0)];
        if std::mem::replace(&mut is_seen[first], true) {
            continue;
        }
        while let Some((number, next)) = open.last_mut() {
            let Constant { at, tokens, names } = &constants[*number];
            if let Some(name) = names.get(*next) {
                *next += 1;
                if let Some(&named) = numbers.get(name)
                    && !std::mem::replace(&mut is_seen[named], true)
                {
                    open.push((named, 0));
                }
                continue;
            }
            let named = names.iter().filter_map(|name| numbers.get(name));
            let named = named.map(|&named| weights[named]);
            let weight = match names.iter().any(|name| constructors.contains(name)) {
                true => named.fold(*tokens, u64::saturating_add),
                false => named.max().unwrap_or(0).max(16),
            };
            if weight > MOST {
                return Err(*at);
            }
            weights[*number] = weight;
            open.pop();
        }
    }
    Ok(weights)
}

#[cfg(test)]
mod tests {
    use super::too_large;

    /// Each is twice the one before it.
    fn doubled(count: usize, is_reversed: bool) -> String {
        let mut all: Vec<String> = (1..count)
            .map(|at| format!("const a{at} = array(a{0}, /* ; */ a{0});", at - 1))
            .collect();
        all.insert(0, "const a0: array<u32, 2> = array(1u, 1u);".to_owned());
        if is_reversed {
            all.reverse();
        }
        all.concat()
    }

    #[test]
    fn constants_are_written_out() {
        for is_reversed in [false, true] {
            assert!(too_large(&doubled(27, is_reversed)).is_some());
            // What a function calls as a constant is called hides nothing.
            let hidden: String = (0..25)
                .map(|at| format!("const a{at} = a{};", at + 1))
                .collect();
            let hidden = format!("{} fn f() {{ {hidden} }}", doubled(27, is_reversed));
            assert!(too_large(&hidden).is_some());
            let few = doubled(14, is_reversed);
            assert_eq!(
                too_large(&format!("{few} fn main() {{ out[0] = a9[0]; }}")),
                None
            );
            let looks = "const x = a13[0];".repeat(6);
            assert!(too_large(&format!("{few} fn main() {{ {looks} }}")).is_some());
            for pick in [
                "(0)",
                "N",
                "I",
                "u32(0)",
                "vec2<u32>(0u, 0u).x",
                "array<u32, 1>(0u)[0]",
            ] {
                let looks = format!("x += a13[{pick}];").repeat(6);
                let body = format!("const N = 0; {few} fn main() {{ const I = 0; {looks} }}");
                assert!(too_large(&body).is_some(), "{pick}");
            }
            let copies: String = (0..6).map(|at| format!("const b{at} = a13;")).collect();
            assert!(too_large(&format!("{few} {copies}")).is_some());
        }
        let structs = "struct S { a: u32, b: u32 } const s0 = S(1, 1);".to_owned();
        assert!(too_large(&(structs + "const s1 = S(s0, s0);")).is_none());
    }

    #[test]
    fn what_is_small_may_be_named_often() {
        // A table that is looked into while the kernel runs, and members that are called as it is.
        let table = format!("const t = array({});", "1.5, ".repeat(8000));
        let looks = format!(
            "{table} fn main() {{ {} }}",
            "x += t[i] + v.t;".repeat(2000)
        );
        assert_eq!(too_large(&looks), None);
        let looks = format!("{table} fn main() {{ {} }}", "x += t[0];".repeat(100));
        assert!(too_large(&looks).is_some());
        // Numbers of numbers.
        let pairs: String = (1..60)
            .map(|at| {
                let before = at - 1;
                format!(
                    "const c{at} = c{before} * c0 - s{before} * s0; \
                     const s{at} = s{before} * c0 + c{before} * s0;"
                )
            })
            .collect();
        let pairs = format!("const c0 = 0.5; const s0 = 0.8; {pairs}");
        assert_eq!(
            too_large(&format!(
                "{pairs} fn main() {{ x = {}; }}",
                "c59 + ".repeat(900)
            )),
            None
        );
        let block =
            "{ const r = 4u; const q = r + r; const p = q * q; const o = p + p; out[o] = 0; }";
        assert_eq!(
            too_large(&format!("fn main() {{ {} }}", block.repeat(60))),
            None
        );
        assert_eq!(
            too_large("const a = b; const b = a; fn main() { a(); }"),
            None
        );
        assert_eq!(too_large("const"), None);
        assert_eq!(too_large("const a = 1"), None);
    }
}
