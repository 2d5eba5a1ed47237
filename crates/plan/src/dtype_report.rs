//! A number seen through each floating-point format, and what the formats can hold.

use tensor::float_format::FloatFormat;
use units::Diagnostic;

use crate::nearest::nearest;
use crate::phrase;
use crate::report::{Bits, Block, Cell, Chart, Column, KeyValue, Report, Row, Strip, Table, Value};

/// The formats a number is shown in unless others are asked for.
const SHOWN: [FloatFormat; 5] =
    [FloatFormat::FP32, FloatFormat::BF16, FloatFormat::FP16, FloatFormat::E4M3, FloatFormat::E5M2];

/// The format of that name.
///
/// # Errors
/// `T0421` with the names that look like it.
pub fn format(name: &str) -> Result<FloatFormat, Diagnostic> {
    let lower = name.trim().to_lowercase();
    let known = match lower.as_str() {
        "f64" | "float64" | "double" => "fp64",
        "f32" | "float32" | "float" => "fp32",
        "f16" | "float16" | "half" => "fp16",
        "bfloat16" => "bf16",
        "f8e4m3" | "float8_e4m3fn" => "e4m3",
        "f8e5m2" | "float8_e5m2" => "e5m2",
        other => other,
    };
    FloatFormat::ALL.into_iter().find(|format| format.name == known).ok_or_else(|| {
        let names = FloatFormat::ALL.map(|format| format.name);
        let near = nearest(known, names);
        let help = if near.is_empty() { names.to_vec() } else { near };
        Diagnostic::error("T0421", format!("`{name}` is no floating-point format")).help(help.join(", "))
    })
}

/// Numbers through formats: bits, stored value, relative error.
pub fn numbers(values: &[f64], formats: &[FloatFormat]) -> Report {
    let formats = if formats.is_empty() { &SHOWN } else { formats };
    let [sign, exponent, mantissa] = ["sign", "exponent", "mantissa"];
    let mut report = Report::new(
        "dtype",
        match values {
            [one] => phrase![one.to_string(), " in ", formats.len() as u64, " formats"],
            _ => phrase![values.len() as u64, " numbers in ", formats.len() as u64, " formats"],
        },
    );
    let mut results = Vec::new();
    for value in values {
        let title = if values.len() > 1 { value.to_string() } else { String::new() };
        let columns =
            ["format", "bits", "stored"].map(Column::left).into_iter().chain([Column::right("relative error")]);
        let mut table = Table::new(title, columns);
        let mut each = Vec::new();
        for format in formats {
            let seen = format.describe(*value);
            let error = seen.relative_error.map_or(Cell::Text("-".into()), Cell::Tiny);
            let bits = format!("{} {} {}", seen.sign, seen.exponent, seen.mantissa);
            let mut row = Row::new([format.name.into(), bits.into(), seen.stored_shortest().into(), error]);
            if let Some(note) = seen.note {
                row = row.note(note.to_string());
            }
            table.rows.push(row);
            each.push(
                Value::map()
                    .with("format", format.name)
                    .with("bits", seen.bits)
                    .with(sign, seen.sign.as_str())
                    .with(exponent, seen.exponent.as_str())
                    .with(mantissa, seen.mantissa.as_str())
                    .with("stored", seen.stored)
                    .with("stored_exact", seen.stored_exact())
                    .with("relative_error", seen.relative_error)
                    .with("spacing", format.spacing_at(seen.stored))
                    .with("next_up", format.next_up(seen.stored))
                    .with("next_down", format.next_down(seen.stored))
                    .with("note", seen.note.map(|note| note.to_string())),
            );
        }
        report.charts.push(Chart::Bits(bits(*value, formats)));
        report.blocks.push(table.into());
        if let [format] = formats {
            report.blocks.extend(neighbours(*format, *value));
        }
        results.push(Value::map().with("input", *value).with("formats", Value::List(each)));
    }
    report.inputs = Value::map().with("values", Value::list(values.iter().copied()));
    report.result = Value::map().with("values", Value::List(results));
    report
}

