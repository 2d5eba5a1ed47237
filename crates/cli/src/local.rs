//! Flags of a step that is really made on this machine, and of its threads.

use ask::model_args::ReadingArgs;
use ask::parse::{Reader, count, some};
use ask::step::StepArgs;
use clap::Args;
use plan::model::Model;
use tensor::cpu::Threads;
use train::run::Settings;
use units::{Bytes, Diagnostic, Diagnostics};

use crate::disk::DISK;

/// How many threads kernels run on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub struct ThreadsArgs {
    /// Threads [default: one per core]
    #[arg(long, short = 'j', value_name = "N")]
    pub threads: Option<String>,
}

impl ThreadsArgs {
    /// The threads.
    ///
    /// # Errors
    /// A number that is none; threads that the system does not start.
    pub fn pool(&self) -> Result<Threads, Diagnostics> {
        let mut read = Reader::new(&DISK);
        let threads = read.flag_with("--threads", self.threads.as_deref(), some).unwrap_or(0);
        read.finish(Some(()))?;
        Ok(Threads::new(threads as usize).map_err(|error| Diagnostic::error("", error.to_string()))?)
    }
}

/// A step that is really made on this machine.
#[derive(Clone, Debug, Default, Args)]
pub struct LocalStepArgs {
    /// How the model is read
    #[command(flatten)]
    pub reading: ReadingArgs,
    /// The step; --batch is 4, --seq-len at most 256 and --precision fp32 where they are left out
    #[command(flatten)]
    pub options: StepArgs,
    /// Threads
    #[command(flatten)]
    pub threads: ThreadsArgs,
    /// Steps after the first ones [default: 5]
    #[arg(long, value_name = "N")]
    pub steps: Option<String>,
    /// Peak in the arithmetic of the products instead of the measured one, such as 230GFLOP/s
    #[arg(long, value_name = "RATE")]
    pub peak: Option<String>,
}

impl LocalStepArgs {
    /// Refuses what is said of a step that is made now, where `why` says that none is.
    pub fn none_is_made(&self, read: &mut Reader<'_>, why: &str) {
        let flags = [
            ("--threads", self.threads.threads.is_some()),
            ("--steps", self.steps.is_some()),
            ("--peak", self.peak.is_some()),
        ];
        read.no_effect(&flags, why);
    }

    /// The model that `name` names, with the overrides.
    pub fn model(&self, read: &mut Reader<'_>, name: &str) -> Option<Model> {
        self.reading.read(read, name)
    }

    /// How many steps are timed, and how each is made.
    pub fn read(&self, read: &mut Reader<'_>, model: Option<&Model>) -> (u64, Settings) {
        let mut step = self.options.clone();
        step.batch.get_or_insert_with(|| "4".to_owned());
        step.precision.get_or_insert_with(|| "fp32".to_owned());
        let longest = model.and_then(|m| m.spec.max_positions).unwrap_or(256).min(256);
        step.seq_len.get_or_insert_with(|| longest.to_string());
        for (flag, text) in [("--batch", &step.batch), ("--seq-len", &step.seq_len), ("--grad-accum", &step.grad_accum)]
        {
            // An analysis may ask for none of something; a step that is made has some.
            if let Some(text) = text.as_deref().filter(|text| count(text).is_ok()) {
                read.flag_with(flag, Some(text), some);
            }
        }
        if self.options.offload.is_some() {
            let problem = Diagnostic::error("", "--offload: a step on this machine has no other host");
            read.problem(problem.help("leave it away").help("napkin ledger shows the step of a device with one"));
        }
        let options = step.read(read, model, None);
        let steps = read.flag_with("--steps", self.steps.as_deref(), some).unwrap_or(5);
        (steps, Settings::of_steps(&options, steps + 1))
    }
}

/// Refuses a step that this machine has no memory for.
///
/// # Errors
/// `T0711` with what it needs.
pub fn check_memory(peak: Bytes, model: &str) -> Result<(), Diagnostic> {
    match train::probe::memory::total() {
        Some(memory) if memory < peak => {
            Err(Diagnostic::error("T0711", format!("a step needs {peak} at its peak, this machine has {memory}"))
                .help("a smaller model, --batch or --seq-len")
                .help("--recompute full keeps less for the backward pass")
                .help(format!("napkin plan {model} says where the bytes are")))
        }
        _ => Ok(()),
    }
}
