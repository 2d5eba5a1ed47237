//! Shape checks: patterns bound across the arguments of a function.
//!
//! ```text
//! let mut check = ShapeCheck::new("attention");
//! check.arg("q", &[2, 256, 8, 64], "batch seq heads head_dim")?;
//! check.arg("k", &[2, 512, 8, 64], "batch seq heads head_dim")?;
//! // dim `seq`: 512 here, 256 in argument `q`
//! ```

use super::error::{PatternError, shape_text};
use super::parse::{self, AxisKind, Source, Span, Term, Token};
use super::plan::{Dims, product};
use super::problem::{Problem, Side};

const OP: &str = "shape check";

/// The sizes that names stand for, within one call of one function.
///
/// In a pattern a name binds a size or compares with the one it has; a number is that size; `_` is any size; `...` is
/// any number of dimensions; a bracket is the product of its axes, one of which may be unknown.
#[derive(Debug, Clone)]
pub struct ShapeCheck {
    scope: Box<str>,
    bindings: Vec<Binding>,
}

/// A name, its size, and the argument that set it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binding {
    /// The name.
    pub name: Box<str>,
    /// Its size.
    pub size: u64,
    /// The argument it was bound by; empty when it was set with [`ShapeCheck::bind`].
    pub argument: Box<str>,
}

impl ShapeCheck {
    /// A scope without bindings. `scope` is the function that is checked; errors name it.
    pub fn new(scope: &str) -> Self {
        Self { scope: scope.into(), bindings: Vec::new() }
    }

    /// Sets a size that is known beforehand, from a configuration for example. A later call replaces it.
    pub fn bind(&mut self, name: &str, size: u64) -> &mut Self {
        self.bindings.retain(|binding| *binding.name != *name);
        self.bindings.push(Binding { name: name.into(), size, argument: "".into() });
        self
    }

    /// The size of a name, if it has one.
    pub fn size(&self, name: &str) -> Option<u64> {
        self.find(name).map(|binding| binding.size)
    }

    /// All bindings in the order they were made.
    pub fn bindings(&self) -> &[Binding] {
        &self.bindings
    }

    fn find(&self, name: &str) -> Option<&Binding> {
        self.bindings.iter().find(|binding| *binding.name == *name)
    }

    /// Checks the shape of one argument, and binds the names that are new.
    ///
    /// # Errors
    /// [`PatternError`] when the rank differs or a dimension is not what its name, number or bracket says. The
    /// bindings are as before then.
    pub fn arg(&mut self, argument: &str, shape: &[u64], pattern: &str) -> Result<&mut Self, PatternError> {
        let known = self.bindings.len();
        match self.match_shape(argument, shape, pattern) {
            Ok(()) => Ok(self),
            Err(error) => {
                self.bindings.truncate(known);
                let error = error.with_context(format!(
                    "in `{}`, argument `{argument}` has shape {}",
                    self.scope,
                    shape_text(shape)
                ));
                Err(if self.bindings.is_empty() { error } else { error.with_context(self.bindings_line()) })
            }
        }
    }

    fn bindings_line(&self) -> String {
        let one = |binding: &Binding| match &*binding.argument {
            "" => format!("{} = {}", binding.name, binding.size),
            argument => format!("{} = {} (`{argument}`)", binding.name, binding.size),
        };
        format!("bound so far: {}", self.bindings.iter().map(one).collect::<Vec<_>>().join(", "))
    }

