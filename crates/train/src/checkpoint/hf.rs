//! Models of transformers: in from a folder of theirs, and out to one.

use super::disk::{Disk, RealDisk};
use super::matching::{self, Dtypes};
use super::problem::{place, unreadable, unwritable};
use super::saved::{at, read_small};
use super::store::PARTIAL;
use super::tensors::{WriteError, write};
use super::{CONFIG, Keep, MODEL, Manifest, NamedTensor, Snapshot, Store, StoredTensor, Weights};
use super::{list, model_tensors, naming};
use nn::config::Config;
use nn::{Model, ModelSpec};
use plan::phrase;
use plan::report::{Block, Cell, KeyValue, Phrase, Report, Value};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use tensor::{DType, Device, Runtime};
use units::{Bytes, Diagnostic, Diagnostics, Params};

/// What reading weights into a model found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// Stored buffers that follow from the config and were not read.
    pub ignored: Vec<String>,
    /// Tensors whose dtype was converted.
    pub converted: u64,
}

impl Weights {
    /// Reads the weights into the parameters of `model`, converted to their dtypes.
    ///
    /// # Errors
    /// All that does not match, before anything is written.
    pub fn load(&self, model: &Model) -> Result<Loaded, Diagnostics> {
        self.load_into(model, &model_tensors(model))
    }

    /// Reads the weights of `model`, which says the names, into `targets`.
    fn load_into(&self, model: &Model, targets: &[NamedTensor]) -> Result<Loaded, Diagnostics> {
        let named = naming::named(self, model)?;
        let stored: Vec<(&str, &StoredTensor)> =
            named.tensors.iter().map(|(name, (_, stored))| (name.as_str(), *stored)).collect();
        let pairs = matching::pairs(self.path(), &stored, targets, Dtypes::Floats)?;
        let mut loaded = Loaded { ignored: named.ignored, converted: 0 };
        for (stored, target) in pairs {
            let Some((file, _)) = named.tensors.get(&target.name) else { continue };
            loaded.converted += u64::from(stored.dtype != Some(target.tensor.dtype()));
            file.read_tensor(stored, &target.tensor)?;
        }
        Ok(loaded)
    }

    /// The dtype of all its float tensors, if they have one.
    fn dtype(&self) -> Option<DType> {
        let floats: BTreeSet<DType> =
            self.tensors().filter_map(|(_, stored)| stored.dtype).filter(|dtype| dtype.is_float()).collect();
        floats.first().copied().filter(|_| floats.len() == 1)
    }
}

/// What to import, and how its config is read.
#[derive(Clone, Debug)]
pub struct Import {
    /// A folder that transformers has saved, or a file of weights with a config beside it.
    pub from: PathBuf,
    /// Where the checkpoint goes: a folder without checkpoints.
    pub to: PathBuf,
    /// Changes of keys of the config.
    pub overrides: Vec<(String, String)>,
    /// Family to read an unknown `model_type` as.
    pub assume: Option<String>,
    /// dtype of the parameters; `None` for the stored one, f32 where there are several.
    pub dtype: Option<DType>,
}

/// Makes a checkpoint of weights of a model that transformers has saved.
///
/// # Errors
/// All that is wrong with the config, all that does not match it, or why the checkpoint cannot be written.
pub fn import(request: &Import) -> Result<Report, Diagnostics> {
    let weights = Weights::open(&request.from)?;
    let path = weights.config_path();
    let text = read_config(&path)?;
    let name = request.from.display().to_string();
    let assume = request.assume.as_deref();
    let read =
        plan::model::Model::from_text(name, &path.display().to_string(), text.as_bytes(), &request.overrides, assume)?;
    if !list(&request.to)?.is_empty() {
        let problem = Diagnostic::error("T0601", "there are checkpoints here already").at(place(&request.to));
        return Err(problem.help("import into a folder of its own").into());
    }
    let dtype = request.dtype.or_else(|| weights.dtype()).unwrap_or(DType::F32);
    // The names come from a model without data; only what is read takes memory.
    let model = Model::build(&Runtime::new(Device::Meta), &read.spec, dtype).map_err(uncountable)?;
    let targets = blank(&model_tensors(&model))?;
    let loaded = weights.load_into(&model, &targets)?;

    let snapshot = Snapshot {
        manifest: Manifest {
            family: assume.unwrap_or(&read.spec.family).to_owned(),
            // As it is in the file, unless something was changed.
            config: if request.overrides.is_empty() { text } else { read.config.clone() },
            training: None,
        },
        model: targets,
        optimizer: Vec::new(),
    };
    let saved = Store::open(&request.to, Keep { last: 1, best: false })?.save(&snapshot)?;
    let mut report = report("checkpoint-import", "imported", &read.spec, &snapshot.model);
    let mut rows = vec![
        KeyValue::new("from", request.from.display().to_string()),
        KeyValue::new("to", saved.path.display().to_string()),
        KeyValue::new("dtype", dtype.name()).note(converted(loaded.converted)),
    ];
    if !loaded.ignored.is_empty() {
        let note = format!("follow from the config, such as `{}`", loaded.ignored[0]);
        rows.push(KeyValue::new("not read", loaded.ignored.len() as u64).note(phrase![note]));
    }
    report.blocks.push(Block::key_values("", rows));
    report.result.insert("path", saved.path.display().to_string());
    report.result.insert("bytes", saved.bytes);
    report.result.insert("converted", loaded.converted);
    report.result.insert("not_read", Value::list(loaded.ignored.iter().map(String::as_str)));
    report.warnings = read.warnings();
    if let (Some(config), _) = Config::parse(&path.display().to_string(), read.config.as_bytes()) {
        report.warnings.extend(not_applied(&config));
    }
    Ok(report)
}

