//! Mixtures of experts: router, routed experts on sorted rows, shared experts.

use super::mlp::gated;
use super::{Linear, Mlp, hf};
use crate::context::Forward;
use crate::param::{Builder, Init, ParamKind};
use crate::spec::{LinearSpec, MoeSpec};
use std::rc::Rc;
use tensor::{DType, Result, Tensor};

/// A mixture of experts.
#[derive(Clone, Debug)]
pub struct Moe {
    spec: Rc<MoeSpec>,
    router: Router,
    gate_up: Tensor,
    gate_up_bias: Option<Tensor>,
    down: Tensor,
    down_bias: Option<Tensor>,
    shared: Option<(Mlp, Option<Linear>)>,
}

#[derive(Clone, Debug)]
struct Router {
    map: Linear,
    correction: Option<Tensor>,
}

impl Moe {
    /// A mixture on a residual stream of width `h`, in the current module.
    ///
    /// # Errors
    /// If a weight is too large to count.
    pub fn new(b: &Builder<'_>, spec: &Rc<MoeSpec>, h: u64, layers: u64) -> Result<Self> {
        let (e, f) = (spec.experts, spec.intermediate_size);
        let router = {
            let map = Linear::new(b, &LinearSpec::new(spec.router.name, spec.router.bias), h, e, Init::FanIn(h))?;
            let _scope = b.runtime().scope(spec.router.name);
            let correction = spec
                .router
                .correction_bias
                .then(|| b.buffer("e_score_correction_bias", &[e], DType::F32))
                .transpose()?;
            Router { map, correction }
        };
        let kind = ParamKind::Expert { experts: e, top_k: spec.top_k };
        let wide = if spec.gated { 2 * f } else { f };
        let (gate_up, gate_up_bias, down, down_bias) = {
            let _scope = b.runtime().scope(spec.name);
            let bias = |name, n| -> Result<Option<Tensor>> {
                spec.expert_bias.then(|| b.param(name, &[e, n], kind, Init::Zeros)).transpose()
            };
            (
                b.param("gate_up_proj", &[e, wide, h], kind, Init::FanIn(h))?,
                bias("gate_up_proj_bias", wide)?,
                b.param("down_proj", &[e, h, f], kind, Init::ScaledResidual { fan_in: f, layers })?,
                bias("down_proj_bias", h)?,
            )
        };
        let shared = match &spec.shared {
            None => None,
            Some(shared) => {
                let mlp = {
                    let _scope = b.runtime().scope(shared.name);
                    Mlp::new(b, &shared.mlp, h, layers)?
                };
                let gate = shared
                    .gate
                    .map(|name| Linear::new(b, &LinearSpec::new(name, false), h, 1, Init::FanIn(h)))
                    .transpose()?;
                Some((mlp, gate))
            }
        };
        Ok(Self { spec: spec.clone(), router, gate_up, gate_up_bias, down, down_bias, shared })
    }

    /// `b s h -> b s h`
    pub fn forward(&self, f: &Forward, x: &Tensor) -> Result<Tensor> {
        let (b, s, h) = (x.size(0), x.size(1), x.size(2));
        let tokens = b * s;
        let rows = x.view(&[tokens, h])?;
        let (weights, chosen) = self.route(f, &rows)?; // t k, t k
        let mut out = self.experts(f, &rows, &weights, &chosen)?;
        drop((weights, chosen));
        if let Some((mlp, gate)) = &self.shared {
            let shared = {
                let _scope = f.runtime.scope(self.spec.shared.as_ref().map_or("shared", |s| s.name));
                mlp.forward(f, &rows)?
            };
            let shared = match gate {
                Some(gate) => gate.forward(f, &rows)?.sigmoid()?.mul(&shared)?,
                None => shared,
            };
            out = out.add(&shared)?;
        }
        out.view(&[b, s, h])
    }

    /// Weights and indices of the experts of each token.
    ///
    /// # Shapes
    /// `t h` -> `t k`, `t k`
    fn route(&self, f: &Forward, rows: &Tensor) -> Result<(Tensor, Tensor)> {
        let router = &self.spec.router;
        let logits = self.router.map.forward(f, rows)?; // t e
        let scores = if router.sigmoid {
            logits.to_dtype(DType::F32)?.sigmoid()?
        } else {
            logits.to_dtype(DType::F32)?.softmax(-1)?
        };
        drop(logits);
        let (mut weights, chosen) = match &self.router.correction {
            // The correction decides who is chosen, not with which weight.
            Some(bias) => {
                let chosen = f.runtime.no_grad(|| scores.detach().add(bias)?.topk(self.spec.top_k, -1))?.1;
                (scores.gather(-1, &chosen)?, chosen)
            }
            None => scores.topk(self.spec.top_k, -1)?,
        };
        if router.normalise {
            weights = weights.div(&weights.sum(&[-1], true)?)?;
        }
        Ok((weights.to_dtype(rows.dtype())?, chosen))
    }

    /// Rows sorted by expert through the experts' maps, weighted and summed back per token.
    fn experts(&self, f: &Forward, rows: &Tensor, weights: &Tensor, chosen: &Tensor) -> Result<Tensor> {
        let _scope = f.runtime.scope(self.spec.name);
        let (tokens, h, k) = (rows.size(0), rows.size(1), self.spec.top_k);
        let order = chosen.view(&[tokens * k])?.argsort()?; // r
        let owner = f.runtime.no_grad(|| order.div_scalar(k as f64)?.to_dtype(DType::I64))?; // token of each row
        let expert = chosen.view(&[tokens * k])?.gather(0, &order)?;
        let sizes = expert.bincount(self.spec.experts)?;
        let sorted = rows.embedding(&owner)?; // r h
        let weight = |w: &Tensor| f.weight(w);
        let mut both = sorted.grouped_linear(&weight(&self.gate_up)?, &sizes)?;
        drop(sorted);
        if let Some(bias) = &self.gate_up_bias {
            both = both.add(&weight(bias)?.embedding(&expert)?)?;
        }
        let inner = if self.spec.gated {
            let wide = self.spec.intermediate_size;
            let halves = both.split(&[wide, wide], -1)?;
            drop(both);
            if f.profile.is_hf() {
                hf::activate(f, self.spec.act, halves[0].clone())?.mul(&halves[1])?
            } else {
                gated(self.spec.act, &halves[0], &halves[1])?
            }
        } else {
            hf::activate(f, self.spec.act, both)?
        };
        let mut out = inner.grouped_linear(&weight(&self.down)?, &sizes)?; // r h
        drop(inner);
        if let Some(bias) = &self.down_bias {
            out = out.add(&weight(bias)?.embedding(&expert)?)?;
        }
        let scale = weights.view(&[tokens * k])?.gather(0, &order)?.unsqueeze(-1)?;
        let out = out.mul(&scale)?.to_dtype(rows.dtype())?;
        let zeros = f.runtime.no_grad(|| f.runtime.zeros(&[tokens, h], rows.dtype()))?;
        zeros.index_add(&owner, &out)
    }
}
