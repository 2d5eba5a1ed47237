//! Where a device comes from: the hardware table, or a file such as `napkin bench --save` writes.

use std::path::Path;

use plan::hardware::{self, Hardware};
use units::Diagnostic;

use crate::files::Files;
use crate::text;

/// Longest file of a device; those in `data/hardware` have some kilobytes.
const MOST_BYTES: u64 = 1 << 20;

/// Reads the device that `name` names.
///
/// # Errors
/// No such entry (with near matches) or file; whatever is wrong with the file.
pub fn load(files: &dyn Files, name: &str) -> Result<Hardware, Diagnostic> {
    let is_file = Path::new(name).extension().is_some_and(|extension| extension.eq_ignore_ascii_case("toml"));
    if !is_file {
        return Ok(hardware::find(name)?.clone());
    }
    let bytes = files.bytes(name, MOST_BYTES).map_err(|error| {
        text::refused(name, &error)
            .help(format!("napkin bench --save {name}"))
            .help("napkin hw lists the devices that need no file")
    })?;
    let text = String::from_utf8(bytes).ok().filter(|text| text.len() as u64 <= MOST_BYTES).ok_or_else(|| {
        let message = format!("`{name}` is no text of at most {} KiB", MOST_BYTES >> 10);
        Diagnostic::error("", message).help(format!("napkin bench --save {name}"))
    })?;
    Ok(Hardware::from_toml(name, &text)?)
}
