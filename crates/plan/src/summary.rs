//! The main job on one screen: parameters, FLOP, memory, time, and what would change it most.

use nn::step::StepTrace;
use nn::{Profile, Recompute};
use units::{Bytes, Diagnostics, Mfu, Seconds, Tokens};

use crate::fleet::Fleet;
use crate::flops::{StepFlops, step_assumptions, work_of};
use crate::ledger::{self, Ledger, Request, fit_words, peak_words};
use crate::model::{Model, kv_bytes_per_token};
use crate::params::Counts;
use crate::phrase;
use crate::report::{Block, Cell, Column, KeyValue, Phrase, Report, Row, Table, Value, Verdict};
use crate::scaling;
use crate::sharding::Sharding;
use crate::time::{self, Pace};
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
}

/// Everything about a run, on one screen.
///
/// # Errors
/// As [`Model::trace`] and [`time::Request::report`].
pub fn report(model: &Model, question: &Question<'_>) -> Result<Report, Diagnostics> {
    let request = &question.memory;
    let traced = model.trace(&request.options)?;
    let ledger = Ledger::of(&traced, &request.options, request.sharding, model.spec.names.layers, request.runtime);
    let work = work_of(model, &request.options, &traced);
    let capacity = question.fleet.hardware.capacity();
    let peak = Bytes(ledger.peak_bytes);
    let fits = peak <= capacity;

    let mut report = Report::new("plan", if fits { phrase!["fits"] } else { phrase!["does not fit"] });
    report.verdict = if fits { Verdict::Answered } else { Verdict::No };
    report.headline.qualifiers.push(phrase![peak, " of ", capacity, " per ", question.fleet.hardware.display.as_str()]);
    let time = run_time(question, &work)?;
    if let Some(time) = &time {
        let words = time.headline.answer.clone();
        report.headline.qualifiers.push(words.and(" on ").and(question.fleet.name()));
    }
    report.blocks.push(model_block(model, &traced, &work, request));
    report.blocks.push(memory_block(&ledger, &traced, request, capacity).into());
    if let Some(time) = &time {
        report.blocks.extend(time.blocks.iter().cloned());
    }
    let levers = levers(model, request, &ledger)?;
    if !levers.rows.is_empty() {
        report.blocks.push(levers.into());
    }
    report.inputs =
        ledger::inputs(model, request).with("hardware", question.fleet.inputs()).with("tokens", question.tokens);
    let flops = StepFlops::of(&traced.trace, tokens_per_step(request));
    report.result = Value::map()
        .with("fits", fits)
        .with("params", Counts::of(&traced.params).result())
        .with("flop_per_token", work.flop_per_token())
        .with(
            "step",
            Value::map()
                .with("forward_matmul", flops.forward.matmul)
                .with("backward_matmul", flops.backward.matmul)
                .with("recompute_matmul", flops.recompute.matmul),
        )
        .with("ledger", ledger::result(&ledger, &traced.trace, request))
        .with("time", time.as_ref().map_or(Value::Null, |t| t.result.clone()));
    report.warnings = model.warnings();
    report.assumptions = model.assumptions();
    report.assumptions.extend(step_assumptions(&request.options));
    report.assumptions.extend(ledger::assumptions(request));
    report.assumptions.extend(step_defaults(request));
    report.derivations = ledger::derivations(&ledger);
    if let Some(time) = time {
        report.warnings.extend(time.warnings);
        report.assumptions.extend(time.assumptions);
        report.derivations.extend(time.derivations);
    } else {
        report.notes.push(phrase!["--tokens 1T adds how long it takes"]);
    }
    Ok(report)
}

fn tokens_per_step(request: &Request<'_>) -> u64 {
    request.options.batch * request.options.seq_len * request.options.grad_accum_steps
}

fn run_time(question: &Question<'_>, work: &Work) -> Result<Option<Report>, Diagnostics> {
    let Some(tokens) = question.tokens else { return Ok(None) };
    let request = time::Request {
        work: work.clone(),
        tokens,
        fleet: question.fleet.clone(),
        pace: question.pace,
        price: question.price,
    };
    request.report().map(Some)
}

fn model_block(model: &Model, traced: &StepTrace, work: &Work, request: &Request<'_>) -> Block {
    let counts = Counts::of(&traced.params);
    let spec = &model.spec;
    let mut rows = vec![KeyValue::new("parameters", counts.stored).note(parameter_note(&counts))];
    let shape = phrase![
        spec.layers.len() as u64,
        " blocks, hidden_size ",
        spec.hidden_size,
        ", vocab_size ",
        spec.vocab_size,
        " (",
        spec.family.as_str(),
        ")"
    ];
    rows.push(KeyValue::new("model", model.name.as_str()).note(shape));
    let attention = work
        .attention
        .map_or(Phrase::default(), |a| phrase![", of which attention ", Cell::Percent(a / work.flop_per_token())]);
    let note = phrase!["forward and backward, causal, seq_len ", request.options.seq_len].and(attention);
    rows.push(KeyValue::new("FLOP per token", work.flop_per_token()).note(note));
    let kv = Bytes(kv_bytes_per_token(spec, 2));
    rows.push(KeyValue::new("KV cache", kv).note("per token in bf16, for inference"));
    Block::key_values("", rows)
}

