//! Granite with experts: softmax over the chosen experts only; Granite's constants. With a shared feed-forward part beside
//! the mixture under a name of its own.

use super::common::{
    FAMILY, FREE, activation, attention, decoder, equal, intermediate_size, pre_norm, rms, rope_theta, rotary, sizes,
};
use super::experts::{Counts, counts, mixture, router_extras, sparse};
use super::granite::scale_ends;
use crate::config::Reader;
use crate::spec::{
    Activation, AttentionSpec, LayerNames, LayerSpec, LinearSpec, MlpInput, MlpSpec, ModelSpec, NormSpec, RouterSpec,
    Scores, SharedSpec,
};

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    model(r, None)
}

pub(super) fn read_shared(r: &mut Reader<'_>) -> ModelSpec {
    let width = r.count_or("shared_intermediate_size", 0, FAMILY);
    model(r, Some(width).filter(|width| *width > 0))
}

/// The feed-forward part that every token passes.
pub(super) fn shared(r: &mut Reader<'_>, h: u64, width: u64, act: Activation) -> MlpSpec {
    r.check_product("the shared part", &[("shared_intermediate_size", width), ("hidden_size", h)]);
    let input = MlpInput::GatedFused(LinearSpec::new("input_linear", false));
    MlpSpec::new(width, act, input, LinearSpec::new("output_linear", false))
}

/// A mixture in a module beside the shared part.
pub(super) fn with_shared(
    attention: AttentionSpec,
    counts: &Counts,
    act: Activation,
    shared: MlpSpec,
    norm: &NormSpec,
) -> LayerSpec {
    let shared = SharedSpec { mlp: shared, name: "shared_mlp", gate: None };
    let mut moe = mixture(counts, act, router("block_sparse_moe.router"), Some(shared));
    moe.name = "block_sparse_moe.experts";
    let mut layer = sparse(attention, moe, pre_norm(norm));
    layer.names = LayerNames { feed_forward: "", ..LayerNames::default() };
    layer
}

fn router(name: &'static str) -> RouterSpec {
    RouterSpec { name, scores: Scores::SoftmaxOfChosen, stream_weights: true, ..RouterSpec::default() }
}

fn model(r: &mut Reader<'_>, width: Option<u64>) -> ModelSpec {
    let s = sizes(r);
    let f = intermediate_size(r, &s);
    let experts = r.size_or(["num_local_experts", "num_experts"], 8, FAMILY);
    let top_k = r.size_or("num_experts_per_tok", 2, FAMILY);
    let counts = counts(r, s.h, ("num_local_experts", experts), top_k, ("intermediate_size", f));
    let act = activation(r, "hidden_act", "silu");
    let norm = rms(r.float_or("rms_norm_eps", 1e-6, FREE));
    let bias = r.flag("attention_bias", false);
    let tied = r.flag("tie_word_embeddings", false);
    let mut attention = attention(&s, bias, bias);
    attention.rotary = Some(rotary(s.d, rope_theta(r, 10_000.0)));
    attention.scale = r.float_or("attention_multiplier", 1.0, FAMILY);
    attention.dropout = r.float_or("attention_dropout", 0.0, "off");
    let mut layer = if let Some(width) = width {
        with_shared(attention, &counts, act, shared(r, s.h, width, act), &norm)
    } else {
        let mut layer = sparse(attention, mixture(&counts, act, router("router"), None), pre_norm(&norm));
        layer.names = LayerNames { feed_forward: "block_sparse_moe", ..LayerNames::default() };
        layer
    };
    layer.residual_scale = Some(r.float_or("residual_multiplier", 1.0, FAMILY));
    let mut spec = decoder(r, &s, equal(&s, layer), norm, tied);
    scale_ends(r, &mut spec);
    router_extras(r, &mut spec.not_modelled);
    spec
}
