//! T5, mT5 and UMT5: an encoder and a decoder with trained position biases, RMS norms, maps without biases, scores that are not
//! scaled.

use super::common::{FAMILY, FREE, Sizes, activation_named, attention, block, gated_mlp, named, plain_mlp, rms};
use super::tasks;
use crate::config::Reader;
use crate::spec::{
    AttentionSpec, BiasSource, BlockForm, CrossSpec, EmbeddingSpec, LayerNames, LayerSpec, LinearSpec, MlpInput,
    MlpSpec, ModelNames, ModelSpec, Projection, RelativeSpec, SharedTable, StackSpec, Task,
};
use std::sync::Arc;

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let scaled = r.flag("tie_word_embeddings", true);
    let scaled = r.flag("scale_decoder_outputs", scaled);
    family(r, scaled, "relu", false)
}

pub(super) fn read_mt5(r: &mut Reader<'_>) -> ModelSpec {
    // Whatever the file says, the class ties the tables.
    r.known(&["tie_word_embeddings", "scale_decoder_outputs"]);
    family(r, true, "gated-gelu", false)
}

/// UMT5: each block has position biases of its own.
pub(super) fn read_umt5(r: &mut Reader<'_>) -> ModelSpec {
    // The class ties the tables in any case; what the file says decides whether the outputs are scaled.
    let scaled = r.flag("tie_word_embeddings", true);
    let scaled = r.flag("scale_decoder_outputs", scaled);
    family(r, scaled, "gated-gelu", true)
}

fn family(r: &mut Reader<'_>, scaled: bool, act: &str, own: bool) -> ModelSpec {
    let h = r.size_or(["d_model", "hidden_size"], 512, FAMILY);
    let d = r.size_or(["d_kv", "head_dim"], 64, FAMILY);
    let f = r.size_or("d_ff", 2048, FAMILY);
    let l = r.layers(["num_layers", "num_hidden_layers"]);
    let a = r.size_or(["num_heads", "num_attention_heads"], 8, FAMILY);
    let v = r.size("vocab_size");
    let decoder_layers = match r.opt_count("num_decoder_layers") {
        Some(_) => r.layers("num_decoder_layers"),
        None => l,
    };
    r.check_product("the embedding table", &[("vocab_size", v), ("d_model", h)]);
    r.check_product("an MLP weight", &[("d_model", h), ("d_ff", f)]);
    r.check_product("an attention projection", &[("d_model", h), ("num_heads", a), ("d_kv", d)]);
    let relative = RelativeSpec {
        buckets: r.size_or("relative_attention_num_buckets", 32, FAMILY),
        max_distance: r.size_or("relative_attention_max_distance", 128, FAMILY),
        from: BiasSource::Stack,
    };
    let norm = rms(r.float_or("layer_norm_epsilon", 1e-6, FREE));
    let dropout = r.float_or("dropout_rate", 0.1, FAMILY);
    let form = r.text_or("feed_forward_proj", act, FAMILY);
    r.known(&["dense_act_fn", "is_gated_act", "is_encoder_decoder", "n_positions", "decoder_start_token_id"]);
    let gated = form.strip_prefix("gated-");
    let act = match gated {
        Some("gelu") => "gelu_new",
        Some(other) => other,
        None => form.as_str(),
    };
    let act = activation_named(r, "feed_forward_proj", act);
    let mlp = || -> MlpSpec {
        if gated.is_some() {
            let (gate, up) = (LinearSpec::new("wi_0", false), LinearSpec::new("wi_1", false));
            let down = LinearSpec::new("wo", false);
            MlpSpec { input: MlpInput::Gated { gate, up }, down, widened: true, ..gated_mlp(f, act, false) }
        } else {
            MlpSpec { widened: true, ..plain_mlp(f, act, "wi", "wo", false) }
        }
    };
    let s = Sizes { h, l, a, k: a, d, v };
    let mixing = |causal: bool, from: BiasSource| -> AttentionSpec {
        let mut attention = attention(&s, false, false);
        let map = |name| LinearSpec::new(name, false);
        attention.projection = Projection::Separate { q: map("q"), k: map("k"), v: map("v") };
        attention.out = map("o");
        attention.scale = 1.0;
        attention.causal = causal;
        attention.narrow_softmax = true;
        attention.dropout = dropout;
        attention.relative = Some(RelativeSpec { from, ..relative });
        attention
    };
    let layers = |count: u64, decoder: bool| -> Vec<Arc<LayerSpec>> {
        let layer = |from: BiasSource| {
            let last = if decoder {
                ["layer.2.layer_norm", "layer.2.DenseReluDense"]
            } else {
                ["layer.1.layer_norm", "layer.1.DenseReluDense"]
            };
            let form = BlockForm::Sequential { n1: named("layer.0.layer_norm", &norm), n2: named(last[0], &norm) };
            let mut layer = block(mixing(decoder, from), mlp(), form);
            layer.names = LayerNames { attention: "layer.0.SelfAttention", feed_forward: last[1] };
            layer.dropout = dropout;
            layer.cross = decoder.then(|| CrossSpec {
                attention: Box::new(mixing(false, BiasSource::Zeros)),
                name: "layer.1.EncDecAttention",
                norm: named("layer.1.layer_norm", &norm),
                width: h,
            });
            Arc::new(layer)
        };
        let [first, others] = if own { [BiasSource::Own; 2] } else { [BiasSource::Table, BiasSource::Stack] };
        let rest = std::iter::repeat_n(layer(others), count.saturating_sub(1) as usize);
        std::iter::once(layer(first)).chain(rest).collect()
    };
    let names = |body| ModelNames {
        body,
        embed: "embed_tokens",
        layers: "block",
        norm: "final_layer_norm",
        ..ModelNames::default()
    };
    let embedding = EmbeddingSpec { dropout, ..EmbeddingSpec::default() };
    let alone = r.config().architectures().first().is_some_and(|class| class.ends_with("EncoderModel"));
    let mut ties = vec!["encoder.embed_tokens.weight"];
    if !alone {
        ties.push("decoder.embed_tokens.weight");
    }
    let shared = Some(SharedTable { name: "shared", ties, used: true });
    let mut model = tasks::model(&s, EmbeddingSpec { shared, ..embedding.clone() }, layers(l, false));
    model.final_norm = Some(norm.clone());
    model.names = names("encoder");
    if alone {
        return model;
    }
    model.encoder = Some(Box::new(StackSpec {
        hidden_size: h,
        embedding,
        layers: model.layers,
        final_norm: Some(norm.clone()),
        names: names("encoder"),
    }));
    model.layers = layers(decoder_layers, true);
    model.names = names("decoder");
    model.task = Task::OwnToken;
    model.head.absent = false;
    model.head.tied = true;
    model.head.narrow_loss = true;
    model.head.input_scale = scaled.then(|| 1.0 / (h as f64).sqrt());
    model
}
