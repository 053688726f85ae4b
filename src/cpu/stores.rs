//! How results are written, and what is read asked for. A store reads the line of memory that it writes a part of, and keeps it in
//! the caches; a streaming store does neither. So results that no cache could keep until they are read go past the caches: two
//! thirds of the bytes move, and what is in the caches stays there.
#![allow(unsafe_code)]

use std::path::Path;
use std::sync::OnceLock;

/// Bytes of the last cache where the system does not tell.
const USUAL: usize = 32 << 20;
/// Where it tells of less the last one is hidden, as in some virtual machines.
/// (Unit tests have small ones, and go past the caches all the same.)
const SMALLEST: usize = if cfg!(test) { 4 << 10 } else { 8 << 20 };
/// Bytes of a result above which its lines, written in another order than they lie in, go past the caches however large
/// these are: docs/rejected.md has the figures of a cache of 480 MiB.
const SCATTERED: usize = 6 << 20;

/// Bytes of a line of memory.
pub(crate) const LINE: usize = 64;

/// The way of one result.
#[derive(Clone, Copy)]
pub(crate) enum Stores {
    /// As the processor has it.
    Plain,
    /// Past the caches.
    Streaming,
}

impl Stores {
    /// Where the processor has a way past its caches.
    const PAST_CACHES: Self = match cfg!(target_arch = "x86_64") {
        true => Self::Streaming,
        false => Self::Plain,
    };

    /// For a result of so many bytes: past the caches where it is larger than the largest one.
    pub(crate) fn of(bytes: usize) -> Self {
        // Of small ones nobody asks how large the caches are.
        match bytes > SMALLEST && bytes > largest_cache() {
            true => Self::PAST_CACHES,
            false => Self::Plain,
        }
    }

    /// For lines of a result of so many bytes that are written in another order than they lie in: a processor does not
    /// foresee which ones it has to read first.
    pub(crate) fn scattered(bytes: usize) -> Self {
        match bytes > SCATTERED {
            true => Self::PAST_CACHES,
            false => Self::of(bytes),
        }
    }

    pub(crate) fn are_streaming(self) -> bool {
        matches!(self, Self::Streaming)
    }

    /// Writes line by line, in any order.
    pub(crate) fn lines(self) -> Lines {
        let in_order = match self {
            Self::Plain => None,
            Self::Streaming => Some(InOrder),
        };
        Lines(in_order)
    }

    /// `fill(at, block)` writes all of `block`, which is `out` from the byte `at` on, and reads nothing of it: the whole of
    /// `out`, or block by block of at most `length` bytes, which stay in the nearest cache until they are stored.
    pub(crate) fn write(
        self,
        out: &mut [u8],
        length: usize,
        mut fill: impl FnMut(usize, &mut [u8]),
    ) {
        if matches!(self, Self::Plain) {
            return fill(0, out);
        }
        // Aligned for elements of every dtype.
        let length = length.clamp(1, out.len().max(1));
        let mut memory = vec![0u64; length.div_ceil(size_of::<u64>())];
        let block: &mut [u8] = bytemuck::cast_slice_mut(&mut memory);
        let _in_order = InOrder;
        for (at, out) in out.chunks_mut(length).enumerate() {
            let block = &mut block[..out.len()];
            fill(at * length, block);
            stream(out, block);
        }
    }
}

/// Lines of a result, seen by all once this is dropped.
pub(crate) struct Lines(Option<InOrder>);

impl Lines {
    /// Past the caches where `out` is a line of memory, not parts of two.
    #[inline(always)]
    pub(crate) fn write(&self, out: &mut [u8; LINE], from: &[u8; LINE]) {
        match self.0.is_some() && out.as_ptr().addr().is_multiple_of(LINE) {
            // SAFETY: at a multiple of 64.
            true => unsafe { stream_quarters(out, from) },
            false => *out = *from,
        }
    }
}

/// Bytes of the first processor's largest cache, as Linux tells it.
fn largest_cache() -> usize {
    static BYTES: OnceLock<usize> = OnceLock::new();
    *BYTES.get_or_init(|| {
        let caches = Path::new("/sys/devices/system/cpu/cpu0/cache");
        let told = (0..8).filter_map(|index| {
            let size = caches.join(format!("index{index}/size"));
            bytes_of(&std::fs::read_to_string(size).ok()?)
        });
        let largest = told.max().filter(|&bytes| bytes >= SMALLEST);
        match cfg!(test) {
            true => SMALLEST,
            false => largest.unwrap_or(USUAL),
        }
    })
}

/// `32768K`, `32M` or plain bytes.
fn bytes_of(size: &str) -> Option<usize> {
    let size = size.trim();
    let digits = size.trim_end_matches(['K', 'M', 'G']);
    let shift = match &size[digits.len()..] {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        _ => return None,
    };
    digits.parse::<usize>().ok()?.checked_mul(1 << shift)
}

/// Bytes from what is read to what is asked for, where it comes from memory.
pub(crate) const AHEAD: usize = 8192;

/// Asks for the lines of memory that come so many bytes after these elements', whether there are any or not: processors read
/// ahead by themselves, but not past the end of a page, and what is computed meanwhile keeps them from going there.
#[inline(always)]
pub(crate) fn read_ahead<T>(elements: &[T], ahead: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    for line in (0..size_of_val(elements)).step_by(LINE) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let start = elements.as_ptr().cast::<i8>();
        // SAFETY: every x86-64 has it; it is a hint, for which any address will do.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(ahead + line)) }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = (elements, ahead);
}

/// When it is dropped, streaming stores that came before it are seen by all: other stores do not wait for them.
struct InOrder;

