//! Layouts to and from the engines people run: what was planned is what starts.
//!
//! [`export`] writes the configuration of an engine, with what is predicted of it as comments, and refuses what that engine
//! cannot express. [`read`] takes the layout out of a configuration people have. Both know the options of each engine from
//! its own source ([`options`]); what changes no cost (learning rate, data, checkpoints, scaling of rotary frequencies) is
//! not handed over.
//!
//! | engine | form | predictions | read back |
//! |---|---|---|---|
//! | Megatron-LM | arguments in a shell script | comments | yes |
//! | torchtitan up to 0.2 (from 0.3 on it has no TOML) | TOML | comments | yes |
//! | DeepSpeed | JSON | under the key `napkin`, which DeepSpeed does not look at | yes |
//! | FSDP2 by accelerate | YAML | comments | yes, FSDP1 too |
//! | nanotron | YAML | comments | yes |
//!
//! | code | says |
//! |---|---|
//! | T0490 | the engine cannot divide a run like this |
//! | T0491 | the engine has no such model |
//! | T0492 | the engine has no such number formats |
//! | T0493 | the engine asks for other sizes |
//! | T0494 | a value is not what the option takes |
//! | T0495 | the configuration leaves open what a layout needs |
//! | T0496 | options contradict each other, or the model |
//! | T0497 | an option may change the cost and is not in a layout |
//! | T0498 | the engine has no such option |
//! | T0499 | read, or written, as the nearest that there is |

mod deepspeed;
mod fsdp;
mod megatron;
mod nanotron;
pub mod options;
mod reading;
pub mod settings;
pub mod shape;
mod torchtitan;
mod yaml;

use nn::HeadLoss;
use nn::optim::{Kind, OptimizerKind};
use nn::spec::ModelSpec;
use nn::step::Precision;
use std::fmt;
use std::str::FromStr;
use units::{Bytes, Diagnostic, Diagnostics, Seconds};

use crate::layout::{self, ContextParallel, Layout, Schedule};
use crate::sharding::Wrap;

pub use reading::{Around, Taken};

/// An engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Engine {
    /// NVIDIA's Megatron-LM.
    Megatron,
    /// PyTorch's torchtitan.
    Torchtitan,
    /// DeepSpeed.
    DeepSpeed,
    /// PyTorch's FSDP2, launched by Hugging Face's accelerate.
    Fsdp,
    /// Hugging Face's nanotron.
    Nanotron,
}

impl Engine {
    /// All engines.
    pub const ALL: [Self; 5] = [Self::Megatron, Self::Torchtitan, Self::DeepSpeed, Self::Fsdp, Self::Nanotron];

    /// Name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Megatron => "megatron",
            Self::Torchtitan => "torchtitan",
            Self::DeepSpeed => "deepspeed",
            Self::Fsdp => "fsdp",
            Self::Nanotron => "nanotron",
        }
    }

    /// The number formats in which it usually trains.
    pub const fn usual_precision(self) -> Precision {
        match self {
            Self::Megatron | Self::Nanotron => Precision::Bf16MasterFp32Grads,
            Self::DeepSpeed => Precision::Bf16Master,
            Self::Torchtitan | Self::Fsdp => Precision::Bf16Mixed,
        }
    }

    /// How it usually runs head and loss.
    ///
    /// Source: huggingface/nanotron, `src/nanotron/parallel/tensor_parallel/functional.py`, `_ShardedCrossEntropy`. Megatron-LM does
    /// the same unless its loss is fused, as it is where it is measured (`plan/tests/layout_memory.rs`).
    pub const fn usual_loss(self) -> HeadLoss {
        match self {
            Self::Nanotron => HeadLoss::Parallel,
            _ => HeadLoss::Whole,
        }
    }

    /// Its name as its makers write it.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Megatron => "Megatron-LM",
            Self::Torchtitan => "torchtitan",
            Self::DeepSpeed => "DeepSpeed",
            Self::Fsdp => "FSDP",
            Self::Nanotron => "nanotron",
        }
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Engine {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let name = text.trim().to_ascii_lowercase();
        Self::ALL
            .into_iter()
            .find(|engine| engine.name() == name)
            .ok_or_else(|| format!("unknown engine `{text}`: valid are {}", Self::ALL.map(Self::name).join(", ")))
    }
}

/// What an engine asks for beside the layout.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// What the model is called.
    pub name: &'a str,
    /// What it is made of.
    pub model: &'a ModelSpec,
    /// Tokens of a sequence.
    pub seq_len: u64,
    /// Number formats.
    pub precision: Precision,
    /// The update.
    pub optimizer: OptimizerKind,
    /// How head and loss run.
    pub loss: HeadLoss,
    /// Devices of a node.
    pub devices_per_node: u64,
    /// Steps of the run, where they are known.
    pub steps: Option<u64>,
    /// Predicted bytes on the fullest rank.
    pub memory: Option<Bytes>,
    /// Predicted time of a step.
    pub step_time: Option<Seconds>,
}

