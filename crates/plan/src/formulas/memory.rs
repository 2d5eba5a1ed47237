//! Counting bytes.

use units::{Bytes, Params};

use super::{Eval, Formula, formula, product, sum};

/// Bytes that one of `dp` devices holds of `parameters`, of which each takes `replicated` bytes on every device and
/// `sharded` bytes once for all; shards are rounded up.
pub fn state_bytes(parameters: Params, replicated: u64, sharded: u64, dp: u64) -> Bytes {
    let n = u128::from(parameters.get());
    let all = n * u128::from(replicated) + (n * u128::from(sharded)).div_ceil(u128::from(dp.max(1)));
    Bytes(u64::try_from(all).unwrap_or(u64::MAX))
}

/// The most parameters of which [`state_bytes`] fit in `capacity`.
pub fn largest_parameters(capacity: Bytes, replicated: u64, sharded: u64, dp: u64) -> Params {
    let dp = u128::from(dp.max(1));
    let each = u128::from(replicated) * dp + u128::from(sharded);
    let most = (u128::from(capacity.get()) * dp).checked_div(each).unwrap_or(u128::MAX);
    Params(u64::try_from(most).unwrap_or(u64::MAX))
}

pub(super) const FORMULAS: &[Formula] = &[
    formula! {
        "traced-bytes": "bytes of the tensors that are live at a moment of the trace",
        "Σ n·e·w" ["B"],
        where "n" = "tensors of a kind", "e" = "elements of one", "w" = "bytes of an element";
        caveat "allocated bytes: a caching allocator reserves more";
        source "the trace of the step, storage by storage";
        Eval::Exact(|x| product(&[x[0], x[1], x[2]]));
    },
    formula! {
        "device": "bytes of a device in a step",
        "r + x" ["B"],
        where "r" = "highest bytes of its rank", "x" = "context, kernels and communicators";
        caveat "what lies outside of the program's own allocations is measured, not traced";
        source "the trace of the rank, storage by storage; data/runtime.csv";
        Eval::Exact(|x| sum([Some(x[0]), Some(x[1])]));
    },
    formula! {
        "traced-params": "parameters of the tensors of a module",
        "Σ n·e" ["parameters"],
        where "n" = "tensors of a kind", "e" = "elements of one";
        caveat "each tensor once: a tied head is the embedding";
        source "the modules built from the config";
        Eval::Exact(|x| product(&[x[0], x[1]]));
    },
    formula! {
        "pinned": "bytes of a pinned buffer on the host",
        "2^⌈log2(n·e)⌉" ["B"],
        where "n" = "elements", "e" = "bytes of an element";
        caveat "the host allocator of PyTorch rounds up to a power of two: up to twice what was asked for";
        source "PyTorch, aten/src/ATen/core/CachingHostAllocator.h, CachingHostAllocatorImpl::allocate (llvm::PowerOf2Ceil)";
        Eval::Exact(|x| product(&[x[0], x[1]])?.checked_next_power_of_two());
    },
    formula! {
        "states": "bytes of parameters, gradients and optimizer states",
        "N·(p + g + m + o)" ["B"],
        where "N" = "parameters", "p" = "bytes of a parameter", "g" = "bytes of a gradient",
            "m" = "bytes of a master copy", "o" = "bytes of optimizer state";
        caveat "fp32 with AdamW 4 + 4 + 0 + 8 = 16; bf16 with master weights 2 + 2 + 4 + 8 = 16";
        source "Rajbhandari et al. 2020, ZeRO, section 3.1";
        Eval::Exact(|x| product(&[x[0], sum([Some(x[1]), Some(x[2]), Some(x[3]), Some(x[4])])?]));
    },
    formula! {
        "zero": "bytes of states on one of dp devices",
        "N·r + N·q / dp" ["B"],
        where "N" = "parameters", "r" = "bytes of each that every device holds",
            "q" = "bytes of each that are divided", "dp" = "data-parallel devices";
        caveat "ZeRO 1 divides master copies and optimizer states, 2 gradients too, 3 parameters too";
        source "Rajbhandari et al. 2020, ZeRO, figure 1";
        Eval::Exact(|x| sum([product(&[x[0], x[1]]), Some(product(&[x[0], x[2]])?.div_ceil(x[3].max(1)))]));
    },
    formula! {
        "zero-whole": "bytes of the states of a model on one of dp devices",
        "R + Q / dp" ["B"],
        where "R" = "bytes that every device holds", "Q" = "bytes that are divided", "dp" = "data-parallel devices";
        caveat "for optimizers whose states depend on the shapes of parameters: summed tensor by tensor";
        source "Rajbhandari et al. 2020, ZeRO, figure 1";
        Eval::Exact(|x| sum([Some(x[0]), Some(x[1].div_ceil(x[2].max(1)))]));
    },
    formula! {
        "largest-states": "most parameters of which the states fit on dp devices",
        "C·dp / (r·dp + q)" ["parameters"],
        where "C" = "bytes of one device", "r" = "bytes of each that every device holds",
            "q" = "bytes of each that are divided", "dp" = "data-parallel devices";
        caveat "nothing is left for activations, gathered weights or the runtime";
        source "the formula `zero`, solved for N";
        Eval::Exact(|x| product(&[x[0], x[3]])?.checked_div(sum([product(&[x[1], x[3]]), Some(x[2])])?));
    },
    formula! {
        "states-devices": "devices whose memory holds the states of a model",
        "⌈S / C⌉" ["devices"],
        where "S" = "bytes of parameters, gradients and states", "C" = "bytes of one device";
        caveat "nothing is left for activations, gathered weights or the runtime";
        source "the formula `zero` with all states divided";
        Eval::Exact(|x| (x[1] > 0).then(|| x[0].div_ceil(x[1])));
    },
    formula! {
        "activations": "bytes that one layer keeps for backward, 16 bit, explicit attention",
        "b·s·h·34 + 5·a·s²·b" ["B"],
        where "b" = "micro-batch", "s" = "sequence length", "h" = "hidden size", "a" = "heads";
        caveat "GELU, LayerNorm, dropout, f = 4·h, k = a; wrong for gated MLPs, grouped heads and fused attention";
        source "Korthikanti et al. 2022, Reducing Activation Recomputation in Large Transformer Models, table 2";
        Eval::Exact(|x| sum([product(&[34, x[0], x[1], x[2]]), product(&[5, x[3], x[1], x[1], x[0]])]));
    },
    formula! {
        "activations-tp": "the same with tensor parallelism",
        "b·s·h·(10 + 24 / t) + 5·a·s²·b / t" ["B"],
        where "b" = "micro-batch", "s" = "sequence length", "h" = "hidden size", "a" = "heads", "t" = "tp";
        caveat "norms and dropout, 10 of the 34, are not divided";
        source "Korthikanti et al. 2022, table 2";
        Eval::Exact(|x| {
            let divided = sum([product(&[24, x[0], x[1], x[2]]), product(&[5, x[3], x[1], x[1], x[0]])])?;
            sum([product(&[10, x[0], x[1], x[2]]), divided.checked_div(x[4])])
        });
    },
    formula! {
        "activations-sp": "the same with tensor and sequence parallelism",
        "(b·s·h·34 + 5·a·s²·b) / t" ["B"],
        where "b" = "micro-batch", "s" = "sequence length", "h" = "hidden size", "a" = "heads", "t" = "tp";
        caveat "everything is divided";
        source "Korthikanti et al. 2022, table 2";
        Eval::Exact(|x| {
            sum([product(&[34, x[0], x[1], x[2]]), product(&[5, x[3], x[1], x[1], x[0]])])?.checked_div(x[4])
        });
    },
    formula! {
        "activations-selective": "the same where attention is recomputed",
        "b·s·h·34 / t" ["B"],
        where "b" = "micro-batch", "s" = "sequence length", "h" = "hidden size", "t" = "tp";
        caveat "with sequence parallelism; fused attention keeps no scores and is there already";
        source "Korthikanti et al. 2022, table 2";
        Eval::Exact(|x| product(&[34, x[0], x[1], x[2]])?.checked_div(x[3]));
    },
    formula! {
        "activations-full": "bytes that one layer keeps where all of it is recomputed",
        "2·b·s·h" ["B"],
        where "b" = "micro-batch", "s" = "sequence length", "h" = "hidden size";
        caveat "its input in 16 bit; while a layer runs backward, what it keeps comes back once";
        source "Korthikanti et al. 2022, table 2";
        Eval::Exact(|x| product(&[2, x[0], x[1], x[2]]));
    },
    formula! {
        "activations-fused": "bytes that one layer keeps for each token with fused kernels, 16 bit",
        "b·(8·h + 4·a·d + 4·k·d + 6·f + 4·a)" ["B"],
        where "b" = "tokens", "h" = "hidden size", "a" = "heads", "k" = "key/value heads", "d" = "head dim",
            "f" = "intermediate size";
        caveat "RMS norms, gated MLP, no dropout: norm inputs and outputs, q, k, v, output, log-sum-exp, gate, up, product";
        source "tracing of the fused profile; 131,712 bytes for the Llama-2-7B shape";
        Eval::Exact(|x| {
            let &[b, h, a, k, d, f] = x else { return None };
            let each = sum([product(&[8, h]), product(&[4, a, d]), product(&[4, k, d]), product(&[6, f]), product(&[4, a])])?;
            product(&[b, each])
        });
    },
    formula! {
        "logits": "bytes of the scores of a vocabulary",
        "n·v·e" ["B"],
        where "n" = "tokens", "v" = "vocabulary", "e" = "bytes of an element";
        caveat "one copy: a loss in 32 bits keeps a second one and makes a third for the gradient";
        source "one score for each token and word; chunking the head divides n, chunking only the loss does not";
        Eval::Exact(|x| product(&[x[0], x[1], x[2]]));
    },
    formula! {
        "scores": "bytes of the attention scores of a block, where they are stored",
        "b·a·s²·e" ["B"],
        where "b" = "sequences", "a" = "heads", "s" = "sequence length", "e" = "bytes of an element";
        caveat "fused attention stores none";
        source "one score for each pair of tokens and head";
        Eval::Exact(|x| product(&[x[0], x[1], x[2], x[2], x[3]]));
    },
    formula! {
        "kv-cache": "bytes of keys and values kept while generating",
        "2·b·s·l·k·d·e" ["B"],
        where "b" = "sequences", "s" = "sequence length", "l" = "layers", "k" = "key/value heads", "d" = "head dim",
            "e" = "bytes of an element";
        caveat "no sliding windows and no latent attention, which keep less";
        source "one key and one value for each token, layer and key/value head";
        Eval::Exact(|x| product(&[2, x[0], x[1], x[2], x[3], x[4], x[5]]));
    },
    formula! {
        "weights": "bytes of weights",
        "N·w" ["B"],
        where "N" = "parameters", "w" = "bytes of a parameter, constants of its format included";
        caveat "memory holds all parameters, also those of experts that a token does not use";
        source "data/formats/weights.csv";
        Eval::Real(|x| x[0] * x[1]);
    },
    formula! {
        "kv-token": "bytes kept of one token",
        "Σ l·w·e" ["B"],
        where "l" = "layers of a kind", "w" = "elements kept of a token in one: 2·k·d, or the width of a latent",
            "e" = "bytes of an element";
        caveat "windows apart; a state-space layer keeps nothing of a token";
        source "the layers of the config";
        Eval::Exact(|x| product(&[x[0], x[1], x[2]]));
    },
    formula! {
        "kv-sequence": "bytes kept of a sequence",
        "Σ l·t·min(s, r)" ["B"],
        where "l" = "layers of a kind", "t" = "bytes of a token in one", "s" = "tokens of the sequence",
            "r" = "tokens it looks back to, itself included";
        caveat "what the model needs; an engine reserves more";
        source "the layers of the config";
        Eval::Exact(|x| product(&[x[0], x[1], x[2].min(x[3])]));
    },
    formula! {
        "kv-blocks": "bytes that a paged engine charges a sequence",
        "Σ g·n·B" ["B"],
        where "g" = "groups of layers of a kind",
            "n" = "blocks for each: ⌈s/t⌉, or ⌈min(r - 1 + c, s)/t⌉ + 1 with a window",
            "B" = "bytes of a block";
        caveat "c = tokens of a prompt read in one step, t = tokens of a block; a state is one block";
        source "vLLM, v1/kv_cache_interface.py and v1/core/kv_cache_utils.py";
        Eval::Exact(|x| product(&[x[0], x[1], x[2]]));
    },
];
