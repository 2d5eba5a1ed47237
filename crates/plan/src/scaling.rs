//! Quick estimates of the peak of a variant of a model, by tracing a few of its blocks.
//!
//! Equal blocks cost the same, so the bytes at a moment of the step (the third allocation of the second block in the
//! backward pass, say) are a straight line in the number of blocks. Two short traces give the line of every moment near
//! either end of a phase; what is between lies on a line between them. The peak is the highest of all: which moment that
//! is may change with the number of blocks. What is estimated so is marked "about" wherever it is printed, and whatever
//! a verdict rests on is traced in full.

use nn::blocks::Blocks;
use nn::spec::ModelSpec;
use nn::step::{StepOptions, StepTrace};
use std::cell::{OnceCell, RefCell};
use std::rc::Rc;
use tensor::meter::MemoryChange;
use units::{Bytes, Diagnostics};

use crate::ledger::steady;
use crate::model::trace;
use crate::sharding::Sharding;
use crate::timeline::{Phase, Timeline};

/// Blocks of the two short traces: the first two and the last two blocks of both are alike.
const SHORT: [usize; 2] = [4, 6];

/// Traces that say the peak of a step on one device, however its states are divided: whole ones of small models and of models of
/// unequal blocks, else two short ones.
pub struct Scaled<'a> {
    spec: &'a ModelSpec,
    options: StepOptions,
    /// Once they are asked for.
    traced: OnceCell<Vec<StepTrace>>,
    /// The whole step that was asked for last.
    whole: RefCell<Option<(StepOptions, Rc<StepTrace>)>>,
}

impl<'a> Scaled<'a> {
    /// Of a model's step.
    pub fn of(spec: &'a ModelSpec, options: &StepOptions) -> Self {
        Self { spec, options: *options, traced: OnceCell::new(), whole: RefCell::default() }
    }

    fn traced(&self) -> Result<&[StepTrace], Diagnostics> {
        if let Some(traced) = self.traced.get() {
            return Ok(traced);
        }
        let (spec, options) = (self.spec, &self.options);
        let alike = spec.order.is_none()
            && spec.layers.windows(2).all(|w| std::sync::Arc::ptr_eq(&w[0], &w[1]) || w[0] == w[1]);
        let traced = if !alike || !spec.tuning.is_uniform() || spec.depth() <= SHORT[1] {
            vec![trace(spec, options)?]
        } else {
            let short = |n: usize| {
                let mut spec = spec.clone();
                spec.truncate(n);
                trace(&spec, options)
            };
            SHORT.into_iter().map(short).collect::<Result<_, _>>()?
        };
        Ok(self.traced.get_or_init(|| traced))
    }

    /// The whole step, with these options; it is traced once, however states are divided.
    ///
    /// # Errors
    /// As [`trace`].
    pub fn whole(&self, options: &StepOptions) -> Result<Rc<StepTrace>, Diagnostics> {
        if let Some((_, traced)) = self.whole.borrow().as_ref().filter(|(known, _)| known == options) {
            return Ok(Rc::clone(traced));
        }
        let traced = Rc::new(trace(self.spec, options)?);
        self.whole.replace(Some((*options, Rc::clone(&traced))));
        Ok(traced)
    }

    /// The peak where states are divided so, with what lies outside.
    ///
    /// # Errors
    /// As [`trace`].
    pub fn peak(&self, sharding: Sharding, runtime: Bytes) -> Result<u64, Diagnostics> {
        let timeline = |traced: &StepTrace| Timeline::of(traced, &self.options, sharding, Blocks::of(&self.spec.names));
        let highest = match self.traced()? {
            [short, long] => self.on_a_line([short, long].map(|traced| {
                let timeline = timeline(traced);
                let moments = moments(traced, &timeline);
                (timeline.phases, moments)
            })),
            traced => {
                let phases = traced.first().map_or_else(Vec::new, |traced| timeline(traced).phases);
                phases[steady(&phases)].iter().map(|p| p.peak_bytes).max()
            }
        };
        Ok(highest.unwrap_or(0).saturating_add(runtime.get()))
    }

    fn on_a_line(&self, [(phases, a), (longer, b)]: [(Vec<Phase>, Vec<Vec<Moment>>); 2]) -> Option<u64> {
        let line = |p: u64, q: u64| {
            let (p, q, more) = (i128::from(p), i128::from(q), (self.spec.depth() - SHORT[0]) as i128);
            u64::try_from(p + (q - p) * more / (SHORT[1] - SHORT[0]) as i128).unwrap_or(0)
        };
        let highest = steady(&phases).flat_map(|i| {
            // An update goes over the parameters more than once, its peak at the same of them whatever their number.
            let half = if phases[i].name.starts_with("opt") { 0 } else { a[i].len() / 2 };
            let same = |(p, q): &(&Moment, &Moment)| p.what == q.what;
            let from_start = a[i][..half].iter().zip(&b[i]).take_while(same);
            let from_end = a[i][a[i].len() - half..].iter().rev().zip(b[i].iter().rev()).take_while(same);
            let ends = from_start.chain(from_end).map(|(p, q)| line(p.live, q.live));
            ends.chain([line(phases[i].peak_bytes, longer[i].peak_bytes)])
        });
        highest.max()
    }
}

/// The peak of a step on one device by [`Scaled`].
///
/// # Errors
/// As [`trace`].
pub fn peak(spec: &ModelSpec, options: &StepOptions, sharding: Sharding, runtime: Bytes) -> Result<u64, Diagnostics> {
    Scaled::of(spec, options).peak(sharding, runtime)
}

/// An allocation.
struct Moment {
    /// Live bytes after it.
    live: u64,
    /// Name of the op, and bytes of the storage.
    what: (&'static str, u64),
}

/// The allocations of each phase.
fn moments(traced: &StepTrace, timeline: &Timeline) -> Vec<Vec<Moment>> {
    let trace = &traced.trace;
    let mut out: Vec<Vec<Moment>> = timeline.phases.iter().map(|_| Vec::new()).collect();
    let first = trace.marks.first().map_or(0, |m| m.memory as usize);
    for (event, point) in trace.memory[first..].iter().zip(&timeline.points) {
        if let MemoryChange::Alloc(_) = event.change {
            let name = trace.ops.get(event.op as usize).map_or("", |e| e.op.name());
            let what = (name, trace.storages[event.storage.0 as usize].bytes);
            out[point.phase].push(Moment { live: point.bytes, what });
        }
    }
    out
}
