//! Products row by row, as vectors: where `gemm` does not run.

use std::panic::{UnwindSafe, catch_unwind};
use std::sync::LazyLock;

use gemm_common::cache::{CACHE_INFO, kernel_params};

use super::GemmElement;
use crate::cpu::matrix::{Matrix, Size};
use crate::cpu::vectors::times_vector;

/// Terms of `gemm`'s tiles at least, and of the rows that are copied here at a time.
const TERMS: usize = 512;

/// Whether `gemm` runs on this machine. It takes its tiles from what the system says of caches: it panics at a fourth level, and where
/// the second one is too small for a tile it panics or does not end (`gemm-common` 0.19, `cache.rs` and `gemm.rs`); it
/// panics where its kernel lacks instructions, too.
pub(super) fn has_gemm<T>() -> bool {
    static HAS: LazyLock<[bool; 2]> = LazyLock::new(|| [4, 8].map(|size| is_sound(|| fits(size))));
    HAS[usize::from(size_of::<T>() == 8)]
}

fn is_sound(probe: impl FnOnce() -> bool + UnwindSafe) -> bool {
    catch_unwind(probe).unwrap_or(false)
}

/// Whether its kernel is there, and its tiles fit, of elements of 4 or 8 bytes.
fn fits(size: usize) -> bool {
    #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
    let (has_512_bits, has_fma) = (
        is_x86_feature_detected!("avx512f"),
        is_x86_feature_detected!("fma"),
    );
    // One feature chooses its kernel, which panics where others that it needs are missing (`gemm-common` 0.19, `gemm.rs`).
    #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
    let has_rest = match (has_512_bits, has_fma) {
        (true, _) => gemm_common::simd::V4::try_new().is_some(),
        (_, true) => gemm_common::simd::V3::try_new().is_some(),
        _ => true,
    };
    #[cfg(not(any(target_arch = "x86", target_arch = "x86_64")))]
    let (has_512_bits, has_fma, has_rest) = (false, false, true);
    // Bytes of a column of its largest tile, and columns (`gemm-f32` and `gemm-f64` 0.19, `microkernel.rs`).
    let (column, columns) = match (has_512_bits, has_fma) {
        (true, _) => (256, 6),
        (_, true) => (64, 6),
        _ if cfg!(target_arch = "aarch64") => (64, 4),
        _ if cfg!(target_arch = "wasm32") => (48, 4),
        _ => (2 * size, 4),
    };
    // Its longest terms are a power of two.
    let large = 1 << 14;
    let tile = kernel_params(large, large, large, column / size, columns, size);
    let second = CACHE_INFO[1].cache_bytes;
    has_rest && second >= TERMS * column && tile.mc > 0 && tile.kc * tile.mc * size <= second
}

/// Hands the rows of a product to `store`, with their index: rows of `a` times `b`, of some terms after the others; the first
/// ones come first, then what is to be added.
pub(super) fn multiply<T: GemmElement>(
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    Size { m, k, n }: Size,
    mut store: impl FnMut(usize, &[T], bool),
) {
    let mut sums = vec![T::ZERO; n];
    // Without neighbours in rows or columns it is copies that have them.
    let is_copied = b.row != 1 && b.column != 1;
    let each = if is_copied { TERMS } else { k.max(1) };
    let mut rows = Vec::new();
    for first in (0..k).step_by(each) {
        let terms = each.min(k - first);
        let mut part = b.from(first, 0);
        if is_copied {
            rows.clear();
            for term in 0..terms {
                let row = part.from(term, 0).elements;
                rows.extend((0..n).map(|column| row[column * part.column as usize]));
            }
            part = Matrix {
                elements: &rows,
                row: n as isize,
                column: 1,
            };
        }
        for row in 0..m {
            let vector = (a.from(row, first).elements, a.column);
            times_vector(&mut sums, part.turned(), vector, [n, terms], false);
            store(row, &sums, first > 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_panics_is_not_there() {
        assert!(is_sound(|| true));
        assert!(!is_sound(|| false));
        assert!(!is_sound(|| panic!("four levels")));
    }
}
