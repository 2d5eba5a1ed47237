//! What stands behind a traced number: the tensors or products it is the sum of, in words.

use std::fmt;
use tensor::meter::{OpEvent, TensorRef};
use tensor::{DType, Trace};
use units::group_digits;

use crate::formulas::known;
use crate::report::{Cell, Derivation, Phrase};

/// Most terms of a sum that are written out; the rest is one term of its own.
const TERMS: usize = 6;

/// One term of a sum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    /// Such as `32 × [8192, 14336] bf16`.
    pub what: String,
    /// How often.
    pub count: u128,
    /// What all of them come to, in the unit of the sum.
    pub amount: u128,
}

/// Collects equal terms.
#[derive(Clone, Debug, Default)]
pub struct Sum(Vec<Term>);

impl Sum {
    /// Adds one occurrence.
    pub fn add(&mut self, what: String, amount: u128) {
        self.add_times(what, 1, amount);
    }

    /// Adds several occurrences that come to `amount` together.
    pub fn add_times(&mut self, what: String, times: u64, amount: u128) {
        match self.0.iter_mut().find(|t| t.what == what) {
            Some(term) => {
                term.count += u128::from(times);
                term.amount += amount;
            }
            None => self.0.push(Term { what, count: u128::from(times), amount }),
        }
    }

    /// The sum in words, biggest terms first.
    fn words(mut self, unit: &str) -> String {
        self.0.sort_by(|a, b| b.amount.cmp(&a.amount).then_with(|| a.what.cmp(&b.what)));
        let rest = self.0.split_off(self.0.len().min(TERMS));
        let mut words: Vec<String> = self.0.iter().map(|t| format!("{} × {}", group_digits(t.count), t.what)).collect();
        if !rest.is_empty() {
            let left: u128 = rest.iter().map(|t| t.amount).sum();
            let terms = if rest.len() == 1 { "1 smaller term" } else { &format!("{} smaller terms", rest.len()) };
            words.push(format!("{terms} of {} {unit}", group_digits(left)));
        }
        words.join(" + ")
    }

    /// The derivation of a printed number that is this sum.
    pub fn derive(self, of: impl Into<String>, formula: &'static str, result: impl Into<Cell>) -> Derivation {
        let known = known(formula);
        let result = result.into();
        Derivation {
            of: of.into(),
            formula,
            expression: known.expression.to_owned(),
            substituted: Phrase::from(self.words(result.raw().1)),
            result,
            source: known.source.to_owned(),
            anchor: known.anchor,
        }
    }
}

/// `[8192, 14336] bf16`.
pub fn tensor(t: &TensorRef) -> String {
    Shaped(t.layout.shape(), t.dtype).to_string()
}

/// Shape and dtype in words.
struct Shaped<'a>(&'a [u64], DType);

impl fmt::Display for Shaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}", self.0, self.1.name())
    }
}

/// What a storage was made as: equal for those that are told in the same words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Made<'a> {
    bytes: u64,
    result: Option<(&'a [u64], DType, &'static str)>,
}

impl Made<'_> {
    /// Bytes of it, undivided.
    pub const fn bytes(self) -> u64 {
        self.bytes
    }
}

impl fmt::Display for Made<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.result {
            Some((shape, dtype, op)) => write!(f, "{} ({op})", Shaped(shape, dtype)),
            None => write!(f, "{} B", self.bytes),
        }
    }
}

/// What a storage was made as, and by which op.
pub fn made(trace: &Trace, id: usize) -> Made<'_> {
    let info = trace.storages[id];
    let born = trace.ops.get(info.born as usize);
    let made = born.and_then(|e| e.outputs.iter().find(|o| o.storage.0 as usize == id).map(|o| (e, o)));
    Made { bytes: info.bytes, result: made.map(|(event, out)| (out.layout.shape(), out.dtype, event.op.name())) }
}

/// A storage in words: the result it was made as, and by which op.
pub fn storage(trace: &Trace, id: usize) -> String {
    made(trace, id).to_string()
}

/// A contraction in words: its operands.
pub fn product(event: &OpEvent) -> String {
    let operands: Vec<String> = event.inputs.iter().take(3).map(|t| format!("{:?}", t.layout.shape())).collect();
    format!("{} {}", event.op.name(), operands.join(" · "))
}
