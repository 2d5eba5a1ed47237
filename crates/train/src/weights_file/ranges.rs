//! Whether the byte ranges of tensors follow each other and end with the file.

use super::entry::Entry;
use crate::checkpoint::place;
use std::path::Path;
use units::Diagnostic;

/// Most problems of one file that are said one by one.
const SAID: usize = 12;

/// Problems of one file, of which only the first are kept.
pub(crate) struct Problems<'a> {
    path: &'a Path,
    code: &'static str,
    help: &'static str,
    said: Vec<Diagnostic>,
    more: u64,
}

impl<'a> Problems<'a> {
    pub fn new(path: &'a Path, code: &'static str, help: &'static str) -> Self {
        Self { path, code, help, said: Vec::new(), more: 0 }
    }

    /// One problem.
    pub fn one(&self, message: impl Into<String>) -> Diagnostic {
        let problem = Diagnostic::error(self.code, message).at(place(self.path));
        if self.help.is_empty() { problem } else { problem.help(self.help) }
    }

    /// Notes a problem.
    pub fn push(&mut self, message: impl Into<String>) {
        if self.said.len() < SAID {
            self.said.push(self.one(message));
        } else {
            self.more += 1;
        }
    }

    /// All of them, if there are any.
    pub fn finish(mut self) -> Result<(), Vec<Diagnostic>> {
        if self.more > 0 {
            self.said.push(self.one(format!("{} more problems of this kind", self.more)));
        }
        if self.said.is_empty() { Ok(()) } else { Err(self.said) }
    }
}

/// How long a name may be in a message.
const SHOWN: usize = 120;

/// A name, cut if it is absurd.
pub(crate) fn shown(name: &str) -> String {
    match name.char_indices().nth(SHOWN) {
        Some((at, _)) => format!("`{}...` ({} bytes)", &name[..at], name.len()),
        None => format!("`{name}`"),
    }
}

/// Checks tensors, sorted by offset: each begins where the one before ended, rounded up to `alignment`, and the last ends
/// with the `held` bytes behind the header.
pub(crate) fn check(problems: &mut Problems, tensors: &[Entry], held: u64, alignment: u64) {
    let mut end = 0_u64;
    let mut before: Option<&Entry> = None;
    let mut lost: Vec<&Entry> = Vec::new();
    for tensor in tensors {
        let expected = end.checked_next_multiple_of(alignment).unwrap_or(u64::MAX);
        let name = shown(&tensor.name);
        if tensor.bytes > 0 || alignment == 1 {
            match before {
                Some(other) if tensor.offset < end => problems.push(format!(
                    "{name} begins at byte {} of the data, inside {}, which ends at {end}",
                    tensor.offset,
                    shown(&other.name)
                )),
                _ if tensor.offset > expected => {
                    let gap = tensor.offset - expected;
                    problems.push(format!(
                        "{gap} bytes before {name} (data bytes {expected} to {}) belong to no tensor",
                        tensor.offset
                    ));
                }
                _ => {}
            }
        }
        let own = tensor.offset.saturating_add(tensor.bytes);
        if own > held {
            lost.push(tensor);
        }
        if own >= end {
            end = own;
            before = Some(tensor);
        }
    }
    if let Some(first) = lost.first() {
        problems.push(format!(
            "cut short: its header names {end} bytes of tensors, {held} are there; the data of {} tensors is not whole, \
             the first is {}",
            lost.len(),
            shown(&first.name)
        ));
    } else if end.checked_next_multiple_of(alignment).unwrap_or(end) < held {
        problems.push(format!("too long: its header names {end} bytes of tensors, {held} are there"));
    }
}
