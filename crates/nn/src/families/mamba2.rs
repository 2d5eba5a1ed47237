//! State spaces with one decay per head: Mamba 2, and what hybrids of it read alike.

use super::common::{FAMILY, FREE, Sizes, activation, decoder, equal, rms};
use super::mamba;
use crate::config::Reader;
use crate::spec::{Activation, ConvSpec, GateOrder, GatedNormSpec, Mamba2Spec, ModelSpec};

/// Keys of a state space, and their defaults, which families name differently.
pub(super) struct Keys {
    pub heads: (&'static [&'static str], u64),
    pub state: (&'static [&'static str], u64),
    pub groups: (&'static [&'static str], u64),
    pub chunk: (&'static [&'static str], u64),
    pub taps: &'static [&'static str],
    pub conv_bias: &'static [&'static str],
    pub bias: &'static [&'static str],
}

pub(super) const KEYS: Keys = Keys {
    heads: (&["num_heads"], 128),
    state: (&["state_size"], 128),
    groups: (&["n_groups"], 8),
    chunk: (&["chunk_size"], 256),
    taps: &["conv_kernel"],
    conv_bias: &["use_conv_bias"],
    bias: &["use_bias"],
};

/// Keys of Bamba and Falcon-H1.
pub(super) const HYBRID_KEYS: Keys = Keys {
    heads: (&["mamba_n_heads"], 128),
    state: (&["mamba_d_state"], 256),
    groups: (&["mamba_n_groups"], 1),
    chunk: (&["mamba_chunk_size"], 256),
    taps: &["mamba_d_conv"],
    conv_bias: &["mamba_conv_bias"],
    bias: &["mamba_proj_bias"],
};

/// The norm of most families: the gate first, groups apart.
pub(super) fn gated_norm(groups: u64, eps: f64) -> GatedNormSpec {
    GatedNormSpec { name: "norm", eps, groups, order: GateOrder::First, act: Activation::Silu }
}

/// Reads a state space of so many inner channels, whose heads are as wide as `head_dim` says where that is a number.
pub(super) fn state_space(
    r: &mut Reader<'_>,
    keys: &Keys,
    inner: u64,
    head_dim: &[&'static str],
    eps: f64,
) -> Mamba2Spec {
    let heads = r.size_or(keys.heads.0, keys.heads.1, FAMILY);
    let auto =
        head_dim.iter().any(|key| r.config().find(key).is_some_and(|found| found.value.as_str() == Some("auto")));
    let width = if auto {
        r.known(head_dim);
        (inner / heads).max(1)
    } else {
        r.size_or(head_dim, (inner / heads).max(1), "the inner width / heads")
    };
    if heads.saturating_mul(width) != inner {
        r.reject(
            keys.heads.0[0],
            format!("{heads} heads of {width} channels are not the {inner} inner channels"),
            "heads and their width make up the inner width",
            &format!("--set {}={}", head_dim[0], (inner / heads).max(1)),
        );
    }
    let state = r.size_or(keys.state.0, keys.state.1, FAMILY);
    let groups = r.size_or(keys.groups.0, keys.groups.1, FAMILY);
    if !heads.is_multiple_of(groups) || !inner.is_multiple_of(groups) {
        r.reject(
            keys.groups.0[0],
            format!("{heads} heads are not in {groups} equal groups"),
            "the heads of a group share the maps in and out of the state",
            &format!("--set {}=1", keys.groups.0[0]),
        );
    }
    let chunk = r.size_or(keys.chunk.0, keys.chunk.1, FAMILY);
    r.check_product("the states of a token", &[(keys.heads.0[0], inner), (keys.state.0[0], state)]);
    r.check_product("both maps of the state", &[(keys.groups.0[0], groups), (keys.state.0[0], state)]);
    let bias = r.flag(keys.bias, false);
    Mamba2Spec {
        heads,
        head_dim: width,
        state,
        groups,
        chunk,
        conv: ConvSpec {
            name: "conv1d",
            taps: r.size_or(keys.taps, 4, FAMILY),
            bias: r.flag(keys.conv_bias, true),
            act: Some(Activation::Silu),
        },
        bias,
        out_bias: bias,
        norm: Some(gated_norm(groups, eps)),
        limits: [0.0, f64::INFINITY],
        multipliers: None,
    }
}

/// The inner width: so many times the width of the stream.
pub(super) fn expanded(r: &mut Reader<'_>, h: u64, key: &'static str) -> u64 {
    let expand = r.float_or(key, 2.0, FAMILY);
    let inner = (expand * h as f64) as u64;
    if inner == 0 {
        r.reject(
            key,
            format!("`{key}` is {expand}, which makes no inner channel of {h}"),
            "a state space has at least one inner channel",
            &format!("--set {key}=2"),
        );
    }
    inner.max(1)
}

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let (h, l, v) = (r.size("hidden_size"), r.layers(["num_hidden_layers", "n_layer"]), r.size("vocab_size"));
    r.check_product("the embedding table", &[("vocab_size", v), ("hidden_size", h)]);
    let eps = r.float_or("layer_norm_epsilon", 1e-5, FREE);
    let inner = expanded(r, h, "expand");
    let mut mamba = state_space(r, &KEYS, inner, &["head_dim"], eps);
    mamba.conv.act = Some(activation(r, "hidden_act", "silu"));
    // Not used by this version, and what follows from others.
    r.known(&["time_step_rank", "intermediate_size"]);
    let wide = r.flag("residual_in_fp32", true);
    let tied = r.flag("tie_word_embeddings", false);
    let norm = rms(eps);
    let layer = mamba::layer(mamba, &norm, wide);
    let s = Sizes { h, l, a: 1, k: 1, d: 1, v };
    let mut model = decoder(r, &s, equal(&s, layer), norm, tied);
    model.names = mamba::names();
    model.has_sdpa = false;
    model
}
