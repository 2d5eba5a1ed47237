//! A tensor and a number: add, multiply, power. The number costs no tensor.

use super::{Needs, Op, Out, Outs, Rule, Saves, elementwise};
use crate::apply::apply_reusing;
use crate::autograd::{Back, Grads};
#[cfg(feature = "cpu")]
use crate::cpu::{Args, elementwise::{for_variant, map}};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel::{Data, Num};
use crate::layout::elementwise_layout;
use crate::meter::Cost;
use crate::tensor::{Spec, Tensor};
use smallvec::smallvec;
use std::sync::Arc;

/// An elementwise op of a tensor and a number.
#[derive(Clone, Debug, PartialEq)]
pub struct Scalar {
    /// Which one.
    pub kind: ScalarKind,
    /// The number.
    pub value: f64,
    /// Whether the result overwrites the tensor.
    pub in_place: bool,
}

/// The ops of a tensor and a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScalarKind {
    /// `x + c`
    Add,
    /// `x * c`
    Mul,
    /// `x / c`
    Div,
    /// `x ^ c`
    Pow,
    /// `max(x, c)`
    Max,
}

impl ScalarKind {
    #[inline(always)]
    fn compute<T: Num>(self, x: T, c: T) -> T {
        match self {
            Self::Add => x + c,
            Self::Mul => x * c,
            Self::Div => x / c,
            // The square is what norms are made of, and exact as a product.
            Self::Pow if c.to_f64() == 2.0 => x * x,
            Self::Pow => x.pow(c),
            Self::Max => x.max(c),
        }
    }
}

impl Rule for Scalar {
    fn name(&self) -> &'static str {
        match (self.kind, self.in_place) {
            (ScalarKind::Add, false) => "add_scalar",
            (ScalarKind::Mul, false) => "mul_scalar",
            (ScalarKind::Div, false) => "div_scalar",
            (ScalarKind::Add, true) => "add_scalar_",
            (ScalarKind::Mul, true) => "mul_scalar_",
            (ScalarKind::Div, true) => "div_scalar_",
            (ScalarKind::Pow, _) => "pow",
            (ScalarKind::Max, _) => "max_scalar",
        }
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        if self.in_place {
            return Ok(smallvec![Out::InPlace(0)]);
        }
        let whole = self.value.fract() == 0.0 && self.kind != ScalarKind::Div && self.kind != ScalarKind::Pow;
        let dtype = match inputs[0].dtype {
            d if d.is_float() || (whole && !d.is_bool()) => d,
            DType::Bool if whole => DType::I64,
            _ => DType::F32,
        };
        let layout = elementwise_layout(inputs[0].shape(), &[&inputs[0].layout]);
        Ok(smallvec![Out::Fresh(Spec { dtype, layout: Arc::new(layout) })])
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        elementwise(inputs, outputs, u128::from(outputs[0].elements()))
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let c = T::from_f64(self.value);
        for (i, x) in inputs[0].to_num().data.into_iter().enumerate() {
            let value = self.kind.compute(x, c);
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
 self: Scalar, self.kind in ScalarKind { Add, Mul, Div, Pow, Max },
 |op, kind, [x]| [kind.compute(x, T::from_f64(op.value))], 1 to 1, f => map(args, &f)
))
    }

    fn saves(&self, _: Needs) -> Saves {
        match self.kind {
            ScalarKind::Pow | ScalarKind::Max => Saves::inputs(1),
            _ => Saves::NONE,
        }
    }

    fn differentiable(&self) -> u8 {
        u8::from(!self.in_place)
    }

    fn gradient(&self, back: &Back<'_>) -> Result<Grads> {
        let g = back.grad()?;
        let out = match self.kind {
            ScalarKind::Add => g.clone(),
            ScalarKind::Mul => g.mul_scalar(self.value)?,
            ScalarKind::Div => g.div_scalar(self.value)?,
            ScalarKind::Pow => {
                let power = back.input(0)?.pow_scalar(self.value - 1.0)?;
                g.mul(&power.mul_scalar(self.value)?)?
            }
            ScalarKind::Max => {
                let x = back.input(0)?;
                let c = x.runtime().full(&[], self.value, x.dtype())?;
                g.mul(&c.less(x)?.to_dtype(g.dtype())?)?
            }
        };
        Ok(smallvec![Some(out)])
    }
}

impl Tensor {
    fn scalar(&self, kind: ScalarKind, value: f64, in_place: bool) -> Result<Self> {
        if value.is_nan() {
            return Err(Error::Argument { op: "scalar", what: "the number is NaN".into() });
        }
        Self::op(Op::Scalar(Scalar { kind, value, in_place }), &[self])
    }

    /// `x + c`
    pub fn add_scalar(&self, c: f64) -> Result<Self> {
        self.scalar(ScalarKind::Add, c, false)
    }

    /// `x * c`
    pub fn mul_scalar(&self, c: f64) -> Result<Self> {
        self.scalar(ScalarKind::Mul, c, false)
    }

    /// `x / c`
    pub fn div_scalar(&self, c: f64) -> Result<Self> {
        self.scalar(ScalarKind::Div, c, false)
    }

    /// `x ^ c`
    pub fn pow_scalar(&self, c: f64) -> Result<Self> {
        self.scalar(ScalarKind::Pow, c, false)
    }

    /// `max(x, c)`
    pub fn max_scalar(&self, c: f64) -> Result<Self> {
        self.scalar(ScalarKind::Max, c, false)
    }

    /// `x + c` in place.
    pub fn add_scalar_(&self, c: f64) -> Result<Self> {
        self.scalar(ScalarKind::Add, c, true)
    }

    /// `x * c` in place.
    pub fn mul_scalar_(&self, c: f64) -> Result<Self> {
        self.scalar(ScalarKind::Mul, c, true)
    }

    /// `x * c`, taking over this tensor's storage if this is its last handle.
    pub fn mul_scalar_reusing(self, c: f64) -> Result<Self> {
        let op = Op::Scalar(Scalar { kind: ScalarKind::Mul, value: c, in_place: false });
        Ok(apply_reusing(op, &[&self], 0)?.swap_remove(0))
    }

    /// `x / c` in place.
    pub fn div_scalar_(&self, c: f64) -> Result<Self> {
        self.scalar(ScalarKind::Div, c, true)
    }
}
