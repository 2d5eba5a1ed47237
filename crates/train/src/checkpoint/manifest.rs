//! What a run is beside its tensors, and the checksums of all of it.
//!
//! The manifest is JSON whose last entry is the checksum of every byte before it, so that a flipped bit anywhere in it
//! is found, and whose keys are all required, so that partial or misspelt state is refused and never silently fresh.

use super::fields::{Fields, exact};
use super::{CONFIG, MODEL, OPTIMIZER};
use serde_json::{Map, Value, json};
use units::{Diagnostic, Diagnostics, Location};

/// Version of the form. It changes when a key does.
const SCHEMA: u64 = 1;

/// What `format` says in every manifest.
const FORMAT: &str = "napkin-checkpoint";

/// The last key.
const SEAL: &str = "manifest_crc32";

/// Largest manifest that is read: a hundred bytes for each of 600,000 tensors.
pub(crate) const MAX_BYTES: u64 = 64 << 20;

/// What a run is beside its tensors.
#[derive(Clone, Debug, PartialEq)]
pub struct Manifest {
    /// `model_type` under which the config is read.
    pub family: String,
    /// Text of the config, as it was given.
    pub config: String,
    /// State of training; `None` in a checkpoint of weights only.
    pub training: Option<Training>,
}

/// What training goes on from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Training {
    /// Optimizer steps made.
    pub step: u64,
    /// Tokens trained on.
    pub tokens: u64,
    /// Loss on the validation data when it was saved.
    pub validation_loss: Option<f64>,
    /// Settings of the run, as the loop reads them.
    pub settings: Value,
    /// The update rule, without its state tensors.
    pub optimizer: OptimizerSettings,
    /// The learning-rate schedule with its position.
    pub schedule: Value,
    /// The loss scaler; `null` where the precision needs none.
    pub scaler: Value,
    /// Every random stream.
    pub random: Vec<RandomState>,
    /// Where in the data it is.
    pub data: DataPosition,
}

/// An update rule.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OptimizerSettings {
    /// Its name, such as `adamw`.
    pub kind: String,
    /// Rates and decays, by parameter group.
    pub hyper: Value,
    /// State that is no tensor, such as the number of updates.
    pub scalars: Value,
}

/// A random stream: its numbers follow from these three.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RandomState {
    /// What it is for, such as `dropout`.
    pub stream: String,
    /// Seed.
    pub seed: u64,
    /// The site the next draw takes.
    pub next_site: u64,
}

/// Where in the training data a run is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DataPosition {
    /// Token file, as it was named.
    pub file: String,
    /// Tokens in it.
    pub tokens: u64,
    /// Hash of it, as the token file's own reader makes it.
    pub hash: String,
    /// Name of the tokenizer that made it; empty if it is not known.
    pub tokenizer: String,
    /// Passes over it that are complete.
    pub epoch: u64,
    /// State of the sampler.
    pub sampler: Value,
}

/// A file of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileEntry {
    /// Name in the folder.
    pub file: &'static str,
    /// Size.
    pub bytes: u64,
    /// Checksum of all of it.
    pub crc32: u32,
    /// Checksum of the header of tensors with its length; of all of it for other files.
    pub header_crc32: u32,
    /// Checksum of each tensor.
    pub tensors: Vec<(String, u32)>,
}

impl FileEntry {
    /// A file without tensors.
    pub fn plain(file: &'static str, contents: &[u8]) -> Self {
        let crc32 = crc32fast::hash(contents);
        Self { file, bytes: contents.len() as u64, crc32, header_crc32: crc32, tensors: Vec::new() }
    }

    /// Checksum of a tensor.
    pub fn tensor_crc32(&self, name: &str) -> Option<u32> {
        self.tensors.iter().find(|(own, _)| own == name).map(|(_, crc32)| *crc32)
    }

    fn to_json(&self) -> Value {
        let tensors: Map<String, Value> = self.tensors.iter().map(|(name, crc)| (name.clone(), hex(*crc))).collect();
        json!({
            "file": self.file,
            "bytes": self.bytes,
            "crc32": hex(self.crc32),
            "header_crc32": hex(self.header_crc32),
            "tensors": tensors,
        })
    }
}

