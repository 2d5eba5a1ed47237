//! `CodeGen`: GPT-J with one projection, cut for the four devices it was trained on.

use super::common::{FAMILY, FREE, activation, attention, block, decoder, equal, gpt_sizes, named, plain_mlp, rotary};
use crate::config::{Part, Reader};
use crate::spec::{
    AttentionSteps, BlockForm, FusedOrder, LayerNames, LinearSpec, ModelNames, ModelSpec, NormKind, NormSpec,
    Projection, RotaryJoin, RotarySpec,
};

/// Parts of the projection, each with its queries, values and keys.
const PARTS: u64 = 4;

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
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
    r.require_divides(
        Part::new("n_head", s.a, "heads"),
        Part::new("4", PARTS, "parts"),
        "the fused projection lies in four parts with whole heads",
    );
    r.known(&["n_ctx", "tokenizer_class", "scale_attn_weights", "gradient_checkpointing"]);

    let mut attention = attention(&s, false, false);
    attention.projection =
        Projection::Fused { qkv: LinearSpec::new("qkv_proj", false), order: FusedOrder::Parts(PARTS) };
    attention.out = LinearSpec::new("out_proj", false);
    attention.rotary = Some(RotarySpec { interleaved: true, join: RotaryJoin::Last, ..rotary(dim.min(s.d), 10_000.0) });
    attention.steps = AttentionSteps::GptJ;
    attention.dropout = r.float_or("attn_pdrop", 0.0, FAMILY);
    let form = BlockForm::Parallel { n1: named("ln_1", &norm), n2: None };
    let mut layer = block(attention, plain_mlp(f, act, "fc_in", "fc_out", true), form);
    layer.names = LayerNames { attention: "attn", feed_forward: "mlp" };
    layer.dropout = r.float_or("resid_pdrop", 0.0, FAMILY);
    let mut model = decoder(r, &s, equal(&s, layer), norm, tied);
    model.embedding.dropout = r.float_or("embd_pdrop", 0.0, FAMILY);
    model.head.bias = true;
    model.max_positions = Some(r.size_or(["n_positions", "n_ctx", "max_position_embeddings"], 2048, FAMILY));
    model.names = ModelNames { body: "transformer", embed: "wte", layers: "h", norm: "ln_f", ..ModelNames::default() };
    model
}
