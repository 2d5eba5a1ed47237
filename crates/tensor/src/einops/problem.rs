//! Every rule a pattern can break, with the sentences that say so.

use std::fmt::{self, Write as _};

/// A side of the arrow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Before the arrow: the input.
    Left,
    /// After the arrow: the output.
    Right,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Left => "left",
            Self::Right => "right",
        })
    }
}

/// One axis of one operand or argument, with its size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Position of the operand, from 0.
    pub operand: usize,
    /// Position of the dimension in the operand, from 0.
    pub dim: usize,
    /// Size of that dimension.
    pub size: u64,
}

/// The rule that was broken. Fields hold what was expected and what was found.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the field names are the words of the messages below")]
pub enum Problem {
    // Reading the text.
    /// The text is longer than any real pattern.
    TooLong { bytes: usize },
    /// A character that is in no pattern.
    BadCharacter { character: char },
    /// One, two, or more than three dots.
    BadDots { count: usize },
    /// A word that is neither a name nor a number.
    BadName { name: String },
    /// The number 0 as an axis.
    ZeroNumber,
    /// A number beyond 64 bits.
    NumberTooLarge,
    /// A bracket within a bracket.
    NestedBrackets,
    /// A closing bracket too many.
    UnopenedBracket,
    /// An opening bracket too many.
    UnclosedBracket,
    /// A comma outside an einsum.
    UnexpectedComma,
    /// One side only.
    MissingArrow,
    /// Three sides.
    SecondArrow,
    /// Two ellipses on one side.
    SecondEllipsis,
    // The two sides of a pattern.
    /// An ellipsis within a bracket of the input.
    EllipsisInLeftGroup,
    /// An ellipsis on one side only.
    EllipsisOnly { side: Side },
    /// A name twice on one side.
    DuplicateAxis { name: String, side: Side },
    /// An axis that would vanish.
    OnlyOnLeft { name: String },
    /// An axis out of nothing.
    OnlyOnRight { name: String },
    /// A number above 1 where an axis needs a name.
    NumberNotAllowed { number: u64, side: Side },
    // Going with a shape.
    /// The input has more or fewer dimensions than the pattern.
    Rank { terms: usize, open: bool, rank: usize },
    /// A size for a name that the pattern does not have.
    UnusedSize { name: String, known: Vec<String> },
    /// Two sizes for one name.
    RepeatedSize { name: String },
    /// `repeat` over an axis of unknown size.
    NewAxisWithoutSize { name: String },
    /// The known axes of a bracket do not divide its dimension.
    NotDivisible { dim: usize, size: u64, known: Vec<(String, u64)>, product: u64 },
    /// All axes of a bracket are known and do not fill its dimension.
    ProductDiffers { dim: usize, size: u64, known: Vec<(String, u64)>, product: u64 },
    /// A given size that the shape contradicts.
    SizeConflict { name: String, given: u64, dim: usize, size: u64 },
    /// A bracket with more than one unknown size.
    TwoUnknown { names: Vec<String>, dim: usize, size: u64 },
    /// An unknown size beside a 0 in a dimension of 0.
    ZeroOverZero { name: String, dim: usize, size: u64 },
    /// An element count beyond 64 bits.
    TooManyElements,
    // Einsum.
    /// More or fewer tensors than operands.
    OperandCount { terms: usize, operands: usize },
    /// An operand with more or fewer dimensions than axes; `letters` is what may have been meant.
    OperandRank { operand: usize, axes: usize, open: bool, rank: usize, letters: Option<String> },
    /// A bracket or number in an einsum.
    NotAnIndex,
    /// Names without an output.
    ImplicitOutputNamed,
    /// One index with two sizes.
    IndexSizes { name: String, first: Place, second: Place },
    /// An output index that no operand has.
    UnknownOutput { name: String },
    /// An ellipsis that is not in the output.
    EllipsisLost,
    /// Dimensions under `...` that do not broadcast.
    EllipsisSizes { first: Place, second: Place },
    /// More operands than a set of bits holds.
    TooManyOperands { limit: usize },
    /// More indices than a set of bits holds.
    TooManyIndices { limit: usize },
    /// A calculation by name that lacks a size.
    MissingSize { name: String },
    // Shape checks.
    /// An arrow in a shape check.
    ArrowInCheck,
    /// A name with another size than in an earlier argument.
    BoundDiffers { name: String, here: u64, there: u64, argument: String, dim: usize },
    /// A number in a shape check that is not the size.
    LiteralDiffers { dim: usize, literal: u64, size: u64 },
}

