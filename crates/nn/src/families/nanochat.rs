//! nanochat: norms without parameters, one of them behind the embedding and others on queries and keys after the
//! rotation; `relu2` in a plain MLP; capped logits.

use super::common::{
    FREE, activation, attention, block, decoder, equal, float_or_off, intermediate_size, plain_mlp, pre_norm,
    rope_theta, rotary, sizes,
};
use crate::config::Reader;
use crate::spec::{LinearSpec, ModelNames, ModelSpec, NormKind, NormSpec, QkNorm, QkNormPlace, RotarySpec};

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let s = sizes(r);
    let f = intermediate_size(r, &s);
    let act = activation(r, "hidden_act", "relu2");
    let norm = NormSpec { kind: NormKind::RmsPlain, eps: r.float_or("rms_norm_eps", 1e-6, FREE) };
    let bias = r.flag("attention_bias", false);
    let tied = r.flag("tie_word_embeddings", false);
    let mut attention = attention(&s, bias, bias);
    attention.out = LinearSpec::new("o_proj", bias);
    attention.qk_norm = QkNorm::PerHead(norm.clone());
    attention.qk_norm_place = QkNormPlace::Rotated;
    attention.rotary = Some(RotarySpec { reversed: true, ..rotary(s.d, rope_theta(r, 10_000.0)) });
    attention.dropout = r.float_or("attention_dropout", 0.0, "off");
    let layer = block(attention, plain_mlp(f, act, "fc1", "fc2", false), pre_norm(&norm));
    let mut spec = decoder(r, &s, equal(&s, layer), norm.clone(), tied);
    // One module serves before the first block and after the last.
    spec.embedding.norm = Some(norm);
    spec.names = ModelNames { embed_norm: "norm", ..ModelNames::default() };
    spec.head.softcap = float_or_off(r, "final_logit_softcapping", 15.0);
    spec
}
