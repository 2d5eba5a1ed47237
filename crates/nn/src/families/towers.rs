//! The parts of wrappers that turn images into positions of the text: read from the sub-configuration beside the text's.
//!
//! A wrapper's file is read as its language model; what stands here is counted and traced beside it, on one image.

use super::common::{
    FAMILY, FREE, Sizes, activation, attention, block, equal, gated_mlp, named, plain_mlp, rms, rotary,
};
use super::vision::{Image, clip_stack, siglip_stack, vision_sizes_or, with_part};
use crate::config::Reader;
use crate::spec::{
    Activation, AttentionSpec, BlockForm, EmbeddingSpec, FusedOrder, LayerNames, LayerSpec, LeadingSpec, LinearSpec,
    MapSpec, MlpSpec, ModelNames, ModelSpec, NormKind, NormSpec, Piece, PositionForm, PositionTable, Projection,
    SignalSpec, SourceSpec, StackSpec, TowerSpec,
};

/// Reads the vision part of a wrapper beside a text of this width.
type ReadTower = fn(&mut Reader<'_>, u64) -> TowerSpec;

/// Wrappers whose vision part is known.
const KNOWN: [(&str, ReadTower); 13] = [
    ("gemma3", gemma3),
    ("gemma4", super::gemma4::tower),
    ("kimi_k25", kimi),
    ("llama4", llama4),
    ("llava", llava),
    ("mistral3", mistral3),
    ("mllama", super::mllama::tower),
    ("qwen2_5_vl", qwen2_5),
    ("qwen2_vl", qwen2),
    ("qwen3_5", qwen3),
    ("qwen3_5_moe", qwen3),
    ("qwen3_vl", qwen3),
    ("qwen3_vl_moe", qwen3),
];

/// Adds the vision part of a wrapper where it is known, and says whether it is; other parts stay reported as not counted.
pub(super) fn attach(r: &mut Reader<'_>, wrapper: &str, model: &mut ModelSpec) -> bool {
    let Some((_, read)) = KNOWN.iter().find(|(name, _)| *name == wrapper) else { return false };
    // Of Gemma 4 there are models of text alone.
    if wrapper != "gemma4" || has_vision(r) {
        model.towers.push(read(r, model.hidden_size));
        model.not_modelled.extend(simplified(wrapper).map(str::to_owned));
    }
    true
}

/// What of a vision part is counted in another way than the reference runs it.
fn simplified(wrapper: &str) -> Option<&'static str> {
    match wrapper {
        "gemma4" => Some(
            "of the image encoder: its table of positions is counted and not added, positions turn all of a head together \
             and not rows and columns apart, and neither clipped maps nor the standardisation of its outputs are run: \
             elementwise work",
        ),
        "mllama" => Some(
            "of the image encoder: its tables of positions and tiles and the gates of its blocks are counted and not run, \
             and the states of inner blocks that stand beside its output are taken to be copies of it: elementwise work",
        ),
        "qwen2_5_vl" => {
            Some("of the image encoder: blocks that see windows of the image are counted as seeing all of it")
        }
        _ => None,
    }
}

/// Whether the wrapper has a vision part at all.
fn has_vision(r: &Reader<'_>) -> bool {
    r.config().whole().find("vision_config").is_some_and(|found| !found.value.is_null())
}

/// A vision part of this stack, behind it these pieces.
pub(super) fn vision(stack: StackSpec, projector: Vec<Piece>) -> TowerSpec {
    TowerSpec { what: "vision", stack, projector, counted: Vec::new() }
}

