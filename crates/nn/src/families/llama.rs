//! Llama 1 to 3.3 and everything that declares itself Llama; EXAONE 3 and `InternLM` 3, which transformers builds as
//! Llama, as `IQuest-Coder`; Arcee, which is Llama with a plain feed-forward part, and Jais 2, with layer norms and biases
//! as well.

use super::common::{
    FAMILY, FREE, activation, attention, block, change_layers, decoder, equal, gated_mlp, heads, plain_mlp, pre_norm,
    rms, rope_theta, rotary,
};
use super::common::{Given, Sizes, intermediate_size};
use super::tasks::Asked;
use crate::config::Reader;
use crate::spec::{Activation, HeadSpec, MapSpec, MlpSpec, ModelSpec, NormKind, NormSpec, Piece, Task};

/// Keys and defaults in which families differ that are built alike.
struct Variant {
    layers: &'static [&'static str],
    kv_heads: Option<u64>,
    head_dim: Option<u64>,
    act: (&'static [&'static str], &'static str),
    eps: (&'static [&'static str], f64),
    norm: fn(f64) -> NormSpec,
    bias: &'static [&'static str],
    mlp_bias: &'static [&'static str],
    /// Whether maps have biases where the file does not say.
    biased: bool,
    theta: f64,
    mlp: fn(u64, Activation, bool) -> MlpSpec,
}

const LLAMA: Variant = Variant {
    layers: &["num_hidden_layers"],
    kv_heads: None,
    head_dim: None,
    act: (&["hidden_act"], "silu"),
    eps: (&["rms_norm_eps"], 1e-6),
    norm: rms,
    bias: &["attention_bias"],
    mlp_bias: &["mlp_bias"],
    biased: false,
    theta: 10_000.0,
    mlp: gated_mlp,
};

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    model(r, &LLAMA)
}

pub(super) fn read_arcee(r: &mut Reader<'_>) -> ModelSpec {
    model(r, &Variant { act: (&["hidden_act"], "relu2"), eps: (&["rms_norm_eps"], 1e-5), mlp: plain, ..LLAMA })
}

pub(super) fn read_jais2(r: &mut Reader<'_>) -> ModelSpec {
    let variant = Variant {
        act: (&["hidden_act"], "relu2"),
        eps: (&["layer_norm_eps"], 1e-5),
        norm: |eps| NormSpec { kind: NormKind::LayerNorm { bias: true }, eps },
        biased: true,
        mlp: plain,
        ..LLAMA
    };
    model(r, &variant)
}

pub(super) fn read_iquestcoder(r: &mut Reader<'_>) -> ModelSpec {
    model(r, &Variant { kv_heads: Some(8), head_dim: Some(128), eps: (&["rms_norm_eps"], 1e-5), ..LLAMA })
}

pub(super) fn read_exaone(r: &mut Reader<'_>) -> ModelSpec {
    let variant = Variant {
        layers: &["num_hidden_layers", "num_layers"],
        kv_heads: Some(8),
        act: (&["hidden_act", "activation_function"], "silu"),
        eps: (&["rms_norm_eps", "layer_norm_epsilon"], 1e-5),
        theta: 500_000.0,
        ..LLAMA
    };
    model(r, &variant)
}

pub(super) fn read_internlm3(r: &mut Reader<'_>) -> ModelSpec {
    let variant = Variant {
        kv_heads: Some(2),
        head_dim: Some(128),
        eps: (&["rms_norm_eps"], 1e-5),
        bias: &["attention_bias", "qkv_bias"],
        mlp_bias: &["mlp_bias", "bias"],
        ..LLAMA
    };
    model(r, &variant)
}

/// `EuroBERT`: Llama that attends in both directions, with what encoders are asked for behind it.
pub(super) fn read_eurobert(r: &mut Reader<'_>) -> ModelSpec {
    let mut model = model(r, &Variant { eps: (&["rms_norm_eps"], 1e-5), ..LLAMA });
    change_layers(&mut model.layers, |layer| {
        if let Some(attention) = layer.attention_mut() {
            attention.causal = false;
        }
    });
    let (h, asked) = (model.hidden_size, Asked::of(r));
    let late = r.choice("classifier_pooling", &["late", "bos", "mean"], FAMILY);
    r.known(&["mask_token_id"]);
    model.task = Task::OwnToken;
    model.head.bias = r.flag("mlp_bias", false);
    model.head.narrow_loss = false;
    match asked {
        Asked::Hidden => {
            model.task = Task::Outputs;
            model.names.body = "";
            model.head = HeadSpec { absent: true, ..HeadSpec::default() };
        }
        Asked::Classes(classes) => {
            let maps = [
                MapSpec::piece("dense", true, h, h),
                Piece::Activation(Activation::Gelu),
                Piece::Linear(MapSpec::head("classifier", true, h, classes)),
            ];
            let pool = match late {
                "bos" => Piece::First,
                _ => Piece::Mean,
            };
            let mut all = maps.to_vec();
            // The scores of all positions are averaged, or one vector is scored.
            all.insert(if late == "late" { all.len() } else { 0 }, pool);
            model.task = Task::Classes(classes);
            model.head = HeadSpec { absent: true, transform: all, ..HeadSpec::default() };
        }
        Asked::MaskedTokens | Asked::Other => {}
    }
    asked.warn(r, &mut model);
    model
}

fn plain(f: u64, act: Activation, bias: bool) -> MlpSpec {
    plain_mlp(f, act, "up_proj", "down_proj", bias)
}

fn sizes(r: &mut Reader<'_>, variant: &Variant) -> Sizes {
    // Wrappers leave out what equals the default of the class (LLaVA).
    let nested = r.config().sub_config().is_some();
    let mut size = |key: &str, default: u64| if nested { r.size_or(key, default, FAMILY) } else { r.size(key) };
    let (h, a, v) = (size("hidden_size", 4096), size("num_attention_heads", 32), size("vocab_size", 32_000));
    let l = if nested { r.layers_or(variant.layers, 32, FAMILY) } else { r.layers(variant.layers) };
    heads(r, &Given { h, l, a, v, k: variant.kv_heads, d: variant.head_dim })
}

fn model(r: &mut Reader<'_>, variant: &Variant) -> ModelSpec {
    let s = sizes(r, variant);
    let f = if r.config().sub_config().is_some() {
        r.size_or("intermediate_size", 11_008, FAMILY)
    } else {
        intermediate_size(r, &s)
    };
    let act = activation(r, variant.act.0, variant.act.1);
    let norm = (variant.norm)(r.float_or(variant.eps.0, variant.eps.1, FREE));
    let attention_bias = r.flag(variant.bias, variant.biased);
    let mlp_bias = r.flag(variant.mlp_bias, variant.biased);
    let tied = r.flag("tie_word_embeddings", false);
    let theta = rope_theta(r, variant.theta);
    r.known(&["pretraining_tp"]);

    let mut attention = attention(&s, attention_bias, attention_bias);
    attention.rotary = Some(rotary(s.d, theta));
    attention.dropout = r.float_or("attention_dropout", 0.0, "off");
    let layer = block(attention, (variant.mlp)(f, act, mlp_bias), pre_norm(&norm));
    decoder(r, &s, equal(&s, layer), norm, tied)
}
