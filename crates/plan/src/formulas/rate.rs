//! Times, rates and ratios.

use super::{Eval, Formula, formula};

pub(super) const FORMULAS: &[Formula] = &[
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
