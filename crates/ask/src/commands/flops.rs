//! `napkin flops MODEL --batch 2 --seq-len 512`.

use clap::{Args, ValueEnum};
use plan::flops::{Part, View};
use plan::report::Report;
use units::Diagnostics;

use crate::model_args::ModelArgs;
use crate::parse::Reader;
use crate::step::{FillingArgs, StepArgs};

/// FLOP per token, sequence and step, by module, phase and convention.
#[derive(Debug, Args)]
pub struct Flops {
    /// The model
    #[command(flatten)]
    pub model: ModelArgs,
    /// The step
    #[command(flatten)]
    pub step: StepArgs,
    /// How sequences are filled
    #[command(flatten)]
    pub filling: FillingArgs,
    /// Part of the step that the table of modules shows
    #[arg(long, value_enum, default_value_t)]
    pub phase: PhaseArg,
}

/// Part of a step.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub enum PhaseArg {
    /// Forward and backward
    #[default]
    Step,
    /// Forward only
    Forward,
    /// Backward only
    Backward,
}

impl Flops {
    /// Answers it.
    pub fn report(&self, mut read: Reader<'_>, depth: Option<u8>) -> Result<Report, Diagnostics> {
        let model = self.model.read(&mut read);
        let options = self.step.read(&mut read, model.as_ref(), None);
        let filling = self.filling.read(&mut read);
        let (model, options) = read.finish(model.map(|model| (model, options)))?;
        let part = match self.phase {
            PhaseArg::Step => Part::Step,
            PhaseArg::Forward => Part::Forward,
            PhaseArg::Backward => Part::Backward,
        };
        plan::flops::report(&model, &options, View { part, filling, depth: usize::from(depth.unwrap_or(1)) })
    }
}
