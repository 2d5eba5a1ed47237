//! Layouts of one way to divide a model, looked at one after another: what one has in common with the next is kept.

use std::collections::{BTreeSet, HashMap};
use units::Bytes;

use super::{Plan, Plans, Sheet};
use crate::cluster::machine::{Cost, Item, Machine};
use crate::cluster::pipeline::Pipeline;
use crate::cluster::step::{Passes, Step, StepTime};
use crate::layout::held::{Holding, Standing, Stretch};
use crate::layout::load::Load;
use crate::layout::outline::{Level, Outline, Tally, Total, course_of};
use crate::layout::terms::Terms;
use crate::layout::{Layout, engine};

/// What a stage does, in seconds.
#[derive(Clone, Copy, Debug, Default)]
struct Seconds {
    passes: [[Cost; 3]; 4],
    update: Cost,
}

/// What a stage holds, in bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    fixed: i64,
    inputs: i64,
    /// Kept of a micro-batch.
    kept: i64,
    /// More by the first forward pass.
    begun: i64,
    /// More by the first backward pass.
    added: i64,
    peaks: [i64; 5],
    root: i64,
}

/// Memory and bounds of the time of a layout.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seen {
    /// The fullest device.
    pub device: Bytes,
    /// A time that its step does not beat.
    pub at_least: f64,
    /// A time that its step does not exceed.
    pub at_most: f64,
}

/// Looks at layouts of one way to divide a model, one after another. What one has in common with the next is kept.
pub struct Desk<'a> {
    terms: Terms<'a>,
    plans: &'a Plans,
    sheet: &'a Sheet,
    machine: Option<Machine>,
    batch: u64,
    /// Seconds of each item of the prices; of exchanges, on the machine at hand.
    items: Vec<Cost>,
    seconds: HashMap<(usize, bool), Seconds>,
    sharing: (u8, u64, u64),
    held: HashMap<(usize, bool), Held>,
    beside: HashMap<(usize, usize), u64>,
}

impl<'a> Desk<'a> {
    /// A desk with nothing on it.
    pub(in crate::layout) fn new(terms: Terms<'a>, plans: &'a Plans, sheet: &'a Sheet) -> Self {
        Self {
            terms,
            plans,
            sheet,
            machine: None,
            batch: 0,
            items: Vec::new(),
            seconds: HashMap::new(),
            sharing: (0, 0, 0),
            held: HashMap::new(),
            beside: HashMap::new(),
        }
    }

    /// The fullest device of a layout.
    ///
    /// # Errors
    /// In words, where a stage was not traced.
    pub fn memory(&mut self, layout: &Layout, plan: usize) -> Result<Bytes, String> {
        self.turn_to(layout)?;
        let holdings = &self.plans.get(plan).holdings;
        let mut fullest = 0;
        for (class, holding) in holdings.iter().enumerate() {
            fullest = fullest.max(self.rank(layout, plan, class, holding)?);
        }
        Ok(self.terms.device(layout, u64::try_from(fullest).unwrap_or(0)))
    }

    /// What lies on the fullest host of a layout, for one of its devices.
    ///
    /// # Errors
    /// In words, where a stage was not traced.
    pub fn host(&mut self, layout: &Layout, plan: usize) -> Result<Bytes, String> {
        if !layout.offload.is_any() {
            return Ok(Bytes::ZERO);
        }
        self.turn_to(layout)?;
        let plan = self.plans.get(plan);
        let mut fullest = Bytes::ZERO;
        for (class, holding) in plan.cut.classes.iter().zip(&plan.holdings) {
            let load = self.load(layout, class.place, holding)?;
            fullest = fullest.max(self.terms.on_host(layout, &load, holding.in_flight));
        }
        Ok(fullest)
    }

    /// Bounds of the time of a layout, whose fullest device is `device`.
    ///
    /// # Errors
    /// In words, where a stage was not traced or a rate is not known.
    pub fn bounds(&mut self, layout: &Layout, plan: usize, device: Bytes) -> Result<Seen, String> {
        self.turn_to(layout)?;
        let (step, machine, pipeline) = self.step(layout, plan)?;
        let least = pipeline.bound();
        let lines = step.lines(&machine, least);
        let rest = lines.gradients + lines.optimizer + lines.parameters;
        let at_most = (pipeline.longest().max(lines.passes) + rest) * machine.straggler();
        Ok(Seen { device, at_least: lines.seconds(), at_most: at_most.max(lines.seconds()) })
    }

    /// The time of a layout, its pipeline pass by pass.
    ///
    /// # Errors
    /// As [`bounds`](Self::bounds).
    pub fn time(&mut self, layout: &Layout, plan: usize) -> Result<StepTime, String> {
        self.turn_to(layout)?;
        let (step, machine, pipeline) = self.step(layout, plan)?;
        Ok(step.lines(&machine, pipeline.seconds()))
    }