/// A configuration that was written.
#[derive(Clone, Debug, PartialEq)]
pub struct Export {
    /// The file.
    pub text: String,
    /// The options in it.
    pub settings: settings::Settings,
    /// In what it differs from what was planned.
    pub warnings: Vec<Diagnostic>,
}

/// Writes the configuration that runs a layout on an engine.
///
/// # Errors
/// All of `T0480` to `T0483` for a layout that is not legal, and of `T0490` to `T0493` for what the engine cannot express.
pub fn export(engine: Engine, layout: &Layout, run: &Run<'_>) -> Result<Export, Diagnostics> {
    let mut draft = Draft::new(engine, layout, run)?;
    match engine {
        Engine::Megatron => megatron::export(&mut draft),
        Engine::Torchtitan => torchtitan::export(&mut draft),
        Engine::DeepSpeed => deepspeed::export(&mut draft),
        Engine::Fsdp => fsdp::export(&mut draft),
        Engine::Nanotron => nanotron::export(&mut draft),
    }
    if draft.problems.has_errors() {
        return Err(draft.problems.into_iter().filter(Diagnostic::is_error).collect());
    }
    let text = match engine {
        Engine::Megatron => megatron::script(&draft),
        Engine::Torchtitan => draft.comments() + &draft.settings.toml(),
        Engine::DeepSpeed => deepspeed::json(&draft),
        Engine::Fsdp | Engine::Nanotron => draft.comments() + &draft.settings.yaml(),
    };
    Ok(Export { text, settings: draft.settings, warnings: draft.problems.0 })
}

/// Takes the layout out of the configuration of an engine.
///
/// # Errors
/// `T0494` to `T0496` for what is wrong with the text or missing, `T0490` for what of an engine is not read.
pub fn read(engine: Engine, text: &str, around: &Around<'_>) -> Result<Taken, Diagnostics> {
    match engine {
        Engine::Megatron => megatron::read(text, around),
        Engine::Torchtitan => torchtitan::read(text, around),
        Engine::DeepSpeed => deepspeed::read(text, around),
        Engine::Fsdp => fsdp::read(text, around),
        Engine::Nanotron => nanotron::read(text, around),
    }
}

/// Whether some blocks of a model have experts.
fn has_experts(model: &ModelSpec) -> bool {
    model.layers.iter().any(|layer| layout::moe(&layer.feed_forward).is_some())
}

/// A layout without what means nothing: two layouts that run alike are equal.
pub fn settled(layout: &Layout, model: &ModelSpec) -> Layout {
    let mut l = layout.clone();
    l.imbalance = 1.0;
    if l.tp == 1 {
        l.sp = false;
    }
    if l.cp == 1 {
        l.context = ContextParallel::Ring;
    }
    if l.pp <= 1 {
        (l.pp, l.virtual_stages, l.blocks) = (1, 1, None);
        l.schedule = Schedule::OneFOneB;
    }
    if l.virtual_stages == 1 && l.schedule == Schedule::Interleaved {
        l.schedule = Schedule::OneFOneB;
    }
    let even = Layout { blocks: None, ..l.clone() };
    if l.blocks.is_some() && l.blocks_of(model.depth() as u64) == even.blocks_of(model.depth() as u64) {
        l.blocks = None;
    }
    let replicas = l.dp.saturating_mul(l.cp);
    let sparse = has_experts(model);
    if l.shard == Some(1) || (replicas == 1 && (!sparse || l.expert_dp() <= 1)) {
        l.zero = 0;
    }
    if l.zero == 0 || l.shard == Some(replicas) {
        l.shard = None;
    }
    l.gathering = l.sharding().gathering;
    l
}

/// A configuration in the making.
struct Draft<'a> {
    engine: Engine,
    layout: Layout,
    run: &'a Run<'a>,
    settings: settings::Settings,
    notes: Vec<String>,
    problems: Diagnostics,
}

impl<'a> Draft<'a> {
    /// Checks the layout, and leaves out of it what means nothing.
    fn new(engine: Engine, layout: &Layout, run: &'a Run<'a>) -> Result<Self, Diagnostics> {
        layout::check(layout, run.model, run.seq_len, None)?;
        Ok(Self {
            engine,
            layout: settled(layout, run.model),
            run,
            settings: settings::Settings::default(),
            notes: Vec::new(),
            problems: Diagnostics::new(),
        })
    }

