//! `napkin explain [ID] [LETTER=VALUE]...`.

use clap::Args;
use plan::explain;
use plan::report::Report;
use units::Diagnostics;

use crate::parse::{Reader, assignment, positive};

/// The formulas behind the numbers.
#[derive(Debug, Args)]
pub struct Explain {
    /// Formula such as 6nd; none lists all
    pub id: Option<String>,
    /// All of them, each with its letters, its source and its place in the code
    #[arg(long, conflicts_with = "id")]
    pub all: bool,
    /// Values for its letters, such as N=70B
    #[arg(value_name = "LETTER=VALUE")]
    pub values: Vec<String>,
}

impl Explain {
    /// Answers it.
    pub fn report(&self, mut read: Reader<'_>) -> Result<Report, Diagnostics> {
        if self.all {
            return Ok(explain::all());
        }
        let Some(id) = &self.id else { return Ok(explain::list()) };
        let value = |text: &String| assignment(text).and_then(|(name, value)| Ok((name, zero_or(&value)?)));
        let values: Vec<(String, f64)> = self.values.iter().filter_map(|text| read.take(value(text))).collect();
        explain::one(id, &read.finish(Some(values))?)
    }
}

fn zero_or(text: &str) -> Result<f64, units::Diagnostic> {
    if text.trim() == "0" { Ok(0.0) } else { positive(text) }
}
