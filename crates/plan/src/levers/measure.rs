//! What a set-up takes, by tracing it: the program's own bytes, those of one device with its allocator, or those of the
//! fullest rank of a layout.

use nn::blocks::Blocks;
use nn::spec::ModelSpec;
use nn::step::StepOptions;
use std::cell::RefCell;
use units::{Bytes, Diagnostics};

use super::change::{Setup, Words};
use crate::cluster::network;
use crate::hardware::Hardware;
use crate::layout::Layout;
use crate::layout::estimate::{Cluster, Estimate, Run};
use crate::layout::quick::{Book, Look};
use crate::ledger::{self, Ledger, Request};
use crate::model::Model;
use crate::on_device::OnDevice;
use crate::parallel::each;
use crate::scaling::Scaled;
use crate::sharding::Gathering;
use crate::timeline::Device;

/// What a set-up takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Taken {
    /// Bytes of the device by its tensors alone.
    pub tensors: u64,
    /// The same with what its allocator reserves, where that was simulated: no fewer.
    pub reserved: Option<u64>,
    /// Whether there is room for them.
    pub fits: bool,
    /// Predicted seconds of a step, where they can be.
    pub seconds: Option<f64>,
}

impl Taken {
    /// Bytes of the device, as far as they are known.
    pub fn bytes(&self) -> u64 {
        self.reserved.unwrap_or(self.tensors)
    }

    /// What an answer says.
    fn of(tensors: Bytes, device: &OnDevice) -> Self {
        let reserved = device.reserved.as_ref().map(|_| device.total.get());
        Self { tensors: tensors.get(), reserved, fits: device.fits(), seconds: None }
    }

    /// What an estimate says.
    fn of_layout(found: &Estimate, capacity: Bytes) -> Self {
        let reserved = found.reserved.map(|_| found.total().get());
        let seconds = Some(found.time.seconds());
        Self { tensors: found.device.get(), reserved, fits: found.fits(capacity), seconds }
    }

    /// Bytes that this takes less than `now` does, both with their allocators or both without; zero where it takes more.
    pub fn frees(&self, now: &Self) -> u64 {
        let (now, then) = now.reserved.zip(self.reserved).unwrap_or((now.tensors, self.tensors));
        now.saturating_sub(then)
    }
}

/// A way to look at set-ups.
pub trait Measure {
    /// The model.
    fn spec(&self) -> &ModelSpec;
    /// Whose flags say the set-ups.
    fn words(&self) -> Words;
    /// Bytes there is room for, where that is known.
    fn room(&self) -> Option<u64>;
    /// What a set-up takes, with the seconds of its step where they are known by that.
    ///
    /// # Errors
    /// If it cannot be traced.
    fn measure(&self, setup: &Setup) -> Result<Taken, Diagnostics>;
    /// The seconds of a step of which [`Measure::measure`] gives none.
    fn seconds(&self, _setup: &Setup) -> Option<f64> {
        None
    }
    /// What each of some set-ups takes, with the seconds of those that are worth it.
    fn measure_all(&self, setups: &[Setup], worth: Worth<'_>) -> Vec<Result<Taken, Diagnostics>> {
        setups.iter().map(|setup| Ok(self.timed(setup, self.measure(setup)?, worth))).collect()
    }
    /// What a set-up takes, with its seconds where that is worth it.
    fn timed(&self, setup: &Setup, taken: Taken, worth: Worth<'_>) -> Taken {
        let seconds = taken.seconds.or_else(|| worth(&taken).then(|| self.seconds(setup)).flatten());
        Taken { seconds, ..taken }
    }
}

/// Whether the seconds are asked for of what takes so much.
pub type Worth<'a> = &'a (dyn Fn(&Taken) -> bool + Sync);

/// The program's own bytes on one device, estimated from short traces.
#[derive(Debug)]
pub struct Own<'a> {
    /// The model.
    pub spec: &'a ModelSpec,
    /// Bytes outside of the program that count as well.
    pub runtime: Bytes,
    /// Bytes there is room for.
    pub budget: Option<u64>,
    /// The time of its steps.
    pub clock: Clock<'a>,
}

impl Own<'_> {
    fn taken(&self, scaled: &Scaled<'_>, setup: &Setup) -> Result<Taken, Diagnostics> {
        let tensors = scaled.peak(setup.layout.sharding(), self.runtime)?;
        let fits = self.budget.is_none_or(|budget| tensors <= budget);
        Ok(Taken { tensors, reserved: None, fits, seconds: None })
    }
}

