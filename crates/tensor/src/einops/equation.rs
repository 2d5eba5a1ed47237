//! Einsum equations: text to axes, in one of two readings.
//!
//! # Names or letters
//! `b s1 h, b s2 h -> b s1 s2` names its axes and separates them with spaces. The classic form `bij,bjk->bik` is read
//! letter by letter. An equation *can* be of letters when no operand and no output has a space inside, all of it is
//! ASCII letters and `...`, and some part is longer than one letter. Which of the two it is then depends on the
//! operands: letters if the number of letters of every operand is its rank, otherwise names if those fit (`seq, seq ->`
//! with two vectors). It is of letters whatever the ranks if `...` touches a word, or if as names the output would hold
//! one that no operand has. The whole equation is read one way; the two are never mixed. Only the letters form may
//! leave out the output, which is then every letter that occurs once, in alphabetical order, after `...`.

use smallvec::SmallVec;

use super::einsum::{self, Contraction};
use super::error::{PatternError, shape_text};
use super::parse::{self, Axis, AxisKind, Source, Span, Token};
use super::path::{self, PairSize, PathCost};
use super::plan::Dims;
use super::problem::Problem;

/// Most operands of one equation.
pub const MAX_OPERANDS: usize = 64;

const OP: &str = "einsum";

/// An equation, parsed once. Which of its two readings holds is known when shapes are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Equation {
    text: Box<str>,
    named: Reading,
    letters: Option<Reading>,
    /// The reading by name makes no sense, whatever the shapes.
    never_named: bool,
}

/// One way to read an equation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reading {
    pub operands: Vec<Operand>,
    pub output: Option<Operand>,
}

impl Reading {
    fn has_unknown_output(&self) -> bool {
        let known = |name: &str| self.operands.iter().flat_map(|side| &side.axes).any(|axis| axis.name() == Some(name));
        self.output.iter().flat_map(|side| &side.axes).filter_map(Axis::name).any(|name| !known(name))
    }
}

/// The axes of one operand or of the output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Operand {
    pub axes: Vec<Axis>,
    pub span: Span,
}

impl Operand {
    pub fn ellipsis(&self) -> Option<&Axis> {
        self.axes.iter().find(|axis| axis.kind == AxisKind::Ellipsis)
    }

    /// Axes without the ellipsis.
    pub fn named(&self) -> usize {
        self.axes.len() - usize::from(self.ellipsis().is_some())
    }

    pub fn fits(&self, rank: usize) -> bool {
        if self.ellipsis().is_some() { rank >= self.named() } else { rank == self.named() }
    }
}

