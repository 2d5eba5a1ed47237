//! Pattern text to structure. Knows nothing of tensors, so it is tested alone.
//!
//! Every axis and every bracket keeps the bytes it was written in, because an error that can point is worth
//! more than an error that can only talk.

use std::collections::BTreeSet;

use smallvec::SmallVec;

use super::error::PatternError;
use super::problem::{Problem, Side};

/// Longest pattern that is read at all. Real patterns are below 100 bytes; a bound keeps hostile text cheap.
pub const MAX_PATTERN_BYTES: usize = 4096;

/// Bytes `start..end` of the pattern text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Span {
    /// First byte.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
}

impl Span {
    /// The bytes `start..end`.
    pub const fn new(start: usize, end: usize) -> Self {
        Self { start, end }
    }

    /// The smallest span that holds both.
    pub fn to(self, other: Self) -> Self {
        Self::new(self.start.min(other.start), self.end.max(other.end))
    }

    /// The text under the span, or nothing when the span does not lie in `text`.
    pub fn of(self, text: &str) -> &str {
        text.get(self.start..self.end).unwrap_or("")
    }
}

/// What one axis of a pattern says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AxisKind {
    /// A name: `seq`, `heads`, `b`.
    Name(Box<str>),
    /// An anonymous size: `2`. The size 1 makes no axis of its own, as in einops.
    Number(u64),
    /// `...`: as many dimensions as the rest of the pattern leaves over.
    Ellipsis,
    /// `_`: any size, not bound. Shape checks only.
    Any,
}

/// One axis and where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Axis {
    /// What it says.
    pub kind: AxisKind,
    /// Where it stands.
    pub span: Span,
}

impl Axis {
    /// The name, if the axis has one.
    pub fn name(&self) -> Option<&str> {
        match &self.kind {
            AxisKind::Name(name) => Some(name),
            _ => None,
        }
    }
}

/// One dimension of a side of a pattern: a single axis, or a bracket of axes (leftmost varies slowest).
/// `()` is a bracket of none: a dimension of size 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Term {
    /// The axes, outermost first.
    pub axes: SmallVec<[Axis; 2]>,
    /// Written with brackets.
    pub bracketed: bool,
    /// The whole term, brackets included.
    pub span: Span,
}

impl Term {
    /// True for an ellipsis outside brackets, which stands for several dimensions instead of one.
    pub fn is_ellipsis(&self) -> bool {
        !self.bracketed && self.has_ellipsis()
    }

    /// True when an ellipsis is among the axes.
    pub fn has_ellipsis(&self) -> bool {
        self.axes.iter().any(|axis| axis.kind == AxisKind::Ellipsis)
    }
}

/// A pattern text together with the operation it was written for: all that an error needs to be readable.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Source<'a> {
    /// `rearrange`, `einsum`, ...
    pub op: &'static str,
    /// The pattern as the user wrote it.
    pub text: &'a str,
}

impl Source<'_> {
    /// An error with its caret under `span`.
    pub fn error(&self, span: Span, problem: Problem) -> PatternError {
        PatternError::new(self.op, self.text, &[span], problem)
    }

    /// An error with a caret under each of two places.
    pub fn error2(&self, first: Span, second: Span, problem: Problem) -> PatternError {
        PatternError::new(self.op, self.text, &[first, second], problem)
    }

    /// The span of the whole text.
    pub fn whole(&self) -> Span {
        Span::new(0, self.text.len())
    }
}

/// A word or a sign.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Token<'a> {
    /// Letters, digits and underscores; not yet known to be a name or a number.
    Word(&'a str),
    /// `(`
    Open,
    /// `)`
    Close,
    /// `->`
    Arrow,
    /// `,`
    Comma,
    /// `...` or `…`
    Dots,
}

/// Cuts a pattern into tokens.
///
/// # Errors
/// Characters that no pattern has, a single `-`, `>` or `.`, and texts over [`MAX_PATTERN_BYTES`].
pub(crate) fn lex<'a>(source: &Source<'a>) -> Result<Vec<(Token<'a>, Span)>, PatternError> {
    let text = source.text;
    if text.len() > MAX_PATTERN_BYTES {
        return Err(source.error(Span::default(), Problem::TooLong { bytes: text.len() }));
    }
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(first) = text[at..].chars().next() {
        let rest = &text[at..];
        let (token, len) = if first.is_whitespace() {
            at += first.len_utf8();
            continue;
        } else if is_word(first) {
            let len = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
            (Token::Word(&rest[..len]), len)
        } else if rest.starts_with("->") {
            (Token::Arrow, 2)
        } else if rest.starts_with('.') {
            let len = rest.find(|c| c != '.').unwrap_or(rest.len());
            if len != 3 {
                return Err(source.error(Span::new(at, at + len), Problem::BadDots { count: len }));
            }
            (Token::Dots, 3)
        } else {
            let token = match first {
                '(' => Token::Open,
                ')' => Token::Close,
                ',' => Token::Comma,
                '…' => Token::Dots,
                other => {
                    let span = Span::new(at, at + first.len_utf8());
                    return Err(source.error(span, Problem::BadCharacter { character: other }));
                }
            };
            (token, first.len_utf8())
        };
        tokens.push((token, Span::new(at, at + len)));
        at += len;
    }
    Ok(tokens)
}

