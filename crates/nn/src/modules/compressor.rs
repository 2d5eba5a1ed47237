//! Blocks of neighbouring positions compressed into one key each, and the indexer that chooses among them (DeepSeek-V4).

use super::compressed::{Turn, kept};
use super::{Linear, Norm, hf};
use crate::context::Forward;
use crate::param::{Builder, Init, ParamKind};
use crate::spec::{BlocksSpec, CompressedSpec, IndexerSpec, LinearSpec};
use tensor::ops::matmul::Mask;
use tensor::{DType, Result, Tensor};

/// Compresses each block into the sum of its positions, weighted channel by channel with a softmax over the block.
#[derive(Clone, Debug)]
struct Compressor {
    rate: u64,
    width: u64,
    /// Whether a block also holds the second map of the block before.
    overlaps: bool,
    keys: Linear,
    gate: Linear,
    bias: Tensor,
    norm: Norm,
}

impl Compressor {
    fn new(b: &Builder<'_>, spec: &CompressedSpec, blocks: &BlocksSpec, width: u64, h: u64) -> Result<Self> {
        let overlaps = blocks.indexer.is_some();
        let wide = if overlaps { 2 * width } else { width };
        let map = |name| Linear::new(b, &LinearSpec::new(name, false), h, wide, Init::FanIn(h));
        Ok(Self {
            rate: blocks.rate,
            width,
            overlaps,
            keys: map("kv_proj")?,
            gate: map("gate_proj")?,
            bias: b.param_in("position_bias", &[blocks.rate, wide], ParamKind::Vector, Init::Zeros, DType::F32)?,
            norm: Norm::new(b, "kv_norm", &spec.norm, &[width])?,
        })
    }

    /// One key for each complete block, turned by the place of its first position; those of the positions before in front.
    ///
    /// # Shapes
    /// `b s h -> b 1 n d`
    fn forward(&self, f: &Forward, turn: &Turn, x: &Tensor) -> Result<Tensor> {
        let made = self.made(f, turn, x)?;
        let before = f.cache.as_ref().map_or(0, |cache| cache.len()) / self.rate;
        if before == 0 {
            return made.ok_or(NO_BLOCKS);
        }
        let before = kept(f, &[x.size(0), 1, before, self.width], x.dtype())?;
        made.map_or(Ok(before.clone()), |made| Tensor::cat(&[&before, &made], 2))
    }

    /// Keys of the blocks that these positions complete, with those of the positions before that are in no block yet.
    fn made(&self, f: &Forward, turn: &Turn, x: &Tensor) -> Result<Option<Tensor>> {
        let pending = f.cache.as_ref().map_or(0, |cache| cache.len()) % self.rate;
        let (b, n) = (x.size(0), (pending + x.size(1)) / self.rate);
        let (mut keys, mut gate) = (self.keys.forward(f, x)?, self.gate.forward(f, x)?);
        if n == 0 {
            return Ok(None);
        }
        if pending > 0 {
            let before = kept(f, &[b, pending, keys.size(2)], keys.dtype())?;
            (keys, gate) = (Tensor::cat(&[&before, &keys], 1)?, Tensor::cat(&[&before, &gate], 1)?);
        }
        let this = self.clone();
        let summed = f.fused(&[keys, gate, self.bias.clone()], move |t| this.summed(t))?;
        let keys = self.norm.forward(f, &summed)?.view(&[b, 1, n, self.width])?;
        turn.every(self.rate, n)?.apply(f, &keys).map(Some)
    }

