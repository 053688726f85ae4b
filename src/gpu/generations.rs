//! What is kept while it is in use, up to a count.

use std::hash::Hash;

use rustc_hash::FxHashMap;

/// A bounded cache in two generations: what the older one has and nobody asked for since the
/// younger one began is dropped when that is full.
pub(super) struct Generations<K, V> {
    young: FxHashMap<K, V>,
    old: FxHashMap<K, V>,
    capacity: usize,
}

impl<K: Eq + Hash, V: Clone> Generations<K, V> {
    /// Keeps at most `2 * capacity` values.
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            young: FxHashMap::default(),
            old: FxHashMap::default(),
            capacity,
        }
    }

    pub(super) fn get(&mut self, key: &K) -> Option<V> {
        if let Some(value) = self.young.get(key) {
            return Some(value.clone());
        }
        let (key, value) = self.old.remove_entry(key)?;
        Some(self.insert(key, value))
    }

    /// The value that is there, if there is one, else this.
    pub(super) fn insert(&mut self, key: K, value: V) -> V {
        if self.young.len() >= self.capacity && !self.young.contains_key(&key) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.entry(key).or_insert(value).clone()
    }

    /// Forgets all that `stays` denies.
    pub(super) fn retain(&mut self, stays: impl Fn(&K) -> bool) {
        for generation in [&mut self.young, &mut self.old] {
            generation.retain(|key, _| stays(key));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_stays_and_no_more_than_is_allowed() {
        let mut cache = Generations::new(3);
        for at in 0..100 {
            assert_eq!(cache.insert(at, at), at);
            assert_eq!(cache.insert(at, -1), at);
            assert_eq!(cache.get(&0), Some(0), "asked for again and again");
            assert!(cache.young.len() <= 3 && cache.old.len() <= 3);
        }
        assert_eq!((cache.get(&99), cache.get(&50)), (Some(99), None));
        cache.retain(|key| *key != 99);
        assert_eq!(cache.get(&99), None);
        // Of the older ones too.
        let mut cache = Generations::new(1);
        cache.insert(1, 1);
        cache.insert(2, 2);
        cache.retain(|key| *key != 1);
        assert_eq!((cache.get(&1), cache.get(&2)), (None, Some(2)));
    }
}
