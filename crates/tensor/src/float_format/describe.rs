//! One number seen through one format: its bits, what is stored, and how far off that is.

use std::fmt;

use super::{FloatFormat, Overflow};

/// What becomes of a number in a format; made by [`FloatFormat::describe`].
#[derive(Clone, PartialEq, Debug)]
pub struct Description {
    /// The format.
    pub format: FloatFormat,
    /// The number as given.
    pub input: f64,
    /// Its code, in the lowest [`FloatFormat::width`] bits.
    pub bits: u64,
    /// The sign bit, `0` or `1`.
    pub sign: String,
    /// The exponent field in binary.
    pub exponent: String,
    /// The mantissa field in binary.
    pub mantissa: String,
    /// The stored value; an `f64` holds it exactly in every format.
    pub stored: f64,
    /// `(stored - input) / input`; `None` when either is not finite. Zero for zero.
    pub relative_error: Option<f64>,
    /// What a reader should know beyond the rounding error.
    pub note: Option<Note>,
}

/// A reason why the stored value is less than the format's usual precision promises.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Note {
    /// The number is not zero and is stored as zero.
    BelowSmallestSubnormal {
        /// The smallest positive value of the format.
        min_subnormal: f64,
    },
    /// The stored value lies below the normal range.
    Subnormal {
        /// Mantissa bits from the leading one down, the precision that is left.
        significant_bits: u32,
    },
    /// The finite number is too large and is stored as infinity.
    OverflowToInfinity {
        /// The largest finite value of the format.
        max_finite: f64,
    },
    /// The number is too large, or infinite, and the format has no infinity.
    OverflowToNan {
        /// The largest finite value of the format.
        max_finite: f64,
    },
    /// The number is too large, or infinite, and a saturating cast stored the largest finite value.
    Saturated {
        /// The largest finite value of the format.
        max_finite: f64,
    },
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::BelowSmallestSubnormal { min_subnormal } => {
                write!(f, "below the smallest subnormal {}", brief(min_subnormal))
            }
            Self::Subnormal { significant_bits } => {
                let plural = if significant_bits == 1 { "" } else { "s" };
                write!(f, "subnormal: {significant_bits} significant bit{plural}")
            }
            Self::OverflowToInfinity { max_finite } | Self::Saturated { max_finite } => {
                write!(f, "above the largest finite value {}", brief(max_finite))
            }
            Self::OverflowToNan { max_finite } => {
                let max = brief(max_finite);
                write!(f, "above the largest finite value {max}; a saturating cast stores {max}")
            }
        }
    }
}

impl FloatFormat {
    /// `x` as this format stores it: one rounding, to nearest even, [`Overflow::NonSaturating`].
    ///
    /// The argument is already an `f64`: a decimal that was typed has been rounded to one, so the fp64 row always
    /// reads exact.
    pub fn describe(&self, x: f64) -> Description {
        self.describe_with(x, Overflow::NonSaturating)
    }

    /// As [`describe`](Self::describe), with the overflow rule chosen.
    pub fn describe_with(&self, x: f64, overflow: Overflow) -> Description {
        let bits = self.encode_with(x, overflow);
        let stored = self.decode(bits);
        let [sign, exponent, mantissa] = self.split_bits(bits);
        Description {
            format: *self,
            input: x,
            bits,
            sign,
            exponent,
            mantissa,
            stored,
            relative_error: relative_error(x, stored),
            note: self.note(x, stored),
        }
    }

    /// The sign, exponent and mantissa fields of a code, in binary.
    pub fn split_bits(&self, bits: u64) -> [String; 3] {
        let binary = |low: u32, width: u32| {
            let value = bits >> low & ((1 << width) - 1);
            format!("{value:0width$b}", width = width as usize)
        };
        [binary(self.width() - 1, 1), binary(self.mantissa_bits, self.exponent_bits), binary(0, self.mantissa_bits)]
    }

