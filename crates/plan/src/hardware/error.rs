//! What can go wrong when a device is named or described.

use std::fmt;

use units::Diagnostic;

/// A device or arithmetic that the table cannot answer for.
#[derive(Clone, Debug, PartialEq)]
pub enum HardwareError {
    /// The name fits several entries.
    Ambiguous {
        /// The name as given.
        query: String,
        /// Canonical names of the entries, in table order.
        candidates: Vec<&'static str>,
    },
    /// The name fits no entry. There is no default.
    Unknown {
        /// The name as given.
        query: String,
        /// Canonical names that look like it, nearest first.
        near: Vec<&'static str>,
    },
    /// No such arithmetic.
    UnknownPrecision {
        /// The name as given.
        text: String,
    },
    /// A file is no entry of the table.
    File {
        /// Its name.
        file: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A processor cannot be like this.
    BadOverride {
        /// Which number.
        what: &'static str,
        /// Its value.
        value: f64,
    },
}

impl HardwareError {
    /// What to do about it.
    pub fn help(&self) -> String {
        match self {
            Self::Ambiguous { candidates, .. } => {
                let first = candidates.first().copied().unwrap_or_default();
                format!("give one of them, such as `--hw {first}`: they differ in rate or memory")
            }
            Self::Unknown { near, .. } if near.is_empty() => "`napkin hw` lists the devices".to_owned(),
            Self::Unknown { near, .. } => {
                format!("did you mean {}? `napkin hw` lists all devices", near.join(", "))
            }
            Self::UnknownPrecision { .. } => {
                let names: Vec<_> = super::Precision::ALL.iter().map(|precision| precision.name()).collect();
                format!("one of {}", names.join(", "))
            }
            Self::File { .. } => "`napkin bench --save cpu.toml` writes such a file".to_owned(),
            Self::BadOverride { what, .. } => format!("give a {what} above zero"),
        }
    }
}

impl fmt::Display for HardwareError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ambiguous { query, candidates } => {
                write!(f, "`--hw {query}` is ambiguous: {}", candidates.join(", "))
            }
            Self::Unknown { query, .. } => write!(f, "`--hw {query}` is not in the hardware table"),
            Self::UnknownPrecision { text } => {
                write!(f, "`{text}` is no arithmetic of the hardware table")
            }
            Self::File { file, problem } => write!(f, "`{file}` describes no device: {problem}"),
            Self::BadOverride { what, value } => {
                write!(f, "a processor cannot have a {what} of {value}")
            }
        }
    }
}

impl std::error::Error for HardwareError {}

/// An error without a code: it is about the command line.
impl From<HardwareError> for Diagnostic {
    fn from(error: HardwareError) -> Self {
        Self::error("", error.to_string()).help(error.help())
    }
}
