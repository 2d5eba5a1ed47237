//! The largest micro-batch, the longest sequence and the largest model of a shape that fit one device.

use nn::blocks::Blocks;
use nn::spec::ModelSpec;
use nn::step::StepOptions;
use units::{Bytes, Diagnostic, Diagnostics, Params};

use crate::ledger::{self, Ledger, Request, peak_words};
use crate::model::{Model, trace};
use crate::on_device::OnDevice;
use crate::params::Counts;
use crate::phrase;
use crate::report::{Block, Cell, KeyValue, Report, Value, Verdict};
use crate::scaling;
use crate::timeline::Device;

/// What to grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grow {
    /// Sequences in a micro-batch.
    Batch,
    /// Tokens in a sequence.
    SeqLen,
    /// Blocks of the same shape.
    Layers,
}

impl Grow {
    /// All of them, in the order of answers.
    pub const ALL: [Self; 3] = [Self::Batch, Self::SeqLen, Self::Layers];
}

impl Grow {
    const fn what(self) -> &'static str {
        match self {
            Self::Batch => "micro-batch",
            Self::SeqLen => "sequence length",
            Self::Layers => "blocks of this shape",
        }
    }

    const fn key(self) -> &'static str {
        match self {
            Self::Batch => "batch",
            Self::SeqLen => "seq_len",
            Self::Layers => "num_hidden_layers",
        }
    }

    /// The step and the model with this size.
    fn sized(self, spec: &ModelSpec, options: &StepOptions, size: u64) -> (ModelSpec, StepOptions) {
        let (mut spec, mut options) = (spec.clone(), *options);
        match self {
            Self::Batch => options.batch = size,
            Self::SeqLen => options.seq_len = size,
            Self::Layers => {
                let pattern = spec.layers.clone();
                match &spec.order {
                    // Blocks that share weights: the same ones run more often.
                    Some(order) => spec.order = Some(order.iter().cycle().take(size as usize).copied().collect()),
                    None => spec.layers = pattern.iter().cycle().take(size as usize).cloned().collect(),
                }
            }
        }
        (spec, options)
    }

    /// Sizes that make sense beyond which nobody asks: the model's own positions, and bounds that keep a search short.
    fn limit(self, spec: &ModelSpec) -> u64 {
        match self {
            Self::Batch => 1 << 20,
            // Learned positions end; others are extended in practice, but not further than this.
            Self::SeqLen => spec.embedding.positions.as_ref().map_or(1 << 26, |p| p.count),
            // Where blocks differ, every trial is run in full.
            Self::Layers if spec.layers.windows(2).all(|pair| pair[0] == pair[1]) => 4096,
            Self::Layers => (spec.depth() as u64).max(256),
        }
    }

    const fn smallest(self) -> u64 {
        if matches!(self, Self::SeqLen) { 2 } else { 1 }
    }
}

/// The largest size that fits, with its traced peak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The size, 0 if nothing fits.
    pub size: u64,
    /// Bytes of the device at that size (or at the smallest, if nothing fits).
    pub peak_bytes: u64,
}

/// Sizes above one that does not fit which are looked at, if they are not more.
const MOST_ABOVE: u64 = 8;

/// Finds the largest size that fits `capacity`, of which one more does not: estimates say where to look, full traces with their
/// allocators whether it fits. What an allocator reserves does not only grow with the size, so that some larger ones may fit; they
/// are looked for where there are few.
///
/// # Errors
/// As [`trace`].
pub fn find(spec: &ModelSpec, request: &Request<'_>, grow: Grow, capacity: Bytes) -> Result<Found, Diagnostics> {
    let estimate = |size: u64| -> Result<u64, Diagnostics> {
        let (spec, options) = grow.sized(spec, &request.options, size);
        scaling::peak(&spec, &options, request.sharding, request.runtime)
    };
    let exact = |size: u64| -> Result<(u64, bool), Diagnostics> {
        let (spec, mut options) = grow.sized(spec, &request.options, size);
        if request.process.is_some() {
            // Where states are made in the first step, they lie in other segments than where they are there before it.
            (options.steps, options.warm) = (2, false);
        }
        let traced = trace(&spec, &options)?;
        let empty = Device::new(&traced, &options, request.sharding, Blocks::of(&spec.names));
        let tensors = ledger::peak_on(empty.clone(), request.runtime);
        let sized = Request { options, ..request.clone() };
        let device = OnDevice::on(&empty, &traced, tensors, &sized, Some(capacity));
        Ok((device.total.get(), device.fits()))
    };
    let smallest = grow.smallest();
    let (first, first_fits) = exact(smallest)?;
    if !first_fits {
        return Ok(Found { size: 0, peak_bytes: first });
    }
    let limit = grow.limit(spec);
    // The largest from `low` on with this estimate; sizes beyond what can be counted are too large.
    let largest = |low: u64, most: u64| {
        let within = |size: u64| estimate(size).is_ok_and(|bytes| bytes <= most);
        let (mut low, mut step) = (low, 1);
        let mut high = loop {
            let next = low.saturating_add(step).min(limit);
            if next == low || !within(next) {
                break next.max(low + 1);
            }
            (low, step) = (next, step * 2);
        };
        while high - low > 1 {
            let middle = low.midpoint(high);
            if within(middle) { low = middle } else { high = middle }
        }
        low
    };
    let mut lacks = first.saturating_sub(estimate(smallest)?);
    let mut next = largest(smallest, capacity.get().saturating_sub(lacks));
    // An allocator only adds to the tensors, of which an estimate is off by less than a hundredth.
    let top = largest(next, capacity.get().saturating_add(capacity.get() / 100));
    let mut high = top + 1;
    let mut found = Found { size: smallest, peak_bytes: first };
    while high - found.size > 1 {
        let (peak_bytes, fits) = exact(next)?;
        next = if fits {
            found = Found { size: next, peak_bytes };
            next.midpoint(high)
        } else {
            // What the estimate lacked here, it is likely to lack nearby.
            (lacks, high) = (lacks.max(peak_bytes.saturating_sub(estimate(next)?)), next);
            let near = largest(found.size, capacity.get().saturating_sub(lacks)).min(high - 1);
            if near > found.size { near } else { found.size.midpoint(high) }
        };
    }
    for size in (high + 1..=top).rev().filter(|_| top - high <= MOST_ABOVE) {
        let (peak_bytes, fits) = exact(size)?;
        if fits {
            return Ok(Found { size, peak_bytes });
        }
    }
    Ok(found)
}

