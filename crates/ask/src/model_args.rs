//! Flags that say which model: where its config is, what is changed in it, what of it is trained.

use clap::Args;
use nn::spec::{Lora, Pattern, StackTarget, Targets, Tuning};
use plan::model::Model;
use plan::tuning;
use tensor::DType;
use units::{Diagnostic, Diagnostics};

use crate::config;
use crate::parse::{Reader, assignment, count, positive, share_below_one};

/// Which model, and how its config is read.
#[derive(Clone, Debug, Args)]
pub struct ModelArgs {
    /// A config.json, its folder, a preset name, or - for standard input
    pub model: String,
    /// How it is read
    #[command(flatten)]
    pub reading: ReadingArgs,
}

/// How a config is read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub struct ConfigArgs {
    /// Override a key of the config
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Read an unknown `model_type` as this family
    #[arg(long, value_name = "FAMILY")]
    pub assume: Option<String>,
}

/// How a config is read, and what of the model is trained.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub struct ReadingArgs {
    /// How the config is read
    #[command(flatten)]
    pub config: ConfigArgs,
    /// What is trained
    #[command(flatten)]
    pub tuning: TuningArgs,
}

/// What of a model is trained, and how the rest is stored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "Fine-tuning")]
pub struct TuningArgs {
    /// Freeze the model and train adapters of this rank beside its linear maps
    #[arg(long, value_name = "RANK")]
    pub lora: Option<String>,
    /// Scale of the adapters, before the division by their rank [default: twice the rank]
    #[arg(long, value_name = "NUMBER", requires = "lora")]
    pub lora_alpha: Option<String>,
    /// Dropout in front of the adapters [default: 0]; with it, --dropout is on
    #[arg(long, value_name = "SHARE", requires = "lora")]
    pub lora_dropout: Option<String>,
    /// Linear maps with adapters, such as `q_proj,v_proj`, or `none` [default: all in blocks]
    #[arg(long, value_name = "NAMES", value_delimiter = ',', requires = "lora")]
    pub lora_targets: Vec<String>,
    /// Stacks of experts with an adapter for each expert, such as `gate_up_proj:32,down_proj` (`target_parameters` of PEFT; behind `:` a rank of its own)
    #[arg(long, value_name = "NAMES", value_delimiter = ',', requires = "lora")]
    pub lora_target_parameters: Vec<String>,
    /// Train magnitudes of the rows of adapted weights beside their directions (`DoRA`)
    #[arg(long, requires = "lora")]
    pub dora: bool,
    /// Train these whole beside adapters, such as `embed_tokens,lm_head`, in copies of the frozen ones (`modules_to_save` of PEFT)
    #[arg(long, value_name = "NAMES", value_delimiter = ',', requires = "lora")]
    pub lora_modules_to_save: Vec<String>,
    /// Store the frozen weights of linear maps as nf4, nf4-dq, int8, gptq, awq, fp8-block, mxfp4 or nvfp4
    #[arg(long, value_name = "FORMAT")]
    pub quant: Option<String>,
    /// Products with packed weights keep their inputs, as those of bitsandbytes before 0.43.2 did
    #[arg(long, requires = "quant")]
    pub quant_keeps_inputs: bool,
    /// Do not train these, such as `embed_tokens` or `layers.0-7`
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub freeze: Vec<String>,
    /// Train only these of the model's own parameters
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub train_only: Vec<String>,
    /// dtype of what is frozen and not packed [default: with adapters the 16 bits of a mixed recipe]
    #[arg(long, value_name = "DTYPE")]
    pub frozen_dtype: Option<String>,
}

impl ModelArgs {
    /// The model, or a note of all that is wrong with it.
    pub fn read(&self, read: &mut Reader<'_>) -> Option<Model> {
        self.reading.read(read, &self.model)
    }
}

impl ConfigArgs {
    /// The overrides, as keys and values.
    pub fn overrides(&self, read: &mut Reader<'_>) -> Vec<(String, String)> {
        read.flags("--set", &self.set, assignment)
    }

