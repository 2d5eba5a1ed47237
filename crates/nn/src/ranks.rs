//! Ranks that share the tensors of one model: what each holds, and where they talk.
//!
//! A model of which each rank has a part is described by the spec of that part ([`ModelSpec::share`](crate::spec::ModelSpec::share)): its
//! heads, its columns, its experts. Between the maps that are divided, every rank holds the same stream, or a part of its
//! positions (sequence parallel): [`Forward::enter`] and [`Forward::leave`] are the two ways between.
//!
//! Source: Shoeybi et al. 2019, arXiv:1909.08053; Korthikanti et al. 2022, arXiv:2205.05198 (sequence parallel).

use crate::context::Forward;
use tensor::{Axis, Combine, Group, Result, Tensor};

/// Over how many ranks the tensors of a model are divided.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ranks {
    /// Ranks that share matrices.
    pub tp: u64,
    /// Whether the stream between shared matrices is divided over them by position.
    pub sp: bool,
    /// Ranks that share a sequence: each has its positions.
    pub cp: u64,
    /// Whether keys and values go round these, each of which has one part from the front of the sequence and one from its end;
    /// otherwise attention exchanges heads for positions.
    pub ring: bool,
    /// Ranks that share the experts of a block.
    pub ep: u64,
    /// Ranks that share the matrices of an expert.
    pub etp: u64,
    /// Rows of the fullest rank of experts over their mean.
    pub imbalance: f64,
}

impl Ranks {
    /// One rank that holds everything.
    pub const ALONE: Self = Self { tp: 1, sp: false, cp: 1, ring: false, ep: 1, etp: 1, imbalance: 1.0 };

    /// Whether there is no other rank.
    pub const fn is_alone(self) -> bool {
        self.tp == 1 && self.cp == 1 && self.ep == 1 && self.etp == 1
    }

    /// Those that share matrices.
    pub const fn tensor(self) -> Group {
        Group { axis: Axis::Tp, size: self.tp }
    }

    /// Those that share a sequence.
    pub const fn context(self) -> Group {
        Group { axis: Axis::Cp, size: self.cp }
    }

    /// Those that keys and values go round, if they do.
    pub const fn around(self) -> Option<Group> {
        if self.ring && self.cp > 1 { Some(self.context()) } else { None }
    }

    /// Those that exchange heads for positions: nobody where keys and values go round.
    const fn exchanging(self) -> Group {
        let group = self.context();
        if self.ring { Group { size: 1, ..group } } else { group }
    }

    /// Those that share experts.
    pub const fn experts(self) -> Group {
        Group { axis: Axis::Ep, size: self.ep }
    }

    /// Those that share the matrices of an expert.
    pub const fn expert_tensor(self) -> Group {
        Group { axis: Axis::Etp, size: self.etp }
    }

    /// Rows of the fullest rank of experts where `rows` are the mean.
    pub fn fullest(self, rows: u64) -> u64 {
        if self.imbalance <= 1.0 { rows } else { (rows as f64 * self.imbalance).ceil() as u64 }
    }
}

impl Default for Ranks {
    fn default() -> Self {
        Self::ALONE
    }
}

/// What a rank holds of a parameter, and of its gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Share {
    /// All of it. Its gradient is that of the positions the rank has of the stream: all of them, unless they are divided.
    #[default]
    Whole,
    /// All of it, and its whole gradient, wherever the positions of the stream are: what stands in front of it.
    Alike,
    /// Another part than other ranks, with its gradient.
    Part,
    /// All of it, and the gradient through the rank's own part of the maps around it (a norm of heads).
    Inside,
}

impl Share {
    /// Whether the gradient is the sum over the ranks that share matrices.
    pub const fn is_summed(self, ranks: Ranks) -> bool {
        match self {
            Self::Whole => ranks.sp,
            Self::Alike | Self::Part => false,
            Self::Inside => ranks.tp > 1,
        }
    }
}

/// Dimension of the positions of a stream: `b s h`, or rows of it, `(b s) h`.
fn positions(x: &Tensor) -> isize {
    x.rank() as isize - 2
}

impl Forward {
    /// The stream on its way into maps that are divided by their outputs.
    ///
    /// # Shapes
    /// `b s h -> b s h`; positions divided: `b (s / tp) h -> b s h`
    ///
    /// # Errors
    /// If a rank is gone.
    pub fn enter(&self, x: &Tensor) -> Result<Tensor> {
        let group = self.ranks.tensor();
        match (self.ranks.sp, self.profile.is_hf() && !self.gathers_again) {
            (false, _) => x.replicate(group),
            // Tensors of PyTorch that are divided keep what they were gathered to.
            (true, true) => x.all_gather(group, positions(x)),
            (true, false) => x.all_gather_again(group, positions(x)),
        }
    }

    /// What maps that are divided by their inputs made, on its way into the stream: the sum over the ranks.
    ///
    /// # Shapes
    /// `b s h -> b s h`; positions divided: `b s h -> b (s / tp) h`
    ///
    /// # Errors
    /// If a rank is gone, or the ranks do not divide the positions.
    pub fn leave(&self, x: Tensor) -> Result<Tensor> {
        let group = self.ranks.tensor();
        if self.ranks.sp { x.reduce_scatter(group, positions(&x)) } else { x.all_reduce(group, Combine::Sum) }
    }

    /// Heads of the rank's positions for positions of some of the heads: what attention works on.
    ///
    /// Source: Jacobs et al. 2023, arXiv:2309.14509.
    ///
    /// # Shapes
    /// `b a (s / cp) d -> b (a / cp) s d`
    ///
    /// # Errors
    /// If the ranks do not divide the heads.
    pub fn heads_for_positions(&self, heads: Tensor) -> Result<Tensor> {
        let group = self.ranks.exchanging();
        if group.is_alone() { Ok(heads) } else { heads.all_to_all(group, 1, 2) }
    }

    /// The way back, of what attention made.
    ///
    /// # Shapes
    /// `b s (a dv / cp) -> b (s / cp) (a dv)`
    ///
    /// # Errors
    /// If the ranks do not divide the positions.
    pub fn positions_for_heads(&self, mixed: Tensor) -> Result<Tensor> {
        let group = self.ranks.exchanging();
        if group.is_alone() { Ok(mixed) } else { mixed.all_to_all(group, 1, 2) }
    }

    /// The rank's positions of a stream that all hold whole.
    ///
    /// # Shapes
    /// `b s h -> b (s / tp) h`
    ///
    /// # Errors
    /// If the ranks do not divide the positions.
    pub fn own_positions(&self, x: &Tensor) -> Result<Tensor> {
        if self.ranks.sp { x.partition(self.ranks.tensor(), positions(x)) } else { Ok(x.clone()) }
    }
}
