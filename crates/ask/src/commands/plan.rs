//! `napkin plan MODEL --hw h100-sxm -n 8 --tokens 1T`: the main job.

use clap::Args;
use nn::offload::Offload;
use nn::step::{Precision, StepOptions};
use nn::{Objective, Profile, Recompute};
use plan::layout::estimate::{Cluster, Run as Divided};
use plan::layout::{self, Layout};
use plan::model::Model;
use plan::report::Report;
use plan::summary::{self, Question, divided};
use units::Diagnostics;

use crate::args::{FleetArgs, Run, RunArgs};
use crate::layout_args::{ClusterArgs, FromArgs, first, over};
use crate::model_args::ModelArgs;
use crate::parse::{Reader, some};
use crate::step::{LayoutArgs, StepArgs, stage};

/// Parameters, FLOP, memory, time and the largest levers on one screen.
#[derive(Debug, Args)]
pub struct Plan {
    /// The model
    #[command(flatten)]
    pub model: ModelArgs,
    /// The run
    #[command(flatten)]
    pub run: RunArgs,
    /// The step
    #[command(flatten)]
    pub step: StepArgs,
    /// The layout
    #[command(flatten)]
    pub layout: LayoutArgs,
    /// Devices
    #[command(flatten)]
    pub fleet: FleetArgs,
    /// The configuration of an engine that says how the run is divided; flags hold before it
    #[command(flatten)]
    pub from: FromArgs,
    /// The nodes, where a configuration is given
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

/// Full sharding is what people run on several devices; one device has nothing to share.
const fn usual_zero(devices: u64) -> &'static str {
    if devices > 1 { "3" } else { "0" }
}

impl Plan {
    /// Answers it.
    pub fn report(&self, mut read: Reader<'_>) -> Result<Report, Diagnostics> {
        if self.from.engine().is_some() {
            return self.divided(read);
        }
        read.no_effect(&self.cluster.given(), "no configuration of an engine is given");
        self.ask(read, summary::report)
    }

    /// Flags that are taken for granted where they are not given, and that other commands would take otherwise.
    pub fn implied(&self) -> Vec<String> {
        let devices = self.fleet.at_least(self.layout.dp.as_ref()).device.devices;
        let devices = devices.and_then(|text| some(&text).ok()).unwrap_or(1);
        if self.layout.zero.is_some() { Vec::new() } else { vec![format!("--zero={}", usual_zero(devices))] }
    }