impl Problem {
    /// The first line; `written` is the pattern text under the caret.
    pub(crate) fn message(&self, written: &str) -> String {
        match self {
            Self::TooLong { bytes } => format!("a pattern of {bytes} bytes is too long"),
            Self::BadCharacter { character } => {
                format!("character {character:?} has no meaning in a pattern")
            }
            Self::BadDots { count } => format!("an ellipsis has three dots, not {count}"),
            Self::BadName { name } => format!("`{name}` is not a name"),
            Self::ZeroNumber => "an axis of size 0 cannot be written as a number".into(),
            Self::NumberTooLarge => format!("`{written}` is too large for a size"),
            Self::NestedBrackets => "nested brackets".into(),
            Self::UnopenedBracket => "`)` without `(`".into(),
            Self::UnclosedBracket => "`(` without `)`".into(),
            Self::UnexpectedComma => "a comma separates the operands of an einsum and stands nowhere else".into(),
            Self::MissingArrow => "no arrow `->` between input and output".into(),
            Self::SecondArrow => "two arrows".into(),
            Self::SecondEllipsis => "two ellipses on one side".into(),
            Self::EllipsisInLeftGroup => "an ellipsis in brackets on the left side cannot be split".into(),
            Self::EllipsisOnly { side } => format!("ellipsis on the {side} side only"),
            Self::DuplicateAxis { name, side } => {
                format!("axis `{name}` stands twice on the {side} side")
            }
            Self::OnlyOnLeft { name } => format!("axis `{name}` is on the left side only"),
            Self::OnlyOnRight { name } => format!("axis `{name}` is on the right side only"),
            Self::NumberNotAllowed { number, side } => {
                format!("the unnamed axis `{number}` cannot stand on the {side} side")
            }
            Self::Rank { terms, open, rank } => {
                let least = if *open { "at least " } else { "" };
                format!("the pattern names {least}{} but the input has {rank}", dimensions(*terms))
            }
            Self::UnusedSize { name, .. } => {
                format!("a size is given for `{name}`, which the pattern does not have")
            }
            Self::RepeatedSize { name } => format!("the size of `{name}` is given twice"),
            Self::NewAxisWithoutSize { name } => format!("new axis `{name}` needs a size"),
            Self::NotDivisible { dim, .. } => {
                format!("axis group `{written}` does not divide dimension {dim}")
            }
            Self::ProductDiffers { dim, .. } => {
                format!("axis group `{written}` does not fill dimension {dim}")
            }
            Self::SizeConflict { name, given, dim, size } => {
                format!("axis `{name}` is given as {given} but dimension {dim} is {size}")
            }
            Self::TwoUnknown { names, .. } => {
                format!("axis group `{written}` has {} unknown sizes: {}", names.len(), quoted(names))
            }
            Self::ZeroOverZero { name, dim, .. } => {
                format!("`{name}` cannot be inferred from dimension {dim}: 0 / 0")
            }
            Self::TooManyElements => "the number of elements does not fit in 64 bits".into(),
            Self::OperandCount { terms, operands } => {
                format!("the equation has {terms} operands but {operands} passed")
            }
            Self::OperandRank { operand, axes, open, rank, .. } => {
                let least = if *open { "at least " } else { "" };
                format!("operand {operand} has {} but the equation names {least}{axes}", dimensions(*rank))
            }
            Self::NotAnIndex => {
                format!("`{written}` cannot stand in an einsum: only names and `...`")
            }
            Self::ImplicitOutputNamed => "an equation of names needs an output".into(),
            Self::IndexSizes { name, first, second } => format!(
                "axis `{name}` is {} in operand {} (dimension {}) and {} in operand {} (dimension {})",
                first.size, first.operand, first.dim, second.size, second.operand, second.dim
            ),
            Self::UnknownOutput { name } => {
                format!("axis `{name}` is in the output but in no operand")
            }
            Self::EllipsisLost => "`...` is in an operand but not in the output".into(),
            Self::EllipsisSizes { first, second } => format!(
                "dimension {} of operand {} is {} and dimension {} of operand {} is {}, both under `...`",
                first.dim, first.operand, first.size, second.dim, second.operand, second.size
            ),
            Self::TooManyOperands { limit } => format!("more than {limit} operands"),
            Self::TooManyIndices { limit } => format!("more than {limit} different axes"),
            Self::MissingSize { name } => format!("no size is given for axis `{name}`"),
            Self::ArrowInCheck => "a shape check describes one shape and has no arrow".into(),
            Self::BoundDiffers { name, here, there, argument, .. } => {
                format!("dim `{name}`: {here} here, {there} in argument `{argument}`")
            }
            Self::LiteralDiffers { dim, literal, size } => {
                format!("dimension {dim} is {size}, not {literal}")
            }
        }
    }