    /// Forgets what the layout does not have in common with the last.
    fn turn_to(&mut self, layout: &Layout) -> Result<(), String> {
        let degrees = Terms::degrees(layout);
        let fresh = self.batch != layout.micro_batch;
        let machine = match self.machine {
            Some(machine) => Machine { degrees, ..machine },
            None => self.terms.machine(layout).map_err(|problem| problem.message)?,
        };
        let moved = self.machine.is_none_or(|old| old.degrees != degrees);
        self.machine = Some(machine);
        if fresh || moved {
            self.seconds.clear();
            self.items.resize(self.sheet.prices.items.len(), Cost::default());
            for (cost, grown) in self.items.iter_mut().zip(&self.sheet.prices.items) {
                // Ops take as long wherever the ranks are.
                if fresh || !matches!(grown.one, Item::Op(_)) {
                    // What is of other numbers of sequences is asked for by no stage.
                    let item = grown.with(layout.micro_batch);
                    *cost = item.map_or(Cost::default(), |item| machine.cost(&[item]));
                }
            }
            self.batch = layout.micro_batch;
        }
        let sharding = layout.sharding();
        let sharing = (sharding.zero, sharding.dp, sharding.expert_dp);
        if fresh || sharing != self.sharing {
            self.held.clear();
            self.sharing = sharing;
        }
        Ok(())
    }

    fn outline(&self, piece: usize, alone: bool) -> Result<(&'a Outline, &'a [u64], i64), String> {
        let piece = &self.plans.pieces.all[piece];
        let outline = self.sheet.outline(piece.short, alone, self.batch).ok_or("a stage that was not traced")?;
        let more = self.batch as i64 - outline.traced as i64;
        Ok((outline, &piece.more, more))
    }

    fn seconds(&mut self, piece: usize, alone: bool) -> Result<Seconds, String> {
        if let Some(known) = self.seconds.get(&(piece, alone)) {
            return Ok(*known);
        }
        let (outline, times, _) = self.outline(piece, alone)?;
        let items = &self.items;
        let list = |list: &[(u32, u32)]| {
            list.iter().fold(Cost::default(), |sum, (item, count)| sum + items[*item as usize] * f64::from(*count))
        };
        let tally = |tally: &Tally| {
            let each = tally.each.iter().zip(times).map(|(each, times)| list(each) * *times as f64);
            each.fold(list(&tally.all), |sum, more| sum + more)
        };
        let passes = outline.work.each_ref().map(|parts| parts.each_ref().map(tally));
        let seconds = Seconds { passes, update: tally(&outline.update) };
        self.seconds.insert((piece, alone), seconds);
        Ok(seconds)
    }

    fn held(&mut self, piece: usize, alone: bool) -> Result<Held, String> {
        if let Some(known) = self.held.get(&(piece, alone)) {
            return Ok(*known);
        }
        let (outline, times, more) = self.outline(piece, alone)?;
        let (zero, dp, expert_dp) = self.sharing;
        let gathers = zero >= 3 && dp > 1;
        let sizes = outline.divided.iter().map(|divided| {
            let ranks = if divided.experts { expert_dp } else { dp };
            let bytes = divided.bytes.with(more);
            if zero >= divided.from && ranks > 1 {
                bytes.div_euclid(ranks as i64) + i64::from(bytes % ranks as i64 != 0)
            } else {
                bytes
            }
        });
        let sizes: Vec<i64> = sizes.collect();
        let bytes = |level: &Level| {
            let divided: i64 = level.divided.iter().zip(&sizes).map(|(count, size)| i64::from(*count) * size).sum();
            let casts = if gathers { 0 } else { level.casts.with(more) };
            level.whole.with(more) + casts + level.inputs.with(more) + divided
        };
        let many = |each: &[Level]| -> Vec<i64> {
            each.iter().zip(times).map(|(level, times)| bytes(level) * *times as i64).collect()
        };
        let total = |level: &Level, each: &[Level]| bytes(level) + many(each).iter().sum::<i64>();
        let ends = outline.courses.each_ref().map(|course| total(&course.end, &course.each));
        let peaks = outline.courses.each_ref().map(|course| {
            let each = many(&course.each);
            let of = course.moments.iter().map(|moment| {
                let behind: i64 = each
                    .iter()
                    .enumerate()
                    .filter(|(run, _)| moment.behind >> run & 1 == 1)
                    .map(|(_, more)| more)
                    .sum();
                let gathered = if gathers { moment.gathered } else { 0 };
                let unreduced = if zero >= 2 && dp > 1 { moment.unreduced[usize::from(gathers)] } else { 0 };
                bytes(&moment.level) + behind + gathered + unreduced
            });
            of.max().unwrap_or(0)
        });
        let Total { all, each } = &outline.fixed;
        let inputs = all.inputs.with(more);
        let (kept, back) = if alone { (ends[0], -ends[0]) } else { (ends[2], ends[3]) };
        let held = Held {
            fixed: total(all, each),
            inputs,
            kept,
            begun: ends[0] - kept,
            added: ends[1] - back,
            peaks,
            root: if gathers { outline.root } else { 0 },
        };
        self.held.insert((piece, alone), held);
        Ok(held)
    }

