//! Model definitions: from a `config.json` to modules, a training step, optimizers.
//!
//! [`config`] reads the file, [`families`] turn its keys into a [`spec::ModelSpec`], [`model`] builds modules from it,
//! [`training`] trains it, [`step`] traces whole training steps. Nothing here knows hardware.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod blocks;
pub mod cache;
pub mod config;
pub mod context;
pub mod families;
pub mod fp8;
pub mod generate;
mod in_backward;
pub mod loss;
pub mod model;
pub mod modules;
pub mod objective;
pub mod offload;
pub mod optim;
pub mod output;
pub mod param;
pub mod pipeline;
pub mod ranks;
pub mod reading;
pub mod scaler;
pub mod schedule;
pub mod spec;
pub mod step;
pub mod training;
mod unroll;

pub use context::{Forward, Profile, Recompute};
pub use loss::Labels;
pub use model::Model;
pub use objective::{HeadLoss, Objective, Reference};
pub use offload::Offload;
pub use param::{Param, ParamKind};
pub use ranks::{Ranks, Share};
pub use schedule::{Decay, Schedule};
pub use spec::ModelSpec;
pub use training::{Training, TrainingOptions};
