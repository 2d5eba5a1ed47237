//! Dropout with inverted scaling. Source: Srivastava et al., JMLR 15 (2014).

use super::unary::need_float;
use super::{Needs, Op, Out, Outs, Rule, Saves, elementwise};
use crate::autograd::{Back, Grads};
#[cfg(feature = "cpu")]
use crate::cpu::{Args, elementwise::{CHUNK, Map, in_compute_dtype, map},
    rows::{in_pieces, place, put},
    simd::vectorized,
    typed::{Real, TypedMut},};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel::{Data, Num};
use crate::layout::elementwise_layout;
use crate::meter::Cost;
use crate::ops::create::Random;
use crate::rng::{Rng, Stream};
use crate::tensor::{Spec, Tensor};
use smallvec::smallvec;
use std::sync::Arc;

/// Zeroes elements with probability `p` and divides the others by `1 - p`. Outputs: result, and a bool mask of what is
/// left, which is all it keeps.
#[derive(Clone, Debug, PartialEq)]
pub struct Dropout {
    /// Probability that an element is dropped.
    pub p: f64,
    /// Site of the generator.
    pub site: u64,
    /// Seed and stream of the generator.
    pub rng: Rng,
}

/// Factor of the elements that are left; no element is left at `p = 1`.
fn scale(p: f64) -> f64 {
    if p < 1.0 { 1.0 / (1.0 - p) } else { 0.0 }
}

fn check_probability(p: f64) -> Result<()> {
    if (0.0..=1.0).contains(&p) {
        Ok(())
    } else {
        Err(Error::Argument { op: "dropout", what: format!("the probability must lie in 0..=1, not {p}") })
    }
}

impl Rule for Dropout {
    fn name(&self) -> &'static str {
        "dropout"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        let x = &inputs[0];
        need_float(self.name(), x)?;
        check_probability(self.p)?;
        let layout = Arc::new(elementwise_layout(x.shape(), &[&x.layout]));
        let mask = Out::Fresh(Spec { dtype: DType::Bool, layout: layout.clone() });
        Ok(smallvec![Out::Fresh(Spec { dtype: x.dtype, layout }), mask])
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        elementwise(inputs, outputs, u128::from(outputs[0].elements()))
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let factor = T::from_f64(scale(self.p));
        for (i, &x) in inputs[0].num().data.iter().enumerate() {
            let left = self.rng.bernoulli(self.site, i as u64, 1.0 - self.p);
            outputs[0].num_mut().data[i] = x * if left { factor } else { T::zero() };
            outputs[1].set_int(i, i64::from(left));
        }
        Ok(())
    }

    #[cfg(feature = "cpu")]
    fn run_cpu(&self, args: &mut Args<'_>) -> Result<bool> {
        Ok(in_compute_dtype!(args, C => self.forward::<C>(args)))
    }

    fn saves(&self, _: Needs) -> Saves {
        Saves::outputs(0b10)
    }

    fn differentiable(&self) -> u8 {
        1
    }

    fn gradient(&self, back: &Back<'_>) -> Result<Grads> {
        let dx = Tensor::op(DropoutBackward { p: self.p }, &[back.grad()?, back.output(1)?])?;
        Ok(smallvec![Some(dx)])
    }
}

/// Gradient of [`Dropout`] in one pass. Inputs: gradient, mask.
#[derive(Clone, Debug, PartialEq)]
pub struct DropoutBackward {
    /// Probability that an element was dropped.
    pub p: f64,
}

