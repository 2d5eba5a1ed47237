//! Real training on this machine: token data, checkpoints, files of weights, the training loop, benchmarks, memory probes.
//!
//! All that needs a clock, files or the operating system is here. No cost is defined here.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod bench;
pub mod checkpoint;
pub mod data;
pub mod probe;
pub mod published;
pub mod reconcile;
pub mod run;
pub mod sample;
pub mod weights_file;
