//! What each of `dp` devices holds when states, gradients or parameters are sharded over them (ZeRO 0 to 3).

use nn::blocks::Blocks;
use nn::step::{ParamInfo, Precision, StepOptions};
use tensor::{Phase, Role, Trace};

/// A ZeRO stage over data-parallel devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sharding {
    /// 0: nothing; 1: optimizer states; 2: and gradients; 3: and parameters.
    pub zero: u8,
    /// Devices.
    pub dp: u64,
    /// Devices among those over which experts are divided, where they are fewer.
    pub expert_dp: u64,
}

impl Default for Sharding {
    fn default() -> Self {
        Self::new(0, 1)
    }
}

impl Sharding {
    /// Everything over `dp` devices alike.
    pub const fn new(zero: u8, dp: u64) -> Self {
        Self { zero, dp, expert_dp: dp }
    }

    /// Bytes of a storage on one device, given who holds it, in which phase it was made, and whether it is of an expert.
    pub fn bytes(self, bytes: u64, role: Role, born: Phase, of_expert: bool) -> u64 {
        let dp = if of_expert { self.expert_dp } else { self.dp };
        if dp > 1 && self.divides(role, born) { bytes.div_ceil(dp) } else { bytes }
    }

    fn divides(self, role: Role, born: Phase) -> bool {
        Self::divided_from(role, born).is_some_and(|stage| self.zero >= stage)
    }

    /// The stage of ZeRO from which a storage is divided, if any does, given who holds it and in which phase it was made.
    pub const fn divided_from(role: Role, born: Phase) -> Option<u8> {
        match role {
            Role::OptimizerState => Some(1),
            // Temporaries of the update are as large as the shard that is updated.
            Role::Temporary if matches!(born, Phase::Optimizer) => Some(1),
            Role::Gradient => Some(2),
            Role::Parameter => Some(3),
            _ => None,
        }
    }

    /// Whether copies of weights in the compute dtype exist only while they are gathered.
    pub fn gathers(self) -> bool {
        self.zero >= 3 && self.dp > 1
    }
}

/// What is gathered or reduced at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Weights outside of the blocks.
    Root,
    /// Weights of a block.
    Weights(usize),
    /// Gradients of a block.
    Gradients(usize),
}

/// Bytes of the weights of a unit once they are gathered: packed ones stay packed.
pub fn weight_bytes(unit: &[&ParamInfo], precision: Precision) -> u64 {
    let each = precision.gathered_dtype().size_in_bytes();
    unit.iter().map(|param| param.packed_bytes.unwrap_or(param.elements * each)).sum()
}

/// Bytes of the gradients of a unit before they are reduced.
pub fn gradient_bytes(unit: &[&ParamInfo], precision: Precision) -> u64 {
    let each = precision.grad_dtype().size_in_bytes();
    unit.iter().filter(|param| param.trainable).map(|param| param.elements * each).sum()
}

/// Weights that are gathered around an op: the root (embedding, final norm, head), the block it runs in, and the block
/// that is fetched ahead.
pub struct Gathered {
    /// Of each op of the trace its phase and the number of its block; `None` is the root. Every replay asks for it at every
    /// allocation.
    ops: Vec<(Phase, Option<u32>)>,
    root: u64,
    blocks: Vec<u64>,
    gradients: Vec<u64>,
}

impl Gathered {
    /// Units of a traced model: each block is one, everything else the root.
    pub fn new(trace: &Trace, params: &[ParamInfo], options: &StepOptions, blocks: Blocks) -> Self {
        let units = blocks.units(params);
        let unit = |number: usize| units.blocks.get(&number).map_or(&[][..], |unit| &unit[..]);
        let count = units.blocks.last_key_value().map_or(0, |(last, _)| last + 1);
        let block: Vec<Option<u32>> =
            trace.modules.iter().map(|path| blocks.number(path).map(|number| number as u32)).collect();
        Self {
            ops: trace.ops.iter().map(|event| (event.phase, block[event.module.0 as usize])).collect(),
            root: weight_bytes(&units.root, options.precision),
            blocks: (0..count).map(|number| weight_bytes(unit(number), options.precision)).collect(),
            gradients: (0..count).map(|number| gradient_bytes(unit(number), options.precision)).collect(),
        }
    }

    /// Bytes of the root.
    pub const fn root(&self) -> u64 {
        self.root
    }

    /// Bytes gathered while op `at` runs.
    pub fn weights(&self, at: usize) -> u64 {
        self.weight_units(at).map(|(_, bytes)| bytes).sum()
    }

    /// The units gathered while op `at` runs, with their bytes.
    pub fn weight_units(&self, at: usize) -> impl Iterator<Item = (Unit, u64)> + use<> {
        let last = self.blocks.len().checked_sub(1);
        let around = self.ops.get(at).and_then(|&(phase, here)| {
            let here = here.map(|block| block as usize);
            match phase {
                Phase::Init | Phase::Optimizer | Phase::Communication => None,
                Phase::Forward => {
                    let ahead = || if self.after_blocks(at) { last } else { Some(0) };
                    Some((here, here.map_or_else(ahead, |i| Some(i + 1))))
                }
                Phase::Backward | Phase::Recompute => Some((here, here.map_or(last, |i| i.checked_sub(1)))),
            }
        });
        let block = |i: usize| self.blocks.get(i).map(|bytes| (Unit::Weights(i), *bytes));
        let (root, here, ahead) = match around {
            Some((here, ahead)) => (Some((Unit::Root, self.root)), here.and_then(block), ahead.and_then(block)),
            None => (None, None, None),
        };
        [root, here, ahead].into_iter().flatten()
    }

    /// Bytes of the unsharded gradients of the block that op `at` runs in: they are reduced when the block is done.
    pub fn gradients(&self, at: usize) -> u64 {
        self.gradient_unit(at).map_or(0, |(_, bytes)| bytes)
    }

    /// The block whose gradients are not reduced while op `at` runs, with their bytes.
    pub fn gradient_unit(&self, at: usize) -> Option<(Unit, u64)> {
        let (_, block) = self.ops.get(at).filter(|(phase, _)| matches!(phase, Phase::Backward | Phase::Recompute))?;
        let block = (*block)? as usize;
        self.gradients.get(block).map(|bytes| (Unit::Gradients(block), *bytes))
    }

    /// Whether a root op of the forward pass comes after the blocks (norm, head, loss) and not before (embedding).
    fn after_blocks(&self, at: usize) -> bool {
        let mut before = self.ops[..at].iter().rev().take_while(|(phase, _)| *phase == Phase::Forward);
        before.any(|(_, block)| block.is_some())
    }
}
