//! Where the elements of a tensor lie in its storage: shape, strides, offset.
//!
//! A [`Layout`] is pure arithmetic. All view operations (`permute`, `narrow`, `expand`, ...) are functions from layout
//! to layout; none of them touches bytes, which is why a view costs nothing.

use crate::error::{Error, Result};
use smallvec::SmallVec;
use std::fmt;

/// Sizes of the dimensions, outermost first. Inline up to rank 6.
pub type Dims = SmallVec<[u64; 6]>;
/// Strides in *elements* (not bytes), one for each dimension. Signed so that a flipped view stays expressible.
pub type Strides = SmallVec<[i64; 6]>;

/// Shape, strides (in elements) and offset (in elements) of a tensor within its storage.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Layout {
    shape: Dims,
    strides: Strides,
    offset: u64,
}

impl fmt::Debug for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} strides {:?}", self.shape.as_slice(), self.strides.as_slice())?;
        if self.offset != 0 {
            write!(f, " offset {}", self.offset)?;
        }
        Ok(())
    }
}

/// Row-major strides of `shape`.
fn contiguous_strides(shape: &[u64]) -> Strides {
    let mut strides: Strides = SmallVec::from_elem(1, shape.len());
    let mut step = 1i64;
    for (stride, &size) in strides.iter_mut().zip(shape).rev() {
        *stride = step;
        // A dimension of size 0 keeps the step: strides of an empty tensor stay positive, as people expect.
        step = step.saturating_mul(size.max(1) as i64);
    }
    strides
}

impl Layout {
    /// Row-major layout of `shape` at offset 0.
    ///
    /// # Errors
    /// [`Error::TooLarge`] if the element count is above 2^59.
    pub fn contiguous(shape: &[u64]) -> Result<Self> {
        checked_count(shape)?;
        Ok(Self { shape: Dims::from_slice(shape), strides: contiguous_strides(shape), offset: 0 })
    }

    /// A dense layout of `shape` whose memory order is `order` (outermost dimension first).
    pub(crate) fn dense_in_order(shape: &[u64], order: &[usize]) -> Self {
        let mut strides: Strides = SmallVec::from_elem(1, shape.len());
        let mut step = 1i64;
        for &dim in order.iter().rev() {
            strides[dim] = step;
            step *= shape[dim].max(1) as i64;
        }
        Self { shape: Dims::from_slice(shape), strides, offset: 0 }
    }

    /// Sizes of the dimensions.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// Strides in elements.
    pub fn strides(&self) -> &[i64] {
        &self.strides
    }

