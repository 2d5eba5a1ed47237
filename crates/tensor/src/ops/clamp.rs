//! Elements held between two numbers.

use super::{Needs, Op, Outs, Rule, Saves, traffic};
use crate::autograd::{Back, Grads};
#[cfg(feature = "cpu")]
use crate::cpu::{Args, elementwise::{Map, map}};
use crate::error::{Error, Result};
use crate::kernel::{Data, Num};
use crate::layout::elementwise_layout;
use crate::meter::Cost;
use crate::tensor::{Spec, Tensor};
use smallvec::smallvec;
use std::sync::Arc;

/// `min(max(x, low), high)`; a bound may be infinite.
#[derive(Clone, Debug, PartialEq)]
pub struct Clamp {
    /// Lower bound.
    pub low: f64,
    /// Upper bound.
    pub high: f64,
}

impl Clamp {
    #[inline(always)]
    fn clamped<T: Num>(&self, x: T) -> T {
        match x.to_f64() {
            value if value < self.low => T::from_f64(self.low),
            value if value > self.high => T::from_f64(self.high),
            _ => x,
        }
    }
}

#[cfg(feature = "cpu")]
impl Map<1, 1> for Clamp {
    #[inline(always)]
    fn of<T: Num>(&self, [x]: [T; 1]) -> [T; 1] {
        [self.clamped(x)]
    }
}

impl Rule for Clamp {
    fn name(&self) -> &'static str {
        "clamp"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        if !inputs[0].dtype.is_float() {
            return Err(Error::DType { op: "clamp", got: inputs[0].dtype, expected: "a floating-point dtype" });
        }
        let layout = elementwise_layout(inputs[0].shape(), &[&inputs[0].layout]);
        Ok(smallvec![super::Out::Fresh(Spec { dtype: inputs[0].dtype, layout: Arc::new(layout) })])
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        // Comparisons only.
        traffic(inputs, outputs)
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        for (out, &x) in outputs[0].num_mut().data.iter_mut().zip(&inputs[0].num().data) {
            *out = self.clamped(x);
        }
        Ok(())
    }

    #[cfg(feature = "cpu")]
    fn run_cpu(&self, args: &mut Args<'_>) -> Result<bool> {
        Ok(map(args, self))
    }

    fn saves(&self, _: Needs) -> Saves {
        Saves::inputs(1)
    }

    fn differentiable(&self) -> u8 {
        1
    }

    fn gradient(&self, back: &Back<'_>) -> Result<Grads> {
        let (grad, x) = (back.grad()?, back.input(0)?);
        let number = |value: f64| x.runtime().full(&[], value, x.dtype());
        let above = || number(self.low)?.less_equal(x);
        let below = || x.less_equal(&number(self.high)?);
        let inside = match (self.low.is_finite(), self.high.is_finite()) {
            (false, false) => return Ok(smallvec![Some(grad.clone())]),
            (true, false) => above()?,
            (false, true) => below()?,
            (true, true) => above()?.logical_and(&below()?)?,
        };
        let zero = x.runtime().full(&[], 0.0, grad.dtype())?;
        Ok(smallvec![Some(inside.where_cond(grad, &zero)?)])
    }
}

impl Tensor {
    /// `min(max(x, low), high)`. A bound may be infinite.
    ///
    /// # Errors
    /// [`Error::Argument`] if a bound is NaN or they are out of order.
    pub fn clamp(&self, low: f64, high: f64) -> Result<Self> {
        if low.is_nan() || high.is_nan() || low > high {
            return Err(Error::Argument { op: "clamp", what: format!("{low} to {high} is no interval") });
        }
        Self::op(Op::Clamp(Clamp { low, high }), &[self])
    }
}
