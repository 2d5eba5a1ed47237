//! The router of a mixture: scores, choice of experts, their weights.

use super::Norm;
use crate::context::Forward;
use crate::param::{Builder, Init, ParamKind};
use crate::spec::{Correction, ExpertGroups, MoeSpec, NormKind, NormSpec, RouterSpec, Scores};
use tensor::{DType, Result, Tensor};

/// A router.
#[derive(Clone, Debug)]
pub struct Router {
    spec: RouterSpec,
    top_k: u64,
    weight: Tensor,
    bias: Option<Tensor>,
    correction: Option<Tensor>,
    /// Experts of each token id: `v k` (i64).
    table: Option<Tensor>,
    scales: Option<Scales>,
}

/// Norm before a router, scales of channels and of experts.
#[derive(Clone, Debug)]
struct Scales {
    norm: Norm,
    channels: Tensor,
    experts: Tensor,
}

/// What a router returns.
pub struct Routed {
    /// `t e`: kept by the caller until its block ends, as in the reference.
    pub logits: Tensor,
    /// `t k`
    pub weights: Tensor,
    /// `t k` (i64)
    pub chosen: Tensor,
}

impl Router {
    /// A router over a residual stream of width `h`, in the current module.
    ///
    /// # Errors
    /// If a weight is too large to count.
    pub fn new(b: &Builder<'_>, moe: &MoeSpec, h: u64) -> Result<Self> {
        Self::of(b, &moe.router, moe.experts + moe.zero_experts, moe.top_k, h)
    }

    /// A router that chooses `top_k` of `e` experts.
    ///
    /// # Errors
    /// As [`Router::new`].
    pub fn of(b: &Builder<'_>, spec: &RouterSpec, e: u64, top_k: u64, h: u64) -> Result<Self> {
        b.on_every_rank(|| Self::build(b, spec, e, top_k, h))
    }

    fn build(b: &Builder<'_>, spec: &RouterSpec, e: u64, top_k: u64, h: u64) -> Result<Self> {
        let correction = match spec.correction {
            Correction::None => None,
            Correction::Buffer(path) => Some(b.buffer(path, &[e], DType::F32)?),
            Correction::Frozen(path) => Some(b.frozen(path, &[e], ParamKind::Vector, Init::Zeros, DType::F32)?),
        };
        let _scope = b.runtime().scope(spec.name);
        // Checkpoints bring the table; until then it goes round.
        let entries = |rows: u64| (0..rows * top_k).map(|at| (at % e.max(1)) as f64).collect();
        let table = spec.table.map(|rows| b.buffer_with("tid2eid", &[rows, top_k], DType::I64, || entries(rows)));
        let table = table.transpose()?;
        let scales = spec.scaled.map(|eps| -> Result<Scales> {
            let norm = Norm::new(b, "norm", &NormSpec { kind: NormKind::RmsPlain, eps }, &[h])?;
            let channels = b.param("scale", &[h], ParamKind::Vector, Init::Ones)?;
            Ok(Scales { norm, channels, experts: b.param("per_expert_scale", &[e], ParamKind::Vector, Init::Ones)? })
        });
        let scales = scales.transpose()?;
        let (weight, bias) = {
            let _inner = spec.inner.map(|name| b.runtime().scope(name));
            let bias = spec.bias.then(|| b.param("bias", &[e], ParamKind::Vector, Init::Zeros)).transpose()?;
            let init = Init::FanIn(h);
            let weight = if spec.f32_map {
                b.param_in("weight", &[e, h], ParamKind::Matrix, init, DType::F32)?
            } else {
                b.param("weight", &[e, h], ParamKind::Matrix, init)?
            };
            (weight, bias)
        };
        Ok(Self { spec: spec.clone(), top_k, weight, bias, correction, table, scales })
    }

