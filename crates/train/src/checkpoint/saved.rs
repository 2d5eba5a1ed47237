//! One checkpoint on disk, and how the newest is found.

use super::manifest::{self, Document, FileEntry};
use super::matching::{self, Dtypes};
use super::problem::{place, unreadable};
use super::{CONFIG, MANIFEST, MODEL, Manifest, NamedTensor, OPTIMIZER, StoredTensor, TensorFile, Training};
use nn::config::Config;
use nn::families;
use nn::spec::ModelSpec;
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use units::{Diagnostic, Diagnostics};

/// A checkpoint whose manifest is right and whose files are there. Tensors are checked as they are read.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    tool: String,
    manifest: Manifest,
    model: TensorFile,
    optimizer: Option<TensorFile>,
    files: Vec<FileEntry>,
}

impl Checkpoint {
    /// Opens the checkpoint in the folder `path`.
    ///
    /// # Errors
    /// All that is wrong with it, but for damage to the bytes of tensors, which reading them finds.
    pub fn open(path: &Path) -> Result<Self, Diagnostics> {
        let document = read_document(path)?;
        let mut problems = Diagnostics::new();
        let mut take = |result: Result<TensorFile, Diagnostics>| result.map_err(|more| problems.extend(more)).ok();
        let model = take(open_tensors(path, &document, MODEL));
        let trains = document.training.is_some();
        let optimizer = if trains { take(open_tensors(path, &document, OPTIMIZER)) } else { None };
        let config = read_config(path, &document).map_err(|more| problems.extend(more)).ok();
        let (Some(model), Some(config), false) = (model, config, problems.has_errors()) else { return Err(problems) };
        let manifest = Manifest { family: document.family, config, training: document.training };
        Ok(Self { path: path.to_owned(), tool: document.tool, manifest, model, optimizer, files: document.files })
    }

    /// Its folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Who wrote it, such as `napkin 0.1.0`.
    pub fn tool(&self) -> &str {
        &self.tool
    }

    /// What is no tensor.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The state of training.
    ///
    /// # Errors
    /// `T0617` if it holds weights only.
    pub fn training(&self) -> Result<&Training, Diagnostic> {
        self.manifest.training.as_ref().ok_or_else(|| {
            Diagnostic::error("T0617", "the checkpoint holds weights only: there is no run to go on with")
                .at(place(&self.path))
                .why("without optimizer states, schedule and data position it would be another run")
                .help("start a new run from these weights")
        })
    }

    /// Stored parameters.
    pub fn model(&self) -> &TensorFile {
        &self.model
    }

    /// Stored optimizer states.
    pub fn optimizer(&self) -> Option<&TensorFile> {
        self.optimizer.as_ref()
    }

    /// The model its config describes.
    ///
    /// # Errors
    /// All that is wrong with the config.
    pub fn spec(&self) -> Result<ModelSpec, Diagnostics> {
        let file = self.path.join(CONFIG).display().to_string();
        Ok(families::load(&parse(&file, &self.manifest.config)?, Some(&self.manifest.family))?.spec)
    }

    /// Checks that it is a checkpoint of the model that `config` describes.
    ///
    /// # Errors
    /// `T0616` for each key by which the two models differ.
    pub fn check_config(&self, config: &Config) -> Result<(), Diagnostics> {
        let file = self.path.join(CONFIG).display().to_string();
        let own = parse(&file, &self.manifest.config)?;
        super::configs::compare(&own, &self.manifest.family, config)
    }

    /// Reads the parameters into `targets`: exactly these names, shapes and dtypes.
    ///
    /// # Errors
    /// All mismatches at once, before anything is written; `T0611` for a damaged tensor, which leaves `targets` half
    /// written.
    pub fn load_model(&self, targets: &[NamedTensor]) -> Result<(), Diagnostics> {
        self.load(&self.model, MODEL, targets, Dtypes::Same)
    }

