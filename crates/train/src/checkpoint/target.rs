//! What a path that somebody gave is.

use super::problem::{place, unreadable};
use super::saved::{list, step_of};
use super::{MANIFEST, Weights};
use std::fs;
use std::path::{Path, PathBuf};
use units::Diagnostic;

/// What can be shown and verified.
pub(crate) enum Target {
    /// The folder of one checkpoint.
    Checkpoint(PathBuf),
    /// A folder of checkpoints, newest first.
    Store(PathBuf, Vec<PathBuf>),
    /// A manifest apart from its files.
    Manifest(PathBuf),
    /// A file or folder of weights without a manifest.
    Weights(PathBuf),
}

impl Target {
    /// Looks at what is there.
    ///
    /// # Errors
    /// `T0604` if nothing is, `T0605` if it is no checkpoint and no weights.
    pub fn at(path: &Path) -> Result<Self, Diagnostic> {
        let about = fs::metadata(path).map_err(|error| unreadable(path, &error))?;
        if !about.is_dir() {
            let json = path.extension().is_some_and(|extension| extension == "json");
            return Ok(if json && !Weights::is_index(path) {
                Self::Manifest(path.into())
            } else {
                Self::Weights(path.into())
            });
        }
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if path.join(MANIFEST).exists() || step_of(name).is_some_and(|(_, suffix)| suffix.is_empty()) {
            return Ok(Self::Checkpoint(path.into()));
        }
        let all: Vec<PathBuf> = list(path)?.into_iter().map(|(_, path)| path).collect();
        if !all.is_empty() {
            return Ok(Self::Store(path.into(), all));
        }
        if Weights::is_in(path) {
            return Ok(Self::Weights(path.into()));
        }
        let problem = Diagnostic::error("T0605", "no checkpoint here and no weights").at(place(path));
        Err(problem.help("give a folder with step-... folders or model.safetensors in it, or a file of one"))
    }
}
