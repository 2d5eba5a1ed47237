//! `napkin inspect tokens.bin`, `napkin inspect tokens.bin gpt2`, `napkin inspect ids.bin --ids u16 --vocab 50257`,
//! `napkin inspect model.safetensors`, `napkin inspect model.gguf llama-3.1-8b`.

use std::path::PathBuf;

use ::train::data::{IdType, Tokenizer};
use ::train::weights_file;
use clap::Args;
use plan::report::Report;
use units::{Diagnostics, Severity};

use crate::disk::DISK;
use crate::progress::Meter;
use ask::config;
use ask::parse::{Reader, some};

/// What is in a file of tokens or in weights, and what is wrong with it.
///
/// Of weights only the headers are read: bytes by dtype and part, packed formats, and what differs from the config.
#[derive(Debug, Args)]
pub struct Inspect {
    /// A token file, ids without a header, a `NumPy` array, a shard of llm.c, a text; or weights: a .safetensors or .gguf
    /// file, a model.safetensors.index.json, or a folder
    pub file: PathBuf,
    /// The model that is to be trained on it, or that the weights are of: a config.json, its folder, or a preset [default
    /// for weights: the config.json beside them]
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
        let token_flags = [&self.ids, &self.vocab, &self.tokenizer].iter().any(|flag| flag.is_some());
        if !token_flags && weights_file::is_weights(&self.file) {
            return self.weights();
        }
        let mut read = Reader::new(&DISK);
        let dtype = read.flag::<IdType>("--ids", self.ids.as_deref());
        let tokenizer = read.flag_with("--tokenizer", self.tokenizer.as_deref(), Tokenizer::by_name);
        let vocab = read.flag_with("--vocab", self.vocab.as_deref(), some);
        let model = self.model.as_deref().and_then(|name| read.take_all(config::load(&DISK, name, &[], None)));
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

    /// Answers it for weights.
    fn weights(&self) -> Result<Report, Diagnostics> {
        let beside = weights_file::Stored::config_path(&self.file);
        let asked = self.model.is_some();
        let name = self.model.clone().or_else(|| beside.is_file().then(|| beside.display().to_string()));
        let loaded = name.map(|name| config::load(&DISK, &name, &[], None)).transpose();
        let (model, problems) = match loaded {
            Ok(model) => (model, Diagnostics::new()),
            Err(problems) if asked => return Err(problems),
            // Nobody asked for the config that lies beside them, and what is stored can be said without it.
            Err(problems) => (None, problems),
        };
        let mut report = weights_file::inspect(&self.file, model.as_ref())?;
        if let Some(first) = problems.iter().find(|problem| problem.is_error()) {
            let mut warning = first.clone();
            warning.severity = Severity::Warning;
            report.warnings.push(warning.effect("what is stored is not compared with the config"));
        }
        Ok(report)
    }
}
