//! What would free memory, and the smallest change that removes an out-of-memory: each change by tracing the run with it.
//!
//! One mechanism for a step on one device and for a layout with all its degrees: a [`Setup`] is changed one knob at a time, and
//! a [`Measure`] says what each takes and how long its step is. What costs least device time comes first, what computes other
//! numbers last. Where no change of one knob is enough, those of two are tried,
//! the cheapest by their parts first; where none of these is, the cheapest are made one after the other.

pub mod change;
pub mod measure;

use nn::spec::ModelSpec;
use std::cmp::{Ordering, Reverse};
use units::{Bytes, Diagnostics};

use crate::layout;
use crate::model::parameters;
use crate::parallel::threads;
use crate::phrase;
use crate::report::{Cell, Column, Phrase, Row, Table, Value};
use change::{Change, Knob, changes};
pub use change::{Setup, Words};
use measure::Worth;
pub use measure::{Alone, Clock, Divided, Measure, Own, Taken};

/// A change with what the run takes that has it.
#[derive(Clone, Debug, PartialEq)]
pub struct Lever {
    /// The flags that ask Napkin for it.
    pub flag: String,
    /// What it does, and what it costs.
    pub effect: String,
    /// What it takes then.
    pub taken: Taken,
    /// Devices of the run that has it.
    pub devices: u64,
    /// Whether the run computes other numbers with it.
    pub other_numbers: bool,
}

/// Changes of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Levers {
    /// What it takes as it is.
    pub now: Taken,
    /// Changes of one knob that lower the peak, the cheapest first.
    pub each: Vec<Lever>,
    /// The fewest changes together that are enough, where none alone is: pairs, the cheapest first, or one set of more.
    pub together: Vec<Lever>,
    /// How many pairs leave room for parameters, gradients and states: of these the cheapest that are enough are in `together`.
    pub pairs: usize,
}

/// Most changes that people are shown, where those that are enough are not more.
const MOST_SHOWN: usize = 8;

/// Most pairs of changes that are enough and are shown.
const MOST_PAIRS: usize = 3;

/// Most changes that are made one after the other.
const MOST_CHANGES: usize = 24;

impl Lever {
    fn of(measure: &dyn Measure, from: &Setup, change: &Change, taken: Taken) -> Self {
        Self {
            flag: from.flags(&change.setup, measure.words()),
            effect: change.effect.to_owned(),
            taken,
            devices: change.setup.layout.devices(),
            other_numbers: from.has_other_numbers(&change.setup),
        }
    }

    /// Device-seconds of a step.
    fn cost(&self) -> Option<f64> {
        Some(self.taken.seconds? * self.devices as f64)
    }

    /// The one that costs less first, of those without a predicted time as they were; then those that change numbers.
    fn cheaper(a: &Self, b: &Self) -> Ordering {
        let cost = match (a.cost(), b.cost()) {
            (Some(a), Some(b)) => a.total_cmp(&b),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => Ordering::Equal,
        };
        a.other_numbers.cmp(&b.other_numbers).then(cost)
    }
}

impl Levers {
    /// The cheapest that is enough.
    pub fn enough(&self) -> Option<&Lever> {
        self.each.iter().chain(&self.together).find(|lever| lever.taken.fits)
    }

    /// All of them, the cheapest first.
    pub fn all(&self) -> impl Iterator<Item = &Lever> {
        self.each.iter().chain(&self.together)
    }

    /// For people. Where the run does not fit: what is enough, or else how far each change goes and what together is.
    pub fn table(&self) -> Table {
        let judged = !self.now.fits;
        let timed = self.now.seconds.is_some() && self.all().any(|lever| lever.taken.seconds.is_some());
        let mut columns = vec![Column::left(""), Column::right("peak, about"), Column::right("frees")];
        if timed {
            columns.push(Column::right("step"));
        }
        if judged {
            columns.push(Column::left("enough"));
        }
        let title = if judged { "changes that free memory" } else { "levers" };
        let last = self.all().any(|lever| lever.other_numbers) && self.all().any(|lever| !lever.other_numbers);
        let order = if last { ", the cheapest first, other numbers last" } else { ", the cheapest first" };
        let mut table = Table::new(format!("{title}{order}"), columns);
        for lever in self.shown() {
            let taken = lever.taken;
            let frees = Bytes(taken.frees(&self.now));
            let mut cells: Vec<Cell> = vec![lever.flag.as_str().into(), Bytes(taken.bytes()).into(), frees.into()];
            if timed {
                let change = taken.seconds.zip(self.now.seconds).map(|(then, now)| Cell::Change(then / now - 1.0));
                cells.push(change.unwrap_or(Cell::Empty));
            }
            if judged {
                cells.push(if taken.fits { "yes" } else { "no" }.into());
            }
            table.rows.push(Row::new(cells).note(phrase![lever.effect.as_str()]));
        }
        table
    }