    /// The sizes behind the first line, where sizes are to blame.
    pub(crate) fn why(&self) -> Option<String> {
        match self {
            Self::NotDivisible { dim, size, known, product } => Some(format!(
                "dimension {dim} has size {size}, {}: {size} is not a multiple of {product}",
                assignments(known)
            )),
            Self::ProductDiffers { dim, size, known, product } => {
                let sizes = if known.is_empty() { "no axis to hold it".to_owned() } else { assignments(known) };
                Some(format!("dimension {dim} has size {size}, {sizes}: the axes hold {product}"))
            }
            Self::TwoUnknown { dim, size, .. } => Some(format!("dimension {dim} has size {size}: one unknown at most")),
            Self::ZeroOverZero { dim, size, .. } => {
                Some(format!("dimension {dim} has size {size} and the other axes of the group hold 0"))
            }
            Self::BoundDiffers { dim, here, .. } => Some(format!("dimension {dim} has size {here}")),
            _ => None,
        }
    }

    /// The remedy.
    pub(crate) fn help(&self, op: &str) -> Option<String> {
        let text = match self {
            Self::TooLong { .. } => "use shorter axis names".into(),
            Self::BadCharacter { .. } => "names are letters, digits and `_`; signs are `( ) , ... ->`".into(),
            Self::BadDots { .. } => "write `...`".into(),
            Self::BadName { name } if name == "_" => "give the axis a name; only a shape check knows `_`".into(),
            Self::BadName { name } => {
                let core = name.trim_matches('_').trim_start_matches(|c: char| c.is_ascii_digit());
                let digits: String = name.chars().take_while(char::is_ascii_digit).collect();
                match (core.is_empty(), digits.is_empty()) {
                    (true, _) => "a name begins with a letter".into(),
                    (false, true) => format!("`{core}`: a name neither begins nor ends with `_`"),
                    (false, false) => {
                        format!("`{core}{digits}`, or `{digits} {core}` for two axes")
                    }
                }
            }
            Self::ZeroNumber => "name the axis and give its size".into(),
            Self::NestedBrackets => "`(b (c d))` is `(b c d)`: brackets only flatten".into(),
            Self::UnopenedBracket | Self::UnclosedBracket => "add the missing bracket or remove this one".into(),
            Self::UnexpectedComma => "separate axes with spaces".into(),
            Self::MissingArrow => "`input axes -> output axes`".into(),
            Self::SecondArrow => format!("two calls of {op}, one for each arrow"),
            Self::SecondEllipsis => "name the dimensions of one of them".into(),
            Self::EllipsisInLeftGroup => "name the axes of this dimension".into(),
            Self::EllipsisOnly { side: Side::Right } => "write `...` on the left side too, or remove it".into(),
            Self::EllipsisOnly { side: Side::Left } => "write `...` on the right side too, or use reduce".into(),
            Self::DuplicateAxis { name, side: Side::Left } => {
                format!("two names, `{name}1` and `{name}2`; for a diagonal use einsum(\"{name} {name} -> {name}\")")
            }
            Self::DuplicateAxis { name, .. } => {
                format!("each output axis once: remove one `{name}`")
            }
            Self::OnlyOnLeft { name } => {
                format!("write `{name}` on the right side too, or use reduce to take its sum, mean, max or min")
            }
            Self::OnlyOnRight { name } if op == "reduce" => {
                format!("write `{name}` on the left side too")
            }
            Self::OnlyOnRight { name } => {
                format!("write `{name}` on the left side too, or use repeat with {name} = SIZE")
            }
            Self::NumberNotAllowed { .. } if op == "rearrange" => {
                "give the axis a name and its size as an argument".into()
            }
            Self::NumberNotAllowed { .. } => "give the axis a name".into(),
            Self::Rank { open, terms, rank } if !open && rank > terms => {
                "add the missing axes, or `...` for all of them".into()
            }
            Self::Rank { .. } => "remove the axes that the input does not have".into(),
            Self::UnusedSize { known, .. } if known.is_empty() => "remove it".into(),
            Self::UnusedSize { known, .. } => format!("one of {}", quoted(known)),
            Self::RepeatedSize { .. } => "give it once".into(),
            Self::NewAxisWithoutSize { name } | Self::MissingSize { name } => {
                format!("{name} = SIZE")
            }
            Self::NotDivisible { dim, size, known, product } => divide(*dim, *size, known, *product),
            Self::ProductDiffers { size, known, .. } if known.is_empty() => {
                format!("give this dimension a name, or select one of its {size} elements first")
            }
            Self::ProductDiffers { .. } => "leave one of the sizes out and it is inferred".into(),
            Self::SizeConflict { name, size, .. } => {
                format!("{name} = {size}, or leave it out: it is inferred")
            }
            Self::TwoUnknown { names, .. } => {
                let all_but_one: Vec<String> = names.iter().skip(1).map(|name| format!("{name} = SIZE")).collect();
                format!("give {}", all_but_one.join(", "))
            }
            Self::ZeroOverZero { name, .. } => format!("give {name} = SIZE"),
            Self::TooManyElements => "smaller sizes".into(),
            Self::OperandCount { .. } => "one comma-separated list of axes for each operand".into(),
            Self::OperandRank { letters: Some(letters), .. } => {
                format!("`{letters}`: other operands are written with spaces, so this one is read as a name")
            }
            Self::OperandRank { .. } => "one axis for each dimension, or `...` for the rest".into(),
            Self::NotAnIndex => "rearrange the operand first, then name its axes".into(),
            Self::ImplicitOutputNamed => "`-> ` and the axes to keep; the letters-only form may leave it out".into(),
            Self::IndexSizes { name, first, second } if first.size == 1 || second.size == 1 => {
                let one = if first.size == 1 { first } else { second };
                format!(
                    "no named axis is stretched from size 1: give operand {} another name there (it is summed over), \
                     or repeat `{name}` to {}",
                    one.operand,
                    first.size.max(second.size)
                )
            }
            Self::IndexSizes { name, .. } => {
                format!("check the order of the axes of both; two different axes need two names, `{name}1`, `{name}2`")
            }
            Self::UnknownOutput { name } => {
                format!("remove `{name}`, or write it in an operand; repeat makes new axes")
            }
            Self::EllipsisLost => "write `...` in the output, or name the axes to sum over".into(),
            Self::EllipsisSizes { .. } => "equal sizes, or 1, from the right".into(),
            Self::TooManyOperands { .. } | Self::TooManyIndices { .. } => "several smaller einsums".into(),
            Self::ArrowInCheck => "only the shape: `batch seq hidden`".into(),
            Self::BoundDiffers { name, .. } => {
                format!("pass arguments that agree on `{name}`, or use two names")
            }
            Self::LiteralDiffers { literal, .. } => {
                format!("an argument whose size is {literal} there")
            }
            Self::NumberTooLarge => return None,
        };
        Some(text)
    }
}

