//! What a layout takes and how long, and the best of all layouts, in words.

use nn::Recompute;
use units::{Bytes, Diagnostics};

use super::Layout;
use super::estimate::{Estimate, Run};
use super::search::{Found, Limit, Wanted, loses_by, pareto, search};
use crate::cluster::step::StepTime;
use crate::hardware::Hardware;
use crate::levers::{self, Divided, Setup};
use crate::phrase;
use crate::report::{Assumption, Block, Cell, Column, KeyValue, Origin, Report, Row, Table, Value, Verdict};

/// Adds memory and time of a layout to what is said of it.
///
/// # Errors
/// If it cannot be traced, or the hardware table has no rate for its arithmetic.
pub fn add(report: &mut Report, run: &Run<'_>, layout: &Layout) -> Result<Estimate, Diagnostics> {
    let estimate = run.estimate(layout, &run.traces(layout)?)?;
    let capacity = run.cluster.hardware.capacity();
    let fits = estimate.device <= capacity;
    report.verdict = if fits { Verdict::Answered } else { Verdict::No };
    report.headline.qualifiers.push(phrase![
        Cell::Percent(estimate.mfu.get()),
        " MFU, ",
        estimate.device,
        if fits { " fit in " } else { " do not fit in " },
        capacity
    ]);
    report.blocks.push(memory(&estimate, run.cluster.hardware).into());
    report.blocks.push(time(&estimate).into());
    report.result.insert("estimate", value(&estimate));
    report.result.insert("fits", fits);
    if !fits {
        changes(report, run, layout)?;
    }
    report.assumptions.extend(assumptions(run));
    Ok(estimate)
}

/// Says which changes make a layout fit that does not.
///
/// # Errors
/// If it cannot be traced.
pub(crate) fn changes(report: &mut Report, run: &Run<'_>, layout: &Layout) -> Result<(), Diagnostics> {
    let from = Setup { layout: layout.clone(), step: run.step };
    let found = levers::find(&Divided { run }, &from)?;
    report.blocks.push(found.table().into());
    report.result.insert("levers", found.value());
    report.notes.extend(found.advice());
    Ok(())
}

/// Memory of the ranks that differ.
pub(crate) fn memory(estimate: &Estimate, hardware: &Hardware) -> Table {
    let columns =
        [Column::right("stage"), Column::right("parameters"), Column::one_unit("allocated"), Column::left("at")];
    let mut table = Table::new("memory of a rank", columns);
    for rank in &estimate.memory {
        let held = phrase![rank.in_flight, " micro-batches in flight"];
        let row = [
            Cell::Count(u128::from(rank.place)),
            Cell::Short(u128::from(rank.parameters)),
            Bytes(rank.peak_bytes).into(),
            Cell::from(rank.phase.as_str()),
        ];
        table.rows.push(Row::new(row).note(held));
    }
    let fullest = estimate.memory.iter().map(|rank| rank.peak_bytes).max().unwrap_or(0);
    let outside = estimate.device.get() - fullest;
    let total = [Cell::from("device"), Cell::Empty, estimate.device.into(), Cell::Empty];
    let context =
        phrase!["the fullest, and ", Bytes(outside), " of context and communicators on ", hardware.display.as_str()];
    table.total = Some(Row::new(total).note(context));
    table
}

