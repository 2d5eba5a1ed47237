//! What a layout takes and how long, and the best of all layouts, in words.

use nn::Recompute;
use units::{Bytes, Diagnostics, Mfu};

use super::Layout;
use super::estimate::{Estimate, Run};
use super::report::counted;
use super::search::{Found, Wanted, devices, nearest_batches, search};
use super::space::Illegal;
use super::terms::host_room;
use crate::cluster::step::StepTime;
use crate::formulas;
use crate::hardware::Hardware;
use crate::ledger::{self, Ledger};
use crate::levers::{self, Divided, Setup};
use crate::phrase;
use crate::report::{
    Assumption, Block, Cell, Chart, Column, Derivation, Heat, HeatCell, KeyValue, Origin, Report, Row, Table, Value,
    Verdict,
};
use crate::time::implausible;

/// Adds memory and time of a layout to what is said of it.
///
/// # Errors
/// If it cannot be traced, or the hardware table has no rate for its arithmetic.
pub fn add(report: &mut Report, run: &Run<'_>, layout: &Layout) -> Result<Estimate, Diagnostics> {
    let (traces, estimate) = run.whole(layout)?;
    let capacity = run.cluster.hardware.capacity();
    let fits = estimate.fits(capacity);
    report.verdict = if fits { Verdict::Answered } else { Verdict::No };
    report.headline.qualifiers.push(phrase![
        Cell::Percent(estimate.mfu.get()),
        " MFU, ",
        estimate.total(),
        if fits { " fit in " } else { " do not fit in " },
        capacity
    ]);
    report.blocks.push(memory(&estimate, run.cluster.hardware).into());
    report.blocks.push(time(&estimate).into());
    report.result.insert("estimate", value(&estimate));
    report.result.insert("fits", fits);
    if !fits {
        changes(report, run, layout, &estimate)?;
    }
    report.assumptions.extend(assumptions(run));
    report.assumptions.push(allocator(&[&estimate], false));
    report.assumptions.extend(on_host(layout));
    let fullest = run.fullest(layout, &traces, &estimate);
    report.derivations.extend(derivations(run, layout, fullest.as_ref(), &estimate));
    report.warnings.extend(implausible(estimate.mfu));
    Ok(estimate)
}

/// Says which changes make a layout fit that does not, of which this was found.
///
/// # Errors
/// If it cannot be traced.
pub(crate) fn changes(
    report: &mut Report,
    run: &Run<'_>,
    layout: &Layout,
    found: &Estimate,
) -> Result<(), Diagnostics> {
    let from = Setup { layout: layout.clone(), step: run.step };
    let found = levers::find(&Divided::with(run, layout, found), &from)?;
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
        let held = phrase![counted(rank.in_flight, "micro-batch", "micro-batches"), " in flight"];
        let row = [
            Cell::Count(u128::from(rank.place)),
            Cell::Short(u128::from(rank.parameters)),
            Bytes(rank.peak_bytes).into(),
            Cell::from(rank.phase.as_str()),
        ];
        table.rows.push(Row::new(row).note(held));
    }
    if let Some(reserved) = estimate.reserved {
        let row = [Cell::Count(u128::from(reserved.place)), Cell::Empty, reserved.bytes.into(), Cell::from("reserved")];
        let why = phrase!["by the allocator, with rounding, workspace and what lies unused"];
        table.rows.push(Row::new(row).note(why));
    }
    let total = [Cell::from("device"), Cell::Empty, estimate.total().into(), Cell::Empty];
    let (outside, name) = (estimate.outside, hardware.display.as_str());
    let context = phrase!["the fullest, and ", outside, " of context and communicators on ", name];
    table.total = Some(Row::new(total).note(context));
    table
}

