//! Loops over floats in the processor's vectors, for what the `gemm` crates are slow at: matrix
//! times vector, and products too small to pack. On the caller's thread.

use pulp::{Arch, Simd, WithSimd};

/// Loops that the compiler turns into vectors. `run` and what it calls have to be inlined always: closures
/// that are not stay what any processor can do. `FUSED`: the processor multiplies and adds in one instruction,
/// in vectors that pay; without it loops may go one by one, so that they compile faster.
pub(crate) trait Loops {
    /// Whether they compute so much that vectors of 512 bits pay.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    const WIDEST: bool = false;

    fn run<const FUSED: bool>(self);
}

impl<F: FnOnce()> Loops for F {
    #[inline(always)]
    fn run<const FUSED: bool>(self) {
        self();
    }
}

/// [`Loops::WIDEST`] ones of a closure.
pub(super) struct Widest<F>(pub F);

impl<F: FnOnce()> Loops for Widest<F> {
    const WIDEST: bool = true;

    #[inline(always)]
    fn run<const FUSED: bool>(self) {
        self.0();
    }
}

/// Runs loops compiled for vectors of 256 bits where the processor has them: loops that wait for memory gain
/// nothing from wider ones, and each width compiles them once more. Never inlined: that would, too.
#[inline(never)]
pub(crate) fn vectorised<L: Loops>(loops: L) {
    #[cfg(target_arch = "x86_64")]
    {
        struct Wide<L>(L);

        impl<L: Loops> WithSimd for Wide<L> {
            type Output = ();

            #[inline(always)]
            fn with_simd<S: Simd>(self, _: S) {
                self.0.run::<true>();
            }
        }

        if L::WIDEST
            && let Some(simd) = pulp::x86::V4::try_new()
        {
            return Simd::vectorize(simd, Wide(loops));
        }
        if let Some(simd) = pulp::x86::V3::try_new() {
            return Simd::vectorize(simd, Wide(loops));
        }
    }
    loops.run::<{ cfg!(target_arch = "aarch64") }>();
}

/// Whether the processor has vectors that the loops here use.
pub(super) fn has_vectors() -> bool {
    vector_bytes() > size_of::<f32>()
}

/// Bytes of its vectors of floats.
pub(super) fn vector_bytes() -> usize {
    struct Lanes;

    impl WithSimd for Lanes {
        type Output = usize;

        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) -> usize {
            S::F32_LANES
        }
    }

    Arch::new().dispatch(Lanes) * size_of::<f32>()
}

/// A float type with its loops.
pub(crate) trait Floats: Copy + std::ops::AddAssign + Send + Sync + 'static {
    const ZERO: Self;

    /// `y[i] = sum_j matrix[i * stride + j] * x[j]`: rows of neighbours.
    fn rows_times(matrix: &[Self], stride: usize, x: &[Self], y: &mut [Self]);

    /// `y[i] = sum_j matrix[i + j * stride] * x[j]`: columns of neighbours.
    fn columns_times(matrix: &[Self], stride: usize, x: &[Self], y: &mut [Self]);

    /// `c = a x b`.
    fn small(product: Small<'_, Self>);
}

/// A product straight from its operands: `c` row-major without gaps, `b` with rows of neighbours,
/// `a` with rows or columns of them.
pub(crate) struct Small<'a, T> {
    pub c: &'a mut [T],
    pub a: &'a [T],
    pub a_row: usize,
    pub a_column: usize,
    pub b: &'a [T],
    pub b_row: usize,
    pub m: usize,
    pub k: usize,
    pub n: usize,
}

/// Rows that one pass over `x` takes.
pub(super) const ROWS: usize = 4;
/// Bytes of rows up to which they are taken one by one where so many bytes of them come from memory: beside each other they are as
/// many streams, which end before the processor reads them ahead.
const SHORT: usize = 16 << 10;
const MUCH: usize = 256 << 10;
/// Sums of a row that go on side by side.
const SUMS: usize = 4;
/// Columns that one pass over `y` takes.
const COLUMNS: usize = 8;

