//! Reports to text, JSON, CSV and Markdown. Nothing is computed here: digits, units and layout are chosen, and that is all.
//!
//! | function | for |
//! |---|---|
//! | [`text`] | a terminal: answer first, then aligned rows |
//! | [`json`] | programs: exact integers, schema and version |
//! | [`csv`] | spreadsheets: one quantity a line, in base units |
//! | [`markdown`] | issues and documents |
//! | [`cell`] | one quantity |
//! | [`problems_text`], [`problems_json`] | what was wrong with the question |

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod csv;
mod format;
mod json;
mod markdown;
mod text;
mod width;

pub use csv::csv;
pub use format::{Units, cell};
pub use json::{json, problems_json};
pub use markdown::markdown;
pub use text::{TextOptions, problems_text, text};
