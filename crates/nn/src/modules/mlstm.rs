//! A matrix memory with exponential gates (xLSTM): whole chunks at once, the state of all before beside the scores within,
//! and the rest of a text step by step, as transformers computes them.

use super::{Linear, hf, written_out};
use crate::context::Forward;
use crate::param::{Builder, Init, ParamKind};
use crate::spec::{LinearSpec, MlstmSpec};
use std::rc::Rc;
use tensor::ops::matmul::Mask;
use tensor::{DType, Result, Tensor};

/// The layer.
#[derive(Clone, Debug)]
pub struct Mlstm {
    spec: Rc<MlstmSpec>,
    /// Queries, keys, values, output gate.
    maps: [Linear; 4],
    /// Input and forget gates, one number for each head.
    gates: [Linear; 2],
    norm: Tensor,
    out: Linear,
}

/// What is remembered of the positions before.
struct State {
    /// `b a dk dv`
    memory: Tensor,
    /// `b a dk 1`
    keys: Tensor,
}

/// Queries, keys and values `b a s d`, logarithms of the gates `b a s`, and the least denominator `b a 1 1`.
struct Inputs<'a> {
    q: &'a Tensor,
    k: &'a Tensor,
    v: &'a Tensor,
    input: Tensor,
    forget: Tensor,
    least: Tensor,
}

impl Mlstm {
    /// A layer on a residual stream of width `h`, in the current module.
    ///
    /// # Errors
    /// If a weight is too large to count.
    pub fn new(b: &Builder<'_>, spec: &MlstmSpec, h: u64, layers: u64) -> Result<Self> {
        let map = |name, bias, to| Linear::new(b, &LinearSpec::new(name, bias), h, to, Init::FanIn(h));
        let norm = {
            let _scope = b.runtime().scope("multihead_norm");
            b.param("weight", &[spec.value_width], ParamKind::Vector, Init::Ones)?
        };
        let out = Init::ScaledResidual { fan_in: spec.value_width, layers };
        Ok(Self {
            maps: [
                map("q", false, spec.key_width)?,
                map("k", false, spec.key_width)?,
                map("v", false, spec.value_width)?,
                map("ogate_preact", false, spec.value_width)?,
            ],
            gates: [map("igate_preact", true, spec.heads)?, map("fgate_preact", true, spec.heads)?],
            norm,
            out: Linear::new(b, &LinearSpec::new("out_proj", false), spec.value_width, h, out)?,
            spec: Rc::new(spec.clone()),
        })
    }

    /// `b s h -> b s h`
    pub fn forward(&self, f: &Forward, x: &Tensor) -> Result<Tensor> {
        let (b, s, a) = (x.size(0), x.size(1), self.spec.heads);
        let heads = |i: usize, width: u64| {
            self.maps[i].forward(f, x)?.reshape(&[b, s, a, width / a])?.transpose(1, 2)?.contiguous()
        };
        let (q, k) = (heads(0, self.spec.key_width)?, heads(1, self.spec.key_width)?);
        let v = heads(2, self.spec.value_width)?;
        let open = self.maps[3].forward(f, x)?;
        let gate = |i: usize| -> Result<Tensor> {
            let open = self.gates[i].forward(f, x)?;
            let capped = self.spec.gate_cap.map(|cap| hf::softcap(open.clone(), cap)).transpose()?;
            capped.unwrap_or(open).transpose(1, 2)?.contiguous()
        };
        let inputs = [q, k, v, gate(0)?, gate(1)?];
        let (this, forward) = (self.clone(), f.clone());
        let read = f.fused(&inputs, move |t| this.read(&forward, t))?;
        drop(inputs);
        let read = read.transpose(1, 2)?; // b s a dv
        let normal = read.to_dtype(DType::F32)?.layer_norm(None, None, self.spec.norm_eps)?.to_dtype(x.dtype())?;
        let normal = normal.reshape(&[b, s, self.spec.value_width])?.mul(&f.weight(&self.norm)?)?;
        self.out.forward(f, &open.sigmoid()?.mul(&normal)?)
    }

