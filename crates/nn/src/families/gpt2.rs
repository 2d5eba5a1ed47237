//! GPT-2: learned positions, layer norm, one fused projection with transposed weights.

use super::common::{FAMILY, FREE, activation, attention, block, decoder, equal, gpt_sizes, named};
use crate::config::Reader;
use crate::spec::{
    BlockForm, FusedOrder, LayerNames, LinearSpec, MlpInput, MlpSpec, ModelNames, ModelSpec, NormKind, NormSpec,
    PositionTable, Projection,
};

/// GPT-2's `Conv1D`: a linear map whose weight lies as `(in out)`.
pub(super) const fn conv1d(name: &'static str) -> LinearSpec {
    LinearSpec { name, bias: true, transposed: true, loose: false }
}

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let s = gpt_sizes(r);
    let positions = r.size(["n_positions", "n_ctx", "max_position_embeddings"]);
    let f = r.size_or("n_inner", 4 * s.h, "4 x n_embd");
    r.check_product("an MLP weight", &[("n_embd", s.h), ("n_inner", f)]);
    let act = activation(r, "activation_function", "gelu_new");
    let norm = NormSpec { kind: NormKind::LayerNorm { bias: true }, eps: r.float_or("layer_norm_epsilon", 1e-5, FREE) };
    let tied = r.flag("tie_word_embeddings", true);
    let [embedded, attended, joined] =
        ["embd_pdrop", "attn_pdrop", "resid_pdrop"].map(|key| r.float_or(key, 0.1, FAMILY));
    r.known(&["n_ctx", "scale_attn_weights", "scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn"]);
    r.known(&["summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type"]);
    r.known(&["summary_use_proj"]);

    let mut attention = attention(&s, true, true);
    attention.projection = Projection::Fused { qkv: conv1d("c_attn"), order: FusedOrder::Blocks };
    attention.out = conv1d("c_proj");
    attention.dropout = attended;
    attention.narrow_softmax = true;
    let mlp = MlpSpec::new(f, act, MlpInput::Plain(conv1d("c_fc")), conv1d("c_proj"));
    let form = BlockForm::Sequential { n1: named("ln_1", &norm), n2: named("ln_2", &norm) };
    let mut layer = block(attention, mlp, form);
    layer.names = LayerNames { attention: "attn", feed_forward: "mlp" };
    layer.dropout = joined;
    let mut model = decoder(r, &s, equal(&s, layer), norm, tied);
    model.embedding.positions = Some(PositionTable::new("wpe", positions));
    model.embedding.dropout = embedded;
    model.names = ModelNames { body: "transformer", embed: "wte", layers: "h", norm: "ln_f", ..ModelNames::default() };
    model.max_positions = Some(positions);
    model
}
