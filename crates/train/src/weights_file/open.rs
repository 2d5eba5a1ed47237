//! From a path that somebody gave to the headers of all files of a model.

use super::entry::{Format, Header, total};
use super::{gguf, safetensors};
use crate::checkpoint::{place, read_small, unreadable};
use crate::data::format;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{BufReader, Read};
use std::path::{Component, Path, PathBuf};
use units::{Bytes, Diagnostic, Diagnostics, group_digits};

/// Largest index that is read.
const MAX_INDEX: u64 = 64 << 20;

const SINGLE: &str = "model.safetensors";
const INDEX_END: &str = ".safetensors.index.json";

/// The headers of a model's files.
#[derive(Debug)]
pub struct Stored {
    /// What was asked for.
    pub path: PathBuf,
    /// Its files, in the order of their names.
    pub files: Vec<Header>,
    /// What is odd and leaves an answer.
    pub warnings: Diagnostics,
}

/// Whether `path` is a folder, an index, or a file that begins like weights.
pub fn is_weights(path: &Path) -> bool {
    let ends = |end: &str| path.to_str().is_some_and(|path| path.ends_with(end));
    if path.is_dir() || ends(INDEX_END) || ends(".safetensors") || ends(".gguf") {
        return true;
    }
    let mut head = Vec::new();
    // A pipe would lose what is read of it.
    let Ok(file) = File::open(path) else { return false };
    let Some(bytes) = file.metadata().ok().filter(fs::Metadata::is_file).map(|about| about.len()) else { return false };
    file.take(16).read_to_end(&mut head).is_ok()
        && (head.starts_with(&gguf::MAGIC) || format::is_safetensors(&head, bytes))
}

impl Stored {
    /// Reads the headers of a `.safetensors` file, an index, a `.gguf` file or its parts, or those in a folder.
    ///
    /// # Errors
    /// `T0620` if there are no weights, `T0604`, `T0610`, `T0621`, `T0630`: all that is wrong with the index and the files.
    pub fn open(path: &Path) -> Result<Self, Diagnostics> {
        let about = fs::metadata(path).map_err(|error| unreadable(path, &error))?;
        let mut warnings = Diagnostics::new();
        let files = if about.is_dir() {
            in_folder(path, &mut warnings)?
        } else if path.to_str().is_some_and(|path| path.ends_with(INDEX_END)) {
            indexed(path, &mut warnings)?
        } else {
            match Part::of(path) {
                Some(part) if begins_with_gguf(path) => headers(&part.all())?,
                _ => headers(&[path.to_owned()])?,
            }
        };
        let mut out = Self { path: path.to_owned(), files, warnings };
        out.tell_doubles();
        Ok(out)
    }

    /// Where the config beside them would be.
    pub fn config_path(path: &Path) -> PathBuf {
        let folder = if path.is_dir() { Some(path) } else { path.parent() };
        folder.unwrap_or(Path::new("")).join("config.json")
    }

    /// Names that stand in several files.
    fn tell_doubles(&mut self) {
        let mut first: BTreeMap<&str, &Path> = BTreeMap::new();
        let mut doubles = Vec::new();
        for file in &self.files {
            for tensor in &file.tensors {
                if let Some(other) = first.insert(&tensor.name, &file.path) {
                    let message = format!("`{}` is also in {}", tensor.name, other.display());
                    let warning = Diagnostic::warning("T0631", message).at(place(&file.path));
                    doubles.push(warning.effect(format!("{} are stored twice", Bytes(tensor.bytes))));
                }
            }
        }
        let more = doubles.len().saturating_sub(10);
        doubles.truncate(10);
        self.warnings.extend(doubles);
        if more > 0 {
            self.warnings.push(Diagnostic::warning("T0631", format!("{more} more tensors are in several files")));
        }
    }

    /// Which kind of files.
    pub fn format(&self) -> Format {
        self.files.first().map_or(Format::Safetensors, |file| file.format)
    }
}

/// One of the files of a model in several: `STEM-00002-of-00005.EXT`.
struct Part {
    folder: PathBuf,
    stem: String,
    extension: String,
    number: u32,
    count: u32,
}

/// Most files of one model.
const MAX_PARTS: u32 = 10_000;

impl Part {
    fn of(path: &Path) -> Option<Self> {
        let (stem, extension) = path.file_name()?.to_str()?.rsplit_once('.')?;
        let (rest, count) = stem.rsplit_once("-of-")?;
        let (stem, number) = rest.rsplit_once('-')?;
        let digits = |text: &str| text.parse().ok().filter(|_| text.len() == 5);
        let (number, count) = (digits(number)?, digits(count)?);
        let folder = path.parent().unwrap_or(Path::new("")).to_owned();
        let part = Self { folder, stem: stem.to_owned(), extension: extension.to_owned(), number, count };
        (number <= count && (1..=MAX_PARTS).contains(&count)).then_some(part)
    }

    /// All parts. They are counted from 1; a few programs count from 0.
    fn all(&self) -> Vec<PathBuf> {
        let name = |number| format!("{}-{number:05}-of-{:05}.{}", self.stem, self.count, self.extension);
        let from = u32::from(!self.folder.join(name(0)).exists() && self.number > 0);
        (from..self.count + from).map(|number| self.folder.join(name(number))).collect()
    }
}

fn begins_with_gguf(path: &Path) -> bool {
    let mut head = [0; 4];
    File::open(path).and_then(|mut file| file.read_exact(&mut head)).is_ok() && head == gguf::MAGIC
}

