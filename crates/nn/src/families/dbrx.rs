//! DBRX: one clipped projection for queries, keys and values; experts stacked in one matrix per map.

use super::common::{FAMILY, FREE, Sizes, activation, attention, decoder, equal, named, rope_theta, rotary};
use super::experts::{counts, mixture, router_extras, sparse};
use crate::config::{Part, Reader};
use crate::spec::{
    BlockForm, ExpertLayout, FusedOrder, LayerNames, LinearSpec, ModelNames, ModelSpec, NormKind, NormSpec, Projection,
    RouterSpec,
};

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let h = r.size(["d_model", "hidden_size"]);
    let l = r.layers(["n_layers", "num_hidden_layers"]);
    let a = r.size(["n_heads", "num_attention_heads"]);
    let v = r.size("vocab_size");
    let k = r.size_or(["attn_config.kv_n_heads", "num_key_value_heads"], 1, FAMILY);
    r.require_divides(
        Part::new("d_model", h, "wide"),
        Part::new("n_heads", a, "query heads"),
        "each head gets d_model / n_heads",
    );
    r.require_divides(
        Part::new("n_heads", a, "query heads"),
        Part::new("attn_config.kv_n_heads", k, "key/value heads"),
        "each key/value head serves an equal number of query heads",
    );
    let s = Sizes { h, l, a, k, d: (h / a.max(1)).max(1), v };
    r.check_product("the embedding table", &[("vocab_size", v), ("d_model", h)]);
    let experts = r.size_or("ffn_config.moe_num_experts", 4, FAMILY);
    let top_k = r.size_or("ffn_config.moe_top_k", 1, FAMILY);
    let f = r.size_or("ffn_config.ffn_hidden_size", 3584, FAMILY);
    let counts = counts(r, h, ("ffn_config.moe_num_experts", experts), top_k, ("ffn_config.ffn_hidden_size", f));
    let act = activation(r, "ffn_config.ffn_act_fn.name", "silu");
    let norm = NormSpec { kind: NormKind::LayerNorm { bias: false }, eps: 1e-5 };
    let normalised = r.float_or("ffn_config.moe_normalize_expert_weights", 1.0, FREE);
    r.known(&["attn_config.rope_theta", "ffn_config.moe_loss_weight", "ffn_config.hidden_size", "rope_theta"]);

    let mut attention = attention(&s, false, false);
    attention.projection = Projection::Fused { qkv: LinearSpec::new("Wqkv", false), order: FusedOrder::Blocks };
    attention.out = LinearSpec::new("out_proj", false);
    attention.clip_qkv = r.opt_float("attn_config.clip_qkv");
    attention.rotary = Some(rotary(s.d, rope_theta(r, 10_000.0)));
    attention.dropout = r.float_or("attn_config.attn_pdrop", 0.0, "off");
    let router = RouterSpec {
        name: "router",
        inner: Some("layer"),
        narrow_scores: true,
        normalise: normalised != 0.0,
        ..RouterSpec::default()
    };
    let mut moe = mixture(&counts, act, router, None);
    moe.layout = ExpertLayout::Stacked;
    let form =
        BlockForm::Sequential { n1: named("norm_attn_norm.norm_1", &norm), n2: named("norm_attn_norm.norm_2", &norm) };
    let mut layer = sparse(attention, moe, form);
    layer.names = LayerNames { attention: "norm_attn_norm.attn", feed_forward: "ffn" };
    layer.dropout = r.float_or("resid_pdrop", 0.0, "off");
    let mut spec = decoder(r, &s, equal(&s, layer), norm, false);
    spec.max_positions = r.opt_size(["max_seq_len", "max_position_embeddings"]);
    spec.names =
        ModelNames { body: "transformer", embed: "wte", layers: "blocks", norm: "norm_f", ..ModelNames::default() };
    if r.flag("tie_word_embeddings", false) {
        r.reject(
            "tie_word_embeddings",
            "DBRX has a head of its own",
            "transformers refuses this config too",
            "--set tie_word_embeddings=false",
        );
    }
    router_extras(r, &mut spec.not_modelled);
    spec.not_modelled.push(
        "transformers' loop over experts: products and kept tensors are those of one grouped product, but its backward \
         pass also makes a gradient of full size for each expert it slices out of a stacked weight"
            .to_owned(),
    );
    spec
}
