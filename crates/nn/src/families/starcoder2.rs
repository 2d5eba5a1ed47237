//! The second `StarCoder`: layer norms and biases everywhere, grouped heads, perhaps a window.

use super::common::{
    FAMILY, FREE, activation, attention, block, decoder, equal, intermediate_size, plain_mlp, pre_norm, rope_theta,
    rotary, sizes_or, window,
};
use crate::config::Reader;
use crate::spec::{ModelSpec, NormKind, NormSpec};

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let s = sizes_or(r, Some(2), None);
    let f = intermediate_size(r, &s);
    let act = activation(r, "hidden_act", "gelu_pytorch_tanh");
    let norm = NormSpec { kind: NormKind::LayerNorm { bias: true }, eps: r.float_or("norm_epsilon", 1e-5, FREE) };
    let tied = r.flag("tie_word_embeddings", true);
    let bias = r.flag("use_bias", true);
    r.known(&["mlp_type", "norm_type"]);
    let mut attention = attention(&s, bias, bias);
    attention.rotary = Some(rotary(s.d, rope_theta(r, 10_000.0)));
    attention.window = window(r, None);
    attention.dropout = r.float_or("attention_dropout", 0.0, FAMILY);
    let mut layer = block(attention, plain_mlp(f, act, "c_fc", "c_proj", bias), pre_norm(&norm));
    layer.dropout = r.float_or("residual_dropout", 0.0, FAMILY);
    let mut model = decoder(r, &s, equal(&s, layer), norm, tied);
    model.embedding.dropout = r.float_or("embedding_dropout", 0.0, FAMILY);
    model
}
