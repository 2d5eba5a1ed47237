//! `napkin checkpoint show|verify|import|export`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use plan::report::Report;
use tensor::DType;
use train::checkpoint::{self, Import};
use units::{Diagnostic, Diagnostics};

use crate::disk::DISK;
use ask::model_args::ConfigArgs;
use ask::parse::Reader;

/// What a run can go on from.
#[derive(Debug, Args)]
pub struct Checkpoint {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// What it is: step, model, parameters, bytes by file and dtype, settings
    Show {
        /// A checkpoint, a folder of them, a model.safetensors, or a folder with one
        path: PathBuf,
    },
    /// Make every checksum again, and name what is damaged
    Verify {
        /// A checkpoint, a folder of them, a manifest.json, or a file of weights
        path: PathBuf,
    },
    /// Make a checkpoint of a model that transformers has saved
    Import(ImportArgs),
    /// Write the model of a checkpoint as a folder that transformers loads
    Export {
        /// A checkpoint, or a folder of them, of which the newest is taken
        from: PathBuf,
        /// A folder that is empty or not there yet
        to: PathBuf,
        /// Convert the parameters: f32, bf16 or f16 [default: as they are]
        #[arg(long, value_name = "TYPE")]
        dtype: Option<String>,
    },
}

#[derive(Debug, Args)]
struct ImportArgs {
    /// A folder with config.json and model.safetensors (or its index)
    from: PathBuf,
    /// The folder for the checkpoint
    to: PathBuf,
    /// Convert the parameters: f32, bf16 or f16 [default: as they are stored; f32 if they are mixed]
    #[arg(long, value_name = "TYPE")]
    dtype: Option<String>,
    /// How the config is read
    #[command(flatten)]
    config: ConfigArgs,
}

impl Checkpoint {
    /// Answers it.
    pub fn report(&self) -> Result<Report, Diagnostics> {
        match &self.what {
            What::Show { path } => checkpoint::show(path),
            What::Verify { path } => checkpoint::verify(path),
            What::Import(import) => checkpoint::import(&import.request()?),
            What::Export { from, to, dtype } => {
                let mut read = Reader::new(&DISK);
                let dtype = read.flag_with("--dtype", dtype.as_deref(), parameters);
                checkpoint::export(from, read.finish(Some(dtype))?, to)
            }
        }
    }
}

impl ImportArgs {
    fn request(&self) -> Result<Import, Diagnostics> {
        let mut read = Reader::new(&DISK);
        let dtype = read.flag_with("--dtype", self.dtype.as_deref(), parameters);
        let overrides = self.config.overrides(&mut read);
        let (from, to, assume) = (self.from.clone(), self.to.clone(), self.config.assume.clone());
        read.finish(Some(Import { from, to, overrides, assume, dtype }))
    }
}

/// A dtype that parameters can have without scales beside them.
fn parameters(text: &str) -> Result<DType, Diagnostic> {
    let dtype = text.parse::<DType>().ok().filter(|dtype| dtype.is_float() && !dtype.is_fp8());
    dtype.ok_or_else(|| Diagnostic::error("", format!("`{text}` is no dtype of parameters")).help("f32, bf16 or f16"))
}
