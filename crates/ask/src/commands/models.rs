//! `napkin models`.

use clap::Args;
use plan::report::Report;
use units::Diagnostics;

/// The presets and the families a config may declare.
#[derive(Debug, Args)]
pub struct Models {}

impl Models {
    /// Answers it.
    pub fn report() -> Result<Report, Diagnostics> {
        plan::catalogue::report()
    }
}
