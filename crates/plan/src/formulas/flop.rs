//! Counting work. One multiply-add is 2 FLOP.

use units::{Flops, Params, Tokens};

use super::{Eval, Formula, formula, product, sum};

/// FLOP of one trained token, forward and backward: `6 N`.
pub fn flop_per_token(parameters: Params) -> Flops {
    Flops(6 * u128::from(parameters.get()))
}

/// FLOP of one token where only some of the parameters it is multiplied with are trained: `4 N + 2 T`. A weight that is
/// frozen costs a product forward and one for the gradient of its input, and none for its own.
pub fn flop_per_tuned_token(parameters: Params, trained: Params) -> Flops {
    Flops(4 * u128::from(parameters.get()) + 2 * u128::from(trained.get()))
}

/// FLOP of a run: `6 N D`.
pub fn training_flop(parameters: Params, tokens: Tokens) -> Flops {
    tokens * flop_per_token(parameters)
}

/// FLOP that the hardware does in a run with one forward pass more: `8 N D`.
pub fn training_flop_recomputed(parameters: Params, tokens: Tokens) -> Flops {
    tokens * Flops(8 * u128::from(parameters.get()))
}

/// FLOP of attention scores and values for one trained token over the full square: `12 l a d s`.
pub fn attention_flop_full(layers: u64, heads: u64, head_dim: u64, seq_len: u64) -> Flops {
    let factors = [12, layers, heads, head_dim, seq_len];
    Flops(factors.into_iter().fold(1, |product, factor| u128::from(factor).saturating_mul(product)))
}

/// FLOP of `m × k` times `k × n`: `2 m k n`.
pub fn matmul_flop(m: u64, k: u64, n: u64) -> Flops {
    Flops([m, k, n].into_iter().fold(2, |product, size| u128::from(size).saturating_mul(product)))
}

pub(super) const FORMULAS: &[Formula] = &[
    formula! {
        "6n": "FLOP of one trained token",
        "6·N" ["FLOP"],
        where "N" = "parameters";
        caveat "no attention scores, embeddings counted as if they were multiplied; forward 2·N, backward 4·N";
        source "Kaplan et al. 2020, Scaling Laws for Neural Language Models, section 2.1";
        Eval::Exact(|x| product(&[6, x[0]]));
    },
    formula! {
        "6nd": "FLOP of a training run",
        "6·N·D" ["FLOP"],
        where "N" = "parameters", "D" = "tokens";
        caveat "no attention scores: a run at 8k context does 6.8 % more on an 8B model";
        source "Kaplan et al. 2020; Hoffmann et al. 2022, Training Compute-Optimal Large Language Models, appendix F";
        Eval::Exact(|x| product(&[6, x[0], x[1]]));
    },
    formula! {
        "8nd": "FLOP that the hardware does in a run with full recomputation",
        "8·N·D" ["FLOP"],
        where "N" = "parameters", "D" = "tokens";
        caveat "one forward pass more; it counts for HFU and not for MFU";
        source "Narayanan et al. 2021, Efficient Large-Scale Language Model Training on GPU Clusters, appendix";
        Eval::Exact(|x| product(&[8, x[0], x[1]]));
    },
    formula! {
        "12lhqt": "FLOP of attention scores and values for one trained token, full square",
        "12·l·a·d·s" ["FLOP"],
        where "l" = "layers", "a" = "heads", "d" = "head dim", "s" = "sequence length";
        caveat "counts the masked half of causal attention, so it is about twice what the model needs";
        source "Chowdhery et al. 2022, PaLM, appendix B (12·L·H·Q·T)";
        Eval::Exact(|x| product(&[12, x[0], x[1], x[2], x[3]]));
    },
    formula! {
        "attention-causal": "FLOP of attention scores and values for one trained token, causal",
        "6·l·a·d·(s + 1)" ["FLOP"],
        where "l" = "layers", "a" = "heads", "d" = "head dim", "s" = "sequence length";
        caveat "no sliding windows; every token of the sequence is trained on";
        source "3 passes × 2 products × 2 FLOP × a·d × s(s+1)/2 pairs, divided by s tokens";
        Eval::Exact(|x| product(&[6, x[0], x[1], x[2], x[3].checked_add(1)?]));
    },
    formula! {
        "pairs-causal": "query and key pairs of causal attention",
        "s·(s + 1) / 2" ["pairs"],
        where "s" = "sequence length";
        caveat "one document; packed documents have fewer";
        source "counting";
        Eval::Exact(|x| product(&[x[0], x[0].checked_add(1)?]).map(|twice| twice / 2));
    },
    formula! {
        "pairs-window": "query and key pairs of causal attention in a sliding window",
        "s·w - w·(w - 1) / 2" ["pairs"],
        where "s" = "sequence length", "w" = "window";
        caveat "a window longer than the sequence is the sequence";
        source "counting";
        Eval::Exact(|x| {
            let window = x[1].min(x[0]);
            product(&[x[0], window])?.checked_sub(product(&[window, window.saturating_sub(1)])? / 2)
        });
    },
    formula! {
        "traced-flop": "FLOP of the contractions of the trace",
        "Σ n·2·m·k·p" ["FLOP"],
        where "n" = "products of a kind", "m" = "rows", "k" = "inner size", "p" = "columns";
        caveat "attention counts the query and key pairs its mask leaves; backward follows from the gradients' own products";
        source "the trace of the step, op by op; cost rules are proved against execution";
        Eval::Exact(|x| product(&[2, x[0], x[1], x[2], x[3]]));
    },
    formula! {
        "matmul": "FLOP of one matrix multiplication",
        "2·m·k·n" ["FLOP"],
        where "m" = "rows of the left", "k" = "contracted dimension", "n" = "columns of the right";
        caveat "exactly 2·k - 1 for each output; the field counts 2·k";
        source "one multiply-add is 2 FLOP";
        Eval::Exact(|x| product(&[2, x[0], x[1], x[2]]));
    },
    formula! {
        "params-gated": "parameters of a Transformer with gated MLP, RMS norms, no biases and an untied head",
        "2·v·h + l·(2·h·a·d + 2·h·k·d + 3·h·f + 2·h) + h" ["parameters"],
        where "v" = "vocabulary", "h" = "hidden size", "l" = "layers", "a" = "heads", "k" = "key/value heads",
            "d" = "head dim", "f" = "intermediate size";
        caveat "a tied head takes v·h less; biases and query-key norms are extra";
        source "the shapes of the Llama family";
        Eval::Exact(|x| {
            let &[v, h, l, a, k, d, f] = x else { return None };
            let layer = sum([product(&[2, h, a, d]), product(&[2, h, k, d]), product(&[3, h, f]), product(&[2, h])])?;
            sum([product(&[2, v, h]), product(&[l, layer]), Some(h)])
        });
    },
];
