//! What is stored, for people and programs.

use super::against::{Against, Lone, number_lists};
use super::entry::{Entry, Format, Header, total};
use super::group::Group;
use super::open::Stored;
use super::packed::{self, Packing, Weight};
use crate::checkpoint::place;
use nn::config::Config;
use nn::optim::Kind;
use nn::step::Precision;
use plan::phrase;
use plan::report::{Block, Cell, Column, KeyValue, Phrase, Report, Row, Table, Value, Verdict};
use plan::states::ParameterBytes;
use std::collections::BTreeMap;
use std::path::Path;
use tensor::{DType, Device, Runtime};
use units::{Bytes, Diagnostic, Diagnostics, Params};

/// Names that are printed of a long list; JSON has this many more.
const PRINTED: usize = 8;
const LISTED: usize = 1000;

/// Reads the headers of the weights at `path`, and holds them against `model` where there is one.
///
/// # Errors
/// What [`Stored::open`] refuses, and `T0305` for a model that cannot be counted.
pub fn inspect(path: &Path, model: Option<&plan::model::Model>) -> Result<Report, Diagnostics> {
    of(Stored::open(path)?, model)
}

/// The report on headers that were read.
pub(crate) fn of(stored: Stored, model: Option<&plan::model::Model>) -> Result<Report, Diagnostics> {
    let says = model.map(Says::of).unwrap_or_default();
    let entries: Vec<&Entry> = stored.files.iter().flat_map(|file| &file.tensors).collect();
    let weights = packed::weights(&entries, says.bits);
    let against = model.map(|model| {
        let built = nn::Model::build(&Runtime::new(Device::Meta), &model.spec, DType::BF16);
        let built = built.map_err(|error| Diagnostic::error("T0305", error.to_string()))?;
        let mut parts = plan::params::other_parameters(model)?;
        number_lists(&mut parts);
        Ok::<_, Diagnostics>(Against::of(&stored.files, &weights, &built, &parts))
    });
    let against = against.transpose()?;
    let bytes = total(entries.iter().map(|entry| entry.bytes));
    let stored_parameters = total(weights.iter().filter_map(|weight| weight.elements));
    let parameters = against.as_ref().map_or(stored_parameters, |against| against.stored);

    let mut report = Report::new("weights", phrase![Bytes(bytes), " of tensors"]);
    report = report.qualified(phrase![Cell::Exact(u128::from(parameters)), " parameters"]);
    report = report.qualified(files_phrase(&stored));
    report.inputs = Value::map()
        .with("path", stored.path.display().to_string())
        .with("model", model.map(|model| model.name.as_str()));
    report.result = Value::map()
        .with("format", stored.format().name())
        .with("tensors", entries.len())
        .with("tensor_bytes", bytes)
        .with("parameters", Params(parameters));
    encodings(&mut report, &entries);
    groups(&mut report, &weights, against.as_ref());
    packings(&mut report, &weights);
    files(&mut report, &stored.files, bytes);
    report.warnings.extend(stored.warnings.iter().cloned());
    if let (Some(model), Some(against)) = (model, &against) {
        compared(&mut report, against, model);
        // Programs that write GGUF choose each tensor's type by rules of their own.
        if stored.format() == Format::Safetensors {
            dtypes(&mut report, &says, &weights, &stored.path);
        }
        report.warnings.extend(model.warnings());
    }
    loaded(&mut report, parameters, &weights);
    Ok(report)
}

fn files_phrase(stored: &Stored) -> Phrase {
    let (format, count) = (stored.format().name(), stored.files.len() as u64);
    if count == 1 { phrase![format] } else { phrase![format!("{format}, "), count, " files"] }
}

