//! Einsum: shapes, index groups, order of contractions, and the lowered steps against one loop over all indices.

#![allow(
    clippy::unwrap_used,
    clippy::type_complexity,
    reason = "tests fail by panicking, and their tables are plain tuples"
)]

use napkin_tensor::einops::einsum::{Contraction, Prepare};
use napkin_tensor::einops::path::{PairSize, PairStep};
use napkin_tensor::einops::{Equation, PatternError};
use proptest::prelude::*;

fn resolve(text: &str, shapes: &[&[u64]]) -> Result<Contraction, PatternError> {
    Equation::parse(text)?.resolve(shapes)
}

/// Equation, operand shapes, output shape.
const SHAPES: &[(&str, &[&[u64]], &[u64])] = &[
    // shared/cases einsum_equations.json
    ("bhqd,bhkd->bhqk", &[&[2, 4, 5, 8], &[2, 4, 7, 8]], &[2, 4, 5, 7]),
    ("ij,jk", &[&[2, 3], &[3, 4]], &[2, 4]),
    // names
    ("b s1 h, b s2 h -> b s1 s2", &[&[8, 10, 16], &[8, 12, 16]], &[8, 10, 12]),
    ("b s h, h -> b s", &[&[2, 3, 4], &[4]], &[2, 3]),
    ("batch seq, seq ->", &[&[2, 3], &[3]], &[]),
    ("seq, seq ->", &[&[3], &[3]], &[]),
    ("seq,seq->", &[&[3], &[3]], &[]),
    ("seq,seq->", &[&[2, 3, 4], &[2, 3, 4]], &[]),
    ("heads,dim->heads dim", &[&[2], &[3]], &[2, 3]),
    // letters
    ("i,j->ij", &[&[2], &[3]], &[2, 3]),
    ("i,j", &[&[2], &[3]], &[2, 3]),
    ("ba", &[&[2, 3]], &[3, 2]),
    ("ii", &[&[3, 3]], &[]),
    ("ii->i", &[&[3, 3]], &[3]),
    ("iji->ij", &[&[3, 4, 3]], &[3, 4]),
    ("i i -> i", &[&[3, 3]], &[3]),
    ("ij->", &[&[2, 3]], &[]),
    (",ij->ji", &[&[], &[2, 3]], &[3, 2]),
    (",", &[&[], &[]], &[]),
    ("", &[&[]], &[]),
    // ellipsis
    ("...ij,...jk->...ik", &[&[7, 2, 3], &[7, 3, 4]], &[7, 2, 4]),
    ("... i j, ... j k -> ... i k", &[&[7, 6, 2, 3], &[3, 4]], &[7, 6, 2, 4]),
    ("...ij,...jk->...ik", &[&[7, 1, 2, 3], &[6, 3, 4]], &[7, 6, 2, 4]),
    ("...i,...i", &[&[1, 2], &[5, 2]], &[5]),
    ("... -> ...", &[&[2, 3]], &[2, 3]),
    ("...,... -> ...", &[&[0, 3], &[1, 3]], &[0, 3]),
    // sizes 1 that agree, and 0
    ("ij,jk->ik", &[&[2, 1], &[1, 4]], &[2, 4]),
    ("ij,jk->ik", &[&[2, 0], &[0, 4]], &[2, 4]),
];

#[test]
fn shapes() -> Result<(), PatternError> {
    for &(text, operands, expected) in SHAPES {
        let contraction = resolve(text, operands)?;
        assert_eq!(contraction.output_shape.as_slice(), expected, "{text}");
        check(&contraction, operands);
    }
    Ok(())
}

#[test]
fn one_pair_is_one_batched_matmul() -> Result<(), PatternError> {
    let scores = Equation::parse("b s1 h, b s2 h -> b s1 s2")?;
    let scores = scores.resolve_sizes(&[("b", 8), ("s1", 1024), ("s2", 1024), ("h", 128)])?;
    let [step] = &scores.path.steps[..] else { panic!("one step") };
    assert_eq!(step.size, PairSize { batch: 8, m: 1024, n: 1024, k: 128, contracts: true });
    assert_eq!(scores.path.flops, 2_147_483_648);
    assert_eq!(scores.path.largest_intermediate, 0);
    let words = "contracted h · batch b · output b s1 s2 · lowers to 8 matmuls 1024 × 128 × 1024";
    assert_eq!(scores.describe(step), words);
    Ok(())
}

