//! Where a model's config comes from: a file, a folder, a preset, standard input.

use std::io::Read;
use std::path::Path;

use plan::model::Model;
use plan::{nearest, presets};
use units::{Diagnostic, Diagnostics};

/// Most bytes read of a config; the reader refuses anything near it with a message of its own.
const LIMIT: u64 = 64 << 20;

/// Reads the model that `name` names.
///
/// # Errors
/// No such file or preset (with near matches); whatever is wrong with the config, all at once.
pub fn load(name: &str, overrides: &[(String, String)], assume: Option<&str>) -> Result<Model, Diagnostics> {
    if name == "-" {
        let mut bytes = Vec::new();
        let read = std::io::stdin().lock().take(LIMIT).read_to_end(&mut bytes);
        read.map_err(|e| Diagnostic::error("", format!("standard input cannot be read: {e}")))?;
        return Model::from_text("stdin", "<stdin>", &bytes, overrides, assume);
    }
    let path = Path::new(name);
    if path.is_dir() {
        let inner = path.join("config.json");
        return file(name, &inner, overrides, assume);
    }
    if path.is_file() {
        return file(name, path, overrides, assume);
    }
    if let Some((name, text)) = presets::find(name) {
        return Model::from_text(name, &format!("{name}.json"), text.as_bytes(), overrides, assume);
    }
    Err(unknown(name).into())
}

fn file(name: &str, path: &Path, overrides: &[(String, String)], assume: Option<&str>) -> Result<Model, Diagnostics> {
    let shown = path.display().to_string();
    let open = std::fs::File::open(path).and_then(|file| {
        let mut bytes = Vec::new();
        file.take(LIMIT).read_to_end(&mut bytes).map(|_| bytes)
    });
    let bytes = open.map_err(|e| Diagnostic::error("", format!("{shown} cannot be read: {e}")))?;
    Model::from_text(name, &shown, &bytes, overrides, assume)
}

fn unknown(name: &str) -> Diagnostic {
    let near = nearest::nearest(name, presets::names());
    let mut problem = Diagnostic::error("", format!("`{name}` is neither a file, a folder nor a preset"));
    if !near.is_empty() {
        problem = problem.help(format!("near presets: {}", near.join(", ")));
    }
    problem
        .help("a config.json, its folder, `-` for standard input, or dense:70B")
        .help("napkin models lists the presets")
}
