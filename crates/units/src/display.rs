//! Numbers to text. A space stands before every unit; GiB and GB never share a number.
//!
//! Counts and memory take three significant digits. Times and rates are measured quantities that people compare, so
//! they keep at least one decimal: `143.9 days`, `989.5 TFLOP/s`, but `3.35 TB/s`.

use std::fmt;

use crate::counts::{Bytes, Flops, Params, Tokens};
use crate::rates::{
    BytesPerSecond, FlopPerByte, FlopPerSecond, Hfu, Mfu, Seconds, TokensPerSecond,
};

const DIGITS: usize = 3;
const SI: [&str; 7] = ["", "k", "M", "G", "T", "P", "E"];
const IEC: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
/// Names of the short scale people use for counts of parameters and tokens.
const SHORT: [&str; 6] = ["", "K", "M", "B", "T", "P"];
/// Below this a parameter or token count is printed whole: `1,024`, not `1.02 K`.
const WHOLE_BELOW: u64 = 10_000;

/// A positive number rounded to some significant digits: `0.d1d2d3... x 10^(exponent + 1)`.
struct Rounded {
    digits: String,
    exponent: i32,
}

impl Rounded {
    fn of_f64(value: f64, digits: usize) -> Self {
        let text = format!("{:.*e}", digits.clamp(1, 60) - 1, value);
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        Self {
            digits: mantissa.chars().filter(char::is_ascii_digit).collect(),
            exponent: exponent.parse().unwrap_or(0),
        }
    }

    /// Rounds half up on the integer itself: floats would lose the digits above 2^53.
    fn of_integer(value: u128, digits: usize) -> Self {
        let digits = digits.clamp(1, 60);
        let text = value.to_string();
        let mut exponent = text.len() as i32 - 1;
        if text.len() <= digits {
            return Self {
                digits: format!("{text:0<digits$}"),
                exponent,
            };
        }
        let mut kept = text.as_bytes()[..digits].to_vec();
        if text.as_bytes()[digits] >= b'5' {
            let nines = kept
                .iter()
                .rev()
                .take_while(|&&digit| digit == b'9')
                .count();
            let first_nine = digits - nines;
            kept[first_nine..].fill(b'0');
            if first_nine == 0 {
                kept[0] = b'1';
                exponent += 1;
            } else {
                kept[first_nine - 1] += 1;
            }
        }
        Self {
            digits: kept.into_iter().map(char::from).collect(),
            exponent,
        }
    }

    /// Decimal text of the number divided by 10^shift, for a shift not above the exponent.
    fn shifted(&self, shift: i32) -> String {
        let whole = (self.exponent - shift + 1).max(1) as usize;
        if whole >= self.digits.len() {
            format!("{:0<whole$}", self.digits)
        } else {
            format!("{}.{}", &self.digits[..whole], &self.digits[whole..])
        }
    }

    fn scientific(&self) -> String {
        format!("{}e{}", self.shifted(self.exponent), self.exponent)
    }

