//! `napkin reconcile --torch-snapshot`: a memory snapshot of PyTorch against the prediction.
//!
//! | module | noun |
//! |---|---|
//! | [`pickle`] | the data of the file, which is never executed |
//! | [`memory`] | segments, blocks and stacks |
//! | [`attribute`] | live blocks, given to storages of a traced step |

pub mod attribute;
pub mod memory;
pub mod pickle;

use std::collections::BTreeMap;

use units::{Bytes, Diagnostic, Diagnostics};

use crate::ledger::{self, Request};
use crate::model::Model;
use crate::phrase;
use crate::report::{Block as Part, Cell, Column, KeyValue, Report, Row, Table, Value, Verdict};
use attribute::{Attribution, Found, Unexplained, attribute};
use memory::{Frame, Snapshot, State};

/// Groups of blocks without an explanation that are shown to people; programs get all.
const SHOWN: usize = 12;

/// The question: a snapshot, and the step it was taken in, where that is known.
#[derive(Debug)]
pub struct Question<'a> {
    /// What was read.
    pub snapshot: Snapshot,
    /// The model and its step.
    pub step: Option<(&'a Model, Request<'a>)>,
    /// Largest share of the live bytes that may be left without a name before the answer is no.
    pub tolerance: Option<f64>,
}

impl Question<'_> {
    /// Answers it.
    ///
    /// # Errors
    /// As [`Model::trace`].
    pub fn report(&self) -> Result<Report, Diagnostics> {
        let live = small(self.snapshot.in_state(State::Allocated));
        let mut report = Report::new("reconcile-snapshot", phrase![Bytes(live), " allocated"]);
        report.headline.qualifiers.push(phrase![Bytes(small(self.snapshot.reserved())), " reserved"]);
        report.result = Value::map().with("snapshot", self.totals());
        let Some((model, request)) = &self.step else {
            report.headline.qualifiers.push(phrase!["give the model to name the blocks"]);
            report.blocks.push(self.totals_block());
            let groups = by_stack(&self.snapshot);
            report.blocks.push(unexplained_table("live blocks by size and stack", &groups).into());
            report.result.insert("blocks", Value::list(groups.iter().map(unexplained_value)));
            report.warnings.extend(self.warnings());
            return Ok(report);
        };
        let traced = model.trace(&request.options)?;
        let found = attribute(&self.snapshot, model, &traced, request);
        let share = found.explained() as f64 / live.max(1) as f64;
        report.headline.qualifiers.push(phrase![Cell::Percent(share), " of what is allocated has a name"]);
        report.headline.qualifiers.push(phrase!["most like: ", found.moment.as_str()]);
        if self.tolerance.is_some_and(|most| 1.0 - share > most) {
            report.verdict = Verdict::No;
        }
        report.blocks.push(line_table(&found).into());
        if !found.unexplained.is_empty() {
            report.blocks.push(unexplained_table("unexplained", &found.unexplained).into());
        }
        report.blocks.push(self.totals_block());
        report.inputs = ledger::inputs(model, request);
        report.result.insert("moment", found.moment.as_str());
        report.result.insert("explained_bytes", found.explained());
        report.result.insert("unexplained_bytes", found.left());
        report.result.insert("lines", Value::list(found.lines.iter().map(line_value)));
        report.result.insert("unexplained", Value::list(found.unexplained.iter().map(unexplained_value)));
        report.warnings = model.step_warnings(&request.options);
        report.warnings.extend(self.warnings());
        report.assumptions = model.assumptions();
        report.assumptions.extend(crate::flops::step_assumptions(&request.options));
        report.assumptions.extend(ledger::assumptions(request));
        Ok(report)
    }

    fn warnings(&self) -> Vec<Diagnostic> {
        let snapshot = &self.snapshot;
        let mut out = Vec::new();
        if snapshot.elsewhere > 0 {
            let message = format!("{} segments of other devices are left out", snapshot.elsewhere);
            out.push(Diagnostic::warning("T0641", message).effect(format!("this is device {}", snapshot.device)));
        }
        if snapshot.blocks().all(|block| block.frames.is_empty()) {
            let problem = Diagnostic::warning("T0642", "the snapshot has no stacks");
            let problem = problem.effect("blocks of equal size are told apart by nothing");
            out.push(problem.help("torch.cuda.memory._record_memory_history() before the first step"));
        }
        out
    }

    fn totals_block(&self) -> Part {
        let snapshot = &self.snapshot;
        let (reserved, allocated) = (small(snapshot.reserved()), small(snapshot.in_state(State::Allocated)));
        let waiting = small(snapshot.in_state(State::Waiting));
        let largest = largest_free(snapshot);
        let unused = (reserved - allocated) as f64 / reserved.max(1) as f64;
        let segments = snapshot.segments.len() as u64;
        let mut rows = vec![
            KeyValue::new("reserved", Bytes(reserved)).note(phrase![segments, " segments"]),
            KeyValue::new("active", Bytes(allocated + waiting)),
            KeyValue::new("allocated", Bytes(allocated))
                .note(phrase![Cell::Percent(unused), " of what is reserved is not"]),
            KeyValue::new("free, largest", Bytes(largest)).note(phrase!["a larger request needs a new segment"]),
        ];
        if waiting > 0 {
            rows[1] = KeyValue::new("active", Bytes(allocated + waiting)).note(phrase![
                "with ",
                Bytes(waiting),
                " that another stream still uses"
            ]);
        }
        Part::key_values("the allocator", rows)
    }

    fn totals(&self) -> Value {
        let snapshot = &self.snapshot;
        let (reserved, allocated) = (small(snapshot.reserved()), small(snapshot.in_state(State::Allocated)));
        let requested = snapshot.blocks().filter(|block| block.state == State::Allocated);
        let requested: u64 = requested.map(|block| block.requested.unwrap_or(block.size)).sum();
        Value::map()
            .with("device", snapshot.device)
            .with("segments", snapshot.segments.len())
            .with("reserved_bytes", reserved)
            .with("active_bytes", allocated + small(snapshot.in_state(State::Waiting)))
            .with("allocated_bytes", allocated)
            .with("requested_bytes", requested)
            .with("largest_free_bytes", largest_free(snapshot))
            .with("fragmentation", (reserved - allocated) as f64 / reserved.max(1) as f64)
    }
}

