//! The best of all layouts of a run on so many devices, and what became of the others.
//!
//! Every legal layout is either looked at or left out by a bound that holds: one whose states alone are too large is not
//! looked at further, and one whose step cannot be shorter than a number of others' can be is not timed pass by pass. What is
//! said of the best is traced whole in the end.

use std::collections::BTreeMap;
use units::{Bytes, Diagnostic, Diagnostics, Params};

use super::Layout;
use super::estimate::{Estimate, Run};
use super::given::Given;
use super::quick::{Desk, Plans, Seen, Sheet, Way};
use super::space::{Axes, Counts, Illegal};
use super::terms::{Terms, host_room};
use crate::cluster::step::StepTime;
use crate::handover::{self, Engine};
use crate::progress;
use crate::states::{ParameterBytes, Zero};

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
#[derive(Clone, Debug, Default)]
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
    /// What was timed, the fastest first.
    timed_all: Vec<Timed>,
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

/// Bytes of parameters, gradients and states of the fullest rank at least: an even share of the model's. Nothing is known
/// where states depend on the shapes of parameters.
fn states(each: Option<ParameterBytes>, parameters: u64, layout: &Layout) -> Bytes {
    let Some(each) = each else { return Bytes::ZERO };
    let each = if layout.offload.optimizer { ParameterBytes { master: 0, slots: &[], ..each } } else { each };
    let held = Params(parameters / layout.tp / layout.pp / layout.ep / layout.etp);
    let zero = Zero::ALL.get(usize::from(layout.zero)).copied().unwrap_or_default();
    each.on_device(held, zero, layout.sharing_ranks())
}

/// A layout that may be among the best, by its bounds.
#[derive(Clone, Debug)]
struct Candidate {
    /// Position of its way, and its own in that.
    at: (usize, usize),
    layout: Layout,
    plan: usize,
    seen: Seen,
}

/// Those of which no `most` others are surely faster.
#[derive(Clone, Debug, Default)]
struct Fastest {
    most: usize,
    /// The shortest times that steps do not exceed, sorted.
    shortest: Vec<f64>,
    all: Vec<Candidate>,
}

impl Fastest {
    fn new(most: usize) -> Self {
        Self { most, ..Self::default() }
    }

    /// The time that `most` do not exceed.
    fn limit(&self) -> f64 {
        if self.shortest.len() < self.most { f64::INFINITY } else { self.shortest.last().copied().unwrap_or(0.0) }
    }

    fn offer(&mut self, candidate: &Candidate) {
        let Seen { at_least, at_most, .. } = candidate.seen;
        if at_least > self.limit() {
            return;
        }
        self.all.push(candidate.clone());
        if at_most < self.limit() {
            let at = self.shortest.partition_point(|time| *time <= at_most);
            self.shortest.insert(at, at_most);
            self.shortest.truncate(self.most);
            if self.all.len() > self.most.saturating_mul(4).saturating_add(64) {
                self.close();
            }
        }
    }

    /// Leaves out what is slower by now.
    fn close(&mut self) {
        let limit = self.limit();
        self.all.retain(|candidate| candidate.seen.at_least <= limit);
    }
}

/// Those that no other surely beats in time and memory.
#[derive(Clone, Debug, Default)]
struct Front(Vec<Candidate>);

impl Front {
    fn offer(&mut self, candidate: &Candidate) {
        let beats = |a: &Seen, b: &Seen| a.at_most <= b.at_least && a.device <= b.device;
        if self.0.iter().any(|known| beats(&known.seen, &candidate.seen)) {
            return;
        }
        self.0.retain(|known| !beats(&candidate.seen, &known.seen));
        self.0.push(candidate.clone());
    }
}

/// What is kept of the layouts of some ways.
#[derive(Clone, Debug, Default)]
struct Kept {
    best: Fastest,
    front: Front,
    grid: BTreeMap<(u64, u64), Fastest>,
}

impl Kept {
    fn new(most: usize) -> Self {
        Self { best: Fastest::new(most), ..Self::default() }
    }

