//! `napkin time MODEL --tokens 15T --hw h100-sxm -n 1024`.

use clap::Args;
use plan::report::Report;
use plan::time::Request;
use units::Diagnostics;

use crate::args::{FleetArgs, Run, RunArgs};
use crate::parse::Reader;
use crate::step::WorkArgs;

/// Wall-clock time, device-hours and cost of a run.
#[derive(Debug, Args)]
pub struct Time {
    /// The model
    #[command(flatten)]
    pub work: WorkArgs,
    /// The run
    #[command(flatten)]
    pub run: RunArgs,
    /// Devices
    #[command(flatten)]
    pub fleet: FleetArgs,
}

impl Time {
    /// Answers it.
    pub fn report(&self, mut read: Reader<'_>) -> Result<Report, Diagnostics> {
        let work = self.work.read(&mut read);
        let Run { tokens, pace, price, around } = self.run.read(&mut read);
        let tokens = read.required(tokens, self.run.tokens.is_some(), "--tokens", "15T");
        let fleet = read.fleet(&self.fleet);
        let request = work.zip(tokens).zip(fleet);
        let request = request.map(|((work, tokens), fleet)| Request { work, tokens, fleet, pace, price, around });
        read.finish(request)?.report()
    }
}
