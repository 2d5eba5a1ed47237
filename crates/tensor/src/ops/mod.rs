//! The closed set of ops. One file each: shape rule, cost rule, kernel, what it keeps for backward, gradient.
//!
//! To add one, write the file and name it in the list below; it does not compile until it answers everything.

use crate::autograd::{Back, Grads};
use crate::collective::Collective;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel::{Data, Num};
use crate::layout::Layout;
use crate::meter::{CopyReason, Cost};
use crate::tensor::Spec;
use smallvec::{SmallVec, smallvec};
use std::fmt::Debug;
use std::sync::Arc;

/// What an output is.
#[derive(Clone, Debug, PartialEq)]
pub enum Out {
    /// A new storage with this dense layout.
    Fresh(Spec),
    /// Another layout over the storage of an input.
    View(usize, Arc<Layout>),
    /// The input itself, changed.
    InPlace(usize),
}

impl Out {
    /// A fresh row-major output.
    pub fn fresh(shape: &[u64], dtype: DType) -> Result<Self> {
        Ok(Self::Fresh(Spec { dtype, layout: Arc::new(Layout::contiguous(shape)?) }))
    }
}

/// Outputs of an op.
pub type Outs = SmallVec<[Out; 1]>;

/// A single fresh row-major output.
pub fn one_fresh(shape: &[u64], dtype: DType) -> Result<Outs> {
    Ok(smallvec![Out::fresh(shape, dtype)?])
}

/// A single view of input 0.
pub fn one_view(layout: Layout) -> Outs {
    smallvec![Out::View(0, Arc::new(layout))]
}

/// Which operands an op keeps for backward, as bit sets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Saves {
    /// Bit `i`: input `i` is kept.
    pub inputs: u8,
    /// Bit `j`: output `j` is kept.
    pub outputs: u8,
}

impl Saves {
    /// Keeps nothing.
    pub const NONE: Self = Self { inputs: 0, outputs: 0 };

    /// Keeps the inputs in the bit set.
    pub const fn inputs(inputs: u8) -> Self {
        Self { inputs, outputs: 0 }
    }

    /// Keeps the outputs in the bit set.
    pub const fn outputs(outputs: u8) -> Self {
        Self { inputs: 0, outputs }
    }
}

/// Bit `i` set: input `i` wants a gradient. Only `cat` has more inputs than bits; those from 63 on share the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs(pub u64);

impl Needs {
    const LAST: usize = 63;

    /// Set of the inputs for which `wants` is true.
    pub fn of(wants: impl Iterator<Item = bool>) -> Self {
        Self(wants.enumerate().fold(0, |bits, (i, yes)| bits | (u64::from(yes) << i.min(Self::LAST))))
    }

    /// Whether input `i` wants a gradient.
    pub const fn wants(self, i: usize) -> bool {
        let bit = if i < Self::LAST { i } else { Self::LAST };
        self.0 & (1 << bit) != 0
    }

    /// `bits` if input `i` wants a gradient, else nothing.
    pub const fn then(self, i: usize, bits: u8) -> u8 {
        if self.wants(i) { bits } else { 0 }
    }
}

/// What every op answers.
pub trait Rule: Clone + Debug + PartialEq {
    /// Name in events, errors and reports.
    fn name(&self) -> &'static str;

    /// Shape rule: outputs from inputs. All checks of user input are here; what follows cannot fail.
    fn infer(&self, inputs: &[Spec]) -> Result<Outs>;

    /// Cost rule. Free of arithmetic that has no symbolic meaning: sums and products of sizes.
    ///
    /// The default `read`/`written` of [`traffic`] fits ops that read all inputs and write all outputs once.
    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost;

    /// The plain kernel, over any scalar. Outputs come zeroed, except in-place ones, which come with their contents.
    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()>;

    /// The fast kernel. `false`: there is none for these dtypes and layouts, and nothing was written.
    ///
    /// Gives the numbers of [`Rule::run`] up to rounding, and the same ones on any number of threads.
    #[cfg(feature = "cpu")]
    fn run_cpu(&self, _args: &mut crate::cpu::Args<'_>) -> Result<bool> {
        Ok(false)
    }

    /// What is kept for backward, given which inputs want a gradient. Nothing, unless the op says otherwise.
    fn saves(&self, _needs: Needs) -> Saves {
        Saves::NONE
    }

    /// Inputs for which there is a gradient rule, as a bit set; all bits set: every input, however many. None, unless the
    /// op says otherwise: an input that wants a gradient is then refused.
    fn differentiable(&self) -> u8 {
        0
    }

