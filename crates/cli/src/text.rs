//! What people hand over: in a file, on standard input, on the command line.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use units::Diagnostic;

/// Reads `-` as standard input and the name of a file as its contents, at most `limit` bytes and one more; anything else
/// is the text itself where `literal` allows it. Bytes that are no UTF-8 become replacement characters.
///
/// # Errors
/// What cannot be read.
pub fn load(name: &str, limit: usize, literal: bool) -> Result<String, Diagnostic> {
    if literal && name != "-" && !Path::new(name).exists() {
        return Ok(name.to_owned());
    }
    let bytes = bytes(name, limit as u64).map_err(|error| refused(name, &error))?;
    Ok(String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

/// The bytes of a file, or of standard input for `-`: at most `limit` and one more, so that who reads them can refuse what
/// is longer.
///
/// # Errors
/// As the system says it.
pub fn bytes(name: &str, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let end = limit.saturating_add(1);
    match name {
        "-" => io::stdin().lock().take(end).read_to_end(&mut bytes)?,
        name => File::open(name)?.take(end).read_to_end(&mut bytes)?,
    };
    Ok(bytes)
}

/// What is said of a file that cannot be read.
pub fn refused(name: &str, error: &io::Error) -> Diagnostic {
    let shown = if name == "-" { "standard input".to_owned() } else { format!("`{name}`") };
    Diagnostic::error("", format!("{shown} cannot be read: {error}"))
}
