//! Measures steps for `napkin reconcile`: on random tokens, or the first ones of a run.
//!
//! | file | noun |
//! |---|---|
//! | `recorder.rs` | which step is measured for what |
//! | `watch.rs` | who looks on while ops run |
//! | `measure.rs` | steps that are made to be measured |
//! | `record.rs` | what was measured, as a file |

mod measure;
mod record;
mod recorder;
mod watch;

pub use measure::{ceilings, measure};
pub use record::Record;
pub use recorder::{Recorder, Stage};
