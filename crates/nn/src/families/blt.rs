//! Byte Latent Transformer: a local encoder of bytes, a stack over patches of them, a local decoder of bytes, and a frozen
//! model of bytes whose entropies cut a text into patches.

use super::common::{FAMILY, FREE, Sizes, activation, attention, block, equal, gated_mlp, is_null, pre_norm, rms};
use super::common::{rope_theta, rotary, window};
use super::vision::with_part;
use crate::config::{Part, Reader};
use crate::spec::{
    AttentionSpec, EmbeddingSpec, HashSpec, HeadSpec, ModelNames, ModelSpec, NormSpec, PatchAttentionSpec, PatchSpec,
    RotarySpec, StackSpec,
};

/// Most tables of hashed groups of bytes: each is looked up by an op of its own.
const MOST_TABLES: u64 = 256;

/// Longest group of bytes that is hashed.
const LONGEST_GROUP: u64 = 1 << 16;

/// What the classes of the four parts leave out of a file: width, blocks, heads, inner width, base of the rotation.
struct Defaults {
    h: u64,
    l: u64,
    a: u64,
    f: Option<u64>,
    theta: f64,
}

/// A stack of Llama-like blocks with neighbours rotated.
struct Stacked {
    s: Sizes,
    stack: StackSpec,
    norm: NormSpec,
    dropout: f64,
}

/// The blocks of the part that `r` reads, in the module `body`, with the rotary table of this number.
fn stacked(r: &mut Reader<'_>, body: &'static str, d: &Defaults, table: u8, window: Option<u64>) -> Stacked {
    let h = r.size_or("hidden_size", d.h, FAMILY);
    let l = r.layers_or("num_hidden_layers", d.l, FAMILY);
    let a = r.size_or("num_attention_heads", d.a, FAMILY);
    let (heads, width) = (Part::new("num_attention_heads", a, "heads"), Part::new("hidden_size", h, "wide"));
    r.require_divides(width, heads, "each head gets hidden_size / num_attention_heads");
    let k = r.size_or("num_key_value_heads", a, "equal to num_attention_heads");
    let shared = Part::new("num_key_value_heads", k, "key/value heads");
    r.require_divides(heads, shared, "each key/value head serves an equal number of query heads");
    let head = (h / a.max(1)).max(1);
    if !head.is_multiple_of(2) && h.is_multiple_of(a.max(1)) {
        r.reject(
            "num_attention_heads",
            format!("{head} channels of each head are to be rotated: an odd number"),
            "rotary embedding turns channels in pairs",
            "a number of heads that leaves each an even number of channels",
        );
    }
    let f = match d.f {
        Some(f) if !is_null(r, "intermediate_size") => r.size_or("intermediate_size", f, FAMILY),
        _ => r.size_or("intermediate_size", (h.saturating_mul(8) / 3).max(1), "8/3 of hidden_size"),
    };
    r.check_product("an attention projection", &[("hidden_size", h), ("hidden_size", h)]);
    r.check_product("an MLP weight", &[("hidden_size", h), ("intermediate_size", f)]);
    let act = activation(r, "hidden_act", "silu");
    let norm = rms(r.float_or("rms_norm_eps", 1e-5, FREE));
    let dropout = r.float_or("dropout", 0.0, "off");
    let theta = rope_theta(r, d.theta);
    r.known(&["head_dim", "max_position_embeddings", "tie_word_embeddings"]);

    let s = Sizes { h, l, a, k, d: head, v: 0 };
    let mixing = AttentionSpec {
        rotary: Some(RotarySpec { interleaved: true, table, ..rotary(head, theta) }),
        window,
        dropout,
        ..attention(&s, false, false)
    };
    let layer = block(mixing, gated_mlp(f, act, false), pre_norm(&norm));
    let stack = StackSpec {
        hidden_size: h,
        embedding: EmbeddingSpec { dropout, ..EmbeddingSpec::default() },
        layers: equal(&s, layer),
        final_norm: None,
        names: ModelNames { body, ..ModelNames::default() },
    };
    Stacked { s, stack, norm, dropout }
}

