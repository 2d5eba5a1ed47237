//! Every layout of a run looked at once: what fits, with bounds of its time, and the times pass by pass of those that are asked
//! for. What fits is kept by its place in the space, so that more of it can be timed without another look.

use nn::{Offload, ParamKind};
use std::collections::BTreeMap;
use units::{Bytes, Diagnostic, Diagnostics, Params};

use super::{Found, Timed, Wanted, axes, none};
use crate::layout::Layout;
use crate::layout::estimate::Run;
use crate::layout::quick::{Desk, Plans, Seen, Sheet, Way};
use crate::layout::space::{Axes, Counts};
use crate::layout::terms::{Terms, host_room};
use crate::parallel::each;
use crate::progress;
use crate::states::{ParameterBytes, Zero};

/// A layout that fits.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    /// Position of its way.
    way: u32,
    /// Its own among the layouts of that.
    place: u32,
    plan: u32,
    seen: Seen,
}

/// What a layout needs traced: its plan, the sequences of a micro-batch, whether that is alone in a step.
type Needed = (usize, u64, bool);

/// A layout, its place among those of its way, and what it needs traced.
type Placed = (usize, Layout, Needed);

/// Activations on the host.
const ON_HOST: Offload = Offload { activations: true, optimizer: false };

/// Bounds and times that differ by no more are those of equals.
const ROUNDING: f64 = 1e-9;

/// All layouts of a run that were looked at.
pub(super) struct Survey<'a> {
    run: &'a Run<'a>,
    wanted: &'a Wanted,
    terms: Terms<'a>,
    /// Trained parameters: those outside of experts, those of experts.
    trained: [u64; 2],
    each: Option<ParameterBytes>,
    axes: Axes<'a>,
    plans: Plans,
    ways: Vec<Way>,
    /// What was traced for each way.
    sheets: Vec<Sheet>,
    /// What fits, by way and place.
    candidates: Vec<Candidate>,
    /// Those that were timed.
    timed: BTreeMap<usize, Timed>,
    /// Candidates of the ways looked at that are not legal.
    refused: Counts,
    /// What became of all of them.
    pub found: Found,
}

/// What became of the layouts of one way.
#[derive(Default)]
struct Outcome {
    found: Found,
    fit: Vec<Candidate>,
    sheet: Sheet,
}

impl<'a> Survey<'a> {
    /// Of a run, nothing looked at yet.
    ///
    /// # Errors
    /// If what is given is not legal, or too many to count.
    pub fn of(run: &'a Run<'a>, wanted: &'a Wanted) -> Result<Self, Diagnostics> {
        let axes = axes(run, wanted);
        wanted.given.check(axes.model, axes.seq_len, wanted.devices)?;
        if !axes.countable() {
            return Err(none(run, wanted, &Counts::default()));
        }
        let mut trained = [0; 2];
        for param in crate::params::parameters(run.model)?.iter().filter(|param| param.trainable) {
            trained[usize::from(matches!(param.kind, ParamKind::Expert { .. }))] += param.elements;
        }
        Ok(Self {
            run,
            wanted,
            terms: run.terms(),
            trained,
            each: ParameterBytes::of(run.step.precision, run.step.optimizer.kind),
            axes,
            plans: Plans::new(run),
            ways: Vec::new(),
            sheets: Vec::new(),
            candidates: Vec::new(),
            timed: BTreeMap::new(),
            refused: Counts::default(),
            found: Found::default(),
        })
    }

    /// Looks at every layout whose updates are on the device, or, with `host_updates`, at those whose are on the host.
    ///
    /// # Errors
    /// If there is none to look at, or the hardware table has no rate for the arithmetic.
    pub fn look(&mut self, host_updates: bool) -> Result<(), Diagnostics> {
        self.axes.host_updates = host_updates;
        let (mut ways, counts) = self.axes.ways();
        if host_updates {
            ways.retain(|way| way.offload.optimizer);
        }
        let mut refused = counts;
        let mut legal = 0;
        for way in &ways {
            for layout in self.axes.layouts(way, &mut refused) {
                self.plans.add(&layout);
                legal += 1;
            }
        }
        let known = self.ways.len();
        let Some(some) = ways.first().filter(|_| legal > 0) else {
            return if known > 0 { Ok(()) } else { Err(none(self.run, self.wanted, &refused)) };
        };
        // What no layout has an answer to is said once.
        self.terms.machine(&Layout { tp: some.ranks.tp, cp: some.ranks.cp, ..Layout::default() })?;
        // Ways that differ in whether activations are on the host alone share their traces.
        let groups = ways.chunk_by(|a, b| !a.offload.is_any() && Way { offload: ON_HOST, ..*a } == *b);
        let numbered: Vec<(usize, &[Way])> = groups
            .scan(known, |next, group| {
                let first = *next;
                *next += group.len();
                Some((first, group))
            })
            .collect();
        progress::begin("ways to divide looked at", ways.len());
        let outcomes = each(&numbered, |(first, group)| {
            let outcomes = self.look_at(*first, group);
            group.iter().for_each(|_| progress::advance());
            outcomes
        });
        for outcome in outcomes.into_iter().flatten() {
            self.add(outcome);
        }
        self.ways.append(&mut ways);
        // Those that no way allows are counted for all ways.
        self.found.counts = counts;
        self.found.counts.add(&self.refused);
        Ok(())
    }

