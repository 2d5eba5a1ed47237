//! `napkin recompute MODEL --hw h100-sxm -n 8 --zero 3`.

use clap::Args;
use nn::step::StepOptions;
use plan::report::Report;
use units::{Bytes, Diagnostics};

use crate::args::DeviceArgs;
use crate::model_args::ModelArgs;
use crate::parse::Reader;
use crate::step::{LayoutArgs, StepArgs};

/// What recomputation buys: bytes kept against work done again.
#[derive(Debug, Args)]
pub struct Recompute {
    /// The model
    #[command(flatten)]
    pub model: ModelArgs,
    /// Bytes the peak must stay within [default: the memory of --hw]
    #[arg(long, value_name = "BYTES")]
    pub budget: Option<String>,
    /// The step
    #[command(flatten)]
    pub step: StepArgs,
    /// The layout
    #[command(flatten)]
    pub layout: LayoutArgs,
    /// Devices
    #[command(flatten)]
    pub device: DeviceArgs,
}

impl Recompute {
    /// Answers it.
    pub fn report(&self, mut read: Reader<'_>) -> Result<Report, Diagnostics> {
        let model = self.model.read(&mut read);
        let (hardware, devices) = read.device(&self.device.at_least(self.layout.dp.as_ref()));
        let budget = read.flag::<Bytes>("--budget", self.budget.as_deref());
        let options = self.step.read(&mut read, model.as_ref(), hardware.as_ref());
        let options = StepOptions { steps: 1, warm: true, ..options };
        let request = self.layout.read(&mut read, options, hardware.as_ref(), devices);
        let (model, request) = read.finish(model.map(|model| (model, request)))?;
        plan::frontier::report(&model, &request, budget)
    }
}
