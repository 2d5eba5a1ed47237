//! Selective state spaces: Mamba, as transformers' own code runs it where no kernel is installed.

use super::{CausalConv, Linear, Norm, written_out};
use crate::context::Forward;
use crate::param::{Builder, Init, ParamKind};
use crate::spec::{LinearSpec, MambaNorms, MambaSpec, NormSpec};
use std::rc::Rc;
use tensor::{DType, Result, Tensor};

/// A time step of 0.01 before the softplus that keeps it positive.
const TIME_STEP: f64 = -4.600_166;

/// A selective state space.
#[derive(Clone, Debug)]
pub struct Mamba {
    spec: Rc<MambaSpec>,
    into: Linear,
    conv: CausalConv,
    parameters: Parameters,
    /// On time steps and both maps of the state.
    norms: Option<[Norm; 3]>,
    /// Logarithm of the decay rates: `c n`, or `heads c/heads n`.
    a_log: Tensor,
    /// Weight of the skip connection: `c`, or `heads c/heads`.
    d: Tensor,
    out: Linear,
}

/// The maps from channels to time steps and to both maps of the state.
#[derive(Clone, Debug)]
enum Parameters {
    /// One for all channels: `x_proj`, weight and bias of `dt_proj`.
    Shared(Linear, Tensor, Tensor),
    /// One for each head, in tensors of three dimensions.
    PerHead(Tensor, Tensor, Tensor),
}

impl Mamba {
    /// A state space on a residual stream of width `h`, in the current module.
    ///
    /// # Errors
    /// If a weight is too large to count.
    pub fn new(b: &Builder<'_>, spec: &Rc<MambaSpec>, h: u64, layers: u64) -> Result<Self> {
        let (c, n, r) = (spec.inner, spec.state, spec.rank);
        let into = Linear::new(b, &LinearSpec::new("in_proj", spec.bias), h, 2 * c, Init::FanIn(h))?;
        let conv = CausalConv::new(b, &spec.conv, c)?;
        let (fan_in, start) = (Init::FanIn(c), Init::Constant(TIME_STEP));
        let (parameters, per_head) = match spec.heads {
            None => {
                let x = Linear::new(b, &LinearSpec::new("x_proj", false), c, r + 2 * n, fan_in)?;
                let _scope = b.runtime().scope("dt_proj");
                let weight = b.param("weight", &[c, r], ParamKind::Matrix, Init::FanIn(r))?;
                (Parameters::Shared(x, weight, b.param("bias", &[c], ParamKind::Vector, start)?), vec![c])
            }
            Some(heads) => {
                written_out("selective_scan", "heads", heads)?;
                let width = c / heads;
                let x = b.param("x_proj_weight", &[heads, r + 2 * n, width], ParamKind::Matrix, fan_in)?;
                let dt = b.param("dt_proj_weight", &[heads, width, r], ParamKind::Matrix, Init::FanIn(r))?;
                let bias = b.param("dt_proj_bias", &[heads, width], ParamKind::Vector, start)?;
                (Parameters::PerHead(x, dt, bias), vec![heads, width])
            }
        };
        let states: Vec<u64> = per_head.iter().copied().chain([n]).collect();
        let norms = |norm: &NormSpec| -> Result<[Norm; 3]> {
            let one = |name, width| Norm::new(b, name, norm, &[width]);
            Ok([one("dt_layernorm", r)?, one("b_layernorm", n)?, one("c_layernorm", n)?])
        };
        Ok(Self {
            into,
            conv,
            parameters,
            norms: match &spec.norms {
                MambaNorms::None => None,
                MambaNorms::Plain(norm) | MambaNorms::Weighted(norm) => Some(norms(norm)?),
            },
            a_log: b.param("A_log", &states, ParamKind::Matrix, Init::LogOfPlace)?,
            d: b.param("D", &per_head, ParamKind::Vector, Init::Ones)?,
            out: Linear::new(
                b,
                &LinearSpec::new("out_proj", spec.bias),
                c,
                h,
                Init::ScaledResidual { fan_in: c, layers },
            )?,
            spec: spec.clone(),
        })
    }