impl Stacked {
    /// Attention between its stream of bytes and patches.
    fn cross(&self, each: bool) -> PatchAttentionSpec {
        let (heads, kv_heads, head_dim) = (self.s.a, self.s.k, self.s.d);
        PatchAttentionSpec { heads, kv_heads, head_dim, norm: self.norm.clone(), dropout: self.dropout, each }
    }
}

/// What a local stack says beside its blocks.
struct Local {
    side: Stacked,
    each: bool,
    rows: u64,
    /// Rows of the table of bytes.
    v: u64,
    /// Width of the stack over patches.
    global: u64,
}

fn local(r: &mut Reader<'_>, body: &'static str, d: &Defaults, decoder: bool, window: Option<u64>) -> Local {
    let side = stacked(r, body, d, u8::from(decoder), window);
    let each = r.flag_or("cross_attn_all_layers", decoder, FAMILY);
    let rows = r.size_or("cross_attn_k", 2, FAMILY);
    r.known(&["sliding_window", "hidden_size_global", "vocab_size"]);
    let v = if decoder { 1 } else { r.size_or("vocab_size", 260, FAMILY) };
    let global = if decoder { r.size_or("hidden_size_global", 2048, FAMILY) } else { 1 };
    r.check_product("the embedding table", &[("vocab_size", v), ("hidden_size", side.s.h)]);
    r.check_product(
        "the map of patches",
        &[("hidden_size", side.s.h), ("hidden_size", side.s.h), ("cross_attn_k", rows)],
    );
    Local { side, each, rows, v, global }
}

fn hashes(r: &mut Reader<'_>, h: u64) -> HashSpec {
    let listed = r.sizes("encoder_hash_byte_group_size").filter(|listed| !listed.is_empty());
    let lengths = listed.unwrap_or_else(|| {
        r.assume("encoder_hash_byte_group_size", "[3,4,5,6,7,8]", FAMILY);
        vec![3, 4, 5, 6, 7, 8]
    });
    let functions = r.size_or("encoder_hash_byte_group_nb_functions", 1, FAMILY);
    let rows = r.size_or("encoder_hash_byte_group_vocab", 500_002, FAMILY);
    let mut spec = HashSpec { rows, functions, lengths };
    let factors = [
        ("encoder_hash_byte_group_vocab", rows),
        ("encoder_hash_byte_group_nb_functions", spec.tables()),
        ("hidden_size", h),
    ];
    r.check_product("the tables of hashed bytes", &factors);
    if spec.tables() > MOST_TABLES || spec.lengths.iter().any(|length| *length > LONGEST_GROUP) {
        r.reject(
            "encoder_hash_byte_group_size",
            format!(
                "{} tables of hashed groups of up to {} bytes",
                spec.tables(),
                spec.lengths.iter().max().unwrap_or(&0)
            ),
            "each byte looks up a row of every table, by a hash of the bytes in front of it",
            &format!("at most {MOST_TABLES} tables and {LONGEST_GROUP} bytes in a group"),
        );
        spec = HashSpec { rows: 1, functions: 1, lengths: vec![1] };
    }
    spec
}