#[test]
fn operands_swap_when_the_output_reads_better() -> Result<(), PatternError> {
    let swapped = resolve("i k, k j -> j i", &[&[2, 3], &[3, 4]])?;
    assert_eq!((swapped.path.steps[0].lhs, swapped.path.steps[0].rhs), (1, 0));
    assert_eq!(swapped.path.steps[0].output, swapped.output);
    let straight = resolve("i k, k j -> i j", &[&[2, 3], &[3, 4]])?;
    assert_eq!((straight.path.steps[0].lhs, straight.path.steps[0].rhs), (0, 1));
    Ok(())
}

#[test]
fn axes_of_one_operand_alone_are_summed_first() -> Result<(), PatternError> {
    let both = resolve("b i j x, j k y -> i k", &[&[2, 3, 4, 5], &[4, 6, 7]])?;
    assert_eq!(both.operands[0].sum.as_slice(), [0, 3]);
    assert_eq!(both.operands[1].sum.as_slice(), [2]);
    assert_eq!(both.path.steps[0].size, PairSize { batch: 1, m: 3, n: 6, k: 4, contracts: true });
    Ok(())
}

#[test]
fn a_chain_is_contracted_in_its_cheapest_order() -> Result<(), PatternError> {
    // 10×1000 · 1000×10 · 10×1000: left to right 2·(10·1000·10 + 10·10·1000); the other way 2·2·10·1000·1000.
    let left = resolve("ij,jk,kl->il", &[&[10, 1000], &[1000, 10], &[10, 1000]])?;
    assert_eq!((left.path.flops, left.path.left_to_right_flops), (400_000, 400_000));
    assert_eq!(left.path.largest_intermediate, 100);
    let right = resolve("ij,jk,kl->il", &[&[1000, 10], &[10, 1000], &[1000, 10]])?;
    assert_eq!((right.path.flops, right.path.left_to_right_flops), (400_000, 40_000_000));
    let pairs: Vec<_> = right.path.steps.iter().map(|step| (step.lhs, step.rhs)).collect();
    assert_eq!(pairs, [(1, 2), (0, 3)]);
    let text = right.explain();
    assert!(text.ends_with("400000 FLOP in this order, 40000000 FLOP left to right\n"), "{text}");
    assert!(text.starts_with("result 0 = operand 1 × operand 2: contracted k · output j l"), "{text}");
    // LoRA: x A B, cheap through the rank.
    let lora = resolve("t i, i r, r o -> t o", &[&[512, 4096], &[4096, 8], &[8, 4096]])?;
    assert_eq!(lora.path.flops, 2 * 512 * 4096 * 8 * 2);
    Ok(())
}

#[test]
fn another_cost_gives_another_order() -> Result<(), PatternError> {
    let shapes: [&[u64]; 3] = [&[1000, 10], &[10, 1000], &[1000, 10]];
    let dearest = |pair: &PairSize| (u128::MAX / 8 - pair.flops(), 0);
    let path = Equation::parse("ij,jk,kl->il")?.resolve_with(&shapes, &dearest)?.path;
    // The outer product of the first and the last operand (1 FLOP each), then both contractions at once (2 each).
    assert_eq!(path.flops, 300_000_000);
    Ok(())
}

#[test]
fn many_operands_are_planned_greedily() -> Result<(), PatternError> {
    let letters = "abcdefghijklmnop";
    let terms: Vec<&str> = (0..15).map(|at| &letters[at..at + 2]).collect();
    let shapes: Vec<Vec<u64>> = (0..15_u64).map(|at| vec![2 + at % 3, 2 + (at + 1) % 3]).collect();
    let shapes: Vec<&[u64]> = shapes.iter().map(Vec::as_slice).collect();
    let chain = resolve(&format!("{}->ap", terms.join(",")), &shapes)?;
    assert_eq!(chain.path.steps.len(), 14);
    assert!(chain.path.flops <= chain.path.left_to_right_flops);
    check(&chain, &shapes);
    Ok(())
}

