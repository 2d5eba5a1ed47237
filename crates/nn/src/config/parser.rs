//! The grammar of the strict JSON reader: objects, lists, and what is said when one is broken.

use std::collections::BTreeSet;

use units::diagnostic::{Diagnostic, Location};

use super::json::{Kind, MAX_DEPTH, MAX_VALUES, Member, Value};
use super::source::{Source, Span, push_pointer};

/// Most problems of one kind that are reported one by one.
const MAX_PROBLEMS: usize = 20;

/// Parsing cannot go on; the error is recorded already.
pub(super) struct Stop;

/// Problems of one kind: the first few in full, the rest as a count.
#[derive(Default)]
struct Counted {
    first: Vec<Diagnostic>,
    total: usize,
}

enum Step {
    Key(Box<str>),
    Index(usize),
}

pub(super) struct Parser<'a> {
    pub(super) source: &'a Source,
    index: u32,
    pub(super) bytes: &'a [u8],
    pub(super) at: usize,
    open: Vec<usize>,
    path: Vec<Step>,
    values: usize,
    errors: Vec<Diagnostic>,
    duplicates: Counted,
    not_finite: Counted,
}

impl<'a> Parser<'a> {
    pub(super) fn new(source: &'a Source, index: u32, start: usize) -> Self {
        Self {
            source,
            index,
            bytes: source.text().as_bytes(),
            at: start,
            open: Vec::new(),
            path: Vec::new(),
            values: 0,
            errors: Vec::new(),
            duplicates: Counted::default(),
            not_finite: Counted::default(),
        }
    }

    pub(super) fn run(mut self) -> (Option<Value>, Vec<Diagnostic>) {
        let value = self.document().ok();
        self.finish(value)
    }

    fn finish(mut self, value: Option<Value>) -> (Option<Value>, Vec<Diagnostic>) {
        let failed = !self.errors.is_empty();
        let mut problems = std::mem::take(&mut self.errors);
        for (counted, what) in [(self.duplicates, "keys given twice"), (self.not_finite, "numbers that are not finite")]
        {
            let more = counted.total - counted.first.len();
            let code = counted.first.first().map_or("T0109", |diagnostic| diagnostic.code);
            problems.extend(counted.first);
            if more > 0 {
                problems.push(Diagnostic::warning(code, format!("{more} more {what}")));
            }
        }
        (value.filter(|_| !failed), problems)
    }

    fn document(&mut self) -> Result<Value, Stop> {
        let value = self.value()?;
        self.space()?;
        if self.at < self.bytes.len() {
            let span = self.token_span();
            self.error(span, "text after the end of the JSON value", "nothing may follow the value", "delete it")?;
        }
        Ok(value)
    }

    fn value(&mut self) -> Result<Value, Stop> {
        self.space()?;
        self.values += 1;
        if self.values > MAX_VALUES {
            let location = self.source.location(self.span(self.at, self.at + 1), "");
            self.errors.push(
                Diagnostic::error("T0107", format!("more than {MAX_VALUES} values"))
                    .at(location)
                    .why("a model configuration holds at most a few thousand values")
                    .help("give the model's own `config.json`, not a weight map or a tokenizer"),
            );
            return Err(Stop);
        }
        let start = self.at;
        let kind = match self.bytes.get(self.at) {
            None => return Err(self.truncated(None)),
            Some(b'{') => Kind::Object(self.object()?),
            Some(b'[') => Kind::Array(self.array()?),
            Some(b'"') => Kind::String(self.string()?),
            Some(_) => self.word()?,
        };
        Ok(Value { kind, span: self.span(start, self.at) })
    }

    fn object(&mut self) -> Result<Vec<Member>, Stop> {
        self.enter()?;
        let mut members: Vec<Member> = Vec::new();
        let mut seen: BTreeSet<Box<str>> = BTreeSet::new();
        let mut repeated = false;
        while self.item(b'}', members.is_empty())? {
            let key_start = self.at;
            match self.bytes.get(self.at) {
                Some(b'"') => {}
                Some(_) => {
                    let span = self.token_span();
                    self.error(span, "a key must be a string", "expected `\"`", "write the key in double quotes")?;
                    return Err(Stop);
                }
                None => return Err(self.truncated(None)),
            }
            let key = self.string()?;
            let key_span = self.span(key_start, self.at);
            self.space()?;
            match self.bytes.get(self.at) {
                Some(b':') => self.at += 1,
                Some(_) => {
                    let span = self.token_span();
                    self.error(span, "no `:` after a key", "expected `:`", "write `\"key\": value`")?;
                    return Err(Stop);
                }
                None => return Err(self.truncated(None)),
            }
            self.path.push(Step::Key(key.clone()));
            let value = self.value()?;
            if !seen.insert(key.clone()) {
                repeated = true;
                self.duplicate(&members, &key, key_span);
            }
            self.path.pop();
            members.push(Member { key, key_span, value });
        }
        if repeated {
            keep_last(&mut members);
        }
        Ok(members)
    }

    fn array(&mut self) -> Result<Vec<Value>, Stop> {
        self.enter()?;
        let mut items = Vec::new();
        while self.item(b']', items.is_empty())? {
            self.path.push(Step::Index(items.len()));
            items.push(self.value()?);
            self.path.pop();
        }
        Ok(items)
    }

