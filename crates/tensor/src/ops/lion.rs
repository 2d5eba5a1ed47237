//! One step of Lion for one parameter, fused: no temporaries. Source: Chen et al., arXiv:2302.06675, algorithm 2.

use super::adamw::{need_decay, need_one_shape};
use super::unary::need_float;
use super::{Op, Out, Outs, Rule, elementwise};
use crate::apply::apply;
#[cfg(feature = "cpu")]
use crate::cpu::{
    Args,
    elementwise::{Map, map_inputs},
};
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
        let at = if outputs.len() > 2 { 2 } else { 0 };
        for (i, &g) in inputs[1].num().data.iter().enumerate() {
            let [p, m] = self.update(outputs[at].num().data[i], g, outputs[1].num().data[i]);
            for (j, value) in [(0, p), (1, m), (at, p)] {
                outputs[j].num_mut().data[i] = value;
            }
        }
        Ok(())
    }

    #[cfg(feature = "cpu")]
    fn run_cpu(&self, args: &mut Args<'_>) -> Result<bool> {
        Ok(if args.outputs.len() > 2 {
            map_inputs::<3, 3>(args, [3, 1, 2], self)
        } else {
            map_inputs::<3, 2>(args, [0, 1, 2], self)
        })
    }
}

impl Lion {
    /// Parameter and mean after the step.
    #[inline(always)]
    fn update<T: Num>(&self, p: T, g: T, m: T) -> [T; 2] {
        let of = T::from_f64;
        let direction = of(self.beta1) * m + of(1.0 - self.beta1) * g;
        // Like `sign`: no step for a direction of zero, and NaN stays NaN.
        let step = match direction.to_f64() {
            zero if zero == 0.0 || zero.is_nan() => direction,
            way => of(self.lr.copysign(way)),
        };
        let p = if self.weight_decay == 0.0 { p } else { p * of(1.0 - self.lr * self.weight_decay) };
        [p - step, m + of(1.0 - self.beta2) * (g - m)]
    }
}

#[cfg(feature = "cpu")]
impl Map<3, 2> for Lion {
    #[inline(always)]
    fn of<T: Num>(&self, [p, g, m]: [T; 3]) -> [T; 2] {
        self.update(p, g, m)
    }
}

#[cfg(feature = "cpu")]
impl Map<3, 3> for Lion {
    #[inline(always)]
    fn of<T: Num>(&self, [master, g, m]: [T; 3]) -> [T; 3] {
        let [p, m] = self.update(master, g, m);
        [p, m, p]
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