#[test]
fn sizes_by_name() -> Result<(), PatternError> {
    let letters = Equation::parse("ij,jk->ik")?;
    assert_eq!(letters.resolve_sizes(&[("i", 2), ("j", 3), ("k", 4)])?.output_shape.as_slice(), [2, 4]);
    let words = Equation::parse("ij,jk->")?;
    assert_eq!(words.resolve_sizes(&[("ij", 2), ("jk", 3)])?.output_shape.as_slice(), [0_u64; 0]);
    for (sizes, part) in [
        (&[("i", 2), ("j", 3)][..], "no size is given for axis `k`"),
        (&[("i", 2), ("i", 2), ("j", 3), ("k", 4)], "the size of `i` is given twice"),
        (&[("i", 2), ("j", 3), ("k", 4), ("l", 5)], "a size is given for `l`, which the pattern does not have"),
    ] {
        let message = letters.resolve_sizes(sizes).map_err(|error| error.to_string());
        assert!(message.as_ref().is_err_and(|text| text.contains(part)), "{message:?}");
    }
    Ok(())
}

// --- the lowered steps against one loop over all indices

/// Values with the index of each dimension: what a tensor is to this test.
struct Held {
    axes: Vec<u8>,
    values: Vec<i64>,
}

/// Calls `f` with every position in a box of `sizes`, in row-major order.
fn every(sizes: &[u64], mut f: impl FnMut(&[u64])) {
    let mut at = vec![0; sizes.len()];
    for mut rest in 0..sizes.iter().product::<u64>() {
        for (position, size) in at.iter_mut().zip(sizes).rev() {
            *position = rest % size;
            rest /= size;
        }
        f(&at);
    }
}

fn offset(at: &[u64], sizes: &[u64]) -> usize {
    at.iter().zip(sizes).fold(0, |offset, (at, size)| offset * size + at) as usize
}

/// Any small whole numbers, different for each operand.
fn fill(operand: usize, shape: &[u64]) -> Vec<i64> {
    let count = shape.iter().product::<u64>() as i64;
    (0..count).map(|at| (at * 7 + 3 * operand as i64 + 1) % 11 - 4).collect()
}

/// Runs the steps of `prepare` on one operand, by the letter of its documentation.
fn prepared(prepare: &Prepare, shape: &[u64], values: &[i64]) -> (Vec<u64>, Vec<i64>) {
    // A list of original dimensions for each dimension that is left; a diagonal has several.
    let mut from: Vec<Vec<usize>> = (0..shape.len()).map(|dim| vec![dim]).collect();
    for &dim in &prepare.squeeze {
        from.remove(dim);
    }
    for &(first, second) in &prepare.diagonals {
        let mut both = from.remove(second);
        both.extend(from.remove(first));
        from.push(both);
    }
    let sizes: Vec<u64> = from.iter().map(|dims| shape[dims[0]]).collect();
    let kept: Vec<usize> = (0..from.len()).filter(|dim| !prepare.sum.contains(dim)).collect();
    let result: Vec<u64> = kept.iter().map(|&dim| sizes[dim]).collect();
    let mut out = vec![0; result.iter().product::<u64>() as usize];
    every(&sizes, |at| {
        let mut whole = vec![0; shape.len()];
        for (dims, &position) in from.iter().zip(at) {
            for &dim in dims {
                whole[dim] = position;
            }
        }
        let to: Vec<u64> = kept.iter().map(|&dim| at[dim]).collect();
        out[offset(&to, &result)] += values[offset(&whole, shape)];
    });
    (result, out)
}

fn pair(step: &PairStep, held: &[Held], size: &dyn Fn(&[u8]) -> Vec<u64>) -> Held {
    let (lhs, rhs) = (&held[step.lhs], &held[step.rhs]);
    let all: Vec<u8> = [&step.batch[..], &step.m, &step.n, &step.k].concat();
    let out_sizes = size(&step.output);
    let mut values = vec![0; out_sizes.iter().product::<u64>() as usize];
    every(&size(&all), |at| {
        let pick = |axes: &[u8]| -> usize {
            let of = |axis: &u8| at[all.iter().position(|other| other == axis).unwrap()];
            offset(&axes.iter().map(of).collect::<Vec<_>>(), &size(axes))
        };
        values[pick(&step.output)] += lhs.values[pick(&lhs.axes)] * rhs.values[pick(&rhs.axes)];
    });
    Held { axes: step.output.to_vec(), values }
}

