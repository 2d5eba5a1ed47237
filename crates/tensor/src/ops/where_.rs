//! Elements of one tensor or the other, by a mask.

use super::{Needs, Op, Out, Outs, Rule, Saves, traffic};
use crate::autograd::{Back, Grads};
#[cfg(feature = "cpu")]
use crate::cpu::{Args, elementwise::{Map, map}};
use crate::dtype::promote;
use crate::error::{Error, Result};
use crate::kernel::{Data, Num};
use crate::layout::{broadcast_shapes, elementwise_layout};
use crate::meter::Cost;
use crate::ops::binary::broadcast_positions;
use crate::tensor::{Spec, Tensor};
use smallvec::smallvec;
use std::sync::Arc;

/// Inputs: mask, `a`, `b`. Output: `a` where the mask is set, else `b`, broadcast.
#[derive(Clone, Debug, PartialEq)]
pub struct Where;

#[cfg(feature = "cpu")]
impl Map<3, 1> for Where {
    #[inline(always)]
    fn of<T: Num>(&self, [mask, a, b]: [T; 3]) -> [T; 1] {
        [if mask.to_f64() == 0.0 { b } else { a }]
    }
}

impl Rule for Where {
    fn name(&self) -> &'static str {
        "where"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        let (mask, a, b) = (&inputs[0], &inputs[1], &inputs[2]);
        if !mask.dtype.is_bool() {
            return Err(Error::DType { op: "where", got: mask.dtype, expected: "a bool mask" });
        }
        let shape = broadcast_shapes("where", a.shape(), b.shape())?;
        let shape = broadcast_shapes("where", mask.shape(), &shape)?;
        let dtype =
            promote(a.dtype, b.dtype).map_err(|_| Error::NoPromotion { op: "where", a: a.dtype, b: b.dtype })?;
        let layout = elementwise_layout(&shape, &[&mask.layout, &a.layout, &b.layout]);
        Ok(smallvec![Out::Fresh(Spec { dtype, layout: Arc::new(layout) })])
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        traffic(inputs, outputs)
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let (mask, a, b) = (inputs[0].ints(), inputs[1].to_num(), inputs[2].to_num());
        let out = outputs[0].num_mut();
        let at = |i: usize| broadcast_positions(inputs[i].shape(), &out.shape);
        let places = at(0).into_iter().zip(at(1)).zip(at(2));
        for (value, ((m, a_at), b_at)) in out.data.iter_mut().zip(places) {
            *value = if mask[m] == 0 { b.data[b_at] } else { a.data[a_at] };
        }
        Ok(())
    }

    #[cfg(feature = "cpu")]
    fn run_cpu(&self, args: &mut Args<'_>) -> Result<bool> {
        Ok(map(args, self))
    }

    fn saves(&self, _: Needs) -> Saves {
        Saves::inputs(0b001)
    }

    fn differentiable(&self) -> u8 {
        0b110
    }

    fn gradient(&self, back: &Back<'_>) -> Result<Grads> {
        let (grad, mask) = (back.grad()?, back.input(0)?);
        let side = |i: usize, zero_where_set: bool| {
            back.wants(i)
                .then(|| {
                    let part = grad.masked_fill_where(mask, 0.0, zero_where_set)?;
                    part.sum_to(back.spec(i).shape())?.to_dtype(back.spec(i).dtype)
                })
                .transpose()
        };
        Ok(smallvec![None, side(1, false)?, side(2, true)?])
    }
}

impl Tensor {
    /// `a` where this bool mask is set, else `b`; all three broadcast.
    pub fn where_cond(&self, a: &Self, b: &Self) -> Result<Self> {
        Self::op(Op::Where(Where), &[self, a, b])
    }
}
