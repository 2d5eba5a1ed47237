//! The hardware table for people: all of it, one entry with its sources, several side by side.

use crate::hardware::{Hardware, OtherRate, Precision, Scope, Variant, table};
use crate::phrase;
use crate::report::{Block, Cell, Column, KeyValue, Phrase, Report, Row, Table, Value};

/// Every device.
pub fn list() -> Report {
    let all: Vec<&Hardware> = table().iter().collect();
    let mut report = Report::new("hw", phrase![all.len() as u64, " devices"])
        .qualified(phrase!["dense peaks, per device as the runtime counts them"]);
    report.blocks.push(rows(&all).into());
    report.result = Value::map().with("devices", Value::list(all.iter().map(|hardware| value(hardware))));
    report
        .notes
        .push(phrase!["napkin hw h100-sxm shows sources, sparse rates and links; napkin hw h100-sxm b200 compares"]);
    report
}

/// Several devices side by side; one is shown in full.
pub fn show(devices: &[&Hardware]) -> Report {
    match devices {
        [] => list(),
        [one] => full(one),
        _ => compare(devices),
    }
}

fn rows(devices: &[&Hardware]) -> Table {
    let columns = [
        Column::left("name"),
        Column::right("bf16"),
        Column::right("fp16"),
        Column::right("fp8"),
        Column::right("tf32"),
        Column::right("fp32"),
        Column::right("memory"),
        Column::right("bandwidth"),
        Column::right("ridge"),
    ];
    let mut table = Table::new("TFLOP/s", columns);
    for hardware in devices {
        let rate = |precision| match hardware.peak(precision) {
            Some(peak) => {
                Cell::Number { value: peak.rate.get() / 1e12, decimals: if peak.rate.get() < 1e13 { 2 } else { 1 } }
            }
            None => Cell::Text("-".into()),
        };
        let ridge = hardware.ridge_point(Precision::Bf16).map_or(Cell::Text("-".into()), Cell::Intensity);
        table.rows.push(Row::new([
            hardware.name.as_str().into(),
            rate(Precision::Bf16),
            rate(Precision::Fp16),
            rate(Precision::Fp8),
            rate(Precision::Tf32),
            rate(Precision::Fp32),
            hardware.capacity().into(),
            hardware.bandwidth().into(),
            ridge,
        ]));
    }
    table
}

fn compare(devices: &[&Hardware]) -> Report {
    let names: Vec<&str> = devices.iter().map(|hardware| &*hardware.display).collect();
    let mut report = Report::new("hw", names.join(" · ")).qualified(phrase!["dense peaks of one device"]);
    let columns = std::iter::once(Column::left("")).chain(names.iter().map(|name| Column::right(*name)));
    let mut table = Table::new("", columns);
    let mut row = |name: &str, cell: &dyn Fn(&Hardware) -> Cell| {
        let cells: Vec<Cell> = devices.iter().map(|hardware| cell(hardware)).collect();
        if cells.iter().any(|cell| *cell != Cell::Empty) {
            table.rows.push(Row::new(std::iter::once(Cell::from(name)).chain(cells)));
        }
    };
    for precision in Precision::ALL {
        row(precision.name(), &|hardware| hardware.peak(precision).map(|peak| peak.rate).into());
    }
    row("memory, reported", &|hardware| hardware.capacity_reported().into());
    row("memory, nominal", &|hardware| Cell::Text(hardware.capacity_nominal().si()));
    row("memory bandwidth", &|hardware| hardware.bandwidth().into());
    row("ridge point, bf16", &|hardware| hardware.ridge_point(Precision::Bf16).into());
    row("node link", &|hardware| hardware.node_link().map(|link| link.per_direction).into());
    report.blocks.push(table.into());
    report.result = Value::map().with("devices", Value::list(devices.iter().map(|hardware| value(hardware))));
    report
}

