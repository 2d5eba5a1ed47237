//! EXAONE 4: norms after each branch and on queries and keys; in the hybrid models three layers with a window to one
//! without window and without rotary embedding. With experts (K-EXAONE): norms before each branch, DeepSeek-V3's mixtures.

use super::common::{
    FAMILY, FREE, Sizes, activation, alternate, attention, block, decoder, gated_mlp, intermediate_size, post_norm,
    pre_norm, rms, rope_theta, rotary, sizes_or, sliding, window,
};
use super::experts::{corrected_router_or, counts, dense_layers, mixture, router_extras, shared_experts, sparse};
use crate::config::Reader;
use crate::spec::{Activation, AttentionSpec, ModelSpec, NormSpec, QkNorm, QkNormPlace};

/// What both read alike.
struct Base {
    s: Sizes,
    f: u64,
    act: Activation,
    norm: NormSpec,
    tied: bool,
    /// Of layers without a window, and of those with one.
    full: AttentionSpec,
    windowed: AttentionSpec,
    /// Which layers have one.
    slides: Vec<bool>,
}

impl Base {
    fn read(r: &mut Reader<'_>) -> Self {
        let s = sizes_or(r, Some(32), None);
        let f = intermediate_size(r, &s);
        let act = activation(r, "hidden_act", "silu");
        let norm = rms(r.float_or("rms_norm_eps", 1e-5, FREE));
        let tied = r.flag("tie_word_embeddings", false);
        let mut full = attention(&s, false, false);
        full.qk_norm = QkNorm::PerHead(norm.clone());
        full.qk_norm_place = QkNormPlace::Heads;
        full.dropout = r.float_or("attention_dropout", 0.0, "off");
        let roped = Some(rotary(s.d, rope_theta(r, 10_000.0)));
        let window = window(r, Some(4096));
        let pattern = Pattern::read(r);
        let slides = sliding(r, s.l, |i| window.is_some() && pattern.slides(i));
        let windowed = AttentionSpec { rotary: roped.clone(), window, ..full.clone() };
        full.rotary = roped.filter(|_| window.is_none());
        Self { s, f, act, norm, tied, full, windowed, slides }
    }
}

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let base = Base::read(r);
    let layer = |attention| block(attention, gated_mlp(base.f, base.act, false), post_norm(&base.norm));
    let layers = alternate(&base.slides, layer(base.full), layer(base.windowed));
    decoder(r, &base.s, layers, base.norm, base.tied)
}

pub(super) fn read_moe(r: &mut Reader<'_>) -> ModelSpec {
    let base = Base::read(r);
    let experts = r.size_or(["num_experts", "num_local_experts"], 64, FAMILY);
    let top_k = r.size_or("num_experts_per_tok", 8, FAMILY);
    let f = r.size_or("moe_intermediate_size", 1024, FAMILY);
    let counts = counts(r, base.s.h, ("num_experts", experts), top_k, ("moe_intermediate_size", f));
    let router = corrected_router_or(r, &counts, true, 2.5);
    let shared = r.size_or("num_shared_experts", 1, FAMILY);
    let shared = shared_experts(r, &counts, ("num_shared_experts", shared), base.act, false);
    let moe = mixture(&counts, base.act, router, Some(shared));
    let is_dense = dense_layers(r, base.s.l, 1);
    let dense = |attention| block(attention, gated_mlp(base.f, base.act, false), pre_norm(&base.norm));
    let mixed = |attention| sparse(attention, moe.clone(), pre_norm(&base.norm));
    let dense = alternate(&base.slides, dense(base.full.clone()), dense(base.windowed.clone()));
    let mixed = alternate(&base.slides, mixed(base.full), mixed(base.windowed));
    let layers = is_dense.iter().zip(dense.into_iter().zip(mixed)).map(|(&d, (p, q))| if d { p } else { q }).collect();
    let mut spec = decoder(r, &base.s, layers, base.norm, base.tied);
    router_extras(r, &mut spec.not_modelled);
    spec
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
            _ => Self::Period(r.count_or(key, 4, FAMILY)),
        }
    }

    fn slides(&self, i: u64) -> bool {
        match self {
            Self::Period(period) => *period > 0 && !(i + 1).is_multiple_of(*period),
            Self::Letters(letters) => letters[i as usize % letters.len()] == b'L',
        }
    }
}
