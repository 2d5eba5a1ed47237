//! Text to numbers, by decimal arithmetic: `1.5B` is 1500000000 and not a float near it.
//!
//! No string makes these functions panic, and every refusal says what was found and what would be accepted.

use std::fmt;
use std::str::FromStr;

use crate::counts::{Bytes, Flops, Params, Tokens};
use crate::diagnostic::Diagnostic;
use crate::display::group_digits;
use crate::rates::{Hfu, Mfu, Seconds};

const COUNT_FORMS: &str =
    "1024, 1,024, 1.5e12, 128k, 1M, 70B, 15T (k 1e3, M 1e6, B or G 1e9, T 1e12, P 1e15)";
const FLOP_FORMS: &str = "6.3e24, 6.3e24 FLOP, 421.6 TFLOP, 51G";
const BYTE_FORMS: &str =
    "80GB (80e9 bytes), 80GiB (80 x 2^30 bytes), 786.00 MiB, 512B, 1024 (bytes)";
const TIME_FORMS: &str = "0.16 (seconds), 10us, 30ms, 90s, 5min, 6h, 14d, 14 days";
const SHARE_FORMS: &str = "0.4, 40%";

/// Longest part of a user's input that an error repeats, in characters.
const QUOTED: usize = 60;

/// A text that is not the number it was to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// What the text was to be: "count", "memory size", "time", "utilization".
    pub quantity: &'static str,
    /// The text as given, cut to 60 characters.
    pub input: String,
    /// What is wrong with it.
    pub problem: Problem,
    /// Examples of what is accepted.
    pub accepted: &'static str,
}

/// What is wrong with a text that was to be a number.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// Nothing but white space.
    Empty,
    /// Below zero.
    Negative,
    /// NaN or infinity.
    NotFinite,
    /// No digits where a number was expected.
    NotANumber,
    /// A comma that does not separate thousands, such as `1,5`.
    MisplacedComma,
    /// A count with a fraction left over, such as `1.5` tokens.
    NotWhole,
    /// Beyond the largest value that can be held.
    TooLarge,
    /// More digits than can be kept exactly.
    TooManyDigits,
    /// Letters after the number that are no known unit.
    UnknownUnit(String),
    /// A prefix without a unit, such as `80G`.
    AmbiguousUnit {
        /// The decimal reading, such as "`80GB` (80e9 bytes)".
        decimal: String,
        /// The binary reading, such as "`80GiB` (85.9e9 bytes)".
        binary: String,
    },
    /// A unit of bits, such as `80Gb`.
    Bits,
    /// A share above 1 without a percent sign, such as `40`.
    ShareOrPercent,
}

impl ParseError {
    fn new(quantity: &'static str, input: &str, problem: Problem, accepted: &'static str) -> Self {
        Self {
            quantity,
            input: quoted(input),
            problem,
            accepted,
        }
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            quantity,
            input,
            problem,
            accepted,
        } = self;
        match problem {
            Problem::Empty => write!(f, "{quantity} is empty"),
            Problem::Negative => write!(f, "{quantity} `{input}` is negative"),
            Problem::NotFinite => write!(f, "{quantity} `{input}` is not a finite number"),
            Problem::NotANumber => write!(f, "{quantity} `{input}` is not a number"),
            Problem::MisplacedComma => {
                write!(
                    f,
                    "{quantity} `{input}` has a comma that does not separate thousands"
                )
            }
            Problem::NotWhole => write!(f, "{quantity} `{input}` is not a whole number"),
            Problem::TooLarge => write!(f, "{quantity} `{input}` is too large to hold"),
            Problem::TooManyDigits => write!(
                f,
                "{quantity} `{input}` has too many digits to keep exactly"
            ),
            Problem::UnknownUnit(unit) => {
                write!(f, "{quantity} `{input}` has an unknown unit `{unit}`")
            }
            Problem::AmbiguousUnit { decimal, binary } => {
                // The two readings are the accepted forms here.
                return write!(
                    f,
                    "{quantity} `{input}` has no clear unit: write {decimal} or {binary}"
                );
            }
            Problem::Bits => write!(
                f,
                "{quantity} `{input}` is in bits: `B` is a byte, `b` a bit"
            ),
            Problem::ShareOrPercent => {
                write!(
                    f,
                    "{quantity} `{input}` is above 1: write `{input}%` if it is a percentage"
                )
            }
        }?;
        write!(f, "; accepted: {accepted}")
    }
}

impl std::error::Error for ParseError {}

