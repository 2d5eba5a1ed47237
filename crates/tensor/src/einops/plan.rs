//! A parsed pattern, and what it means for one shape: view, permute, then reduce or expand, then reshape.

use std::fmt::Write as _;

use smallvec::SmallVec;

use super::error::{PatternError, input_line, shape_text};
use super::parse::{self, AxisKind, Source, Span, Term};
use super::problem::{Problem, Side};

/// Sizes of the dimensions of a shape, on the stack up to rank 6; the same type as that of a layout.
pub type Dims = SmallVec<[u64; 6]>;

/// Positions of dimensions, on the stack up to rank 8.
pub type Positions = SmallVec<[usize; 8]>;

/// Which operation a pattern is for. The rules on axes that stand on one side only differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PatternKind {
    /// Every axis on both sides.
    Rearrange,
    /// Axes that are missing on the right are reduced.
    Reduce,
    /// Axes that are new on the right are repeated over.
    Repeat,
}

impl PatternKind {
    /// `rearrange`, `reduce`, `repeat`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rearrange => "rearrange",
            Self::Reduce => "reduce",
            Self::Repeat => "repeat",
        }
    }
}

/// What `reduce` does with the axes that are missing on the right.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReduceOp {
    /// Sum.
    Sum,
    /// Arithmetic mean.
    Mean,
    /// Largest element.
    Max,
    /// Smallest element.
    Min,
}

impl ReduceOp {
    /// All of them, in the order of the documentation.
    pub const ALL: [Self; 4] = [Self::Sum, Self::Mean, Self::Max, Self::Min];

    /// `sum`, `mean`, `max`, `min`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Mean => "mean",
            Self::Max => "max",
            Self::Min => "min",
        }
    }
}

/// A pattern of `rearrange`, `reduce` or `repeat`: parsed once, immutable, good for every shape it fits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    kind: PatternKind,
    text: Box<str>,
    left: Vec<Term>,
    right: Vec<Term>,
}

/// What to do with a tensor of one shape. Steps in order; each may be nothing at all.
///
/// 1. view as [`split_shape`](Self::split_shape): one dimension for each axis of the left side
/// 2. permute by [`permutation`](Self::permutation): kept axes in the order of the right side, reduced axes last
/// 3. reduce the last [`reduced`](Self::reduced) dimensions, or insert a dimension of size 1 at each of
///    [`repeats`](Self::repeats) (ascending) and expand to [`expanded_shape`](Self::expanded_shape)
/// 4. reshape to [`merge_shape`](Self::merge_shape): the brackets and unit axes of the right side
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RearrangePlan {
    /// Sizes of the axes of the left side, in order; unit axes are left out.
    pub split_shape: Dims,
    /// Where each dimension comes from: kept axes first, reduced axes last.
    pub permutation: Positions,
    /// How many dimensions at the end of the permuted shape are reduced.
    pub reduced: usize,
    /// New axes: position in `expanded_shape` and size.
    pub repeats: SmallVec<[(usize, u64); 4]>,
    /// Sizes of the axes of the right side, in order; unit axes are left out.
    pub expanded_shape: Dims,
    /// Shape of the result.
    pub merge_shape: Dims,
}

impl RearrangePlan {
    /// True when the permutation moves nothing.
    pub fn is_in_order(&self) -> bool {
        self.permutation.iter().enumerate().all(|(to, &from)| to == from)
    }

    /// Elements of the result.
    pub fn elements(&self) -> u64 {
        self.merge_shape.iter().product()
    }
}

/// An axis with its size, on the way from the left side to the right.
struct Sized<'a> {
    key: Key<'a>,
    size: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Key<'a> {
    Name(&'a str),
    Ellipsis(usize),
    Number,
}

impl Pattern {
    /// Reads a pattern.
    ///
    /// # Errors
    /// [`PatternError`] for text that is no pattern, names that stand twice on one side, and axes that stand on one
    /// side only where `kind` does not allow it.
    pub fn parse(kind: PatternKind, text: &str) -> Result<Self, PatternError> {
        let source = Source { op: kind.name(), text };
        let tokens = parse::lex(&source)?;
        let (left, right) = parse::split_arrow(&source, &tokens)?;
        let left = parse::terms(&source, left)?;
        let right = parse::terms(&source, right)?;
        for (terms, side) in [(&left, Side::Left), (&right, Side::Right)] {
            parse::refuse_any(&source, terms)?;
            parse::refuse_duplicates(&source, terms, side)?;
            refuse_numbers(&source, terms, kind, side)?;
        }
        if let Some(group) = left.iter().find(|term| term.bracketed && term.has_ellipsis()) {
            return Err(source.error(group.span, Problem::EllipsisInLeftGroup));
        }
        let pattern = Self { kind, text: text.into(), left, right };
        pattern.refuse_one_sided(&source)?;
        Ok(pattern)
    }