/// Bytes that 64 bits hold: no device has more.
fn small(bytes: u128) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

fn largest_free(snapshot: &Snapshot) -> u64 {
    snapshot.blocks().filter(|block| block.state == State::Free).map(|block| block.size).max().unwrap_or(0)
}

/// Live blocks by size and stack, where there is no model.
fn by_stack(snapshot: &Snapshot) -> Vec<Unexplained> {
    let empty = BTreeMap::<(u64, Option<Frame>), u64>::new();
    let groups = snapshot.blocks().filter(|block| block.state == State::Allocated).fold(empty, |mut groups, block| {
        *groups.entry((block.size, attribute::telling(&block.frames).cloned())).or_default() += 1;
        groups
    });
    let groups = groups.into_iter().map(|((bytes, frame), count)| Unexplained { bytes, count, frame });
    let mut out: Vec<Unexplained> = groups.collect();
    out.sort_by_key(|one| std::cmp::Reverse((one.total(), one.bytes)));
    out
}

fn words((bucket, part): &attribute::Line) -> String {
    let part = if part.is_empty() { String::new() } else { format!(", {}", part.replace('_', " ")) };
    format!("{}{part}", bucket.replace('_', " "))
}

fn line_table(found: &Attribution) -> Table {
    let columns = [
        Column::left(""),
        Column::one_unit("predicted"),
        Column::one_unit("found"),
        Column::right("blocks"),
        Column::left(""),
    ];
    let mut table = Table::new("what is allocated", columns);
    let mut lines: Vec<_> = found.lines.iter().collect();
    lines.sort_by_key(|(line, found)| (std::cmp::Reverse(found.predicted.0), (*line).clone()));
    for (line, Found { predicted, found }) in lines {
        let missing = predicted.1 - found.1.min(predicted.1);
        let note = if missing > 0 { format!("{missing} not found") } else { String::new() };
        let cells = [words(line).into(), Bytes(predicted.0).into(), Bytes(found.0).into(), found.1.into(), note.into()];
        table.rows.push(Row::new(cells));
    }
    let (left, count) = (found.left(), found.unexplained.iter().map(|one| one.count).sum::<u64>());
    table.rows.push(Row::new(["unexplained".into(), Cell::Empty, Bytes(left).into(), count.into()]));
    table
}

fn unexplained_table(title: &str, groups: &[Unexplained]) -> Table {
    let columns = [Column::left(""), Column::right("blocks"), Column::right("each"), Column::right("all")];
    let mut table = Table::new(title, columns);
    for one in groups.iter().take(SHOWN) {
        let place = one.frame.as_ref().map_or_else(|| "no stack".to_owned(), place);
        table.rows.push(Row::new([place.into(), one.count.into(), Bytes(one.bytes).into(), Bytes(one.total()).into()]));
    }
    let rest = &groups[groups.len().min(SHOWN)..];
    if !rest.is_empty() {
        let (count, all) = (rest.iter().map(|one| one.count).sum::<u64>(), rest.iter().map(Unexplained::total).sum());
        let name = format!("{} more sizes and places", rest.len());
        table.rows.push(Row::new([name.into(), count.into(), Cell::Empty, Bytes(all).into()]));
    }
    table
}

/// `model.py:12 forward`.
fn place(frame: &Frame) -> String {
    let file = frame.file.rsplit(['/', '\\']).next().unwrap_or(&frame.file);
    format!("{file}:{} {}", frame.line, frame.name)
}

fn line_value((line, found): (&attribute::Line, &Found)) -> Value {
    Value::map()
        .with("bucket", line.0)
        .with("part", line.1.as_str())
        .with("predicted_bytes", found.predicted.0)
        .with("predicted_blocks", found.predicted.1)
        .with("found_bytes", found.found.0)
        .with("found_blocks", found.found.1)
}

fn unexplained_value(one: &Unexplained) -> Value {
    Value::map()
        .with("bytes", one.bytes)
        .with("blocks", one.count)
        .with("frame", one.frame.as_ref().map(|frame| format!("{}:{} {}", frame.file, frame.line, frame.name)))
}