    /// The gradients of the inputs, written with ops. Asked only of ops with a [`Rule::differentiable`] input.
    fn gradient(&self, _back: &Back<'_>) -> Result<Grads> {
        Err(Error::NoGradient { op: self.name(), input: 0 })
    }

    /// Set if the op only moves bytes.
    fn copy_reason(&self) -> Option<CopyReason> {
        None
    }

    /// Set if the op talks to other ranks: its kernel is then what it does where there is no other rank.
    fn collective(&self) -> Option<&dyn Collective> {
        None
    }
}

/// Reads every input once, writes every output once.
pub fn traffic(inputs: &[Spec], outputs: &[Spec]) -> Cost {
    Cost {
        read: inputs.iter().map(Spec::unique_bytes).sum(),
        written: outputs.iter().map(Spec::bytes).sum(),
        ..Cost::default()
    }
}

/// [`traffic`] plus `flops` elementwise FLOP.
pub fn elementwise(inputs: &[Spec], outputs: &[Spec], flops: u128) -> Cost {
    Cost { elementwise: flops, ..traffic(inputs, outputs) }
}

macro_rules! ops {
    ($($(#[$doc:meta])* $module:ident { $($variant:ident),* })*) => {
        $($(#[$doc])* pub mod $module;)*
        ops! { @enum $($($module $variant)*)* }
    };
    (@enum $($module:ident $variant:ident)*) => {
        /// An op with its parameters. What each does is told where it is defined, in the module of its name.
        #[derive(Clone, Debug, PartialEq)]
        #[allow(missing_docs)] // each variant holds the documented struct of the same name
        pub enum Op {
            $($variant($module::$variant)),*
        }

        $(impl From<$module::$variant> for Op {
            fn from(op: $module::$variant) -> Self {
                Self::$variant(op)
            }
        })*

        impl Op {
            /// Name in events, errors and reports.
            pub fn name(&self) -> &'static str {
                match self { $(Self::$variant(op) => op.name()),* }
            }
            /// Shape rule.
            pub fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
                match self { $(Self::$variant(op) => op.infer(inputs)),* }
            }
            /// Cost rule.
            pub fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
                match self { $(Self::$variant(op) => op.cost(inputs, outputs)),* }
            }
            /// Plain kernel over a scalar type.
            pub fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
                match self { $(Self::$variant(op) => op.run(inputs, outputs)),* }
            }
            #[cfg(feature = "cpu")]
            pub(crate) fn run_cpu(&self, args: &mut crate::cpu::Args<'_>) -> Result<bool> {
                match self { $(Self::$variant(op) => op.run_cpu(args)),* }
            }
            pub(crate) fn saves(&self, needs: Needs) -> Saves {
                match self { $(Self::$variant(op) => op.saves(needs)),* }
            }
            pub(crate) fn differentiable(&self) -> u8 {
                match self { $(Self::$variant(op) => op.differentiable()),* }
            }
            pub(crate) fn gradient(&self, back: &Back<'_>) -> Result<Grads> {
                match self { $(Self::$variant(op) => op.gradient(back)),* }
            }
            pub(crate) fn copy_reason(&self) -> Option<CopyReason> {
                match self { $(Self::$variant(op) => op.copy_reason()),* }
            }

            /// Set if the op talks to other ranks.
            pub fn collective(&self) -> Option<&dyn Collective> {
                match self { $(Self::$variant(op) => op.collective()),* }
            }

            /// Names of all variants, for tests that look at each.
            pub const VARIANTS: &'static [&'static str] = &[$(stringify!($variant)),*];

            /// Name of the variant.
            pub fn variant(&self) -> &'static str {
                match self { $(Self::$variant(_) => stringify!($variant)),* }
            }
        }
    };
}

