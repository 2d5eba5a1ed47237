//! `AFMoE` (Trinity): norms before and after each branch, a sigmoid gate on the mixed values, rotation only where there is
//! a window, a sigmoid router whose choice a frozen bias corrects.

use super::common::{
    FAMILY, FREE, activation, attention, decoder, gated_mlp, intermediate_size, named, rope_theta, rotary, sizes_or,
    sliding, window,
};
use super::experts::{counts, mixture, router_extras, shared_experts, sparse};
use crate::config::Reader;
use crate::spec::{
    BlockForm, Correction, FeedForwardSpec, LayerSpec, LinearSpec, ModelSpec, NormKind, NormSpec, QkNorm, RouterSpec,
    Scores,
};
use std::sync::Arc;

fn form(norm: &NormSpec) -> BlockForm {
    BlockForm::Sandwich {
        n1: named("input_layernorm", norm),
        m1: named("post_attention_layernorm", norm),
        n2: named("pre_mlp_layernorm", norm),
        m2: named("post_mlp_layernorm", norm),
    }
}

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let s = sizes_or(r, None, Some(128));
    let dense_width = intermediate_size(r, &s);
    let experts = r.size_or(["num_experts", "num_local_experts"], 64, FAMILY);
    let top_k = r.size_or("num_experts_per_tok", 6, FAMILY);
    let f = r.size_or("moe_intermediate_size", 1408, FAMILY);
    let counts = counts(r, s.h, ("num_experts", experts), top_k, ("moe_intermediate_size", f));
    let shared = r.count_or("num_shared_experts", 2, FAMILY);
    let act = activation(r, "hidden_act", "silu");
    let all = (shared > 0).then(|| shared_experts(r, &counts, ("num_shared_experts", shared), act, false));
    let norm = NormSpec { kind: NormKind::RmsWeightInF32, eps: r.float_or("rms_norm_eps", 1e-5, FREE) };
    let bias = r.flag("attention_bias", false);
    let tied = r.flag("tie_word_embeddings", false);
    let scaled = r.flag("mup_enabled", false);
    // Written in released files for code of their own; transformers reads none of them.
    r.known(&["score_func", "route_norm", "n_group", "topk_group", "num_expert_groups", "num_limited_groups"]);
    r.known(&["load_balance_coeff", "use_grouped_mm"]);

    let mut full = attention(&s, bias, bias);
    full.qk_norm = QkNorm::PerHead(norm.clone());
    full.gate = Some(LinearSpec::new("gate_proj", false));
    full.dropout = r.float_or("attention_dropout", 0.0, "off");
    let mut local = full.clone();
    local.rotary = Some(rotary(s.d, rope_theta(r, 10_000.0)));
    local.window = window(r, Some(1024));
    let period = r.size_or("global_attn_every_n_layers", 4, FAMILY);
    let slides = sliding(r, s.l, |i| !(i + 1).is_multiple_of(period));

    let router = RouterSpec {
        name: "router",
        inner: Some("gate"),
        scores: Scores::Sigmoid,
        correction: Correction::Frozen("expert_bias"),
        normalise: true,
        scale: Some(r.float_or("route_scale", 1.0, FREE)),
        ..RouterSpec::default()
    };
    let moe = mixture(&counts, act, router, all);
    let first = r.count_or("num_dense_layers", 1, FAMILY);

    // Four kinds of layers at most, each described once.
    let kinds: Vec<Arc<LayerSpec>> = [(&full, false), (&full, true), (&local, false), (&local, true)]
        .into_iter()
        .map(|(attention, dense)| {
            let mut layer = sparse(attention.clone(), moe.clone(), form(&norm));
            if dense {
                layer.feed_forward = FeedForwardSpec::Mlp(gated_mlp(dense_width, act, false));
            }
            Arc::new(layer)
        })
        .collect();
    let kind = |(&slides, i): (&bool, u64)| kinds[2 * usize::from(slides) + usize::from(i < first)].clone();
    let layers = slides.iter().zip(0..).map(kind).collect();
    let mut spec = decoder(r, &s, layers, norm, tied);
    spec.embedding.scale = scaled.then(|| (s.h as f64).sqrt());
    router_extras(r, &mut spec.not_modelled);
    spec
}