macro_rules! floats {
    (
        $module:ident, $float:ty, $vector:ident, $lanes:ident, $splat:ident, $mul_add:ident,
        $add:ident, $reduce:ident, $load:ident, $store:ident, $of:ident, $of_mut:ident
    ) => {
        mod $module {
            use super::*;

            impl Floats for $float {
                const ZERO: Self = 0.0;

                fn rows_times(matrix: &[$float], stride: usize, x: &[$float], y: &mut [$float]) {
                    Arch::new().dispatch(Rows(matrix, stride, x, y));
                }

                fn columns_times(matrix: &[$float], stride: usize, x: &[$float], y: &mut [$float]) {
                    Arch::new().dispatch(Columns(matrix, stride, x, y));
                }

                fn small(product: Small<'_, $float>) {
                    Arch::new().dispatch(product);
                }
            }

            struct Rows<'a>(&'a [$float], usize, &'a [$float], &'a mut [$float]);

            impl WithSimd for Rows<'_> {
                type Output = ();

                #[inline(always)]
                fn with_simd<S: Simd>(self, simd: S) {
                    let Rows(matrix, stride, x, y) = self;
                    let row_bytes = size_of_val(x);
                    let are_apart = row_bytes <= SHORT && y.len() * row_bytes >= MUCH;
                    let whole = if are_apart { 0 } else { y.len() / ROWS * ROWS };
                    for row in (0..whole).step_by(ROWS) {
                        let y = &mut y[row..row + ROWS];
                        dots::<S, ROWS>(simd, &matrix[row * stride..], stride, x, y);
                    }
                    for row in whole..y.len() {
                        let y = &mut y[row..row + 1];
                        dots::<S, 1>(simd, &matrix[row * stride..], stride, x, y);
                    }
                }
            }

            #[inline(always)]
            fn dots<S: Simd, const R: usize>(
                simd: S,
                matrix: &[$float],
                stride: usize,
                x: &[$float],
                y: &mut [$float],
            ) {
                let (body, tail) = S::$of(x);
                let rows: [&[$float]; R] =
                    std::array::from_fn(|row| &matrix[row * stride..][..x.len()]);
                let bodies: [&[S::$vector]; R] =
                    std::array::from_fn(|row| &S::$of(rows[row]).0[..body.len()]);
                let mut sums = [[simd.$splat(0.0); SUMS]; R];
                let whole = body.len() / SUMS * SUMS;
                for at in (0..whole).step_by(SUMS) {
                    for sum in 0..SUMS {
                        for row in 0..R {
                            let (a, x) = (bodies[row][at + sum], body[at + sum]);
                            sums[row][sum] = simd.$mul_add(a, x, sums[row][sum]);
                        }
                    }
                }
                for at in whole..body.len() {
                    for row in 0..R {
                        sums[row][0] = simd.$mul_add(bodies[row][at], body[at], sums[row][0]);
                    }
                }
                let x_tail = simd.$load(tail);
                for row in 0..R {
                    let [mut first, second, third, fourth] = sums[row];
                    if !tail.is_empty() {
                        let a = simd.$load(&rows[row][x.len() - tail.len()..]);
                        first = simd.$mul_add(a, x_tail, first);
                    }
                    let sum = simd.$add(simd.$add(first, second), simd.$add(third, fourth));
                    y[row] = simd.$reduce(sum);
                }
            }

            struct Columns<'a>(&'a [$float], usize, &'a [$float], &'a mut [$float]);

            impl WithSimd for Columns<'_> {
                type Output = ();

                #[inline(always)]
                fn with_simd<S: Simd>(self, simd: S) {
                    let Columns(matrix, stride, x, y) = self;
                    y.fill(0.0);
                    let whole = x.len() / COLUMNS * COLUMNS;
                    for column in (0..whole).step_by(COLUMNS) {
                        let x = &x[column..column + COLUMNS];
                        add::<S, COLUMNS>(simd, &matrix[column * stride..], stride, x, y);
                    }
                    for column in whole..x.len() {
                        let x = &x[column..column + 1];
                        add::<S, 1>(simd, &matrix[column * stride..], stride, x, y);
                    }
                }
            }

            #[inline(always)]
            fn add<S: Simd, const C: usize>(
                simd: S,
                matrix: &[$float],
                stride: usize,
                x: &[$float],
                y: &mut [$float],
            ) {
                let rows = y.len();
                let columns: [&[$float]; C] =
                    std::array::from_fn(|column| &matrix[column * stride..][..rows]);
                let factors: [S::$vector; C] = std::array::from_fn(|column| simd.$splat(x[column]));
                let (body, tail) = S::$of_mut(y);
                let bodies: [&[S::$vector]; C] =
                    std::array::from_fn(|column| &S::$of(columns[column]).0[..body.len()]);
                for (at, sum) in body.iter_mut().enumerate() {
                    for column in 0..C {
                        *sum = simd.$mul_add(bodies[column][at], factors[column], *sum);
                    }
                }
                if !tail.is_empty() {
                    let mut sum = simd.$load(tail);
                    for column in 0..C {
                        let a = simd.$load(&columns[column][rows - tail.len()..]);
                        sum = simd.$mul_add(a, factors[column], sum);
                    }
                    simd.$store(tail, sum);
                }
            }

            impl WithSimd for Small<'_, $float> {
                type Output = ();

                #[inline(always)]
                fn with_simd<S: Simd>(mut self, simd: S) {
                    let (lanes, n) = (S::$lanes, self.n);
                    if n < lanes {
                        return rows::<S, 1, true>(&mut self, simd, 0);
                    }
                    let most = if S::REGISTER_COUNT < 32 { 2 } else { 4 };
                    let (mut column, mut left) = (0, n.div_ceil(lanes));
                    while left > 0 {
                        // Three and two rather than four and one.
                        let vectors = match left {
                            5 if most == 4 => 3,
                            _ => most.min(left),
                        };
                        match vectors {
                            4 if most == 4 => rows::<S, 4, false>(&mut self, simd, column),
                            3 if most == 4 => rows::<S, 3, false>(&mut self, simd, column),
                            2 => rows::<S, 2, false>(&mut self, simd, column),
                            _ => rows::<S, 1, false>(&mut self, simd, n - lanes),
                        }
                        (column, left) = (column + vectors * lanes, left - vectors);
                    }
                }
            }

            /// All rows of `V` vectors of columns, of which the last one ends with the matrix where that has no more, and takes
            /// columns that were there already; or of a part of one. Sums have half of the registers for vectors, or three
            /// quarters where vectors are few beside rows: `a` and the vectors of `b` need some as well.
            #[inline(always)]
            fn rows<S: Simd, const V: usize, const PART: bool>(
                product: &mut Small<'_, $float>,
                simd: S,
                column: usize,
            ) {
                if S::REGISTER_COUNT < 32 || V > 2 {
                    blocks::<S, 6, V, PART>(product, simd, column);
                } else {
                    blocks::<S, 8, V, PART>(product, simd, column);
                }
            }

            /// Blocks of `R` rows, and of four where those leave fewer; the last one takes rows that were there already.
            #[inline(always)]
            fn blocks<S: Simd, const R: usize, const V: usize, const PART: bool>(
                product: &mut Small<'_, $float>,
                simd: S,
                column: usize,
            ) {
                let m = product.m;
                let mut row = 0;
                while row < m {
                    let left = m - row;
                    let leaves_few = left > R && matches!(left % R, 1 | 2);
                    match left {
                        5.. if m >= R && !leaves_few => {
                            block::<S, R, V, PART>(product, simd, row.min(m - R), column);
                            row += R;
                        }
                        3.. if m >= 4 => {
                            block::<S, 4, V, PART>(product, simd, row.min(m - 4), column);
                            row += 4;
                        }
                        2.. => {
                            block::<S, 2, V, PART>(product, simd, row, column);
                            row += 2;
                        }
                        _ => {
                            block::<S, 1, V, PART>(product, simd, row, column);
                            row += 1;
                        }
                    }
                }
            }

            /// A row's vectors of `b`.
            #[inline(always)]
            fn vectors<S: Simd, const V: usize, const PART: bool>(
                simd: S,
                line: &[$float],
                before: usize,
                last: usize,
            ) -> [S::$vector; V] {
                if PART {
                    return [simd.$load(line); V];
                }
                let (before, last) = (S::$of(&line[..before]).0, S::$of(&line[last..]).0);
                std::array::from_fn(|vector| match vector + 1 < V {
                    true => before[vector],
                    false => last[0],
                })
            }

            #[inline(always)]
            fn block<S: Simd, const R: usize, const V: usize, const PART: bool>(
                product: &mut Small<'_, $float>,
                simd: S,
                row: usize,
                column: usize,
            ) {
                let width = (V * S::$lanes).min(product.n - column);
                // Where the last vector starts, and all before it end.
                let before = (V - 1) * S::$lanes;
                let last = if PART { 0 } else { width - S::$lanes };
                let mut sums = [[simd.$splat(0.0); V]; R];
                let (mut at, mut from) = (row, column);
                // Checked once a row, or once a term: not for each element. One loop in another's function is no loop of vectors.
                if product.a_column == 1 {
                    let k = product.k;
                    let lines: [&[$float]; R] =
                        std::array::from_fn(|line| &product.a[(row + line) * product.a_row..][..k]);
                    for term in 0..k {
                        let b = vectors::<S, V, PART>(
                            simd,
                            &product.b[from..from + width],
                            before,
                            last,
                        );
                        for (line, sums) in lines.iter().zip(&mut sums) {
                            let a = simd.$splat(line[term]);
                            for (sum, &b) in sums.iter_mut().zip(&b) {
                                *sum = simd.$mul_add(a, b, *sum);
                            }
                        }
                        from += product.b_row;
                    }
                } else {
                    for _ in 0..product.k {
                        let b = vectors::<S, V, PART>(
                            simd,
                            &product.b[from..from + width],
                            before,
                            last,
                        );
                        for (&a, sums) in product.a[at..at + R].iter().zip(&mut sums) {
                            let a = simd.$splat(a);
                            for (sum, &b) in sums.iter_mut().zip(&b) {
                                *sum = simd.$mul_add(a, b, *sum);
                            }
                        }
                        (at, from) = (at + product.a_column, from + product.b_row);
                    }
                }
                for (at, sums) in sums.iter().enumerate() {
                    let start = (row + at) * product.n + column;
                    let line = &mut product.c[start..start + width];
                    if PART {
                        simd.$store(line, sums[0]);
                    } else {
                        S::$of_mut(&mut line[..before])
                            .0
                            .copy_from_slice(&sums[..V - 1]);
                        S::$of_mut(&mut line[last..]).0[0] = sums[V - 1];
                    }
                }
            }
        }
    };
}

