//! Source texts and the mapping from byte offsets to file, line and column.

use units::diagnostic::Location;

/// A byte range in one of the source texts of a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Which text: 0 is the file, 1 and up are `--set` arguments in order.
    pub source: u32,
    /// First byte.
    pub start: u32,
    /// One past the last byte.
    pub end: u32,
}

/// A named text: the configuration file, or one `--set key=value` argument.
#[derive(Clone, Debug)]
pub struct Source {
    name: String,
    text: String,
    line_starts: Vec<u32>,
}

impl Source {
    /// Keeps `text` under `name` and indexes its lines.
    pub fn new(name: &str, text: String) -> Self {
        let newlines = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        let line_starts = std::iter::once(0).chain(newlines.map(|(at, _)| at as u32 + 1)).collect();
        Self { name: name.to_owned(), text, line_starts }
    }

    /// File name, or `--set`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The whole text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The text that `span` covers; empty if the span does not fit this text.
    pub fn slice(&self, span: Span) -> &str {
        self.text.get(span.start as usize..span.end as usize).unwrap_or("")
    }

    /// Where `span` is, with line and columns counted in characters from 1.
    ///
    /// A span over several lines is cut at the end of its first line.
    pub fn location(&self, span: Span, pointer: &str) -> Location {
        let start = (span.start as usize).min(self.text.len());
        let line = self.line_starts.partition_point(|at| *at as usize <= start).max(1);
        let line_start = self.line_starts[line - 1] as usize;
        let line_end = self.line_starts.get(line).map_or(self.text.len(), |at| *at as usize);
        let columns = start - line_start..(span.end as usize).max(start) - line_start;
        // Only the line is handed over: counting lines from the top for every key would be slow in a large file.
        let text = self.text.get(line_start..line_end).unwrap_or("");
        Location { line: line as u32, ..Location::in_source(&self.name, text, columns).pointer(pointer) }
    }
}

/// Appends `key` to a JSON pointer, escaped as the pointer syntax asks (`~` and `/`).
pub fn push_pointer(pointer: &mut String, key: &str) {
    pointer.push('/');
    for letter in key.chars() {
        match letter {
            '~' => pointer.push_str("~0"),
            '/' => pointer.push_str("~1"),
            other => pointer.push(other),
        }
    }
}
