//! `BitNet` b1.58: Llama with `relu2` and a norm before the output map of either branch. Counted as trained, in floating
//! point; how a release packs its ternary weights is another matter.

use super::common::{
    FREE, activation, attention, block, decoder, equal, gated_mlp, intermediate_size, named, pre_norm, rms, rope_theta,
    rotary, sizes_or,
};
use crate::config::Reader;
use crate::spec::ModelSpec;

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let s = sizes_or(r, Some(5), None);
    let f = intermediate_size(r, &s);
    let act = activation(r, "hidden_act", "relu2");
    let norm = rms(r.float_or("rms_norm_eps", 1e-5, FREE));
    let bias = r.flag("attention_bias", false);
    let tied = r.flag("tie_word_embeddings", false);
    let mut attention = attention(&s, bias, bias);
    attention.rotary = Some(rotary(s.d, rope_theta(r, 500_000.0)));
    attention.out_norm = Some(named("attn_sub_norm", &norm));
    attention.dropout = r.float_or("attention_dropout", 0.0, "off");
    let mut mlp = gated_mlp(f, act, false);
    mlp.norm = Some(named("ffn_sub_norm", &norm));
    let layer = block(attention, mlp, pre_norm(&norm));
    decoder(r, &s, equal(&s, layer), norm, tied)
}
