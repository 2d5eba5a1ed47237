//! `napkin params MODEL`.

use clap::Args;
use plan::ranks::Split;
use plan::report::Report;
use units::Diagnostics;

use crate::model_args::ModelArgs;
use crate::parse::{Reader, some};

/// How many parameters, by module; total and active.
#[derive(Debug, Args)]
pub struct Params {
    /// The model
    #[command(flatten)]
    pub model: ModelArgs,
    /// Tensor-parallel ranks: what one of them holds
    #[arg(long, value_name = "N")]
    pub tp: Option<String>,
    /// Expert-parallel ranks
    #[arg(long, value_name = "N")]
    pub ep: Option<String>,
    /// Tensor-parallel ranks of an expert [default: 1]
    #[arg(long, value_name = "N")]
    pub etp: Option<String>,
}

impl Params {
    /// Answers it.
    pub fn report(&self, mut read: Reader<'_>, depth: Option<u8>) -> Result<Report, Diagnostics> {
        let model = self.model.read(&mut read);
        let flags = [("--tp", &self.tp), ("--ep", &self.ep), ("--etp", &self.etp)];
        let [tp, ep, etp] = flags.map(|(flag, text)| read.flag_with(flag, text.as_deref(), some));
        let model = read.finish(model)?;
        let mut report = plan::params::report(&model, usize::from(depth.unwrap_or(3)))?;
        if flags.iter().any(|(_, text)| text.is_some()) {
            let split = Split { tp: tp.unwrap_or(1), ep: ep.unwrap_or(1), etp: etp.unwrap_or(1) };
            plan::ranks::add(&mut report, &model, split)?;
        }
        Ok(report)
    }
}
