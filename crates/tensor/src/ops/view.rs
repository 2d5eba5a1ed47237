//! Layout changes: view, permute, transpose, expand, narrow, select, diagonal, squeeze, unsqueeze.
//!
//! Zero bytes and zero FLOP by construction: the output is the input's storage under another layout.

use super::{Needs, Op, Out, Outs, Rule, Saves, one_view};
use crate::apply::{Outputs, apply};
use crate::autograd::{Back, Grads};
use crate::error::{Error, Result};
use crate::kernel::{Data, Num};
use crate::layout::Dims;
use crate::meter::Cost;
use crate::tensor::{Spec, Tensor};
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;

/// A change of layout.
#[derive(Clone, Debug, PartialEq)]
pub struct View {
    /// Which one.
    pub kind: ViewKind,
}

/// The layout changes.
#[derive(Clone, Debug, PartialEq)]
pub enum ViewKind {
    /// The same elements under another shape.
    Reshape(Dims),
    /// Dimensions in another order.
    Permute(SmallVec<[u8; 8]>),
    /// Broadcast to a shape.
    Expand(Dims),
    /// `len` elements of `dim` from `start`, every `step`-th.
    Narrow {
        /// Dimension.
        dim: usize,
        /// First index.
        start: u64,
        /// Number of elements.
        len: u64,
        /// Distance between them.
        step: u64,
    },
    /// One element of `dim`, which disappears.
    Select {
        /// Dimension.
        dim: usize,
        /// Index.
        index: u64,
    },
    /// The diagonal of two dimensions as a new last one.
    Diagonal(usize, usize),
    /// A new dimension of size 1.
    Unsqueeze(usize),
    /// A dimension of size 1 removed.
    Squeeze(usize),
    /// Consecutive pieces of a dimension, one output each.
    Split {
        /// Dimension.
        dim: usize,
        /// Sizes of the pieces.
        sizes: Dims,
    },
}

impl Rule for View {
    fn name(&self) -> &'static str {
        match self.kind {
            ViewKind::Reshape(_) => "view",
            ViewKind::Permute(_) => "permute",
            ViewKind::Expand(_) => "expand",
            ViewKind::Narrow { .. } => "narrow",
            ViewKind::Select { .. } => "select",
            ViewKind::Diagonal(..) => "diagonal",
            ViewKind::Unsqueeze(_) => "unsqueeze",
            ViewKind::Squeeze(_) => "squeeze",
            ViewKind::Split { .. } => "split",
        }
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        let layout = &inputs[0].layout;
        let out = match &self.kind {
            ViewKind::Reshape(shape) => layout.view(shape)?,
            ViewKind::Permute(order) => {
                let order: SmallVec<[usize; 8]> = order.iter().map(|&d| d as usize).collect();
                layout.permute(&order)?
            }
            ViewKind::Expand(shape) => layout.expand(shape)?,
            ViewKind::Narrow { dim, start, len, step } => layout.slice(*dim, *start, *len, *step)?,
            ViewKind::Select { dim, index } => layout.select(*dim, *index)?,
            ViewKind::Diagonal(a, b) => layout.diagonal(*a, *b)?,
            ViewKind::Unsqueeze(dim) => layout.unsqueeze(*dim),
            ViewKind::Squeeze(dim) => layout.squeeze(*dim)?,
            ViewKind::Split { dim, sizes } => {
                let mut start = 0;
                return sizes
                    .iter()
                    .map(|&len| {
                        let piece = layout.slice(*dim, start, len, 1)?;
                        start += len;
                        Ok(Out::View(0, Arc::new(piece)))
                    })
                    .collect();
            }
        };
        Ok(one_view(out))
    }

    fn cost(&self, _: &[Spec], _: &[Spec]) -> Cost {
        Cost::default()
    }

    fn run<T: Num>(&self, _: &[Data<T>], _: &mut [Data<T>]) -> Result<()> {
        Ok(())
    }

    fn saves(&self, _: Needs) -> Saves {
        Saves::NONE
    }

    fn differentiable(&self) -> u8 {
        1
    }

    fn gradient(&self, back: &Back<'_>) -> Result<Grads> {
        if let ViewKind::Split { dim, sizes } = &self.kind {
            return joined(back, *dim, sizes.len());
        }
        let grad = back.grad()?;
        let shape = back.spec(0).shape();
        let out = match &self.kind {
            ViewKind::Split { .. } => unreachable!("handled above"),
            ViewKind::Reshape(_) => grad.reshape(shape)?,
            ViewKind::Permute(order) => {
                let mut inverse: SmallVec<[usize; 8]> = SmallVec::from_elem(0, order.len());
                for (to, &from) in order.iter().enumerate() {
                    inverse[from as usize] = to;
                }
                grad.permute(&inverse)?
            }
            ViewKind::Expand(_) => grad.sum_to(shape)?,
            ViewKind::Unsqueeze(dim) => grad.squeeze(*dim as isize)?,
            ViewKind::Squeeze(dim) => grad.unsqueeze(*dim as isize)?,
            // The gradient lies inside zeros: a full-size buffer, of which only the window is written.
            ViewKind::Narrow { dim, start, len, step } => {
                let zeros = back.zeros_like_input(0)?;
                zeros.narrow_step(*dim as isize, *start, *len, *step)?.copy_(grad)?;
                zeros
            }
            ViewKind::Select { dim, index } => {
                let zeros = back.zeros_like_input(0)?;
                zeros.select(*dim as isize, *index)?.copy_(grad)?;
                zeros
            }
            ViewKind::Diagonal(a, b) => {
                let zeros = back.zeros_like_input(0)?;
                zeros.diagonal(*a as isize, *b as isize)?.copy_(grad)?;
                zeros
            }
        };
        Ok(smallvec![Some(out)])
    }
}

