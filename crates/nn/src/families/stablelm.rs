//! StableLM: layer norms around a gated feed-forward part, partial rotation, perhaps a norm for every head.

use super::common::{
    FAMILY, FREE, activation, attention, block, decoder, equal, gated_mlp, intermediate_size, named, partial_rotary,
    pre_norm, sizes_or,
};
use crate::config::Reader;
use crate::spec::{BlockForm, ModelSpec, NormKind, NormSpec, QkNorm, QkNormPlace, RotaryJoin, RotarySpec};

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let s = sizes_or(r, Some(32), None);
    let f = intermediate_size(r, &s);
    let act = activation(r, "hidden_act", "silu");
    let eps = r.float_or(["layer_norm_eps", "norm_eps"], 1e-5, FREE);
    let norm = NormSpec { kind: NormKind::LayerNorm { bias: true }, eps };
    let tied = r.flag("tie_word_embeddings", false);
    let rotary = partial_rotary(r, s.d, "partial_rotary_factor", 0.25, ["rope_theta", "rotary_emb_base"]);
    let parallel = r.flag("use_parallel_residual", false);
    let bias = r.flag("use_qkv_bias", false);

    let mut attention = attention(&s, bias, false);
    attention.rotary = Some(RotarySpec { join: RotaryJoin::Last, ..rotary });
    if r.flag("qk_layernorm", false) {
        attention.qk_norm = QkNorm::Modules(NormSpec { kind: NormKind::LayerNorm { bias: false }, eps });
        attention.qk_norm_names = ["q_layernorm", "k_layernorm"];
        attention.qk_norm_place = QkNormPlace::Heads;
    }
    attention.dropout = r.float_or("attention_dropout", 0.0, FAMILY);
    let form = if parallel { BlockForm::ParallelInto { n1: named("input_layernorm", &norm) } } else { pre_norm(&norm) };
    let mut layer = block(attention, gated_mlp(f, act, false), form);
    layer.dropout = r.float_or("hidden_dropout", 0.0, FAMILY);
    if layer.dropout > 0.0 {
        r.not_applied(
            "hidden_dropout",
            "`hidden_dropout` is applied to both branches, and in this family it belongs to the feed-forward part alone",
            "one mask of the residual stream per layer too many",
            "--set hidden_dropout=0",
        );
    }
    decoder(r, &s, equal(&s, layer), norm, tied)
}