    fn offer(&mut self, candidate: &Candidate) {
        self.best.offer(candidate);
        self.front.offer(candidate);
        let cell = (candidate.layout.tp, candidate.layout.pp);
        self.grid.entry(cell).or_insert_with(|| Fastest::new(1)).offer(candidate);
    }

    /// All that is kept, each once.
    fn candidates(&mut self) -> Vec<Candidate> {
        self.best.close();
        let mut all = std::mem::take(&mut self.best.all);
        all.append(&mut self.front.0);
        for cell in self.grid.values_mut() {
            cell.close();
            all.append(&mut cell.all);
        }
        all.sort_by_key(|candidate| candidate.at);
        all.dedup_by_key(|candidate| candidate.at);
        all
    }
}

/// What became of the layouts of one way.
#[derive(Default)]
struct Outcome {
    found: Found,
    kept: Kept,
    sheet: Sheet,
}

/// What all ways have in common.
struct Work<'a> {
    run: &'a Run<'a>,
    axes: Axes<'a>,
    wanted: &'a Wanted,
    most: usize,
    plans: &'a Plans,
    terms: Terms<'a>,
    parameters: u64,
    each: Option<ParameterBytes>,
}

impl Work<'_> {
    /// Looks at every layout of a way.
    fn look(&self, (number, way): (usize, &Way)) -> Outcome {
        let mut outcome = Outcome { kept: Kept::new(self.most), ..Outcome::default() };
        let found = &mut outcome.found;
        let mut small = Vec::new();
        for layout in self.axes.layouts(way, &mut found.counts) {
            let bytes = states(self.each, self.parameters, &layout);
            found.grid.entry((layout.tp, layout.pp)).or_default();
            if bytes > self.wanted.capacity {
                found.too_large_states += 1;
            } else {
                small.push(layout);
            }
        }
        // What is traced first: a desk needs all prices.
        let mut traced = Vec::with_capacity(small.len());
        let mut last: Option<(usize, u64, bool, bool)> = None;
        for layout in small {
            let Some(plan) = self.plans.find(&layout) else { continue };
            let alone = layout.grad_accum == 1;
            let same = last.filter(|known| (known.0, known.1, known.2) == (plan, layout.micro_batch, alone));
            let there = same.map_or_else(
                || {
                    let (run, pieces) = (self.run, &self.plans.pieces);
                    let added = outcome.sheet.add(run, pieces, way, self.plans.get(plan), layout.micro_batch, alone);
                    added.map_err(|reason| *found.untraced.entry(reason).or_default() += 1).is_ok()
                },
                |known| known.3,
            );
            last = Some((plan, layout.micro_batch, alone, there)).filter(|_| there);
            if there {
                traced.push((layout, plan));
            }
        }
        let mut desk = Desk::new(self.terms, self.plans, &outcome.sheet);
        for (position, (layout, plan)) in traced.into_iter().enumerate() {
            match desk.memory(&layout, plan) {
                Err(reason) => *found.untraced.entry(reason).or_default() += 1,
                Ok(device) if device > self.wanted.capacity => {
                    found.too_large += 1;
                    if found.least.as_ref().is_none_or(|(least, _)| device < *least) {
                        found.least = Some((device, layout));
                    }
                }
                Ok(device) => match desk.host(&layout, plan).and_then(|host| {
                    let seen = desk.bounds(&layout, plan, device)?;
                    Ok((host <= host_room()).then_some(seen))
                }) {
                    Err(reason) => *found.untraced.entry(reason).or_default() += 1,
                    Ok(None) => found.too_large_host += 1,
                    Ok(Some(seen)) => {
                        found.fit += 1;
                        outcome.kept.offer(&Candidate { at: (number, position), layout, plan, seen });
                    }
                },
            }
        }
        outcome
    }

    /// Times pass by pass what is left of a way.
    fn time(&self, sheet: &Sheet, candidates: &[Candidate]) -> Result<Vec<Timed>, String> {
        let mut desk = Desk::new(self.terms, self.plans, sheet);
        let timed = candidates.iter().map(|candidate| {
            let time = desk.time(&candidate.layout, candidate.plan)?;
            Ok(Timed { layout: candidate.layout.clone(), device: candidate.seen.device, time })
        });
        timed.collect()
    }
}