    /// Offset of the first element, in elements.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// Number of elements the shape names (a broadcast element counts each time it appears).
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }

    /// Number of *different* elements touched: dimensions of stride 0 count once.
    ///
    /// This is what a read costs: a broadcast reads once, a transposed view as much as its base.
    pub fn unique_elements(&self) -> u64 {
        self.shape.iter().zip(&self.strides).map(|(&n, &s)| if s == 0 && n > 0 { 1 } else { n }).product()
    }

    /// Whether the elements lie in row-major order without gaps (strides of dimensions of size 1 do not matter, nor any
    /// if there are no elements).
    pub fn is_contiguous(&self) -> bool {
        if self.shape.contains(&0) {
            return true;
        }
        let mut step = 1i64;
        for (&size, &stride) in self.shape.iter().zip(&self.strides).rev() {
            if size != 1 && stride != step {
                return false;
            }
            step = step.saturating_mul(size as i64);
        }
        true
    }

    /// Whether two different indices may name the same element (an expanded view does this).
    ///
    /// Writing through such a layout is refused.
    pub fn overlaps(&self) -> bool {
        let mut dims: SmallVec<[(i64, u64); 6]> =
            self.strides.iter().zip(&self.shape).filter(|&(_, &n)| n > 1).map(|(&s, &n)| (s.abs(), n)).collect();
        dims.sort_unstable();
        let mut reach = 0i64;
        for (stride, size) in dims {
            if stride <= reach {
                return true;
            }
            reach += stride * (size as i64 - 1);
        }
        false
    }

    /// Whether every element of the covered storage range is named exactly once, in some order of dimensions.
    pub fn is_dense(&self) -> bool {
        let mut dims: SmallVec<[(i64, u64); 6]> =
            self.strides.iter().zip(&self.shape).filter(|&(_, &n)| n != 1).map(|(&s, &n)| (s, n)).collect();
        dims.sort_unstable();
        let mut step = 1i64;
        dims.into_iter().all(|(stride, size)| {
            let fits = stride == step;
            step = step.saturating_mul(size as i64);
            fits
        })
    }

    /// Storage position (in elements) of the element at `index`.
    pub fn position(&self, index: &[u64]) -> u64 {
        let delta: i64 = index.iter().zip(&self.strides).map(|(&i, &s)| i as i64 * s).sum();
        (self.offset as i64 + delta) as u64
    }

    /// One past the last storage position named, 0 for an empty layout.
    pub fn end(&self) -> u64 {
        if self.elements() == 0 {
            return 0;
        }
        let reach: i64 = self.shape.iter().zip(&self.strides).map(|(&n, &s)| (n as i64 - 1) * s.max(0)).sum();
        (self.offset as i64 + reach) as u64 + 1
    }

    /// Resolves a possibly negative dimension index (`-1` is the last one).
    pub fn dim(&self, op: &'static str, dim: isize) -> Result<usize> {
        let rank = self.rank() as isize;
        let at = if dim < 0 { dim + rank } else { dim };
        if (0..rank).contains(&at) { Ok(at as usize) } else { Err(Error::Dim { op, dim, shape: self.shape.clone() }) }
    }

    /// The same elements under another shape, without a copy.
    ///
    /// Dimensions may be split freely; neighbours may be merged only where the outer stride equals the inner stride
    /// times the inner size.
    ///
    /// # Errors
    /// [`Error::Elements`] if the counts differ; [`Error::View`] naming the two dimensions and strides that cannot merge.
    pub fn view(&self, shape: &[u64]) -> Result<Self> {
        let count = checked_count(shape)?;
        if count != self.elements() {
            return Err(Error::Elements { op: "view", from: self.shape.clone(), to: Dims::from_slice(shape) });
        }
        if count == 0 || self.is_contiguous() {
            return Ok(Self {
                shape: Dims::from_slice(shape),
                strides: contiguous_strides(shape),
                offset: self.offset,
            });
        }
        let mut strides: Strides = SmallVec::from_elem(0, shape.len());
        // Walk both shapes from the innermost side. `old` is the dimension whose elements are being handed out.
        let mut new = shape.len();
        let mut chunk_stride = *self.strides.last().unwrap_or(&1);
        let mut chunk_size = 1u64; // elements of the old shape in the current mergeable run
        let mut filled = 1u64; // elements of the new shape placed in that run
        for old in (0..self.rank()).rev() {
            chunk_size *= self.shape[old];
            let mergeable =
                old > 0 && (self.shape[old - 1] == 1 || self.strides[old - 1] == chunk_size as i64 * chunk_stride);
            if mergeable {
                continue;
            }
            while new > 0 && (filled < chunk_size || shape[new - 1] == 1) {
                strides[new - 1] = (filled as i64).saturating_mul(chunk_stride);
                // Beyond counting is beyond the run, too: the shapes do not meet.
                filled = filled.saturating_mul(shape[new - 1]);
                new -= 1;
            }
            if filled != chunk_size {
                return Err(Error::View(Box::new(self.cannot_merge(shape, old))));
            }
            if old > 0 {
                chunk_stride = self.strides[old - 1];
                chunk_size = 1;
                filled = 1;
            }
        }
        Ok(Self { shape: Dims::from_slice(shape), strides, offset: self.offset })
    }

    /// The pair of neighbouring dimensions that stops a view: `inner` could not join the one outside it.
    fn cannot_merge(&self, shape: &[u64], inner: usize) -> ViewError {
        let outer = inner.saturating_sub(1);
        ViewError {
            from: self.shape.clone(),
            strides: self.strides.clone(),
            to: Dims::from_slice(shape),
            outer,
            inner: inner.max(outer + 1),
        }
    }

    /// Dimensions in the order `order`.
    pub fn permute(&self, order: &[usize]) -> Result<Self> {
        let mut seen: SmallVec<[bool; 6]> = SmallVec::from_elem(false, self.rank());
        let valid = order.len() == self.rank()
            && order.iter().all(|&d| d < self.rank() && !std::mem::replace(&mut seen[d], true));
        if !valid {
            return Err(Error::Permutation { order: order.to_vec(), shape: self.shape.clone() });
        }
        Ok(Self {
            shape: order.iter().map(|&d| self.shape[d]).collect(),
            strides: order.iter().map(|&d| self.strides[d]).collect(),
            offset: self.offset,
        })
    }

    /// Two dimensions exchanged.
    pub fn transpose(&self, a: usize, b: usize) -> Self {
        let mut out = self.clone();
        out.shape.swap(a, b);
        out.strides.swap(a, b);
        out
    }

    /// Broadcast to `shape`: new outer dimensions and dimensions of size 1 get stride 0.
    pub fn expand(&self, shape: &[u64]) -> Result<Self> {
        checked_count(shape)?;
        let missing = shape.len().checked_sub(self.rank());
        let fits =
            missing.is_some_and(|m| self.shape.iter().zip(&shape[m..]).all(|(&have, &want)| have == want || have == 1));
        let Some(missing) = missing.filter(|_| fits) else {
            return Err(Error::Broadcast { op: "expand", a: self.shape.clone(), b: Dims::from_slice(shape) });
        };
        let mut strides: Strides = SmallVec::from_elem(0, shape.len());
        for dim in 0..self.rank() {
            if self.shape[dim] == shape[missing + dim] {
                strides[missing + dim] = self.strides[dim];
            }
        }
        Ok(Self { shape: Dims::from_slice(shape), strides, offset: self.offset })
    }

    /// `len` elements of dimension `dim` from `start`, every `step`-th.
    pub fn slice(&self, dim: usize, start: u64, len: u64, step: u64) -> Result<Self> {
        let size = self.shape[dim];
        let last = if len == 0 { start } else { start.saturating_add((len - 1).saturating_mul(step)) };
        if step == 0 || start > size || (len > 0 && last >= size) {
            return Err(Error::Range { op: "narrow", dim, start, len, size });
        }
        let mut out = self.clone();
        out.shape[dim] = len;
        out.offset = (self.offset as i64 + start as i64 * self.strides[dim]) as u64;
        out.strides[dim] *= step as i64;
        Ok(out)
    }

    /// Element `index` of dimension `dim`; the dimension disappears.
    pub fn select(&self, dim: usize, index: u64) -> Result<Self> {
        let mut out = self.slice(dim, index, 1, 1)?;
        out.shape.remove(dim);
        out.strides.remove(dim);
        Ok(out)
    }

    /// A new dimension of size 1 at `dim`.
    pub fn unsqueeze(&self, dim: usize) -> Self {
        let mut out = self.clone();
        let stride = out.shape.get(dim).map_or(1, |&n| n as i64 * out.strides[dim]);
        out.shape.insert(dim, 1);
        out.strides.insert(dim, stride);
        out
    }

    /// Dimension `dim` (of size 1) removed.
    pub fn squeeze(&self, dim: usize) -> Result<Self> {
        if self.shape[dim] != 1 {
            return Err(Error::Squeeze { dim, shape: self.shape.clone() });
        }
        let mut out = self.clone();
        out.shape.remove(dim);
        out.strides.remove(dim);
        Ok(out)
    }

    /// The diagonal of dimensions `a` and `b`, as a new last dimension.
    pub fn diagonal(&self, a: usize, b: usize) -> Result<Self> {
        if a == b || a >= self.rank() || b >= self.rank() {
            return Err(Error::Permutation { order: vec![a, b], shape: self.shape.clone() });
        }
        let mut out = self.clone();
        let (size, stride) = (self.shape[a].min(self.shape[b]), self.strides[a] + self.strides[b]);
        for dim in [a.max(b), a.min(b)] {
            out.shape.remove(dim);
            out.strides.remove(dim);
        }
        out.shape.push(size);
        out.strides.push(stride);
        Ok(out)
    }

    /// Positions of all elements in row-major order of the shape.
    pub fn positions(&self) -> Positions<'_> {
        Positions {
            layout: self,
            index: SmallVec::from_elem(0, self.rank()),
            at: self.offset as i64,
            left: self.elements(),
        }
    }
}

