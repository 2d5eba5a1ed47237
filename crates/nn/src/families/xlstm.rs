//! xLSTM: a matrix memory with exponential gates in every block, no attention.

use super::common::{FAMILY, FREE, Sizes, decoder, equal, float_or_off, gated_mlp, named, rms};
use crate::config::{Part, Reader};
use crate::spec::{
    Activation, BlockForm, FeedForwardSpec, LayerNames, LayerSpec, LinearSpec, Mixer, MlpInput, MlstmSpec, ModelNames,
    ModelSpec,
};

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let h = r.size(["hidden_size", "embedding_dim"]);
    let l = r.layers(["num_blocks", "num_hidden_layers"]);
    let v = r.size("vocab_size");
    let a = r.size_or("num_heads", 8, FAMILY);
    let key_width = part(r, h, a, "qk_dim_factor", 0.5);
    let value_width = part(r, h, a, "v_dim_factor", 1.0);
    let f = inner_width(r, h);
    r.check_product("the embedding table", &[("vocab_size", v), ("hidden_size", h)]);
    r.check_product("a map of the memory", &[("hidden_size", h), ("v_dim_factor", value_width)]);
    r.check_product("an MLP weight", &[("hidden_size", h), ("ffn_proj_factor", f)]);
    let norm = rms(r.float_or("norm_eps", 1e-6, FREE));
    let chunk = r.size_or("chunk_size", 64, FAMILY);
    let spec = MlstmSpec {
        heads: a,
        key_width,
        value_width,
        chunk,
        gate_cap: float_or_off(r, "gate_soft_cap", 15.0),
        norm_eps: norm.eps,
        eps: r.float_or("eps", 1e-6, FREE),
    };
    if r.flag("use_bias", false) {
        r.reject(
            "use_bias",
            "`use_bias` is set, which gives biases to maps and to norms of a kind that is not known here",
            "their parameters would be missing",
            "--set use_bias=false",
        );
    }
    // Maps side by side in one weight make the same products under other names.
    r.choice("weight_mode", &["single"], FAMILY);
    if r.flag("tie_word_embeddings", false) {
        r.not_applied(
            "tie_word_embeddings",
            "`tie_word_embeddings` is set, and transformers' xLSTM does not tie",
            "head and embedding are two tables",
            "--set tie_word_embeddings=false",
        );
    }
    r.known(&["mode", "chunkwise_kernel", "sequence_kernel", "step_kernel", "autocast_kernel_dtype"]);
    r.known(&["inference_state_dtype", "return_last_states", "max_inference_chunksize", "add_out_norm"]);
    r.known(&["norm_reduction_force_float32"]);
    let mut mlp = gated_mlp(f, Activation::Silu, false);
    let map = |name| LinearSpec::new(name, false);
    mlp.input = MlpInput::Gated { gate: map("proj_up_gate"), up: map("proj_up") };
    mlp.down = map("proj_down");
    let layer = LayerSpec {
        names: LayerNames { attention: "mlstm_layer", feed_forward: "ffn" },
        ..LayerSpec::new(
            Mixer::Mlstm(Box::new(spec)),
            FeedForwardSpec::Mlp(mlp),
            BlockForm::Sequential { n1: named("norm_mlstm", &norm), n2: named("norm_ffn", &norm) },
        )
    };
    let s = Sizes { h, l, a, k: a, d: 1, v };
    let mut model = decoder(r, &s, equal(&s, layer), norm, false);
    model.names = ModelNames {
        body: "backbone",
        embed: "embeddings",
        layers: "blocks",
        norm: "out_norm",
        ..ModelNames::default()
    };
    model.head.softcap = float_or_off(r, "output_logit_soft_cap", 30.0);
    model.has_sdpa = false;
    model.not_modelled.push(format!(
        "the largest gate that the reference follows from position to position beside the memory: elementwise work on a few \
         numbers per head and token, and tables of {chunk} x {chunk} numbers per head and chunk that it keeps once more"
    ));
    model
}

/// The part of the stream that `key` names, in equal heads.
fn part(r: &mut Reader<'_>, h: u64, a: u64, key: &str, default: f64) -> u64 {
    let factor = r.float_or(key, default, FAMILY);
    let width = (h as f64 * factor) as u64;
    if factor <= 0.0 || width == 0 {
        r.reject(
            key,
            format!("`{key}` is {factor}"),
            "a head holds at least one channel",
            &format!("--set {key}={default}"),
        );
    }
    r.require_divides(
        Part::new(key, width, "wide"),
        Part::new("num_heads", a, "heads"),
        "each head gets an equal part of queries, keys and values",
    );
    width.max(1)
}

/// `ffn_proj_factor` of the stream, rounded up.
fn inner_width(r: &mut Reader<'_>, h: u64) -> u64 {
    let factor = r.float_or("ffn_proj_factor", 2.667, FAMILY);
    let multiple = r.size_or("ffn_round_up_to_multiple_of", 64, FAMILY).max(1);
    let wide = ((h as f64 * factor + (multiple - 1) as f64) / multiple as f64).floor();
    if factor > 0.0 && wide >= 1.0 {
        return (wide as u64).saturating_mul(multiple);
    }
    r.reject(
        "ffn_proj_factor",
        format!("`ffn_proj_factor` is {factor}"),
        "the feed-forward part needs a width",
        "--set ffn_proj_factor=2.667",
    );
    multiple
}