/// One device with its allocator, traced whole where its tensors have room: estimated where they have not, by more than the
/// estimate is ever off.
#[derive(Debug)]
pub struct Alone<'a> {
    model: &'a Model,
    request: &'a Request<'a>,
    clock: Clock<'a>,
    /// What it takes as it is.
    now: Taken,
}

impl<'a> Alone<'a> {
    /// Of a question, and its answer.
    pub fn new(model: &'a Model, request: &'a Request<'a>, ledger: &Ledger, device: &OnDevice) -> Self {
        Self { model, request, clock: Clock::of(model, request), now: Taken::of(Bytes(ledger.peak_bytes), device) }
    }

    /// What a set-up takes whose step is traced.
    ///
    /// # Errors
    /// If it cannot be traced whole.
    pub fn taken(&self, scaled: &Scaled<'_>, setup: &Setup) -> Result<Taken, Diagnostics> {
        let (options, sharding) = (setup.options(), setup.layout.sharding());
        if (options, sharding) == (self.request.options, self.request.sharding) {
            return Ok(self.now);
        }
        // The allocator only adds: what has no room by its tensors alone needs no trace of its own. Where there is room as it is, a
        // change that frees memory has room.
        if let Some(room) = self.room().filter(|_| !self.now.fits) {
            let tensors = scaled.peak(sharding, self.request.runtime)?;
            if tensors > room + room / 100 {
                return Ok(Taken { tensors, reserved: None, fits: false, seconds: None });
            }
        }
        let request = Request { options, sharding, ..self.request.clone() };
        let traced = scaled.whole(&options)?;
        let names = &self.model.spec.names;
        let empty = Device::new(&traced, &options, sharding, Blocks::of(names));
        let tensors = ledger::peak_on(empty.clone(), request.runtime);
        let capacity = request.hardware.map(Hardware::capacity);
        Ok(Taken::of(tensors, &OnDevice::on(&empty, &traced, tensors, &request, capacity)))
    }
}

/// What each of some set-ups takes. Those that differ in how states are divided have the same step, which is traced once.
fn by_step(
    spec: &ModelSpec,
    setups: &[Setup],
    taken: impl Fn(&Scaled<'_>, &Setup) -> Result<Taken, Diagnostics> + Sync + Send,
) -> Vec<Result<Taken, Diagnostics>> {
    let mut steps: Vec<(StepOptions, Vec<usize>)> = Vec::new();
    for (i, setup) in setups.iter().enumerate() {
        // The steady state decides: what the first step lacks, the second has.
        let options = setup.options().steady();
        match steps.iter_mut().find(|(known, _)| *known == options) {
            Some((_, of)) => of.push(i),
            None => steps.push((options, vec![i])),
        }
    }
    let all = each(&steps, |(options, of)| {
        let scaled = Scaled::of(spec, options);
        of.iter().map(|&i| (i, taken(&scaled, &setups[i]))).collect::<Vec<_>>()
    });
    let mut all: Vec<_> = all.into_iter().flatten().collect();
    all.sort_by_key(|(i, _)| *i);
    all.into_iter().map(|(_, taken)| taken).collect()
}

/// The fullest rank of a layout: traced whole, with its allocator, where its tensors have room; out of traces of a few blocks
/// where they have not, which agrees to the byte.
#[derive(Debug)]
pub struct Divided<'a> {
    run: &'a Run<'a>,
    /// What a layout takes that is known, with its allocators.
    known: Option<(Layout, Taken)>,
    /// What was traced of layouts that differ in no more than their degrees.
    book: RefCell<Book<'a>>,
}

impl<'a> Divided<'a> {
    /// Of layouts of a run.
    pub fn of(run: &'a Run<'a>) -> Self {
        Self { run, known: None, book: RefCell::new(Book::new(run)) }
    }

    /// With what was found of one of them.
    pub fn with(run: &'a Run<'a>, layout: &Layout, found: &Estimate) -> Self {
        let known = (layout.clone(), Taken::of_layout(found, run.cluster.hardware.capacity()));
        Self { known: Some(known), ..Self::of(run) }
    }

    /// What a layout takes by its tensors, without a whole trace, where that can be said.
    fn by_tensors(&self, run: &Run<'_>, setup: &Setup) -> Option<Look> {
        // Outlines are of what is gathered as is usual.
        if !is_regular(setup) || setup.layout.sharding().gathering != Gathering::USUAL {
            return None;
        }
        let own = run.step == self.run.step;
        let look = if own { self.book.borrow_mut().look(&setup.layout) } else { Book::new(run).look(&setup.layout) };
        look.ok()
    }
}

