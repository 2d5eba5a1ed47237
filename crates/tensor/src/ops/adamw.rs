//! One step of `AdamW` for one parameter, fused: no temporaries. Source: Loshchilov and Hutter, arXiv:1711.05101.

use super::unary::need_float;
use super::{Op, Out, Outs, Rule, traffic};
use crate::apply::apply;
#[cfg(feature = "cpu")]
use crate::cpu::{
    Args,
    elementwise::{Map, map_inputs},
};
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

/// The factors of a step.
pub(super) struct Update {
    beta1: f64,
    beta2: f64,
    eps: f64,
    /// Factor of the parameter, if it decays.
    decay: Option<f64>,
    step_size: f64,
    /// Root of the bias correction of the mean of squares.
    root_correction: f64,
}

impl Update {
    /// Parameter, mean and mean of squares after the step.
    #[inline(always)]
    pub(super) fn of<T: Num>(&self, p: T, g: T, m: T, v: T) -> [T; 3] {
        let of = T::from_f64;
        let m = m + of(1.0 - self.beta1) * (g - m);
        let v = v * of(self.beta2) + of(1.0 - self.beta2) * (g * g);
        let denominator = v.sqrt() / of(self.root_correction) + of(self.eps);
        let p = if let Some(decay) = self.decay { p * of(decay) } else { p };
        [p - of(self.step_size) * m / denominator, m, v]
    }
}

#[cfg(feature = "cpu")]
impl Map<4, 3> for Update {
    #[inline(always)]
    fn of<T: Num>(&self, [p, g, m, v]: [T; 4]) -> [T; 3] {
        self.of(p, g, m, v)
    }
}

#[cfg(feature = "cpu")]
impl Map<4, 4> for Update {
    #[inline(always)]
    fn of<T: Num>(&self, [master, g, m, v]: [T; 4]) -> [T; 4] {
        let [p, m, v] = self.of(master, g, m, v);
        [p, m, v, p]
    }
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
        let update = self.update();
        let at = if self.master { 3 } else { 0 };
        for (i, &g) in inputs[1].num().data.iter().enumerate() {
            let old = |j: usize| outputs[j].num().data[i];
            let [p, m, v] = update.of(old(at), g, old(1), old(2));
            for (j, value) in [(0, p), (1, m), (2, v), (at, p)] {
                outputs[j].num_mut().data[i] = value;
            }
        }
        Ok(())
    }

    #[cfg(feature = "cpu")]
    fn run_cpu(&self, args: &mut Args<'_>) -> Result<bool> {
        let update = self.update();
        Ok(if self.master {
            map_inputs::<4, 4>(args, [4, 1, 2, 3], &update)
        } else {
            map_inputs::<4, 3>(args, [0, 1, 2, 3], &update)
        })
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

    pub(super) fn update(&self) -> Update {
        // Steps past 2^31 have left the bias correction at 1 long ago.
        let step = i32::try_from(self.step).unwrap_or(i32::MAX);
        Update {
            beta1: self.beta1,
            beta2: self.beta2,
            eps: self.eps,
            decay: (self.weight_decay != 0.0).then_some(1.0 - self.lr * self.weight_decay),
            step_size: self.lr / (1.0 - self.beta1.powi(step)),
            root_correction: (1.0 - self.beta2.powi(step)).sqrt(),
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
