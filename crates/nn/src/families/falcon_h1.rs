//! Falcon-H1: attention and Mamba 2 side by side in every block, with multipliers on every branch.

use super::bamba;
use super::common::{
    FAMILY, FREE, activation, attention, block, decoder, equal, gated_mlp, intermediate_size, rms, rope_theta, rotary,
    sizes_or,
};
use super::mamba2::{HYBRID_KEYS, expanded, state_space};
use crate::config::Reader;
use crate::spec::{GateOrder, LayerNames, Mixer, ModelNames, ModelSpec, ParallelSpec};

/// A list of `N` numbers; all one where it is absent.
fn multipliers<const N: usize>(r: &mut Reader<'_>, key: &'static str) -> [f64; N] {
    let Some(listed) = r.list_len(key) else { return [1.0; N] };
    if listed != N {
        r.reject(
            key,
            format!("`{key}` lists {listed} numbers, where the family has {N}"),
            "each belongs to one part",
            &format!("--set {key}=null"),
        );
        return [1.0; N];
    }
    std::array::from_fn(|i| r.float_or(format!("{key}.{i}").as_str(), 1.0, FREE))
}

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let s = sizes_or(r, Some(8), None);
    let f = intermediate_size(r, &s);
    let act = activation(r, "hidden_act", "silu");
    let eps = r.float_or("rms_norm_eps", 1e-5, FREE);
    let norm = rms(eps);
    let (attention_bias, mlp_bias) = (r.flag("attention_bias", false), r.flag("mlp_bias", false));
    let tied = r.flag("tie_word_embeddings", false);
    let inner = if super::common::is_null(r, "mamba_d_ssm") {
        expanded(r, s.h, "mamba_expand")
    } else {
        r.known(&["mamba_expand"]);
        r.size_or("mamba_d_ssm", 1024, FAMILY)
    };
    let mut mamba = state_space(r, &HYBRID_KEYS, inner, &["mamba_d_head"], eps);
    mamba.conv.act = Some(act);
    mamba.out_bias = r.flag("projectors_bias", false);
    mamba.multipliers = Some((r.float_or("ssm_in_multiplier", 1.0, FREE), multipliers(r, "ssm_multipliers")));
    let gate_last = r.flag("mamba_norm_before_gate", true);
    let normed = r.flag("mamba_rms_norm", false);
    if let Some(norm) = &mut mamba.norm {
        norm.order = if gate_last { GateOrder::Last } else { GateOrder::First };
    }
    mamba.norm = mamba.norm.filter(|_| normed);

    let mut attention = attention(&s, attention_bias, attention_bias);
    attention.rotary = Some(rotary(s.d, rope_theta(r, 10_000.0)));
    attention.dropout = r.float_or("attention_dropout", 0.0, FAMILY);
    // Keys are multiplied with it before they meet the queries.
    attention.scale *= r.float_or("key_multiplier", 1.0, FREE);
    let parallel = ParallelSpec {
        attention: attention.clone(),
        attention_scales: [
            r.float_or("attention_in_multiplier", 1.0, FREE),
            r.float_or("attention_out_multiplier", 1.0, FREE),
        ],
        mamba,
        mamba_scale: r.float_or("ssm_out_multiplier", 1.0, FREE),
    };
    let mut mlp = gated_mlp(f, act, mlp_bias);
    mlp.multipliers = Some(multipliers(r, "mlp_multipliers"));
    let mut layer = block(attention, mlp, bamba::form(&norm));
    layer.mixer = Mixer::Parallel(Box::new(parallel));
    layer.names = LayerNames { attention: "", feed_forward: "feed_forward" };
    r.known(&["mamba_use_mlp", "num_logits_to_keep", "attn_layer_indices"]);
    let mut model = decoder(r, &s, equal(&s, layer), norm, tied);
    model.embedding.scale = Some(r.float_or("embedding_multiplier", 1.0, FREE));
    model.head.scale = Some(r.float_or("lm_head_multiplier", 1.0, FREE));
    model.names = ModelNames { norm: "final_layernorm", ..ModelNames::default() };
    model
}