/// Loops for both types: in the module, the type, its vector, and `pulp`'s names of what is done with them.
/// `mul_add_e` is one instruction where there are vectors, and rounds twice elsewhere: `mul_add` would call a function there.
macro_rules! each_float {
    ($loops:ident) => {
        $loops!(
            singles,
            f32,
            f32s,
            F32_LANES,
            splat_f32s,
            mul_add_e_f32s,
            add_f32s,
            reduce_sum_f32s,
            partial_load_f32s,
            partial_store_f32s,
            as_simd_f32s,
            as_mut_simd_f32s
        );
        $loops!(
            doubles,
            f64,
            f64s,
            F64_LANES,
            splat_f64s,
            mul_add_e_f64s,
            add_f64s,
            reduce_sum_f64s,
            partial_load_f64s,
            partial_store_f64s,
            as_simd_f64s,
            as_mut_simd_f64s
        );
    };
}
pub(super) use each_float;

each_float!(floats);

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Small integers, so that every sum is exact.
    pub(in crate::cpu) fn values(count: usize) -> Vec<f32> {
        (0..count)
            .map(|at| ((at * 7 + at / 5) % 11) as f32 - 5.0)
            .collect()
    }

    #[test]
    fn matrices_times_vectors() {
        for (rows, k) in [
            (1, 1),
            (3, 7),
            (4, 16),
            (9, 65),
            (13, 200),
            (66, 31),
            (5, 0),
            (2_500, 30),
        ] {
            let stride = k + 3;
            let (matrix, x) = (values(stride * rows.max(1) + k), values(k));
            let mut y = vec![9.0; rows];
            f32::rows_times(&matrix, stride, &x, &mut y);
            for (row, &y) in y.iter().enumerate() {
                let want: f32 = (0..k).map(|j| matrix[row * stride + j] * x[j]).sum();
                assert_eq!(y, want, "{rows}x{k}, row {row}");
            }
            let stride = rows + 2;
            let matrix: Vec<f64> = values(stride * k + rows)
                .into_iter()
                .map(f64::from)
                .collect();
            let x: Vec<f64> = x.into_iter().map(f64::from).collect();
            let mut y = vec![9.0; rows];
            f64::columns_times(&matrix, stride, &x, &mut y);
            for (row, &y) in y.iter().enumerate() {
                let want: f64 = (0..k).map(|j| matrix[row + j * stride] * x[j]).sum();
                assert_eq!(y, want, "{rows}x{k}, row {row}");
            }
        }
    }

    /// Columns around one, two, three and four vectors of any width, and more.
    const COLUMN_COUNTS: [usize; 26] = [
        0, 1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 24, 25, 31, 32, 33, 40, 47, 48, 49, 63, 64, 65,
        100,
    ];

    /// In the processor's vectors, in narrower ones, and without.
    fn each_width<'a, T: Floats>(width: usize, product: Small<'a, T>)
    where
        Small<'a, T>: WithSimd<Output = ()>,
    {
        #[cfg(target_arch = "x86_64")]
        if width == 1
            && let Some(simd) = pulp::x86::V3::try_new()
        {
            return Simd::vectorize(simd, product);
        }
        match width {
            0 => Simd::vectorize(pulp::Scalar::new(), product),
            _ => T::small(product),
        }
    }

    fn small_products<T: Floats + PartialEq + std::fmt::Debug>(of: impl Fn(f32) -> T)
    where
        for<'a> Small<'a, T>: WithSimd<Output = ()>,
    {
        let values = |count| values(count).into_iter().map(&of).collect::<Vec<T>>();
        for size in 0..19 * 19 * COLUMN_COUNTS.len() {
            let (m, k, n) = (size % 19, size / 19 % 19, COLUMN_COUNTS[size / 361]);
            let (a, b) = (values(m * k + 40), values(k * (n + 1) + n));
            let (of_a, of_b) = (super::tests::values(a.len()), super::tests::values(b.len()));
            // As it lies, and turned.
            for (case, (a_row, a_column)) in (0..6).zip([(k, 1), (1, m)].into_iter().cycle()) {
                let mut c = vec![of(9.0); m * n];
                let product = Small {
                    c: &mut c,
                    a: &a,
                    a_row,
                    a_column,
                    b: &b,
                    b_row: n + 1,
                    m,
                    k,
                    n,
                };
                each_width(case / 2, product);
                for (at, &c) in c.iter().enumerate() {
                    let (i, j) = (at / n, at % n);
                    let want: f32 = (0..k)
                        .map(|p| of_a[i * a_row + p * a_column] * of_b[p * (n + 1) + j])
                        .sum();
                    assert_eq!(c, of(want), "{m}x{k}x{n}, entry {i}, {j}");
                }
            }
        }
    }

    #[test]
    fn small_products_of_singles() {
        small_products::<f32>(|value| value);
    }

    #[test]
    fn small_products_of_doubles() {
        small_products::<f64>(f64::from);
    }
}
