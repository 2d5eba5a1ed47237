//! Gemma 4: blocks may have an input of their own beside the stream; blocks without a window have heads of their own size and
//! may take their keys as values; experts stand beside the dense feed-forward part. With it, its encoder of images.

use super::common::{
    FAMILY, FREE, Given, Sizes, activation, attention, block, decoder, gated_mlp, heads, intermediate_size, named,
    rotary, sliding, window,
};
use super::experts::{counts, mixture};
use super::vision::with_part;
use super::{gemma2, gemma3n, towers};
use crate::ParamKind;
use crate::config::Reader;
use crate::spec::{
    Activation, AttentionSpec, BesideSpec, EmbeddingSpec, FeedForwardSpec, InputSpec, KvSharing, LayerSpec, LinearSpec,
    MapSpec, MlpInput, ModelNames, ModelSpec, NormKind, NormSpec, Piece, Projection, QkNorm, QkNormPlace, RotarySpec,
    RouterSpec, SignalSpec, SourceSpec, StackSpec, TowerSpec,
};
use std::sync::Arc;

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let (h, l) = (r.size_or("hidden_size", 2304, FAMILY), r.layers_or("num_hidden_layers", 30, FAMILY));
    let (a, v) = (r.size_or("num_attention_heads", 8, FAMILY), r.size_or("vocab_size", 262_144, FAMILY));
    let s = heads(r, &Given { h, l, a, v, k: Some(4), d: Some(256) });
    let f = intermediate_size(r, &s);
    let act = activation(r, "hidden_activation", "gelu_pytorch_tanh");
    let eps = r.float_or("rms_norm_eps", 1e-6, FREE);
    let norm = NormSpec { kind: NormKind::RmsWeightInF32, eps };
    let tied = r.flag("tie_word_embeddings", true);
    let bias = r.flag("attention_bias", false);
    let input = inputs(r, s.l, act, &norm);
    r.choice("use_bidirectional_attention", &["vision"], "between tokens of images alone: none in a text");

    let mut slides = sliding(r, s.l, |i| !(i + 1).is_multiple_of(6));
    if let Some(last) = slides.last_mut() {
        // The class makes it so, whatever the file says.
        *last = false;
    }
    let window = window(r, Some(512));
    let sharing = gemma3n::sharing(r, &slides, 0);
    let doubled = r.flag("use_double_wide_mlp", false);
    let paired = r.flag("attention_k_eq_v", false);
    let wide = Sizes {
        d: r.size_or("global_head_dim", 512, FAMILY),
        k: r.opt_size("num_global_key_value_heads").filter(|_| paired).unwrap_or(s.k),
        ..s
    };
    r.known(&["rope_scaling", "rope_parameters"]);
    let global = r.float_or("rope_parameters.full_attention.rope_theta", 1_000_000.0, FREE);
    let part = r.float_or("rope_parameters.full_attention.partial_rotary_factor", 0.25, FREE);
    let local = r.float_or("rope_parameters.sliding_attention.rope_theta", 10_000.0, FREE);
    let dropout = r.float_or("attention_dropout", 0.0, "off");
    let mut full = mixing(&wide, bias, &norm);
    full.rotary = Some(RotarySpec { turning: Some((part * wide.d as f64 / 2.0) as u64), ..rotary(wide.d, global) });
    full.dropout = dropout;
    if paired {
        full.projection = Projection::Paired { q: LinearSpec::new("q_proj", bias), k: LinearSpec::new("k_proj", bias) };
    }
    let mut windowed = mixing(&s, bias, &norm);
    windowed.rotary = Some(RotarySpec { table: 1, ..rotary(s.d, local) });
    windowed.dropout = dropout;
    windowed.window = window;
    let experts = experts(r, &s, act, eps);

    let mut layers: Vec<Arc<LayerSpec>> = Vec::with_capacity(slides.len());
    for (&slides, &sharing) in slides.iter().zip(&sharing) {
        let mut mixing = if slides { windowed.clone() } else { full.clone() };
        mixing.sharing = sharing;
        let twice = doubled && matches!(sharing, KvSharing::Takes(_));
        let mlp = gated_mlp(if twice { f.saturating_mul(2) } else { f }, act, false);
        let mut made = block(mixing, mlp.clone(), gemma2::sandwich(&norm));
        if let Some(moe) = &experts {
            made.names.feed_forward = "";
            made.feed_forward = FeedForwardSpec::Beside(Box::new(BesideSpec {
                mlp,
                m1: named("post_feedforward_layernorm_1", &norm),
                moe: moe.clone(),
                n: named("pre_feedforward_layernorm_2", &norm),
                m2: named("post_feedforward_layernorm_2", &norm),
            }));
        }
        made.input.clone_from(&input);
        let same = layers.iter().find(|layer| ***layer == made).cloned();
        layers.push(same.unwrap_or_else(|| Arc::new(made)));
    }
    let mut model = decoder(r, &s, layers, norm, tied);
    model.embedding.scale = Some((s.h as f64).sqrt());
    model.head.softcap = r.opt_float("final_logit_softcapping");
    model.not_modelled.push(
        "the number of each block that its output is multiplied with (`layer_scalar`): not trained, taken as 1; one \
         multiplication for each channel of each token"
            .to_owned(),
    );
    model
}

