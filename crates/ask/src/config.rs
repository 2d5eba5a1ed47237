//! Where a model's config comes from: a file, a folder, a preset, standard input.

use std::io::ErrorKind;

use plan::model::Model;
use plan::{nearest, presets};
use units::{Diagnostic, Diagnostics};

use crate::files::Files;
use crate::text;

/// Most bytes of a config that the reader takes.
const LIMIT: u64 = nn::config::MAX_BYTES as u64;

/// The text of a config, and what to call it.
#[derive(Debug)]
pub struct Text {
    /// What the user calls the model.
    pub name: String,
    /// The file in messages.
    pub file: String,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// Reads the model that `name` names.
///
/// # Errors
/// No such file or preset (with near matches); whatever is wrong with the config, all at once.
pub fn load(
    files: &dyn Files,
    name: &str,
    overrides: &[(String, String)],
    assume: Option<&str>,
) -> Result<Model, Diagnostics> {
    let text = find(files, name)?;
    Model::from_text(text.name, &text.file, &text.bytes, overrides, assume)
}

/// Reads the text of the config that `name` names.
///
/// # Errors
/// No such file or preset (with near matches).
pub fn find(files: &dyn Files, name: &str) -> Result<Text, Diagnostics> {
    if name == "-" {
        let bytes = files.bytes(name, LIMIT).map_err(|error| text::refused(name, &error))?;
        return Ok(Text { name: "stdin".to_owned(), file: "<stdin>".to_owned(), bytes });
    }
    if let Some(path) = files.in_folder(name, "config.json") {
        return file(files, name, path);
    }
    // Not only files: `napkin plan <(curl ...)` hands a pipe over.
    if files.exists(name) {
        return file(files, name, name.to_owned());
    }
    if let Some((name, text)) = presets::find(name) {
        let bytes = text.as_bytes().to_vec();
        return Ok(Text { name: name.to_owned(), file: format!("{name}.json"), bytes });
    }
    Err(unknown(name).into())
}

fn file(files: &dyn Files, name: &str, shown: String) -> Result<Text, Diagnostics> {
    let bytes = files.bytes(&shown, LIMIT).map_err(|error| {
        let problem = text::refused(&shown, &error);
        match error.kind() {
            ErrorKind::NotFound => {
                problem.help(format!("`{name}` is a folder: put the model's own `config.json` in it"))
            }
            ErrorKind::PermissionDenied => problem.help(format!("chmod u+r {shown}")),
            _ => problem,
        }
    })?;
    Ok(Text { name: name.to_owned(), file: shown, bytes })
}

fn unknown(name: &str) -> Diagnostic {
    if name.starts_with("dense:") {
        return Diagnostic::error("", format!("`{name}` is a bare count: it has no blocks to trace"))
            .help(format!("napkin time {name} --tokens 15T --hw h100-sxm -n 1024"))
            .help(format!("napkin fit {name} --states-only --hw h100-sxm -n 8"))
            .help("a config.json, its folder or a preset");
    }
    let near = nearest::nearest(name, presets::names());
    let mut problem = Diagnostic::error("", format!("`{name}` is neither a file, a folder nor a preset"));
    if !near.is_empty() {
        problem = problem.help(format!("near presets: {}", near.join(", ")));
    }
    problem
        .help("a config.json, its folder, `-` for standard input, or dense:70B")
        .help("napkin models lists the presets")
}
