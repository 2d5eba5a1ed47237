//! Rounding to bf16 up or down at random, right in the mean: many steps too small for the spacing of a weight add up.
//! Source: Gupta et al., Deep Learning with Limited Numerical Precision, arXiv:1502.02551.

use super::{Op, Out, Outs, Rule, traffic};
#[cfg(feature = "cpu")]
use crate::cpu::{Args, elementwise::CHUNK};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel::{Data, Num};
use crate::layout::broadcast_shapes;
use crate::meter::Cost;
use crate::rng::Rng;
use crate::tensor::{Spec, Tensor};
use smallvec::smallvec;

/// Writes the second input, rounded, over the first, which is bf16: each number goes to one of its two neighbours, to the
/// nearer one with the higher probability, so that the mean is the number.
#[derive(Clone, Debug, PartialEq)]
pub struct StochasticRound {
    /// Site of the generator: each use its own.
    pub site: u64,
    /// Seed and stream of the generator.
    pub rng: Rng,
}

/// Rounds `x` to bf16 with 16 random bits, which reach the place of every bit that is cut off.
#[inline]
fn round(x: f32, random: u32) -> f32 {
    let bits = x.to_bits();
    let moved = f32::from_bits(bits.wrapping_add(random & 0xFFFF) & 0xFFFF_0000);
    // Past the largest number the way up ends in infinity; NaN and infinity have no neighbours.
    if !x.is_finite() {
        half::bf16::from_f32(x).to_f32()
    } else if moved.is_finite() {
        moved
    } else {
        f32::from_bits(bits & 0xFFFF_0000)
    }
}

impl Rule for StochasticRound {
    fn name(&self) -> &'static str {
        "stochastic_round_"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        let (op, to, from) = (self.name(), &inputs[0], &inputs[1]);
        if to.dtype != DType::BF16 {
            return Err(Error::DType { op, got: to.dtype, expected: "bf16 to round to" });
        }
        super::unary::need_float(op, from)?;
        if broadcast_shapes(op, to.shape(), from.shape())?.as_slice() != to.shape() {
            return Err(Error::Broadcast { op, a: to.shape().into(), b: from.shape().into() });
        }
        Ok(smallvec![Out::InPlace(0)])
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        traffic(&inputs[1..], outputs)
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        super::binary::broadcast_into(&inputs[1], &mut outputs[0]);
        for (i, x) in outputs[0].num_mut().data.iter_mut().enumerate() {
            let random = self.rng.bits32(self.site, i as u64);
            *x = T::from_f64(f64::from(round(x.to_f64() as f32, random)));
        }
        Ok(())
    }

    #[cfg(feature = "cpu")]
    fn run_cpu(&self, args: &mut Args<'_>) -> Result<bool> {
        use rayon::prelude::*;
        let Args { inputs, outputs } = args;
        let alike = inputs[1].layout.shape() == outputs[0].layout.shape() && inputs[1].dtype == DType::F32;
        let (Some(from), Some(to), true) = (inputs[1].dense::<f32>(), outputs[0].dense::<u16>(), alike) else {
            return Ok(false);
        };
        to.par_chunks_mut(CHUNK).zip(from.par_chunks(CHUNK)).enumerate().for_each(|(piece, (to, from))| {
            // Four numbers share a block of random bits, and a piece has whole blocks.
            let first = (piece * CHUNK) as u64;
            for (group, (to, from)) in (0u64..).zip(to.chunks_mut(4).zip(from.chunks(4))) {
                let bits = self.rng.four_bits32(self.site, first + 4 * group);
                for ((to, &x), random) in to.iter_mut().zip(from).zip(bits) {
                    *to = (round(x, random).to_bits() >> 16) as u16;
                }
            }
        });
        Ok(true)
    }
}

impl Tensor {
    /// Writes `source` over this bf16 tensor, rounded up or down at random so that the mean is right.
    ///
    /// The same seed, stream and site give the same numbers on any number of threads.
    ///
    /// # Errors
    /// [`Error::DType`] if this tensor is not bf16.
    pub fn stochastic_round_(&self, source: &Self, rng: Rng, site: u64) -> Result<Self> {
        Self::op(Op::StochasticRound(StochasticRound { site, rng }), &[self, source])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_and_ends() {
        let ulp = 2f32.powi(-7);
        for random in [0, 1, 0x7FFF, 0x8000, 0xFFFF] {
            assert_eq!(round(1.0 + ulp, random), 1.0 + ulp, "what bf16 holds stays");
            assert_eq!(round(0.0, random), 0.0);
            assert_eq!(round(f32::INFINITY, random), f32::INFINITY);
            assert!(round(f32::NAN, random).is_nan());
            assert_eq!(round(f32::MAX, random), half::bf16::MAX.to_f32(), "no overflow");
        }
        // A quarter of the way up: a quarter of the 65,536 draws go up.
        for (x, down, up) in [(1.0 + ulp / 4.0, 1.0, 1.0 + ulp), (-1.0 - ulp / 4.0, -1.0, -1.0 - ulp)] {
            let ups = (0..0x1_0000).filter(|&random| round(x, random) == up).count();
            let downs = (0..0x1_0000).filter(|&random| round(x, random) == down).count();
            assert_eq!((ups, downs), (0x4000, 0xC000));
        }
    }
}
