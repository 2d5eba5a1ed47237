//! Lightning attention (`MiniMax`), in the blocks in which transformers computes it.

use super::{Linear, Norm, hf, written_out};
use crate::context::Forward;
use crate::param::{Builder, Init};
use crate::spec::{LightningSpec, LinearSpec};
use std::rc::Rc;
use tensor::ops::matmul::Mask;
use tensor::{Result, Tensor};

/// Linear attention whose heads decay at fixed rates.
#[derive(Clone, Debug)]
pub struct Lightning {
    spec: Rc<LightningSpec>,
    qkv: Linear,
    norm: Norm,
    gate: Linear,
    out: Linear,
    decays: Decays,
}

/// Tables of the decays within a block.
#[derive(Clone, Debug)]
struct Decays {
    /// `a 1 1`
    slope: Tensor,
    /// From the start of the block: `a c 1`
    query: Tensor,
    /// To the end of the block: `a c 1`
    key: Tensor,
    /// Between positions of the block: `1 a c c`
    pairs: Tensor,
}

impl Lightning {
    /// Attention on a residual stream of width `h`, in the current module.
    ///
    /// # Errors
    /// If a weight is too large to count.
    pub fn new(b: &Builder<'_>, spec: &LightningSpec, h: u64, layers: u64) -> Result<Self> {
        let width = spec.heads * spec.head_dim;
        let map = |name, from, to, init| Linear::new(b, &LinearSpec::new(name, false), from, to, init);
        Ok(Self {
            decays: Decays::new(b, spec)?,
            norm: Norm::new(b, "norm", &spec.norm, &[width])?,
            qkv: map("qkv_proj", h, 3 * width, Init::FanIn(h))?,
            out: map("out_proj", width, h, Init::ScaledResidual { fan_in: width, layers })?,
            gate: map("output_gate", h, width, Init::FanIn(h))?,
            spec: Rc::new(spec.clone()),
        })
    }

    /// `b s h -> b s h`
    pub fn forward(&self, f: &Forward, x: &Tensor) -> Result<Tensor> {
        let (b, s, a, d) = (x.size(0), x.size(1), self.spec.heads, self.spec.head_dim);
        let all = hf::activate(f, self.spec.act, self.qkv.forward(f, x)?)?;
        let parts = all.reshape(&[b, s, a, 3 * d])?.split(&[d, d, d], -1)?;
        drop(all);
        let heads = |i: usize| parts[i].transpose(1, 2);
        let inputs = [heads(0)?, heads(1)?, heads(2)?]; // b a s d
        drop(parts);
        let (this, forward) = (self.clone(), f.clone());
        let read = f.fused(&inputs, move |t| this.blocks(&forward, t))?;
        let read = read.transpose(1, 2)?.reshape(&[b, s, a * d])?;
        let read = self.norm.forward(f, &read)?;
        let open = self.gate.forward(f, x)?.sigmoid()?;
        self.out.forward(f, &open.mul(&read)?)
    }

    /// Block by block, the state of all before beside the scores within.
    ///
    /// # Shapes
    /// `b a s d` three times -> `b a s d`
    fn blocks(&self, f: &Forward, inputs: &[Tensor]) -> Result<Tensor> {
        let [q, k, v] = inputs else { return Err(tensor::Error::Backward("linear attention without its inputs")) };
        let (b, a, s, d, c) = (q.size(0), q.size(1), q.size(2), q.size(3), self.spec.block);
        let dtype = q.dtype();
        let table = |t: &Tensor| f.weight(t);
        let (slope, query, key, pairs) = (
            table(&self.decays.slope)?,
            table(&self.decays.query)?,
            table(&self.decays.key)?,
            table(&self.decays.pairs)?,
        );
        let low = |t: &Tensor| t.to_dtype(dtype);
        written_out("lightning_attention", "blocks", s.div_ceil(c.max(1)))?;
        let mut state = f.runtime.no_grad(|| f.runtime.zeros(&[b, a, d, d], dtype))?;
        let mut read = Vec::new();
        for start in (0..s).step_by(usize::try_from(c).unwrap_or(usize::MAX)) {
            let n = c.min(s - start);
            let cut = |t: &Tensor| t.narrow(2, start, n);
            let (q, k, v) = (cut(q)?, cut(k)?, cut(v)?);
            let needed = Mask { pairs: n * (n + 1) / 2, square: n * n };
            let scores = hf::matmul(f, &q, &k.t()?, needed)?;
            let weights = scores.mul(&pairs.narrow(2, 0, n)?.narrow(3, 0, n)?)?;
            drop(scores);
            let within = hf::matmul(f, &low(&weights)?, &v, needed)?;
            drop(weights);
            let before = low(&q.mul(&query.narrow(1, 0, n)?)?)?.matmul(&low(&state)?)?;
            read.push(low(&before.add(&within)?)?);
            let weighted = low(&k.mul(&key.narrow(1, c - n, n)?)?)?;
            let added = weighted.t()?.matmul(&v)?;
            let passed = f.runtime.no_grad(|| slope.mul_scalar(-(n as f64))?.exp())?;
            state = state.mul(&passed)?.add(&added)?;
        }
        Tensor::cat(&read.iter().collect::<Vec<_>>(), 2)
    }
}

impl Decays {
    fn new(b: &Builder<'_>, spec: &LightningSpec) -> Result<Self> {
        let (a, c) = (spec.heads, spec.block);
        // Rates fall by equal factors from head to head.
        let rate = move |head: u64| (-8.0 / a as f64 * (head + 1) as f64).exp2() * spec.slope;
        let table = |name, shape: &[u64], values: &dyn Fn() -> Vec<f64>| b.buffer_with(name, shape, b.dtype(), values);
        let along = |power: &dyn Fn(u64) -> f64| {
            (0..a)
                .flat_map(|head| (1..=c).map(move |i| (head, i)))
                .map(|(head, i)| (-rate(head) * power(i)).exp())
                .collect()
        };
        let pair = |head: u64, i: u64, j: u64| if j > i { 0.0 } else { (-rate(head) * (i - j) as f64).exp() };
        Ok(Self {
            slope: table("slope_rate", &[a, 1, 1], &|| (0..a).map(rate).collect())?,
            query: table("query_decay", &[a, c, 1], &|| along(&|i| i as f64))?,
            key: table("key_decay", &[a, c, 1], &|| along(&|i| (c - i) as f64))?,
            pairs: table("diagonal_decay", &[1, a, c, c], &|| {
                (0..a * c * c).map(|at| pair(at / (c * c), at / c % c, at % c)).collect()
            })?,
        })
    }
}
