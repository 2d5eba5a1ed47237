//! Optimizers against PyTorch and against NumPy scripts from the papers (`reference.py`), in every implementation, with and
//! without master copies; their states; clipping; what rounding does to updates.
#![allow(clippy::unwrap_used, missing_docs)]

mod bench;
mod clip;
mod reference;
mod rounding;
mod states;
