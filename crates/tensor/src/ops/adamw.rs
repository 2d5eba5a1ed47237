//! One step of `AdamW` for one parameter, fused: no temporaries. Source: Loshchilov and Hutter, arXiv:1711.05101.

use super::unary::need_float;
use super::{Op, Out, Outs, Rule, traffic};
use crate::apply::apply;
use crate::error::{Error, Result};
use crate::kernel::{Data, Num};
use crate::meter::Cost;
use crate::tensor::{Spec, Tensor};
use smallvec::{SmallVec, smallvec};

/// Inputs: parameter, gradient, `exp_avg`, `exp_avg_sq`, and the master copy of the parameter if there is one. All but
/// the gradient are written over. With a master copy the parameter is only written: it becomes the rounded master.
#[derive(Clone, Debug, PartialEq)]
pub struct AdamW {
    /// Learning rate of this step.
    pub lr: f64,
    /// Decay of the mean of gradients.
    pub beta1: f64,
    /// Decay of the mean of squared gradients.
    pub beta2: f64,
    /// Added to the denominator.
    pub eps: f64,
    /// Decoupled weight decay; 0 switches it off.
    pub weight_decay: f64,
    /// Number of this step, from 1.
    pub step: u64,
    /// Whether there is a master copy of higher precision.
    pub master: bool,
}

impl Rule for AdamW {
    fn name(&self) -> &'static str {
        "adamw"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        let op = self.name();
        self.check(op)?;
        for other in inputs {
            need_float(op, other)?;
        }
        need_one_shape(op, inputs)?;
        let mut outs: Outs = smallvec![Out::InPlace(0), Out::InPlace(2), Out::InPlace(3)];
        if self.master {
            outs.push(Out::InPlace(4));
        }
        Ok(outs)
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        let flops = self.flops_per_element() * u128::from(inputs[0].elements());
        // With a master copy the parameter is not read.
        Cost { elementwise: flops, ..traffic(&inputs[usize::from(self.master)..], outputs) }
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let element = self.element::<T>();
        let at = if self.master { 3 } else { 0 };
        for (i, &g) in inputs[1].num().data.iter().enumerate() {
            let old = |j: usize| outputs[j].num().data[i];
            let (p, m, v) = element(old(at), g, old(1), old(2));
            for (j, value) in [(0, p), (1, m), (2, v), (at, p)] {
                outputs[j].num_mut().data[i] = value;
            }
        }
        Ok(())
    }
}

/// Refuses operands of unlike shapes.
pub(super) fn need_one_shape<'a>(op: &'static str, operands: impl IntoIterator<Item = &'a Spec>) -> Result<()> {
    let mut operands = operands.into_iter();
    let Some(first) = operands.next() else { return Ok(()) };
    match operands.find(|other| other.shape() != first.shape()) {
        None => Ok(()),
        Some(other) => {
            let rule = "parameter, gradient and states must have one shape";
            Err(Error::Shapes { op, a: first.shape().into(), b: other.shape().into(), rule })
        }
    }
}

/// Refuses a decay that is none.
pub(super) fn need_decay(op: &'static str, beta: f64) -> Result<()> {
    if (0.0..1.0).contains(&beta) {
        Ok(())
    } else {
        Err(Error::Argument { op, what: format!("beta must lie in 0..1, not {beta}") })
    }
}

/// Refuses a master copy that the op does not know of, or the lack of one that it does.
pub(super) fn need_agreement(op: &'static str, says: bool, given: bool) -> Result<()> {
    if says == given {
        Ok(())
    } else {
        Err(Error::Argument { op, what: "the op and its operands disagree on a master copy".into() })
    }
}

impl AdamW {
    pub(super) fn check(&self, op: &'static str) -> Result<()> {
        if self.step == 0 {
            return Err(Error::Argument { op, what: "steps are counted from 1".into() });
        }
        need_decay(op, self.beta1)?;
        need_decay(op, self.beta2)
    }

    /// Arithmetic operations per element: 3 for the mean, 4 for the mean of squares, 3 for the denominator, 3 for the
    /// step, 1 for the decay.
    pub(super) fn flops_per_element(&self) -> u128 {
        13 + u128::from(self.weight_decay != 0.0)
    }

    /// The update of one element: from parameter, gradient and both means to the new parameter and means.
    pub(super) fn element<T: Num>(&self) -> impl Fn(T, T, T, T) -> (T, T, T) {
        let of = T::from_f64;
        // Steps past 2^31 have left the bias correction at 1 long ago.
        let step = i32::try_from(self.step).unwrap_or(i32::MAX);
        let correction1 = 1.0 - self.beta1.powi(step);
        let correction2 = of((1.0 - self.beta2.powi(step)).sqrt());
        let (rate, eps) = (of(self.lr / correction1), of(self.eps));
        let (beta2, new1, new2) = (of(self.beta2), of(1.0 - self.beta1), of(1.0 - self.beta2));
        let decay = (self.weight_decay != 0.0).then(|| of(1.0 - self.lr * self.weight_decay));
        move |p, g, m, v| {
            let m = m + new1 * (g - m);
            let v = v * beta2 + new2 * (g * g);
            let denominator = v.sqrt() / correction2 + eps;
            let p = decay.map_or(p, |decay| p * decay);
            (p - rate * m / denominator, m, v)
        }
    }
}

impl Tensor {
    /// Updates this parameter, its moments and its master copy in place, in one op without temporaries.
    ///
    /// # Errors
    /// [`Error::Argument`] unless `master` is given exactly if the op says so; [`Error::InPlaceOnGraph`] outside of
    /// `no_grad` if the parameter requires a gradient.
    pub fn adamw_(
        &self,
        grad: &Self,
        exp_avg: &Self,
        exp_avg_sq: &Self,
        master: Option<&Self>,
        step: &AdamW,
    ) -> Result<()> {
        need_agreement("adamw", step.master, master.is_some())?;
        let mut inputs: SmallVec<[&Self; 5]> = smallvec![self, grad, exp_avg, exp_avg_sq];
        inputs.extend(master);
        apply(Op::AdamW(step.clone()), &inputs).map(drop)
    }
}
