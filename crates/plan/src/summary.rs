//! The main job on one screen: parameters, FLOP, memory, time, and what would change it most; [`divided`] for a run whose
//! layout is given.

pub mod divided;
pub mod whole;

use nn::Recompute;
use nn::blocks::Blocks;
use nn::step::{StepOptions, StepTrace};
use units::{Bytes, Diagnostic, Diagnostics, Tokens};

use crate::charts;
use crate::fleet::Fleet;
use crate::flops::{StepFlops, step_assumptions, work_of};
use crate::hardware::Precision;
use crate::inference::cache::{Cache, WIDTH};
use crate::ledger::{self, Ledger, Request, fit_words, peak_words};
use crate::levers::{self, Alone, Lever, Levers, Measure, Setup, Taken};
use crate::model::Model;
use crate::on_device::OnDevice;
use crate::parallel::both;
use crate::params::Counts;
use crate::phrase;
use crate::quant::Format;
use crate::report::{Block, Cell, Chart, Column, KeyValue, Phrase, Report, Row, Table, Value, Verdict};
use crate::scaling::Scaled;
use crate::sharding::Sharding;
use crate::time::{self, Pace};
use crate::wall::Around;
use crate::work::Work;

/// The question: a step on one device of a fleet, and a run of so many tokens.
#[derive(Clone, Debug)]
pub struct Question<'a> {
    /// Memory of one device.
    pub memory: Request<'a>,
    /// Devices.
    pub fleet: Fleet,
    /// Tokens of the run, if a time is asked for.
    pub tokens: Option<Tokens>,
    /// What is known of the speed.
    pub pace: Pace,
    /// US dollars for one device and hour.
    pub price: Option<f64>,
    /// What there is around the steps of the run.
    pub around: Around,
}

/// Everything about a run, on one screen.
///
/// # Errors
/// As [`Model::trace`] and [`time::Request::report`].
pub fn report(model: &Model, question: &Question<'_>) -> Result<Report, Diagnostics> {
    let request = &question.memory;
    let traced = model.trace(&request.options)?;
    let ledger = Ledger::of(&traced, &request.options, request.sharding, &model.spec.names, request.runtime);
    let work = work_of(model, &request.options, &traced);
    let capacity = question.fleet.hardware.capacity();
    let device = OnDevice::of(model, &traced, &ledger, request);
    let fits = device.fits();

    let mut report = Report::new("plan", if fits { phrase!["fits"] } else { phrase!["does not fit"] });
    report.verdict = if fits { Verdict::Answered } else { Verdict::No };
    let total = device.total;
    report.headline.qualifiers.push(phrase![
        total,
        " of ",
        capacity,
        " per ",
        question.fleet.hardware.display.as_str()
    ]);
    let time = run_time(question, &work)?;
    if let Some(time) = &time {
        let words = time.headline.answer.clone();
        report.headline.qualifiers.push(words.and(" on ").and(question.fleet.name()));
        if time.verdict == Verdict::No {
            report.verdict = Verdict::No;
            // After the name of the fleet, which is said already.
            report.headline.qualifiers.extend(time.headline.qualifiers.iter().skip(1).cloned());
        }
    }
    let kept = Cache::of(&model.spec, Format::bf16(), WIDTH)?;
    report.blocks.push(model_block(model, &Counts::of(&traced.params), &work, &kept, request.options.seq_len));
    report.blocks.push(memory_block(&ledger, &traced, &device, capacity).into());
    if let Some(time) = &time {
        report.blocks.extend(time.blocks.iter().cloned());
    }
    let levers = levers_of(model, request, &ledger, &device, capacity)?;
    if levers.all().next().is_some() {
        report.blocks.push(lever_table(&levers).into());
    }
    report.inputs =
        ledger::inputs(model, request).with("hardware", question.fleet.inputs()).with("tokens", question.tokens);
    let flops = StepFlops::of(&traced.trace, &request.options);
    report.result = Value::map()
        .with("fits", fits)
        .with("params", Counts::of(&traced.params).result())
        .with("flop_per_token", work.flop_per_token())
        .with("kv_cache_bytes_per_token", kept.token_bytes(1))
        .with("kv_cache_bytes_at_max_positions", model.spec.max_positions.map(|most| kept.sequence_bytes(most, 1)))
        .with(
            "step",
            Value::map()
                .with("forward_matmul", flops.forward.matmul)
                .with("backward_matmul", flops.backward.matmul)
                .with("recompute_matmul", flops.recompute.matmul),
        )
        .with("ledger", ledger::result(&ledger, &device, &traced.trace, request))
        .with("levers", levers.value())
        .with("time", time.as_ref().map_or(Value::Null, |t| t.result.clone()));
    report.charts = charts(question, &ledger, &device, &traced, &work, request);
    report.warnings = model.step_warnings(&request.options);
    report.warnings.extend(ledger::warnings(request));
    report.warnings.extend(device.warning());
    report.notes.extend(device.remedy(Blocks::of(&model.spec.names), &traced, &ledger, request));
    report.notes.extend(device.gaps(model, &traced, &ledger, request));
    report.notes.extend(levers.advice());
    report.assumptions = model.assumptions();
    report.assumptions.extend(step_assumptions(&request.options));
    report.assumptions.extend(ledger::assumptions(request));
    report.derivations = ledger::derivations(&ledger);
    if let Some(time) = time {
        // What both parts rest on is said once.
        let more: Vec<_> = time.warnings.into_iter().filter(|one| !report.warnings.contains(one)).collect();
        report.warnings.extend(more);
        let more: Vec<_> = time.assumptions.into_iter().filter(|one| !report.assumptions.contains(one)).collect();
        report.assumptions.extend(more);
        report.derivations.extend(time.derivations);
    } else {
        // A run would be refused; memory alone is answered.
        if let Err(problem) = question.fleet.peak() {
            let effect = "the bytes are those of a device that has it";
            let bf16 = question.fleet.hardware.peak(Precision::Bf16).is_some();
            let help = if bf16 { "--precision bf16-mixed" } else { "--precision fp16-mixed" };
            report.warnings.push(Diagnostic::warning("T0401", problem.message).effect(effect).help(help));
        }
        report.notes.push(phrase!["--tokens 1T adds how long it takes"]);
    }
    Ok(report)
}

