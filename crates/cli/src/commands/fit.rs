//! `napkin fit --states-only --hw h100-sxm -n 8 --optimizer adamw --zero 3`.

use clap::Args;
use plan::fit::{Choice, Memory, StatesRequest};
use plan::hardware;
use plan::report::Report;
use plan::states::{Optimizer, Recipe, Zero};
use units::{Bytes, Diagnostic, Diagnostics};

use crate::model::model;
use crate::parse::{Reader, count};

/// What fits.
#[derive(Debug, Args)]
pub struct Fit {
    /// A bare parameter count such as dense:70B; without it, the largest that fits is asked for
    pub model: Option<String>,
    /// Count parameters, gradients and optimizer states only
    #[arg(long)]
    pub states_only: bool,
    /// Accelerator; `napkin hw` lists them
    #[arg(long, value_name = "NAME")]
    pub hw: Option<String>,
    /// Memory of one device, such as 80GB or 80GiB, instead of an accelerator
    #[arg(long, value_name = "SIZE", conflicts_with = "hw")]
    pub memory: Option<String>,
    /// How many devices, all data-parallel [default: 1]
    #[arg(short = 'n', long, visible_alias = "dp", value_name = "N")]
    pub devices: Option<String>,
    /// fp32, bf16-master, bf16-master-fp32-grads, bf16-mixed, fp16-mixed, bf16-pure [default: fp32]
    #[arg(long, visible_alias = "dtype", value_name = "RECIPE")]
    pub precision: Option<String>,
    /// sgd, momentum, adagrad, rmsprop, adam, adamw [default: adamw]
    #[arg(long, value_name = "NAME")]
    pub optimizer: Option<String>,
    /// ZeRO stage, 0 to 3 [default: 0]
    #[arg(long, value_name = "STAGE")]
    pub zero: Option<String>,
}

impl Fit {
    /// Answers it.
    pub fn report(&self) -> Result<Report, Diagnostics> {
        let mut read = Reader::default();
        if !self.states_only {
            let problem = Diagnostic::error("", "only states can be fitted yet");
            read.problem(problem.why("activations need a traced model").help("--states-only"));
        }
        let parameters = read.flag_with("MODEL", self.model.as_deref(), model);
        let given = read.flag::<Bytes>("--memory", self.memory.as_deref()).map(Memory::Given);
        let found = self.hw.as_deref().map(hardware::find);
        let found = found.and_then(|found| read.take(found)).map(|found| Memory::Of(Box::new(found.clone())));
        let asked = self.hw.is_some() || self.memory.is_some();
        let memory = read.required(given.or(found), asked, "--hw", "h100-sxm");
        let devices = Choice::or(read.flag_with("--devices", self.devices.as_deref(), count), 1);
        let recipe = Choice::or(read.flag::<Recipe>("--precision", self.precision.as_deref()), Recipe::Fp32);
        let optimizer = Choice::or(read.flag::<Optimizer>("--optimizer", self.optimizer.as_deref()), Optimizer::AdamW);
        let zero = Choice::or(read.flag::<Zero>("--zero", self.zero.as_deref()), Zero::None);
        let parameters = parameters.map(|model| (model.work().model, model.parameters()));
        let request = memory.map(|memory| StatesRequest { memory, devices, recipe, optimizer, zero, parameters });
        read.finish(request)?.report()
    }
}