    /// Most bytes of a rank.
    fn rank(&mut self, layout: &Layout, plan: usize, class: usize, holding: &Holding) -> Result<i64, String> {
        let alone = layout.grad_accum == 1;
        let mut kinds: Vec<(Held, i64)> = Vec::with_capacity(holding.kinds.len());
        for (piece, count) in &holding.kinds {
            kinds.push((self.held(*piece, alone)?, *count as i64));
        }
        let stages: i64 = kinds.iter().map(|(_, count)| count).sum();
        let inputs = kinds.first().map_or(0, |(held, _)| held.inputs);
        let fixed: i64 = kinds.iter().map(|(held, count)| held.fixed * count).sum::<i64>() - (stages - 1) * inputs;
        let roots: i64 = kinds.iter().map(|(held, count)| held.root * count).sum();
        let most = |standing: &Standing| {
            let held: i64 = kinds
                .iter()
                .enumerate()
                .map(|(i, (held, _))| {
                    held.kept * i64::from(standing.held[i])
                        + held.begun * i64::from(standing.begun[i])
                        + held.added * i64::from(standing.added[i])
                })
                .sum();
            let own = &kinds[standing.kind].0;
            let others = if standing.stretch == Stretch::Update { 0 } else { roots - own.root };
            held + own.peaks[course_of(standing.stretch)] + others
        };
        let peak = holding.standings.iter().map(most).max().unwrap_or(0);
        Ok(fixed + peak + self.beside(plan, class) as i64)
    }

    /// What the engine holds beside.
    fn beside(&mut self, plan: usize, class: usize) -> u64 {
        let (plans, sheet) = (self.plans, self.sheet);
        *self.beside.entry((plan, class)).or_insert_with(|| {
            let pieces = &plans.get(plan).cut.classes[class].pieces;
            let shorts = pieces.iter().map(|piece| plans.pieces.all[*piece].short);
            let shapes: BTreeSet<[u64; 2]> =
                shorts.filter_map(|short| sheet.shapes.get(&short)).flatten().copied().collect();
            engine::held(&shapes, sheet.weight_bytes)
        })
    }

    /// The step of a layout, one rank of each class; its machine; its pipeline, all ranks.
    fn step(&mut self, layout: &Layout, plan: usize) -> Result<(Step, Machine, Pipeline), String> {
        let plans = self.plans;
        let Plan { cut, holdings, .. } = plans.get(plan);
        let machine = self.machine.ok_or("no machine")?;
        let mut ranks = Vec::with_capacity(holdings.len());
        for (class, holding) in cut.classes.iter().zip(holdings) {
            let load = self.load(layout, class.place, holding)?;
            ranks.push(self.terms.rank(layout, &load, &machine).map_err(|problem| problem.message)?);
        }
        let step = self.terms.step(layout, ranks);
        let of_classes = step.pipeline(&machine);
        let stages = (0..layout.virtual_stages as usize)
            .flat_map(|chunk| cut.of.iter().map(move |class| (chunk, *class)))
            .map(|(chunk, class)| of_classes.stages[chunk * of_classes.ranks + class])
            .collect();
        let pipeline = Pipeline { ranks: cut.of.len(), stages, ..of_classes };
        Ok((step, machine, pipeline))
    }

    /// What a rank does.
    fn load(&mut self, layout: &Layout, place: u64, holding: &Holding) -> Result<Load, String> {
        let alone = layout.grad_accum == 1;
        let (n, chunks) = (holding.micro_batches as f64, layout.virtual_stages as f64);
        let mut load = Load { first: place == 0, last: place + 1 == layout.pp, ..Load::default() };
        for (piece, count) in &holding.kinds {
            let seconds = self.seconds(*piece, alone)?;
            let (outline, times, more) = self.outline(*piece, alone)?;
            let count = *count as f64;
            let mean = |first: usize, later: usize, part: usize| {
                (seconds.passes[first][part] + seconds.passes[later][part] * (n - 1.0)) * (count / n / chunks)
            };
            load.passes = Passes {
                forward: load.passes.forward + mean(0, 2, 0),
                backward: load.passes.backward + mean(1, 3, 1),
                weights: load.passes.weights + mean(1, 3, 2),
            };
            load.optimizer += seconds.update * count;
            let sum = |all: u64, each: &mut dyn Iterator<Item = u64>| {
                all + each.zip(times).map(|(each, times)| each * times).sum::<u64>()
            };
            let trained = &outline.trained;
            let [shared, experts] =
                [0, 1].map(|kind| sum(trained.all[kind], &mut trained.each.iter().map(|each| each[kind])));
            load.shared += shared as f64 * count;
            load.experts += experts as f64 * count;
            load.blocks += sum(outline.blocks.all, &mut outline.blocks.each.iter().copied()) as f64 * count;
            let copies = outline.copies.each.iter().zip(times).map(|(each, times)| each.with(more) * *times as i64);
            load.copies += (outline.copies.all.with(more) + copies.sum::<i64>()) as f64 * count / chunks;
        }
        if layout.offload.optimizer {
            let each = self.terms.states().ok_or("states that depend on shapes are not looked at on a host")?;
            load.states = (load.shared + load.experts) * each as f64;
        }
        Ok(load)
    }
}