    /// Reads the parameters into `targets` of whatever float dtype: for a new run from these weights, or to generate.
    ///
    /// # Errors
    /// As [`Checkpoint::load_model`], but for dtypes that can be converted.
    pub fn load_weights(&self, targets: &[NamedTensor]) -> Result<(), Diagnostics> {
        self.load(&self.model, MODEL, targets, Dtypes::Floats)
    }

    /// Reads the optimizer states into `targets`: exactly these names, shapes and dtypes.
    ///
    /// # Errors
    /// As [`Checkpoint::load_model`]; `T0617` if it holds weights only.
    pub fn load_optimizer(&self, targets: &[NamedTensor]) -> Result<(), Diagnostics> {
        self.training()?;
        match &self.optimizer {
            Some(file) => self.load(file, OPTIMIZER, targets, Dtypes::Same),
            None => Ok(()),
        }
    }

    fn load(&self, file: &TensorFile, name: &str, targets: &[NamedTensor], dtypes: Dtypes) -> Result<(), Diagnostics> {
        let stored: Vec<(&str, &StoredTensor)> = file.tensors().iter().map(|t| (t.name.as_str(), t)).collect();
        let pairs = matching::pairs(file.path(), &stored, targets, dtypes)?;
        let entry = self.files.iter().find(|entry| entry.file == name);
        for (stored, target) in pairs {
            let read = file.read_tensor(stored, &target.tensor)?;
            if entry.and_then(|entry| entry.tensor_crc32(&stored.name)) != Some(read) {
                return Err(damaged(file.path(), &stored.name).into());
            }
        }
        Ok(())
    }
}

/// The checkpoint in the folder `path`, or the newest of those in it.
///
/// # Errors
/// All that is wrong with it; `T0605` if there is none.
pub fn at(path: &Path) -> Result<Checkpoint, Diagnostics> {
    if path.join(MANIFEST).exists() {
        return Checkpoint::open(path);
    }
    let found = latest(path)?.checkpoint;
    found.map_or_else(|| Err(Diagnostics::from(absent(path))), Ok)
}

/// A tensor whose bytes are not those that were written.
pub(crate) fn damaged(path: &Path, tensor: &str) -> Diagnostic {
    Diagnostic::error("T0611", format!("tensor `{tensor}` is damaged: its checksum is not that of its bytes"))
        .at(place(path))
        .why("the disk or a copy changed what was written")
        .help("go on from the checkpoint before it")
}

/// Reads the manifest in a folder.
pub(crate) fn read_document(path: &Path) -> Result<Document, Diagnostics> {
    let file = path.join(MANIFEST);
    let bytes = read_small(&file, manifest::MAX_BYTES).map_err(|problem| {
        if file.exists() {
            return problem;
        }
        absent(path)
    })?;
    Document::parse(&file.display().to_string(), &bytes)
}

fn absent(path: &Path) -> Diagnostic {
    let message = format!("`{}` is not a checkpoint: it has no {MANIFEST}", path.display());
    Diagnostic::error("T0605", message).help("give a folder such as step-00000100")
}

/// The config of a checkpoint, checked.
fn read_config(path: &Path, document: &Document) -> Result<String, Diagnostics> {
    let file = path.join(CONFIG);
    let bytes = read_small(&file, nn::config::MAX_BYTES as u64)?;
    let entry = document.file(CONFIG);
    match String::from_utf8(bytes) {
        Ok(text) if entry == Some(&FileEntry::plain(CONFIG, text.as_bytes())) => Ok(text),
        _ => Err(changed(&file).into()),
    }
}

