//! Model definitions: from a `config.json` to modules.

pub mod config;
