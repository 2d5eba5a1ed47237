//! Megatron-LM: arguments of `pretrain_gpt.py`.

mod export;
mod model;
mod read;
mod stages;
mod words;

pub(super) use export::{export, script};
pub(super) use read::read;
