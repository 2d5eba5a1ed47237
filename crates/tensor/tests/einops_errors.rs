//! What a pattern error says: the whole message for the common ones, the decisive words for the rest.

#![allow(
    clippy::unwrap_used,
    clippy::type_complexity,
    reason = "tests fail by panicking, and their tables are plain tuples"
)]

use napkin_tensor::einops::check::ShapeCheck;
use napkin_tensor::einops::{Equation, Pattern, PatternKind};

use PatternKind::{Rearrange, Reduce, Repeat};

fn pattern_error(kind: PatternKind, text: &str, shape: &[u64], sizes: &[(&str, u64)]) -> String {
    let resolved = Pattern::parse(kind, text).and_then(|pattern| pattern.resolve(shape, sizes));
    resolved.map_or_else(|error| error.to_string(), |plan| panic!("{text} gave {plan:?}"))
}

fn einsum_error(text: &str, shapes: &[&[u64]]) -> String {
    let resolved = Equation::parse(text).and_then(|equation| equation.resolve(shapes));
    resolved.map_or_else(|error| error.to_string(), |contraction| panic!("{text} gave {contraction:?}"))
}

#[test]
fn a_bracket_that_does_not_divide() {
    let expected = "\
rearrange: axis group `(heads d)` does not divide dimension 2
  b s (heads d) -> b heads s d
      ^^^^^^^^^
  = dimension 2 has size 770, heads = 12: 770 is not a multiple of 12
  = input shape [2, 5, 770]; given heads = 12
  = try: heads = 11 or 14 (divisors of 770 near 12), or pad dimension 2 to 780";
    assert_eq!(pattern_error(Rearrange, "b s (heads d) -> b heads s d", &[2, 5, 770], &[("heads", 12)]), expected);
}

#[test]
fn a_named_axis_is_not_stretched() {
    let expected = "\
einsum: axis `j` is 1 in operand 0 (dimension 1) and 3 in operand 1 (dimension 0)
  ij,jk->ik
   ^ ^
  = operand shapes [2, 1], [3, 4]
  = try: no named axis is stretched from size 1: give operand 0 another name there (it is summed over), or repeat `j` \
         to 3";
    assert_eq!(einsum_error("ij,jk->ik", &[&[2, 1], &[3, 4]]), expected);
}

#[test]
fn a_shape_check_lists_the_bindings() {
    let mut check = ShapeCheck::new("attention");
    check.bind("heads", 8);
    assert!(check.arg("x", &[2, 512], "batch seq").is_ok());
    let expected = "\
shape check: dim `seq`: 256 here, 512 in argument `x`
  batch seq heads
        ^^^
  = dimension 1 has size 256
  = in `attention`, argument `q` has shape [2, 256, 8]
  = bound so far: heads = 8, batch = 2 (`x`), seq = 512 (`x`)
  = try: pass arguments that agree on `seq`, or use two names";
    let error = check.arg("q", &[2, 256, 8], "batch seq heads").map_err(|error| error.to_string());
    assert_eq!(error.err().as_deref(), Some(expected));
}

type Sizes = &'static [(&'static str, u64)];