/// Iterator over the storage positions of a layout, row-major.
pub struct Positions<'a> {
    layout: &'a Layout,
    index: Dims,
    at: i64,
    left: u64,
}

impl Iterator for Positions<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        self.left = self.left.checked_sub(1)?;
        let here = self.at as usize;
        for dim in (0..self.index.len()).rev() {
            let (size, stride) = (self.layout.shape[dim], self.layout.strides[dim]);
            self.index[dim] += 1;
            self.at += stride;
            if self.index[dim] < size {
                break;
            }
            self.at -= stride * size as i64;
            self.index[dim] = 0;
        }
        Some(here)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left as usize, Some(self.left as usize))
    }
}

/// Why a layout cannot be viewed under a shape: dimensions `outer` and `inner` would have to merge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ViewError {
    /// Shape of the tensor.
    pub from: Dims,
    /// Strides of the tensor, in elements.
    pub strides: Strides,
    /// Shape asked for.
    pub to: Dims,
    /// The outer of the two dimensions that cannot merge.
    pub outer: usize,
    /// The inner of the two dimensions that cannot merge.
    pub inner: usize,
}

impl fmt::Display for ViewError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (outer, inner) = (self.outer, self.inner);
        write!(
            f,
            "view: {:?} cannot be viewed as {:?} without a copy: dimension {outer} (stride {}) does not continue \
             dimension {inner} (size {}, stride {}), so the two cannot merge; merging needs stride {}; \
             use `reshape`, which copies",
            self.from.as_slice(),
            self.to.as_slice(),
            self.strides[outer],
            self.from[inner],
            self.strides[inner],
            self.from[inner] as i64 * self.strides[inner],
        )
    }
}

