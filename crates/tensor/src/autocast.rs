//! Autocast: which ops run in a lower precision, as a rule on op kinds. The casts are ordinary, metered ops.

use crate::apply::apply;
use crate::autograd::GradRef;
use crate::dtype::DType;
use crate::error::Result;
use crate::meter::Role;
use crate::ops::{Op, cast::Cast, log_softmax::LogSoftmax, scalar::ScalarKind, softmax::Softmax, unary::UnaryKind};
use crate::runtime::Runtime;
use crate::tensor::Tensor;
use std::collections::BTreeMap;

/// Whose list of ops decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CastLists {
    /// Contractions in the low precision, everything else as its inputs come.
    Cpu,
    /// No op is cast; only [`Runtime::cast_weight`] is, once per weight.
    Explicit,
    /// Contractions in the low precision; softmax, norms, powers, exponentials and losses in f32.
    Cuda,
}

/// State of an autocast region: the low precision, the list, and the copies of weights made so far.
#[derive(Debug)]
pub struct Autocast {
    low: DType,
    lists: CastLists,
    cache: BTreeMap<u64, Tensor>,
}

/// What autocast does to the inputs of an op.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Target {
    Unchanged,
    Low,
    Full,
    Widest,
}

fn target(op: &Op, lists: CastLists) -> Target {
    if lists == CastLists::Explicit {
        return Target::Unchanged;
    }
    match (op, lists) {
        // The reference has its grouped products on neither list and leaves the cast to the caller; here they are
        // contractions like any other.
        (
            Op::MatMul(_)
            | Op::Linear(_)
            | Op::Attention(_)
            | Op::GroupedLinear(_)
            | Op::GroupedWeightGrad(_)
            | Op::DepthwiseConv1d(_),
            _,
        ) => Target::Low,
        // Cross-entropy from logits is on neither list: its kernel sums in f32 whatever it reads.
        (Op::NllLoss(_), _)
        | (Op::LayerNorm(_) | Op::RmsNorm(_) | Op::Sum(_) | Op::LogSumExp(_) | Op::Cumsum(_), CastLists::Cuda) => {
            Target::Full
        }
        (Op::Unary(u), CastLists::Cuda) => match u.kind {
            UnaryKind::Exp | UnaryKind::Log | UnaryKind::Rsqrt | UnaryKind::Reciprocal | UnaryKind::Softplus => {
                Target::Full
            }
            _ => Target::Unchanged,
        },
        (Op::Scalar(s), CastLists::Cuda) if s.kind == ScalarKind::Pow => Target::Full,
        // On a GPU the kernel itself reads mixed dtypes.
        (Op::Cat(_), CastLists::Cpu) => Target::Widest,
        (Op::Scatter(s), CastLists::Cuda) if s.add && !s.in_place => Target::Widest,
        _ => Target::Unchanged,
    }
}

impl Runtime {
    /// Runs `f` under autocast to `low` (bf16 or f16). The cached copies of weights are dropped at its end.
    pub fn with_autocast<T>(&self, low: DType, lists: CastLists, f: impl FnOnce() -> T) -> T {
        let before = self.autocast().replace(Autocast { low, lists, cache: BTreeMap::new() });
        let out = f();
        let ended = std::mem::replace(&mut *self.autocast(), before);
        drop(ended);
        out
    }

    /// Runs `f` with autocast off.
    pub fn without_autocast<T>(&self, f: impl FnOnce() -> T) -> T {
        let before = self.autocast().take();
        let out = f();
        *self.autocast() = before;
        out
    }

    /// Runs `f` with a cache for [`Runtime::cast_weight`] and without autocast: the caller casts where it wants to.
    pub fn with_weight_cache<T>(&self, low: DType, f: impl FnOnce() -> T) -> T {
        self.with_autocast(low, CastLists::Explicit, f)
    }

    /// The copy of a weight in a low precision, made once in an autocast region; the weight itself if it has that dtype.
    ///
    /// # Errors
    /// None beyond those of a cast.
    pub fn cast_weight(&self, weight: &Tensor, to: DType) -> Result<Tensor> {
        if weight.dtype() == to { Ok(weight.clone()) } else { cached_cast(self, weight, to) }
    }

    /// The autocast setting in force.
    pub fn autocast_setting(&self) -> Option<(DType, CastLists)> {
        self.autocast().as_ref().map(|a| (a.low, a.lists))
    }
}

/// The op as autocast wants it: softmax and its logarithm run in f32 on a GPU by a dtype of their result, which spares
/// the widened copy of the input.
pub(crate) fn widen(runtime: &Runtime, op: Op, inputs: &[&Tensor]) -> Op {
    let on = runtime.autocast_setting().is_some_and(|(_, lists)| lists == CastLists::Cuda);
    let dtype = (on && inputs.first().is_some_and(|t| t.dtype() != DType::F64)).then_some(DType::F32);
    match op {
        Op::Softmax(s) => Op::Softmax(Softmax { dtype: s.dtype.or(dtype), ..s }),
        Op::LogSoftmax(s) => Op::LogSoftmax(LogSoftmax { dtype: s.dtype.or(dtype), ..s }),
        other => other,
    }
}

/// The inputs of `op` as autocast wants them; `None` if it changes nothing.
pub(crate) fn cast_inputs(runtime: &Runtime, op: &Op, inputs: &[&Tensor]) -> Result<Option<Vec<Tensor>>> {
    let Some((low, lists)) = runtime.autocast_setting() else { return Ok(None) };
    let to = match target(op, lists) {
        Target::Low => low,
        Target::Full => DType::F32,
        Target::Widest if inputs.iter().any(|t| t.dtype() == DType::F32) => DType::F32,
        Target::Widest | Target::Unchanged => return Ok(None),
    };
    let eligible = |t: &Tensor| t.dtype().is_float() && t.dtype() != DType::F64 && t.dtype() != to;
    if !inputs.iter().any(|t| eligible(t)) {
        return Ok(None);
    }
    inputs
        .iter()
        .map(|t| if eligible(t) { cached_cast(runtime, t, to) } else { Ok((*t).clone()) })
        .collect::<Result<Vec<_>>>()
        .map(Some)
}

/// Casts `t`, keeping the copy if it is of a parameter, so that a weight used twice is cast once.
fn cached_cast(runtime: &Runtime, t: &Tensor, to: DType) -> Result<Tensor> {
    let leaf = match &t.grad_ref {
        Some(GradRef::Leaf(leaf)) if runtime.grad_enabled() && t.dtype() == DType::F32 => Some(leaf.id()),
        _ => None,
    };
    if let Some(id) = leaf
        && let Some(hit) = runtime.autocast().as_ref().and_then(|a| a.cache.get(&id))
    {
        return Ok(hit.clone());
    }
    let cast = apply(Op::Cast(Cast { to }), &[t])?.swap_remove(0);
    if let Some(id) = leaf {
        cast.storage.hold(Role::WeightCast);
        if let Some(autocast) = runtime.autocast().as_mut() {
            autocast.cache.insert(id, cast.clone());
        }
    }
    Ok(cast)
}