    /// What each position reads of the memory.
    ///
    /// Gates are held relative to the largest input gate of a head, where the reference follows it step by step: equal unless
    /// the gates of a text differ by more than f32 holds, but for what is added to the denominator, which is relative to that.
    ///
    /// # Shapes
    /// `b a s dk` twice, `b a s dv`, `b a s` twice -> `b a s dv`
    fn read(&self, f: &Forward, inputs: &[Tensor]) -> Result<Tensor> {
        let [q, k, v, input, forget] = inputs else {
            return Err(tensor::Error::Backward("a matrix memory without its inputs"));
        };
        let (b, a, s, chunk) = (q.size(0), q.size(1), q.size(2), self.spec.chunk.max(1));
        let (input, forget) = (input.to_dtype(DType::F32)?, forget.to_dtype(DType::F32)?);
        let rt = &f.runtime;
        let most = rt.no_grad(|| input.max(-1, true))?.0; // b a 1
        let least = rt.no_grad(|| most.neg()?.exp()?.unsqueeze(-1))?;
        let all = Inputs { q, k, v, input: input.sub(&most)?, forget: forget.neg()?.softplus()?.neg()?, least };
        let zeros = |shape: &[u64]| rt.no_grad(|| rt.zeros(shape, DType::F32));
        let (dk, dv) = (q.size(3), v.size(3));
        let mut state = State { memory: zeros(&[b, a, dk, dv])?, keys: zeros(&[b, a, dk, 1])? };
        let mut read = Vec::new();
        let whole = s / chunk * chunk;
        written_out("mlstm", "chunks", s / chunk)?;
        written_out("mlstm", "positions behind the last chunk", s - whole)?;
        if whole > 0 {
            let (out, last) = self.chunks(f, &all, (0, whole), chunk, state)?;
            state = last;
            read.push(out);
        }
        let rest = s - whole;
        if rest > 0 && f.profile.is_hf() {
            for at in whole..s {
                let (out, last) = self.step(&all, at, state)?;
                state = last;
                read.push(out);
            }
        } else if rest > 0 {
            read.push(self.chunks(f, &all, (whole, rest), rest, state)?.0);
        }
        Tensor::cat(&read.iter().collect::<Vec<_>>(), 2)
    }