    /// Text and prefix; scientific where the prefixes end.
    fn prefixed(&self, prefixes: &[&'static str]) -> (String, &'static str) {
        let step = self.exponent.max(0) / 3;
        match prefixes.get(step as usize) {
            Some(prefix) => (self.shifted(step * 3), prefix),
            None => (self.scientific(), ""),
        }
    }
}

/// Three digits or one decimal, whichever is more; plain notation.
fn measured(value: f64) -> String {
    if value >= 1000.0 {
        let text = format!("{value:.1}");
        let (whole, tenth) = text.split_once('.').unwrap_or((&text, "0"));
        return format!("{}.{tenth}", group_text(whole));
    }
    // The rounded exponent, so that 99.96 is 100.0 and not 99.96 or 100.00.
    let whole_digits = Rounded::of_f64(value, DIGITS).exponent + 1;
    let decimals = (DIGITS as i32 - whole_digits).clamp(1, 12) as usize;
    format!("{value:.decimals$}")
}

fn measured_si(value: f64, unit: &str) -> String {
    if value == 0.0 {
        return format!("0 {unit}");
    }
    if !value.is_finite() {
        return format!("inf {unit}");
    }
    let step = (Rounded::of_f64(value, DIGITS + 1).exponent.max(0) / 3) as usize;
    match SI.get(step) {
        Some(prefix) => format!(
            "{} {prefix}{unit}",
            measured(value / 10_f64.powi(step as i32 * 3))
        ),
        None => format!("{} {unit}", Rounded::of_f64(value, DIGITS).scientific()),
    }
}

fn group_text(digits: &str) -> String {
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// The whole integer with a comma between thousands: `1,024`.
pub fn group_digits(value: u128) -> String {
    group_text(&value.to_string())
}

/// A ratio as a percentage with one decimal: `40.0 %`. A ratio that is no number prints `n/a`.
pub fn percent(ratio: f64) -> String {
    if !ratio.is_finite() {
        return "n/a".to_owned();
    }
    let text = format!("{:.1} %", ratio * 100.0);
    if text == "-0.0 %" {
        "0.0 %".to_owned()
    } else {
        text
    }
}

fn count_text(value: u64, digits: usize) -> String {
    if value < WHOLE_BELOW {
        return group_digits(u128::from(value));
    }
    let (number, prefix) = Rounded::of_integer(u128::from(value), digits).prefixed(&SHORT);
    if prefix.is_empty() {
        number
    } else {
        format!("{number} {prefix}")
    }
}

/// Writes through `pad`, so that `{:>12}` aligns columns.
macro_rules! display {
    ($($name:ident => |$value:ident| $text:expr;)+) => {
        $(
            impl fmt::Display for $name {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    let $value = *self;
                    f.pad(&$text)
                }
            }
        )+
    };
}

display! {
    Params => |value| value.with_digits(DIGITS);
    Tokens => |value| value.with_digits(DIGITS);
    Flops => |value| value.with_digits(DIGITS);
    Bytes => |value| value.iec();
    FlopPerSecond => |value| measured_si(value.get(), "FLOP/s");
    BytesPerSecond => |value| measured_si(value.get(), "B/s");
    TokensPerSecond => |value| tokens_per_second(value.get());
    Seconds => |value| seconds(value.get());
    FlopPerByte => |value| flop_per_byte(value.get());
    Mfu => |value| percent(value.get());
    Hfu => |value| percent(value.get());
}

impl Params {
    /// The count with `digits` significant digits: `8.03 B`; whole below 10,000.
    pub fn with_digits(self, digits: usize) -> String {
        count_text(self.0, digits)
    }
}

impl Tokens {
    /// The count with `digits` significant digits: `15.0 T`; whole below 10,000.
    pub fn with_digits(self, digits: usize) -> String {
        count_text(self.0, digits)
    }
}

impl Flops {
    /// The count with `digits` significant digits: `51.47 GFLOP` for 4; `6.30e24 FLOP` from 1e21 on.
    pub fn with_digits(self, digits: usize) -> String {
        if self.0 < 1000 {
            return format!("{} FLOP", self.0);
        }
        let (number, prefix) = Rounded::of_integer(self.0, digits).prefixed(&SI);
        format!("{number} {prefix}FLOP")
    }
}

impl Bytes {
    /// Powers of 1024 with three significant digits: `69.3 GiB`; exact below 1 KiB: `496 B`.
    pub fn iec(self) -> String {
        self.iec_with(|value| {
            let whole_digits = Rounded::of_f64(value, DIGITS).exponent + 1;
            DIGITS.saturating_sub(whole_digits as usize)
        })
    }

    /// Powers of 1024 with a fixed number of decimals: `69.26 GiB` for 2; exact below 1 KiB.
    pub fn iec_fixed(self, decimals: usize) -> String {
        self.iec_with(|_| decimals)
    }

    fn iec_with(self, decimals: impl Fn(f64) -> usize) -> String {
        if self.0 < 1024 {
            return format!("{} B", group_digits(u128::from(self.0)));
        }
        let mut step = self.0.ilog2() as usize / 10;
        loop {
            let value = self.0 as f64 / (1_u64 << (10 * step)) as f64;
            let text = format!("{value:.*}", decimals(value));
            let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
            if whole == "1024" && step + 1 < IEC.len() {
                step += 1;
                continue;
            }
            let dot = if fraction.is_empty() { "" } else { "." };
            return format!("{}{dot}{fraction} {}", group_text(whole), IEC[step]);
        }
    }

    /// Powers of 1000 with three significant digits: `85.5 GB`; exact below 1 kB.
    pub fn si(self) -> String {
        self.si_with_digits(DIGITS)
    }

