//! Attention with scores for distances (Transformer-XL, `XLNet`): products of queries with a projected table of sines, with a
//! trained bias of the queries for contents and another for distances.

use super::hf;
use crate::context::Forward;
use crate::param::{Builder, Init, ParamKind};
use crate::spec::DistanceSpec;
use std::rc::Rc;
use tensor::ops::attention::pairs;
use tensor::ops::matmul::Mask;
use tensor::{DType, Result, Tensor};

/// Name of the table among those of a pass.
const TABLE: &str = "sines of distances";

/// Attention with scores for distances.
#[derive(Clone, Debug)]
pub struct Distance {
    spec: Rc<DistanceSpec>,
    /// Queries, keys, values, distances, output: `h a d` each.
    maps: [Tensor; 5],
    /// Of queries against contents, and against distances: `a d`.
    biases: [Tensor; 2],
}

impl Distance {
    /// Attention on a residual stream of width `h`, in the current module.
    ///
    /// # Errors
    /// If a weight is too large to count.
    pub fn new(b: &Builder<'_>, spec: &DistanceSpec, h: u64, layers: u64) -> Result<Self> {
        let (a, d) = (spec.heads, spec.head_dim);
        let map = |name, init| b.param(name, &[h, a, d], ParamKind::Matrix, init);
        let bias = |name| b.param(name, &[a, d], ParamKind::Vector, Init::Zeros);
        let [q, k, v] = ["q", "k", "v"].map(|name| map(name, Init::FanIn(h)));
        let out = map("o", Init::ScaledResidual { fan_in: a * d, layers })?;
        let maps = [q?, k?, v?, map("r", Init::FanIn(h))?, out];
        Ok(Self { spec: Rc::new(spec.clone()), maps, biases: [bias("r_w_bias")?, bias("r_r_bias")?] })
    }

    /// Makes the table of the pass.
    ///
    /// # Errors
    /// None beyond those of creating a tensor.
    pub fn prepare(&self, f: &Forward, x: &Tensor) -> Result<()> {
        self.table(f, x.size(1), x.size(2), f.activation_dtype(x)).map(drop)
    }

    /// `b s h -> b s h`
    ///
    /// # Errors
    /// If shapes do not fit.
    pub fn forward(&self, f: &Forward, x: &Tensor) -> Result<Tensor> {
        let (b, s, a, d) = (x.size(0), x.size(1), self.spec.heads, self.spec.head_dim);
        let flat = |map: &Tensor| f.weight(map)?.view(&[map.size(0), a * d]);
        let heads = |x: &Tensor, map: &Tensor| {
            x.linear_transposed(&flat(map)?, None)?.view(&[x.size(0), x.size(1), a, d]) // b s a d
        };
        let [q, k, v, r, out] = &self.maps;
        let (q, k, v) = (heads(x, q)?, heads(x, k)?, heads(x, v)?);
        let table = self.table(f, s, x.size(2), f.activation_dtype(x))?;
        let table = if f.profile.is_hf() {
            let wide = table.expand(&[b, table.size(1), table.size(2)])?;
            if f.training && self.spec.dropout > 0.0 { wide.dropout_composed(self.spec.dropout)? } else { wide }
        } else {
            table
        };
        let far = heads(&table, r)?.transpose(1, 2)?; // b or 1, a p d
        let biased = |bias: &Tensor| q.add(&f.weight(bias)?)?.transpose(1, 2); // b a s d
        let needed = if self.spec.causal { pairs(s, s, true, None) } else { s * s };
        let of = |keys: u64| Mask { pairs: needed, square: s * keys };
        let content = hf::matmul(f, &biased(&self.biases[0])?, &k.transpose(1, 2)?.t()?, of(s))?; // b a s s
        let p = far.size(2);
        let distant = hf::matmul(f, &biased(&self.biases[1])?, &far.t()?, of(p))?; // b a s p
        let mut scores = content.add(&shifted(&distant, s)?)?.mul_scalar(self.spec.scale())?;
        drop((content, distant, far));
        if self.spec.causal {
            let later = f.runtime.no_grad(|| f.runtime.ones(&[s, s], DType::Bool)?.tril(0)?.logical_not())?;
            scores = scores.masked_fill(&later, hf::LOW)?;
        }
        let mut weights = scores.softmax(-1)?;
        drop(scores);
        if f.training && self.spec.dropout > 0.0 {
            weights = weights.dropout_composed(self.spec.dropout)?;
        }
        let mixed = hf::matmul(f, &weights, &v.transpose(1, 2)?, of(s))?; // b a s d
        let mixed = mixed.transpose(1, 2)?.reshape(&[b, s, a * d])?;
        mixed.linear(&flat(out)?, None)
    }

    /// Sines, then cosines of all distances of `s` positions, from the farthest before to the farthest behind; a causal model
    /// has none behind. Made once in a pass.
    ///
    /// # Shapes
    /// `1 p h`
    fn table(&self, f: &Forward, s: u64, h: u64, dtype: DType) -> Result<Tensor> {
        let rt = &f.runtime;
        f.shared(TABLE, || {
            rt.no_grad(|| {
                let count = if self.spec.causal { s + 1 } else { 2 * s };
                let mut distances = rt.arange(count, s as f64, -1.0, DType::F32)?;
                if let Some(most) = self.spec.clamp {
                    distances = distances.clamp(-(most as f64), most as f64)?;
                }
                let step = -2.0 / h as f64 * 10_000f64.ln();
                let frequencies = rt.arange(h / 2, 0.0, step, DType::F32)?.exp()?;
                let angles = distances.unsqueeze(1)?.mul(&frequencies)?; // p h/2
                Tensor::cat(&[&angles.sin()?, &angles.cos()?], -1)?.unsqueeze(0)?.to_dtype(dtype)
            })
        })
    }
}

/// Scores by distance laid under the keys at that distance: row `i` moves `i` places to the right.
///
/// # Shapes
/// `b a s p -> b a s s`
fn shifted(scores: &Tensor, s: u64) -> Result<Tensor> {
    let (b, a, p) = (scores.size(0), scores.size(1), scores.size(3));
    let rows = scores.view(&[b, a, p, s])?.narrow(2, 1, p - 1)?;
    rows.reshape(&[b, a, s, p - 1])?.narrow(3, 0, s)?.contiguous()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use tensor::{Device, Runtime};

    #[test]
    fn a_key_gets_the_score_of_its_distance() {
        // Columns of a query are the distances s, s-1, ...; key j of query i is at distance i - j.
        for (s, p) in [(4_i32, 8_i32), (4, 5)] {
            let runtime = Runtime::new(Device::Cpu);
            let values: Vec<f64> = (0..s * p).map(|at| f64::from(s - at % p + 100 * (at / p))).collect();
            let shape = [1, 1, u64::from(s.unsigned_abs()), u64::from(p.unsigned_abs())];
            let scores = runtime.tensor(&values, &shape, DType::F32).unwrap();
            let laid = shifted(&scores, shape[2]).unwrap().to_vec().unwrap();
            for (at, value) in (0..).zip(laid) {
                let (i, j) = (at / s, at % s);
                // Later keys of a causal model have no distance, and are masked.
                if p == 2 * s || j <= i {
                    assert_eq!(value, f64::from(i - j + 100 * i), "query {i}, key {j} of {s} at {p} distances");
                }
            }
        }
    }
}
