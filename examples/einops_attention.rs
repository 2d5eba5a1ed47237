//! Attention in named axes: every line says what its dimensions are, and the result is that of the fused kernel.
//!
//! Run: `cargo run --release --example einops_attention`

#![allow(clippy::print_stdout)] // an example talks

use tensor::einops::{einsum, rearrange};
use tensor::ops::attention::Attention;
use tensor::{DType, Device, Phase, Result, Runtime, Tensor};

/// Batch, sequence, heads, head dim.
const B: u64 = 2;
const S: u64 = 64;
const A: u64 = 4;
const D: u64 = 16;

/// Causal attention, step by step.
///
/// # Shapes
/// qkv `b s (three heads d)` -> `b s (heads d)`
fn attention(qkv: &Tensor) -> Result<Tensor> {
    let rt = qkv.runtime();
    let qkv = rearrange(qkv, "b s (three heads d) -> three b heads s d", &[("three", 3), ("heads", A)])?;
    let (q, k, v) = (qkv.select(0, 0)?, qkv.select(0, 1)?, qkv.select(0, 2)?);
    let scores = einsum("b heads q d, b heads k d -> b heads q k", &[&q, &k])?.mul_scalar(1.0 / (D as f64).sqrt())?;
    let s = scores.size(-1);
    let (row, column) = (rt.arange(s, 0.0, 1.0, DType::I64)?.unsqueeze(1)?, rt.arange(s, 0.0, 1.0, DType::I64)?);
    let masked = scores.masked_fill(&column.greater(&row)?, f64::NEG_INFINITY)?;
    let mixed = einsum("b heads q k, b heads k d -> b heads q d", &[&masked.softmax(-1)?, &v])?;
    rearrange(&mixed, "b heads s d -> b s (heads d)", &[])
}

fn main() -> Result<()> {
    let rt = Runtime::with_seed(Device::Cpu, 1);
    let qkv = rt.randn(&[B, S, 3 * A * D], DType::F32)?;
    rt.begin("explicit", Phase::Forward);
    let explicit = attention(&qkv)?;
    rt.begin("fused", Phase::Forward);
    let heads = rearrange(&qkv, "b s (three heads d) -> three b heads s d", &[("three", 3), ("heads", A)])?;
    let options = Attention { causal: true, ..Attention::full(1.0 / (D as f64).sqrt()) };
    let fused = heads.select(0, 0)?.attention(&heads.select(0, 1)?, &heads.select(0, 2)?, None, None, options)?;
    let fused = rearrange(&fused, "b heads s d -> b s (heads d)", &[])?;

    let worst = explicit.to_vec()?.iter().zip(fused.to_vec()?).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    println!("largest difference between explicit and fused: {worst:.1e}");
    assert!(worst < 1e-5);

    let trace = rt.take_trace();
    let mark = trace.marks.iter().find(|m| m.name == "fused").map_or(0, |m| m.op as usize);
    for (name, ops) in [("explicit", &trace.ops[..mark]), ("fused", &trace.ops[mark..])] {
        let (mut needed, mut dense, mut traffic) = (0, 0, 0);
        for event in ops.iter().filter(|e| !e.op.name().starts_with("rand")) {
            needed += event.cost.matmul;
            dense += event.cost.matmul_dense;
            traffic += event.cost.traffic().0;
        }
        println!(
            "{name:<9} {needed:>10} FLOP the model needs, {dense:>10} in the full square, {traffic:>9} bytes moved"
        );
    }
    println!("a wrong axis is named, with both sizes:");
    println!(
        "{}",
        rearrange(&qkv, "b s (heads d) -> b heads s d", &[("heads", 5)]).expect_err("192 is no multiple of 5")
    );
    Ok(())
}
