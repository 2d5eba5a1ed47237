//! Dense feed-forward parts.

use super::Linear;
use super::hf;
use crate::context::Forward;
use crate::param::{Builder, Init};
use crate::spec::{Activation, MlpInput, MlpSpec};
use tensor::{Result, Tensor};

/// A dense MLP, plain or gated.
#[derive(Clone, Debug)]
pub struct Mlp {
    input: Input,
    down: Linear,
    act: Activation,
    intermediate_size: u64,
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
            MlpInput::Plain(up) => Input::Plain(Linear::new(b, up, h, f, fan_in)?),
            MlpInput::Gated { gate, up } => {
                Input::Gated(Linear::new(b, gate, h, f, fan_in)?, Linear::new(b, up, h, f, fan_in)?)
            }
            MlpInput::GatedFused(both) => Input::GatedFused(Linear::new(b, both, h, 2 * f, fan_in)?),
        };
        let down = Linear::new(b, &spec.down, f, h, Init::ScaledResidual { fan_in: f, layers })?;
        Ok(Self { input, down, act: spec.act, intermediate_size: f })
    }

    /// `rows.. h -> rows.. h`
    pub fn forward(&self, f: &Forward, x: &Tensor) -> Result<Tensor> {
        let inner = match &self.input {
            Input::Plain(up) => {
                let up = up.forward(f, x)?;
                hf::activate(f, self.act, up)?
            }
            Input::Gated(gate, up) => {
                let gate = gate.forward(f, x)?;
                if f.profile.is_hf() {
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
        self.down.forward(f, &inner)
    }
}

/// `act(gate) * up` in one kernel.
pub(crate) fn gated(act: Activation, gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    use tensor::ops::swiglu::Act;
    let kind = match act {
        Activation::Silu => Act::Silu,
        Activation::Gelu => Act::GeluErf,
        Activation::GeluTanh | Activation::GeluNew => Act::GeluTanh,
        Activation::Relu => Act::Relu,
        Activation::Relu2 => return gate.relu()?.pow_scalar(2.0)?.mul(up),
    };
    gate.gated(kind, up)
}
