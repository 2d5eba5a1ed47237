//! Gated linear recurrent units (Griffin, Recurrent Gemma).

use super::{CausalConv, Linear, hf};
use crate::context::Forward;
use crate::param::{Builder, Init, ParamKind};
use crate::spec::{LinearSpec, RgLruSpec};
use std::rc::Rc;
use tensor::{DType, Result, Tensor};

/// Smallest square of the factor of an input whose root is taken: where its slope is 1000, the bound of the reference.
const LEAST: f64 = 2.5e-7;

/// A recurrence between two maps, gated by a second branch.
#[derive(Clone, Debug)]
pub struct RgLru {
    spec: Rc<RgLruSpec>,
    gate: Linear,
    into: Linear,
    conv: CausalConv,
    /// Decay of every channel, before its softplus.
    decay: Tensor,
    /// Weight `heads w w` and bias `heads w` of the gates of the input and of the recurrence.
    gates: [(Tensor, Tensor); 2],
    out: Linear,
}

impl RgLru {
    /// A recurrence on a residual stream of width `h`, in the current module.
    ///
    /// # Errors
    /// If a weight is too large to count.
    pub fn new(b: &Builder<'_>, spec: &RgLruSpec, h: u64, layers: u64) -> Result<Self> {
        let (width, heads) = (spec.width, spec.heads);
        let map = |name, from, to, init| Linear::new(b, &LinearSpec::new(name, true), from, to, init);
        let gate = map("linear_y", h, width, Init::FanIn(h))?;
        let into = map("linear_x", h, width, Init::FanIn(h))?;
        let out = map("linear_out", width, h, Init::ScaledResidual { fan_in: width, layers })?;
        let conv = CausalConv::new(b, &spec.conv, width)?;
        let _scope = b.runtime().scope("rg_lru");
        let part = width / heads;
        let gates = |weight, bias| -> Result<(Tensor, Tensor)> {
            let weight = b.param(weight, &[heads, part, part], ParamKind::Matrix, Init::FanIn(part))?;
            Ok((weight, b.param(bias, &[heads, part], ParamKind::Vector, Init::Zeros)?))
        };
        Ok(Self {
            decay: b.param("recurrent_param", &[width], ParamKind::Vector, Init::Zeros)?,
            gates: [
                gates("input_gate_weight", "input_gate_bias")?,
                gates("recurrent_gate_weight", "recurrent_gate_bias")?,
            ],
            gate,
            into,
            conv,
            out,
            spec: Rc::new(spec.clone()),
        })
    }

    /// `b s h -> b s h`
    pub fn forward(&self, f: &Forward, x: &Tensor) -> Result<Tensor> {
        let gate = hf::activate(f, self.spec.act, self.gate.forward(f, x)?)?;
        let mixed = self.conv.forward(f, &self.into.forward(f, x)?.transpose(1, 2)?)?.transpose(1, 2)?;
        let states = {
            let _scope = f.runtime.scope("rg_lru");
            self.recur(f, &mixed)?
        };
        self.out.forward(f, &states.mul(&gate)?)
    }

    /// `b s w -> b s w`
    fn recur(&self, f: &Forward, x: &Tensor) -> Result<Tensor> {
        let (b, s, width, heads) = (x.size(0), x.size(1), self.spec.width, self.spec.heads);
        let part = width / heads;
        let rows = x.reshape(&[b * s, heads, part])?.permute(&[1, 0, 2])?; // heads (b s) w/heads
        let open = |(weight, bias): &(Tensor, Tensor)| {
            let sum = rows.matmul(&f.weight(weight)?)?.add(&f.weight(bias)?.unsqueeze(1)?)?;
            sum.transpose(0, 1)?.reshape(&[b, s, width])?.sigmoid()
        };
        let (input, recurrent) = (open(&self.gates[0])?, open(&self.gates[1])?);
        let logarithm = recurrent.mul_scalar(-8.0)?.mul(&f.weight(&self.decay)?.softplus()?)?;
        let decay = logarithm.exp()?;
        let square = logarithm.mul_scalar(2.0)?.exp()?;
        let factor = square.neg()?.add_scalar(1.0)?.clamp(LEAST, f64::INFINITY)?.sqrt()?;
        // The first position starts the state and is taken whole.
        let rt = &f.runtime;
        let (first, one) = rt.no_grad(|| -> Result<(Tensor, Tensor)> {
            let at = rt.arange(s, 0.0, 1.0, DType::I64)?.view(&[1, s, 1])?;
            Ok((at.equal(&rt.zeros(&[], DType::I64)?)?, rt.ones(&[], factor.dtype())?))
        })?;
        let factor = first.where_cond(&one, &factor)?;
        let scaled = x.mul(&input)?.mul(&factor.to_dtype(x.dtype())?)?;
        decay.to_dtype(DType::F32)?.linear_scan(&scaled.to_dtype(DType::F32)?, 1)?.to_dtype(x.dtype())
    }
}