/// Whose bytes are with the allocator, and whose by tensors alone.
pub(crate) fn allocator(all: &[&Estimate], searched: bool) -> Assumption {
    let simulated = all.iter().filter(|one| one.reserved.is_some()).count();
    let (value, why) = match (simulated, searched) {
        (0, _) if all.is_empty() => ("not simulated", "memory is that of tensors"),
        (0, _) => ("not simulated", "memory is that of tensors: the allocator only adds to it"),
        (_, true) => {
            ("plain", "PyTorch's, simulated for the layouts in the tables; all others are looked at by their tensors")
        }
        (_, false) => ("plain", "PyTorch's, simulated over the allocations of the ranks"),
    };
    Assumption::new("allocator", "allocator", value, Origin::Default).why(why)
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
        .with("device_bytes", estimate.total())
        .with("tensor_bytes", estimate.device)
        .with("reserved_bytes", estimate.reserved.map(|reserved| reserved.bytes))
        .with("outside_bytes", estimate.outside)
        .with("host_bytes", estimate.host)
        .with("ranks", Value::List(ranks.collect()))
}

/// What is taken for granted of what lies on the host.
fn on_host(layout: &Layout) -> Option<Assumption> {
    let (what, how) = if layout.offload.optimizer {
        ("behind the passes", "gradients go there, states are updated and parameters come back, one after the other")
    } else {
        ("beside the passes", "the passes wait for what takes longer")
    };
    let room = phrase![
        "; a device has ",
        host_room(),
        " of its host (data/time/rules.toml), and what copies in flight hold of "
    ];
    let why = phrase![how].and(room).and("the device is not looked at");
    let copies = Assumption::new("host_copies", "copies to the host", what, Origin::Default);
    layout.offload.is_any().then(|| copies.why(why).flag("--offload"))
}

pub(crate) fn assumptions(run: &Run<'_>) -> Vec<Assumption> {
    let cluster = &run.cluster;
    vec![
        Assumption::new("hardware", "device", cluster.hardware.display.as_str(), Origin::Given).flag("--hw"),
        Assumption::new("network", "network", cluster.network.display.as_str(), Origin::Default)
            .why(phrase!["between nodes of ", cluster.per_node, " devices"])
            .flag("--network"),
        match run.engine {
            Some(engine) => Assumption::new("exchange", "exchanges", format!("as {}", engine.title()), Origin::Default)
                .why("beside the passes where it makes them so (data/engines/overlap.csv), else behind"),
            None => Assumption::new("exchange", "exchanges", "behind the passes", Origin::Default)
                .why("gradients and parameters are exchanged when the passes have ended, but for ZeRO 3"),
        },
    ]
}

/// The best layouts of a run, and what became of the others.
///
/// # Errors
/// As [`search`].
pub fn best(run: &Run<'_>, wanted: &Wanted) -> Result<(Report, Found), Diagnostics> {
    let mut found = search(run, wanted)?;
    let mut report = if let Some((layout, estimate)) = found.best.first() {
        let said = phrase![Cell::Percent(estimate.mfu.get()), " MFU, ", estimate.total(), " of ", wanted.capacity];
        Report::new("layout", phrase![layout.to_string()]).qualified(said)
    } else {
        let tried = Cell::Count(u128::from(found.tried()));
        let said = phrase![tried, " tried on ", devices(wanted.devices)];
        Report { verdict: Verdict::No, ..Report::new("layout", phrase!["no layout fits"]).qualified(said) }
    };
    if let Some((_, first)) = found.best.first() {
        report.blocks.push(ranking("", &found.best, &found.best).into());
        report.blocks.push(time(first).into());
        if found.front.len() > 1 {
            let title = "less memory for more time";
            report.blocks.push(ranking(title, &found.front, &found.best).into());
        }
    }
    report.blocks.push(outcome(&found));
    if let Some(heat) = heat(run, &found) {
        report.blocks.push(grid(&heat).into());
        report.charts.push(Chart::Heat(heat));
    }
    report.warnings.extend(found.differs());
    report.warnings.extend(found.best.first().and_then(|(_, estimate)| implausible(estimate.mfu)));
    if let Some((layout, first)) = found.best.first() {
        let fullest = match found.ledger.take() {
            Some((its, ledger)) if its == *layout => Some(ledger),
            _ => run.fullest(layout, &run.traces(layout)?, first),
        };
        report.derivations = derivations(run, layout, fullest.as_ref(), first);
    }
    let batches = nearest_batches(wanted.devices, wanted.global_batch);
    if !batches.is_empty() {
        let batches: Vec<String> = batches.iter().map(u64::to_string).collect();
        let what =
            format!("--gbs {}: sequences that all {} can share", batches.join(" or --gbs "), devices(wanted.devices));
        report.notes.push(phrase![what]);
    }
    report.result = result(run, &found);
    report.assumptions.extend(assumptions(run));
    let shown = found.best.iter().chain(&found.front);
    report.assumptions.extend(shown.clone().find_map(|(layout, _)| on_host(layout)));
    let shown: Vec<&Estimate> = shown.map(|(_, estimate)| estimate).collect();
    report.assumptions.push(allocator(&shown, true));
    if let Some(engine) = wanted.engine {
        let who = Assumption::new("engine", "engine", engine.title(), Origin::Default);
        report.assumptions.push(who.why("what it cannot run is not looked at").flag("--export"));
    }
    report.warnings.extend(run.model.warnings());
    Ok((report, found))
}