/// The device, what ops ask of it, and the time on more or fewer of them.
fn charts(
    question: &Question<'_>,
    ledger: &Ledger,
    device: &OnDevice,
    traced: &StepTrace,
    work: &Work,
    request: &Request<'_>,
) -> Vec<Chart> {
    let fleet = &question.fleet;
    let mut all = vec![Chart::Bar(ledger::stack(ledger, device))];
    all.extend(charts::flop_tree(&traced.trace).map(Chart::Tree));
    all.extend(charts::roofline(&traced.trace, &request.options, fleet).map(Chart::Roofline));
    all.extend(
        question
            .tokens
            .and_then(|tokens| charts::curve(tokens * work.flop_per_token(), fleet, question.pace))
            .map(Chart::Curve),
    );
    all
}

fn run_time(question: &Question<'_>, work: &Work) -> Result<Option<Report>, Diagnostics> {
    let Some(tokens) = question.tokens else { return Ok(None) };
    let request = time::Request {
        work: work.clone(),
        tokens,
        fleet: question.fleet.clone(),
        pace: question.pace,
        price: question.price,
        around: question.around,
    };
    request.report().map(Some)
}

fn model_block(model: &Model, counts: &Counts, work: &Work, kept: &Cache, seq_len: u64) -> Block {
    let spec = &model.spec;
    let mut rows = vec![KeyValue::new("parameters", counts.stored).note(parameter_note(counts))];
    let shape = phrase![
        model.name.as_str(),
        ": ",
        spec.layers.len() as u64,
        " blocks, hidden_size ",
        spec.hidden_size,
        ", vocab_size ",
        spec.vocab_size,
    ];
    rows.push(KeyValue::new("model", spec.family.as_str()).note(shape));
    let attention = work
        .attention
        .map_or(Phrase::default(), |a| phrase![", of which attention ", Cell::Percent(a / work.flop_per_token())]);
    let note = phrase!["forward and backward, causal, seq_len ", seq_len].and(attention);
    rows.push(KeyValue::new("FLOP per token", work.flop_per_token()).note(note));
    let kv = Bytes(kept.token_bytes(1));
    let windows = spec
        .layers
        .iter()
        .filter(|layer| layer.attention().is_some_and(|attention| attention.window.is_some()))
        .count() as u64;
    let mut note = phrase!["per token in bf16, for inference"];
    if windows > 0 {
        note = note.and(phrase!["; ", windows, " of ", spec.layers.len() as u64, " blocks keep their window only"]);
    }
    if let Some(most) = spec.max_positions
        && let Ok(bytes) = u64::try_from(kept.sequence_bytes(most, 1))
    {
        note = note.and(phrase!["; ", Bytes(bytes), " at ", most, " tokens"]);
    }
    if spec.predicts_next_token() && spec.continues_text() {
        rows.push(KeyValue::new("KV cache", kv).note(note));
    }
    Block::key_values("", rows)
}

fn parameter_note(counts: &Counts) -> Phrase {
    let exact = phrase![Cell::Count(u128::from(counts.stored.get()))];
    if counts.active == counts.stored { exact } else { exact.and(", active per token ").and(counts.active) }
}

