//! Text to numbers, by decimal arithmetic: `1.5B` is 1500000000 and not a float near it.
//!
//! No string makes these functions panic, and every refusal says what was found and what would be accepted.

use std::str::FromStr;

use crate::counts::{Bytes, Flops, Params, Tokens};
use crate::display::group_digits;
use crate::rates::{Hfu, Mfu, Seconds};

mod error;
mod number;
#[cfg(test)]
mod tests;

use error::quoted;
pub use error::{ParseError, Problem};
use number::{Number, split};

const COUNT_FORMS: &str = "1024, 1,024, 1.5e12, 128k, 1M, 70B, 15T (k 1e3, M 1e6, B or G 1e9, T 1e12, P 1e15)";
const FLOP_FORMS: &str = "6.3e24, 6.3e24 FLOP, 421.6 TFLOP, 51G";
const BYTE_FORMS: &str = "80GB (80e9 bytes), 80GiB (80 x 2^30 bytes), 786.00 MiB, 512B, 1024 (bytes)";
const TIME_FORMS: &str = "0.16 (seconds), 10us, 30ms, 90s, 5min, 6h, 14d, 14 days";
const SHARE_FORMS: &str = "0.4, 40%";

/// Power of ten of a decimal prefix letter.
fn prefix_power(prefix: char) -> Option<i64> {
    match prefix.to_ascii_lowercase() {
        'k' => Some(3),
        'm' => Some(6),
        'g' => Some(9),
        't' => Some(12),
        'p' => Some(15),
        'e' => Some(18),
        _ => None,
    }
}

fn count_power(unit: &str) -> Result<i64, Problem> {
    let mut letters = unit.chars();
    match (letters.next(), letters.next()) {
        (None, _) => Ok(0),
        (Some('b' | 'B'), None) => Ok(9),
        (Some(prefix), None) if !matches!(prefix, 'e' | 'E') => {
            prefix_power(prefix).ok_or_else(|| Problem::UnknownUnit(quoted(unit)))
        }
        _ => Err(Problem::UnknownUnit(quoted(unit))),
    }
}

/// A count as people write it: `15T`, `70B`, `1.5e12`, `1,024`, `128k`, `1M`. Suffixes are powers of 1000.
///
/// # Errors
/// [`ParseError`] if the text is empty, negative, not finite, not whole, beyond `u128`, or has an unknown suffix.
///
/// ```
/// assert_eq!(napkin_units::parse_count("1.5B"), Ok(1_500_000_000));
/// ```
pub fn parse_count(input: &str) -> Result<u128, ParseError> {
    count(input).map_err(|problem| ParseError::new("count", input, problem, COUNT_FORMS))
}

fn count(input: &str) -> Result<u128, Problem> {
    let (number, unit) = split(input)?;
    number.exact(count_power(unit)?, 1)
}

macro_rules! from_count {
    ($($name:ident, $quantity:literal);+) => {
        $(
            impl FromStr for $name {
                type Err = ParseError;
                fn from_str(input: &str) -> Result<Self, ParseError> {
                    count(input)
                        .and_then(|count| u64::try_from(count).map_err(|_| Problem::TooLarge))
                        .map(Self)
                        .map_err(|problem| ParseError::new($quantity, input, problem, COUNT_FORMS))
                }
            }
        )+
    };
}

from_count!(Params, "parameter count"; Tokens, "token count");

impl FromStr for Flops {
    type Err = ParseError;

    /// A count with or without the word FLOP and its prefix: `6.3e24`, `421.6 TFLOP`.
    fn from_str(input: &str) -> Result<Self, ParseError> {
        let parse = || {
            let (number, unit) = split(input)?;
            let power = match unit.strip_suffix("FLOP").map(str::trim_end) {
                None => count_power(unit)?,
                Some("") => 0,
                Some(prefix) => {
                    let mut letters = prefix.chars();
                    match (letters.next().and_then(prefix_power), letters.next()) {
                        (Some(power), None) => power,
                        _ => return Err(Problem::UnknownUnit(quoted(unit))),
                    }
                }
            };
            number.exact(power, 1).map(Self)
        };
        parse().map_err(|problem| ParseError::new("FLOP count", input, problem, FLOP_FORMS))
    }
}

impl FromStr for Bytes {
    type Err = ParseError;

    /// A memory size with a clear unit: `80GB`, `80GiB`, `786.00 MiB`, `512B`; a bare whole number is bytes.
    ///
    /// A fraction of a prefixed unit is rounded to the nearest byte.
    fn from_str(input: &str) -> Result<Self, ParseError> {
        bytes(input).map_err(|problem| ParseError::new("memory size", input, problem, BYTE_FORMS))
    }
}

