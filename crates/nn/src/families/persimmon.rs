//! Persimmon: GPT-NeoX's fused projection with layer norms on queries and keys, half of each head rotated.

use super::common::{
    FAMILY, FREE, activation, attention, block, decoder, equal, intermediate_size, partial_rotary, plain_mlp,
    plain_sizes, pre_norm,
};
use crate::config::Reader;
use crate::spec::{
    FusedOrder, LinearSpec, ModelNames, ModelSpec, NormKind, NormSpec, Projection, QkNorm, QkNormPlace, RotaryJoin,
    RotarySpec,
};

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let s = plain_sizes(r);
    let f = intermediate_size(r, &s);
    let act = activation(r, "hidden_act", "relu2");
    let norm = NormSpec { kind: NormKind::LayerNorm { bias: true }, eps: r.float_or("layer_norm_eps", 1e-5, FREE) };
    let tied = r.flag("tie_word_embeddings", false);
    let rotary = partial_rotary(r, s.d, "partial_rotary_factor", 0.5, ["rope_theta", "rotary_emb_base"]);
    let mut attention = attention(&s, true, true);
    attention.projection =
        Projection::Fused { qkv: LinearSpec::new("query_key_value", true), order: FusedOrder::PickedPerHead };
    attention.out = LinearSpec::new("dense", true);
    if r.flag("qk_layernorm", true) {
        attention.qk_norm = QkNorm::PerHead(norm.clone());
        attention.qk_norm_names = ["q_layernorm", "k_layernorm"];
        attention.qk_norm_place = QkNormPlace::Heads;
    }
    attention.rotary = Some(RotarySpec { join: RotaryJoin::Last, ..rotary });
    attention.dropout = r.float_or("attention_dropout", 0.0, FAMILY);
    let mlp = plain_mlp(f, act, "dense_h_to_4h", "dense_4h_to_h", true);
    let mut layer = block(attention, mlp, pre_norm(&norm));
    layer.dropout = r.float_or("hidden_dropout", 0.0, FAMILY);
    if layer.dropout > 0.0 {
        r.not_applied(
            "hidden_dropout",
            "`hidden_dropout` is applied to both branches, and in this family it belongs to the feed-forward part alone",
            "one mask of the residual stream per layer too many",
            "--set hidden_dropout=0",
        );
    }
    let mut model = decoder(r, &s, equal(&s, layer), norm, tied);
    model.names = ModelNames { norm: "final_layernorm", ..ModelNames::default() };
    model
}
