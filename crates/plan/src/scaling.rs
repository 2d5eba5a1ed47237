//! Quick estimates of the peak of a variant of a model, by tracing a few of its blocks.
//!
//! Equal blocks cost the same, so every phase's peak is a straight line in the number of blocks once there are a few. Two
//! short traces give the line. What is estimated so is marked "about" wherever it is printed, and whatever a verdict
//! rests on is traced in full.

use nn::spec::ModelSpec;
use nn::step::StepOptions;
use units::{Bytes, Diagnostics};

use crate::ledger::Ledger;
use crate::model::trace;
use crate::sharding::Sharding;

/// Blocks of the two short traces.
const SHORT: [usize; 2] = [4, 6];

/// The peak of a step on one device, exact for small models and models of unequal blocks, else from two short traces.
///
/// # Errors
/// As [`trace`].
pub fn peak(spec: &ModelSpec, options: &StepOptions, sharding: Sharding, runtime: Bytes) -> Result<u64, Diagnostics> {
    let layers = spec.layers.len();
    let equal = spec.layers.windows(2).all(|w| std::rc::Rc::ptr_eq(&w[0], &w[1]) || w[0] == w[1]);
    let ledger = |spec: &ModelSpec| -> Result<Ledger, Diagnostics> {
        Ok(Ledger::of(&trace(spec, options)?, options, sharding, spec.names.layers, runtime))
    };
    if !equal || layers <= SHORT[1] {
        return Ok(ledger(spec)?.peak_bytes);
    }
    let short = |n: usize| {
        let mut spec = spec.clone();
        spec.layers.truncate(n);
        ledger(&spec)
    };
    let (a, b) = (short(SHORT[0])?, short(SHORT[1])?);
    let more = (layers - SHORT[0]) as i128;
    let line = |x: u64, y: u64| {
        let slope = (i128::from(y) - i128::from(x)) / (SHORT[1] - SHORT[0]) as i128;
        u64::try_from(i128::from(x) + slope * more).unwrap_or(u64::MAX)
    };
    let phases = a.phases.iter().zip(&b.phases).filter(|(p, _)| p.name != "init" && !p.name.starts_with("zero"));
    Ok(phases.map(|(p, q)| line(p.peak_bytes, q.peak_bytes)).max().unwrap_or(0) + runtime.get())
}
