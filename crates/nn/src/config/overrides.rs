//! `--set key=value`: changes to the tree, each with its own text as its place.

use std::collections::BTreeSet;

use units::diagnostic::{Diagnostic, Diagnostics};

use super::json::{self, Kind, Member, Value};
use super::{Config, Source, Span};

/// Name under which messages quote an override.
const ORIGIN: &str = "--set";

impl Config {
    /// Applies `--set key=value` arguments, in order, to the part that is used.
    ///
    /// A key may be a dotted path (`rope_parameters.rope_theta`); objects on the way are made. A value that is JSON is
    /// read as JSON, anything else as a string. The configuration is unchanged where a diagnostic is an error.
    pub fn with_overrides(mut self, overrides: &[(String, String)]) -> (Self, Diagnostics) {
        let mut problems = Vec::new();
        let mut seen = BTreeSet::new();
        for (key, text) in overrides {
            let index = self.sources.len() as u32;
            let argument = format!("{ORIGIN} {key}={text}");
            let start = argument.len() - text.len();
            let source = Source::new(ORIGIN, argument);
            let whole = Span { source: index, start: start as u32, end: source.text().len() as u32 };
            let key_span = Span { start: ORIGIN.len() as u32 + 1, end: start as u32 - 1, ..whole };
            let key = self.own_path(key.trim());
            if !seen.insert(key.clone()) {
                problems.push(
                    Diagnostic::warning("T0112", format!("`{key}` is set twice"))
                        .at(source.location(key_span, ""))
                        .effect("the last value is used"),
                );
            }
            let value = match json::parse(&source, index, start) {
                (Some(value), _) => value,
                (None, _) => Value { kind: Kind::String(text.trim().into()), span: whole },
            };
            match self.set(&key, key_span, value) {
                Ok(()) => {}
                Err(why) => problems.push(
                    Diagnostic::error("T0112", format!("`{key}` cannot be set"))
                        .at(source.location(key_span, ""))
                        .why(why)
                        .help("write --set key=value, or --set object.key=value"),
                ),
            }
            self.sources.push(source);
        }
        (self, Diagnostics(problems))
    }

    /// `key` without the name of the sub-configuration that is used anyway.
    fn own_path(&self, key: &str) -> String {
        let prefix = self.sub_config().map(|name| name + ".");
        let own = prefix.and_then(|prefix| key.strip_prefix(&prefix).map(str::to_owned));
        own.unwrap_or_else(|| key.to_owned())
    }

    fn set(&mut self, path: &str, key_span: Span, value: Value) -> Result<(), String> {
        if path.split('.').any(str::is_empty) {
            return Err("the name is empty, or a part of it is".to_owned());
        }
        let mut here = &mut self.root;
        for key in &self.path {
            here = member(here, key, key_span)?;
        }
        if here.get(path).is_some() {
            *member(here, path, key_span)? = value;
            return Ok(());
        }
        let steps: Vec<&str> = path.split('.').collect();
        if steps.len() > json::MAX_DEPTH {
            return Err(format!("the path has more than {} steps", json::MAX_DEPTH));
        }
        for step in steps {
            if here.is_null() {
                here.kind = Kind::Object(Vec::new());
            }
            here = member(here, step, key_span)?;
        }
        *here = value;
        Ok(())
    }
}

/// The value under `step`, made as `null` if an object lacks it.
fn member<'a>(here: &'a mut Value, step: &str, key_span: Span) -> Result<&'a mut Value, String> {
    let name = here.kind_name();
    match &mut here.kind {
        Kind::Object(members) => {
            let at = members.iter().position(|member| &*member.key == step).unwrap_or(members.len());
            if at == members.len() {
                let value = Value { kind: Kind::Null, span: key_span };
                members.push(Member { key: step.into(), key_span, value });
            }
            Ok(&mut members[at].value)
        }
        Kind::Array(items) => {
            let count = items.len();
            let index = step.parse::<usize>().ok().filter(|index| *index < count);
            match index {
                Some(index) => Ok(&mut items[index]),
                None => Err(format!("`{step}` is not the number of an item in a list of {count}")),
            }
        }
        _ => Err(format!("`{step}` would be a part of {name}")),
    }
}
