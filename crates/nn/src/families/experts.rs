//! What families with experts read alike.

use super::common::{FAMILY, FREE, is_null};
use crate::config::{Names, Part, Reader};
use crate::spec::{
    Activation, AttentionSpec, BlockForm, ExpertGate, ExpertGroups, ExpertLayout, FeedForwardSpec, LatentSpec,
    LayerNames, LayerSpec, MoeSpec, Projection, RouterSpec, SharedSpec,
};
use std::rc::Rc;

/// Numbers of a mixture under their usual keys.
pub struct Counts {
    /// Routed experts.
    pub experts: u64,
    /// Of which each token uses so many.
    pub top_k: u64,
    /// Inner width of one.
    pub f: u64,
}

/// Checks that the numbers of a mixture fit together.
pub fn counts(r: &mut Reader<'_>, h: u64, (key, experts): (&str, u64), top_k: u64, (f_key, f): (&str, u64)) -> Counts {
    if top_k > experts {
        r.reject(
            "num_experts_per_tok",
            format!("each token uses {top_k} experts, but there are {experts}"),
            "a token uses an expert once",
            &format!("--set num_experts_per_tok={experts}"),
        );
    }
    r.check_product("the weights of the experts", &[(key, experts), (f_key, f), ("hidden_size", h)]);
    Counts { experts, top_k, f }
}

/// A mixture with the names most families use.
pub fn mixture(counts: &Counts, act: Activation, router: RouterSpec, shared: Option<SharedSpec>) -> MoeSpec {
    MoeSpec {
        experts: counts.experts,
        top_k: counts.top_k,
        intermediate_size: counts.f,
        act,
        router,
        shared,
        layout: ExpertLayout::default(),
        gate: ExpertGate::default(),
        expert_bias: false,
        name: "experts",
    }
}

/// A block whose feed-forward part is a mixture, under Llama's names.
pub fn sparse(attention: AttentionSpec, moe: MoeSpec, form: BlockForm) -> LayerSpec {
    LayerSpec {
        attention,
        feed_forward: FeedForwardSpec::Moe(moe),
        form,
        names: LayerNames::default(),
        residual_scale: None,
        dropout: 0.0,
    }
}

/// Layers that are dense where `is_dense` says so.
pub fn mixed(l: u64, dense: LayerSpec, sparse: LayerSpec, is_dense: impl Fn(u64) -> bool) -> Vec<Rc<LayerSpec>> {
    let (dense, sparse) = (Rc::new(dense), Rc::new(sparse));
    (0..l).map(|i| if is_dense(i) { dense.clone() } else { sparse.clone() }).collect()
}

/// Groups of experts among which a router chooses first.
pub fn groups(r: &mut Reader<'_>, counts: &Counts, count: u64, kept: u64) -> ExpertGroups {
    r.require_divides(
        Part::new("n_routed_experts", counts.experts, "routed experts"),
        Part::new("n_group", count, "groups"),
        "groups of experts are of equal size",
    );
    let open = kept.saturating_mul(counts.experts / count.max(1));
    if kept > count || open < counts.top_k {
        r.reject(
            "topk_group",
            format!("{kept} of {count} groups hold {open} experts, of which each token uses {}", counts.top_k),
            "the kept groups must exist and hold the experts of a token",
            &format!("--set topk_group={count}"),
        );
    }
    ExpertGroups { count: count.max(1), kept: kept.min(count) }
}

/// Loss terms and noise of a router that are read for their effect on cost.
pub fn router_extras(r: &mut Reader<'_>, not_modelled: &mut Vec<String>) {
    if r.flag("output_router_logits", false) {
        not_modelled.push(
            "the load-balancing loss (`output_router_logits`): elementwise work on one number per token and expert"
                .to_owned(),
        );
    }
    if r.float_or(["router_jitter_noise", "ffn_config.moe_jitter_eps"], 0.0, FREE) > 0.0 {
        not_modelled.push(
            "router noise in training (`router_jitter_noise`): one temporary as large as the input of each mixture"
                .to_owned(),
        );
    }
}

/// A number that `null` turns off and whose absence means `default`.
pub fn size_or_off(r: &mut Reader<'_>, key: &str, default: u64) -> Option<u64> {
    if is_null(r, key) { r.opt_size(key) } else { Some(r.size_or(key, default, FAMILY)) }
}

/// Notes layers for multi-token prediction, which the reference does not build, with their size.
pub fn extra_predictors(
    r: &mut Reader<'_>,
    key: impl Names,
    h: u64,
    layer: &LayerSpec,
    not_modelled: &mut Vec<String>,
) {
    let count = r.opt_count(key).unwrap_or(0);
    if count == 0 {
        return;
    }
    let each =
        block_parameters(h, layer).saturating_add(2 * u128::from(h) * u128::from(h)).saturating_add(3 * u128::from(h));
    let total = each.saturating_mul(u128::from(count));
    not_modelled.push(format!(
        "{count} layer(s) for multi-token prediction that the config announces: transformers does not build them either. \
         Each is a block and a map from 2h to h, {each} parameters ({total} in all), plus embedding and head where a \
         checkpoint stores them twice"
    ));
}

/// Parameters of a block, its two norms among them.
fn block_parameters(h: u64, layer: &LayerSpec) -> u128 {
    let wide = u128::from;
    let (h, a) = (wide(h), &layer.attention);
    let (heads, kv, d, dv) = (wide(a.heads), wide(a.kv_heads), wide(a.head_dim), wide(a.value_dim));
    let attention = match &a.projection {
        Projection::Latent(LatentSpec { q_rank, kv_rank, nope_dim, rope_dim, .. }) => {
            let q = q_rank.map_or(h * heads * d, |rank| wide(rank) * (h + heads * d + 1));
            q + h * (wide(*kv_rank) + wide(*rope_dim)) + wide(*kv_rank) * (heads * (wide(*nope_dim) + dv) + 1)
        }
        _ => h * (heads * d + kv * (d + dv)),
    };
    let feed_forward = match &layer.feed_forward {
        FeedForwardSpec::Mlp(mlp) => 3 * h * wide(mlp.intermediate_size),
        FeedForwardSpec::Moe(moe) => {
            let shared = moe.shared.as_ref().map_or(0, |s| 3 * h * wide(s.mlp.intermediate_size));
            wide(moe.experts) * (h + 3 * h * wide(moe.intermediate_size)) + shared
        }
    };
    attention + heads * dv * h + feed_forward + 2 * h
}
