//! One step of Lion for one parameter, fused: no temporaries. Source: Chen et al., arXiv:2302.06675, algorithm 2.

use super::adamw::{need_decay, need_one_shape};
use super::unary::need_float;
use super::{Op, Out, Outs, Rule, elementwise};
use crate::apply::apply;
use crate::error::Result;
use crate::kernel::{Data, Num};
use crate::meter::Cost;
use crate::tensor::{Spec, Tensor};
use smallvec::{SmallVec, smallvec};

/// Inputs: parameter, gradient, `exp_avg`, and the master copy of the parameter if there is one. All but the gradient
/// are written over. With a master copy the parameter is only written: it becomes the rounded master.
#[derive(Clone, Debug, PartialEq)]
pub struct Lion {
    /// Learning rate of this step.
    pub lr: f64,
    /// Part of the mean in the direction of the step.
    pub beta1: f64,
    /// Decay of the mean.
    pub beta2: f64,
    /// Decoupled weight decay; 0 switches it off.
    pub weight_decay: f64,
}

impl Rule for Lion {
    fn name(&self) -> &'static str {
        "lion"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        let op = self.name();
        need_decay(op, self.beta1)?;
        need_decay(op, self.beta2)?;
        for operand in inputs {
            need_float(op, operand)?;
        }
        need_one_shape(op, inputs)?;
        Ok([0, 2, 3].into_iter().filter(|&i| i < inputs.len()).map(Out::InPlace).collect())
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        // 3 for the direction, 1 for the step, 3 for the mean; a sign is a selection.
        let per_element = 7 + u128::from(self.weight_decay != 0.0);
        let flops = per_element * u128::from(inputs[0].elements());
        // With a master copy the parameter is not read.
        elementwise(&inputs[usize::from(inputs.len() > 3)..], outputs, flops)
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let of = T::from_f64;
        let (beta1, new1, new2) = (of(self.beta1), of(1.0 - self.beta1), of(1.0 - self.beta2));
        let decay = (self.weight_decay != 0.0).then(|| of(1.0 - self.lr * self.weight_decay));
        let at = if outputs.len() > 2 { 2 } else { 0 };
        for (i, &g) in inputs[1].num().data.iter().enumerate() {
            let m = outputs[1].num().data[i];
            let direction = (beta1 * m + new1 * g).to_f64();
            // Like `sign`: no step for a direction of zero, and NaN stays NaN.
            let step = of(if direction == 0.0 || direction.is_nan() { direction } else { self.lr.copysign(direction) });
            let p = outputs[at].num().data[i];
            let p = decay.map_or(p, |decay| p * decay) - step;
            outputs[0].num_mut().data[i] = p;
            outputs[1].num_mut().data[i] = m + new2 * (g - m);
            outputs[at].num_mut().data[i] = p;
        }
        Ok(())
    }
}

impl Tensor {
    /// Updates this parameter, its running mean and its master copy in place, in one op without temporaries.
    ///
    /// # Errors
    /// Operands of unlike shapes; [`Error::InPlaceOnGraph`](crate::Error::InPlaceOnGraph) outside of `no_grad` if the
    /// parameter requires a gradient.
    pub fn lion_(&self, grad: &Self, exp_avg: &Self, master: Option<&Self>, step: &Lion) -> Result<()> {
        let mut inputs: SmallVec<[&Self; 4]> = smallvec![self, grad, exp_avg];
        inputs.extend(master);
        apply(Op::Lion(step.clone()), &inputs).map(drop)
    }
}