    fn note(&self, x: f64, stored: f64) -> Option<Note> {
        if x.is_nan() {
            None
        } else if stored.is_nan() {
            Some(Note::OverflowToNan { max_finite: self.max_finite() })
        } else if stored.is_infinite() {
            x.is_finite().then(|| Note::OverflowToInfinity { max_finite: self.max_finite() })
        } else if x.is_infinite() || self.round(x) != stored {
            Some(Note::Saturated { max_finite: self.max_finite() })
        } else if stored == 0.0 {
            (x != 0.0).then(|| Note::BelowSmallestSubnormal { min_subnormal: self.min_subnormal() })
        } else if stored.abs() < self.min_normal() {
            let code = self.encode(stored.abs());
            Some(Note::Subnormal { significant_bits: u64::BITS - code.leading_zeros() })
        } else {
            None
        }
    }
}

impl Description {
    /// The stored value in full: every digit of the binary fraction, up to 767 of them.
    pub fn stored_exact(&self) -> String {
        // f64 needs at most 767 significant digits, and the formatter is exact at any precision.
        decimal(self.stored, &format!("{:.766e}", self.stored.abs()))
    }

    /// The stored value in the fewest digits (at most 17) that identify it among `f64`s.
    pub fn stored_shortest(&self) -> String {
        decimal(self.stored, &format!("{:e}", self.stored.abs()))
    }
}

fn relative_error(x: f64, stored: f64) -> Option<f64> {
    if !x.is_finite() || !stored.is_finite() {
        None
    } else if x == stored {
        Some(0.0)
    } else {
        Some((stored - x) / x)
    }
}

/// Re-arranges Rust's `d.ddde-x` for `|value|` the way Python prints floats: positional from 1e-4 up to 1e16, else
/// with an exponent of at least two digits; trailing zeros dropped.
fn decimal(value: f64, scientific: &str) -> String {
    let sign = if value.is_sign_negative() && !value.is_nan() { "-" } else { "" };
    let Some((digits, exponent)) = scientific.split_once('e') else {
        // "inf" and "NaN" have no exponent part.
        return format!("{sign}{}", scientific.to_ascii_lowercase());
    };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let digits: String = digits.chars().filter(char::is_ascii_digit).collect();
    let digits = match digits.trim_end_matches('0') {
        "" => "0",
        trimmed => trimmed,
    };
    let body = if !(-4..16).contains(&exponent) {
        let (first, rest) = digits.split_at(1);
        let point = if rest.is_empty() { "" } else { "." };
        let exponent_sign = if exponent < 0 { '-' } else { '+' };
        format!("{first}{point}{rest}e{exponent_sign}{:02}", exponent.abs())
    } else if exponent < 0 {
        let zeros = "0".repeat((-exponent - 1) as usize);
        format!("0.{zeros}{digits}")
    } else {
        let whole = exponent as usize + 1;
        if digits.len() <= whole {
            format!("{digits:0<whole$}")
        } else {
            let (integer, fraction) = digits.split_at(whole);
            format!("{integer}.{fraction}")
        }
    };
    format!("{sign}{body}")
}

