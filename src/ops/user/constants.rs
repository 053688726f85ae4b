//! How large constants are where they are written out: naga copies all of one into a function that names a part of it, and each
//! of its parts as often as it is named; of a table without a type (`array(0.5, 1.5)`) it makes one with a type wherever a variable picks from it.

use std::collections::HashMap;

use super::rewrite::{is_part, tokens};

/// Most tokens: eight for each expression that a kernel may have.
const MOST: u64 = 1 << 20;

const TOO_LARGE: &str = "has constants of constants that are too large when written out, or named too often: a kernel has 1048576 tokens \
                         of them at most; an array of a type (`array<f32, 64>(..)`) is not written out where a variable picks from it";

/// A constant of the module.
struct Constant<'s> {
    /// Where it is declared, in bytes.
    at: usize,
    tokens: u64,
    /// What it may name.
    names: Vec<&'s str>,
    is_typed: bool,
}

/// A constant of a function, from its declaration to the end of its block: what is in it, or its weight once it is declared.
struct Own<'s> {
    depth: usize,
    name: &'s str,
    is_typed: bool,
    tokens: u64,
    sum: u64,
    largest: u64,
    makes: bool,
}

impl Own<'_> {
    fn weight(&self) -> u64 {
        weight(self.tokens, self.makes, self.sum, self.largest)
    }
}

/// Without a constructor it is a number, or at most as large as the largest that it names.
fn weight(tokens: u64, makes: bool, sum: u64, largest: u64) -> u64 {
    match makes {
        true => tokens.saturating_add(sum),
        false => largest.max(16),
    }
}

/// Where a source's constants are too large, in bytes, and what is wrong there.
pub(super) fn too_large(source: &str) -> Option<(usize, &'static str)> {
    let tokens: Vec<(usize, &str)> = tokens(source).collect();
    let token = |index: usize| tokens.get(index).map_or("", |&(_, token)| token);
    let is_name =
        |index: usize| token(index).starts_with(is_part) && (index == 0 || token(index - 1) != ".");
    // What may make arrays and structs.
    let mut constructors = vec!["array"];
    for index in 0..tokens.len() {
        if matches!(token(index), "struct" | "alias") {
            constructors.push(token(index + 1));
        }
    }
    // Of a type that no use makes another one, from the constant's name on: else naga makes one of each use.
    let is_typed = |index: usize| match (token(index + 1), token(index + 2)) {
        (":", _) => true,
        ("=", "array") => token(index + 3) == "<",
        ("=", word) => constructors.contains(&word),
        _ => false,
    };
    let mut constants: Vec<Constant<'_>> = Vec::new();
    let mut numbers: HashMap<&str, usize> = HashMap::new();
    let (mut depth, mut is_inside, mut index) = (0usize, false, 0);
    while index < tokens.len() {
        match token(index) {
            "{" => depth += 1,
            "}" => depth = depth.saturating_sub(1),
            ";" => is_inside = false,
            "const" if depth == 0 => {
                // The name is no use of it.
                index += 1;
                numbers.insert(token(index), constants.len());
                constants.push(Constant {
                    at: tokens[index - 1].0,
                    tokens: 0,
                    names: Vec::new(),
                    is_typed: is_typed(index),
                });
                is_inside = true;
            }
            word if is_inside => {
                if let Some(constant) = constants.last_mut() {
                    constant.tokens += 1;
                    constant.names.extend(is_name(index).then_some(word));
                }
            }
            _ => {}
        }
        index += 1;
    }
    let weights = match weights(&constants, &numbers, &constructors) {
        Ok(weights) => weights,
        Err(at) => return Some((at, TOO_LARGE)),
    };
    let mut all = 0u64;
    let mut is_above = |weight: u64| {
        all = all.saturating_add(weight);
        all > MOST
    };
    for (constant, &weight) in constants.iter().zip(&weights) {
        if is_above(weight) {
            return Some((constant.at, TOO_LARGE));
        }
    }
    // What functions declare, the latest of a name first, and what they name.
    let mut own: Vec<Own<'_>> = Vec::new();
    let mut open: Option<Own<'_>> = None;
    let (mut depth, mut is_of_module, mut index) = (0usize, false, 0);
    while index < tokens.len() {
        let (at, word) = tokens[index];
        match word {
            "{" => depth += 1,
            "}" => {
                depth = depth.saturating_sub(1);
                while own.pop_if(|own| own.depth > depth).is_some() {}
            }
            ";" => {
                is_of_module = false;
                if let Some(declared) = open.take() {
                    if is_above(declared.weight()) {
                        return Some((at, TOO_LARGE));
                    }
                    own.push(declared);
                }
            }
            "const" => {
                index += 1;
                is_of_module = depth == 0;
                open = (!is_of_module).then(|| Own {
                    depth,
                    name: token(index),
                    is_typed: is_typed(index),
                    tokens: 0,
                    sum: 0,
                    largest: 0,
                    makes: false,
                });
            }
            _ if is_of_module => {}
            _ => {
                let declared = own.iter().rev().find(|own| own.name == word);
                let named = match (declared, numbers.get(word)) {
                    _ if !is_name(index) => None,
                    (Some(own), _) => Some((own.weight(), own.is_typed)),
                    (None, Some(&number)) => Some((weights[number], constants[number].is_typed)),
                    (None, None) => None,
                };
                // What a variable picks while the kernel runs is not copied.
                let pick = token(index + 2);
                let is_constant = numbers.contains_key(pick)
                    || own.iter().any(|own| own.name == pick)
                    || matches!(token(index + 3), "(" | "<");
                let is_picked = token(index + 1) == "["
                    && pick.starts_with(|c: char| is_part(c) && !c.is_ascii_digit())
                    && !is_constant;
                match (&mut open, named) {
                    (Some(open), named) => {
                        let weight = named.map_or(0, |(weight, _)| weight);
                        open.tokens += 1;
                        open.sum = open.sum.saturating_add(weight);
                        open.largest = open.largest.max(weight);
                        open.makes |= is_name(index) && constructors.contains(&word);
                    }
                    (None, Some((weight, is_typed))) => {
                        if !(is_picked && is_typed) && is_above(weight) {
                            return Some((at, TOO_LARGE));
                        }
                    }
                    (None, None) => {}
                }
            }
        }
        index += 1;
    }
    None
}

