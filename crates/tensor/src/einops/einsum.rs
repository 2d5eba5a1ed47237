//! An einsum with known shapes: numbered indices, the views of each operand, the steps, the result.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use smallvec::SmallVec;

use super::equation::{Operand, Reading};
use super::error::PatternError;
use super::parse::{Axis, Source, Span};
use super::path::{self, ContractionPath, PairSize, PairStep, PathCost};
use super::plan::{Dims, Positions, product};
use super::problem::{Place, Problem, Side};

/// Index numbers, on the stack up to eight.
pub type Axes = SmallVec<[u8; 8]>;

/// Most different indices of one equation.
pub const MAX_INDICES: usize = 128;

/// One index of a contraction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Index {
    /// Its name; dimensions under an ellipsis are called `...0`, `...1` from the left.
    pub name: Box<str>,
    /// Its size.
    pub size: u64,
}

/// What happens to one operand before it meets another. All but `sum` are views.
/// Steps in the order of the fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prepare {
    /// The index of every dimension of the operand as it was passed.
    pub passed: Axes,
    /// Dimensions of size 1 under `...` that are broadcast: select element 0, last first.
    pub squeeze: Positions,
    /// Diagonals to take, one after the other: both dimensions go, the diagonal comes last.
    pub diagonals: SmallVec<[(usize, usize); 2]>,
    /// Dimensions to sum over, because nothing else has their index; ascending.
    pub sum: Positions,
    /// The indices of what is left, in the order they are stored.
    pub axes: Axes,
}

/// An einsum with known shapes: what to do with each operand, which pairs to contract, how to order the result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contraction {
    /// All indices, numbered in the order in which they first occur.
    pub indices: Vec<Index>,
    /// What happens to each operand first.
    pub operands: Vec<Prepare>,
    /// The pairwise steps.
    pub path: ContractionPath,
    /// Indices of the result, in order.
    pub output: Axes,
    /// Shape of the result.
    pub output_shape: Dims,
}

/// Numbers the indices of a reading, binds their sizes and finds the order of contractions.
pub(super) fn contract(
    source: Source<'_>,
    reading: &Reading,
    shapes: &[&[u64]],
    cost: &dyn Fn(&PairSize) -> PathCost,
) -> Result<Contraction, PatternError> {
    let binder = Binder::new(source, reading, shapes)?;
    let output = binder.output(reading)?;
    let indices = binder.indices;
    let sizes: Vec<u64> = indices.iter().map(|index| index.size).collect();
    let mut holders = vec![0_usize; indices.len()];
    for axes in &binder.operands {
        let mut once: Axes = axes.iter().map(|(axis, _)| *axis).collect();
        once.sort_unstable();
        once.dedup();
        once.iter().for_each(|&axis| holders[axis as usize] += 1);
    }
    let lonely = |axis: u8| holders[axis as usize] == 1 && !output.contains(&axis);
    let operands: Vec<Prepare> = binder.operands.iter().map(|axes| prepare(axes, &sizes, lonely)).collect();
    let output_shape: Dims = output.iter().map(|&axis| sizes[axis as usize]).collect();
    if product(&output_shape).is_none() {
        return Err(source.error(source.whole(), Problem::TooManyElements));
    }
    let search =
        path::Problem { operands: operands.iter().map(|o| o.axes.clone()).collect(), output: &output, sizes: &sizes };
    let path = search.solve(cost);
    Ok(Contraction { indices, operands, path, output, output_shape })
}

impl Contraction {
    /// The names of some indices, separated by spaces.
    pub fn names(&self, axes: &[u8]) -> String {
        axes.iter().map(|&axis| &*self.indices[axis as usize].name).collect::<Vec<_>>().join(" ")
    }

    /// One step in words: `contracted h · batch b · output b s1 s2 · lowers to 8 matmuls 1024 × 128 × 1024`.
    pub fn describe(&self, step: &PairStep) -> String {
        let PairSize { batch, m, n, k, contracts } = step.size;
        let groups = [("contracted", &step.k), ("batch", &step.batch), ("output", &step.output)];
        let groups = groups.into_iter().filter(|(_, axes)| !axes.is_empty());
        let mut text: Vec<String> = groups.map(|(word, axes)| format!("{word} {}", self.names(axes))).collect();
        text.push(match (contracts, batch) {
            (false, _) => format!("elementwise product of {} elements", step.size.output()),
            (true, 1) => format!("lowers to 1 matmul {m} × {k} × {n}"),
            (true, _) => format!("lowers to {batch} matmuls {m} × {k} × {n}"),
        });
        text.join(" · ")
    }

