//! What an einsum costs: FLOP, bytes, intensity, the bound on given hardware, and the order for many operands.

use tensor::DType;
use tensor::einops::{Contraction, Equation};
use units::{Bytes, Diagnostic, Diagnostics, FlopPerSecond, Flops, Location, Mfu, Seconds};

use crate::fleet::Fleet;
use crate::formulas::known;
use crate::phrase;
use crate::report::{Assumption, Block, Cell, Column, Derivation, KeyValue, Origin, Report, Row, Table, Value};

/// The question.
#[derive(Clone, Debug)]
pub struct Request {
    /// The equation, by names or by letters.
    pub equation: String,
    /// The size of each axis.
    pub sizes: Vec<(String, u64)>,
    /// What the operands are stored as.
    pub dtype: DType,
    /// True if that was given, not assumed.
    pub dtype_given: bool,
    /// On what it runs, if that is asked.
    pub fleet: Option<Fleet>,
}

/// Bytes that one step reads and writes.
struct Step {
    flop: Flops,
    bytes: Bytes,
}

impl Request {
    /// Answers it.
    ///
    /// # Errors
    /// `T0431` for an equation that cannot be read or does not go with the sizes.
    pub fn report(&self) -> Result<Report, Diagnostics> {
        let sizes: Vec<(&str, u64)> = self.sizes.iter().map(|(name, size)| (name.as_str(), *size)).collect();
        let contraction =
            Equation::parse(&self.equation).and_then(|equation| equation.resolve_sizes(&sizes)).map_err(|error| {
                let span = error.spans().first().map_or(0..0, |span| span.start..span.end);
                let place = Location::in_source("einsum", error.pattern(), span);
                let problem = Diagnostic::error("T0431", error.message()).at(place);
                let problem = error.why().into_iter().fold(problem, Diagnostic::why);
                Diagnostics::from(error.help().into_iter().fold(problem, Diagnostic::help))
            })?;
        let steps = self.steps(&contraction);
        let flop: Flops = steps.iter().map(|step| step.flop).sum();
        let bytes: Bytes = steps.iter().map(|step| step.bytes).sum();
        if flop.is_saturated() || bytes.is_saturated() {
            return Err(Diagnostic::error("T0432", "these sizes are too large to be counted").into());
        }
        let intensity = flop / bytes;
        let mut report =
            Report::new("einsum", flop).qualified(phrase![Cell::Traffic(bytes), " moved"]).qualified(intensity);
        report.result = Value::map()
            .with("flop", flop)
            .with("bytes_moved", bytes)
            .with("intensity_flop_per_byte", intensity)
            .with("output_shape", Value::list(contraction.output_shape.iter().copied()))
            .with("left_to_right_flop", contraction.path.left_to_right_flops)
            .with("largest_intermediate_elements", contraction.path.largest_intermediate);
        if let Some(fleet) = &self.fleet {
            bound(&mut report, fleet, flop, bytes)?;
        }
        self.describe(&mut report, &contraction, &steps);
        let shown = self.sizes.iter().map(|(name, size)| (name.clone(), Value::from(*size)));
        report.inputs = Value::map()
            .with("equation", self.equation.as_str())
            .with("sizes", Value::Map(shown.collect()))
            .with("dtype", self.dtype.name())
            .with("hardware", self.fleet.as_ref().map(Fleet::inputs));
        if !self.dtype_given {
            report
                .assumptions
                .push(Assumption::new("dtype", "dtype", self.dtype.name(), Origin::Default).flag("--dtype"));
        }
        let why = phrase!["each operand read once, each result written once"];
        report.assumptions.push(Assumption::new("traffic", "traffic", Cell::Empty, Origin::Derived).why(why));
        let formula = known("intensity");
        report.derivations.push(Derivation {
            of: "intensity".to_owned(),
            formula: "intensity",
            expression: formula.expression.to_owned(),
            substituted: phrase![Cell::Exact(flop.get()), " FLOP ÷ ", Cell::Exact(u128::from(bytes.get())), " B"],
            result: intensity.into(),
            source: formula.source.to_owned(),
            anchor: formula.anchor,
        });
        Ok(report)
    }