    /// `t h -> t e, t k, t k`
    pub fn forward(&self, f: &Forward, rows: &Tensor) -> Result<Routed> {
        let _scope = f.runtime.scope(self.spec.name);
        let spec = &self.spec;
        let scaled = self.scales.as_ref().map(|scales| {
            let normed = scales.norm.forward(f, rows)?.mul(&f.weight(&scales.channels)?)?;
            normed.mul_scalar((rows.size(-1) as f64).powf(-0.5))
        });
        let scaled = scaled.transpose()?;
        let mut logits = self.logits(f, scaled.as_ref().unwrap_or(rows))?;
        drop(scaled);
        let narrow = logits.dtype();
        let wide = |t: &Tensor| if spec.narrow_scores { Ok(t.clone()) } else { t.to_dtype(DType::F32) };
        let (mut weights, chosen) = match spec.scores {
            Scores::SoftmaxOfChosen => {
                logits = wide(&logits)?;
                let (top, chosen) = logits.topk(self.top_k, -1)?;
                (top.softmax(-1)?, chosen)
            }
            Scores::SigmoidOfChosen => {
                let (top, chosen) = logits.topk(self.top_k, -1)?;
                (wide(&top)?.sigmoid()?, chosen)
            }
            Scores::Softmax => {
                let mut scores = wide(&logits)?.softmax(-1)?;
                if let Some(groups) = spec.groups {
                    let closed = f.runtime.no_grad(|| {
                        let best = by_group(&scores, groups)?.max(-1, false)?.0;
                        closed_experts(&best, groups, scores.size(1))
                    })?;
                    scores = scores.masked_fill(&closed, 0.0)?;
                }
                if self.correction.is_some() {
                    let chosen = f.runtime.no_grad(|| self.corrected_choice(&scores.detach()))?;
                    (scores.gather(-1, &chosen)?, chosen)
                } else {
                    scores.topk(self.top_k, -1)?
                }
            }
            Scores::SqrtSoftplus => {
                let scores = wide(&logits)?.softplus()?.sqrt()?;
                let chosen = f.runtime.no_grad(|| match &self.table {
                    Some(table) => looked_up(f, table, rows.size(0)),
                    None => self.corrected_choice(&scores.detach()),
                })?;
                (scores.gather(-1, &chosen)?, chosen)
            }
            Scores::Sigmoid => {
                // The reference takes the sigmoid of the logits as they come; under autocast they are narrow.
                let scores = if f.profile.is_hf() { logits.sigmoid()? } else { wide(&logits)?.sigmoid()? };
                let chosen = f.runtime.no_grad(|| self.corrected_choice(&scores.detach()))?;
                (scores.gather(-1, &chosen)?, chosen)
            }
        };
        if spec.normalise {
            let mut sum = weights.sum(&[-1], true)?;
            if matches!(spec.scores, Scores::Sigmoid | Scores::SqrtSoftplus) {
                sum = sum.add_scalar(1e-20)?;
            }
            weights = weights.div(&sum)?;
        }
        if let Some(scale) = spec.scale {
            weights = weights.mul_scalar(scale)?;
        }
        if let Some(scales) = &self.scales {
            let all = f.weight(&scales.experts)?.unsqueeze(0)?.expand(logits.shape())?;
            weights = weights.mul(&all.gather(-1, &chosen)?)?;
        }
        if spec.stream_weights || !f.profile.is_hf() {
            weights = weights.to_dtype(rows.dtype())?;
        } else if spec.narrow_weights {
            weights = weights.to_dtype(narrow)?;
        }
        Ok(Routed { logits, weights, chosen })
    }

    /// The weight of every expert for every token, 0 where it is not chosen.
    ///
    /// # Shapes
    /// `t h -> t e`
    pub fn forward_everywhere(&self, f: &Forward, rows: &Tensor) -> Result<Tensor> {
        let _scope = f.runtime.scope(self.spec.name);
        let logits = self.logits(f, rows)?;
        let (top, chosen) = logits.topk(self.top_k, -1)?;
        let low = f.runtime.no_grad(|| f.runtime.full(logits.shape(), f64::NEG_INFINITY, logits.dtype()))?;
        low.scatter(1, &chosen, &top)?.to_dtype(DType::F32)?.sigmoid()?.to_dtype(logits.dtype())
    }

    fn logits(&self, f: &Forward, rows: &Tensor) -> Result<Tensor> {
        let _inner = self.spec.inner.map(|name| f.runtime.scope(name));
        if self.spec.f32_map {
            return rows.to_dtype(DType::F32)?.linear(&self.weight.to_dtype(DType::F32)?, None);
        }
        let bias = self.bias.as_ref().map(|b| f.weight(b)).transpose()?;
        rows.linear(&f.weight(&self.weight)?, bias.as_ref())
    }

    /// The experts with the largest scores; the correction decides who is chosen, not with which weight.
    fn corrected_choice(&self, scores: &Tensor) -> Result<Tensor> {
        let mut scores = match &self.correction {
            Some(bias) => scores.add(bias)?,
            None => scores.clone(),
        };
        if let Some(groups) = self.spec.groups {
            // A group is as good as its two best experts together.
            let best = by_group(&scores, groups)?.topk(2, -1)?.0.sum(&[-1], false)?;
            let closed = closed_experts(&best, groups, scores.size(1))?;
            scores = scores.masked_fill(&closed, f64::NEG_INFINITY)?;
        }
        Ok(scores.topk(self.top_k, -1)?.1)
    }
}

/// Experts of the tokens of the pass: `v k -> t k` (i64)
fn looked_up(f: &Forward, table: &Tensor, rows: u64) -> Result<Tensor> {
    let tokens = f.tokens.as_ref().ok_or(NO_TOKENS)?;
    table.embedding(&tokens.reshape(&[rows])?)
}

/// A table of token ids is read in a pass that knows its tokens.
const NO_TOKENS: tensor::Error = tensor::Error::Backward("experts by token id without the tokens of the pass");

/// `t (g n) -> t g n`
fn by_group(scores: &Tensor, groups: ExpertGroups) -> Result<Tensor> {
    scores.view(&[scores.size(0), groups.count, scores.size(1) / groups.count])
}

/// Mask `t e` of the experts outside of the best groups, from the score `t g` of each group.
fn closed_experts(best: &Tensor, groups: ExpertGroups, experts: u64) -> Result<Tensor> {
    let (tokens, rt) = (best.size(0), best.runtime());
    let open = best.topk(groups.kept, -1)?.1;
    let mask = rt.zeros(&[tokens, groups.count], best.dtype())?;
    let one = rt.ones(&[], best.dtype())?.expand(open.shape())?;
    mask.scatter_(1, &open, &one)?;
    let mask = mask.unsqueeze(-1)?.expand(&[tokens, groups.count, experts / groups.count])?;
    mask.reshape(&[tokens, experts])?.to_dtype(DType::Bool)?.logical_not()
}