    fn add(&mut self, outcome: Outcome) {
        let Outcome { found: part, mut fit, sheet } = outcome;
        let found = &mut self.found;
        self.refused.add(&part.counts);
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
        self.sheets.push(if fit.is_empty() { Sheet::default() } else { sheet });
        self.candidates.append(&mut fit);
    }

    /// Bytes of parameters, gradients and states of the fullest rank at least: an even share of the model's. Nothing is known
    /// where states depend on the shapes of parameters.
    fn states(&self, layout: &Layout) -> Bytes {
        let Some(each) = self.each else { return Bytes::ZERO };
        let each = if layout.offload.optimizer { ParameterBytes { master: 0, slots: &[], ..each } } else { each };
        let zero = Zero::ALL.get(usize::from(layout.zero)).copied().unwrap_or_default();
        let [outside, experts] = self.trained;
        let of = |parameters: u64, ranks| each.on_device(Params(parameters / layout.pp), zero, ranks).get();
        let outside = of(outside / layout.tp, layout.sharing_ranks());
        let experts = of(experts / layout.ep / layout.etp, layout.expert_sharing_ranks());
        Bytes(outside.saturating_add(experts))
    }

    /// Looks at every layout of ways that share their traces, the first of which has this position.
    fn look_at(&self, first: usize, ways: &[Way]) -> Vec<Outcome> {
        let (mut outcomes, mut all): (Vec<Outcome>, Vec<Vec<Placed>>) = ways.iter().map(|way| self.small(way)).unzip();
        // What is traced first: a desk needs all prices.
        let mut needed: BTreeMap<Needed, Vec<usize>> = BTreeMap::new();
        for (at, (_, _, need)) in all.iter().enumerate().flat_map(|(at, all)| all.iter().map(move |one| (at, one))) {
            let who = needed.entry(*need).or_default();
            if who.last() != Some(&at) {
                who.push(at);
            }
        }
        let mut refused: BTreeMap<Needed, String> = BTreeMap::new();
        for (need, who) in needed {
            let sheets = ways.iter().zip(&mut outcomes).enumerate().filter(|(at, _)| who.contains(at));
            let mut sheets: Vec<(&Way, &mut Sheet)> =
                sheets.map(|(_, (way, outcome))| (way, &mut outcome.sheet)).collect();
            let (plan, sequences, alone) = need;
            let (pieces, plan) = (&self.plans.pieces, self.plans.get(plan));
            if let Err(reason) = Sheet::add_to(&mut sheets, self.run, pieces, plan, (sequences, alone)) {
                refused.insert(need, reason);
            }
        }
        for (at, (outcome, all)) in outcomes.iter_mut().zip(&mut all).enumerate() {
            all.retain(|(.., need)| {
                let reason = refused.get(need);
                if let Some(reason) = reason {
                    *outcome.found.untraced.entry(reason.clone()).or_default() += 1;
                }
                reason.is_none()
            });
            outcome.sheet.close();
            self.weigh(first + at, outcome, std::mem::take(all));
        }
        outcomes
    }

    /// Layouts of a way whose states may have room.
    fn small(&self, way: &Way) -> (Outcome, Vec<Placed>) {
        let mut outcome = Outcome::default();
        let found = &mut outcome.found;
        let mut small = Vec::new();
        for (place, layout) in self.axes.layouts(way, &mut found.counts).into_iter().enumerate() {
            found.grid.entry((layout.tp, layout.pp)).or_default();
            if self.states(&layout) > self.wanted.capacity {
                found.too_large_states += 1;
            } else if let Some(plan) = self.plans.find(&layout) {
                let need = (plan, layout.micro_batch, layout.grad_accum == 1);
                small.push((place, layout, need));
            }
        }
        (outcome, small)
    }

