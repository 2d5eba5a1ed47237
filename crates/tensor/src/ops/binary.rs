//! Two operands with broadcasting: arithmetic, comparison, and the in-place forms optimizers use.

use super::{Needs, Op, Out, Outs, Rule, Saves, elementwise};
use crate::apply::apply_reusing;
use crate::autograd::{Back, Grads};
#[cfg(feature = "cpu")]
use crate::cpu::{Args, elementwise::{for_variant, map}};
use crate::dtype::{DType, promote};
use crate::error::{Error, Result};
use crate::kernel::{Array, Data, Num};
use crate::layout::{broadcast_shapes, elementwise_layout};
use crate::meter::Cost;
use crate::tensor::{Spec, Tensor};
use smallvec::smallvec;
use std::sync::Arc;

/// An elementwise op of two tensors.
#[derive(Clone, Debug, PartialEq)]
pub struct Binary {
    /// Which one.
    pub kind: BinaryKind,
    /// Whether the result overwrites input 0.
    pub in_place: bool,
}

/// The binary ops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BinaryKind {
    /// `a + b`
    Add,
    /// `a - b`
    Sub,
    /// `a * b`
    Mul,
    /// `a / b`
    Div,
    /// The larger one.
    Max,
    /// `a < b` as bool
    Less,
    /// `a <= b` as bool
    LessEqual,
    /// `a == b` as bool
    Equal,
    /// `a != b` as bool
    NotEqual,
    /// Logical and, as bool
    And,
    /// Logical or, as bool
    Or,
}

impl BinaryKind {
    fn is_comparison(self) -> bool {
        matches!(self, Self::Less | Self::LessEqual | Self::Equal | Self::NotEqual | Self::And | Self::Or)
    }

    #[inline(always)]
    fn compute<T: Num>(self, a: T, b: T) -> T {
        let truth = |yes: bool| if yes { T::one() } else { T::zero() };
        let set = |x: T| x.to_f64() != 0.0;
        match self {
            Self::Add => a + b,
            Self::Sub => a - b,
            Self::Mul => a * b,
            Self::Div => a / b,
            Self::Max => a.max(b),
            Self::Less => truth(a.to_f64() < b.to_f64()),
            Self::LessEqual => truth(a.to_f64() <= b.to_f64()),
            Self::Equal => truth(a.to_f64() == b.to_f64()),
            Self::NotEqual => truth(a.to_f64() != b.to_f64()),
            Self::And => truth(set(a) && set(b)),
            Self::Or => truth(set(a) || set(b)),
        }
    }
}

impl Binary {
    /// Plain addition, as gradients are accumulated.
    pub const ADD: Self = Self { kind: BinaryKind::Add, in_place: false };
}

