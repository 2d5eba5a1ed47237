//! `napkin compare MODEL --vary recompute=none,full`, or `napkin compare A B`.

use clap::Args;
use plan::compare::{self, Setup};
use plan::model::Model;
use plan::report::Report;
use units::{Diagnostic, Diagnostics};

use crate::args::DeviceArgs;
use crate::model_args::{ReadingArgs, TuningArgs, tuned};
use crate::parse::Reader;
use crate::step::{LayoutArgs, StepArgs};

/// Two or more set-ups side by side.
#[derive(Debug, Args)]
pub struct Compare {
    /// One model, or several to compare
    #[arg(required = true, value_name = "MODEL")]
    pub models: Vec<String>,
    /// A flag of the step, the layout or the fine-tuning with its values, such as recompute=none,full, lora=none,16 or no-sync=off,on
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
    pub device: DeviceArgs,
}

impl Compare {
    /// Answers it.
    pub fn report(&self, mut read: Reader<'_>) -> Result<Report, Diagnostics> {
        let variants = read.take_all(self.variants()).unwrap_or_default();
        let (hardware, devices) = read.device(&self.device.at_least(self.layout.dp.as_ref()));
        let mut models: Vec<Model> = Vec::new();
        let mut rest = Vec::new();
        for name in &self.models {
            // Read once, for a name may be standard input.
            let Some(model) = read.take_all(self.reading.config.load(&read, name)) else { continue };
            for variant in &variants {
                let tuning = variant.tuning.read(&mut read);
                let own = tuning.and_then(|tuning| read.take_all(tuned(model.clone(), tuning)));
                let options = variant.step.read(&mut read, own.as_ref().or(Some(&model)), hardware.as_ref());
                let mut request = variant.layout.read(&mut read, options, hardware.as_ref(), devices).steady();
                request.paged = variant.step.paged(&mut read, &options);
                let label = match (self.models.len(), variant.label.is_empty()) {
                    (1, false) => variant.label.clone(),
                    (_, true) => model.name.clone(),
                    (_, false) => format!("{} {}", model.name, variant.label),
                };
                if let Some(own) = own {
                    models.push(own);
                    rest.push((label, request));
                }
            }
        }
        let setups = models.iter().zip(rest).map(|(model, (label, request))| Setup { label, model, request });
        let setups: Vec<Setup<'_>> = setups.collect();
        compare::report(&read.finish(Some(setups))?)
    }

    /// The set-ups of a model: one for each value of `--vary`.
    fn variants(&self) -> Result<Vec<Variant>, Diagnostics> {
        let plain = Variant {
            label: String::new(),
            tuning: self.reading.tuning.clone(),
            step: self.step.clone(),
            layout: self.layout.clone(),
        };
        let Some(vary) = &self.vary else { return Ok(vec![plain]) };
        let bad =
            || Diagnostic::error("", format!("--vary {vary}: expected FLAG=A,B")).help("--vary recompute=none,full");
        let (flag, values) = vary.split_once('=').ok_or_else(bad)?;
        let name = flag.trim().trim_start_matches("--").replace('_', "-");
        let known = || Diagnostic::error("", format!("--vary: `{name}` cannot be varied")).help(VARIED.join(", "));
        values
            .split(',')
            .map(|value| {
                let mut variant = Variant { label: format!("{name} {value}"), ..plain.clone() };
                match variant.slot(&name).ok_or_else(known)? {
                    Slot::Text(text) => {
                        // Flags that have no word for it are left out.
                        let left_out = value == "none" && ["lora", "quant", "dpo"].contains(&name.as_str());
                        *text = (!left_out).then(|| value.to_owned());
                    }
                    Slot::Switch(switch) => *switch = on(&name, value)?,
                }
                Ok(variant)
            })
            .collect()
    }
}

/// Whether a switch is on.
fn on(name: &str, value: &str) -> Result<bool, Diagnostic> {
    match value.trim() {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => {
            let message = format!("--vary: `{name}` is on or off, not `{value}`");
            Err(Diagnostic::error("", message).help(format!("--vary {name}=off,on")))
        }
    }
}

/// Where the value of a flag stands.
enum Slot<'a> {
    Text(&'a mut Option<String>),
    Switch(&'a mut bool),
}

/// Flags that can be varied.
const VARIED: [&str; 18] = [
    "recompute",
    "batch",
    "seq-len",
    "profile",
    "precision",
    "optimizer",
    "grad-accum",
    "loss",
    "dpo",
    "offload",
    "lora",
    "quant",
    "zero",
    "dp",
    "fsdp-unit",
    "no-prefetch",
    "no-reshard",
    "no-sync",
];

/// One set-up of a model.
#[derive(Clone, Debug)]
struct Variant {
    label: String,
    tuning: TuningArgs,
    step: StepArgs,
    layout: LayoutArgs,
}

impl Variant {
    /// The value of one of [`VARIED`].
    fn slot(&mut self, flag: &str) -> Option<Slot<'_>> {
        let Self { label: _, tuning, step, layout } = self;
        let gathering = &mut layout.gathering;
        let switch = match flag {
            "no-prefetch" => Some(&mut gathering.no_prefetch),
            "no-reshard" => Some(&mut gathering.no_reshard),
            "no-sync" => Some(&mut gathering.no_sync),
            _ => None,
        };
        if let Some(switch) = switch {
            return Some(Slot::Switch(switch));
        }
        Some(Slot::Text(match flag {
            "recompute" => &mut step.recompute,
            "batch" | "mbs" => &mut step.batch,
            "seq-len" => &mut step.seq_len,
            "profile" => &mut step.profile,
            "precision" => &mut step.precision,
            "optimizer" => &mut step.optimizer,
            "grad-accum" => &mut step.grad_accum,
            "loss" => &mut step.loss,
            "dpo" => &mut step.dpo,
            "offload" => &mut step.offload,
            "lora" => &mut tuning.lora,
            "quant" => &mut tuning.quant,
            "zero" => &mut layout.zero,
            "dp" => &mut layout.dp,
            "fsdp-unit" => &mut gathering.fsdp_unit,
            _ => return None,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_listed_can_be_varied() {
        let mut variant = Variant {
            label: String::new(),
            tuning: TuningArgs::default(),
            step: StepArgs::default(),
            layout: LayoutArgs::default(),
        };
        assert!(VARIED.iter().all(|flag| variant.slot(flag).is_some()));
    }
}
