//! How a run is divided over devices: the degrees, their groups, and what is legal.
//!
//! Rank order is that of Megatron-Core (`order = "tp-cp-ep-dp-pp"`): neighbours share tensors first, pipeline stages are
//! farthest apart. Experts have groups of their own over the same ranks of a stage: `etp × ep × expert dp = tp × cp × dp`.

pub mod answer;
mod check;
mod cut;
pub mod engine;
pub mod estimate;
pub mod given;
mod held;
mod load;
mod outline;
pub mod overlap;
pub mod quick;
pub mod rank;
pub mod report;
pub mod reserve;
pub mod search;
pub mod space;
mod terms;

pub use check::check;
pub(crate) use check::moe;

use nn::Ranks;
use nn::context::Recompute;
use nn::offload::Offload;
use std::fmt;
use std::str::FromStr;

use crate::sharding::{Gathering, Sharding};

/// A run divided over devices.
#[derive(Clone, Debug, PartialEq)]
pub struct Layout {
    /// Replicas of the whole model; ranks of one see other sequences than those of another.
    pub dp: u64,
    /// Ranks that share matrices.
    pub tp: u64,
    /// Whether what lies between shared matrices is divided along the sequence over the same ranks.
    pub sp: bool,
    /// Ranks that share a sequence.
    pub cp: u64,
    /// How attention sees the rest of a sequence.
    pub context: ContextParallel,
    /// Ranks that share the experts of a block.
    pub ep: u64,
    /// Ranks that share the matrices of one expert.
    pub etp: u64,
    /// Rows of the fullest rank of experts over their mean.
    pub imbalance: f64,
    /// Pipeline stages.
    pub pp: u64,
    /// Runs of blocks that a pipeline rank holds, one after another around the ring of stages.
    pub virtual_stages: u64,
    /// In which order a pipeline rank works.
    pub schedule: Schedule,
    /// Blocks of each stage in the order of the model (`pp × virtual_stages` numbers); `None`: as even as can be.
    pub blocks: Option<Vec<u64>>,
    /// 0: nothing; 1: optimizer states; 2: and gradients; 3: and parameters are divided over the replicas.
    pub zero: u8,
    /// Ranks that those are divided over, where they are fewer than the replicas: the others hold copies (hybrid sharding).
    pub shard: Option<u64>,
    /// What is gathered and reduced at a time, and how long it stays whole (ZeRO 2 and 3).
    pub gathering: Gathering,
    /// Sequences of a micro-batch.
    pub micro_batch: u64,
    /// Micro-batches of a step on one replica.
    pub grad_accum: u64,
    /// What is run again in backward.
    pub recompute: Recompute,
    /// What lies on the host.
    pub offload: Offload,
}

/// How attention sees the parts of a sequence that other ranks hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum ContextParallel {
    /// Keys and values go round the ranks.
    ///
    /// Source: Liu et al. 2023, arXiv:2310.01889.
    #[default]
    Ring,
    /// Heads are exchanged for positions before attention and back behind it.
    ///
    /// Source: Jacobs et al. 2023, arXiv:2309.14509.
    AllToAll,
}

/// In which order a pipeline rank works on micro-batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Schedule {
    /// All forward passes, then all backward passes.
    ///
    /// Source: Huang et al. 2018, arXiv:1811.06965.
    GPipe,
    /// One forward, one backward, once the pipeline is full.
    ///
    /// Source: Narayanan et al. 2021, arXiv:2104.04473, section 2.2.1.
    #[default]
    OneFOneB,
    /// The same with several runs of blocks on each rank.
    ///
    /// Source: Narayanan et al. 2021, arXiv:2104.04473, section 2.2.2.
    Interleaved,
    /// Gradients of weights are put off into what would be idle time (the form ZB-H1, whose memory is that of 1F1B).
    ///
    /// Source: Qi et al. 2023, arXiv:2401.10241.
    ZeroBubble,
}

impl Schedule {
    /// All schedules.
    pub const ALL: [Self; 4] = [Self::GPipe, Self::OneFOneB, Self::Interleaved, Self::ZeroBubble];

    /// Name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::GPipe => "gpipe",
            Self::OneFOneB => "1f1b",
            Self::Interleaved => "interleaved",
            Self::ZeroBubble => "zero-bubble",
        }
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Schedule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let name = text.trim().to_ascii_lowercase();
        Self::ALL
            .into_iter()
            .find(|schedule| schedule.name() == name)
            .ok_or_else(|| format!("unknown schedule `{text}`: valid are {}", Self::ALL.map(Self::name).join(", ")))
    }
}

impl Default for Layout {
    /// One device, one sequence.
    fn default() -> Self {
        Self {
            dp: 1,
            tp: 1,
            sp: false,
            cp: 1,
            context: ContextParallel::Ring,
            ep: 1,
            etp: 1,
            imbalance: 1.0,
            pp: 1,
            virtual_stages: 1,
            schedule: Schedule::OneFOneB,
            blocks: None,
            zero: 0,
            shard: None,
            gathering: Gathering::USUAL,
            micro_batch: 1,
            grad_accum: 1,
            recompute: Recompute::None,
            offload: Offload::NONE,
        }
    }
}