/// Layouts beside the first of the best.
fn ranking(title: &str, shown: &[(Layout, Estimate)], best: &[(Layout, Estimate)]) -> Table {
    type Size = (&'static str, fn(&Layout) -> u64, u64);
    let sizes: [Size; 10] = [
        ("dp", |layout| layout.dp, 0),
        ("tp", |layout| layout.tp, 0),
        ("sp", |layout| u64::from(layout.sp), 0),
        ("pp", |layout| layout.pp, 0),
        ("virtual", |layout| layout.virtual_stages, 1),
        ("cp", |layout| layout.cp, 1),
        ("ep", |layout| layout.ep, 1),
        ("etp", |layout| layout.etp, 1),
        ("zero", |layout| u64::from(layout.zero), 0),
        ("mbs", |layout| layout.micro_batch, 0),
    ];
    // Axes along which nothing is ever divided say nothing.
    let said: Vec<_> = sizes
        .into_iter()
        .filter(|(_, size, idle)| *idle == 0 || shown.iter().any(|(layout, _)| size(layout) > *idle))
        .collect();
    let word =
        |of: fn(&Layout) -> String, plain: &str| shown.iter().any(|(layout, _)| of(layout) != plain).then_some(of);
    let schedule =
        word(|layout| if layout.virtual_stages > 1 { "1f1b".to_owned() } else { layout.schedule.to_string() }, "1f1b");
    let offload = word(|layout| layout.offload.to_string(), "none");
    let mut columns = vec![Column::right("#")];
    columns.extend(said.iter().map(|(name, ..)| Column::right(*name)));
    columns.extend(schedule.map(|_| Column::left("schedule")));
    columns.push(Column::left("recompute"));
    columns.extend(offload.map(|_| Column::left("on the host")));
    columns.extend([Column::right("MFU"), Column::one_unit("device"), Column::left("loses by")]);
    let mut table = Table::new(title, columns);
    for (i, (layout, estimate)) in shown.iter().enumerate() {
        let why = match best.first() {
            Some((first, its)) if first != layout => loses_by((first, its), (layout, estimate)),
            _ => String::new(),
        };
        let mut cells = vec![Cell::Count(i as u128 + 1)];
        cells.extend(said.iter().map(|(_, size, _)| Cell::Count(u128::from(size(layout)))));
        cells.extend(schedule.map(|of| Cell::from(of(layout))));
        cells.push(Cell::from(layout.recompute.name()));
        cells.extend(offload.map(|of| Cell::from(of(layout))));
        cells.extend([Cell::Percent(estimate.mfu.get()), estimate.total().into(), Cell::from(why)]);
        table.rows.push(Row::new(cells));
    }
    table
}

/// Why `other` takes longer than `best`: the line of the step that grew most, by how much of the best step, and what the two do
/// otherwise there.
pub fn loses_by(best: (&Layout, &Estimate), other: (&Layout, &Estimate)) -> String {
    let (a, b) = (&best.1.time, &other.1.time);
    let whole = best.1.time.seconds();
    let lines = [
        (b.passes - a.passes, "passes"),
        (b.bubble - a.bubble, "idle in the pipeline"),
        (b.gradients - a.gradients, "exchange of gradients"),
        (b.parameters - a.parameters, "exchange of parameters"),
        (b.optimizer - a.optimizer, "the update"),
        (b.stragglers - a.stragglers, "the slowest node"),
    ];
    let Some((more, line)) = lines.into_iter().max_by(|a, b| a.0.total_cmp(&b.0)) else { return String::new() };
    let why = if line == "passes" { in_passes(best.0, other.0).join(", ") } else { String::new() };
    let by = units::percent(more / whole);
    if why.is_empty() { format!("{line} +{by}") } else { format!("{line} +{by}: {why}") }
}

/// What makes the passes of `other` longer than those of `best`.
fn in_passes(best: &Layout, other: &Layout) -> Vec<&'static str> {
    let over = |of: fn(&Layout) -> u64| of(other) > of(best);
    let all = [
        (other.recompute != Recompute::None && other.recompute != best.recompute, "recomputation"),
        (other.offload.activations && !best.offload.activations, "copies to the host"),
        (over(|layout| layout.tp), "exchanges of tp"),
        (other.tp == best.tp && other.tp > 1 && other.sp != best.sp, "norms and exchanges of sp"),
        (over(|layout| layout.cp), "exchanges of cp"),
        (over(|layout| layout.ep * layout.etp), "rows sent to experts"),
        (other.zero >= 3 && best.zero < 3, "weights gathered in them"),
        (other.zero >= 3 && best.zero >= 3 && over(|layout| layout.grad_accum), "weights gathered more often"),
        (other.micro_batch < best.micro_batch, "smaller products"),
    ];
    all.into_iter().filter(|(is, _)| *is).map(|(_, why)| why).collect()
}

