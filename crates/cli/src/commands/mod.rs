//! The subcommands. Each file has the flags of one of them and turns them into the request of one analysis.
//!
//! To add one: write `NAME.rs` with a `clap::Args` struct and `fn report(&self) -> Result<Report, Diagnostics>`, then add
//! it to [`Command`] and to [`Command::report`].

mod afford;
mod bench;
mod checkpoint;
mod compare;
mod completions;
mod dtype;
mod einsum;
mod explain;
mod explain_oom;
mod fit;
mod flops;
mod generate;
mod hw;
mod infer;
mod inspect;
mod layout;
mod ledger;
mod mfu;
mod models;
mod params;
mod plan;
mod recompute;
mod reconcile;
mod time;
mod tokenize;
mod train;
mod validate;

use ::plan::report::Report;
use clap::Subcommand;
use units::Diagnostics;

pub use completions::Completions;

use crate::args::OutputArgs;

/// The question.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// The main job on one screen: does it fit, how much FLOP, how many bytes, how long
    Plan(Box<plan::Plan>),
    /// How many parameters, by module; total and active
    Params(params::Params),
    /// FLOP per token, sequence and step, by module and phase
    Flops(flops::Flops),
    /// Memory per device, line by line, at the peak
    Ledger(ledger::Ledger),
    /// How a run is divided over devices: a layout checked, taken from an engine's configuration, or written as one
    Layout(Box<layout::Layout>),
    /// What recomputation buys: bytes kept against work done again
    Recompute(recompute::Recompute),
    /// How long a run takes, what it costs, or which MFU a deadline asks for
    Time(time::Time),
    /// The model that a budget of devices and days trains best, by published scaling laws
    Afford(afford::Afford),
    /// The largest parameter count that fits, or whether one does
    Fit(fit::Fit),
    /// Inference: weights, keys and values, how many sequences fit, how long a prompt and a token take
    Infer(Box<infer::Infer>),
    /// Which MFU a measured speed is, under each convention
    Mfu(mfu::MfuArgs),
    /// Two or more set-ups side by side
    Compare(compare::Compare),
    /// How far predictions are from published measurements, row by row and by source
    Validate(validate::Validate),
    /// Train a model on this machine, metered
    Train(Box<train::Train>),
    /// Sample text from a checkpoint
    Generate(generate::Generate),
    /// Show, verify, import or export a checkpoint
    Checkpoint(checkpoint::Checkpoint),
    /// What this machine can do: peak, bandwidth, matrix products, whole training steps
    Bench(bench::Bench),
    /// Hold a prediction against a step that is really made, gap by gap: bytes, FLOP, time
    Reconcile(Box<reconcile::Reconcile>),
    /// Bits, value and error of a number in each format
    Dtype(dtype::Dtype),
    /// FLOP, bytes and bound of an einsum
    Einsum(einsum::Einsum),
    /// List the presets and the families that are known
    Models(models::Models),
    /// List, show or compare accelerators, with sources
    Hw(hw::Hw),
    /// Texts to a file of token ids
    Tokenize(tokenize::Tokenize),
    /// What is in a file of token ids or in files of weights, and what is wrong with it
    Inspect(inspect::Inspect),
    /// A formula with its values and source
    Explain(explain::Explain),
    /// Which tensor an out-of-memory message means, where the memory is, and what frees enough
    ExplainOom(Box<explain_oom::ExplainOom>),
    /// Print completions for a shell
    Completions(Completions),
}

impl Command {
    /// True if `-o` names what the command makes instead of a file for its report.
    pub fn makes_a_file(&self) -> bool {
        match self {
            Self::Tokenize(_) => true,
            Self::Layout(layout) => layout.export.is_some(),
            _ => false,
        }
    }

    /// What goes to standard output in place of a report, with what to warn about.
    ///
    /// # Errors
    /// All that is wrong with the question.
    pub fn text(&self, output: &OutputArgs) -> Result<Option<(String, Diagnostics)>, Diagnostics> {
        match self {
            Self::Completions(completions) => Ok(Some((completions.script(), Diagnostics::new()))),
            Self::Layout(layout) if layout.is_configuration(output.json, &output.output) => {
                layout.configuration().map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Answers it.
    ///
    /// # Errors
    /// All that is wrong with the question.
    pub fn report(&self, output: &OutputArgs) -> Result<Report, Diagnostics> {
        let depth = output.depth;
        match self {
            Self::Plan(plan) => plan.report(),
            Self::Params(params) => params.report(depth),
            Self::Flops(flops) => flops.report(depth),
            Self::Ledger(ledger) => ledger.report(output),
            Self::Layout(layout) => layout.report(&output.output, output.force),
            Self::Recompute(recompute) => recompute.report(),
            Self::Time(time) => time.report(),
            Self::Afford(afford) => afford.report(),
            Self::Fit(fit) => fit.report(),
            Self::Infer(infer) => infer.report(),
            Self::Mfu(mfu) => mfu.report(),
            Self::Compare(compare) => compare.report(),
            Self::Validate(validate) => validate.report(),
            Self::Train(train) => train.report(output.force, output.quiet),
            Self::Generate(generate) => generate.report(),
            Self::Checkpoint(checkpoint) => checkpoint.report(),
            Self::Bench(bench) => bench.report(output.force, output.quiet),
            Self::Reconcile(reconcile) => reconcile.report(output.quiet),
            Self::Dtype(dtype) => dtype.report(),
            Self::Einsum(einsum) => einsum.report(),
            Self::Models(_) => models::Models::report(),
            Self::Hw(hw) => hw.report(),
            Self::Tokenize(tokenize) => tokenize.report(output.force),
            Self::Inspect(inspect) => inspect.report(),
            Self::Explain(explain) => explain.report(),
            Self::ExplainOom(explain) => explain.report(),
            // Printed by `main`: a script is no report.
            Self::Completions(_) => Ok(Report::new("completions", "")),
        }
    }
}
