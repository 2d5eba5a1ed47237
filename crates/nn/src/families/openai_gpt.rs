//! The first GPT: GPT-2's maps, norms behind the residual sums, none at the end.

use super::common::{FAMILY, FREE, activation, attention, block, decoder, equal, gpt_sizes, named};
use super::gpt2::conv1d;
use crate::config::Reader;
use crate::spec::{
    Activation, BlockForm, BufferSpec, FusedOrder, LayerNames, MlpInput, MlpSpec, ModelNames, ModelSpec, NormKind,
    NormSpec, PositionTable, Projection,
};
use tensor::DType;

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let s = gpt_sizes(r);
    let f = 4 * s.h;
    r.check_product("an MLP weight", &[("n_embd", s.h), ("n_embd", s.h), ("4", 4)]);
    let mut act = activation(r, "afn", "gelu");
    if act == Activation::Gelu {
        r.assume("afn", "gelu_new", "what \"gelu\" means in this family");
        act = Activation::GeluNew;
    }
    let norm = NormSpec { kind: NormKind::LayerNorm { bias: true }, eps: r.float_or("layer_norm_epsilon", 1e-5, FREE) };
    let tied = r.flag("tie_word_embeddings", true);
    let positions = r.size_or(["n_positions", "n_ctx", "max_position_embeddings"], 512, FAMILY);
    r.known(&["n_ctx", "n_special", "predict_special_tokens"]);
    r.known(&["summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type"]);
    r.known(&["summary_use_proj"]);

    let mut attention = attention(&s, true, true);
    attention.projection = Projection::Fused { qkv: conv1d("c_attn"), order: FusedOrder::Blocks };
    attention.out = conv1d("c_proj");
    attention.narrow_softmax = true;
    attention.dropout = r.float_or("attn_pdrop", 0.1, FAMILY);
    let mlp = MlpSpec::new(f, act, MlpInput::Plain(conv1d("c_fc")), conv1d("c_proj"));
    let form = BlockForm::PostResidual { m1: named("ln_1", &norm), m2: named("ln_2", &norm) };
    let mut layer = block(attention, mlp, form);
    layer.names = LayerNames { attention: "attn", feed_forward: "mlp" };
    layer.dropout = r.float_or("resid_pdrop", 0.1, FAMILY);
    let mut model = decoder(r, &s, equal(&s, layer), norm, tied);
    model.final_norm = None;
    model.embedding.positions = Some(PositionTable::new("positions_embed", positions));
    model.embedding.dropout = r.float_or("embd_pdrop", 0.1, FAMILY);
    model.names = ModelNames { body: "transformer", embed: "tokens_embed", layers: "h", ..ModelNames::default() };
    model.max_positions = Some(positions);
    model.has_sdpa = false;
    // A mask of all positions in every layer, and the positions.
    model.buffers = vec![
        BufferSpec { name: "h.attn.bias", shape: vec![1, 1, positions, positions], dtype: None, count: s.l },
        BufferSpec { name: "position_ids", shape: vec![positions], dtype: Some(DType::I64), count: 1 },
    ];
    model
}
