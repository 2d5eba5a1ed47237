//! Encoders of images and of the texts beside them: ViT, CLIP, SigLIP.

use super::bart;
use super::common::{FAMILY, FREE, Sizes, activation, attention, block, equal, named, plain_mlp, plain_sizes};
use super::tasks;
use crate::config::Reader;
use crate::spec::{
    Activation, BlockForm, EmbeddingSpec, LayerNames, LayerSpec, LeadingSpec, MapSpec, ModelNames, ModelSpec, NormKind,
    NormSpec, Piece, PoolSpec, PositionForm, PositionTable, SignalSpec, SourceSpec, StackSpec, Task,
};

/// An image in patches, as a file describes it.
pub(super) struct Image {
    /// Height and width.
    pub size: [u64; 2],
    /// Those of a patch.
    pub patch: [u64; 2],
    /// Channels.
    pub channels: u64,
}

impl Image {
    /// Reads `image_size`, `patch_size` and `num_channels`; a size is one number or two.
    pub fn read(r: &mut Reader<'_>, size: u64, patch: u64) -> Self {
        let image = Self {
            size: pair(r, "image_size", size),
            patch: pair(r, "patch_size", patch),
            channels: r.size_or(["num_channels", "in_channels"], 3, FAMILY),
        };
        r.check_product("the pixels of an image", &[("image_size", image.size[0]), ("image_size", image.size[1])]);
        r.check_product("the pixels of a patch", &[("patch_size", image.patch[0]), ("patch_size", image.patch[1])]);
        if image.patches() == 0 {
            r.reject(
                "patch_size",
                "`patch_size` is larger than `image_size`: an image has no patch",
                "an image is cut into patches, each of which becomes a position",
                "a smaller patch_size",
            );
        }
        image
    }

    /// Patches of an image.
    pub fn patches(&self) -> u64 {
        (self.size[0] / self.patch[0]).saturating_mul(self.size[1] / self.patch[1])
    }

    /// Numbers in a patch.
    pub fn width(&self) -> u64 {
        self.channels.saturating_mul(self.patch[0]).saturating_mul(self.patch[1])
    }

    /// The convolution over patches that do not overlap, to a stream of width `h`.
    pub fn map(&self, name: &'static str, bias: bool, h: u64) -> Piece {
        let kernel = vec![self.channels, self.patch[0], self.patch[1]];
        Piece::Linear(MapSpec { kernel, ..MapSpec::new(name, bias, self.width(), h) })
    }

    /// The image as what a stack reads.
    pub fn signal(&self, map: Piece, leading: Vec<LeadingSpec>) -> SignalSpec {
        let ([height, width], [up, across]) = (self.size, self.patch);
        SignalSpec {
            what: format!("image of {height} x {width} in patches of {up} x {across}"),
            len: self.patches(),
            width: self.width(),
            pieces: vec![map],
            leading,
            registers: None,
            graded: false,
        }
    }
}

/// One number for both sides, or two.
fn pair(r: &mut Reader<'_>, key: &'static str, default: u64) -> [u64; 2] {
    if r.config().find(key).is_some_and(|found| found.value.items().is_some()) {
        let both = r.sizes(key).unwrap_or_default();
        return match both[..] {
            [height, width] => [height, width],
            [side] => [side, side],
            _ => {
                r.reject(
                    key,
                    format!("`{key}` has {} numbers", both.len()),
                    "a size is one number or two",
                    "[224, 224]",
                );
                [default, default]
            }
        };
    }
    let side = r.size_or(key, default, FAMILY);
    [side, side]
}

/// Layer norm with weight and bias.
pub(super) fn layer_norm(r: &mut Reader<'_>, eps: f64) -> NormSpec {
    NormSpec { kind: NormKind::LayerNorm { bias: true }, eps: r.float_or("layer_norm_eps", eps, FREE) }
}

/// How a family differs from `ViT`.
struct Kin {
    /// Module of the body below a head.
    body: &'static str,
    /// Trained vectors in front of the patches.
    leading: &'static [LeadingSpec],
    /// Added to the variance where the file does not say.
    eps: f64,
    /// Whether the body alone has a pooler.
    pooled: bool,
}

const CLASS: LeadingSpec = LeadingSpec { name: "embeddings.cls_token", flat: false };

pub(super) fn read_vit(r: &mut Reader<'_>) -> ModelSpec {
    image_encoder(r, &Kin { body: "vit", leading: &[CLASS], eps: 1e-12, pooled: true })
}

/// `DeiT`: a vector beside that of the class, which a teacher is held against.
pub(super) fn read_deit(r: &mut Reader<'_>) -> ModelSpec {
    const TEACHER: LeadingSpec = LeadingSpec { name: "embeddings.distillation_token", flat: false };
    image_encoder(r, &Kin { body: "deit", leading: &[CLASS, TEACHER], eps: 1e-12, pooled: true })
}

