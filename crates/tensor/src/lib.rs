//! The metered tensor core of Napkin.
//!
//! A [`Tensor`] is a strided view of a [`storage`](storage::Storage) on a [`Device`]. Every op passes through one door
//! ([`apply`](apply::apply)) that infers shapes, allocates, records a [`meter`] event, runs the kernel if the device
//! holds data, and puts the op on the [`autograd`] tape. `Meta` and `Cpu` differ in one of these steps only.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod apply;
pub mod arena;
pub mod autocast;
pub mod autograd;
pub mod collective;
#[cfg(feature = "cpu")]
pub mod cpu;
pub mod dtype;
pub mod einops;
pub mod error;
pub mod float_format;
pub mod kernel;
pub mod layout;
pub mod meter;
pub mod ops;
pub mod packed;
pub mod rng;
pub mod runtime;
pub mod storage;
pub mod tensor;

pub use apply::Outputs;
pub use autocast::CastLists;
pub use autograd::{KeepSet, checkpoint, checkpoint_keeping};
pub use collective::{Axis, Combine, Group, Peers};
pub use dtype::DType;
pub use error::{Error, Result};
pub use layout::{Dims, Layout};
pub use meter::{Cost, Phase, Role, Trace};
pub use ops::Op;
pub use runtime::{Accumulate, Device, Kernels, OpWatch, Runtime};
pub use tensor::{Spec, Tensor};
