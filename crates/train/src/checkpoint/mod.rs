//! Checkpoints: all that a run is, so that going on from one is the same run.
//!
//! A checkpoint is a folder:
//!
//! ```text
//! step-00000123/
//!   config.json             the model's config, as it was given
//!   model.safetensors       parameters by their full names
//!   optimizer.safetensors   states, named PARAMETER.SLOT
//!   manifest.json           everything else, with a checksum of every file, every tensor and itself
//! ```
//!
//! [`Store`] saves them so that a kill at any instant leaves the last good one, [`Checkpoint`] reads one, [`Manifest`]
//! is what is neither parameter nor state. Loading is strict: what is missing, left over, misspelt or of another shape
//! is refused, all at once.
//!
//! | module | noun |
//! |---|---|
//! | `manifest` | what a run is beside its tensors, as JSON that is sealed |
//! | `fields` | a JSON object of which every key must be there and no other |
//! | `tensors`, `tensor_file` | tensors to and from safetensors |
//! | `configs` | two configs of which one model must come |
//! | `matching` | stored tensors against those of a model, by name |
//! | `saved` | one checkpoint on disk |
//! | `store` | a folder of them |
//! | `weights` | files of tensors that other programs wrote |
//! | `naming` | their names against those of a model |
//! | `hf` | models of transformers, in and out |
//! | `target` | what a path that somebody gave is |
//! | `show`, `verify` | answers about what is on disk |
//! | `disk` | the filesystem calls of a save |

#[cfg(target_endian = "big")]
compile_error!("safetensors are little-endian, and bytes go to files as they lie in memory");

mod configs;
mod disk;
mod fields;
mod hf;
mod manifest;
mod matching;
mod naming;
mod problem;
mod saved;
mod show;
mod store;
mod target;
mod tensor_file;
mod tensors;
mod verify;
mod weights;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_damage;

pub use fields::{Fields, exact};
pub use hf::{Import, Loaded, export, import};
pub use manifest::{DataPosition, Manifest, OptimizerSettings, RandomState, Training};
pub use saved::{Checkpoint, Latest, at, latest, list};
pub use show::show;
pub use store::{Keep, Saved, Store};
pub use tensor_file::{StoredTensor, TensorFile};
pub use tensors::{NamedTensor, model_tensors};
pub use verify::verify;
pub use weights::Weights;

pub(crate) use naming::{Names, is_derived};
pub(crate) use problem::{place, unreadable};
pub(crate) use saved::read_small;
pub(crate) use tensors::from_safetensors;

/// Everything a checkpoint holds.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// What is no tensor.
    pub manifest: Manifest,
    /// Parameters by full name.
    pub model: Vec<NamedTensor>,
    /// Optimizer states, named by [`NamedTensor::slot`]; none in a checkpoint of weights only.
    pub optimizer: Vec<NamedTensor>,
}

/// Names of the files of a checkpoint.
pub(crate) const CONFIG: &str = "config.json";
pub(crate) const MODEL: &str = "model.safetensors";
pub(crate) const OPTIMIZER: &str = "optimizer.safetensors";
pub(crate) const MANIFEST: &str = "manifest.json";
