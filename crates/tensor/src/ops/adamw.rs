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
        if self.step == 0 {
            return Err(Error::Argument { op, what: "steps are counted from 1".into() });
        }
        for beta in [self.beta1, self.beta2] {
            if !(0.0..1.0).contains(&beta) {
                return Err(Error::Argument { op, what: format!("beta must lie in 0..1, not {beta}") });
            }
        }
        for other in inputs {
            need_float(op, other)?;
            if other.shape() != inputs[0].shape() {
                let rule = "parameter, gradient and states must have one shape";
                return Err(Error::Shapes { op, a: inputs[0].shape().into(), b: other.shape().into(), rule });
            }
        }
        let mut outs: Outs = smallvec![Out::InPlace(0), Out::InPlace(2), Out::InPlace(3)];
        if self.master {
            outs.push(Out::InPlace(4));
        }
        Ok(outs)
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        // 3 for the mean, 4 for the mean of squares, 3 for the denominator, 3 for the step.
        let per_element = 13 + u128::from(self.weight_decay != 0.0);
        let flops = per_element * u128::from(inputs[0].elements());
        // With a master copy the parameter is not read.
        Cost { elementwise: flops, ..traffic(&inputs[usize::from(self.master)..], outputs) }
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let of = T::from_f64;
        // Steps past 2^31 have left the bias correction at 1 long ago.
        let step = i32::try_from(self.step).unwrap_or(i32::MAX);
        let correction1 = 1.0 - self.beta1.powi(step);
        let correction2 = (1.0 - self.beta2.powi(step)).sqrt();
        let decay = of(1.0 - self.lr * self.weight_decay);
        let grad = inputs[1].num();
        let at = if self.master { 3 } else { 0 };
        for (i, &g) in grad.data.iter().enumerate() {
            let m = outputs[1].num().data[i];
            let m = m + of(1.0 - self.beta1) * (g - m);
            let v = outputs[2].num().data[i] * of(self.beta2) + of(1.0 - self.beta2) * (g * g);
            let denominator = v.sqrt() / of(correction2) + of(self.eps);
            let mut p = outputs[at].num().data[i];
            if self.weight_decay != 0.0 {
                p = p * decay;
            }
            let p = p - of(self.lr / correction1) * m / denominator;
            outputs[0].num_mut().data[i] = p;
            outputs[1].num_mut().data[i] = m;
            outputs[2].num_mut().data[i] = v;
            outputs[at].num_mut().data[i] = p;
        }
        Ok(())
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
        if step.master != master.is_some() {
            return Err(Error::Argument {
                op: "adamw",
                what: "the op and its operands disagree on a master copy".into(),
            });
        }
        let mut inputs: SmallVec<[&Self; 5]> = smallvec![self, grad, exp_avg, exp_avg_sq];
        inputs.extend(master);
        apply(Op::AdamW(step.clone()), &inputs).map(drop)
    }
}
