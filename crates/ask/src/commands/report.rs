//! `napkin report MODEL --hw h100-sxm -n 64 --gbs 1024 -o report.html`: everything about a run.

use clap::Args;
use plan::phrase;
use plan::report::Report;
use plan::summary::whole;
use units::{Diagnostic, Diagnostics};

use super::plan::Plan;
use crate::files::Files;
use crate::parse::{Reader, some};

/// Everything about a run: verdict, ledger, step, FLOP, time, layouts, each number with where it comes from.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// The run
    #[command(flatten)]
    pub plan: Plan,
    /// Sequences of a step, over all devices: looks for the best layouts of so many
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
        read.flag_with("--gbs", self.gbs.as_deref(), some);
        if self.gbs.is_none() {
            read.no_effect(&self.plan.cluster.given(), "no layouts are looked for without --gbs");
        }
        let files = read.files();
        let mut report = self.plan.ask(read, whole::report)?;
        match &self.gbs {
            None => report.notes.push(phrase!["--gbs 1024 adds the best layouts of a step of so many sequences"]),
            // The rest stands without them.
            Some(gbs) => match self.layouts(gbs, files) {
                Ok(part) => report.parts.push(part),
                Err(problems) => report.warnings.extend(problems.iter().map(|problem| {
                    Diagnostic::warning("T0328", format!("no layouts: {}", problem.message))
                        .effect("the rest of the report stands without them")
                })),
            },
        }
        Ok(report)
    }

    /// The layouts, as the words that ask for them alone are answered.
    fn layouts(&self, gbs: &str, files: &dyn Files) -> Result<Report, Diagnostics> {
        let (plan, device) = (&self.plan, &self.plan.fleet.device);
        let mut words = vec!["layout".to_owned(), plan.model.model.clone(), format!("--gbs={gbs}")];
        let flags = [
            ("hw", &device.hw),
            ("devices", &device.devices),
            ("seq-len", &plan.step.seq_len),
            ("precision", &plan.step.precision),
            ("network", &plan.cluster.network),
            ("devices-per-node", &plan.cluster.devices_per_node),
            ("assume", &plan.model.reading.config.assume),
        ];
        words.extend(flags.iter().filter_map(|(flag, value)| Some(format!("--{flag}={}", value.as_ref()?))));
        words.extend(plan.model.reading.config.set.iter().map(|change| format!("--set={change}")));
        crate::answer(&words, files)
    }
}