/// Kind, input shape, pattern, sizes, text under the caret, words that must occur.
const PATTERNS: &[(PatternKind, &[u64], &str, Sizes, &str, &[&str])] = &[
    // shared/cases einops_patterns.json
    (
        Rearrange,
        &[16, 11, 11],
        "b (r h) l -> b l h r",
        &[("r", 2)],
        "(r h)",
        &["dimension 1 has size 11, r = 2: 11 is not a multiple of 2", "pad dimension 1 to 12"],
    ),
    (
        Rearrange,
        &[1, 4096, 320],
        "(b f) d c -> (b d) f c",
        &[("f", 16)],
        "(b f)",
        &["dimension 0 has size 1, f = 16: 1 is not a multiple of 16"],
    ),
    (Rearrange, &[4, 6], "a a -> a", &[], "a", &["axis `a` stands twice on the left side", "einsum(\"a a -> a\")"]),
    (Rearrange, &[4, 6], "a b -> b a -> a", &[], "->", &["two arrows"]),
    (Rearrange, &[4, 6], "a (b (c d)) -> a b c d", &[("b", 2), ("c", 3)], "(", &["nested brackets"]),
    (Rearrange, &[4, 6], "a 2b -> a", &[], "2b", &["`2b` is not a name", "`b2`, or `2 b` for two axes"]),
    (Rearrange, &[4, 6], "a b -> b a", &[("a", 5)], "a", &["axis `a` is given as 5 but dimension 0 is 4"]),
    (Rearrange, &[3], "a -> ...", &[], "a", &["axis `a` is on the left side only"]),
    (Rearrange, &[3], "a -> a ...", &[], "...", &["ellipsis on the right side only"]),
    (Repeat, &[3], "a -> a ...", &[], "...", &["ellipsis on the right side only"]),
    (Rearrange, &[0, 6], "(a b) c -> a b c", &[("a", 0)], "(a b)", &["`b` cannot be inferred", "0 / 0"]),
    // text
    (Rearrange, &[1], "a b", &[], "a b", &["no arrow"]),
    (Rearrange, &[1], "", &[], "", &["no arrow"]),
    (Rearrange, &[1], "a - b", &[], "-", &["character '-' has no meaning"]),
    (Rearrange, &[1], "a.b -> a b", &[], ".", &["an ellipsis has three dots, not 1"]),
    (Rearrange, &[1], ".... -> a b", &[], "....", &["three dots, not 4"]),
    (Rearrange, &[1], "... a ... -> a ...", &[], "...", &["two ellipses"]),
    (Rearrange, &[1], "(a -> a", &[], "(", &["`(` without `)`"]),
    (Rearrange, &[1], "a) -> a", &[], ")", &["`)` without `(`"]),
    (Rearrange, &[1], "a, b -> a b", &[], ",", &["a comma separates the operands of an einsum"]),
    (Rearrange, &[1], "_ -> _", &[], "_", &["`_` is not a name", "only a shape check knows `_`"]),
    (Rearrange, &[1], "_a -> _a", &[], "_a", &["`_a` is not a name", "`a`: a name neither begins"]),
    (Repeat, &[1], "a -> a 0", &[], "0", &["an axis of size 0"]),
    (Repeat, &[1], "a -> a 99999999999999999999", &[], "99999999999999999999", &["is too large for a size"]),
    // sides
    (Rearrange, &[4, 6], "a b -> a", &[], "b", &["axis `b` is on the left side only", "use reduce"]),
    (Rearrange, &[4], "a -> a b", &[], "b", &["axis `b` is on the right side only", "use repeat with b = SIZE"]),
    (Reduce, &[4], "a -> a b", &[], "b", &["axis `b` is on the right side only", "write `b` on the left side too"]),
    (Repeat, &[4, 6], "a b -> a", &[], "b", &["axis `b` is on the left side only"]),
    (Repeat, &[4, 6], "a ... -> a", &[], "...", &["ellipsis on the left side only"]),
    (Rearrange, &[4, 6], "a b -> b b a", &[], "b", &["axis `b` stands twice on the right side"]),
    (Rearrange, &[4, 6], "a (b 2) -> a b 2", &[], "2", &["the unnamed axis `2` cannot stand on the left side"]),
    (Reduce, &[4, 6], "a b -> a 2", &[], "2", &["the unnamed axis `2` cannot stand on the right side"]),
    (Repeat, &[4, 2], "a 2 -> a", &[], "2", &["the unnamed axis `2` cannot stand on the left side"]),
    (Rearrange, &[4, 6], "(a ...) -> a ...", &[], "(a ...)", &["an ellipsis in brackets on the left side"]),
    // shapes and sizes
    (Rearrange, &[4, 6, 2], "a b -> b a", &[], "a b", &["names 2 dimensions but the input has 3", "`...`"]),
    (Rearrange, &[4], "a b ... -> b a ...", &[], "a b ...", &["names at least 2 dimensions but the input has 1"]),
    (Rearrange, &[], "a -> a", &[], "a", &["names 1 dimension but the input has 0"]),
    (
        Rearrange,
        &[4],
        "(a b c) -> a b c",
        &[("a", 2)],
        "(a b c)",
        &["`(a b c)` has 2 unknown sizes: `b`, `c`", "give c = SIZE"],
    ),
    (
        Rearrange,
        &[7],
        "(a b) -> a b",
        &[("a", 2), ("b", 3)],
        "(a b)",
        &["does not fill dimension 0", "a = 2, b = 3: the axes hold 6", "leave one of the sizes out"],
    ),
    (Rearrange, &[7, 3], "1 a -> a", &[], "1", &["does not fill dimension 0", "select one of its 7 elements"]),
    (Rearrange, &[7, 3], "() a -> a", &[], "()", &["does not fill dimension 0"]),
    (Reduce, &[7], "(a 2) -> a", &[], "(a 2)", &["axis 2: 7 is not a multiple of 2", "pad dimension 0 to 8"]),
    (Rearrange, &[7], "(a b) -> a b", &[("a", 0)], "(a b)", &["a = 0: 7 is not a multiple of 0"]),
    (Rearrange, &[4, 6], "a b -> b a", &[("c", 5)], "a b -> b a", &["a size is given for `c`", "one of `a`, `b`"]),
    (Rearrange, &[4, 6], "a b -> b a", &[("a", 4), ("a", 4)], "a", &["the size of `a` is given twice"]),
    (Repeat, &[4], "a -> a b", &[], "b", &["new axis `b` needs a size", "b = SIZE"]),
    (Repeat, &[1 << 40], "a -> (a b)", &[("b", 1 << 40)], "(a b)", &["does not fit in 64 bits"]),
    (Repeat, &[1 << 40], "a -> a b", &[("b", 1 << 40)], "a -> a b", &["does not fit in 64 bits"]),
    (Rearrange, &[1 << 40, 1 << 40], "a b -> b a", &[], "a b -> b a", &["does not fit in 64 bits"]),
];

