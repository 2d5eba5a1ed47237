//! Gemma 3n, the text part: a Gemma 3 block on one of several streams, an input of its own for each block, keys and values
//! that the last blocks share.

use super::common::{
    FAMILY, FREE, activation, attention, block, decoder, float_or_off, gated_mlp, is_null, named, rotary, sizes_or,
    sliding, window,
};
use crate::config::Reader;
use crate::spec::{
    BlockForm, InputSpec, KvSharing, LayerSpec, ModelSpec, NormKind, NormSpec, QkNorm, QkNormPlace, RotarySpec,
    UpdatesSpec,
};
use std::sync::Arc;

/// Numbers under which blocks with a window and without one share keys and values.
const SLIDING: u8 = 1;
const FULL: u8 = 0;

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let s = sizes_or(r, Some(2), Some(256));
    let widths = each(r, "intermediate_size", s.l, 16_384);
    for &f in &widths {
        r.check_product("an MLP weight", &[("hidden_size", s.h), ("intermediate_size", f)]);
    }
    let act = activation(r, "hidden_activation", "gelu_pytorch_tanh");
    let eps = r.float_or("rms_norm_eps", 1e-6, FREE);
    let norm = NormSpec { kind: NormKind::RmsWeightInF32, eps };
    let tied = r.flag("tie_word_embeddings", true);
    let bias = r.flag("attention_bias", false);
    let sparsity = sparsity(r, s.l);
    let updates = updates(r, s.l, act, &norm);

    let slides = sliding(r, s.l, |i| !(i + 1).is_multiple_of(5));
    let window = window(r, Some(512));
    let sharing = sharing(r, &slides, 15);
    r.known(&["rope_scaling", "rope_parameters"]);
    let global = r.float_or(["rope_parameters.full_attention.rope_theta", "rope_theta"], 1_000_000.0, FREE);
    let local_names = ["rope_parameters.sliding_attention.rope_theta", "rope_local_base_freq"];
    let local = r.float_or(local_names, 10_000.0, FREE);
    let mut full = attention(&s, bias, bias);
    full.qk_norm = QkNorm::PerHead(norm.clone());
    full.qk_norm_place = QkNormPlace::Heads;
    full.value_norm = Some(NormSpec { kind: NormKind::RmsPlain, eps });
    full.rotary = Some(rotary(s.d, global));
    full.scale = 1.0;
    full.dropout = r.float_or("attention_dropout", 0.0, "off");

    let mut layers: Vec<Arc<LayerSpec>> = Vec::with_capacity(slides.len());
    for i in 0..slides.len() {
        let mut mixing = full.clone();
        if slides[i] {
            mixing.window = window;
            mixing.rotary = Some(RotarySpec { table: 1, ..rotary(s.d, local) });
        }
        mixing.sharing = sharing[i];
        let mut mlp = gated_mlp(widths.get(i).copied().unwrap_or(1), act, false);
        mlp.sparsity = sparsity.get(i).copied().filter(|&part| part > 0.0);
        let form = BlockForm::Alternating {
            n1: named("input_layernorm", &norm),
            m1: named("post_attention_layernorm", &norm),
            n2: named("pre_feedforward_layernorm", &norm),
            m2: named("post_feedforward_layernorm", &norm),
            updates: updates.clone(),
        };
        let made = block(mixing, mlp, form);
        let same = layers.iter().find(|layer| ***layer == made).cloned();
        layers.push(same.unwrap_or_else(|| Arc::new(made)));
    }
    let mut model = decoder(r, &s, layers, norm, tied);
    model.embedding.scale = Some((s.h as f64).sqrt());
    model.head.softcap = float_or_off(r, "final_logit_softcapping", 30.0);
    model
}

/// A size for every block: a list, or one number for all.
fn each(r: &mut Reader<'_>, key: &'static str, l: u64, default: u64) -> Vec<u64> {
    if r.config().find(key).is_some_and(|found| found.value.items().is_some()) {
        let listed = r.sizes(key).unwrap_or_default();
        r.require_len(key, listed.len(), "num_hidden_layers", l);
        return listed;
    }
    vec![r.size_or(key, default, FAMILY); l as usize]
}

