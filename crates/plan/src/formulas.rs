//! Closed-form formulas of the field, each once: expression, function, source.
//!
//! They stand *beside* traced numbers as cross-checks, and answer where there is nothing to trace (a bare parameter
//! count). `napkin explain ID` prints them; reports refer to them by id.

mod flop;
mod memory;
mod rate;

use crate::nearest::nearest;
use crate::report::{Cell, Derivation, Phrase};

pub use flop::{
    attention_flop_full, flop_per_token, flop_per_tuned_token, matmul_flop, training_flop, training_flop_recomputed,
};
pub use memory::{largest_parameters, state_bytes};

/// One letter of a formula.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// The letter, such as `N`.
    pub name: &'static str,
    /// What it stands for, such as `parameters`.
    pub meaning: &'static str,
}

/// How a formula is computed; arguments in the order of the symbols.
#[derive(Clone, Copy, Debug)]
pub enum Eval {
    /// In integers; `None` on overflow or where the formula has no meaning.
    Exact(fn(&[u128]) -> Option<u128>),
    /// In floats.
    Real(fn(&[f64]) -> f64),
}

/// A formula that `napkin explain` knows.
#[derive(Clone, Copy, Debug)]
pub struct Formula {
    /// Stable name, such as `6nd`.
    pub id: &'static str,
    /// What it gives.
    pub title: &'static str,
    /// The formula, with the letters of the field.
    pub expression: &'static str,
    /// Its letters.
    pub symbols: &'static [Symbol],
    /// Unit of the result, such as `FLOP`.
    pub unit: &'static str,
    /// What it leaves out or assumes.
    pub caveat: &'static str,
    /// Who says so.
    pub source: &'static str,
    /// Where it stands in Napkin's code, as file and line.
    pub anchor: &'static str,
    /// How it is computed.
    pub eval: Eval,
}

/// A place in the code from the root of the repository on, wherever that was built.
const fn place(path: &'static str) -> &'static str {
    let (bytes, root) = (path.as_bytes(), b"crates");
    let mut start = bytes.len();
    while start > 0 {
        start -= 1;
        let mut same = 0;
        while same < root.len() && start + same < bytes.len() && bytes[start + same] == root[same] {
            same += 1;
        }
        if same == root.len() {
            return path.split_at(start).1;
        }
    }
    path
}

/// Writes one entry of a table of formulas, with its place in the code.
macro_rules! formula {
    (
        $id:literal: $title:literal,
        $expression:literal [$unit:literal],
        where $($symbol:literal = $meaning:literal),+;
        caveat $caveat:literal;
        source $source:literal;
        $eval:expr;
    ) => {
        $crate::formulas::Formula {
            id: $id,
            title: $title,
            expression: $expression,
            symbols: &[$($crate::formulas::Symbol { name: $symbol, meaning: $meaning }),+],
            unit: $unit,
            caveat: $caveat,
            source: $source,
            anchor: $crate::formulas::place(concat!(file!(), ":", line!())),
            eval: $eval,
        }
    };
}
use formula;

/// Every formula, by topic.
pub fn all() -> impl Iterator<Item = &'static Formula> {
    [flop::FORMULAS, memory::FORMULAS, rate::FORMULAS].into_iter().flatten()
}

/// The formula of that name.
///
/// # Errors
/// The names that look like it, nearest first.
pub fn find(id: &str) -> Result<&'static Formula, Vec<&'static str>> {
    let wanted = id.trim().to_lowercase();
    all().find(|formula| formula.id == wanted).ok_or_else(|| nearest(&wanted, all().map(|formula| formula.id)))
}