/// Writes the model of a checkpoint as a folder that transformers loads: `config.json` and `model.safetensors`.
///
/// `from` is a checkpoint, or a folder of them, of which the newest is taken. Without `dtype` the parameters stay in theirs.
///
/// # Errors
/// All that is wrong with the checkpoint, a folder `to` that holds something, or why it cannot be written.
pub fn export(from: &Path, dtype: Option<DType>, to: &Path) -> Result<Report, Diagnostics> {
    let checkpoint = at(from)?;
    let spec = checkpoint.spec()?;
    let inhabited = fs::read_dir(to).map_or_else(|_| to.exists(), |mut entries| entries.next().is_some());
    if inhabited {
        let problem = Diagnostic::error("T0601", "there is something here already").at(place(to));
        return Err(problem.help("export into a folder that is empty or not there yet").into());
    }
    let runtime = quiet();
    let mut tensors = Vec::new();
    let mut count = 0;
    for stored in checkpoint.model().tensors() {
        let own = stored.dtype.filter(|dtype| dtype.is_float()).and(dtype).or(stored.dtype);
        let Some(own) = own else { continue };
        count += u64::from(stored.dtype != Some(own));
        tensors.push(NamedTensor::new(stored.name.as_str(), &runtime.zeros(&stored.shape, own).map_err(uncountable)?));
    }
    checkpoint.load_weights(&tensors)?;
    let config = exported_config(&checkpoint.manifest().config, &checkpoint.manifest().family, &spec, &tensors);

    let partial = PathBuf::from(format!("{}{PARTIAL}", to.display()));
    if let Err(problem) = write_folder(&partial, to, &config, &tensors) {
        let _ = RealDisk.remove_dir(&partial);
        return Err(problem.into());
    }
    let mut report = report("checkpoint-export", "exported", &spec, &tensors);
    let dtypes: BTreeSet<&str> = tensors.iter().map(|t| t.tensor.dtype().name()).collect();
    let dtypes: Vec<&str> = dtypes.into_iter().collect();
    let rows = [
        KeyValue::new("from", checkpoint.path().display().to_string()),
        KeyValue::new("to", to.display().to_string()),
        KeyValue::new("dtype", dtypes.join(", ")).note(converted(count)),
    ];
    report.blocks.push(Block::key_values("", rows));
    report.result.insert("path", to.display().to_string());
    report.result.insert("converted", count);
    let load = format!("AutoModelForCausalLM.from_pretrained(\"{}\") loads it", to.display());
    report.notes.push(phrase![load]);
    Ok(report)
}

fn write_folder(partial: &Path, to: &Path, config: &str, tensors: &[NamedTensor]) -> Result<(), Diagnostic> {
    let problem = |error: std::io::Error| unwritable(to, &error);
    if let Some(parent) = to.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        fs::create_dir_all(parent).map_err(problem)?;
    }
    RealDisk.create_dir(partial).map_err(problem)?;
    let plain = || {
        let mut out = RealDisk.create(&partial.join(CONFIG))?;
        out.write_all(config.as_bytes())?;
        out.sync()
    };
    plain().map_err(problem)?;
    let mut out = RealDisk.create(&partial.join(MODEL)).map_err(problem)?;
    write(MODEL, &mut *out, tensors).map_err(|error| match error {
        WriteError::Io(error) => problem(error),
        WriteError::Tensors(problem) => problem.at(place(to)),
    })?;
    out.sync().map_err(problem)?;
    RealDisk.sync_dir(partial).map_err(problem)?;
    RealDisk.rename(partial, to).map_err(problem)
}

/// Zeros of the same names, shapes and dtypes, with data.
fn blank(like: &[NamedTensor]) -> Result<Vec<NamedTensor>, Diagnostics> {
    let runtime = quiet();
    let zeros = |t: &NamedTensor| {
        let tensor = runtime.zeros(t.tensor.shape(), t.tensor.dtype()).map_err(uncountable)?;
        Ok(NamedTensor::new(t.name.as_str(), &tensor))
    };
    like.iter().map(zeros).collect()
}

