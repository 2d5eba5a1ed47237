//! `napkin dtype 0.1`, `napkin dtype --table`.

use clap::Args;
use plan::dtype_report;
use plan::report::Report;
use units::{Diagnostic, Diagnostics};

use crate::parse::Reader;

/// Numbers as formats store them.
#[derive(Debug, Args)]
pub struct Dtype {
    /// Numbers such as 0.1, 1e-8, inf
    #[arg(required_unless_present = "table", allow_negative_numbers = true)]
    pub numbers: Vec<String>,
    /// Only this format, with the neighbours of the number; may be repeated
    #[arg(long, value_name = "NAME")]
    pub format: Vec<String>,
    /// What each format can hold
    #[arg(long, conflicts_with = "numbers")]
    pub table: bool,
}

impl Dtype {
    /// Answers it.
    pub fn report(&self, mut read: Reader<'_>) -> Result<Report, Diagnostics> {
        if self.table {
            return Ok(dtype_report::table());
        }
        let number = |text: &str| {
            let number = text.trim().replace('_', "").parse::<f64>();
            number.map_err(|_| Diagnostic::error("", format!("`{text}` is no number")).help("0.1, 1e-8, -3, inf, nan"))
        };
        let numbers: Vec<f64> = self.numbers.iter().filter_map(|text| read.take(number(text))).collect();
        let formats: Vec<_> = self.format.iter().filter_map(|name| read.take(dtype_report::format(name))).collect();
        read.finish(Some(()))?;
        Ok(dtype_report::numbers(&numbers, &formats))
    }
}
