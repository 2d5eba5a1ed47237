//! The model in Megatron-LM's arguments.

use nn::spec::{Activation, NormKind, Scores};

use crate::handover::Draft;
use crate::handover::shape::{Experts, Latent, Shape, rms};

/// Writes the sizes of the model.
pub fn write(draft: &mut Draft<'_>) {
    let Some(shape) = draft.shape() else { return };
    sizes(draft, &shape);
    norms(draft, &shape);
    positions(draft, &shape);
    vocabulary(draft, &shape);
    match &shape.latent {
        Some(latent) => latent_attention(draft, latent),
        None => draft.settings.set("--kv-channels", shape.head_dim),
    }
    if let Some(experts) = &shape.experts {
        mixture(draft, &shape, experts);
    }
    // Megatron-LM drops a tenth of the activations unless told otherwise.
    draft.settings.set("--attention-dropout", 0.0);
    draft.settings.set("--hidden-dropout", 0.0);
}

fn sizes(draft: &mut Draft<'_>, shape: &Shape) {
    let settings = &mut draft.settings;
    settings.set("--num-layers", shape.layers);
    settings.set("--hidden-size", shape.hidden);
    if let Some(width) = shape.ffn.or(shape.experts.map(|experts| experts.width)) {
        settings.set("--ffn-hidden-size", width);
    }
    settings.set("--num-attention-heads", shape.heads);
    if shape.latent.is_none() && shape.kv_heads != shape.heads {
        settings.flag("--group-query-attention");
        settings.set("--num-query-groups", shape.kv_heads);
    }
    if !shape.bias {
        settings.flag("--disable-bias-linear");
    }
    if shape.qkv_bias && !shape.bias {
        settings.flag("--add-qkv-bias");
    }
    if shape.qk_norm {
        settings.flag("--qk-layernorm");
    }
    match (shape.gated, shape.act) {
        (true, Activation::Silu) => settings.flag("--swiglu"),
        (true, Activation::QuickGelu) => settings.flag("--quick-geglu"),
        (false, Activation::Relu2) => settings.flag("--squared-relu"),
        (false, Activation::Gelu) => {}
        (false, Activation::GeluTanh | Activation::GeluNew) => settings.flag("--openai-gelu"),
        (gated, act) => {
            let what = format!("feed-forward parts with {}{act:?}", if gated { "gated " } else { "" });
            draft.refuse(
                "T0491",
                what,
                "its activations are GELU, SwiGLU, squared ReLU and quick GeGLU",
                "another engine",
            );
        }
    }
    if shape.bias && !shape.qkv_bias {
        let why = "--disable-bias-linear is for all linear maps of a block";
        draft.refuse("T0491", "biases on all but queries, keys and values", why, "another engine");
    }
}

fn norms(draft: &mut Draft<'_>, shape: &Shape) {
    match (rms(&shape.norm), shape.norm.kind) {
        (Some(true), _) => draft.settings.set("--normalization", "RMSNorm"),
        (Some(false), NormKind::LayerNorm { bias: true }) => draft.settings.set("--normalization", "LayerNorm"),
        _ => draft.refuse(
            "T0491",
            "norms of this kind",
            "its norms are RMSNorm, and LayerNorm with a bias",
            "deepspeed and fsdp take the model from your program",
        ),
    }
    draft.settings.set("--norm-epsilon", shape.norm.eps);
}

fn positions(draft: &mut Draft<'_>, shape: &Shape) {
    let seq_len = draft.run.seq_len;
    draft.settings.set("--seq-length", seq_len);
    draft.settings.set("--max-position-embeddings", shape.max_positions.unwrap_or(seq_len).max(seq_len));
    match shape.rotary {
        Some((theta, dim)) => {
            draft.settings.set("--position-embedding-type", "rope");
            draft.notes.push("scaling of rotary frequencies, where the model has it, is yours to add".to_owned());
            if theta.fract() == 0.0 && theta >= 1.0 {
                draft.settings.set("--rotary-base", theta as u64);
            } else {
                let what = format!("rotary positions of base {theta}");
                draft.refuse("T0491", what, "--rotary-base is a whole number", "--set rope_theta=10000");
            }
            if shape.latent.is_none() && dim != shape.head_dim {
                draft.settings.set("--rotary-percent", dim as f64 / shape.head_dim.max(1) as f64);
            }
            if shape.interleaved && shape.latent.is_none() {
                draft.settings.flag("--rotary-interleaved");
            }
        }
        None if shape.position_table => draft.settings.set("--position-embedding-type", "learned_absolute"),
        None => draft.settings.set("--position-embedding-type", "none"),
    }
    if let Some(window) = shape.window {
        // Keys before the query and after it; the query itself is one of those it sees.
        draft.settings.set("--window-size", format!("{},0", window.saturating_sub(1)));
    }
}

/// Megatron-LM pads the token table to a multiple of this argument times tp; the largest that pads nothing is 128 or a divisor.
fn vocabulary(draft: &mut Draft<'_>, shape: &Shape) {
    let tp = draft.layout.tp;
    if !shape.tied {
        draft.settings.flag("--untie-embeddings-and-output-weights");
    }
    let divisor = if shape.vocab.is_multiple_of(tp) { gcd(128, shape.vocab / tp) } else { 1 };
    draft.settings.set("--make-vocab-size-divisible-by", divisor.max(1));
    if !shape.vocab.is_multiple_of(tp) {
        let padded = shape.vocab.next_multiple_of(tp);
        draft.differs(
            format!("{} token ids on {tp} ranks", shape.vocab),
            format!("the table is padded to {padded} rows"),
        );
    }
    draft.notes.push(format!("the tokenizer must have {} ids", shape.vocab));
}

const fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn latent_attention(draft: &mut Draft<'_>, latent: &Latent) {
    let settings = &mut draft.settings;
    settings.flag("--multi-latent-attention");
    if let Some(rank) = latent.q_rank {
        settings.set("--q-lora-rank", rank);
    }
    settings.set("--kv-lora-rank", latent.kv_rank);
    settings.set("--qk-head-dim", latent.nope_dim);
    settings.set("--qk-pos-emb-head-dim", latent.rope_dim);
    settings.set("--v-head-dim", latent.value_dim);
}

fn mixture(draft: &mut Draft<'_>, shape: &Shape, experts: &Experts) {
    let settings = &mut draft.settings;
    settings.set("--num-experts", experts.count);
    settings.set("--moe-router-topk", experts.top_k);
    settings.set("--moe-ffn-hidden-size", experts.width);
    if let Some(width) = experts.shared {
        settings.set("--moe-shared-expert-intermediate-size", width);
    }
    if !shape.all_sparse() {
        let pattern: Vec<&str> = shape.sparse.iter().map(|sparse| if *sparse { "1" } else { "0" }).collect();
        settings.set("--moe-layer-freq", format!("[{}]", pattern.join(",")));
    }
    settings.set("--moe-token-dispatcher-type", "alltoall");
    settings.flag("--moe-grouped-gemm");
    match (experts.scores, experts.normalised) {
        // Softmax over the chosen is softmax over all, normalised again.
        (Scores::Softmax, true) | (Scores::SoftmaxOfChosen, _) => {}
        (Scores::Softmax, false) => settings.flag("--moe-router-pre-softmax"),
        (Scores::Sigmoid, true) => settings.set("--moe-router-score-function", "sigmoid"),
        (Scores::Sigmoid, false) | (Scores::SigmoidOfChosen, _) => draft.refuse(
            "T0491",
            "a router whose sigmoids are not normalised",
            "it normalises the scores of more than one chosen expert",
            "another engine",
        ),
        (Scores::SqrtSoftplus, _) => draft.refuse(
            "T0491",
            "a router whose scores are roots of softplus",
            "its options have softmax and sigmoid",
            "another engine",
        ),
    }
    let settings = &mut draft.settings;
    if let Some((count, kept)) = experts.groups {
        settings.set("--moe-router-num-groups", count);
        settings.set("--moe-router-group-topk", kept);
    }
    if let Some(scale) = experts.scale {
        settings.set("--moe-router-topk-scaling-factor", scale);
    }
    if experts.corrected {
        settings.flag("--moe-router-enable-expert-bias");
    }
}

/// Options that describe the model and not how it is divided.
pub const NAMES: &[&str] = &[
    "--encoder-num-layers",
    "--decoder-num-layers",
    "--kv-channels",
    "--group-query-attention",
    "--softmax-type",
    "--max-position-embeddings",
    "--position-embedding-type",
    "--use-rotary-position-embeddings",
    "--rotary-base",
    "--rotary-percent",
    "--rotary-interleaved",
    "--no-rope-freq",
    "--no-position-embedding",
    "--make-vocab-size-divisible-by",
    "--normalization",
    "--norm-epsilon",
    "--apply-layernorm-1p",
    "--apply-residual-connection-post-layernorm",
    "--openai-gelu",
    "--squared-relu",
    "--swiglu",
    "--quick-geglu",
    "--untie-embeddings-and-output-weights",
    "--multi-latent-attention",
    "--disable-bias-linear",
    "--add-qkv-bias",
    "--qk-layernorm",
    "--qk-l2-norm",
    "--window-size",
    "--window-attn-skip-freq",
    "--moe-layer-freq",
    "--moe-shared-expert-intermediate-size",
    "--moe-router-score-function",
    "--moe-router-pre-softmax",
    "--moe-router-num-groups",
    "--moe-router-group-topk",
    "--moe-router-topk-scaling-factor",
    "--moe-router-enable-expert-bias",
    "--q-lora-rank",
    "--kv-lora-rank",
    "--qk-head-dim",
    "--qk-pos-emb-head-dim",
    "--v-head-dim",
    "--vocab-size",
    "--padded-vocab-size",
    "--attention-dropout",
    "--hidden-dropout",
];

/// Holds the sizes in the arguments against those of the model.
pub fn compare(values: &mut crate::handover::reading::Values<'_>, shape: Option<&Shape>) {
    let size = |f: fn(&Shape) -> Option<u64>| shape.and_then(f);
    values.same("--num-layers", size(|s| Some(s.layers)));
    values.same("--hidden-size", size(|s| Some(s.hidden)));
    values.same("--ffn-hidden-size", size(|s| s.ffn));
    values.same("--num-attention-heads", size(|s| Some(s.heads)));
    if values.is("--group-query-attention") {
        values.same("--num-query-groups", size(|s| Some(s.kv_heads)));
    }
    values.same("--num-experts", size(|s| s.experts.map(|experts| experts.count)));
    values.same("--moe-router-topk", size(|s| s.experts.map(|experts| experts.top_k)));
    values.same("--moe-ffn-hidden-size", size(|s| s.experts.map(|experts| experts.width)));
    values.skip(NAMES);
    // Kernels that the fused profile has anyway.
    values.skip(&[
        "--moe-grouped-gemm",
        "--use-flash-attn",
        "--attention-backend",
        "--transformer-impl",
        "--moe-token-dispatcher-type",
    ]);
}
