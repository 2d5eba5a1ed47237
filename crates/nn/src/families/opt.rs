//! OPT: learned positions from the third row on, norms before the branches or (350m) behind the residual sums.

use super::common::{FAMILY, activation, attention, block, decoder, equal, named, plain_mlp, plain_sizes};
use crate::config::Reader;
use crate::spec::{
    AttentionSteps, BlockForm, LayerNames, LinearSpec, ModelNames, ModelSpec, NormKind, NormSpec, PositionTable,
};

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let s = plain_sizes(r);
    let f = r.size("ffn_dim");
    r.check_product("an MLP weight", &[("hidden_size", s.h), ("ffn_dim", f)]);
    let act = activation(r, "activation_function", "relu");
    let tied = r.flag("tie_word_embeddings", true);
    let bias = r.flag("enable_bias", true);
    if !r.flag("layer_norm_elementwise_affine", true) {
        r.reject(
            "layer_norm_elementwise_affine",
            "`layer_norm_elementwise_affine` is false",
            "norms without parameters are not modelled for this family",
            "--set layer_norm_elementwise_affine=true",
        );
    }
    let before = r.flag("do_layer_norm_before", true);
    let no_final = r.flag("_remove_final_layer_norm", false);
    let width = r.size_or("word_embed_proj_dim", s.h, "equal to hidden_size");
    let positions = r.size_or("max_position_embeddings", 2048, FAMILY);
    let dropout = r.float_or("dropout", 0.1, FAMILY);
    let layerdrop = r.float_or("layerdrop", 0.0, FAMILY);
    if layerdrop > 0.0 {
        r.not_applied(
            "layerdrop",
            format!("`layerdrop` is {layerdrop}: a step skips some layers at random"),
            "counted as if no layer is skipped: FLOP and memory are upper bounds",
            "--set layerdrop=0",
        );
    }
    let norm = NormSpec { kind: NormKind::LayerNorm { bias: true }, eps: 1e-5 };
    r.known(&["layer_norm_eps"]);

    let mut attention = attention(&s, bias, bias);
    attention.out = LinearSpec::new("out_proj", bias);
    attention.steps = AttentionSteps::ScaledQueries;
    attention.dropout = r.float_or("attention_dropout", 0.0, FAMILY);
    let (first, second) = (named("self_attn_layer_norm", &norm), named("final_layer_norm", &norm));
    let form = if before {
        BlockForm::Sequential { n1: first, n2: second }
    } else {
        BlockForm::PostResidual { m1: first, m2: second }
    };
    let mut layer = block(attention, plain_mlp(f, act, "fc1", "fc2", bias), form);
    // The two maps lie in the layer itself.
    layer.names = LayerNames { attention: "self_attn", feed_forward: "" };
    layer.dropout = dropout;
    let mut model = decoder(r, &s, equal(&s, layer), norm, tied);
    if !before || no_final {
        model.final_norm = None;
    }
    model.embedding.width = (width != s.h).then_some(width);
    model.embedding.positions =
        Some(PositionTable { offset: 2, per_sequence: true, ..PositionTable::new("embed_positions", positions) });
    model.names = ModelNames { body: "model.decoder", norm: "final_layer_norm", ..ModelNames::default() };
    model.max_positions = Some(positions);
    model
}
