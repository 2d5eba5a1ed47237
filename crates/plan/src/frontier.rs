//! What recomputation buys: the frontier between bytes kept and work done again, block by block.
//!
//! The candidates are the results that a block keeps for backward. Those that cost most FLOP per byte to make again, by
//! their ops' own cost rules, are kept first; every point of the frontier is a traced step.

use nn::Recompute;
use nn::blocks::Blocks;
use nn::spec::ModelSpec;
use nn::step::{StepOptions, StepTrace, Until};
use std::collections::{BTreeMap, BTreeSet};
use tensor::meter::{MemoryChange, OpEvent};
use tensor::{KeepSet, Op, Phase, Role, Trace};
use units::{Bytes, Diagnostics, Flops};

use crate::formulas;
use crate::ledger::{Ledger, Request};
use crate::model::{Model, pattern, trace};
use crate::phrase;
use crate::report::{Cell, Column, Derivation, Report, Row, Table, Value, Verdict};

/// A result of a block that may be kept.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Its op's number in the block.
    pub number: usize,
    /// Its op and module, such as `linear in mlp.up_proj`.
    pub name: String,
    /// Bytes it holds.
    pub bytes: u64,
    /// FLOP to make it again: its op and those before it whose results nobody keeps.
    pub flop: u128,
}

/// A point of the frontier.
#[derive(Clone, Debug)]
pub struct Point {
    /// The policy.
    pub recompute: Recompute,
    /// What was kept last; empty for the two ends.
    pub kept: String,
    /// Peak of a device, runtime included.
    pub peak_bytes: u64,
    /// Contractions of forward and backward in a step.
    pub model: Flops,
    /// Contractions done again in a step.
    pub again: Flops,
    /// The lines of the peak, each as the sum of its tensors.
    pub lines: Vec<Derivation>,
}

/// Results of the first block that backward asks for, best to keep first.
///
/// # Errors
/// As [`trace`].
pub fn candidates(spec: &ModelSpec, options: &StepOptions) -> Result<Vec<Candidate>, Diagnostics> {
    let mut short = spec.clone();
    short.truncate(1);
    let once = StepOptions { recompute: Recompute::None, steps: 1, until: Until::Forward, ..*options };
    let traced = trace(&short, &once)?;
    let mut found = of_block(&traced.trace, Blocks::of(&spec.names));
    // FLOP per byte, by cross-multiplication: exact, and stable in order.
    found.sort_by(|a, b| {
        (b.flop * u128::from(a.bytes)).cmp(&(a.flop * u128::from(b.bytes))).then(a.number.cmp(&b.number))
    });
    Ok(found)
}

fn of_block(trace: &Trace, blocks: Blocks) -> Vec<Candidate> {
    let saved: BTreeSet<u32> = trace
        .memory
        .iter()
        .filter(|e| matches!(e.change, MemoryChange::Role(Role::Activation)))
        .map(|e| e.storage.0)
        .collect();
    let casts: BTreeSet<u32> = trace
        .memory
        .iter()
        .filter(|e| matches!(e.change, MemoryChange::Role(Role::WeightCast)))
        .map(|e| e.storage.0)
        .collect();
    let is_cast = |event: &OpEvent| {
        // Casts of parameters have no number: see the selection of checkpointed regions.
        matches!(event.op, Op::Cast(_)) && event.outputs.iter().any(|o| casts.contains(&o.storage.0))
    };
    let block: Vec<(usize, &OpEvent)> = trace
        .ops
        .iter()
        .enumerate()
        .filter(|(_, e)| e.phase == Phase::Forward && blocks.hold(trace.module(e.module)) && !is_cast(e))
        .collect();
    // Own work, and that of the results before it which nobody keeps: they are made again with it.
    let mut work: BTreeMap<u32, u128> = BTreeMap::new();
    let mut out = Vec::new();
    for (number, &(at, event)) in block.iter().enumerate() {
        let before: u128 = event.inputs.iter().filter_map(|t| work.get(&t.storage.0)).sum();
        let flop = event.cost.matmul + event.cost.elementwise + before;
        let made =
            || event.outputs.iter().map(|o| o.storage.0).filter(|&id| trace.storages[id as usize].born as usize == at);
        let bytes: u64 = made().filter(|id| saved.contains(id)).map(|id| trace.storages[id as usize].bytes).sum();
        if bytes == 0 {
            for id in made() {
                work.insert(id, flop);
            }
            continue;
        }
        let path = pattern(trace.module(event.module));
        let place = path.rsplit("*.").next().unwrap_or("");
        let name =
            if path.ends_with('*') { event.op.name().to_owned() } else { format!("{} in {place}", event.op.name()) };
        out.push(Candidate { number, name, bytes, flop });
    }
    out
}

/// Points from recomputing everything to keeping everything.
///
/// # Errors
/// As [`trace`].
pub fn frontier(spec: &ModelSpec, request: &Request<'_>) -> Result<Vec<Point>, Diagnostics> {
    let found = candidates(spec, &request.options)?;
    let mut points = vec![point(spec, request, Recompute::Full, String::new())?];
    let mut keep = KeepSet::NONE;
    for (i, candidate) in found.iter().enumerate() {
        keep = keep.with(candidate.number);
        // Keeping the last of them is keeping everything.
        if i + 1 < found.len() {
            points.push(point(spec, request, Recompute::Budget(keep), candidate.name.clone())?);
        }
    }
    points.push(point(spec, request, Recompute::None, String::new())?);
    Ok(points)
}

