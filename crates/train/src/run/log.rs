//! The step log: one JSON object a line.

use super::run::StepReport;
use serde_json::json;
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use units::{Diagnostic, Diagnostics};

/// A log that is appended to.
#[derive(Debug)]
pub struct Log {
    path: PathBuf,
    file: BufWriter<File>,
}

impl Log {
    /// Opens `path` for a run that stands at `step`.
    ///
    /// # Errors
    /// `T0708` if it cannot be written, or holds something and the run is a fresh one.
    pub fn append(path: &Path, step: u64) -> Result<Self, Diagnostics> {
        let refused = |error: std::io::Error| {
            Diagnostics::from(Diagnostic::error("T0708", format!("cannot write `{}`: {error}", path.display())))
        };
        let file = OpenOptions::new().create(true).append(true).open(path).map_err(refused)?;
        if step == 0 && file.metadata().map_err(refused)?.len() > 0 {
            return Err(Diagnostic::error("T0708", format!("`{}` holds the log of another run", path.display()))
                .help("another --log")
                .into());
        }
        Ok(Self { path: path.to_owned(), file: BufWriter::new(file) })
    }

    /// Writes one step, and makes it readable at once.
    ///
    /// # Errors
    /// `T0708` if it cannot be written.
    pub fn step(&mut self, report: &StepReport, model_flop: u128, mfu: Option<f64>) -> Result<(), Diagnostics> {
        let seconds = report.time.as_secs_f64();
        self.line(&json!({
            "step": report.step,
            "loss": report.loss,
            "lr": report.lr,
            "grad_norm": report.grad_norm,
            "tokens": report.tokens,
            "seconds": seconds,
            "wait_seconds": report.wait.as_secs_f64(),
            "tokens_per_second": report.tokens as f64 / seconds,
            "flop": u64::try_from(model_flop).unwrap_or(u64::MAX),
            "mfu": mfu,
            "peak_bytes": report.peak.get(),
            "reserved_bytes": report.reserved.get(),
            "skipped_batches": report.skipped.len(),
            "rounding": report.health.as_ref().map(|h| json!({
                "updated": h.updated, "vanished": h.vanished, "decayed": h.decayed, "undecayed": h.undecayed,
                "means": h.means, "stuck": h.stuck,
            })),
        }))
    }

    /// Writes the loss on the validation data.
    ///
    /// # Errors
    /// As [`Log::step`].
    pub fn validation(&mut self, step: u64, loss: f64) -> Result<(), Diagnostics> {
        self.line(&json!({ "step": step, "validation_loss": loss }))
    }

    fn line(&mut self, value: &serde_json::Value) -> Result<(), Diagnostics> {
        writeln!(self.file, "{value}").and_then(|()| self.file.flush()).map_err(|error| {
            Diagnostic::error("T0708", format!("cannot write `{}`: {error}", self.path.display()))
                .help("free some space, then --resume")
                .into()
        })
    }
}
