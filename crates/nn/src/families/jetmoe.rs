//! `JetMoE`: mixtures of attention heads and of feed-forward parts in every block.

use super::common::{FAMILY, FREE, Sizes, activation, attention, decoder, equal, pre_norm, rms, rope_theta, rotary};
use super::experts::{counts, mixture, router_extras, sparse};
use crate::config::Reader;
use crate::spec::{ExpertLayout, LayerNames, ModelSpec, Projection, RoutedSpec, RouterSpec, Scores};

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let (h, l, v) = (r.size("hidden_size"), r.layers("num_hidden_layers"), r.size("vocab_size"));
    let k = r.size_or("num_key_value_heads", 16, FAMILY);
    let d = r.size_or("kv_channels", 128, FAMILY);
    let f = r.size_or("intermediate_size", 5632, FAMILY);
    let experts = r.size_or(["num_local_experts", "moe_num_experts"], 8, FAMILY);
    let top_k = r.size_or(["num_experts_per_tok", "moe_top_k"], 2, FAMILY);
    let counts = counts(r, h, ("num_local_experts", experts), top_k, ("intermediate_size", f));
    r.check_product("the embedding table", &[("vocab_size", v), ("hidden_size", h)]);
    let width = [("num_local_experts", experts), ("num_key_value_heads", k), ("kv_channels", d), ("hidden_size", h)];
    r.check_product("the maps of the queries", &width);
    r.check_product("the queries of a token", &[("num_experts_per_tok", top_k), ("num_key_value_heads", k)]);
    // As many for each choice.
    r.known(&["num_attention_heads"]);
    let act = activation(r, "activation_function", "silu");
    let tied = r.flag("tie_word_embeddings", true);
    let s = Sizes { h, l, a: k.saturating_mul(top_k), k, d, v };
    let router = RouterSpec {
        name: "router",
        inner: Some("layer"),
        scores: Scores::SoftmaxOfChosen,
        stream_weights: true,
        ..RouterSpec::default()
    };
    let mut attention = attention(&s, false, false);
    attention.projection = Projection::Routed(Box::new(RoutedSpec { experts, top_k, router: router.clone() }));
    attention.rotary = Some(rotary(d, rope_theta(r, 10_000.0)));
    attention.dropout = r.float_or("attention_dropout", 0.0, FAMILY);
    let mut moe = mixture(&counts, act, router, None);
    moe.layout = ExpertLayout::Modules;
    moe.name = "";
    // Norms of blocks keep the default of their class.
    let mut layer = sparse(attention, moe, pre_norm(&rms(1e-6)));
    layer.names = LayerNames { attention: "self_attention", feed_forward: "mlp" };
    let norm = rms(r.float_or("rms_norm_eps", 1e-6, FREE));
    let mut spec = decoder(r, &s, equal(&s, layer), norm, tied);
    router_extras(r, &mut spec.not_modelled);
    spec
}
