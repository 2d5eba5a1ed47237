//! The questions. Each file has the flags of one of them and turns them into the request of one analysis.
//!
//! To add one: write `NAME.rs` with a `clap::Args` struct and `fn report(&self, read: Reader<'_>)`, then add it to
//! [`Question`] and to [`Question::report`].

mod afford;
mod compare;
mod dtype;
mod einsum;
mod explain;
mod explain_oom;
mod fit;
mod flops;
mod hw;
mod infer;
mod layout;
mod ledger;
mod mfu;
mod models;
mod params;
mod plan;
mod recompute;
mod report;
pub mod snapshot;
mod time;

use ::plan::report::Report;
use clap::Subcommand;
use units::Diagnostics;

use crate::View;
use crate::files::Files;
use crate::parse::Reader;

/// What can be asked of numbers and configs alone.
#[derive(Debug, Subcommand)]
pub enum Question {
    /// The main job on one screen: does it fit, how much FLOP, how many bytes, how long
    Plan(Box<plan::Plan>),
    /// Everything about a run on one page: verdict, ledger, FLOP, time, layouts; -o report.html
    Report(Box<report::ReportArgs>),
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
    /// Bits, value and error of a number in each format
    Dtype(dtype::Dtype),
    /// FLOP, bytes and bound of an einsum
    Einsum(einsum::Einsum),
    /// List the presets and the families that are known
    Models(models::Models),
    /// List, show or compare accelerators, with sources
    Hw(hw::Hw),
    /// A formula with its values and source
    Explain(explain::Explain),
    /// A memory snapshot of PyTorch against the step of a model: what `reconcile --torch-snapshot` is made of
    #[command(name = "reconcile-snapshot", hide = true)]
    Snapshot(Box<snapshot::Snapshot>),
    /// Which tensor an out-of-memory message means, where the memory is, and what frees enough
    ExplainOom(Box<explain_oom::ExplainOom>),
}

impl Question {
    /// Answers it.
    ///
    /// # Errors
    /// All that is wrong with the question.
    pub fn report(&self, files: &dyn Files, view: View) -> Result<Report, Diagnostics> {
        let read = Reader::new(files);
        match self {
            Self::Plan(plan) => plan.report(read),
            Self::Report(report) => report.report(read),
            Self::Params(params) => params.report(read, view.depth),
            Self::Flops(flops) => flops.report(read, view.depth),
            Self::Ledger(ledger) => ledger.report(read, view),
            Self::Layout(layout) => layout.report(read),
            Self::Recompute(recompute) => recompute.report(read),
            Self::Time(time) => time.report(read),
            Self::Afford(afford) => afford.report(read),
            Self::Fit(fit) => fit.report(read),
            Self::Infer(infer) => infer.report(read),
            Self::Mfu(mfu) => mfu.report(read),
            Self::Compare(compare) => compare.report(read),
            Self::Dtype(dtype) => dtype.report(read),
            Self::Einsum(einsum) => einsum.report(read),
            Self::Models(_) => models::Models::report(),
            Self::Hw(hw) => hw.report(read),
            Self::Explain(explain) => explain.report(read),
            Self::Snapshot(snapshot) => snapshot.report(read),
            Self::ExplainOom(explain) => explain.report(read),
        }
    }

    /// Flags that it takes for granted where they are not given, and that its parts would take otherwise.
    pub fn implied(&self) -> Vec<String> {
        match self {
            Self::Report(report) => report.plan.implied(),
            _ => Vec::new(),
        }
    }

    /// Whether its answer may have a drawing.
    pub fn draws(&self) -> bool {
        match self {
            Self::Ledger(_) | Self::Flops(_) | Self::Time(_) => true,
            Self::Plan(plan) => plan.from.engine().is_none(),
            Self::Report(report) => report.plan.from.engine().is_none(),
            Self::Layout(layout) => layout.searches(),
            Self::Dtype(dtype) => !dtype.table,
            _ => false,
        }
    }

    /// The engine that `layout` writes a configuration for.
    pub fn exports(&self) -> Option<&str> {
        match self {
            Self::Layout(layout) => layout.export.as_deref(),
            _ => None,
        }
    }

    /// The configuration that `layout` writes for an engine, with what to warn about.
    ///
    /// # Errors
    /// All that is wrong with the question.
    pub fn configuration(&self, files: &dyn Files) -> Result<Option<(String, Diagnostics)>, Diagnostics> {
        match self {
            Self::Layout(layout) if layout.export.is_some() => layout.configuration(Reader::new(files)).map(Some),
            _ => Ok(None),
        }
    }
}