/// Product of the sizes.
///
/// # Errors
/// [`Error::TooLarge`] above 2^59 elements: byte counts and strides are exact below that for every dtype in use.
pub fn checked_count(shape: &[u64]) -> Result<u64> {
    // The largest dtype has 8 bytes, and bytes must fit an i64-signed stride computation.
    const LIMIT: u64 = 1 << 59;
    let mut count = 1u64;
    for &size in shape {
        count = match count.checked_mul(size) {
            Some(product) if product <= LIMIT => product,
            _ if shape.contains(&0) => 0,
            _ => return Err(Error::TooLarge { shape: Dims::from_slice(shape) }),
        };
    }
    Ok(count)
}

/// The shape two shapes broadcast to: aligned at the innermost side, 1 stretches.
pub fn broadcast_shapes(op: &'static str, a: &[u64], b: &[u64]) -> Result<Dims> {
    let rank = a.len().max(b.len());
    let mut out: Dims = SmallVec::from_elem(1, rank);
    for i in 0..rank {
        let x = a.len().checked_sub(i + 1).map_or(1, |at| a[at]);
        let y = b.len().checked_sub(i + 1).map_or(1, |at| b[at]);
        out[rank - 1 - i] = match (x, y) {
            (x, y) if x == y => x,
            (1, y) => y,
            (x, 1) => x,
            _ => return Err(Error::Broadcast { op, a: Dims::from_slice(a), b: Dims::from_slice(b) }),
        };
    }
    Ok(out)
}