ops! {
    // --- creation
    /// Constant, arange and random tensors.
    create { Create }
    // --- movement
    /// Layout changes: no bytes, no FLOP.
    view { View }
    /// Dense copy, reshape copy, explicit copy.
    copy { Copy }
    /// Change of dtype.
    cast { Cast }
    /// Tensors one after another.
    cat { Cat }
    /// Upper and lower triangles.
    triangle { Triangle }
    // --- elementwise
    /// One operand.
    unary { Unary, UnaryBackward }
    /// Two operands with broadcasting.
    binary { Binary }
    /// A tensor and a number.
    scalar { Scalar }
    /// Between two numbers.
    clamp { Clamp }
    /// Gaussian error linear unit.
    gelu { Gelu, GeluBackward }
    /// `x σ(x)`.
    silu { Silu, SiluBackward }
    /// Gated activations.
    swiglu { GatedAct, GatedActBackward }
    /// Dropout.
    dropout { Dropout, DropoutBackward }
    /// Rotary position embedding.
    rope { Rope }
    /// One tensor or the other, by a mask.
    where_ { Where }
    /// One number where a mask says.
    masked_fill { MaskedFill }
    // --- normalisation
    /// Layer normalisation.
    layer_norm { LayerNorm, LayerNormBackward }
    /// Root-mean-square normalisation.
    rms_norm { RmsNorm, RmsNormBackward }
    // --- optimizers, in place
    /// Moving averages.
    lerp { Lerp }
    /// Scaled additions.
    addc { Addc }
    /// A fused step of `AdamW`.
    adamw { AdamW }
    /// The same with moments in bytes.
    adamw_8bit { AdamW8bit }
    /// A fused step of Lion.
    lion { Lion }
    /// Numbers as bytes with a scale for each block.
    blockwise { QuantizeBlockwise, DequantizeBlockwise }
    /// Rounding that is right in the mean.
    stochastic_round { StochasticRound }
    // --- reductions
    /// Sum over dimensions.
    sum { Sum }
    /// Mean over dimensions.
    mean { Mean }
    /// Sum of squares over dimensions.
    sum_squares { SumSquares }
    /// Maximum along a dimension, with its index.
    extremum { Extremum }
    /// `ln Σ e^x` along a dimension.
    logsumexp { LogSumExp }
    /// Running sum.
    cumsum { Cumsum }
    /// The k largest elements along a dimension.
    topk { TopK }
    // --- by index
    /// Rows of a table.
    embedding { Embedding, EmbeddingBackward }
    /// Rows added to a table.
    index_add { IndexAdd }
    /// Elements picked along a dimension.
    gather { Gather }
    /// Elements written or added along a dimension.
    scatter { Scatter }
    /// Order of the elements of a vector.
    argsort { ArgSort }
    /// Counts of small integers.
    bincount { BinCount }
    // --- contractions
    /// Batched matrix product.
    matmul { MatMul }
    /// Batched matrix product added to a base.
    matmul_add { MatMulAdd }
    /// Products added to what is there.
    matmul_into { MatMulInto, GroupedMatMulInto }
    /// `x Wᵀ + b`.
    linear { Linear }
    /// Products with a weight stored in few bits.
    packed_linear { PackedLinear }
    /// One weight per group of rows.
    grouped_matmul { GroupedLinear, GroupedWeightGrad }
    /// Casts to narrow floats with a scale for the tensor.
    scaled_cast { ScaledCast }
    /// Products of narrow floats with scales.
    scaled_matmul { ScaledMatMul }
    /// One filter per channel over time.
    depthwise_conv1d { DepthwiseConv1d, DepthwiseConv1dInput, DepthwiseConv1dWeight }
    // --- recurrences
    /// A decay for every element.
    linear_scan { LinearScan, LinearScanBackward }
    /// States of linear attention, chunk by chunk.
    chunk_scan { ChunkScan, ChunkScanBackward }
    /// Scores with a decay for every channel.
    decayed_scores { DecayedScores, DecayedScoresBackward }
    /// Triangular systems of equations.
    solve_triangular { SolveTriangular }
    /// Inverses of triangular matrices.
    lower_inverse { LowerInverse, LowerInverseBackward }
    // --- attention and losses
    /// Fused attention.
    attention { Attention, AttentionBackward }
    /// Softmax.
    softmax { Softmax, SoftmaxBackward }
    /// Logarithm of softmax.
    log_softmax { LogSoftmax, LogSoftmaxBackward }
    /// Negative log-likelihood.
    nll_loss { NllLoss, NllLossBackward }
    /// Cross-entropy from logits.
    cross_entropy { CrossEntropy, CrossEntropyBackward }
    /// The head and cross-entropy in chunks.
    linear_cross_entropy { LinearCrossEntropy }
    /// Cross-entropy from the logits of a part of the vocabulary.
    cross_entropy_shard { CrossEntropyShard, CrossEntropyShardBackward }
    // --- between ranks
    /// One result of all contributions, everywhere.
    all_reduce { AllReduce }
    /// All parts, everywhere.
    all_gather { AllGather }
    /// The sum, cut up.
    reduce_scatter { ReduceScatter }
    /// A part from everyone for everyone.
    all_to_all { AllToAll }
    /// What the first rank has.
    broadcast { Broadcast }
    /// To one other rank, or from it.
    send { Send, Recv }
    /// Into maps of which each rank has another part.
    replicate { Replicate }
    /// One rank's part of what all hold.
    partition { Partition }
    /// Attention whose keys and values go round.
    ring_attention { RingAttention }
    // --- from outside
    /// An op with its own cost rule.
    custom { Custom }
}
