//! Numbers rounded to significant digits.

/// A positive number as its significant digits `d1d2d3...` and the power of ten of the first.
pub(super) struct Rounded {
    digits: String,
    /// Power of ten of the first digit, after rounding.
    pub(super) exponent: i32,
}

impl Rounded {
    pub(super) fn of_f64(value: f64, digits: usize) -> Self {
        let text = format!("{:.*e}", digits.clamp(1, 60) - 1, value);
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        Self {
            digits: mantissa.chars().filter(char::is_ascii_digit).collect(),
            exponent: exponent.parse().unwrap_or(0),
        }
    }

    /// Rounds half up on the integer itself: floats would lose the digits above 2^53.
    pub(super) fn of_integer(value: u128, digits: usize) -> Self {
        let digits = digits.clamp(1, 60);
        let text = value.to_string();
        let mut exponent = text.len() as i32 - 1;
        if text.len() <= digits {
            return Self { digits: format!("{text:0<digits$}"), exponent };
        }
        let mut kept = text.as_bytes()[..digits].to_vec();
        if text.as_bytes()[digits] >= b'5' {
            let nines = kept.iter().rev().take_while(|&&digit| digit == b'9').count();
            let first_nine = digits - nines;
            kept[first_nine..].fill(b'0');
            if first_nine == 0 {
                kept[0] = b'1';
                exponent += 1;
            } else {
                kept[first_nine - 1] += 1;
            }
        }
        Self { digits: kept.into_iter().map(char::from).collect(), exponent }
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

    pub(super) fn scientific(&self) -> String {
        format!("{}e{}", self.shifted(self.exponent), self.exponent)
    }

    /// Text and prefix; scientific where the prefixes end.
    pub(super) fn prefixed(&self, prefixes: &[&'static str]) -> (String, &'static str) {
        let step = self.exponent.max(0) / 3;
        match prefixes.get(step as usize) {
            Some(prefix) => (self.shifted(step * 3), prefix),
            None => (self.scientific(), ""),
        }
    }
}
