//! `DINOv2`: ViT whose branches have trained factors, perhaps with gated feed-forward parts and with registers.

use super::common::{activation, attention, block, equal, gated_mlp, named, plain_mlp};
use super::{tasks, vision};
use crate::config::Reader;
use crate::spec::{
    Activation, BlockForm, CountedSpec, EmbeddingSpec, LayerNames, LeadingSpec, ModelNames, ModelSpec, Piece,
    PositionForm, PositionTable, SourceSpec,
};

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let masked = r.flag("use_mask_token", true);
    family(r, "dinov2", 14, None, masked)
}

pub(super) fn read_with_registers(r: &mut Reader<'_>) -> ModelSpec {
    let registers = r.count_or("num_register_tokens", 4, super::common::FAMILY);
    family(r, "dinov2_with_registers", 16, Some(registers), true)
}

fn family(r: &mut Reader<'_>, body: &'static str, patch: u64, registers: Option<u64>, masked: bool) -> ModelSpec {
    let s = vision::vision_sizes(r);
    let f = s.h.saturating_mul(r.size_or("mlp_ratio", 4, super::common::FAMILY));
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

/// `drop_path_rate`: branches that are left out of single sequences at random.
pub(super) fn stochastic_depth(r: &mut Reader<'_>, default: f64) {
    if r.float_or("drop_path_rate", default, super::common::FAMILY) > 0.0 {
        r.not_applied(
            "drop_path_rate",
            "`drop_path_rate` is above 0: training leaves branches out of single sequences at random",
            "counted as if none is left out; a copy of the scaled branch is missing, twice in each block",
            "--set drop_path_rate=0",
        );
    }
}