fn point(spec: &ModelSpec, request: &Request<'_>, recompute: Recompute, kept: String) -> Result<Point, Diagnostics> {
    let options = StepOptions { recompute, ..request.options };
    let traced: StepTrace = trace(spec, &options)?;
    let ledger = Ledger::of(&traced, &options, request.sharding, &spec.names, request.runtime);
    let steps = u128::from(options.steps.max(1));
    let flop = |of: &dyn Fn(Phase) -> bool| Flops(traced.trace.cost(|e| of(e.phase)).matmul / steps);
    let model = flop(&|phase| matches!(phase, Phase::Forward | Phase::Backward));
    let again = flop(&|phase| phase == Phase::Recompute);
    let lines = crate::ledger::derivations(&ledger);
    Ok(Point { recompute, kept, peak_bytes: ledger.peak_bytes, model, again, lines })
}

/// The frontier as a report; with a budget, which point is within it.
///
/// # Errors
/// As [`trace`].
pub fn report(model: &Model, request: &Request<'_>, budget: Option<Bytes>) -> Result<Report, Diagnostics> {
    let points = frontier(&model.spec, request)?;
    let capacity = budget.or_else(|| request.hardware.map(crate::hardware::Hardware::capacity));
    let more = |p: &Point| Cell::Change(p.again.get() as f64 / p.model.get().max(1) as f64);
    let fits = |p: &Point| capacity.is_none_or(|c| Bytes(p.peak_bytes) <= c);
    let best = points.iter().filter(|p| fits(p)).min_by_key(|p| (p.again, p.peak_bytes));
    let mut report = match (capacity, best) {
        (Some(capacity), Some(best)) => {
            let kept = match best.recompute {
                Recompute::Full => "with --recompute full".to_owned(),
                Recompute::None => "without recomputation".to_owned(),
                _ => format!("keeping all down to {} in the table", best.kept),
            };
            Report::new("recompute", phrase![Bytes(best.peak_bytes), " of ", capacity]).qualified(phrase![
                "hardware FLOP ",
                more(best),
                ", ",
                kept
            ])
        }
        (Some(capacity), None) => {
            let mut report = Report::new("recompute", "none fits").qualified(phrase!["the budget is ", capacity]);
            report.verdict = Verdict::No;
            report
        }
        (None, _) => match (points.first(), points.last()) {
            (Some(least), Some(most)) => {
                Report::new("recompute", phrase![Bytes(least.peak_bytes), " to ", Bytes(most.peak_bytes)])
                    .qualified(phrase!["for hardware FLOP ", more(least), " to ", more(most)])
            }
            _ => Report::new("recompute", "no policies"),
        },
    };
    let columns = [
        Column::left("kept in every block, row by row"),
        Column::one_unit("peak"),
        Column::right("hardware FLOP"),
        Column::left(""),
    ];
    let mut table = Table::new("", columns);
    for p in &points {
        let mark = if best.is_some_and(|b| b.kept == p.kept && b.recompute == p.recompute) && capacity.is_some() {
            "← least work that fits"
        } else {
            ""
        };
        table.rows.push(Row::new([Cell::from(name(p)), Bytes(p.peak_bytes).into(), more(p), Cell::from(mark)]));
    }
    report.blocks.push(table.into());
    report.inputs = crate::ledger::inputs(model, request);
    let value = |p: &Point| {
        Value::map()
            .with("policy", p.recompute.name())
            .with("keeps_also", p.kept.as_str())
            .with("peak_bytes", p.peak_bytes)
            .with("recomputed_flop", p.again)
            .with("fits", capacity.map(|c| Bytes(p.peak_bytes) <= c))
    };
    report.result =
        Value::map().with("frontier", Value::List(points.iter().map(value).collect())).with("budget_bytes", capacity);
    // Of the point that is answered, or of both ends.
    let shown: Vec<&Point> = match (capacity, best) {
        (Some(_), Some(best)) => vec![best],
        _ => points.first().into_iter().chain(points.last()).collect(),
    };
    for point in shown {
        let named = |one: &Derivation| Derivation { of: format!("{} of {}", one.of, name(point)), ..one.clone() };
        report.derivations.extend(point.lines.iter().map(named));
        let (again, model) = (point.again, point.model);
        let of = format!("hardware FLOP of {}", name(point));
        report.derivations.push(formulas::derive(of, "again", phrase![again, " ÷ ", model], more(point)));
    }
    report.warnings = model.step_warnings(&request.options);
    report.assumptions = model.assumptions();
    report.assumptions.extend(crate::flops::step_assumptions(&request.options));
    report.assumptions.extend(crate::ledger::assumptions(request));
    Ok(report)
}

/// A point in words.
fn name(point: &Point) -> String {
    match point.recompute {
        Recompute::Full => "nothing (--recompute full)".to_owned(),
        Recompute::None => "everything (--recompute none)".to_owned(),
        _ => format!("+ {}", point.kept),
    }
}
