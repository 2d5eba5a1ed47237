//! The error of a pattern: what went wrong, where in the pattern, with which shapes, and what would fix it.
//!
//! ```text
//! rearrange: axis group `(heads d)` does not divide dimension 2
//!   b s (heads d) -> b heads s d
//!       ^^^^^^^^^
//!   = dimension 2 has size 770, heads = 12: 770 is not a multiple of 12
//!   = input shape [2, 5, 770]; given heads = 12
//!   = try: heads = 11 or 14 (divisors of 770 near 12), or pad dimension 2 to 780
//! ```

use std::fmt::{self, Write as _};

use smallvec::SmallVec;

use super::parse::Span;
use super::problem::Problem;

/// Why a pattern could not be read or does not go with the shapes it was given.
///
/// The [`Display`](fmt::Display) form is the whole message with its caret; the parts are there for callers that lay
/// out a diagnostic of their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PatternError(Box<Detail>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Detail {
    op: &'static str,
    pattern: Box<str>,
    spans: SmallVec<[Span; 2]>,
    problem: Problem,
    context: Vec<String>,
}

impl PatternError {
    pub(crate) fn new(op: &'static str, pattern: &str, spans: &[Span], problem: Problem) -> Self {
        Self(Box::new(Detail { op, pattern: pattern.into(), spans: spans.into(), problem, context: Vec::new() }))
    }

    /// Adds a line that says what the pattern was applied to. Called once, at the boundary.
    pub(crate) fn with_context(mut self, line: String) -> Self {
        self.0.context.push(line);
        self
    }

    /// The operation that was asked for: `rearrange`, `reduce`, `repeat`, `einsum` or `shape check`.
    pub fn op(&self) -> &'static str {
        self.0.op
    }

    /// The pattern as it was written.
    pub fn pattern(&self) -> &str {
        &self.0.pattern
    }

    /// Bytes of the pattern the caret stands under; one or two places.
    pub fn spans(&self) -> &[Span] {
        &self.0.spans
    }

    /// Which rule was broken, as data.
    pub fn problem(&self) -> &Problem {
        &self.0.problem
    }

    /// The first line, without the name of the operation.
    pub fn message(&self) -> String {
        self.0.problem.message(self.written())
    }

    /// The sizes behind it, if sizes are.
    pub fn why(&self) -> Option<String> {
        self.0.problem.why()
    }

    /// What would fix it.
    pub fn help(&self) -> Option<String> {
        self.0.problem.help(self.0.op)
    }

    /// Lines on what the pattern was applied to: shapes, given sizes, bindings.
    pub fn context(&self) -> &[String] {
        &self.0.context
    }

    /// The text under the first caret.
    fn written(&self) -> &str {
        self.0.spans.first().map_or("", |span| span.of(&self.0.pattern))
    }
}

impl fmt::Display for PatternError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.0.op, self.message())?;
        if !matches!(self.0.problem, Problem::TooLong { .. }) {
            write!(f, "\n  {}\n  {}", printable(&self.0.pattern), carets(&self.0.pattern, &self.0.spans))?;
        }
        if let Some(why) = self.why() {
            write!(f, "\n  = {why}")?;
        }
        for line in &self.0.context {
            write!(f, "\n  = {line}")?;
        }
        if let Some(help) = self.help() {
            write!(f, "\n  = try: {help}")?;
        }
        Ok(())
    }
}

impl std::error::Error for PatternError {}

/// The pattern on one line: one character out for each character in, so that carets stay aligned.
fn printable(pattern: &str) -> String {
    let one = |c: char| if c.is_whitespace() { ' ' } else { c };
    pattern.chars().map(one).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// The line of carets below the pattern. An empty span still gets one caret: something is missing there.
fn carets(pattern: &str, spans: &[Span]) -> String {
    let under = |at: usize| spans.iter().any(|span| (span.start..span.end.max(span.start + 1)).contains(&at));
    let ends = pattern.char_indices().map(|(at, _)| at).chain([pattern.len()]);
    let line: String = ends.map(|at| if under(at) { '^' } else { ' ' }).collect();
    line.trim_end().to_owned()
}

/// `[2, 5, 770]`.
pub(crate) fn shape_text(shape: &[u64]) -> String {
    format!("{shape:?}")
}

/// `input shape [2, 5, 770]; given heads = 12`.
pub(crate) fn input_line(shape: &[u64], sizes: &[(&str, u64)]) -> String {
    let mut line = format!("input shape {}", shape_text(shape));
    for (position, (name, size)) in sizes.iter().enumerate() {
        line += if position == 0 { "; given " } else { ", " };
        let _ = write!(line, "{name} = {size}");
    }
    line
}
