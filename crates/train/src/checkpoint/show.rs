//! What a checkpoint is, for people and programs.

use super::manifest::{self, Document};
use super::saved::read_small;
use super::target::Target;
use super::{Checkpoint, TensorFile, Training, Weights};
use plan::phrase;
use plan::report::{Block, Cell, Column, KeyValue, Phrase, Report, Row, Table, Value};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use units::{Bytes, Diagnostics, Params, Tokens};

/// Shows a checkpoint, the checkpoints of a folder, a manifest, or files of weights.
///
/// # Errors
/// If there is nothing at `path` that could be shown, or it cannot be opened.
pub fn show(path: &Path) -> Result<Report, Diagnostics> {
    let mut report = match Target::at(path)? {
        Target::Checkpoint(path) => checkpoint(&Checkpoint::open(&path)?),
        Target::Store(path, all) => store(&path, &all)?,
        Target::Manifest(path) => manifest(&path)?,
        Target::Weights(path) => weights(&path)?,
    };
    report.inputs = Value::map().with("path", path.display().to_string());
    Ok(report)
}

fn checkpoint(checkpoint: &Checkpoint) -> Report {
    let manifest = checkpoint.manifest();
    let files: Vec<&TensorFile> = std::iter::once(checkpoint.model()).chain(checkpoint.optimizer()).collect();
    let elements: u64 = checkpoint.model().tensors().iter().map(|t| t.shape.iter().product::<u64>()).sum();
    let mut report = Report::new("checkpoint-show", headline(&manifest.family, manifest.training.as_ref()));
    report = report.qualified(phrase![Cell::Exact(u128::from(elements)), " parameters"]);
    let bytes: u64 = files.iter().map(|file| file.bytes()).sum();
    report = report.qualified(phrase![Bytes(bytes)]);
    report.blocks.push(files_table(&files).into());
    let rows = settings(checkpoint.tool(), &manifest.family, manifest.training.as_ref());
    report.blocks.push(Block::key_values("", rows));
    let result = Value::map().with("parameters", Params(elements)).with("bytes", Bytes(bytes));
    report.result = described(result, checkpoint.tool(), &manifest.family, manifest.training.as_ref())
        .with("files", Value::list(files.iter().map(|file| file_value(file))));
    report
}

fn headline(family: &str, training: Option<&Training>) -> Phrase {
    match training {
        Some(training) => phrase!["step ", training.step, format!(" of a {family} model")],
        None => phrase![format!("weights of a {family} model")],
    }
}

/// The newest in full, the others as a list.
fn store(path: &Path, all: &[PathBuf]) -> Result<Report, Diagnostics> {
    let latest = super::latest(path)?;
    let Some(newest) = &latest.checkpoint else { return Err(latest.skipped) };
    let mut report = checkpoint(newest);
    let columns = [
        Column::left("checkpoint"),
        Column::right("step"),
        Column::right("tokens"),
        Column::right("validation loss"),
        Column::left(""),
    ];
    let mut table = Table::new("", columns);
    let mut values = Vec::new();
    for path in all {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let opened = Checkpoint::open(path);
        let value = Value::map().with("path", path.display().to_string()).with("opens", opened.is_ok());
        let Ok(one) = opened else {
            values.push(value);
            let state = "cannot be opened: napkin checkpoint verify";
            table.rows.push(Row::new([name.into(), Cell::Empty, Cell::Empty, Cell::Empty, state.into()]));
            continue;
        };
        let Some(training) = &one.manifest().training else {
            values.push(value);
            table.rows.push(Row::new([name.into(), Cell::Empty, Cell::Empty, Cell::Empty, "weights".into()]));
            continue;
        };
        let loss = training.validation_loss;
        values.push(value.with("step", training.step).with("tokens", training.tokens).with("validation_loss", loss));
        table.rows.push(Row::new([
            name.into(),
            training.step.into(),
            Tokens(training.tokens).into(),
            loss.map_or(Cell::Empty, |value| Cell::Number { value, decimals: 4 }),
        ]));
    }
    report.blocks.insert(0, table.into());
    report.result.insert("checkpoints", Value::list(values));
    report.result.insert("newest", newest.path().display().to_string());
    report.warnings.extend(latest.skipped);
    Ok(report)
}

fn manifest(path: &Path) -> Result<Report, Diagnostics> {
    let bytes = read_small(path, manifest::MAX_BYTES)?;
    let document = Document::parse(&path.display().to_string(), &bytes)?;
    let training = document.training.as_ref();
    let mut report = Report::new("checkpoint-show", headline(&document.family, training));
    report = report.qualified(phrase!["the manifest alone"]);
    report.blocks.push(Block::key_values("", settings(&document.tool, &document.family, training)));
    report.result = described(Value::map(), &document.tool, &document.family, training);
    Ok(report)
}

fn weights(path: &Path) -> Result<Report, Diagnostics> {
    let weights = Weights::open(path)?;
    let files: Vec<&TensorFile> = weights.files().iter().collect();
    let tensors = weights.tensors().count() as u64;
    let elements: u64 = weights.tensors().map(|(_, t)| t.shape.iter().product::<u64>()).sum();
    let bytes: u64 = files.iter().map(|file| file.bytes()).sum();
    let mut report = Report::new("checkpoint-show", phrase![tensors, " tensors"]);
    report = report.qualified(phrase![Cell::Exact(u128::from(elements)), " elements"]).qualified(phrase![Bytes(bytes)]);
    report = report.qualified(phrase!["no manifest: weights only"]);
    report.blocks.push(files_table(&files).into());
    let result = Value::map().with("elements", elements).with("bytes", Bytes(bytes));
    report.result = result.with("files", Value::list(files.iter().map(|file| file_value(file))));
    Ok(report)
}

