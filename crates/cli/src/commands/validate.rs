//! `napkin validate data/published/published.csv --source mosaic`

use clap::{Args, ValueEnum};
use plan::report::Report;
use plan::validation::{Listed, Quantity, Request};
use train::published::{self, MOST_BYTES};
use units::{Diagnostic, Diagnostics};

use crate::disk::DISK;
use ask::parse::Reader;
use ask::{Files, text};

/// How far predictions are from published measurements.
#[derive(Debug, Args)]
pub struct Validate {
    /// Tables of published runs, such as data/published/published.csv
    #[arg(required = true, value_name = "FILE.csv")]
    pub tables: Vec<String>,
    /// Only this source; may be given several times
    #[arg(long, value_name = "ID")]
    pub source: Vec<String>,
    /// Only this quantity: params, flops, memory, time; may be given several times
    #[arg(long, value_name = "NAME")]
    pub quantity: Vec<String>,
    /// Only rows of this split: fit, test
    #[arg(long, value_name = "NAME")]
    pub split: Option<String>,
    /// Which rows are listed one by one
    #[arg(long, value_enum, default_value_t)]
    pub rows: RowsArg,
}

/// Which rows are listed one by one.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub enum RowsArg {
    /// All that are compared
    #[default]
    All,
    /// Those outside of the bounds
    Outside,
}

impl Validate {
    /// Answers it.
    pub fn report(&self) -> Result<Report, Diagnostics> {
        let mut read = Reader::new(&DISK);
        let mut rows = Vec::new();
        for table in &self.tables {
            let bytes = read.take(bytes(table));
            rows.extend(bytes.and_then(|bytes| read.take_all(published::read(table, &bytes))).unwrap_or_default());
        }
        let quantity = |text: &str| text.parse::<Quantity>().map_err(|error| Diagnostic::error("", error));
        let quantities = read.flags("--quantity", &self.quantity, quantity);
        let rows = read.finish(Some(rows))?;
        let unknown = |source: &&String| !rows.iter().any(|row| row.source == **source);
        let mut problems: Diagnostics = self
            .source
            .iter()
            .filter(unknown)
            .map(|source| {
                let mut known: Vec<&str> = rows.iter().map(|row| row.source.as_str()).collect();
                known.sort_unstable();
                known.dedup();
                let near = nn::config::near_matches(source, &known);
                let problem = Diagnostic::error("", format!("--source {source}: the table has no such source"));
                near.into_iter().fold(problem, |problem, name| problem.help(format!("--source {name}")))
            })
            .collect();
        if let Some(split) = self.split.as_ref().filter(|split| !rows.iter().any(|row| row.split == **split)) {
            problems.push(Diagnostic::error("", format!("--split {split}: the table has no such split")));
        }
        if problems.has_errors() {
            return Err(problems);
        }
        let listed = match self.rows {
            RowsArg::All => Listed::All,
            RowsArg::Outside => Listed::Outside,
        };
        let request = Request {
            tables: &self.tables,
            rows: &rows,
            sources: &self.source,
            quantities: &quantities,
            split: self.split.as_deref(),
            listed,
        };
        Ok(request.report())
    }
}

fn bytes(table: &str) -> Result<Vec<u8>, Diagnostic> {
    DISK.bytes(table, MOST_BYTES as u64)
        .map_err(|error| text::refused(table, &error).help("napkin validate data/published/published.csv"))
}
