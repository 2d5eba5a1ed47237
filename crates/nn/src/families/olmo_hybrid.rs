//! OLMo Hybrid: gated delta networks with norms before their branches, attention with norms behind them.

use super::common::{
    FREE, activation, attention, block, decoder, gated_mlp, intermediate_size, post_norm, pre_norm, rms, rope_theta,
    rotary, sizes,
};
use super::qwen3_next::{DeltaDefaults, attends, delta};
use crate::config::Reader;
use crate::spec::{DeltaMaps, LinearSpec, ModelSpec, QkNorm};
use std::sync::Arc;

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let s = sizes(r);
    let f = intermediate_size(r, &s);
    let act = activation(r, "hidden_act", "silu");
    let norm = rms(r.float_or("rms_norm_eps", 1e-6, FREE));
    let bias = r.flag("attention_bias", false);
    let tied = r.flag("tie_word_embeddings", false);
    let mut attention = attention(&s, bias, bias);
    attention.qk_norm = QkNorm::Full(norm.clone());
    attention.dropout = r.float_or("attention_dropout", 0.0, "off");
    // Without parameters of rotation there is none.
    if r.is_object("rope_parameters") || r.has("rope_theta") {
        attention.rotary = Some(rotary(s.d, rope_theta(r, 500_000.0)));
    }
    let key_heads = r.opt_size("linear_num_key_heads").unwrap_or(s.a);
    let key_dim = r.opt_size("linear_key_head_dim").unwrap_or(((0.75 * s.h as f64 / key_heads as f64) as u64).max(1));
    let defaults = DeltaDefaults { key_heads: s.a, value_heads: s.a, key_dim, value_dim: key_dim.saturating_mul(2) };
    let mut delta = delta(r, s.h, act, DeltaMaps::Separate, &defaults);
    delta.norm.name = "o_norm";
    delta.norm.eps = 1e-5;
    delta.out = LinearSpec::new("o_proj", false);
    delta.beta_scale = r.flag("linear_allow_neg_eigval", true).then_some(2.0);
    r.known(&["linear_a_log_min", "linear_a_log_max", "linear_dt_min", "linear_dt_max", "linear_dt_init_floor"]);

    let mut scans = block(attention.clone(), gated_mlp(f, act, false), pre_norm(&norm));
    scans.mixer = delta.into();
    scans.names.attention = "linear_attn";
    let full = block(attention, gated_mlp(f, act, false), post_norm(&norm));
    let (full, scans) = (Arc::new(full), Arc::new(scans));
    let last = s.l.saturating_sub(1);
    let attends = attends(r, s.l, |i| i % 4 == 3 || (last < 3 && i == last));
    let layers =
        attends.iter().map(|&full_attention| if full_attention { full.clone() } else { scans.clone() }).collect();
    decoder(r, &s, layers, norm, tied)
}
