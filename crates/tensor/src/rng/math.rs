//! Elementary functions from additions, multiplications, divisions and square roots only.
//!
//! Those four are correctly rounded everywhere by IEEE 754; the `ln`, `exp` and `cos` of a platform's mathematics
//! library are not, and differ in the last place between systems. With these, a seed gives the same numbers on every
//! machine and in a browser. Each is within a few units in the last place on the ranges stated.

use std::f64::consts::{LN_2, SQRT_2, TAU};

/// The part of ln 2 that multiplies by any exponent without rounding, and the rest (fdlibm's split).
const LN_2_HIGH: f64 = 6.931_471_803_691_238e-1;
const LN_2_LOW: f64 = 1.908_214_929_270_587_7e-10;

/// `c[0] x^n + ... + c[n]`.
fn polynomial(coefficients: &[f64], x: f64) -> f64 {
    coefficients.iter().fold(0.0, |sum, c| sum * x + c)
}

/// Natural logarithm of a positive normal number.
#[inline(always)]
pub fn ln(x: f64) -> f64 {
    let bits = x.to_bits();
    let exponent = (bits >> 52) as i32 - 1023;
    let mantissa = f64::from_bits(bits & ((1 << 52) - 1) | 1023 << 52);
    let high = mantissa > SQRT_2;
    let mantissa = if high { mantissa / 2.0 } else { mantissa };
    let exponent = exponent + i32::from(high);
    // ln m = 2 atanh s, and |s| < 0.172, so that s^23 is out of sight.
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let square = s * s;
    let series = (0..11).rev().fold(0.0, |sum, k| sum * square + 1.0 / f64::from(2 * k + 1));
    let exponent = f64::from(exponent);
    exponent * LN_2_HIGH + (2.0 * s * series + exponent * LN_2_LOW)
}

/// `e^x` for `-700 <= x <= 700`.
pub fn exp(x: f64) -> f64 {
    let power = (x / LN_2).round();
    let rest = (x - power * LN_2_HIGH) - power * LN_2_LOW;
    // |rest| < 0.35: the term of degree 14 is below 5e-18.
    let series = (1..=13).rev().fold(1.0, |sum, k| 1.0 + sum * rest / f64::from(k));
    series * f64::from_bits(((power as i64 + 1023) as u64) << 52)
}

/// Sine and cosine of `turns` whole turns, for `turns` in 0..1.
#[inline(always)]
pub fn sin_cos_turns(turns: f64) -> (f64, f64) {
    // Subtracting the nearest quarter is exact and leaves at most an eighth of a turn.
    let quarter = (turns * 4.0).round();
    let angle = (turns - quarter / 4.0) * TAU;
    let square = angle * angle;
    // Nested Taylor series up to degrees 17 and 16.
    let term = |sum: f64, n: i32| 1.0 - sum * square / f64::from(n * (n + 1));
    let sin = angle * (1..=8).rev().fold(1.0, |sum, k| term(sum, 2 * k));
    let cos = (1..=8).rev().fold(1.0, |sum, k| term(sum, 2 * k - 1));
    // Quarters 0 to 3: (sin, cos), (cos, -sin), (-sin, -cos), (-cos, sin). Selections, so that vectors can do it.
    let quarter = quarter as i32;
    let (sin, cos) = if quarter & 1 == 0 { (sin, cos) } else { (cos, sin) };
    let sin = if quarter & 2 == 0 { sin } else { -sin };
    let cos = if (quarter + 1) & 2 == 0 { cos } else { -cos };
    (sin, cos)
}

/// Probability that a standard normal variable is below `x`. In the lower tail the relative error stays near 1e-13,
/// down to `x = -35`. Below that the result is 0, so that a result times a uniform number is never subnormal.
pub fn normal_cdf(x: f64) -> f64 {
    if x < -35.0 {
        return 0.0;
    }
    if x > 35.0 {
        return 1.0;
    }
    let density = exp(-x * x / 2.0) / TAU.sqrt();
    let size = x.abs();
    if size < 3.0 {
        // Marsaglia's series x + x^3/3 + x^5/15 + ...: positive terms, no cancellation among them.
        let (mut term, mut sum, mut k) = (x, x, 1.0);
        while term.abs() > f64::EPSILON / 8.0 * sum.abs() {
            k += 2.0;
            term *= x * x / k;
            sum += term;
        }
        return 0.5 + density * sum;
    }
    // Laplace's continued fraction for the tail; 100 levels are far more than enough from 3 on.
    let fraction = (1..=100).rev().fold(size, |sum, k| size + f64::from(k) / sum);
    let tail = density / fraction;
    if x < 0.0 { tail } else { 1.0 - tail }
}

/// The `x` with `normal_cdf(x) = p`, for `0 < p < 1`: M. J. Wichura, Algorithm AS 241, Applied Statistics 37 (1988),
/// relative error about 1e-16.
pub fn normal_quantile(p: f64) -> f64 {
    let from_middle = p - 0.5;
    if from_middle.abs() <= 0.425 {
        let r = 0.180_625 - from_middle * from_middle;
        return from_middle * polynomial(&CENTRE_NUMERATOR, r) / polynomial(&CENTRE_DENOMINATOR, r);
    }
    let tail = if from_middle < 0.0 { p } else { 1.0 - p };
    let r = (-ln(tail)).sqrt();
    let size = if r <= 5.0 {
        polynomial(&MIDDLE_NUMERATOR, r - 1.6) / polynomial(&MIDDLE_DENOMINATOR, r - 1.6)
    } else {
        polynomial(&TAIL_NUMERATOR, r - 5.0) / polynomial(&TAIL_DENOMINATOR, r - 5.0)
    };
    if from_middle < 0.0 { -size } else { size }
}

