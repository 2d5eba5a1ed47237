//! `napkin plan MODEL --hw h100-sxm -n 8 --tokens 1T`: the main job.

use clap::Args;
use nn::step::StepOptions;
use plan::report::Report;
use plan::summary::{self, Question};
use units::{Diagnostics, Mfu, Tokens};

use crate::args::FleetArgs;
use crate::parse::{Reader, days, dollars};
use crate::step::{LayoutArgs, ModelArgs, StepArgs};

/// Parameters, FLOP, memory, time and the largest levers on one screen.
#[derive(Debug, Args)]
pub struct Plan {
    /// The model
    #[command(flatten)]
    pub model: ModelArgs,
    /// Tokens to train on
    #[arg(long, value_name = "N")]
    pub tokens: Option<String>,
    /// Model FLOP utilization, such as 0.4 or 40% [default: a range, 0.3 to 0.5]
    #[arg(long, value_name = "SHARE", conflicts_with = "days")]
    pub mfu: Option<String>,
    /// Time there is, in days: asks which MFU it takes
    #[arg(long, value_name = "N")]
    pub days: Option<String>,
    /// US dollars for one device and hour
    #[arg(long, value_name = "USD")]
    pub price: Option<String>,
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
        let tokens = read.flag::<Tokens>("--tokens", self.tokens.as_deref());
        let mfu = read.flag::<Mfu>("--mfu", self.mfu.as_deref());
        let deadline = read.flag_with("--days", self.days.as_deref(), days);
        let price = read.flag_with("--price", self.price.as_deref(), dollars);
        let hardware = fleet.as_ref().map(|f| f.hardware.clone());
        let options = self.step.read(&mut read, model.as_ref(), hardware.as_ref());
        // One step with its states made before it: the steady state.
        let options = StepOptions { steps: 1, warm: true, ..options };
        let devices = fleet.as_ref().map_or(1, |f| f.devices);
        let mut layout = self.layout.clone();
        // Full sharding is what people run on several devices; one device has nothing to share.
        layout.zero.get_or_insert_with(|| if devices > 1 { "3" } else { "0" }.to_owned());
        let memory = layout.read(&mut read, options, hardware.as_ref(), devices);
        let question = fleet.map(|fleet| Question { memory, fleet, tokens, pace: summary::pace(mfu, deadline), price });
        let (model, question) = read.finish(model.zip(question))?;
        summary::report(&model, &question)
    }
}
