//! The formulas, printed: all of them, or one with its letters, its source and, where values are given, its value.

use units::{Diagnostic, Diagnostics};

use crate::formulas::{self, Eval, Formula};
use crate::phrase;
use crate::report::{Block, Cell, Column, KeyValue, Report, Row, Table, Value};

/// Every formula.
pub fn list() -> Report {
    let count = formulas::all().count() as u64;
    let mut report = Report::new("explain", phrase![count, " formulas"]);
    let mut table = Table::new("", [Column::left("id"), Column::left("formula")]);
    for formula in formulas::all() {
        table.rows.push(Row::new([formula.id.into(), formula.expression.into()]).note(formula.title));
    }
    report.blocks.push(table.into());
    report.result = Value::map().with("formulas", Value::list(formulas::all().map(value)));
    report.notes.push(phrase!["napkin explain 6nd N=70B D=15T"]);
    report
}

/// Every formula with its letters, its source and its place in the code: what `docs/formulas.md` is made of.
pub fn all() -> Report {
    let count = formulas::all().count() as u64;
    let mut report = Report::new("explain", phrase![count, " formulas"]);
    for formula in formulas::all() {
        let mut rows = vec![KeyValue::new("formula", formula.expression).note(phrase!["in ", formula.unit])];
        rows.extend(formula.symbols.iter().map(|symbol| KeyValue::new(symbol.name, Cell::Empty).note(symbol.meaning)));
        rows.extend(remarks(formula));
        report.blocks.push(Block::key_values(format!("{}: {}", formula.id, formula.title), rows));
    }
    report.result = Value::map().with("formulas", Value::list(formulas::all().map(value)));
    report
}

/// What a formula leaves out, who says so, where it stands.
fn remarks(formula: &Formula) -> impl Iterator<Item = KeyValue> {
    let lines = [("but", formula.caveat), ("source", formula.source), ("code", formula.anchor)];
    lines.into_iter().map(|(key, text)| KeyValue::new(key, Cell::Empty).note(text))
}

/// One formula, with values for its letters or without.
///
/// # Errors
/// `T0441` for an unknown formula, `T0442` for letters it does not have, letters without values, and values it has no
/// answer for.
pub fn one(id: &str, values: &[(String, f64)]) -> Result<Report, Diagnostics> {
    let formula = formulas::find(id).map_err(|near| {
        let help = if near.is_empty() {
            "`napkin explain` lists them".to_owned()
        } else {
            format!("did you mean {}?", near.join(", "))
        };
        Diagnostics::from(Diagnostic::error("T0441", format!("no formula is called `{id}`")).help(help))
    })?;
    let answer = if values.is_empty() { None } else { Some(evaluate(formula, values)?) };
    let mut report = match &answer {
        Some(answer) => Report::new("explain", answer.1.clone()).qualified(formula.title),
        None => Report::new("explain", formula.expression).qualified(formula.title),
    };
    let given = |name: &str| values.iter().find(|(known, _)| known == name).map(|(_, value)| number(*value));
    let mut rows = vec![KeyValue::new("formula", formula.expression).note(phrase!["in ", formula.unit])];
    rows.extend(
        formula
            .symbols
            .iter()
            .map(|symbol| KeyValue::new(symbol.name, given(symbol.name).unwrap_or_default()).note(symbol.meaning)),
    );
    report.blocks.push(Block::key_values("", rows));
    report.blocks.push(Block::key_values("", remarks(formula)));
    report.inputs = Value::Map(values.iter().map(|(name, value)| (name.clone(), Value::Num(*value))).collect());
    report.result = value(formula).with("value", answer.map(|(value, _)| value).unwrap_or_default());
    Ok(report)
}

fn number(value: f64) -> Cell {
    if value.fract() == 0.0 && (0.0..1e30).contains(&value) {
        Cell::Exact(value as u128)
    } else {
        Cell::Text(value.to_string())
    }
}

fn evaluate(formula: &Formula, values: &[(String, f64)]) -> Result<(Value, crate::report::Phrase), Diagnostics> {
    let mut problems = Diagnostics::new();
    let letters: Vec<&str> = formula.symbols.iter().map(|symbol| symbol.name).collect();
    for (name, _) in values.iter().filter(|(name, _)| !letters.contains(&name.as_str())) {
        let message = format!("`{}` has no letter `{name}`", formula.id);
        problems.push(Diagnostic::error("T0442", message).help(letters.join(", ")));
    }
    let mut arguments = Vec::new();
    for symbol in formula.symbols {
        if let Some((_, value)) = values.iter().find(|(name, _)| name == symbol.name) {
            arguments.push(*value);
        } else {
            let message = format!("no value for `{}`, {}", symbol.name, symbol.meaning);
            problems.push(Diagnostic::error("T0442", message).help(format!("{}=1", symbol.name)));
        }
    }
    if problems.has_errors() {
        return Err(problems);
    }
    let answer = match formula.eval {
        Eval::Exact(eval) => {
            let whole = |value: &f64| (value.fract() == 0.0 && (0.0..3.4e38).contains(value)).then_some(*value as u128);
            let whole: Option<Vec<u128>> = arguments.iter().map(whole).collect();
            whole.and_then(|whole| eval(&whole)).map(|value| (Value::Uint(value), number_of(value, formula.unit)))
        }
        Eval::Real(eval) => Some(eval(&arguments)).filter(|value| value.is_finite()).map(|value| {
            (
                Value::Num(value),
                phrase![format!("{value:.6}").trim_end_matches('0').trim_end_matches('.'), " ", formula.unit],
            )
        }),
    };
    answer.ok_or_else(|| {
        let message = format!("`{}` has no answer for these values", formula.expression);
        Diagnostic::error("T0442", message).help("whole numbers that are not negative, and not too large").into()
    })
}

fn number_of(value: u128, unit: &str) -> crate::report::Phrase {
    let bytes = || u64::try_from(value).ok().map(units::Bytes);
    match unit {
        "FLOP" => phrase![value, " FLOP = ", units::Flops(value)],
        "B" => phrase![value, " B = ", bytes()],
        _ => phrase![value, " ", unit],
    }
}

fn value(formula: &Formula) -> Value {
    let symbols = formula.symbols.iter().map(|symbol| (symbol.name.to_owned(), Value::from(symbol.meaning)));
    Value::map()
        .with("id", formula.id)
        .with("title", formula.title)
        .with("expression", formula.expression)
        .with("unit", formula.unit)
        .with("symbols", Value::Map(symbols.collect()))
        .with("caveat", formula.caveat)
        .with("source", formula.source)
        .with("anchor", formula.anchor)
}
