//! YAML as options: mappings, sequences and plain words, as `PyYAML` resolves them.

use saphyr_parser::{Event, Parser, ScalarStyle, Span};
use std::ops::Range;
use units::{Diagnostic, Diagnostics, Location};

use super::reading::{Around, Values};
use super::settings::Setting;

/// Deepest nesting that is read.
const MOST_DEPTH: usize = 64;

/// What is open.
enum Open {
    /// A mapping, and the key whose value comes next.
    Map(Option<String>),
    /// A sequence, its items so far, and where it starts.
    List(Vec<Setting>, usize),
}

/// Adds the options of a text: those inside others have names with points. Empty values are left out.
///
/// # Errors
/// `T0494` for what is no YAML, or no mapping, and for aliases, which configurations do not need.
pub fn read(text: &str, around: &Around<'_>, values: &mut Values<'_>) -> Result<(), Diagnostics> {
    let places = Places::of(text);
    let wrong = |message: String, span: Range<usize>| {
        Diagnostics::from(Diagnostic::error("T0494", message).at(Location::in_source(around.file, text, span)))
    };
    let mut open: Vec<Open> = Vec::new();
    let mut mapping = false;
    for event in Parser::new_from_str(text) {
        let (event, span) = match event {
            Ok((event, span)) => (event, places.bytes(&span)),
            Err(error) => {
                let at = places.byte(error.marker().index());
                return Err(wrong(format!("this is no YAML: {}", error.info()), at..at));
            }
        };
        if open.is_empty() && matches!(event, Event::SequenceStart(..) | Event::Scalar(..) | Event::Alias(_)) {
            return Err(wrong("this is no mapping of options to values".to_owned(), span));
        }
        match event {
            Event::MappingStart(..) => {
                mapping = true;
                open.push(Open::Map(None));
            }
            Event::SequenceStart(..) => open.push(Open::List(Vec::new(), span.start)),
            Event::Scalar(text, style, ..) => {
                if let Some(Open::Map(key @ None)) = open.last_mut() {
                    *key = Some(text.into_owned());
                } else {
                    let value = if style == ScalarStyle::Plain { plain(&text) } else { Some(Setting::from(&*text)) };
                    put(&mut open, value, span, values);
                }
            }
            Event::MappingEnd => {
                open.pop();
                // As an item of a sequence it counts, but is not gone into.
                put(&mut open, None, span, values);
            }
            Event::SequenceEnd => {
                if let Some(Open::List(items, start)) = open.pop() {
                    put(&mut open, Some(Setting::List(items)), start..span.end, values);
                }
            }
            Event::Alias(_) => return Err(wrong("aliases are not read".to_owned(), span)),
            Event::DocumentEnd | Event::StreamEnd => break,
            _ => {}
        }
        if open.len() > MOST_DEPTH {
            return Err(wrong(format!("nested more than {MOST_DEPTH} levels deep"), places.end()));
        }
    }
    if mapping { Ok(()) } else { Err(wrong("there are no options in it".to_owned(), places.end())) }
}

/// Gives a value to what is open.
fn put(open: &mut [Open], value: Option<Setting>, span: Range<usize>, values: &mut Values<'_>) {
    match open.last_mut() {
        Some(Open::List(items, _)) => items.extend(value),
        Some(Open::Map(key)) => {
            let key = key.take();
            let (Some(key), Some(value)) = (key, value) else { return };
            let mut name = String::new();
            for outer in open.iter() {
                match outer {
                    Open::Map(Some(outer)) => name.extend([outer, "."]),
                    Open::Map(None) => {}
                    // Options of the items of a sequence have no names of their own.
                    Open::List(..) => return,
                }
            }
            values.add(&(name + &key), value, span);
        }
        None => {}
    }
}

/// A word without quotes; nothing for an empty one.
fn plain(text: &str) -> Option<Setting> {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return None,
        "true" | "True" | "TRUE" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" => return Some(Setting::Bool(true)),
        "false" | "False" | "FALSE" | "no" | "No" | "NO" | "off" | "Off" | "OFF" => return Some(Setting::Bool(false)),
        _ => {}
    }
    let digits = text.replace('_', "");
    if digits.starts_with(|c: char| c.is_ascii_digit())
        && let Ok(value) = digits.parse::<u64>()
    {
        return Some(Setting::Int(value));
    }
    let number = digits.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '.' | '-' | '+'));
    match digits.parse::<f64>() {
        Ok(value) if number && value.is_finite() => Some(Setting::Float(value)),
        _ => Some(text.into()),
    }
}

/// From numbers of characters to numbers of bytes.
struct Places(Option<Vec<usize>>, usize);

impl Places {
    fn of(text: &str) -> Self {
        let starts = (!text.is_ascii()).then(|| text.char_indices().map(|(at, _)| at).collect());
        Self(starts, text.len())
    }

    fn byte(&self, character: usize) -> usize {
        match &self.0 {
            None => character.min(self.1),
            Some(starts) => starts.get(character).copied().unwrap_or(self.1),
        }
    }

    fn bytes(&self, span: &Span) -> Range<usize> {
        self.byte(span.start.index())..self.byte(span.end.index())
    }

    fn end(&self) -> Range<usize> {
        self.1..self.1
    }
}