/// A bound in a note: whole numbers below a million in full, others to two digits.
fn brief(value: f64) -> String {
    if (1.0..1e6).contains(&value) {
        return value.to_string();
    }
    let scientific = format!("{value:.1e}");
    let Some((digits, exponent)) = scientific.split_once('e') else {
        return scientific;
    };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_match_the_mock_up() {
        let rows: Vec<String> =
            [FloatFormat::FP32, FloatFormat::BF16, FloatFormat::FP16, FloatFormat::E4M3, FloatFormat::E5M2]
                .iter()
                .map(|format| {
                    let d = format.describe(0.1);
                    let error = d.relative_error.expect("finite");
                    let stored = d.stored_shortest();
                    let name = format.name;
                    format!("{name} {} {} {} {stored} {error:.1e}", d.sign, d.exponent, d.mantissa)
                })
                .collect();
        assert_eq!(
            rows,
            [
                "fp32 0 01111011 10011001100110011001101 0.10000000149011612 1.5e-8",
                "bf16 0 01111011 1001101 0.10009765625 9.8e-4",
                "fp16 0 01011 1001100110 0.0999755859375 -2.4e-4",
                "e4m3 0 0011 101 0.1015625 1.6e-2",
                "e5m2 0 01011 10 0.09375 -6.3e-2",
            ]
        );
        let small = FloatFormat::BF16.describe(1e-8);
        assert_eq!(small.stored_shortest(), "1.0011717677116394e-08");
        assert_eq!(small.note, None);
        let gone = FloatFormat::FP16.describe(1e-8);
        assert_eq!(gone.stored_shortest(), "0");
        assert_eq!(gone.note.map(|n| n.to_string()).as_deref(), Some("below the smallest subnormal 6.0e-08"));
    }

    #[test]
    fn exact_decimals_and_notes() {
        let fp32 = FloatFormat::FP32.describe(0.1);
        assert_eq!(fp32.stored_exact(), "0.100000001490116119384765625");
        let fp64 = FloatFormat::FP64.describe(0.1);
        let exact = "0.1000000000000000055511151231257827021181583404541015625";
        assert_eq!(fp64.stored_exact(), exact);
        assert_eq!((fp64.stored_shortest().as_str(), fp64.relative_error), ("0.1", Some(0.0)));
        let tiny = FloatFormat::FP64.describe(5e-324).stored_exact();
        assert!(tiny.starts_with("4.940656458412465441") && tiny.ends_with("5625e-324"), "{tiny}");
        // mantissa digits of 2^-1074
        assert_eq!(tiny.len(), 751 + ".".len() + "e-324".len());

        for (format, x, stored, note) in [
            (FloatFormat::E4M3, 1.0, "1", ""),
            (FloatFormat::E4M3, -0.0, "-0", ""),
            (FloatFormat::E4M3, 500.0, "nan", "above the largest finite value 448; a saturating cast stores 448"),
            (FloatFormat::FP16, -1e5, "-inf", "above the largest finite value 65504"),
            (FloatFormat::BF16, 1e39, "inf", "above the largest finite value 3.4e+38"),
            (FloatFormat::FP16, f64::INFINITY, "inf", ""),
            (FloatFormat::FP16, f64::NAN, "nan", ""),
            (FloatFormat::FP16, 1e-7, "1.1920928955078125e-07", "subnormal: 2 significant bits"),
            (FloatFormat::E5M2, 2e-5, "1.52587890625e-05", "subnormal: 1 significant bit"),
            (FloatFormat::BF16, 1e20, "9.9727710148492263424e+19", ""),
            (FloatFormat::FP32, 123_456.0, "123456", ""),
            (FloatFormat::FP32, 1200.5, "1200.5", ""),
            (FloatFormat::FP32, 0.000_1, "9.99999974737875163555145263671875e-05", ""),
        ] {
            let d = format.describe(x);
            assert_eq!(d.stored_exact(), stored, "{} {x}", format.name);
            let text = d.note.map(|n| n.to_string()).unwrap_or_default();
            assert_eq!(text, note, "{} {x}", format.name);
        }
    }

    #[test]
    fn saturation_is_noted() {
        for (format, x, stored, noted) in [
            (FloatFormat::E4M3, 500.0, 448.0, true),
            (FloatFormat::E4M3, f64::NEG_INFINITY, -448.0, true),
            (FloatFormat::E4M3, 460.0, 448.0, false),
            (FloatFormat::E5M2, 1e6, 57344.0, true),
        ] {
            let d = format.describe_with(x, Overflow::Saturating);
            assert_eq!(d.stored, stored, "{} {x}", format.name);
            let max_finite = format.max_finite();
            let note = noted.then_some(Note::Saturated { max_finite });
            assert_eq!(d.note, note, "{} {x}", format.name);
        }
    }
}