/// Layout of the fresh result of an elementwise op over `inputs` (already broadcast to `shape`).
///
/// The result is dense and keeps the memory order of its inputs, so that `x.transpose(..) * 2` is laid out like its
/// input. Same rule as the stride propagation of the reference framework: dimensions are ordered by the strides of the
/// first input that distinguishes them; inputs of stride 0 do not vote.
pub fn elementwise_layout(shape: &[u64], inputs: &[&Layout]) -> Layout {
    if inputs.iter().all(|l| l.is_contiguous() && l.shape() == shape) || shape.len() < 2 {
        return Layout { shape: Dims::from_slice(shape), strides: contiguous_strides(shape), offset: 0 };
    }
    let rank = shape.len();
    let stride = |layout: &Layout, dim: usize| -> i64 {
        (dim + layout.rank())
            .checked_sub(rank)
            .map_or(0, |at| if layout.shape[at] == 1 && shape[dim] != 1 { 0 } else { layout.strides[at] })
    };
    // Positive: `a` must lie inside `b`. Zero: nobody distinguishes them.
    let compare = |a: usize, b: usize| -> i32 {
        for layout in inputs {
            let (sa, sb) = (stride(layout, a), stride(layout, b));
            if sa == 0 || sb == 0 {
                continue;
            }
            if sa < sb {
                return -1;
            }
            if sa > sb {
                return 1;
            }
            if shape[a] > shape[b] {
                return 1;
            }
        }
        0
    };
    // Insertion sort, innermost first, that moves past ambiguous neighbours the way the reference does.
    let mut order: SmallVec<[usize; 6]> = (0..rank).rev().collect();
    for i in 1..rank {
        let mut here = i;
        for other in (0..i).rev() {
            match compare(order[other], order[here]) {
                c if c > 0 => {
                    order.swap(other, here);
                    here = other;
                }
                c if c < 0 => break,
                _ => {}
            }
        }
    }
    order.reverse();
    Layout::dense_in_order(shape, &order)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(shape: &[u64]) -> Layout {
        Layout::contiguous(shape).unwrap()
    }

    #[test]
    fn a_4_by_4_matrix_has_strides_4_1_and_element_1_2_at_offset_6() {
        let m = layout(&[4, 4]);
        assert_eq!(m.strides(), [4, 1]);
        assert_eq!(m.position(&[1, 2]), 6);
    }

    #[test]
    fn views_split_and_merge_only_what_strides_allow() {
        let x = layout(&[2, 8, 4, 16]).transpose(1, 2);
        assert_eq!(x.strides(), [512, 16, 64, 1]);
        let Err(Error::View(e)) = x.view(&[2, 4, 128]) else { panic!("must not merge") };
        assert_eq!((e.outer, e.inner), (2, 3));
        assert_eq!(x.view(&[2, 4, 8, 4, 4]).unwrap().strides(), [512, 16, 64, 4, 1]);
        assert_eq!(x.view(&[2, 2, 2, 8, 16]).unwrap().strides(), [512, 32, 16, 64, 1]);
        assert_eq!(layout(&[6]).view(&[2, 3]).unwrap(), layout(&[2, 3]));
        let t = layout(&[3, 4]).transpose(0, 1);
        assert!(t.view(&[12]).is_err());
        assert_eq!(t.view(&[4, 1, 3]).unwrap().strides()[0], 1);
    }

    #[test]
    fn overlap_and_density() {
        assert!(layout(&[3, 1]).expand(&[3, 5]).unwrap().overlaps());
        assert!(!layout(&[3, 4]).transpose(0, 1).overlaps());
        assert!(layout(&[3, 4]).transpose(0, 1).is_dense());
        assert!(!layout(&[3, 4]).slice(1, 0, 2, 1).unwrap().is_dense());
        assert_eq!(layout(&[3, 1]).expand(&[3, 5]).unwrap().unique_elements(), 3);
    }

    #[test]
    fn elementwise_results_keep_the_memory_order() {
        let x = layout(&[2, 8, 4, 16]).transpose(1, 2); // [2, 4, 8, 16]
        let cos = layout(&[1, 1, 8, 16]);
        let out = elementwise_layout(x.shape(), &[&x, &cos]);
        assert_eq!(out.strides(), x.strides());
        let c = layout(&[2, 4, 8, 16]);
        assert_eq!(elementwise_layout(c.shape(), &[&c, &c]).strides(), c.strides());
    }

    #[test]
    fn absurd_shapes_are_refused() {
        assert!(Layout::contiguous(&[1 << 40, 1 << 40]).is_err());
        assert_eq!(Layout::contiguous(&[1 << 40, 0, 1 << 40]).unwrap().elements(), 0);
    }
}
