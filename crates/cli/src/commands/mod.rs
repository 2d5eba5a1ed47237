//! The subcommands. Each file has the flags of one of them and turns them into the request of one analysis.
//!
//! To add one: write `NAME.rs` with a `clap::Args` struct and `fn report(&self) -> Result<Report, Diagnostics>`, then add
//! it to [`Command`] and to [`Command::report`].

mod completions;
mod time;

use clap::Subcommand;
use plan::report::Report;
use units::Diagnostics;

pub use completions::Completions;

/// The question.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// How long a run takes, what it costs, or which MFU a deadline asks for
    Time(time::Time),
    /// Print completions for a shell
    Completions(Completions),
}

impl Command {
    /// Answers it.
    ///
    /// # Errors
    /// All that is wrong with the question.
    pub fn report(&self) -> Result<Report, Diagnostics> {
        match self {
            Self::Time(time) => time.report(),
            // Printed by `main`: a script is no report.
            Self::Completions(_) => Ok(Report::new("completions", "")),
        }
    }
}
