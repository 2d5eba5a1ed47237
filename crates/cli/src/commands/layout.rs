//! `napkin layout MODEL --tp 8 --pp 4 -n 64 --export megatron > run.sh`.

use std::path::Path;
use std::str::FromStr;

use clap::Args;
use nn::Recompute;
use nn::offload::Offload;
use nn::step::Precision;
use plan::handover::{self, Around, Engine, Export, Run, Taken};
use plan::layout::report::{Request, report};
use plan::layout::{ContextParallel, Layout as Divided, Schedule};
use plan::model::Model;
use plan::phrase;
use plan::report::{Block, KeyValue, Origin, Report};
use units::{Diagnostic, Diagnostics};

use crate::model_args::ModelArgs;
use crate::output;
use crate::parse::{Reader, count, some};
use crate::step::word;
use crate::text;

/// Longest configuration of an engine that is read.
const MOST_BYTES: usize = 1 << 20;

/// How a run is divided over devices, to and from the engines people run.
#[derive(Debug, Args)]
pub struct Layout {
    /// The model
    #[command(flatten)]
    pub model: ModelArgs,
    /// Devices of the run
    #[arg(short = 'n', long, value_name = "N")]
    pub devices: Option<String>,
    /// Take the layout from Megatron-LM's arguments, in a script or as they are
    #[arg(long, value_name = "FILE", group = "from")]
    pub from_megatron_args: Option<String>,
    /// Take the layout from a TOML file of torchtitan
    #[arg(long, value_name = "FILE", group = "from")]
    pub from_torchtitan: Option<String>,
    /// Take the layout from a JSON file of `DeepSpeed`
    #[arg(long, value_name = "FILE", group = "from")]
    pub from_deepspeed: Option<String>,
    /// Take the layout from a YAML file of accelerate with FSDP
    #[arg(long, value_name = "FILE", group = "from")]
    pub from_fsdp: Option<String>,
    /// Take the layout from a YAML file of nanotron
    #[arg(long, value_name = "FILE", group = "from")]
    pub from_nanotron: Option<String>,
    /// Write the configuration of megatron, torchtitan, deepspeed, fsdp or nanotron: to standard output, or to the file of -o
    #[arg(long, value_name = "ENGINE")]
    pub export: Option<String>,
    /// Devices of a node [default: 8]
    #[arg(long, value_name = "N")]
    pub devices_per_node: Option<String>,
    /// Steps of the run, where the configuration asks for them
    #[arg(long, value_name = "N")]
    pub steps: Option<String>,
    /// Tokens of a sequence [default: that of the file, or 4096 or what the model takes]
    #[arg(long, value_name = "N")]
    pub seq_len: Option<String>,
    /// fp32, bf16-master, bf16-master-fp32-grads, bf16-mixed, fp16-mixed, bf16-pure or fp8 [default: that of the file, or what
    /// the engine usually trains in]
    #[arg(long, value_name = "RECIPE")]
    pub precision: Option<String>,
    /// How the run is divided; what is given holds before what a file says
    #[command(flatten)]
    pub degrees: Degrees,
}

/// The parts of a layout.
#[derive(Debug, Args)]
#[command(next_help_heading = "Layout")]
pub struct Degrees {
    /// Replicas of the model [default: what the devices leave]
    #[arg(long, value_name = "N")]
    pub dp: Option<String>,
    /// Ranks that share matrices
    #[arg(long, value_name = "N")]
    pub tp: Option<String>,
    /// Divide what lies between shared matrices along the sequence
    #[arg(long)]
    pub sp: bool,
    /// Ranks that share a sequence
    #[arg(long, value_name = "N")]
    pub cp: Option<String>,
    /// Exchange heads for positions instead of sending keys and values around
    #[arg(long)]
    pub cp_all_to_all: bool,
    /// Ranks that share the experts of a block
    #[arg(long, value_name = "N")]
    pub ep: Option<String>,
    /// Ranks that share the matrices of one expert
    #[arg(long, value_name = "N")]
    pub etp: Option<String>,
    /// Pipeline stages
    #[arg(long, value_name = "N")]
    pub pp: Option<String>,
    /// Runs of blocks on each pipeline rank
    #[arg(long, value_name = "N")]
    pub virtual_stages: Option<String>,
    /// gpipe, 1f1b, interleaved or zero-bubble [default: 1f1b, or interleaved with several virtual stages]
    #[arg(long, value_name = "NAME")]
    pub schedule: Option<String>,
    /// Blocks of each stage in the order of the model, such as 7,8,8,7 [default: as even as can be]
    #[arg(long, value_name = "N,N,...", value_delimiter = ',')]
    pub blocks: Vec<String>,
    /// 0: nothing; 1: optimizer states; 2: and gradients; 3: and parameters are divided over the replicas
    #[arg(long, value_name = "STAGE")]
    pub zero: Option<String>,
    /// Ranks that these are divided over, the others holding copies [default: all]
    #[arg(long, value_name = "N")]
    pub shard: Option<String>,
    /// Keep parameters that were gathered for the forward pass (zero 3)
    #[arg(long)]
    pub no_reshard: bool,
    /// Sequences of a micro-batch
    #[arg(long, value_name = "N")]
    pub micro_batch: Option<String>,
    /// Micro-batches of a step on one replica [default: 1, or the pipeline stages]
    #[arg(long, value_name = "N")]
    pub grad_accum: Option<String>,
    /// none, selective or full
    #[arg(long, value_name = "POLICY")]
    pub recompute: Option<String>,
    /// What lies on the host: activations, optimizer or both
    #[arg(long, value_name = "WHAT")]
    pub offload: Option<String>,
}

