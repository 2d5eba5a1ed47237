//! From bytes to tokens: which batch makes a tensor of a known kind as large as that.

use nn::spec::ModelSpec;
use nn::step::StepOptions;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::LazyLock;
use units::group_digits;

use super::size::Printed;
use crate::model::{Model, intermediate_size};
use crate::presets;

/// A size as a product: so many tokens of so many elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Product {
    /// What it would be, such as `fp32 logits`.
    pub what: String,
    /// The number per token in words, such as `vocab_size 50,304`.
    pub width_name: String,
    /// Elements per token.
    pub width: u64,
    /// Bytes of an element.
    pub element: u64,
    /// Tokens.
    pub tokens: u64,
    /// Sequences and their length, where both are known.
    pub batch: Option<(u64, u64)>,
    /// Heads, where each has a square of scores.
    pub heads: Option<u64>,
    /// Whether the product is the printed size to the byte.
    pub exact: bool,
}

impl Product {
    /// Bytes of it.
    pub fn bytes(&self) -> u128 {
        u128::from(self.tokens) * u128::from(self.width) * u128::from(self.element)
    }

    /// `4 × 1,024 × 50,304 × 4 B`.
    pub fn words(&self) -> String {
        let (width, element) = (group_digits(u128::from(self.width)), self.element);
        let tokens = |n: u64| group_digits(u128::from(n));
        match (self.batch, self.heads) {
            (Some((batch, seq)), Some(heads)) => {
                format!("{} × {heads} × {} × {} × {element} B", tokens(batch), tokens(seq), tokens(seq))
            }
            (Some((batch, seq)), None) => format!("{} × {} × {width} × {element} B", tokens(batch), tokens(seq)),
            (None, _) => format!("{} × {width} × {element} B", tokens(self.tokens)),
        }
    }

    /// How many twos its tokens divide by: batches and sequences are round in powers of two.
    fn roundness(&self) -> u32 {
        self.tokens.trailing_zeros()
    }
}

/// Least twos that a number of tokens divides by to be one that people choose.
const ROUND: u32 = 4;
/// Largest odd factor of a number of tokens that people choose.
const MOST_ODD: u64 = 31;
/// Most answers.
const MOST: usize = 8;

/// Whole numbers whose product with `row` is a size that is printed so: the one that fits to the byte, or the roundest.
fn tokens_of(size: &Printed, segments: bool, row: u64) -> Option<(u64, bool)> {
    let exact = size.bytes.checked_rem(row)? == 0;
    if exact {
        return Some((size.bytes / row, true)).filter(|(tokens, _)| *tokens > 0);
    }
    let low = size.least(segments).div_ceil(row).max(1);
    let high = size.high / row;
    // The roundest number up to `high` has the fewest ones in front: clear low bits while it stays in range.
    let mut best = (low <= high).then_some(high)?;
    while best & (best - 1) >= low && best & (best - 1) > 0 {
        best &= best - 1;
    }
    Some((best, false))
}

/// Which tokens make a tensor of this model that large, the likeliest first.
pub fn tokens(spec: &ModelSpec, options: &StepOptions, size: &Printed, segments: bool) -> Vec<Product> {
    let mut widths: Vec<(&str, &str, u64)> = vec![("logits", "vocab_size", spec.vocab_size)];
    if let Some(inner) = spec.layers.iter().find_map(|layer| intermediate_size(layer)) {
        widths.extend([
            ("feed-forward inside", "intermediate_size", inner),
            ("gate and up in one", "2 × intermediate_size", inner.saturating_mul(2)),
        ]);
    }
    if let Some(attention) = spec.layers.iter().find_map(|layer| layer.attention()) {
        widths.extend([
            (
                "queries, keys and values in one",
                "q, k, v",
                (attention.heads.saturating_add(2 * attention.kv_heads)).saturating_mul(attention.head_dim),
            ),
            ("queries", "heads × head_dim", attention.heads.saturating_mul(attention.head_dim)),
        ]);
    }
    widths.push(("residual stream", "hidden_size", spec.hidden_size));
    let mut out = Vec::new();
    for (what, name, width) in widths {
        for (dtype, element) in [("fp32", 4), ("16-bit", 2)] {
            let Some(row) = width.checked_mul(element).filter(|row| *row > 0) else { continue };
            let Some((tokens, exact)) = tokens_of(size, segments, row) else { continue };
            out.push(Product {
                what: format!("{dtype} {what}"),
                width_name: format!("{name} {}", group_digits(u128::from(width))),
                width,
                element,
                tokens,
                batch: split(tokens, options, spec.max_positions),
                heads: None,
                exact,
            });
        }
    }
    out.extend(scores(spec, size, segments));
    // Losses of transformers drop the last position, so those tokens are no round number.
    let shifted = |p: &Product| {
        let short = options.seq_len.saturating_sub(1);
        short > 0 && p.tokens.is_multiple_of(short) && p.tokens / short <= 4096
    };
    // Of other widths there are many, so only numbers that people choose are told from chance.
    let chosen = |p: &Product| p.tokens >> p.roundness() <= MOST_ODD || p.what.ends_with("logits");
    out.retain(|p| p.roundness() >= ROUND && chosen(p) || shifted(p));
    let here = |p: &Product| {
        let of = |len: u64| p.tokens == options.sequences().saturating_mul(len);
        of(options.seq_len) || of(options.seq_len.saturating_sub(1))
    };
    rank(&mut out, here);
    out
}

/// The tokens of the step first, exact before rounded, round before odd, then in the order of the list: of equals the
/// logits are the likeliest.
fn rank(products: &mut Vec<Product>, here: impl Fn(&Product) -> bool) {
    products.sort_by_key(|p| (!here(p), !p.exact, Reverse(p.roundness().min(10))));
    products.truncate(MOST);
}

