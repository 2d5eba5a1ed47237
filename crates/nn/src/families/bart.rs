//! BART and its kin: an encoder and a decoder with learned or fixed positions, norms before or behind their parts.

use super::common::{FAMILY, Sizes, activation, attention, block, change_layers, named, plain_mlp};
use super::tasks;
use crate::config::{Part, Reader};
use crate::spec::{
    AttentionSpec, AttentionSteps, BlockForm, CrossSpec, EmbeddingSpec, LayerNames, LayerSpec, LinearSpec, ModelNames,
    ModelSpec, NormKind, NormSpec, PositionForm, PositionTable, Projection, SharedTable, StackSpec, Task,
};
use std::sync::Arc;

/// How a family of this kind differs from BART.
#[derive(Clone, Copy)]
struct Kin {
    /// Norms stand before their parts, and one behind the last block.
    normed_first: bool,
    /// A norm behind the embedding.
    embed_norm: bool,
    /// First position used.
    offset: u64,
    /// How positions are stored, and whether they are trained.
    positions: (PositionForm, bool),
    /// Whether the embedding is scaled where the file does not say.
    scaled: bool,
    /// Whether a row of zeros is added to the logits.
    offsets: bool,
    /// Activation where the file names none.
    act: &'static str,
    /// Whether queries are scaled behind their projection, in a class without a fused path.
    scaled_queries: bool,
}

const LEARNED: (PositionForm, bool) = (PositionForm::Table, true);
const BART: Kin = Kin {
    normed_first: false,
    embed_norm: true,
    offset: 2,
    positions: LEARNED,
    scaled: false,
    offsets: true,
    act: "gelu",
    scaled_queries: false,
};

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    family(r, BART)
}

/// MVP: BART with prompts in every block, if `use_prompt` says so.
pub(super) fn read_mvp(r: &mut Reader<'_>) -> ModelSpec {
    let prompted = r.flag_or("use_prompt", false, FAMILY);
    let (length, inner) = (r.count_or("prompt_length", 100, FAMILY), r.count_or("prompt_mid_dim", 800, FAMILY));
    let mut model = family(r, Kin { scaled_queries: true, ..BART });
    if prompted {
        model.not_modelled.push(format!(
            "the prompts of `use_prompt`: {length} more keys and values in each attention of each block, made by two maps over \
             {inner} channels"
        ));
    }
    model
}

/// The decoder of `TrOCR`, which is a language model until it stands behind an encoder of images.
pub(super) fn read_trocr(r: &mut Reader<'_>) -> ModelSpec {
    let h = r.size(["d_model", "hidden_size"]);
    let v = r.size("vocab_size");
    r.check_product("the embedding table", &[("vocab_size", v), ("d_model", h)]);
    let decoder = Side { normed_first: false, ..Side::read(r, h, true) };
    let act = activation(r, "activation_function", "gelu");
    let positions = r.size_or("max_position_embeddings", 512, FAMILY);
    let rates = [r.float_or("dropout", 0.1, FAMILY), r.float_or("attention_dropout", 0.0, "off")];
    let scaled = r.flag_or("scale_embedding", false, FAMILY);
    let learned = r.flag_or("use_learned_position_embeddings", true, FAMILY);
    let normed = r.flag_or("layernorm_embedding", true, FAMILY);
    let tied = r.flag("tie_word_embeddings", true);
    let width = r.size_or("cross_attention_hidden_size", h, "equal to d_model");
    let norm = NormSpec { kind: NormKind::LayerNorm { bias: true }, eps: 1e-5 };
    let embedding = EmbeddingSpec {
        scale: scaled.then(|| (h as f64).sqrt()),
        norm: normed.then(|| norm.clone()),
        positions: Some(PositionTable {
            offset: 2,
            trained: learned,
            ..PositionTable::new("embed_positions", positions)
        }),
        dropout: rates[0],
        ..EmbeddingSpec::default()
    };
    let mut layers = decoder.layers(act, &norm, rates);
    change_layers(&mut layers, |layer| {
        scale_queries(layer);
        if let Some(cross) = &mut layer.cross {
            cross.width = width;
        }
    });
    let mut model = tasks::model(&decoder.sizes(v), embedding, layers);
    model.names = ModelNames {
        body: "model.decoder",
        embed_norm: "layernorm_embedding",
        head: "output_projection",
        ..ModelNames::default()
    };
    model.has_sdpa = false;
    model.head.absent = false;
    model.head.tied = tied;
    model.head.narrow_loss = true;
    super::classes::decoder_alone(&mut model);
    model
}

