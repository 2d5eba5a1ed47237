//! Mean over dimensions.

use super::{Needs, Op, Outs, Rule, Saves, elementwise, one_fresh};
use crate::autograd::{Back, Grads};
#[cfg(feature = "cpu")]
use crate::cpu::{Args, elementwise::in_compute_dtype, reduce::over_dims};
use crate::error::{Error, Result};
use crate::kernel::{Data, Num};
use crate::meter::Cost;
use crate::ops::sum::{for_each_reduced, reduced_shape};
use crate::tensor::{Spec, Tensor};
use smallvec::{SmallVec, smallvec};

/// Mean over `dims`, which stay with size 1 (`keep`) or disappear.
#[derive(Clone, Debug, PartialEq)]
pub struct Mean {
    /// Dimensions averaged over, ascending.
    pub dims: SmallVec<[u8; 8]>,
    /// Whether they stay with size 1.
    pub keep: bool,
}

impl Mean {
    /// Number of elements behind one result.
    fn count(&self, shape: &[u64]) -> u64 {
        self.dims.iter().map(|&d| shape[d as usize]).product()
    }
}

impl Rule for Mean {
    fn name(&self) -> &'static str {
        "mean"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        if !inputs[0].dtype.is_float() {
            return Err(Error::DType { op: "mean", got: inputs[0].dtype, expected: "a floating-point dtype" });
        }
        one_fresh(&reduced_shape(inputs[0].shape(), &self.dims, self.keep), inputs[0].dtype)
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        // One addition for each element, one division for each result.
        elementwise(inputs, outputs, u128::from(inputs[0].elements()) + u128::from(outputs[0].elements()))
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let (x, out) = (inputs[0].num(), outputs[0].num_mut());
        for_each_reduced(&x.shape, &self.dims, |from, to| out.data[to] = out.data[to] + x.data[from]);
        let count: usize = self.dims.iter().map(|&d| x.shape[d as usize]).product();
        let count = T::from_f64(count as f64);
        for value in &mut out.data {
            *value = *value / count;
        }
        Ok(())
    }

    #[cfg(feature = "cpu")]
    fn run_cpu(&self, args: &mut Args<'_>) -> Result<bool> {
        let count = self.count(args.inputs[0].layout.shape()) as f64;
        Ok(in_compute_dtype!(args, C => over_dims::<C>(args, &self.dims, |sum| sum / C::from_f64(count))))
    }

    fn saves(&self, _: Needs) -> Saves {
        Saves::NONE
    }

    fn differentiable(&self) -> u8 {
        1
    }

    fn gradient(&self, back: &Back<'_>) -> Result<Grads> {
        let shape = back.spec(0).shape();
        let kept = reduced_shape(shape, &self.dims, true);
        // The division runs over the expanded view, as in the reference framework: one buffer of full size.
        let spread = back.grad()?.view(&kept)?.expand(shape)?;
        Ok(smallvec![Some(spread.div_scalar(self.count(shape) as f64)?)])
    }
}

impl Tensor {
    /// Mean over `dims`.
    ///
    /// # Shapes
    /// the shape without `dims`, or with size 1 there if `keep`
    pub fn mean(&self, dims: &[isize], keep: bool) -> Result<Self> {
        let dims = self.dims_of("mean", dims)?;
        Self::op(Op::Mean(Mean { dims, keep }), &[self])
    }

    /// Mean of all elements, a scalar.
    pub fn mean_all(&self) -> Result<Self> {
        let dims = (0..self.rank() as u8).collect();
        Self::op(Op::Mean(Mean { dims, keep: false }), &[self])
    }
}
