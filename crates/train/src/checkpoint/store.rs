//! A folder of checkpoints: saved so that a kill at any instant leaves the last good one.
//!
//! A save writes everything into `step-N.partial`, makes each file durable, then the folder, and only then gives it its
//! name. Older checkpoints go after the new one is durable, and are renamed before they are removed, so that no folder
//! called `step-N` is ever incomplete. What a killed save leaves is known by its name and cleaned by the next one.

use super::disk::{Disk, RealDisk};
use super::manifest::{Document, FileEntry};
use super::problem::{NO_SPACE, place, unwritable};
use super::saved::{REPLACED, folder_of, list, read_document, step_of};
use super::tensors::{self, WriteError};
use super::{CONFIG, MANIFEST, MODEL, NamedTensor, OPTIMIZER, Snapshot};
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use units::{Bytes, Diagnostic, Diagnostics};

/// What a checkpoint is called while it is written.
pub(crate) const PARTIAL: &str = ".partial";
/// What a checkpoint is called while it is removed.
const REMOVED: &str = ".removed";

/// Which checkpoints stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// How many of the newest; at least the one that was just saved.
    pub last: usize,
    /// Whether the one with the lowest validation loss stays too.
    pub best: bool,
}

/// A folder that checkpoints are saved to, by one run at a time.
pub struct Store {
    dir: PathBuf,
    keep: Keep,
    disk: Box<dyn Disk>,
    cleaned: Vec<String>,
    /// Held as long as the store lives; the system lets go of it even if the process is killed.
    _lock: Option<File>,
}

/// A checkpoint that was saved.
#[derive(Debug)]
pub struct Saved {
    /// Its folder.
    pub path: PathBuf,
    /// Size of its files.
    pub bytes: u64,
    /// Older checkpoints that are no longer kept.
    pub removed: Vec<PathBuf>,
    /// Why older ones could not be removed. The new one is saved all the same.
    pub warnings: Diagnostics,
}

impl Store {
    /// Opens the folder `dir`, which is made if it is not there, and removes what a killed save left in it.
    ///
    /// # Errors
    /// `T0601` if it cannot be written, `T0603` if another run saves to it now.
    pub fn open(dir: &Path, keep: Keep) -> Result<Self, Diagnostics> {
        Self::on(Box::new(RealDisk), dir, keep)
    }

    pub(crate) fn on(disk: Box<dyn Disk>, dir: &Path, keep: Keep) -> Result<Self, Diagnostics> {
        fs::create_dir_all(dir).map_err(|error| unwritable(dir, &error))?;
        let lock = lock(dir)?;
        let mut store = Self { dir: dir.to_owned(), keep, disk, cleaned: Vec::new(), _lock: lock };
        store.cleaned = store.clean()?;
        Ok(store)
    }

    /// Its folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Names of what a killed save had left, now gone.
    pub fn cleaned(&self) -> &[String] {
        &self.cleaned
    }

    /// Saves a checkpoint, then removes those that are no longer kept. A checkpoint of the same step is replaced.
    ///
    /// Tensors are written from their own memory: saving takes no second copy of the model.
    ///
    /// # Errors
    /// `T0602` if the disk is full, `T0601` for whatever else keeps it from being written. All checkpoints that were
    /// there are there still, and what was written of the new one is removed.
    pub fn save(&self, snapshot: &Snapshot) -> Result<Saved, Diagnostics> {
        // What an earlier save could not take back. If it still cannot be removed, that is no reason not to save.
        let _ = self.clean();
        let step = snapshot.manifest.training.as_ref().map_or(0, |training| training.step);
        let path = self.dir.join(folder_of(step));
        let partial = with_suffix(&path, PARTIAL);
        let written = self.write(&partial, snapshot).and_then(|bytes| self.put(&partial, &path).map(|()| bytes));
        let bytes = match written {
            Ok(bytes) => bytes,
            Err(mut problem) => {
                if problem.code == NO_SPACE {
                    let needed: u64 = snapshot.model.iter().chain(&snapshot.optimizer).map(NamedTensor::bytes).sum();
                    problem.why = Some(format!(
                        "its tensors take {}, and older checkpoints stay until it is complete",
                        Bytes(needed)
                    ));
                }
                if partial.exists() && self.disk.remove_dir(&partial).is_err() {
                    let left = format!("`{}` is what was written of it; the next save removes it", partial.display());
                    return Err(problem.help(left).into());
                }
                return Err(problem.into());
            }
        };
        let (mut removed, mut warnings) = (Vec::new(), Diagnostics::new());
        for old in self.outdated(&path, &mut warnings) {
            match self.remove(&old) {
                Ok(()) => removed.push(old),
                Err(error) => warnings.push(kept(&old, &error)),
            }
        }
        Ok(Saved { path, bytes, removed, warnings })
    }

    /// Writes the files of a checkpoint into the folder `partial`; gives their size.
    fn write(&self, partial: &Path, snapshot: &Snapshot) -> Result<u64, Diagnostic> {
        let manifest = &snapshot.manifest;
        if manifest.training.is_none() && !snapshot.optimizer.is_empty() {
            return Err(Diagnostic::error("T0601", "optimizer states without the state of training"));
        }
        self.disk.create_dir(partial).map_err(|error| unwritable(partial, &error))?;
        let mut files = vec![self.plain(partial, CONFIG, manifest.config.as_bytes())?];
        files.push(self.tensors(partial, MODEL, snapshot)?);
        if manifest.training.is_some() {
            files.push(self.tensors(partial, OPTIMIZER, snapshot)?);
        }
        let bytes: u64 = files.iter().map(|entry| entry.bytes).sum();
        let document = Document {
            tool: concat!("napkin ", env!("CARGO_PKG_VERSION")).to_owned(),
            family: manifest.family.clone(),
            training: manifest.training.clone(),
            files,
        };
        let manifest = self.plain(partial, MANIFEST, &document.to_bytes())?;
        self.disk.sync_dir(partial).map_err(|error| unwritable(partial, &error))?;
        Ok(bytes + manifest.bytes)
    }