    /// Which operation the pattern is for.
    pub fn kind(&self) -> PatternKind {
        self.kind
    }

    /// The text it was read from.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The dimensions of the input, as written.
    pub fn left(&self) -> &[Term] {
        &self.left
    }

    /// The dimensions of the output, as written.
    pub fn right(&self) -> &[Term] {
        &self.right
    }

    fn source(&self) -> Source<'_> {
        Source { op: self.kind.name(), text: &self.text }
    }

    /// Names of the left side, then names that are new on the right.
    fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for axis in self.left.iter().chain(&self.right).flat_map(|term| &term.axes) {
            if let Some(name) = axis.name()
                && !names.contains(&name)
            {
                names.push(name);
            }
        }
        names
    }

    fn refuse_one_sided(&self, source: &Source<'_>) -> Result<(), PatternError> {
        let missing = |from: &[Term], other: &[Term]| -> Option<(AxisKind, Span)> {
            let has = |kind: &AxisKind| other.iter().flat_map(|term| &term.axes).any(|axis| axis.kind == *kind);
            let mut axes = from.iter().flat_map(|term| &term.axes);
            let lost = axes.find(|axis| !matches!(axis.kind, AxisKind::Number(_)) && !has(&axis.kind))?;
            Some((lost.kind.clone(), lost.span))
        };
        if self.kind != PatternKind::Reduce
            && let Some((kind, span)) = missing(&self.left, &self.right)
        {
            return Err(source.error(span, one_sided(kind, Side::Left)));
        }
        let new_on_right = if self.kind == PatternKind::Repeat {
            // Names may be new here; an ellipsis may not, since nothing says what it would hold.
            let left_has = self.left.iter().any(Term::has_ellipsis);
            let mut right = self.right.iter().flat_map(|term| &term.axes);
            let lost = right.find(|axis| axis.kind == AxisKind::Ellipsis && !left_has);
            lost.map(|axis| (axis.kind.clone(), axis.span))
        } else {
            missing(&self.right, &self.left)
        };
        match new_on_right {
            Some((kind, span)) => Err(source.error(span, one_sided(kind, Side::Right))),
            None => Ok(()),
        }
    }

    /// What the pattern does with an input of `shape`, given the sizes of some axes.
    ///
    /// # Errors
    /// [`PatternError`] when the rank differs, a bracket does not divide its dimension, a size is missing, given
    /// twice, of no use, or contradicted by the shape.
    pub fn resolve(&self, shape: &[u64], sizes: &[(&str, u64)]) -> Result<RearrangePlan, PatternError> {
        let resolved = self.resolve_axes(shape, sizes).map(|(plan, _)| plan);
        resolved.map_err(|error| error.with_context(input_line(shape, sizes)))
    }

    fn resolve_axes(
        &self,
        shape: &[u64],
        sizes: &[(&str, u64)],
    ) -> Result<(RearrangePlan, Vec<Sized<'_>>), PatternError> {
        self.check_sizes(sizes)?;
        let axes = self.split(shape, sizes)?;
        let mut plan = RearrangePlan {
            split_shape: axes.iter().map(|axis| axis.size).collect(),
            permutation: Positions::new(),
            reduced: 0,
            repeats: SmallVec::new(),
            expanded_shape: Dims::new(),
            merge_shape: Dims::new(),
        };
        let source = self.source();
        for term in &self.right {
            let first = plan.expanded_shape.len();
            for axis in &term.axes {
                match &axis.kind {
                    AxisKind::Name(name) => {
                        let known = axes.iter().position(|known| known.key == Key::Name(name));
                        let given = || sizes.iter().find(|(given, _)| *given == &**name).map(|(_, size)| *size);
                        if let Some(from) = known {
                            plan.permutation.push(from);
                            plan.expanded_shape.push(axes[from].size);
                        } else if let Some(size) = given() {
                            plan.repeats.push((plan.expanded_shape.len(), size));
                            plan.expanded_shape.push(size);
                        } else {
                            let name = name.to_string();
                            return Err(source.error(axis.span, Problem::NewAxisWithoutSize { name }));
                        }
                    }
                    AxisKind::Number(1) | AxisKind::Any => {}
                    AxisKind::Number(size) => {
                        plan.repeats.push((plan.expanded_shape.len(), *size));
                        plan.expanded_shape.push(*size);
                    }
                    AxisKind::Ellipsis => {
                        let dots = axes.iter().enumerate().filter(|(_, axis)| matches!(axis.key, Key::Ellipsis(_)));
                        for (from, axis) in dots {
                            plan.permutation.push(from);
                            plan.expanded_shape.push(axis.size);
                        }
                    }
                }
            }
            let group = &plan.expanded_shape[first..];
            if term.is_ellipsis() {
                plan.merge_shape.extend(group.iter().copied());
            } else {
                let merged = product(group).ok_or_else(|| source.error(term.span, Problem::TooManyElements))?;
                plan.merge_shape.push(merged);
            }
        }
        if product(&plan.merge_shape).is_none() {
            return Err(source.error(source.whole(), Problem::TooManyElements));
        }
        let kept = plan.permutation.len();
        for from in 0..axes.len() {
            if !plan.permutation[..kept].contains(&from) {
                plan.permutation.push(from);
            }
        }
        plan.reduced = axes.len() - kept;
        Ok((plan, axes))
    }

    fn check_sizes(&self, sizes: &[(&str, u64)]) -> Result<(), PatternError> {
        let source = self.source();
        for (position, (name, _)) in sizes.iter().enumerate() {
            let name = (*name).to_owned();
            if sizes[..position].iter().any(|(earlier, _)| *earlier == name) {
                return Err(source.error(self.span_of(&name), Problem::RepeatedSize { name }));
            }
            if !self.names().contains(&name.as_str()) {
                let known = self.names().into_iter().map(str::to_owned).collect();
                return Err(source.error(source.whole(), Problem::UnusedSize { name, known }));
            }
        }
        Ok(())
    }

    /// Where a name first stands.
    fn span_of(&self, name: &str) -> Span {
        let mut axes = self.left.iter().chain(&self.right).flat_map(|term| &term.axes);
        axes.find(|axis| axis.name() == Some(name)).map_or(self.source().whole(), |axis| axis.span)
    }

    /// The axes of the left side with their sizes.
    fn split(&self, shape: &[u64], sizes: &[(&str, u64)]) -> Result<Vec<Sized<'_>>, PatternError> {
        let source = self.source();
        let open = self.left.iter().any(Term::is_ellipsis);
        let named = self.left.len() - usize::from(open);
        if shape.len() < named || (!open && shape.len() != named) {
            let span = self.left.iter().map(|term| term.span).reduce(Span::to).unwrap_or_default();
            return Err(source.error(span, Problem::Rank { terms: named, open, rank: shape.len() }));
        }
        if product(shape).is_none() {
            return Err(source.error(source.whole(), Problem::TooManyElements));
        }
        let mut axes = Vec::with_capacity(shape.len() + 4);
        let mut dim = 0;
        for term in &self.left {
            if term.is_ellipsis() {
                for (position, &size) in shape[dim..dim + shape.len() - named].iter().enumerate() {
                    axes.push(Sized { key: Key::Ellipsis(position), size });
                }
                dim += shape.len() - named;
            } else {
                split_term(&source, term, dim, shape[dim], sizes, &mut axes)?;
                dim += 1;
            }
        }
        Ok(axes)
    }

    /// What the pattern means for a row-major input of `shape`: the steps, and for every output dimension how far
    /// apart in the input its elements lie. Answers "which order do the axes in a bracket have".
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve).
    pub fn explain(&self, shape: &[u64], sizes: &[(&str, u64)]) -> Result<String, PatternError> {
        let resolved = self.resolve_axes(shape, sizes);
        let (plan, axes) = resolved.map_err(|error| error.with_context(input_line(shape, sizes)))?;
        let mut strides = vec![1_u64; axes.len()];
        for position in (1..axes.len()).rev() {
            // Saturating: a shape with a zero can have strides beyond its element count.
            strides[position - 1] = strides[position].saturating_mul(axes[position].size);
        }
        let mut text =
            format!("{} {}: {} -> {}\n", self.kind.name(), self.text, shape_text(shape), shape_text(&plan.merge_shape));
        let _ = writeln!(text, "  split     {}", shape_text(&plan.split_shape));
        let _ = writeln!(text, "  permute   {:?}", plan.permutation.as_slice());
        if plan.reduced > 0 {
            let _ = writeln!(text, "  reduce    last {}", plan.reduced);
        }
        if !plan.repeats.is_empty() {
            let _ = writeln!(text, "  expand    {}", shape_text(&plan.expanded_shape));
        }
        let _ = writeln!(text, "  merge     {}", shape_text(&plan.merge_shape));
        for term in &self.right {
            let mut parts: Vec<String> = Vec::new();
            for axis in &term.axes {
                let known = match &axis.kind {
                    AxisKind::Name(name) => axes.iter().position(|known| known.key == Key::Name(name)),
                    AxisKind::Number(1) | AxisKind::Ellipsis => continue,
                    _ => None,
                };
                let stride = known.map_or(0, |position| strides[position]);
                parts.push(format!("{} steps {stride}", axis.span.of(&self.text)));
            }
            if !parts.is_empty() {
                let _ = writeln!(text, "  {:<9} {}", term.span.of(&self.text), parts.join(", "));
            }
        }
        Ok(text)
    }
}