    /// Positions `from..from + length` in chunks of `n`, and the state behind them.
    fn chunks(
        &self,
        f: &Forward,
        all: &Inputs<'_>,
        (from, length): (u64, u64),
        n: u64,
        state: State,
    ) -> Result<(Tensor, State)> {
        let (b, a, count) = (all.q.size(0), all.q.size(1), length / n);
        let (dk, dv, dtype) = (all.q.size(3), all.v.size(3), all.q.dtype());
        let cut = |t: &Tensor, d: u64| t.narrow(2, from, length)?.reshape(&[b, a, count, n, d]);
        let (q, k, v) = (cut(all.q, dk)?, cut(all.k, dk)?, cut(all.v, dv)?);
        let gate = |t: &Tensor| t.narrow(2, from, length)?.reshape(&[b, a, count, n]);
        let input = gate(&all.input)?;
        let decay = gate(&all.forget)?.cumsum(-1)?; // b a c n
        let total = decay.narrow(3, n - 1, 1)?; // b a c 1
        let to_end = total.sub(&decay)?.add(&input)?.exp()?.unsqueeze(-1)?;
        let weighted = k.mul(&to_end)?.to_dtype(dtype)?; // b a c n dk

        let (mut memories, mut keys) = (vec![state.memory], vec![state.keys]);
        for c in 0..count {
            let one = |t: &Tensor, d: u64| t.narrow(2, c, 1)?.reshape(&[b, a, n, d]);
            let (k, v) = (one(&weighted, dk)?, one(&v, dv)?);
            let passed = total.narrow(2, c, 1)?.reshape(&[b, a, 1, 1])?.exp()?;
            let added = k.t()?.matmul(&v)?;
            let i = c as usize;
            memories.push(passed.mul(&memories[i])?.add(&added)?);
            keys.push(passed.mul(&keys[i])?.add(&k.t()?.sum(&[-1], true)?)?);
        }
        // All states in one tensor, the last beside the others: nothing reads it but the positions behind the chunks.
        let before = |t: &[Tensor]| {
            let stacked: Vec<Tensor> = t.iter().map(|t| t.unsqueeze(2)).collect::<Result<_>>()?;
            Tensor::cat(&stacked.iter().collect::<Vec<_>>(), 2)?.narrow(2, 0, count)?.to_dtype(dtype)
        };
        let last = |t: &[Tensor]| t.last().cloned().ok_or(tensor::Error::Backward("a memory without a state"));

        let scale = 1.0 / (dk as f64).sqrt();
        let needed = Mask { pairs: n * (n + 1) / 2, square: n * n };
        let later =
            f.runtime.no_grad(|| f.runtime.ones(&[n, n], DType::F32)?.tril(0)?.to_dtype(DType::Bool)?.logical_not())?;
        let pairs = decay.unsqueeze(-1)?.sub(&decay.unsqueeze(-2)?)?.add(&input.unsqueeze(-2)?)?;
        let pairs = pairs.masked_fill(&later, f64::NEG_INFINITY)?.exp()?; // b a c n n
        let scores = hf::matmul(f, &q, &k.t()?, needed)?.mul_scalar(scale)?.mul(&pairs)?;
        drop(pairs);
        let scores = scores.to_dtype(dtype)?;
        let gated = q.mul(&decay.exp()?.unsqueeze(-1)?)?.mul_scalar(scale)?.to_dtype(dtype)?;
        let above = gated.matmul(&before(&memories)?)?.add(&hf::matmul(f, &scores, &v, needed)?)?;
        let below = gated.matmul(&before(&keys)?)?.add(&scores.sum(&[-1], true)?)?;
        let out = self.divide(&above, &below, &all.least.unsqueeze(2)?)?.to_dtype(dtype)?;
        Ok((out.reshape(&[b, a, length, dv])?, State { memory: last(&memories)?, keys: last(&keys)? }))
    }

    /// The position `at`, and the state behind it.
    fn step(&self, all: &Inputs<'_>, at: u64, state: State) -> Result<(Tensor, State)> {
        let (b, a, dtype) = (all.q.size(0), all.q.size(1), all.q.dtype());
        let cut = |t: &Tensor| t.narrow(2, at, 1); // b a 1 d
        let (q, k, v) = (cut(all.q)?.mul_scalar(1.0 / (all.q.size(3) as f64).sqrt())?, cut(all.k)?, cut(all.v)?);
        let gate = |t: &Tensor| t.narrow(2, at, 1)?.reshape(&[b, a, 1, 1])?.exp();
        let (kept, new) = (gate(&all.forget)?, gate(&all.input)?);
        let memory = kept.mul(&state.memory)?.add(&new.mul(&k.t()?.matmul(&v)?)?)?;
        let keys = kept.mul(&state.keys)?.add(&new.mul(&k.t()?)?)?;
        let above = q.matmul(&memory.to_dtype(dtype)?)?;
        let below = q.matmul(&keys.to_dtype(dtype)?)?;
        let out = self.divide(&above, &below, &all.least)?.to_dtype(dtype)?;
        Ok((out, State { memory, keys }))
    }

    /// Numerator over the size of the denominator, which has a least.
    fn divide(&self, above: &Tensor, below: &Tensor, least: &Tensor) -> Result<Tensor> {
        let below = below.to_dtype(DType::F32)?;
        let size = below.maximum(&below.neg()?)?.maximum(least)?;
        above.to_dtype(DType::F32)?.div(&size.add_scalar(self.spec.eps)?)
    }
}