    /// All steps, one on a line, with the saving over left to right when there are three operands or more.
    pub fn explain(&self) -> String {
        let mut text = String::new();
        let held = |number: usize| match number.checked_sub(self.operands.len()) {
            None => format!("operand {number}"),
            Some(step) => format!("result {step}"),
        };
        for (position, step) in self.path.steps.iter().enumerate() {
            let (lhs, rhs) = (held(step.lhs), held(step.rhs));
            let _ = writeln!(text, "result {position} = {lhs} × {rhs}: {}", self.describe(step));
        }
        if self.path.steps.len() > 1 {
            let (best, naive) = (self.path.flops, self.path.left_to_right_flops);
            let _ = writeln!(text, "{best} FLOP in this order, {naive} FLOP left to right");
        }
        text
    }
}

/// An index of an operand, and whether it is stretched there (size 1 under `...`).
type Held = (u8, bool);

/// Gives every index a number and a size.
struct Binder<'a> {
    source: Source<'a>,
    indices: Vec<Index>,
    /// Indices of the operands, one for each dimension.
    operands: Vec<Vec<Held>>,
    /// Indices under the ellipsis.
    dots: Axes,
}

impl<'a> Binder<'a> {
    fn new(source: Source<'a>, reading: &Reading, shapes: &[&[u64]]) -> Result<Self, PatternError> {
        for (operand, (side, shape)) in reading.operands.iter().zip(shapes).enumerate() {
            if !side.fits(shape.len()) {
                let (axes, open) = (side.named(), side.ellipsis().is_some());
                let letters = spaced(&side.axes, shape.len());
                let problem = Problem::OperandRank { operand, axes, open, rank: shape.len(), letters };
                return Err(source.error(side.span, problem));
            }
            if product(shape).is_none() {
                return Err(source.error(side.span, Problem::TooManyElements));
            }
        }
        let mut binder = Self { source, indices: Vec::new(), operands: Vec::new(), dots: Axes::new() };
        let under_dots = |(side, shape): (&Operand, &&[u64])| side.ellipsis().map_or(0, |_| shape.len() - side.named());
        let width = reading.operands.iter().zip(shapes).map(under_dots).max().unwrap_or(0);
        for position in 0..width {
            let index = binder.new_index(&format!("...{position}"), 1)?;
            binder.dots.push(index);
        }
        let mut seen: BTreeMap<&str, (u8, Place, Span)> = BTreeMap::new();
        let mut dots_seen: Vec<Option<(Place, Span)>> = vec![None; width];
        for (operand, (side, shape)) in reading.operands.iter().zip(shapes).enumerate() {
            let mut held = Vec::with_capacity(shape.len());
            let mut dim = 0;
            for axis in &side.axes {
                if let Some(name) = axis.name() {
                    let place = Place { operand, dim, size: shape[dim] };
                    dim += 1;
                    let index = match seen.get(name) {
                        Some((_, first, span)) if first.size != place.size => {
                            let (name, first) = (name.to_owned(), first.clone());
                            let problem = Problem::IndexSizes { name, first, second: place };
                            return Err(source.error2(*span, axis.span, problem));
                        }
                        Some((index, ..)) => *index,
                        None => {
                            let index = binder.new_index(name, place.size)?;
                            seen.insert(name, (index, place, axis.span));
                            index
                        }
                    };
                    held.push((index, false));
                } else {
                    let count = shape.len() - side.named();
                    for (seen, &index) in dots_seen.iter_mut().zip(&binder.dots).skip(width - count) {
                        let place = Place { operand, dim, size: shape[dim] };
                        dim += 1;
                        held.push((index, place.size == 1));
                        if place.size == 1 {
                            continue;
                        }
                        match seen {
                            Some((first, span)) if first.size != place.size => {
                                let problem = Problem::EllipsisSizes { first: first.clone(), second: place };
                                return Err(source.error2(*span, axis.span, problem));
                            }
                            Some(_) => {}
                            None => {
                                binder.indices[index as usize].size = place.size;
                                *seen = Some((place, axis.span));
                            }
                        }
                    }
                }
            }
            binder.operands.push(held);
        }
        Ok(binder)
    }