impl From<ParseError> for Diagnostic {
    fn from(error: ParseError) -> Self {
        Diagnostic::error("", error.to_string())
    }
}

/// Printable and short: the input may be a whole file, or carry terminal escapes.
fn quoted(input: &str) -> String {
    let mut out: String = input
        .trim()
        .chars()
        .take(QUOTED)
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect();
    if input.trim().chars().nth(QUOTED).is_some() {
        out.push('…');
    }
    out
}

/// `mantissa x 10^exponent`, and the text it was written in.
struct Number {
    mantissa: u128,
    exponent: i64,
    /// Digits without separators, as Rust's float parser reads them.
    text: String,
}

/// Splits a text into the number it starts with and the unit behind it.
fn split(input: &str) -> Result<(Number, &str), Problem> {
    let text = input.trim();
    if text.is_empty() {
        return Err(Problem::Empty);
    }
    let unsigned = text.strip_prefix(['-', '−']);
    let digits = unsigned
        .or_else(|| text.strip_prefix('+'))
        .unwrap_or(text)
        .trim_start();
    let (number, unit) = scan(digits)?;
    if unsigned.is_some() && number.mantissa != 0 {
        return Err(Problem::Negative);
    }
    Ok((number, unit.trim()))
}

fn scan(text: &str) -> Result<(Number, &str), Problem> {
    let lower: String = text
        .chars()
        .take(8)
        .map(|c| c.to_ascii_lowercase())
        .collect();
    if lower == "nan" || lower == "inf" || lower == "infinity" {
        return Err(Problem::NotFinite);
    }
    let whole_end = text
        .find(|c: char| !c.is_ascii_digit() && c != ',' && c != '_')
        .unwrap_or(text.len());
    let (whole, mut rest) = text.split_at(whole_end);
    check_commas(whole)?;
    let mut fraction = "";
    if let Some(after) = rest.strip_prefix('.') {
        let end = after
            .find(|c: char| !c.is_ascii_digit() && c != '_')
            .unwrap_or(after.len());
        (fraction, rest) = after.split_at(end);
        if rest.starts_with(',') {
            return Err(Problem::MisplacedComma);
        }
        if rest.starts_with('.') {
            return Err(Problem::NotANumber);
        }
    }
    let whole: String = whole.chars().filter(char::is_ascii_digit).collect();
    let fraction: String = fraction.chars().filter(char::is_ascii_digit).collect();
    if whole.is_empty() && fraction.is_empty() {
        return Err(Problem::NotANumber);
    }
    let (power, rest) = scan_exponent(rest);

    // Zeros at the end of a fraction carry no value and would only use up the digits of the mantissa.
    let kept = fraction.trim_end_matches('0');
    let mut mantissa = 0_u128;
    for digit in whole.bytes().chain(kept.bytes()) {
        mantissa = mantissa
            .checked_mul(10)
            .and_then(|m| m.checked_add(u128::from(digit - b'0')))
            .ok_or(if kept.is_empty() {
                Problem::TooLarge
            } else {
                Problem::TooManyDigits
            })?;
    }
    let exponent = power.saturating_sub(kept.len() as i64);
    let text = format!("{whole}.{fraction}e{power}");
    Ok((
        Number {
            mantissa,
            exponent,
            text,
        },
        rest,
    ))
}

/// Commas stand before groups of exactly three digits, after one to three leading ones.
fn check_commas(whole: &str) -> Result<(), Problem> {
    if !whole.contains(',') {
        return Ok(());
    }
    for (index, group) in whole.split(',').enumerate() {
        let fits = if index == 0 {
            (1..=3).contains(&group.len())
        } else {
            group.len() == 3
        };
        if !fits || group.contains('_') {
            return Err(Problem::MisplacedComma);
        }
    }
    Ok(())
}

/// An `e` is an exponent only before digits: in `1 EFLOP` it is exa.
fn scan_exponent(rest: &str) -> (i64, &str) {
    let Some(after) = rest.strip_prefix(['e', 'E']) else {
        return (0, rest);
    };
    let (sign, digits) = match after.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, after.strip_prefix('+').unwrap_or(after)),
    };
    let end = digits
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(digits.len());
    if end == 0 {
        return (0, rest);
    }
    // Beyond this every number is zero or too large, so the exact exponent does not matter.
    let power = digits[..end]
        .parse::<i64>()
        .unwrap_or(1_000_000)
        .min(1_000_000);
    (sign * power, &digits[end..])
}

