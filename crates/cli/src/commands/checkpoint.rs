//! `napkin checkpoint show|verify PATH`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use plan::report::Report;
use train::checkpoint;
use units::Diagnostics;

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
}

impl Checkpoint {
    /// Answers it.
    pub fn report(&self) -> Result<Report, Diagnostics> {
        match &self.what {
            What::Show { path } => checkpoint::show(path),
            What::Verify { path } => checkpoint::verify(path),
        }
    }
}
