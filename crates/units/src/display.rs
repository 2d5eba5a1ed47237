//! Numbers to text. A space stands before every unit; GiB and GB never share a number.
//!
//! Counts and memory take three significant digits. Times and rates are measured quantities that people compare, so
//! they keep at least one decimal: `143.9 days`, `989.5 TFLOP/s`, but `3.35 TB/s`.

use std::fmt;

use crate::counts::{Bytes, Flops, Params, Tokens};
use crate::rates::{BytesPerSecond, FlopPerByte, FlopPerSecond, Hfu, Mfu, Seconds, TokensPerSecond};

mod rounded;
#[cfg(test)]
mod tests;

use rounded::Rounded;

const DIGITS: usize = 3;
const SI: [&str; 7] = ["", "k", "M", "G", "T", "P", "E"];
const IEC: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
/// Names of the short scale people use for counts of parameters and tokens.
const SHORT: [&str; 6] = ["", "K", "M", "B", "T", "P"];
/// Below this a parameter or token count is printed whole: `1,024`, not `1.02 K`.
const WHOLE_BELOW: u64 = 10_000;

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
        Some(prefix) => format!("{} {prefix}{unit}", measured(value / 10_f64.powi(step as i32 * 3))),
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
    if text == "-0.0 %" { "0.0 %".to_owned() } else { text }
}

fn count_text(value: u64, digits: usize) -> String {
    if value < WHOLE_BELOW {
        return group_digits(u128::from(value));
    }
    let (number, prefix) = Rounded::of_integer(u128::from(value), digits).prefixed(&SHORT);
    if prefix.is_empty() { number } else { format!("{number} {prefix}") }
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
        if prefix.is_empty() { format!("{number} tok/s") } else { format!("{number} {prefix} tok/s") }
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
        .map_or((value / 86_400.0, "days"), |(number, unit, _)| (number, unit));
    if !(1e-3..1e15).contains(&number) {
        format!("{} {unit}", Rounded::of_f64(number, DIGITS).scientific())
    } else if number.fract() == 0.0 {
        format!("{} {unit}", group_digits(number as u128))
    } else {
        format!("{} {unit}", measured(number))
    }
}
