//! Elements written, or added, along a dimension to where an index tensor says.

use super::{Needs, Op, Out, Outs, Rule, Saves, one_fresh};
use crate::autograd::{Back, Grads};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel::{Data, Num};
use crate::layout::Dims;
use crate::meter::Cost;
use crate::ops::gather::{check_index_dtype, check_index_shape, for_each_indexed};
use crate::runtime::Accumulate;
use crate::tensor::{Spec, Tensor};
use smallvec::smallvec;

/// `out[i][index[i][j][..]][..] = source[i][j][..]` (here for `dim` 1), or `+=`. Inputs: `x`, index, source.
#[derive(Clone, Debug, PartialEq)]
pub struct Scatter {
    /// Dimension.
    pub dim: usize,
    /// Whether the elements are added to what is there.
    pub add: bool,
    /// Whether the result overwrites `x`.
    pub in_place: bool,
}

impl Rule for Scatter {
    fn name(&self) -> &'static str {
        match (self.add, self.in_place) {
            (false, false) => "scatter",
            (false, true) => "scatter_",
            (true, false) => "scatter_add",
            (true, true) => "scatter_add_",
        }
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        let (x, index, source) = (&inputs[0], &inputs[1], &inputs[2]);
        check_index_dtype(self.name(), index)?;
        check_index_shape(self.name(), x.shape(), index.shape(), self.dim)?;
        if index.shape() != source.shape() {
            let rule = "index and source must have the same shape";
            return Err(Error::Shapes { op: self.name(), a: index.shape().into(), b: source.shape().into(), rule });
        }
        if x.dtype != source.dtype {
            return Err(Error::NoPromotion { op: self.name(), a: x.dtype, b: source.dtype });
        }
        if self.in_place { Ok(smallvec![Out::InPlace(0)]) } else { one_fresh(x.shape(), x.dtype) }
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        // In place, only the elements that the index names are touched, and read only to be added to.
        let touched = inputs[2].bytes();
        let read = match (self.in_place, self.add) {
            (true, true) => touched,
            (true, false) => 0,
            (false, _) => inputs[0].unique_bytes(),
        };
        Cost {
            elementwise: if self.add { u128::from(inputs[2].elements()) } else { 0 },
            read: read + inputs[1].unique_bytes() + inputs[2].unique_bytes(),
            written: if self.in_place { touched } else { outputs[0].bytes() },
            ..Cost::default()
        }
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let (source, out) = (inputs[2].num(), outputs[0].num_mut());
        if !self.in_place {
            out.data.clone_from(&inputs[0].num().data);
        }
        let shape = out.shape.clone();
        let index = (inputs[1].shape(), &*inputs[1].ints());
        for_each_indexed(self.name(), index, &shape, self.dim, |from, to| {
            out.data[to] = if self.add { out.data[to] + source.data[from] } else { source.data[from] };
        })
    }

    fn saves(&self, needs: Needs) -> Saves {
        // What is added to keeps its gradient as it is; what is overwritten loses it.
        Saves::inputs(needs.then(2, 0b010) | if self.add { 0 } else { needs.then(0, 0b010) })
    }

    fn differentiable(&self) -> u8 {
        if self.in_place { 0 } else { 0b101 }
    }

    fn gradient(&self, back: &Back<'_>) -> Result<Grads> {
        let (grad, dim) = (back.grad()?, self.dim as isize);
        let dx = match (back.wants(0), self.add) {
            (false, _) => None,
            (true, true) => Some(grad.clone()),
            (true, false) => {
                let index = back.input(1)?;
                let zero = grad.runtime().zeros(&[], grad.dtype())?.expand(index.shape())?;
                Some(grad.scatter(dim, index, &zero)?)
            }
        };
        let source = if back.wants(2) { Some(grad.gather(dim, back.input(1)?)?) } else { None };
        Ok(smallvec![dx, None, source])
    }
}

impl Back<'_> {
    /// The gradient of output 0 among zeros shaped like input 0: written (or added) to where `index` says, in place or
    /// not as gradients are accumulated.
    pub(crate) fn scattered(&self, dim: usize, index: &Tensor, grad: &Tensor, add: bool) -> Result<Tensor> {
        let zeros = self.zeros_like_input(0)?;
        let in_place = zeros.runtime().accumulate() == Accumulate::InPlace;
        zeros.scatter_op(dim as isize, index, grad, add, in_place)
    }
}

impl Tensor {
    fn scatter_op(&self, dim: isize, index: &Self, source: &Self, add: bool, in_place: bool) -> Result<Self> {
        let dim = self.layout().dim("scatter", dim)?;
        Self::op(Op::Scatter(Scatter { dim, add, in_place }), &[self, index, source])
    }

    /// A copy with the elements of `source` written along `dim` to where `index` says; the last one wins.
    ///
    /// # Shapes
    /// index and source alike, no larger than self outside of `dim` -> shape of self
    ///
    /// # Errors
    /// [`Error::Index`] on a value outside of the dimension.
    pub fn scatter(&self, dim: isize, index: &Self, source: &Self) -> Result<Self> {
        self.scatter_op(dim, index, source, false, false)
    }

    /// [`Tensor::scatter`], overwriting this tensor.
    pub fn scatter_(&self, dim: isize, index: &Self, source: &Self) -> Result<Self> {
        self.scatter_op(dim, index, source, false, true)
    }

    /// A copy with the elements of `source` added along `dim` to where `index` says.
    ///
    /// # Shapes
    /// index and source alike, no larger than self outside of `dim` -> shape of self
    ///
    /// # Errors
    /// [`Error::Index`] on a value outside of the dimension.
    pub fn scatter_add(&self, dim: isize, index: &Self, source: &Self) -> Result<Self> {
        self.scatter_op(dim, index, source, true, false)
    }

    /// [`Tensor::scatter_add`], overwriting this tensor.
    pub fn scatter_add_(&self, dim: isize, index: &Self, source: &Self) -> Result<Self> {
        self.scatter_op(dim, index, source, true, true)
    }

    /// 1 where the class of this integer tensor is, else 0, as i64.
    ///
    /// # Shapes
    /// `shape..` -> `shape.. classes`
    ///
    /// # Errors
    /// [`Error::Index`] on a value outside of the classes.
    pub fn one_hot(&self, classes: u64) -> Result<Self> {
        let mut shape: Dims = self.shape().into();
        shape.push(classes);
        let out = self.runtime().zeros(&shape, DType::I64)?;
        let index = self.unsqueeze(-1)?;
        let one = self.runtime().ones(&[], DType::I64)?.expand(index.shape())?;
        out.scatter_(-1, &index, &one)?;
        Ok(out)
    }
}
