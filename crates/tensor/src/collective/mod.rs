//! Groups of ranks, and what carries data between them.
//!
//! A program is that of one rank. Collectives are ops ([`crate::ops`]) that know their group and no other rank: on the meta
//! device nothing is exchanged, on a device with data [`Peers`] do it: [`Local`] where the ranks are threads of one process.

mod local;

pub use local::{Local, Ranks};

use crate::error::Result;
use crate::kernel::Array;

/// Along which ranks of a run differ. A group is all ranks that differ along one axis only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Axis {
    /// Data parallel: other sequences, the same parameters.
    Dp,
    /// Tensor parallel: other parts of matrices.
    Tp,
    /// Context parallel: other parts of sequences.
    Cp,
    /// Expert parallel: other experts.
    Ep,
    /// Expert-tensor parallel: other parts of the matrices of experts.
    Etp,
    /// Data parallel among those that hold the same experts.
    ExpertDp,
    /// Pipeline parallel: other blocks.
    Pp,
}

impl Axis {
    /// All axes.
    pub const ALL: [Self; 7] = [Self::Dp, Self::Tp, Self::Cp, Self::Ep, Self::Etp, Self::ExpertDp, Self::Pp];

    /// Standard word.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dp => "dp",
            Self::Tp => "tp",
            Self::Cp => "cp",
            Self::Ep => "ep",
            Self::Etp => "etp",
            Self::ExpertDp => "expert_dp",
            Self::Pp => "pp",
        }
    }
}

/// The ranks that take part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Group {
    /// Along which they differ.
    pub axis: Axis,
    /// How many there are.
    pub size: u64,
}

impl Group {
    /// Whether there is anybody else.
    pub const fn is_alone(self) -> bool {
        self.size <= 1
    }

    /// Bytes that a rank hands on, and gets, while `bytes` go once round a ring in equal parts: all parts but one.
    ///
    /// Source: Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations".
    pub const fn ring(self, bytes: u64) -> u64 {
        if self.is_alone() { 0 } else { bytes.div_ceil(self.size).saturating_mul(self.size - 1) }
    }
}

/// How contributions become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Combine {
    /// Added.
    Sum,
    /// The largest.
    Max,
}

impl Combine {
    /// Elementwise over contributions of equal length, in the order of the ranks.
    pub(crate) fn all(self, parts: &[Vec<f64>]) -> Vec<f64> {
        let combine = |a: f64, b: f64| match self {
            Self::Sum => a + b,
            Self::Max => a.max(b),
        };
        let (first, rest) = parts.split_first().map_or((&[][..], parts), |(first, rest)| (&first[..], rest));
        let mut sum = first.to_vec();
        for part in rest {
            sum.iter_mut().zip(part).for_each(|(a, b)| *a = combine(*a, *b));
        }
        sum
    }
}

/// What carries data between the ranks of a run whose devices hold data.
pub trait Peers {
    /// Place of this rank in its group along an axis, from 0.
    fn place(&self, axis: Axis) -> u64;

    /// What all ranks of a group hand in, in the order of their places; every one of them must call it.
    ///
    /// # Errors
    /// If one of them is gone.
    fn exchange(&self, group: Group, mine: Vec<f64>) -> Result<Vec<Vec<f64>>>;

    /// Hands data to the rank `to` places behind this one along an axis, round the ring.
    ///
    /// # Errors
    /// If it is gone.
    fn send(&self, group: Group, to: i64, data: Vec<f64>) -> Result<()>;

    /// Waits for data of the rank `from` places behind this one along an axis, round the ring.
    ///
    /// # Errors
    /// If it is gone.
    fn receive(&self, group: Group, from: i64) -> Result<Vec<f64>>;
}

/// An op that talks to other ranks.
pub trait Collective {
    /// To whom.
    fn group(&self) -> Group;

    /// The result on this rank; `None` of an op that only hands on.
    ///
    /// # Errors
    /// If a rank is gone, or contributes something else.
    fn exchange(&self, peers: &dyn Peers, input: Option<Array<f64>>) -> Result<Option<Array<f64>>>;
}