    /// Steps over an opening bracket.
    fn enter(&mut self) -> Result<(), Stop> {
        if self.open.len() == MAX_DEPTH {
            let location = self.source.location(self.span(self.at, self.at + 1), "");
            self.errors.push(
                Diagnostic::error("T0106", format!("nested deeper than {MAX_DEPTH} levels"))
                    .at(location)
                    .why("a model configuration is a few levels deep")
                    .help("give the model's own `config.json`"),
            );
            return Err(Stop);
        }
        self.open.push(self.at);
        self.at += 1;
        Ok(())
    }

    /// Moves to the next item of the innermost bracket; false, and past the bracket, if there is none.
    fn item(&mut self, close: u8, first: bool) -> Result<bool, Stop> {
        self.space()?;
        let mut comma = None;
        if !first && self.bytes.get(self.at) == Some(&b',') {
            comma = Some(self.at);
            self.at += 1;
            self.space()?;
        }
        match self.bytes.get(self.at) {
            None => Err(self.truncated(None)),
            Some(&byte) if byte == close => {
                if let Some(comma) = comma {
                    let span = self.span(comma, comma + 1);
                    self.error(span, "a comma after the last item", "JSON allows none here", "delete the comma")?;
                }
                self.open.pop();
                self.at += 1;
                Ok(false)
            }
            Some(b'}' | b']') => {
                let opened = self.open.last().copied().unwrap_or(0);
                let location = self.here(self.span(self.at, self.at + 1));
                let bracket = self.here(self.span(opened, opened + 1));
                self.errors.push(
                    Diagnostic::error("T0104", format!("expected `{}` here", close as char))
                        .at(location)
                        .label(bracket, "to close this bracket")
                        .help("balance the brackets"),
                );
                Err(Stop)
            }
            Some(b',') => {
                let span = self.span(self.at, self.at + 1);
                self.error(span, "a comma without a value before it", "expected a value", "delete the comma")?;
                self.at += 1;
                self.item(close, true)
            }
            Some(_) if first || comma.is_some() => Ok(true),
            Some(_) => {
                let end = self.last_text_byte();
                let span = self.span(end, end + 1);
                self.error(span, "no comma between two items", "expected `,` after this", "add a comma")?;
                Ok(true)
            }
        }
    }

    fn duplicate(&mut self, members: &[Member], key: &str, key_span: Span) {
        self.duplicates.total += 1;
        if self.duplicates.first.len() == MAX_PROBLEMS {
            return;
        }
        let location = self.here(key_span);
        let mut diagnostic = Diagnostic::warning("T0109", format!("`{key}` is given twice"))
            .at(location)
            .effect("the last value is used")
            .help("delete the other one");
        if let Some(earlier) = members.iter().rfind(|member| &*member.key == key) {
            diagnostic = diagnostic.label(self.here(earlier.key_span), "also here");
        }
        self.duplicates.first.push(diagnostic);
    }

    pub(super) fn not_finite(&mut self, span: Span, token: &str) {
        self.not_finite.total += 1;
        if self.not_finite.first.len() == MAX_PROBLEMS {
            return;
        }
        let location = self.here(span);
        self.not_finite.first.push(
            Diagnostic::warning("T0110", format!("`{token}` is not a JSON number"))
                .at(location)
                .effect("kept as it stands; an error only if a size or a rate that costs anything uses it"),
        );
    }

    pub(super) fn truncated(&mut self, token: Option<usize>) -> Stop {
        let text = self.source.text();
        let end = text.trim_end().len();
        let location = self.here(self.span(end, end));
        let mut diagnostic = Diagnostic::error("T0105", "the text ends in the middle of a JSON value").at(location);
        let opened = match (token, self.open.last()) {
            (Some(token), _) => Some((token, "this value is not complete")),
            (None, Some(&bracket)) => Some((bracket, "this bracket is never closed")),
            (None, None) => None,
        };
        if let Some((start, label)) = opened {
            let length = text[start..].chars().next().map_or(0, char::len_utf8);
            diagnostic = diagnostic.label(self.here(self.span(start, start + length)), label);
        }
        let open = match self.open.len() {
            1 => "1 bracket".to_owned(),
            more => format!("{more} brackets"),
        };
        self.errors.push(
            diagnostic
                .why(format!("{} bytes were read, with {open} still open", text.len()))
                .help("fetch or copy the file again: it looks cut off"),
        );
        Stop
    }

    pub(super) fn error(&mut self, span: Span, message: &str, label: &str, help: &str) -> Result<(), Stop> {
        let location = self.here(span);
        let labelled = location.clone();
        self.errors.push(Diagnostic::error("T0104", message).at(location).label(labelled, label).help(help));
        if self.errors.len() >= MAX_PROBLEMS { Err(Stop) } else { Ok(()) }
    }

    fn here(&self, span: Span) -> Location {
        let mut pointer = String::new();
        for step in &self.path {
            match step {
                Step::Key(key) => push_pointer(&mut pointer, key),
                Step::Index(index) => push_pointer(&mut pointer, &index.to_string()),
            }
        }
        self.source.location(span, &pointer)
    }

    pub(super) fn span(&self, start: usize, end: usize) -> Span {
        Span { source: self.index, start: start as u32, end: end as u32 }
    }
}

/// Keeps the last member of each key, at its place.
fn keep_last(members: &mut Vec<Member>) {
    let mut seen = BTreeSet::new();
    members.reverse();
    members.retain(|member| seen.insert(member.key.clone()));
    members.reverse();
}
