//! One step of `AdamW` for one parameter whose moments are stored in bytes, fused: no temporaries. Source: Dettmers et al.,
//! arXiv:2110.02861.

use super::adamw::{AdamW, need_agreement, need_one_shape};
use super::blockwise::{BLOCK, Code, dequantize, need_blocks, quantize, write_bytes};
use super::unary::need_float;
use super::{Op, Out, Outs, Rule, traffic};
use crate::apply::apply;
use crate::error::Result;
use crate::kernel::{Data, Num};
use crate::meter::Cost;
use crate::tensor::{Spec, Tensor};
use smallvec::{SmallVec, smallvec};

/// Inputs: parameter, gradient, `exp_avg` in bytes and its scales, `exp_avg_sq` in bytes and its scales, and the master
/// copy of the parameter if there is one. All but the gradient are written over.
///
/// The parameter moves by the new moments as they are, before they are rounded to bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct AdamW8bit(pub AdamW);

impl Rule for AdamW8bit {
    fn name(&self) -> &'static str {
        "adamw_8bit"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        let op = self.name();
        self.0.check(op)?;
        let numbers = || [0, 1].into_iter().chain(self.0.master.then_some(6)).map(|i| &inputs[i]);
        for operand in numbers() {
            need_float(op, operand)?;
        }
        need_one_shape(op, numbers().chain([&inputs[2], &inputs[4]]))?;
        need_blocks(op, &inputs[2], &inputs[3])?;
        need_blocks(op, &inputs[4], &inputs[5])?;
        Ok([0, 2, 3, 4, 5].into_iter().chain(self.0.master.then_some(6)).map(Out::InPlace).collect())
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        // Each moment is multiplied by its scale before and divided by it after.
        let flops = (self.0.flops_per_element() + 4) * u128::from(inputs[0].elements());
        // With a master copy the parameter is not read.
        Cost { elementwise: flops, ..traffic(&inputs[usize::from(self.0.master)..], outputs) }
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let update = self.0.update();
        let at = if self.0.master { 5 } else { 0 };
        let (mut first, mut second) = (outputs[1].ints(), outputs[3].ints());
        let blocks = first.chunks_mut(BLOCK as usize).zip(second.chunks_mut(BLOCK as usize));
        for (block, (first, second)) in blocks.enumerate() {
            let scale = |j: usize| outputs[j].num().data[block];
            let mut m: Vec<T> = dequantize(Code::Signed, first, scale(2)).collect();
            let mut v: Vec<T> = dequantize(Code::Unsigned, second, scale(4)).collect();
            for i in 0..m.len() {
                let place = block * BLOCK as usize + i;
                let (old, g) = (outputs[at].num().data[place], inputs[1].num().data[place]);
                let new;
                [new, m[i], v[i]] = update.of(old, g, m[i], v[i]);
                outputs[0].num_mut().data[place] = new;
                outputs[at].num_mut().data[place] = new;
            }
            outputs[2].num_mut().data[block] = quantize(Code::Signed, &m, first);
            outputs[4].num_mut().data[block] = quantize(Code::Unsigned, &v, second);
        }
        write_bytes(&mut outputs[1], &first);
        write_bytes(&mut outputs[3], &second);
        Ok(())
    }
}

impl Tensor {
    /// Updates this parameter, its moments and its master copy in place, in one op without temporaries. Each moment is
    /// its bytes and the scales of their blocks.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) unless `master` is given exactly if the op says so;
    /// [`Error::InPlaceOnGraph`](crate::Error::InPlaceOnGraph) outside of `no_grad` if the parameter requires a gradient.
    pub fn adamw_8bit_(
        &self,
        grad: &Self,
        exp_avg: (&Self, &Self),
        exp_avg_sq: (&Self, &Self),
        master: Option<&Self>,
        step: &AdamW8bit,
    ) -> Result<()> {
        need_agreement("adamw_8bit", step.0.master, master.is_some())?;
        let mut inputs: SmallVec<[&Self; 7]> =
            smallvec![self, grad, exp_avg.0, exp_avg.1, exp_avg_sq.0, exp_avg_sq.1];
        inputs.extend(master);
        apply(Op::AdamW8bit(step.clone()), &inputs).map(drop)
    }
}
