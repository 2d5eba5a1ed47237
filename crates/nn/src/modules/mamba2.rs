//! State spaces with one decay per head: Mamba 2, in the chunks in which transformers' own code computes them.

use super::{CausalConv, GatedNorm, Linear};
use crate::context::Forward;
use crate::param::{Builder, Init, ParamKind};
use crate::spec::{LinearSpec, Mamba2Spec};
use std::rc::Rc;
use tensor::einops::einsum;
use tensor::{DType, Result, Tensor};

/// A state space with one decay per head.
#[derive(Clone, Debug)]
pub struct Mamba2 {
    spec: Rc<Mamba2Spec>,
    into: Linear,
    conv: CausalConv,
    /// Bias of the time steps: `heads`.
    dt_bias: Tensor,
    /// Logarithm of the decay rates: `heads`.
    a_log: Tensor,
    /// Weight of the skip connection: `heads`.
    d: Tensor,
    norm: Option<GatedNorm>,
    out: Linear,
    /// What each output of the map in is multiplied with: `1 1 (inner channels heads)`.
    parts: Option<Tensor>,
}

impl Mamba2 {
    /// A state space on a residual stream of width `h`, in the current module.
    ///
    /// # Errors
    /// If a weight is too large to count.
    pub fn new(b: &Builder<'_>, spec: &Rc<Mamba2Spec>, h: u64, layers: u64) -> Result<Self> {
        let (inner, channels, heads) = (spec.inner(), spec.conv_channels(), spec.heads);
        let maps = spec.groups * spec.state;
        let parts = spec.multipliers.as_ref().map(|(_, parts)| {
            let widths = [inner, inner, maps, maps, heads];
            let values = || parts.iter().zip(widths).flat_map(|(p, n)| std::iter::repeat_n(*p, n as usize)).collect();
            b.buffer_with("mup_vector", &[1, 1, inner + channels + heads], b.dtype(), values)
        });
        let into = LinearSpec::new("in_proj", spec.bias);
        let out = LinearSpec::new("out_proj", spec.out_bias);
        Ok(Self {
            into: Linear::new(b, &into, h, inner + channels + heads, Init::FanIn(h))?,
            conv: CausalConv::new(b, &spec.conv, channels)?,
            dt_bias: b.param("dt_bias", &[heads], ParamKind::Vector, Init::Ones)?,
            a_log: b.param("A_log", &[heads], ParamKind::Vector, Init::LogOfPlace)?,
            d: b.param("D", &[heads], ParamKind::Vector, Init::Ones)?,
            norm: spec.norm.as_ref().map(|norm| GatedNorm::new(b, norm, inner)).transpose()?,
            out: Linear::new(b, &out, inner, h, Init::ScaledResidual { fan_in: inner, layers })?,
            parts: parts.transpose()?,
            spec: spec.clone(),
        })
    }

    /// `b s h -> b s h`
    pub fn forward(&self, f: &Forward, x: &Tensor) -> Result<Tensor> {
        let spec = &self.spec;
        let (b, s, inner) = (x.size(0), x.size(1), spec.inner());
        let maps = spec.groups * spec.state;
        let all = match &spec.multipliers {
            None => self.into.forward(f, x)?,
            Some((input, _)) => {
                let all = self.into.forward(f, &x.mul_scalar(*input)?)?;
                match &self.parts {
                    Some(parts) => all.mul(&f.weight(parts)?)?,
                    None => all,
                }
            }
        };
        let parts = all.split(&[inner, spec.conv_channels(), spec.heads], -1)?;
        drop(all);
        let (gate, steps) = (parts[0].clone(), parts[2].clone());
        let mixed = self.conv.forward(f, &parts[1].transpose(1, 2)?)?.transpose(1, 2)?; // b s channels
        drop(parts);
        let parts = mixed.split(&[inner, maps, maps], -1)?;
        drop(mixed);
        let grouped = |t: &Tensor| t.reshape(&[b, s, spec.groups, spec.state]);
        let inputs = [
            parts[0].reshape(&[b, s, spec.heads, spec.head_dim])?,
            steps,
            f.weight(&self.dt_bias)?,
            self.a_log.clone(),
            grouped(&parts[1])?,
            grouped(&parts[2])?,
            f.weight(&self.d)?,
        ];
        drop(parts);
        let own = spec.clone();
        let scanned = f.fused(&inputs, move |t| scan(&own, t))?;
        let scanned = scanned.reshape(&[b, s, inner])?;
        let out = match &self.norm {
            Some(norm) => norm.forward(f, &scanned, &gate)?,
            None => scanned.mul(&gate.silu()?)?,
        };
        self.out.forward(f, &out.to_dtype(f.activation_dtype(x))?)
    }
}

