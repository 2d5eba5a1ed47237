//! Differential attention: two attentions with the same queries and keys over the halves of the value heads, the second
//! taken from the first with a trained weight.
//!
//! Source: Ye et al. 2024, arXiv 2410.05258; steps as transformers' `DiffLlama` takes them.

use super::Norm;
use crate::context::Forward;
use crate::param::{Builder, Init, ParamKind};
use crate::spec::{NormKind, NormSpec};
use tensor::{DType, Result, Tensor};

/// The trained weight of the second attention, and the norm of the difference.
#[derive(Clone, Debug)]
pub struct Differential {
    start: f64,
    /// Two pairs of vectors `d`, queries first.
    lambdas: [Tensor; 4],
    norm: Norm,
}

impl Differential {
    /// The parts of an attention with heads of width `d`, in the current module. `start` is what the weight starts at.
    ///
    /// # Errors
    /// If a shape is too large to count.
    pub fn new(b: &Builder<'_>, start: f64, d: u64, eps: f64) -> Result<Self> {
        let lambda = |name| b.param(name, &[d], ParamKind::Vector, Init::TruncatedNormal(0.1));
        let lambdas = [lambda("lambda_q1")?, lambda("lambda_k1")?, lambda("lambda_q2")?, lambda("lambda_k2")?];
        let norm = Norm::new(b, "groupnorm", &NormSpec { kind: NormKind::RmsPlain, eps }, &[2 * d])?;
        Ok(Self { start, lambdas, norm })
    }

    /// Value heads for the two attentions: either half, twice.
    ///
    /// # Shapes
    /// `b k s d` -> `b k s d` twice
    pub fn halves(v: &Tensor) -> Result<(Tensor, Tensor)> {
        let half = v.size(1) / 2;
        let twice = |start: u64| -> Result<Tensor> {
            let part = v.narrow(1, start, half)?;
            Tensor::cat(&[&part, &part], 1)
        };
        Ok((twice(0)?, twice(half)?))
    }

    /// The difference of two results, normalised over pairs of heads.
    ///
    /// # Shapes
    /// `b s (a d)` twice -> `b s (a d)`
    pub fn combine(&self, f: &Forward, first: &Tensor, second: &Tensor, heads: u64) -> Result<Tensor> {
        let (b, s, width) = (first.size(0), first.size(1), first.size(2));
        let apart = |x: &Tensor| x.view(&[b, s, heads, width / heads]);
        let joined = Tensor::cat(&[&apart(first)?, &apart(second)?], -1)?; // b s a 2d
        let (one, other) = (joined.narrow(2, 0, heads / 2)?, joined.narrow(2, heads / 2, heads / 2)?);
        let weight = self.weight(f, first.dtype())?;
        let mixed = one.sub(&weight.mul(&other)?)?;
        self.norm.forward(f, &mixed)?.mul_scalar(1.0 - self.start)?.reshape(&[b, s, width])
    }

    /// `e^(q1 k1) - e^(q2 k2) + start`, a scalar.
    fn weight(&self, f: &Forward, dtype: DType) -> Result<Tensor> {
        let part = |i: usize| -> Result<Tensor> {
            let product = f.weight(&self.lambdas[i])?.mul(&f.weight(&self.lambdas[i + 1])?)?;
            product.to_dtype(DType::F32)?.sum(&[-1], false)?.exp()?.to_dtype(dtype)
        };
        part(0)?.sub(&part(2)?)?.add_scalar(self.start)
    }
}
