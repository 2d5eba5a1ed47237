//! Live blocks of a snapshot given to the storages that a traced step has at the moment most like it.

use std::collections::BTreeMap;
use std::path::Path;

use nn::blocks::Blocks;
use nn::step::StepTrace;

use super::memory::{Block, Frame, Snapshot, State};
use crate::allocator;
use crate::ledger::{Request, place, stretch};
use crate::model::{Model, pattern};
use crate::runtime::{self, What};
use crate::timeline::{Device, Timeline};

/// A part of what is live: bucket and part, as lines of the ledger have them.
pub type Line = (&'static str, String);

/// What was found of one line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Bytes and number that the step has.
    pub predicted: (u64, u64),
    /// Bytes and number of the blocks that were given to it.
    pub found: (u64, u64),
}

/// Blocks that nothing predicted has the size of, by size and stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unexplained {
    /// Bytes of each.
    pub bytes: u64,
    /// How many.
    pub count: u64,
    /// The frame that says most of where they come from.
    pub frame: Option<Frame>,
}

impl Unexplained {
    /// Bytes of all.
    pub const fn total(&self) -> u64 {
        self.bytes * self.count
    }
}

/// A snapshot explained.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attribution {
    /// The moment of the step that the snapshot is most like.
    pub moment: String,
    /// Lines, as the step has them at that moment.
    pub lines: BTreeMap<Line, Found>,
    /// What is left, largest first.
    pub unexplained: Vec<Unexplained>,
}

impl Attribution {
    /// Bytes of the blocks that were given to a line.
    pub fn explained(&self) -> u64 {
        self.lines.values().map(|line| line.found.0).sum()
    }

    /// Bytes of those that were not.
    pub fn left(&self) -> u64 {
        self.unexplained.iter().map(Unexplained::total).sum()
    }
}

/// Moments between the ends of the stretches that are tried too.
const MOMENTS: usize = 64;

/// What the trace has live, by size: for each size the lines of its storages, with their number.
type Live = BTreeMap<u64, BTreeMap<Line, u64>>;

/// Gives the live blocks of a snapshot to the storages of a step.
pub fn attribute(snapshot: &Snapshot, model: &Model, traced: &StepTrace, request: &Request<'_>) -> Attribution {
    let blocks: Vec<&Block> = snapshot.blocks().filter(|block| block.state == State::Allocated).collect();
    let mut sizes: BTreeMap<u64, u64> = BTreeMap::new();
    for block in &blocks {
        *sizes.entry(size_of(block)).or_default() += 1;
    }
    // Of moments that are as near, an end of a stretch is likelier than one that has no name.
    let mut best: Option<((u128, bool), String, Live)> = None;
    for (name, live) in moments(model, traced, request) {
        let distance = (distance(&live, &sizes), name.starts_with("in "));
        if best.as_ref().is_none_or(|(least, ..)| distance < *least) {
            best = Some((distance, name, live));
        }
    }
    let Some((_, moment, mut live)) = best else { return Attribution::default() };
    let mut out = Attribution { moment, ..Attribution::default() };
    for (bytes, lines) in &live {
        for (line, count) in lines {
            let entry = out.lines.entry(line.clone()).or_default();
            entry.predicted.0 += bytes * count;
            entry.predicted.1 += count;
        }
    }
    let mut give = |out: &mut Attribution, block: &Block, bucket: Option<&'static str>| {
        let Some(lines) = live.get_mut(&size_of(block)) else { return false };
        let wanted = |(line, count): &(&Line, &mut u64)| **count > 0 && bucket.is_none_or(|bucket| line.0 == bucket);
        let Some((line, count)) = lines.iter_mut().find(wanted) else { return false };
        *count -= 1;
        let entry = out.lines.entry(line.clone()).or_default();
        entry.found.0 += block.size;
        entry.found.1 += 1;
        true
    };
    // First those whose stack says what they are, then by size alone.
    let mut open = Vec::new();
    for block in blocks {
        let hint = hint(&block.frames);
        if hint.is_none() || !give(&mut out, block, hint) {
            open.push(block);
        }
    }
    open.retain(|block| !give(&mut out, block, None));
    open.retain(|block| !workspace(&mut out, block));
    let mut groups: BTreeMap<(u64, Option<Frame>), u64> = BTreeMap::new();
    for block in open {
        *groups.entry((block.size, telling(&block.frames).cloned())).or_default() += 1;
    }
    let groups = groups.into_iter().map(|((bytes, frame), count)| Unexplained { bytes, count, frame });
    out.unexplained = groups.collect();
    out.unexplained.sort_by_key(|one| std::cmp::Reverse((one.total(), one.bytes)));
    out
}

/// The size by which a block is known: what was asked for, where that is told, in whole blocks.
fn size_of(block: &Block) -> u64 {
    block.requested.map_or(block.size, allocator::block)
}

