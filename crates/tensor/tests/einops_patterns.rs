//! Patterns of rearrange, reduce and repeat: shapes, order of elements, and that no text can make them panic.

#![allow(
    clippy::unwrap_used,
    clippy::type_complexity,
    reason = "tests fail by panicking, and their tables are plain tuples"
)]

use std::collections::BTreeMap;

use napkin_tensor::einops::check::ShapeCheck;
use napkin_tensor::einops::{Pattern, PatternError, PatternKind, RearrangePlan};
use proptest::prelude::*;

use PatternKind::{Rearrange, Reduce, Repeat};

fn resolve(kind: PatternKind, text: &str, shape: &[u64], sizes: &[(&str, u64)]) -> Result<RearrangePlan, PatternError> {
    Pattern::parse(kind, text)?.resolve(shape, sizes)
}

type Sizes = &'static [(&'static str, u64)];

/// Kind, input shape, pattern, sizes, output shape.
const SHAPES: &[(PatternKind, &[u64], &str, Sizes, &[u64])] = &[
    // shared/cases einops_patterns.json
    (Rearrange, &[2, 100, 64], "b (c h) (w f) -> b c h w f", &[("c", 4), ("f", 8)], &[2, 4, 25, 8, 8]),
    (Rearrange, &[2, 3], "a b -> (b a 1)", &[], &[6]),
    (Repeat, &[4, 6], "a b -> (a 2) b", &[], &[8, 6]),
    (Reduce, &[4, 6], "a b -> a", &[], &[4]),
    (Rearrange, &[2, 12, 8], "B (H D) T -> B H T D", &[("H", 3)], &[2, 3, 8, 4]),
    // from the documentation of einops
    (Rearrange, &[32, 30, 40, 3], "b h w c -> b c h w", &[], &[32, 3, 30, 40]),
    (Rearrange, &[32, 30, 40, 3], "b h w c -> (b h) w c", &[], &[960, 40, 3]),
    (Rearrange, &[32, 30, 40, 3], "b h w c -> h (b w) c", &[], &[30, 1280, 3]),
    (Rearrange, &[32, 30, 40, 3], "b h w c -> b (c h w)", &[], &[32, 3600]),
    (Rearrange, &[32, 30, 40, 3], "b (h1 h) (w1 w) c -> (b h1 w1) h w c", &[("h1", 2), ("w1", 2)], &[128, 15, 20, 3]),
    (Rearrange, &[32, 30, 40, 3], "b (h h1) (w w1) c -> b h w (c h1 w1)", &[("h1", 2), ("w1", 2)], &[32, 15, 20, 12]),
    (Reduce, &[10, 3, 20, 40], "b c (h1 h2) (w1 w2) -> b c h1 w1", &[("h2", 3), ("w1", 8), ("h1", 20)], &[]),
    (Reduce, &[10, 3, 21, 40], "b c (h1 h2) (w1 w2) -> b c h1 w1", &[("h2", 3), ("w2", 8)], &[10, 3, 7, 5]),
    (Reduce, &[10, 3, 20, 40], "b c (h1 2) (w1 4) -> b c h1 w1", &[], &[10, 3, 10, 10]),
    (Reduce, &[10, 3, 20, 40], "b c h w -> b c () ()", &[], &[10, 3, 1, 1]),
    (Reduce, &[10, 3, 20, 40], "b c h w -> b c 1 1", &[], &[10, 3, 1, 1]),
    (Reduce, &[10, 3, 20, 40], "b c h w ->", &[], &[]),
    (Reduce, &[10, 3, 20, 40], "b ... -> b", &[], &[10]),
    (Repeat, &[30, 40], "h w -> h w c", &[("c", 3)], &[30, 40, 3]),
    (Repeat, &[30, 40], "h w -> (repeat h) w", &[("repeat", 2)], &[60, 40]),
    (Repeat, &[30, 40], "h w -> h (w 3) 2", &[], &[30, 120, 2]),
    (Repeat, &[], "-> a", &[("a", 3)], &[3]),
    // edges
    (Rearrange, &[], "->", &[], &[]),
    (Rearrange, &[], "-> 1 ()", &[], &[1, 1]),
    (Rearrange, &[1, 5], "1 a -> a", &[], &[5]),
    (Rearrange, &[1, 5], "() a -> (a 1)", &[], &[5]),
    (Rearrange, &[2, 3, 4], "... -> ...", &[], &[2, 3, 4]),
    (Rearrange, &[2, 3, 4], "... c -> c ...", &[], &[4, 2, 3]),
    (Rearrange, &[2, 3, 4], "a … c -> c (a …)", &[], &[4, 6]),
    (Rearrange, &[2, 4], "a ... c -> c (a ...)", &[], &[4, 2]),
    (Rearrange, &[2, 4], "a ... c -> c (...) a", &[], &[4, 1, 2]),
    (Rearrange, &[0, 6], "(a b) c -> a b c", &[("a", 2)], &[2, 0, 6]),
    (Rearrange, &[0, 6], "(a b) c -> a b c", &[("a", 0), ("b", 5)], &[0, 5, 6]),
    (Rearrange, &[4, 6], "a b -> b a", &[("a", 4)], &[6, 4]),
    (Rearrange, &[6], "(a a1 1) -> a1 a", &[("a1", 3)], &[3, 2]),
    (Rearrange, &[4], "größe -> größe 1", &[], &[4, 1]),
];

