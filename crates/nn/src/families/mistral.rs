//! Mistral: Llama with a window over every layer; a `null` window is none, an absent one 4096. Ministral names the layers
//! that have it; Ministral 3 grows its queries with their position.

use super::common::{
    FREE, Sizes, activation, alternate, attention, block, decoder, equal, fixed_bias, gated_mlp, intermediate_size,
    pre_norm, rms, rope_theta, rotary, sizes_or, sliding, window,
};
use crate::config::Reader;
use crate::spec::{Activation, AttentionSpec, LayerSpec, ModelSpec, NormSpec};

/// What they read alike.
struct Base {
    s: Sizes,
    f: u64,
    act: Activation,
    norm: NormSpec,
    tied: bool,
    attention: AttentionSpec,
}

impl Base {
    fn read(r: &mut Reader<'_>, head_dim: Option<u64>, eps: f64, theta: f64) -> Self {
        let s = sizes_or(r, Some(8), head_dim);
        let f = intermediate_size(r, &s);
        let act = activation(r, "hidden_act", "silu");
        let norm = rms(r.float_or("rms_norm_eps", eps, FREE));
        let tied = r.flag("tie_word_embeddings", false);
        fixed_bias(r, false);
        let mut attention = attention(&s, false, false);
        attention.rotary = Some(rotary(s.d, rope_theta(r, theta)));
        attention.dropout = r.float_or("attention_dropout", 0.0, "off");
        Self { s, f, act, norm, tied, attention }
    }

    fn layer(&self, window: Option<u64>) -> LayerSpec {
        let attention = AttentionSpec { window, ..self.attention.clone() };
        block(attention, gated_mlp(self.f, self.act, false), pre_norm(&self.norm))
    }

    /// A model whose layers all have this window.
    fn model(self, r: &mut Reader<'_>, window: Option<u64>) -> ModelSpec {
        let layers = equal(&self.s, self.layer(window));
        decoder(r, &self.s, layers, self.norm, self.tied)
    }
}

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let base = Base::read(r, None, 1e-6, 10_000.0);
    let window = window(r, Some(4096));
    base.model(r, window)
}

pub(super) fn read_ministral(r: &mut Reader<'_>) -> ModelSpec {
    let base = Base::read(r, None, 1e-6, 10_000.0);
    let window = window(r, Some(4096));
    let slides = sliding(r, base.s.l, |_| window.is_some());
    let layers = alternate(&slides, base.layer(None), base.layer(window));
    decoder(r, &base.s, layers, base.norm, base.tied)
}

pub(super) fn read_ministral3(r: &mut Reader<'_>) -> ModelSpec {
    let base = Base::read(r, Some(128), 1e-5, 1_000_000.0);
    let window = window(r, None);
    let first = r.count_or(["rope_parameters.original_max_position_embeddings"], 16_384, FREE);
    let mut model = base.model(r, window);
    model.not_modelled.push(format!(
        "the factor of the queries that grows with their position (`llama_4_scaling_beta`): 1 for the first {first} \
         positions, elementwise beyond, one temporary as large as the queries of a layer"
    ));
    model
}