/// How memory, time and utilization of a layout come about.
pub(crate) fn derivations(
    run: &Run<'_>,
    layout: &Layout,
    fullest: Option<&Ledger>,
    estimate: &Estimate,
) -> Vec<Derivation> {
    let hardware = run.cluster.hardware;
    let mut all = Vec::new();
    if let Some(ledger) = fullest {
        all.extend(ledger::derivations(ledger));
        let peak = estimate.memory.iter().map(|rank| rank.peak_bytes).max().unwrap_or(0);
        let most = estimate.reserved.map_or(Bytes(peak), |reserved| reserved.bytes);
        let sum = phrase![most, " + ", estimate.outside];
        all.push(formulas::derive("device", "device", sum, estimate.total()));
    }
    let time = &estimate.time;
    let whole = time.seconds();
    let seconds = |value: f64| Cell::from(units::Seconds::new(value).unwrap_or_default());
    let mut terms = phrase!["("];
    for (at, value) in
        [time.passes, time.bubble, time.gradients, time.optimizer, time.parameters].into_iter().enumerate()
    {
        terms = terms.and(if at == 0 { "" } else { " + " }).and(seconds(value));
    }
    let late = time.stragglers / (whole - time.stragglers).max(f64::MIN_POSITIVE);
    let terms = terms.and(") × (1 + ").and(Cell::Number { value: late, decimals: 4 }).and(")");
    all.push(formulas::derive("step", "step", terms, seconds(whole)));
    if let Some(peak) = hardware.peak(run.arithmetic()) {
        let flop = phrase![run.flop_per_token, " × ", estimate.tokens, " ÷ ", seconds(whole), " ÷ ("];
        let of = flop.and(layout.devices()).and(" × ").and(peak.rate).and(")");
        all.push(formulas::derive("MFU", "mfu", of, estimate.mfu));
    }
    all
}

/// What became of all candidates.
fn outcome(found: &Found) -> Block {
    let count = |n: u64| Cell::Count(u128::from(n));
    let mut rows = vec![
        KeyValue::new("candidates", count(found.counts.candidates)).note("the product of all axes"),
        KeyValue::new("legal", count(found.tried())),
    ];
    for (why, refused) in Illegal::ALL.into_iter().zip(found.counts.illegal).filter(|(_, refused)| *refused > 0) {
        rows.push(KeyValue::new("not legal", count(refused)).note(why.words()));
    }
    for (reason, refused) in &found.untraced {
        rows.push(KeyValue::new("not traced", count(*refused)).note(reason.as_str()));
    }
    rows.push(
        KeyValue::new("too large", count(found.too_large_states)).note("by parameters, gradients and states alone"),
    );
    rows.push(KeyValue::new("too large", count(found.too_large)).note("with what a step needs beside them"));
    if found.too_large_host > 0 {
        rows.push(KeyValue::new("too large", count(found.too_large_host)).note("for the host, by what lies there"));
    }
    if let (0, Some((bytes, layout))) = (found.fit, &found.least) {
        rows.push(KeyValue::new("the least", *bytes).note(layout.to_string()));
    }
    rows.push(KeyValue::new("fit", count(found.fit)));
    if found.fit > found.timed {
        let slower = count(found.fit - found.timed);
        rows.push(KeyValue::new("slower", slower).note("by bounds of their time; the others are timed pass by pass"));
    }
    Block::key_values("layouts", rows)
}