/// Predicts the time of steps, where the device is known.
#[derive(Debug)]
pub struct Clock<'a>(Option<Run<'a>>);

impl<'a> Clock<'a> {
    /// For steps of a model on the device of a question.
    pub fn of(model: &'a Model, request: &Request<'a>) -> Self {
        let run = || {
            let hardware = request.hardware?;
            let network = network::find(network::USUAL).ok()?;
            let cluster = Cluster { hardware, per_node: PER_NODE, network };
            Run::new(model, request.options.steady(), None, cluster).ok()
        };
        Self(run())
    }

    fn seconds(&self, setup: &Setup) -> Option<f64> {
        self.0.as_ref().and_then(|run| seconds(run, setup))
    }
}

/// Devices of a node where nobody says how many.
const PER_NODE: u64 = 8;

/// A run whose step is that of a set-up.
fn with<'a>(run: &Run<'a>, setup: &Setup) -> Run<'a> {
    Run { step: setup.step.steady(), ..*run }
}

/// Whether a step is looked at out of traces of a few blocks: stages are as even as can be, and updates have a time of their own.
const fn is_regular(setup: &Setup) -> bool {
    setup.layout.blocks.is_none() && !setup.step.in_backward
}

/// Seconds of a step: out of traces of a few blocks, or of a whole one.
fn seconds(run: &Run<'_>, setup: &Setup) -> Option<f64> {
    let run = with(run, setup);
    if let Some(look) = is_regular(setup).then(|| Book::new(&run).look(&setup.layout).ok()).flatten() {
        return Some(look.time.seconds());
    }
    Some(run.estimate(&setup.layout, &run.traces(&setup.layout).ok()?).ok()?.time.seconds())
}

impl Measure for Own<'_> {
    fn spec(&self) -> &ModelSpec {
        self.spec
    }

    fn words(&self) -> Words {
        Words::Step
    }

    fn room(&self) -> Option<u64> {
        self.budget
    }

    fn measure(&self, setup: &Setup) -> Result<Taken, Diagnostics> {
        self.taken(&Scaled::of(self.spec, &setup.options().steady()), setup)
    }

    fn measure_all(&self, setups: &[Setup], worth: Worth<'_>) -> Vec<Result<Taken, Diagnostics>> {
        by_step(self.spec, setups, |scaled, setup| Ok(self.timed(setup, self.taken(scaled, setup)?, worth)))
    }

    fn seconds(&self, setup: &Setup) -> Option<f64> {
        self.clock.seconds(setup)
    }
}

impl Measure for Alone<'_> {
    fn spec(&self) -> &ModelSpec {
        &self.model.spec
    }

    fn words(&self) -> Words {
        Words::Step
    }

    fn room(&self) -> Option<u64> {
        self.request.hardware.map(|hardware| hardware.capacity().get())
    }

    fn measure(&self, setup: &Setup) -> Result<Taken, Diagnostics> {
        self.taken(&Scaled::of(&self.model.spec, &setup.options().steady()), setup)
    }

    fn measure_all(&self, setups: &[Setup], worth: Worth<'_>) -> Vec<Result<Taken, Diagnostics>> {
        by_step(&self.model.spec, setups, |scaled, setup| Ok(self.timed(setup, self.taken(scaled, setup)?, worth)))
    }

    fn seconds(&self, setup: &Setup) -> Option<f64> {
        self.clock.seconds(setup)
    }
}

impl Measure for Divided<'_> {
    fn spec(&self) -> &ModelSpec {
        &self.run.model.spec
    }

    fn words(&self) -> Words {
        Words::Layout
    }

    fn room(&self) -> Option<u64> {
        Some(self.run.cluster.hardware.capacity().get())
    }

    fn measure(&self, setup: &Setup) -> Result<Taken, Diagnostics> {
        let known = self.known.as_ref().filter(|(layout, _)| *layout == setup.layout && self.run.step == setup.step);
        if let Some((_, taken)) = known {
            return Ok(*taken);
        }
        let run = with(self.run, setup);
        let capacity = run.cluster.hardware.capacity();
        // The allocator only adds: what has no room by its tensors needs no trace of its own.
        if let Some(Look { seen, time, .. }) = self.by_tensors(&run, setup).filter(|one| one.seen.device > capacity) {
            let (tensors, seconds) = (seen.device.get(), Some(time.seconds()));
            return Ok(Taken { tensors, reserved: None, fits: false, seconds });
        }
        let (_, estimate) = run.whole(&setup.layout)?;
        Ok(Taken::of_layout(&estimate, capacity))
    }
}
