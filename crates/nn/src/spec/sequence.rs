//! Small sequences of modules: heads, poolers, projectors, the first layers of an image or a sound.

use super::{Activation, LinearSpec, MapSpec, NamedNorm};

/// A few modules one after another: heads, poolers, projectors, the first layers of an image or a sound.
pub type Sequence = Vec<Piece>;

/// One module of a [`Sequence`], or a step without parameters.
#[derive(Clone, Debug, PartialEq)]
pub enum Piece {
    /// A linear map of the last dimension.
    Linear(MapSpec),
    /// A norm over the last dimension, of this width.
    Norm(NamedNorm, u64),
    /// An activation.
    Activation(Activation),
    /// The first position of each sequence: `b s h -> b h`
    First,
    /// The last position of each sequence: `b s h -> b h`
    Last,
    /// The mean over positions: `b s h -> b h`
    Mean,
    /// The first position beside the mean of all but so many: `b s h -> b (2 h)`
    FirstAndMean(u64),
    /// All but the first position: `b s h -> b (s - 1) h`
    WithoutFirst,
    /// So many positions side by side: `b s h -> b (s / n) (n h)`
    Group(u64),
    /// The mean of so many positions: `b s h -> b (s / n) h`
    Pool(u64),
    /// So many states of equal sizes side by side, the stream standing for each: `b s h -> b s (n h)`
    SideBySide(u64),
    /// `f(x)`, which other parts of the model read; then `x` goes on.
    Beside(Sequence),
    /// `x + f(x)`
    Residual(Sequence),
    /// A convolution over positions: `b s c -> b o n`
    Conv(Conv1dSpec),
    /// A norm over the positions of each channel, with weight and bias for every channel.
    ChannelNorm(NamedNorm, u64),
    /// All but the last position: `b s h -> b (s - 1) h`
    WithoutLast,
    /// One trained query that attends to all positions, then an MLP (SigLIP): `b s h -> b h`
    AttentionPool(PoolSpec),
}

impl Piece {
    /// Positions that come out of it where `n` go in; 1 where it leaves one row for a sequence.
    pub fn positions(&self, n: u64) -> u64 {
        match self {
            Self::First | Self::Last | Self::Mean | Self::FirstAndMean(_) | Self::AttentionPool(_) => 1,
            Self::WithoutFirst | Self::WithoutLast => n.saturating_sub(1),
            Self::Group(by) | Self::Pool(by) => n / by.max(&1),
            Self::Conv(conv) => conv.positions(n),
            _ => n,
        }
    }
}

/// A convolution over positions.
#[derive(Clone, Debug, PartialEq)]
pub struct Conv1dSpec {
    /// Module name and bias.
    pub map: LinearSpec,
    /// Channels in.
    pub input: u64,
    /// Channels out.
    pub output: u64,
    /// Positions a filter spans.
    pub taps: u64,
    /// Positions from one output to the next.
    pub stride: u64,
    /// Zeros on either side.
    pub padding: u64,
    /// Parts of the channels that do not see each other.
    pub groups: u64,
    /// Whether the weight is a direction and a length for each tap.
    ///
    /// Source: Salimans and Kingma 2016, arXiv:1602.07868.
    pub normed: bool,
}

impl Conv1dSpec {
    /// Positions that come out where `n` go in.
    pub fn positions(&self, n: u64) -> u64 {
        let padded = self.padding.saturating_mul(2).saturating_add(n);
        padded.checked_sub(self.taps).map_or(0, |rest| rest / self.stride.max(1) + 1)
    }
}

/// Pooling by attention of one trained query.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolSpec {
    /// Module name.
    pub name: &'static str,
    /// Width of the stream.
    pub hidden_size: u64,
    /// Heads.
    pub heads: u64,
    /// Inner width of the MLP.
    pub intermediate_size: u64,
    /// Its activation.
    pub act: Activation,
    /// Norm before the MLP.
    pub norm: NamedNorm,
}
