//! `napkin generate runs/tiny-llama --prompt "It was"`.

use clap::Args;
use nn::generate::Sampling;
use plan::report::Report;
use std::path::PathBuf;
use train::data::Tokenizer;
use train::sample::{self, Request};
use units::{Diagnostic, Diagnostics};

use crate::disk::DISK;
use crate::local::ThreadsArgs;
use ask::parse::{Reader, count, positive, positive_share, some};

/// Samples text from a checkpoint.
#[derive(Debug, Args)]
pub struct Generate {
    /// A checkpoint, or the folder of a run: its newest one
    pub dir: PathBuf,
    /// Text to go on from
    #[arg(long, default_value = "", value_name = "TEXT", hide_default_value = true)]
    pub prompt: String,
    /// Tokens to add [default: 200, or as many as the model has positions for]
    #[arg(long, value_name = "N")]
    pub tokens: Option<String>,
    /// Divides the logits; 0 takes the likeliest token [default: 0.8]
    #[arg(long, value_name = "T")]
    pub temperature: Option<String>,
    /// Only the so many likeliest tokens [default: all]
    #[arg(long, value_name = "K")]
    pub top_k: Option<String>,
    /// Only the likeliest tokens that together have this probability [default: 1]
    #[arg(long, value_name = "P")]
    pub top_p: Option<String>,
    /// Seed of the choices [default: 0]
    #[arg(long, value_name = "N")]
    pub seed: Option<String>,
    /// The model's tokenizer, where the checkpoint does not say it
    #[arg(long, value_name = "NAME")]
    pub tokenizer: Option<String>,
    /// Threads
    #[command(flatten)]
    pub threads: ThreadsArgs,
}

impl Generate {
    /// Generates.
    pub fn report(&self) -> Result<Report, Diagnostics> {
        let mut read = Reader::new(&DISK);
        let temperature = read.flag_with("--temperature", self.temperature.as_deref(), |text| match text {
            "0" | "0.0" => Ok(0.0),
            text => positive(text),
        });
        let top_p = read.flag_with("--top-p", self.top_p.as_deref(), positive_share);
        let sampling = Sampling {
            temperature: temperature.unwrap_or(0.8),
            top_k: read.flag_with("--top-k", self.top_k.as_deref(), some),
            top_p,
        };
        let tokens = read.flag_with("--tokens", self.tokens.as_deref(), some);
        let seed = read.flag_with("--seed", self.seed.as_deref(), count).unwrap_or(0);
        read.finish(Some(()))?;
        self.threads.pool()?.run(|| {
            let checkpoint = train::checkpoint::at(&self.dir)?;
            let saved = checkpoint.manifest().training.as_ref().map(|t| t.data.tokenizer.as_str());
            let name = self.tokenizer.as_deref().or(saved.filter(|name| !name.is_empty())).ok_or_else(|| {
                Diagnostic::error("T0724", "the checkpoint does not say which tokenizer its data was made with")
                    .help("--tokenizer gpt2")
                    .help("--tokenizer bytes")
            })?;
            let tokenizer = Tokenizer::by_name(name)?;
            let (_runtime, model) = sample::load(&checkpoint)?;
            let room = model.spec().max_positions.unwrap_or(u64::MAX).saturating_sub(self.prompt.len() as u64).max(1);
            let tokens = tokens.unwrap_or(200.min(room));
            let request = Request { prompt: self.prompt.clone(), tokens, sampling, seed };
            let made = sample::sample(&model, &tokenizer, &request)?;
            Ok(sample::report(&checkpoint, &request, &made))
        })
    }
}
