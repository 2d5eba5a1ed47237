//! `napkin compare MODEL --vary recompute=none,full`, or `napkin compare A B`.

use clap::Args;
use plan::compare::{self, Setup};
use plan::report::Report;
use units::{Diagnostic, Diagnostics};

use crate::args::FleetArgs;
use crate::model_args::ReadingArgs;
use crate::parse::Reader;
use crate::step::{LayoutArgs, StepArgs};

/// Two or more set-ups side by side.
#[derive(Debug, Args)]
pub struct Compare {
    /// One model, or several to compare
    #[arg(required = true, value_name = "MODEL")]
    pub models: Vec<String>,
    /// A flag of the step or the layout with its values, such as recompute=none,full
    #[arg(long, value_name = "FLAG=A,B")]
    pub vary: Option<String>,
    /// How the model is read
    #[command(flatten)]
    pub reading: ReadingArgs,
    /// The step
    #[command(flatten)]
    pub step: StepArgs,
    /// The layout
    #[command(flatten)]
    pub layout: LayoutArgs,
    /// Devices
    #[command(flatten)]
    pub fleet: FleetArgs,
}

impl Compare {
    /// Answers it.
    pub fn report(&self) -> Result<Report, Diagnostics> {
        let mut read = Reader::default();
        let mut models = Vec::new();
        for name in &self.models {
            let args = self.reading.of(name);
            models.extend(args.read(&mut read));
        }
        let variants = read.take_all(self.variants()).unwrap_or_default();
        let (hardware, devices) = read.device(&self.fleet.at_least(self.layout.dp.as_ref()));
        let mut setups = Vec::new();
        for model in &models {
            for (label, step, layout) in &variants {
                let options = step.read(&mut read, Some(model), hardware.as_ref());
                let request = layout.read(&mut read, options, hardware.as_ref(), devices).steady();
                let label = match (models.len(), label.is_empty()) {
                    (1, false) => label.clone(),
                    (_, true) => model.name.clone(),
                    (_, false) => format!("{} {label}", model.name),
                };
                setups.push(Setup { label, model, request });
            }
        }
        compare::report(&read.finish(Some(setups))?)
    }

    /// The step and layout for each value of `--vary`.
    fn variants(&self) -> Result<Vec<(String, StepArgs, LayoutArgs)>, Diagnostics> {
        let Some(vary) = &self.vary else {
            return Ok(vec![(String::new(), self.step.clone(), self.layout.clone())]);
        };
        let bad =
            || Diagnostic::error("", format!("--vary {vary}: expected FLAG=A,B")).help("--vary recompute=none,full");
        let (flag, values) = vary.split_once('=').ok_or_else(bad)?;
        let mut out = Vec::new();
        for value in values.split(',') {
            let (mut step, mut layout) = (self.step.clone(), self.layout.clone());
            let slot = match flag.trim_start_matches("--").replace('_', "-").as_str() {
                "recompute" => &mut step.recompute,
                "batch" | "mbs" => &mut step.batch,
                "seq-len" => &mut step.seq_len,
                "profile" => &mut step.profile,
                "precision" => &mut step.precision,
                "optimizer" => &mut step.optimizer,
                "grad-accum" => &mut step.grad_accum,
                "zero" => &mut layout.zero,
                "dp" => &mut layout.dp,
                other => {
                    return Err(Diagnostic::error("", format!("--vary: `{other}` cannot be varied"))
                        .help("recompute, batch, seq-len, profile, precision, optimizer, grad-accum, zero, dp")
                        .into());
                }
            };
            *slot = Some(value.to_owned());
            out.push((format!("{} {value}", flag.trim_start_matches("--")), step, layout));
        }
        Ok(out)
    }
}