    fn match_shape(&mut self, argument: &str, shape: &[u64], pattern: &str) -> Result<(), PatternError> {
        let source = Source { op: OP, text: pattern };
        let tokens = parse::lex(&source)?;
        if let Some((_, span)) = tokens.iter().find(|(token, _)| *token == Token::Arrow) {
            return Err(source.error(*span, Problem::ArrowInCheck));
        }
        let terms = parse::terms(&source, &tokens)?;
        let dots = terms.iter().position(Term::is_ellipsis);
        let named = terms.len() - usize::from(dots.is_some());
        if shape.len() < named || (dots.is_none() && shape.len() != named) {
            let problem = Problem::Rank { terms: named, open: dots.is_some(), rank: shape.len() };
            return Err(source.error(source.whole(), problem));
        }
        for (position, term) in terms.iter().enumerate() {
            let dim = match dots {
                Some(at) if position == at => continue,
                // Behind the ellipsis dimensions are counted from the end.
                Some(at) if position > at => shape.len() - (terms.len() - position),
                _ => position,
            };
            if term.has_ellipsis() {
                return Err(source.error(term.span, Problem::EllipsisInLeftGroup));
            }
            self.match_dim(&source, argument, term, dim, shape[dim])?;
        }
        Ok(())
    }

    fn match_dim(
        &mut self,
        source: &Source<'_>,
        argument: &str,
        term: &Term,
        dim: usize,
        size: u64,
    ) -> Result<(), PatternError> {
        if let [axis] = &term.axes[..] {
            match &axis.kind {
                AxisKind::Name(name) => {
                    return self.match_name(source, argument, name, axis.span, (dim, size));
                }
                AxisKind::Number(literal) if *literal != size => {
                    return Err(source.error(axis.span, Problem::LiteralDiffers { dim, literal: *literal, size }));
                }
                _ => return Ok(()),
            }
        }
        let mut known: Vec<(String, u64)> = Vec::new();
        let mut unknown: Vec<&str> = Vec::new();
        for (position, axis) in term.axes.iter().enumerate() {
            let written = axis.span.of(source.text);
            let earlier = |other: &parse::Axis| axis.name().is_some() && other.name() == axis.name();
            match &axis.kind {
                AxisKind::Number(literal) => known.push((written.to_owned(), *literal)),
                AxisKind::Name(_) if term.axes[..position].iter().any(earlier) => {
                    let problem = Problem::DuplicateAxis { name: written.to_owned(), side: Side::Left };
                    return Err(source.error(axis.span, problem));
                }
                AxisKind::Name(name) => match self.size(name) {
                    Some(bound) => known.push((written.to_owned(), bound)),
                    None => unknown.push(written),
                },
                AxisKind::Any | AxisKind::Ellipsis => unknown.push(written),
            }
        }
        let factors: Dims = known.iter().map(|(_, size)| *size).collect();
        let product = product(&factors).ok_or_else(|| source.error(term.span, Problem::TooManyElements))?;
        match unknown[..] {
            [] if product == size => Ok(()),
            [] => Err(source.error(term.span, Problem::ProductDiffers { dim, size, known, product })),
            [_] if product == 0 && size == 0 => Ok(()),
            [name] if product > 0 && size.is_multiple_of(product) => {
                if name != "_" {
                    let size = size / product;
                    self.bindings.push(Binding { name: name.into(), size, argument: argument.into() });
                }
                Ok(())
            }
            [_] => Err(source.error(term.span, Problem::NotDivisible { dim, size, known, product })),
            _ => {
                let names = unknown.into_iter().map(str::to_owned).collect();
                Err(source.error(term.span, Problem::TwoUnknown { names, dim, size }))
            }
        }
    }

    fn match_name(
        &mut self,
        source: &Source<'_>,
        argument: &str,
        name: &str,
        span: Span,
        (dim, size): (usize, u64),
    ) -> Result<(), PatternError> {
        match self.find(name) {
            None => {
                self.bindings.push(Binding { name: name.into(), size, argument: argument.into() });
                Ok(())
            }
            Some(binding) if binding.size == size => Ok(()),
            Some(binding) => {
                let (there, by) = (binding.size, binding.argument.to_string());
                let problem = Problem::BoundDiffers { name: name.to_owned(), here: size, there, argument: by, dim };
                Err(source.error(span, problem))
            }
        }
    }
}
