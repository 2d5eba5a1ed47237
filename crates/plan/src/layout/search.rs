//! The best of all layouts of a run on so many devices, and what became of the others.
//!
//! Every legal layout is either looked at or left out by a bound that holds: one whose states alone are too large is not
//! looked at further, and one whose step cannot be shorter than a number of others' can be is not timed pass by pass. What is
//! said of the best is traced whole in the end, one after another until there are as many as are wanted that have room with
//! their allocators; where that takes more of them, the next ones are timed, and nothing is looked at twice.

mod survey;

use std::collections::{BTreeMap, HashMap};
use units::{Bytes, Diagnostic, Diagnostics};

use super::Layout;
use super::estimate::{Estimate, Run};
use super::given::Given;
use super::space::{Axes, Counts, Illegal};
use crate::cluster::step::StepTime;
use crate::handover::{self, Engine};
use crate::ledger::Ledger;
use crate::parallel::each;
use survey::Survey;

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Devices, all of which are used.
    pub devices: u64,
    /// Sequences of a step.
    pub global_batch: u64,
    /// Memory of a device.
    pub capacity: Bytes,
    /// Largest micro-batch that is tried.
    pub micro_batch: u64,
    /// Who is to run it: what it cannot is left out.
    pub engine: Option<Engine>,
    /// How many of the best are named.
    pub most: usize,
    /// What of a layout is not looked for.
    pub given: Given,
    /// Whether those that are named must have room with their allocators, too.
    pub allocator: bool,
}

/// The first limit that a layout hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Parameters, gradients and states alone do not fit: so many bytes.
    States(Bytes),
    /// With what a step needs beside them they do not: so many bytes.
    Memory(Bytes),
}

/// A layout that fits, timed.
#[derive(Clone, Debug, PartialEq)]
pub struct Timed {
    /// The layout.
    pub layout: Layout,
    /// The fullest device.
    pub device: Bytes,
    /// The step.
    pub time: StepTime,
}

/// Relative differences up to this are rounding.
const EQUAL: f64 = 1e-6;

/// All layouts of a run.
#[derive(Debug, Default)]
pub struct Found {
    /// The best, the fastest first, each traced whole.
    pub best: Vec<(Layout, Estimate)>,
    /// Of those that no other beats in both time and memory the fastest, each traced whole.
    pub front: Vec<(Layout, Estimate)>,
    /// How many there are of these in all.
    pub front_size: u64,
    /// The best of every tp and pp of which there is a legal layout; `None` where none fits.
    pub grid: BTreeMap<(u64, u64), Option<Timed>>,
    /// Candidates by what became of them.
    pub counts: Counts,
    /// Layouts that fit.
    pub fit: u64,
    /// Layouts of which the states alone do not.
    pub too_large_states: u64,
    /// Layouts that do not fit with what a step needs beside them.
    pub too_large: u64,
    /// Layouts that keep more on a host than it has for each of its devices.
    pub too_large_host: u64,
    /// The one of these that needs least.
    pub least: Option<(Bytes, Layout)>,
    /// Layouts that were timed pass by pass: all others are slower by their bounds.
    pub timed: u64,
    /// How far seconds and bytes of what is traced whole are from those that were looked at, relatively.
    pub off: (f64, f64),
    /// What fills the fullest rank of one of the best, where that was read: nearly always of the fastest.
    pub ledger: Option<(Layout, Ledger)>,
    /// Layouts that cannot be traced, by reason, with how many there are of each.
    pub untraced: BTreeMap<String, u64>,
}

impl Found {
    /// A warning where what was looked at is not what whole traces say: the order of what was not traced rests on it.
    pub fn differs(&self) -> Option<Diagnostic> {
        let off = self.off.0.max(self.off.1);
        (off > EQUAL).then(|| {
            let message = format!("layouts were looked at by numbers that are up to {} off", units::percent(off));
            Diagnostic::warning("T0331", message)
                .effect("what is printed is traced whole; the others may be in another order")
        })
    }

    /// How many legal layouts there are.
    pub fn tried(&self) -> u64 {
        self.counts.legal()
    }
}

/// The axes of a run.
pub fn axes<'a>(run: &Run<'a>, wanted: &Wanted) -> Axes<'a> {
    Axes {
        model: &run.model.spec,
        seq_len: run.step.seq_len,
        devices: wanted.devices,
        global_batch: wanted.global_batch,
        micro_batch: wanted.micro_batch,
        engine: wanted.engine,
        host: run.terms().host_link().is_some(),
        host_updates: false,
        given: wanted.given,
    }
}

/// Every legal layout.
pub fn layouts(run: &Run<'_>, wanted: &Wanted) -> Vec<Layout> {
    let axes = axes(run, wanted);
    if !axes.countable() {
        return Vec::new();
    }
    axes.ways().0.iter().flat_map(|way| axes.layouts(way, &mut Counts::default())).collect()
}