impl Rule for Binary {
    fn name(&self) -> &'static str {
        match (self.kind, self.in_place) {
            (BinaryKind::Add, false) => "add",
            (BinaryKind::Sub, false) => "sub",
            (BinaryKind::Mul, false) => "mul",
            (BinaryKind::Div, false) => "div",
            (BinaryKind::Add, true) => "add_",
            (BinaryKind::Sub, true) => "sub_",
            (BinaryKind::Mul, true) => "mul_",
            (BinaryKind::Div, true) => "div_",
            (BinaryKind::Max, _) => "maximum",
            (BinaryKind::Less, _) => "less",
            (BinaryKind::LessEqual, _) => "less_equal",
            (BinaryKind::Equal, _) => "equal",
            (BinaryKind::NotEqual, _) => "not_equal",
            (BinaryKind::And, _) => "and",
            (BinaryKind::Or, _) => "or",
        }
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        let (a, b) = (&inputs[0], &inputs[1]);
        let shape = broadcast_shapes(self.name(), a.shape(), b.shape())?;
        if self.in_place {
            if shape.as_slice() != a.shape() {
                return Err(Error::Broadcast { op: self.name(), a: a.shape().into(), b: b.shape().into() });
            }
            return Ok(smallvec![Out::InPlace(0)]);
        }
        let dtype = if self.kind.is_comparison() {
            DType::Bool
        } else {
            let zero_rank = |s: &Spec| s.layout.rank() == 0;
            // A scalar tensor does not widen the dtype of a tensor of the same kind.
            match (zero_rank(a), zero_rank(b)) {
                (true, false) if a.dtype.is_float() == b.dtype.is_float() => b.dtype,
                (false, true) if a.dtype.is_float() == b.dtype.is_float() => a.dtype,
                _ => promote(a.dtype, b.dtype).map_err(|_| Error::NoPromotion {
                    op: self.name(),
                    a: a.dtype,
                    b: b.dtype,
                })?,
            }
        };
        let layout = elementwise_layout(&shape, &[&a.layout, &b.layout]);
        Ok(smallvec![Out::Fresh(Spec { dtype, layout: Arc::new(layout) })])
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        let flops = if self.kind.is_comparison() { 0 } else { u128::from(outputs[0].elements()) };
        elementwise(inputs, outputs, flops)
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let (a, b) = (inputs[0].to_num(), inputs[1].to_num());
        let shape = outputs[0].shape().to_vec();
        let (pa, pb) = (broadcast_positions(&a.shape, &shape), broadcast_positions(&b.shape, &shape));
        for (i, (pa, pb)) in pa.into_iter().zip(pb).enumerate() {
            let value = self.kind.compute(a.data[pa], b.data[pb]);
            match &mut outputs[0] {
                Data::Num(out) => out.data[i] = value,
                Data::Int(out) => out.data[i] = value.to_f64() as i64,
            }
        }
        Ok(())
    }

    #[cfg(feature = "cpu")]
    fn run_cpu(&self, args: &mut Args<'_>) -> Result<bool> {
        Ok(for_variant!(
 self: Binary, self.kind in BinaryKind { Add, Sub, Mul, Div, Max, Less, LessEqual, Equal, NotEqual, And, Or },
 |_, kind, [a, b]| [kind.compute(a, b)], 2 to 1, f => map(args, &f)
))
    }

    fn saves(&self, needs: Needs) -> Saves {
        match self.kind {
            BinaryKind::Mul => Saves::inputs(needs.then(0, 0b10) | needs.then(1, 0b01)),
            BinaryKind::Div => Saves::inputs(needs.then(0, 0b10) | needs.then(1, 0b11)),
            BinaryKind::Max => Saves::inputs(0b11),
            _ => Saves::NONE,
        }
    }

    fn differentiable(&self) -> u8 {
        if self.in_place || self.kind.is_comparison() { 0 } else { 0b11 }
    }

    fn gradient(&self, back: &Back<'_>) -> Result<Grads> {
        let grad = back.grad()?;
        let both = |a: Option<Tensor>, b: Option<Tensor>| -> Result<Grads> {
            let fit = |g: Option<Tensor>, i: usize| {
                g.map(|g| g.sum_to(back.spec(i).shape())?.to_dtype(back.spec(i).dtype)).transpose()
            };
            Ok(smallvec![fit(a, 0)?, fit(b, 1)?])
        };
        let when = |i: usize, f: &dyn Fn() -> Result<Tensor>| if back.wants(i) { f().map(Some) } else { Ok(None) };
        match self.kind {
            BinaryKind::Add => both(when(0, &|| Ok(grad.clone()))?, when(1, &|| Ok(grad.clone()))?),
            BinaryKind::Sub => both(when(0, &|| Ok(grad.clone()))?, when(1, &|| grad.neg())?),
            BinaryKind::Mul => both(when(0, &|| grad.mul(back.input(1)?))?, when(1, &|| grad.mul(back.input(0)?))?),
            BinaryKind::Div => both(
                when(0, &|| grad.div(back.input(1)?))?,
                when(1, &|| {
                    // d(a/b)/db = -a / b²
                    let (a, b) = (back.input(0)?, back.input(1)?);
                    grad.neg()?.mul(&a.div(b)?.div(b)?)
                })?,
            ),
            BinaryKind::Max => {
                let (a, b) = (back.input(0)?, back.input(1)?);
                let b_wins = a.less(b)?.to_dtype(grad.dtype())?;
                both(when(0, &|| grad.sub(&grad.mul(&b_wins)?))?, when(1, &|| grad.mul(&b_wins))?)
            }
            _ => Err(Error::NoGradient { op: self.name(), input: 0 }),
        }
    }
}