/// What a config says of how weights are stored.
#[derive(Default)]
struct Says {
    /// Its dtype, and the key.
    dtype: Option<(DType, &'static str)>,
    /// Bits of packed integers.
    bits: Option<u64>,
}

impl Says {
    fn of(model: &plan::model::Model) -> Self {
        let (Some(config), _) = Config::parse("config.json", model.config.as_bytes()) else { return Self::default() };
        let text = |key: &str| config.find(key).map(|found| found.value.to_string());
        let dtype = ["dtype", "torch_dtype"].into_iter().find_map(|key| {
            let said = text(key)?;
            torch_dtype(said.trim_matches('"')).map(|dtype| (dtype, key))
        });
        let groups = "quantization_config.config_groups.group_0.weights.num_bits";
        let bits = ["quantization_config.bits", groups].into_iter().find_map(|key| text(key)?.parse().ok());
        Self { dtype, bits }
    }
}

/// The dtype that PyTorch calls so.
fn torch_dtype(name: &str) -> Option<DType> {
    match name.trim_start_matches("torch.") {
        "float32" | "float" => Some(DType::F32),
        "float16" | "half" => Some(DType::F16),
        "bfloat16" => Some(DType::BF16),
        "float64" | "double" => Some(DType::F64),
        _ => None,
    }
}

#[derive(Clone, Copy, Default)]
struct Sum {
    tensors: u64,
    elements: u64,
    bytes: u64,
}

fn bits_per_weight(bytes: u64, elements: u64) -> Option<f64> {
    (elements > 0).then(|| bytes as f64 * 8.0 / elements as f64)
}

fn bits_cell(bytes: u64, elements: u64) -> Cell {
    bits_per_weight(bytes, elements).map_or(Cell::Empty, |value| Cell::Number { value, decimals: 2 })
}

fn encodings(report: &mut Report, entries: &[&Entry]) {
    let mut sums: BTreeMap<String, Sum> = BTreeMap::new();
    for entry in entries {
        let sum = sums.entry(entry.encoding.name()).or_default();
        sum.tensors += 1;
        sum.elements = sum.elements.saturating_add(entry.elements);
        sum.bytes = sum.bytes.saturating_add(entry.bytes);
    }
    let columns = [
        Column::left("stored as"),
        Column::right("tensors"),
        Column::right("elements"),
        Column::right("bits each"),
        Column::right("bytes"),
    ];
    let mut table = Table::new("", columns);
    let mut sorted: Vec<(&String, &Sum)> = sums.iter().collect();
    sorted.sort_by_key(|(_, sum)| std::cmp::Reverse(sum.bytes));
    let mut all = Sum::default();
    let mut values = Value::map();
    for (name, sum) in sorted {
        let bits = bits_cell(sum.bytes, sum.elements);
        let cells = [name.as_str().into(), sum.tensors.into(), sum.elements.into(), bits, Bytes(sum.bytes).into()];
        table.rows.push(Row::new(cells));
        let value = Value::map().with("tensors", sum.tensors).with("elements", sum.elements).with("bytes", sum.bytes);
        values.insert(name.as_str(), value.with("bits_per_element", bits_per_weight(sum.bytes, sum.elements)));
        all.tensors += sum.tensors;
        all.elements = all.elements.saturating_add(sum.elements);
        all.bytes = all.bytes.saturating_add(sum.bytes);
    }
    let bits = bits_cell(all.bytes, all.elements);
    let cells = [Cell::Empty, all.tensors.into(), all.elements.into(), bits, Bytes(all.bytes).into()];
    table.total = Some(Row::new(cells));
    report.blocks.push(table.into());
    report.result.insert("by_dtype", values);
}

fn groups(report: &mut Report, weights: &[Weight], against: Option<&Against>) {
    let mut sums: BTreeMap<Group, Sum> = BTreeMap::new();
    for weight in weights {
        let sum = sums.entry(weight.group).or_default();
        sum.tensors += 1 + weight.companions;
        sum.elements = sum.elements.saturating_add(weight.elements.unwrap_or(0));
        sum.bytes = sum.bytes.saturating_add(weight.all_bytes());
    }
    let predicted = against.map(|against| &against.groups);
    for group in predicted.into_iter().flat_map(BTreeMap::keys) {
        sums.entry(*group).or_default();
    }
    let mut columns =
        vec![Column::left("part"), Column::right("tensors"), Column::right("parameters"), Column::right("bytes")];
    if predicted.is_some() {
        columns.push(Column::right("in the config"));
    }
    let mut table = Table::new("", columns);
    let mut values = Value::map();
    for (group, sum) in &sums {
        let mut cells = vec![group.name().into(), sum.tensors.into(), sum.elements.into(), Bytes(sum.bytes).into()];
        let mut value =
            Value::map().with("tensors", sum.tensors).with("parameters", sum.elements).with("bytes", sum.bytes);
        if let Some(predicted) = predicted {
            let here = predicted.get(group).copied().unwrap_or(0);
            cells.push(here.into());
            value.insert("predicted_parameters", here);
        }
        table.rows.push(Row::new(cells));
        values.insert(group.name(), value);
    }
    report.blocks.push(table.into());
    report.result.insert("by_part", values);
}

fn packings(report: &mut Report, weights: &[Weight]) {
    #[derive(Default)]
    struct Packed {
        weights: u64,
        elements: Option<u64>,
        bytes: u64,
        constants: u64,
    }
    let mut sums: BTreeMap<Packing, Packed> = BTreeMap::new();
    for weight in weights {
        let Some(packing) = weight.packing else { continue };
        let sum = sums.entry(packing).or_insert_with(|| Packed { elements: Some(0), ..Packed::default() });
        sum.weights += 1;
        sum.elements = sum.elements.zip(weight.elements).and_then(|(all, one)| all.checked_add(one));
        sum.bytes = sum.bytes.saturating_add(weight.bytes);
        sum.constants = sum.constants.saturating_add(weight.constants);
    }
    let values = sums.iter().map(|(packing, sum)| {
        let all = sum.bytes.saturating_add(sum.constants);
        let value = Value::map().with("format", packing.name()).with("weights", sum.weights);
        let value = value.with("parameters", sum.elements).with("packed_bytes", sum.bytes);
        let bits = sum.elements.and_then(|elements| bits_per_weight(all, elements));
        value.with("constants_bytes", sum.constants).with("bits_per_weight", bits)
    });
    report.result.insert("packed", Value::list(values));
    if sums.is_empty() {
        return;
    }
    let columns = [
        Column::left("packed as"),
        Column::right("weights"),
        Column::right("parameters"),
        Column::right("packed"),
        Column::right("constants"),
        Column::right("bits per weight"),
    ];
    let mut table = Table::new("", columns);
    for (packing, sum) in &sums {
        let bits =
            sum.elements.map_or(Cell::Empty, |elements| bits_cell(sum.bytes.saturating_add(sum.constants), elements));
        table.rows.push(Row::new([
            packing.name().into(),
            sum.weights.into(),
            sum.elements.map(Params).into(),
            Bytes(sum.bytes).into(),
            Bytes(sum.constants).into(),
            bits,
        ]));
        if sum.elements.is_none() {
            let message = "nothing says how many bits the packed words have".to_owned();
            let warning = Diagnostic::warning("T0634", message).effect("their parameters are not counted");
            report.warnings.push(warning.help("give the config.json with its quantization_config"));
        }
    }
    report.blocks.push(table.into());
}

fn files(report: &mut Report, files: &[Header], bytes: u64) {
    let headers = total(files.iter().map(|file| file.header_bytes));
    let all = total(files.iter().map(|file| file.file_bytes));
    let mut rows = vec![KeyValue::new("headers", Bytes(headers)), KeyValue::new("files", Bytes(all))];
    let padding = all.saturating_sub(headers).saturating_sub(bytes);
    if padding > 0 {
        rows.push(KeyValue::new("padding", Bytes(padding)).note("between tensors, so that each is aligned"));
    }
    let said = ["general.architecture", "general.name", "format"];
    for (key, value) in
        files.first().into_iter().flat_map(|file| &file.about).filter(|(key, _)| said.contains(&key.as_str()))
    {
        rows.push(KeyValue::new(key.as_str(), value.as_str()));
    }
    report.blocks.push(Block::key_values("", rows));
    report.result.insert("header_bytes", headers);
    report.result.insert("padding_bytes", padding);
    report.result.insert("file_bytes", all);
    let each = files.iter().map(|file| {
        let value = Value::map().with("file", file.path.display().to_string()).with("tensors", file.tensors.len());
        value
            .with("header_bytes", file.header_bytes)
            .with("tensor_bytes", file.tensor_bytes())
            .with("bytes", file.file_bytes)
    });
    report.result.insert("files", Value::list(each));
}

fn named(list: &[Lone]) -> Value {
    Value::list(list.iter().take(LISTED).map(|lone| {
        let value = Value::map().with("name", lone.name.as_str()).with("elements", lone.elements);
        if lone.bytes > 0 { value.with("bytes", lone.bytes) } else { value }
    }))
}

/// The first names of a list.
fn first_names<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> Phrase {
    let more = names.len().saturating_sub(PRINTED);
    let names: Vec<&str> = names.take(PRINTED).collect();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    phrase![format!("{}{more}", names.join(", "))]
}

fn compared(report: &mut Report, against: &Against, model: &plan::model::Model) {
    let mut rows = vec![
        KeyValue::new("parameters of the config", Cell::Exact(u128::from(against.predicted)))
            .note(phrase![model.name.as_str()]),
    ];
    let stored = KeyValue::new("stored", Cell::Exact(u128::from(against.stored)));
    rows.push(match i128::from(against.stored) - i128::from(against.predicted) {
        0 => stored.note("the same number"),
        more if more > 0 => stored.note(phrase![more.unsigned_abs(), " more"]),
        less => stored.note(phrase![less.unsigned_abs(), " fewer"]),
    });
    for (key, list) in
        [("missing", &against.missing), ("extra", &against.extra), ("follow from the config", &against.derived)]
    {
        if !list.is_empty() {
            let names = first_names(list.iter().map(|lone| lone.name.as_str()));
            rows.push(KeyValue::new(key, list.len() as u64).note(names));
        }
    }
    if !against.shapes.is_empty() {
        let lines: Vec<String> = against
            .shapes
            .iter()
            .map(|(name, here, there)| format!("{name} {here}, the config makes {there}"))
            .collect();
        let names = first_names(lines.iter().map(String::as_str));
        rows.push(KeyValue::new("other shape", against.shapes.len() as u64).note(names));
    }
    if !against.renamed.is_empty() {
        let note = "blocks with other names and as many elements, such as experts stored one by one";
        rows.push(KeyValue::new("cut otherwise", against.renamed.len() as u64).note(note));
    }
    if !against.by_name {
        rows.push(KeyValue::new("names", "not compared").note("llama.cpp has its own: totals are compared"));
        for tower in &model.spec.towers {
            let note = "llama.cpp keeps it in a file of its own";
            rows.push(KeyValue::new(format!("{} part", tower.what), "not compared").note(note));
        }
    }
    for (name, other, bytes) in &against.twice {
        rows.push(KeyValue::new("stored twice", Bytes(*bytes)).note(format!("{other} is {name} by the config")));
    }
    report.blocks.push(Block::key_values("Against the config", rows));
    if !against.agrees() {
        report.verdict = Verdict::No;
        report.headline.qualifiers.push(phrase!["not what the config says"]);
    }
    let shapes = against.shapes.iter().take(LISTED).map(|(name, here, there)| {
        Value::map().with("name", name.as_str()).with("stored", here.as_str()).with("predicted", there.as_str())
    });
    let twice = against.twice.iter().map(|(name, other, bytes)| {
        Value::map().with("name", name.as_str()).with("duplicate", other.as_str()).with("bytes", *bytes)
    });
    let result = Value::map()
        .with("agrees", against.agrees())
        .with("compared_by", if against.by_name { "name" } else { "total" })
        .with("predicted_parameters", against.predicted)
        .with("missing", named(&against.missing))
        .with("extra", named(&against.extra))
        .with("other_shape", Value::list(shapes))
        .with("cut_otherwise", Value::list(against.renamed.iter().map(|(prefix, _)| prefix.as_str())))
        .with("derived", named(&against.derived))
        .with("stored_twice", Value::list(twice));
    report.result.insert("against_config", result);
}

/// Plain floats in another dtype than the config says.
fn dtypes(report: &mut Report, says: &Says, weights: &[Weight], path: &Path) {
    let Some((said, key)) = says.dtype else {
        report.result.insert("config_dtype", Value::Null);
        return;
    };
    report.result.insert("config_dtype", said.name());
    let mut other = Sum::default();
    let mut found: BTreeMap<&str, u64> = BTreeMap::new();
    for weight in weights.iter().filter(|weight| weight.packing.is_none()) {
        let Some(dtype) = weight.encoding.dtype().filter(|dtype| dtype.is_float() && *dtype != said) else { continue };
        other.tensors += 1;
        other.elements = other.elements.saturating_add(weight.elements.unwrap_or(0));
        other.bytes = other.bytes.saturating_add(weight.bytes);
        *found.entry(dtype.name()).or_default() += 1;
    }
    if other.tensors == 0 {
        return;
    }
    let would = other.elements.saturating_mul(said.size_in_bytes());
    let kinds: Vec<String> = found.iter().map(|(name, count)| format!("{count} in {name}")).collect();
    let message =
        format!("`{key}` of the config is {}, and other tensors are stored: {}", said.name(), kinds.join(", "));
    let effect = format!("{} are stored that would be {} in {}", Bytes(other.bytes), Bytes(would), said.name());
    report.warnings.push(
        Diagnostic::warning("T0635", message)
            .at(place(path))
            .effect(effect)
            .why("programs load by the key or by the files, which of them depends on their version")
            .help("name the dtype when loading: from_pretrained(..., dtype=...)"),
    );
    let value =
        Value::map().with("tensors", other.tensors).with("bytes", other.bytes).with("bytes_in_config_dtype", would);
    report.result.insert("other_dtype", value);
}

/// What loading in one dtype or another makes of the weights, for training with AdamW.
fn loaded(report: &mut Report, parameters: u64, weights: &[Weight]) {
    let columns = [
        Column::left("loaded for training as"),
        Column::right("weights"),
        Column::right("with gradients and AdamW"),
        Column::right("saved state"),
        Column::left(""),
    ];
    let mut table = Table::new("", columns);
    let mut values = Vec::new();
    for (name, recipe, note) in [
        ("bf16", Precision::Bf16Pure, "no master copy"),
        ("bf16, f32 master copy", Precision::Bf16Master, ""),
        ("f32", Precision::Fp32, ""),
    ] {
        let Some(each) = ParameterBytes::of(recipe, Kind::AdamW) else { continue };
        let times = |bytes: u64| Bytes(parameters.saturating_mul(bytes));
        let (held, saved) = (times(each.total()), times(each.total() - each.gradient));
        let cells = [name.into(), times(each.parameter).into(), held.into(), saved.into(), note.into()];
        table.rows.push(Row::new(cells));
        let value = Value::map().with("recipe", recipe.name()).with("weights_bytes", times(each.parameter));
        values.push(value.with("training_state_bytes", held).with("saved_bytes", saved));
    }
    report.blocks.push(table.into());
    report.result.insert("loaded", Value::list(values));
    for dtype in [DType::BF16, DType::F16] {
        let of_it = weights.iter().filter(|weight| weight.encoding.dtype() == Some(dtype));
        let (own, all) = (total(of_it.map(|weight| weight.bytes)), total(weights.iter().map(|weight| weight.bytes)));
        if own <= all / 2 {
            continue;
        }
        let note = Diagnostic::note("T0633", format!("{} weights + plain AdamW = no master copy", dtype.name()));
        report.warnings.push(
            note.why("AdamW keeps its moments in the dtype of the weights, and updates below the spacing of that dtype are lost")
                .help("load in f32 and train under autocast, or use an optimizer with f32 master weights"),
        );
    }
}