    /// The model that `name` names, of which everything is trained.
    ///
    /// # Errors
    /// All that is wrong with it.
    pub fn load(&self, read: &Reader<'_>, name: &str) -> Result<Model, Diagnostics> {
        let files = read.files();
        let mut read = read.another();
        let overrides = self.overrides(&mut read);
        let overrides = read.finish(Some(overrides))?;
        config::load(files, name, &overrides, self.assume.as_deref())
    }

    /// Refuses them where `why` says that no config is read.
    pub fn no_effect(&self, read: &mut Reader<'_>, why: &str) {
        read.no_effect(&[("--set", !self.set.is_empty()), ("--assume", self.assume.is_some())], why);
    }
}

impl ReadingArgs {
    /// The model that `name` names, or a note of all that is wrong with it.
    pub fn read(&self, read: &mut Reader<'_>, name: &str) -> Option<Model> {
        let tuning = self.tuning.read(read);
        let model = self.config.load(read, name);
        let model = read.take_all(model);
        let model = model.zip(tuning).map(|(model, tuning)| tuned(model, tuning))?;
        read.take_all(model)
    }

    /// Notes that they are of no use without a model.
    pub fn need_model(&self, read: &mut Reader<'_>) {
        if *self != Self::default() {
            read.problem(
                Diagnostic::error("", "flags of a model without one").help("name the model").help("llama-3.1-8b"),
            );
        }
    }
}

/// The model, of which this is trained.
///
/// # Errors
/// What does not fit the model.
pub fn tuned(model: Model, tuning: Tuning) -> Result<Model, Diagnostics> {
    if tuning.is_plain() { Ok(model) } else { model.tuned(tuning) }
}

impl TuningArgs {
    /// What is trained; nothing where a flag is wrong.
    pub fn read(&self, read: &mut Reader<'_>) -> Option<Tuning> {
        let mut own = read.another();
        let rank = own.flag_with("--lora", self.lora.as_deref(), count);
        let alpha = own.flag_with("--lora-alpha", self.lora_alpha.as_deref(), positive);
        let dropout = own.flag_with("--lora-dropout", self.lora_dropout.as_deref(), share_below_one);
        let targets = match self.lora_targets.as_slice() {
            [] => Targets::All,
            [none] if none == "none" => Targets::Named(Vec::new()),
            names => Targets::Named(patterns(&mut own, "--lora-targets", names)),
        };
        let stacks = own.flags("--lora-target-parameters", &self.lora_target_parameters, |text| {
            text.parse::<StackTarget>().map_err(|message| Diagnostic::error("", message))
        });
        let tuning = Tuning {
            frozen: patterns(&mut own, "--freeze", &self.freeze),
            trained: patterns(&mut own, "--train-only", &self.train_only),
            lora: rank.map(|rank| Lora {
                rank,
                alpha: alpha.unwrap_or(2.0 * rank as f64),
                dropout: dropout.unwrap_or(0.0),
                targets,
                stacks,
                magnitudes: self.dora,
            }),
            copied: patterns(&mut own, "--lora-modules-to-save", &self.lora_modules_to_save),
            packed_keeps_inputs: self.quant_keeps_inputs,
            packed: own.flag_with("--quant", self.quant.as_deref(), tuning::format),
            frozen_dtype: own.flag_with("--frozen-dtype", self.frozen_dtype.as_deref(), float),
        };
        let freezes = self.lora.is_some() || self.quant.is_some();
        if self.frozen_dtype.is_some() && !freezes && self.freeze.is_empty() && self.train_only.is_empty() {
            own.problem(
                Diagnostic::error("", "--frozen-dtype: nothing is frozen")
                    .help("--freeze embed_tokens")
                    .help("--lora 16")
                    .help("--precision says how parameters that are trained are stored"),
            );
        }
        let tuning = own.finish(Some(tuning));
        read.take_all(tuning)
    }
}

fn float(text: &str) -> Result<DType, Diagnostic> {
    match text.parse::<DType>() {
        Ok(dtype @ (DType::F32 | DType::F16 | DType::BF16)) => Ok(dtype),
        _ => Err(Diagnostic::error("", format!("`{text}` is none of f32, f16, bf16"))),
    }
}

fn patterns(read: &mut Reader<'_>, flag: &str, texts: &[String]) -> Vec<Pattern> {
    read.flags(flag, texts, |text| text.parse::<Pattern>().map_err(|message| Diagnostic::error("", message)))
}
