//! Phi-3 and Phi-4: one map for queries, keys and values, one for gate and up.

use super::common::{
    FAMILY, FREE, activation, attention, block, decoder, equal, fixed_bias, fused_mlp, intermediate_size, pre_norm,
    rms, rope_theta, rotary, rotary_dim, sizes, window,
};
use crate::config::Reader;
use crate::spec::{FusedOrder, LinearSpec, ModelSpec, Projection, RotaryJoin, RotarySpec};

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let s = sizes(r);
    let f = intermediate_size(r, &s);
    let act = activation(r, "hidden_act", "silu");
    let norm = rms(r.float_or("rms_norm_eps", 1e-5, FREE));
    let tied = r.flag("tie_word_embeddings", false);
    r.known(&["original_max_position_embeddings", "embd_pdrop"]);
    fixed_bias(r, false);
    let mut attention = attention(&s, false, false);
    attention.projection = Projection::Fused { qkv: LinearSpec::new("qkv_proj", false), order: FusedOrder::Blocks };
    let dim = rotary_dim(r, s.d, 1.0);
    attention.rotary = Some(RotarySpec { join: RotaryJoin::Each, ..rotary(dim, rope_theta(r, 10_000.0)) });
    attention.window = window(r, None);
    attention.dropout = r.float_or("attention_dropout", 0.0, "off");
    let mlp = fused_mlp(f, act, false);
    let mut layer = block(attention, mlp, pre_norm(&norm));
    layer.dropout = r.float_or("resid_pdrop", 0.0, FAMILY);
    decoder(r, &s, equal(&s, layer), norm, tied)
}
