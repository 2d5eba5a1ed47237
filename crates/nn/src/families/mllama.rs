//! Llama 3.2 with images: a Llama some of whose blocks attend to an image, and skip where there is none; its encoder.

use super::common::{
    FAMILY, FREE, Given, Sizes, activation, attention, block, decoder, gated_mlp, heads, intermediate_size, named,
    plain_mlp, pre_norm, rms, rope_theta, rotary,
};
use super::towers;
use super::vision::with_part;
use crate::ParamKind;
use crate::config::{Part, Reader};
use crate::spec::{
    BlockForm, CountedSpec, EmbeddingSpec, LayerNames, LeadingSpec, MapSpec, ModelNames, ModelSpec, NormKind, NormSpec,
    Piece, QkNorm, SignalSpec, SourceSpec, StackSpec, TowerSpec,
};
use std::sync::Arc;

/// Rows of the token table beyond the vocabulary, for the places of images.
const IMAGE_ROWS: u64 = 8;

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let (h, l) = (r.size_or("hidden_size", 4096, FAMILY), r.layers_or("num_hidden_layers", 40, FAMILY));
    let (a, v) = (r.size_or("num_attention_heads", 32, FAMILY), r.size_or("vocab_size", 128_256, FAMILY));
    let s = heads(r, &Given { h, l, a, v, k: Some(8), d: None });
    let f = intermediate_size(r, &s);
    let act = activation(r, "hidden_act", "silu");
    let norm = rms(r.float_or("rms_norm_eps", 1e-5, FREE));
    let tied = r.flag("tie_word_embeddings", false);
    r.known(&["dropout"]);
    let theta = rope_theta(r, 500_000.0);
    let crossing = r.counts("cross_attention_layers").unwrap_or_else(|| {
        r.assume("cross_attention_layers", "[3,8,13,18,23,28,33,38]", FAMILY);
        (0..8).map(|i| 3 + 5 * i).collect()
    });
    if let Some(far) = crossing.iter().find(|&&i| i >= l) {
        r.reject(
            "cross_attention_layers",
            format!("`cross_attention_layers` names block {far}, and there are {l}"),
            "it lists the blocks that attend to an image, counted from 0",
            "numbers below num_hidden_layers",
        );
    }
    let mut own = attention(&s, false, false);
    let mut other = own.clone();
    own.rotary = Some(rotary(s.d, theta));
    other.causal = false;
    other.qk_norm = QkNorm::PerHead(norm.clone());
    let plain = Arc::new(block(own, gated_mlp(f, act, false), pre_norm(&norm)));
    let mut cross = block(other, gated_mlp(f, act, false), pre_norm(&norm));
    cross.names = LayerNames { attention: "cross_attn", ..LayerNames::default() };
    cross.counted = ["cross_attn_attn_gate", "cross_attn_mlp_gate"].map(|name| CountedSpec::new(name, &[1])).into();
    let cross = Arc::new(cross);
    let crosses = |i: u64| crossing.contains(&i);
    let layers = (0..l).map(|i| if crosses(i) { cross.clone() } else { plain.clone() }).collect();
    let mut model = decoder(r, &s, layers, norm, tied);
    model.embedding.extra = IMAGE_ROWS;
    model.order = Some((0..l).filter(|&i| !crosses(i)).map(|i| i as usize).collect());
    if !crossing.is_empty() {
        model.not_modelled.push(format!(
            "the {} blocks that attend to an image: their parameters are counted; a text without one passes them by, with \
             one each costs about as much as another block and keys and values of the image",
            crossing.len()
        ));
    }
    model
}

