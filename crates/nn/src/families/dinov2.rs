//! `DINOv2` and `DINOv3`: ViT whose branches have trained factors, perhaps with gated feed-forward parts and with registers.

use super::common::{FAMILY, activation, attention, block, equal, gated_mlp, named, plain_mlp, rotary};
use super::{tasks, vision};
use crate::ParamKind;
use crate::config::Reader;
use crate::spec::{
    Activation, BlockForm, CountedSpec, EmbeddingSpec, LayerNames, LeadingSpec, LinearSpec, ModelNames, ModelSpec,
    Piece, PositionForm, PositionTable, Projection, SourceSpec,
};

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let masked = r.flag("use_mask_token", true);
    family(r, "dinov2", 14, None, masked)
}

pub(super) fn read_with_registers(r: &mut Reader<'_>) -> ModelSpec {
    let registers = r.count_or("num_register_tokens", 4, FAMILY);
    family(r, "dinov2_with_registers", 16, Some(registers), true)
}

fn family(r: &mut Reader<'_>, body: &'static str, patch: u64, registers: Option<u64>, masked: bool) -> ModelSpec {
    let s = vision::vision_sizes(r);
    let f = s.h.saturating_mul(r.size_or("mlp_ratio", 4, FAMILY));
    r.check_product("an MLP weight", &[("hidden_size", s.h), ("hidden_size", s.h), ("mlp_ratio", (f / s.h).max(1))]);
    let act = activation(r, "hidden_act", "gelu");
    let norm = vision::layer_norm(r, 1e-6);
    let image = vision::Image::read(r, 224, patch);
    let dropout = r.float_or("hidden_dropout_prob", 0.0, "off");
    stochastic_depth(r, 0.0);
    r.known(&["layerscale_value", "apply_layernorm", "reshape_hidden_states", "stage_names"]);
    r.known(&["out_features", "out_indices", "_out_features", "_out_indices"]);

    let mut attention = attention(&s, r.flag("qkv_bias", true), true);
    attention.causal = false;
    attention.dropout = r.float_or("attention_probs_dropout_prob", 0.0, "off");
    let mlp = if r.flag("use_swiglu_ffn", false) {
        // Two thirds of the width, up to the next multiple of 8.
        gated_mlp((f.saturating_mul(2) / 3).div_ceil(8) * 8, Activation::Silu, true)
    } else {
        plain_mlp(f, act, "fc1", "fc2", true)
    };
    let form = BlockForm::Sequential { n1: named("norm1", &norm), n2: named("norm2", &norm) };
    let mut layer = block(attention, mlp, form);
    layer.names = LayerNames { attention: "attention", feed_forward: "mlp" };
    layer.branch_scales = Some(["layer_scale1.lambda1", "layer_scale2.lambda1"]);
    let leading = vec![LeadingSpec { name: "embeddings.cls_token", flat: false }];
    let mut signal = image.signal(image.map("embeddings.patch_embeddings.projection", true, s.h), leading);
    let placed = signal.positions();
    signal.registers = registers.filter(|count| *count > 0).map(|count| ("embeddings.register_tokens", count));
    let embedding = EmbeddingSpec {
        positions: Some(PositionTable {
            form: PositionForm::Bare,
            ..PositionTable::new("embeddings.position_embeddings", placed)
        }),
        source: SourceSpec::Signal(signal),
        dropout,
        ..EmbeddingSpec::default()
    };
    let mut model = tasks::model(&s, embedding, equal(&s, layer));
    model.final_norm = Some(norm);
    // Stands in for patches that are masked; no loss here masks any.
    model.unused.extend(masked.then(|| CountedSpec::new("embeddings.mask_token", &[1, s.h])));
    let headless = r.config().architectures().first().is_some_and(|class| class.ends_with("Model"));
    model.names = ModelNames {
        body: if headless { "" } else { body },
        layers: "encoder.layer",
        norm: "layernorm",
        ..ModelNames::default()
    };
    if !headless {
        let pool = Piece::FirstAndMean(registers.unwrap_or(0).saturating_add(1));
        vision::classify(r, &mut model, pool, s.h.saturating_mul(2));
    }
    model
}