impl Drop for InOrder {
    fn drop(&mut self) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: every x86-64 has it; it touches no memory.
        unsafe {
            std::arch::x86_64::_mm_sfence()
        };
    }
}

/// By vectors that every x86-64 has; elsewhere a copy.
///
/// # Safety
/// `line` is at a multiple of 64.
#[inline(always)]
unsafe fn stream_quarters(line: &mut [u8; LINE], from: &[u8; LINE]) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};

        let (line, from) = (line.as_mut_ptr().cast(), from.as_ptr().cast::<__m128i>());
        for quarter in 0..4 {
            // SAFETY: 64 bytes each, the line at a multiple of 64; every x86-64 has SSE2.
            unsafe {
                let line: *mut __m128i = line;
                _mm_stream_si128(line.add(quarter), _mm_loadu_si128(from.add(quarter)));
            }
        }
    }
    #[cfg(any(not(target_arch = "x86_64"), miri))]
    {
        *line = *from;
    }
}

/// Copies by streaming stores. Not for others to see before [`InOrder`].
fn stream(out: &mut [u8], from: &[u8]) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{__m256i, _mm256_loadu_si256, _mm256_stream_si256};

        /// Lines of 64 bytes, the first at a multiple of it.
        #[target_feature(enable = "avx")]
        fn by_halves(lines: &mut [[u8; LINE]], from: &[[u8; LINE]]) {
            for (line, from) in lines.iter_mut().zip(from) {
                let (line, from) = (line.as_mut_ptr().cast(), from.as_ptr().cast::<__m256i>());
                // SAFETY: 64 bytes each, the line at a multiple of 64.
                unsafe {
                    let halves = [_mm256_loadu_si256(from), _mm256_loadu_si256(from.add(1))];
                    let line: *mut __m256i = line;
                    _mm256_stream_si256(line, halves[0]);
                    _mm256_stream_si256(line.add(1), halves[1]);
                }
            }
        }

        let before = out.as_ptr().align_offset(LINE).min(out.len());
        let (head, rest) = out.split_at_mut(before);
        let (from_head, from_rest) = from.split_at(before);
        head.copy_from_slice(from_head);
        let (lines, tail) = rest.as_chunks_mut();
        let (from_lines, from_tail) = from_rest.as_chunks();
        match std::arch::is_x86_feature_detected!("avx") {
            // SAFETY: the processor has AVX.
            true => unsafe { by_halves(lines, from_lines) },
            false => {
                for (line, from) in lines.iter_mut().zip(from_lines) {
                    // SAFETY: lines are at multiples of 64.
                    unsafe { stream_quarters(line, from) };
                }
            }
        }
        tail.copy_from_slice(from_tail);
    }
    #[cfg(any(not(target_arch = "x86_64"), miri))]
    out.copy_from_slice(from);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every start and end within a line, lengths of blocks that divide nothing, and what lies beside.
    #[test]
    fn streaming_stores_write_what_plain_ones_do() {
        let mut memory = vec![0u8; 1000];
        for start in 0..130 {
            for (length, block) in [(0, 7), (1, 1), (63, 64), (64, 100), (65, 64), (500, 130)] {
                for stores in [Stores::Plain, Stores::Streaming] {
                    memory.fill(255);
                    let out = &mut memory[start..start + length];
                    stores.write(out, block, |at, block| {
                        for (at, out) in (at..).zip(block) {
                            *out = (at % 251) as u8;
                        }
                    });
                    let inside = |at: usize| at >= start && at < start + length;
                    for (at, &byte) in memory.iter().enumerate() {
                        let expected = if inside(at) { (at - start) % 251 } else { 255 };
                        assert_eq!(usize::from(byte), expected, "{start} {length} {block} {at}");
                    }
                }
            }
        }
    }

    /// Another thread sees all of it once it hears that the call is over.
    #[test]
    fn others_see_what_was_streamed() {
        use std::sync::mpsc::channel;

        const LENGTH: usize = if cfg!(miri) { 400 } else { 1 << 17 };
        let value = |at: usize, round: usize| ((at % 251) ^ round) as u8;
        let (give, taken) = channel::<Vec<u8>>();
        let (back, again) = channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for (round, out) in taken.iter().enumerate() {
                    let mut all = out.iter().enumerate();
                    assert!(all.all(|(at, &x)| x == value(at, round)));
                    if back.send(out).is_err() {
                        break;
                    }
                }
            });
            let mut out = vec![0; LENGTH];
            for round in 0..200 {
                Stores::Streaming.write(&mut out, 4000, |first, block| {
                    for (at, out) in (first..).zip(block) {
                        *out = value(at, round);
                    }
                });
                give.send(out).unwrap();
                out = again.recv().unwrap();
            }
            drop(give);
        });
    }

    #[test]
    fn sizes_of_caches_are_read() {
        let cases = [
            ("32768K\n", 32 << 20),
            ("1M", 1 << 20),
            ("2G", 2 << 30),
            ("512", 512),
        ];
        for (size, bytes) in cases {
            assert_eq!(bytes_of(size), Some(bytes), "{size}");
        }
        for size in [
            "",
            "K",
            "1KK",
            "x",
            "-1K",
            "99999999999999999999M",
            "99999999999999999G",
        ] {
            assert_eq!(bytes_of(size), None, "{size}");
        }
    }

    #[test]
    fn only_what_no_cache_holds_is_streamed() {
        assert!(!Stores::of(SMALLEST).are_streaming());
        for larger in [SMALLEST + 1, usize::MAX] {
            let are_streaming = Stores::of(larger).are_streaming();
            assert_eq!(are_streaming, cfg!(target_arch = "x86_64"));
        }
    }
}
