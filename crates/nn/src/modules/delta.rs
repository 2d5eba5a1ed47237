//! Gated delta networks: linear attention in chunks, as transformers' own code computes it.

use super::{CausalConv, GatedNorm, Linear};
use crate::context::Forward;
use crate::param::{Builder, Init, ParamKind};
use crate::spec::{DeltaMaps, DeltaSpec, LinearSpec};
use std::rc::Rc;
use tensor::ops::chunk_scan::Chunks;
use tensor::{DType, Result, Tensor};

/// A gated delta network.
#[derive(Clone, Debug)]
pub struct Delta {
    spec: Rc<DeltaSpec>,
    maps: Vec<Linear>,
    /// Maps of the decays, in a module of their own where every channel has one.
    forget: Vec<Linear>,
    /// Bias of the time steps.
    dt_bias: Tensor,
    /// Logarithm of the decay rates.
    a_log: Tensor,
    conv: CausalConv,
    norm: GatedNorm,
    out: Linear,
}

/// What the maps make of the stream.
struct Made {
    /// Queries, keys and values side by side: `b s (q k v)`
    mixed: Tensor,
    /// `b s heads e`
    gate: Tensor,
    /// `b s heads`, before the sigmoid
    beta: Tensor,
    /// `b s heads`, or `b s (heads d)`, before the softplus
    decay: Tensor,
}

impl Delta {
    /// A network on a residual stream of width `h`, in the current module.
    ///
    /// # Errors
    /// If a weight is too large to count.
    pub fn new(b: &Builder<'_>, spec: &Rc<DeltaSpec>, h: u64, layers: u64) -> Result<Self> {
        let (keys, values, heads) =
            (spec.key_heads * spec.key_dim, spec.value_heads * spec.value_dim, spec.value_heads);
        let map = |name, from: u64, to: u64| Linear::new(b, &LinearSpec::new(name, false), from, to, Init::FanIn(from));
        let separate = || -> Result<Vec<Linear>> {
            Ok(vec![map("q_proj", h, keys)?, map("k_proj", h, keys)?, map("v_proj", h, values)?])
        };
        let mut forget = Vec::new();
        let (maps, dt_bias, a_log) = if spec.maps == DeltaMaps::PerChannel {
            let d = spec.key_dim;
            let mut maps = separate()?;
            maps.extend([map("b_proj", h, heads)?, map("g_a_proj", h, d)?, map("g_b_proj", d, values)?]);
            let _scope = b.runtime().scope("forget_gate");
            forget.extend([map("f_a_proj", h, d)?, map("f_b_proj", d, keys)?]);
            let bias = b.param_in("dt_bias", &[keys], ParamKind::Vector, Init::Zeros, DType::F32)?;
            (maps, bias, b.param("A_log", &[1, 1, heads, 1], ParamKind::Vector, Init::Zeros)?)
        } else {
            let maps = match spec.maps {
                DeltaMaps::Fused => {
                    vec![map("in_proj_qkvz", h, 2 * keys + 2 * values)?, map("in_proj_ba", h, 2 * heads)?]
                }
                DeltaMaps::Parts => vec![
                    map("in_proj_qkv", h, 2 * keys + values)?,
                    map("in_proj_z", h, values)?,
                    map("in_proj_b", h, heads)?,
                    map("in_proj_a", h, heads)?,
                ],
                DeltaMaps::Separate | DeltaMaps::PerChannel => {
                    let mut maps = separate()?;
                    maps.extend([map("g_proj", h, values)?, map("b_proj", h, heads)?, map("a_proj", h, heads)?]);
                    maps
                }
            };
            let bias = b.param("dt_bias", &[heads], ParamKind::Vector, Init::Ones)?;
            (maps, bias, b.param("A_log", &[heads], ParamKind::Vector, Init::Zeros)?)
        };
        Ok(Self {
            maps,
            forget,
            dt_bias,
            a_log,
            conv: CausalConv::new(b, &spec.conv, 2 * keys + values)?,
            norm: GatedNorm::new(b, &spec.norm, spec.value_dim)?,
            out: Linear::new(b, &spec.out, values, h, Init::ScaledResidual { fan_in: values, layers })?,
            spec: spec.clone(),
        })
    }

