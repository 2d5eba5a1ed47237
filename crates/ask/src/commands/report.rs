//! `napkin report MODEL --hw h100-sxm -n 64 --gbs 1024 -o report.html`: everything about a run.

use clap::Args;
use plan::layout::estimate::Cluster;
use plan::report::Report;
use plan::summary::whole::{self, Searched};
use units::Diagnostics;

use super::plan::Plan;
use crate::parse::{Reader, some};

/// Everything about a run: verdict, ledger, step, FLOP, time, layouts, each number with where it comes from.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// The run
    #[command(flatten)]
    pub plan: Plan,
    /// Sequences of a step, over all devices, for which layouts are compared [default: those of the step]
    #[arg(long, value_name = "N")]
    pub gbs: Option<String>,
}

impl ReportArgs {
    /// Answers it.
    pub fn report(&self, mut read: Reader<'_>) -> Result<Report, Diagnostics> {
        if self.plan.from.engine().is_some() {
            read.no_effect(&[("--gbs", self.gbs.is_some())], "a configuration says how the run is divided");
            let mut report = self.plan.report(read)?;
            report.kind = "report";
            return Ok(report);
        }
        let gbs = read.flag_with("--gbs", self.gbs.as_deref(), some);
        let cluster = self.plan.cluster.read(&mut read);
        self.plan.ask(read, |model, question| {
            let hardware = &question.fleet.hardware;
            let options = &question.memory.options;
            let step = question.fleet.devices.saturating_mul(options.batch).saturating_mul(options.grad_accum_steps);
            let searched = cluster.filter(|_| question.fleet.devices > 1).map(|(network, per_node)| Searched {
                cluster: Cluster { hardware, per_node, network },
                global_batch: gbs.unwrap_or(step),
                micro_batch: options.batch.max(4),
                top: 5,
            });
            whole::report(model, question, searched.as_ref())
        })
    }
}