/// What `manifest.json` holds: the files of the checkpoint, each with its checksums, and who wrote it. The config's own
/// text is one of the files.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Document {
    /// Who wrote it.
    pub tool: String,
    /// `model_type`.
    pub family: String,
    /// State of training.
    pub training: Option<Training>,
    /// The files: config, model, and optimizer where it trains.
    pub files: Vec<FileEntry>,
}

impl Document {
    /// The manifest as a file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut all = json!({
            "format": FORMAT,
            "schema": SCHEMA,
            "tool": self.tool,
            "kind": if self.training.is_some() { "training" } else { "weights" },
            "family": self.family,
        });
        let mut put = |key: &str, value: Value| all[key] = value;
        for entry in &self.files {
            put(key_of(entry.file), entry.to_json());
        }
        if let Some(training) = &self.training {
            for (key, value) in training.to_json() {
                put(key, value);
            }
        }
        seal(&all)
    }

    /// Reads a manifest; `file` is its name in messages.
    ///
    /// # Errors
    /// All that is wrong with it: `T0605` not a manifest at all, `T0606` absent, unknown or impossible entries, `T0607`
    /// damaged, `T0608` of another version.
    pub fn parse(file: &str, bytes: &[u8]) -> Result<Self, Diagnostics> {
        let mut problems = Diagnostics::new();
        let sealed = is_sealed(bytes);
        if sealed == Some(false) {
            problems.push(damaged(file));
        }
        let value: Value = match serde_json::from_slice(bytes) {
            Ok(value) => value,
            Err(_) if problems.has_errors() => return Err(problems),
            Err(error) => {
                let problem = Diagnostic::error("T0605", format!("not a manifest: {error}")).at(Location::file(file));
                return Err(problem.into());
            }
        };
        let schema = value.get("schema").and_then(Value::as_u64);
        if let Some(other) = schema.filter(|other| *other != SCHEMA && sealed == Some(true)) {
            return Err(other_schema(file, other, value.get("tool").and_then(Value::as_str)).into());
        }
        let mut fields = Fields::new(file, &value);
        let document = Self::read(&mut fields);
        if sealed == Some(true) {
            fields.text(SEAL);
        } else {
            // Absent, or not where it belongs: then nothing vouches for the rest.
            fields.crc32(SEAL);
        }
        if let Err(more) = fields.finish() {
            problems.extend(more);
        }
        if sealed.is_none() && !problems.has_errors() {
            problems.push(damaged(file));
        }
        if problems.has_errors() { Err(problems) } else { Ok(document) }
    }

    fn read(fields: &mut Fields<'_>) -> Self {
        let format = |value: &Value| (value.as_str()? == FORMAT).then_some(());
        fields.converted("format", &format!("`{FORMAT}`"), format);
        let schema = |value: &Value| (value.as_u64()? == SCHEMA).then_some(());
        fields.converted("schema", &format!("{SCHEMA}"), schema);
        let tool = fields.text("tool");
        let kind = |value: &'_ Value| Some(value.as_str()? == "training").filter(|is| *is || value == "weights");
        // A manifest that does not say is held against all that training needs.
        let trains = fields.converted("kind", "`training` or `weights`", kind).unwrap_or(true);
        let family = fields.text("family");
        let mut files = vec![file_entry(fields, CONFIG), file_entry(fields, MODEL)];
        if trains {
            files.push(file_entry(fields, OPTIMIZER));
        }
        let training = trains.then(|| Training::read(fields));
        Self { tool, family, training, files }
    }

    /// The entry of a file.
    pub fn file(&self, name: &str) -> Option<&FileEntry> {
        self.files.iter().find(|entry| entry.file == name)
    }
}

