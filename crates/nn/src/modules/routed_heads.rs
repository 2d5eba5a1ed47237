//! Mixtures of attention heads (`JetMoE`): maps of queries and outputs that tokens are routed to, keys and values for all.

use super::moe::{pick, sort_rows};
use super::steps::Heads;
use super::{Linear, Router};
use crate::context::Forward;
use crate::param::{Builder, Init, ParamKind};
use crate::spec::{AttentionSpec, LinearSpec, RoutedSpec};
use tensor::{Result, Tensor};

/// The maps of queries, keys, values and outputs.
#[derive(Clone, Debug)]
pub struct RoutedHeads {
    experts: u64,
    top_k: u64,
    router: Router,
    /// `e (k d) h`
    queries: Tensor,
    /// `e h (k d)`
    outputs: Tensor,
    bias: Tensor,
    kv: Linear,
}

/// Which expert made which queries.
pub struct Topology {
    /// `r`: routed row at each sorted place.
    order: Tensor,
    /// `e`: rows of each expert.
    sizes: Tensor,
    /// `r`: weight of each sorted row.
    scale: Tensor,
}

impl RoutedHeads {
    /// The maps on a residual stream of width `h`, in the current module.
    ///
    /// # Errors
    /// If a weight is too large to count.
    pub fn new(b: &Builder<'_>, spec: &RoutedSpec, attention: &AttentionSpec, h: u64, layers: u64) -> Result<Self> {
        let (e, width) = (spec.experts, attention.kv_heads * attention.head_dim);
        let kv = Linear::new(b, &LinearSpec::new("kv_proj", false), h, 2 * width, Init::FanIn(h))?;
        let _scope = b.runtime().scope("experts");
        let kind = ParamKind::Expert { experts: e, top_k: spec.top_k };
        let stacked = |name: &str, shape: [u64; 3], init| {
            let _scope = b.runtime().scope(name);
            b.param("weight", &shape, kind, init)
        };
        Ok(Self {
            experts: e,
            top_k: spec.top_k,
            bias: b.param("bias", &[h], ParamKind::Vector, Init::Zeros)?,
            queries: stacked("input_linear", [e, width, h], Init::FanIn(h))?,
            outputs: stacked("output_linear", [e, h, width], Init::ScaledResidual { fan_in: width, layers })?,
            router: Router::of(b, &spec.router, e, spec.top_k, h)?,
            kv,
        })
    }

    /// Queries of all choices, those that meet the same keys side by side, and keys and values.
    ///
    /// # Shapes
    /// `b s h -> b (k t) s d`, `b k s d`, `b k s d`, where `t` is the number of choices of a token
    pub fn heads(&self, f: &Forward, spec: &AttentionSpec, x: &Tensor) -> Result<(Heads, Topology)> {
        let (b, s, h) = (x.size(0), x.size(1), x.size(2));
        let (k, d, t) = (spec.kv_heads, spec.head_dim, self.top_k);
        let rows = x.view(&[b * s, h])?;
        let (made, topology) = {
            let _scope = f.runtime.scope("experts");
            let routed = self.router.forward(f, &rows)?;
            let (sorted, owner) = sort_rows(f, &routed.chosen.reshape(&[b * s * t])?, t, self.experts)?;
            let made = pick(f, &rows, &owner)?.grouped_linear(&f.weight(&self.queries)?, &sorted.sizes)?; // r (k d)
            let inverse = f.runtime.no_grad(|| sorted.order.argsort())?;
            let scale = pick(f, &routed.weights.reshape(&[b * s * t])?, &sorted.order)?;
            (pick(f, &made, &inverse)?, Topology { order: sorted.order.clone(), sizes: sorted.sizes.clone(), scale })
        };
        let queries = made.view(&[b, s, t, k, d])?.permute(&[0, 3, 2, 1, 4])?.reshape(&[b, k * t, s, d])?;
        let parts = self.kv.forward(f, x)?.split(&[k * d, k * d], -1)?;
        let cut = |i: usize| parts[i].view(&[b, s, k, d])?.transpose(1, 2);
        Ok(((queries, cut(0)?, cut(1)?), topology))
    }

    /// What was read, through the output map of the expert that asked, weighted and summed.
    ///
    /// # Shapes
    /// `b s ((k t) d) -> b s h`
    pub fn out(&self, f: &Forward, spec: &AttentionSpec, x: &Tensor, topology: &Topology) -> Result<Tensor> {
        let (b, s) = (x.size(0), x.size(1));
        let (k, d, t) = (spec.kv_heads, spec.head_dim, self.top_k);
        let _scope = f.runtime.scope("experts");
        let rows = x.view(&[b, s, k, t, d])?.transpose(2, 3)?.reshape(&[b * s * t, k * d])?;
        let sorted = pick(f, &rows, &topology.order)?;
        let made = sorted.grouped_linear(&f.weight(&self.outputs)?, &topology.sizes)?; // r h
        let weighted = made.mul(&topology.scale.unsqueeze(-1)?)?;
        let inverse = f.runtime.no_grad(|| topology.order.argsort())?;
        let h = weighted.size(1);
        let summed = pick(f, &weighted, &inverse)?.view(&[b, s, t, h])?.sum(&[2], false)?;
        summed.add(&f.weight(&self.bias)?)
    }
}
