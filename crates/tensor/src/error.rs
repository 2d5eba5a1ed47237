//! Everything that can go wrong in the tensor core. Each variant carries the op and the shapes involved.

use crate::dtype::DType;
use crate::layout::{Dims, ViewError};
use std::fmt;
use units::Bytes;

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, with the op and the operands that did it.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Error {
    // --- dimension index
    /// Dimension index out of range.
    Dim {
        /// Op.
        op: &'static str,
        /// Index asked for.
        dim: isize,
        /// Shape of the operand.
        shape: Dims,
    },
    /// Not a permutation of the dimensions.
    Permutation {
        /// Order asked for.
        order: Vec<usize>,
        /// Shape of the operand.
        shape: Dims,
    },
    /// Squeezing a dimension that is not 1.
    Squeeze {
        /// Dimension.
        dim: usize,
        /// Shape of the operand.
        shape: Dims,
    },
    /// A slice or index outside of its dimension.
    Range {
        /// Op.
        op: &'static str,
        /// Dimension.
        dim: usize,
        /// First index.
        start: u64,
        /// Number of elements.
        len: u64,
        /// Size of the dimension.
        size: u64,
    },
    // --- shape
    /// Wrong number of dimensions.
    Rank {
        /// Op.
        op: &'static str,
        /// Expected rank.
        expected: usize,
        /// Shape of the operand.
        shape: Dims,
    },
    /// Shapes that do not broadcast.
    Broadcast {
        /// Op.
        op: &'static str,
        /// First shape.
        a: Dims,
        /// Second shape.
        b: Dims,
    },
    /// Shapes an op cannot combine.
    Shapes {
        /// Op.
        op: &'static str,
        /// First shape.
        a: Dims,
        /// Second shape.
        b: Dims,
        /// The rule that is broken, as text.
        rule: &'static str,
    },
    /// Element counts differ.
    Elements {
        /// Op.
        op: &'static str,
        /// Shape of the operand.
        from: Dims,
        /// Shape asked for.
        to: Dims,
    },
    /// A view that needs a copy.
    View(Box<ViewError>),
    /// More elements, or more bytes with all that is live, than can be counted exactly.
    TooLarge {
        /// Shape asked for.
        shape: Dims,
    },
    /// The system has no more memory.
    OutOfMemory {
        /// Bytes asked for.
        bytes: u64,
        /// Bytes of all tensors alive.
        live: u64,
        /// Bytes the process holds for tensors.
        reserved: u64,
    },
    // --- dtype
    /// The op does not take this dtype.
    DType {
        /// Op.
        op: &'static str,
        /// dtype given.
        got: DType,
        /// What the op takes.
        expected: &'static str,
    },
    /// Two dtypes without a common one.
    NoPromotion {
        /// Op.
        op: &'static str,
        /// First dtype.
        a: DType,
        /// Second dtype.
        b: DType,
    },
    // --- device
    /// The tensor holds no data.
    NoData {
        /// Op.
        op: &'static str,
    },
    /// Two tensors of different runtimes.
    OtherRuntime {
        /// Op.
        op: &'static str,
    },
    /// Other ranks take part, and nothing carries data to them.
    NoPeers {
        /// Op.
        op: &'static str,
        /// Axis along which they are.
        axis: &'static str,
    },
    // --- autograd and aliasing
    /// An input wants a gradient and the op has no rule for it.
    NoGradient {
        /// Op.
        op: &'static str,
        /// Input position.
        input: usize,
    },
    /// A write through a layout in which elements overlap.
    OverlappingWrite {
        /// Op.
        op: &'static str,
        /// Shape of the destination.
        shape: Dims,
    },
    /// In-place change of a tensor whose history is being recorded.
    InPlaceOnGraph {
        /// Op.
        op: &'static str,
    },
    /// A saved tensor was changed in place before backward used it.
    SavedWasChanged {
        /// Op whose backward needed it.
        op: &'static str,
    },
    /// Backward from something that has no history, twice, or twice differentiated.
    Backward(&'static str),
    /// The recomputation of a checkpointed region has produced all that backward needs. Not a failure: it unwinds the
    /// region's forward.
    StopRecompute,
    /// An index value outside of its table.
    Index {
        /// Op.
        op: &'static str,
        /// Value found.
        value: i64,
        /// Size of the table.
        size: u64,
    },
    /// An argument outside of its range.
    Argument {
        /// Op.
        op: &'static str,
        /// What is wrong.
        what: String,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dim { op, dim, shape } => write!(
                f,
                "{op}: dimension {dim} is out of range for shape {:?}: valid are -{r} to {}",
                shape.as_slice(),
                shape.len() as isize - 1,
                r = shape.len()
            ),
            Self::Permutation { order, shape } => {
                write!(f, "permute: {order:?} is not a permutation of the dimensions of {:?}", shape.as_slice())
            }
            Self::Squeeze { dim, shape } => write!(
                f,
                "squeeze: dimension {dim} of {:?} has size {}, only size 1 can be removed",
                shape.as_slice(),
                shape[*dim]
            ),
            Self::Range { op, dim, start, len, size } => {
                write!(f, "{op}: {len} elements from {start} are outside of dimension {dim}, which has size {size}")
            }
            Self::Rank { op, expected, shape } => {
                write!(f, "{op}: expected {expected} dimensions, got shape {:?}", shape.as_slice())
            }
            Self::Broadcast { op, a, b } => write!(
                f,
                "{op}: shapes {:?} and {:?} do not broadcast: each pair of sizes, from the right, must be equal or 1",
                a.as_slice(),
                b.as_slice()
            ),
            Self::Shapes { op, a, b, rule } => {
                write!(f, "{op}: shapes {:?} and {:?}: {rule}", a.as_slice(), b.as_slice())
            }
            Self::Elements { op, from, to } => write!(
                f,
                "{op}: {:?} has {} elements, {:?} has {}",
                from.as_slice(),
                from.iter().product::<u64>(),
                to.as_slice(),
                to.iter().fold(1u64, |n, &d| n.saturating_mul(d))
            ),
            Self::View(e) => e.fmt(f),
            Self::TooLarge { shape } => write!(
                f,
                "shape {:?} cannot be counted in bytes exactly (at most 2^59 elements, and 2^62 bytes live)",
                shape.as_slice()
            ),
            Self::OutOfMemory { bytes, live, reserved } => write!(
                f,
                "out of memory: the system gave no {} for a tensor; tensors hold {}, {} are reserved for them",
                Bytes(*bytes),
                Bytes(*live),
                Bytes(*reserved)
            ),
            Self::DType { op, got, expected } => {
                write!(f, "{op}: dtype {} is not supported, expected {expected}", got.name())
            }
            Self::NoPromotion { op, a, b } => {
                write!(f, "{op}: {} and {} have no common dtype: cast one of them", a.name(), b.name())
            }
            Self::NoData { op } => write!(f, "{op}: the tensor is on the meta device and holds no data"),
            Self::NoPeers { op, axis } => write!(
                f,
                "{op}: other ranks along {axis} take part, and nothing carries data to them: this device computes one rank"
            ),
            Self::OtherRuntime { op } => write!(f, "{op}: operands belong to different runtimes"),
            Self::NoGradient { op, input } => write!(
                f,
                "{op}: input {input} wants a gradient, and `{op}` has no gradient rule for it: detach it, or use `no_grad`"
            ),
            Self::OverlappingWrite { op, shape } => write!(
                f,
                "{op}: destination {:?} is an expanded view in which several indices name one element; writing through it \
                 is refused: call `contiguous` first",
                shape.as_slice()
            ),
            Self::InPlaceOnGraph { op } => write!(
                f,
                "{op}: in-place change of a tensor that requires a gradient: use the out-of-place op, or `no_grad`"
            ),
            Self::SavedWasChanged { op } => {
                write!(f, "{op}: a tensor saved for backward was changed in place after it was saved")
            }
            Self::Backward(what) => write!(f, "backward: {what}"),
            Self::StopRecompute => write!(f, "recomputation reached its end"),
            Self::Index { op, value, size } => {
                write!(f, "{op}: index {value} is outside of a table of size {size}")
            }
            Self::Argument { op, what } => write!(f, "{op}: {what}"),
        }
    }
}

impl std::error::Error for Error {}