/// Attention of either kind.
fn mixing(s: &Sizes, bias: bool, norm: &NormSpec) -> AttentionSpec {
    let mut mixing = attention(s, bias, bias);
    mixing.qk_norm = QkNorm::PerHead(norm.clone());
    mixing.qk_norm_place = QkNormPlace::Heads;
    mixing.value_norm = Some(NormSpec { kind: NormKind::RmsPlain, eps: norm.eps });
    mixing.scale = 1.0;
    mixing
}

/// The input of each block, which the small models of the family have.
fn inputs(r: &mut Reader<'_>, l: u64, act: Activation, norm: &NormSpec) -> Option<Arc<InputSpec>> {
    let width = r.count_or("hidden_size_per_layer_input", 256, FAMILY);
    if width == 0 {
        r.known(&["vocab_size_per_layer_input"]);
        return None;
    }
    let rows = r.size_or("vocab_size_per_layer_input", 262_144, FAMILY);
    r.check_product(
        "the table of inputs of blocks",
        &[("vocab_size_per_layer_input", rows), ("hidden_size_per_layer_input", width), ("num_hidden_layers", l)],
    );
    Some(Arc::new(InputSpec { width, rows, act, norm: norm.clone() }))
}

/// The mixture beside the dense part, if there is one.
fn experts(r: &mut Reader<'_>, s: &Sizes, act: Activation, eps: f64) -> Option<crate::spec::MoeSpec> {
    let keys = ["num_experts", "top_k_experts", "moe_intermediate_size"];
    if !r.flag("enable_moe_block", false) {
        r.known(&keys);
        return None;
    }
    let [experts, top_k, f] = keys.map(|key| r.size(key));
    let counts = counts(r, s.h, (keys[0], experts), top_k, (keys[2], f));
    let router =
        RouterSpec { name: "router", inner: Some("proj"), scaled: Some(eps), normalise: true, ..RouterSpec::default() };
    Some(mixture(&counts, act, router, None))
}

/// The encoder of images, on as many patches as fill the positions of one.
pub(super) fn tower(r: &mut Reader<'_>, text: u64) -> TowerSpec {
    with_part(r, "vision_config", |r| {
        let size = |r: &mut Reader<'_>, key: &'static str, default: u64| r.size_or(key, default, FAMILY);
        let (h, l) = (size(r, "hidden_size", 768), r.layers_or("num_hidden_layers", 16, FAMILY));
        let (a, k, d) =
            (size(r, "num_attention_heads", 12), size(r, "num_key_value_heads", 12), size(r, "head_dim", 64));
        let s = Sizes { h, l, a, k, d, v: 1 };
        let f = size(r, "intermediate_size", 3072);
        r.check_product("an MLP weight", &[("hidden_size", h), ("intermediate_size", f)]);
        let act = activation(r, "hidden_activation", "gelu_pytorch_tanh");
        let eps = r.float_or("rms_norm_eps", 1e-6, FREE);
        let norm = NormSpec { kind: NormKind::RmsWeightInF32, eps };
        let (patch, kernel) = (size(r, "patch_size", 16), size(r, "pooling_kernel_size", 3));
        let rows = size(r, "position_embedding_size", 10 * 1024);
        let tokens = size(r, "default_output_length", 280);
        let theta = r.float_or("rope_parameters.rope_theta", 100.0, FREE);
        r.known(&[
            "attention_bias",
            "attention_dropout",
            "global_head_dim",
            "max_position_embeddings",
            "rope_parameters",
            "standardize",
            "use_clipped_linears",
        ]);
        let mut mixing = mixing(&s, false, &norm);
        mixing.causal = false;
        let map = |name| LinearSpec::new(name, false);
        mixing.projection =
            Projection::Separate { q: map("q_proj.linear"), k: map("k_proj.linear"), v: map("v_proj.linear") };
        mixing.out = map("o_proj.linear");
        mixing.rotary = Some(rotary(d - d % 2, theta));
        let mut mlp = gated_mlp(f, act, false);
        mlp.input = MlpInput::Gated { gate: map("gate_proj.linear"), up: map("up_proj.linear") };
        mlp.down = map("down_proj.linear");
        let layer = Arc::new(block(mixing, mlp, gemma2::sandwich(&norm)));

        let group = kernel.saturating_mul(kernel);
        let width = patch.saturating_mul(patch).saturating_mul(3);
        let patches = tokens.saturating_mul(group);
        let signal = SignalSpec {
            what: format!("image of {patches} patches of {patch} x {patch}"),
            len: patches,
            width,
            pieces: vec![MapSpec::piece("patch_embedder.input_proj", false, width, h)],
            leading: Vec::new(),
            registers: None,
            graded: false,
        };
        let stack = StackSpec {
            hidden_size: h,
            embedding: EmbeddingSpec { source: SourceSpec::Signal(signal), ..EmbeddingSpec::default() },
            layers: vec![layer; l as usize],
            final_norm: None,
            names: ModelNames { body: "model.vision_tower", layers: "encoder.layers", ..ModelNames::default() },
        };
        let plain = NormSpec { kind: NormKind::RmsPlain, eps };
        let projector = vec![
            Piece::Pool(group),
            Piece::Norm(named("model.embed_vision.embedding_pre_projection_norm", &plain), h),
            MapSpec::piece("model.embed_vision.embedding_projection", false, h, text),
        ];
        let mut tower = towers::vision(stack, projector);
        let table = "model.vision_tower.patch_embedder.position_embedding_table";
        tower.counted.push((table.to_owned(), vec![2, rows, h], ParamKind::Matrix));
        tower
    })
}