/// Position in an array of `from` of each element of an array of `to`, into which it broadcasts.
pub(crate) fn broadcast_positions(from: &[usize], to: &[usize]) -> Vec<usize> {
    let missing = to.len() - from.len();
    let mut strides = vec![0usize; to.len()];
    let mut step = 1;
    for d in (0..from.len()).rev() {
        if from[d] != 1 {
            strides[missing + d] = step;
        }
        step *= from[d];
    }
    let mut index = vec![0usize; to.len()];
    (0..to.iter().product())
        .map(|_| {
            let at = index.iter().zip(&strides).map(|(i, s)| i * s).sum();
            for d in (0..to.len()).rev() {
                index[d] += 1;
                if index[d] < to[d] {
                    break;
                }
                index[d] = 0;
            }
            at
        })
        .collect()
}

/// Copies `from` into `to`, broadcasting.
pub(crate) fn broadcast_into<T: Num>(from: &Data<T>, to: &mut Data<T>) {
    let positions = broadcast_positions(from.shape(), to.shape());
    match to {
        Data::Num(Array { data, .. }) => {
            let source = from.to_num();
            for (out, at) in data.iter_mut().zip(positions) {
                *out = source.data[at];
            }
        }
        Data::Int(Array { data, .. }) => {
            let source = from.ints();
            for (out, at) in data.iter_mut().zip(positions) {
                *out = source[at];
            }
        }
    }
}

macro_rules! methods {
    ($($(#[$doc:meta])* $name:ident, $in_place:ident, $reusing:ident = $kind:ident;)*) => {
        impl Tensor {
            $(
                $(#[$doc])*
                pub fn $name(&self, other: &Self) -> Result<Self> {
                    Self::op(Op::Binary(Binary { kind: BinaryKind::$kind, in_place: false }), &[self, other])
                }

                /// The same, overwriting this tensor (and its base, if it is a view).
                ///
                /// # Errors
                /// [`Error::InPlaceOnGraph`] if it has history; [`Error::OverlappingWrite`] if it is expanded.
                pub fn $in_place(&self, other: &Self) -> Result<Self> {
                    Self::op(Op::Binary(Binary { kind: BinaryKind::$kind, in_place: true }), &[self, other])
                }

                /// The same, taking over this tensor's storage if this is its last handle.
                pub fn $reusing(self, other: &Self) -> Result<Self> {
                    let op = Op::Binary(Binary { kind: BinaryKind::$kind, in_place: false });
                    Ok(apply_reusing(op, &[&self, other], 0)?.swap_remove(0))
                }
            )*
        }
    };
}

methods! {
    /// `a + b`
    add, add_, add_reusing = Add;
    /// `a - b`
    sub, sub_, sub_reusing = Sub;
    /// `a * b`
    mul, mul_, mul_reusing = Mul;
    /// `a / b`
    div, div_, div_reusing = Div;
    /// The larger of both.
    maximum, maximum_, maximum_reusing = Max;
}

impl Tensor {
    fn compare(&self, other: &Self, kind: BinaryKind) -> Result<Self> {
        Self::op(Op::Binary(Binary { kind, in_place: false }), &[self, other])
    }

    /// `a < b` as bool.
    pub fn less(&self, other: &Self) -> Result<Self> {
        self.compare(other, BinaryKind::Less)
    }

    /// `a <= b` as bool.
    pub fn less_equal(&self, other: &Self) -> Result<Self> {
        self.compare(other, BinaryKind::LessEqual)
    }

    /// `a > b` as bool.
    pub fn greater(&self, other: &Self) -> Result<Self> {
        other.less(self)
    }

    /// `a >= b` as bool.
    pub fn greater_equal(&self, other: &Self) -> Result<Self> {
        other.less_equal(self)
    }

    /// `a != b` as bool.
    pub fn not_equal(&self, other: &Self) -> Result<Self> {
        self.compare(other, BinaryKind::NotEqual)
    }

    /// `a == b` as bool.
    pub fn equal(&self, other: &Self) -> Result<Self> {
        self.compare(other, BinaryKind::Equal)
    }

    /// Both true.
    pub fn logical_and(&self, other: &Self) -> Result<Self> {
        self.compare(other, BinaryKind::And)
    }

    /// Either true.
    pub fn logical_or(&self, other: &Self) -> Result<Self> {
        self.compare(other, BinaryKind::Or)
    }
}
