//! Elementary functions of f32 without branches, for loops that the compiler vectorises.
//!
//! Each is a polynomial on a reduced argument, in fused multiply-adds, so that every instruction set gives the same bits.
//! Coefficients are minimax fits of our own (Remez exchange in 160-bit arithmetic); the tests sweep all magnitudes
//! against f64. Errors are in units in the last place of the exact result.

use crate::kernel::Num;
use std::ops::{Add, Div, Mul, Neg, Sub};

/// 1.5 * 2^23: adding it leaves the nearest integer in the low bits of the mantissa.
const ROUND: f32 = 12_582_912.0;
/// ln 2 to f32, and what is missing.
const LN_2: f32 = std::f32::consts::LN_2;
const LN_2_REST: f32 = -1.904_654_3e-9;

/// `c[0] + c[1] x + ...`
#[inline(always)]
fn polynomial<const N: usize>(c: [f32; N], x: f32) -> f32 {
    let mut sum = c[N - 1];
    for k in (0..N - 1).rev() {
        sum = sum.mul_add(x, c[k]);
    }
    sum
}

/// `x` held between two numbers; NaN stays NaN.
#[inline(always)]
fn between(low: f32, x: f32, high: f32) -> f32 {
    let x = if x < low { low } else { x };
    if x > high { high } else { x }
}

/// 2^n for n in -126..=127.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits(((n + 127) << 23) as u32)
}

/// `n` and `e^r - 1`, where `x = n ln 2 + r` and `|r| <= ln 2 / 2`. For `|x|` below 2^21.
#[inline(always)]
fn reduced_expm1(x: f32) -> (i32, f32) {
    let shifted = x.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-LN_2_REST, n.mul_add(-LN_2, x));
    // (e^r - 1 - r) / r²
    let q = polynomial([0.499_999_98, 0.166_665_44, 0.041_667_2, 0.008_366_521, 0.001_388_252], r);
    ((shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32), (r * r).mul_add(q, r))
}

/// e^x, to 1 ulp; gradual underflow, infinity above 88.7.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // Beyond these the result is 0 or infinite whatever the argument.
    let (n, p) = reduced_expm1(between(-104.0, x, 89.0));
    // In two factors, each a normal number: 2^n itself may be none.
    let half = n >> 1;
    (1.0 + p) * power_of_two(half) * power_of_two(n - half)
}

/// Natural logarithm, to 1 ulp; -inf at 0, NaN below.
#[inline(always)]
pub fn ln(x: f32) -> f32 {
    let tiny = x < f32::MIN_POSITIVE;
    // Subnormals have no exponent of their own: 2^25 lifts them out.
    let bits = (if tiny { x * 33_554_432.0 } else { x }).to_bits() as i32;
    // Mantissa in √½..√2, around 1.
    let exponent = bits.wrapping_sub(0x3f35_04f3) >> 23;
    let f = f32::from_bits(bits.wrapping_sub(exponent << 23) as u32) - 1.0;
    let exponent = (exponent - if tiny { 25 } else { 0 }) as f32;
    // ln(1 + f) = 2 atanh s = 2s + s³ q(s²), and 2s = f - s f.
    let s = f / (2.0 + f);
    let square = s * s;
    let q = polynomial([0.666_667_76, 0.399_775_37, 0.298_718_62], square);
    let mantissa = (-s).mul_add((-square).mul_add(q, f), f);
    let value = exponent.mul_add(LN_2, exponent.mul_add(LN_2_REST, mantissa));
    let value = if x == 0.0 { f32::NEG_INFINITY } else { value };
    let value = if x < 0.0 { f32::NAN } else { value };
    // Infinity and NaN are their own logarithms.
    if x < f32::INFINITY { value } else { x }
}

/// Hyperbolic tangent, to 2.5 ulp.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    // tanh |x| = e / (e + 2) with e = e^(2|x|) - 1, which keeps small arguments exact; beyond 9.02 it rounds to 1.
    let (n, p) = reduced_expm1(2.0 * between(0.0, x.abs(), 9.1));
    let scale = power_of_two(n);
    let e = scale.mul_add(p, scale - 1.0);
    (e / (e + 2.0)).copysign(x)
}

