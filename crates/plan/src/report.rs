//! What every command answers with: plain data, made by an analysis and only formatted by a renderer.
//!
//! A [`Report`] says everything twice, for two readers. `result` is for programs: exact integers under names that carry
//! their unit. `blocks` are for people: cells that still know what they measure, so that a renderer can choose units,
//! digits and layout without computing anything.
//!
//! ```
//! # use napkin_plan as plan;
//! use plan::phrase;
//! use plan::report::{Block, Cell, KeyValue, Report, Value};
//! use units::{Bytes, Params};
//!
//! let states = Params(70_000_000_000) * Bytes(16);
//! let mut report = Report::new("example", phrase![states, " of states"]);
//! report.result = Value::map().with("states_bytes", states);
//! report.blocks.push(Block::key_values("", [
//!     KeyValue::new("work", states).note(phrase!["16 × ", Cell::Exact(70_000_000_000), " parameters"]),
//! ]));
//! assert_eq!(report.schema(), "napkin.example/1");
//! ```

mod block;
mod cell;
mod chart;
mod timeline;
mod value;

use units::Diagnostic;

pub use block::{Align, Block, Column, KeyValue, Row, Table};
pub use cell::{Cell, Phrase};
pub use chart::{Bits, Branch, Chart, Curve, Dot, Heat, HeatCell, Roofline, Stack, Strip, Tree};
pub use timeline::{Axis, BUCKETS, Sample, Slice, StepTimeline, Stretch};
pub use value::Value;

/// Whether the question was answered with a yes or a number, or with a no.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verdict {
    /// There is an answer.
    #[default]
    Answered,
    /// The answer is "no": it does not fit, nothing fits, it cannot be done in that time. The program's exit code is 1.
    No,
}

/// The first line: the answer, then what qualifies it. All that `-q` leaves.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Headline {
    /// The answer itself, such as `143.9 days`.
    pub answer: Phrase,
    /// What it holds for, such as `on 1,024 × H100 SXM at 50 % MFU`; one phrase for each remark.
    pub qualifiers: Vec<Phrase>,
}

/// Who decided a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The user, on the command line.
    Given,
    /// Napkin, because nobody said otherwise.
    Default,
    /// A file the user gave.
    File,
    /// The hardware table.
    Table,
    /// Computed from other inputs.
    Derived,
}

impl Origin {
    /// The word in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Given => "given",
            Self::Default => "default",
            Self::File => "file",
            Self::Table => "table",
            Self::Derived => "derived",
        }
    }
}

/// Something the answer rests on, with the flag that changes it.
#[derive(Clone, Debug, PartialEq)]
pub struct Assumption {
    /// Stable name, such as `runtime_bytes`.
    pub id: &'static str,
    /// Name for people, such as `MFU`.
    pub label: String,
    /// Its value.
    pub value: Cell,
    /// Who decided it.
    pub from: Origin,
    /// Why it is so and what it does to the answer; may be empty.
    pub why: Phrase,
    /// The flag that changes it, such as `--mfu`; empty where none does.
    pub flag: &'static str,
}

impl Assumption {
    /// An assumption without remarks.
    pub fn new(id: &'static str, label: impl Into<String>, value: impl Into<Cell>, from: Origin) -> Self {
        Self { id, label: label.into(), value: value.into(), from, why: Phrase::default(), flag: "" }
    }

    /// Says why.
    pub fn why(mut self, why: impl Into<Phrase>) -> Self {
        self.why = why.into();
        self
    }

    /// Names the flag that changes it.
    pub fn flag(mut self, flag: &'static str) -> Self {
        self.flag = flag;
        self
    }
}

/// A formula with the user's numbers in it, for `--explain`.
#[derive(Clone, Debug, PartialEq)]
pub struct Derivation {
    /// Which printed number it is, such as `work`.
    pub of: String,
    /// Name of the formula, such as `6nd`; `napkin explain` knows it.
    pub formula: &'static str,
    /// The formula with symbols.
    pub expression: String,
    /// The formula with values.
    pub substituted: Phrase,
    /// What it comes to.
    pub result: Cell,
    /// Who says so.
    pub source: String,
    /// Where in Napkin's code, as file and line.
    pub anchor: &'static str,
}

/// The answer to one question.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Which kind of answer: the name of the command.
    pub kind: &'static str,
    /// A command line that gives this answer again.
    pub command: String,
    /// The first line.
    pub headline: Headline,
    /// Yes or no.
    pub verdict: Verdict,
    /// What was asked, for programs.
    pub inputs: Value,
    /// The answer, for programs.
    pub result: Value,
    /// The answer, for people.
    pub blocks: Vec<Block>,
    /// What the answer rests on.
    pub assumptions: Vec<Assumption>,
    /// How the printed numbers come about.
    pub derivations: Vec<Derivation>,
    /// What may put the answer off.
    pub warnings: Vec<Diagnostic>,
    /// What to ask next.
    pub notes: Vec<Phrase>,
    /// What is drawn of it, the most telling first.
    pub charts: Vec<Chart>,
    /// Answers to the questions that follow from it, each whole.
    pub parts: Vec<Report>,
}

impl Report {
    /// A report of that kind with an answer and nothing else yet.
    pub fn new(kind: &'static str, answer: impl Into<Phrase>) -> Self {
        Self {
            kind,
            command: String::new(),
            headline: Headline { answer: answer.into(), qualifiers: Vec::new() },
            verdict: Verdict::Answered,
            inputs: Value::map(),
            result: Value::map(),
            blocks: Vec::new(),
            assumptions: Vec::new(),
            derivations: Vec::new(),
            warnings: Vec::new(),
            notes: Vec::new(),
            charts: Vec::new(),
            parts: Vec::new(),
        }
    }

    /// Adds a remark to the first line.
    pub fn qualified(mut self, remark: impl Into<Phrase>) -> Self {
        self.headline.qualifiers.push(remark.into());
        self
    }

    /// The step moment by moment, where it was asked for.
    pub fn timeline(&self) -> Option<&StepTimeline> {
        self.charts.iter().find_map(|chart| match chart {
            Chart::Timeline(timeline) => Some(timeline),
            _ => None,
        })
    }

    /// The name and version of the JSON form, such as `napkin.time/1`.
    pub fn schema(&self) -> String {
        format!("napkin.{}/1", self.kind)
    }
}
