//! What models have beside one stack of blocks that predicts the next token: other inputs, a stack that another one
//! attends to, small sequences of modules, other tasks.

use super::{Activation, EmbeddingSpec, LayerSpec, LinearSpec, ModelNames, NamedNorm, NormSpec};
use crate::param::ParamKind;
use std::rc::Rc;

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
    /// The mean over positions: `b s h -> b h`
    Mean,
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
            Self::First | Self::Mean | Self::AttentionPool(_) => 1,
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

/// A linear map with its sizes.
#[derive(Clone, Debug, PartialEq)]
pub struct MapSpec {
    /// Module name and bias.
    pub map: LinearSpec,
    /// Inputs.
    pub input: u64,
    /// Outputs.
    pub output: u64,
    /// Sizes of the weight behind the outputs, where it is stored as the kernel of a convolution over patches that do not
    /// overlap: `channels height width`. Their product is `input`.
    pub kernel: Vec<u64>,
    /// What it counts as.
    pub kind: ParamKind,
}

impl MapSpec {
    /// A map that is stored as a matrix.
    pub fn new(name: &'static str, bias: bool, input: u64, output: u64) -> Self {
        Self { map: LinearSpec::new(name, bias), input, output, kernel: Vec::new(), kind: ParamKind::Matrix }
    }

    /// The same as a piece.
    pub fn piece(name: &'static str, bias: bool, input: u64, output: u64) -> Piece {
        Piece::Linear(Self::new(name, bias, input, output))
    }
}

/// A parameter that is counted and not run.
#[derive(Clone, Debug, PartialEq)]
pub struct CountedSpec {
    /// Name in its module.
    pub name: &'static str,
    /// Shape.
    pub shape: Vec<u64>,
    /// What it counts as.
    pub kind: ParamKind,
}

impl CountedSpec {
    /// A matrix, or a vector where there is one size.
    pub fn new(name: &'static str, shape: &[u64]) -> Self {
        let kind = if shape.len() > 1 { ParamKind::Matrix } else { ParamKind::Vector };
        Self { name, shape: shape.to_vec(), kind }
    }
}

/// What the first module of a stack reads.
#[derive(Clone, Debug, PartialEq, Default)]
pub enum SourceSpec {
    /// Token ids, looked up in a table.
    #[default]
    Tokens,
    /// Numbers: pixels of an image, or a spectrum.
    Signal(SignalSpec),
}

/// Numbers that a stack reads instead of tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct SignalSpec {
    /// What one of them is, in words: `image of 224 x 224 in patches of 16 x 16`.
    pub what: String,
    /// Pieces of one: patches.
    pub len: u64,
    /// Numbers in a piece.
    pub width: u64,
    /// From numbers to the width of the stack.
    pub pieces: Sequence,
    /// Trained vectors in front of the pieces.
    pub leading: Vec<LeadingSpec>,
    /// Whether the reference has a gradient made for the numbers in training (wav2vec 2.0).
    pub graded: bool,
}

/// A trained vector in front of the pieces of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeadingSpec {
    /// Name of the parameter.
    pub name: &'static str,
    /// Whether it is stored as a plain vector, `h` instead of `1 1 h`.
    pub flat: bool,
}

impl SignalSpec {
    /// Positions the stack sees of one.
    pub fn positions(&self) -> u64 {
        self.pieces.iter().fold(self.len, |n, piece| piece.positions(n)).saturating_add(self.leading.len() as u64)
    }
}

/// A table with a row for each kind of token, added to the embedded tokens; a text of one kind uses the first row.
#[derive(Clone, Debug, PartialEq)]
pub struct TypeTable {
    /// Rows.
    pub count: u64,
    /// Module name.
    pub name: &'static str,
}

/// A token table that stands outside of the stacks that read it.
#[derive(Clone, Debug, PartialEq)]
pub struct SharedTable {
    /// Module name, from the root.
    pub name: &'static str,
    /// Names of the same tensor in the stacks.
    pub ties: Vec<&'static str>,
    /// Whether it is what they read; otherwise each has a table of its own, and this one is used by nothing.
    pub used: bool,
}

/// A stack of blocks with what stands in front of and behind them.
#[derive(Clone, Debug, PartialEq)]
pub struct StackSpec {
    /// Width of the residual stream.
    pub hidden_size: u64,
    /// What it reads.
    pub embedding: EmbeddingSpec,
    /// Blocks, in order.
    pub layers: Vec<Rc<LayerSpec>>,
    /// Norm behind the last block.
    pub final_norm: Option<NormSpec>,
    /// Module names; the head is unused.
    pub names: ModelNames,
}

/// Attention of a block to another stack.
#[derive(Clone, Debug, PartialEq)]
pub struct CrossSpec {
    /// The attention; its keys and values come from the other stack.
    pub attention: Box<super::AttentionSpec>,
    /// Module name.
    pub name: &'static str,
    /// Its norm: before it where the block normalises before its parts, else behind its residual.
    pub norm: NamedNorm,
    /// Width of the other stack.
    pub width: u64,
}

/// What the outputs are held against in training.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Task {
    /// Each position predicts the next token.
    #[default]
    NextToken,
    /// Each position has a token of its own to predict: masked tokens, or those of a decoder behind an encoder.
    OwnToken,
    /// One of so many classes for each sequence.
    Classes(u64),
    /// There is no loss of its own: hidden states or scores are summed, as the reference does.
    Outputs,
}

/// Position biases of T5: a trained number for each head and bucket of distances, the same for all blocks of a stack.
///
/// Source: Raffel et al. 2020, arXiv:1910.10683.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelativeSpec {
    /// Buckets of distances.
    pub buckets: u64,
    /// Distances from here on share the last bucket.
    pub max_distance: u64,
    /// Where the biases of this attention come from.
    pub from: BiasSource,
}

/// Where trained position biases come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BiasSource {
    /// A table of this attention, for all blocks of the stack.
    Table,
    /// The attention of the stack that holds the table.
    Stack,
    /// There are none, and the reference adds zeros (attention to another stack).
    Zeros,
}

/// A part of a model that turns images or sounds into positions of the text.
#[derive(Clone, Debug, PartialEq)]
pub struct TowerSpec {
    /// What it is, in words: `vision`.
    pub what: &'static str,
    /// The stack.
    pub stack: StackSpec,
    /// What runs behind it, with names from the root, up to the width of the text.
    pub projector: Sequence,
    /// Parameters that are counted and not run, by name from the root, shape and kind.
    pub counted: Vec<(String, Vec<u64>, ParamKind)>,
}

/// Alternating updates of several streams, with a low-rank branch and an input of its own for each block (Gemma 3n).
///
/// Source: Baykal et al. 2023, arXiv 2301.13310.
#[derive(Clone, Debug, PartialEq)]
pub struct UpdatesSpec {
    /// Streams.
    pub streams: u64,
    /// The one that the block runs on.
    pub active: u64,
    /// The small maps between streams are held within this while training.
    pub clip: Option<f64>,
    /// Whether what reads the input of the block is scaled for every channel first.
    pub scaled: bool,
    /// Rank of the branch beside attention.
    pub rank: u64,
    /// Width of the input of each block.
    pub input_width: u64,
    /// Rows of the table that these inputs come from; tokens beyond it read the first.
    pub input_rows: u64,
    /// Activation on the way to it.
    pub act: Activation,
    /// Its norms.
    pub norm: NormSpec,
}

impl UpdatesSpec {
    /// More streams than this are refused.
    pub const MOST_STREAMS: u64 = 8;
}
