//! Rows of the fused ops: activations, norms, attention, losses, grouped products.

use crate::inputs::Inputs;
use crate::rows::{Row, row};
use napkin_tensor::ops::{attention::Attention, layer_norm::Stats, nll_loss::Reduction};
use napkin_tensor::ops::{rope::RopeStyle, swiglu::Act};
use napkin_tensor::{DType, Result, Tensor};

/// All rows of this file.
pub fn rows() -> Vec<Row> {
    [activations(), norms(), attention(), losses(), experts()].into_iter().flatten().collect()
}

/// A random number of rows of a random width.
fn some_rows(g: &mut Inputs) -> Result<Tensor> {
    let shape = [g.size(1..3), g.size(1..4), g.size(2..5)];
    g.float(&shape)
}

fn gated(g: &mut Inputs, act: Act) -> Result<Vec<Tensor>> {
    let (gate, up, both) = (g.float(&[2, 3])?, g.float(&[2, 3])?, g.float(&[2, 6])?);
    Ok(vec![gate.gated(act, &up)?, both.gated_packed(act)?])
}

fn rope(g: &mut Inputs, table: &[u64], rotary_dim: u64, style: RopeStyle) -> Result<Vec<Tensor>> {
    let (x, cos, sin) = (g.float(&[2, 2, 3, 6])?, g.data(table)?, g.data(table)?);
    Ok(vec![x.rope(&cos, &sin, rotary_dim, style)?])
}

fn activations() -> Vec<Row> {
    vec![
        row("gelu", |g| Ok(vec![some_rows(g)?.gelu()?])),
        row("gelu_tanh", |g| Ok(vec![some_rows(g)?.gelu_tanh()?])),
        row("silu", |g| Ok(vec![some_rows(g)?.silu()?])),
        row("swiglu", |g| gated(g, Act::Silu)),
        row("geglu", |g| gated(g, Act::GeluErf)),
        row("geglu, tanh", |g| gated(g, Act::GeluTanh)),
        row("reglu", |g| gated(g, Act::Relu)),
        row("glu", |g| gated(g, Act::Sigmoid)),
        row("swiglu, frozen gate", |g| {
            let (gate, up) = (g.data(&[2, 3])?, g.float(&[2, 3])?);
            Ok(vec![gate.swiglu(&up)?])
        }),
        row("swiglu, frozen up", |g| {
            let (gate, up) = (g.float(&[2, 3])?, g.data(&[2, 3])?);
            Ok(vec![gate.swiglu(&up)?])
        }),
        row("dropout", |g| Ok(vec![some_rows(g)?.dropout(0.4)?])),
        row("dropout, composed", |g| Ok(vec![some_rows(g)?.dropout_composed(0.4)?])),
        row("rope", |g| rope(g, &[3, 6], 6, RopeStyle::Half)),
        row("rope of a part, by half tables", |g| rope(g, &[1, 3, 2], 4, RopeStyle::Half)),
        row("rope, interleaved", |g| rope(g, &[2, 3, 2], 4, RopeStyle::Interleaved)),
    ]
}

fn norms() -> Vec<Row> {
    vec![
        row("softmax", |g| Ok(vec![some_rows(g)?.softmax(1)?])),
        row("softmax along the last, to f32", |g| {
            let to = if g.dtype == DType::F64 { DType::F64 } else { DType::F32 };
            Ok(vec![some_rows(g)?.softmax_to(-1, to)?])
        }),
        row("log_softmax", |g| Ok(vec![some_rows(g)?.log_softmax(1)?])),
        row("layer_norm", |g| {
            let (x, w, b) = (g.float(&[2, 3, 4])?, g.float(&[4])?, g.float(&[4])?);
            Ok(vec![x.layer_norm(Some(&w), Some(&b), 1e-5)?])
        }),
        row("layer_norm, frozen input", |g| {
            let (x, w, b) = (g.data(&[3, 4])?, g.float(&[4])?, g.float(&[4])?);
            Ok(vec![x.layer_norm(Some(&w), Some(&b), 1e-5)?])
        }),
        row("layer_norm, frozen weight", |g| {
            let (x, w) = (g.float(&[3, 4])?, g.data(&[4])?);
            Ok(vec![x.layer_norm(Some(&w), None, 1e-5)?])
        }),
        row("layer_norm, plain", |g| {
            Ok(vec![g.float(&[3, 4])?.layer_norm_keeping(None, None, 1e-5, Stats::AsInput)?])
        }),
        row("rms_norm", |g| {
            let (x, w) = (g.float(&[2, 3, 4])?, g.float(&[4])?);
            Ok(vec![x.rms_norm(Some(&w), 1e-5)?])
        }),
        row("rms_norm, plain", |g| Ok(vec![g.float(&[3, 4])?.rms_norm(None, 1e-5)?])),
        row("rms_norm, unit offset", |g| {
            let (x, w) = (g.float(&[3, 4])?, g.float(&[4])?);
            Ok(vec![x.rms_norm_unit_offset(&w, 1e-5)?])
        }),
        row("rms_norm, frozen weight", |g| {
            let (x, w) = (g.float(&[3, 4])?, g.data(&[4])?);
            Ok(vec![x.rms_norm(Some(&w), 1e-5)?])
        }),
    ]
}

/// Queries of 4 heads over 2 key heads, values wider than keys.
fn attend(g: &mut Inputs, sq: u64, sk: u64, bias: bool, sinks: bool, op: Attention) -> Result<Vec<Tensor>> {
    let (q, k, v) = (g.float(&[1, 4, sq, 2])?, g.float(&[1, 2, sk, 2])?, g.float(&[1, 2, sk, 3])?);
    let bias = if bias { Some(g.data(&[1, 1, sq, sk])?) } else { None };
    let sinks = if sinks { Some(g.float(&[4])?) } else { None };
    Ok(vec![q.attention(&k, &v, bias.as_ref(), sinks.as_ref(), op)?])
}

