//! `napkin inspect tokens.bin`, `napkin inspect tokens.bin gpt2`, `napkin inspect ids.bin --ids u16 --vocab 50257`.

use std::path::PathBuf;

use ::train::data::{IdType, Tokenizer};
use clap::Args;
use plan::report::Report;
use units::Diagnostics;

use crate::config;
use crate::parse::{Reader, some};
use crate::progress::Meter;

/// What is in a file of tokens, and what is wrong with it.
#[derive(Debug, Args)]
pub struct Inspect {
    /// A token file, ids without a header, a `NumPy` array, a shard of llm.c, or a text
    pub file: PathBuf,
    /// The model that is to be trained on it: a config.json, its folder, or a preset
    pub model: Option<String>,
    /// Size of the vocabulary, instead of a model
    #[arg(long, value_name = "N", conflicts_with = "model")]
    pub vocab: Option<String>,
    /// Type of ids without a header: u16 or u32
    #[arg(long, value_name = "TYPE")]
    pub ids: Option<String>,
    /// Show ids without a header as text of this tokenizer
    #[arg(long, value_name = "NAME")]
    pub tokenizer: Option<String>,
}

impl Inspect {
    /// Answers it.
    pub fn report(&self) -> Result<Report, Diagnostics> {
        let mut read = Reader::default();
        let dtype = read.flag::<IdType>("--ids", self.ids.as_deref());
        let tokenizer = read.flag_with("--tokenizer", self.tokenizer.as_deref(), Tokenizer::by_name);
        let vocab = read.flag_with("--vocab", self.vocab.as_deref(), some);
        let model = self.model.as_deref().and_then(|name| read.take_all(config::load(name, &[], None)));
        read.finish(Some(()))?;
        let request = ::train::data::Inspect {
            path: self.file.clone(),
            dtype,
            vocab_size: vocab.or(model.map(|model| model.spec.vocab_size)),
            tokenizer,
        };
        let meter = Meter::new("inspect");
        let found = request.run(&mut |done, of| meter.show(done, of)).map_err(Diagnostics::from)?;
        drop(meter);
        Ok(found.report())
    }
}
