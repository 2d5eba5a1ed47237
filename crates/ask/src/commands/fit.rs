//! `napkin fit llama-3.1-8b --hw h100-sxm`, or `napkin fit --states-only --hw h100-sxm -n 8 --zero 3`.

use clap::{Args, ValueEnum};
use nn::blocks::Blocks;
use nn::optim::Kind;
use nn::spec::Tuning;
use nn::step::{Precision, StepOptions};
use plan::fit::{Choice, Memory, StatesRequest, Subject};
use plan::hardware::Hardware;
use plan::largest::{self, Grow};
use plan::report::Report;
use plan::sharding::Wrap;
use plan::states::Zero;
use units::{Bytes, Diagnostic, Diagnostics};

use crate::model_args::{ReadingArgs, TuningArgs};
use crate::parse::{Reader, count, some};
use crate::step::{LayoutArgs, StepArgs, dense, no_maps, word};

/// What fits.
#[derive(Debug, Args)]
pub struct Fit {
    /// A config, preset or folder; or dense:70B; or nothing, with --states-only
    pub model: Option<String>,
    /// A config, preset or folder whose blocks are stacked until memory is full: MODEL with --grow layers
    #[arg(long, value_name = "MODEL", conflicts_with_all = ["model", "states_only"])]
    pub shape_like: Option<String>,
    /// How the model is read
    #[command(flatten)]
    pub reading: ReadingArgs,
    /// Count parameters, gradients and optimizer states only
    #[arg(long)]
    pub states_only: bool,
    /// What to grow [default: all three]
    #[arg(long, value_enum, value_name = "WHAT")]
    pub grow: Vec<GrowArg>,
    /// Accelerator; `napkin hw` lists them
    #[arg(long, value_name = "NAME")]
    pub hw: Option<String>,
    /// Memory of one device, such as 80GB or 80GiB, instead of an accelerator
    #[arg(long, value_name = "SIZE", conflicts_with = "hw")]
    pub memory: Option<String>,
    /// How many devices, all data-parallel [default: 1]
    #[arg(short = 'n', long, value_name = "N")]
    pub devices: Option<String>,
    /// The step
    #[command(flatten)]
    pub step: StepArgs,
    /// The layout
    #[command(flatten)]
    pub layout: LayoutArgs,
}

/// What to grow.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum GrowArg {
    /// Sequences in a micro-batch
    Batch,
    /// Tokens in a sequence
    SeqLen,
    /// Blocks of this shape
    Layers,
}

impl Fit {
    /// Answers it.
    pub fn report(&self, read: Reader<'_>) -> Result<Report, Diagnostics> {
        match self.model.as_deref().filter(|name| !name.starts_with("dense:")).or(self.shape_like.as_deref()) {
            Some(name) if !self.states_only => self.traced(read, name),
            _ => self.states(read),
        }
    }

    fn hardware(&self, read: &mut Reader<'_>) -> Option<Hardware> {
        read.hardware(self.hw.as_deref())
    }

    /// The largest sizes of a traced model.
    fn traced(&self, mut read: Reader<'_>, name: &str) -> Result<Report, Diagnostics> {
        let model = self.reading.read(&mut read, name);
        let hardware = self.hardware(&mut read);
        let given = read.flag::<Bytes>("--memory", self.memory.as_deref());
        let capacity = given.or_else(|| hardware.as_ref().map(Hardware::capacity));
        let capacity = read.required(capacity, self.hw.is_some() || self.memory.is_some(), "--hw", "h100-sxm");
        let devices = self.devices.as_deref().or(self.layout.dp.as_deref());
        let devices = read.flag_with("--devices", devices, some).unwrap_or(1);
        let options = self.step.read(&mut read, model.as_ref(), hardware.as_ref());
        let options = StepOptions { steps: 1, warm: true, ..options };
        let request = self.layout.read(&mut read, options, hardware.as_ref(), devices);
        let (model, (request, capacity)) = read.finish(model.zip(capacity.map(|capacity| (request, capacity))))?;
        let device = hardware.as_ref().map_or_else(|| format!("devices of {capacity}"), |h| h.display.clone());
        let device = format!("{} × {device}", units::group_digits(u128::from(devices)));
        let mut grow: Vec<Grow> = self.grow.iter().map(|what| what.grow()).collect();
        if self.shape_like.is_some() && !grow.contains(&Grow::Layers) {
            grow.push(Grow::Layers);
        } else if grow.is_empty() {
            grow.extend(Grow::ALL);
        }
        largest::report(&model, &request, &device, capacity, &grow)
    }

