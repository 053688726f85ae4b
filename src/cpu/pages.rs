//! Large pages for large memory: one entry in the processor's tables for 2 MiB instead of 512, one visit of the system
//! for its first use, and reads ahead that do not end with a page of 4 KiB.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;

/// Bytes of a large page on x86-64, and on AArch64 with small ones of 4 KiB.
pub(crate) const LARGE: usize = 2 << 20;

/// Asks the system for large pages where whole ones lie in `memory`; they come, if they come, when it is first written.
/// On Linux this is what `/sys/kernel/mm/transparent_hugepage/enabled` calls `madvise`; nothing is asked elsewhere, nor
/// where large pages are so large that little memory would take much.
pub(crate) fn prefer_large<T>(memory: &mut [MaybeUninit<T>]) {
    #[cfg(all(target_os = "linux", not(miri)))]
    {
        let start = memory.as_mut_ptr() as usize;
        let first = start.next_multiple_of(LARGE);
        let end = (start + size_of_val(memory)) / LARGE * LARGE;
        if first < end && are_small() {
            let address = std::ptr::with_exposed_provenance_mut(first);
            // SAFETY: inside of the memory; the advice changes no byte of it. Refused where there are no such pages.
            unsafe { libc::madvise(address, end - first, libc::MADV_HUGEPAGE) };
        }
    }
    #[cfg(any(not(target_os = "linux"), miri))]
    let _ = memory;
}

/// Whether large pages are no larger than 32 MiB: with small ones of 64 KiB those of AArch64 have 512 MiB.
#[cfg(all(target_os = "linux", not(miri)))]
fn are_small() -> bool {
    const MOST: usize = 32 << 20;
    static ARE: std::sync::LazyLock<bool> = std::sync::LazyLock::new(|| {
        let size = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size");
        let size = size.ok().and_then(|size| size.trim().parse::<usize>().ok());
        size.map_or(cfg!(target_arch = "x86_64"), |size| size <= MOST)
    });
    *ARE
}