    /// `b s h -> b s h`
    pub fn forward(&self, f: &Forward, x: &Tensor) -> Result<Tensor> {
        let spec = &self.spec;
        let (b, s) = (x.size(0), x.size(1));
        let (keys, values, heads) =
            (spec.key_heads * spec.key_dim, spec.value_heads * spec.value_dim, spec.value_heads);
        let made = self.made(f, x)?;
        let mixed = self.conv.forward(f, &made.mixed.transpose(1, 2)?)?.transpose(1, 2)?;
        let parts = mixed.split(&[keys, keys, values], -1)?;
        drop(mixed);
        let cut = |t: &Tensor, heads: u64, d: u64| t.reshape(&[b, s, heads, d]);
        let mut beta = made.beta.sigmoid()?;
        if let Some(scale) = spec.beta_scale {
            beta = beta.mul_scalar(scale)?;
        }
        let rates = self.a_log.to_dtype(DType::F32)?.exp()?;
        let mut steps = made.decay.to_dtype(DType::F32)?.add(&self.dt_bias)?;
        if spec.maps == DeltaMaps::PerChannel {
            steps = steps.view(&[b, s, heads, spec.key_dim])?;
        }
        let decay = rates.neg()?.mul(&steps.softplus()?)?;
        drop(steps);
        let inputs = [
            cut(&parts[0], spec.key_heads, spec.key_dim)?,
            cut(&parts[1], spec.key_heads, spec.key_dim)?,
            cut(&parts[2], heads, spec.value_dim)?,
            beta,
            decay,
        ];
        drop(parts);
        let own = spec.clone();
        let read = f.fused(&inputs, move |t| rule(&own, t))?;
        let read = self.norm.forward(f, &read, &made.gate)?;
        self.out.forward(f, &read.reshape(&[b, s, values])?)
    }

    fn made(&self, f: &Forward, x: &Tensor) -> Result<Made> {
        let spec = &self.spec;
        let (b, s) = (x.size(0), x.size(1));
        let (groups, heads) = (spec.key_heads, spec.value_heads);
        let each = heads / groups;
        let mapped = |i: usize| self.maps[i].forward(f, x);
        let gate = |t: &Tensor| t.reshape(&[b, s, heads, spec.value_dim]);
        Ok(match spec.maps {
            DeltaMaps::Fused => {
                let (d, e) = (spec.key_dim, each * spec.value_dim);
                let parts = mapped(0)?.view(&[b, s, groups, 2 * d + 2 * e])?.split(&[d, d, e, e], -1)?;
                let both = mapped(1)?.view(&[b, s, groups, 2 * each])?.split(&[each, each], -1)?;
                let flat = |t: &Tensor| t.reshape(&[b, s, t.size(2) * t.size(3)]);
                Made {
                    mixed: Tensor::cat(&[&flat(&parts[0])?, &flat(&parts[1])?, &flat(&parts[2])?], -1)?,
                    gate: gate(&parts[3])?,
                    beta: flat(&both[0])?,
                    decay: flat(&both[1])?,
                }
            }
            DeltaMaps::Parts => {
                Made { mixed: mapped(0)?, gate: gate(&mapped(1)?)?, beta: mapped(2)?, decay: mapped(3)? }
            }
            DeltaMaps::Separate => Made {
                mixed: Tensor::cat(&[&mapped(0)?, &mapped(1)?, &mapped(2)?], -1)?,
                gate: gate(&mapped(3)?)?,
                beta: mapped(4)?,
                decay: mapped(5)?,
            },
            DeltaMaps::PerChannel => {
                let decay = {
                    let _scope = f.runtime.scope("forget_gate");
                    self.forget[1].forward(f, &self.forget[0].forward(f, x)?)?
                };
                let narrow = mapped(4)?;
                Made {
                    mixed: Tensor::cat(&[&mapped(0)?, &mapped(1)?, &mapped(2)?], -1)?,
                    gate: gate(&self.maps[5].forward(f, &narrow)?)?,
                    beta: mapped(3)?,
                    decay,
                }
            }
        })
    }
}

