//! What memory is for: names that code puts around its allocations.

use std::cell::Cell;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

/// Runs `work` with `name` on every allocation of this thread, and gives what `work` gives.
///
/// Tags nest, joined by `/`: memory taken inside `tagged("encoder", ..)` and there inside
/// `tagged("layer3", ..)` is that of `encoder/layer3`. An empty name adds nothing. A tag ends with
/// its `work`, by a panic too; it is of this thread alone, so threads that `work` starts are
/// outside, and so is a future once it is polled later (what a download takes meanwhile has the tag
/// of its call). A block keeps its tag until it is freed.
///
/// Names are kept for good, so they are for parts of a program, not for numbers of steps: after
/// 65,534 of them new ones count as `(other)`.
///
/// ```
/// # use orlop::{DType, Device, Tensor};
/// # fn main() -> orlop::Result<()> {
/// let device = Device::builder().select("cpu").build()?;
/// let weights = orlop::tagged("encoder.layer3", || Tensor::zeros(&device, [256], DType::F32))?;
/// let by_tag = device.memory_by_tag();
/// assert_eq!(by_tag[0].tag.to_string(), "encoder.layer3");
/// assert_eq!(by_tag[0].requested_bytes.current, 1024);
/// # drop(weights);
/// # Ok(())
/// # }
/// ```
pub fn tagged<T>(name: &str, work: impl FnOnce() -> T) -> T {
    Tag::current().join(name).around(work)
}

/// A name for memory, from [`tagged`]: a number in a table of the process, cheap to copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag(u32);

thread_local! {
    static CURRENT: Cell<Tag> = const { Cell::new(Tag::NONE) };
}

/// Names beyond so many share [`Tag::OTHER`].
const MOST_NAMES: usize = 1 << 16;

/// The names in order of their numbers, and back.
struct Names {
    names: Vec<Arc<str>>,
    numbers: HashMap<Arc<str>, u32>,
}

fn names() -> MutexGuard<'static, Names> {
    static NAMES: LazyLock<Mutex<Names>> = LazyLock::new(|| {
        Mutex::new(Names {
            names: vec!["(untagged)".into(), "(other)".into()],
            numbers: HashMap::new(),
        })
    });
    NAMES.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Tag {
    /// Memory that was taken outside of any [`tagged`].
    pub const NONE: Tag = Tag(0);
    /// Memory under more names than are kept apart.
    const OTHER: Tag = Tag(1);

    /// The tag of a whole name, as [`tagged`] gives it to memory outside of other tags.
    pub fn named(name: &str) -> Tag {
        if name.is_empty() {
            return Tag::NONE;
        }
        let mut table = names();
        if let Some(&number) = table.numbers.get(name) {
            return Tag(number);
        }
        if table.names.len() >= MOST_NAMES {
            return Tag::OTHER;
        }
        let number = table.names.len() as u32;
        let name: Arc<str> = name.into();
        table.names.push(Arc::clone(&name));
        table.numbers.insert(name, number);
        Tag(number)
    }

    /// The innermost tag that is open on this thread.
    pub fn current() -> Tag {
        // A thread that is ending has none.
        CURRENT.try_with(Cell::get).unwrap_or(Tag::NONE)
    }

    /// Runs `work` with this tag in place of the thread's own.
    pub(crate) fn around<T>(self, work: impl FnOnce() -> T) -> T {
        /// Ends the tag, after a panic too.
        struct Restore(Tag);
        impl Drop for Restore {
            fn drop(&mut self) {
                let _ = CURRENT.try_with(|current| current.set(self.0));
            }
        }
        let _restore = Restore(Tag::current());
        let _ = CURRENT.try_with(|current| current.set(self));
        work()
    }

    /// Its whole name; `(untagged)` for [`Tag::NONE`].
    pub fn name(self) -> Arc<str> {
        let table = names();
        table
            .names
            .get(self.index())
            .map_or_else(|| "".into(), Arc::clone)
    }

    /// This tag with a name inside.
    fn join(self, name: &str) -> Tag {
        match (self, name) {
            (_, "") | (Tag::OTHER, _) => self,
            (Tag::NONE, _) => Tag::named(name),
            (outer, _) => Tag::named(&format!("{}/{name}", outer.name())),
        }
    }

    /// Its place in vectors by tag.
    pub(super) fn index(self) -> usize {
        self.0 as usize
    }

    pub(super) fn from_index(index: usize) -> Tag {
        Tag(index as u32)
    }
}

/// Its whole name.
impl fmt::Display for Tag {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(&self.name())
    }
}

/// What a pool is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Request {
    /// Bytes needed; 0 counts as 1.
    pub bytes: u64,
    /// What they are for.
    pub tag: Tag,
}

impl Request {
    /// So many bytes for something.
    pub fn new(bytes: u64, tag: Tag) -> Request {
        Request { bytes, tag }
    }

    /// So many bytes for what this thread's innermost [`tagged`] says.
    pub fn tagged(bytes: u64) -> Request {
        let tag = Tag::current();
        Request { bytes, tag }
    }
}

/// So many bytes without a tag.
impl From<u64> for Request {
    fn from(bytes: u64) -> Request {
        let tag = Tag::NONE;
        Request { bytes, tag }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_nest_and_end() {
        let name = || Tag::current().to_string();
        assert_eq!(Tag::current(), Tag::NONE);
        tagged("a", || {
            assert_eq!(name(), "a");
            tagged("b.c", || assert_eq!(name(), "a/b.c"));
            tagged("", || assert_eq!(name(), "a"));
            let panicked = std::panic::catch_unwind(|| tagged("d", || panic!("on purpose")));
            assert!(panicked.is_err());
            assert_eq!(name(), "a", "a panic ends its tag");
            let elsewhere = std::thread::spawn(Tag::current).join();
            assert_eq!(elsewhere.ok(), Some(Tag::NONE), "of this thread alone");
        });
        assert_eq!(Tag::current(), Tag::NONE);
        assert_eq!(name(), "(untagged)");
        assert_eq!(
            Tag::named("a/b.c"),
            tagged("a", || tagged("b.c", Tag::current))
        );
        assert_ne!(Tag::named("a"), Tag::named("b"));
        assert_eq!(Request::from(7).tag, Tag::NONE);
        tagged("e", || assert_eq!(Request::tagged(7).tag, Tag::named("e")));
    }
}