    /// `b s w`, `b s w`, `rate w -> b n d`
    fn summed(&self, tensors: &[Tensor]) -> Result<Tensor> {
        let [keys, gate, bias] = tensors else { return Err(NO_MAPS) };
        let (b, n, rate) = (keys.size(0), keys.size(1) / self.rate, self.rate);
        let blocks = |t: &Tensor| t.narrow(1, 0, n * rate)?.view(&[b, n, rate, t.size(2)]);
        let (mut keys, mut gate) = (blocks(keys)?, blocks(gate)?.add(bias)?);
        if self.overlaps {
            keys = self.overlapping(&keys, 0.0)?;
            gate = self.overlapping(&gate, f64::NEG_INFINITY)?;
        }
        let weights = gate.to_dtype(DType::F32)?.softmax(2)?.to_dtype(keys.dtype())?;
        keys.mul(&weights)?.sum(&[2], false)
    }

    /// The first map of the block before, then the second of the block itself; `empty` stands before the first block.
    ///
    /// # Shapes
    /// `b n rate (2 d) -> b n (2 rate) d`
    fn overlapping(&self, blocks: &Tensor, empty: f64) -> Result<Tensor> {
        let (b, n, rate) = (blocks.size(0), blocks.size(1), self.rate);
        let halves = blocks.split(&[self.width, self.width], -1)?;
        let rt = blocks.runtime();
        let first = rt.no_grad(|| rt.full(&[b, 1, rate, self.width], empty, blocks.dtype()))?;
        let before = if n > 1 { Tensor::cat(&[&first, &halves[0].narrow(1, 0, n - 1)?], 1)? } else { first };
        Tensor::cat(&[&before, &halves[1]], 2)
    }
}

/// The compressed blocks of one attention.
#[derive(Clone, Debug)]
pub struct Blocks {
    spec: BlocksSpec,
    compressor: Compressor,
    indexer: Option<Box<Indexer>>,
}

/// Small heads on compressed blocks of their own, which score blocks for every query. It runs without gradients.
#[derive(Clone, Debug)]
struct Indexer {
    spec: IndexerSpec,
    compressor: Compressor,
    queries: Linear,
    weights: Linear,
}

impl Blocks {
    /// Blocks of a stream of width `h`, in the current module.
    ///
    /// # Errors
    /// If a weight is too large to count.
    pub fn new(b: &Builder<'_>, spec: &CompressedSpec, blocks: &BlocksSpec, h: u64) -> Result<Self> {
        let _scope = b.runtime().scope("compressor");
        let compressor = Compressor::new(b, spec, blocks, spec.head_dim, h)?;
        let indexer = |indexer: &IndexerSpec| -> Result<Box<Indexer>> {
            let _scope = b.runtime().scope("indexer");
            let map = |name, from, to| Linear::new(b, &LinearSpec::new(name, false), from, to, Init::FanIn(from));
            let compressor = Compressor::new(b, spec, blocks, indexer.head_dim, h)?;
            let queries = map("q_b_proj", spec.q_rank, indexer.heads * indexer.head_dim)?;
            let _scorer = b.runtime().scope("scorer");
            let weights = map("weights_proj", h, indexer.heads)?;
            Ok(Box::new(Indexer { spec: indexer.clone(), compressor, queries, weights }))
        };
        let indexer = blocks.indexer.as_ref().map(indexer).transpose()?;
        Ok(Self { spec: blocks.clone(), compressor, indexer })
    }

