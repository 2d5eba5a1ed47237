//! Weights without a manifest, as transformers and the programs around it write them: one safetensors file, or several
//! with an index.

use super::problem::place;
use super::saved::read_small;
use super::{CONFIG, MODEL, StoredTensor, TensorFile};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};
use units::{Diagnostic, Diagnostics};

/// The index of weights in several files.
const INDEX: &str = "model.safetensors.index.json";

/// Largest index that is read.
const MAX_INDEX: u64 = 64 << 20;

/// Weights in one or several safetensors files.
#[derive(Debug)]
pub struct Weights {
    path: PathBuf,
    files: Vec<TensorFile>,
}

impl Weights {
    /// Opens a safetensors file, an index, or a folder that holds `model.safetensors` or an index.
    ///
    /// # Errors
    /// `T0620` if there are no weights, `T0621` for an index that is wrong, and all that is wrong with the files.
    pub fn open(path: &Path) -> Result<Self, Diagnostics> {
        let file = if path.is_dir() { Self::file_in(path)? } else { path.to_owned() };
        let files = if Self::is_index(&file) { sharded(&file)? } else { vec![TensorFile::open(&file)?] };
        Ok(Self { path: path.to_owned(), files })
    }

    /// Whether a file is an index by its name.
    pub(crate) fn is_index(path: &Path) -> bool {
        path.to_str().is_some_and(|path| path.ends_with(".safetensors.index.json"))
    }

    /// Whether a folder holds weights.
    pub(crate) fn is_in(folder: &Path) -> bool {
        [MODEL, INDEX].iter().any(|name| folder.join(name).is_file())
    }

    fn file_in(folder: &Path) -> Result<PathBuf, Diagnostic> {
        // Both may be there, as some programs leave an older form beside the newer one; readers of the field take this.
        if let Some(found) = [MODEL, INDEX].iter().map(|name| folder.join(name)).find(|path| path.is_file()) {
            return Ok(found);
        }
        let problem = Diagnostic::error("T0620", format!("neither {MODEL} nor {INDEX}")).at(place(folder));
        let pickled = fs::read_dir(folder).into_iter().flatten().flatten().any(|entry| {
            let path = entry.path();
            path.extension().is_some_and(|extension| ["bin", "pt", "pth"].iter().any(|pickled| extension == *pickled))
        });
        Err(if pickled {
            problem
                .why("pickled weights run code when they are read")
                .help("load them with transformers and save them again: model.save_pretrained(FOLDER)")
        } else {
            problem.help("give the folder of a model that transformers has saved")
        })
    }

    /// Where they are.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the config beside them is.
    pub fn config_path(&self) -> PathBuf {
        let folder = if self.path.is_dir() { Some(self.path.as_path()) } else { self.path.parent() };
        folder.unwrap_or(Path::new("")).join(CONFIG)
    }

    /// Their files.
    pub fn files(&self) -> &[TensorFile] {
        &self.files
    }

    /// All tensors, each with its file.
    pub fn tensors(&self) -> impl Iterator<Item = (&TensorFile, &StoredTensor)> {
        self.files.iter().flat_map(|file| file.tensors().iter().map(move |tensor| (file, tensor)))
    }
}

/// The files an index names, held against what it says is in them.
fn sharded(index: &Path) -> Result<Vec<TensorFile>, Diagnostics> {
    let wrong = |message: String| Diagnostic::error("T0621", message).at(place(index));
    let bytes = read_small(index, MAX_INDEX)?;
    let value: serde_json::Value =
        serde_json::from_slice(&bytes).map_err(|error| wrong(format!("the index is not JSON: {error}")))?;
    let Some(map) = value.get("weight_map").and_then(serde_json::Value::as_object) else {
        return Err(wrong("the index has no `weight_map`".to_owned()).into());
    };
    let mut problems = Diagnostics::new();
    let mut named: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (tensor, file) in map {
        if let Some(file) = file.as_str().filter(|file| is_plain(file)) {
            named.entry(file).or_default().insert(tensor);
        } else {
            let message = format!("`{tensor}` is said to be in {file}, which is no file beside the index");
            problems.push(wrong(message));
        }
    }
    let folder = index.parent().unwrap_or(Path::new(""));
    let mut files = Vec::with_capacity(named.len());
    for (name, tensors) in named {
        let path = folder.join(name);
        if !path.exists() {
            let absent = Diagnostic::error("T0604", "the index names this file, and it is not there").at(place(&path));
            problems.push(absent.help("take the whole model again"));
            continue;
        }
        match TensorFile::open(&path) {
            Ok(file) => {
                let held: BTreeSet<&str> = file.tensors().iter().map(|tensor| tensor.name.as_str()).collect();
                for tensor in tensors.symmetric_difference(&held) {
                    let way = if held.contains(tensor) { "is not in the index" } else { "is only in the index" };
                    problems.push(Diagnostic::error("T0621", format!("tensor `{tensor}` {way}")).at(place(&path)));
                }
                files.push(file);
            }
            Err(problem) => problems.push(problem),
        }
    }
    if problems.has_errors() { Err(problems) } else { Ok(files) }
}

/// Whether a name is that of a file in the same folder.
fn is_plain(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None))
}