/// The largest sizes that fit one device.
///
/// # Errors
/// As [`trace`].
pub fn report(
    model: &Model,
    request: &Request<'_>,
    device: &str,
    capacity: Bytes,
    grow: &[Grow],
) -> Result<Report, Diagnostics> {
    let mut rows = Vec::new();
    let mut result = Value::map().with("capacity_bytes", capacity);
    let mut answer = None;
    for &grow in grow {
        let found = find(&model.spec, request, grow, capacity)?;
        let peak = Bytes(found.peak_bytes);
        result.insert(format!("largest_{}", grow.key()), found.size);
        result.insert(format!("peak_bytes_at_largest_{}", grow.key()), peak);
        let (value, note): (Cell, _) = if found.size == 0 {
            (Cell::from("none"), phrase!["the smallest takes ", peak, " of ", capacity])
        } else {
            let more = if found.size == grow.limit(&model.spec) { ", and no more was tried" } else { "" };
            (Cell::Count(u128::from(found.size)), phrase![peak, " of ", capacity, more])
        };
        let mut note = note;
        if grow == Grow::Layers && found.size > 0 {
            let (spec, _) = grow.sized(&model.spec, &request.options, found.size);
            let counts = parameters(&spec)?;
            result.insert("largest_parameters", counts);
            note = phrase![counts, " parameters, "].and(note);
        }
        // The first that fits is the answer; that nothing fits is one only if it is so of all.
        if answer.as_ref().is_none_or(|(_, earlier): &(Grow, Found)| earlier.size == 0 && found.size > 0) {
            answer = Some((grow, found));
        }
        rows.push(KeyValue::new(grow.what(), value).note(note));
    }
    let Some((first, found)) = answer else {
        return Err(Diagnostic::error("T0306", "nothing to grow").help("--grow batch").into());
    };
    let size = Cell::Count(u128::from(found.size));
    // Fewer blocks are another model: that they fit is no answer to whether this one does.
    let smaller = first == Grow::Layers && grow.len() > 1;
    let headline = match found.size {
        0 => phrase!["nothing fits"],
        _ if smaller => phrase!["does not fit"],
        _ => phrase![first.what(), " ", size.clone()],
    };
    let mut report = Report::new("fit", headline).qualified(phrase!["on ", device]);
    if smaller && found.size > 0 {
        report.verdict = Verdict::No;
        report.headline.qualifiers.push(phrase![size, " of its blocks would"]);
    }
    if found.size == 0 {
        report.verdict = Verdict::No;
        let traced = model.trace(&request.options)?;
        let ledger = Ledger::of(&traced, &request.options, request.sharding, &model.spec.names, request.runtime);
        report.headline.qualifiers.push(phrase!["peak at: ", peak_words(&ledger, &traced.trace)]);
        report.notes.push(phrase![
            "napkin plan ",
            model.name.as_str(),
            " with the same flags names what would change it"
        ]);
    }
    report.blocks.push(Block::key_values("", rows));
    report.inputs = ledger::inputs(model, request);
    report.result = result;
    report.warnings = model.step_warnings(&request.options);
    report.assumptions = model.assumptions();
    report.assumptions.extend(crate::flops::step_assumptions(&request.options));
    report.assumptions.extend(ledger::assumptions(request));
    Ok(report)
}

fn parameters(spec: &ModelSpec) -> Result<Params, Diagnostics> {
    Ok(Counts::of(&crate::model::parameters(spec)?).stored)
}