/// The values of a degree of which there is a legal layout.
fn axis(found: &Found, of: fn(&(u64, u64)) -> u64) -> Vec<u64> {
    let mut all: Vec<u64> = found.grid.keys().map(of).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// The same as a table, pp from left to right: as many of them as a terminal has room for.
fn grid(heat: &Heat) -> Table {
    let shown = heat.rows.iter().enumerate().take(9);
    let columns = shown.clone().map(|(_, pp)| Column::right(pp.to_string()));
    let mut table = Table::new("best MFU by tp and pp", std::iter::once(Column::right("tp \\ pp")).chain(columns));
    for (column, tp) in heat.columns.iter().enumerate() {
        let best = |(row, _): (usize, &u64)| match heat.cells.get(row * heat.columns.len() + column) {
            Some(HeatCell::Best { share, .. }) => Cell::Percent(*share),
            Some(HeatCell::TooLarge) => Cell::from("none fits"),
            Some(HeatCell::None) | None => Cell::Empty,
        };
        table.rows.push(Row::new(std::iter::once(Cell::from(*tp)).chain(shown.clone().map(best))));
    }
    table
}

/// Best MFU for each tp and pp, to be drawn.
fn heat(run: &Run<'_>, found: &Found) -> Option<Heat> {
    let (columns, rows) = (axis(found, |cell| cell.0), axis(found, |cell| cell.1));
    let cell = |tp: u64, pp: u64| match found.grid.get(&(tp, pp)) {
        None => HeatCell::None,
        Some(None) => HeatCell::TooLarge,
        Some(Some(timed)) => {
            let share = run.terms().mfu(&timed.layout, &timed.time).map_or(0.0, Mfu::get);
            HeatCell::Best { share, layout: timed.layout.to_string() }
        }
    };
    let cells = rows.iter().flat_map(|pp| columns.iter().map(|tp| cell(*tp, *pp))).collect();
    let title = "best MFU".to_owned();
    (columns.len() * rows.len() > 1).then(|| Heat {
        title,
        x: "tp".to_owned(),
        y: "pp".to_owned(),
        columns,
        rows,
        cells,
    })
}

fn result(run: &Run<'_>, found: &Found) -> Value {
    let blocks = run.model.spec.depth() as u64;
    let one = |(layout, estimate): &(Layout, Estimate)| {
        let whole = super::report::result(layout, &layout.blocks_of(blocks), run.step.seq_len);
        Value::map().with("layout", whole).with("estimate", value(estimate))
    };
    let illegal = Illegal::ALL.into_iter().zip(found.counts.illegal).filter(|(_, count)| *count > 0);
    let reasons = illegal.map(|(why, count)| Value::map().with("why", why.words()).with("candidates", count));
    let untraced =
        found.untraced.iter().map(|(why, count)| Value::map().with("why", why.as_str()).with("layouts", *count));
    Value::map()
        .with("candidates", found.counts.candidates)
        .with("not_legal", Value::List(reasons.collect()))
        .with("tried", found.tried())
        .with("not_traced", Value::List(untraced.collect()))
        .with("fit", found.fit)
        .with("too_large", found.too_large + found.too_large_states + found.too_large_host)
        .with("too_large_by_states", found.too_large_states)
        .with("too_large_by_host", found.too_large_host)
        .with("timed_pass_by_pass", found.timed)
        .with("pareto_size", found.front_size)
        .with("best", Value::List(found.best.iter().map(one).collect()))
        .with("pareto", Value::List(found.front.iter().map(one).collect()))
}