    fn new_index(&mut self, name: &str, size: u64) -> Result<u8, PatternError> {
        if self.indices.len() == MAX_INDICES {
            return Err(self.source.error(self.source.whole(), Problem::TooManyIndices { limit: MAX_INDICES }));
        }
        self.indices.push(Index { name: name.into(), size });
        Ok((self.indices.len() - 1) as u8)
    }

    /// The indices of the output.
    fn output(&self, reading: &Reading) -> Result<Axes, PatternError> {
        let Some(output) = &reading.output else {
            return self.implicit_output(reading);
        };
        let operand_dots = reading.operands.iter().find_map(Operand::ellipsis);
        match (operand_dots, output.ellipsis()) {
            (Some(dots), None) => {
                return Err(self.source.error2(dots.span, output.span, Problem::EllipsisLost));
            }
            (None, Some(dots)) => {
                return Err(self.source.error(dots.span, Problem::EllipsisOnly { side: Side::Right }));
            }
            _ => {}
        }
        let mut axes = Axes::new();
        let mut spans: Vec<(u8, Span)> = Vec::new();
        for axis in &output.axes {
            let Some(name) = axis.name() else {
                axes.extend_from_slice(&self.dots);
                continue;
            };
            let Some(index) = self.indices.iter().position(|index| &*index.name == name) else {
                return Err(self.source.error(axis.span, Problem::UnknownOutput { name: name.to_owned() }));
            };
            let index = index as u8;
            if let Some((_, first)) = spans.iter().find(|(other, _)| *other == index) {
                let problem = Problem::DuplicateAxis { name: name.to_owned(), side: Side::Right };
                return Err(self.source.error2(*first, axis.span, problem));
            }
            spans.push((index, axis.span));
            axes.push(index);
        }
        Ok(axes)
    }

    /// Every index that occurs once, in alphabetical order, after the ellipsis. Letters only.
    fn implicit_output(&self, reading: &Reading) -> Result<Axes, PatternError> {
        let all = || reading.operands.iter().flat_map(|side| &side.axes).filter_map(Axis::name);
        if all().any(|name| name.len() > 1)
            || reading.operands.iter().any(|side| side.span.of(self.source.text).contains(' '))
        {
            return Err(self
                .source
                .error(Span::new(self.source.text.len(), self.source.text.len()), Problem::ImplicitOutputNamed));
        }
        let mut once: Vec<&str> = all().filter(|name| all().filter(|other| other == name).count() == 1).collect();
        once.sort_unstable();
        let number = |name: &str| self.indices.iter().position(|index| &*index.name == name).map(|index| index as u8);
        Ok(self.dots.iter().copied().chain(once.into_iter().filter_map(number)).collect())
    }
}

/// `h d` for the one axis `hd` of an operand with two dimensions: it was meant as letters.
fn spaced(axes: &[Axis], rank: usize) -> Option<String> {
    let [axis] = axes else { return None };
    let name = axis.name()?;
    let letters: Vec<String> = name.chars().map(String::from).collect();
    (rank > 1 && letters.len() == rank).then(|| letters.join(" "))
}

/// Works out the views and sums of one operand.
fn prepare(axes: &[Held], sizes: &[u64], lonely: impl Fn(u8) -> bool) -> Prepare {
    let mut squeeze = Positions::new();
    let mut held = Axes::new();
    for (position, &(axis, one)) in axes.iter().enumerate() {
        if one && sizes[axis as usize] != 1 {
            squeeze.push(position);
        } else {
            held.push(axis);
        }
    }
    squeeze.reverse();
    let mut diagonals = SmallVec::new();
    while let Some((first, second)) = repeated(&held) {
        let axis = held.remove(second);
        held.remove(first);
        held.push(axis);
        diagonals.push((first, second));
    }
    let sum: Positions = (0..held.len()).filter(|&position| lonely(held[position])).collect();
    held.retain(|axis| !lonely(*axis));
    Prepare { passed: axes.iter().map(|(axis, _)| *axis).collect(), squeeze, diagonals, sum, axes: held }
}

/// The first two positions that hold the same index.
fn repeated(axes: &[u8]) -> Option<(usize, usize)> {
    (0..axes.len()).find_map(|first| {
        let later = axes[first + 1..].iter().position(|axis| *axis == axes[first])?;
        Some((first, first + 1 + later))
    })
}
