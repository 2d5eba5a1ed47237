//! Dense feed-forward parts.

use super::hf;
use super::linear::Branch;
use super::{Linear, Norm};
use crate::context::Forward;
use crate::param::{Builder, Init, ParamKind};
use crate::ranks::Share;
use crate::spec::{Activation, MlpInput, MlpSpec};
use std::rc::Rc;
use tensor::{Result, Tensor};

/// Only a plain MLP has slopes to train, and it asks for them itself.
pub(crate) const NO_SLOPES: tensor::Error = tensor::Error::Backward("xIELU without its slopes");

/// A dense MLP, plain or gated.
#[derive(Clone, Debug)]
pub struct Mlp {
    input: Input,
    norm: Option<Norm>,
    down: Linear,
    act: Activation,
    slopes: Option<Slopes>,
    multipliers: Option<[f64; 2]>,
    intermediate_size: u64,
    widened: bool,
    dropout: f64,
    limit: Option<f64>,
    /// How many standard deviations above its mean the gate of a position is cut.
    cut: Option<f64>,
}

/// The trained slopes of xIELU, each `1`, before the softplus that keeps them positive.
#[derive(Clone, Debug)]
struct Slopes {
    above: Tensor,
    below: Tensor,
}

#[derive(Clone, Debug)]
enum Input {
    Plain(Linear),
    Gated(Linear, Linear),
    GatedFused(Linear),
}

impl Mlp {
    /// An MLP around a residual stream of width `h`, in the current module.
    ///
    /// # Errors
    /// If a weight is too large to count.
    pub fn new(b: &Builder<'_>, spec: &MlpSpec, h: u64, layers: u64) -> Result<Self> {
        let f = spec.intermediate_size;
        let fan_in = Init::FanIn(h);
        let input = match &spec.input {
            MlpInput::Plain(up) => Input::Plain(Linear::columns(b, up, h, f, fan_in)?),
            MlpInput::Gated { gate, up } => {
                Input::Gated(Linear::columns(b, gate, h, f, fan_in)?, Linear::columns(b, up, h, f, fan_in)?)
            }
            MlpInput::GatedFused(both) => Input::GatedFused(Linear::columns(b, both, h, 2 * f, fan_in)?),
        };
        let slopes =
            (spec.act == Activation::Xielu).then(|| b.sharing(Share::Inside, || Slopes::new(b))).transpose()?;
        let norm = spec.norm.as_ref().map(|norm| Norm::named(b, norm, f)).transpose()?;
        let down = Linear::rows(b, &spec.down, f, h, Init::ScaledResidual { fan_in: f, layers })?;
        Ok(Self {
            input,
            norm,
            down,
            act: spec.act,
            slopes,
            multipliers: spec.multipliers,
            intermediate_size: f,
            widened: spec.widened,
            dropout: spec.dropout,
            limit: spec.limit,
            cut: spec.sparsity.filter(|&part| part > 0.0).map(quantile),
        })
    }

    /// The same with a branch beside its first map.
    #[must_use]
    pub fn with_branch(mut self, branch: Rc<Branch>) -> Self {
        let (Input::GatedFused(map) | Input::Gated(map, _) | Input::Plain(map)) = &mut self.input;
        *map = map.with_branch(branch);
        self
    }

    /// `rows.. h -> rows.. h`
    pub fn forward(&self, f: &Forward, x: &Tensor) -> Result<Tensor> {
        let out = self.unscaled(f, x)?;
        self.multipliers.map_or(Ok(out.clone()), |[_, scale]| out.mul_scalar(scale))
    }

    fn unscaled(&self, f: &Forward, x: &Tensor) -> Result<Tensor> {
        let x = &f.enter(x)?;
        let inner = match &self.input {
            Input::Plain(up) => {
                let up = up.forward(f, x)?;
                match &self.slopes {
                    Some(slopes) => slopes.bend(f, &up)?,
                    None => hf::activate(f, self.act, up)?,
                }
            }
            Input::Gated(gate, up) => {
                let mut gate = gate.forward(f, x)?;
                if let Some([scale, _]) = self.multipliers {
                    gate = gate.mul_scalar(scale)?;
                }
                if let Some(deviations) = self.cut {
                    gate = above(&gate, deviations)?;
                }
                if let Some(limit) = self.limit {
                    let (act, up) = (self.act, up.forward(f, x)?);
                    f.fused(&[gate, up], move |t| limited(act, &t[0], &t[1], limit))?
                } else if f.profile.is_hf() {
                    let gate = hf::activate(f, self.act, gate)?;
                    gate.mul(&up.forward(f, x)?)?
                } else {
                    let up = up.forward(f, x)?;
                    gated(self.act, &gate, &up)?
                }
            }
            Input::GatedFused(both) => {
                let both = both.forward(f, x)?;
                let halves = both.split(&[self.intermediate_size, self.intermediate_size], -1)?;
                drop(both);
                if f.profile.is_hf() {
                    // Phi-3 and GLM multiply the other way round, up * act(gate), and name the gate to the end.
                    let inner = halves[1].mul(&hf::activate(f, self.act, halves[0].clone())?)?;
                    return self.down.forward(f, &inner);
                }
                gated(self.act, &halves[0], &halves[1])?
            }
        };
        let inner = match self.down.dtype().filter(|_| self.widened && f.profile.is_hf()) {
            Some(dtype) => inner.to_dtype(dtype)?,
            None => inner,
        };
        let inner = match self.dropout {
            p if p > 0.0 && f.training && f.profile.is_hf() => inner.dropout_composed(p)?,
            p if p > 0.0 && f.training => inner.dropout(p)?,
            _ => inner,
        };
        match &self.norm {
            Some(norm) => self.down.forward(f, &norm.forward(f, &inner)?),
            None => self.down.forward(f, &inner),
        }
    }
}

