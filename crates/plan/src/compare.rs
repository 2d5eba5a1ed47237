//! Two or more set-ups side by side.

use units::{Bytes, Diagnostic, Diagnostics, Flops, Params};

use crate::flops::StepFlops;
use crate::largest::{self, Grow};
use crate::ledger::{Ledger, Request};
use crate::model::Model;
use crate::on_device::OnDevice;
use crate::params::Counts;
use crate::phrase;
use crate::report::{Cell, Column, Report, Row, Table, Value, Verdict};

/// One set-up.
#[derive(Debug)]
pub struct Setup<'a> {
    /// What tells it from the others.
    pub label: String,
    /// The model.
    pub model: &'a Model,
    /// Its step and device.
    pub request: Request<'a>,
}

/// What is known of one set-up.
struct Measured {
    label: String,
    params: Params,
    active: Params,
    peak: Bytes,
    /// All that it takes of the device, where that is more than the peak.
    device: Option<Bytes>,
    /// Whether it fits, where the device is known.
    fits: Option<bool>,
    buckets: Vec<(&'static str, u64)>,
    model_flop: Flops,
    hardware_flop: Flops,
    largest_batch: Option<u64>,
}

/// Set-ups side by side; with two, the change from the first to the second.
///
/// # Errors
/// Whatever one of the set-ups is refused for, with its label.
pub fn report(setups: &[Setup<'_>]) -> Result<Report, Diagnostics> {
    if setups.len() < 2 {
        return Err(Diagnostic::error("", "a comparison needs two set-ups")
            .help("napkin compare A B")
            .help("--vary recompute=none,full")
            .into());
    }
    let mut problems = Diagnostics::new();
    let mut columns = Vec::new();
    for setup in setups {
        match measure(setup) {
            Ok(column) => columns.push(column),
            Err(found) => problems.extend(found.into_iter().map(|mut d| {
                d.message = format!("{}: {}", setup.label, d.message);
                d
            })),
        }
    }
    if problems.has_errors() {
        return Err(problems);
    }
    let best = columns.iter().min_by_key(|c| c.device.unwrap_or(c.peak)).map_or("", |c| c.label.as_str());
    let mut report = Report::new("compare", phrase!["least memory: ", best]);
    report.blocks.push(table(&columns).into());
    report.result = Value::map().with("setups", Value::List(columns.iter().map(value).collect()));
    if columns.iter().all(|c| c.fits == Some(false)) {
        report.verdict = Verdict::No;
        report.headline.qualifiers.push(phrase!["none fits"]);
    }
    // What all rest on; where they differ the columns say it.
    let rests_on = |setup: &Setup<'_>| -> Vec<_> {
        let step = crate::flops::step_assumptions(&setup.request.options);
        let all = setup.model.assumptions().into_iter().chain(step);
        all.chain(crate::ledger::assumptions(&setup.request)).collect()
    };
    for (at, setup) in setups.iter().enumerate() {
        let assumptions = rests_on(setup);
        if at == 0 {
            report.assumptions = assumptions;
        } else {
            report.assumptions.retain(|one| assumptions.contains(one));
        }
        let warnings = setup.model.step_warnings(&setup.request.options).into_iter();
        let new: Vec<_> = warnings.filter(|one| !report.warnings.contains(one)).collect();
        report.warnings.extend(new);
    }
    Ok(report)
}

fn measure(setup: &Setup<'_>) -> Result<Measured, Diagnostics> {
    let (model, request) = (setup.model, &setup.request);
    let traced = model.trace(&request.options)?;
    let ledger = Ledger::of(&traced, &request.options, request.sharding, &model.spec.names, request.runtime);
    let counts = Counts::of(&traced.params);
    let options = &request.options;
    let flops = StepFlops::of(&traced.trace, options);
    let sequence = |flop: u128| Flops(flop / u128::from(flops.tokens.max(1)) * u128::from(options.seq_len));
    let again = flops.recompute.matmul;
    let mut buckets: Vec<(&'static str, u64)> = Vec::new();
    for line in &ledger.lines {
        match buckets.iter_mut().find(|(name, _)| *name == line.bucket) {
            Some((_, bytes)) => *bytes += line.bytes,
            None => buckets.push((line.bucket, line.bytes)),
        }
    }
    let capacity = request.hardware.map(crate::hardware::Hardware::capacity);
    let largest_batch = capacity
        .map(|capacity| largest::find(&model.spec, request, Grow::Batch, capacity).map(|found| found.size))
        .transpose()?;
    let device = OnDevice::of(model, &traced, &ledger, request);
    Ok(Measured {
        label: setup.label.clone(),
        params: counts.stored,
        active: counts.active,
        peak: Bytes(ledger.peak_bytes),
        device: device.reserved.is_some().then_some(device.total),
        fits: capacity.map(|_| device.fits()),
        buckets,
        model_flop: sequence(flops.forward.matmul + flops.backward.matmul),
        hardware_flop: sequence(flops.forward.matmul + flops.backward.matmul + again),
        largest_batch,
    })
}

fn table(columns: &[Measured]) -> Table {
    let mut heads = vec![Column::left("")];
    heads.extend(columns.iter().map(|c| Column::right(c.label.as_str())));
    let pair = columns.len() == 2;
    if pair {
        heads.push(Column::right("change"));
    }
    let mut table = Table::new("", heads);
    let mut push = |name: &str, cells: Vec<Cell>, values: Vec<f64>| {
        let mut row = vec![Cell::from(name)];
        row.extend(cells);
        if pair && values.len() == 2 && values[0] > 0.0 && values[0] != values[1] {
            let ratio = values[1] / values[0];
            // Beyond that it says no more than the two numbers do.
            row.push(if ratio < 100.0 { Cell::Change(ratio - 1.0) } else { Cell::from("over 100 ×") });
        }
        table.rows.push(Row::new(row));
    };
    let of = |f: &dyn Fn(&Measured) -> Cell| columns.iter().map(f).collect::<Vec<_>>();
    let num = |f: &dyn Fn(&Measured) -> f64| columns.iter().map(f).collect::<Vec<_>>();
    push("parameters", of(&|c| c.params.into()), num(&|c| c.params.as_f64()));
    if columns.iter().any(|c| c.active != c.params) {
        push("active", of(&|c| c.active.into()), num(&|c| c.active.as_f64()));
    }
    push("peak memory", of(&|c| c.peak.into()), num(&|c| c.peak.as_f64()));
    let mut names: Vec<&'static str> = Vec::new();
    for column in columns {
        for (name, _) in &column.buckets {
            if !names.contains(name) {
                names.push(name);
            }
        }
    }
    let bytes = |c: &Measured, name: &str| c.buckets.iter().find(|(n, _)| *n == name).map_or(0, |(_, b)| *b);
    for name in names {
        let label = name.replace('_', " ");
        push(&label, of(&|c| Bytes(bytes(c, name)).into()), num(&|c| bytes(c, name) as f64));
    }
    if columns.iter().any(|c| c.device.is_some()) {
        push("device total", of(&|c| c.device.into()), num(&|c| c.device.map_or(0.0, Bytes::as_f64)));
    }
    push("model FLOP / seq", of(&|c| c.model_flop.into()), num(&|c| c.model_flop.as_f64()));
    push("hardware FLOP / seq", of(&|c| c.hardware_flop.into()), num(&|c| c.hardware_flop.as_f64()));
    if columns.iter().any(|c| c.largest_batch.is_some()) {
        let shown = |c: &Measured| c.largest_batch.map_or(Cell::Empty, |n| Cell::Count(u128::from(n)));
        push("largest micro-batch", of(&shown), Vec::new());
        let fits = |c: &Measured| Cell::from(if c.fits == Some(true) { "yes" } else { "no" });
        push("fits", of(&fits), Vec::new());
    }
    table
}

fn value(column: &Measured) -> Value {
    Value::map()
        .with("label", column.label.as_str())
        .with("parameters", column.params)
        .with("active", column.active)
        .with("peak_bytes", column.peak)
        .with("device_total_bytes", column.device)
        .with("fits", column.fits)
        .with("buckets", Value::Map(column.buckets.iter().map(|(n, b)| ((*n).to_owned(), (*b).into())).collect()))
        .with("model_flop_per_sequence", column.model_flop)
        .with("hardware_flop_per_sequence", column.hardware_flop)
        .with("largest_batch", column.largest_batch)
}