/// A place for data whose events nobody reads.
fn quiet() -> Runtime {
    let runtime = Runtime::new(Device::Cpu);
    runtime.set_recording(false);
    runtime
}

fn uncountable(error: tensor::Error) -> Diagnostic {
    Diagnostic::error("T0305", error.to_string())
}

fn converted(count: u64) -> Phrase {
    if count == 0 { Phrase::default() } else { phrase![count, " tensors converted"] }
}

fn report(kind: &'static str, done: &str, spec: &ModelSpec, tensors: &[NamedTensor]) -> Report {
    let elements: u64 = tensors.iter().map(|t| t.tensor.elements()).sum();
    let bytes: u64 = tensors.iter().map(NamedTensor::bytes).sum();
    let count = tensors.len() as u64;
    let mut report =
        Report::new(kind, phrase![format!("{done} "), count, format!(" tensors of a {} model", spec.family)]);
    report =
        report.qualified(phrase![Cell::Exact(u128::from(elements)), " parameters"]).qualified(phrase![Bytes(bytes)]);
    report.result = Value::map().with("tensors", count).with("parameters", Params(elements));
    report.result.insert("model_type", spec.family.as_str());
    report
}

/// The config beside weights.
fn read_config(path: &Path) -> Result<String, Diagnostic> {
    if !path.exists() {
        let absent = unreadable(path, &std::io::ErrorKind::NotFound.into());
        return Err(absent.help("put the model's own config.json beside the weights"));
    }
    let bytes = read_small(path, nn::config::MAX_BYTES as u64)?;
    String::from_utf8(bytes).map_err(|_| Diagnostic::error("T0605", "the config is not text").at(place(path)))
}

/// The config of a checkpoint, saying what transformers would otherwise take from a default of its own.
fn exported_config(text: &str, family: &str, spec: &ModelSpec, tensors: &[NamedTensor]) -> String {
    let (Some(config), _) = Config::parse(CONFIG, text.as_bytes()) else { return text.to_owned() };
    let mut changes = Vec::new();
    let mut say = |key: &str, value: &str| {
        let said = config.find(key).map(|found| found.value.to_string());
        if said.as_deref() != Some(value) {
            changes.push((key.to_owned(), value.to_owned()));
        }
    };
    if config.model_type().is_none() {
        say("model_type", &format!("\"{family}\""));
    }
    say("tie_word_embeddings", &spec.head.tied.to_string());
    let widest = tensors.iter().map(|t| t.tensor.dtype()).filter(|dtype| dtype.is_float()).min();
    if let Some(name) = widest.and_then(torch_name) {
        let key = if config.find("dtype").is_some() { "dtype" } else { "torch_dtype" };
        say(key, &format!("\"{name}\""));
    }
    if changes.is_empty() {
        return text.to_owned();
    }
    format!("{}\n", config.clone().with_overrides(&changes).0.root())
}

/// PyTorch's name of a dtype that parameters have.
const fn torch_name(dtype: DType) -> Option<&'static str> {
    match dtype {
        DType::F64 => Some("float64"),
        DType::F32 => Some("float32"),
        DType::F16 => Some("float16"),
        DType::BF16 => Some("bfloat16"),
        _ => None,
    }
}

/// What a config asks for that changes the numbers and is not computed here.
fn not_applied(config: &Config) -> Vec<Diagnostic> {
    let stretched = ["rope_scaling.rope_type", "rope_scaling.type", "rope_parameters.rope_type"];
    let stretched = stretched
        .iter()
        .filter(|key| config.find(key).and_then(|found| found.value.as_str()).is_some_and(|kind| kind != "default"));
    let switched = [("scale_attn_by_inverse_layer_idx", "true"), ("scale_attn_weights", "false")];
    let switched =
        switched.iter().filter(|(key, value)| config.find(key).is_some_and(|found| found.value.to_string() == *value));
    let keys = stretched.copied().chain(switched.map(|(key, _)| *key));
    keys.filter_map(|key| {
        let found = config.find(key)?;
        let message = format!("`{key}` is {}, which is not computed here", found.value);
        let warning = Diagnostic::warning("T0624", message).at(config.location(found.value.span, &found.pointer));
        Some(warning.effect("the logits are not those of transformers"))
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_computed_is_said() {
        let text = r#"{"model_type": "llama", "rope_scaling": {"rope_type": "llama3", "factor": 8.0},
            "rope_parameters": {"rope_type": "default"}, "scale_attn_weights": true}"#;
        let config = Config::parse("config.json", text.as_bytes()).0.unwrap();
        let said: Vec<String> = not_applied(&config).iter().map(|d| d.message.clone()).collect();
        assert_eq!(said, ["`rope_scaling.rope_type` is \"llama3\", which is not computed here"]);
    }
}
