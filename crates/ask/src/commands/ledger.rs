//! `napkin ledger MODEL --hw h100-sxm -n 8 --zero 3`.

use clap::Args;
use plan::report::Report;
use units::Diagnostics;

use crate::View;
use crate::args::DeviceArgs;
use crate::model_args::ModelArgs;
use crate::parse::Reader;
use crate::step::{LayoutArgs, StepArgs};

/// Memory of one device, line by line, at the peak of a step.
#[derive(Debug, Args)]
pub struct Ledger {
    /// The model
    #[command(flatten)]
    pub model: ModelArgs,
    /// The step
    #[command(flatten)]
    pub step: StepArgs,
    /// The layout
    #[command(flatten)]
    pub layout: LayoutArgs,
    /// Devices; without --hw only the bytes are answered
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Tell the step moment by moment; -o timeline.html and -o step.trace.json show it
    #[arg(long)]
    pub timeline: bool,
    /// Do not look for changes that would make it fit: who asks again and again has the rest sooner
    #[arg(long, hide = true)]
    pub no_levers: bool,
}

impl Ledger {
    /// Answers it.
    pub fn report(&self, mut read: Reader<'_>, view: View) -> Result<Report, Diagnostics> {
        let model = self.model.read(&mut read);
        let (hardware, devices) = read.device(&self.device.at_least(self.layout.dp.as_ref()));
        let options = self.step.read(&mut read, model.as_ref(), hardware.as_ref());
        let mut request = self.layout.read(&mut read, options, hardware.as_ref(), devices);
        request.paged = self.step.paged(&mut read, &options);
        let (model, mut request) = read.finish(model.map(|model| (model, request)))?;
        request.depth = usize::from(view.depth.unwrap_or(1));
        request.timeline = self.timeline || view.timeline;
        plan::ledger::report(&model, &request, !self.no_levers)
    }
}