    /// Every pair; an einsum of one operand only moves.
    fn steps(&self, contraction: &Contraction) -> Vec<Step> {
        let each = u128::from(self.dtype.size_in_bytes());
        let elements = |axes: &[u8]| {
            let sizes = axes.iter().map(|&axis| u128::from(contraction.indices[axis as usize].size));
            sizes.fold(1_u128, u128::saturating_mul)
        };
        let bytes = |parts: [u128; 3]| {
            let sum = parts.into_iter().fold(0_u128, u128::saturating_add).saturating_mul(each);
            Bytes(u64::try_from(sum).unwrap_or(u64::MAX))
        };
        if contraction.path.steps.is_empty() {
            let read = contraction.operands.first().map_or(0, |operand| elements(&operand.passed));
            return vec![Step { flop: Flops::ZERO, bytes: bytes([read, elements(&contraction.output), 0]) }];
        }
        let mut held: Vec<u128> = contraction.operands.iter().map(|operand| elements(&operand.axes)).collect();
        let mut steps = Vec::new();
        for step in &contraction.path.steps {
            let parts = [held[step.lhs], held[step.rhs], step.size.output()];
            steps.push(Step { flop: Flops(step.size.flops()), bytes: bytes(parts) });
            held.push(step.size.output());
        }
        steps
    }

    fn describe(&self, report: &mut Report, contraction: &Contraction, steps: &[Step]) {
        let path = &contraction.path;
        let output: u128 = contraction.output_shape.iter().map(|&size| u128::from(size)).product();
        let size =
            Bytes(u64::try_from(output.saturating_mul(u128::from(self.dtype.size_in_bytes()))).unwrap_or(u64::MAX));
        match path.steps.as_slice() {
            [] => report.blocks.push(Block::text("", [phrase!["one operand: nothing is contracted with another"]])),
            [step] => {
                let line = phrase![contraction.describe(step), " · output ", Cell::Traffic(size)];
                report.blocks.push(Block::text("", [line]));
            }
            all => {
                let held = |number: usize| match number.checked_sub(contraction.operands.len()) {
                    None => format!("operand {}", number + 1),
                    Some(step) => format!("step {}", step + 1),
                };
                let columns =
                    [Column::right("step"), Column::left("contracts"), Column::right("FLOP"), Column::right("moved")];
                let mut table = Table::new("contraction order", columns);
                for (at, (step, cost)) in all.iter().zip(steps).enumerate() {
                    let pair = format!("{} × {}", held(step.lhs), held(step.rhs));
                    let cells = [(at as u64 + 1).into(), pair.into(), cost.flop.into(), Cell::Traffic(cost.bytes)];
                    table.rows.push(Row::new(cells).note(contraction.describe(step)));
                }
                report.blocks.push(table.into());
                let (best, naive) = (Flops(path.flops), Flops(path.left_to_right_flops));
                let saving = KeyValue::new("left to right", naive).note(if best < naive {
                    phrase!["this order: ", best, ", ", Cell::Change(best / naive - 1.0)]
                } else {
                    phrase!["is already the best order"]
                });
                report.blocks.push(Block::key_values("", [saving]));
            }
        }
        let lowered = path.steps.iter().map(|step| contraction.describe(step));
        report.result.insert("steps", Value::list(lowered));
    }
}

/// Adds what bounds it on the hardware: computing or moving.
fn bound(report: &mut Report, fleet: &Fleet, flop: Flops, bytes: Bytes) -> Result<(), Diagnostics> {
    let peak: FlopPerSecond = fleet.peak()?.rate;
    let bandwidth = fleet.hardware.bandwidth();
    let (compute, memory) = (flop / peak, bytes / bandwidth);
    let bound = if memory > compute { "memory-bound" } else { "compute-bound" };
    let longer: Seconds = compute.max(memory);
    let most = Mfu::new(compute / longer).map_err(|error| Diagnostic::error("", error.to_string()))?;
    let ridge = peak / bandwidth;
    report.headline.qualifiers.push(phrase![bound, " on ", fleet.hardware.display.as_str(), " (ridge ", ridge, ")"]);
    let rows = [
        KeyValue::new("compute", compute).note(phrase!["at ", peak, " (", fleet.precision.name(), ", dense)"]),
        KeyValue::new("memory", memory).note(phrase!["at ", bandwidth]),
        KeyValue::new("upper bound", most).note(phrase!["of the peak: no MFU above it"]),
    ];
    report.blocks.push(Block::key_values("", rows));
    report.result.insert("bound", bound);
    report.result.insert("ridge_flop_per_byte", ridge);
    report.result.insert("compute_seconds", compute);
    report.result.insert("memory_seconds", memory);
    report.result.insert("mfu_bound", most);
    Ok(())
}
