//! DeepSpeed: a JSON file.

mod export;
mod read;

pub(super) use export::{export, json};
pub(super) use read::read;