fn memory_block(ledger: &Ledger, traced: &StepTrace, device: &OnDevice, capacity: Bytes) -> Table {
    let peak = Bytes(ledger.peak_bytes);
    let mut table = Table::new(
        "memory of one device",
        [Column::left(""), Column::one_unit(""), Column::left(""), Column::right("")],
    );
    let stack = ledger::stack(ledger, device);
    for (name, bytes) in &stack.segments {
        let share = stack.share(*bytes);
        let row = Row::new([name.as_str().into(), (*bytes).into(), Cell::Bar(share), Cell::Percent(share)]);
        // Below what every other line is a part of.
        let added = name == ledger::ALLOCATOR;
        table.rows.push(if added { row.note("workspace, rounding and unused parts of what is reserved") } else { row });
    }
    let place = phrase!["peak at: ", peak_words(ledger, &traced.trace)];
    if device.reserved.is_none() {
        let note = fit_words(peak, capacity).and("; ").and(place);
        table.total = Some(Row::new([Cell::from("peak"), peak.into()]).note(note));
        return table;
    }
    let note = fit_words(device.total, capacity).and("; ").and(place);
    table.total = Some(Row::new([Cell::from("device total"), device.total.into()]).note(note));
    table
}

/// The changes that move the peak most, most first; where the step does not fit, those that make it fit, the cheapest first.
fn levers_of(
    model: &Model,
    request: &Request<'_>,
    ledger: &Ledger,
    device: &OnDevice,
    capacity: Bytes,
) -> Result<Levers, Diagnostics> {
    let alone = Alone::new(model, request, ledger, device);
    let from = Setup::alone(&request.options, request.sharding);
    if device.fits() {
        return levers::strongest(&alone, &from);
    }
    let (found, more) = both(|| levers::find(&alone, &from), || more_devices(model, request, &alone, capacity));
    let mut found = found?;
    found.together.extend(more?);
    Ok(found)
}

/// The fewest devices, in powers of two, on which a step fits: as it is, or else with everything recomputed.
fn more_devices(
    model: &Model,
    request: &Request<'_>,
    alone: &Alone<'_>,
    capacity: Bytes,
) -> Result<Option<Lever>, Diagnostics> {
    let more = |power: u32| Sharding { gathering: request.sharding.gathering, ..Sharding::new(3, 1 << power) };
    let least = |options: &StepOptions| -> Result<Option<(Setup, Taken)>, Diagnostics> {
        let on = |power| Setup::alone(options, more(power));
        let scaled = Scaled::of(&model.spec, &on(0).options().steady());
        // The allocator takes more than the estimate.
        let (mut low, mut high) = (request.sharding.dp.checked_ilog2().unwrap_or(0) + 1, MOST_DEVICES + 1);
        while low < high {
            let middle = low.midpoint(high);
            let fits = scaled.peak(more(middle), request.runtime)? <= capacity.get();
            if fits { high = middle } else { low = middle + 1 }
        }
        let taken = |power| {
            let setup = on(power);
            let taken = alone.taken(&scaled, &setup).ok().filter(|taken| taken.fits)?;
            Some((setup, taken))
        };
        // Where twice as many are not enough, more of them hardly ever are.
        let first = (low..=MOST_DEVICES.min(low + 1)).find_map(taken);
        Ok(first.or_else(|| taken(MOST_DEVICES).and_then(|_| (low + 2..=MOST_DEVICES).find_map(taken))))
    };
    let full = StepOptions { recompute: Recompute::Full, ..request.options };
    let found = match least(&request.options)? {
        Some(found) => Some((found, "")),
        None if full == request.options => None,
        None => least(&full)?.map(|found| (found, " --recompute full")),
    };
    let Some(((setup, taken), more)) = found else { return Ok(None) };
    let devices = setup.layout.dp;
    Ok(Some(Lever {
        flag: format!("-n {devices} --zero 3{more}"),
        effect: "the fewest on which it fits, in powers of two, each with as many sequences".to_owned(),
        taken: Taken { seconds: alone.seconds(&setup), ..taken },
        devices,
        other_numbers: false,
    }))
}

/// Power of two of the most devices that are tried.
const MOST_DEVICES: u32 = 16;

fn lever_table(levers: &Levers) -> Table {
    if !levers.now.fits {
        return levers.table();
    }
    let mut table = Table::new("largest levers", [Column::left(""), Column::right("peak"), Column::right("")]);
    for lever in &levers.each {
        let taken = &lever.taken;
        let change = Cell::BytesChange(-i128::from(taken.frees(&levers.now)));
        let cells = [lever.flag.as_str().into(), Bytes(taken.bytes()).into(), change];
        table.rows.push(Row::new(cells).note(lever.effect.as_str()));
    }
    table
}