    /// One key for each block, and what is added to the scores of each query so that it sees only blocks that are over, and
    /// of those the chosen ones; `None` where the text is shorter than a block.
    ///
    /// # Shapes
    /// stream `b s h`, compressed queries `b s rank` -> `b 1 n d`, `1 1 s n` or `b 1 s n`
    ///
    /// # Errors
    /// If shapes do not fit.
    pub fn forward(
        &self,
        f: &Forward,
        turn: &Turn,
        x: &Tensor,
        compressed: &Tensor,
    ) -> Result<Option<(Tensor, Tensor)>> {
        let (s, past) = (x.size(1), f.cache.as_ref().map_or(0, |cache| cache.len()));
        let n = self.spec.count(past + s);
        if n == 0 {
            return Ok(None);
        }
        let _scope = f.runtime.scope("compressor");
        let keys = self.compressor.forward(f, turn, x)?;
        let over = f.runtime.no_grad(|| over(f, past, s, n, self.spec.rate))?; // s n
        let rt = &f.runtime;
        let dtype = x.dtype();
        let Some(indexer) = &self.indexer else {
            let mask = f.shared("blocks that are over", || {
                rt.no_grad(|| {
                    let (zero, low) = (rt.zeros(&[], dtype)?, rt.full(&[], hf::LOW, dtype)?);
                    over.where_cond(&zero, &low)?.view(&[1, 1, s, n])
                })
            })?;
            return Ok(Some((keys, mask)));
        };
        let mask = rt.no_grad(|| {
            let chosen = indexer.choose(f, turn, x, compressed, &over)?; // b s k
            let low = rt.full(&[x.size(0), s, n], hf::LOW, dtype)?;
            let zero = rt.zeros(&[], dtype)?.expand(chosen.shape())?;
            let open = low.scatter(-1, &chosen, &zero)?;
            // Early queries choose among blocks that are not over, too.
            open.masked_fill(&over.logical_not()?, hf::LOW)?.unsqueeze(1)
        })?;
        Ok(Some((keys, mask)))
    }
}

impl Indexer {
    /// The blocks of most score for each query: `b s k` (i64).
    fn choose(&self, f: &Forward, turn: &Turn, x: &Tensor, compressed: &Tensor, over: &Tensor) -> Result<Tensor> {
        let _scope = f.runtime.scope("indexer");
        let (b, s, a, d) = (x.size(0), x.size(1), self.spec.heads, self.spec.head_dim);
        let keys = self.compressor.forward(f, turn, x)?.to_dtype(DType::F32)?; // b 1 n d
        let n = keys.size(2);
        let q = self.queries.forward(f, compressed)?.view(&[b, s, a, d])?.transpose(1, 2)?;
        let q = turn.apply(f, &q)?.transpose(1, 2)?.to_dtype(DType::F32)?; // b s a d
        let _scorer = f.runtime.scope("scorer");
        let past = f.cache.as_ref().map_or(0, |cache| cache.len());
        let all = BlocksSpec { rate: self.compressor.rate, indexer: None };
        let needed = Mask { pairs: all.pairs(past, s) * a, square: s * a * n };
        // Heads of one position are rows beside each other.
        let rows = q.reshape(&[b, 1, s * a, d])?;
        let scores = hf::matmul(f, &rows, &keys.t()?, needed)?.view(&[b, s, a, n])?;
        let scores = scores.relu()?.mul_scalar(1.0 / (d as f64).sqrt())?;
        let weights = self.weights.forward(f, x)?.to_dtype(DType::F32)?.mul_scalar(1.0 / (a as f64).sqrt())?;
        let summed = scores.mul(&weights.unsqueeze(-1)?)?.sum(&[2], false)?; // b s n
        let open = summed.masked_fill(&over.logical_not()?, f64::NEG_INFINITY)?;
        Ok(open.topk(self.spec.top_k.min(n), -1)?.1)
    }
}

/// Which of `n` blocks of `rate` positions are over at each of `s` positions behind `past`, that is end with it or before:
/// `s n` (bool).
fn over(f: &Forward, past: u64, s: u64, n: u64, rate: u64) -> Result<Tensor> {
    let rt = &f.runtime;
    let positions = rt.arange(s, past as f64, 1.0, DType::I64)?.unsqueeze(1)?;
    let ends = rt.arange(n, rate as f64 - 1.0, rate as f64, DType::I64)?;
    ends.less_equal(&positions)
}

/// Blocks are asked for where there are some.
const NO_BLOCKS: tensor::Error = tensor::Error::Backward("compressed blocks of too short a text");

/// The region of a compressor gets three tensors.
const NO_MAPS: tensor::Error = tensor::Error::Backward("a compressor without its maps");