impl Number {
    /// The number times `scale` times 10^`shift`, which must be whole.
    fn exact(&self, shift: i64, scale: u128) -> Result<u128, Problem> {
        let (value, whole) = self.scaled(shift, scale)?;
        if whole {
            Ok(value)
        } else {
            Err(Problem::NotWhole)
        }
    }

    /// The number times `scale` times 10^`shift`, rounded half up, and whether it was whole.
    fn scaled(&self, shift: i64, scale: u128) -> Result<(u128, bool), Problem> {
        let mut mantissa = self.mantissa;
        let mut exponent = self.exponent.saturating_add(shift);
        if mantissa == 0 {
            return Ok((0, true));
        }
        let mut whole = true;
        while exponent < 0 && mantissa.checked_mul(scale).is_none() {
            whole &= mantissa.is_multiple_of(10);
            mantissa /= 10;
            exponent += 1;
        }
        let value = mantissa.checked_mul(scale).ok_or(Problem::TooLarge)?;
        if exponent >= 0 {
            let power = u32::try_from(exponent)
                .ok()
                .and_then(|e| 10_u128.checked_pow(e));
            let value = power
                .and_then(|p| value.checked_mul(p))
                .ok_or(Problem::TooLarge)?;
            return Ok((value, whole));
        }
        let divisor = u32::try_from(-exponent)
            .ok()
            .and_then(|e| 10_u128.checked_pow(e));
        let Some(divisor) = divisor else {
            return Ok((0, false));
        };
        let (quotient, remainder) = (value / divisor, value % divisor);
        let rounded = quotient + u128::from(remainder >= divisor - remainder);
        Ok((rounded, whole && remainder == 0))
    }

