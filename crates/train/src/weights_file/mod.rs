//! Files of weights by their headers: what is stored, in which formats, and whether it is what a config says.
//!
//! Only headers are read, never data: 400 GB in a hundred files take milliseconds and the memory of their names.
//!
//! | module | noun |
//! |---|---|
//! | `entry` | a tensor as a header has it, and the header |
//! | `safetensors`, `gguf` | the two formats |
//! | `ranges` | byte ranges that follow each other |
//! | `open` | from a path to headers: one file, an index, parts, a folder |
//! | `packed` | quantised weights, known by the constants beside them |
//! | `group` | parts of a model by names |
//! | `against` | what differs from the parameters of a config |
//! | `report` | the answer |

mod against;
mod entry;
mod gguf;
mod group;
mod open;
mod packed;
mod ranges;
mod report;
pub(crate) mod safetensors;

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_wrappers;

pub use against::{Against, Lone};
pub use entry::{Encoding, Entry, Format, Header};
pub use group::Group;
pub use open::{Stored, is_weights};
pub use packed::{Packing, Weight};
pub use plan::ggml::GgmlType;
pub use report::inspect;

pub(crate) use entry::spelling;

use std::io::Read;
use std::path::Path;
use units::Diagnostic;

/// Reads the header of a GGUF file of `file_bytes` from `source`; `path` is only named.
///
/// # Errors
/// `T0604` if it cannot be read, `T0630`: all that is wrong with it, at least one problem.
pub fn read_gguf(path: &Path, source: impl Read, file_bytes: u64) -> Result<Header, Vec<Diagnostic>> {
    gguf::read(path, source, file_bytes)
}

/// Reads the header of a safetensors file of `file_bytes` from `source`; `path` is only named.
///
/// # Errors
/// `T0604` if it cannot be read, `T0610`: all that is wrong with it, at least one problem.
pub fn read_safetensors(path: &Path, mut source: impl Read, file_bytes: u64) -> Result<Header, Vec<Diagnostic>> {
    let text = safetensors::text(path, &mut source, file_bytes).map_err(|problem| vec![problem])?;
    safetensors::parse(path, &text, file_bytes)
}
