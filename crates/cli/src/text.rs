//! Texts that people hand over: on the command line, in a file, on standard input.

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
    if name == "-" {
        return read(io::stdin().lock(), limit).map_err(|error| refused("standard input", &error));
    }
    let path = Path::new(name);
    if literal && !path.exists() {
        return Ok(name.to_owned());
    }
    let shown = format!("`{}`", path.display());
    File::open(path).and_then(|file| read(file, limit)).map_err(|error| refused(&shown, &error))
}

fn read(from: impl Read, limit: usize) -> io::Result<String> {
    let mut bytes = Vec::new();
    from.take(limit as u64 + 1).read_to_end(&mut bytes)?;
    Ok(match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
    })
}

fn refused(what: &str, error: &io::Error) -> Diagnostic {
    Diagnostic::error("", format!("{what} cannot be read: {error}"))
}