/// Bytes that one side has and the other has not. Blocks of the least size tell nothing: scalars may be on the host.
fn distance(live: &Live, sizes: &BTreeMap<u64, u64>) -> u128 {
    let known = live.range(allocator::BLOCK_STEP + 1..).map(|(bytes, lines)| {
        let (here, there) = (lines.values().sum::<u64>(), sizes.get(bytes).copied().unwrap_or(0));
        u128::from(*bytes) * u128::from(here.abs_diff(there))
    });
    let unknown = sizes.range(allocator::BLOCK_STEP + 1..).filter(|(bytes, _)| !live.contains_key(*bytes));
    known.sum::<u128>() + unknown.map(|(bytes, count)| u128::from(*bytes) * u128::from(*count)).sum::<u128>()
}

/// What is live at the end and at the peak of each stretch, and at moments in between.
fn moments(model: &Model, traced: &StepTrace, request: &Request<'_>) -> Vec<(String, Live)> {
    let trace = &traced.trace;
    let names = &model.spec.names;
    let phases = Timeline::of(traced, &request.options, request.sharding, Blocks::of(names)).phases;
    let mut at: BTreeMap<usize, String> = BTreeMap::new();
    let every = (trace.memory.len() / MOMENTS).max(1);
    for (i, phase) in phases.iter().enumerate() {
        let start = trace.marks[i].memory as usize;
        let end = trace.marks.get(i + 1).map_or(trace.memory.len(), |next| next.memory as usize);
        let step: String = phase.name.chars().filter(char::is_ascii_digit).take(1).collect();
        let name = match stretch(&phase.name) {
            "init" => "the model is built".to_owned(),
            other if other.starts_with("zero") => format!("after step {step}"),
            other => format!("{other} of step {step}"),
        };
        for middle in (start..end).step_by(every).skip(1) {
            at.insert(middle, format!("in the {name}"));
        }
        if phase.peak_op.is_some() {
            at.insert(phase.peak_event, format!("at the peak of the {name}"));
        }
        let ended = matches!(name.as_str(), "the model is built") || name.starts_with("after");
        at.insert(end, if ended { name } else { format!("at the end of the {name}") });
    }
    let mut device = Device::new(traced, &request.options, request.sharding, Blocks::of(names));
    let mut done = 0;
    let mut out = Vec::new();
    for (event, name) in at {
        for event in done..event {
            device.apply(event);
        }
        done = event;
        let mut live = Live::new();
        for (id, held) in device.live().iter().enumerate() {
            let Some((role, bytes)) = held.filter(|(_, bytes)| *bytes > 0) else { continue };
            let line = place(role, &pattern(trace.module(trace.storages[id].module)), names);
            *live.entry(allocator::block(bytes)).or_default().entry(line).or_default() += 1;
        }
        if device.has_units() {
            let op = trace.memory.get(event).or(trace.memory.last()).map_or(0, |event| event.op);
            for (_, bytes) in device.units(op as usize).filter(|(_, bytes)| *bytes > 0) {
                let line = ("communication", "gathered".to_owned());
                *live.entry(allocator::block(bytes)).or_default().entry(line).or_default() += 1;
            }
        }
        out.push((name, live));
    }
    out
}

/// Gives a block to the workspace of matrix products, whose sizes are known.
fn workspace(out: &mut Attribution, block: &Block) -> bool {
    let known =
        runtime::table().iter().any(|row| row.what == What::Workspace && Some(row.bytes.get()) == block.requested);
    if known {
        let entry = out.lines.entry(("workspace", String::new())).or_default();
        entry.predicted.0 += block.size;
        entry.predicted.1 += 1;
        entry.found.0 += block.size;
        entry.found.1 += 1;
    }
    known
}

/// Which bucket a stack speaks of, where it does.
fn hint(frames: &[Frame]) -> Option<&'static str> {
    let any = |test: &dyn Fn(&Frame) -> bool| frames.iter().any(test);
    if any(&|frame| frame.file.contains("torch/optim/")) {
        Some("optimizer_states")
    } else if any(&|frame| frame.file.contains("torch/autograd/") || frame.name.contains("_engine_run_backward")) {
        Some("gradients")
    } else if any(&|frame| frame.name == "_apply" || frame.name == "load_state_dict" || frame.name == "from_pretrained")
    {
        Some("parameters")
    } else if any(&|frame| frame.name == "forward" || frame.name == "_call_impl") {
        Some("activations")
    } else {
        None
    }
}

/// The innermost frame that is somebody's own code, or else the innermost.
pub(super) fn telling(frames: &[Frame]) -> Option<&Frame> {
    let is_python = |frame: &Frame| Path::new(&frame.file).extension().is_some_and(|extension| extension == "py");
    let own = |frame: &&Frame| is_python(frame) && !frame.file.contains("/torch/");
    frames.iter().find(own).or_else(|| frames.first())
}
