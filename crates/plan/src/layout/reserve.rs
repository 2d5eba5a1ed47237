//! What PyTorch's allocator reserves on the devices of a layout: a rank of every kind of stage, from an empty device on.

use nn::blocks::Blocks;
use nn::step::StepOptions;
use units::{Bytes, Diagnostics};

use super::Layout;
use super::engine;
use super::estimate::{Estimate, Run};
use super::rank::RankTrace;
use crate::allocator::{self, Beside, Process};
use crate::handover::Engine;
use crate::hardware::Kind;
use crate::runtime;
use crate::timeline::Device;

/// The device whose allocator reserves most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// The place of its rank in the pipeline.
    pub place: u64,
    /// Reserved bytes; where the device has no room for them, what they would be.
    pub bytes: Bytes,
    /// Whether some rank found no room.
    pub refused: bool,
}

impl Run<'_> {
    /// Traces, memory and time of a layout, with its allocators where those are PyTorch's.
    ///
    /// # Errors
    /// As [`traces`](Self::traces) and [`estimate`](Self::estimate).
    pub fn whole(&self, layout: &Layout) -> Result<(Vec<RankTrace>, Estimate), Diagnostics> {
        let traces = self.traces(layout)?;
        let mut estimate = self.estimate(layout, &traces)?;
        let hardware = self.cluster.hardware;
        if hardware.kind == Kind::Gpu {
            estimate.reserved = self.reserve(layout)?;
        }
        Ok((traces, estimate))
    }

    /// What is reserved.
    fn reserve(&self, layout: &Layout) -> Result<Option<Reserved>, Diagnostics> {
        let hardware = self.cluster.hardware;
        // Where states are made in the first step, they lie in other segments than where they are there before it.
        let traces = self.traces_of(layout, &StepOptions { steps: 2, warm: false, ..self.step })?;
        let room = hardware.capacity().saturating_sub(runtime::bytes(hardware, layout.devices()));
        let workspace = runtime::workspace(hardware);
        let all = traces.iter().map(|rank| {
            let found = rank.reserve(layout, self.engine, workspace, Some(room));
            Reserved { place: rank.place, bytes: Bytes(found.end.peak_reserved), refused: found.refused.is_some() }
        });
        let all: Vec<Reserved> = all.collect();
        let refused = all.iter().any(|one| one.refused);
        Ok(all.into_iter().max_by_key(|one| one.bytes).map(|most| Reserved { refused, ..most }))
    }
}

impl RankTrace {
    /// What PyTorch's allocator reserves on this rank, with the workspace of its products and what `engine` holds beside its
    /// tensors, where there is so much `room`; what it would, where that is not enough.
    pub fn reserve(
        &self,
        layout: &Layout,
        engine: Option<Engine>,
        workspace: Bytes,
        room: Option<Bytes>,
    ) -> allocator::Reserved {
        let weight = self.options.precision.gathered_dtype().size_in_bytes();
        let held = engine::shapes(engine, &self.stages).into_iter().map(|shape| engine::held(&[shape].into(), weight));
        let beside = Beside { held: held.collect(), ..Beside::default() };
        let process = Process { workspace, beside, ..Process::default() };
        let blocks = Blocks::of(&self.stages[0].names);
        process.wanted(&Device::new(&self.traced, &self.options, layout.sharding(), blocks), room)
    }
}