#[cfg(feature = "cpu")]
impl Dropout {
    /// Elements are counted in row-major order: other layouts are left to the plain kernel.
    fn forward<C: Real>(&self, args: &mut Args<'_>) -> Option<()> {
        const BLOCK: usize = 1024;
        let Args { inputs, outputs } = args;
        let source = inputs[0].typed()?;
        if !inputs[0].layout.is_contiguous() || outputs.iter().any(|o| !o.layout.is_contiguous()) {
            return None;
        }
        let count = outputs[0].elements();
        let mut typed = outputs.iter_mut().map(crate::cpu::Output::typed);
        let targets = [(typed.next()?, 1), (typed.next()?, 1)];
        let factor = C::from_f64(scale(self.p));
        in_pieces(count, CHUNK, targets, |first, count, [mut out, mask]| {
            let TypedMut::Bool(mask) = mask else { unreachable!("the mask is bool") };
            let (mut buffer, mut block) = ([C::zero(); BLOCK], [C::zero(); BLOCK]);
            for start in (0..count).step_by(BLOCK) {
                let len = BLOCK.min(count - start);
                let mask = &mut mask[start..start + len];
                self.rng.fill_bernoulli(self.site, (first + start) as u64, 1.0 - self.p, mask);
                let x = &mut buffer[..len];
                source.read(first + start, 1, x);
                let y = place(&mut out, start, len, &mut block);
                vectorized(
                    #[inline(always)]
                    || {
                        for ((y, &x), &left) in y.iter_mut().zip(&*x).zip(&*mask) {
                            *y = x * if left == 0 { C::zero() } else { factor };
                        }
                    },
                );
                put(&mut out, start, len, &block);
            }
        });
        Some(())
    }
}

#[cfg(feature = "cpu")]
impl Map<2, 1> for DropoutBackward {
    #[inline(always)]
    fn of<T: Num>(&self, [g, left]: [T; 2]) -> [T; 1] {
        [g * if left.to_f64() == 0.0 { T::zero() } else { T::from_f64(scale(self.p)) }]
    }
}

impl Rule for DropoutBackward {
    fn name(&self) -> &'static str {
        "dropout_backward"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        let (grad, mask) = (&inputs[0], &inputs[1]);
        need_float(self.name(), grad)?;
        check_probability(self.p)?;
        if grad.shape() != mask.shape() {
            let rule = "gradient and mask must have one shape";
            return Err(Error::Shapes { op: self.name(), a: grad.shape().into(), b: mask.shape().into(), rule });
        }
        let layout = Arc::new(elementwise_layout(grad.shape(), &[&grad.layout, &mask.layout]));
        Ok(smallvec![Out::Fresh(Spec { dtype: grad.dtype, layout })])
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        elementwise(inputs, outputs, u128::from(outputs[0].elements()))
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let factor = T::from_f64(scale(self.p));
        let mask = inputs[1].ints();
        for ((out, &g), left) in outputs[0].num_mut().data.iter_mut().zip(&inputs[0].num().data).zip(mask) {
            *out = g * if left == 0 { T::zero() } else { factor };
        }
        Ok(())
    }

    #[cfg(feature = "cpu")]
    fn run_cpu(&self, args: &mut Args<'_>) -> Result<bool> {
        Ok(map(args, self))
    }
}

impl Tensor {
    /// Dropout at a random site of its own, in one op that keeps a mask of one byte per element. `p = 0` is the tensor
    /// itself.
    ///
    /// # Errors
    /// [`Error::Argument`] unless `0 <= p <= 1`.
    pub fn dropout(&self, p: f64) -> Result<Self> {
        check_probability(p)?;
        if p == 0.0 {
            return Ok(self.clone());
        }
        let runtime = self.runtime();
        let (site, rng) = (runtime.next_random_site(), runtime.rng().for_stream(Stream::Dropout));
        Self::op(Op::Dropout(Dropout { p, site, rng }), &[self])
    }

    /// Dropout as the reference framework does it on a CPU: noise in the dtype of the tensor, divided by `1 - p` and
    /// multiplied. The noise is kept. Drops the same elements as [`Tensor::dropout`] would.
    ///
    /// # Errors
    /// [`Error::Argument`] unless `0 <= p <= 1`.
    pub fn dropout_composed(&self, p: f64) -> Result<Self> {
        check_probability(p)?;
        need_float("dropout", &self.spec())?;
        let runtime = self.runtime();
        if p == 0.0 {
            return Ok(self.clone());
        }
        if p == 1.0 {
            return self.mul(&runtime.zeros(&[], self.dtype())?);
        }
        let noise = runtime.random(self.shape(), Random::Bernoulli(1.0 - p), Stream::Dropout, self.dtype())?;
        self.mul(&noise.div_scalar_(1.0 - p)?)
    }
}
