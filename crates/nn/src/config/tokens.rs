//! The words of the strict JSON reader: strings, numbers, literals, white space.

use super::json::Kind;
use super::parser::{Parser, Stop};
use super::source::Span;

impl Parser<'_> {
    pub(super) fn word(&mut self) -> Result<Kind, Stop> {
        let span = self.token_span();
        let token = self.source.slice(span).to_owned();
        self.at = span.end as usize;
        match token.as_str() {
            "null" => return Ok(Kind::Null),
            "true" => return Ok(Kind::Bool(true)),
            "false" => return Ok(Kind::Bool(false)),
            "NaN" | "Infinity" | "-Infinity" => {
                self.not_finite(span, &token);
                return Ok(Kind::Number(token.into_boxed_str()));
            }
            number if is_json_number(number) => return Ok(Kind::Number(token.into_boxed_str())),
            _ => {}
        }
        if self.at == self.bytes.len()
            && ["null", "true", "false", "NaN", "Infinity"].iter().any(|w| w.starts_with(&token))
        {
            return Err(self.truncated(Some(span.start as usize)));
        }
        let python = match token.as_str() {
            "True" => Some(("true", Kind::Bool(true))),
            "False" => Some(("false", Kind::Bool(false))),
            "None" => Some(("null", Kind::Null)),
            _ => None,
        };
        if let Some((json, kind)) = python {
            let label = format!("JSON writes `{json}`");
            self.error(span, &format!("`{token}` is Python, not JSON"), &label, &format!("write `{json}`"))?;
            return Ok(kind);
        }
        let first = token.chars().next().unwrap_or(' ');
        let shown: String = token.chars().take(40).collect();
        if first.is_ascii_digit() || matches!(first, '-' | '+' | '.') {
            let help = "JSON numbers have no leading zero or `+`, no `_`, and digits on both sides of the point";
            self.error(span, &format!("`{shown}` is not a JSON number"), "not a number", help)?;
            return Ok(Kind::Null);
        }
        let help = if first == '\'' { "use double quotes" } else { "strings need double quotes" };
        self.error(span, &format!("`{shown}` is not a JSON value"), "expected a value", help)?;
        Err(Stop)
    }

    /// Reads a string whose opening quote is here.
    pub(super) fn string(&mut self) -> Result<Box<str>, Stop> {
        let start = self.at;
        self.at += 1;
        let mut text = String::new();
        loop {
            let run = self.at;
            while self.bytes.get(self.at).is_some_and(|byte| !matches!(byte, b'"' | b'\\' | 0..=0x1f)) {
                self.at += 1;
            }
            text.push_str(self.source.slice(self.span(run, self.at)));
            match self.bytes.get(self.at) {
                None => return Err(self.truncated(Some(start))),
                Some(b'"') => {
                    self.at += 1;
                    return Ok(text.into_boxed_str());
                }
                Some(b'\\') => self.escape(&mut text, start)?,
                Some(b'\n' | b'\r') => {
                    let span = self.span(start, self.at);
                    self.error(span, "a string that is not closed on its line", "begins here", "add the closing `\"`")?;
                    return Err(Stop);
                }
                Some(&byte) => {
                    let span = self.span(self.at, self.at + 1);
                    let help = format!("write `\\u{byte:04x}`");
                    self.error(span, "a control character in a string", "must be escaped", &help)?;
                    self.at += 1;
                }
            }
        }
    }

    pub(super) fn escape(&mut self, text: &mut String, string_start: usize) -> Result<(), Stop> {
        let start = self.at;
        let Some(&letter) = self.bytes.get(start + 1) else {
            return Err(self.truncated(Some(string_start)));
        };
        self.at = start + 2;
        let plain = match letter {
            b'"' => '"',
            b'\\' => '\\',
            b'/' => '/',
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => return self.unicode_escape(text, start),
            _ => {
                let span = self.span(start, start + 2);
                self.error(span, "an unknown escape in a string", "not an escape", "write `\\\\` for a backslash")?;
                // The escaped character may be longer than a byte; the run that follows starts at it.
                self.at = start + 1;
                if matches!(letter, b'"' | b'\\' | 0..=0x1f) {
                    self.at += 1;
                }
                return Ok(());
            }
        };
        text.push(plain);
        Ok(())
    }

    pub(super) fn unicode_escape(&mut self, text: &mut String, start: usize) -> Result<(), Stop> {
        let Some(first) = self.hex4(self.at) else {
            let span = self.span(start, start + 2);
            return self.error(span, "`\\u` needs four hexadecimal digits", "incomplete escape", "write `\\u0041`");
        };
        self.at += 4;
        let mut unit = first;
        let is_high = (0xd800..0xdc00).contains(&first);
        if is_high
            && self.bytes.get(self.at..self.at + 2) == Some(b"\\u")
            && let Some(second) = self.hex4(self.at + 2).filter(|low| (0xdc00..0xe000).contains(low))
        {
            self.at += 6;
            unit = 0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00);
        }
        // Half a pair is valid JSON but no character; such a string can only be a name, never a size.
        text.push(char::from_u32(unit).unwrap_or('\u{fffd}'));
        Ok(())
    }

    pub(super) fn hex4(&self, at: usize) -> Option<u32> {
        let digits = self.bytes.get(at..at + 4)?;
        digits.iter().try_fold(0, |sum, digit| Some(sum * 16 + (*digit as char).to_digit(16)?))
    }

    /// Skips white space; comments are an error each, and skipped too.
    pub(super) fn space(&mut self) -> Result<(), Stop> {
        loop {
            while matches!(self.bytes.get(self.at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
                self.at += 1;
            }
            let rest = &self.source.text()[self.at..];
            let length = if rest.starts_with("//") || rest.starts_with('#') {
                rest.find('\n').unwrap_or(rest.len())
            } else if rest.starts_with("/*") {
                rest.find("*/").map_or(rest.len(), |end| end + 2)
            } else {
                return Ok(());
            };
            let span = self.span(self.at, self.at + length);
            self.error(span, "JSON has no comments", "comment", "delete the comment")?;
            self.at += length;
        }
    }

    /// The run of letters, digits and signs here, or the one character that is here.
    pub(super) fn token_span(&self) -> Span {
        let rest = &self.source.text()[self.at..];
        let is_token = |c: char| c.is_alphanumeric() || matches!(c, '+' | '-' | '.' | '_');
        let length = rest.find(|c: char| !is_token(c)).unwrap_or(rest.len());
        let one = rest.chars().next().map_or(0, char::len_utf8);
        self.span(self.at, self.at + length.max(one))
    }

    /// The last byte before here that is not white space.
    pub(super) fn last_text_byte(&self) -> usize {
        self.source.text()[..self.at].trim_end().len().saturating_sub(1)
    }
}

/// Whether `text` is a number in JSON's grammar.
pub fn is_json_number(text: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let unsigned = text.strip_prefix('-').unwrap_or(text);
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (unsigned, None),
    };
    let (whole, fraction) = match mantissa.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (mantissa, None),
    };
    let exponent_ok = exponent.is_none_or(|text| digits(text.strip_prefix(['+', '-']).unwrap_or(text)));
    digits(whole) && (whole == "0" || !whole.starts_with('0')) && fraction.is_none_or(digits) && exponent_ok
}
