//! The decimal number at the start of a text, kept exactly.

use super::error::Problem;

/// `mantissa x 10^exponent`, and the text it was written in.
pub(super) struct Number {
    mantissa: u128,
    exponent: i64,
    /// Digits without separators, as Rust's float parser reads them.
    text: String,
}

/// Splits a text into the number it starts with and the unit behind it.
pub(super) fn split(input: &str) -> Result<(Number, &str), Problem> {
    let text = input.trim();
    if text.is_empty() {
        return Err(Problem::Empty);
    }
    let unsigned = text.strip_prefix(['-', '−']);
    let digits = unsigned.or_else(|| text.strip_prefix('+')).unwrap_or(text).trim_start();
    let (number, unit) = scan(digits)?;
    if unsigned.is_some() && number.mantissa != 0 {
        return Err(Problem::Negative);
    }
    Ok((number, unit.trim()))
}

fn scan(text: &str) -> Result<(Number, &str), Problem> {
    let lower: String = text.chars().take(8).map(|c| c.to_ascii_lowercase()).collect();
    if lower == "nan" || lower == "inf" || lower == "infinity" {
        return Err(Problem::NotFinite);
    }
    let whole_end = text.find(|c: char| !c.is_ascii_digit() && c != ',' && c != '_').unwrap_or(text.len());
    let (whole, mut rest) = text.split_at(whole_end);
    check_commas(whole)?;
    let mut fraction = "";
    if let Some(after) = rest.strip_prefix('.') {
        let end = after.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(after.len());
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
            .ok_or(if kept.is_empty() { Problem::TooLarge } else { Problem::TooManyDigits })?;
    }
    let exponent = power.saturating_sub(kept.len() as i64);
    let text = format!("{whole}.{fraction}e{power}");
    Ok((Number { mantissa, exponent, text }, rest))
}

/// Commas stand before groups of exactly three digits, after one to three leading ones.
fn check_commas(whole: &str) -> Result<(), Problem> {
    if !whole.contains(',') {
        return Ok(());
    }
    for (index, group) in whole.split(',').enumerate() {
        let fits = if index == 0 { (1..=3).contains(&group.len()) } else { group.len() == 3 };
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
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    if end == 0 {
        return (0, rest);
    }
    // Beyond this every number is zero or too large, so the exact exponent does not matter.
    let power = digits[..end].parse::<i64>().unwrap_or(1_000_000).min(1_000_000);
    (sign * power, &digits[end..])
}

impl Number {
    /// The number times `scale` times 10^`shift`, which must be whole.
    pub(super) fn exact(&self, shift: i64, scale: u128) -> Result<u128, Problem> {
        let (value, whole) = self.scaled(shift, scale)?;
        if whole { Ok(value) } else { Err(Problem::NotWhole) }
    }

    /// The number times `scale` times 10^`shift`, rounded half up, and whether it was whole.
    pub(super) fn scaled(&self, shift: i64, scale: u128) -> Result<(u128, bool), Problem> {
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
            let power = u32::try_from(exponent).ok().and_then(|e| 10_u128.checked_pow(e));
            let value = power.and_then(|p| value.checked_mul(p)).ok_or(Problem::TooLarge)?;
            return Ok((value, whole));
        }
        let divisor = u32::try_from(-exponent).ok().and_then(|e| 10_u128.checked_pow(e));
        let Some(divisor) = divisor else {
            return Ok((0, false));
        };
        let (quotient, remainder) = (value / divisor, value % divisor);
        let rounded = quotient + u128::from(remainder >= divisor - remainder);
        Ok((rounded, whole && remainder == 0))
    }

    pub(super) fn as_f64(&self) -> f64 {
        self.text.parse().unwrap_or(f64::INFINITY)
    }
}
