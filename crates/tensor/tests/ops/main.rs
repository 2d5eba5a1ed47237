//! Every op, on random shapes and layouts, held against what the core promises of all of them.
//!
//! To add an op, add rows to `rows.rs` (or to a file beside it): a name, and a closure that draws operands from
//! [`inputs::Inputs`] and applies the op. Each row is then checked four ways:
//!
//! - `cost_counts`: the cost rule of every event, forward and backward, equals the arithmetic that its kernel makes;
//! - `gradients`: the gradient of every operand equals central differences in f64;
//! - `meta_equals_cpu`: both devices record the same events, memory and storages;
//! - `every_op_has_a_row`: no variant of `Op` is left out.
//!
//! Beside the table, `values`, `memory` and `refusals` look at single ops, `bytes` at elements as they lie in memory, `recording` at what a trace says
//! that begins late, and `views` checks that layout changes are what an index function says, and cost nothing.
#![allow(clippy::unwrap_used, missing_docs)]

mod bytes;
mod cost_counts;
mod fast_equals_plain;
mod fast_sizes;
mod gradients;
mod inputs;
mod memory;
mod meta_equals_cpu;
mod recording;
mod refusals;
mod rows;
mod rows_fused;
mod rows_optim;
mod rows_ranks;
mod rows_recurrent;
mod values;
mod views;