/// What differs between the blocks of image encoders.
struct Style {
    /// Queries, keys and values in one map, or in three.
    fused: bool,
    /// Module names: attention, its maps (or the one map), its output, the feed-forward part, both norms.
    names: [&'static str; 5],
    /// Whether the maps of attention have biases.
    bias: bool,
    /// Whether positions turn queries and keys.
    turned: bool,
}

impl Style {
    fn layer(&self, s: &Sizes, norm: &NormSpec, mlp: MlpSpec) -> LayerSpec {
        let [attend, out, feed, before, after] = self.names;
        let mut mixing: AttentionSpec = attention(s, self.bias, self.bias);
        if self.fused {
            mixing.projection = Projection::Fused { qkv: LinearSpec::new("qkv", self.bias), order: FusedOrder::Blocks };
        }
        mixing.out = LinearSpec::new(out, self.bias);
        mixing.causal = false;
        mixing.rotary = self.turned.then(|| rotary(s.d - s.d % 2, 10_000.0));
        let form = BlockForm::Sequential { n1: named(before, norm), n2: named(after, norm) };
        let mut layer = block(mixing, mlp, form);
        layer.names = LayerNames { attention: attend, feed_forward: feed };
        layer
    }
}

/// A square image whose resolution the file leaves to the picture.
fn free_image(side: u64, patch: u64, channels: u64, frames: u64) -> (SignalSpec, u64) {
    let width = channels.saturating_mul(patch).saturating_mul(patch).saturating_mul(frames);
    let size = side.saturating_mul(patch);
    let signal = SignalSpec {
        what: format!("image of {size} x {size} in patches of {patch} x {patch}"),
        len: side.saturating_mul(side),
        width,
        pieces: Vec::new(),
        leading: Vec::new(),
        registers: None,
        graded: false,
    };
    (signal, width)
}

/// The first map of an image encoder, stored as a kernel.
pub(super) fn patches(name: &'static str, bias: bool, kernel: Vec<u64>, h: u64) -> Piece {
    let input = kernel.iter().fold(1, |all: u64, n| all.saturating_mul(*n));
    Piece::Linear(MapSpec { kernel, ..MapSpec::new(name, bias, input, h) })
}

fn table(count: u64, name: &'static str, form: PositionForm) -> PositionTable {
    PositionTable { form, ..PositionTable::new(name, count) }
}

/// Maps, and an activation between them.
fn two_maps(names: [&'static str; 2], bias: bool, [from, between, to]: [u64; 3], act: Activation) -> Vec<Piece> {
    vec![
        MapSpec::piece(names[0], bias, from, between),
        Piece::Activation(act),
        MapSpec::piece(names[1], bias, between, to),
    ]
}

/// `key` of the wrapper itself, whose other keys are the text's.
fn of_wrapper<T>(r: &mut Reader<'_>, read: impl FnOnce(&mut Reader<'_>) -> T) -> T {
    let config = r.config().whole();
    let mut whole = Reader::new(&config);
    let made = read(&mut whole);
    r.absorb_problems(whole);
    made
}

fn llava(r: &mut Reader<'_>, text: u64) -> TowerSpec {
    let (act, bias, layers) = of_wrapper(r, |r| {
        let act = activation(r, "projector_hidden_act", "gelu");
        (
            act,
            r.flag_or("multimodal_projector_bias", true, FAMILY),
            r.config().find("vision_feature_layer").and_then(|found| found.value.items().map(<[_]>::len)),
        )
    });
    let kind = r.config().part("vision_config").model_type().unwrap_or("clip_vision_model").to_owned();
    let (stack, mut projector) = with_part(r, "vision_config", |r| match kind.as_str() {
        "siglip_vision_model" => {
            let (stack, pool) = siglip_stack(r, "model.vision_tower", "model.vision_tower.head");
            (stack, pool.into_iter().map(|pool| Piece::Beside(vec![pool])).collect())
        }
        "pixtral" => (pixtral(r, 16, 1024), Vec::new()),
        _ => {
            let (stack, norm) = clip_stack(r, "model.vision_tower");
            let pooled = Piece::Norm(named("model.vision_tower.post_layernorm", &norm), stack.hidden_size);
            (stack, vec![Piece::Beside(vec![Piece::First, pooled]), Piece::WithoutFirst])
        }
    });
    // Features of several blocks stand side by side.
    let states = layers.unwrap_or(1).max(1) as u64;
    let from = stack.hidden_size.saturating_mul(states);
    if states > 1 {
        projector.push(Piece::SideBySide(states));
    }
    let names = ["model.multi_modal_projector.linear_1", "model.multi_modal_projector.linear_2"];
    projector.extend(two_maps(names, bias, [from, text, text], act));
    vision(stack, projector)
}

/// Pixtral's encoder: gated MLPs, RMS norms, positions by rotation.
fn pixtral(r: &mut Reader<'_>, patch: u64, size: u64) -> StackSpec {
    let s = vision_sizes_or(r, [1024, 24, 16]);
    let f = r.size_or("intermediate_size", 4096, FAMILY);
    r.check_product("an MLP weight", &[("hidden_size", s.h), ("intermediate_size", f)]);
    let act = activation(r, "hidden_act", "gelu");
    let norm = rms(1e-5);
    let image = Image::read(r, size, patch);
    // `head_dim` makes the angles of the rotation alone: projections are as wide as the stream.
    r.known(&["attention_dropout", "vocab_size", "head_dim"]);
    let style = Style {
        fused: false,
        names: ["attention", "o_proj", "feed_forward", "attention_norm", "ffn_norm"],
        bias: false,
        turned: true,
    };
    let layer = style.layer(&s, &norm, gated_mlp(f, act, false));
    let signal = image.signal(image.map("patch_conv", false, s.h), Vec::new());
    let embedding = EmbeddingSpec { source: SourceSpec::Signal(signal), norm: Some(norm), ..EmbeddingSpec::default() };
    let names = ModelNames {
        body: "model.vision_tower",
        layers: "transformer.layers",
        embed_norm: "ln_pre",
        ..ModelNames::default()
    };
    StackSpec { hidden_size: s.h, embedding, layers: equal(&s, layer), final_norm: None, names }
}

fn mistral3(r: &mut Reader<'_>, text: u64) -> TowerSpec {
    let (act, bias, merge) = of_wrapper(r, |r| {
        let act = activation(r, "projector_hidden_act", "gelu");
        let bias = r.flag_or("multimodal_projector_bias", false, FAMILY);
        (act, bias, r.size_or("spatial_merge_size", 2, FAMILY))
    });
    let stack = with_part(r, "vision_config", |r| pixtral(r, 14, 1540));
    let (h, group) = (stack.hidden_size, merge.saturating_mul(merge));
    let mut projector = vec![
        Piece::Norm(named("model.multi_modal_projector.norm", &rms(1e-5)), h),
        Piece::Group(group),
        MapSpec::piece("model.multi_modal_projector.patch_merger.merging_layer", false, h.saturating_mul(group), h),
    ];
    let names = ["model.multi_modal_projector.linear_1", "model.multi_modal_projector.linear_2"];
    projector.extend(two_maps(names, bias, [h, text, text], act));
    vision(stack, projector)
}

fn gemma3(r: &mut Reader<'_>, text: u64) -> TowerSpec {
    let tokens = of_wrapper(r, |r| r.size_or("mm_tokens_per_image", 256, FAMILY));
    let (stack, pool) =
        with_part(r, "vision_config", |r| siglip_stack(r, "model.vision_tower", "model.vision_tower.head"));
    let patches = match &stack.embedding.source {
        SourceSpec::Signal(signal) => signal.positions(),
        SourceSpec::Tokens => tokens,
    };
    let h = stack.hidden_size;
    let mut projector: Vec<Piece> = pool.into_iter().map(|pool| Piece::Beside(vec![pool])).collect();
    let norm = NormSpec { kind: NormKind::RmsUnitOffset, eps: 1e-6 };
    projector.extend([
        Piece::Pool((patches / tokens).max(1)),
        Piece::Norm(named("model.multi_modal_projector.mm_soft_emb_norm", &norm), h),
        MapSpec::piece("model.multi_modal_projector.mm_input_projection", false, h, text),
    ]);
    vision(stack, projector)
}

fn llama4(r: &mut Reader<'_>, text: u64) -> TowerSpec {
    with_part(r, "vision_config", |r| {
        let s = vision_sizes_or(r, [768, 34, 16]);
        let f = r.size_or("intermediate_size", 5632, FAMILY);
        r.check_product("an MLP weight", &[("hidden_size", s.h), ("intermediate_size", f)]);
        let act = activation(r, "hidden_act", "gelu");
        let norm = NormSpec { kind: NormKind::LayerNorm { bias: true }, eps: r.float_or("norm_eps", 1e-5, FREE) };
        let image = Image::read(r, 448, 14);
        let ratio = r.float_or("pixel_shuffle_ratio", 0.5, FAMILY);
        let [from, between, to] =
            [("projector_input_dim", 4096), ("projector_output_dim", 4096), ("vision_output_dim", 7680)]
                .map(|(key, size)| r.size_or(key, size, FAMILY));
        let bias = r.flag_or("multi_modal_projector_bias", false, FAMILY);
        r.known(&["attention_dropout", "projector_dropout", "vision_feature_select_strategy", "vision_feature_layer"]);
        let style = Style {
            fused: false,
            names: ["self_attn", "o_proj", "mlp", "input_layernorm", "post_attention_layernorm"],
            bias: true,
            turned: true,
        };
        let layer = style.layer(&s, &norm, plain_mlp(f, act, "fc1", "fc2", true));
        let leading = vec![LeadingSpec { name: "class_embedding", flat: true }];
        let signal = image.signal(MapSpec::piece("patch_embedding.linear", false, image.width(), s.h), leading);
        let embedding = EmbeddingSpec {
            positions: Some(table(signal.positions(), "positional_embedding_vlm", PositionForm::Plain)),
            source: SourceSpec::Signal(signal),
            norm: Some(norm.clone()),
            ..EmbeddingSpec::default()
        };
        let names = ModelNames {
            body: "vision_model",
            layers: "model.layers",
            norm: "layernorm_post",
            embed_norm: "layernorm_pre",
            ..ModelNames::default()
        };
        let stack = StackSpec { hidden_size: s.h, embedding, layers: equal(&s, layer), final_norm: Some(norm), names };
        let group = if ratio > 0.0 && ratio <= 1.0 { (1.0 / (ratio * ratio)).round() as u64 } else { 1 };
        let projector = vec![
            Piece::WithoutFirst,
            Piece::Group(group.max(1)),
            MapSpec::piece("vision_model.vision_adapter.mlp.fc1", false, f, from),
            Piece::Activation(Activation::Gelu),
            MapSpec::piece("vision_model.vision_adapter.mlp.fc2", false, from, between),
            Piece::Activation(Activation::Gelu),
            MapSpec::piece("multi_modal_projector.linear_1", bias, to, text),
        ];
        vision(stack, projector)
    })
}

/// Sizes under the keys of Qwen's image encoders.
fn qwen_sizes(r: &mut Reader<'_>, width: &'static str, [h, l]: [u64; 2]) -> Sizes {
    let h = r.size_or(width, h, FAMILY);
    let l = r.layers_or("depth", l, FAMILY);
    let a = r.size_or("num_heads", 16, FAMILY);
    r.require_divides(
        crate::config::Part::new(width, h, "wide"),
        crate::config::Part::new("num_heads", a, "heads"),
        "each head gets an equal part of the width",
    );
    r.check_product("an attention projection", &[(width, h), (width, h)]);
    Sizes { h, l, a, k: a, d: (h / a.max(1)).max(1), v: 0 }
}

/// Patch size, channels, frames and the side of a group of patches that become one position.
fn qwen_patches(r: &mut Reader<'_>, patch: u64) -> [u64; 4] {
    r.known(&["in_chans", "spatial_patch_size", "tokens_per_second", "fullatt_block_indexes", "window_size"]);
    [
        r.size_or("patch_size", patch, FAMILY),
        r.size_or(["in_channels", "in_chans"], 3, FAMILY),
        r.size_or("temporal_patch_size", 2, FAMILY),
        r.size_or("spatial_merge_size", 2, FAMILY),
    ]
}

const QWEN_BLOCK: [&str; 5] = ["attn", "proj", "mlp", "norm1", "norm2"];

/// Patches along the side of the image that is counted where a file gives no size.
const SIDE: u64 = 32;

/// A stack under `model.visual`, whose positions have no table where `positions` is none.
fn qwen_stack(s: &Sizes, signal: SignalSpec, layer: LayerSpec, positions: Option<PositionTable>) -> StackSpec {
    let embedding = EmbeddingSpec { source: SourceSpec::Signal(signal), positions, ..EmbeddingSpec::default() };
    let names = ModelNames { body: "model.visual", layers: "blocks", ..ModelNames::default() };
    StackSpec { hidden_size: s.h, embedding, layers: equal(s, layer), final_norm: None, names }
}

fn qwen2(r: &mut Reader<'_>, text: u64) -> TowerSpec {
    with_part(r, "vision_config", |r| {
        let s = qwen_sizes(r, "embed_dim", [1280, 32]);
        let ratio = r.float_or("mlp_ratio", 4.0, FAMILY);
        let f = ((s.h as f64 * ratio) as u64).max(1);
        let act = activation(r, "hidden_act", "quick_gelu");
        let out = r.size_or("hidden_size", text, "the width of the text");
        let norm = NormSpec { kind: NormKind::LayerNorm { bias: true }, eps: 1e-6 };
        qwen_merged(r, &s, plain_mlp(f, act, "fc1", "fc2", true), &norm, out)
    })
}

fn qwen2_5(r: &mut Reader<'_>, text: u64) -> TowerSpec {
    with_part(r, "vision_config", |r| {
        let s = qwen_sizes(r, "hidden_size", [3584, 32]);
        let f = r.size_or("intermediate_size", 3420, FAMILY);
        r.check_product("an MLP weight", &[("hidden_size", s.h), ("intermediate_size", f)]);
        let act = activation(r, "hidden_act", "silu");
        let out = r.size_or("out_hidden_size", text, "the width of the text");
        let mut tower = qwen_merged(r, &s, gated_mlp(f, act, true), &rms(1e-6), out);
        if let SourceSpec::Signal(signal) = &mut tower.stack.embedding.source {
            // Most blocks see windows of 8 x 8 patches.
            signal.what.push_str(", every block seeing all of it");
        }
        tower
    })
}

/// Blocks on patches of an image, groups of which become positions `out` wide.
fn qwen_merged(r: &mut Reader<'_>, s: &Sizes, mlp: MlpSpec, norm: &NormSpec, out: u64) -> TowerSpec {
    let [patch, channels, frames, merge] = qwen_patches(r, 14);
    let style = Style { fused: true, names: QWEN_BLOCK, bias: true, turned: true };
    let layer = style.layer(s, norm, mlp);
    let (mut signal, _) = free_image(SIDE, patch, channels, frames);
    signal.pieces = vec![patches("patch_embed.proj", false, vec![channels, frames, patch, patch], s.h)];
    let group = merge.saturating_mul(merge);
    let wide = s.h.saturating_mul(group);
    let mut projector = vec![Piece::Norm(named("model.visual.merger.ln_q", norm), s.h), Piece::Group(group)];
    let maps = ["model.visual.merger.mlp.0", "model.visual.merger.mlp.2"];
    projector.extend(two_maps(maps, true, [wide, wide, out], Activation::Gelu));
    vision(qwen_stack(s, signal, layer, None), projector)
}

/// Modules of a merger that reads the states of an inner block.
const DEEP: [&str; 3] = [
    "model.visual.deepstack_merger_list.norm",
    "model.visual.deepstack_merger_list.linear_fc1",
    "model.visual.deepstack_merger_list.linear_fc2",
];

fn qwen3(r: &mut Reader<'_>, text: u64) -> TowerSpec {
    with_part(r, "vision_config", |r| {
        let s = qwen_sizes(r, "hidden_size", [1152, 27]);
        let f = r.size_or("intermediate_size", 4304, FAMILY);
        r.check_product("an MLP weight", &[("hidden_size", s.h), ("intermediate_size", f)]);
        let act = activation(r, "hidden_act", "gelu_pytorch_tanh");
        let out = r.size_or("out_hidden_size", text, "the width of the text");
        let rows = r.size_or("num_position_embeddings", 2304, FAMILY);
        let deep =
            r.list_len("deepstack_visual_indexes").unwrap_or(if r.has("deepstack_visual_indexes") { 0 } else { 3 });
        let [patch, channels, frames, merge] = qwen_patches(r, 16);
        let norm = NormSpec { kind: NormKind::LayerNorm { bias: true }, eps: 1e-6 };
        let style = Style { fused: true, names: QWEN_BLOCK, bias: true, turned: true };
        let layer = style.layer(&s, &norm, plain_mlp(f, act, "linear_fc1", "linear_fc2", true));
        // As many patches as the table of positions has rows, in whole groups.
        let side = ((rows as f64).sqrt() as u64 / merge * merge).max(merge);
        let (mut signal, _) = free_image(side, patch, channels, frames);
        signal.pieces = vec![patches("patch_embed.proj", true, vec![channels, frames, patch, patch], s.h)];
        let group = merge.saturating_mul(merge);
        let wide = s.h.saturating_mul(group);
        let merged = |names: [&'static str; 3], behind: bool| -> Vec<Piece> {
            let norm = |width| Piece::Norm(named(names[0], &norm), width);
            let mut pieces =
                if behind { vec![Piece::Group(group), norm(wide)] } else { vec![norm(s.h), Piece::Group(group)] };
            pieces.extend(two_maps([names[1], names[2]], true, [wide, wide, out], Activation::Gelu));
            pieces
        };
        // Those of inner blocks read other states of the same sizes.
        let mut projector: Vec<Piece> = (0..deep).map(|_| Piece::Beside(merged(DEEP, true))).collect();
        projector.extend(merged(
            ["model.visual.merger.norm", "model.visual.merger.linear_fc1", "model.visual.merger.linear_fc2"],
            false,
        ));
        vision(qwen_stack(&s, signal, layer, Some(table(rows, "pos_embed", PositionForm::Table))), projector)
    })
}

fn kimi(r: &mut Reader<'_>, text: u64) -> TowerSpec {
    with_part(r, "vision_config", |r| {
        let h = r.size_or(["vt_hidden_size", "hidden_size"], 1152, FAMILY);
        let l = r.layers_or(["vt_num_hidden_layers", "num_hidden_layers"], 27, FAMILY);
        let a = r.size_or(["vt_num_attention_heads", "num_attention_heads"], 16, FAMILY);
        let f = r.size_or(["vt_intermediate_size", "intermediate_size"], 4304, FAMILY);
        r.require_divides(
            crate::config::Part::new("vt_hidden_size", h, "wide"),
            crate::config::Part::new("vt_num_attention_heads", a, "heads"),
            "each head gets an equal part of the width",
        );
        r.check_product("an MLP weight", &[("vt_hidden_size", h), ("vt_intermediate_size", f)]);
        let patch = r.size_or("patch_size", 14, FAMILY);
        let [rows, columns] = ["init_pos_emb_height", "init_pos_emb_width"].map(|key| r.size_or(key, 64, FAMILY));
        let table_rows = r
            .check_product("the table of positions", &[("init_pos_emb_height", rows), ("init_pos_emb_width", columns)]);
        let merge = r.sizes("merge_kernel_size").unwrap_or_else(|| vec![2, 2]);
        let group = merge.iter().fold(1, |all: u64, n| all.saturating_mul(*n)).max(1);
        let out = r.size_or("text_hidden_size", text, "the width of the text");
        let act = activation(r, "projector_hidden_act", "gelu");
        r.known(&[
            "init_pos_emb_time",
            "merge_type",
            "mm_hidden_size",
            "mm_projector_type",
            "pos_emb_type",
            "projector_ln_eps",
            "video_attn_type",
        ]);
        let s = Sizes { h, l, a, k: a, d: (h / a.max(1)).max(1), v: 0 };
        let norm = NormSpec { kind: NormKind::LayerNorm { bias: true }, eps: 1e-5 };
        let style = Style { fused: false, names: QWEN_BLOCK, bias: true, turned: true };
        let layer = style.layer(&s, &norm, plain_mlp(f, Activation::GeluTanh, "fc1", "fc2", true));
        let (mut signal, _) = free_image(rows.min(columns), patch, 3, 1);
        signal.pieces = vec![patches("patch_embed.proj", true, vec![3, patch, patch], h)];
        let embedding = EmbeddingSpec {
            positions: Some(table(table_rows, "patch_embed.pos_emb.position_embeddings", PositionForm::Bare)),
            source: SourceSpec::Signal(signal),
            ..EmbeddingSpec::default()
        };
        let names = ModelNames { body: "model.vision_tower", norm: "final_layernorm", ..ModelNames::default() };
        let stack =
            StackSpec { hidden_size: h, embedding, layers: equal(&s, layer), final_norm: Some(norm.clone()), names };
        let wide = h.saturating_mul(group);
        let mut projector = vec![Piece::Norm(named("model.mm_projector.pre_norm", &norm), h), Piece::Group(group)];
        projector.extend(two_maps(
            ["model.mm_projector.in_proj", "model.mm_projector.out_proj"],
            true,
            [wide, wide, out],
            act,
        ));
        vision(stack, projector)
    })
}
