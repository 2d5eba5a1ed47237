//! The form in which every crate hands a problem to its caller: what, where, why, and what would fix it.

use std::fmt;
use std::ops::{Deref, Range};

use crate::diagnostic::render::render;

mod render;

pub use render::columns;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// No answer can be given.
    Error,
    /// The answer may be off, and `effect` says by what.
    Warning,
    /// Worth knowing.
    Note,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Note => "note",
        })
    }
}

/// A span in a file the user gave. [`Location::in_source`] fills it from a byte range.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Location {
    /// Name of the file as the user wrote it.
    pub file: String,
    /// Line, from 1; 0 if only the file is known.
    pub line: u32,
    /// Column of the first character of the span, from 1, in characters.
    pub column: u32,
    /// Column after the last character of the span.
    pub end_column: u32,
    /// JSON pointer to the value, such as `/rope_scaling/factor`; empty for the whole document.
    pub pointer: String,
    /// The line of the file, or for a very long line the part around the span; without its line break.
    pub source_line: Option<String>,
    /// Column of the first character of `source_line`: 1 (or 0) if the line is whole.
    pub source_column: u32,
}

/// Lines up to this many bytes are kept whole; of longer ones only the surroundings of the span are.
const WHOLE_LINE: usize = 1024;
/// Bytes kept on each side of a span in a longer line.
const SURROUNDINGS: usize = 256;

impl Location {
    /// A whole file.
    pub fn file(file: impl Into<String>) -> Self {
        Self { file: file.into(), ..Self::default() }
    }

    /// A span given by line and columns, where the text of the line is not at hand.
    pub fn new(file: impl Into<String>, line: u32, columns: Range<u32>) -> Self {
        Self { file: file.into(), line, column: columns.start, end_column: columns.end, ..Self::default() }
    }

    /// A span given by a byte range of a text. A span over several lines is cut at the end of its first; a range outside
    /// the text is moved to its end.
    pub fn in_source(file: impl Into<String>, source: &str, span: Range<usize>) -> Self {
        let start = char_floor(source, span.start);
        let line_start = source[..start].rfind('\n').map_or(0, |at| at + 1);
        let rest = &source[start..];
        let line_end = start + rest.find('\n').unwrap_or(rest.len());
        let mut text_end = line_end;
        if source[start..text_end].ends_with('\r') {
            text_end -= 1;
        }
        let end = char_floor(source, span.end).clamp(start, text_end);
        let column = count_column(&source[line_start..start]);
        let width = source[start..end].chars().count().max(1);
        let (kept, source_column) = if text_end - line_start <= WHOLE_LINE {
            (&source[line_start..text_end], 1)
        } else {
            let from = char_floor(source, start.saturating_sub(SURROUNDINGS)).max(line_start);
            let to = char_floor(source, start.saturating_add(SURROUNDINGS).min(text_end));
            (&source[from..to], count_column(&source[line_start..from]))
        };
        let newlines = source[..line_start].matches('\n').count();
        Self {
            file: file.into(),
            line: saturate(newlines + 1),
            column,
            end_column: column.saturating_add(saturate(width)),
            pointer: String::new(),
            source_line: Some(kept.to_owned()),
            source_column,
        }
    }

    /// Adds the JSON pointer of the value.
    #[must_use]
    pub fn pointer(mut self, pointer: impl Into<String>) -> Self {
        self.pointer = pointer.into();
        self
    }
}

fn saturate(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

fn count_column(before: &str) -> u32 {
    saturate(before.chars().count() + 1)
}

fn char_floor(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

/// A remark on a span.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// The span.
    pub location: Location,
    /// The remark, such as "32 query heads".
    pub text: String,
}

/// One problem, complete enough to act on.
///
/// ```
/// use napkin_units::{Diagnostic, Location};
///
/// let source = "{\n  \"dp\": 3\n}\n";
/// let problem = Diagnostic::error("T0301", "`dp` does not divide the number of devices")
///     .at_labelled(Location::in_source("run.json", source, 10..11), "3 of 64 devices")
///     .help("--set dp=4");
/// assert_eq!(problem.to_string(), "\
/// error[T0301]: `dp` does not divide the number of devices
///   --> run.json:2:9
///    |
///  2 |   \"dp\": 3
///    |         ^ 3 of 64 devices
///    |
///    = try: --set dp=4");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// Stable code such as `T0203`; empty for problems of the command line, which need no page of their own.
    pub code: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// What is wrong, in one line.
    pub message: String,
    /// Where, if it is in a file.
    pub location: Option<Location>,
    /// Remarks on other spans; one on the same span as `location` stands beside the caret.
    pub labels: Vec<Label>,
    /// The reason for the rule that is broken.
    pub why: Option<String>,
    /// What the problem changes in the answer.
    pub effect: Option<String>,
    /// What would fix it, one line for each way.
    pub help: Vec<String>,
}