fn parameter_note(counts: &Counts) -> Phrase {
    let exact = phrase![Cell::Count(u128::from(counts.stored.get()))];
    if counts.active == counts.stored { exact } else { exact.and(", active per token ").and(counts.active) }
}

fn memory_block(ledger: &Ledger, traced: &StepTrace, request: &Request<'_>, capacity: Bytes) -> Table {
    let peak = Bytes(ledger.peak_bytes);
    let mut table = Table::new(
        "memory of one device",
        [Column::left(""), Column::one_unit(""), Column::left(""), Column::right("")],
    );
    let mut buckets: Vec<(&'static str, u64)> = Vec::new();
    for line in &ledger.lines {
        match buckets.iter_mut().find(|(name, _)| *name == line.bucket) {
            Some((_, bytes)) => *bytes += line.bytes,
            None => buckets.push((line.bucket, line.bytes)),
        }
    }
    buckets.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(b.0)));
    for (name, bytes) in buckets {
        let share = bytes as f64 / ledger.peak_bytes.max(1) as f64;
        table.rows.push(Row::new([
            name.replace('_', " ").into(),
            Bytes(bytes).into(),
            Cell::Bar(share),
            Cell::Percent(share),
        ]));
    }
    let note = fit_words(peak, capacity).and("; peak at: ").and(peak_words(ledger, &traced.trace));
    table.total = Some(Row::new([Cell::from("peak"), peak.into()]).note(note));
    let _ = request;
    table
}

/// A change that may pay, with what it does to the peak.
struct Lever {
    flag: String,
    effect: &'static str,
    options: nn::step::StepOptions,
    sharding: Sharding,
}

/// The changes that move the peak most.
fn levers(model: &Model, request: &Request<'_>, now: &Ledger) -> Result<Table, Diagnostics> {
    let options = request.options;
    let mut all = Vec::new();
    let mut push =
        |flag: &str, effect, options, sharding| all.push(Lever { flag: flag.to_owned(), effect, options, sharding });
    if options.recompute != Recompute::Full {
        push(
            "--recompute full",
            "hardware FLOP +⅓ of the blocks",
            nn::step::StepOptions { recompute: Recompute::Full, ..options },
            request.sharding,
        );
    }
    if request.sharding.dp > 1 && request.sharding.zero < 3 {
        push("--zero 3", "weights are gathered for every block", options, Sharding { zero: 3, ..request.sharding });
    }
    if options.batch > 1 {
        let batch = options.batch / 2;
        let flag = format!("--batch {batch}");
        push(&flag, "twice the accumulation steps", nn::step::StepOptions { batch, ..options }, request.sharding);
    }
    if options.profile == Profile::HfEager && model.spec.has_sdpa {
        push(
            "--profile hf-sdpa",
            "scores are never stored",
            nn::step::StepOptions { profile: Profile::HfSdpa, ..options },
            request.sharding,
        );
    }
    let mut rows = Vec::new();
    for lever in all {
        let peak = scaling::peak(&model.spec, &lever.options, lever.sharding, request.runtime)?;
        let change = i128::from(peak) - i128::from(now.peak_bytes);
        rows.push((peak, change, lever));
    }
    rows.sort_by_key(|(peak, ..)| *peak);
    let mut table = Table::new("largest levers", [Column::left(""), Column::right(""), Column::right("")]);
    for (peak, change, lever) in rows.into_iter().filter(|(_, change, _)| *change < 0) {
        table.rows.push(Row::new([lever.flag.into(), phrase_cell(peak), Cell::BytesChange(change)]).note(lever.effect));
    }
    Ok(table)
}

fn phrase_cell(peak: u64) -> Cell {
    Cell::Bytes(Bytes(peak))
}

/// Choices of the step that nobody made.
fn step_defaults(request: &Request<'_>) -> Vec<crate::report::Assumption> {
    use crate::report::{Assumption, Origin};
    let options = &request.options;
    let of = |id, label: &str, value: String, flag| {
        Assumption::new(id, label, Cell::Text(value), Origin::Default).flag(flag)
    };
    vec![
        of("precision", "precision", options.precision.name().to_owned(), "--precision"),
        of("optimizer", "optimizer", options.optimizer.kind.name().to_owned(), "--optimizer"),
        of("recompute", "recompute", options.recompute.name().to_owned(), "--recompute"),
        of("batch", "micro-batch", options.batch.to_string(), "--batch"),
        of("seq_len", "seq_len", options.seq_len.to_string(), "--seq-len"),
        of("zero", "ZeRO", format!("{} over {} devices", request.sharding.zero, request.sharding.dp), "--zero"),
    ]
}

/// A pace from an optional utilization and an optional deadline.
pub fn pace(mfu: Option<Mfu>, deadline: Option<Seconds>) -> Pace {
    match (mfu, deadline) {
        (Some(mfu), _) => Pace::Mfu(mfu),
        (None, Some(time)) => Pace::Deadline(time),
        (None, None) => Pace::Unknown,
    }
}