    /// `b s h -> b s h`
    pub fn forward(&self, f: &Forward, x: &Tensor) -> Result<Tensor> {
        let (b, s, c) = (x.size(0), x.size(1), self.spec.inner);
        let both = self.into.forward(f, x)?.transpose(1, 2)?; // b 2c s
        let (hidden, gate) = if self.spec.heads.is_some() {
            // The channels of both lie side by side.
            let pairs = both.view(&[b, c, 2, s])?;
            (pairs.select(2, 0)?.contiguous()?, pairs.select(2, 1)?)
        } else {
            (both.narrow(1, 0, c)?, both.narrow(1, c, c)?)
        };
        drop(both);
        let hidden = self.conv.forward(f, &hidden)?; // b c s
        let scanned = match &self.parameters {
            Parameters::Shared(x_proj, dt, bias) => {
                let parameters = x_proj.forward(f, &hidden.transpose(1, 2)?)?; // b s (r n n)
                let [steps, into, from] = self.parts(f, &parameters)?;
                drop(parameters);
                let steps = steps.linear(&f.weight(dt)?, None)?.transpose(1, 2)?; // b c s
                f.fused(&[hidden, steps, bias.clone(), self.a_log.clone(), into, from, self.d.clone(), gate], scan)?
            }
            Parameters::PerHead(x_proj, dt, bias) => {
                let (x_proj, dt) = (f.weight(x_proj)?, f.weight(dt)?);
                let heads = x_proj.size(0);
                let width = c / heads;
                let cut = |t: &Tensor, head: u64| t.narrow(1, head * width, width);
                let one = |head: u64| -> Result<Tensor> {
                    let hidden = cut(&hidden, head)?;
                    let parameters = hidden.transpose(1, 2)?.linear(&x_proj.select(0, head)?, None)?;
                    let [steps, into, from] = self.parts(f, &parameters)?;
                    drop(parameters);
                    let steps = steps.linear(&dt.select(0, head)?, None)?.transpose(1, 2)?;
                    let own = |t: &Tensor| t.select(0, head);
                    let (bias, a_log, d) = (own(bias)?, own(&self.a_log)?, own(&self.d)?);
                    f.fused(&[hidden, steps, bias, a_log, into, from, d, cut(&gate, head)?], scan)
                };
                let parts = (0..heads).map(one).collect::<Result<Vec<_>>>()?;
                Tensor::cat(&parts.iter().collect::<Vec<_>>(), 1)?
            }
        };
        self.out.forward(f, &scanned.transpose(1, 2)?.to_dtype(f.activation_dtype(x))?)
    }

    /// Time steps and both maps of the state, through their norms.
    ///
    /// # Shapes
    /// `b s (r n n) -> b s r`, `b s n`, `b s n`
    fn parts(&self, f: &Forward, parameters: &Tensor) -> Result<[Tensor; 3]> {
        let (r, n) = (self.spec.rank, self.spec.state);
        let parts = parameters.split(&[r, n, n], -1)?;
        let normed = |i: usize| match &self.norms {
            Some(norms) => norms[i].forward(f, &parts[i]),
            None => Ok(parts[i].clone()),
        };
        Ok([normed(0)?, normed(1)?, normed(2)?])
    }
}

/// The recurrence over time, skip connection and gate.
///
/// # Shapes
/// channels `b c s`, time steps `b c s`, their bias `c`, `A_log` `c n`, maps in and out of the state `b s n`, `D` `c`,
/// gate `b c s` -> `b c s`
fn scan(inputs: &[Tensor]) -> Result<Tensor> {
    let [hidden, steps, bias, a_log, into, from, d, gate] = inputs else {
        return Err(tensor::Error::Backward("a state space without its inputs"));
    };
    let wide = DType::F32;
    let column = |t: &Tensor| t.to_dtype(wide)?.unsqueeze(-1);
    let steps = steps.add(&column(bias)?)?.softplus()?; // b c s
    let rates = a_log.to_dtype(wide)?.exp()?.neg()?; // c n
    let each = steps.unsqueeze(-1)?;
    let decay = rates.unsqueeze(1)?.mul(&each)?.exp()?; // b c s n
    let input = each.mul(&into.to_dtype(wide)?.unsqueeze(1)?)?.mul(&hidden.to_dtype(wide)?.unsqueeze(-1)?)?;
    drop((steps, each));
    let states = decay.linear_scan(&input, 2)?;
    drop((decay, input));
    // At each step one product of the states of all channels with the map out.
    let read = states.transpose(1, 2)?.to_dtype(from.dtype())?.matmul(&from.unsqueeze(-1)?)?; // b s c 1
    drop(states);
    let out = read.squeeze(-1)?.transpose(1, 2)?.add(&hidden.mul(&column(d)?)?)?;
    out.mul(&gate.silu()?)
}