/// Refuses two numbers that the modules hold against each other.
fn agree(r: &mut Reader<'_>, [a, b]: [(&str, u64); 2], why: &str) {
    if a.1 != b.1 && !r.failed() {
        r.reject(
            a.0,
            format!("`{}` is {}, but `{}` is {}", a.0, a.1, b.0, b.1),
            why,
            &format!("--set {}={}", a.0, b.1),
        );
    }
}

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let v = r.size_or("vocab_size", 260, FAMILY);
    let rows = r.size_or("cross_attn_k", 2, FAMILY);
    // `null` is none, and so the whole text.
    let seen = if is_null(r, "local_attention_window_len") {
        r.opt_count("local_attention_window_len")
    } else {
        Some(r.count_or("local_attention_window_len", 512, FAMILY))
    };
    let seen = seen.filter(|&seen| seen > 0);
    let size = r.size_or("patch_size", 4, FAMILY);
    let most = r.opt_size("max_patch_length");
    let whole = r.flag_or("patch_in_forward", true, FAMILY);
    let by_entropy = r.text_or("patching_mode", "entropy", FAMILY) == "entropy" && whole;
    let tied = r.flag("tie_word_embeddings", false);
    r.known(&["patching_threshold", "patching_batch_size", "max_position_embeddings", "rope_parameters"]);

    let d = |h, l, a, f, theta| Defaults { h, l, a, f, theta };
    let encoder = with_part(r, "encoder_config", |r| {
        local(r, "model.local_encoder", &d(1024, 1, 16, None, 500_000.0), false, seen)
    });
    let decoder = with_part(r, "decoder_config", |r| {
        local(r, "model.local_decoder", &d(1024, 9, 16, Some(2816), 500_000.0), true, seen)
    });
    let global = with_part(r, "global_config", |r| {
        r.known(&["encoder_cross_output_size"]);
        stacked(r, "model.global_transformer", &d(2048, 25, 16, Some(5632), 500_000.0), 0, None)
    });
    let patcher = with_part(r, "patcher_config", |r| {
        let window = window(r, Some(512));
        let mut side = stacked(r, "model.patcher", &d(768, 14, 12, Some(2048), 10_000.0), 0, window);
        side.stack.final_norm = Some(side.norm.clone());
        side.stack.embedding.dropout = 0.0;
        let v = r.size_or("vocab_size", 260, FAMILY);
        r.check_product("the embedding table", &[("vocab_size", v), ("hidden_size", side.s.h)]);
        (side.stack, v)
    });

    let h = decoder.side.s.h;
    let hashes = hashes(r, encoder.side.s.h);
    agree(
        r,
        [("decoder_config.hidden_size", h), ("encoder_config.hidden_size", encoder.side.s.h)],
        "the local decoder goes on with the bytes of the local encoder",
    );
    agree(
        r,
        [("decoder_config.hidden_size_global", decoder.global), ("global_config.hidden_size", global.s.h)],
        "the local decoder reads the patches of the global stack",
    );
    for (key, own) in [("encoder_config.cross_attn_k", encoder.rows), ("decoder_config.cross_attn_k", decoder.rows)] {
        agree(r, [(key, own), ("cross_attn_k", rows)], "the masks are made for this many rows of a patch");
    }
    if tied {
        let rows = [("encoder_config.vocab_size", encoder.v), ("vocab_size", v)];
        agree(r, rows, "the head is the table of bytes of the local encoder");
    }
    r.check_product("the head", &[("vocab_size", v), ("hidden_size", h)]);
    r.check_product("the map of patches", &[("cross_attn_k", rows), ("hidden_size", h), ("hidden_size", global.s.h)]);

    let size = if by_entropy { most.map_or(size, |most| size.min(most)) } else { 1 };
    let Stacked { stack, norm, dropout, .. } = &decoder.side;
    let mut model = ModelSpec {
        final_norm: Some(norm.clone()),
        head: HeadSpec { tied, ..HeadSpec::default() },
        names: stack.names.clone(),
        ..ModelSpec::new(h, v, stack.layers.clone())
    };
    model.patches = Some(Box::new(PatchSpec {
        size,
        rows,
        hashes,
        vocab_size: encoder.v,
        gather: encoder.side.cross(encoder.each),
        spread: decoder.side.cross(decoder.each),
        dropout: *dropout,
        encoder: encoder.side.stack,
        global: global.stack,
        patcher: whole.then_some(patcher),
    }));
    model.not_modelled.push(holes(size, by_entropy));
    model
}

/// What depends on the bytes of a text.
fn holes(size: u64, by_entropy: bool) -> String {
    if !by_entropy {
        return "the empty patch that the reference has behind the last byte where each byte is a patch: one position more \
                in the global stack"
            .to_owned();
    }
    format!(
        "how many patches a text makes, which the entropies of its bytes decide: counted are one of a single byte and then \
         one of every {size} (`patch_size`); there are from 2 to one for each byte, and the work of the global stack goes \
         with their number"
    )
}
