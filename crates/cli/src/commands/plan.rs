//! `napkin plan MODEL --hw h100-sxm -n 8 --tokens 1T`: the main job.

use clap::Args;
use plan::report::Report;
use plan::summary::{self, Question};
use units::Diagnostics;

use crate::args::{FleetArgs, Run, RunArgs};
use crate::model_args::ModelArgs;
use crate::parse::Reader;
use crate::step::{LayoutArgs, StepArgs};

/// Parameters, FLOP, memory, time and the largest levers on one screen.
#[derive(Debug, Args)]
pub struct Plan {
    /// The model
    #[command(flatten)]
    pub model: ModelArgs,
    /// The run
    #[command(flatten)]
    pub run: RunArgs,
    /// The step
    #[command(flatten)]
    pub step: StepArgs,
    /// The layout
    #[command(flatten)]
    pub layout: LayoutArgs,
    /// Devices
    #[command(flatten)]
    pub fleet: FleetArgs,
}

impl Plan {
    /// Answers it.
    pub fn report(&self) -> Result<Report, Diagnostics> {
        let mut read = Reader::default();
        let model = self.model.read(&mut read);
        let fleet = read.fleet_in(&self.fleet.at_least(self.layout.dp.as_ref()), self.step.arithmetic());
        let Run { tokens, pace, price } = self.run.read(&mut read);
        let hardware = fleet.as_ref().map(|f| f.hardware.clone());
        let options = self.step.read(&mut read, model.as_ref(), hardware.as_ref());
        let devices = fleet.as_ref().map_or(1, |f| f.devices);
        let mut layout = self.layout.clone();
        // Full sharding is what people run on several devices; one device has nothing to share.
        layout.zero.get_or_insert_with(|| if devices > 1 { "3" } else { "0" }.to_owned());
        let memory = layout.read(&mut read, options, hardware.as_ref(), devices).steady();
        let question = fleet.map(|fleet| Question { memory, fleet, tokens, pace, price });
        let (model, question) = read.finish(model.zip(question))?;
        summary::report(&model, &question)
    }
}