/// Opens a file of tensors and holds its size and header against the manifest.
pub(crate) fn open_tensors(path: &Path, document: &Document, name: &str) -> Result<TensorFile, Diagnostics> {
    let path = path.join(name);
    let entry = document.file(name);
    let size = fs::metadata(&path).map_err(|error| unreadable(&path, &error))?.len();
    if let Some(entry) = entry.filter(|entry| entry.bytes != size) {
        let message = format!("the file has {size} bytes; {} were written", entry.bytes);
        return Err(Diagnostic::error("T0609", message)
            .at(place(&path))
            .help("go on from the checkpoint before it")
            .into());
    }
    let file = TensorFile::open(&path)?;
    if entry.is_some_and(|entry| entry.header_crc32 == file.header_checksum().finalize()) {
        return Ok(file);
    }
    Err(changed(&path).into())
}

/// A file that is not the one the manifest tells of.
pub(crate) fn changed(path: &Path) -> Diagnostic {
    Diagnostic::error("T0609", "the file is not the one that was written: its checksum is another")
        .at(place(path))
        .help("go on from the checkpoint before it")
}

/// Reads a file of at most `limit` bytes.
pub(crate) fn read_small(path: &Path, limit: u64) -> Result<Vec<u8>, Diagnostic> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(limit + 1).read_to_end(&mut bytes));
    read.map_err(|error| unreadable(path, &error))?;
    if bytes.len() as u64 > limit {
        return Err(Diagnostic::error("T0605", format!("longer than {limit} bytes")).at(place(path)));
    }
    Ok(bytes)
}

fn parse(file: &str, text: &str) -> Result<Config, Diagnostics> {
    let (config, problems) = Config::parse(file, text.as_bytes());
    config.ok_or(problems)
}

/// What is found where checkpoints are looked for.
#[derive(Debug, Default)]
pub struct Latest {
    /// The newest that can be opened.
    pub checkpoint: Option<Checkpoint>,
    /// What is wrong with those that are newer.
    pub skipped: Diagnostics,
}

/// The newest checkpoint that can be opened in the folder `dir`, found by looking: there is no pointer to go stale.
///
/// # Errors
/// If the folder cannot be read, or holds checkpoints of which none can be opened (`T0618`).
pub fn latest(dir: &Path) -> Result<Latest, Diagnostics> {
    let mut latest = Latest::default();
    let all = list(dir)?;
    let some = !all.is_empty();
    for (_, path) in all {
        match Checkpoint::open(&path) {
            Ok(checkpoint) => {
                latest.checkpoint = Some(checkpoint);
                return Ok(latest);
            }
            Err(problems) => latest.skipped.extend(problems),
        }
    }
    if some {
        let none = Diagnostic::error("T0618", "no checkpoint here can be opened").at(place(dir));
        latest.skipped.push(none.help("start anew in another folder, or restore one of these"));
        return Err(latest.skipped);
    }
    Ok(latest)
}

/// Steps and folders of the checkpoints in `dir`, newest first; none if there is no such folder. They may be damaged.
///
/// # Errors
/// If the folder cannot be read.
pub fn list(dir: &Path) -> Result<Vec<(u64, PathBuf)>, Diagnostic> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(unreadable(dir, &error)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let name = entry.map_err(|error| unreadable(dir, &error))?.file_name();
        let Some((step, suffix)) = name.to_str().and_then(step_of) else { continue };
        // Set aside by a save that was to put another in its place and did not come to it.
        let set_aside = suffix == REPLACED && !dir.join(folder_of(step)).exists();
        if suffix.is_empty() || set_aside {
            found.push((step, dir.join(name)));
        }
    }
    found.sort_unstable_by(|a, b| b.cmp(a));
    Ok(found)
}

/// What an older checkpoint of the same step is called while another takes its place.
pub(crate) const REPLACED: &str = ".replaced";

/// The folder of a step.
pub(crate) fn folder_of(step: u64) -> String {
    format!("step-{step:08}")
}

/// The step a folder is of, and what stands behind it in its name.
pub(crate) fn step_of(name: &str) -> Option<(u64, &str)> {
    let rest = name.strip_prefix("step-")?;
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let (digits, suffix) = rest.split_at(end);
    let step = digits.parse().ok()?;
    (format!("{step:08}") == digits).then_some((step, suffix))
}
