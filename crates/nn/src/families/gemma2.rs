//! Gemma 2: norms before and after each branch, capped scores and logits, every other layer with a window.

use super::common::{
    FAMILY, activation, alternate, attention, block, decoder, float_or_off, gated_mlp, intermediate_size, named,
    rope_theta, rotary, sizes_or, sliding, window,
};
use super::gemma;
use crate::config::Reader;
use crate::spec::{BlockForm, ModelSpec, NormSpec};

/// The four norms of a block, Gemma's names.
pub(super) fn sandwich(norm: &NormSpec) -> BlockForm {
    BlockForm::Sandwich {
        n1: named("input_layernorm", norm),
        m1: named("post_attention_layernorm", norm),
        n2: named("pre_feedforward_layernorm", norm),
        m2: named("post_feedforward_layernorm", norm),
    }
}

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    model(r, sandwich)
}

/// `VaultGemma`: Gemma 2 without the norms after each branch.
pub(super) fn read_vaultgemma(r: &mut Reader<'_>) -> ModelSpec {
    model(r, |norm| BlockForm::Sequential {
        n1: named("input_layernorm", norm),
        n2: named("pre_feedforward_layernorm", norm),
    })
}

fn model(r: &mut Reader<'_>, form: impl Fn(&NormSpec) -> BlockForm) -> ModelSpec {
    let s = sizes_or(r, Some(4), Some(256));
    let f = intermediate_size(r, &s);
    let act = activation(r, "hidden_activation", "gelu_pytorch_tanh");
    // The first files hold the activation of Gemma 1 as well; nothing reads it.
    r.known(&["hidden_act", "cache_implementation"]);
    let norm = gemma::norm(r);
    let bias = r.flag("attention_bias", false);
    let tied = r.flag("tie_word_embeddings", true);
    let mut attention = attention(&s, bias, bias);
    attention.rotary = Some(rotary(s.d, rope_theta(r, 10_000.0)));
    attention.scale = 1.0 / r.float_or("query_pre_attn_scalar", 256.0, FAMILY).sqrt();
    attention.softcap = float_or_off(r, "attn_logit_softcapping", 50.0);
    attention.dropout = r.float_or("attention_dropout", 0.0, "off");
    gemma::causal(r);
    let window = window(r, Some(4096));
    let slides = sliding(r, s.l, |i| i % 2 == 0);
    let full = block(attention.clone(), gated_mlp(f, act, false), form(&norm));
    attention.window = window;
    let layers = alternate(&slides, full, block(attention, gated_mlp(f, act, false), form(&norm)));
    let mut spec = decoder(r, &s, layers, norm, tied);
    spec.embedding.scale = Some((s.h as f64).sqrt());
    spec.head.softcap = float_or_off(r, "final_logit_softcapping", 30.0);
    // PyTorch's fused attention knows no cap.
    spec.has_sdpa = false;
    spec
}
