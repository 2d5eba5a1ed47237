//! Every gradient rule against central differences in f64.

use crate::inputs::{Inputs, loss};
use crate::rows::{Row, rows};
use napkin_tensor::{DType, Device, Tensor};

/// Step of the differences: their error is of the order of its square, that of rounding 1e-16 over it.
const STEP: f64 = 1e-5;
const TOLERANCE: f64 = 1e-6;

/// Seed 0 is contiguous; the others are laid out at random.
fn inputs(seed: u64) -> Inputs {
    Inputs::new(Device::Cpu, seed, DType::F64, seed > 0)
}

fn forward(row: &Row, mut g: Inputs) -> (Inputs, Option<Tensor>) {
    let outputs = (row.program)(&mut g).unwrap_or_else(|e| panic!("{}: {e}", row.name));
    let total = loss(&mut g, &outputs).unwrap();
    (g, total)
}

fn check(row: &Row, seed: u64, wrong: &mut Vec<String>) {
    let (g, total) = forward(row, inputs(seed));
    let Some(total) = total.filter(Tensor::requires_grad) else {
        assert!(g.leaves.is_empty(), "{}: no gradient reaches its operands", row.name);
        return;
    };
    total.backward().unwrap_or_else(|e| panic!("{}: backward: {e}", row.name));
    assert_eq!(g.rt.tape_len(), 0, "{}", row.name);
    for (at, leaf) in g.leaves.iter().enumerate() {
        let Some(grad) = leaf.grad() else {
            wrong.push(format!("{} (seed {seed}): operand {at} has no gradient", row.name));
            continue;
        };
        assert_eq!((grad.shape(), grad.dtype()), (leaf.shape(), leaf.dtype()), "{}", row.name);
        for (element, analytic) in grad.to_vec().unwrap().into_iter().enumerate() {
            let at_step = |by: f64| {
                let (_, total) = forward(row, inputs(seed).nudged(at, element, by));
                total.unwrap().item().unwrap()
            };
            let numeric = (at_step(STEP) - at_step(-STEP)) / (2.0 * STEP);
            let close = (analytic - numeric).abs() <= TOLERANCE * (1.0 + numeric.abs());
            if !close {
                wrong.push(format!(
                    "{} (seed {seed}): operand {at} {:?}, element {element}: rule {analytic}, differences {numeric}",
                    row.name,
                    leaf.shape()
                ));
            }
        }
    }
}

#[test]
fn every_gradient_equals_central_differences() {
    let mut wrong = Vec::new();
    for row in rows() {
        for seed in 0..5 {
            check(&row, seed, &mut wrong);
        }
    }
    assert!(wrong.is_empty(), "{} gradients are wrong:\n{}", wrong.len(), wrong.join("\n"));
}