const CENTRE_NUMERATOR: [f64; 8] = [
    2_509.080_928_730_122_7,
    33_430.575_583_588_13,
    67_265.770_927_008_7,
    45_921.953_931_549_87,
    13_731.693_765_509_46,
    1_971.590_950_306_551_3,
    133.141_667_891_784_38,
    3.387_132_872_796_366_5,
];
const CENTRE_DENOMINATOR: [f64; 8] = [
    5_226.495_278_852_854,
    28_729.085_735_721_943,
    39_307.895_800_092_71,
    21_213.794_301_586_597,
    5_394.196_021_424_751,
    687.187_007_492_057_9,
    42.313_330_701_600_91,
    1.0,
];
const MIDDLE_NUMERATOR: [f64; 8] = [
    0.000_774_545_014_278_341_4,
    0.022_723_844_989_269_184,
    0.241_780_725_177_450_6,
    1.270_458_252_452_368_4,
    3.647_848_324_763_204_5,
    5.769_497_221_460_691,
    4.630_337_846_156_546,
    1.423_437_110_749_683_5,
];
const MIDDLE_DENOMINATOR: [f64; 8] = [
    1.050_750_071_644_416_9e-09,
    0.000_547_593_808_499_534_5,
    0.015_198_666_563_616_457,
    0.148_103_976_427_480_08,
    0.689_767_334_985_1,
    1.676_384_830_183_803_8,
    2.053_191_626_637_759,
    1.0,
];
const TAIL_NUMERATOR: [f64; 8] = [
    2.010_334_399_292_288_1e-07,
    2.711_555_568_743_487_6e-05,
    0.001_242_660_947_388_078_4,
    0.026_532_189_526_576_124,
    0.296_560_571_828_504_87,
    1.784_826_539_917_291_3,
    5.463_784_911_164_114,
    6.657_904_643_501_103,
];
const TAIL_DENOMINATOR: [f64; 8] = [
    2.044_263_103_389_939_7e-15,
    1.421_511_758_316_446e-07,
    1.846_318_317_510_054_8e-05,
    0.000_786_869_131_145_613_3,
    0.014_875_361_290_850_615,
    0.136_929_880_922_735_8,
    0.599_832_206_555_888,
    1.0,
];

#[cfg(test)]
mod tests {
    use super::*;

    /// `(x, mpmath.ncdf(x))` at 40 digits.
    const CDF_POINTS: [(f64, f64); 15] = [
        (-35.0, 1.124_910_706_472_406_2e-268),
        (-20.0, 2.753_624_118_606_233_7e-89),
        (-10.0, 7.619_853_024_160_525e-24),
        (-6.0, 9.865_876_450_376_98e-10),
        (-3.5, 0.000_232_629_079_035_525_04),
        (-3.0, 0.001_349_898_031_630_094_6),
        (-2.875, 0.002_020_137_489_946_001_7),
        (-2.0, 0.022_750_131_948_179_21),
        (-1.0, 0.158_655_253_931_457_05),
        (-0.25, 0.401_293_674_317_076_3),
        (0.25, 0.598_706_325_682_923_7),
        (1.0, 0.841_344_746_068_542_9),
        (2.0, 0.977_249_868_051_820_8),
        (3.0, 0.998_650_101_968_369_9),
        (6.0, 0.999_999_999_013_412_3),
    ];

    fn assert_close(got: f64, expected: f64, relative: f64, what: &str) {
        let error = (got - expected).abs();
        assert!(error <= relative * expected.abs(), "{what}: {got:e}, not {expected:e}");
    }

    #[test]
    fn logarithm_and_exponential_agree_with_the_platform() {
        for k in 1..20_000 {
            let u = f64::from(k) / 20_000.0;
            for x in [u, u * 1e-9, 1.0 - u * 1e-9, u * 1e300, u * 1e-300] {
                assert_close(ln(x), x.ln(), 1e-15, "ln");
            }
            let x = (u - 0.5) * 1400.0;
            assert_close(exp(x), x.exp(), 1e-15, "exp");
        }
        assert_eq!(ln(1.0), 0.0);
        assert_eq!(exp(0.0), 1.0);
    }

    #[test]
    fn sine_and_cosine_agree_with_the_platform() {
        for k in 0..20_000 {
            let turns = f64::from(k) / 20_000.0;
            let (sin, cos) = sin_cos_turns(turns);
            let (s, c) = (turns * TAU).sin_cos();
            // The platform's argument carries the rounding of the product, up to 4e-16.
            assert!((sin - s).abs() < 1.5e-15 && (cos - c).abs() < 1.5e-15, "{turns}");
        }
        assert_eq!(sin_cos_turns(0.25), (1.0, 0.0));
        assert_eq!(sin_cos_turns(0.5), (0.0, -1.0));
    }

    #[test]
    fn normal_distribution_function() {
        for (x, p) in CDF_POINTS {
            assert_close(normal_cdf(x), p, 2e-13, "cdf");
            if p > 0.0 && p < 0.999 {
                assert_close(normal_quantile(p), x, 1e-14, "quantile");
            }
        }
        assert_eq!(normal_cdf(0.0), 0.5);
        assert_eq!(normal_quantile(0.5), 0.0);
        for k in 1..10_000 {
            let p = f64::from(k) / 10_000.0;
            assert_close(normal_cdf(normal_quantile(p)), p, 2e-13, "round trip");
        }
        assert_eq!((normal_cdf(f64::NEG_INFINITY), normal_cdf(f64::INFINITY)), (0.0, 1.0));
    }
}
