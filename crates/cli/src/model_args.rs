//! Flags that say which model: where its config is, what is changed in it, what of it is trained.

use clap::Args;
use nn::spec::{Lora, Pattern, Tuning};
use plan::model::Model;
use plan::tuning;
use tensor::DType;
use units::{Diagnostic, Diagnostics};

use crate::config;
use crate::parse::{Reader, count, positive};

/// Which model, and how its config is read.
#[derive(Clone, Debug, Args)]
pub struct ModelArgs {
    /// A config.json, its folder, a preset name, or - for standard input
    pub model: String,
    /// How it is read
    #[command(flatten)]
    pub reading: ReadingArgs,
}

/// How a config is read, and what of the model is trained.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub struct ReadingArgs {
    /// Override a key of the config
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Read an unknown `model_type` as this family
    #[arg(long, value_name = "FAMILY")]
    pub assume: Option<String>,
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
    /// Dropout in front of the adapters [default: 0]; it is counted with --dropout
    #[arg(long, value_name = "SHARE", requires = "lora")]
    pub lora_dropout: Option<String>,
    /// Linear maps with adapters, such as `q_proj,v_proj` [default: all in blocks]
    #[arg(long, value_name = "NAMES", value_delimiter = ',', requires = "lora")]
    pub lora_targets: Vec<String>,
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
    pub fn read(&self, read: &mut Reader) -> Option<Model> {
        self.load().map_err(|problems| read.problems(problems)).ok()
    }

    /// Reads the model.
    ///
    /// # Errors
    /// All that is wrong with it.
    pub fn load(&self) -> Result<Model, Diagnostics> {
        let mut overrides = Vec::new();
        let mut read = Reader::default();
        for pair in &self.reading.set {
            match pair.split_once('=') {
                Some((key, value)) if !key.is_empty() => overrides.push((key.to_owned(), value.to_owned())),
                _ => read.problem(
                    Diagnostic::error("", format!("--set {pair}: expected KEY=VALUE"))
                        .help("--set num_hidden_layers=4"),
                ),
            }
        }
        let tuning = self.reading.tuning.read(&mut read);
        let tuning = read.finish(Some(tuning))?;
        let model = config::load(&self.model, &overrides, self.reading.assume.as_deref())?;
        if tuning.is_plain() { Ok(model) } else { model.tuned(tuning) }
    }
}

impl ReadingArgs {
    /// Everything is trained, or nothing.
    pub fn untuned(set: &[String], assume: Option<&str>) -> Self {
        Self { set: set.to_vec(), assume: assume.map(str::to_owned), tuning: TuningArgs::default() }
    }

    /// The model of this name, read so.
    pub fn of(&self, model: &str) -> ModelArgs {
        ModelArgs { model: model.to_owned(), reading: self.clone() }
    }

    /// Notes that they are of no use without a model.
    pub fn need_model(&self, read: &mut Reader) {
        if *self != Self::default() {
            read.problem(
                Diagnostic::error("", "flags of a model without one").help("name the model").help("llama-3.1-8b"),
            );
        }
    }
}

impl TuningArgs {
    /// What is trained.
    fn read(&self, read: &mut Reader) -> Tuning {
        let rank = read.flag_with("--lora", self.lora.as_deref(), count);
        let alpha = read.flag_with("--lora-alpha", self.lora_alpha.as_deref(), positive);
        let dropout = read.flag_with("--lora-dropout", self.lora_dropout.as_deref(), share);
        let targets = patterns(read, "--lora-targets", &self.lora_targets);
        Tuning {
            frozen: patterns(read, "--freeze", &self.freeze),
            trained: patterns(read, "--train-only", &self.train_only),
            lora: rank.map(|rank| Lora {
                rank,
                alpha: alpha.unwrap_or(2.0 * rank as f64),
                dropout: dropout.unwrap_or(0.0),
                targets,
            }),
            packed_keeps_inputs: self.quant_keeps_inputs,
            packed: read.flag_with("--quant", self.quant.as_deref(), tuning::format),
            frozen_dtype: read.flag_with("--frozen-dtype", self.frozen_dtype.as_deref(), float),
        }
    }
}

/// A share from 0 to below 1.
fn share(text: &str) -> Result<f64, Diagnostic> {
    match text.trim().parse::<f64>() {
        Ok(share) if (0.0..1.0).contains(&share) => Ok(share),
        _ => Err(Diagnostic::error("", format!("`{text}` is no share from 0 to below 1")).help("0.05")),
    }
}

fn float(text: &str) -> Result<DType, Diagnostic> {
    match text.parse::<DType>() {
        Ok(dtype @ (DType::F32 | DType::F16 | DType::BF16)) => Ok(dtype),
        _ => Err(Diagnostic::error("", format!("`{text}` is none of f32, f16, bf16"))),
    }
}

fn patterns(read: &mut Reader, flag: &str, texts: &[String]) -> Vec<Pattern> {
    let parse = |text: &String| {
        read.flag_with(flag, Some(text), |text| text.parse::<Pattern>().map_err(|m| Diagnostic::error("", m)))
    };
    texts.iter().filter_map(parse).collect()
}