/// The rule in chunks.
///
/// # Shapes
/// queries and keys `b s k d`, values `b s v e`, strengths `b s v`, logarithms of the decays `b s v` or `b s v d` ->
/// `b s v e`
fn rule(spec: &DeltaSpec, inputs: &[Tensor]) -> Result<Tensor> {
    let [q, k, v, beta, decay] = inputs else {
        return Err(tensor::Error::Backward("a delta rule without its inputs"));
    };
    let dtype = q.dtype();
    let (b, s, heads, chunk) = (v.size(0), v.size(1), spec.value_heads, spec.chunk);
    let (d, e) = (spec.key_dim, spec.value_dim);
    let pad = s.next_multiple_of(chunk) - s;
    let (rows, chunks) = (b * heads, (s + pad) / chunk);
    let each = heads / spec.key_heads;
    let repeated = |t: &Tensor| {
        if each == 1 {
            return Ok(t.clone());
        }
        t.unsqueeze(3)?.expand(&[b, s, spec.key_heads, each, d])?.reshape(&[b, s, heads, d])
    };
    let wide = |t: &Tensor| t.transpose(1, 2)?.to_dtype(DType::F32)?.contiguous();
    // `b v s ..` with zeros behind the last position, cut into chunks: `(b v) n c ..`
    let cut = |t: &Tensor| -> Result<Tensor> {
        let rest = &t.shape()[3..];
        let padded = if pad == 0 {
            t.clone()
        } else {
            let shape: Vec<u64> = [b, heads, pad].into_iter().chain(rest.iter().copied()).collect();
            let zeros = t.runtime().no_grad(|| t.runtime().zeros(&shape, t.dtype()))?;
            Tensor::cat(&[t, &zeros], 2)?
        };
        let shape: Vec<u64> = [rows, chunks, chunk].into_iter().chain(rest.iter().copied()).collect();
        padded.reshape(&shape)
    };
    let q = cut(&unit(&wide(&repeated(q)?)?)?.mul_scalar(1.0 / (d as f64).sqrt())?)?; // r n c d
    let k = cut(&unit(&wide(&repeated(k)?)?)?)?;
    let beta = cut(&wide(beta)?)?.unsqueeze(-1)?; // r n c 1
    let v_beta = cut(&wide(v)?)?.mul(&beta)?; // r n c e
    let k_beta = k.mul(&beta)?;
    drop(beta);
    let summed = cut(&wide(decay)?)?.cumsum(2)?; // r n c, or r n c d
    let parts = if summed.rank() == 4 {
        per_channel(&q, &k, &k_beta, &v_beta, &summed)?
    } else {
        per_head(&q, &k, &k_beta, &v_beta, &summed)?
    };
    drop((q, k, k_beta, v_beta, summed));
    let read = parts.scan()?; // r n c e
    drop(parts);
    let read = read.view(&[b, heads, s + pad, e])?.narrow(2, 0, s)?;
    read.transpose(1, 2)?.to_dtype(dtype)?.contiguous()
}

/// Each head decays as one: scores are products, the system of equations is solved.
fn per_head(q: &Tensor, k: &Tensor, k_beta: &Tensor, v_beta: &Tensor, summed: &Tensor) -> Result<Chunks> {
    let (rt, c) = (q.runtime(), q.size(2));
    let upper = rt.no_grad(|| rt.ones(&[c, c], DType::Bool)?.triu(1))?;
    let pairs = summed.unsqueeze(3)?.sub(&summed.unsqueeze(2)?)?; // r n c c
    let pairs = pairs.masked_fill(&upper, f64::NEG_INFINITY)?.exp()?;
    let system = k_beta.matmul(&k.t()?)?.mul(&pairs)?;
    let a = q.matmul(&k.t()?)?.mul(&pairs)?;
    drop(pairs);
    let passed = summed.exp()?.unsqueeze(-1)?; // r n c 1
    let decayed = k_beta.mul(&passed)?;
    let u = v_beta.solve_unit_lower(&system)?;
    let w = decayed.solve_unit_lower(&system)?;
    let end = summed.narrow(2, c - 1, 1)?; // r n 1
    let left = end.sub(summed)?.exp()?.unsqueeze(-1)?;
    let g = end.exp()?.expand(&[q.size(0), q.size(1), q.size(3)])?;
    Ok(Chunks { q: q.mul(&passed)?, k: k.mul(&left)?, w, u, a, g })
}

/// Each channel decays for itself. transformers writes the scores as products of all pairs of positions with all channels
/// and sums over these; no kernel does so, and here they are one op.
fn per_channel(q: &Tensor, k: &Tensor, k_beta: &Tensor, v_beta: &Tensor, summed: &Tensor) -> Result<Chunks> {
    let (rows, n, c, d) = (q.size(0), q.size(1), q.size(2), q.size(3));
    let flat = |t: &Tensor| t.reshape(&[rows * n, c, d]);
    let back = |t: Tensor| t.view(&[rows, n, c, c]);
    let inverse = flat(k_beta)?.decayed_scores(&flat(k)?, &flat(summed)?)?.unit_lower_inverse()?;
    let inverse = back(inverse)?;
    let a = back(flat(q)?.decayed_scores(&flat(k)?, &flat(summed)?)?)?;
    let passed = summed.exp()?;
    let wide = |t: Tensor| t.to_dtype(DType::F32);
    let u = wide(inverse.matmul(v_beta)?)?;
    let w = wide(inverse.matmul(&k_beta.mul(&passed)?)?)?;
    let end = summed.narrow(2, c - 1, 1)?; // r n 1 d
    let left = end.sub(summed)?.exp()?;
    Ok(Chunks { q: q.mul(&passed)?, k: k.mul(&left)?, w, u, a, g: end.exp()?.squeeze(2)? })
}

/// Over its length.
fn unit(x: &Tensor) -> Result<Tensor> {
    let length = x.mul(x)?.sum(&[-1], true)?.add_scalar(1e-6)?.rsqrt()?;
    x.mul(&length)
}
