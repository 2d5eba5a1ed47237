//! Times, rates and ratios.

use super::{Eval, Formula, formula};

pub(super) const FORMULAS: &[Formula] = &[
    formula! {
        "compute": "FLOP that devices do in a time",
        "n·P·MFU·T" ["FLOP"],
        where "n" = "devices", "P" = "dense peak of one device in FLOP/s", "MFU" = "model FLOP utilization",
            "T" = "time in seconds";
        caveat "the formula `time`, solved for C";
        source "definition of MFU";
        Eval::Real(|x| x.iter().product());
    },
    formula! {
        "devices": "devices that end a run in a time",
        "⌈C / (P·MFU·T)⌉" ["devices"],
        where "C" = "FLOP of the run", "P" = "dense peak of one device in FLOP/s", "MFU" = "model FLOP utilization",
            "T" = "time in seconds";
        caveat "the formula `time`, solved for n; more of them may be needed to hold the states";
        source "definition of MFU";
        Eval::Real(|x| (x[0] / (x[1] * x[2] * x[3])).ceil());
    },
    formula! {
        "optimal-parameters": "parameters that a compute trains best, by a law of the loss",
        "(a·A / (b·B))^(1/(a+b)) · (C/6)^(b/(a+b))" ["parameters"],
        where "C" = "FLOP of the run", "A" = "numerator of the term of parameters", "a" = "its exponent",
            "B" = "numerator of the term of tokens", "b" = "its exponent";
        caveat "one pass over data of one kind, 6·N·D FLOP; other fits of the same runs differ by a factor of two";
        source "Hoffmann et al. 2022, arXiv:2203.15556, equation 4";
        Eval::Real(|x| (x[2] * x[1] / (x[4] * x[3])).powf(1.0 / (x[2] + x[4])) * (x[0] / 6.0).powf(x[4] / (x[2] + x[4])));
    },
    formula! {
        "optimal-ratio": "parameters that a compute trains best, at so many tokens for each",
        "√(C / (6·r))" ["parameters"],
        where "C" = "FLOP of the run", "r" = "tokens for each parameter";
        caveat "a rule of thumb for the budgets of its paper";
        source "Hoffmann et al. 2022, arXiv:2203.15556, approaches 1 and 2";
        Eval::Real(|x| (x[0] / (6.0 * x[1])).sqrt());
    },
    formula! {
        "optimal-tokens": "tokens that a compute pays for",
        "C / (6·N)" ["tokens"],
        where "C" = "FLOP of the run", "N" = "parameters";
        caveat "attention is not in it";
        source "the formula `6nd`, solved for D";
        Eval::Real(|x| x[0] / (6.0 * x[1]));
    },
    formula! {
        "steps": "time of the steps of a run",
        "⌈D / (b·s)⌉·t" ["s"],
        where "D" = "tokens of the run", "b" = "sequences of a step", "s" = "tokens of a sequence",
            "t" = "time of a step in seconds";
        caveat "no evaluation, no saves, no failures";
        source "definition";
        Eval::Real(|x| (x[0] / (x[1] * x[2])).ceil() * x[3]);
    },
    formula! {
        "step": "time of a step on the rank that ends last",
        "(p + i + g + o + w)·(1 + s)" ["s"],
        where "p" = "passes of all micro-batches", "i" = "idle time in the pipeline", "g" = "exchange of gradients that no pass hides",
            "o" = "the optimizer", "w" = "exchange of parameters that no pass hides",
            "s" = "what the slowest node takes longer than the mean";
        caveat "each term by the ops and exchanges of the traced ranks; docs/validation.md says how far that is off";
        source "the trace of the ranks, and data/time";
        Eval::Real(|x| x[..5].iter().sum::<f64>() * (1.0 + x[5]));
    },
    formula! {
        "wall": "wall-clock time of a run",
        "T + d + e + c + r + l" ["s"],
        where "T" = "steps", "d" = "waiting for data", "e" = "evaluations", "c" = "saves", "r" = "restarts after failures",
            "l" = "work done again: half of what lies between two saves for each failure";
        caveat "failures come independently, at one rate for every device; restarts and repeated work fail in their turn";
        source "Young 1974, Communications of the ACM 17(9), in first order";
        Eval::Real(|x| x.iter().sum());
    },
    formula! {
        "again": "hardware FLOP more than those of the model",
        "R / M" ["parts of 1"],
        where "R" = "FLOP of matrix products that are done again", "M" = "those of forward and backward";
        caveat "matrix products and attention alone";
        source "the trace of the step, op by op";
        Eval::Real(|x| x[0] / x[1]);
    },
    formula! {
        "time": "time of a run",
        "C / (n·P·MFU)" ["s"],
        where "C" = "FLOP of the run", "n" = "devices", "P" = "dense peak of one device in FLOP/s", "MFU" = "model FLOP utilization";
        caveat "no restarts and no evaluation, unless the MFU includes them";
        source "definition of MFU";
        Eval::Real(|x| x[0] / (x[1] * x[2] * x[3]));
    },
    formula! {
        "mfu": "model FLOP utilization",
        "R / (n·P)" ["parts of 1"],
        where "R" = "model FLOP per second, all devices", "n" = "devices", "P" = "dense peak of one device in FLOP/s";
        caveat "recomputation is not counted; a sparse peak is never the denominator";
        source "Chowdhery et al. 2022, PaLM, appendix B";
        Eval::Real(|x| x[0] / (x[1] * x[2]));
    },
    formula! {
        "device-hours": "device-hours of a run",
        "n·T / 3600" ["h"],
        where "n" = "devices", "T" = "time in seconds";
        caveat "a device that waits is paid for too";
        source "definition";
        Eval::Real(|x| x[0] * x[1] / 3600.0);
    },
    formula! {
        "intensity": "arithmetic intensity",
        "F / B" ["FLOP/B"],
        where "F" = "FLOP", "B" = "bytes moved";
        caveat "each operand read once and the result written once";
        source "Williams et al. 2009, Roofline";
        Eval::Real(|x| x[0] / x[1]);
    },
    formula! {
        "ridge": "intensity at which computing and moving take equally long",
        "P / W" ["FLOP/B"],
        where "P" = "dense peak in FLOP/s", "W" = "memory bandwidth in B/s";
        caveat "below it memory is the bound";
        source "Williams et al. 2009, Roofline";
        Eval::Real(|x| x[0] / x[1]);
    },
    formula! {
        "roofline": "upper bound of MFU at an intensity",
        "min(1, I / ridge)" ["parts of 1"],
        where "I" = "arithmetic intensity in FLOP/B", "ridge" = "ridge point in FLOP/B";
        caveat "peak bandwidth is not reached either";
        source "Williams et al. 2009, Roofline";
        Eval::Real(|x| (x[0] / x[1]).min(1.0));
    },
    formula! {
        "prefill": "time of reading a prompt",
        "F / (n·P)" ["s"],
        where "F" = "FLOP of the forward pass", "n" = "devices", "P" = "FLOP/s that one of them reaches";
        caveat "long prompts are bound by arithmetic; short ones read the weights for longer";
        source "Pope et al. 2022, Efficiently Scaling Transformer Inference, section 2";
        Eval::Real(|x| x[0] / (x[1] * x[2]));
    },
    formula! {
        "decode": "time of one token more for each sequence",
        "(W + K) / R" ["s"],
        where "W" = "bytes of the weights that are read", "K" = "bytes of keys and values of all sequences",
            "R" = "bytes per second that memory reaches";
        caveat "until there are so many sequences that arithmetic takes longer";
        source "Pope et al. 2022, Efficiently Scaling Transformer Inference, section 2";
        Eval::Real(|x| (x[0] + x[1]) / x[2]);
    },
];