/// Tokens as sequences of the length of the step, or else of the longest power of two.
fn split(tokens: u64, options: &StepOptions, most: Option<u64>) -> Option<(u64, u64)> {
    let given = options.seq_len;
    if given > 1 && tokens.is_multiple_of(given) {
        return Some((tokens / given, given));
    }
    if given > 2 && tokens.is_multiple_of(given - 1) {
        return Some((tokens / (given - 1), given - 1));
    }
    let power = 1_u64 << tokens.trailing_zeros().min(20);
    let longest = most.map_or(power, |most| power.min(1 << most.max(1).ilog2()));
    (longest > 1).then(|| (tokens / longest, longest))
}

/// Squares of attention: heads × batch × s².
fn scores(spec: &ModelSpec, size: &Printed, segments: bool) -> Vec<Product> {
    let first = spec.layers.iter().find_map(|layer| layer.attention());
    let Some(heads) = first.map(|attention| attention.heads).filter(|heads| *heads > 0) else {
        return Vec::new();
    };
    let mut out = Vec::new();
    for (dtype, element) in [("fp32", 4_u64), ("16-bit", 2)] {
        for batch in 1..=64_u64 {
            let Some(row) = heads.checked_mul(element * batch) else { continue };
            let s = (size.high / row).isqrt();
            // Lengths that are no multiple of 64 are chosen by nobody.
            let s = s - s % 64;
            let bytes = u128::from(row) * u128::from(s) * u128::from(s);
            let (least, most) = (u128::from(size.least(segments)), u128::from(size.high));
            if s == 0 || bytes < least || bytes > most {
                continue;
            }
            out.push(Product {
                what: format!("{dtype} attention scores"),
                width_name: format!("{heads} heads × {s} keys"),
                width: heads.saturating_mul(s),
                element,
                tokens: batch * s,
                batch: Some((batch, s)),
                heads: Some(heads),
                exact: bytes == u128::from(size.bytes),
            });
        }
    }
    out
}

/// Vocabularies of the presets, as they are and padded as trainers pad them, with the first preset that has each.
static VOCABULARIES: LazyLock<BTreeMap<u64, String>> = LazyLock::new(|| {
    let mut widths: BTreeMap<u64, String> = BTreeMap::new();
    for name in presets::names() {
        let Some((name, text)) = presets::find(name) else { continue };
        let Ok(model) = Model::from_text(name, name, text.as_bytes(), &[], None) else { continue };
        let vocabulary = model.spec.vocab_size;
        widths.entry(vocabulary).or_insert_with(|| name.to_owned());
        let padded = vocabulary.div_ceil(128) * 128;
        widths.entry(padded).or_insert_with(|| format!("{name}, padded to a multiple of 128"));
    }
    widths
});

/// Which well-known vocabularies have logits of that size: a guess, for who has given no model.
pub fn guesses(size: &Printed, segments: bool) -> Vec<Product> {
    let mut out = Vec::new();
    for (&width, name) in VOCABULARIES.iter() {
        for (dtype, element) in [("fp32", 4), ("16-bit", 2)] {
            let Some((tokens, exact)) = tokens_of(size, segments, width * element) else { continue };
            let width_name = format!("{} ({name})", group_digits(u128::from(width)));
            let what = format!("{dtype} logits");
            out.push(Product { what, width_name, width, element, tokens, batch: None, heads: None, exact });
        }
    }
    out.retain(|p| p.roundness() >= 7);
    rank(&mut out, |_| false);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(number: &str, unit: &str) -> Printed {
        Printed::read(number, unit, false).unwrap()
    }

    /// memory-01 and memory-03: 4 × 1,024 tokens of 50,304 words; 11,600 of 248,320; 1,024 of 151,936.
    #[test]
    fn tokens_of_a_vocabulary() {
        for (number, unit, width, tokens) in
            [("786.00", "MiB", 50_304, 4096), ("10.73", "GiB", 248_320, 11_600), ("594.00", "MiB", 151_936, 1024)]
        {
            let size = printed(number, unit);
            let row = width * 4;
            let (found, _) = tokens_of(&size, true, row).unwrap();
            // Two decimals of a GiB leave several numbers of tokens: the one of the case is among them.
            assert!((size.least(true)..=size.high).contains(&(tokens * row)), "{number} {unit}");
            assert!((size.least(true)..=size.high).contains(&(found * row)), "{number} {unit}: {found}");
            assert!(found.trailing_zeros() >= tokens.trailing_zeros(), "{number} {unit}: {found}");
        }
        assert_eq!(tokens_of(&printed("786.00", "MiB"), true, 50_304 * 4), Some((4096, true)));
        assert_eq!(tokens_of(&printed("594.00", "MiB"), true, 151_936 * 4), Some((1024, false)));
    }

    #[test]
    fn a_size_without_a_model_is_a_guess() {
        let found = guesses(&printed("786.00", "MiB"), true);
        let first = found.iter().find(|p| p.width == 50_304 && p.element == 4).unwrap();
        assert_eq!((first.tokens, first.exact), (4096, true));
        assert!(found[0].exact && first.width_name.contains("padded"), "{found:?}");
        assert_eq!(first.words(), "4,096 × 50,304 × 4 B");
    }

    #[test]
    fn a_row_that_is_too_long_has_no_tokens() {
        assert_eq!(tokens_of(&printed("1.00", "MiB"), false, u64::MAX), None);
        assert_eq!(tokens_of(&printed("0", "bytes"), false, 8), None);
        assert_eq!(tokens_of(&printed("1.00", "MiB"), false, 0), None);
    }
}
