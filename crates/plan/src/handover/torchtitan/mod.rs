//! torchtitan up to 0.2: a TOML file. From 0.3 on its configurations are Python.

mod export;
mod flavors;
mod read;
mod stages;

pub(super) use export::export;
pub(super) use read::read;
