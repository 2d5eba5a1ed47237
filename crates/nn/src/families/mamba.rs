//! Mamba and Falcon Mamba: selective state spaces in every block, no attention and no feed-forward part.

use super::common::{FAMILY, FREE, Sizes, activation, decoder, equal, named, rms};
use crate::config::Reader;
use crate::spec::{
    BlockForm, ConvSpec, FeedForwardSpec, LayerNames, LayerSpec, MambaNorms, MambaSpec, Mixer, ModelNames, ModelSpec,
    NormKind, NormSpec,
};

/// Keys of a state space, which families name differently.
pub(super) struct Keys {
    pub state: &'static [&'static str],
    pub taps: &'static [&'static str],
    pub expand: &'static [&'static str],
    pub rank: &'static [&'static str],
    pub conv_bias: &'static [&'static str],
    pub bias: &'static [&'static str],
}

const KEYS: Keys = Keys {
    state: &["state_size"],
    taps: &["conv_kernel"],
    expand: &["expand"],
    rank: &["time_step_rank"],
    conv_bias: &["use_conv_bias"],
    bias: &["use_bias"],
};

/// `"auto"` or absent: a sixteenth of the width, rounded up.
fn rank(r: &mut Reader<'_>, keys: &[&'static str], h: u64) -> u64 {
    let auto = keys.iter().any(|key| r.config().find(key).is_some_and(|found| found.value.as_str() == Some("auto")));
    if auto {
        r.known(keys);
        return h.div_ceil(16);
    }
    r.size_or(keys, h.div_ceil(16), "hidden_size / 16, rounded up")
}

/// Reads a state space on a stream of width `h`.
pub(super) fn state_space(r: &mut Reader<'_>, h: u64, keys: &Keys, act: &'static str) -> MambaSpec {
    let expand = r.float_or(keys.expand, 2.0, FAMILY);
    let inner = (expand * h as f64) as u64;
    if inner == 0 {
        r.reject(
            keys.expand[0],
            format!("`{}` is {expand}, which makes no inner channel of {h}", keys.expand[0]),
            "a state space has at least one inner channel",
            &format!("--set {}=2", keys.expand[0]),
        );
    }
    let state = r.size_or(keys.state, 16, FAMILY);
    r.check_product("the states of a token", &[("hidden_size", inner), (keys.state[0], state)]);
    MambaSpec {
        inner: inner.max(1),
        state,
        rank: rank(r, keys.rank, h),
        conv: ConvSpec {
            name: "conv1d",
            taps: r.size_or(keys.taps, 4, FAMILY),
            bias: r.flag(keys.conv_bias, true),
            act: Some(activation(r, act, "silu")),
        },
        bias: r.flag(keys.bias, false),
        heads: None,
        norms: MambaNorms::None,
    }
}

/// A block that is one state space.
pub(super) fn layer(mixer: impl Into<Mixer>, norm: &NormSpec, wide: bool) -> LayerSpec {
    LayerSpec {
        names: LayerNames { attention: "mixer", feed_forward: "mixer" },
        ..LayerSpec::new(mixer, FeedForwardSpec::None, BlockForm::Single { n: named("norm", norm), wide })
    }
}

/// Names of models of state spaces alone.
pub(super) fn names() -> ModelNames {
    ModelNames { body: "backbone", embed: "embeddings", norm: "norm_f", ..ModelNames::default() }
}

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    model(r, |_| MambaNorms::None)
}

pub(super) fn read_falcon(r: &mut Reader<'_>) -> ModelSpec {
    r.known(&["use_falcon_mambapy"]);
    model(r, |r| MambaNorms::Plain(NormSpec { kind: NormKind::RmsPlain, eps: r.float_or("mixer_rms_eps", 1e-6, FREE) }))
}

fn model(r: &mut Reader<'_>, norms: impl Fn(&mut Reader<'_>) -> MambaNorms) -> ModelSpec {
    let (h, l, v) = (r.size("hidden_size"), r.layers(["num_hidden_layers", "n_layer"]), r.size("vocab_size"));
    r.check_product("the embedding table", &[("vocab_size", v), ("hidden_size", h)]);
    let mut mamba = state_space(r, h, &KEYS, "hidden_act");
    mamba.norms = norms(r);
    // Follows from the width; kept in files.
    r.known(&["intermediate_size", "d_inner"]);
    let norm = rms(r.float_or("layer_norm_epsilon", 1e-5, FREE));
    let wide = r.flag("residual_in_fp32", true);
    let tied = r.flag("tie_word_embeddings", true);
    let layer = layer(mamba, &norm, wide);
    let s = Sizes { h, l, a: 1, k: 1, d: 1, v };
    let mut model = decoder(r, &s, equal(&s, layer), norm, tied);
    model.names = names();
    model.has_sdpa = false;
    model
}