/// Queries are scaled right behind their projection.
fn scale_queries(layer: &mut LayerSpec) {
    let cross = layer.cross.as_mut().map(|cross| &mut *cross.attention);
    if let Some(attention) = cross {
        attention.steps = AttentionSteps::ScaledQueries;
    }
    if let Some(attention) = layer.attention_mut() {
        attention.steps = AttentionSteps::ScaledQueries;
    }
}

pub(super) fn read_plbart(r: &mut Reader<'_>) -> ModelSpec {
    family(r, Kin { scaled: true, ..BART })
}

pub(super) fn read_mbart(r: &mut Reader<'_>) -> ModelSpec {
    family(r, Kin { normed_first: true, ..BART })
}

pub(super) fn read_blenderbot(r: &mut Reader<'_>) -> ModelSpec {
    family(r, Kin { normed_first: true, embed_norm: false, offset: 0, ..BART })
}

pub(super) fn read_blenderbot_small(r: &mut Reader<'_>) -> ModelSpec {
    family(r, Kin { offset: 0, ..BART })
}

pub(super) fn read_pegasus(r: &mut Reader<'_>) -> ModelSpec {
    let fixed = (PositionForm::Frozen, false);
    family(r, Kin { normed_first: true, embed_norm: false, offset: 0, positions: fixed, ..BART })
}

pub(super) fn read_marian(r: &mut Reader<'_>) -> ModelSpec {
    if !r.flag("share_encoder_decoder_embeddings", true) {
        r.not_applied(
            "share_encoder_decoder_embeddings",
            "encoder and decoder have tables of their own",
            "counted as one shared table of vocab_size rows",
            "--set share_encoder_decoder_embeddings=true",
        );
    }
    r.known(&["decoder_vocab_size", "normalize_before", "normalize_embedding", "static_position_embeddings"]);
    let fixed = (PositionForm::Frozen, false);
    family(r, Kin { embed_norm: false, offset: 0, positions: fixed, ..BART })
}

pub(super) fn read_m2m_100(r: &mut Reader<'_>) -> ModelSpec {
    let fixed = (PositionForm::Table, false);
    let kin = Kin {
        normed_first: true,
        embed_norm: false,
        positions: fixed,
        scaled: true,
        offsets: false,
        act: "relu",
        ..BART
    };
    family(r, kin)
}

/// Attention with this family's names.
pub(super) fn projections(attention: &mut AttentionSpec, k_bias: bool) {
    attention.projection = Projection::Separate {
        q: LinearSpec::new("q_proj", true),
        k: LinearSpec::new("k_proj", k_bias),
        v: LinearSpec::new("v_proj", true),
    };
    attention.out = LinearSpec::new("out_proj", true);
    attention.narrow_softmax = true;
}

/// Blocks of one side.
pub(super) struct Side {
    /// `d_model`
    pub h: u64,
    /// Blocks.
    pub l: u64,
    /// Heads.
    pub a: u64,
    /// Inner width.
    pub f: u64,
    /// Whether it attends to another stack.
    pub decoder: bool,
    /// Norms before the parts.
    pub normed_first: bool,
    /// Whether keys have a bias.
    pub k_bias: bool,
}

impl Side {
    /// Reads layers, heads and width of the side called `side`.
    pub fn read(r: &mut Reader<'_>, h: u64, decoder: bool) -> Self {
        let keys = if decoder {
            ["decoder_layers", "decoder_attention_heads", "decoder_ffn_dim"]
        } else {
            ["encoder_layers", "encoder_attention_heads", "encoder_ffn_dim"]
        };
        let (l, a, f) = (r.layers(keys[0]), r.size(keys[1]), r.size(keys[2]));
        r.require_divides(
            Part::new("d_model", h, "wide"),
            Part::new(keys[1], a, "heads"),
            "each head gets d_model / heads",
        );
        r.check_product("an MLP weight", &[("d_model", h), (keys[2], f)]);
        Self { h, l, a, f, decoder, normed_first: true, k_bias: true }
    }

    /// Sizes under the usual letters.
    pub fn sizes(&self, v: u64) -> Sizes {
        Sizes { h: self.h, l: self.l, a: self.a, k: self.a, d: (self.h / self.a.max(1)).max(1), v }
    }

