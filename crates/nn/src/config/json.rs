//! A small strict JSON reader that keeps where every value stands.
//!
//! Why not a crate: `jsonc-parser`, the usual choice for a tree with positions, accepts text that is not JSON (missing
//! commas, single-quoted strings, any Unicode space) even with all its options off, and recurses without a limit. A
//! configuration that a training framework refuses must not pass here. `NaN`, `Infinity` and `-Infinity`, which real
//! releases do contain because Python writes and reads them, are read as numbers and reported as a warning.

use std::fmt;

use units::diagnostic::Diagnostic;

use super::parser::Parser;
use super::source::{Source, Span};

/// Deepest nesting that is read. Real configurations stay below 8.
pub const MAX_DEPTH: usize = 128;

/// Most values that are read: bounds the memory of the tree (a member takes 100 bytes and more for 7 bytes of text).
pub const MAX_VALUES: usize = 250_000;

/// A JSON value and where it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// What it is.
    pub kind: Kind,
    /// Where it stands in its source.
    pub span: Span,
}

/// What a JSON value is.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number, as written; also `NaN`, `Infinity` and `-Infinity`.
    Number(Box<str>),
    /// A string, escapes resolved.
    String(Box<str>),
    /// A list.
    Array(Vec<Value>),
    /// Members in the order of the text, each key once.
    Object(Vec<Member>),
}

/// One `"key": value` of an object.
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    /// The key, escapes resolved.
    pub key: Box<str>,
    /// Where the key stands, quotes included.
    pub key_span: Span,
    /// The value.
    pub value: Value,
}

/// JSON again, on one line, members in their order.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Kind::Null => f.write_str("null"),
            Kind::Bool(value) => write!(f, "{value}"),
            Kind::Number(text) => f.write_str(text),
            Kind::String(text) => quoted(f, text),
            Kind::Array(items) => {
                f.write_str("[")?;
                for (i, item) in items.iter().enumerate() {
                    write!(f, "{}{item}", if i > 0 { ", " } else { "" })?;
                }
                f.write_str("]")
            }
            Kind::Object(members) => {
                f.write_str("{")?;
                for (i, member) in members.iter().enumerate() {
                    f.write_str(if i > 0 { ", " } else { "" })?;
                    quoted(f, &member.key)?;
                    write!(f, ": {}", member.value)?;
                }
                f.write_str("}")
            }
        }
    }
}

fn quoted(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    f.write_str("\"")?;
    for c in text.chars() {
        match c {
            '"' | '\\' => write!(f, "\\{c}")?,
            c if c < ' ' => write!(f, "\\u{:04x}", c as u32)?,
            c => write!(f, "{c}")?,
        }
    }
    f.write_str("\"")
}

impl Value {
    /// The value under `key`, if this is an object that has it.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.members().iter().find(|member| &*member.key == key).map(|member| &member.value)
    }

    /// The members, none if this is not an object.
    pub fn members(&self) -> &[Member] {
        if let Kind::Object(members) = &self.kind { members } else { &[] }
    }

    /// The items, if this is a list.
    pub fn items(&self) -> Option<&[Value]> {
        if let Kind::Array(items) = &self.kind { Some(items) } else { None }
    }

    /// The text, if this is a string.
    pub fn as_str(&self) -> Option<&str> {
        if let Kind::String(text) = &self.kind { Some(text) } else { None }
    }

    /// Whether this is `null`.
    pub fn is_null(&self) -> bool {
        self.kind == Kind::Null
    }

    /// Whether this is an object.
    pub fn is_object(&self) -> bool {
        matches!(self.kind, Kind::Object(_))
    }

    /// What this is, in words, with its article.
    pub fn kind_name(&self) -> &'static str {
        match self.kind {
            Kind::Null => "null",
            Kind::Bool(_) => "a boolean",
            Kind::Number(_) => "a number",
            Kind::String(_) => "a string",
            Kind::Array(_) => "a list",
            Kind::Object(_) => "an object",
        }
    }
}

/// Reads the JSON value in `source`, from byte `start` to its end, and reports every problem found.
///
/// `None` exactly if one of the problems is an error.
pub fn parse(source: &Source, index: u32, start: usize) -> (Option<Value>, Vec<Diagnostic>) {
    Parser::new(source, index, start).run()
}
