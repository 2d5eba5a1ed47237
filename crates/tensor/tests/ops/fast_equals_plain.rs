//! The fast kernels against the plain ones: every row, in every float dtype, on contiguous and strided operands.

use crate::inputs::{Inputs, loss};
use crate::rows::{Row, rows};
use napkin_tensor::{DType, Device, Kernels, Tensor};

/// Results and gradients of a row.
fn numbers(row: &Row, kernels: Kernels, seed: u64, dtype: DType) -> Vec<(DType, Vec<f64>)> {
    let mut g = Inputs::new(Device::Cpu, seed, dtype, seed > 0);
    g.rt.set_kernels(kernels);
    let outputs = (row.program)(&mut g).unwrap_or_else(|e| panic!("{}: {e}", row.name));
    let total = loss(&mut g, &outputs).unwrap();
    if let Some(total) = total.filter(Tensor::requires_grad) {
        total.backward().unwrap_or_else(|e| panic!("{}: backward: {e}", row.name));
    }
    let grads = g.leaves.iter().filter_map(Tensor::grad);
    outputs.iter().cloned().chain(grads).map(|t| (t.dtype(), t.to_vec().unwrap())).collect()
}

/// How far two results of a dtype may lie apart, relative to the larger of 1 and their size: a few roundings.
fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-13,
        DType::F32 => 2e-6,
        DType::F16 => 4e-3,
        DType::BF16 => 3e-2,
        _ => 0.0,
    }
}

fn compare(row: &Row, seed: u64, dtype: DType, wrong: &mut Vec<String>) {
    let [fast, plain] = [Kernels::Fast, Kernels::Plain].map(|kernels| numbers(row, kernels, seed, dtype));
    assert_eq!(fast.len(), plain.len());
    for (at, ((dtype, fast), (_, plain))) in fast.iter().zip(&plain).enumerate() {
        assert_eq!(fast.len(), plain.len());
        let close = |a: f64, b: f64| {
            a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= tolerance(*dtype) * b.abs().max(1.0)
        };
        let odd = fast.iter().zip(plain).find(|&(&a, &b)| !close(a, b));
        if let Some((a, b)) = odd {
            wrong.push(format!("{} (seed {seed}, {dtype}): result {at}: fast {a}, plain {b}", row.name));
        }
    }
}

#[test]
fn every_row_computes_what_the_plain_kernels_compute() {
    let mut wrong = Vec::new();
    for row in rows() {
        for dtype in [DType::F32, DType::BF16, DType::F16, DType::F64] {
            for seed in 0..8 {
                compare(&row, seed, dtype, &mut wrong);
            }
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}