impl Training {
    /// Its keys and values in a manifest.
    pub(crate) fn to_json(&self) -> [(&'static str, Value); 9] {
        let random = self.random.iter().map(|r| json!({"stream": r.stream, "seed": r.seed, "next_site": r.next_site}));
        [
            ("step", self.step.into()),
            ("tokens", self.tokens.into()),
            ("validation_loss", self.validation_loss.map(exact).into()),
            ("settings", self.settings.clone()),
            (
                "optimizer",
                json!({
                    "kind": self.optimizer.kind,
                    "hyper": self.optimizer.hyper,
                    "scalars": self.optimizer.scalars,
                }),
            ),
            ("schedule", self.schedule.clone()),
            ("scaler", self.scaler.clone()),
            ("rng", random.collect()),
            (
                "data_position",
                json!({
                    "file": self.data.file,
                    "tokens": self.data.tokens,
                    "hash": self.data.hash,
                    "tokenizer": self.data.tokenizer,
                    "epoch": self.data.epoch,
                    "sampler": self.data.sampler,
                }),
            ),
        ]
    }

    fn read(fields: &mut Fields<'_>) -> Self {
        Self {
            step: fields.count("step"),
            tokens: fields.count("tokens"),
            validation_loss: fields.float_or_null("validation_loss"),
            settings: fields.value("settings"),
            optimizer: fields.object("optimizer", |o| OptimizerSettings {
                kind: o.text("kind"),
                hyper: o.value("hyper"),
                scalars: o.value("scalars"),
            }),
            schedule: fields.value("schedule"),
            scaler: fields.value("scaler"),
            random: fields.list("rng", |r| RandomState {
                stream: r.text("stream"),
                seed: r.count("seed"),
                next_site: r.count("next_site"),
            }),
            data: fields.object("data_position", |d| DataPosition {
                file: d.text("file"),
                tokens: d.count("tokens"),
                hash: d.text("hash"),
                tokenizer: d.text("tokenizer"),
                epoch: d.count("epoch"),
                sampler: d.value("sampler"),
            }),
        }
    }
}

/// The key under which a manifest describes a file.
const fn key_of(file: &str) -> &'static str {
    // The names that the field's other programs use for the two that hold tensors.
    match file.as_bytes() {
        b"model.safetensors" => "model_state_dict",
        b"optimizer.safetensors" => "optimizer_state_dict",
        _ => "config",
    }
}

fn file_entry(fields: &mut Fields<'_>, file: &'static str) -> FileEntry {
    let absent = FileEntry::plain(file, &[]);
    let read = |f: &mut Fields<'_>| {
        f.converted("file", &format!("`{file}`"), |value| (value.as_str()? == file).then_some(()));
        Some(FileEntry {
            file,
            bytes: f.count("bytes"),
            crc32: f.crc32("crc32"),
            header_crc32: f.crc32("header_crc32"),
            tensors: f.map("tensors", "a checksum", |value| unhex(value.as_str()?)),
        })
    };
    fields.object(key_of(file), read).unwrap_or(absent)
}

impl Fields<'_> {
    fn crc32(&mut self, key: &'static str) -> u32 {
        self.converted(key, "a checksum of 8 digits", |value| unhex(value.as_str()?)).unwrap_or_default()
    }
}

fn hex(crc32: u32) -> Value {
    format!("{crc32:08x}").into()
}

fn unhex(text: &str) -> Option<u32> {
    let crc32 = u32::from_str_radix(text, 16).ok()?;
    (format!("{crc32:08x}") == text).then_some(crc32)
}

/// The JSON of `value` with the checksum of all its bytes as the last entry.
fn seal(value: &Value) -> Vec<u8> {
    // Keys are text and numbers finite, so nothing can fail.
    let mut bytes = serde_json::to_vec_pretty(value).unwrap_or_default();
    bytes.truncate(bytes.len().saturating_sub("\n}".len()));
    bytes.extend(b",\n");
    let seal = tail(crc32fast::hash(&bytes));
    bytes.extend(seal.as_bytes());
    bytes
}

fn tail(crc32: u32) -> String {
    format!("  \"{SEAL}\": \"{crc32:08x}\"\n}}\n")
}

/// Whether the checksum at the end is that of all bytes before; `None` if there is none at the end.
fn is_sealed(bytes: &[u8]) -> Option<bool> {
    let start = bytes.len().checked_sub(tail(0).len())?;
    let (sealed, end) = bytes.split_at(start);
    let key = format!("  \"{SEAL}\": \"");
    end.starts_with(key.as_bytes()).then(|| end == tail(crc32fast::hash(sealed)).as_bytes())
}

fn damaged(file: &str) -> Diagnostic {
    Diagnostic::error("T0607", "the manifest is damaged or was edited: its checksum is not that of its text")
        .at(Location::file(file))
        .why("what it says of the run cannot be relied on")
        .help("go on from the checkpoint before it")
}

