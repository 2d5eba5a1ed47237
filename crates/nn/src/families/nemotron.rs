//! Nemotron and Minitron: layer norms whose weight counts from one, `relu2` in a plain MLP, half of each head rotated.

use super::common::{
    FREE, activation, attention, block, decoder, equal, intermediate_size, plain_mlp, pre_norm, rope_theta, rotary,
    rotary_dim, sizes,
};
use crate::config::Reader;
use crate::spec::{ModelSpec, NormKind, NormSpec, RotaryJoin, RotarySpec};

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let s = sizes(r);
    let f = intermediate_size(r, &s);
    let act = activation(r, "hidden_act", "relu2");
    let norm = NormSpec { kind: NormKind::LayerNormUnitOffset, eps: r.float_or("norm_eps", 1e-5, FREE) };
    let bias = r.flag("attention_bias", false);
    let mlp_bias = r.flag("mlp_bias", false);
    let tied = r.flag("tie_word_embeddings", false);
    let mut attention = attention(&s, bias, bias);
    let dim = rotary_dim(r, s.d, 0.5);
    attention.rotary = Some(RotarySpec { join: RotaryJoin::Last, ..rotary(dim, rope_theta(r, 10_000.0)) });
    attention.dropout = r.float_or("attention_dropout", 0.0, "off");
    let mlp = plain_mlp(f, act, "up_proj", "down_proj", mlp_bias);
    let layer = block(attention, mlp, pre_norm(&norm));
    decoder(r, &s, equal(&s, layer), norm, tied)
}