/// All that the flags and the file say.
struct Question {
    model: Model,
    layout: Divided,
    devices: Option<u64>,
    devices_per_node: u64,
    steps: Option<u64>,
    seq_len: (u64, Origin),
    precision: (Precision, Origin),
    engine: Option<Engine>,
    warnings: Vec<Diagnostic>,
}

impl Question {
    fn export(&self, engine: Engine) -> Result<Export, Diagnostics> {
        let run = Run {
            name: &self.model.name,
            model: &self.model.spec,
            seq_len: self.seq_len.0,
            precision: self.precision.0,
            devices_per_node: self.devices_per_node,
            steps: self.steps,
            memory: None,
            step_time: None,
        };
        handover::export(engine, &self.layout, &run)
    }

    fn answer(&self) -> Result<Report, Diagnostics> {
        let request = Request {
            model: &self.model,
            layout: &self.layout,
            devices: self.devices,
            seq_len: self.seq_len,
            precision: self.precision,
        };
        let mut report = report(&request)?;
        report.warnings.extend(self.warnings.iter().cloned());
        Ok(report)
    }
}

impl Layout {
    /// Whether standard output is the configuration itself.
    pub fn is_configuration(&self, json: bool, files: &[String]) -> bool {
        self.export.is_some() && files.is_empty() && !json
    }

    /// The configuration, and what to warn about.
    pub fn configuration(&self) -> Result<(String, Diagnostics), Diagnostics> {
        let question = self.question()?;
        let Some(engine) = question.engine else { return Ok(Default::default()) };
        let report = question.answer()?;
        let export = question.export(engine)?;
        Ok((export.text, report.warnings.into_iter().chain(export.warnings).collect()))
    }

    /// Answers it; with `--export` and a file, writes that.
    pub fn report(&self, files: &[String], force: bool) -> Result<Report, Diagnostics> {
        let question = self.question()?;
        let mut report = question.answer()?;
        if let Some(engine) = question.engine {
            let export = question.export(engine)?;
            report.warnings.extend(export.warnings);
            for file in files {
                output::save(Path::new(file), &export.text, force)?;
                let written = KeyValue::new("written", file.as_str()).note(phrase!["for ", engine.title()]);
                report.blocks.push(Block::key_values("", [written]));
            }
            report.result.insert("engine", engine.name());
            report.result.insert("configuration", export.text);
        }
        Ok(report)
    }

    fn question(&self) -> Result<Question, Diagnostics> {
        let mut read = Reader::default();
        let model = self.model.read(&mut read);
        let devices = read.flag_with("--devices", self.devices.as_deref(), some);
        let devices_per_node = read.flag_with("--devices-per-node", self.devices_per_node.as_deref(), some);
        let steps = read.flag_with("--steps", self.steps.as_deref(), some);
        let seq_len = read.flag_with("--seq-len", self.seq_len.as_deref(), some);
        let precision = word::<Precision>(&mut read, "--precision", self.precision.as_deref());
        let engine = word::<Engine>(&mut read, "--export", self.export.as_deref());
        let (model, taken) = match (model, self.taken(&mut read)) {
            (Some(model), Some((engine, file, text))) => {
                let around = Around { file, model: &model.spec, devices };
                let taken = read.take_all(handover::read(engine, &text, &around));
                (Some(model), taken)
            }
            (model, _) => (model, None),
        };
        let layout = self.degrees.read(&mut read, taken.as_ref(), devices);
        let model = read.finish(model)?;
        let longest = model.spec.max_positions.unwrap_or(4096).min(4096);
        let usual = engine.map_or(Precision::Bf16Mixed, Engine::usual_precision);
        Ok(Question {
            layout,
            devices,
            devices_per_node: devices_per_node.unwrap_or(8),
            steps,
            seq_len: first(seq_len, taken.as_ref().and_then(|taken| taken.seq_len), longest),
            precision: first(precision, taken.as_ref().and_then(|taken| taken.precision), usual),
            engine,
            warnings: taken.map(|taken| taken.warnings).unwrap_or_default(),
            model,
        })
    }

