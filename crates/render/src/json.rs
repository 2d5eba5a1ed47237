//! Reports and problems as JSON: exact integers, names in the order they were made.

use plan::report::{Assumption, Derivation, Report, Value, Verdict};
use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};
use units::{Diagnostic, Diagnostics, Location};

use crate::format::{Units, phrase};

/// Version of the program, in every document.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The report as a JSON document, with a line break at its end.
pub fn json(report: &Report) -> String {
    write(&document(report))
}

fn document(report: &Report) -> Value {
    let document = Value::map()
        .with("schema", report.schema())
        .with("napkin", VERSION)
        .with("command", report.command.as_str())
        .with("answered", report.verdict == Verdict::Answered)
        .with("headline", phrase(&report.headline.answer, Units::Iec))
        .with("inputs", report.inputs.clone())
        .with("assumptions", Value::list(report.assumptions.iter().map(assumption)))
        .with("result", report.result.clone())
        .with("derivations", Value::list(report.derivations.iter().map(derivation)))
        .with("warnings", Value::list(report.warnings.iter().map(diagnostic)));
    if report.parts.is_empty() {
        return document;
    }
    document.with("parts", Value::list(report.parts.iter().map(self::document)))
}

/// Problems as a JSON document, with a line break at its end.
pub fn problems_json(problems: &Diagnostics) -> String {
    let document = Value::map()
        .with("schema", "napkin.error/1")
        .with("napkin", VERSION)
        .with("errors", Value::list(problems.iter().filter(|one| one.is_error()).map(diagnostic)))
        .with("warnings", Value::list(problems.iter().filter(|one| !one.is_error()).map(diagnostic)));
    write(&document)
}

fn write(document: &Value) -> String {
    // Maps have text for names and floats are finite or null, so nothing can fail.
    let mut text = serde_json::to_string_pretty(&Json(document)).unwrap_or_default();
    text.push('\n');
    text
}

/// A value in one line, for files that are large.
pub(crate) fn compact(document: &Value) -> String {
    let mut text = serde_json::to_string(&Json(document)).unwrap_or_default();
    text.push('\n');
    text
}

fn assumption(one: &Assumption) -> Value {
    let (value, unit) = one.value.raw();
    Value::map()
        .with("id", one.id)
        .with("label", one.label.as_str())
        .with("value", value)
        .with("unit", some(unit))
        .with("from", one.from.name())
        .with("why", some(&phrase(&one.why, Units::Iec)))
        .with("flag", some(one.flag))
}

fn derivation(one: &Derivation) -> Value {
    let (value, unit) = one.result.raw();
    Value::map()
        .with("of", one.of.as_str())
        .with("formula", one.formula)
        .with("expression", one.expression.as_str())
        .with("substituted", phrase(&one.substituted, Units::Iec))
        .with("value", value)
        .with("unit", some(unit))
        .with("source", one.source.as_str())
        .with("anchor", one.anchor)
}

fn diagnostic(one: &Diagnostic) -> Value {
    let labels = one
        .labels
        .iter()
        .map(|label| Value::map().with("location", location(&label.location)).with("text", label.text.as_str()));
    Value::map()
        .with("code", some(one.code))
        .with("severity", one.severity.to_string())
        .with("message", one.message.as_str())
        .with("location", one.location.as_ref().map(location))
        .with("labels", Value::list(labels))
        .with("why", one.why.as_deref())
        .with("effect", one.effect.as_deref())
        .with("help", Value::list(one.help.iter().map(String::as_str)))
}

fn location(place: &Location) -> Value {
    let known = |number: u32| (number > 0).then_some(number);
    Value::map()
        .with("file", place.file.as_str())
        .with("line", known(place.line))
        .with("column", known(place.column))
        .with("end_column", known(place.end_column))
        .with("pointer", some(&place.pointer))
}

fn some(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

/// Writes a value without a copy of its tree.
struct Json<'a>(&'a Value);

impl Serialize for Json<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Value::Bool(value) => serializer.serialize_bool(*value),
            Value::Uint(value) => serializer.serialize_u128(*value),
            Value::Int(value) => serializer.serialize_i128(*value),
            Value::Num(value) if value.is_finite() => serializer.serialize_f64(*value),
            Value::Null | Value::Num(_) => serializer.serialize_unit(),
            Value::Text(text) => serializer.serialize_str(text),
            Value::List(items) => {
                let mut list = serializer.serialize_seq(Some(items.len()))?;
                items.iter().try_for_each(|item| list.serialize_element(&Self(item)))?;
                list.end()
            }
            Value::Map(entries) => {
                let mut map = serializer.serialize_map(Some(entries.len()))?;
                entries.iter().try_for_each(|(name, value)| map.serialize_entry(name, &Self(value)))?;
                map.end()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use units::{Flops, Location};

    #[test]
    fn integers_are_exact_and_what_is_no_number_is_null() {
        let value = Value::map()
            .with("flop", Flops(6_300_000_000_000_000_000_000_001))
            .with("change", -3_i64)
            .with("nan", f64::NAN)
            .with("share", 0.5)
            .with("none", None::<u64>)
            .with("list", vec!["a\"b"]);
        let text = serde_json::to_string(&Json(&value)).unwrap();
        assert_eq!(
            text,
            r#"{"flop":6300000000000000000000001,"change":-3,"nan":null,"share":0.5,"none":null,"list":["a\"b"]}"#
        );
    }

    #[test]
    fn problems_have_a_place_and_a_way_out() {
        let problem =
            Diagnostic::error("T0203", "bad").at(Location::in_source("c.json", "{\"a\": 1}", 6..7)).help("fix it");
        let text = problems_json(&Diagnostics::from(problem));
        for part in
            ["\"schema\": \"napkin.error/1\"", "\"code\": \"T0203\"", "\"line\": 1", "\"column\": 7", "\"fix it\""]
        {
            assert!(text.contains(part), "{part} in {text}");
        }
    }
}