#[test]
fn every_rule_has_its_message() {
    for &(kind, shape, text, sizes, caret, words) in PATTERNS {
        let message = pattern_error(kind, text, shape, sizes);
        for word in words {
            assert!(message.contains(word), "no {word:?} in:\n{message}");
        }
        let error = Pattern::parse(kind, text).and_then(|pattern| pattern.resolve(shape, sizes)).unwrap_err();
        assert_eq!(error.spans()[0].of(text), caret, "{message}");
        let lines: Vec<&str> = message.lines().collect();
        assert_eq!(lines[1], format!("  {text}"));
        let carets = lines[2].matches('^').count();
        assert_eq!(carets, error.spans().iter().map(|span| span.of(text).chars().count().max(1)).sum::<usize>());
    }
}

/// Equation, operand shapes, text under the carets, words that must occur.
const EQUATIONS: &[(&str, &[&[u64]], &[&str], &[&str])] = &[
    // shared/cases einsum_equations.json
    (
        "bix,iox->box",
        &[&[12, 8192, 2], &[12, 8192, 2]],
        &["i", "i"],
        &["axis `i` is 8192 in operand 0 (dimension 1) and 12 in operand 1 (dimension 0)"],
    ),
    ("ij->jij", &[&[2, 2]], &["j", "j"], &["axis `j` stands twice on the right side"]),
    ("ij,jk->il", &[&[2, 3], &[3, 4]], &["l"], &["axis `l` is in the output but in no operand"]),
    ("ij,jk->ik", &[&[2, 1], &[3, 4]], &["j", "j"], &["is 1 in operand 0", "and 3 in operand 1"]),
    // the rest
    ("i i -> i", &[&[2, 3]], &["i", "i"], &["is 2 in operand 0 (dimension 0) and 3 in operand 0 (dimension 1)"]),
    ("i j, j k", &[&[2, 3], &[3, 4]], &[""], &["an equation of names needs an output"]),
    ("ij,jk->ik", &[&[2, 3]], &["ij,jk->ik"], &["has 2 operands but 1 passed"]),
    ("ij,jk->ik", &[&[2, 3], &[3, 4, 5]], &["jk"], &["operand 1 has 3 dimensions but the equation names 2"]),
    (
        "b s h, hd -> b s",
        &[&[2, 3, 4], &[4, 5]],
        &["hd"],
        &["operand 1 has 2 dimensions", "try: `h d`: other operands"],
    ),
    ("...ij->...ij", &[&[2]], &["...ij"], &["operand 0 has 1 dimension but the equation names at least 2"]),
    ("i (j k) -> i", &[&[2, 3]], &["(j k)"], &["`(j k)` cannot stand in an einsum"]),
    ("i 1 -> i", &[&[2, 1]], &["1"], &["`1` cannot stand in an einsum"]),
    ("i -> i -> i", &[&[2]], &["->", "->"], &["two arrows"]),
    ("...i->i", &[&[2, 3]], &["...", "i"], &["`...` is in an operand but not in the output"]),
    ("i->...i", &[&[2]], &["..."], &["ellipsis on the right side only"]),
    (
        "...,... -> ...",
        &[&[2], &[3]],
        &["...", "..."],
        &["dimension 0 of operand 0 is 2 and dimension 0 of operand 1 is 3, both under `...`"],
    ),
    ("a, b -> a b", &[&[1 << 40], &[1 << 40]], &["a, b -> a b"], &["does not fit in 64 bits"]),
];

