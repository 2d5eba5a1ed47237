//! The cost rules, proved against execution: each kernel runs over a counting scalar and must do exactly the arithmetic
//! its rule states.

use crate::inputs::{Inputs, loss};
use crate::rows::{Row, rows};
use napkin_tensor::{DType, Device, Op, Trace};
use std::collections::BTreeSet;

/// Runs a row forward and backward, counting.
fn counted(row: &Row, seed: u64, dtype: DType) -> (Trace, Vec<u64>) {
    let mut g = Inputs::new(Device::Cpu, seed, dtype, true);
    g.rt.count_arithmetic();
    let outputs = (row.program)(&mut g).unwrap_or_else(|e| panic!("{}: {e}", row.name));
    let total = loss(&mut g, &outputs).unwrap();
    if let Some(total) = total.filter(napkin_tensor::Tensor::requires_grad) {
        total.backward().unwrap_or_else(|e| panic!("{}: backward: {e}", row.name));
    }
    (g.rt.take_trace(), g.rt.take_counts())
}

#[test]
fn every_cost_rule_equals_what_its_kernel_does() {
    let mut wrong = Vec::new();
    for row in rows() {
        for (seed, dtype) in (0..6).map(|s| (s, DType::F32)).chain([(6, DType::BF16), (7, DType::F64)]) {
            let (trace, counts) = counted(&row, seed, dtype);
            assert_eq!(trace.ops.len(), counts.len());
            for (event, &count) in trace.ops.iter().zip(&counts) {
                let stated = event.cost.matmul + event.cost.recomputed + event.cost.elementwise;
                if stated != u128::from(count) {
                    let shapes: Vec<_> = event.inputs.iter().map(|t| t.layout.shape()).collect();
                    let op = event.op.name();
                    wrong.push(format!("{}: {op} of {shapes:?} states {stated} but does {count}", row.name));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} cost rules are wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn every_op_has_a_row() {
    let seen: BTreeSet<&str> = rows()
        .iter()
        .flat_map(|row| counted(row, 0, DType::F32).0.ops.iter().map(|e| e.op.variant()).collect::<Vec<_>>())
        .collect();
    let missing: Vec<&&str> = Op::VARIANTS.iter().filter(|v| !seen.contains(**v)).collect();
    assert!(missing.is_empty(), "no row of tests/ops/rows.rs runs {missing:?}: add one");
}
