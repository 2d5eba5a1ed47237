//! GPT-J: one norm for attention and feed-forward side by side, rotation of neighbours, a head with a bias.

use super::common::{FAMILY, FREE, activation, attention, block, decoder, equal, gpt_sizes, named, plain_mlp, rotary};
use crate::config::Reader;
use crate::spec::{
    AttentionSpec, AttentionSteps, BlockForm, BufferSpec, LayerNames, LinearSpec, ModelNames, ModelSpec, NormKind,
    NormSpec, RotarySpec,
};

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    model(r, |attention| attention.f32_scores = true)
}

/// The model, with what is different in its attention.
pub(super) fn model(r: &mut Reader<'_>, change: impl FnOnce(&mut AttentionSpec)) -> ModelSpec {
    let s = gpt_sizes(r);
    let f = r.size_or("n_inner", 4 * s.h, "4 x n_embd");
    r.check_product("an MLP weight", &[("n_embd", s.h), ("n_inner", f)]);
    let act = activation(r, "activation_function", "gelu_new");
    let norm = NormSpec { kind: NormKind::LayerNorm { bias: true }, eps: r.float_or("layer_norm_epsilon", 1e-5, FREE) };
    let tied = r.flag("tie_word_embeddings", false);
    let dim = r.size_or("rotary_dim", 64, FAMILY);
    if dim > s.d || !dim.is_multiple_of(2) {
        r.reject(
            "rotary_dim",
            format!("`rotary_dim` is {dim}, and a head has {} channels", s.d),
            "pairs of channels of a head are rotated",
            "--set rotary_dim=64",
        );
    }
    let dim = dim.min(s.d);
    r.known(&["rotary", "n_ctx", "tokenizer_class", "scale_attn_weights", "gradient_checkpointing"]);

    let mut attention = attention(&s, false, false);
    attention.out = LinearSpec::new("out_proj", false);
    attention.rotary = Some(RotarySpec { interleaved: true, ..rotary(dim, 10_000.0) });
    attention.steps = AttentionSteps::GptJ;
    attention.dropout = r.float_or("attn_pdrop", 0.0, FAMILY);
    change(&mut attention);
    let form = BlockForm::Parallel { n1: named("ln_1", &norm), n2: None };
    let mut layer = block(attention, plain_mlp(f, act, "fc_in", "fc_out", true), form);
    layer.names = LayerNames { attention: "attn", feed_forward: "mlp" };
    layer.dropout = r.float_or("resid_pdrop", 0.0, FAMILY);
    let mut model = decoder(r, &s, equal(&s, layer), norm, tied);
    model.embedding.dropout = r.float_or("embd_pdrop", 0.0, FAMILY);
    model.head.bias = true;
    let positions = r.size_or(["n_positions", "n_ctx", "max_position_embeddings"], 2048, FAMILY);
    model.max_positions = Some(positions);
    let sines = BufferSpec { name: "rotary_emb.embed_positions", shape: vec![positions, dim], dtype: None, count: 1 };
    model.buffers.push(sines);
    model.names = ModelNames { body: "transformer", embed: "wte", layers: "h", norm: "ln_f", ..ModelNames::default() };
    model
}
