//! EXAONE 4: norms after each branch and on queries and keys; in the hybrid models three layers with a window to one
//! without window and without rotary embedding.

use super::common::{
    FREE, activation, alternate, attention, block, decoder, gated_mlp, intermediate_size, post_norm, rms, rope_theta,
    rotary, sizes_or, sliding, window,
};
use crate::config::Reader;
use crate::spec::{ModelSpec, QkNorm, QkNormPlace};

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let s = sizes_or(r, Some(32), None);
    let f = intermediate_size(r, &s);
    let act = activation(r, "hidden_act", "silu");
    let norm = rms(r.float_or("rms_norm_eps", 1e-5, FREE));
    let tied = r.flag("tie_word_embeddings", false);
    let mut attention = attention(&s, false, false);
    attention.qk_norm = QkNorm::PerHead(norm.clone());
    attention.qk_norm_place = QkNormPlace::Heads;
    attention.dropout = r.float_or("attention_dropout", 0.0, "off");
    let roped = Some(rotary(s.d, rope_theta(r, 10_000.0)));
    let window = window(r, Some(4096));
    let pattern = Pattern::read(r);
    let slides = sliding(r, s.l, |i| window.is_some() && pattern.slides(i));

    let mut windowed = attention.clone();
    windowed.rotary.clone_from(&roped);
    windowed.window = window;
    attention.rotary = roped.filter(|_| window.is_none());
    let layer = |attention| block(attention, gated_mlp(f, act, false), post_norm(&norm));
    let layers = alternate(&slides, layer(attention), layer(windowed));
    decoder(r, &s, layers, norm, tied)
}

/// `sliding_window_pattern`: a period whose last layer is full, or letters, `L` for a window and `G` for none.
enum Pattern {
    Period(u64),
    Letters(Vec<u8>),
}

impl Pattern {
    fn read(r: &mut Reader<'_>) -> Self {
        let key = "sliding_window_pattern";
        let value = r.config().find(key).map(|found| found.value);
        match value.and_then(crate::config::json::Value::as_str) {
            Some(text) if !text.is_empty() && text.bytes().all(|c| c == b'L' || c == b'G') => {
                r.known(&[key]);
                Self::Letters(text.bytes().collect())
            }
            _ => Self::Period(r.count_or(key, 4, super::common::FAMILY)),
        }
    }

    fn slides(&self, i: u64) -> bool {
        match self {
            Self::Period(period) => *period > 0 && !(i + 1).is_multiple_of(*period),
            Self::Letters(letters) => letters[i as usize % letters.len()] == b'L',
        }
    }
}