    /// The file that the layout is taken from: whose it is, its name, its text.
    fn taken(&self, read: &mut Reader) -> Option<(Engine, &str, String)> {
        let files = [
            (Engine::Megatron, &self.from_megatron_args),
            (Engine::Torchtitan, &self.from_torchtitan),
            (Engine::DeepSpeed, &self.from_deepspeed),
            (Engine::Fsdp, &self.from_fsdp),
            (Engine::Nanotron, &self.from_nanotron),
        ];
        let (engine, file) = files.into_iter().find_map(|(engine, file)| Some((engine, file.as_deref()?)))?;
        let text = read.take(text::load(file, MOST_BYTES, false))?;
        Some((engine, file, text))
    }
}

impl Degrees {
    /// What the flags say, over what a file says.
    fn read(&self, read: &mut Reader, taken: Option<&Taken>, devices: Option<u64>) -> Divided {
        let mut layout = taken.map(|taken| taken.layout.clone()).unwrap_or_default();
        let mut set = |flag, text: &Option<String>, value: &mut u64| {
            if let Some(given) = read.flag_with(flag, text.as_deref(), some) {
                *value = given;
            }
        };
        set("--tp", &self.tp, &mut layout.tp);
        set("--cp", &self.cp, &mut layout.cp);
        set("--ep", &self.ep, &mut layout.ep);
        set("--etp", &self.etp, &mut layout.etp);
        set("--pp", &self.pp, &mut layout.pp);
        set("--virtual-stages", &self.virtual_stages, &mut layout.virtual_stages);
        set("--micro-batch", &self.micro_batch, &mut layout.micro_batch);
        if taken.is_none() {
            layout.grad_accum = layout.pp;
        }
        set("--grad-accum", &self.grad_accum, &mut layout.grad_accum);
        match devices {
            Some(devices) if self.dp.is_none() && taken.is_none() => layout.fill(devices),
            _ => set("--dp", &self.dp, &mut layout.dp),
        }
        if let Some(zero) = read.flag_with("--zero", self.zero.as_deref(), count) {
            layout.zero = u8::try_from(zero).unwrap_or(u8::MAX);
        }
        layout.shard = read.flag_with("--shard", self.shard.as_deref(), some).or(layout.shard);
        layout.sp |= self.sp;
        layout.reshard &= !self.no_reshard;
        if self.cp_all_to_all {
            layout.context = ContextParallel::AllToAll;
        }
        if !self.blocks.is_empty() {
            let blocks = self.blocks.iter().filter_map(|text| read.flag_with("--blocks", Some(text.trim()), count));
            layout.blocks = Some(blocks.collect());
        }
        if layout.virtual_stages > 1 {
            layout.schedule = Schedule::Interleaved;
        }
        over(read, "--schedule", self.schedule.as_deref(), &mut layout.schedule);
        over::<Recompute>(read, "--recompute", self.recompute.as_deref(), &mut layout.recompute);
        over::<Offload>(read, "--offload", self.offload.as_deref(), &mut layout.offload);
        layout
    }
}

/// Puts what a flag says over what there is.
fn over<T: FromStr<Err = String>>(read: &mut Reader, flag: &str, text: Option<&str>, value: &mut T) {
    if let Some(given) = word::<T>(read, flag, text) {
        *value = given;
    }
}

/// What a flag says, or a file, or what is usual; and which of them.
fn first<T>(flag: Option<T>, file: Option<T>, usual: T) -> (T, Origin) {
    match (flag, file) {
        (Some(value), _) => (value, Origin::Given),
        (None, Some(value)) => (value, Origin::File),
        (None, None) => (usual, Origin::Default),
    }
}