/// The encoder of images: all tiles of one together, blocks for each and then gated ones as one stack.
pub(super) fn tower(r: &mut Reader<'_>, text: u64) -> TowerSpec {
    with_part(r, "vision_config", |r| {
        let size = |r: &mut Reader<'_>, key: &'static str, default: u64| r.size_or(key, default, FAMILY);
        let (h, a) = (size(r, "hidden_size", 1280), size(r, "attention_heads", 16));
        let local = r.layers_or("num_hidden_layers", 32, FAMILY);
        let global = r.layers_or("num_global_layers", 8, FAMILY);
        r.require_divides(
            Part::new("hidden_size", h, "wide"),
            Part::new("attention_heads", a, "heads"),
            "each head gets an equal part of the stream",
        );
        let d = (h / a.max(1)).max(1);
        let s = Sizes { h, l: local, a, k: a, d, v: 1 };
        let f = size(r, "intermediate_size", 5120);
        r.check_product("an MLP weight", &[("hidden_size", h), ("intermediate_size", f)]);
        let act = activation(r, "hidden_act", "gelu");
        let norm = NormSpec { kind: NormKind::LayerNorm { bias: true }, eps: r.float_or("norm_eps", 1e-5, FREE) };
        let (image, patch) = (size(r, "image_size", 448), size(r, "patch_size", 14));
        let (channels, tiles) = (size(r, "num_channels", 3), size(r, "max_num_tiles", 4));
        let output = size(r, "vision_output_dim", 7680);
        let ratios = r.list_len("supported_aspect_ratios").unwrap_or(8) as u64 + 1;
        let states = r.counts("intermediate_layers_indices").map_or(5, |listed| listed.len() as u64) + 1;
        r.known(&["supported_aspect_ratios", "attention_dropout"]);

        let form =
            BlockForm::Sequential { n1: named("input_layernorm", &norm), n2: named("post_attention_layernorm", &norm) };
        let mut mixing = attention(&s, false, false);
        mixing.causal = false;
        let layer = block(mixing, plain_mlp(f, act, "fc1", "fc2", true), form);
        let mut gated = layer.clone();
        gated.counted = ["gate_attn", "gate_ffn"].map(|name| CountedSpec::new(name, &[1])).into();
        let repeated = |layer, times: u64| std::iter::repeat_n(Arc::new(layer), times as usize);
        let layers = repeated(layer, local).chain(repeated(gated, global)).collect();

        let side = (image / patch.max(1)).max(1);
        let patches = side.saturating_mul(side).saturating_mul(tiles);
        let width = channels.saturating_mul(patch).saturating_mul(patch);
        let signal = SignalSpec {
            what: format!("image of {tiles} tiles of {image} x {image} in patches of {patch} x {patch}"),
            len: patches,
            width,
            pieces: vec![towers::patches("patch_embedding", false, vec![channels, patch, patch], h)],
            leading: vec![LeadingSpec { name: "class_embedding", flat: true }],
            registers: None,
            graded: false,
        };
        let embedding =
            EmbeddingSpec { source: SourceSpec::Signal(signal), norm: Some(norm.clone()), ..EmbeddingSpec::default() };
        let names = ModelNames {
            body: "model.vision_model",
            layers: "transformer.layers",
            norm: "layernorm_post",
            embed_norm: "layernorm_pre",
            ..ModelNames::default()
        };
        let stack = StackSpec { hidden_size: h, embedding, layers, final_norm: Some(norm), names };
        let mut projector = Vec::new();
        if states > 1 {
            projector.push(Piece::SideBySide(states));
        }
        projector.push(MapSpec::piece("model.multi_modal_projector", true, output, text));
        let mut tower = towers::vision(stack, projector);
        let places = side.saturating_mul(side).saturating_add(1);
        let across = tiles.saturating_mul(h);
        let tables = [
            ("gated_positional_embedding.embedding", [places, h]),
            ("gated_positional_embedding.tile_embedding.weight", [ratios, across.saturating_mul(places)]),
            ("pre_tile_positional_embedding.embedding.weight", [ratios, across]),
            ("post_tile_positional_embedding.embedding.weight", [ratios, across]),
        ];
        let root = |name: &str| format!("model.vision_model.{name}");
        tower.counted.extend(tables.map(|(name, shape)| (root(name), shape.to_vec(), ParamKind::Embedding)));
        let gates = ["gated_positional", "pre_tile_positional", "post_tile_positional"];
        let gate = |name| (root(&format!("{name}_embedding.gate")), vec![1], ParamKind::Vector);
        tower.counted.extend(gates.map(gate));
        tower
    })
}
