//! Named dimensions: `rearrange`, `reduce`, `repeat`, `einsum` and shape checks.
//!
//! Three stages, each with no knowledge of the next:
//!
//! ```text
//! text --parse--> Pattern, Equation --resolve(shapes)--> RearrangePlan, Contraction --apply--> tensors
//! ```
//!
//! Parsing knows no shapes, resolving knows no tensors. Parsed patterns are immutable and kept per thread
//! ([`cache`]), so that writing a pattern in a loop costs a look-up.
//!
//! | file | noun |
//! |---|---|
//! | `parse.rs` | text, axes, spans |
//! | `plan.rs` | pattern and shape to view, permute, reduce or expand, reshape |
//! | `equation.rs` | einsum text, by name or by letter |
//! | `einsum.rs` | equation and shapes to index groups |
//! | `path.rs` | order of contractions by cost |
//! | `check.rs` | names bound across arguments |
//! | `apply.rs` | the steps of a plan as ops on tensors |
//! | `problem.rs`, `error.rs` | what can be wrong, and the message with the caret |

pub mod apply;
pub mod cache;
pub mod check;
pub mod einsum;
pub mod equation;
pub mod error;
pub mod parse;
pub mod path;
pub mod plan;
pub mod problem;

pub use apply::{einsum, rearrange, reduce, repeat};
pub use check::ShapeCheck;
pub use einsum::Contraction;
pub use equation::Equation;
pub use error::PatternError;
pub use path::ContractionPath;
pub use plan::{Dims, Pattern, PatternKind, RearrangePlan, ReduceOp};
pub use problem::Problem;