/// Bytes by file and dtype.
fn files_table(files: &[&TensorFile]) -> Table {
    let columns = [
        Column::left("file"),
        Column::left("dtype"),
        Column::right("tensors"),
        Column::right("elements"),
        Column::right("bytes"),
    ];
    let mut table = Table::new("", columns);
    let mut total = Sum::default();
    for file in files {
        let mut name = file_name(file);
        for (dtype, sum) in by_dtype(file) {
            table.rows.push(Row::new([std::mem::take(&mut name).into(), dtype.into()].into_iter().chain(sum.cells())));
            total.add(sum);
        }
    }
    table.total = Some(Row::new([Cell::Empty, Cell::Empty].into_iter().chain(total.cells())));
    table
}

fn file_name(file: &TensorFile) -> String {
    file.path().file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Tensors, elements and bytes.
#[derive(Clone, Copy, Default)]
struct Sum {
    tensors: u64,
    elements: u64,
    bytes: u64,
}

impl Sum {
    fn add(&mut self, other: Self) {
        self.tensors += other.tensors;
        self.elements += other.elements;
        self.bytes += other.bytes;
    }

    fn cells(self) -> [Cell; 3] {
        [self.tensors.into(), self.elements.into(), Bytes(self.bytes).into()]
    }
}

fn by_dtype(file: &TensorFile) -> BTreeMap<String, Sum> {
    let mut sums: BTreeMap<String, Sum> = BTreeMap::new();
    for tensor in file.tensors() {
        let dtype = tensor.dtype.map_or_else(|| tensor.stored_as.clone(), |dtype| dtype.name().to_owned());
        let one = Sum { tensors: 1, elements: tensor.shape.iter().product(), bytes: tensor.bytes };
        sums.entry(dtype).or_default().add(one);
    }
    sums
}

fn file_value(file: &TensorFile) -> Value {
    let dtypes = by_dtype(file).into_iter().map(|(dtype, sum)| {
        let value = Value::map().with("tensors", sum.tensors).with("elements", sum.elements);
        (dtype, value.with("bytes", sum.bytes))
    });
    let value = Value::map().with("file", file_name(file)).with("bytes", file.bytes());
    value.with("by_dtype", Value::Map(dtypes.collect()))
}

/// Everything a manifest says, line by line.
fn settings(tool: &str, family: &str, training: Option<&Training>) -> Vec<KeyValue> {
    let mut rows = vec![KeyValue::new("model", family), KeyValue::new("saved by", tool)];
    let Some(training) = training else { return rows };
    let mut row = |key: &str, value: Cell| rows.push(KeyValue::new(key, value));
    row("step", training.step.into());
    row("tokens", Tokens(training.tokens).into());
    row("epoch", training.data.epoch.into());
    if let Some(value) = training.validation_loss {
        row("validation loss", Cell::Number { value, decimals: 4 });
    }
    row("data", training.data.file.as_str().into());
    row("data tokens", training.data.tokens.into());
    if !training.data.tokenizer.is_empty() {
        row("tokenizer", training.data.tokenizer.as_str().into());
    }
    row("data hash", training.data.hash.as_str().into());
    row("optimizer", training.optimizer.kind.as_str().into());
    for (name, value) in [
        ("hyper", &training.optimizer.hyper),
        ("scalars", &training.optimizer.scalars),
        ("schedule", &training.schedule),
        ("scaler", &training.scaler),
        ("sampler", &training.data.sampler),
        ("settings", &training.settings),
    ] {
        flatten(name, value, &mut rows);
    }
    for random in &training.random {
        let value = format!("seed {}, next site {}", random.seed, random.next_site);
        rows.push(KeyValue::new(format!("random {}", random.stream), value));
    }
    rows
}

/// Members of nested objects as `outer.inner`.
fn flatten(name: &str, value: &serde_json::Value, rows: &mut Vec<KeyValue>) {
    match value {
        serde_json::Value::Object(members) => {
            members.iter().for_each(|(key, value)| flatten(&format!("{name}.{key}"), value, rows));
        }
        serde_json::Value::Null => rows.push(KeyValue::new(name, "none")),
        serde_json::Value::String(text) => rows.push(KeyValue::new(name, text.as_str())),
        other => rows.push(KeyValue::new(name, other.to_string())),
    }
}

/// The same for programs.
fn described(result: Value, tool: &str, family: &str, training: Option<&Training>) -> Value {
    let kind = if training.is_some() { "training" } else { "weights" };
    let mut result = result.with("kind", kind).with("model_type", family).with("tool", tool);
    if let Some(training) = training {
        for (key, value) in training.to_json() {
            result.insert(key, from_json(&value));
        }
    }
    result
}

fn from_json(value: &serde_json::Value) -> Value {
    match value {
        serde_json::Value::Null => Value::Null,
        serde_json::Value::Bool(value) => (*value).into(),
        serde_json::Value::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(count), _) => count.into(),
            (None, Some(count)) => count.into(),
            (None, None) => number.as_f64().unwrap_or(f64::NAN).into(),
        },
        serde_json::Value::String(text) => text.as_str().into(),
        serde_json::Value::Array(items) => Value::list(items.iter().map(from_json)),
        serde_json::Value::Object(members) => {
            Value::Map(members.iter().map(|(key, value)| (key.clone(), from_json(value))).collect())
        }
    }
}
