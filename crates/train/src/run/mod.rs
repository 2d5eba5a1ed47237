//! The training loop: steps, evaluation, checkpoints, what is said on the way.
//!
//! | file | noun |
//! |---|---|
//! | `settings.rs` | what decides the numbers of a run |
//! | `program.rs` | one step and one evaluation, on any device |
//! | `run.rs` | a run: model, data, position |
//! | `drive.rs` | a run from its first step to its last, with an observer |
//! | `log.rs` | a line of JSON for each step |
//! | `predict.rs` | what the meta device says of the run |
//! | `watch.rs` | what is unusual |
//! | `report.rs` | the answer of `napkin train` |

mod drive;
mod log;
mod predict;
pub(crate) mod program;
mod report;
#[allow(clippy::module_inception)] // the noun is the run
mod run;
mod settings;
mod watch;

pub use drive::{Event, Observer, Pace, Summary, drive};
pub use log::Log;
pub use predict::{Predicted, predict, predict_whole};
pub use program::{Stepped, parameter_count};
pub use report::report;
pub use run::{Run, Skip, Start, StepReport};
pub use settings::Settings;
pub use watch::{Spike, Watch};
