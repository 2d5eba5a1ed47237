//! GPT-BigCode (`SantaCoder`, `StarCoder`): GPT-2 with linear maps, one key/value head for all queries.

use super::common::{FAMILY, FREE, activation, attention, block, decoder, equal, gpt_sizes, named, plain_mlp};
use crate::config::Reader;
use crate::spec::{
    BlockForm, BufferSpec, FusedOrder, LayerNames, LinearSpec, ModelNames, ModelSpec, NormKind, NormSpec,
    PositionTable, Projection,
};
use tensor::DType;

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let mut s = gpt_sizes(r);
    let f = r.size_or("n_inner", 4 * s.h, "4 x n_embd");
    r.check_product("an MLP weight", &[("n_embd", s.h), ("n_inner", f)]);
    let act = activation(r, "activation_function", "gelu_pytorch_tanh");
    let norm = NormSpec { kind: NormKind::LayerNorm { bias: true }, eps: r.float_or("layer_norm_epsilon", 1e-5, FREE) };
    let tied = r.flag("tie_word_embeddings", true);
    let positions = r.size_or(["n_positions", "n_ctx", "max_position_embeddings"], 1024, FAMILY);
    let single = r.flag("multi_query", true);
    let scaled = r.flag("scale_attn_weights", true);
    r.known(&["attention_softmax_in_fp32", "scale_attention_softmax_in_fp32", "runner_max_sequence_length"]);
    r.known(&["inference_runner", "validate_runner_input", "pre_allocate_kv_cache", "max_sequence_length"]);
    r.known(&["max_batch_size", "pad_key_length", "n_ctx"]);
    r.known(&["summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type"]);
    r.known(&["summary_use_proj"]);
    if single {
        s.k = 1;
    }
    let mut attention = attention(&s, true, true);
    let order = if single { FusedOrder::Blocks } else { FusedOrder::PerHead };
    attention.projection = Projection::Fused { qkv: LinearSpec::new("c_attn", true), order };
    attention.out = LinearSpec::new("c_proj", true);
    if !scaled {
        attention.scale = 1.0;
    }
    attention.dropout = r.float_or("attn_pdrop", 0.1, FAMILY);
    let form = BlockForm::Sequential { n1: named("ln_1", &norm), n2: named("ln_2", &norm) };
    let mut layer = block(attention, plain_mlp(f, act, "c_fc", "c_proj", true), form);
    layer.names = LayerNames { attention: "attn", feed_forward: "mlp" };
    layer.dropout = r.float_or("resid_pdrop", 0.1, FAMILY);
    let mut model = decoder(r, &s, equal(&s, layer), norm, tied);
    model.embedding.positions = Some(PositionTable::new("wpe", positions));
    model.embedding.dropout = r.float_or("embd_pdrop", 0.1, FAMILY);
    model.names = ModelNames { body: "transformer", embed: "wte", layers: "h", norm: "ln_f", ..ModelNames::default() };
    model.max_positions = Some(positions);
    let mask = BufferSpec { name: "bias", shape: vec![positions, positions], dtype: Some(DType::Bool), count: 1 };
    model.buffers = vec![mask];
    model
}