fn other_schema(file: &str, schema: u64, tool: Option<&str>) -> Diagnostic {
    let tool = tool.unwrap_or("another program");
    Diagnostic::error("T0608", format!("the manifest is of version {schema}, and this program reads version {SCHEMA}"))
        .at(Location::file(file).pointer("/schema"))
        .help(format!("use the program that wrote it: {tool}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::testing::training;

    fn document() -> Document {
        Document {
            tool: "napkin 0.1.0".to_owned(),
            family: "gpt2".to_owned(),
            training: Some(training(7)),
            files: vec![
                FileEntry::plain(CONFIG, b"{}"),
                FileEntry { tensors: vec![("wte.weight".to_owned(), 5)], ..FileEntry::plain(MODEL, b"model") },
                FileEntry::plain(OPTIMIZER, b"optimizer"),
            ],
        }
    }

    #[test]
    fn it_comes_back() {
        let whole = document();
        assert_eq!(Document::parse("m.json", &whole.to_bytes()), Ok(whole.clone()));
        let weights = Document { training: None, files: whole.files[..2].to_vec(), ..whole };
        assert_eq!(Document::parse("m.json", &weights.to_bytes()), Ok(weights));
    }

    #[test]
    fn a_flipped_bit_anywhere_is_found() {
        let bytes = document().to_bytes();
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(Document::parse("m.json", &flipped).is_err(), "byte {} bit {}", bit / 8, bit % 8);
        }
        for length in 0..bytes.len() {
            assert!(Document::parse("m.json", &bytes[..length]).is_err(), "{length} bytes of {}", bytes.len());
        }
    }

    /// What is said of a manifest that is sealed but has lost the value under `pointer`.
    fn without(pointer: &str) -> Diagnostics {
        let mut value: Value = serde_json::from_slice(&document().to_bytes()).unwrap();
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        value.pointer_mut(parent).and_then(Value::as_object_mut).unwrap().remove(key).unwrap();
        value.as_object_mut().unwrap().remove(SEAL);
        Document::parse("m.json", &seal(&value)).unwrap_err()
    }

    #[test]
    fn nothing_is_optional() {
        fn pointers(value: &Value, at: &str, out: &mut Vec<String>) {
            for (key, value) in value.as_object().into_iter().flatten() {
                // Below these the keys are those of the optimizer, the loop and the model.
                if !["hyper", "scalars", "settings", "schedule", "scaler", "sampler", "tensors"].contains(&key.as_str())
                {
                    pointers(value, &format!("{at}/{key}"), out);
                }
                out.push(format!("{at}/{key}"));
            }
        }
        let value: Value = serde_json::from_slice(&document().to_bytes()).unwrap();
        let mut all = Vec::new();
        pointers(&value, "", &mut all);
        assert_eq!(all.len(), 42);
        for pointer in all.iter().filter(|pointer| *pointer != "/manifest_crc32") {
            let key = pointer.rsplit('/').next().unwrap();
            let problems = without(pointer);
            assert_eq!(problems[0].message, format!("`{key}` is absent"), "{pointer}");
            assert_eq!(problems.len(), 1, "{pointer}: {problems}");
        }
    }

    #[test]
    fn a_misspelt_key_and_all_that_is_absent_are_named() {
        let typo = br#"{
            "epoch": 3,
            "step": 4200,
            "model_state_dict": "weights.bin",
            "optimizer_state_dit": "optim.bin",
            "lr": 0.00012
        }"#;
        let said = Document::parse("m.json", typo).unwrap_err().to_string();
        for key in ["optimizer_state_dict", "schedule", "scaler", "rng", "data_position", "manifest_crc32"] {
            assert!(said.contains(&format!("`{key}` is absent")), "{key}: {said}");
        }
        assert!(said.contains("`optimizer_state_dit` is not known"), "{said}");
        assert!(said.contains("did you mean `optimizer_state_dict`?"), "{said}");
    }

    #[test]
    fn another_version_is_said() {
        let mut value: Value = serde_json::from_slice(&document().to_bytes()).unwrap();
        value.as_object_mut().unwrap().remove(SEAL);
        value["schema"] = 2.into();
        value["tool"] = "napkin 9".into();
        let problems = Document::parse("m.json", &seal(&value)).unwrap_err();
        assert_eq!(problems[0].code, "T0608");
        assert!(problems[0].help[0].contains("napkin 9"));
    }
}