/// The headers of files; all problems of all of them.
fn headers(paths: &[PathBuf]) -> Result<Vec<Header>, Diagnostics> {
    let mut problems = Diagnostics::new();
    let mut files = Vec::new();
    for path in paths {
        if !path.exists() {
            let absent = Diagnostic::error("T0604", "a file of the model is not there").at(place(path));
            problems.push(absent.help("take the whole model again"));
            continue;
        }
        match header(path) {
            Ok(header) => files.push(header),
            Err(found) => problems.extend(found),
        }
    }
    if problems.has_errors() { Err(problems) } else { Ok(files) }
}

/// The header of one file.
fn header(path: &Path) -> Result<Header, Vec<Diagnostic>> {
    let refused = |error| vec![unreadable(path, &error)];
    let file = File::open(path).map_err(refused)?;
    let about = file.metadata().map_err(refused)?;
    if !about.is_file() {
        return Err(vec![Diagnostic::error("T0604", "not a file").at(place(path))]);
    }
    let bytes = about.len();
    let mut file = BufReader::new(file);
    if begins_with_gguf(path) || path.extension().is_some_and(|extension| extension == "gguf") {
        return gguf::read(path, file, bytes);
    }
    let text = safetensors::text(path, &mut file, bytes).map_err(|problem| vec![problem])?;
    safetensors::parse(path, &text, bytes)
}

fn in_folder(folder: &Path, warnings: &mut Diagnostics) -> Result<Vec<Header>, Diagnostics> {
    // Some programs leave an older form beside the newer one; readers of the field take this first.
    let single = folder.join(SINGLE);
    if single.is_file() {
        return headers(&[single]);
    }
    let listed = fs::read_dir(folder).map_err(|error| unreadable(folder, &error))?;
    let mut paths: Vec<PathBuf> = listed.flatten().map(|entry| entry.path()).filter(|path| path.is_file()).collect();
    paths.sort();
    let ends = |end: &str| {
        paths.iter().filter(|path| path.to_str().is_some_and(|path| path.ends_with(end))).collect::<Vec<_>>()
    };
    if let [index] = ends(INDEX_END)[..] {
        return indexed(index, warnings);
    }
    for end in [".safetensors", ".gguf"] {
        let found = ends(end);
        let Some(first) = found.first() else { continue };
        let wanted = Part::of(first).map_or_else(|| vec![(*first).clone()], |part| part.all());
        if found.iter().all(|path| wanted.contains(path)) {
            return headers(&wanted);
        }
        let names: Vec<String> = found.iter().take(5).map(|path| path.display().to_string()).collect();
        let problem =
            Diagnostic::error("T0620", format!("{} files of weights and no index", found.len())).at(place(folder));
        return Err(problem.why("they may be several models").help(format!("name one: {}", names.join(", "))).into());
    }
    let problem = Diagnostic::error("T0620", "no .safetensors and no .gguf file here").at(place(folder));
    let pickled = [".bin", ".pt", ".pth"].iter().any(|end| !ends(end).is_empty());
    Err(if pickled {
        let problem = problem.why("pickled weights run code when they are read");
        problem.help("load them with transformers and save them again: model.save_pretrained(FOLDER)").into()
    } else {
        problem.help("give the folder of a model that transformers has saved, or a file of weights").into()
    })
}

/// Whether a name is that of a file in the same folder.
fn is_plain(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None))
}

/// The files that an index names, held against what it says is in them.
fn indexed(index: &Path, warnings: &mut Diagnostics) -> Result<Vec<Header>, Diagnostics> {
    let wrong = |message: String| {
        let problem = Diagnostic::error("T0621", message).at(place(index));
        problem.help("take the index and its files again from one place")
    };
    let bytes = read_small(index, MAX_INDEX)?;
    let value: serde_json::Value =
        serde_json::from_slice(&bytes).map_err(|error| wrong(format!("the index is not JSON: {error}")))?;
    let Some(map) = value.get("weight_map").and_then(serde_json::Value::as_object) else {
        return Err(wrong("the index has no `weight_map`".to_owned()).into());
    };
    let mut problems = Diagnostics::new();
    let mut named: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (tensor, file) in map {
        match file.as_str().filter(|file| is_plain(file)) {
            Some(file) => drop(named.entry(file).or_default().insert(tensor)),
            None => {
                problems.push(wrong(format!("`{tensor}` is said to be in {file}, which is no file beside the index")));
            }
        }
    }
    let folder = index.parent().unwrap_or(Path::new(""));
    let paths: Vec<PathBuf> = named.keys().map(|name| folder.join(name)).collect();
    let files = match headers(&paths) {
        Ok(files) => files,
        Err(more) => {
            problems.extend(more);
            return Err(problems);
        }
    };
    for (file, tensors) in files.iter().zip(named.values()) {
        let held: BTreeSet<&str> = file.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
        for tensor in tensors.symmetric_difference(&held) {
            let way = if held.contains(tensor) { "is not in the index" } else { "is only in the index" };
            problems.push(wrong(format!("tensor `{tensor}` {way}")).at(place(&file.path)));
        }
    }
    if problems.has_errors() {
        let more = problems.len().saturating_sub(20);
        problems.0.truncate(20);
        if more > 0 {
            problems.push(wrong(format!("{more} more tensors differ")));
        }
        return Err(problems);
    }
    let stated = value.pointer("/metadata/total_size").and_then(serde_json::Value::as_u64);
    let held = total(files.iter().map(Header::tensor_bytes));
    if let Some(stated) = stated.filter(|stated| *stated != held) {
        let exact = |bytes: u64| group_digits(u128::from(bytes));
        let message = format!("the index says {} bytes of tensors, its files hold {}", exact(stated), exact(held));
        warnings.push(Diagnostic::warning("T0632", message).at(place(index)).effect("what the files hold is counted"));
    }
    Ok(files)
}
