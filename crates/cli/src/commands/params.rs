//! `napkin params MODEL`.

use clap::Args;
use plan::report::Report;
use units::Diagnostics;

use crate::model_args::ModelArgs;

/// How many parameters, by module; total and active.
#[derive(Debug, Args)]
pub struct Params {
    /// The model
    #[command(flatten)]
    pub model: ModelArgs,
}

impl Params {
    /// Answers it.
    pub fn report(&self, depth: Option<u8>) -> Result<Report, Diagnostics> {
        plan::params::report(&self.model.load()?, usize::from(depth.unwrap_or(3)))
    }
}