    fn as_f64(&self) -> f64 {
        self.text.parse().unwrap_or(f64::INFINITY)
    }
}

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
    u64::try_from(value)
        .map(Bytes)
        .map_err(|_| Problem::TooLarge)
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
            let whole_digits = if scaled >= 1.0 {
                scaled.log10().floor() as i32 + 1
            } else {
                1
            };
            let decimals = (3 - whole_digits).max(0) as usize;
            let text = format!("{scaled:.decimals$}");
            let text = if text.contains('.') {
                text.trim_end_matches('0').trim_end_matches('.')
            } else {
                &text
            };
            format!("{text}e{power} bytes")
        }
        Ok((value, _)) => format!("{} bytes", group_digits(value)),
        Err(_) => "too large".to_owned(),
    };
    Problem::AmbiguousUnit {
        decimal: format!(
            "`{typed}{decimal_prefix}B` ({})",
            size(number.scaled(power, 1))
        ),
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
    if value.is_finite() {
        Ok(value)
    } else {
        Err(Problem::TooLarge)
    }
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn counts_are_exact() {
        for (text, value) in [
            ("15T", 15_000_000_000_000),
            ("70B", 70_000_000_000),
            ("70b", 70_000_000_000),
            ("70G", 70_000_000_000),
            ("1.5B", 1_500_000_000),
            ("8.030261248B", 8_030_261_248),
            ("1.5e12", 1_500_000_000_000),
            ("1.5E+12", 1_500_000_000_000),
            ("6.3e24", 6_300_000_000_000_000_000_000_000),
            ("1,024", 1_024),
            ("1,234,567", 1_234_567),
            ("1_000_000", 1_000_000),
            ("128k", 128_000),
            ("128 K", 128_000),
            ("1M", 1_000_000),
            ("2P", 2_000_000_000_000_000),
            (" +7 ", 7),
            ("-0", 0),
            (".5k", 500),
            ("5.", 5),
            ("1500e-2", 15),
            ("1.000000000000000000000000000000000000000000000", 1),
            ("0e999999999999999999999", 0),
            ("340282366920938463463374607431768211455", u128::MAX),
        ] {
            assert_eq!(parse_count(text), Ok(value), "{text}");
        }
        assert_eq!(
            "6.3e24".parse(),
            Ok(Flops(6_300_000_000_000_000_000_000_000))
        );
        assert_eq!(
            "6.30e24 FLOP".parse(),
            Ok(Flops(6_300_000_000_000_000_000_000_000))
        );
        assert_eq!("421.6 TFLOP".parse(), Ok(Flops(421_600_000_000_000)));
        assert_eq!("1EFLOP".parse(), Ok(Flops(1_000_000_000_000_000_000)));
        assert_eq!("70B".parse(), Ok(Params(70_000_000_000)));
        assert_eq!("15T".parse(), Ok(Tokens(15_000_000_000_000)));
    }

    #[test]
    fn refused_counts() {
        for (text, problem) in [
            ("", Problem::Empty),
            ("  ", Problem::Empty),
            ("-5", Problem::Negative),
            ("−5", Problem::Negative),
            ("NaN", Problem::NotFinite),
            ("-inf", Problem::NotFinite),
            ("Infinity", Problem::NotFinite),
            ("many", Problem::NotANumber),
            (".", Problem::NotANumber),
            ("1.2.3", Problem::NotANumber),
            ("--1", Problem::NotANumber),
            ("1,5", Problem::MisplacedComma),
            ("1024,000", Problem::MisplacedComma),
            ("1.5,000", Problem::MisplacedComma),
            ("1.5", Problem::NotWhole),
            ("1.2345k", Problem::NotWhole),
            ("1e-999999999999999999999", Problem::NotWhole),
            ("1e39", Problem::TooLarge),
            ("1e99999999999999999999", Problem::TooLarge),
            ("340282366920938463463374607431768211456", Problem::TooLarge),
            (
                "0.12345678901234567890123456789012345678901",
                Problem::TooManyDigits,
            ),
            ("5 apples", Problem::UnknownUnit("apples".into())),
            ("5E", Problem::UnknownUnit("E".into())),
            ("1e", Problem::UnknownUnit("e".into())),
            ("70GB", Problem::UnknownUnit("GB".into())),
        ] {
            assert_eq!(parse_count(text).unwrap_err().problem, problem, "{text}");
        }
        assert_eq!(
            "1e20".parse::<Tokens>().unwrap_err().problem,
            Problem::TooLarge
        );
        assert_eq!(
            "-5".parse::<Tokens>().unwrap_err().to_string(),
            format!("token count `-5` is negative; accepted: {COUNT_FORMS}")
        );
    }

    #[test]
    fn memory_sizes() {
        for (text, value) in [
            ("80GB", 80_000_000_000),
            ("80gb", 80_000_000_000),
            ("80GiB", 85_899_345_920),
            ("80 gib", 85_899_345_920),
            ("786.00 MiB", 824_180_736),
            ("512B", 512),
            ("1.5TiB", 1_649_267_441_664),
            ("1024", 1024),
            ("81,559 MiB", 85_520_809_984),
            ("4kB", 4_000),
            ("4KB", 4_000),
            ("4 bytes", 4),
            (
                "0.3333333333333333333333333333333333333 PiB",
                375_299_968_947_541,
            ),
            ("16 EiB", 0),
        ] {
            let parsed = text.parse::<Bytes>();
            if text == "16 EiB" {
                assert_eq!(parsed.unwrap_err().problem, Problem::TooLarge);
            } else {
                assert_eq!(parsed, Ok(Bytes(value)), "{text}");
            }
        }
    }

    #[test]
    fn sizes_without_a_clear_unit_are_refused_with_both_readings() {
        for (text, message) in [
            (
                "80G",
                "memory size `80G` has no clear unit: write `80GB` (80e9 bytes) or `80GiB` (85.9e9 bytes)",
            ),
            (
                "80g",
                "memory size `80g` has no clear unit: write `80GB` (80e9 bytes) or `80GiB` (85.9e9 bytes)",
            ),
            (
                "1.5 T",
                "memory size `1.5 T` has no clear unit: write `1.5TB` (1.5e12 bytes) or `1.5TiB` (1.65e12 bytes)",
            ),
            (
                "512K",
                "memory size `512K` has no clear unit: write `512kB` (512e3 bytes) or `512KiB` (524e3 bytes)",
            ),
            (
                "80M",
                "memory size `80M` has no clear unit: write `80MB` (80e6 bytes) or `80MiB` (83.9e6 bytes)",
            ),
            (
                "0G",
                "memory size `0G` has no clear unit: write `0GB` (0 bytes) or `0GiB` (0 bytes)",
            ),
        ] {
            assert_eq!(text.parse::<Bytes>().unwrap_err().to_string(), message);
        }
        for (text, problem) in [
            ("80Gb", Problem::Bits),
            ("80Gib", Problem::Bits),
            ("8 bits", Problem::Bits),
            ("1.5B", Problem::NotWhole),
            ("80XB", Problem::UnknownUnit("XB".into())),
            ("80GBB", Problem::UnknownUnit("GBB".into())),
            ("GB", Problem::NotANumber),
            ("-80GB", Problem::Negative),
            ("1e30GB", Problem::TooLarge),
        ] {
            assert_eq!(
                text.parse::<Bytes>().unwrap_err().problem,
                problem,
                "{text}"
            );
        }
    }

    #[test]
    fn times() {
        for (text, value) in [
            ("0.16", 0.16),
            ("30ms", 0.03),
            ("14d", 1_209_600.0),
            ("14 days", 1_209_600.0),
            ("6h", 21_600.0),
            ("90s", 90.0),
            ("10us", 1e-5),
            ("2.17 µs", 2.17e-6),
            ("2.17 μs", 2.17e-6),
            ("5min", 300.0),
            ("1e-3", 1e-3),
        ] {
            assert_eq!(text.parse::<Seconds>().unwrap().get(), value, "{text}");
        }
        for (text, problem) in [
            ("", Problem::Empty),
            ("-1s", Problem::Negative),
            ("inf", Problem::NotFinite),
            ("1e400", Problem::TooLarge),
            ("1e308 days", Problem::TooLarge),
            ("3 moons", Problem::UnknownUnit("moons".into())),
        ] {
            assert_eq!(
                text.parse::<Seconds>().unwrap_err().problem,
                problem,
                "{text}"
            );
        }
    }

    #[test]
    fn shares() {
        assert_eq!("0.4".parse(), Mfu::new(0.4).map_err(|_| unreachable!()));
        assert_eq!("40%".parse::<Mfu>().unwrap().get(), 0.4);
        assert_eq!("104 %".parse::<Hfu>().unwrap().get(), 1.04);
        assert_eq!(
            "40".parse::<Mfu>().unwrap_err().to_string(),
            "MFU `40` is above 1: write `40%` if it is a percentage; accepted: 0.4, 40%"
        );
    }

    #[test]
    fn errors_quote_no_more_than_a_line_and_no_escapes() {
        let error = "\u{1b}[31m".repeat(1000).parse::<Bytes>().unwrap_err();
        assert_eq!(error.input.chars().count(), QUOTED + 1);
        assert!(!error.to_string().contains('\u{1b}'));
    }

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() <= 0.005_001 * a.abs().max(b.abs())
    }

    proptest! {
        #[test]
        fn no_string_panics(text in any::<String>(), tail in "[-+0-9.,_eE]{0,50}[kKMGTPEiBbFLOPsmdhµ% ]{0,5}") {
            for text in [&text, &tail, &format!("{tail}{text}")] {
                let _ = parse_count(text).map_err(|e| e.to_string());
                let _ = text.parse::<Flops>().map_err(|e| e.to_string());
                let _ = text.parse::<Bytes>().map_err(|e| e.to_string());
                let _ = text.parse::<Seconds>().map_err(|e| e.to_string());
                let _ = text.parse::<Mfu>().map_err(|e| e.to_string());
            }
        }

        #[test]
        fn integers_are_exact(value in any::<u128>(), bytes in any::<u64>()) {
            prop_assert_eq!(parse_count(&value.to_string()), Ok(value));
            prop_assert_eq!(parse_count(&group_digits(value)), Ok(value));
            prop_assert_eq!(bytes.to_string().parse(), Ok(Bytes(bytes)));
            prop_assert_eq!(format!("{bytes} B").parse(), Ok(Bytes(bytes)));
        }

        #[test]
        fn fractions_of_a_suffix_are_exact(millis in 0_u64..u64::MAX / 1_000_000_000) {
            let text = format!("{}.{:03}B", millis / 1000, millis % 1000);
            prop_assert_eq!(parse_count(&text), Ok(u128::from(millis) * 1_000_000));
        }

        #[test]
        fn display_reads_back(bits in 0_u32..64, low in any::<u64>(), flops in any::<u128>()) {
            let value = (1_u64 << bits) | (low & ((1_u64 << bits) - 1));
            prop_assume!(value < 15 << 60);
            let read = Params(value).to_string().parse::<Params>().unwrap();
            prop_assert!(close(read.as_f64(), value as f64), "{}", Params(value));
            for text in [Bytes(value).iec(), Bytes(value).iec_fixed(2), Bytes(value).si()] {
                let read = text.parse::<Bytes>().unwrap();
                prop_assert!(close(read.as_f64(), value as f64), "{}", text);
            }
            let flops = Flops(flops >> (2 * bits));
            prop_assume!(flops.0 < 3 * 10_u128.pow(38));
            let read = flops.to_string().parse::<Flops>().unwrap();
            prop_assert!(close(read.as_f64(), flops.as_f64()), "{}", flops);
            let seconds = Seconds::new(value as f64 * 1e-12).unwrap();
            let read = seconds.to_string().parse::<Seconds>().unwrap();
            prop_assert!(close(read.get(), seconds.get()), "{}", seconds);
        }
    }
}
