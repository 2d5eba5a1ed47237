//! Reading a model's `config.json`.
//!
//! [`Config::parse`] turns bytes into a tree that knows where every value stands and picks the part that describes the
//! language model. [`Reader`] is how a model family takes its sizes out of it: every problem is collected, with file,
//! line, column, reason and remedy, and every default is recorded as an [`Assumption`].
//!
//! ```
//! use napkin_nn::config::{Config, Reader};
//!
//! let text = br#"{"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": null}"#;
//! let (config, _) = Config::parse("config.json", text);
//! let config = config.expect("this text is right");
//! let mut r = Reader::new(&config);
//! let h = r.size("hidden_size");
//! let a = r.size("num_attention_heads");
//! let k = r.size_or("num_key_value_heads", a, "equal to num_attention_heads");
//! let resolved = r.finish().expect("nothing is wrong");
//! assert_eq!((h, a, k), (64, 4, 4));
//! assert_eq!(resolved.assumptions[0].flag, "--set num_key_value_heads=4");
//! ```

mod checks;
mod complaints;
mod free_keys;
pub mod json;
mod names;
mod overrides;
mod parser;
mod reader;
mod record;
mod scalar;
mod source;
mod tokens;

use units::diagnostic::{Diagnostic, Diagnostics, Location};

pub use self::free_keys::is_free;
pub use self::names::{edit_distance, looks_like_llama, near_matches};
pub use self::reader::Reader;
pub use self::record::{Assumption, Names, Part, Reading, Resolved};
pub use self::scalar::{MAX_LAYERS, MAX_SIZE};
pub use self::source::{Source, Span};

use self::json::Value;
use self::source::push_pointer;

/// Largest file that is read. Real configurations stay below 100 kB.
pub const MAX_BYTES: usize = 16 << 20;

/// Where the language model's keys may live inside a configuration of several models, in this order.
const SUB_CONFIGS: &[&str] = &["text_config", "llm_config", "language_config", "thinker_config"];

/// Models of several parts none of which is a language model: they are read from the root.
const WHOLE: &[&str] = &["clip", "siglip"];

/// Keys one of which a sub-configuration must have to be taken for a model.
const MODEL_KEYS: &[&str] =
    &["model_type", "hidden_size", "n_embd", "d_model", "num_hidden_layers", "n_layer", "num_layers", "vocab_size"];

/// A configuration: its texts, its tree, and which part of it describes the language model.
#[derive(Clone, Debug)]
pub struct Config {
    sources: Vec<Source>,
    root: Value,
    path: Vec<&'static str>,
    not_counted: Vec<String>,
}

/// A value and where it stands.
#[derive(Clone, Debug)]
pub struct Found<'a> {
    /// The value; may be `null`.
    pub value: &'a Value,
    /// JSON pointer from the root of the file.
    pub pointer: String,
}

impl Config {
    /// Reads `bytes`, the contents of the file called `file_name` in messages.
    ///
    /// The configuration is `None` exactly if one of the diagnostics is an error.
    pub fn parse(file_name: &str, bytes: &[u8]) -> (Option<Self>, Diagnostics) {
        let mut problems = Vec::new();
        let config = Self::read(file_name, bytes, &mut problems);
        (config, Diagnostics(problems))
    }

    fn read(file_name: &str, bytes: &[u8], problems: &mut Vec<Diagnostic>) -> Option<Self> {
        if bytes.len() > MAX_BYTES {
            problems.push(too_large(file_name));
            return None;
        }
        let marked = bytes.strip_prefix(b"\xef\xbb\xbf");
        let text = match std::str::from_utf8(marked.unwrap_or(bytes)) {
            Ok(text) => text,
            Err(error) => {
                problems.push(not_utf8(file_name, bytes, error.valid_up_to()));
                return None;
            }
        };
        let source = Source::new(file_name, text.to_owned());
        if text.trim().is_empty() {
            problems.push(
                Diagnostic::error("T0103", "the file is empty")
                    .at(Location::file(file_name))
                    .help("give the model's own `config.json`"),
            );
            return None;
        }
        let (root, found) = json::parse(&source, 0, 0);
        problems.extend(found);
        let root = root?;
        if !root.is_object() {
            problems.push(not_an_object(&source, &root));
            return None;
        }
        let mut config = Self { sources: vec![source], root, path: Vec::new(), not_counted: Vec::new() };
        config.choose_part(problems);
        Some(config)
    }

