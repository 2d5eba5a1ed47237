//! Where a device comes from: the hardware table, or a file such as `napkin bench --save` writes.

use std::path::Path;

use plan::hardware::{self, Hardware};
use units::Diagnostic;

/// Reads the device that `name` names.
///
/// # Errors
/// No such entry (with near matches) or file; whatever is wrong with the file.
pub fn load(name: &str) -> Result<Hardware, Diagnostic> {
    let is_file = Path::new(name).extension().is_some_and(|extension| extension.eq_ignore_ascii_case("toml"));
    if !is_file {
        return Ok(hardware::find(name)?.clone());
    }
    let text = std::fs::read_to_string(name).map_err(|error| {
        Diagnostic::error("", format!("`{name}` cannot be read: {error}"))
            .help(format!("napkin bench --save {name}"))
            .help("napkin hw lists the devices that need no file")
    })?;
    Ok(Hardware::from_toml(name, &text)?)
}
