//! Cohere Command R: attention and MLP side by side behind one norm, layer norms without bias, scaled logits. Cohere 2
//! (Command R7B and A) has three layers with a window and rotation to one without either.

use super::common::{
    FAMILY, FREE, Sizes, activation, alternate, attention, block, decoder, equal, gated_mlp, intermediate_size, named,
    rope_theta, rotary, sizes, sliding, window,
};
use crate::config::Reader;
use crate::spec::{
    Activation, AttentionSpec, BlockForm, LayerSpec, ModelSpec, NormKind, NormSpec, QkNorm, QkNormPlace,
    RotaryPrecision, RotarySpec,
};
use std::sync::Arc;

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
    fn read(r: &mut Reader<'_>, theta: f64) -> Self {
        let s = sizes(r);
        let f = intermediate_size(r, &s);
        let act = activation(r, "hidden_act", "silu");
        let norm = NormSpec { kind: NormKind::LayerNormUpcast, eps: r.float_or("layer_norm_eps", 1e-5, FREE) };
        let bias = r.flag("attention_bias", false);
        let tied = r.flag("tie_word_embeddings", true);
        let mut attention = attention(&s, bias, bias);
        if r.flag("use_qk_norm", false) {
            attention.qk_norm = QkNorm::EveryHead(norm.clone());
            attention.qk_norm_place = QkNormPlace::Positions;
        }
        attention.rotary = Some(RotarySpec {
            interleaved: true,
            precision: RotaryPrecision::WideOperands,
            ..rotary(s.d, rope_theta(r, theta))
        });
        attention.dropout = r.float_or("attention_dropout", 0.0, "off");
        Self { s, f, act, norm, tied, attention }
    }

    fn layer(&self, attention: AttentionSpec) -> LayerSpec {
        let form = BlockForm::ParallelInto { n1: named("input_layernorm", &self.norm) };
        block(attention, gated_mlp(self.f, self.act, false), form)
    }

    fn finish(self, r: &mut Reader<'_>, layers: Vec<Arc<LayerSpec>>) -> ModelSpec {
        let mut spec = decoder(r, &self.s, layers, self.norm, self.tied);
        spec.head.scale = Some(r.float_or("logit_scale", 0.0625, FAMILY));
        spec
    }
}

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let base = Base::read(r, 500_000.0);
    let layers = equal(&base.s, base.layer(base.attention.clone()));
    base.finish(r, layers)
}

pub(super) fn read_cohere2(r: &mut Reader<'_>) -> ModelSpec {
    let base = Base::read(r, 10_000.0);
    let window = window(r, Some(4096));
    let period = r.size_or(["sliding_window_pattern", "layer_switch"], 4, FAMILY);
    r.known(&["sliding_window_pattern", "layer_switch", "order_of_interleaved_layers", "position_embedding_type"]);
    r.known(&["rotary_pct", "use_embedding_sharing", "use_gated_activation", "use_parallel_block"]);
    r.known(&["use_parallel_embedding", "cache_implementation"]);
    let slides = sliding(r, base.s.l, |i| !(i + 1).is_multiple_of(period));
    let full = base.layer(AttentionSpec { rotary: None, ..base.attention.clone() });
    let windowed = base.layer(AttentionSpec { window, ..base.attention.clone() });
    let layers = alternate(&slides, full, windowed);
    base.finish(r, layers)
}