impl Layout {
    /// Devices of the run; saturates.
    pub const fn devices(&self) -> u64 {
        self.stage_ranks().saturating_mul(self.pp)
    }

    /// Ranks of one pipeline stage.
    pub const fn stage_ranks(&self) -> u64 {
        self.tp.saturating_mul(self.cp).saturating_mul(self.dp)
    }

    /// Replicas of one expert.
    pub const fn expert_dp(&self) -> u64 {
        self.stage_ranks() / self.ep.saturating_mul(self.etp)
    }

    /// Ranks over which states are divided that belong to no expert: ranks of one sequence hold the same parameters.
    pub const fn sharing_ranks(&self) -> u64 {
        match self.shard {
            Some(ranks) => ranks,
            None => self.dp.saturating_mul(self.cp),
        }
    }

    /// Ranks over which the states of an expert are divided. Where states are divided over some of the replicas, the ranks of
    /// these hold all experts.
    ///
    /// Source: pytorch/torchtitan, `torchtitan/distributed/parallel_dims.py`: `dp_shard_mod_ep × dp_shard_in_ep = dp_shard`.
    pub const fn expert_sharing_ranks(&self) -> u64 {
        match self.shard {
            Some(ranks) => ranks.saturating_mul(self.tp) / self.ep.saturating_mul(self.etp),
            None => self.expert_dp(),
        }
    }

    /// How tensors are divided within a stage and a replica.
    pub const fn ranks(&self) -> Ranks {
        let ring = self.cp > 1 && matches!(self.context, ContextParallel::Ring);
        let Self { tp, sp, cp, ep, etp, imbalance, .. } = *self;
        Ranks { tp, sp, cp, ring, ep, etp, imbalance }
    }

    /// How states are divided over replicas, and what of it is gathered otherwise than usual, as far as that has a part in the step.
    pub const fn sharding(&self) -> Sharding {
        // One micro-batch is the last.
        let sync = self.gathering.sync || self.grad_accum == 1;
        Sharding {
            zero: self.zero,
            dp: self.sharing_ranks(),
            expert_dp: self.expert_sharing_ranks(),
            gathering: Gathering { sync, ..self.gathering }.of_stage(self.zero),
        }
    }

    /// Sequences of a step.
    pub const fn global_batch(&self) -> u64 {
        self.dp.saturating_mul(self.micro_batch).saturating_mul(self.grad_accum)
    }

    /// Gives every device to a replica; of a number that does not divide, the rest stays idle, which [`check`] refuses.
    pub fn fill(&mut self, devices: u64) {
        let shared = self.tp.saturating_mul(self.cp).saturating_mul(self.pp);
        self.dp = (devices / shared.max(1)).max(1);
    }

    /// Blocks of each stage, in the order of the model: those given, or as even as can be, the first ones getting more.
    pub fn blocks_of(&self, layers: u64) -> Vec<u64> {
        if let Some(blocks) = &self.blocks {
            return blocks.clone();
        }
        let stages = self.pp * self.virtual_stages;
        (0..stages).map(|stage| layers / stages + u64::from(stage < layers % stages)).collect()
    }
}

impl fmt::Display for Layout {
    /// What is divided, and what of it is run again or lies on the host: `tp 8 sp · pp 4 · dp 2 zero 1 · micro-batch 1 × 16 ·
    /// recompute full`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if self.tp > 1 {
            parts.push(format!("tp {}{}", self.tp, if self.sp { " sp" } else { "" }));
        }
        if self.cp > 1 {
            let heads = if self.context == ContextParallel::AllToAll { " all-to-all" } else { "" };
            parts.push(format!("cp {}{heads}", self.cp));
        }
        if self.pp > 1 {
            let chunks = if self.virtual_stages > 1 { format!(" × {}", self.virtual_stages) } else { String::new() };
            parts.push(format!("pp {}{chunks}", self.pp));
        }
        if self.ep > 1 || self.etp > 1 {
            parts.push(format!("ep {} etp {}", self.ep, self.etp));
        }
        if self.dp > 1 {
            let shard = self.shard.map_or_else(String::new, |ranks| format!(" over {ranks}"));
            let gathering = self.sharding().gathering;
            parts.push(format!("dp {} zero {}{shard}{gathering}", self.dp, self.zero));
        }
        parts.push(format!("micro-batch {} × {}", self.micro_batch, self.grad_accum));
        if self.recompute != Recompute::None {
            parts.push(format!("recompute {}", self.recompute.name()));
        }
        if self.offload.is_any() {
            parts.push(format!("{} on the host", self.offload));
        }
        f.pad(&parts.join(" · "))
    }
}
