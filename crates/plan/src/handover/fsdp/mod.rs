//! FSDP of PyTorch, as a configuration of Hugging Face's accelerate: YAML.

mod export;
mod read;

pub(super) use export::export;
pub(super) use read::read;
