//! Texts that are refused, with the reason and the forms that would do.

use std::fmt;

use crate::diagnostic::Diagnostic;

/// Longest part of a user's input that an error repeats, in characters.
pub(super) const QUOTED: usize = 60;

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
    pub(super) fn new(quantity: &'static str, input: &str, problem: Problem, accepted: &'static str) -> Self {
        Self { quantity, input: quoted(input), problem, accepted }
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { quantity, input, problem, accepted } = self;
        match problem {
            Problem::Empty => write!(f, "{quantity} is empty"),
            Problem::Negative => write!(f, "{quantity} `{input}` is negative"),
            Problem::NotFinite => write!(f, "{quantity} `{input}` is not a finite number"),
            Problem::NotANumber => write!(f, "{quantity} `{input}` is not a number"),
            Problem::MisplacedComma => {
                write!(f, "{quantity} `{input}` has a comma that does not separate thousands")
            }
            Problem::NotWhole => write!(f, "{quantity} `{input}` is not a whole number"),
            Problem::TooLarge => write!(f, "{quantity} `{input}` is too large to hold"),
            Problem::TooManyDigits => write!(f, "{quantity} `{input}` has too many digits to keep exactly"),
            Problem::UnknownUnit(unit) => {
                write!(f, "{quantity} `{input}` has an unknown unit `{unit}`")
            }
            Problem::AmbiguousUnit { decimal, binary } => {
                // The two readings are the accepted forms here.
                return write!(f, "{quantity} `{input}` has no clear unit: write {decimal} or {binary}");
            }
            Problem::Bits => write!(f, "{quantity} `{input}` is in bits: `B` is a byte, `b` a bit"),
            Problem::ShareOrPercent => {
                write!(f, "{quantity} `{input}` is above 1: write `{input}%` if it is a percentage")
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
pub(super) fn quoted(input: &str) -> String {
    let mut out: String =
        input.trim().chars().take(QUOTED).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    if input.trim().chars().nth(QUOTED).is_some() {
        out.push('…');
    }
    out
}