    /// Those that people are shown: where the run does not fit, all that are enough and so many of the others as there is room for,
    /// those that free most.
    fn shown(&self) -> Vec<&Lever> {
        let enough = self.all().filter(|lever| lever.taken.fits).count();
        let mut others: Vec<u64> =
            self.all().filter(|lever| !lever.taken.fits).map(|lever| lever.taken.frees(&self.now)).collect();
        others.sort_unstable_by_key(|frees| Reverse(*frees));
        let room = if self.now.fits { usize::MAX } else { MOST_SHOWN.saturating_sub(enough).max(1) };
        let least = others.get(room.saturating_sub(1)).or(others.last()).copied().unwrap_or(0);
        self.all().filter(|lever| lever.taken.fits || lever.taken.frees(&self.now) >= least).collect()
    }

    /// What is not shown.
    fn left_out(&self) -> Vec<Phrase> {
        let left = self.all().count() - self.shown().len();
        let mut notes = Vec::new();
        if left > 0 {
            notes.push(phrase![
                left as u64,
                if left == 1 { " change that frees" } else { " changes that free" },
                " less, with --json"
            ]);
        }
        if self.now.reserved.is_some() && self.shown().iter().any(|lever| lever.taken.reserved.is_none()) {
            notes.push(phrase!["what is far from enough has the peak of its tensors alone; the allocator adds to it"]);
        }
        if self.pairs > self.together.len() && !self.together.is_empty() {
            let (shown, all) = (self.together.len() as u64, self.pairs as u64);
            notes.push(phrase![
                shown,
                " of ",
                all,
                " pairs of changes that may be enough, the cheapest by their parts; the others are not traced"
            ]);
        }
        notes
    }

    /// For programs.
    pub fn value(&self) -> Value {
        let each = self.all().map(|lever| {
            Value::map()
                .with("flags", lever.flag.as_str())
                .with("peak_bytes_about", lever.taken.bytes())
                .with("with_allocator", lever.taken.reserved.is_some())
                .with("frees_bytes_about", lever.taken.frees(&self.now))
                .with("step_seconds", lever.taken.seconds)
                .with("devices", lever.devices)
                .with("enough", lever.taken.fits)
                .with("effect", lever.effect.as_str())
        });
        Value::List(each.collect())
    }

    /// What to do, where the run does not fit.
    pub fn advice(&self) -> Vec<Phrase> {
        if self.now.fits {
            return Vec::new();
        }
        let best = match self.enough() {
            Some(lever) => phrase!["the cheapest that is enough: ", lever.flag.as_str()],
            None => phrase!["nothing here is enough: more devices, or a smaller model"],
        };
        std::iter::once(best).chain(self.left_out()).collect()
    }
}

/// Changes of a run that lower what it takes; where it does not fit, also those together that make it fit.
///
/// # Errors
/// If the run as it is cannot be traced.
pub fn find(measure: &dyn Measure, from: &Setup) -> Result<Levers, Diagnostics> {
    let now = measure.timed(from, measure.measure(from)?, ALWAYS);
    // Less than a thousandth is no lever.
    let worth = |taken: &Taken| taken.frees(&now) > now.bytes() / 1000;
    let changes: Vec<Change> = possible(measure, from).collect();
    let setups: Vec<Setup> = changes.iter().map(|change| change.setup.clone()).collect();
    let mut turned: Vec<(Lever, Change)> = changes
        .into_iter()
        .zip(measure.measure_all(&setups, &worth))
        .filter_map(|(change, taken)| {
            let taken = taken.ok().filter(worth)?;
            Some((Lever::of(measure, from, &change, taken), change))
        })
        .collect();
    turned.sort_by(|(a, _), (b, _)| Lever::cheaper(a, b));
    let mut levers =
        Levers { now, each: turned.iter().map(|(lever, _)| lever.clone()).collect(), together: Vec::new(), pairs: 0 };
    if !now.fits && levers.enough().is_none() {
        let parameters = trained(measure.spec());
        (levers.together, levers.pairs) = pairs(measure, from, now, &turned, parameters);
        // On the same devices, some parameters have no room whatever is done.
        let in_reach = measure.words() == Words::Layout || has_room(measure, &from.smallest(), parameters);
        if levers.together.is_empty() && in_reach {
            levers.together.extend(along(measure, from, now));
        }
    }
    Ok(levers)
}

const ALWAYS: Worth<'static> = &|_| true;

