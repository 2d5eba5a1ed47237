//! GPT-Neo: learned positions, layers that see everything and layers that see a window, a mask in each.

use super::common::{FAMILY, FREE, activation, attention, block, decoder, named, plain_mlp, sizes_under};
use crate::config::Reader;
use crate::spec::{
    AttentionSteps, BlockForm, LayerNames, LinearSpec, ModelNames, ModelSpec, NormKind, NormSpec, PositionTable,
};
use std::sync::Arc;

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let layers: [&str; 2] = ["num_layers", "num_hidden_layers"];
    let s = sizes_under(r, &["hidden_size"], &layers, &["num_heads", "num_attention_heads"]);
    let (h, l) = (s.h, s.l);
    let f = r.size_or("intermediate_size", 4 * h, "4 x hidden_size");
    r.check_product("an MLP weight", &[("hidden_size", h), ("intermediate_size", f)]);
    let act = activation(r, "activation_function", "gelu_new");
    let norm = NormSpec { kind: NormKind::LayerNorm { bias: true }, eps: r.float_or("layer_norm_epsilon", 1e-5, FREE) };
    let tied = r.flag("tie_word_embeddings", true);
    let positions = r.size_or("max_position_embeddings", 2048, FAMILY);
    let window = r.size_or("window_size", 256, FAMILY);
    let local = local_layers(r, l);
    r.known(&["rotary", "rotary_dim", "tokenizer_class", "jax"]);

    let mut global = attention(&s, false, true);
    global.out = LinearSpec::new("out_proj", true);
    // Written without a scale; the checkpoints were trained so.
    global.scale = 1.0;
    global.f32_scores = true;
    global.steps = AttentionSteps::GptNeo { positions };
    global.dropout = r.float_or("attention_dropout", 0.0, FAMILY);
    let dropout = r.float_or("resid_dropout", 0.0, FAMILY);
    let layer = |attention| {
        let form = BlockForm::Sequential { n1: named("ln_1", &norm), n2: named("ln_2", &norm) };
        let mut layer = block(attention, plain_mlp(f, act, "c_fc", "c_proj", true), form);
        layer.names = LayerNames { attention: "attn.attention", feed_forward: "mlp" };
        layer.dropout = dropout;
        Arc::new(layer)
    };
    let mut windowed = global.clone();
    windowed.window = Some(window);
    let (global, windowed) = (layer(global), layer(windowed));
    let layers = local.iter().map(|&l| if l { windowed.clone() } else { global.clone() }).collect();
    let mut model = decoder(r, &s, layers, norm, tied);
    model.embedding.positions = Some(PositionTable::new("wpe", positions));
    model.embedding.dropout = r.float_or("embed_dropout", 0.0, FAMILY);
    model.names = ModelNames { body: "transformer", embed: "wte", layers: "h", norm: "ln_f", ..ModelNames::default() };
    model.max_positions = Some(positions);
    model.has_sdpa = false;
    model
}

/// Which layers are local, from `attention_types`: lists of kinds, each with how often it is repeated.
fn local_layers(r: &mut Reader<'_>, l: u64) -> Vec<bool> {
    let mut kinds: Vec<String> = Vec::new();
    if let Some(groups) = r.list_len("attention_types") {
        for i in 0..groups {
            let names = r.texts(&format!("attention_types.{i}.0")).unwrap_or_default();
            let times = r.count(&format!("attention_types.{i}.1"));
            if times.saturating_mul(names.len() as u64) > l {
                kinds.clear();
                break;
            }
            for _ in 0..times {
                kinds.extend(names.iter().cloned());
            }
        }
        r.known(&["attention_layers"]);
    } else if let Some(layers) = r.texts("attention_layers") {
        kinds = layers;
    } else {
        r.assume("attention_types", "[[[\"global\", \"local\"], 12]]", FAMILY);
        kinds = (0..24).map(|i| if i % 2 == 0 { "global" } else { "local" }.to_owned()).collect();
    }
    if kinds.len() as u64 != l {
        r.reject(
            "attention_types",
            format!("`attention_types` does not describe {l} layers"),
            "it must name the kind of every layer",
            "give as many kinds as `num_layers`",
        );
    }
    r.require_words("attention_types", &kinds, &["global", "local"]);
    let mut local: Vec<bool> = kinds.iter().map(|k| k == "local").collect();
    local.resize(usize::try_from(l).unwrap_or_default(), false);
    local
}