    /// Says of layouts of a way, all of which are traced, what became of them.
    fn weigh(&self, number: usize, outcome: &mut Outcome, all: Vec<Placed>) {
        let found = &mut outcome.found;
        let mut desk = Desk::new(self.terms, &self.plans, &outcome.sheet);
        let room = host_room();
        for (place, layout, (plan, ..)) in all {
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
                    Ok((host <= room).then_some(seen))
                }) {
                    Err(reason) => *found.untraced.entry(reason).or_default() += 1,
                    Ok(None) => found.too_large_host += 1,
                    Ok(Some(seen)) => {
                        found.fit += 1;
                        let (way, place, plan) = (number as u32, place as u32, plan as u32);
                        outcome.fit.push(Candidate { way, place, plan, seen });
                    }
                },
            }
        }
    }

    /// A time that so many candidates do not exceed; of all others, none is known.
    pub fn limit(&self, most: usize) -> f64 {
        let Some(last) = most.checked_sub(1) else { return 0.0 };
        let mut all: Vec<f64> = self.candidates.iter().map(|candidate| candidate.seen.at_most).collect();
        if last >= all.len() { f64::INFINITY } else { *all.select_nth_unstable_by(last, f64::total_cmp).1 }
    }

    /// Candidates that may be as fast as that.
    pub fn within(&self, limit: f64) -> Vec<usize> {
        let limit = limit * (1.0 + ROUNDING);
        let all = self.candidates.iter().enumerate();
        all.filter(|(_, candidate)| candidate.seen.at_least <= limit).map(|(at, _)| at).collect()
    }

    /// Candidates that no other surely beats in time and memory.
    pub fn front(&self) -> Vec<usize> {
        let seen = |at: &usize| self.candidates[*at].seen;
        let mut all: Vec<usize> = (0..self.candidates.len()).collect();
        all.sort_by(|a, b| {
            let (a, b) = (seen(a), seen(b));
            a.device.cmp(&b.device).then(a.at_most.total_cmp(&b.at_most))
        });
        let mut least = f64::INFINITY;
        all.retain(|at| {
            let seen = seen(at);
            let beaten = least <= seen.at_least;
            least = least.min(seen.at_most);
            !beaten
        });
        all
    }

    /// Of every tp and pp the candidates that may be the fastest.
    pub fn fastest_of_cells(&self) -> Vec<usize> {
        let cell =
            |one: &Candidate| (self.ways[one.way as usize].ranks.tp, self.plans.get(one.plan as usize).cut.of.len());
        let mut limits: BTreeMap<(u64, usize), f64> = BTreeMap::new();
        for one in &self.candidates {
            let limit = limits.entry(cell(one)).or_insert(f64::INFINITY);
            *limit = limit.min(one.seen.at_most);
        }
        let may_be = |one: &Candidate| limits.get(&cell(one)).is_some_and(|limit| one.seen.at_least <= *limit);
        self.candidates.iter().enumerate().filter(|(_, one)| may_be(one)).map(|(at, _)| at).collect()
    }

    /// Times those of these candidates pass by pass that were not.
    ///
    /// # Errors
    /// If one cannot be timed.
    pub fn time(&mut self, mut all: Vec<usize>) -> Result<(), Diagnostics> {
        all.sort_unstable();
        all.dedup();
        all.retain(|at| !self.timed.contains_key(at));
        let jobs: Vec<&[usize]> = all.chunk_by(|a, b| self.candidates[*a].way == self.candidates[*b].way).collect();
        let timed: Result<Vec<Vec<Timed>>, String> = each(&jobs, |job| self.time_way(job)).into_iter().collect();
        let timed = timed.map_err(|reason| Diagnostics::from(Diagnostic::error("T0484", reason)))?;
        self.timed.extend(all.into_iter().zip(timed.into_iter().flatten()));
        Ok(())
    }

    /// Times candidates of one way.
    fn time_way(&self, all: &[usize]) -> Result<Vec<Timed>, String> {
        let Some(first) = all.first() else { return Ok(Vec::new()) };
        let way = self.candidates[*first].way as usize;
        let layouts = self.axes.layouts(&self.ways[way], &mut Counts::default());
        let mut desk = Desk::new(self.terms, &self.plans, &self.sheets[way]);
        let timed = all.iter().map(|at| {
            let Candidate { place, plan, seen, .. } = self.candidates[*at];
            let layout = layouts[place as usize].clone();
            let time = desk.time(&layout, plan as usize)?;
            Ok(Timed { layout, device: seen.device, time })
        });
        timed.collect()
    }

    /// A candidate that was timed.
    ///
    /// # Panics
    /// If it was not.
    pub fn timed(&self, at: usize) -> &Timed {
        &self.timed[&at]
    }

    /// All that were timed and take no longer than that, the fastest first.
    pub fn order(&self, limit: f64) -> Vec<usize> {
        let fast = self.timed.iter().filter(|(_, one)| one.time.seconds() <= limit);
        let mut all: Vec<(f64, Bytes, usize)> = fast.map(|(at, one)| (one.time.seconds(), one.device, *at)).collect();
        all.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)).then(a.2.cmp(&b.2)));
        all.into_iter().map(|(.., at)| at).collect()
    }
}