    /// Descends to the language model's own object and says so.
    fn choose_part(&mut self, problems: &mut Vec<Diagnostic>) {
        if self.wrapper_model_type().is_some_and(|name| WHOLE.contains(&name)) {
            return;
        }
        let mut here = &self.root;
        let mut pointer = String::new();
        while self.path.len() < 4 {
            let describes = |value: &Value| {
                let own = MODEL_KEYS.iter().any(|key| value.get(key).is_some_and(|v| !v.is_null()));
                own || SUB_CONFIGS.iter().any(|key| value.get(key).is_some_and(Value::is_object))
            };
            let Some(key) = SUB_CONFIGS.iter().find(|key| here.get(key).is_some_and(describes)) else {
                break;
            };
            for member in here.members() {
                if &*member.key != *key && member.value.is_object() && is_other_model(&member.key) {
                    self.not_counted.push(member.key.to_string());
                }
            }
            self.path.push(key);
            push_pointer(&mut pointer, key);
            here = here.get(key).unwrap_or(here);
        }
        if self.path.is_empty() {
            return;
        }
        let left_out = if self.not_counted.is_empty() {
            "keys outside it are not read, except `tie_word_embeddings`, the dtype and the quantization".to_owned()
        } else {
            format!("no part of it: {}", self.not_counted.join(", "))
        };
        problems.push(
            Diagnostic::note("T0111", format!("the language model is read from `{}`", self.path.join(".")))
                .at(self.location(here.span, &pointer))
                .effect(left_out),
        );
    }

    /// The same file read from its root.
    #[must_use]
    pub fn whole(&self) -> Self {
        Self { path: Vec::new(), not_counted: Vec::new(), ..self.clone() }
    }

    /// The sub-configuration `key` of the root as a configuration of its own; an empty object if there is none.
    #[must_use]
    pub fn part(&self, key: &'static str) -> Self {
        let mut part = self.clone();
        part.path = vec![key];
        part.not_counted.clear();
        if !part.root.get(key).is_some_and(Value::is_object) {
            part.root = Value { kind: json::Kind::Object(Vec::new()), span: self.root.span };
            part.path.clear();
        }
        part
    }

    /// Name of the file, as given.
    pub fn file_name(&self) -> &str {
        self.sources[0].name()
    }

    /// Text of the file.
    pub fn text(&self) -> &str {
        self.sources[0].text()
    }

    /// The whole tree.
    pub fn root(&self) -> &Value {
        &self.root
    }

    /// The object that describes the language model: the root, or a sub-configuration of it.
    pub fn effective(&self) -> &Value {
        self.path.iter().fold(&self.root, |value, key| value.get(key).unwrap_or(value))
    }

    /// Dotted name of the sub-configuration that is used, such as `text_config`; `None` if that is the root.
    pub fn sub_config(&self) -> Option<String> {
        (!self.path.is_empty()).then(|| self.path.join("."))
    }

    /// Sub-configurations of other parts (`vision_config`, ...) that are not counted.
    pub fn not_counted(&self) -> &[String] {
        &self.not_counted
    }

    /// `model_type` of the language model, or of the wrapper if the part that is used states none.
    pub fn model_type(&self) -> Option<&str> {
        let own = self.effective().get("model_type").and_then(Value::as_str);
        own.or_else(|| self.wrapper_model_type())
    }

    /// `model_type` at the root.
    pub fn wrapper_model_type(&self) -> Option<&str> {
        self.root.get("model_type").and_then(Value::as_str)
    }

    /// `architectures` of the part that is used, or of the root.
    pub fn architectures(&self) -> Vec<&str> {
        let own = self.effective().get("architectures").filter(|value| !value.is_null());
        let items = own.or_else(|| self.root.get("architectures")).and_then(Value::items);
        items.unwrap_or(&[]).iter().filter_map(Value::as_str).collect()
    }