/// The recurrence in chunks, and the skip connection.
///
/// # Shapes
/// channels `b s h p`, time steps `b s h`, their bias `h`, `A_log` `h`, maps in and out of the state `b s g n`, `D` `h`
/// -> `b s h p` (f32)
fn scan(spec: &Mamba2Spec, inputs: &[Tensor]) -> Result<Tensor> {
    let [x, steps, bias, a_log, into, from, d] = inputs else {
        return Err(tensor::Error::Backward("a state space without its inputs"));
    };
    let (b, s, heads, p, n) = (x.size(0), x.size(1), spec.heads, spec.head_dim, spec.state);
    let chunk = spec.chunk;
    let pad = s.next_multiple_of(chunk) - s;
    let chunks = (s + pad) / chunk;
    let wide = DType::F32;
    let steps = steps.add(bias)?.softplus()?.clamp(spec.limits[0], spec.limits[1])?.to_dtype(wide)?; // b s h
    let rates = a_log.to_dtype(wide)?.exp()?.neg()?;
    let x = x.to_dtype(wide)?;
    let each_head = |t: &Tensor| {
        let each = t.to_dtype(wide)?.unsqueeze(3)?.expand(&[b, s, spec.groups, heads / spec.groups, n])?;
        each.reshape(&[b, s, heads, n])
    };
    let (into, from) = (each_head(into)?, each_head(from)?);
    let skip = d.unsqueeze(-1)?.mul(&padded(&x, pad)?)?;
    let cut = |t: &Tensor| -> Result<Tensor> {
        let shape: Vec<u64> = [b, chunks, chunk].into_iter().chain(t.shape()[2..].iter().copied()).collect();
        padded(t, pad)?.reshape(&shape)
    };
    let x = cut(&x.mul(&steps.unsqueeze(-1)?)?)?; // b c l h p
    let decay = cut(&rates.mul(&steps)?)?.permute(&[0, 3, 1, 2])?; // b h c l
    let (into, from) = (cut(&into)?, cut(&from)?); // b c l h n
    let summed = decay.cumsum(-1)?;

    // Within a chunk: as attention with decaying weights.
    let within = segment_sum(&decay)?.exp()?; // b h c l l
    drop(decay);
    let scores = einsum("b c l h n, b c s h n -> b c l s h", &[&from, &into])?;
    let weights = scores.mul(&within.permute(&[0, 2, 3, 4, 1])?)?;
    drop((scores, within));
    let diagonal = einsum("b c l s h, b c s h p -> b c l h p", &[&weights, &x])?;
    drop(weights);

    // The state each chunk adds, and from there the state before each chunk.
    let left = summed.narrow(-1, chunk - 1, 1)?.sub(&summed)?.exp()?; // b h c l
    let weighted = into.mul(&left.permute(&[0, 2, 3, 1])?.unsqueeze(-1)?)?;
    drop(left);
    let states = einsum("b c l h n, b c l h p -> b c h p n", &[&weighted, &x])?;
    drop(weighted);
    let zeros = states.runtime().no_grad(|| states.runtime().zeros(&[b, 1, heads, p, n], wide))?;
    let states = Tensor::cat(&[&zeros, &states], 1)?;
    let ends = summed.select(-1, chunk - 1)?; // b h c
    let zero = ends.runtime().no_grad(|| ends.runtime().zeros(&[b, heads, 1], wide))?;
    let between = segment_sum(&Tensor::cat(&[&zero, &ends], -1)?)?.exp()?.transpose(1, 3)?; // b z c h
    let before = einsum("b z c h, b z h p n -> b c h p n", &[&between, &states])?.narrow(1, 0, chunks)?;
    drop((states, between));
    let read = einsum("b c l h n, b c h p n -> b c l h p", &[&from, &before])?;
    drop(before);
    let off_diagonal = read.mul(&summed.exp()?.permute(&[0, 2, 3, 1])?.unsqueeze(-1)?)?;
    drop(read);
    let out = diagonal.add(&off_diagonal)?.contiguous()?.reshape(&[b, s + pad, heads, p])?.add(&skip)?;
    out.narrow(1, 0, s)
}

/// Zeros behind the last position: `b s ..` -> `b (s + pad) ..`
fn padded(x: &Tensor, pad: u64) -> Result<Tensor> {
    if pad == 0 {
        return Ok(x.clone());
    }
    let rt = x.runtime();
    let shape: Vec<u64> = [x.size(0), pad].into_iter().chain(x.shape()[2..].iter().copied()).collect();
    let zeros = rt.no_grad(|| rt.zeros(&shape, x.dtype()))?;
    Tensor::cat(&[x, &zeros], 1)
}

/// Sums of the elements behind `j` up to `i`, minus infinity where `j > i`: `.. l` -> `.. l l`
pub(super) fn segment_sum(x: &Tensor) -> Result<Tensor> {
    let (rt, l) = (x.runtime(), x.size(-1));
    let shape: Vec<u64> = x.shape().iter().copied().chain([l]).collect();
    let above = |diagonal: i64| rt.no_grad(|| rt.ones(&[l, l], DType::Bool)?.tril(diagonal)?.logical_not());
    let rows = x.unsqueeze(-1)?.expand(&shape)?.masked_fill(&above(-1)?, 0.0)?;
    rows.cumsum(-2)?.masked_fill(&above(0)?, f64::NEG_INFINITY)
}