fn full(hardware: &Hardware) -> Report {
    let mut report = Report::new("hw", hardware.display.as_str()).qualified(phrase![
        hardware.vendor.as_str(),
        " ",
        hardware.architecture.as_str(),
        ", ",
        hardware.form_factor.as_str(),
        " · one device is ",
        hardware.device.as_str()
    ]);
    let mut peaks = Table::new(
        "dense peak",
        [Column::left("type"), Column::right("rate"), Column::right("ridge point"), Column::left("source")],
    );
    for peak in hardware.peaks() {
        let ridge = hardware.ridge_point(peak.precision);
        peaks.rows.push(Row::new([
            peak.precision.name().into(),
            peak.rate.into(),
            ridge.into(),
            peak.source.to_string().into(),
        ]));
    }
    report.blocks.push(peaks.into());
    let titles = [
        (Variant::Sparse, "sparse (never a denominator)"),
        (Variant::Fp16Accumulate, "accumulating in fp16 (training does not)"),
        (Variant::Measured, "measured on large matrix multiplications"),
    ];
    for (variant, title) in titles {
        let rates: Vec<&OtherRate> = hardware.other_rates().iter().filter(|rate| rate.variant == variant).collect();
        if !rates.is_empty() {
            report.blocks.push(Block::key_values(
                title,
                rates.into_iter().map(|rate| {
                    let text = Cell::Text(format!("{} TFLOP/s", rate.tera()));
                    KeyValue::new(rate.precision.name(), text).note(rate.source.to_string())
                }),
            ));
        }
    }
    let memory = &hardware.memory;
    let mut rows = vec![KeyValue::new("nominal", Cell::Text(memory.nominal.si())).note(phrase![
        memory.kind.as_str(),
        " · ",
        memory.source.to_string()
    ])];
    if let Some((bytes, source)) = &memory.reported {
        rows.push(KeyValue::new("reported", *bytes).note(source.to_string()));
    }
    rows.push(KeyValue::new("bandwidth", memory.bandwidth).note(memory.source.to_string()));
    report.blocks.push(Block::key_values("memory", rows));
    if !hardware.links.is_empty() {
        report.blocks.push(Block::key_values(
            "links, one direction",
            hardware.links.iter().map(|link| {
                let scope = match link.scope {
                    Scope::Node => "node",
                    Scope::Network => "network",
                    Scope::Host => "host",
                };
                let mut note: Phrase = phrase![link.source.to_string()];
                if let Some(text) = &link.note {
                    note = note.and(" · ").and(text.as_str());
                }
                KeyValue::new(format!("{scope}: {}", link.kind), link.per_direction).note(note)
            }),
        ));
    }
    if !hardware.notes.is_empty() {
        report.blocks.push(Block::text("notes", hardware.notes.iter().map(|note| phrase![note.as_str()])));
    }
    if !hardware.aliases.is_empty() {
        report.blocks.push(Block::text("also called", [phrase![hardware.aliases.join(", ")]]));
    }
    report.result = value(hardware);
    report
}

fn value(hardware: &Hardware) -> Value {
    let peaks = hardware.peaks().iter().map(|peak| {
        Value::map()
            .with("precision", peak.precision.name())
            .with("flop_per_second", peak.rate)
            .with("source", peak.source.to_string())
    });
    let others = hardware.other_rates().iter().map(|rate| {
        let variant = match rate.variant {
            Variant::Sparse => "sparse",
            Variant::Fp16Accumulate => "fp16_accumulate",
            Variant::Measured => "measured",
        };
        let map = Value::map().with("precision", rate.precision.name()).with("variant", variant);
        map.with("tera_flop_per_second", rate.tera()).with("source", rate.source.to_string())
    });
    Value::map()
        .with("name", hardware.name.as_str())
        .with("display", hardware.display.as_str())
        .with("vendor", hardware.vendor.as_str())
        .with("kind", hardware.kind.name())
        .with("form_factor", hardware.form_factor.as_str())
        .with("dense_peaks", Value::List(peaks.collect()))
        .with("other_rates", Value::List(others.collect()))
        .with("memory_nominal_bytes", hardware.capacity_nominal())
        .with("memory_reported_bytes", hardware.capacity_reported())
        .with("memory_bytes_per_second", hardware.bandwidth())
        .with("node_link_bytes_per_second", hardware.node_link().map(|link| link.per_direction))
}