/// So many devices, in words.
pub(super) fn devices(count: u64) -> String {
    if count == 1 { "1 device".to_owned() } else { format!("{count} devices") }
}

/// Why there is no layout to look at.
fn none(run: &Run<'_>, wanted: &Wanted, counts: &Counts) -> Diagnostics {
    let legal = || layouts(run, &Wanted { engine: None, ..*wanted });
    if let (Some(engine), true) = (wanted.engine, counts.illegal[Illegal::Engine as usize] > 0)
        && let Some(first) = legal().first()
    {
        let message = format!("{} runs no layout of this run", engine.title());
        let mut problems = Diagnostics::from(Diagnostic::error("T0479", message).help("another --export"));
        // What it refuses of the first it refuses of all, if only with others.
        let export = handover::Run {
            name: &run.model.name,
            model: &run.model.spec,
            seq_len: run.step.seq_len,
            precision: run.step.precision,
            optimizer: run.step.optimizer,
            loss: run.step.objective.head,
            devices_per_node: run.cluster.per_node,
            steps: None,
            memory: None,
            step_time: None,
        };
        for problem in handover::export(engine, first, &export).err().into_iter().flatten() {
            problems.push(problem);
        }
        return problems;
    }
    let message = format!("no layout of {} sequences over {} is legal", wanted.global_batch, devices(wanted.devices));
    let problem = Diagnostic::error("T0479", message).help("a --gbs that more numbers divide, or another -n");
    let problem = if wanted.given == Given::default() { problem } else { problem.help("fewer degrees that are given") };
    let whys = Illegal::ALL.into_iter().filter(|why| counts.illegal[*why as usize] > 0).map(Illegal::words);
    let whys: Vec<&str> = whys.collect();
    Diagnostics::from(if whys.is_empty() { problem } else { problem.why(whys.join("; ")) })
}

/// Sequences of a step next to `wanted`, below and above, of which every device can have as many as every other; nothing where
/// those wanted are such.
pub(super) fn nearest_batches(devices: u64, wanted: u64) -> Vec<u64> {
    // As many replicas as there can be.
    let divides =
        |batch: u64| if batch < devices { devices.is_multiple_of(batch) } else { batch.is_multiple_of(devices) };
    if wanted == 0 || devices == 0 || divides(wanted) {
        return Vec::new();
    }
    let below = (wanted.saturating_sub(devices).max(1)..wanted).rev().find(|batch| divides(*batch));
    let above = (wanted + 1..=wanted.saturating_add(devices)).find(|batch| divides(*batch));
    below.into_iter().chain(above).collect()
}

/// Looks at every layout.
///
/// # Errors
/// If there is none to look at, or the hardware table has no rate for the arithmetic.
pub fn search(run: &Run<'_>, wanted: &Wanted) -> Result<Found, Diagnostics> {
    let mut survey = Survey::of(run, wanted)?;
    let mut whole = Whole { run, wanted, known: HashMap::new(), off: (0.0, 0.0), ledger: None };
    survey.look(false)?;
    let mut best = fastest(&mut survey, &mut whole)?;
    // Updates on the host are slower than any other way to free as much: they are looked at where nothing has room without.
    let can_update =
        wanted.given.offload.is_none() && run.terms().host_link().is_some() && run.terms().states().is_some();
    if best.is_empty() && can_update {
        survey.look(true)?;
        best = fastest(&mut survey, &mut whole)?;
    }
    let more = [survey.front(), survey.fastest_of_cells()].concat();
    survey.time(more)?;
    let order = survey.order(f64::INFINITY);
    let front = pareto(&order, |at| survey.timed(*at).device);
    let mut shown = Vec::new();
    for at in &front {
        if shown.len() >= wanted.most {
            break;
        }
        whole.trace(&survey, &[*at], None)?;
        // Allocators may turn the order of two round.
        let less = |estimate: &Estimate| shown.iter().all(|known| estimate.total() < whole.known[known].total());
        shown.extend(whole.fits(*at).filter(|estimate| less(estimate)).map(|_| *at));
    }
    let mut found = std::mem::take(&mut survey.found);
    for at in &order {
        let one = survey.timed(*at);
        let cell = found.grid.entry((one.layout.tp, one.layout.pp)).or_default();
        if cell.is_none() {
            *cell = Some(one.clone());
        }
    }
    (found.timed, found.front_size, found.off) = (order.len() as u64, front.len() as u64, whole.off);
    (found.best, found.front) = (whole.sorted(&survey, &best), whole.sorted(&survey, &shown));
    found.ledger = whole.ledger;
    Ok(found)
}