fn lines(time: &StepTime) -> [(&'static str, f64); 6] {
    [
        ("passes", time.passes),
        ("pipeline bubble", time.bubble),
        ("exchange of gradients", time.gradients),
        ("optimizer", time.optimizer),
        ("exchange of parameters", time.parameters),
        ("slowest node", time.stragglers),
    ]
}

/// The step, line by line.
pub(crate) fn time(estimate: &Estimate) -> Table {
    let columns = [Column::left("time of a step"), Column::right(""), Column::right("share")];
    let mut table = Table::new("", columns);
    let whole = estimate.time.seconds();
    let seconds = |value: f64| Cell::from(units::Seconds::new(value).unwrap_or_default());
    for (name, value) in lines(&estimate.time).into_iter().filter(|(_, value)| *value > 0.0) {
        table.rows.push(Row::new([Cell::from(name), seconds(value), Cell::Percent(value / whole)]));
    }
    let rate = phrase![Cell::Short((estimate.tokens as f64 / whole) as u128), " tokens/s in all"];
    table.total = Some(Row::new([Cell::from("a step"), seconds(whole), Cell::Empty]).note(rate));
    table
}

pub(crate) fn value(estimate: &Estimate) -> Value {
    let time = lines(&estimate.time)
        .into_iter()
        .fold(Value::map(), |map, (name, seconds)| map.with(format!("{}_seconds", name.replace(' ', "_")), seconds));
    let ranks = estimate.memory.iter().map(|rank| {
        Value::map()
            .with("stage", rank.place)
            .with("parameters", rank.parameters)
            .with("allocated_bytes", rank.peak_bytes)
            .with("in_flight", rank.in_flight)
    });
    Value::map()
        .with("step_seconds", estimate.time.seconds())
        .with("time", time)
        .with("mfu", estimate.mfu)
        .with("tokens", estimate.tokens)
        .with("device_bytes", estimate.device)
        .with("ranks", Value::List(ranks.collect()))
}

pub(crate) fn assumptions(run: &Run<'_>) -> Vec<Assumption> {
    let cluster = &run.cluster;
    vec![
        Assumption::new("hardware", "device", cluster.hardware.display.as_str(), Origin::Given).flag("--hw"),
        Assumption::new("network", "network", cluster.network.display.as_str(), Origin::Default)
            .why(phrase!["between nodes of ", cluster.per_node, " devices"])
            .flag("--network"),
        Assumption::new("exchange", "exchanges", "behind the passes", Origin::Default)
            .why("gradients and parameters are exchanged when the passes have ended, but for ZeRO 3, and hide behind nothing"),
    ]
}

/// The best layouts of a run, and what became of the others.
///
/// # Errors
/// As [`search`].
pub fn best(run: &Run<'_>, wanted: &Wanted, most: usize) -> Result<(Report, Found), Diagnostics> {
    let found = search(run, wanted)?;
    let tried = found.tried();
    let mut report = if let Some((layout, estimate)) = found.fits.first() {
        let said = phrase![Cell::Percent(estimate.mfu.get()), " MFU, ", estimate.device, " of ", wanted.capacity];
        Report::new("layout", phrase![layout.to_string()]).qualified(said)
    } else {
        let said = phrase![Cell::Count(tried as u128), " tried on ", wanted.devices, " devices"];
        Report { verdict: Verdict::No, ..Report::new("layout", phrase!["no layout fits"]).qualified(said) }
    };
    if let Some((_, first)) = found.fits.first() {
        report.blocks.push(ranking(&found, first, most).into());
        report.blocks.push(time(first).into());
    }
    report.blocks.push(outcome(&found, tried));
    report.blocks.extend(grid(&found).map(Block::from));
    report.result = result(&found, most, tried);
    report.assumptions.extend(assumptions(run));
    report.warnings.extend(run.model.warnings());
    Ok((report, found))
}

fn ranking(found: &Found, first: &Estimate, most: usize) -> Table {
    let names = ["dp", "tp", "pp", "cp", "ep", "zero", "mbs"];
    // Axes along which nothing is ever divided say nothing.
    let sizes = |layout: &Layout| {
        [layout.dp, layout.tp, layout.pp, layout.cp, layout.ep, u64::from(layout.zero), layout.micro_batch]
    };
    let shown = &found.fits[..found.fits.len().min(most)];
    let said: Vec<usize> = (0..names.len())
        .filter(|&i| !(3..=4).contains(&i) || shown.iter().any(|(layout, _)| sizes(layout)[i] > 1))
        .collect();
    let mut columns = vec![Column::right("#")];
    columns.extend(said.iter().map(|&i| Column::right(names[i])));
    columns.extend([
        Column::left("recompute"),
        Column::right("MFU"),
        Column::one_unit("device"),
        Column::left("loses by"),
    ]);
    let mut table = Table::new("", columns);
    let recomputes = |layout: &Layout| layout.recompute != Recompute::None;
    for (i, (layout, estimate)) in shown.iter().enumerate() {
        let why =
            if i == 0 { "" } else { loses_by(first, estimate, (recomputes(&found.fits[0].0), recomputes(layout))) };
        let mut cells = vec![Cell::Count(i as u128 + 1)];
        cells.extend(said.iter().map(|&at| Cell::Count(u128::from(sizes(layout)[at]))));
        cells.extend([
            Cell::from(layout.recompute.name()),
            Cell::Percent(estimate.mfu.get()),
            estimate.device.into(),
            Cell::from(why),
        ]);
        table.rows.push(Row::new(cells));
    }
    table
}

fn outcome(found: &Found, tried: usize) -> Block {
    let count = |n: usize| Cell::Count(n as u128);
    let states = found.rejected.iter().filter(|one| matches!(one.limit, Limit::States(_))).count();
    let mut rows = vec![
        KeyValue::new("tried", count(tried)),
        KeyValue::new("fit", count(found.fits.len())),
        KeyValue::new("too large", count(found.rejected.len()))
            .note(phrase![count(states), " already by parameters, gradients and states alone"]),
    ];
    let least = found.rejected.iter().filter_map(|one| match one.limit {
        Limit::Memory(bytes) => Some((bytes, &one.layout)),
        Limit::States(_) => None,
    });
    if let (true, Some((bytes, layout))) = (found.fits.is_empty(), least.min_by_key(|(bytes, _)| *bytes)) {
        rows.push(KeyValue::new("the least", bytes).note(layout.to_string()));
    }
    for (reason, count) in &found.untraced {
        rows.push(KeyValue::new("not traced", Cell::Count(*count as u128)).note(reason.as_str()));
    }
    Block::key_values("layouts", rows)
}

/// Best MFU for each tp and pp.
fn grid(found: &Found) -> Option<Table> {
    let mut axes = [Vec::new(), Vec::new()];
    let all = found.fits.iter().map(|(layout, _)| layout).chain(found.rejected.iter().map(|one| &one.layout));
    for layout in all {
        axes[0].push(layout.tp);
        axes[1].push(layout.pp);
    }
    for axis in &mut axes {
        axis.sort_unstable();
        axis.dedup();
    }
    let [tps, pps] = &axes;
    if tps.len() * pps.len() < 2 {
        return None;
    }
    let columns = pps.iter().take(9).map(|pp| Column::right(pp.to_string()));
    let mut table = Table::new("best MFU by tp and pp", std::iter::once(Column::right("tp \\ pp")).chain(columns));
    for &tp in tps {
        let best = |pp: &u64| {
            let fit = found.fits.iter().find(|(layout, _)| layout.tp == tp && layout.pp == *pp);
            let seen = found.rejected.iter().any(|one| one.layout.tp == tp && one.layout.pp == *pp);
            match fit {
                Some((_, estimate)) => Cell::Percent(estimate.mfu.get()),
                None if seen => Cell::from("too large"),
                None => Cell::Empty,
            }
        };
        table.rows.push(Row::new(std::iter::once(Cell::Count(u128::from(tp))).chain(pps.iter().take(9).map(best))));
    }
    Some(table)
}

fn of_layout(layout: &Layout) -> Value {
    Value::map()
        .with("dp", layout.dp)
        .with("tp", layout.tp)
        .with("sp", layout.sp)
        .with("cp", layout.cp)
        .with("ep", layout.ep)
        .with("pp", layout.pp)
        .with("zero", u64::from(layout.zero))
        .with("micro_batch", layout.micro_batch)
        .with("grad_accum", layout.grad_accum)
        .with("recompute", layout.recompute.name())
}

fn result(found: &Found, most: usize, tried: usize) -> Value {
    let one = |(layout, estimate): &(Layout, Estimate)| {
        Value::map().with("layout", of_layout(layout)).with("estimate", value(estimate))
    };
    let front = pareto(&found.fits).into_iter().take(most).map(one);
    Value::map()
        .with("tried", tried as u64)
        .with("fit", found.fits.len() as u64)
        .with("too_large", found.rejected.len() as u64)
        .with("best", Value::List(found.fits.iter().take(most).map(one).collect()))
        .with("pareto", Value::List(front.collect()))
}