    /// Looks up a key, or a dotted path through objects and lists (`block_configs.3.attention`), in the part that is used.
    ///
    /// `tie_word_embeddings`, `torch_dtype`, `dtype` and `quantization_config` are also looked for in the wrapper.
    pub fn find(&self, path: &str) -> Option<Found<'_>> {
        let (head, _) = path.split_once('.').unwrap_or((path, ""));
        let outermost = if free_keys::SHARED_WITH_WRAPPER.contains(&head) { 0 } else { self.path.len() };
        let mut null = None;
        for depth in (outermost..=self.path.len()).rev() {
            let mut pointer = String::new();
            let mut here = &self.root;
            for key in &self.path[..depth] {
                push_pointer(&mut pointer, key);
                here = here.get(key).unwrap_or(here);
            }
            if let Some(value) = descend(here, path, &mut pointer) {
                let found = Found { value, pointer };
                if !value.is_null() {
                    return Some(found);
                }
                null = null.or(Some(found));
            }
        }
        null
    }

    /// Where `span` is; `pointer` names the value in the tree.
    pub fn location(&self, span: Span, pointer: &str) -> Location {
        let source = self.sources.get(span.source as usize).unwrap_or(&self.sources[0]);
        source.location(span, pointer)
    }

    /// JSON pointer of the part that is used: empty for the root.
    pub fn effective_pointer(&self) -> String {
        let mut pointer = String::new();
        for key in &self.path {
            push_pointer(&mut pointer, key);
        }
        pointer
    }
}

/// The value at `path` under `start`; a key that itself holds dots is tried before the dots are taken as steps.
fn descend<'a>(start: &'a Value, path: &str, pointer: &mut String) -> Option<&'a Value> {
    if let Some(value) = start.get(path) {
        push_pointer(pointer, path);
        return Some(value);
    }
    let mut here = start;
    for step in path.split('.') {
        push_pointer(pointer, step);
        here = match here.items() {
            Some(items) => items.get(step.parse::<usize>().ok()?)?,
            None => here.get(step)?,
        };
    }
    Some(here)
}

/// Whether an object under this key describes another model beside the language model.
fn is_other_model(key: &str) -> bool {
    let shared = free_keys::SHARED_WITH_WRAPPER.contains(&key);
    !shared
        && (key.ends_with("_config") || key.ends_with("_cfg") || key.starts_with("vision") || key.starts_with("audio"))
}

/// How long it is in truth is not said: whoever read it may have stopped early.
fn too_large(file_name: &str) -> Diagnostic {
    let message = format!("the file is longer than {} MiB, the most that is read of a config", MAX_BYTES >> 20);
    Diagnostic::error("T0101", message)
        .at(Location::file(file_name))
        .why("a model configuration is a few kilobytes; this is a weight map or a tokenizer")
        .help("give the model's own `config.json`")
}

fn not_utf8(file_name: &str, bytes: &[u8], valid_up_to: usize) -> Diagnostic {
    // Only the text around the bad byte is quoted, so only that much is converted.
    let at = valid_up_to.min(bytes.len());
    let end = (at + 200).min(bytes.len());
    let source = Source::new(file_name, String::from_utf8_lossy(&bytes[..end]).into_owned());
    let span = Span { source: 0, start: at as u32, end: at as u32 + 1 };
    let byte = bytes.get(at).copied().unwrap_or_default();
    Diagnostic::error("T0102", format!("byte 0x{byte:02x} is not UTF-8 text"))
        .at(source.location(span, ""))
        .why("JSON is UTF-8")
        .help("save the file as UTF-8, or check that it is a JSON file at all")
}

fn not_an_object(source: &Source, root: &Value) -> Diagnostic {
    Diagnostic::error("T0108", format!("the file holds {}, not an object", root.kind_name()))
        .at(source.location(root.span, ""))
        .why("a model configuration is one object, `{\"model_type\": ..., ...}`")
        .help("give the model's own `config.json`")
}
