//! How large a kernel's constants are where they are named: naga copies all of a module's constant into the function that names it,
//! and each of its parts as often as it is named.

use std::collections::HashMap;

use super::rewrite::{is_part, skip_blank};

/// Most tokens: eight for each expression that a kernel may have.
const MOST: u64 = 1 << 20;

const TOO_LARGE: &str = "has constants of constants that are too large when written out, or named too often: a kernel has 1048576 tokens \
                         of them at most";

/// A declaration: tokens of its own, and what it names, by place in the text.
struct Constant<'s> {
    at: usize,
    tokens: u64,
    names: Vec<&'s str>,
}

/// Where a source's constants are too large, in bytes, and what is wrong there. Those of several functions are taken for one where
/// they have one name.
pub(super) fn too_large(source: &str) -> Option<(usize, &'static str)> {
    let mut constants: Vec<Constant<'_>> = Vec::new();
    let mut numbers: HashMap<&str, usize> = HashMap::new();
    // Named outside of constants.
    let mut elsewhere: Vec<(usize, &str)> = Vec::new();
    let (mut inside, mut is_declared) = (None, false);
    let mut at = skip_blank(source, 0);
    while let Some(next) = source[at..].chars().next() {
        let start = at;
        let length = match is_part(next) {
            true => source[at..].find(|c| !is_part(c)),
            false => Some(next.len_utf8()),
        };
        at = length.map_or(source.len(), |length| at + length);
        let token = &source[start..at];
        match inside {
            _ if is_declared => {
                let number = *numbers.entry(token).or_insert(constants.len());
                if number == constants.len() {
                    constants.push(Constant {
                        at: start,
                        tokens: 0,
                        names: Vec::new(),
                    });
                }
                (inside, is_declared) = (Some(number), false);
            }
            _ if token == "const" => is_declared = true,
            Some(_) if token == ";" => inside = None,
            Some(number) => {
                let constant: &mut Constant<'_> = &mut constants[number];
                constant.tokens += 1;
                if is_part(next) {
                    constant.names.push(token);
                }
            }
            None if is_part(next) => elsewhere.push((start, token)),
            None => {}
        }
        at = skip_blank(source, at);
    }
    let weights = match weights(&constants, &numbers) {
        Ok(weights) => weights,
        Err(at) => return Some((at, TOO_LARGE)),
    };
    let mut all = 0u64;
    for (at, name) in elsewhere {
        all = all.saturating_add(numbers.get(name).map_or(0, |&number| weights[number]));
        if all > MOST {
            return Some((at, TOO_LARGE));
        }
    }
    None
}

/// The tokens of each constant with those of all that it names, as often as it does; or where one has too many.
fn weights(constants: &[Constant<'_>], numbers: &HashMap<&str, usize>) -> Result<Vec<u64>, usize> {
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
            let weight = named.fold(*tokens, |all, &named| all.saturating_add(weights[named]));
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
        let main = "fn main() { out[0] = a15[0][1] + a15[1][0]; }";
        for is_reversed in [false, true] {
            assert!(too_large(&doubled(27, is_reversed)).is_some());
            assert_eq!(too_large(&doubled(10, is_reversed)), None);
            let few = doubled(16, is_reversed);
            assert_eq!(
                too_large(&format!("{few} fn main() {{ out[0] = a9[0]; }}")),
                None
            );
            let text = format!("{few} {main}");
            assert!(too_large(&text).is_some_and(|(at, _)| at > few.len() || is_reversed));
        }
        // A table that is often looked into.
        let table = format!("const t = array({});", "1.5, ".repeat(8000));
        let looks = format!("{table} fn main() {{ {} }}", "x += t[i];".repeat(30));
        assert_eq!(too_large(&looks), None);
        let looks = format!("{table} fn main() {{ {} }}", "x += t[i];".repeat(100));
        assert!(too_large(&looks).is_some());
        assert_eq!(
            too_large("const a = b; const b = a; fn main() { a(); }"),
            None
        );
        assert_eq!(too_large("const"), None);
        assert_eq!(too_large("const a = 1"), None);
    }
}