/// The contraction by its steps equals the definition: a sum over all indices of the product of all operands.
fn check(contraction: &Contraction, shapes: &[&[u64]]) {
    let sizes: Vec<u64> = contraction.indices.iter().map(|index| index.size).collect();
    let size = |axes: &[u8]| axes.iter().map(|&axis| sizes[axis as usize]).collect::<Vec<_>>();
    let inputs: Vec<Vec<i64>> = shapes.iter().enumerate().map(|(operand, shape)| fill(operand, shape)).collect();
    let mut held: Vec<Held> = Vec::new();
    for (operand, prepare) in contraction.operands.iter().enumerate() {
        let (shape, values) = prepared(prepare, shapes[operand], &inputs[operand]);
        assert_eq!(shape, size(&prepare.axes));
        held.push(Held { axes: prepare.axes.to_vec(), values });
    }
    for step in &contraction.path.steps {
        let groups = [&step.batch, &step.m, &step.n, &step.k].map(|axes| size(axes).iter().product::<u64>() as u128);
        assert_eq!(groups, [step.size.batch, step.size.m, step.size.n, step.size.k]);
        held.push(pair(step, &held, &size));
    }
    let last = held.last().unwrap();
    let mut got = vec![0; last.values.len()];
    every(&size(&last.axes), |at| {
        let to: Vec<u64> = contraction
            .output
            .iter()
            .map(|axis| at[last.axes.iter().position(|other| other == axis).unwrap()])
            .collect();
        got[offset(&to, &contraction.output_shape)] = last.values[offset(at, &size(&last.axes))];
    });
    if sizes.iter().product::<u64>() > 1 << 16 {
        return;
    }
    let mut expected = vec![0; got.len()];
    every(&sizes, |at| {
        let mut product = 1;
        for ((prepare, shape), values) in contraction.operands.iter().zip(shapes).zip(&inputs) {
            let place: Vec<u64> = prepare
                .passed
                .iter()
                .zip(*shape)
                .map(|(&axis, &size)| if size == 1 { 0 } else { at[axis as usize] })
                .collect();
            product *= values[offset(&place, shape)];
        }
        let to: Vec<u64> = contraction.output.iter().map(|&axis| at[axis as usize]).collect();
        expected[offset(&to, &contraction.output_shape)] += product;
    });
    assert_eq!(got, expected);
}

/// A random equation of letters with its shapes: repeated letters and letters of one operand only included.
fn equations() -> impl Strategy<Value = (String, Vec<Vec<u64>>)> {
    let operand = prop::collection::vec(0..5_usize, 0..4);
    let output = prop::collection::btree_set(0..5_usize, 0..4);
    (prop::collection::vec(operand, 1..6), output, prop::collection::vec(1..4_u64, 5)).prop_map(
        |(operands, output, sizes)| {
            let letter = |&axis: &usize| char::from(b'a' + axis as u8);
            let word = |axes: &[usize]| axes.iter().map(letter).map(String::from).collect::<Vec<_>>().join(" ");
            let held = output.into_iter().filter(|axis| operands.iter().any(|axes| axes.contains(axis)));
            let left = operands.iter().map(|axes| word(axes)).collect::<Vec<_>>().join(",");
            let text = format!("{left} -> {}", word(&held.collect::<Vec<_>>()));
            let shapes = operands.iter().map(|axes| axes.iter().map(|&axis| sizes[axis]).collect()).collect();
            (text, shapes)
        },
    )
}

proptest! {
    #[test]
    fn steps_equal_the_definition((text, shapes) in equations()) {
        let shapes: Vec<&[u64]> = shapes.iter().map(Vec::as_slice).collect();
        let contraction = resolve(&text, &shapes).map_err(|error| TestCaseError::fail(error.to_string()))?;
        prop_assert!(contraction.path.flops <= contraction.path.left_to_right_flops);
        check(&contraction, &shapes);
    }

    #[test]
    fn no_text_panics(
        text in prop_oneof![any::<String>(), "[ab ,.>()12_-]{0,20}", "(a|b|ij|seq| |,|->|\\.\\.\\.|1){0,12}"],
        shapes in prop::collection::vec(prop::collection::vec(prop_oneof![0..3_u64, Just(u64::MAX)], 0..4), 0..4),
    ) {
        let shapes: Vec<&[u64]> = shapes.iter().map(Vec::as_slice).collect();
        if let Err(error) = resolve(&text, &shapes) {
            prop_assert!(error.to_string().starts_with("einsum: "));
        }
    }
}