/// Every knob turned alone, where that can be run. A step on one device has no degrees that could be illegal.
fn possible(measure: &dyn Measure, from: &Setup) -> impl Iterator<Item = Change> {
    let (spec, words) = (measure.spec(), measure.words());
    changes(spec, from, words).into_iter().filter(move |Change { setup, .. }| {
        words == Words::Step || layout::check(&setup.layout, spec, setup.step.seq_len, None).is_ok()
    })
}

/// Whether parameters, gradients and states alone leave room.
fn has_room(measure: &dyn Measure, setup: &Setup, parameters: u64) -> bool {
    measure.room().is_none_or(|room| setup.least(parameters).get() <= room)
}

/// Parameters of a model, where all of them are trained.
fn trained(spec: &ModelSpec) -> u64 {
    if !spec.tuning.is_plain() {
        return 0;
    }
    parameters(spec).map_or(0, |all| all.iter().map(|param| param.elements).sum())
}

/// Pairs of knobs that are enough, the cheapest first, of a model that trains so many parameters; and how many may be.
fn pairs(
    measure: &dyn Measure,
    from: &Setup,
    now: Taken,
    turned: &[(Lever, Change)],
    parameters: u64,
) -> (Vec<Lever>, usize) {
    let mut waiting = Vec::new();
    for (first, change) in turned {
        for second in possible(measure, &change.setup).filter(|second| second.knob > change.knob) {
            // Cost by parts: what is longer by each alone is longer by both.
            let alone = |knob: Knob, effect| {
                turned.iter().find(|(_, one)| one.knob == knob && one.effect == effect).and_then(|(one, _)| one.cost())
            };
            let cost = first.cost().zip(alone(second.knob, second.effect)).zip(now.seconds);
            let cost = cost.map_or(f64::INFINITY, |((a, b), now)| a * b / now);
            if has_room(measure, &second.setup, parameters) {
                waiting.push(((from.has_other_numbers(&second.setup), cost), change.effect, second));
            }
        }
    }
    waiting.sort_by(|((a, cost), ..), ((b, other), ..)| a.cmp(b).then(cost.total_cmp(other)));
    let may_be = waiting.len();
    let mut found = Vec::new();
    for some in waiting.chunks(threads()) {
        let setups: Vec<Setup> = some.iter().map(|(.., second)| second.setup.clone()).collect();
        for ((_, effect, second), taken) in some.iter().zip(measure.measure_all(&setups, &|taken| taken.fits)) {
            let Some(taken) = taken.ok().filter(|taken| taken.fits) else { continue };
            let lever = Lever::of(measure, from, second, taken);
            found.push(Lever { effect: format!("{effect}; {}", lever.effect), ..lever });
        }
        if found.len() >= MOST_PAIRS {
            break;
        }
    }
    // Where fewer are enough, all were tried.
    let may_be = if found.len() < MOST_PAIRS { found.len() } else { may_be };
    found.truncate(MOST_PAIRS);
    found.sort_by(Lever::cheaper);
    (found, may_be)
}

/// Makes changes one after the other, the cheapest by rule first, until the run fits.
fn along(measure: &dyn Measure, from: &Setup, mut best: Taken) -> Option<Lever> {
    let mut setup = from.clone();
    // Each round takes the cheapest change that lowers the peak; the batch can be halved more than once.
    for _ in 0..MOST_CHANGES {
        let lower = |change: Change| {
            let taken = measure.measure(&change.setup).ok().filter(|taken| taken.frees(&best) > 0)?;
            Some((change, taken))
        };
        let (change, taken) = possible(measure, &setup).find_map(lower)?;
        if taken.fits {
            let taken = measure.timed(&change.setup, taken, ALWAYS);
            let lever = Lever::of(measure, from, &change, taken);
            return Some(Lever { effect: "the cheapest, one after the other".to_owned(), ..lever });
        }
        (setup, best) = (change.setup, taken);
    }
    None
}