impl Diagnostic {
    /// A problem of the given severity.
    pub fn new(severity: Severity, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            severity,
            message: message.into(),
            location: None,
            labels: Vec::new(),
            why: None,
            effect: None,
            help: Vec::new(),
        }
    }

    /// A problem that leaves no answer.
    pub fn error(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(Severity::Error, code, message)
    }

    /// A problem that may put the answer off.
    pub fn warning(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(Severity::Warning, code, message)
    }

    /// Something worth knowing.
    pub fn note(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(Severity::Note, code, message)
    }

    /// Sets the place.
    #[must_use]
    pub fn at(mut self, location: Location) -> Self {
        self.location = Some(location);
        self
    }

    /// Sets the place and the words beside its caret.
    #[must_use]
    pub fn at_labelled(self, location: Location, text: impl Into<String>) -> Self {
        self.label(location.clone(), text).at(location)
    }

    /// Adds a remark on another span.
    #[must_use]
    pub fn label(mut self, location: Location, text: impl Into<String>) -> Self {
        self.labels.push(Label { location, text: text.into() });
        self
    }

    /// Sets the reason for the rule that is broken.
    #[must_use]
    pub fn why(mut self, why: impl Into<String>) -> Self {
        self.why = Some(why.into());
        self
    }

    /// Sets what the problem changes in the answer.
    #[must_use]
    pub fn effect(mut self, effect: impl Into<String>) -> Self {
        self.effect = Some(effect.into());
        self
    }

    /// Adds a way to fix it.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help.push(help.into());
        self
    }

    /// True if no answer can be given.
    pub fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }

    /// Plain text without colour and without a final line break; the same as `to_string`.
    ///
    /// Control characters in the user's file are replaced, so that it cannot drive the terminal.
    pub fn render(&self) -> String {
        render(self)
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render())
    }
}

impl std::error::Error for Diagnostic {}

/// All problems of one input, in the order found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diagnostics(pub Vec<Diagnostic>);

impl Diagnostics {
    /// None yet.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds one.
    pub fn push(&mut self, diagnostic: impl Into<Diagnostic>) {
        self.0.push(diagnostic.into());
    }

    /// True if one of them leaves no answer.
    pub fn has_errors(&self) -> bool {
        self.0.iter().any(Diagnostic::is_error)
    }
}

impl Deref for Diagnostics {
    type Target = [Diagnostic];
    fn deref(&self) -> &[Diagnostic] {
        &self.0
    }
}

impl Extend<Diagnostic> for Diagnostics {
    fn extend<I: IntoIterator<Item = Diagnostic>>(&mut self, items: I) {
        self.0.extend(items);
    }
}

impl FromIterator<Diagnostic> for Diagnostics {
    fn from_iter<I: IntoIterator<Item = Diagnostic>>(items: I) -> Self {
        Self(items.into_iter().collect())
    }
}

impl From<Diagnostic> for Diagnostics {
    fn from(one: Diagnostic) -> Self {
        Self(vec![one])
    }
}

impl IntoIterator for Diagnostics {
    type Item = Diagnostic;
    type IntoIter = std::vec::IntoIter<Diagnostic>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'a> IntoIterator for &'a Diagnostics {
    type Item = &'a Diagnostic;
    type IntoIter = std::slice::Iter<'a, Diagnostic>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, diagnostic) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n\n")?;
            }
            diagnostic.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for Diagnostics {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_count_characters_and_lines() {
        let source = "a\r\né = 12\r\n";
        let location = Location::in_source("f", source, 8..10);
        assert_eq!((location.line, location.column, location.end_column), (2, 5, 7));
        assert_eq!(location.source_line.as_deref(), Some("é = 12"));
        // Over the end, backwards and inside a character.
        let backwards = Range { start: 8, end: 2 };
        for span in [99..120, backwards, 4..5, 0..usize::MAX] {
            let location = Location::in_source("f", source, span);
            assert!(location.end_column > location.column);
        }
    }

    #[test]
    fn a_huge_line_is_not_copied() {
        let source = format!("{}X{}", "é".repeat(1_000_000), "b".repeat(1_000_000));
        let location = Location::in_source("f", &source, 2_000_000..2_000_001);
        assert_eq!(location.column, 1_000_001);
        assert!(location.source_line.as_ref().unwrap().len() <= 2 * SURROUNDINGS + 4);
        let offset = (location.column - location.source_column) as usize;
        assert_eq!(location.source_line.unwrap().chars().nth(offset), Some('X'));
    }

    #[test]
    fn collections() {
        let mut all = Diagnostics::new();
        assert!(all.is_empty() && !all.has_errors());
        all.push(Diagnostic::warning("T0117", "odd"));
        assert!(!all.has_errors());
        all.extend([Diagnostic::error("", "bad")]);
        assert!(all.has_errors());
        assert_eq!(all.len(), 2);
        assert_eq!(all.to_string(), "warning[T0117]: odd\n\nerror: bad");
    }
}