/// The fastest layouts that have room, as many as are wanted: their places among the candidates, the fastest first.
///
/// Some of the fastest by their tensors may have no room with their allocators: the next ones take their places.
fn fastest(survey: &mut Survey<'_>, whole: &mut Whole<'_>) -> Result<Vec<usize>, Diagnostics> {
    let most = whole.wanted.most;
    let mut asked = most;
    loop {
        let limit = survey.limit(asked);
        survey.time(survey.within(limit))?;
        // Nothing that is not timed is as fast as these.
        let order = survey.order(limit);
        let (mut best, mut at) = (Vec::new(), 0);
        while best.len() < most && at < order.len() {
            let some = &order[at..order.len().min(at.saturating_add(most - best.len()))];
            whole.trace(survey, some, best.is_empty().then_some(some[0]))?;
            best.extend(some.iter().copied().filter(|one| whole.fits(*one).is_some()));
            at += some.len();
        }
        if best.len() >= most || limit == f64::INFINITY {
            return Ok(best);
        }
        asked = asked.saturating_mul(2).max(8);
    }
}

/// Layouts traced whole, each once.
struct Whole<'a> {
    run: &'a Run<'a>,
    wanted: &'a Wanted,
    /// By their places among the candidates.
    known: HashMap<usize, Estimate>,
    /// How far they are from what was looked at.
    off: (f64, f64),
    /// What fills the fullest rank of one of the fastest.
    ledger: Option<(Layout, Ledger)>,
}

impl Whole<'_> {
    /// Traces those of these that are not known yet; of one of them, where it has room, its fullest rank is read.
    fn trace(&mut self, survey: &Survey<'_>, all: &[usize], read: Option<usize>) -> Result<(), Diagnostics> {
        let fresh: Vec<usize> = all.iter().copied().filter(|at| !self.known.contains_key(at)).collect();
        let (run, wanted) = (self.run, self.wanted);
        let traced = each(&fresh, |at| -> Result<(Option<Ledger>, Estimate), Diagnostics> {
            let layout = &survey.timed(*at).layout;
            let (traces, estimate) = if wanted.allocator {
                run.whole(layout)?
            } else {
                let traces = run.traces(layout)?;
                let estimate = run.estimate(layout, &traces)?;
                (traces, estimate)
            };
            let read = read == Some(*at) && estimate.fits(wanted.capacity);
            Ok((if read { run.fullest(layout, &traces, &estimate) } else { None }, estimate))
        });
        for (at, one) in fresh.into_iter().zip(traced) {
            let ((ledger, estimate), timed) = (one?, survey.timed(at));
            let off = |a: f64, b: f64| (a / b - 1.0).abs();
            let seconds = off(timed.time.seconds(), estimate.time.seconds());
            let bytes = off(timed.device.get() as f64, estimate.device.get() as f64);
            self.off = (self.off.0.max(seconds), self.off.1.max(bytes));
            self.ledger = ledger.map(|ledger| (timed.layout.clone(), ledger)).or(self.ledger.take());
            self.known.insert(at, estimate);
        }
        Ok(())
    }

    /// What a layout takes that was traced, where it has room.
    fn fits(&self, at: usize) -> Option<&Estimate> {
        self.known.get(&at).filter(|estimate| estimate.fits(self.wanted.capacity))
    }

    /// These with what they take, the fastest first.
    fn sorted(&self, survey: &Survey<'_>, all: &[usize]) -> Vec<(Layout, Estimate)> {
        let one = |at: &usize| Some((survey.timed(*at).layout.clone(), self.known.get(at)?.clone()));
        let mut all: Vec<(Layout, Estimate)> = all.iter().filter_map(one).collect();
        all.sort_by(|(_, a), (_, b)| a.time.seconds().total_cmp(&b.time.seconds()).then(a.device.cmp(&b.device)));
        all
    }
}

/// Of what is sorted by time, that which nothing beats in both time and memory.
fn pareto<T: Copy>(sorted: &[T], device: impl Fn(&T) -> Bytes) -> Vec<T> {
    let mut least = Bytes(u64::MAX);
    let better = |one: &T| {
        let bytes = device(one);
        let better = bytes < least;
        least = least.min(bytes);
        better
    };
    sorted.iter().copied().filter(better).collect()
}

#[cfg(test)]
mod tests {
    use super::nearest_batches;

    #[test]
    fn batches_that_all_devices_share() {
        for (devices, wanted, expected) in [
            (7, 64, vec![63, 70]),
            (64, 256, vec![]),
            (64, 100, vec![64, 128]),
            (64, 48, vec![32, 64]),
            (1024, 256, vec![]),
            (6, 4, vec![3, 6]),
            (1, 9, vec![]),
        ] {
            assert_eq!(nearest_batches(devices, wanted), expected, "{devices} {wanted}");
        }
    }
}
