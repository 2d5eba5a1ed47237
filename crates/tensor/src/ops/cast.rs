//! Change of dtype.

use super::{Needs, Op, Out, Outs, Rule, Saves, traffic};
use crate::autograd::{Back, Grads};
#[cfg(feature = "cpu")]
use crate::cpu::{Args, elementwise::{Map, map}};
use crate::dtype::DType;
use crate::error::Result;
use crate::kernel::{Data, Num};
use crate::layout::elementwise_layout;
use crate::meter::{CopyReason, Cost};
use crate::tensor::{Spec, Tensor};
use smallvec::smallvec;
use std::sync::Arc;

/// Converts every element to `to`: round to nearest even, saturation as the format says.
#[derive(Clone, Debug, PartialEq)]
pub struct Cast {
    /// dtype of the result.
    pub to: DType,
}

#[cfg(feature = "cpu")]
impl Map<1, 1> for Cast {
    #[inline(always)]
    fn of<T: Num>(&self, x: [T; 1]) -> [T; 1] {
        x
    }
}

impl Rule for Cast {
    fn name(&self) -> &'static str {
        "cast"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        let layout = elementwise_layout(inputs[0].shape(), &[&inputs[0].layout]);
        Ok(smallvec![Out::Fresh(Spec { dtype: self.to, layout: Arc::new(layout) })])
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        traffic(inputs, outputs)
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        for (i, x) in inputs[0].to_num().data.into_iter().enumerate() {
            match &mut outputs[0] {
                Data::Num(out) => out.data[i] = x,
                // Whatever is not zero is true, a fraction too.
                Data::Int(out) if self.to.is_bool() => out.data[i] = i64::from(x.to_f64() != 0.0),
                Data::Int(out) => out.data[i] = x.to_f64() as i64,
            }
        }
        Ok(())
    }

    #[cfg(feature = "cpu")]
    fn run_cpu(&self, args: &mut Args<'_>) -> Result<bool> {
        Ok(map(args, self))
    }

    fn saves(&self, _: Needs) -> Saves {
        Saves::NONE
    }

    fn differentiable(&self) -> u8 {
        1
    }

    fn gradient(&self, back: &Back<'_>) -> Result<Grads> {
        Ok(smallvec![Some(back.grad()?.to_dtype(back.spec(0).dtype)?)])
    }

    fn copy_reason(&self) -> Option<CopyReason> {
        Some(CopyReason::Cast)
    }
}

impl Tensor {
    /// The elements in another dtype; itself if it has that dtype.
    pub fn to_dtype(&self, dtype: DType) -> Result<Self> {
        if self.dtype() == dtype { Ok(self.clone()) } else { Self::op(Op::Cast(Cast { to: dtype }), &[self]) }
    }
}