pub(super) fn read_vit_msn(r: &mut Reader<'_>) -> ModelSpec {
    image_encoder(r, &Kin { body: "vit", leading: &[CLASS], eps: 1e-6, pooled: false })
}

/// I-JEPA: patches alone.
pub(super) fn read_ijepa(r: &mut Reader<'_>) -> ModelSpec {
    image_encoder(r, &Kin { body: "ijepa", leading: &[], eps: 1e-12, pooled: false })
}

fn image_encoder(r: &mut Reader<'_>, kin: &Kin) -> ModelSpec {
    let s = vision_sizes(r);
    let f = r.size("intermediate_size");
    let act = activation(r, "hidden_act", "gelu");
    let norm = layer_norm(r, kin.eps);
    let image = Image::read(r, 224, 16);
    let bias = r.flag("qkv_bias", true);
    let dropout = r.float_or("hidden_dropout_prob", 0.0, "off");
    r.known(&["encoder_stride"]);
    let class = r.config().architectures().first().map(|class| (*class).to_owned());
    let headless = class.as_deref().is_some_and(|class| class.ends_with("Model"));

    let mut attention = attention(&s, bias, true);
    attention.causal = false;
    attention.dropout = r.float_or("attention_probs_dropout_prob", 0.0, "off");
    let form = BlockForm::Sequential { n1: named("layernorm_before", &norm), n2: named("layernorm_after", &norm) };
    let mut layer = block(attention, plain_mlp(f, act, "fc1", "fc2", true), form);
    layer.names = LayerNames { attention: "attention", feed_forward: "mlp" };
    layer.dropout = dropout;
    let map = image.map("embeddings.patch_embeddings.projection", true, s.h);
    let signal = image.signal(map, kin.leading.to_vec());
    let embedding = EmbeddingSpec {
        positions: Some(PositionTable {
            form: PositionForm::Bare,
            ..PositionTable::new("embeddings.position_embeddings", signal.positions())
        }),
        source: SourceSpec::Signal(signal),
        dropout,
        ..EmbeddingSpec::default()
    };
    let mut model = tasks::model(&s, embedding, equal(&s, layer));
    model.final_norm = Some(norm);
    model.names = ModelNames { body: if headless { "" } else { kin.body }, norm: "layernorm", ..ModelNames::default() };
    if headless && kin.pooled {
        let width = r.size_or("pooler_output_size", s.h, "equal to hidden_size");
        let act = activation(r, "pooler_act", "tanh");
        model.pooler = vec![Piece::First, MapSpec::piece("pooler.dense", true, s.h, width), Piece::Activation(act)];
        return model;
    }
    r.known(&["pooler_output_size", "pooler_act"]);
    if headless {
        return model;
    }
    let pool = if kin.leading.is_empty() { Piece::Mean } else { Piece::First };
    classify(r, &mut model, pool, s.h);
    model
}

/// The head of a classifier of images on what `pool` makes of the positions, `width` numbers; other heads are said.
pub(super) fn classify(r: &mut Reader<'_>, model: &mut ModelSpec, pool: Piece, width: u64) {
    let classes = tasks::classes(r);
    let class = r.config().architectures().first().map(|class| (*class).to_owned());
    if let Some(class) = class.filter(|class| !class.ends_with("ForImageClassification")) {
        model.not_modelled.push(format!("the head of {class}: one of {classes} classes stands in its place"));
    }
    model.task = Task::Classes(classes);
    model.head.transform = vec![pool, Piece::Linear(MapSpec::head("classifier", true, width, classes))];
}

/// Sizes of an encoder that has no tokens.
pub(super) fn vision_sizes(r: &mut Reader<'_>) -> Sizes {
    vision_sizes_or(r, [768, 12, 12])
}

/// The same, with width, blocks and heads of the class where the file leaves them out.
pub(super) fn vision_sizes_or(r: &mut Reader<'_>, [h, l, a]: [u64; 3]) -> Sizes {
    let h = r.size_or("hidden_size", h, FAMILY);
    let l = r.layers_or("num_hidden_layers", l, FAMILY);
    let a = r.size_or("num_attention_heads", a, FAMILY);
    r.require_divides(
        crate::config::Part::new("hidden_size", h, "wide"),
        crate::config::Part::new("num_attention_heads", a, "heads"),
        "each head gets hidden_size / num_attention_heads",
    );
    r.check_product("an attention projection", &[("hidden_size", h), ("hidden_size", h)]);
    Sizes { h, l, a, k: a, d: (h / a.max(1)).max(1), v: 0 }
}

