//! A prediction held against a run of it: parameters, FLOP, bytes and time, and every gap between them by name.
//!
//! | file | noun |
//! |---|---|
//! | `work.rs` | what a recorded step did |
//! | `memory.rs` | from predicted bytes to those that witnesses saw |
//! | `time.rs` | the classes of a step, by roofline and by the clock |

pub mod memory;
pub mod time;
mod work;

pub use memory::{Gaps, Heap, HeapPart, Resident, ResidentPart};
pub use time::{Ceilings, TimedStep};
pub use work::StepWork;

use nn::step::Precision;
use tensor::Trace;
use units::{Bytes, Diagnostic, Flops, Mfu, Params, Seconds};

use crate::phrase;
use crate::report::{Block, Cell, Column, KeyValue, Report, Row, Table, Value, Verdict};

/// What a run measured. What is absent it was too short for, or this system does not tell.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// Elements of the parameters that were trained.
    pub parameters: u64,
    /// A step as the engine recorded it while it computed.
    pub work: Option<StepWork>,
    /// FLOP of products and attention in that step, counted by the kernels that made them.
    pub kernels: Flops,
    /// Highest bytes allocated in a step but for the first, as the engine counts them.
    pub allocated: Option<Bytes>,
    /// The heap at its fullest.
    pub heap: Option<Heap>,
    /// The process.
    pub process: Option<Resident>,
    /// A step by the clock, and what the machine can do at most.
    pub timed: Option<(TimedStep, Ceilings)>,
}

/// The question.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Parameters of the model as predicted.
    pub parameters: Params,
    /// Recording of a steady step on the meta device.
    pub trace: &'a Trace,
    /// Model FLOP of a step.
    pub model_flop: Flops,
    /// Number formats of the step.
    pub precision: Precision,
    /// What was measured.
    pub measured: &'a Measured,
}