    /// The largest bare parameter count, by its states alone.
    fn states(&self, mut read: Reader<'_>) -> Result<Report, Diagnostics> {
        if !self.states_only {
            let problem = Diagnostic::error("", "activations need a model to trace");
            read.problem(problem.help("--states-only").help("napkin fit llama-3.1-8b --hw h100-sxm"));
        }
        self.unused(&mut read);
        let subject = match self.model.as_deref() {
            Some(name) if name.starts_with("dense:") => {
                let count = read.flag_with("MODEL", Some(name), dense);
                count.map(|parameters| Subject {
                    name: name.to_owned(),
                    parameters,
                    tensors: Vec::new(),
                    blocks: None,
                    tuning: Tuning::default(),
                })
            }
            Some(name) => {
                let model = self.reading.read(&mut read, name);
                let counted = model.map(|model| Ok((plan::params::parameters(&model)?, model.spec)));
                counted.and_then(|counted| read.take_all(counted)).map(|(tensors, spec)| Subject {
                    name: name.to_owned(),
                    parameters: plan::params::Counts::of(&tensors).stored,
                    tensors,
                    blocks: Some(Blocks::of(&spec.names)),
                    tuning: spec.tuning,
                })
            }
            None => None,
        };
        let given = read.flag::<Bytes>("--memory", self.memory.as_deref()).map(Memory::Given);
        let memory = given.or_else(|| self.hardware(&mut read).map(|found| Memory::Of(Box::new(found))));
        let memory = read.required(memory, self.hw.is_some() || self.memory.is_some(), "--hw", "h100-sxm");
        let devices = self.devices.as_deref().or(self.layout.dp.as_deref());
        let devices = Choice::or(read.flag_with("--devices", devices, count), 1);
        let recipe =
            Choice::or(word::<Precision>(&mut read, "--precision", self.step.precision.as_deref()), Precision::Fp32);
        let optimizer = Choice::or(self.step.rule(&mut read).map(|(kind, _)| kind), Kind::AdamW);
        let zero = Choice::or(read.flag::<Zero>("--zero", self.layout.zero.as_deref()), Zero::None);
        let unit = word::<Wrap>(&mut read, "--fsdp-unit", self.layout.gathering.fsdp_unit.as_deref());
        let request = memory.map(|memory| StatesRequest { memory, devices, recipe, optimizer, zero, unit, subject });
        read.finish(request)?.report()
    }
}

impl Fit {
    /// Refuses what has no part in counting states alone.
    fn unused(&self, read: &mut Reader<'_>) {
        let acts = ["--precision", "--optimizer", "--zero", "--dp", "--fsdp-unit"];
        let flags = [&self.step.given()[..], &self.layout.given(), &[("--grow", !self.grow.is_empty())]].concat();
        let idle: Vec<(&str, bool)> = flags.into_iter().filter(|(flag, _)| !acts.contains(flag)).collect();
        read.no_effect(&idle, "--states-only counts states, of no step");
        match self.model.as_deref() {
            None => self.reading.need_model(read),
            Some(name) if name.starts_with("dense:") => {
                self.reading.config.no_effect(read, "a bare count has no config");
                if self.reading.tuning != TuningArgs::default() {
                    read.problem(no_maps());
                }
            }
            Some(_) => {}
        }
    }
}

impl GrowArg {
    const fn grow(self) -> Grow {
        match self {
            Self::Batch => Grow::Batch,
            Self::SeqLen => Grow::SeqLen,
            Self::Layers => Grow::Layers,
        }
    }
}