/// Where the formula stands in the code. For ids written in the code itself: an unknown one is a bug.
pub fn known(id: &'static str) -> &'static Formula {
    find(id).unwrap_or_else(|_| panic!("no formula `{id}`"))
}

/// A printed number by the formula of that id, with its values; what [`known`] says of ids.
pub fn derive(
    of: impl Into<String>,
    id: &'static str,
    substituted: impl Into<Phrase>,
    result: impl Into<Cell>,
) -> Derivation {
    let formula = known(id);
    Derivation {
        of: of.into(),
        formula: id,
        expression: formula.expression.to_owned(),
        substituted: substituted.into(),
        result: result.into(),
        source: formula.source.to_owned(),
        anchor: formula.anchor,
    }
}

/// The product, or `None` on overflow.
fn product(factors: &[u128]) -> Option<u128> {
    factors.iter().try_fold(1_u128, |product, &factor| product.checked_mul(factor))
}

/// The sum, or `None` on overflow or where a part has overflowed.
fn sum<const N: usize>(parts: [Option<u128>; N]) -> Option<u128> {
    parts.into_iter().try_fold(0_u128, |sum, part| sum.checked_add(part?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exact(id: &str, arguments: &[u128]) -> Option<u128> {
        let formula = find(id).unwrap_or_else(|near| panic!("{id}: {near:?}"));
        assert_eq!(formula.symbols.len(), arguments.len(), "{id}");
        match formula.eval {
            Eval::Exact(eval) => eval(arguments),
            Eval::Real(_) => panic!("{id} is in floats"),
        }
    }

    fn real(id: &str, arguments: &[f64]) -> f64 {
        match known_here(id).eval {
            Eval::Real(eval) => eval(arguments),
            Eval::Exact(_) => panic!("{id} is in integers"),
        }
    }

    fn known_here(id: &str) -> &'static Formula {
        find(id).unwrap_or_else(|near| panic!("{id}: {near:?}"))
    }

    /// Reference values: the lecture questions, the arithmetic of the mock-ups, and published tables.
    #[test]
    fn places_begin_at_the_root() {
        for path in ["crates/plan/src/a.rs:1", "/elsewhere/crates/x/crates/plan/src/a.rs:1", r"..\crates\plan"] {
            assert!(place(path).starts_with("crates"), "{path}");
        }
        assert_eq!(place("/elsewhere/crates/x/crates/plan/src/a.rs:1"), "crates/plan/src/a.rs:1");
        assert_eq!(place("src/a.rs:1"), "src/a.rs:1");
    }

    #[test]
    fn formulas_give_the_known_values() {
        let table: &[(&str, &[u128], u128)] = &[
            ("6n", &[8_030_261_248], 48_181_567_488),
            ("6nd", &[70_000_000_000, 15_000_000_000_000], 6_300_000_000_000_000_000_000_000),
            ("8nd", &[130_000_000_000, 400_000_000_000], 416_000_000_000_000_000_000_000),
            // 61.066 GFLOP in all for Llama-3.1-8B at 8k, of which 6N is 48.182.
            ("12lhqt", &[32, 32, 128, 8192], 12_884_901_888),
            ("attention-causal", &[32, 32, 128, 8192], 6_443_237_376),
            ("pairs-causal", &[8192], 33_558_528),
            ("pairs-window", &[8192, 8192], 33_558_528),
            ("pairs-window", &[8192, 1], 8192),
            ("pairs-window", &[100, 4096], 5050),
            ("matmul", &[16_384, 32_768, 8192], 8_796_093_022_208),
            ("params-gated", &[128_256, 4096, 32, 32, 8, 128, 14_336], 8_030_261_248),
            ("states", &[8_030_261_248, 4, 4, 0, 8], 128_484_179_968),
            // Megatron, bf16 with fp32 main gradients, ZeRO-1 over 8.
            ("zero", &[1_000_000_000, 6, 12, 8], 7_500_000_000),
            ("largest-states", &[85_520_809_984, 0, 16, 8], 42_760_404_992),
            ("largest-states", &[80_000_000_000, 0, 16, 8], 40_000_000_000),
            ("largest-states", &[80_000_000_000, 16, 0, 8], 5_000_000_000),
            // 34 s b h for the Llama-2-7B shape is 139,264 bytes per token and layer; with 5 a s² b 794,624.
            ("activations", &[1, 4096, 4096, 32], 4096 * 794_624),
            ("activations-selective", &[1, 4096, 4096, 1], 4096 * 139_264),
            ("activations-full", &[1, 4096, 4096], 33_554_432),
            ("activations-fused", &[1, 4096, 32, 32, 128, 11_008], 131_712),
            ("kv-cache", &[1, 8192, 32, 8, 128, 2], 1_073_741_824),
        ];
        for &(id, arguments, value) in table {
            assert_eq!(exact(id, arguments), Some(value), "{id}");
        }
        assert_eq!(exact("6nd", &[u128::MAX, 2]), None);
        let days = real("time", &[6.3e24, 1024.0, 989.5e12, 0.5]) / 86_400.0;
        assert!((days - 143.93).abs() < 0.01, "{days}");
        // plan-01: 130 B parameters, 400 B tokens, 768 A100, 60 days.
        let mfu = real("mfu", &[3.12e23 / (60.0 * 86_400.0), 768.0, 312e12]);
        assert!((mfu - 0.251).abs() < 0.0005, "{mfu}");
        assert!((real("ridge", &[989.5e12, 3.35e12]) - 295.4).abs() < 0.05);
        // The lecture backwards: 70 B parameters on 15 T tokens in 143.93 days on 1,024 H100 at half of their peak.
        let compute = real("compute", &[1024.0, 989.5e12, 0.5, 143.93 * 86_400.0]);
        assert!((compute / 6.3e24 - 1.0).abs() < 1e-4, "{compute}");
        assert_eq!(real("devices", &[6.3e24, 989.5e12, 0.5, 144.0 * 86_400.0]), 1024.0);
        // Hoffmann et al. 2022, section 3.4: 40 B parameters at the compute of Gopher by approach 3; Chinchilla has 70 B and 1.4 T.
        let optimal = real("optimal-parameters", &[5.76e23, 406.4, 0.34, 410.7, 0.28]);
        assert!((30e9..45e9).contains(&optimal), "{optimal}");
        let chinchilla = real("optimal-ratio", &[5.76e23, 20.0]);
        assert!(
            (69e9..70e9).contains(&chinchilla)
                && (real("optimal-tokens", &[5.76e23, chinchilla]) - 1.39e12).abs() < 0.01e12
        );
        assert_eq!(real("steps", &[1e9 + 1.0, 1000.0, 1000.0, 2.0]), 2002.0);
        assert_eq!(real("wall", &[10.0, 1.0, 2.0, 3.0, 0.5, 0.25]), 16.75);
        assert_eq!(real("step", &[8.0, 1.0, 0.5, 0.25, 0.25, 0.1]), 11.0);
        assert_eq!((real("again", &[1.0, 3.0]), exact("device", &[5, 2])), (1.0 / 3.0, Some(7)));
    }

    #[test]
    fn every_formula_is_complete_and_named_once() {
        let mut ids: Vec<_> = all().map(|formula| formula.id).collect();
        let count = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), count);
        for formula in all() {
            assert!(formula.anchor.starts_with("crates/plan/src/formulas/"), "{}", formula.anchor);
            assert!(!formula.source.is_empty() && !formula.unit.is_empty(), "{}", formula.id);
            // Whatever the arguments, an answer or none, and no panic.
            for value in [0_u128, 1, u128::MAX] {
                match formula.eval {
                    Eval::Exact(eval) => _ = eval(&vec![value; formula.symbols.len()]),
                    Eval::Real(eval) => _ = eval(&vec![value as f64; formula.symbols.len()]),
                }
            }
        }
        assert_eq!(find("6DN").err(), Some(vec!["6n", "6nd"]));
    }
}
