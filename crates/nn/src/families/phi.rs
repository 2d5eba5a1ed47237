//! Phi-1, Phi-1.5 and Phi-2: one norm for attention and feed-forward side by side, partial rotation, biases everywhere.

use super::common::{
    FAMILY, FREE, activation, attention, block, decoder, equal, intermediate_size, named, partial_rotary, plain_mlp,
    sizes,
};
use crate::config::Reader;
use crate::spec::{
    BlockForm, LinearSpec, ModelNames, ModelSpec, NormKind, NormSpec, QkNorm, QkNormPlace, RotaryJoin, RotarySpec,
};

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let s = sizes(r);
    let f = intermediate_size(r, &s);
    let act = activation(r, "hidden_act", "gelu_new");
    let norm = NormSpec { kind: NormKind::LayerNorm { bias: true }, eps: r.float_or("layer_norm_eps", 1e-5, FREE) };
    let tied = r.flag("tie_word_embeddings", false);
    let rotary = partial_rotary(r, s.d, "partial_rotary_factor", 0.5, ["rope_theta", "rotary_emb_base"]);

    let mut attention = attention(&s, true, true);
    attention.out = LinearSpec::new("dense", true);
    attention.rotary = Some(RotarySpec { join: RotaryJoin::Last, ..rotary });
    if r.flag("qk_layernorm", false) {
        attention.qk_norm = QkNorm::PerHead(norm.clone());
        attention.qk_norm_names = ["q_layernorm", "k_layernorm"];
        attention.qk_norm_place = QkNormPlace::Heads;
    }
    attention.dropout = r.float_or("attention_dropout", 0.0, FAMILY);
    let form = BlockForm::Parallel { n1: named("input_layernorm", &norm), n2: None };
    let mut layer = block(attention, plain_mlp(f, act, "fc1", "fc2", true), form);
    layer.dropout = r.float_or("resid_pdrop", 0.0, FAMILY);
    let mut model = decoder(r, &s, equal(&s, layer), norm, tied);
    model.embedding.dropout = r.float_or("embd_pdrop", 0.0, FAMILY);
    model.head.bias = true;
    model.names = ModelNames { norm: "final_layernorm", ..ModelNames::default() };
    model
}