fn one_sided(kind: AxisKind, side: Side) -> Problem {
    match (kind, side) {
        (AxisKind::Name(name), Side::Left) => Problem::OnlyOnLeft { name: name.into() },
        (AxisKind::Name(name), Side::Right) => Problem::OnlyOnRight { name: name.into() },
        (_, side) => Problem::EllipsisOnly { side },
    }
}

/// Sizes as numbers: `1` anywhere; others where they are reduced away (left of reduce) or new (right of repeat).
fn refuse_numbers(source: &Source<'_>, terms: &[Term], kind: PatternKind, side: Side) -> Result<(), PatternError> {
    let allowed = matches!((kind, side), (PatternKind::Reduce, Side::Left) | (PatternKind::Repeat, Side::Right));
    for axis in terms.iter().flat_map(|term| &term.axes) {
        if let AxisKind::Number(number @ 2..) = axis.kind
            && !allowed
        {
            return Err(source.error(axis.span, Problem::NumberNotAllowed { number, side }));
        }
    }
    Ok(())
}

/// Splits one dimension over the axes of its term; at most one of them may be unknown.
fn split_term<'a>(
    source: &Source<'_>,
    term: &'a Term,
    dim: usize,
    size: u64,
    sizes: &[(&str, u64)],
    axes: &mut Vec<Sized<'a>>,
) -> Result<(), PatternError> {
    let given = |name: &str| sizes.iter().find(|(other, _)| *other == name).map(|(_, size)| *size);
    let mut known: Vec<(String, u64)> = Vec::new();
    let mut unknown: Option<usize> = None;
    for axis in &term.axes {
        let (key, axis_size) = match &axis.kind {
            AxisKind::Name(name) => (Key::Name(name), given(name)),
            AxisKind::Number(number) => (Key::Number, Some(*number)),
            AxisKind::Ellipsis | AxisKind::Any => continue,
        };
        match axis_size {
            Some(_) if axis.kind == AxisKind::Number(1) => {}
            Some(size) => known.push((axis.span.of(source.text).to_owned(), size)),
            None if unknown.is_some() => {
                let names = term.axes.iter().filter_map(parse::Axis::name).filter(|name| given(name).is_none());
                let names = names.map(str::to_owned).collect();
                return Err(source.error(term.span, Problem::TwoUnknown { names, dim, size }));
            }
            None => unknown = Some(axes.len()),
        }
        if axis.kind != AxisKind::Number(1) {
            axes.push(Sized { key, size: axis_size.unwrap_or(0) });
        }
    }
    let factors: Dims = known.iter().map(|(_, size)| *size).collect();
    let product = product(&factors).ok_or_else(|| source.error(term.span, Problem::TooManyElements))?;
    let fault = |problem| Err(source.error(term.span, problem));
    match unknown {
        None if product == size => {}
        None => {
            return match (&term.axes[..], &known[..]) {
                ([axis], [(name, given)]) if axis.name().is_some() => {
                    fault(Problem::SizeConflict { name: name.clone(), given: *given, dim, size })
                }
                _ => fault(Problem::ProductDiffers { dim, size, known, product }),
            };
        }
        Some(at) if product > 0 && size.is_multiple_of(product) => axes[at].size = size / product,
        Some(at) if product == 0 && size == 0 => {
            let Key::Name(name) = axes[at].key else {
                return Ok(());
            };
            return fault(Problem::ZeroOverZero { name: name.to_owned(), dim, size });
        }
        Some(_) => {
            return fault(Problem::NotDivisible { dim, size, known, product });
        }
    }
    Ok(())
}

/// Product with overflow as `None`; an empty product is 1. A zero anywhere makes 0, whatever the others are.
pub(crate) fn product(sizes: &[u64]) -> Option<u64> {
    if sizes.contains(&0) {
        return Some(0);
    }
    sizes.iter().try_fold(1_u64, |product, &size| product.checked_mul(size))
}
