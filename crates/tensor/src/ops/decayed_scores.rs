//! Scores between positions of a chunk where every channel decays at its own rate.

use super::{Needs, Out, Outs, Rule, Saves, elementwise, one_fresh};
use crate::apply::apply;
use crate::autograd::{Back, Grads};
use crate::error::{Error, Result};
use crate::kernel::{Data, Num};
use crate::meter::Cost;
use crate::tensor::{Spec, Tensor};
use smallvec::smallvec;

/// `s_ij = Σ_d x_id y_jd e^(g_id - g_jd)` for `j <= i`, 0 above the diagonal. Inputs: `x`, `y`, `g`, each `(r c d)`; output
/// `(r c c)`. `g` is the logarithm of the decay from the start of the chunk. Keeps its inputs.
///
/// Its arithmetic counts as elementwise: common counters see no product in it.
#[derive(Clone, Debug, PartialEq)]
pub struct DecayedScores;

/// Gradients of the three inputs of [`DecayedScores`]. Inputs: gradient, `x`, `y`, `g`.
#[derive(Clone, Debug, PartialEq)]
pub struct DecayedScoresBackward;

/// Products of pairs of positions with channels.
fn terms(x: &Spec) -> u128 {
    let [r, c, d] = [0, 1, 2].map(|dim: usize| u128::from(x.shape()[dim]));
    r * (c * (c + 1) / 2) * d
}

impl Rule for DecayedScores {
    fn name(&self) -> &'static str {
        "decayed_scores"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        let x = &inputs[0];
        let &[r, c, _] = x.shape() else {
            return Err(Error::Argument { op: "decayed_scores", what: "needs (chunks, positions, channels)".into() });
        };
        if let Some(other) = inputs[1..].iter().find(|other| other.shape() != x.shape()) {
            let rule = "both sides and the decays have one shape";
            return Err(Error::Shapes { op: "decayed_scores", a: x.shape().into(), b: other.shape().into(), rule });
        }
        if let Some(other) = inputs[1..].iter().find(|other| other.dtype != x.dtype || !x.dtype.is_float()) {
            return Err(Error::NoPromotion { op: "decayed_scores", a: x.dtype, b: other.dtype });
        }
        one_fresh(&[r, c, c], x.dtype)
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        elementwise(inputs, outputs, 5 * terms(&inputs[0]))
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let (x, y, g, out) = (inputs[0].num(), inputs[1].num(), inputs[2].num(), outputs[0].num_mut());
        let (r, c, d) = (x.shape[0], x.shape[1], x.shape[2]);
        for m in 0..r {
            for i in 0..c {
                for j in 0..=i {
                    let (a, b) = ((m * c + i) * d, (m * c + j) * d);
                    let mut sum = T::zero();
                    for e in 0..d {
                        let decay = (g.data[a + e] - g.data[b + e]).exp();
                        sum = sum + x.data[a + e] * y.data[b + e] * decay;
                    }
                    out.data[(m * c + i) * c + j] = sum;
                }
            }
        }
        Ok(())
    }

    fn saves(&self, _: Needs) -> Saves {
        Saves::inputs(0b111)
    }

    fn differentiable(&self) -> u8 {
        0b111
    }

    fn gradient(&self, back: &Back<'_>) -> Result<Grads> {
        let inputs = [back.grad()?, back.input(0)?, back.input(1)?, back.input(2)?];
        Ok(apply(DecayedScoresBackward.into(), &inputs)?.into_iter().map(Some).collect())
    }
}

impl Rule for DecayedScoresBackward {
    fn name(&self) -> &'static str {
        "decayed_scores_backward"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        let out = || Out::fresh(inputs[1].shape(), inputs[1].dtype);
        Ok(smallvec![out()?, out()?, out()?])
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        elementwise(inputs, outputs, 11 * terms(&inputs[1]))
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let [grad, x, y, g] = [0, 1, 2, 3].map(|i: usize| inputs[i].num());
        let [dx, dy, dg] = outputs else { return Err(Error::Backward("scores have three gradients")) };
        let (dx, dy, dg) = (dx.num_mut(), dy.num_mut(), dg.num_mut());
        let (r, c, d) = (x.shape[0], x.shape[1], x.shape[2]);
        for m in 0..r {
            for i in 0..c {
                for j in 0..=i {
                    let (a, b) = ((m * c + i) * d, (m * c + j) * d);
                    for e in 0..d {
                        let decay = (g.data[a + e] - g.data[b + e]).exp();
                        let slope = grad.data[(m * c + i) * c + j] * decay;
                        dx.data[a + e] = dx.data[a + e] + slope * y.data[b + e];
                        dy.data[b + e] = dy.data[b + e] + slope * x.data[a + e];
                        let term = slope * x.data[a + e] * y.data[b + e];
                        dg.data[a + e] = dg.data[a + e] + term;
                        dg.data[b + e] = dg.data[b + e] - term;
                    }
                }
            }
        }
        Ok(())
    }
}

impl Tensor {
    /// Scores `Σ_d self_id other_jd e^(decay_id - decay_jd)` of positions up to each one.
    ///
    /// # Shapes
    /// self, other, decay `r c d` -> `r c c`
    pub fn decayed_scores(&self, other: &Self, decay: &Self) -> Result<Self> {
        Self::op(DecayedScores, &[self, other, decay])
    }
}