fn attention() -> Vec<Row> {
    vec![
        row("attention", |g| attend(g, 2, 3, false, false, Attention::full(0.7))),
        row("attention, causal", |g| attend(g, 3, 3, false, false, Attention::causal(0.7))),
        row("attention, causal, more keys than queries", |g| attend(g, 2, 4, false, false, Attention::causal(0.7))),
        row("attention, window", |g| {
            attend(g, 4, 4, false, false, Attention { window: Some(2), ..Attention::causal(0.7) })
        }),
        row("attention, softcap and bias", |g| {
            attend(g, 2, 3, true, false, Attention { softcap: Some(2.0), ..Attention::full(0.7) })
        }),
        row("attention, sinks", |g| attend(g, 3, 3, false, true, Attention::causal(0.7))),
        row("attention, sinks and bias", |g| attend(g, 2, 3, true, true, Attention::full(0.7))),
        row("attention, only values trained", |g| {
            let (q, k, v) = (g.data(&[1, 2, 2, 2])?, g.data(&[1, 2, 3, 2])?, g.float(&[1, 2, 3, 2])?);
            Ok(vec![q.attention(&k, &v, None, None, Attention::full(0.7))?])
        }),
    ]
}

/// Four targets below `classes`, and one that is left out.
fn targets(g: &mut Inputs, classes: u64) -> Result<Tensor> {
    let (counted, ignored) = (g.index(&[4], classes)?, g.rt.full(&[1], -100.0, DType::I64)?);
    Tensor::cat(&[&counted, &ignored], 0)
}

fn losses() -> Vec<Row> {
    vec![
        row("nll_loss", |g| {
            let (x, t) = (g.float(&[5, 3])?, targets(g, 3)?);
            Ok(vec![x.nll_loss(&t, Reduction::Mean)?, x.nll_loss(&t, Reduction::Sum)?])
        }),
        row("linear_cross_entropy", |g| {
            let (x, w, t) = (g.float(&[5, 4])?, g.float(&[3, 4])?, targets(g, 3)?);
            Ok(vec![x.linear_cross_entropy(&w, &t, 2)?])
        }),
        row("linear_cross_entropy of a frozen head", |g| {
            let (x, w, t) = (g.float(&[5, 4])?, g.data(&[3, 4])?, targets(g, 3)?);
            Ok(vec![x.linear_cross_entropy(&w, &t, 8)?.mul_scalar(0.5)?])
        }),
        row("linear_cross_entropy under frozen blocks", |g| {
            let (x, w, t) = (g.data(&[5, 4])?, g.float(&[3, 4])?, targets(g, 3)?);
            Ok(vec![x.linear_cross_entropy(&w, &t, 1)?])
        }),
        row("cross_entropy", |g| {
            let (x, t) = (g.float(&[5, 3])?, targets(g, 3)?);
            Ok(vec![x.cross_entropy(&t, Reduction::Mean)?, x.cross_entropy(&t, Reduction::Sum)?])
        }),
        row("cross_entropy of logits that only backward holds", |g| {
            let (x, t) = (g.float(&[5, 3])?, targets(g, 3)?);
            Ok(x.mul_scalar(1.5)?.cross_entropy_with_lse(&t, Reduction::Mean)?.into_vec())
        }),
        row("cross_entropy with a z-loss", |g| {
            let (x, t) = (g.float(&[5, 3])?, targets(g, 3)?);
            Ok(x.cross_entropy_with_lse(&t, Reduction::Mean)?.into_vec())
        }),
    ]
}

/// Five rows over three experts, one of them without any.
fn group_sizes(g: &Inputs) -> Result<Tensor> {
    g.rt.tensor(&[2.0, 0.0, 3.0], &[3], DType::I64)
}

fn experts() -> Vec<Row> {
    vec![
        row("argsort", |g| Ok(vec![g.index(&[7], 3)?.argsort()?])),
        row("bincount", |g| Ok(vec![g.index(&[2, 4], 3)?.bincount(4)?])),
        row("matmul_into", |g| {
            let (target, a, b) = (g.target(&[3, 2])?, g.data(&[3, 4])?, g.data(&[4, 2])?);
            Ok(vec![target.add_matmul_(&a, &b)?])
        }),
        row("grouped_matmul_into", |g| {
            let (target, a, b) = (g.target(&[2, 3, 2])?, g.data(&[5, 3])?, g.data(&[5, 2])?);
            let sizes = g.rt.input(&[2.0, 3.0], &[2], DType::I32)?;
            Ok(vec![target.add_grouped_matmul_(&a, &b, &sizes)?])
        }),
        row("grouped_linear", |g| {
            let (x, w, sizes) = (g.float(&[5, 2])?, g.float(&[3, 4, 2])?, group_sizes(g)?);
            Ok(vec![x.grouped_linear(&w, &sizes)?])
        }),
        row("grouped_linear, transposed weights", |g| {
            let (x, w, sizes) = (g.float(&[5, 2])?, g.float(&[3, 2, 4])?, group_sizes(g)?);
            Ok(vec![x.grouped_linear_transposed(&w, &sizes)?])
        }),
        row("grouped_linear, frozen weights", |g| {
            let (x, w, sizes) = (g.float(&[5, 2])?, g.data(&[3, 4, 2])?, group_sizes(g)?);
            Ok(vec![x.grouped_linear(&w, &sizes)?])
        }),
    ]
}