#[test]
fn every_einsum_rule_has_its_message() {
    for &(text, shapes, carets, words) in EQUATIONS {
        let message = einsum_error(text, shapes);
        for word in words {
            assert!(message.contains(word), "no {word:?} in:\n{message}");
        }
        let error = Equation::parse(text).and_then(|equation| equation.resolve(shapes)).unwrap_err();
        let under: Vec<&str> = error.spans().iter().map(|span| span.of(text)).collect();
        assert_eq!(under, carets, "{message}");
    }
    let many = vec!["a"; 65].join(",");
    assert!(einsum_error(&many, &[]).contains("more than 64 operands"));
    let wide: Vec<String> = (0..129).map(|axis| format!("x{axis}")).collect();
    assert!(einsum_error(&format!("{} ->", wide.join(" ")), &[&[1; 129]]).contains("more than 128 different axes"));
    assert!(einsum_error(&"a ".repeat(3000), &[]).contains("a pattern of 6000 bytes is too long"));
}

#[test]
fn shape_checks_refuse() {
    for (shape, text, words) in [
        (&[2, 3][..], "a -> b", "has no arrow"),
        (&[2, 3], "a", "names 1 dimension but the input has 2"),
        (&[2, 3], "a 4", "dimension 1 is 3, not 4"),
        (&[2, 9], "a (a b)", "9 is not a multiple of 2"),
        (&[2, 9], "a (b c)", "2 unknown sizes: `b`, `c`"),
        (&[2, 9], "a (a 3)", "the axes hold 6"),
        (&[2, 9], "a (b b)", "axis `b` stands twice"),
        (&[2, 9], "a (...)", "an ellipsis in brackets"),
        (&[2, 9], "a, b", "a comma separates"),
        (&[2, 9], "a a", "dim `a`: 9 here, 2 in argument `x`"),
    ] {
        let error = ShapeCheck::new("f").arg("x", shape, text).map(drop).map_err(|error| error.to_string());
        assert!(error.as_ref().is_err_and(|error| error.contains(words)), "{error:?}");
    }
}

#[test]
fn carets_stay_aligned_behind_wide_and_hidden_characters() {
    let message = pattern_error(Rearrange, "größe\t(é d) -> größe é d", &[2, 7], &[("d", 2)]);
    let lines: Vec<&str> = message.lines().collect();
    assert_eq!(lines[1..3], ["  größe (é d) -> größe é d", "        ^^^^^"]);
}
