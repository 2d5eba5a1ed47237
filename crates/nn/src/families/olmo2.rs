//! OLMo 2 and 3: norms after each branch, queries and keys normalised over all heads; OLMo 3 adds windows, `FlexOLMo`
//! mixtures.

use super::common::{
    FAMILY, FREE, Sizes, activation, alternate, attention, block, decoder, equal, gated_mlp, intermediate_size,
    post_norm, rope_theta, rotary, sizes, sliding, window,
};
use super::experts::{counts, mixture, router_extras, sparse};
use crate::config::Reader;
use crate::spec::{
    Activation, AttentionSpec, LayerSpec, ModelSpec, NormKind, NormSpec, QkNorm, RotaryPrecision, RotarySpec,
    RouterSpec,
};

/// What both read alike.
struct Base {
    s: Sizes,
    f: u64,
    act: Activation,
    norm: NormSpec,
    tied: bool,
    attention: AttentionSpec,
}

impl Base {
    fn read(r: &mut Reader<'_>, theta: f64, eps: f64) -> Self {
        let s = sizes(r);
        let f = intermediate_size(r, &s);
        let act = activation(r, "hidden_act", "silu");
        let norm = NormSpec { kind: NormKind::RmsWeightInF32, eps: r.float_or("rms_norm_eps", eps, FREE) };
        let bias = r.flag("attention_bias", false);
        let tied = r.flag("tie_word_embeddings", false);
        let mut attention = attention(&s, bias, bias);
        attention.qk_norm = QkNorm::Full(norm.clone());
        attention.rotary =
            Some(RotarySpec { precision: RotaryPrecision::WideTables, ..rotary(s.d, rope_theta(r, theta)) });
        attention.dropout = r.float_or("attention_dropout", 0.0, "off");
        Self { s, f, act, norm, tied, attention }
    }

    fn layer(&self, attention: AttentionSpec) -> LayerSpec {
        block(attention, gated_mlp(self.f, self.act, false), post_norm(&self.norm))
    }
}

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let base = Base::read(r, 10_000.0, 1e-5);
    let layers = equal(&base.s, base.layer(base.attention.clone()));
    decoder(r, &base.s, layers, base.norm, base.tied)
}

/// OLMo 3: three layers with a window to one without, a rotary table for each kind.
pub(super) fn read_olmo3(r: &mut Reader<'_>) -> ModelSpec {
    let base = Base::read(r, 500_000.0, 1e-5);
    let slides = sliding(r, base.s.l, |i| !(i + 1).is_multiple_of(4));
    let mut windowed = base.attention.clone();
    windowed.window = window(r, Some(4096));
    windowed.rotary = windowed.rotary.map(|rotary| RotarySpec { table: 1, ..rotary });
    let layers = alternate(&slides, base.layer(base.attention.clone()), base.layer(windowed));
    decoder(r, &base.s, layers, base.norm, base.tied)
}

/// `FlexOLMo`: a mixture in every block.
pub(super) fn read_flex(r: &mut Reader<'_>) -> ModelSpec {
    let base = Base::read(r, 500_000.0, 1e-6);
    let experts = r.size_or(["num_experts", "num_local_experts"], 7, FAMILY);
    let top_k = r.size_or("num_experts_per_tok", 5, FAMILY);
    let counts = counts(r, base.s.h, ("num_experts", experts), top_k, ("intermediate_size", base.f));
    let router = RouterSpec {
        name: "gate",
        normalise: r.flag("norm_topk_prob", false),
        narrow_weights: true,
        ..RouterSpec::default()
    };
    let layer = sparse(base.attention, mixture(&counts, base.act, router, None), post_norm(&base.norm));
    let mut spec = decoder(r, &base.s, equal(&base.s, layer), base.norm, base.tied);
    router_extras(r, &mut spec.not_modelled);
    spec
}