    /// The blocks.
    pub fn layers(
        &self,
        act: crate::spec::Activation,
        norm: &NormSpec,
        [dropout, attention_dropout]: [f64; 2],
    ) -> Vec<Arc<LayerSpec>> {
        let mixing = |causal: bool| {
            let mut attention = attention(&self.sizes(0), true, true);
            projections(&mut attention, self.k_bias);
            attention.causal = causal;
            // The decoder is handed a mask where a flag would do.
            attention.always_masked = causal;
            attention.dropout = attention_dropout;
            attention
        };
        let (first, last) = (named("self_attn_layer_norm", norm), named("final_layer_norm", norm));
        let form = if self.normed_first {
            BlockForm::Sequential { n1: first, n2: last }
        } else {
            BlockForm::PostResidual { m1: first, m2: last }
        };
        let mut layer = block(mixing(self.decoder), plain_mlp(self.f, act, "fc1", "fc2", true), form);
        layer.names = LayerNames { attention: "self_attn", feed_forward: "" };
        layer.dropout = dropout;
        layer.cross = self.decoder.then(|| CrossSpec {
            attention: Box::new(mixing(false)),
            name: "encoder_attn",
            norm: named("encoder_attn_layer_norm", norm),
            width: self.h,
        });
        std::iter::repeat_n(Arc::new(layer), self.l as usize).collect()
    }
}

fn family(r: &mut Reader<'_>, kin: Kin) -> ModelSpec {
    let h = r.size(["d_model", "hidden_size"]);
    let v = r.size("vocab_size");
    r.check_product("the embedding table", &[("vocab_size", v), ("d_model", h)]);
    let side = |r: &mut Reader<'_>, decoder| Side { normed_first: kin.normed_first, ..Side::read(r, h, decoder) };
    let (encoder, decoder) = (side(r, false), side(r, true));
    let act = activation(r, "activation_function", kin.act);
    let positions = r.size_or("max_position_embeddings", 1024, FAMILY);
    let rates = [r.float_or("dropout", 0.1, FAMILY), r.float_or("attention_dropout", 0.0, "off")];
    let scaled = r.flag_or("scale_embedding", kin.scaled, FAMILY);
    let tied = r.flag("tie_word_embeddings", true);
    r.known(&[
        "num_hidden_layers",
        "is_encoder_decoder",
        "add_bias_logits",
        "add_final_layer_norm",
        "normalize_before",
        "normalize_embedding",
        "static_position_embeddings",
        "extra_pos_embeddings",
        "force_bos_token_to_be_generated",
    ]);
    let norm = NormSpec { kind: NormKind::LayerNorm { bias: true }, eps: 1e-5 };
    let embedding = EmbeddingSpec {
        scale: scaled.then(|| (h as f64).sqrt()),
        norm: kin.embed_norm.then(|| norm.clone()),
        positions: Some(PositionTable {
            offset: kin.offset,
            trained: kin.positions.1,
            form: kin.positions.0,
            ..PositionTable::new("embed_positions", positions)
        }),
        dropout: rates[0],
        ..EmbeddingSpec::default()
    };
    let names =
        |body| ModelNames { body, norm: "layer_norm", embed_norm: "layernorm_embedding", ..ModelNames::default() };
    let ties =
        if tied { vec!["model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"] } else { vec![] };
    let shared = Some(SharedTable { name: "model.shared", ties, used: tied });
    let mut model = tasks::model(
        &decoder.sizes(v),
        EmbeddingSpec { shared, ..embedding.clone() },
        decoder.layers(act, &norm, rates),
    );
    let last = kin.normed_first.then(|| norm.clone());
    model.final_norm.clone_from(&last);
    model.names = names("model.decoder");
    model.encoder = Some(Box::new(StackSpec {
        hidden_size: h,
        embedding,
        layers: encoder.layers(act, &norm, rates),
        final_norm: last,
        names: names("model.encoder"),
    }));
    model.task = Task::OwnToken;
    model.head.absent = false;
    model.head.tied = tied;
    model.head.narrow_loss = true;
    // All but M2M-100 add a row of zeros.
    model.head.offsets = kin.offsets;
    if kin.scaled_queries {
        model.has_sdpa = false;
        change_layers(&mut model.layers, scale_queries);
        model.encoder.iter_mut().for_each(|encoder| change_layers(&mut encoder.layers, scale_queries));
    }
    model
}