/// The tokens of each constant with those of all that it names, as often as it does; or where one has too many.
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
            let Constant {
                at, tokens, names, ..
            } = &constants[*number];
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
            let (sum, largest) = named.fold((0u64, 0u64), |(sum, largest), weight| {
                (sum.saturating_add(weight), largest.max(weight))
            });
            let makes = names.iter().any(|name| constructors.contains(name));
            let weight = weight(*tokens, makes, sum, largest);
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
        // Those of a function, also such of one name in blocks in each other.
        let few = doubled(14, false);
        assert_eq!(too_large(&format!("fn main() {{ {few} x = a9; }}")), None);
        let many = doubled(27, false);
        assert!(too_large(&format!("fn main() {{ {many} x = a26; }}")).is_some());
        let blocks = "{ const a = array(a, a);".repeat(27);
        let hidden = format!(
            "const a = 1u; fn main() {{ {blocks} x = a; {} }}",
            "}".repeat(27)
        );
        assert!(too_large(&hidden).is_some());
        let structs = "struct S { a: u32, b: u32 } const s0 = S(1, 1);".to_owned();
        assert!(too_large(&(structs + "const s1 = S(s0, s0);")).is_none());
    }

    #[test]
    fn what_is_small_may_be_named_often() {
        // A table that is looked into while the kernel runs, and members that are called as it is.
        let table = format!("const t = array<f32, 8000>({});", "1.5, ".repeat(8000));
        let many = "x += t[i] + v.t;".repeat(2000);
        let looks = format!("{table} fn main() {{ {many} }}");
        assert_eq!(too_large(&looks), None);
        let looks = format!("fn main() {{ {table} {many} }}");
        assert_eq!(too_large(&looks), None);
        // Of no type yet, it is made one of each time.
        let without = table.replace("<f32, 8000>", "");
        assert!(too_large(&format!("{without} fn main() {{ {many} }}")).is_some());
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
