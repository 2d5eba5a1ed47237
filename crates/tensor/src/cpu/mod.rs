//! Fast kernels: what they see of their operands, threads, vector instructions.
//!
//! An op's fast kernel stands in the op's own file ([`Rule::run_cpu`](crate::ops::Rule::run_cpu)); here is what several
//! ops share. Where an op has none, or not for these dtypes and layouts, the plain kernel runs: it is also what the fast
//! ones are tested against.
//!
//! Results do not depend on the number of threads: work is cut into pieces whose size follows from shapes alone, and sums
//! over pieces are added up in order.

pub mod args;
pub mod elementwise;
pub mod gather;
pub mod gemm;
pub mod lanes;
pub mod math;
pub mod moves;
pub mod nest;
pub mod norm;
pub mod planes;
pub mod reduce;
pub mod rows;
pub mod scratch;
pub mod simd;
pub mod threads;
pub mod typed;
pub mod work;

pub use args::{Args, Input, Output};
pub use threads::Threads;