    fn plain(&self, folder: &Path, name: &'static str, contents: &[u8]) -> Result<FileEntry, Diagnostic> {
        let path = folder.join(name);
        let write = || {
            let mut out = self.disk.create(&path)?;
            out.write_all(contents)?;
            out.sync()
        };
        write().map_err(|error| unwritable(&path, &error))?;
        Ok(FileEntry::plain(name, contents))
    }

    fn tensors(&self, folder: &Path, name: &'static str, snapshot: &Snapshot) -> Result<FileEntry, Diagnostic> {
        let path = folder.join(name);
        let tensors = if name == MODEL { &snapshot.model } else { &snapshot.optimizer };
        let write = || {
            let mut out = self.disk.create(&path)?;
            let entry = tensors::write(name, &mut *out, tensors)?;
            out.sync()?;
            Ok(entry)
        };
        write().map_err(|error| match error {
            WriteError::Io(error) => unwritable(&path, &error),
            WriteError::Tensors(problem) => problem.at(place(&path)),
        })
    }

    /// Gives a complete checkpoint its name.
    fn put(&self, partial: &Path, path: &Path) -> Result<(), Diagnostic> {
        let problem = |error: io::Error| unwritable(path, &error);
        let replaced = with_suffix(path, REPLACED);
        let replaces = path.exists();
        if replaces {
            self.disk.rename(path, &replaced).map_err(problem)?;
        }
        if let Err(error) = self.disk.rename(partial, path) {
            if replaces {
                // If this fails too, the one set aside still counts as the checkpoint of its step.
                let _ = self.disk.rename(&replaced, path);
            }
            return Err(problem(error));
        }
        self.disk.sync_dir(&self.dir).map_err(problem)?;
        if replaces {
            // The new one is safe. What is left of the old one is cleaned by the next save.
            let _ = self.disk.remove_dir(&replaced);
        }
        Ok(())
    }

    /// Checkpoints beside `new` that are no longer kept.
    fn outdated(&self, new: &Path, warnings: &mut Diagnostics) -> Vec<PathBuf> {
        let mut all = match list(&self.dir) {
            Ok(all) => all,
            Err(problem) => {
                warnings.push(Diagnostic { severity: units::Severity::Warning, ..problem });
                return Vec::new();
            }
        };
        // A run that went back to an older checkpoint saves steps below those of the run before it.
        all.retain(|(_, path)| path != new);
        let best = if self.keep.best { best(all.iter().map(|(_, path)| path.as_path()).chain([new])) } else { None };
        let others = all.into_iter().skip(self.keep.last.max(1) - 1).map(|(_, path)| path);
        others.filter(|path| Some(path) != best.as_ref()).collect()
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let removed = with_suffix(path, REMOVED);
        self.disk.rename(path, &removed)?;
        self.disk.remove_dir(&removed)
    }

    /// Removes what a killed save left; gives the names.
    fn clean(&self) -> Result<Vec<String>, Diagnostic> {
        let mut cleaned = Vec::new();
        let entries = fs::read_dir(&self.dir).map_err(|error| unwritable(&self.dir, &error))?;
        for entry in entries {
            let entry = entry.map_err(|error| unwritable(&self.dir, &error))?;
            let name = entry.file_name();
            let Some((step, suffix)) = name.to_str().and_then(step_of) else { continue };
            let (path, whole) = (entry.path(), self.dir.join(folder_of(step)));
            let done = match suffix {
                REPLACED if !whole.exists() => self.disk.rename(&path, &whole),
                PARTIAL | REMOVED | REPLACED => self.disk.remove_dir(&path),
                _ => continue,
            };
            done.map_err(|error| unwritable(&path, &error))?;
            cleaned.push(name.to_string_lossy().into_owned());
        }
        cleaned.sort();
        Ok(cleaned)
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "checkpoints in {}", self.dir.display())
    }
}

/// The checkpoint with the lowest validation loss, the first of equals.
fn best<'a>(paths: impl Iterator<Item = &'a Path>) -> Option<PathBuf> {
    let loss = |path: &Path| read_document(path).ok()?.training?.validation_loss.filter(|loss| !loss.is_nan());
    let rated = paths.filter_map(|path| Some((loss(path)?, path)));
    rated.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, path)| path.to_owned())
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Takes the folder for this process.
fn lock(dir: &Path) -> Result<Option<File>, Diagnostic> {
    let path = dir.join(".lock");
    let file = File::options().create(true).truncate(false).write(true).open(&path);
    let file = file.map_err(|error| unwritable(&path, &error))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Err(Diagnostic::error("T0603", "another run saves to this folder now")
            .at(place(dir))
            .why("each would remove what the other is writing")
            .help("save to another folder, or wait for the other run")),
        // Some network filesystems have no locks.
        Err(TryLockError::Error(_)) => Ok(None),
    }
}

fn kept(path: &Path, error: &io::Error) -> Diagnostic {
    Diagnostic::warning("T0601", format!("an older checkpoint cannot be removed: {error}"))
        .at(place(path))
        .effect("it takes its space until somebody removes it")
}