fn bytes(input: &str) -> Result<Bytes, Problem> {
    let (number, unit) = split(input)?;
    let value = match unit {
        "" | "B" | "byte" | "bytes" => number.exact(0, 1)?,
        "b" | "bit" | "bits" => return Err(Problem::Bits),
        _ => {
            let mut letters = unit.chars();
            let prefix = letters.next().unwrap_or_default();
            let rest = letters.as_str();
            let power = prefix_power(prefix).ok_or_else(|| Problem::UnknownUnit(quoted(unit)))?;
            let binary = 1_u128 << (10 * power / 3);
            match rest {
                "" => return Err(ambiguous(input, &number, unit, power, binary)),
                "B" => number.scaled(power, 1)?.0,
                "iB" => number.scaled(0, binary)?.0,
                "b" if prefix.is_ascii_lowercase() => number.scaled(power, 1)?.0,
                "ib" if prefix.is_ascii_lowercase() => number.scaled(0, binary)?.0,
                "b" | "ib" => return Err(Problem::Bits),
                _ => return Err(Problem::UnknownUnit(quoted(unit))),
            }
        }
    };
    u64::try_from(value).map(Bytes).map_err(|_| Problem::TooLarge)
}

fn ambiguous(input: &str, number: &Number, unit: &str, power: i64, binary: u128) -> Problem {
    let prefix = unit.to_ascii_uppercase();
    let decimal_prefix = if prefix == "K" { "k" } else { &prefix };
    let input = input.trim();
    let typed = quoted(input.strip_suffix(unit).unwrap_or(input));
    let typed = typed.trim_end();
    let size = |value: Result<(u128, bool), Problem>| match value {
        Ok((value, _)) if value >= 1000 => {
            // In the power of ten of the prefix, three digits: the two readings differ in the first or second.
            let scaled = value as f64 / 10_f64.powi(power as i32);
            let whole_digits = if scaled >= 1.0 { scaled.log10().floor() as i32 + 1 } else { 1 };
            let decimals = (3 - whole_digits).max(0) as usize;
            let text = format!("{scaled:.decimals$}");
            let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
            format!("{text}e{power} bytes")
        }
        Ok((value, _)) => format!("{} bytes", group_digits(value)),
        Err(_) => "too large".to_owned(),
    };
    Problem::AmbiguousUnit {
        decimal: format!("`{typed}{decimal_prefix}B` ({})", size(number.scaled(power, 1))),
        binary: format!("`{typed}{prefix}iB` ({})", size(number.scaled(0, binary))),
    }
}

impl FromStr for Seconds {
    type Err = ParseError;

    /// A time: `0.16` (seconds), `10us`, `30ms`, `90s`, `5min`, `6h`, `14d`, `14 days`.
    fn from_str(input: &str) -> Result<Self, ParseError> {
        let parse = || {
            let (number, unit) = split(input)?;
            let value = number.as_f64();
            // Division where the unit is a fraction: 30 / 1e3 is the float nearest 0.03, 30 * 1e-3 need not be.
            let seconds = match unit {
                "" | "s" | "sec" | "secs" | "second" | "seconds" => value,
                "ns" => value / 1e9,
                // Micro sign and Greek mu look alike.
                "us" | "µs" | "μs" => value / 1e6,
                "ms" => value / 1e3,
                "m" | "min" | "mins" | "minute" | "minutes" => value * 60.0,
                "h" | "hr" | "hrs" | "hour" | "hours" => value * 3600.0,
                "d" | "day" | "days" => value * 86_400.0,
                "w" | "week" | "weeks" => value * 604_800.0,
                _ => return Err(Problem::UnknownUnit(quoted(unit))),
            };
            Self::new(seconds).map_err(|_| Problem::TooLarge)
        };
        parse().map_err(|problem| ParseError::new("time", input, problem, TIME_FORMS))
    }
}

fn share(input: &str) -> Result<f64, Problem> {
    let (number, unit) = split(input)?;
    let value = number.as_f64();
    let value = match unit {
        "" if value > 1.0 => return Err(Problem::ShareOrPercent),
        "" => value,
        "%" => value / 100.0,
        _ => return Err(Problem::UnknownUnit(quoted(unit))),
    };
    if value.is_finite() { Ok(value) } else { Err(Problem::TooLarge) }
}

macro_rules! from_share {
    ($($name:ident, $quantity:literal);+) => {
        $(
            impl FromStr for $name {
                type Err = ParseError;

                /// A share of the peak: `0.4` or `40%`. A bare number above 1 is refused: `40` is not 4000 %.
                fn from_str(input: &str) -> Result<Self, ParseError> {
                    share(input)
                        .and_then(|value| Self::new(value).map_err(|_| Problem::TooLarge))
                        .map_err(|problem| ParseError::new($quantity, input, problem, SHARE_FORMS))
                }
            }
        )+
    };
}

from_share!(Mfu, "MFU"; Hfu, "HFU");
