//! ModernBERT: rotary embedding, gated MLPs, norms before both parts, windows in two layers of three. Its decoder (Ettin) is
//! the same with attention backwards only and three projections.

use super::common::{FAMILY, FREE, activation, attention, block, named, plain_sizes, rotary, sliding};
use super::tasks::{self, Asked};
use crate::config::Reader;
use crate::spec::{
    BlockForm, EmbeddingSpec, FusedOrder, HeadSpec, LayerNames, LayerSpec, LinearSpec, MapSpec, MlpInput, MlpSpec,
    ModelNames, ModelSpec, NamedNorm, NormKind, NormSpec, Piece, Projection, RotaryPrecision, RotarySpec, Task,
};
use std::sync::Arc;

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    model(r, false)
}

pub(super) fn read_decoder(r: &mut Reader<'_>) -> ModelSpec {
    model(r, true)
}

fn model(r: &mut Reader<'_>, decoder: bool) -> ModelSpec {
    let s = plain_sizes(r);
    let f = r.size_or("intermediate_size", 1152, FAMILY);
    r.check_product("an MLP weight", &[("hidden_size", s.h), ("intermediate_size", f)]);
    let act = activation(r, "hidden_activation", "gelu");
    let norm_bias = r.flag("norm_bias", false);
    let norm = NormSpec { kind: NormKind::LayerNorm { bias: norm_bias }, eps: r.float_or("norm_eps", 1e-5, FREE) };
    let (bias, mlp_bias) = (r.flag("attention_bias", false), r.flag("mlp_bias", false));
    let span = r.count_or("local_attention", 128, FAMILY);
    let period = r.size_or("global_attn_every_n_layers", 3, FAMILY);
    let slides = sliding(r, s.l, |i| !i.is_multiple_of(period));
    let causal_head = decoder && r.config().architectures().first().is_none_or(|class| class.ends_with("ForCausalLM"));
    let asked = if causal_head { Asked::MaskedTokens } else { Asked::of(r) };
    let tied = r.flag("tie_word_embeddings", true);
    r.known(&["global_rope_theta", "local_rope_theta", "rope_parameters", "sliding_window"]);

    let mut attention = attention(&s, bias, bias);
    if !decoder {
        attention.projection = Projection::Fused { qkv: LinearSpec::new("Wqkv", bias), order: FusedOrder::Blocks };
        attention.causal = false;
    }
    attention.out = LinearSpec::new("Wo", bias);
    attention.dropout = r.float_or("attention_dropout", 0.0, "off");
    let turned = |table| RotarySpec { table, precision: RotaryPrecision::WideOperands, ..rotary(s.d, 160_000.0) };
    attention.rotary = Some(turned(0));
    let mlp =
        MlpSpec::new(f, act, MlpInput::GatedFused(LinearSpec::new("Wi", mlp_bias)), LinearSpec::new("Wo", mlp_bias));
    let layer = |i: usize, slides: bool| -> LayerSpec {
        let mut attention = attention.clone();
        if slides {
            // So many positions before, as many behind, and the position itself; a decoder counts it among the former.
            attention.window = Some(if decoder { (span / 2).max(1) } else { 2 * (span / 2) + 1 });
            attention.rotary = Some(turned(1));
        }
        let none = NormSpec { kind: NormKind::Identity, ..norm.clone() };
        let n1 = NamedNorm { name: "attn_norm", spec: if i == 0 { none } else { norm.clone() } };
        let mut layer = block(attention, mlp.clone(), BlockForm::Sequential { n1, n2: named("mlp_norm", &norm) });
        layer.names = LayerNames { attention: "attn", feed_forward: "mlp" };
        layer
    };
    let layers = slides.iter().enumerate().map(|(i, &slides)| Arc::new(layer(i, slides))).collect();
    let embedding = EmbeddingSpec {
        norm: Some(norm.clone()),
        dropout: r.float_or("embedding_dropout", 0.0, "off"),
        ..EmbeddingSpec::default()
    };
    let mut model = tasks::model(&s, embedding, layers);
    model.final_norm = Some(norm.clone());
    model.max_positions = r.opt_size("max_position_embeddings");
    model.names = ModelNames {
        body: if asked.has_head() { "model" } else { "" },
        embed: "embeddings.tok_embeddings",
        norm: "final_norm",
        embed_norm: "embeddings.norm",
        head: "decoder",
        ..ModelNames::default()
    };
    let inner = r.flag("classifier_bias", false);
    let between = activation(r, "classifier_activation", "gelu");
    let (dense, behind) = if causal_head { ("lm_head.dense", "lm_head.norm") } else { ("head.dense", "head.norm") };
    let transform = vec![
        MapSpec::piece(dense, inner, s.h, s.h),
        Piece::Activation(between),
        Piece::Norm(named(behind, &norm), s.h),
    ];
    match asked {
        Asked::Hidden => {}
        Asked::MaskedTokens | Asked::Other => {
            model.task = if decoder { Task::NextToken } else { Task::OwnToken };
            let bias = r.flag("decoder_bias", true);
            model.head = HeadSpec { tied, bias, transform, ..HeadSpec::default() };
        }
        Asked::Classes(classes) => {
            model.task = Task::Classes(classes);
            let pool = r.choice("classifier_pooling", &["cls", "mean"], FAMILY);
            let pool = if pool == "mean" { Piece::Mean } else { Piece::First };
            let out = MapSpec::head("classifier", true, s.h, classes);
            model.head.transform = std::iter::once(pool).chain(transform).chain([Piece::Linear(out)]).collect();
        }
    }
    asked.warn(r, &mut model);
    model
}
