//! A layout looked at by multiplication: what its stages do is read out of their outlines, once for all layouts that share
//! them.

mod book;
mod desk;
mod sheet;

use nn::Ranks;
use nn::context::Recompute;
use nn::offload::Offload;
use nn::optim::Implementation;
use std::collections::{BTreeSet, HashMap};

use super::cut::{Cut, Pieces};
use super::estimate::Run;
use super::held::{Holding, holdings};
use super::{ContextParallel, Layout, Schedule};

pub use book::{Book, Look};
pub use desk::{Desk, Seen};
pub use sheet::Sheet;

/// What decides which ops a rank runs, but for the sequences of a micro-batch and the blocks of a stage.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Way {
    /// How tensors are divided.
    pub ranks: Ranks,
    /// How attention sees the rest of a sequence.
    pub context: ContextParallel,
    /// What is run again in backward.
    pub recompute: Recompute,
    /// What lies on the host.
    pub offload: Offload,
}

impl Way {
    /// That of a layout.
    pub const fn of(layout: &Layout) -> Self {
        let Layout { context, recompute, offload, .. } = *layout;
        Self { ranks: layout.ranks(), context, recompute, offload }
    }
}

/// How a model is cut over a pipeline, and what its ranks hold.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The cut.
    pub cut: Cut,
    /// Its classes of ranks over a step.
    pub holdings: Vec<Holding>,
    /// The short forms that its pieces come down to.
    pub shorts: BTreeSet<usize>,
}

/// The plans of all pipelines of a model.
#[derive(Clone, Debug)]
pub struct Plans {
    /// The pieces they are made of.
    pub pieces: Pieces,
    all: Vec<Plan>,
    known: HashMap<(u64, u64, Schedule, u64), usize>,
}

impl Plans {
    /// Of a run, none yet.
    pub fn new(run: &Run<'_>) -> Self {
        let mut pieces = Pieces::new(&run.model.spec);
        if run.step.optimizer.implementation == Implementation::ForEach {
            // An update of all parameters at once tells no block from another.
            pieces.leave_whole();
        }
        Self { pieces, all: Vec::new(), known: HashMap::new() }
    }

    /// Plans the pipeline of a layout whose stages are as even as can be.
    pub fn add(&mut self, layout: &Layout) -> usize {
        let key = key(layout);
        if let Some(known) = self.known.get(&key) {
            return *known;
        }
        let cut = self.pieces.cut(layout);
        let holdings = holdings(layout, &cut);
        let pieces = cut.classes.iter().flat_map(|class| &class.pieces);
        let shorts = pieces.map(|piece| self.pieces.all[*piece].short).collect();
        self.all.push(Plan { cut, holdings, shorts });
        self.known.insert(key, self.all.len() - 1);
        self.all.len() - 1
    }

    /// The plan of a layout, if it was added.
    pub fn find(&self, layout: &Layout) -> Option<usize> {
        self.known.get(&key(layout)).copied()
    }

    /// A plan that was added.
    pub fn get(&self, plan: usize) -> &Plan {
        &self.all[plan]
    }
}

/// What decides which cut a layout has, and what its ranks hold.
fn key(layout: &Layout) -> (u64, u64, Schedule, u64) {
    let (pp, chunks) = (layout.pp, layout.virtual_stages);
    // More micro-batches than these change nothing.
    let enough = (4 * pp).max((2 * pp + pp * chunks).div_ceil(chunks).next_multiple_of(pp) + 2 * pp);
    let few = match layout.schedule {
        Schedule::GPipe => layout.grad_accum,
        _ => layout.grad_accum.min(enough),
    };
    (pp, chunks, layout.schedule, few)
}