impl Equation {
    /// Reads an equation.
    ///
    /// # Errors
    /// [`PatternError`] for text that is no equation. Whether its indices make sense is known only with shapes.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        let source = Source { op: OP, text };
        let tokens = parse::lex(&source)?;
        let arrow = tokens.iter().position(|(token, _)| *token == Token::Arrow);
        if arrow.is_some() {
            parse::split_arrow(&source, &tokens)?;
        }
        let left = &tokens[..arrow.unwrap_or(tokens.len())];
        let left_end = arrow.map_or(text.len(), |at| tokens[at].1.start);
        let mut parts = Vec::new();
        let mut start = 0;
        for part in left.split(|(token, _)| *token == Token::Comma) {
            let end = part.last().map_or(start, |(_, span)| span.end);
            let comma = left.iter().find(|(token, span)| *token == Token::Comma && span.start >= end.max(start));
            let edge = comma.map_or(left_end, |(_, span)| span.start);
            parts.push((part, trimmed(text, start, edge)));
            start = comma.map_or(left_end, |(_, span)| span.end);
        }
        if parts.len() > MAX_OPERANDS {
            return Err(source.error(source.whole(), Problem::TooManyOperands { limit: MAX_OPERANDS }));
        }
        let output = arrow.map(|at| (&tokens[at + 1..], trimmed(text, tokens[at].1.end, text.len())));
        let read = |by: Reader| -> Result<Reading, PatternError> {
            let operands = parts.iter().map(|(part, span)| by(&source, part, *span)).collect::<Result<_, _>>()?;
            let output = output.map(|(part, span)| by(&source, part, span)).transpose()?;
            Ok(Reading { operands, output })
        };
        let all = || parts.iter().copied().chain(output);
        let can_be_letters = all().all(|(part, _)| is_letters(part))
            && all()
                .any(|(part, span)| span.of(text).len() > 1 && part.iter().any(|(t, _)| matches!(t, Token::Word(_))));
        let letters = can_be_letters.then(|| read(by_letter)).transpose()?;
        let named = read(by_name)?;
        let touching = all().any(|(part, _)| part.len() > 1);
        let never_named = letters.is_some() && (touching || named.has_unknown_output());
        Ok(Self { text: text.into(), named, letters, never_named })
    }

    /// The text it was read from.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Number of operands.
    pub fn operands(&self) -> usize {
        self.named.operands.len()
    }

    fn source(&self) -> Source<'_> {
        Source { op: OP, text: &self.text }
    }

    /// The contraction for operands of these shapes, in the order that needs the fewest FLOP.
    ///
    /// # Errors
    /// [`PatternError`] when the number of operands or a rank differs, an index has two sizes (size 1 is no
    /// exception), or the output has an index twice or one that no operand has.
    pub fn resolve(&self, shapes: &[&[u64]]) -> Result<Contraction, PatternError> {
        self.resolve_with(shapes, &path::flops_then_size)
    }

    /// As [`resolve`](Self::resolve), in the order that is cheapest by `cost`: the engine's own rule, bytes of a dtype.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve).
    pub fn resolve_with(
        &self,
        shapes: &[&[u64]],
        cost: &dyn Fn(&PairSize) -> PathCost,
    ) -> Result<Contraction, PatternError> {
        self.bind(shapes, cost).map_err(|error| {
            let shapes = shapes.iter().map(|shape| shape_text(shape)).collect::<Vec<_>>();
            error.with_context(format!("operand shapes {}", shapes.join(", ")))
        })
    }

    /// The contraction when each axis has the size given by name, as a calculator asks it. An ellipsis holds nothing.
    ///
    /// # Errors
    /// [`PatternError`] when a size is missing, given twice or for an axis that the equation does not have.
    pub fn resolve_sizes(&self, sizes: &[(&str, u64)]) -> Result<Contraction, PatternError> {
        let source = self.source();
        let given = |name: &str| sizes.iter().find(|(other, _)| *other == name).map(|(_, size)| *size);
        let names = |reading: &Reading| -> Vec<(String, Span)> {
            let axes = reading.operands.iter().flat_map(|operand| &operand.axes);
            axes.filter_map(|axis| Some((axis.name()?.to_owned(), axis.span))).collect()
        };
        let complete = |reading: &&Reading| names(reading).iter().all(|(name, _)| given(name).is_some());
        let named = Some(&self.named).filter(|_| !self.never_named);
        let reading = named.filter(complete).or(self.letters.as_ref()).unwrap_or(&self.named);
        let known = names(reading);
        for (position, (name, _)) in sizes.iter().enumerate() {
            let name = (*name).to_owned();
            if sizes[..position].iter().any(|(earlier, _)| *earlier == name) {
                return Err(source.error(source.whole(), Problem::RepeatedSize { name }));
            }
            if !known.iter().any(|(other, _)| *other == name) {
                let mut known: Vec<String> = known.into_iter().map(|(name, _)| name).collect();
                known.sort();
                known.dedup();
                return Err(source.error(source.whole(), Problem::UnusedSize { name, known }));
            }
        }
        if let Some((name, span)) = known.into_iter().find(|(name, _)| given(name).is_none()) {
            return Err(source.error(span, Problem::MissingSize { name }));
        }
        let shape = |operand: &Operand| -> Dims {
            operand.axes.iter().filter_map(|axis| axis.name().and_then(given)).collect()
        };
        let shapes: Vec<Dims> = reading.operands.iter().map(shape).collect();
        self.resolve(&shapes.iter().map(SmallVec::as_slice).collect::<Vec<_>>())
    }

    /// The reading that the ranks decide for.
    fn reading(&self, shapes: &[&[u64]]) -> &Reading {
        let fits = |reading: &&Reading| reading.operands.iter().zip(shapes).all(|(side, shape)| side.fits(shape.len()));
        match &self.letters {
            Some(letters) if self.never_named || fits(&letters) || !fits(&&self.named) => letters,
            _ => &self.named,
        }
    }

    fn bind(&self, shapes: &[&[u64]], cost: &dyn Fn(&PairSize) -> PathCost) -> Result<Contraction, PatternError> {
        let source = self.source();
        if shapes.len() != self.operands() {
            let problem = Problem::OperandCount { terms: self.operands(), operands: shapes.len() };
            return Err(source.error(source.whole(), problem));
        }
        let reading = self.reading(shapes);
        einsum::contract(source, reading, shapes, cost)
    }
}

type Reader = fn(&Source<'_>, &[(Token<'_>, Span)], Span) -> Result<Operand, PatternError>;

/// The part of `text` between two bytes, without the spaces around it.
fn trimmed(text: &str, start: usize, end: usize) -> Span {
    let part = text.get(start..end).unwrap_or("");
    let lead = part.len() - part.trim_start().len();
    Span::new(start + lead, start + lead + part.trim().len())
}

/// Letters and dots only, nothing between them.
fn is_letters(part: &[(Token<'_>, Span)]) -> bool {
    let plain = |token: &Token<'_>| match token {
        Token::Word(word) => word.bytes().all(|byte| byte.is_ascii_alphabetic()),
        token => *token == Token::Dots,
    };
    part.iter().all(|(token, _)| plain(token)) && part.windows(2).all(|pair| pair[0].1.end == pair[1].1.start)
}

fn by_name(source: &Source<'_>, part: &[(Token<'_>, Span)], span: Span) -> Result<Operand, PatternError> {
    let mut axes = Vec::new();
    for term in parse::terms(source, part)? {
        if term.bracketed {
            return Err(source.error(term.span, Problem::NotAnIndex));
        }
        axes.extend(term.axes);
    }
    match axes.iter().find(|axis| matches!(axis.kind, AxisKind::Number(_) | AxisKind::Any)) {
        Some(axis) => Err(source.error(axis.span, Problem::NotAnIndex)),
        None => Ok(Operand { axes, span }),
    }
}

fn by_letter(source: &Source<'_>, part: &[(Token<'_>, Span)], span: Span) -> Result<Operand, PatternError> {
    let named = by_name(source, part, span)?;
    let mut axes = Vec::new();
    for axis in named.axes {
        match &axis.kind {
            AxisKind::Name(word) => axes.extend(word.char_indices().map(|(at, letter)| Axis {
                kind: AxisKind::Name(letter.to_string().into()),
                span: Span::new(axis.span.start + at, axis.span.start + at + letter.len_utf8()),
            })),
            _ => axes.push(axis),
        }
    }
    Ok(Operand { axes, span })
}
