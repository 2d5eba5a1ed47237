//! Reports to text, JSON, CSV, Markdown, HTML and traces. Nothing is computed here: digits, units and layout are chosen, and that is all.
//!
//! | function | for |
//! |---|---|
//! | [`text`] | a terminal: answer first, then aligned rows |
//! | [`json`] | programs: exact integers, schema and version |
//! | [`csv`] | spreadsheets: one quantity a line, in base units |
//! | [`markdown`] | issues and documents |
//! | [`svg`], [`chart`] | drawings, for documents and pages |
//! | [`html`] | one page that needs nothing else |
//! | [`moment`], [`timeline_place`] | what a pointer on the drawing of a step points at |
//! | [`fragment`], [`pieces`] | a part of a page or a notebook, in one or in pieces |
//! | [`trace`] | trace viewers |
//! | [`cell`] | one quantity |
//! | [`problems_text`], [`problems_json`] | what was wrong with the question |

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod csv;
mod format;
mod html;
mod json;
mod markdown;
mod moment;
mod svg;
mod text;
mod trace;
mod width;

pub use csv::csv;
pub use format::{Units, cell};
pub use html::{Pieces, fragment, html, pieces};
pub use json::{json, problems_json};
pub use markdown::markdown;
pub use moment::moment;
pub use svg::{ChartOptions, chart, style, svg, timeline_place};
pub use text::{TextOptions, problems_text, text};
pub use trace::trace;
