//! What people hand over: in a file, on standard input, on the command line.

use std::io;

use units::Diagnostic;

use crate::files::Files;

/// Reads `-` as standard input and the name of a file as its contents, at most `limit` bytes and one more; anything else
/// is the text itself where `literal` allows it. Bytes that are no UTF-8 become replacement characters.
///
/// # Errors
/// What cannot be read.
pub fn load(files: &dyn Files, name: &str, limit: usize, literal: bool) -> Result<String, Diagnostic> {
    if literal && name != "-" && !files.exists(name) {
        return Ok(name.to_owned());
    }
    let bytes = files.bytes(name, limit as u64).map_err(|error| refused(name, &error))?;
    Ok(String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

/// What is said of a file that cannot be read.
pub fn refused(name: &str, error: &io::Error) -> Diagnostic {
    let shown = if name == "-" { "standard input".to_owned() } else { format!("`{name}`") };
    Diagnostic::error("", format!("{shown} cannot be read: {error}"))
}