/// Applies a function to all of a list, on several threads where there are some; results in the order of the list.
#[cfg(feature = "parallel")]
fn each<T: Sync, R: Send>(all: &[T], function: impl Fn(&T) -> R + Sync + Send) -> Vec<R> {
    use rayon::prelude::*;
    all.par_iter().map(function).collect()
}

/// Applies a function to all of a list.
#[cfg(not(feature = "parallel"))]
fn each<T, R>(all: &[T], function: impl Fn(&T) -> R) -> Vec<R> {
    all.iter().map(function).collect()
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
    // Some of the best by their tensors may have no room with their allocators: others take their places.
    let (mut most, mut host_updates) = (wanted.most, false);
    // Updates on the host are slower than any other way to free as much: they are looked at where nothing has room without.
    let can_update =
        wanted.given.offload.is_none() && run.terms().host_link().is_some() && run.terms().states().is_some();
    loop {
        let found = look(run, wanted, most, host_updates)?;
        if found.best.is_empty() && can_update && !host_updates {
            host_updates = true;
            continue;
        }
        if found.best.len() >= wanted.most || found.timed >= found.fit {
            return Ok(found);
        }
        most = most.max(1).saturating_mul(8);
    }
}

/// Looks at every layout; of the fastest so many are timed pass by pass.
fn look(run: &Run<'_>, wanted: &Wanted, most: usize, host_updates: bool) -> Result<Found, Diagnostics> {
    let axes = Axes { host_updates, ..axes(run, wanted) };
    wanted.given.check(axes.model, axes.seq_len, wanted.devices)?;
    if !axes.countable() {
        return Err(none(run, wanted, &Counts::default()));
    }
    let (ways, mut counts) = axes.ways();
    let mut plans = Plans::new(run);
    let mut legal = 0;
    let mut refused = counts;
    for way in &ways {
        for layout in axes.layouts(way, &mut refused) {
            plans.add(&layout);
            legal += 1;
        }
    }
    let Some(some) = ways.first().filter(|_| legal > 0) else { return Err(none(run, wanted, &refused)) };
    let terms = run.terms();
    // What no layout has an answer to is said once.
    terms.machine(&Layout { tp: some.ranks.tp, cp: some.ranks.cp, ..Layout::default() })?;
    let parameters: u64 = crate::params::parameters(run.model)?.iter().map(|param| param.elements).sum();
    let each_parameter = ParameterBytes::of(run.step.precision, run.step.optimizer.kind);
    let work = Work { run, axes, wanted, most, plans: &plans, terms, parameters, each: each_parameter };

    let numbered: Vec<(usize, &Way)> = ways.iter().enumerate().collect();
    progress::begin("ways to divide looked at", numbered.len());
    let outcomes = each(&numbered, |way| {
        let outcome = work.look(*way);
        progress::advance();
        outcome
    });
    let mut found = Found::default();
    let mut kept = Kept::new(most);
    let mut sheets = Vec::with_capacity(ways.len());
    for outcome in outcomes {
        let Outcome { found: part, kept: mut more, sheet } = outcome;
        counts.add(&part.counts);
        found.fit += part.fit;
        found.too_large += part.too_large;
        found.too_large_host += part.too_large_host;
        found.too_large_states += part.too_large_states;
        for cell in part.grid.into_keys() {
            found.grid.entry(cell).or_insert(None);
        }
        for (reason, count) in part.untraced {
            *found.untraced.entry(reason).or_default() += count;
        }
        if let Some((bytes, layout)) = part.least
            && found.least.as_ref().is_none_or(|(least, _)| bytes < *least)
        {
            found.least = Some((bytes, layout));
        }
        let candidates = more.candidates();
        sheets.push(if candidates.is_empty() { Sheet::default() } else { sheet });
        for candidate in &candidates {
            kept.offer(candidate);
        }
    }
    found.counts = counts;
    let mut left: Vec<Vec<Candidate>> = vec![Vec::new(); ways.len()];
    for candidate in kept.candidates() {
        left[candidate.at.0].push(candidate);
    }
    let jobs: Vec<(&Sheet, &Vec<Candidate>)> = sheets.iter().zip(&left).collect();
    let timed = each(&jobs, |(sheet, candidates)| work.time(sheet, candidates));
    let timed: Result<Vec<Vec<Timed>>, String> = timed.into_iter().collect();
    let timed = timed.map_err(|reason| Diagnostics::from(Diagnostic::error("T0484", reason)))?;
    choose(&mut found, timed.into_iter().flatten().collect());
    verify(run, wanted, found)
}

