//! GPT-NeoX and Pythia: one fused projection cut per head, attention and feed-forward side by side, partial rotation.

use super::common::{
    FAMILY, FREE, activation, attention, block, decoder, equal, intermediate_size, named, partial_rotary, plain_mlp,
    plain_sizes,
};
use crate::config::Reader;
use crate::spec::{
    BlockForm, FusedOrder, LayerNames, LinearSpec, ModelNames, ModelSpec, NormKind, NormSpec, Projection, RotaryJoin,
    RotarySpec,
};

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let s = plain_sizes(r);
    let f = intermediate_size(r, &s);
    let act = activation(r, "hidden_act", "gelu");
    let norm = NormSpec { kind: NormKind::LayerNorm { bias: true }, eps: r.float_or("layer_norm_eps", 1e-5, FREE) };
    let tied = r.flag("tie_word_embeddings", false);
    let bias = r.flag("attention_bias", true);
    let parallel = r.flag("use_parallel_residual", true);
    let rotary = partial_rotary(r, s.d, "rotary_pct", 0.25, ["rotary_emb_base", "rope_theta"]);
    let dropout = r.float_or("hidden_dropout", 0.0, FAMILY);

    let mut attention = attention(&s, bias, bias);
    attention.projection =
        Projection::Fused { qkv: LinearSpec::new("query_key_value", bias), order: FusedOrder::PerHead };
    attention.out = LinearSpec::new("dense", bias);
    attention.rotary = Some(RotarySpec { join: RotaryJoin::Last, ..rotary });
    attention.dropout = r.float_or("attention_dropout", 0.0, FAMILY);
    let (n1, n2) = (named("input_layernorm", &norm), named("post_attention_layernorm", &norm));
    let form = if parallel { BlockForm::Parallel { n1, n2: Some(n2) } } else { BlockForm::Sequential { n1, n2 } };
    let mut layer = block(attention, plain_mlp(f, act, "dense_h_to_4h", "dense_4h_to_h", true), form);
    layer.names = LayerNames { attention: "attention", feed_forward: "mlp" };
    layer.dropout = dropout;
    let mut model = decoder(r, &s, equal(&s, layer), norm, tied);
    model.embedding.dropout = dropout;
    model.names = ModelNames { body: "gpt_neox", embed: "embed_in", norm: "final_layer_norm", ..ModelNames::default() };
    model
}
