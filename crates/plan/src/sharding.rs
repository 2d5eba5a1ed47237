//! What each of `dp` devices holds when states, gradients or parameters are sharded over them (ZeRO 0 to 3).

mod gathered;

pub use gathered::{Gathered, Unit};

use std::fmt;
use std::str::FromStr;

use nn::step::{ParamInfo, Precision};
use tensor::{Phase, Role};

use crate::report::Value;

/// A ZeRO stage over data-parallel devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sharding {
    /// 0: nothing; 1: optimizer states; 2: and gradients; 3: and parameters.
    pub zero: u8,
    /// Devices.
    pub dp: u64,
    /// Devices among those over which experts are divided, where they are fewer.
    pub expert_dp: u64,
    /// What is whole for a while of what is divided.
    pub gathering: Gathering,
}

/// What is gathered and reduced at a time, and how long it stays whole: the choices of FSDP.
///
/// Source: pytorch/pytorch, `torch/distributed/fsdp/_fully_shard/_fully_shard.py`, `fully_shard` and
/// `set_requires_gradient_sync`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gathering {
    /// What a unit is.
    pub wrap: Wrap,
    /// Whether a unit is gathered while the one before it runs.
    pub prefetch: bool,
    /// Whether what was gathered for the forward pass is given up behind it, and gathered again.
    pub reshard: bool,
    /// Whether gradients are reduced behind the backward pass of every micro-batch; if not, they are added up whole, and reduced
    /// behind the last.
    pub sync: bool,
}

impl Gathering {
    /// A block at a time and one ahead, given up behind each pass.
    pub const USUAL: Self = Self { wrap: Wrap::Block, prefetch: true, reshard: true, sync: true };

    /// What it is, for programs.
    pub fn values(self) -> [(&'static str, Value); 4] {
        let Self { wrap, prefetch, reshard, sync } = self;
        [
            ("fsdp_unit", wrap.name().into()),
            ("prefetch", prefetch.into()),
            ("reshard", reshard.into()),
            ("sync", sync.into()),
        ]
    }

    /// Only what has a part in this stage of ZeRO, everything else being as usual.
    #[must_use]
    pub const fn of_stage(self, zero: u8) -> Self {
        match zero {
            0 | 1 => Self::USUAL,
            2 => Self { sync: self.sync, ..Self::USUAL },
            _ => self,
        }
    }
}

impl fmt::Display for Gathering {
    /// What is not as usual, in the words of its flags.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { wrap, prefetch, reshard, sync } = *self;
        let all = [
            (wrap == Wrap::Model, " one-unit"),
            (!prefetch, " no-prefetch"),
            (!reshard, " no-reshard"),
            (!sync, " no-sync"),
        ];
        all.into_iter().filter(|(other, _)| *other).try_for_each(|(_, words)| f.write_str(words))
    }
}

impl Default for Gathering {
    fn default() -> Self {
        Self::USUAL
    }
}

/// What is gathered at a time where parameters are divided: what the wrapping decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrap {
    /// A block, and what is outside of blocks.
    Block,
    /// Everything: nothing is wrapped but the whole.
    Model,
}

impl Wrap {
    /// Name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Block => "block",
            Self::Model => "model",
        }
    }
}

impl FromStr for Wrap {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "block" => Ok(Self::Block),
            "model" => Ok(Self::Model),
            _ => Err(format!("unknown unit `{text}`: valid are block, model")),
        }
    }
}

impl Default for Sharding {
    fn default() -> Self {
        Self::new(0, 1)
    }
}

impl Sharding {
    /// Everything over `dp` devices alike.
    pub const fn new(zero: u8, dp: u64) -> Self {
        Self { zero, dp, expert_dp: dp, gathering: Gathering::USUAL }
    }

    /// Bytes of a storage on one device, given who holds it, in which phase it was made, and whether it is of an expert.
    pub fn bytes(self, bytes: u64, role: Role, born: Phase, of_expert: bool) -> u64 {
        if self.divides(role, born) { self.share(bytes, of_expert) } else { bytes }
    }

    /// One device's part of what is divided.
    const fn share(self, bytes: u64, of_expert: bool) -> u64 {
        let dp = if of_expert { self.expert_dp } else { self.dp };
        if dp > 1 { bytes.div_ceil(dp) } else { bytes }
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

    /// What is not as usual of what is whole for a while, in words.
    pub fn other_gathering(self) -> Vec<&'static str> {
        let Gathering { wrap, prefetch, reshard, sync } = self.gathering;
        let all = [
            (wrap == Wrap::Model, "the whole model is gathered at once"),
            (!prefetch && wrap == Wrap::Block, "no block is gathered ahead"),
            (!reshard, "gathered ones stay for backward"),
            (!sync, "gradients are whole until the last micro-batch"),
        ];
        all.into_iter().filter_map(|(other, words)| (other && self.dp > 1).then_some(words)).collect()
    }

    /// Whether gradients are whole only until they are reduced.
    pub fn reduces(self) -> bool {
        self.zero >= 2 && self.dp > 1
    }
}

/// Bytes of the weights of a unit once they are gathered: packed ones stay packed.
pub fn weight_bytes(unit: &[&ParamInfo], precision: Precision) -> u64 {
    let each = precision.gathered_dtype().size_in_bytes();
    unit.iter().map(|param| param.packed_bytes.unwrap_or(param.elements * each)).sum()
}

/// Bytes of the gradients of a unit as a pass backward makes them, in the dtype that weights are gathered in.
fn made_bytes<'a>(unit: impl Iterator<Item = &'a &'a ParamInfo>, precision: Precision) -> u64 {
    let each = precision.gathered_dtype().size_in_bytes();
    unit.filter(|param| param.trainable).map(|param| param.elements * each).sum()
}

/// Bytes of the gradients of a unit as they are reduced.
pub fn gradient_bytes(unit: &[&ParamInfo], precision: Precision) -> u64 {
    let each = precision.grad_dtype().size_in_bytes();
    unit.iter().filter(|param| param.trainable).map(|param| param.elements * each).sum()
}