/// The strongest change of each knob, the lowest peak first.
///
/// # Errors
/// If a step cannot be traced.
pub fn strongest(measure: &dyn Measure, from: &Setup) -> Result<Levers, Diagnostics> {
    let mut last: Vec<Change> = Vec::new();
    for change in possible(measure, from) {
        last.retain(|known| known.knob != change.knob);
        last.push(change);
    }
    let now = measure.measure(from)?;
    let setups: Vec<Setup> = last.iter().map(|change| change.setup.clone()).collect();
    let mut each = Vec::new();
    for (change, taken) in last.into_iter().zip(measure.measure_all(&setups, &|_| false)) {
        let taken = taken?;
        if taken.frees(&now) > 0 {
            each.push(Lever::of(measure, from, &change, taken));
        }
    }
    each.sort_by_key(|lever| lever.taken.bytes());
    Ok(Levers { now, each, together: Vec::new(), pairs: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Model;
    use crate::presets;
    use nn::step::{Precision, StepOptions};
    use nn::{Profile, Recompute};

    /// Takes bytes and seconds that follow from a set-up by a rule of the test.
    struct Ruled {
        model: Model,
        room: u64,
        rule: fn(&Setup) -> (u64, f64),
        words: Words,
    }

    impl Measure for Ruled {
        fn spec(&self) -> &ModelSpec {
            &self.model.spec
        }

        fn words(&self) -> Words {
            self.words
        }

        fn room(&self) -> Option<u64> {
            None
        }

        fn measure(&self, setup: &Setup) -> Result<Taken, Diagnostics> {
            let (bytes, seconds) = (self.rule)(setup);
            Ok(Taken { tensors: bytes, reserved: None, fits: bytes <= self.room, seconds: Some(seconds) })
        }
    }

    /// 64 for activations, shared by tp and micro-batch and an eighth of it under full recomputation, which takes a third more
    /// time; 32 for states, shared by ZeRO and halved by other formats.
    fn rule(setup: &Setup) -> (u64, f64) {
        let l = &setup.layout;
        let full = l.recompute == Recompute::Full;
        let activations = 16 * l.micro_batch / l.tp / if full { 8 } else { 1 };
        let states =
            32 / if l.zero > 0 { l.dp } else { 1 } / if setup.step.precision == Precision::Bf16Pure { 2 } else { 1 };
        let seconds = if full { 4.0 } else { 3.0 } * 4.0 / l.micro_batch as f64 + if l.zero > 0 { 0.5 } else { 0.0 };
        (activations + states, seconds)
    }

    fn ruled(room: u64) -> Levers {
        let (name, text) = presets::find("llama-3.1-8b").unwrap();
        let model = Model::from_text(name, name, text.as_bytes(), &[], None).unwrap();
        let step = StepOptions::usual(1024, Profile::Fused, Precision::Bf16MasterFp32Grads);
        let layout = layout::Layout { dp: 2, micro_batch: 4, ..layout::Layout::default() };
        find(&Ruled { model, room, rule, words: Words::Layout }, &Setup { layout, step }).unwrap()
    }

    fn flags(levers: &[Lever]) -> Vec<&str> {
        levers.iter().map(|lever| lever.flag.as_str()).collect()
    }

    #[test]
    fn one_knob_is_enough_before_two_are_tried() {
        let levers = ruled(60);
        assert_eq!((levers.now.bytes(), levers.now.fits), (96, false));
        assert!(levers.together.is_empty());
        // Half the replicas on twice the ranks cost nothing by the rule; other numbers come last, though they cost nothing either.
        let enough: Vec<&Lever> = levers.each.iter().filter(|lever| lever.taken.fits).collect();
        assert_eq!(enough.iter().map(|lever| lever.flag.as_str()).collect::<Vec<_>>(), ["--recompute full"]);
        assert_eq!(
            levers.enough().unwrap().taken,
            Taken { tensors: 40, reserved: None, fits: true, seconds: Some(4.0) }
        );
        assert_eq!(flags(&levers.each).first(), Some(&"--tp 2 --sp --dp 1 --grad-accum 2"));
        assert_eq!(flags(&levers.each).last(), Some(&"--precision bf16-pure"));
        let timed: Vec<f64> = levers.each.iter().filter(|one| !one.other_numbers).filter_map(Lever::cost).collect();
        assert!(timed.is_sorted(), "{timed:?}");
    }

    #[test]
    fn two_knobs_where_one_is_not_enough() {
        let levers = ruled(24);
        assert!(levers.each.iter().all(|lever| !lever.taken.fits));
        assert_eq!(flags(&levers.together)[0], "--zero 1 --recompute full");
        assert_eq!(levers.together[0].taken, Taken { tensors: 24, reserved: None, fits: true, seconds: Some(4.5) });
        assert!(levers.together.iter().all(|lever| lever.taken.fits) && levers.together.len() <= MOST_PAIRS);
        assert_eq!(levers.enough(), levers.together.first());
    }

    #[test]
    fn more_than_two_where_no_pair_is_enough() {
        let levers = ruled(17);
        assert_eq!(levers.together.len(), 1);
        assert!(levers.together[0].taken.fits && levers.together[0].flag.split(" --").count() > 2);
        assert_eq!(ruled(0).enough(), None);
        assert_eq!(ruled(96).together, []);
    }
}