    /// Powers of 1000 with `digits` significant digits: `20.97 MB` for 4; exact below 1 kB.
    pub fn si_with_digits(self, digits: usize) -> String {
        if self.0 < 1000 {
            return format!("{} B", self.0);
        }
        let (number, prefix) = Rounded::of_integer(u128::from(self.0), digits).prefixed(&SI);
        format!("{number} {prefix}B")
    }
}

fn tokens_per_second(value: f64) -> String {
    if value == 0.0 {
        "0 tok/s".to_owned()
    } else if !value.is_finite() {
        "inf tok/s".to_owned()
    } else if value < 999.5 {
        let rounded = Rounded::of_f64(value, DIGITS);
        let decimals = (DIGITS as i32 - 1 - rounded.exponent).clamp(0, 12) as usize;
        format!("{value:.decimals$} tok/s")
    } else if value < 999_999.5 {
        format!("{} tok/s", group_digits(value.round() as u128))
    } else {
        let (number, prefix) = Rounded::of_f64(value, DIGITS).prefixed(&SHORT);
        if prefix.is_empty() {
            format!("{number} tok/s")
        } else {
            format!("{number} {prefix} tok/s")
        }
    }
}

fn flop_per_byte(value: f64) -> String {
    if value == 0.0 {
        "0 FLOP/B".to_owned()
    } else if !value.is_finite() {
        "inf FLOP/B".to_owned()
    } else if value < 1e15 {
        format!("{} FLOP/B", measured(value))
    } else {
        format!("{} FLOP/B", Rounded::of_f64(value, DIGITS).scientific())
    }
}

/// Units of time with the value from which the next one is used: 999.95 already rounds to 1000.0.
const TIMES: [(f64, &str, f64); 6] = [
    (1e-9, "ns", 999.95),
    (1e-6, "µs", 999.95),
    (1e-3, "ms", 999.95),
    (1.0, "s", 60.0),
    (60.0, "min", 60.0),
    (3600.0, "h", 48.0),
];

fn seconds(value: f64) -> String {
    if value == 0.0 {
        return "0 s".to_owned();
    }
    if !value.is_finite() {
        return "inf s".to_owned();
    }
    let (number, unit) = TIMES
        .iter()
        .map(|&(scale, unit, limit)| (value / scale, unit, limit))
        .find(|&(number, _, limit)| number < limit)
        .map_or((value / 86_400.0, "days"), |(number, unit, _)| {
            (number, unit)
        });
    if !(1e-3..1e15).contains(&number) {
        format!("{} {unit}", Rounded::of_f64(number, DIGITS).scientific())
    } else if number.fract() == 0.0 {
        format!("{} {unit}", group_digits(number as u128))
    } else {
        format!("{} {unit}", measured(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts() {
        for (value, text) in [
            (0, "0"),
            (1_024, "1,024"),
            (9_999, "9,999"),
            (131_072, "131 K"),
            (999_950, "1.00 M"),
            (3_540_000, "3.54 M"),
            (8_030_261_248, "8.03 B"),
            (42_800_000_000, "42.8 B"),
            (15_000_000_000_000, "15.0 T"),
            (u64::MAX, "1.84e19"),
        ] {
            assert_eq!(Params(value).to_string(), text);
            assert_eq!(Tokens(value).to_string(), text);
        }
        assert_eq!(Params(8_030_261_248).with_digits(5), "8.0303 B");
        assert_eq!(format!("[{:>8}]", Params(8_030_261_248)), "[  8.03 B]");
    }

    #[test]
    fn flops() {
        for (value, digits, text) in [
            (0, 3, "0 FLOP"),
            (496, 3, "496 FLOP"),
            (1_000, 3, "1.00 kFLOP"),
            (51_470_000_000, 3, "51.5 GFLOP"),
            (51_470_000_000, 4, "51.47 GFLOP"),
            (421_600_000_000_000, 3, "422 TFLOP"),
            (421_600_000_000_000, 4, "421.6 TFLOP"),
            (999_999, 3, "1.00 MFLOP"),
            (999_000_000_000_000_000_000, 3, "999 EFLOP"),
            (999_999_000_000_000_000_000, 3, "1.00e21 FLOP"),
            (6_300_000_000_000_000_000_000_000, 3, "6.30e24 FLOP"),
            (u128::MAX, 3, "3.40e38 FLOP"),
            (1_234_567, 0, "1 MFLOP"),
            (123_456, 1, "100 kFLOP"),
            (1_234, 9, "1.23400000 kFLOP"),
        ] {
            assert_eq!(Flops(value).with_digits(digits), text);
        }
    }

    #[test]
    fn memory() {
        for (value, iec, fixed, si) in [
            (0, "0 B", "0 B", "0 B"),
            (496, "496 B", "496 B", "496 B"),
            (1_000, "1,000 B", "1,000 B", "1.00 kB"),
            (1_024, "1.00 KiB", "1.00 KiB", "1.02 kB"),
            (824_180_736, "786 MiB", "786.00 MiB", "824 MB"),
            (74_371_858_432, "69.3 GiB", "69.26 GiB", "74.4 GB"),
            (85_520_809_984, "79.6 GiB", "79.65 GiB", "85.5 GB"),
            (1_047_552, "1,023 KiB", "1,023.00 KiB", "1.05 MB"),
            (1_048_575, "1.00 MiB", "1.00 MiB", "1.05 MB"),
            (u64::MAX, "16.0 EiB", "16.00 EiB", "18.4 EB"),
        ] {
            assert_eq!(Bytes(value).iec(), iec);
            assert_eq!(Bytes(value).to_string(), iec);
            assert_eq!(Bytes(value).iec_fixed(2), fixed);
            assert_eq!(Bytes(value).si(), si);
        }
        assert_eq!(Bytes(20_971_520).si_with_digits(4), "20.97 MB");
    }

    #[test]
    fn times() {
        for (value, text) in [
            (0.0, "0 s"),
            (2.17e-6, "2.17 µs"),
            (6.5e-8, "65 ns"),
            (0.1581, "158.1 ms"),
            (0.01970, "19.7 ms"),
            (0.99996, "1.00 s"),
            (1.31, "1.31 s"),
            (38.0, "38 s"),
            (59.96, "60.0 s"),
            (60.0, "1 min"),
            (90.0, "1.50 min"),
            (51_120.0, "14.2 h"),
            (143.92 * 86_400.0, "143.9 days"),
            (1_209_600.0, "14 days"),
            (1234.56 * 86_400.0, "1,234.6 days"),
            (1e-15, "1.00e-6 ns"),
            (f64::MAX, "2.08e303 days"),
        ] {
            assert_eq!(Seconds::new(value).unwrap().to_string(), text, "{value:e}");
        }
    }

    #[test]
    fn rates() {
        for (value, text) in [
            (0.0, "0 FLOP/s"),
            (12.0, "12.0 FLOP/s"),
            (989.5e12, "989.5 TFLOP/s"),
            (506.624e15, "506.6 PFLOP/s"),
            (102.9e9, "102.9 GFLOP/s"),
            (999.99e9, "1.00 TFLOP/s"),
            (999.96, "1.00 kFLOP/s"),
            (1e21, "1.00e21 FLOP/s"),
        ] {
            assert_eq!(
                FlopPerSecond::new(value).unwrap().to_string(),
                text,
                "{value:e}"
            );
        }
        assert_eq!(BytesPerSecond::tera(3.35).to_string(), "3.35 TB/s");
        for (value, text) in [
            (4_812.3, "4,812 tok/s"),
            (33.14, "33.1 tok/s"),
            (0.5, "0.500 tok/s"),
            (1.5e6, "1.50 M tok/s"),
        ] {
            assert_eq!(TokensPerSecond::new(value).unwrap().to_string(), text);
        }
    }

    #[test]
    fn shares() {
        for (value, text) in [
            (0.4, "40.0 %"),
            (1.04, "104.0 %"),
            (-0.545, "-54.5 %"),
            (-0.0001, "0.0 %"),
            (f64::NAN, "n/a"),
        ] {
            assert_eq!(percent(value), text);
        }
        assert_eq!(Mfu::new(0.331).unwrap().to_string(), "33.1 %");
    }

    #[test]
    fn thousands() {
        for (value, text) in [
            (0, "0"),
            (999, "999"),
            (1_024, "1,024"),
            (8_912_896_000, "8,912,896,000"),
        ] {
            assert_eq!(group_digits(value), text);
        }
    }
}
