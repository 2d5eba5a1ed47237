//! MiniMax-M2: queries and keys normalised over all heads, a part of each head turned, a sigmoid router whose choice a bias
//! corrects, no shared experts.

use super::common::{
    FAMILY, FREE, activation, attention, decoder, equal, intermediate_size, pre_norm, rms, rope_theta, rotary,
    rotary_dim, sizes_or,
};
use super::experts::{counts, mixture, router_extras, sparse};
use crate::config::Reader;
use crate::spec::{Correction, ModelSpec, QkNorm, RotaryJoin, RotarySpec, RouterSpec, Scores};

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let s = sizes_or(r, Some(8), Some(128));
    let f = intermediate_size(r, &s);
    let experts = r.size_or(["num_local_experts", "num_experts"], 256, FAMILY);
    let top_k = r.size_or("num_experts_per_tok", 8, FAMILY);
    let counts = counts(r, s.h, ("num_local_experts", experts), top_k, ("intermediate_size", f));
    let act = activation(r, "hidden_act", "silu");
    let norm = rms(r.float_or("rms_norm_eps", 1e-6, FREE));
    let tied = r.flag("tie_word_embeddings", false);
    let mut attention = attention(&s, false, false);
    attention.qk_norm = QkNorm::Full(norm.clone());
    // Released files name the channels that are turned, where others name their part of the head.
    let dim = match r.opt_size("rotary_dim") {
        Some(dim) if dim <= s.d => dim,
        Some(dim) => {
            r.reject(
                "rotary_dim",
                format!("`rotary_dim` is {dim}, and a head has {} channels", s.d),
                "a head turns at most all of its channels",
                "--set rotary_dim=64",
            );
            s.d
        }
        None => rotary_dim(r, s.d, 1.0),
    };
    attention.rotary = Some(RotarySpec { join: RotaryJoin::Last, ..rotary(dim, rope_theta(r, 5_000_000.0)) });
    attention.dropout = r.float_or("attention_dropout", 0.0, "off");
    let router = RouterSpec {
        name: "gate",
        scores: Scores::Sigmoid,
        correction: Correction::Buffer("e_score_correction_bias"),
        normalise: true,
        ..RouterSpec::default()
    };
    // transformers reads none of these of the released files.
    r.known(&["attn_type_list", "qk_norm_type", "use_qk_norm", "scoring_func", "use_routing_bias"]);
    r.known(&["shared_intermediate_size", "shared_moe_mode", "mlp_intermediate_size", "layernorm_full_attention_beta"]);
    r.known(&["layernorm_linear_attention_beta", "layernorm_mlp_beta", "max_model_len", "rotary_dim"]);
    let layer = sparse(attention, mixture(&counts, act, router, None), pre_norm(&norm));
    let mut spec = decoder(r, &s, equal(&s, layer), norm, tied);
    let modules = r.opt_count("num_mtp_modules").unwrap_or(0);
    let deep = r.opt_count("mtp_transformer_layers").unwrap_or(0);
    r.known(&["use_mtp"]);
    if modules > 0 {
        spec.not_modelled.push(format!(
            "{modules} × {deep} layers for multi-token prediction that the config announces: transformers \
             does not build them either. A layer is a block of the model"
        ));
    }
    router_extras(r, &mut spec.not_modelled);
    spec
}