/// The number that a format stores for `value` with one of its bits the other way; bit 0 is the sign. `None` where the format has
/// no such bit.
pub fn flipped(value: f64, format: FloatFormat, bit: u32) -> Option<f64> {
    let place = format.width().checked_sub(1)?.checked_sub(bit)?;
    Some(format.decode(format.encode(value) ^ (1 << place)))
}

/// The bits of a number in each format.
fn bits(value: f64, formats: &[FloatFormat]) -> Bits {
    let strip = |format: &FloatFormat| {
        let seen = format.describe(value);
        let digits = [&seen.sign, &seen.exponent, &seen.mantissa];
        Strip {
            format: format.name.to_owned(),
            value: seen.stored_shortest(),
            bits: digits.iter().flat_map(|part| part.chars()).map(|digit| digit == '1').collect(),
            sign: seen.sign.len(),
            exponent: seen.exponent.len(),
        }
    };
    Bits { strips: formats.iter().map(strip).collect() }
}

/// The steps that move a stored number: what an optimizer has to exceed.
fn neighbours(format: FloatFormat, value: f64) -> Option<Block> {
    let stored = format.round(value);
    let (up, down) = (format.next_up(stored)?, format.next_down(stored)?);
    let even = format.encode(stored).is_multiple_of(2);
    // Half way, the even code wins: if that is this one, a step of exactly half does not move it.
    let needs =
        |gap: f64| Cell::Text(format!("{} {}", if even { "more than" } else { "at least" }, shortest(gap / 2.0)));
    let rows = [
        KeyValue::new("next above", Cell::Text(shortest(up))).note(phrase!["moved up by ", needs(up - stored)]),
        KeyValue::new("next below", Cell::Text(shortest(down))).note(phrase!["moved down by ", needs(stored - down)]),
    ];
    Some(Block::key_values("neighbours", rows))
}

/// What each format can hold.
pub fn table() -> Report {
    let mut report = Report::new("dtype", phrase![FloatFormat::ALL.len() as u64, " formats"]);
    let columns = [
        Column::left("format"),
        Column::right("bits"),
        Column::right("exponent"),
        Column::right("mantissa"),
        Column::right("max"),
        Column::right("smallest normal"),
        Column::right("smallest subnormal"),
        Column::right("epsilon"),
        Column::right("integers exact to"),
    ];
    let mut table = Table::new("", columns);
    let mut values = Vec::new();
    for format in FloatFormat::ALL {
        let short = |value: f64| Cell::Text(brief(value));
        table.rows.push(Row::new([
            format.name.into(),
            format.width().into(),
            format.exponent_bits.into(),
            format.mantissa_bits.into(),
            short(format.max_finite()),
            short(format.min_normal()),
            short(format.min_subnormal()),
            short(format.epsilon()),
            format.max_exact_integer().into(),
        ]));
        values.push(
            Value::map()
                .with("format", format.name)
                .with("bits", format.width())
                .with("exponent_bits", format.exponent_bits)
                .with("mantissa_bits", format.mantissa_bits)
                .with("bias", format.bias)
                .with("has_infinity", format.has_infinity)
                .with("max", format.max_finite())
                .with("smallest_normal", format.min_normal())
                .with("smallest_subnormal", format.min_subnormal())
                .with("epsilon", format.epsilon())
                .with("integers_exact_to", format.max_exact_integer()),
        );
    }
    report.blocks.push(table.into());
    report.result = Value::map().with("formats", Value::List(values));
    report
}

/// The fewest digits that identify the number.
fn shortest(value: f64) -> String {
    FloatFormat::FP64.describe(value).stored_shortest()
}

/// All digits of a whole number below a million; else five digits and an exponent.
fn brief(value: f64) -> String {
    if (1.0..1e6).contains(&value) {
        return value.to_string();
    }
    let text = format!("{value:.4e}");
    match text.split_once('e') {
        Some((digits, exponent)) => format!("{}e{exponent}", digits.trim_end_matches('0').trim_end_matches('.')),
        None => text,
    }
}
