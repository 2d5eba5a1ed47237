//! Predictions against published measurements: parameters and FLOP per token, row by row, under the convention that each
//! source states.
//!
//! Nothing here is fitted. A row that does not say enough is not judged, and says what is missing.
//!
//! | module | holds |
//! |---|---|
//! | `row` | a row, typed |
//! | `architecture` | the model a row describes |
//! | `conventions` | ways of counting, by the words of the sources |
//! | `facts` | what the trace of a model says in their terms |
//! | `judge` | a row against its prediction |
//! | `report` | the answer |

mod architecture;
mod conventions;
mod facts;
mod judge;
mod report;
mod row;

pub use conventions::{Convention, Count, Pairs, Passes, Terms, Weights};
pub use judge::{Compared, Judge, Judged, Quantity};
pub use report::{FLOP_BOUND, Listed, Request};
pub use row::{Layout, NEEDED, Reading, Row, Sizes, Wrong};