/// `DINOv3`: positions by rotation instead of a table.
pub(super) fn read_v3(r: &mut Reader<'_>) -> ModelSpec {
    let s = vision::vision_sizes_or(r, [384, 12, 6]);
    let f = r.size_or("intermediate_size", 1536, FAMILY);
    r.check_product("an MLP weight", &[("hidden_size", s.h), ("intermediate_size", f)]);
    let act = activation(r, "hidden_act", "gelu");
    let norm = vision::layer_norm(r, 1e-5);
    let image = vision::Image::read(r, 224, 16);
    let registers = r.count_or("num_register_tokens", 0, FAMILY);
    stochastic_depth(r, 0.0);
    r.known(&["layerscale_value", "apply_layernorm", "reshape_hidden_states", "stage_names", "rope_theta"]);
    r.known(&["pos_embed_shift", "pos_embed_jitter", "pos_embed_rescale"]);
    r.known(&["out_features", "out_indices", "_out_features", "_out_indices"]);

    let mut attention = attention(&s, true, r.flag("proj_bias", true));
    let map = |name, bias| LinearSpec::new(name, bias);
    attention.projection = Projection::Separate {
        q: map("q_proj", r.flag("query_bias", true)),
        k: map("k_proj", r.flag("key_bias", false)),
        v: map("v_proj", r.flag("value_bias", true)),
    };
    attention.causal = false;
    attention.rotary = Some(rotary(s.d, 100.0));
    attention.dropout = r.float_or("attention_dropout", 0.0, "off");
    let bias = r.flag("mlp_bias", true);
    let mlp = if r.flag("use_gated_mlp", false) {
        gated_mlp(f, act, bias)
    } else {
        plain_mlp(f, act, "up_proj", "down_proj", bias)
    };
    let form = BlockForm::Sequential { n1: named("norm1", &norm), n2: named("norm2", &norm) };
    let mut layer = block(attention, mlp, form);
    layer.names = LayerNames { attention: "attention", feed_forward: "mlp" };
    layer.branch_scales = Some(["layer_scale1.lambda1", "layer_scale2.lambda1"]);
    let leading = vec![LeadingSpec { name: "embeddings.cls_token", flat: false }];
    let mut signal = image.signal(image.map("embeddings.patch_embeddings", true, s.h), leading);
    signal.registers = (registers > 0).then_some(("embeddings.register_tokens", registers));
    let embedding = EmbeddingSpec { source: SourceSpec::Signal(signal), ..EmbeddingSpec::default() };
    let mut model = tasks::model(&s, embedding, equal(&s, layer));
    model.final_norm = Some(norm);
    model
        .unused
        .push(CountedSpec { kind: ParamKind::Embedding, ..CountedSpec::new("embeddings.mask_token", &[1, 1, s.h]) });
    model.names = ModelNames { body: "", layers: "model.layer", ..ModelNames::default() };
    model.not_modelled.push(
        "the rotation by row and column: each position is turned by its place in the sequence, and those in front of the \
         patches are turned too; no parameter and no product differs"
            .to_owned(),
    );
    if let Some(class) = r.config().architectures().first().filter(|class| !class.ends_with("Model")) {
        model.not_modelled.push(format!("what {class} puts behind the body"));
    }
    model
}

/// `drop_path_rate`: branches that are left out of single sequences at random.
pub(super) fn stochastic_depth(r: &mut Reader<'_>, default: f64) {
    if r.float_or("drop_path_rate", default, FAMILY) > 0.0 {
        r.not_applied(
            "drop_path_rate",
            "`drop_path_rate` is above 0: training leaves branches out of single sequences at random",
            "counted as if none is left out; a copy of the scaled branch is missing, twice in each block",
            "--set drop_path_rate=0",
        );
    }
}
