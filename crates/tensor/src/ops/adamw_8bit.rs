//! One step of `AdamW` for one parameter whose moments are stored in bytes, fused: no temporaries. Source: Dettmers et al.,
//! arXiv:2110.02861.

use super::adamw::{AdamW, need_agreement, need_one_shape};
use super::blockwise::{BLOCK, Code, dequantize, need_blocks, quantize, write_bytes};
use super::unary::need_float;
use super::{Op, Out, Outs, Rule, traffic};
use crate::apply::apply;
#[cfg(feature = "cpu")]
use crate::cpu::Args;
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

    #[cfg(feature = "cpu")]
    fn run_cpu(&self, args: &mut Args<'_>) -> Result<bool> {
        Ok(fast::run(&self.0, args))
    }
}

/// Blocks shared out to threads, each read, updated and written while it is in the first-level cache.
#[cfg(feature = "cpu")]
mod fast {
    use super::{AdamW, BLOCK, Code};
    use crate::cpu::Args;
    use crate::cpu::elementwise::CHUNK;
    use crate::cpu::simd::vectorized;
    use crate::cpu::typed::{Typed, TypedMut};
    use crate::dtype::DType;
    use crate::layout::Layout;
    use crate::ops::blockwise::{read_block, write_block};
    use rayon::prelude::*;

    const N: usize = BLOCK as usize;

    /// What a thread works on: blocks of the gradient and of everything that is written.
    struct Piece<'a> {
        grad: Typed<'a>,
        param: TypedMut<'a>,
        master: Option<TypedMut<'a>>,
        bytes: [TypedMut<'a>; 2],
        scales: [TypedMut<'a>; 2],
    }

    pub(super) fn run(op: &AdamW, args: &mut Args<'_>) -> bool {
        let Args { inputs, outputs } = args;
        let dense = inputs.iter().map(|x| x.layout).chain(outputs.iter().map(|x| x.layout));
        let wide = inputs.iter().any(|x| x.dtype == DType::F64);
        let Some(grad) = inputs[1].typed().filter(|_| !wide && dense.into_iter().all(Layout::is_contiguous)) else {
            return false;
        };
        let elements = outputs[0].elements();
        let mut parts: Vec<TypedMut<'_>> = outputs.iter_mut().map(|output| output.typed()).collect();
        let pieces: Vec<(usize, Piece<'_>)> = (0..elements)
            .step_by(CHUNK)
            .map(|first| {
                let count = CHUNK.min(elements - first);
                let mut take = |j: usize, count: usize| parts[j].take(count);
                let blocks = count.div_ceil(N);
                let piece = Piece {
                    grad: grad.from(first),
                    param: take(0, count),
                    master: op.master.then(|| take(5, count)),
                    bytes: [take(1, count), take(3, count)],
                    scales: [take(2, blocks), take(4, blocks)],
                };
                (count, piece)
            })
            .collect();
        pieces.into_par_iter().for_each(|(count, piece)| work(op, count, piece));
        true
    }

    fn work(op: &AdamW, count: usize, mut piece: Piece<'_>) {
        let update = op.update();
        let tables = [Code::Signed.table(), Code::Unsigned.table()];
        let [TypedMut::U8(first), TypedMut::U8(second)] = &mut piece.bytes else { return };
        let [TypedMut::F32(first_scales), TypedMut::F32(second_scales)] = &mut piece.scales else { return };
        let [mut p, mut g, mut m, mut v] = [[0f32; N]; 4];
        for (block, start) in (0..count).step_by(N).enumerate() {
            let len = N.min(count - start);
            piece.grad.read(start, 1, &mut g[..len]);
            piece.master.as_ref().unwrap_or(&piece.param).as_read().read(start, 1, &mut p[..len]);
            let range = start..start + len;
            vectorized(
                #[inline(always)]
                || {
                    read_block(tables[0], &first[range.clone()], first_scales[block], &mut m);
                    read_block(tables[1], &second[range.clone()], second_scales[block], &mut v);
                    for i in 0..len {
                        [p[i], m[i], v[i]] = update.of(p[i], g[i], m[i], v[i]);
                    }
                    first_scales[block] = write_block(tables[0], &m[..len], &mut first[range.clone()]);
                    second_scales[block] = write_block(tables[1], &v[..len], &mut second[range.clone()]);
                },
            );
            piece.param.write(start, 1, &p[..len]);
            if let Some(master) = &mut piece.master {
                master.write(start, 1, &p[..len]);
            }
        }
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