/// What of each row is more than so many standard deviations above its mean: `rows.. f -> rows.. f`.
fn above(x: &Tensor, deviations: f64) -> Result<Tensor> {
    let mean = x.mean(&[-1], true)?;
    let centred = x.sub(&mean)?;
    let deviation = centred.pow_scalar(2.0)?.mean(&[-1], true)?.sqrt()?;
    centred.sub(&deviation.mul_scalar(deviations)?)?.relu()
}

/// The quantile of the standard normal distribution at `part`, which is above 0 and below 1.
///
/// The distribution function is `1/2 + density(x) (x + x^3/3 + x^5/(3 5) + ...)` (Abramowitz and Stegun, 26.2.11); it is
/// inverted by halving an interval.
fn quantile(part: f64) -> f64 {
    let below = |x: f64| {
        let density = (-x * x / 2.0).exp() / std::f64::consts::TAU.sqrt();
        let (mut term, mut sum) = (x, x);
        for i in 1..200 {
            term *= x * x / f64::from(2 * i + 1);
            sum += term;
        }
        0.5 + density * sum
    };
    let (mut low, mut high) = (-8.0, 8.0);
    for _ in 0..64 {
        let middle = f64::midpoint(low, high);
        if below(middle) < part { low = middle } else { high = middle }
    }
    f64::midpoint(low, high)
}

impl Slopes {
    /// The slope at zero.
    const BETA: f64 = 0.5;

    fn new(b: &Builder<'_>) -> Result<Self> {
        let _scope = b.runtime().scope("act_fn");
        // The reference starts both slopes at 0.8; the trained number is what softplus turns into them.
        let slope = |name, start: f64| b.param(name, &[1], ParamKind::Vector, Init::Constant(start.exp_m1().ln()));
        Ok(Self { above: slope("alpha_p", 0.8)?, below: slope("alpha_n", 0.8 - Self::BETA)? })
    }

    /// `rows.. f -> rows.. f`
    fn bend(&self, f: &Forward, x: &Tensor) -> Result<Tensor> {
        let _scope = f.runtime.scope("act_fn");
        let (above, below) = (f.weight(&self.above)?, f.weight(&self.below)?);
        f.fused(&[x.clone(), above, below], |t| xielu(&t[0], &t[1], &t[2]))
    }
}

/// xIELU in the steps of the reference.
fn xielu(x: &Tensor, above: &Tensor, below: &Tensor) -> Result<Tensor> {
    let above = above.softplus()?;
    let below = below.softplus()?.add_scalar(Slopes::BETA)?;
    let rt = x.runtime();
    let positive = rt.no_grad(|| x.greater(&rt.zeros(&[], x.dtype())?))?;
    let mut upper = above.mul(x)?;
    upper = upper.mul(x)?;
    upper = upper.add(&x.mul_scalar(Slopes::BETA)?)?;
    // Held below zero, where the exponential is not taken anyway, so that it cannot overflow.
    let mut lower = x.clamp(f64::NEG_INFINITY, -1e-6)?;
    lower = lower.exp()?;
    lower = lower.add_scalar(-1.0)?;
    lower = lower.sub(x)?;
    lower = lower.mul(&below)?;
    lower = lower.add(&x.mul_scalar(Slopes::BETA)?)?;
    positive.where_cond(&upper, &lower)
}

/// `act(min(gate, limit)) * up`, `up` between the limit and its negative.
pub(crate) fn limited(act: Activation, gate: &Tensor, up: &Tensor, limit: f64) -> Result<Tensor> {
    let gate = gate.clamp(f64::NEG_INFINITY, limit)?;
    let up = up.clamp(-limit, limit)?;
    gated(act, &gate, &up)
}

/// `act(gate) * up` in one kernel.
pub(crate) fn gated(act: Activation, gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    use tensor::ops::swiglu::Act;
    let kind = match act {
        Activation::Silu => Act::Silu,
        Activation::Gelu => Act::GeluErf,
        Activation::GeluTanh | Activation::GeluNew => Act::GeluTanh,
        Activation::Relu => Act::Relu,
        Activation::QuickGelu => return gate.mul(&gate.mul_scalar(1.702)?.sigmoid()?)?.mul(up),
        Activation::Tanh => return gate.tanh()?.mul(up),
        Activation::Sigmoid => return gate.sigmoid()?.mul(up),
        Activation::Relu2 => return gate.relu()?.pow_scalar(2.0)?.mul(up),
        Activation::Xielu => return Err(NO_SLOPES),
    };
    gate.gated(kind, up)
}
