//! Moshi, the language model over time: gated feed-forward parts in one map, one row more in the token table than in the
//! head.

use super::common::{
    FAMILY, FREE, activation, attention, block, decoder, equal, pre_norm, rms, rope_theta, rotary, sizes_or, window,
};
use crate::config::{Part, Reader};
use crate::spec::{LinearSpec, MlpInput, MlpSpec, ModelSpec, Projection};

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let s = sizes_or(r, None, None);
    let both = r.size_or("ffn_dim", 22_528, FAMILY);
    r.check_product("an MLP weight", &[("hidden_size", s.h), ("ffn_dim", both)]);
    r.require_divides(Part::new("ffn_dim", both, "wide"), Part::new("halves", 2, "halves"), "gate and up share it");
    let act = activation(r, "hidden_act", "silu");
    let norm = rms(r.float_or("rms_norm_eps", 1e-8, FREE));
    let tied = r.flag("tie_word_embeddings", false);
    r.known(&["num_codebooks", "audio_vocab_size", "audio_encoder_config", "depth_decoder_config"]);

    let mut attention = attention(&s, false, false);
    let map = |name| LinearSpec::new(name, false);
    attention.projection =
        Projection::Separate { q: map("q_proj.linear"), k: map("k_proj.linear"), v: map("v_proj.linear") };
    attention.out = map("o_proj.linear");
    attention.rotary = Some(rotary(s.d, rope_theta(r, 10_000.0)));
    attention.window = window(r, Some(3000));
    attention.dropout = r.float_or("attention_dropout", 0.0, "off");
    let mlp = MlpSpec::new((both / 2).max(1), act, MlpInput::GatedFused(map("fc1")), map("fc2"));
    let layer = block(attention, mlp, pre_norm(&norm));
    let mut model = decoder(r, &s, equal(&s, layer), norm, tied);
    model.embedding.extra = 1;
    let whole = r.config().architectures().first().is_some_and(|class| class.ends_with("ForConditionalGeneration"));
    if whole {
        model.not_modelled.push(
            "the model over depth and the codec of sounds: the language model over time alone is counted".to_owned(),
        );
    }
    model
}