#[test]
fn shapes() {
    for &(kind, shape, text, sizes, expected) in SHAPES {
        match resolve(kind, text, shape, sizes) {
            Ok(plan) => {
                assert_eq!(plan.merge_shape.as_slice(), expected, "{text}");
                check_plan(&plan, shape);
            }
            // The one wrong row: 20 rows are not 20 × 3.
            Err(error) => assert!(text.contains("h2") && sizes.len() == 3, "{error}"),
        }
    }
}

/// What holds for every plan.
fn check_plan(plan: &RearrangePlan, shape: &[u64]) {
    let product = |sizes: &[u64]| sizes.iter().product::<u64>();
    assert_eq!(product(&plan.split_shape), product(shape));
    assert_eq!(product(&plan.expanded_shape), product(&plan.merge_shape));
    let mut order = plan.permutation.to_vec();
    order.sort_unstable();
    assert!(order.iter().copied().eq(0..plan.split_shape.len()));
    let kept = plan.permutation.len() - plan.reduced;
    assert_eq!(kept + plan.repeats.len(), plan.expanded_shape.len());
}

/// Runs a plan that neither reduces nor repeats on the numbers 0, 1, 2, ...
fn order(text: &str, shape: &[u64], sizes: &[(&str, u64)]) -> Result<Vec<u64>, PatternError> {
    let plan = resolve(Rearrange, text, shape, sizes)?;
    assert_eq!((plan.reduced, plan.repeats.len()), (0, 0));
    let mut strides = vec![1; plan.split_shape.len()];
    for at in (1..strides.len()).rev() {
        strides[at - 1] = strides[at] * plan.split_shape[at];
    }
    let mut values = vec![0];
    for &from in &plan.permutation {
        let steps = |value: u64| (0..plan.split_shape[from]).map(move |step| (value, step));
        values = values.into_iter().flat_map(steps).map(|(value, step)| value + step * strides[from]).collect();
    }
    Ok(values)
}

#[test]
fn leftmost_in_a_bracket_varies_slowest() -> Result<(), PatternError> {
    // einops issue 155: what the user wrote, and what the user meant.
    let sizes = [("k1", 2), ("k2", 2), ("N2", 3)];
    let wrote = order("N1 C (k1 k2 N2) -> (N1 N2) C k1 k2", &[2, 2, 12], &sizes)?;
    assert_eq!(wrote[..4], [0, 3, 6, 9]);
    let meant = order("N1 C (N2 k1 k2) -> (N1 N2) C k1 k2", &[2, 2, 12], &sizes)?;
    assert_eq!(meant[..4], [0, 1, 2, 3]);
    // Einops.jl issue 60.
    assert_eq!(order("a b -> (b a 1)", &[2, 3], &[])?, [0, 3, 1, 4, 2, 5]);
    Ok(())
}

#[test]
fn equivalent_patterns_agree() -> Result<(), PatternError> {
    // The identity and equivalence tables of einops' own tests.
    let shape = [2, 3, 4, 5, 6];
    let identity: Vec<u64> = (0..720).collect();
    for text in [
        "...->...",
        "a b c d e-> a b c d e",
        "a b c d e ...-> ... a b c d e",
        "a b c d e ...-> a ... b c d e",
        "... a b c d e -> ... a b c d e",
        "a ... e-> a ... e",
        "a ... -> a ... ",
        "a ... c d e -> a (...) c d e",
        "a b c d e -> (a b c d e)",
        "a b c d e -> a 1 (b c) () d e",
    ] {
        assert_eq!(order(text, &shape, &[])?, identity, "{text}");
    }
    for (one, other) in [
        ("a b c d e -> (a b) c d e", "a b ... -> (a b) ... "),
        ("a b c d e -> a b (c d) e", "... c d e -> ... (c d) e"),
        ("a b c d e -> (e c d) b a", "a b ... e -> (e ...) b a"),
        ("a b c d e -> b (c d) a e", "a b c d e -> b c d a e"),
    ] {
        let pair = (order(one, &shape, &[])?, order(other, &shape, &[])?);
        assert_eq!(pair.0.len(), 720);
        assert_eq!(pair.0, pair.1, "{one} and {other}");
    }
    Ok(())
}

#[test]
fn a_plan_is_made_of_the_steps_it_says() -> Result<(), PatternError> {
    let plan = resolve(Reduce, "b (h 2) w -> w b h", &[3, 8, 5], &[])?;
    assert_eq!(plan.split_shape.as_slice(), [3, 4, 2, 5]);
    assert_eq!(plan.permutation.as_slice(), [3, 0, 1, 2]);
    assert_eq!((plan.reduced, plan.is_in_order(), plan.elements()), (1, false, 60));
    let plan = resolve(Repeat, "a b -> (a r) 3 b", &[4, 6], &[("r", 2)])?;
    assert_eq!(plan.repeats.as_slice(), [(1, 2), (2, 3)]);
    assert_eq!(plan.expanded_shape.as_slice(), [4, 2, 3, 6]);
    assert!(plan.is_in_order());
    Ok(())
}