    /// What the engine cannot do.
    fn refuse(&mut self, code: &'static str, what: impl fmt::Display, why: &str, help: impl Into<String>) {
        let problem = Diagnostic::error(code, format!("{} cannot run {what}", self.engine.title()));
        self.problems.push(problem.why(why).help(help));
    }

    /// Refuses an update that the engine does not have, of which `has` are there.
    fn refuse_optimizer(&mut self, has: &str) {
        self.refuse(
            "T0490",
            format!("optimizer {}", self.run.optimizer),
            &format!("it has {has}"),
            "--optimizer adamw",
        );
    }

    /// Refuses ways to run head and loss that the engine does not have, of which it has one.
    fn refuse_other_loss(&mut self, its: HeadLoss) {
        if self.run.loss != its {
            let why = format!("its own takes what `{its}` does");
            self.refuse("T0490", format!("loss {}", self.run.loss), &why, format!("--loss {its}"));
        }
    }

    /// Update and loss of an engine whose program brings them.
    fn asks_for_recipe(&mut self) {
        if !matches!(self.run.optimizer.kind, Kind::Adam | Kind::AdamW) {
            self.asks(format!("optimizer {}", self.run.optimizer));
        }
        if self.run.loss != HeadLoss::Whole {
            self.asks(format!("loss {}", self.run.loss));
        }
    }

    /// Refuses blocks that are not fetched ahead.
    fn refuse_no_prefetch(&mut self) {
        if !self.layout.sharding().gathering.prefetch {
            let why = "it fetches the next block ahead";
            self.refuse("T0490", "zero 3 without fetching ahead", why, "no --no-prefetch");
        }
    }

    /// Refuses units that are not blocks, and gradients that are not reduced behind every micro-batch.
    fn refuse_other_units(&mut self) {
        let has = self.layout.sharding().gathering;
        if has.wrap == Wrap::Model {
            self.refuse("T0490", "the whole model as one unit", "it wraps blocks", "--fsdp-unit block");
        }
        if !has.sync {
            let why = "it reduces gradients behind every micro-batch";
            self.refuse("T0490", "gradients that are added up whole", why, "no --no-sync");
        }
    }

    /// In what the engine's run will differ from the plan.
    fn differs(&mut self, what: impl fmt::Display, effect: impl Into<String>) {
        let text = format!("{}: {what}", self.engine.title());
        let effect = effect.into();
        self.notes.push(format!("{what}: {effect}"));
        self.problems.push(Diagnostic::warning("T0499", text).effect(effect));
    }

    /// What the file cannot say, and the program that it configures has to.
    fn asks(&mut self, what: impl Into<String>) {
        let what = what.into();
        let title = self.engine.title();
        self.problems.push(Diagnostic::note("T0499", format!("{title} takes this from your program: {what}")));
        self.notes.push(format!("in your program: {what}"));
    }

    /// The model in the engine's terms, or a refusal that names all that stands against it.
    fn shape(&mut self) -> Option<shape::Shape> {
        shape::Shape::of(self.run.model)
            .map_err(|odd| {
                let title = self.engine.title();
                for what in odd {
                    let problem = Diagnostic::error("T0491", format!("{title} has no options for {what}"));
                    self.problems.push(problem.help("deepspeed and fsdp take the model from your program"));
                }
            })
            .ok()
    }

    /// Ranks that states are divided over, and groups of them that hold copies.
    fn sharding(&self) -> (u64, u64) {
        let ranks = self.layout.sharing_ranks().max(1);
        (ranks, self.layout.dp.saturating_mul(self.layout.cp) / ranks)
    }

    /// What stands at the top of the file.
    fn remarks(&self) -> Vec<String> {
        let (run, layout) = (self.run, &self.layout);
        let mut lines = vec![format!(
            "{} for {}: {} devices, sequences of {} tokens, {}",
            run.name.replace(char::is_control, " "),
            self.engine.title(),
            layout.devices(),
            run.seq_len,
            run.precision.name()
        )];
        lines.push(format!("layout: {layout}"));
        if let Some(bytes) = run.memory {
            lines.push(format!("predicted: {bytes} on the fullest rank"));
        }
        if let Some(time) = run.step_time {
            let tokens = layout.global_batch().saturating_mul(run.seq_len);
            lines.push(format!("predicted: {time} a step of {} tokens", units::group_digits(tokens.into())));
        }
        lines.extend(self.notes.iter().cloned());
        lines
    }

    fn comments(&self) -> String {
        let lines: Vec<String> = self.remarks().iter().map(|line| format!("# {line}\n")).collect();
        lines.concat() + "\n"
    }
}
