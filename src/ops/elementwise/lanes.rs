//! Vectors of f32 and of f64 by one name each, for chains.

use pulp::Simd;

/// A float type with what chains do with vectors of it.
pub(super) trait Lanes: Copy {
    type Vector<S: Simd>: Copy;
    const ZERO: Self;
    const ONE: Self;

    fn is_nan(self) -> bool;
    fn splat<S: Simd>(simd: S, number: Self) -> Self::Vector<S>;
    /// Whole vectors; what is left over is not among them.
    fn vectors<S: Simd>(values: &[Self]) -> &[Self::Vector<S>];
    fn vectors_mut<S: Simd>(values: &mut [Self]) -> &mut [Self::Vector<S>];
    /// Of less than a vector.
    fn partial_load<S: Simd>(simd: S, values: &[Self]) -> Self::Vector<S>;
    fn partial_store<S: Simd>(simd: S, values: &mut [Self], vector: Self::Vector<S>);
    fn add<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
    fn sub<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
    fn mul<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
    fn div<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
    fn neg<S: Simd>(simd: S, a: Self::Vector<S>) -> Self::Vector<S>;
    fn abs<S: Simd>(simd: S, a: Self::Vector<S>) -> Self::Vector<S>;
    fn sqrt<S: Simd>(simd: S, a: Self::Vector<S>) -> Self::Vector<S>;
    /// `yes` where a is less than b, else `no`, also where one is NaN.
    fn less<S: Simd>(
        simd: S,
        a: Self::Vector<S>,
        b: Self::Vector<S>,
        yes: Self::Vector<S>,
        no: Self::Vector<S>,
    ) -> Self::Vector<S>;
    /// `value` where a is a number, a itself where it is NaN.
    fn number<S: Simd>(simd: S, a: Self::Vector<S>, value: Self::Vector<S>) -> Self::Vector<S>;
}

/// Functions that are one of `pulp`'s each.
macro_rules! forwarded {
    ($($name:ident($($operand:ident),*) => $theirs:ident;)*) => {$(
        #[inline(always)]
        fn $name<S: Simd>(simd: S, $($operand: Self::Vector<S>),*) -> Self::Vector<S> {
            simd.$theirs($($operand),*)
        }
    )*};
}

macro_rules! lanes {
    (
        $float:ident, $vector:ident, $splat:ident, $of:ident, $of_mut:ident, $load:ident, $store:ident, $add:ident,
        $sub:ident, $mul:ident, $div:ident, $neg:ident, $abs:ident, $sqrt:ident, $less:ident, $equal:ident, $select:ident
    ) => {
        impl Lanes for $float {
            type Vector<S: Simd> = S::$vector;
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;

            fn is_nan(self) -> bool {
                self.is_nan()
            }

            #[inline(always)]
            fn splat<S: Simd>(simd: S, number: Self) -> S::$vector {
                simd.$splat(number)
            }

            #[inline(always)]
            fn vectors<S: Simd>(values: &[Self]) -> &[S::$vector] {
                S::$of(values).0
            }

            #[inline(always)]
            fn vectors_mut<S: Simd>(values: &mut [Self]) -> &mut [S::$vector] {
                S::$of_mut(values).0
            }

            #[inline(always)]
            fn partial_load<S: Simd>(simd: S, values: &[Self]) -> S::$vector {
                simd.$load(values)
            }

            #[inline(always)]
            fn partial_store<S: Simd>(simd: S, values: &mut [Self], vector: S::$vector) {
                simd.$store(values, vector);
            }

            forwarded! {
                add(a, b) => $add;
                sub(a, b) => $sub;
                mul(a, b) => $mul;
                div(a, b) => $div;
                neg(a) => $neg;
                abs(a) => $abs;
                sqrt(a) => $sqrt;
            }

            #[inline(always)]
            fn less<S: Simd>(
                simd: S,
                a: S::$vector,
                b: S::$vector,
                yes: S::$vector,
                no: S::$vector,
            ) -> S::$vector {
                simd.$select(simd.$less(a, b), yes, no)
            }

            #[inline(always)]
            fn number<S: Simd>(simd: S, a: S::$vector, value: S::$vector) -> S::$vector {
                simd.$select(simd.$equal(a, a), value, a)
            }
        }
    };
}
lanes!(
    f32,
    f32s,
    splat_f32s,
    as_simd_f32s,
    as_mut_simd_f32s,
    partial_load_f32s,
    partial_store_f32s,
    add_f32s,
    sub_f32s,
    mul_f32s,
    div_f32s,
    neg_f32s,
    abs_f32s,
    sqrt_f32s,
    less_than_f32s,
    equal_f32s,
    select_f32s
);
lanes!(
    f64,
    f64s,
    splat_f64s,
    as_simd_f64s,
    as_mut_simd_f64s,
    partial_load_f64s,
    partial_store_f64s,
    add_f64s,
    sub_f64s,
    mul_f64s,
    div_f64s,
    neg_f64s,
    abs_f64s,
    sqrt_f64s,
    less_than_f64s,
    equal_f64s,
    select_f64s
);