#[test]
fn explain_shows_the_strides() -> Result<(), PatternError> {
    let pattern = Pattern::parse(Rearrange, "N1 C (k N2) -> (N1 N2) C k")?;
    let text = pattern.explain(&[2, 2, 12], &[("k", 4)])?;
    let expected = "\
rearrange N1 C (k N2) -> (N1 N2) C k: [2, 2, 12] -> [6, 2, 4]
  split     [2, 2, 4, 3]
  permute   [0, 3, 1, 2]
  merge     [6, 2, 4]
  (N1 N2)   N1 steps 24, N2 steps 1
  C         C steps 12
  k         k steps 3
";
    assert_eq!(text, expected);
    Ok(())
}

#[test]
fn names_bind_across_arguments() -> Result<(), PatternError> {
    let mut check = ShapeCheck::new("attention");
    check.bind("head_dim", 64);
    check.arg("q", &[2, 256, 8, 64], "batch seq heads head_dim")?;
    check.arg("k", &[2, 256, 2, 64], "batch seq kv_heads head_dim")?;
    check.arg("out", &[2, 256, 512], "batch seq (heads head_dim)")?;
    check.arg("mlp", &[2, 256, 1024], "batch _ (heads up)")?;
    check.arg("rope", &[7, 2, 256], "... batch seq")?;
    check.arg("bias", &[1, 8], "1 heads")?;
    assert_eq!((check.size("seq"), check.size("up"), check.size("nothing")), (Some(256), Some(128), None));
    let names: BTreeMap<&str, &str> = check.bindings().iter().map(|bound| (&*bound.name, &*bound.argument)).collect();
    assert_eq!((names["kv_heads"], names["up"]), ("k", "mlp"));
    // A failed check binds nothing.
    assert!(check.arg("x", &[9, 3], "fresh seq").is_err());
    assert_eq!(check.size("fresh"), None);
    Ok(())
}

/// Text made of the pieces that patterns are made of, so that deep code is reached, too.
fn pieces() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "a",
        "b",
        "seq",
        "(",
        ")",
        "->",
        " ",
        " ",
        "...",
        "…",
        "1",
        "2",
        "_",
        ",",
        "18446744073709551615",
        "ij",
        "é",
    ]);
    prop::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
}

fn sizes() -> impl Strategy<Value = Vec<(&'static str, u64)>> {
    let size = prop_oneof![0..5_u64, Just(u64::MAX), Just(1 << 40)];
    prop::collection::vec((prop::sample::select(vec!["a", "b", "seq", "é"]), size), 0..4)
}

fn shape() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(prop_oneof![0..13_u64, Just(u64::MAX), Just(1 << 40)], 0..6)
}

proptest! {
    #[test]
    fn no_text_panics(text in prop_oneof![any::<String>(), pieces()], shape in shape(), sizes in sizes()) {
        for kind in [Rearrange, Reduce, Repeat] {
            match Pattern::parse(kind, &text) {
                Ok(pattern) => {
                    let _ = pattern.explain(&shape, &sizes).map_err(|error| error.to_string());
                    match pattern.resolve(&shape, &sizes) {
                        Ok(plan) => prop_assert_eq!(plan.expanded_shape.contains(&0), plan.merge_shape.contains(&0)),
                        Err(error) => prop_assert!(!error.to_string().is_empty()),
                    }
                }
                Err(error) => prop_assert!(error.to_string().starts_with(kind.name())),
            }
        }
        let mut check = ShapeCheck::new("f");
        let first = check.arg("x", &shape, &text).map_err(|error| error.to_string()).is_ok();
        let again = check.arg("y", &shape, &text).map_err(|error| error.to_string()).is_ok();
        // A shape that passed once passes again: its bindings are its own.
        prop_assert!(!first || again);
    }

    #[test]
    fn there_and_back_is_the_identity(
        axes in prop::collection::vec(1..5_u64, 1..6).prop_shuffle(),
        seed in prop::collection::vec(any::<u32>(), 6),
    ) {
        let names: Vec<String> = (0..axes.len()).map(|axis| format!("x{axis}")).collect();
        let mut to: Vec<usize> = (0..axes.len()).collect();
        to.sort_by_key(|&axis| seed[axis]);
        let left = names.join(" ");
        let right = to.iter().map(|&axis| names[axis].clone()).collect::<Vec<_>>().join(" ");
        let moved: Vec<u64> = to.iter().map(|&axis| axes[axis]).collect();
        let there = order(&format!("{left} -> {right}"), &axes, &[]).unwrap();
        let back = order(&format!("{right} -> ({left})"), &moved, &[]).unwrap();
        let both: Vec<u64> = back.iter().map(|&at| there[at as usize]).collect();
        prop_assert!(both.iter().copied().eq(0..axes.iter().product()));
    }
}
