//! `napkin hw [NAME]...`.

use clap::Args;
use plan::hardware::Hardware;
use plan::hw_report;
use plan::report::Report;
use units::Diagnostics;

use crate::parse::Reader;

/// The hardware table.
#[derive(Debug, Args)]
pub struct Hw {
    /// One device (or file) to show with its sources, or several to compare; none lists all
    pub names: Vec<String>,
}

impl Hw {
    /// Answers it.
    pub fn report(&self, mut read: Reader<'_>) -> Result<Report, Diagnostics> {
        let found = self.names.iter().filter_map(|name| read.hardware(Some(name))).collect();
        let found: Vec<Hardware> = read.finish(Some(found))?;
        Ok(hw_report::show(&found.iter().collect::<Vec<_>>()))
    }
}