/// Sorts what was timed; what is best of every tp and pp.
fn choose(found: &mut Found, mut timed: Vec<Timed>) {
    let seconds = |one: &Timed| one.time.seconds();
    timed.sort_by(|a, b| seconds(a).total_cmp(&seconds(b)).then(a.device.cmp(&b.device)));
    found.timed = timed.len() as u64;
    for one in &timed {
        let cell = found.grid.entry((one.layout.tp, one.layout.pp)).or_default();
        if cell.is_none() {
            *cell = Some(one.clone());
        }
    }
    found.timed_all = timed;
}

/// Traces the best whole, and the fastest of those that no other beats in both time and memory.
fn verify(run: &Run<'_>, wanted: &Wanted, mut found: Found) -> Result<Found, Diagnostics> {
    let timed = std::mem::take(&mut found.timed_all);
    let mut traced = |one: &Timed, known: &[(Layout, Estimate)]| -> Result<Option<(Layout, Estimate)>, Diagnostics> {
        if let Some(known) = known.iter().find(|(layout, _)| *layout == one.layout) {
            return Ok(Some(known.clone()));
        }
        let estimate = if wanted.allocator {
            run.whole(&one.layout)?.1
        } else {
            run.estimate(&one.layout, &run.traces(&one.layout)?)?
        };
        let off = |a: f64, b: f64| (a / b - 1.0).abs();
        let seconds = off(one.time.seconds(), estimate.time.seconds());
        let bytes = off(one.device.get() as f64, estimate.device.get() as f64);
        (found.off.0, found.off.1) = (found.off.0.max(seconds), found.off.1.max(bytes));
        Ok(estimate.fits(wanted.capacity).then(|| (one.layout.clone(), estimate)))
    };
    let mut best = Vec::new();
    for one in &timed {
        if best.len() >= wanted.most {
            break;
        }
        best.extend(traced(one, &[])?);
    }
    let front = pareto(&timed);
    let mut fastest: Vec<(Layout, Estimate)> = Vec::new();
    for one in &front {
        if fastest.len() >= wanted.most {
            break;
        }
        // Allocators may turn the order of two round.
        let less = |estimate: &Estimate| fastest.iter().all(|(_, known)| estimate.total() < known.total());
        let found = traced(one, &best)?.filter(|(_, estimate)| less(estimate));
        fastest.extend(found);
    }
    let front_size = front.len() as u64;
    let sort = |all: &mut Vec<(Layout, Estimate)>| {
        all.sort_by(|(_, a), (_, b)| a.time.seconds().total_cmp(&b.time.seconds()).then(a.device.cmp(&b.device)));
    };
    sort(&mut best);
    sort(&mut fastest);
    (found.best, found.front, found.front_size) = (best, fastest, front_size);
    Ok(found)
}

/// Of layouts sorted by time, those that no other beats in both time and memory.
pub fn pareto(timed: &[Timed]) -> Vec<&Timed> {
    let mut least = Bytes(u64::MAX);
    let better = |one: &&Timed| {
        let better = one.device < least;
        least = least.min(one.device);
        better
    };
    timed.iter().filter(better).collect()
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