/// A block of CLIP and SigLIP.
pub(super) fn clip_layer(
    r: &mut Reader<'_>,
    s: &Sizes,
    act: &'static str,
    causal: bool,
    norm: &NormSpec,
    f: u64,
) -> LayerSpec {
    let f = r.size_or("intermediate_size", f, FAMILY);
    r.check_product("an MLP weight", &[("hidden_size", s.h), ("intermediate_size", f)]);
    let act = activation(r, "hidden_act", act);
    let mut attention = attention(s, true, true);
    bart::projections(&mut attention, true);
    attention.narrow_softmax = false;
    attention.causal = causal;
    attention.dropout = r.float_or("attention_dropout", 0.0, "off");
    let form = BlockForm::Sequential { n1: named("layer_norm1", norm), n2: named("layer_norm2", norm) };
    block(attention, plain_mlp(f, act, "fc1", "fc2", true), form)
}

/// The text encoder of CLIP.
pub(super) fn read_clip_text(r: &mut Reader<'_>) -> ModelSpec {
    text(r, ("quick_gelu", 1e-5, 77), true)
}

/// The text encoder of SigLIP.
pub(super) fn read_siglip_text(r: &mut Reader<'_>) -> ModelSpec {
    let mut model = text(r, ("gelu_pytorch_tanh", 1e-6, 64), false);
    let out = r.size_or("projection_size", model.hidden_size, "equal to hidden_size");
    model.pooler = vec![Piece::First, MapSpec::piece("head", true, model.hidden_size, out)];
    model
}

fn text(r: &mut Reader<'_>, (act, eps, positions): (&'static str, f64, u64), causal: bool) -> ModelSpec {
    let s = plain_sizes(r);
    let norm = layer_norm(r, eps);
    let layer = clip_layer(r, &s, act, causal, &norm, 2048);
    r.known(&["projection_dim", "projection_size", "dropout"]);
    let embedding = EmbeddingSpec {
        positions: Some(PositionTable::new(
            "embeddings.position_embedding",
            r.size_or("max_position_embeddings", positions, FAMILY),
        )),
        ..EmbeddingSpec::default()
    };
    let mut model = tasks::model(&s, embedding, equal(&s, layer));
    model.final_norm = Some(norm);
    model.names = ModelNames {
        body: "",
        embed: "embeddings.token_embedding",
        layers: "encoder.layers",
        norm: "final_layer_norm",
        ..ModelNames::default()
    };
    model
}

/// The image encoder of CLIP under the module `body`, up to its last block; its last norm reads the pooled position alone
/// and is a piece of its own.
pub(super) fn clip_stack(r: &mut Reader<'_>, body: &'static str) -> (StackSpec, NormSpec) {
    let s = vision_sizes(r);
    let norm = layer_norm(r, 1e-5);
    let layer = clip_layer(r, &s, "quick_gelu", false, &norm, 3072);
    let image = Image::read(r, 224, 32);
    r.known(&["projection_dim", "dropout", "vocab_size"]);
    let leading = vec![LeadingSpec { name: "embeddings.class_embedding", flat: true }];
    let signal = image.signal(image.map("embeddings.patch_embedding", false, s.h), leading);
    let embedding = EmbeddingSpec { norm: Some(norm.clone()), ..placed(signal) };
    let names = ModelNames { body, layers: "encoder.layers", embed_norm: "pre_layrnorm", ..ModelNames::default() };
    let stack = StackSpec { hidden_size: s.h, embedding, layers: equal(&s, layer), final_norm: None, names };
    (stack, norm)
}

/// An image with learned positions.
pub(super) fn placed(signal: SignalSpec) -> EmbeddingSpec {
    EmbeddingSpec {
        positions: Some(PositionTable::new("embeddings.position_embedding", signal.positions())),
        source: SourceSpec::Signal(signal),
        ..EmbeddingSpec::default()
    }
}

/// A stack without a text as a model.
fn alone(stack: StackSpec) -> ModelSpec {
    let s = Sizes { h: stack.hidden_size, l: stack.layers.len() as u64, a: 1, k: 1, d: 1, v: 0 };
    let mut model = tasks::model(&s, stack.embedding, stack.layers);
    model.final_norm = stack.final_norm;
    model.names = stack.names;
    model
}

pub(super) fn read_clip_vision(r: &mut Reader<'_>) -> ModelSpec {
    let (stack, norm) = clip_stack(r, "");
    let width = stack.hidden_size;
    let mut model = alone(stack);
    model.pooler = vec![Piece::First, Piece::Norm(named("post_layernorm", &norm), width)];
    model
}