/// Error function, to 2 ulp.
#[inline(always)]
pub fn erf(x: f32) -> f32 {
    // Beyond 3.95 it rounds to 1.
    let size = between(0.0, x.abs(), 3.95);
    // Near zero erf x / x - 1 is a polynomial of x²; further out -ln(1 - erf x) is one of x.
    let square = size * size;
    let beyond = polynomial(
        [0.128_379_17, -0.376_126_26, 0.112_835_85, -0.026_853_812, 0.005_188_328, -0.000_801_019_5, 7.853_866_4e-5],
        square,
    );
    let near = size.mul_add(beyond, size);
    let far = 1.0
        - exp(-polynomial(
            [0.000_341_550_17, 1.127_089_1, 0.638_145, 0.103_106_6, -0.021_837_993, 0.002_947_640_6, -0.000_186_377_41],
            size,
        ));
    (if size < 1.0 { near } else { far }).copysign(x)
}

/// An f32 whose functions are those of this module: the formulas of the ops, over it, are fast kernels.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(transparent)]
pub struct Fast(pub f32);

macro_rules! operator {
    ($($trait:ident $method:ident $op:tt),*) => {$(
        impl $trait for Fast {
            type Output = Self;
            #[inline(always)]
            fn $method(self, other: Self) -> Self {
                Self(self.0 $op other.0)
            }
        }
    )*};
}
operator!(Add add +, Sub sub -, Mul mul *, Div div /);

impl Neg for Fast {
    type Output = Self;
    #[inline(always)]
    fn neg(self) -> Self {
        Self(-self.0)
    }
}

impl Num for Fast {
    #[inline(always)]
    fn from_f64(x: f64) -> Self {
        Self(x as f32)
    }
    #[inline(always)]
    fn to_f64(self) -> f64 {
        f64::from(self.0)
    }
    #[inline(always)]
    fn exp(self) -> Self {
        Self(exp(self.0))
    }
    #[inline(always)]
    fn ln(self) -> Self {
        Self(ln(self.0))
    }
    #[inline(always)]
    fn sqrt(self) -> Self {
        Self(self.0.sqrt())
    }
    #[inline(always)]
    fn tanh(self) -> Self {
        Self(tanh(self.0))
    }
    #[inline(always)]
    fn sin(self) -> Self {
        Self(self.0.sin())
    }
    #[inline(always)]
    fn cos(self) -> Self {
        Self(self.0.cos())
    }
    #[inline(always)]
    fn erf(self) -> Self {
        Self(erf(self.0))
    }
    #[inline(always)]
    fn pow(self, y: Self) -> Self {
        Self(self.0.powf(y.0))
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        let larger = if other.0 > self.0 { other.0 } else { self.0 };
        Self(if other.0.is_nan() { other.0 } else { larger })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Distance of `got` from `exact` in units in the last place of an f32 of that size.
    fn ulps(got: f32, exact: f64) -> f64 {
        let rounded = exact as f32;
        if got == rounded || (got.is_nan() && exact.is_nan()) {
            return 0.0;
        }
        let magnitude = rounded.abs().max(f32::MIN_POSITIVE);
        let unit = f64::from(f32::from_bits(magnitude.to_bits() + 1)) - f64::from(magnitude);
        (f64::from(got) - exact).abs() / unit
    }

    /// The largest error over every 1,009th f32 of both signs.
    fn worst(f: impl Fn(f32) -> f32, exact: impl Fn(f64) -> f64) -> (f64, f32) {
        let mut worst = (0.0, 0.0);
        for bits in (0..=u32::MAX).step_by(1009) {
            let x = f32::from_bits(bits);
            let error = ulps(f(x), exact(f64::from(x)));
            if error.is_nan() || error > worst.0 {
                worst = (error, x);
            }
        }
        worst
    }

    #[test]
    fn errors_stay_below_what_is_stated() {
        // f64 has 29 bits more; its own error does not show.
        for (name, bound, (error, at)) in [
            ("exp", 1.0, worst(exp, f64::exp)),
            ("ln", 1.0, worst(ln, f64::ln)),
            ("tanh", 2.5, worst(tanh, f64::tanh)),
            ("erf", 2.0, worst(erf, Num::erf)),
        ] {
            assert!(error <= bound, "{name}({at}) is {error} ulp off");
        }
    }

    #[test]
    fn special_values() {
        let inf = f32::INFINITY;
        assert_eq!([exp(-inf), exp(inf), exp(0.0), exp(-150.0)], [0.0, inf, 1.0, 0.0]);
        assert_eq!([ln(0.0), ln(-0.0), ln(inf), ln(1.0)], [-inf, -inf, inf, 0.0]);
        assert!(ln(-1.0).is_nan() && ln(-inf).is_nan());
        assert_eq!([tanh(inf), tanh(-inf), erf(inf), erf(-inf)], [1.0, -1.0, 1.0, -1.0]);
        assert_eq!(tanh(-0.0).to_bits(), (-0.0f32).to_bits());
        for f in [exp, ln, tanh, erf] {
            assert!(f(f32::NAN).is_nan());
        }
    }
}
