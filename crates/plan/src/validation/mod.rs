//! Predictions against published measurements: parameters, FLOP per token under the convention that each source states, and
//! peak memory and the time of a step, row by row.
//!
//! Nothing here is fitted. A row that does not say enough is not judged, and says what is missing.
//!
//! | module | holds |
//! |---|---|
//! | `row` | a row, typed |
//! | `architecture` | the model a row describes |
//! | `conventions` | ways of counting, by the words of the sources |
//! | `facts` | what the trace of a model says in their terms |
//! | `recipe` | what the code of a source does that its rows do not say |
//! | `memory` | the peak of a row's step |
//! | `ranks` | layouts of rows, and the ranks of them |
//! | `fits` | whether the run of a row finds enough memory |
//! | `judge` | a row against its prediction |
//! | `simpler` | what one utilization for all would have said of times, and what a chosen layout loses |
//! | `report` | the answer |

mod architecture;
mod conventions;
mod facts;
mod fits;
mod judge;
mod memory;
mod ranks;
mod recipe;
mod report;
mod row;
mod simpler;

pub use fits::runs_out;
pub use judge::{Compared, Judge, Judged, Quantity};
pub use memory::PeakKind;
pub use report::{Listed, Request};
pub use row::{Layout, NEEDED, Reading, Row, Sizes, Wrong};
