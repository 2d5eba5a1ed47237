//! Falcon: 7b (one key head, one norm), 40b and 180b (groups, two norms), RW (a key head each, position biases).

use super::common::{
    FAMILY, FREE, activation, attention, block, decoder, equal, named, plain_mlp, rope_theta, rotary, sizes_under,
};
use crate::config::{Part, Reader};
use crate::spec::{
    AttentionSteps, BlockForm, FusedOrder, LayerNames, LinearSpec, MlpInput, ModelNames, ModelSpec, NormKind, NormSpec,
    Projection,
};

/// A map whose bias is added in a step of its own.
const fn loose(name: &'static str, bias: bool) -> LinearSpec {
    LinearSpec { loose: true, ..LinearSpec::new(name, bias) }
}

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let layers: [&str; 2] = ["num_hidden_layers", "n_layer"];
    let mut s = sizes_under(r, &["hidden_size", "n_embed"], &layers, &["num_attention_heads", "n_head"]);
    let (h, a) = (s.h, s.a);
    let grouped = r.flag("new_decoder_architecture", false);
    let multi_query = r.flag("multi_query", true);
    let given = r.size_or(["num_kv_heads", "n_head_kv"], a, "equal to num_attention_heads");
    s.k = if grouped {
        given
    } else if multi_query {
        1
    } else {
        a
    };
    r.require_divides(
        Part::new("num_attention_heads", a, "query heads"),
        Part::new("num_kv_heads", s.k, "key/value heads"),
        "each key/value head serves an equal number of query heads",
    );
    let f = r.size_or("ffn_hidden_size", 4 * h, "4 x hidden_size");
    r.check_product("an MLP weight", &[("hidden_size", h), ("ffn_hidden_size", f)]);
    let act = activation(r, "activation", "gelu");
    let norm = NormSpec { kind: NormKind::LayerNorm { bias: true }, eps: r.float_or("layer_norm_epsilon", 1e-5, FREE) };
    let tied = r.flag("tie_word_embeddings", true);
    let (bias, alibi) = (r.flag("bias", false), r.flag("alibi", false));
    let parallel = r.flag("parallel_attn", true);
    let norms = if parallel { r.size_or("num_ln_in_parallel_attn", if grouped { 2 } else { 1 }, FAMILY) } else { 2 };
    if grouped && !parallel || !grouped && parallel && norms == 2 {
        r.reject(
            "parallel_attn",
            "`parallel_attn`, `num_ln_in_parallel_attn` and `new_decoder_architecture` contradict each other",
            "the reference cannot run such a model: the new architecture is parallel, and only it has two norms side by side",
            "--set parallel_attn=true",
        );
    }

    let mut attention = attention(&s, bias, bias);
    let order = if grouped || multi_query { FusedOrder::PerGroup } else { FusedOrder::PickedPerHead };
    attention.projection = Projection::Fused { qkv: loose("query_key_value", bias), order };
    attention.out = loose("dense", bias);
    attention.alibi = alibi;
    attention.rotary = (!alibi).then(|| rotary(s.d, rope_theta(r, 10_000.0)));
    attention.steps = AttentionSteps::Falcon { repeats: grouped };
    attention.dropout = r.float_or("attention_dropout", 0.0, FAMILY);
    let mut mlp = plain_mlp(f, act, "dense_h_to_4h", "dense_4h_to_h", bias);
    mlp.input = MlpInput::Plain(loose("dense_h_to_4h", bias));
    mlp.down = loose("dense_4h_to_h", bias);
    let form = if !parallel {
        BlockForm::Sequential { n1: named("input_layernorm", &norm), n2: named("post_attention_layernorm", &norm) }
    } else if norms == 2 {
        BlockForm::ParallelInPlace { n1: named("ln_attn", &norm), n2: Some(named("ln_mlp", &norm)) }
    } else {
        BlockForm::ParallelInPlace { n1: named("input_layernorm", &norm), n2: None }
    };
    let dropout = r.float_or("hidden_dropout", 0.0, FAMILY);
    if !parallel && (dropout - attention.dropout).abs() > 0.0 {
        r.not_applied(
            "attention_dropout",
            "`attention_dropout` is also used on the attention branch, where `hidden_dropout` is applied",
            "a mask of the residual stream per layer more or less",
            "--set attention_dropout=0 --set hidden_dropout=0",
        );
    }
    let mut layer = block(attention, mlp, form);
    layer.names = LayerNames { attention: "self_attention", feed_forward: "mlp" };
    layer.dropout = dropout;
    let mut model = decoder(r, &s, equal(&s, layer), norm, tied);
    model.names = ModelNames {
        body: "transformer",
        embed: "word_embeddings",
        layers: "h",
        norm: "ln_f",
        ..ModelNames::default()
    };
    model
}
