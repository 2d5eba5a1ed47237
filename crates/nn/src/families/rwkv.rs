//! RWKV 4: a recurrence on keys and values in every block, no attention.

use super::common::{FREE, Sizes, decoder, equal, named};
use crate::config::Reader;
use crate::spec::{
    BlockForm, FeedForwardSpec, LayerNames, LayerSpec, Mixer, ModelNames, ModelSpec, NormKind, NormSpec, TimeMixSpec,
};

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let (h, l, v) = (r.size("hidden_size"), r.layers("num_hidden_layers"), r.size("vocab_size"));
    r.check_product("the embedding table", &[("vocab_size", v), ("hidden_size", h)]);
    let width = r.size_or("attention_hidden_size", h, "equal to hidden_size");
    let f = r.size_or("intermediate_size", h.saturating_mul(4), "4 x hidden_size");
    r.check_product("a map of the recurrence", &[("hidden_size", h), ("attention_hidden_size", width)]);
    r.check_product("a map of the channels", &[("hidden_size", h), ("intermediate_size", f)]);
    let norm = NormSpec { kind: NormKind::LayerNorm { bias: true }, eps: r.float_or("layer_norm_epsilon", 1e-5, FREE) };
    let tied = r.flag("tie_word_embeddings", false);
    // Weights are rescaled for inference in f16 alone.
    r.known(&["rescale_every", "context_length"]);
    let layer = LayerSpec {
        names: LayerNames { attention: "attention", feed_forward: "feed_forward" },
        ..LayerSpec::new(
            Mixer::TimeMix(TimeMixSpec { width }),
            FeedForwardSpec::ChannelMix(f),
            BlockForm::Sequential { n1: named("ln1", &norm), n2: named("ln2", &norm) },
        )
    };
    let s = Sizes { h, l, a: 1, k: 1, d: 1, v };
    let last = NormSpec { eps: 1e-5, ..norm.clone() };
    let mut model = decoder(r, &s, equal(&s, layer), last, tied);
    model.embedding.norm = Some(norm);
    model.names = ModelNames {
        body: "rwkv",
        embed: "embeddings",
        layers: "blocks",
        norm: "ln_out",
        head: "head",
        // It lies in the first block.
        embed_norm: "blocks.0.pre_ln",
    };
    model.has_sdpa = false;
    model
}
