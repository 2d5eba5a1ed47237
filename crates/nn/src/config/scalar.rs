//! Reading a JSON scalar as a size, a rate or a switch, with everything that can be wrong about it.

use super::json::{Kind, Value};
use super::tokens::is_json_number;

/// Largest value of one size. The largest real one, a token count, is about 2^24.
pub const MAX_SIZE: u64 = 1 << 40;

/// Most blocks of a model: unlike widths they cost time and memory of their own here. The deepest published Transformer
/// has 1,000.
pub const MAX_LAYERS: u64 = 1024;

/// A scalar that was understood.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scalar<T> {
    /// Its value.
    pub value: T,
    /// How it was written, if that is not the usual way for its kind ("a string", "a number").
    pub odd_form: Option<&'static str>,
}

/// Why a scalar cannot be used.
#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    /// Diagnostic code: `T0202` wrong kind, `T0204` out of range.
    pub code: &'static str,
    /// Continues "`key` is ...": for example "negative".
    pub is: String,
    /// What would be right.
    pub expected: &'static str,
}

fn refuse<T>(code: &'static str, is: impl Into<String>, expected: &'static str) -> Result<T, Refusal> {
    Err(Refusal { code, is: is.into(), expected })
}

/// The number that `value` holds, also if it is written as a string, and whether it was.
fn number_text(value: &Value, expected: &'static str) -> Result<(String, bool), Refusal> {
    match &value.kind {
        Kind::Number(text) => Ok((text.to_string(), false)),
        Kind::String(text) => match plain_number(text) {
            Some(plain) => Ok((plain, true)),
            None => refuse("T0202", "a string that is not a number", expected),
        },
        _ => refuse("T0202", value.kind_name(), expected),
    }
}

/// `text` without thousands separators, if it is a number beyond doubt.
///
/// "32.000" is 32 to one reader and 32 thousand to another, so a fraction of exactly three digits is refused.
fn plain_number(text: &str) -> Option<String> {
    let text = text.trim();
    for separator in [',', '_'] {
        if text.contains(separator) {
            let mut groups = text.split(separator);
            let first = groups.next().unwrap_or("");
            let digits = |group: &str| group.bytes().all(|byte| byte.is_ascii_digit());
            let grouped = (1..=3).contains(&first.len()) && digits(first) && groups.all(|g| g.len() == 3 && digits(g));
            return grouped.then(|| text.replace(separator, ""));
        }
    }
    let doubtful = text.split_once('.').is_some_and(|(_, fraction)| fraction.len() == 3);
    (is_json_number(text) && !doubtful).then(|| text.to_owned())
}

/// `value` as a whole number from `least` to [`MAX_SIZE`].
pub fn whole(value: &Value, least: u64) -> Result<Scalar<u64>, Refusal> {
    let expected = if least == 0 { "a whole number, 0 or more" } else { "a positive whole number" };
    let (text, from_string) = number_text(value, expected)?;
    if matches!(text.as_str(), "NaN" | "Infinity" | "-Infinity") {
        return refuse("T0204", format!("`{text}`"), expected);
    }
    let read = if let Ok(whole) = text.parse::<u64>() {
        whole
    } else {
        let float: f64 = text.parse().unwrap_or(f64::NAN);
        if float < 0.0 {
            return refuse("T0204", "negative", expected);
        }
        if float > MAX_SIZE as f64 {
            return refuse("T0204", "too large", "at most 2^40 = 1,099,511,627,776");
        }
        if !float.is_finite() || float.fract() != 0.0 {
            return refuse("T0204", "not a whole number", expected);
        }
        float as u64
    };
    if read > MAX_SIZE {
        return refuse("T0204", "too large", "at most 2^40 = 1,099,511,627,776");
    }
    if read < least {
        return refuse("T0204", "zero", expected);
    }
    Ok(Scalar { value: read, odd_form: from_string.then_some("a string") })
}

/// `value` as a number of blocks.
pub fn layers(value: &Value) -> Result<Scalar<u64>, Refusal> {
    let read = whole(value, 1)?;
    if read.value > MAX_LAYERS { refuse("T0204", "too large", "at most 1,024 blocks") } else { Ok(read) }
}

/// `value` as a finite number.
pub fn finite(value: &Value) -> Result<Scalar<f64>, Refusal> {
    let expected = "a finite number";
    let (text, from_string) = number_text(value, expected)?;
    let read: f64 = if text == "NaN" { f64::NAN } else { text.parse().unwrap_or(f64::INFINITY) };
    if !read.is_finite() {
        let shown: String = text.chars().take(24).collect();
        return refuse("T0204", format!("`{shown}`"), expected);
    }
    Ok(Scalar { value: read, odd_form: from_string.then_some("a string") })
}

/// `value` as a switch; `"true"`, `"False"`, 0 and 1 are understood too.
pub fn switch(value: &Value) -> Result<Scalar<bool>, Refusal> {
    let (read, odd_form) = match &value.kind {
        Kind::Bool(flag) => (*flag, None),
        Kind::String(text) if text.eq_ignore_ascii_case("true") => (true, Some("a string")),
        Kind::String(text) if text.eq_ignore_ascii_case("false") => (false, Some("a string")),
        Kind::Number(text) if &**text == "0" => (false, Some("a number")),
        Kind::Number(text) if &**text == "1" => (true, Some("a number")),
        _ => return refuse("T0202", value.kind_name(), "true or false"),
    };
    Ok(Scalar { value: read, odd_form })
}

/// `value` in a few characters, for messages and for the list of keys that were read.
pub fn short(value: &Value) -> String {
    match &value.kind {
        Kind::Null => "null".to_owned(),
        Kind::Bool(flag) => flag.to_string(),
        Kind::Number(text) => clip(text),
        Kind::String(text) => format!("\"{}\"", clip(text)),
        Kind::Array(items) => match items.as_slice() {
            [] => "[]".to_owned(),
            [one] => format!("[{}]", short_item(one)),
            [first, .., last] => format!("[{} .. {}] ({} items)", short_item(first), short_item(last), items.len()),
        },
        Kind::Object(members) => format!("{{{} keys}}", members.len()),
    }
}

fn short_item(value: &Value) -> String {
    match &value.kind {
        Kind::Array(items) => format!("[{} items]", items.len()),
        _ => short(value),
    }
}

fn clip(text: &str) -> String {
    let mut shown: String = text.chars().take(48).collect();
    if shown.len() < text.len() {
        shown.push_str("...");
    }
    shown
}
