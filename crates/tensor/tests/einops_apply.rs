//! Patterns on tensors: values against plain index loops, views instead of copies, gradients, metering.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use napkin_tensor::einops::{ReduceOp, einsum, rearrange, reduce, repeat};
use napkin_tensor::{DType, Device, Error, Runtime, Tensor};
use proptest::prelude::*;

fn cpu() -> Runtime {
    Runtime::new(Device::Cpu)
}

fn arange(runtime: &Runtime, shape: &[u64]) -> Tensor {
    runtime.arange(shape.iter().product(), 0.0, 1.0, DType::F64).unwrap().view(shape).unwrap()
}

/// Small whole numbers, different for each operand: sums are exact in any order.
fn fill(operand: usize, shape: &[u64]) -> Vec<f64> {
    let count = shape.iter().product::<u64>() as i64;
    (0..count).map(|at| ((at * 7 + 3 * operand as i64 + 1) % 11 - 4) as f64).collect()
}

#[test]
fn rearrange_by_hand() {
    let runtime = cpu();
    let x = arange(&runtime, &[2, 3]);
    assert_eq!(rearrange(&x, "a b -> (b a 1)", &[]).unwrap().to_vec().unwrap(), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
    let x = arange(&runtime, &[2, 2, 12]);
    let sizes = [("k1", 2), ("k2", 2), ("N2", 3)];
    let wrote = rearrange(&x, "N1 C (k1 k2 N2) -> (N1 N2) C k1 k2", &sizes).unwrap();
    assert_eq!(wrote.shape(), [6, 2, 2, 2]);
    assert_eq!(wrote.to_vec().unwrap()[..4], [0.0, 3.0, 6.0, 9.0]);
    let meant = rearrange(&x, "N1 C (N2 k1 k2) -> (N1 N2) C k1 k2", &sizes).unwrap();
    assert_eq!(meant.to_vec().unwrap()[..4], [0.0, 1.0, 2.0, 3.0]);
}

#[test]
fn rearrange_is_a_view_where_it_can_be() {
    let runtime = cpu();
    let x = arange(&runtime, &[2, 4, 24]);
    for (pattern, sizes) in [
        ("b s h -> b s h", &[][..]),
        ("b s (a d) -> b a s d", &[("a", 3)]),
        ("b s (a d) -> a d 1 b s", &[("a", 3)]),
        ("b s h -> (b s) h", &[]),
        ("... -> (...)", &[]),
    ] {
        let before = runtime.live_bytes();
        let y = rearrange(&x, pattern, sizes).unwrap();
        assert!(y.shares_storage_with(&x), "{pattern}");
        assert_eq!(runtime.live_bytes(), before);
    }
    // A view of a view: splitting a strided dimension needs no copy either.
    let heads = rearrange(&x, "b s (a d) -> b a s d", &[("a", 3)]).unwrap();
    assert!(rearrange(&heads, "b a (s1 s2) d -> s2 b a s1 d", &[("s1", 2)]).unwrap().shares_storage_with(&x));
    // Merging heads after attention cannot be a view; the copy is there to be seen.
    let before = runtime.live_bytes();
    let merged = rearrange(&heads.contiguous().unwrap(), "b a s d -> b s (a d)", &[]).unwrap();
    assert!(!merged.shares_storage_with(&heads));
    assert_eq!(runtime.live_bytes() - before, 2 * 4 * 24 * 8);
    assert_eq!(merged.to_vec().unwrap(), x.to_vec().unwrap());
}

#[test]
fn reduce_by_hand() {
    let runtime = cpu();
    let x = runtime.input(&[1.0, 5.0, -2.0, 4.0, 0.0, 3.0, 7.0, -6.0], &[2, 4], DType::F32).unwrap();
    for (pattern, op, expected) in [
        ("a b -> a", ReduceOp::Sum, &[8.0, 4.0][..]),
        ("a b -> a", ReduceOp::Mean, &[2.0, 1.0]),
        ("a b -> a", ReduceOp::Max, &[5.0, 7.0]),
        ("a b -> a", ReduceOp::Min, &[-2.0, -6.0]),
        ("a b ->", ReduceOp::Max, &[7.0]),
        ("a b -> b", ReduceOp::Max, &[1.0, 5.0, 7.0, 4.0]),
        ("a (b 2) -> b a", ReduceOp::Sum, &[6.0, 3.0, 2.0, 1.0]),
        ("a (2 b) -> (a b)", ReduceOp::Max, &[1.0, 5.0, 7.0, 3.0]),
        ("a ... -> a 1", ReduceOp::Min, &[-2.0, -6.0]),
        ("a b -> (b a)", ReduceOp::Mean, &[1.0, 0.0, 5.0, 3.0, -2.0, 7.0, 4.0, -6.0]),
    ] {
        let y = reduce(&x, pattern, op, &[]).unwrap();
        assert_eq!(y.to_vec().unwrap(), expected, "{pattern} {}", op.name());
    }
    let odd = runtime.input(&[1.0, 2.0, 9.0, 4.0, 5.0, 6.0, 7.0], &[7], DType::F32).unwrap();
    assert_eq!(reduce(&odd, "a ->", ReduceOp::Max, &[]).unwrap().item().unwrap(), 9.0);
    let none = runtime.zeros(&[0, 2], DType::F32).unwrap();
    assert_eq!(reduce(&none, "a b -> b", ReduceOp::Sum, &[]).unwrap().to_vec().unwrap(), [0.0, 0.0]);
    let error = reduce(&none, "a b -> b", ReduceOp::Max, &[]).unwrap_err().to_string();
    assert_eq!(error, "reduce: max and min of no elements have no value: an axis that is reduced has size 0");
}

#[test]
fn repeat_by_hand() {
    let runtime = cpu();
    let x = runtime.input(&[1.0, 2.0], &[2], DType::F32).unwrap();
    let before = runtime.live_bytes();
    let rows = repeat(&x, "a -> r a", &[("r", 3)]).unwrap();
    assert_eq!(rows.to_vec().unwrap(), [1.0, 2.0, 1.0, 2.0, 1.0, 2.0]);
    assert!(rows.shares_storage_with(&x) && runtime.live_bytes() == before);
    assert_eq!(repeat(&x, "a -> (a 2)", &[]).unwrap().to_vec().unwrap(), [1.0, 1.0, 2.0, 2.0]);
    assert_eq!(repeat(&x, "a -> (2 a)", &[]).unwrap().to_vec().unwrap(), [1.0, 2.0, 1.0, 2.0]);
    assert_eq!(repeat(&x, "a -> 1 (a r) ()", &[("r", 0)]).unwrap().shape(), [1, 0, 1]);
}

#[test]
fn attention_in_names_copies_nothing() {
    let runtime = cpu();
    let (q, k) = (arange(&runtime, &[2, 5, 3, 4]), arange(&runtime, &[2, 7, 3, 4]));
    runtime.take_trace();
    let scores = einsum("b s1 heads d, b s2 heads d -> b heads s1 s2", &[&q, &k]).unwrap();
    assert_eq!(scores.shape(), [2, 3, 5, 7]);
    assert!(scores.is_contiguous());
    let trace = runtime.take_trace();
    assert!(trace.ops.iter().all(|event| event.copy.is_none()));
    assert_eq!(trace.ops.iter().map(|event| event.cost.matmul).sum::<u128>(), 2 * 2 * 3 * 5 * 7 * 4);
    // Two axes on one side merge in the order they are stored, whatever order they are named in.
    let x = arange(&runtime, &[2, 3, 4, 5]);
    let y = rearrange(&x, "b h s d -> b s h d", &[]).unwrap();
    let w = arange(&runtime, &[5, 6]);
    runtime.take_trace();
    let z = einsum("b s h d, d o -> b s h o", &[&y, &w]).unwrap();
    assert!(runtime.take_trace().ops.iter().all(|event| event.copy.is_none()));
    assert_eq!(z.shape(), [2, 4, 3, 6]);
    // Contracting two axes that neither operand stores together must copy one of them, and only that one.
    let w = arange(&runtime, &[3, 5, 6]);
    runtime.take_trace();
    einsum("b s h d, h d o -> b s o", &[&rearrange(&x, "b h s d -> b s h d", &[]).unwrap(), &w]).unwrap();
    assert_eq!(runtime.take_trace().ops.iter().filter(|event| event.copy.is_some()).count(), 1);
}

#[test]
fn products_without_a_sum_are_elementwise() {
    let runtime = cpu();
    let (x, scale) = (arange(&runtime, &[2, 3, 4]), arange(&runtime, &[4]));
    runtime.take_trace();
    let y = einsum("b s h, h -> b s h", &[&x, &scale]).unwrap();
    let trace = runtime.take_trace();
    assert_eq!(trace.ops.iter().map(|event| event.cost.matmul).sum::<u128>(), 0);
    let expected: Vec<f64> = (0..24).map(|at| f64::from(at) * f64::from(at % 4)).collect();
    assert_eq!(rearrange(&y, "b s h -> (b s h)", &[]).unwrap().to_vec().unwrap(), expected);
}

#[test]
fn intermediates_are_freed_when_used() {
    let runtime = cpu();
    let square = arange(&runtime, &[8, 8]);
    let before = runtime.live_bytes();
    let y = einsum("a b, b c, c d, d e, e f -> a f", &[&square; 5]).unwrap();
    assert_eq!(runtime.live_bytes() - before, y.spec().bytes());
    assert!(runtime.peak_bytes() - before <= 3 * y.spec().bytes());
}

#[test]
fn meta_and_cpu_do_the_same() {
    let events = |device| {
        let runtime = Runtime::new(device);
        let x = runtime.zeros(&[2, 4, 6], DType::F32).unwrap();
        let w = runtime.zeros(&[3, 2, 5], DType::F32).unwrap();
        let y = einsum("b s (a d), a d o -> b s o", &[&x, &w]).unwrap_err();
        assert!(matches!(y, Error::Argument { op: "einsum", .. }));
        let heads = rearrange(&x, "b s (a d) -> b a s d", &[("a", 3)]).unwrap();
        let y = einsum("b a s d, a d o -> b s o", &[&heads, &w]).unwrap();
        let y = reduce(&y, "b (s 2) o -> b s", ReduceOp::Max, &[]).unwrap();
        let y = repeat(&y, "b s -> (b r) s", &[("r", 2)]).unwrap();
        let trace = runtime.take_trace();
        let shapes = |event: &napkin_tensor::meter::OpEvent| (event.op.clone(), event.cost);
        (y.shape().to_vec(), trace.ops.iter().map(shapes).collect::<Vec<_>>(), runtime.peak_bytes())
    };
    assert_eq!(events(Device::Meta), events(Device::Cpu));
}

#[test]
fn gradients_flow() {
    let runtime = cpu();
    let x = runtime.input(&fill(0, &[2, 3, 4]), &[2, 3, 4], DType::F64).unwrap().require_grad().unwrap();
    let w = runtime.input(&fill(1, &[4, 5]), &[4, 5], DType::F64).unwrap().require_grad().unwrap();
    let y = einsum("b s h, h o -> o b s", &[&x, &w]).unwrap();
    reduce(&y, "o b s ->", ReduceOp::Sum, &[]).unwrap().backward().unwrap();
    let (dx, dw) = (x.grad().unwrap(), w.grad().unwrap());
    let (xs, ws) = (fill(0, &[2, 3, 4]), fill(1, &[4, 5]));
    let row: Vec<f64> = (0..4).map(|h| ws[h * 5..h * 5 + 5].iter().sum()).collect();
    assert_eq!(dx.to_vec().unwrap(), row.repeat(6));
    let column: Vec<f64> = (0..4).map(|h| (0..6).map(|bs| xs[bs * 4 + h]).sum()).collect();
    assert_eq!(dw.to_vec().unwrap(), column.iter().flat_map(|&c| [c; 5]).collect::<Vec<_>>());
}

#[test]
fn errors_read_as_one_message() {
    let runtime = cpu();
    let x = arange(&runtime, &[2, 5, 770]);
    let error = rearrange(&x, "b s (heads d) -> b heads s d", &[("heads", 12)]).unwrap_err().to_string();
    let expected = "rearrange: axis group `(heads d)` does not divide dimension 2\n  b s (heads d) -> b heads s d\n";
    assert!(error.starts_with(expected), "{error}");
    let error = einsum("a b, b -> a", &[&x]).unwrap_err().to_string();
    assert!(error.starts_with("einsum: the equation has 2 operands but 1 passed"), "{error}");
}

/// Random equations: up to four operands of up to three axes, repeated axes included; some operands stored backwards.
fn equations() -> impl Strategy<Value = (Vec<Vec<usize>>, Vec<usize>, Vec<u64>, Vec<bool>)> {
    let operand = prop::collection::vec(0..4_usize, 0..4);
    let output =
        Just(vec![0, 1, 2, 3]).prop_shuffle().prop_flat_map(|all| (0..4_usize).prop_map(move |n| all[..n].to_vec()));
    let sizes = prop::collection::vec(0..4_u64, 4);
    (prop::collection::vec(operand, 1..5), output, sizes, prop::collection::vec(any::<bool>(), 5))
}

proptest! {
    #[test]
    fn einsum_equals_index_loops((operands, output, sizes, backwards) in equations()) {
        let output: Vec<usize> = output.into_iter().filter(|a| operands.iter().any(|axes| axes.contains(a))).collect();
        let word = |axes: &[usize]| axes.iter().map(|a| ["i", "jj", "k", "ll"][*a]).collect::<Vec<_>>().join(" ");
        let left = operands.iter().map(|axes| word(axes)).collect::<Vec<_>>().join(", ");
        let equation = format!("{left} -> {}", word(&output));

        let runtime = cpu();
        let mut tensors = Vec::new();
        let mut values = Vec::new();
        for (at, axes) in operands.iter().enumerate() {
            let shape: Vec<u64> = axes.iter().map(|&a| sizes[a]).collect();
            let flat = fill(at, &shape);
            let reversed: Vec<u64> = shape.iter().rev().copied().collect();
            let order: Vec<usize> = (0..shape.len()).rev().collect();
            let plain = runtime.input(&flat, &shape, DType::F64).unwrap();
            // The same tensor, stored last axis first.
            let stored = plain.permute(&order).unwrap().copy().unwrap();
            prop_assert_eq!(stored.shape(), &reversed[..]);
            tensors.push(if backwards[at] { stored.permute(&order).unwrap() } else { plain });
            values.push(flat);
        }
        let result = einsum(&equation, &tensors.iter().collect::<Vec<_>>()).unwrap();

        let used: Vec<usize> = (0..4).filter(|a| operands.iter().any(|axes| axes.contains(a))).collect();
        let shape: Vec<u64> = output.iter().map(|&a| sizes[a]).collect();
        let mut expected = vec![0.0; shape.iter().product::<u64>() as usize];
        for mut rest in 0..used.iter().map(|&a| sizes[a]).product::<u64>() {
            let mut at = [0; 4];
            for &a in &used {
                at[a] = rest % sizes[a];
                rest /= sizes[a];
            }
            let offset = |axes: &[usize]| axes.iter().fold(0, |sum, &a| sum * sizes[a] + at[a]) as usize;
            expected[offset(&output)] += operands.iter().zip(&values).map(|(axes, v)| v[offset(axes)]).product::<f64>();
        }
        prop_assert_eq!(result.shape(), &shape[..]);
        prop_assert_eq!(result.to_vec().unwrap(), expected, "{}", equation);
    }
}