impl Request<'_> {
    /// Holds one against the other.
    pub fn report(&self) -> Report {
        let predicted = StepWork::of(self.trace);
        let measured = self.measured;
        let heap = measured.heap.as_ref().map(|heap| Gaps::of_heap(predicted.peak, heap));
        let process = measured.process.as_ref().map(|process| Gaps::of_process(predicted.peak, process));
        let answer = match measured.allocated {
            None => phrase!["not measured; predicted ", predicted.peak],
            Some(allocated) if allocated == predicted.peak => phrase!["allocated as predicted: ", predicted.peak],
            Some(allocated) => phrase!["allocated ", allocated, ", predicted ", predicted.peak],
        };
        let mut report = Report::new("reconcile", answer);
        if let Some(gaps) = &heap {
            report = report
                .qualified(phrase!["heap ", Cell::Change(gaps.excess())])
                .qualified(phrase![format!("{:.3} % unexplained", gaps.unexplained_share() * 100.0)]);
        }
        report.blocks.push(Block::key_values("", self.rows(&predicted)));
        report.blocks.push(self.roles(&predicted).into());
        if let (Some(gaps), Some(heap)) = (&heap, &measured.heap) {
            let event = usize::try_from(heap.op).ok().and_then(|op| self.trace.ops.get(op));
            let place = event.map(|event| format!(", in {} ({})", event.op.name(), event.phase.name()));
            let title = format!("heap at its fullest{}", place.unwrap_or_default());
            report.blocks.push(gaps.table(&title, "heap, as its witness counts").into());
        }
        if let (Some(gaps), Some(process)) = (&process, &measured.process) {
            report.blocks.push(gaps.table("process after the steps", "resident, as the system says").into());
            let most = KeyValue::new("most ever resident", process.peak);
            let share = process.peak.get() as f64 / predicted.peak.get().max(1) as f64;
            let note = phrase!["since the model was built: ", Cell::Percent(share), " of predicted"];
            report.blocks.push(Block::key_values("", [most.note(note)]));
        }
        let time = self.report_time(&mut report);
        report.warnings.extend(self.missing());
        report.warnings.extend(self.different(&predicted));
        let as_predicted = measured.allocated.is_none_or(|allocated| allocated == predicted.peak)
            && measured.parameters == self.parameters.get()
            && measured.work.as_ref().is_none_or(|work| *work == predicted);
        if !as_predicted {
            report.verdict = Verdict::No;
        }
        report.result = Value::map()
            .with("parameters", pair(self.parameters, Params(measured.parameters)))
            .with("model_flop_per_step", self.model_flop)
            .with("ops", pair(predicted.ops.len(), measured.work.as_ref().map(|work| work.ops.len())))
            .with("matmul_flop", pair(predicted.matmul, measured.work.as_ref().map(|work| work.matmul)))
            .with("recomputed_flop", pair(predicted.recomputed, measured.work.as_ref().map(|work| work.recomputed)))
            .with("kernels_flop", measured.kernels)
            .with("allocated_peak_bytes", pair(predicted.peak, measured.allocated))
            .with("heap", heap.as_ref().map(Gaps::value))
            .with("process", process.as_ref().map(Gaps::value))
            .with("time", time);
        report
    }

    fn rows(&self, predicted: &StepWork) -> Vec<KeyValue> {
        let measured = self.measured;
        let verdict =
            |equal: bool, other: Cell| if equal { phrase!["as predicted"] } else { phrase!["measured ", other] };
        let mut rows = vec![
            KeyValue::new("parameters", self.parameters)
                .note(verdict(self.parameters.get() == measured.parameters, Params(measured.parameters).into())),
        ];
        if let Some(work) = &measured.work {
            let ops = predicted.ops.len();
            let note = verdict(predicted.ops == work.ops, Cell::Count(work.ops.len() as u128));
            rows.push(KeyValue::new("ops", Cell::Count(ops as u128)).note(note.and(phrase![", in this order"])));
            let of = |work: &StepWork| Flops(work.matmul.get() + work.recomputed.get());
            let note = verdict(of(predicted) == of(work), of(work).into());
            let change = measured.kernels.as_f64() / of(predicted).as_f64().max(1.0) - 1.0;
            // Tiles of attention at the diagonal multiply pairs that the mask then takes away.
            let counted = phrase!["; kernels counted ", measured.kernels, " (", Cell::Change(change), ")"];
            rows.push(KeyValue::new("FLOP of products", of(predicted)).note(note.and(counted)));
            let note = verdict(predicted.elementwise == work.elementwise, work.elementwise.into());
            rows.push(KeyValue::new("other FLOP", predicted.elementwise).note(note));
        }
        rows
    }

    /// Bytes at the peak by role.
    fn roles(&self, predicted: &StepWork) -> Table {
        let columns = [
            Column::left("bytes at the peak"),
            Column::right("predicted"),
            Column::right("measured"),
            Column::right("difference"),
        ];
        let mut table = Table::new("", columns);
        let difference = |a: Bytes, b: Bytes| match i128::from(b.get()) - i128::from(a.get()) {
            0 => Cell::from("equal"),
            more => Cell::BytesChange(more),
        };
        if let Some(work) = &self.measured.work {
            let find =
                |work: &StepWork, role| work.at_peak.iter().find(|(r, _)| *r == role).map_or(Bytes(0), |(_, b)| *b);
            let roles = tensor::Role::ALL.into_iter().map(|role| (role, find(predicted, role), find(work, role)));
            for (role, before, after) in roles.filter(|(_, a, b)| a.get() + b.get() > 0) {
                let name = role.name().replace('_', " ");
                table.rows.push(Row::new([name.into(), before.into(), after.into(), difference(before, after)]));
            }
        }
        let (before, after) = (predicted.peak, self.measured.allocated);
        let change = after.map(|after| difference(before, after));
        table.total = Some(Row::new(["allocated".into(), before.into(), after.into(), change.unwrap_or_default()]));
        table
    }

    /// The classes of the step, where it was timed and is the predicted one; what of it is for programs.
    fn report_time(&self, report: &mut Report) -> Option<Value> {
        let (step, ceilings) = self.measured.timed.as_ref()?;
        if step.ops.len() != self.trace.ops.len() {
            return None;
        }
        let lines = time::lines(self.trace, &step.ops, ceilings);
        report.blocks.push(time::table(&lines, step, ceilings).into());
        let achieved = self.model_flop.as_f64() / step.seconds;
        let mfu = Mfu::new(achieved / ceilings.products.get()).ok();
        let note = phrase!["of ", ceilings.products, "; memory ", ceilings.bandwidth, "; both measured here"];
        let steps = phrase![format!("the one of median time of {}", step.steps)];
        let mut rows = vec![
            KeyValue::new("step", Seconds::new(step.seconds).map_or(Cell::Empty, Cell::Seconds)).note(steps),
            KeyValue::new("MFU", mfu.map(Cell::from)).note(note),
        ];
        if lines.iter().any(|line| line.predicted > line.measured) {
            let note = phrase!["the tensors were still in the caches, which are faster than memory"];
            rows.push(KeyValue::new("above 100 %", Cell::Empty).note(note));
        }
        report.blocks.push(Block::key_values("", rows));
        Some(time::value(&lines, step, ceilings, self.precision).with("mfu", mfu))
    }

    /// What was not measured, and why not.
    fn missing(&self) -> Vec<Diagnostic> {
        let absent = [
            ("the recording of a step", self.measured.work.is_none()),
            ("the heap", self.measured.heap.is_none()),
            ("the time of a step", self.measured.timed.is_none()),
        ];
        let names: Vec<_> = absent.into_iter().filter(|(_, gone)| *gone).map(|(name, _)| name).collect();
        if names.is_empty() {
            return Vec::new();
        }
        let message = format!("not measured: {}", names.join(", "));
        vec![
            Diagnostic::warning("T0721", message)
                .why("the first steps of a recorded run are for one of them each; this run had fewer")
                .help("--steps 10"),
        ]
    }

    /// A run of something else than what is predicted.
    fn different(&self, predicted: &StepWork) -> Option<Diagnostic> {
        let work = self.measured.work.as_ref()?;
        let at = predicted.ops.iter().zip(&work.ops).position(|(a, b)| a != b);
        let at =
            at.or_else(|| (predicted.ops.len() != work.ops.len()).then(|| predicted.ops.len().min(work.ops.len())))?;
        let name = |ops: &[String]| ops.get(at).map_or("nothing", String::as_str).to_owned();
        let message =
            format!("op {at} is `{}` in the prediction and `{}` in the run", name(&predicted.ops), name(&work.ops));
        Some(
            Diagnostic::warning("T0720", message)
                .why("the run was of another model, or of another version of napkin")
                .effect("gaps are those between two different programs"),
        )
    }
}

fn pair(predicted: impl Into<Value>, measured: impl Into<Value>) -> Value {
    Value::map().with("predicted", predicted).with("measured", measured)
}

#[cfg(test)]
mod tests;