fn is_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// Tokens of one side to terms.
///
/// # Errors
/// Brackets that nest or do not match, words that are neither a name nor a number, commas and arrows (the caller
/// has already taken out those that belong), a second ellipsis.
pub(crate) fn terms(source: &Source<'_>, tokens: &[(Token<'_>, Span)]) -> Result<Vec<Term>, PatternError> {
    let mut terms: Vec<Term> = Vec::new();
    let mut open: Option<Term> = None;
    let mut dots: Option<Span> = None;
    for &(token, span) in tokens {
        let kind = match token {
            Token::Word(word) => Some(axis_kind(source, word, span)?),
            Token::Dots => {
                if let Some(first) = dots.replace(span) {
                    return Err(source.error2(first, span, Problem::SecondEllipsis));
                }
                Some(AxisKind::Ellipsis)
            }
            Token::Open => {
                if let Some(outer) = &open {
                    return Err(source.error2(outer.span, span, Problem::NestedBrackets));
                }
                open = Some(Term { axes: SmallVec::new(), bracketed: true, span });
                None
            }
            Token::Close => {
                let Some(mut group) = open.take() else {
                    return Err(source.error(span, Problem::UnopenedBracket));
                };
                group.span = group.span.to(span);
                terms.push(group);
                None
            }
            Token::Arrow => return Err(source.error(span, Problem::SecondArrow)),
            Token::Comma => return Err(source.error(span, Problem::UnexpectedComma)),
        };
        if let Some(kind) = kind {
            let axis = Axis { kind, span };
            match &mut open {
                Some(group) => group.axes.push(axis),
                None => terms.push(Term { axes: SmallVec::from_iter([axis]), bracketed: false, span }),
            }
        }
    }
    match open {
        Some(group) => Err(source.error(group.span, Problem::UnclosedBracket)),
        None => Ok(terms),
    }
}

fn axis_kind(source: &Source<'_>, word: &str, span: Span) -> Result<AxisKind, PatternError> {
    if word == "_" {
        return Ok(AxisKind::Any);
    }
    if word.bytes().all(|byte| byte.is_ascii_digit()) {
        return match word.parse::<u64>() {
            Ok(0) => Err(source.error(span, Problem::ZeroNumber)),
            Ok(number) => Ok(AxisKind::Number(number)),
            Err(_) => Err(source.error(span, Problem::NumberTooLarge)),
        };
    }
    let starts_well = word.chars().next().is_some_and(char::is_alphabetic);
    // einops keeps names that begin or end with an underscore for itself; patterns stay exchangeable if we do too.
    if starts_well && !word.ends_with('_') {
        Ok(AxisKind::Name(word.into()))
    } else {
        Err(source.error(span, Problem::BadName { name: word.to_owned() }))
    }
}

/// Splits the tokens of a two-sided pattern at its only arrow.
///
/// # Errors
/// No arrow, or more than one.
pub(crate) fn split_arrow<'t, 'a>(
    source: &Source<'_>,
    tokens: &'t [(Token<'a>, Span)],
) -> Result<TwoSides<'t, 'a>, PatternError> {
    let mut arrows = tokens.iter().enumerate().filter(|(_, (token, _))| *token == Token::Arrow);
    let Some((at, _)) = arrows.next() else {
        return Err(source.error(source.whole(), Problem::MissingArrow));
    };
    if let Some((_, &(_, second))) = arrows.next() {
        return Err(source.error2(tokens[at].1, second, Problem::SecondArrow));
    }
    Ok((&tokens[..at], &tokens[at + 1..]))
}

/// The tokens left and right of an arrow.
pub(crate) type TwoSides<'t, 'a> = (&'t [(Token<'a>, Span)], &'t [(Token<'a>, Span)]);

/// Refuses a name that stands twice on one side.
pub(crate) fn refuse_duplicates(source: &Source<'_>, terms: &[Term], side: Side) -> Result<(), PatternError> {
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    let mut spans: Vec<(&str, Span)> = Vec::new();
    for axis in terms.iter().flat_map(|term| &term.axes) {
        let Some(name) = axis.name() else { continue };
        if !seen.insert(name) {
            let first = spans.iter().find(|(other, _)| *other == name).map_or(axis.span, |(_, span)| *span);
            return Err(source.error2(first, axis.span, Problem::DuplicateAxis { name: name.to_owned(), side }));
        }
        spans.push((name, axis.span));
    }
    Ok(())
}

/// Refuses `_`, which only a shape check can mean something by.
pub(crate) fn refuse_any(source: &Source<'_>, terms: &[Term]) -> Result<(), PatternError> {
    match terms.iter().flat_map(|term| &term.axes).find(|axis| axis.kind == AxisKind::Any) {
        Some(axis) => Err(source.error(axis.span, Problem::BadName { name: "_".to_owned() })),
        None => Ok(()),
    }
}