/// The gradients of all pieces side by side; a piece that received none counts as zero.
fn joined(back: &Back<'_>, dim: usize, pieces: usize) -> Result<Grads> {
    let some = (0..pieces).find_map(|j| back.grad_of(j)).ok_or(Error::Backward("no gradient reached any piece"))?;
    let grads = (0..pieces)
        .map(|j| match back.grad_of(j) {
            Some(g) => Ok(g.clone()),
            None => some.runtime().zeros(back.out_spec(j).shape(), back.out_spec(j).dtype),
        })
        .collect::<Result<Vec<_>>>()?;
    let refs: Vec<&Tensor> = grads.iter().collect();
    Ok(smallvec![Some(Tensor::cat(&refs, dim as isize)?)])
}

impl Back<'_> {
    /// A zero tensor with the shape and dtype of input `i`.
    pub(crate) fn zeros_like_input(&self, i: usize) -> Result<Tensor> {
        let spec = self.spec(i);
        self.grad()?.runtime().full(spec.shape(), 0.0, spec.dtype)
    }
}

impl Tensor {
    fn view_op(&self, kind: ViewKind) -> Result<Self> {
        Self::op(Op::View(View { kind }), &[self])
    }

    /// The same elements under another shape, without a copy.
    ///
    /// # Errors
    /// [`Error::View`] naming the dimensions that cannot merge.
    pub fn view(&self, shape: &[u64]) -> Result<Self> {
        self.view_op(ViewKind::Reshape(shape.into()))
    }

    /// A view if one exists, else a metered copy.
    pub fn reshape(&self, shape: &[u64]) -> Result<Self> {
        if self.shape() == shape {
            return Ok(self.clone());
        }
        match self.layout().view(shape) {
            Ok(_) => self.view(shape),
            Err(Error::View(_)) => self.copy_for_reshape()?.view(shape),
            Err(other) => Err(other),
        }
    }

    /// Dimensions in the order `order`.
    pub fn permute(&self, order: &[usize]) -> Result<Self> {
        if order.iter().any(|&d| d > usize::from(u8::MAX)) {
            return Err(Error::Permutation { order: order.to_vec(), shape: self.shape().into() });
        }
        self.view_op(ViewKind::Permute(order.iter().map(|&d| d as u8).collect()))
    }

    /// Two dimensions exchanged (negative indices count from the end).
    pub fn transpose(&self, a: isize, b: isize) -> Result<Self> {
        let (a, b) = (self.layout().dim("transpose", a)?, self.layout().dim("transpose", b)?);
        let mut order: SmallVec<[usize; 8]> = (0..self.rank()).collect();
        order.swap(a, b);
        self.permute(&order)
    }

    /// The last two dimensions exchanged.
    pub fn t(&self) -> Result<Self> {
        self.transpose(-2, -1)
    }

    /// Broadcast to `shape` with stride 0.
    pub fn expand(&self, shape: &[u64]) -> Result<Self> {
        if self.shape() == shape {
            return Ok(self.clone());
        }
        self.view_op(ViewKind::Expand(shape.into()))
    }

    /// `len` elements of `dim` from `start`.
    pub fn narrow(&self, dim: isize, start: u64, len: u64) -> Result<Self> {
        self.narrow_step(dim, start, len, 1)
    }

    /// `len` elements of `dim` from `start`, every `step`-th.
    pub fn narrow_step(&self, dim: isize, start: u64, len: u64, step: u64) -> Result<Self> {
        let dim = self.layout().dim("narrow", dim)?;
        self.view_op(ViewKind::Narrow { dim, start, len, step })
    }

    /// Element `index` of `dim`; the dimension disappears.
    pub fn select(&self, dim: isize, index: u64) -> Result<Self> {
        let dim = self.layout().dim("select", dim)?;
        self.view_op(ViewKind::Select { dim, index })
    }

    /// The diagonal of two dimensions as a new last one.
    pub fn diagonal(&self, a: isize, b: isize) -> Result<Self> {
        let (a, b) = (self.layout().dim("diagonal", a)?, self.layout().dim("diagonal", b)?);
        self.view_op(ViewKind::Diagonal(a, b))
    }

    /// A new dimension of size 1 before `dim` (`-1`: at the end).
    pub fn unsqueeze(&self, dim: isize) -> Result<Self> {
        let rank = self.rank() as isize;
        let at = if dim < 0 { dim + rank + 1 } else { dim };
        if !(0..=rank).contains(&at) {
            return Err(Error::Dim { op: "unsqueeze", dim, shape: self.shape().into() });
        }
        self.view_op(ViewKind::Unsqueeze(at as usize))
    }

    /// A dimension of size 1 removed.
    pub fn squeeze(&self, dim: isize) -> Result<Self> {
        let dim = self.layout().dim("squeeze", dim)?;
        self.view_op(ViewKind::Squeeze(dim))
    }

    /// Views of consecutive pieces of `dim`, of the given sizes.
    ///
    /// # Errors
    /// [`Error::Range`] unless the sizes add up.
    pub fn split(&self, sizes: &[u64], dim: isize) -> Result<Outputs> {
        let at = self.layout().dim("split", dim)?;
        let total: u64 = sizes.iter().fold(0, |n, &s| n.saturating_add(s));
        if total != self.shape()[at] {
            return Err(Error::Range { op: "split", dim: at, start: 0, len: total, size: self.shape()[at] });
        }
        apply(Op::View(View { kind: ViewKind::Split { dim: at, sizes: sizes.into() } }), &[self])
    }
}
