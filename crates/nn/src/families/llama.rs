//! Llama 1 to 3.3 and everything that declares itself Llama.

use super::common::{activation, attention, gated_mlp, named, rms, rope_theta, rotary, sizes};
use crate::config::Reader;
use crate::spec::{BlockForm, EmbeddingSpec, FeedForwardSpec, HeadSpec, LayerNames, LayerSpec, ModelNames, ModelSpec};
use std::rc::Rc;

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let s = sizes(r);
    let f = r.size("intermediate_size");
    r.check_product("an MLP weight", &[("hidden_size", s.h), ("intermediate_size", f)]);
    let act = activation(r, "hidden_act", "silu");
    let norm = rms(r.float_or("rms_norm_eps", 1e-6, "the default of the family; changes no cost"));
    let attention_bias = r.flag("attention_bias", false);
    let mlp_bias = r.flag("mlp_bias", false);
    let tied = r.flag("tie_word_embeddings", false);
    let theta = rope_theta(r, 10_000.0);
    let max_positions = r.opt_size("max_position_embeddings");
    r.known(&["pretraining_tp"]);

    let mut attention = attention(&s, attention_bias, attention_bias);
    attention.rotary = Some(rotary(s.d, theta));
    attention.dropout = r.float_or("attention_dropout", 0.0, "off");
    let layer = Rc::new(LayerSpec {
        attention,
        feed_forward: FeedForwardSpec::Mlp(gated_mlp(f, act, mlp_bias)),
        form: BlockForm::Sequential {
            n1: named("input_layernorm", &norm),
            n2: named("post_attention_layernorm", &norm),
        },
        names: LayerNames::default(),
        residual_scale: None,
        dropout: 0.0,
    });
    ModelSpec {
        family: String::new(),
        hidden_size: s.h,
        vocab_size: s.v,
        embedding: EmbeddingSpec::default(),
        layers: vec![layer; s.l as usize],
        final_norm: Some(norm),
        head: HeadSpec { tied, ..HeadSpec::default() },
        names: ModelNames::default(),
        max_positions,
        has_sdpa: true,
        not_modelled: Vec::new(),
    }
}