fn dimensions(count: usize) -> String {
    if count == 1 { "1 dimension".to_owned() } else { format!("{count} dimensions") }
}

fn quoted(names: &[String]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

fn assignments(known: &[(String, u64)]) -> String {
    // An unnamed axis carries its number as its name: `2 = 2` would say nothing.
    let one = |(name, size): &(String, u64)| {
        if name.starts_with(|c: char| c.is_ascii_digit()) { format!("axis {size}") } else { format!("{name} = {size}") }
    };
    known.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// Remedies for a size that is not a multiple of `product`: a size near the given one that does divide, or padding.
fn divide(dim: usize, size: u64, known: &[(String, u64)], product: u64) -> String {
    let mut text = String::new();
    // The last named axis is the one to change; the rest stays as it was given.
    if let Some((name, given)) = known.iter().rev().find(|(name, _)| name.starts_with(char::is_alphabetic)) {
        let rest = product.checked_div(*given).unwrap_or(0);
        if rest > 0 && size > 0 && size.is_multiple_of(rest) {
            let near = near_divisors(size / rest, *given);
            if !near.is_empty() {
                let list = near.iter().map(u64::to_string).collect::<Vec<_>>().join(" or ");
                let noun = if near.len() == 1 { "divisor" } else { "divisors" };
                let _ = write!(text, "{name} = {list} ({noun} of {} near {given})", size / rest);
            }
        }
    }
    if let Some(padded) = size.checked_next_multiple_of(product) {
        let or = if text.is_empty() { "" } else { ", or " };
        let _ = write!(text, "{or}pad dimension {dim} to {padded}");
    }
    if text.is_empty() { format!("a size that divides {size}") } else { text }
}

/// The divisors of `number` next below and next above `given`. The search is bounded: this is advice, not arithmetic.
fn near_divisors(number: u64, given: u64) -> Vec<u64> {
    const REACH: u64 = 4096;
    let low = given.saturating_sub(REACH).max(1);
    let below = (low..given).rev().find(|&d| number.is_multiple_of(d));
    let above =
        (given.saturating_add(1)..given.saturating_add(REACH)).find(|&d| d <= number && number.is_multiple_of(d));
    below.into_iter().chain(above).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divisors_on_both_sides() {
        assert_eq!(near_divisors(770, 12), [11, 14]);
        assert_eq!(near_divisors(11, 2), [1, 11]);
        assert_eq!(near_divisors(1, 16), [1]);
        assert_eq!(near_divisors(7, u64::MAX), [0_u64; 0]);
    }

    #[test]
    fn zero_is_no_divisor() {
        assert_eq!(divide(0, 7, &[("a".into(), 0)], 0), "a size that divides 7");
    }
}