/// The image encoder of SigLIP under the module `body`, and the pool that stands behind it unless `vision_use_head` says no.
pub(super) fn siglip_stack(r: &mut Reader<'_>, body: &'static str, pool: &'static str) -> (StackSpec, Option<Piece>) {
    let s = vision_sizes(r);
    let norm = layer_norm(r, 1e-6);
    let layer = clip_layer(r, &s, "gelu_pytorch_tanh", false, &norm, 3072);
    let image = Image::read(r, 224, 16);
    r.known(&["projection_dim", "dropout"]);
    let signal = image.signal(image.map("embeddings.patch_embedding", true, s.h), Vec::new());
    let (f, act) = match &layer.feed_forward {
        crate::spec::FeedForwardSpec::Mlp(mlp) => (mlp.intermediate_size, mlp.act),
        _ => (s.h, Activation::GeluTanh),
    };
    let pool = r.flag_or("vision_use_head", true, FAMILY).then(|| {
        Piece::AttentionPool(PoolSpec {
            name: pool,
            hidden_size: s.h,
            heads: s.a,
            intermediate_size: f,
            act,
            norm: named("layernorm", &norm),
        })
    });
    let names = ModelNames { body, layers: "encoder.layers", norm: "post_layernorm", ..ModelNames::default() };
    let embedding = placed(signal);
    let stack = StackSpec { hidden_size: s.h, embedding, layers: equal(&s, layer), final_norm: Some(norm), names };
    (stack, pool)
}

pub(super) fn read_siglip_vision(r: &mut Reader<'_>) -> ModelSpec {
    let (stack, pool) = siglip_stack(r, "", "head");
    let mut model = alone(stack);
    model.pooler = pool.into_iter().collect();
    model
}

/// SigLIP as a classifier of images, which is what transformers makes of a file without `architectures`.
pub(super) fn read_siglip(r: &mut Reader<'_>) -> ModelSpec {
    let classes = tasks::classes(r);
    let (mut model, width) = with_part(r, "vision_config", |r| {
        let (stack, pool) = siglip_stack(r, "vision_model", "vision_model.head");
        let width = stack.hidden_size;
        let mut model = alone(stack);
        model.pooler = pool.into_iter().collect();
        (model, width)
    });
    let class = r.config().architectures().first().map(|class| (*class).to_owned());
    if class.is_some_and(|class| !class.ends_with("ForImageClassification")) {
        model.not_modelled.push(
            "the text encoder and the loss that holds texts against images: the images are classified instead"
                .to_owned(),
        );
    }
    r.known(&["text_config", "vision_config"]);
    let out = MapSpec::head("classifier", true, width, classes);
    model.head.transform = vec![Piece::Mean, Piece::Linear(out)];
    model
}

/// CLIP as a classifier of images, which is what transformers makes of a file without `architectures`.
pub(super) fn read_clip(r: &mut Reader<'_>) -> ModelSpec {
    let classes = tasks::classes(r);
    let (mut model, width) = with_part(r, "vision_config", |r| {
        let (stack, norm) = clip_stack(r, "vision_model");
        let width = stack.hidden_size;
        let mut model = alone(stack);
        let last = Piece::Norm(named("vision_model.post_layernorm", &norm), width);
        model.pooler = vec![Piece::First, last];
        (model, width)
    });
    r.known(&["text_config", "vision_config", "projection_dim", "logit_scale_init_value"]);
    let class = r.config().architectures().first().map(|class| (*class).to_owned());
    if class.is_some_and(|class| !class.ends_with("ForImageClassification")) {
        let sizes = ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"];
        let stated = sizes.iter().all(|key| r.has(&format!("text_config.{key}")));
        let projected = r.size_or("projection_dim", 512, FAMILY);
        let said = stated.then(|| with_part(r, "text_config", read_clip_text)).filter(|_| !r.failed());
        let counted = said.and_then(|text| {
            let own: u64 = crate::step::parameters(&text).ok()?.iter().map(|one| one.elements).sum();
            Some(own.saturating_add(text.hidden_size.saturating_add(width).saturating_mul(projected)))
        });
        let size = counted.map(|count| format!(" ({count} parameters with both projections)")).unwrap_or_default();
        model.not_modelled.push(format!(
            "the text encoder{size} and the loss that holds texts against images: the images are classified instead"
        ));
    }
    let out = MapSpec::head("classifier", true, width, classes);
    model.head.transform = vec![Piece::WithoutFirst, Piece::Mean, Piece::Linear(out)];
    model
}

/// Reads a sub-configuration, with its problems and assumptions among those of the whole.
pub(super) fn with_part<T>(r: &mut Reader<'_>, key: &'static str, read: impl FnOnce(&mut Reader<'_>) -> T) -> T {
    let config = r.config().part(key);
    let mut part = Reader::new(&config);
    part.known(&["dtype", "torch_dtype", "model_type", "architectures"]);
    let made = read(&mut part);
    r.absorb(key, part);
    made
}