    /// Puts the question of a model on devices that share its states.
    ///
    /// # Errors
    /// All that is wrong with the flags, or what `answer` says.
    pub fn ask<T>(
        &self,
        mut read: Reader<'_>,
        answer: impl FnOnce(&Model, &Question<'_>) -> Result<T, Diagnostics>,
    ) -> Result<T, Diagnostics> {
        let model = self.model.read(&mut read);
        let fleet = read.fleet_in(&self.fleet.at_least(self.layout.dp.as_ref()), self.step.arithmetic());
        self.run.need_tokens(&mut read);
        let Run { tokens, pace, price, around } = self.run.read(&mut read);
        let hardware = fleet.as_ref().map(|f| f.hardware.clone());
        let options = self.step.read(&mut read, model.as_ref(), hardware.as_ref());
        let devices = fleet.as_ref().map_or(1, |f| f.devices);
        let mut layout = self.layout.clone();
        layout.zero.get_or_insert_with(|| usual_zero(devices).to_owned());
        let memory = layout.read(&mut read, options, hardware.as_ref(), devices).steady();
        let question = fleet.map(|fleet| Question { memory, fleet, tokens, pace, price, around });
        let (model, question) = read.finish(model.zip(question))?;
        answer(&model, &question)
    }

    /// Answers it for a run that the configuration of an engine divides.
    fn divided(&self, mut read: Reader<'_>) -> Result<Report, Diagnostics> {
        let model = self.model.read(&mut read);
        let device = &self.fleet.device;
        let hardware = read.hardware(device.hw.as_deref());
        let hardware = read.required(hardware, device.hw.is_some(), "--hw", "h100-sxm");
        let devices = read.flag_with("--devices", device.devices.as_deref(), some);
        let cluster = self.cluster.read(&mut read);
        self.run.need_tokens(&mut read);
        let Run { tokens, pace, price, around } = self.run.read(&mut read);
        let idle = [
            ("--profile", self.step.profile.is_some()),
            ("--autocast", self.step.autocast.is_some()),
            ("--dropout", self.step.dropout),
            ("--dpo", self.step.dpo.is_some()),
            ("--runtime", self.layout.runtime.is_some()),
            ("--alloc-conf", self.layout.alloc_conf.is_some()),
            ("--dtype", self.fleet.dtype.is_some()),
            ("--peak", self.fleet.peak.is_some()),
        ];
        read.no_effect(&idle, "the configuration of an engine says how the run is made");
        let given = self.step.read(&mut read, model.as_ref(), hardware.as_ref());
        let taken = self.from.read(&mut read, model.as_ref(), devices);
        let of_run = devices.or(taken.as_ref().map(|taken| taken.layout.devices()));
        self.cluster.whole_nodes(&mut read, of_run.unwrap_or(0));
        let layout = taken.as_ref().map(|taken| self.over(&mut read, taken.layout.clone()));
        let all = model.zip(hardware).zip(cluster).zip(layout.zip(taken));
        let (((model, hardware), (network, per_node)), (layout, taken)) = read.finish(all)?;
        let usual = self.from.engine().map_or(Precision::Bf16Mixed, plan::handover::Engine::usual_precision);
        let said = |flag: &Option<String>| flag.is_some();
        let seq_len = first(said(&self.step.seq_len).then_some(given.seq_len), taken.seq_len, given.seq_len);
        let precision = first(said(&self.step.precision).then_some(given.precision), taken.precision, usual);
        let optimizer =
            first(said(&self.step.optimizer).then_some(given.optimizer), taken.optimizer, given.optimizer).0;
        let usual = self.from.engine().map_or(given.objective.head, plan::handover::Engine::usual_loss);
        let head = first(said(&self.step.loss).then_some(given.objective.head), taken.loss, usual).0;
        let step = StepOptions {
            optimizer,
            objective: Objective { head, ..given.objective },
            ..StepOptions::usual(seq_len.0, Profile::Fused, precision.0)
        };
        // What is wrong with the layout is said before anything is traced.
        layout::check(&layout, &model.spec, seq_len.0, devices)?;
        let cluster = Cluster { hardware: &hardware, per_node, network };
        let run = Divided::new(&model, step, self.from.engine(), cluster)?;
        let request = layout::report::Request { model: &model, layout: &layout, devices, seq_len, precision };
        let mut report = divided::report(&divided::Question { request, run, tokens, pace, price, around })?;
        report.warnings.extend(taken.warnings);
        Ok(report)
    }

    /// A layout with what flags say of it.
    fn over(&self, read: &mut Reader<'_>, mut layout: Layout) -> Layout {
        let (step, sharing) = (&self.step, &self.layout);
        for (flag, text, value) in [
            ("--batch", &step.batch, &mut layout.micro_batch),
            ("--grad-accum", &step.grad_accum, &mut layout.grad_accum),
            ("--dp", &sharing.dp, &mut layout.dp),
        ] {
            if let Some(given) = read.flag_with(flag, text.as_deref(), some) {
                *value = given;
            }
        }
        if let Some(zero) = read.flag_with("--zero", sharing.zero.as_deref(), stage) {
            layout.zero = zero;
        }
        layout.gathering = sharing.gathering.over(read, layout.gathering, layout.zero, layout.grad_accum);
        over::<Recompute>(read, "--recompute", step.recompute.as_deref(), &mut layout.recompute);
        over::<Offload>(read, "--offload", step.offload.as_deref(), &mut layout.offload);
        layout
    }
}
