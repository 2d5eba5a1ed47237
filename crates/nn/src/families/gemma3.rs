//! Gemma 3, the language part: norms on queries and keys, five layers with a window to one without, a rotary table for
//! each kind.

use super::common::{
    FAMILY, Given, activation, alternate, attention, block, decoder, gated_mlp, heads, intermediate_size, rotary,
    sliding, window,
};
use super::{gemma, gemma2};
use crate::config::Reader;
use crate::spec::{ModelSpec, QkNorm, QkNormPlace, RotarySpec};

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    // Released files of the models with a vision part leave out what equals the default of the class.
    let nested = r.config().sub_config().is_some();
    let mut size = |key: &str, default: u64| if nested { r.size_or(key, default, FAMILY) } else { r.size(key) };
    let h = size("hidden_size", 2304);
    let l = if nested { r.layers_or("num_hidden_layers", 26, FAMILY) } else { r.layers("num_hidden_layers") };
    let mut size = |key: &str, default: u64| if nested { r.size_or(key, default, FAMILY) } else { r.size(key) };
    let (a, v) = (size("num_attention_heads", 8), size("vocab_size", 262_208));
    let s = heads(r, &Given { h, l, a, v, k: Some(4), d: Some(256) });
    let f = intermediate_size(r, &s);
    let act = activation(r, "hidden_activation", "gelu_pytorch_tanh");
    r.known(&["cache_implementation", "_sliding_window_pattern"]);
    let norm = gemma::norm(r);
    let bias = r.flag("attention_bias", false);
    let tied = r.flag("tie_word_embeddings", true);

    let mut attention = attention(&s, bias, bias);
    attention.qk_norm = QkNorm::PerHead(norm.clone());
    attention.qk_norm_place = QkNormPlace::Heads;
    r.known(&["rope_scaling", "rope_parameters"]);
    let global = r.float_or("rope_theta", 1_000_000.0, super::common::FREE);
    let local = r.float_or("rope_local_base_freq", 10_000.0, super::common::FREE);
    attention.rotary = Some(rotary(s.d, global));
    attention.scale = 1.0 / r.float_or("query_pre_attn_scalar", 256.0, FAMILY).sqrt();
    attention.dropout = r.float_or("attention_dropout", 0.0, "off");
    // Read by the class and used by nothing.
    r.known(&["attn_logit_softcapping"]);
    gemma::causal(r);
    let window = window(r, Some(4096));
    let period = r.size_or("sliding_window_pattern", 6, FAMILY);
    let slides = sliding(r, s.l, |i| !(i + 1).is_multiple_of(period));
    let full = block(attention.clone(), gated_mlp(f, act, false), gemma2::sandwich(&norm));
    attention.window = window;
    attention.rotary = Some(RotarySpec { table: 1, ..rotary(s.d, local) });
    let layers = alternate(&slides, full, block(attention, gated_mlp(f, act, false), gemma2::sandwich(&norm)));
    let mut spec = decoder(r, &s, layers, norm, tied);
    spec.embedding.scale = Some((s.h as f64).sqrt());
    spec.head.softcap = r.opt_float("final_logit_softcapping");
    spec
}
