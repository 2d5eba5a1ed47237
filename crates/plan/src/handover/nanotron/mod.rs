//! nanotron: a YAML file.

mod export;
mod read;

pub(super) use export::export;
pub(super) use read::read;