/// What part of the gates of each block is cut off.
fn sparsity(r: &mut Reader<'_>, l: u64) -> Vec<f64> {
    const KEY: &str = "activation_sparsity_pattern";
    let one = |l: u64, part: f64| vec![part; l as usize];
    let Some(found) = r.config().find(KEY) else {
        r.assume(KEY, "0.95 in the first 10 blocks, 0 in the others", FAMILY);
        return (0..l).map(|i| if i < 10 { 0.95 } else { 0.0 }).collect();
    };
    if is_null(r, KEY) {
        r.known(&[KEY]);
        return one(l, 0.0);
    }
    if found.value.items().is_none() {
        return one(l, r.float_or(KEY, 0.95, FAMILY));
    }
    let listed = r.floats(KEY).unwrap_or_default();
    r.require_len(KEY, listed.len(), "num_hidden_layers", l);
    if let Some(part) = listed.iter().find(|part| !(0.0..1.0).contains(*part)) {
        r.reject(
            KEY,
            format!("`{KEY}` has {part}, which is no part of a whole"),
            "it says what part of the gates is cut off",
            "numbers from 0 to below 1",
        );
    }
    listed
}

fn updates(r: &mut Reader<'_>, l: u64, act: crate::spec::Activation, norm: &NormSpec) -> Arc<UpdatesSpec> {
    let streams = r.size_or("altup_num_inputs", 4, FAMILY);
    if !(2..=UpdatesSpec::MOST_STREAMS).contains(&streams) {
        r.reject(
            "altup_num_inputs",
            format!("`altup_num_inputs` is {streams}"),
            "one stream runs through the blocks and others are updated beside it",
            &format!("2 to {}", UpdatesSpec::MOST_STREAMS),
        );
    }
    let streams = streams.clamp(2, UpdatesSpec::MOST_STREAMS);
    let active = r.count_or("altup_active_idx", 0, FAMILY);
    if active >= streams {
        r.reject(
            "altup_active_idx",
            format!("`altup_active_idx` is {active}, and there are {streams} streams"),
            "it names the stream that the blocks run on, counted from 0",
            &format!("0 to {}", streams - 1),
        );
    }
    let input_width = r.size_or("hidden_size_per_layer_input", 256, FAMILY);
    let input_rows = r.size_or("vocab_size_per_layer_input", 262_144, FAMILY);
    r.check_product(
        "the table of inputs of blocks",
        &[
            ("vocab_size_per_layer_input", input_rows),
            ("hidden_size_per_layer_input", input_width),
            ("num_hidden_layers", l),
        ],
    );
    Arc::new(UpdatesSpec {
        streams,
        active: active.min(streams - 1),
        clip: float_or_off(r, "altup_coef_clip", 120.0),
        scaled: r.flag("altup_correct_scale", true),
        rank: r.size_or("laurel_rank", 64, FAMILY),
        input: InputSpec { width: input_width, rows: input_rows, act, norm: norm.clone() },
    })
}

/// Which blocks read keys and values of others: the last ones, those of the last block of their kind before them.
pub(super) fn sharing(r: &mut Reader<'_>, slides: &[bool], default: u64) -> Vec<KvSharing> {
    const KEY: &str = "num_kv_shared_layers";
    let l = slides.len();
    let shared = r.count_or(KEY, default, FAMILY) as usize;
    let own = l.saturating_sub(shared);
    let number = |slides: bool| if slides { SLIDING } else { FULL };
    let giver = |kind: bool| slides[..own].iter().rposition(|&s| s == kind);
    if shared > 0 && slides[own..].iter().any(|&kind| giver(kind).is_none()) {
        r.reject(
            KEY,
            format!("`{KEY}` is {shared} of {l} blocks: none before them has keys and values of their kind"),
            "a block reads those of the last one with or without a window, as it is itself",
            "a smaller number",
        );
    }
    let one = |(i, &kind): (usize, &bool)| match () {
        () if i >= own => KvSharing::Takes(number(kind)),
        () if shared > 0 && giver(kind) == Some(i) => KvSharing::Gives(number(kind)),
        () => KvSharing::Own,
    };
    slides.iter().enumerate().map(one).collect()
}
