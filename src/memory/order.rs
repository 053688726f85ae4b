//! Sorting that is compiled once, whatever is sorted: `sort_by_key` compiles all of its sort for each caller.

/// Items that are put in order one by one.
const FEW: usize = 8;

/// Sorts by keys; those with equal ones stay as they are.
pub(crate) fn sort<T>(items: &mut [T], key: impl Fn(&T) -> (u64, u64)) {
    if items.len() <= FEW {
        for end in 1..items.len() {
            let mut at = end;
            while at > 0 && key(&items[at - 1]) > key(&items[at]) {
                items.swap(at - 1, at);
                at -= 1;
            }
        }
        return;
    }
    let mut keys = Vec::with_capacity(items.len());
    for (at, item) in items.iter().enumerate() {
        keys.push((key(item), at));
    }
    let mut from = places(keys);
    for first in 0..items.len() {
        // Round by round: each item goes where it belongs, the first one last.
        let mut at = first;
        while from[at] != first {
            let next = from[at];
            items.swap(at, next);
            from[at] = at;
            at = next;
        }
        from[at] = at;
    }
}

/// Where the items come from, in the order of their keys.
fn places(mut keys: Vec<((u64, u64), usize)>) -> Vec<usize> {
    keys.sort_unstable();
    keys.into_iter().map(|(_, at)| at).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sorts_as_the_standard_library_does() {
        let mut state = 1u64;
        // Miri takes half a minute for the thousand.
        let (few, many) = if cfg!(miri) { (20, 60) } else { (40, 1000) };
        for count in (0..few).chain([many]) {
            for keys in [1, 3, 1 << 20] {
                let mut items: Vec<(u64, String)> = (0..count)
                    .map(|at| {
                        state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
                        ((state >> 33) % keys, at.to_string())
                    })
                    .collect();
                let mut expected = items.clone();
                expected.sort_by_key(|&(key, _)| std::cmp::Reverse(key));
                sort(&mut items, |&(key, _)| (!key, 0));
                assert_eq!(items, expected);
                expected.sort_by_key(|(key, text)| (key % 2, text.len()));
                sort(&mut items, |(key, text)| (key % 2, text.len() as u64));
                assert_eq!(items, expected);
            }
        }
    }
}
