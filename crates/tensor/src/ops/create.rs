//! Tensors out of nothing: constants, ranges, random numbers, given data.

use super::{Op, Outs, Rule, one_fresh};
use crate::apply::apply_on;
#[cfg(feature = "cpu")]
use crate::cpu::{Args, elementwise::CHUNK, rows::in_pieces, simd::vectorized};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel::{Data, Num};
use crate::layout::Dims;
use crate::meter::{Cost, Role};
use crate::rng::{Rng, Stream, TruncatedNormal};
use crate::runtime::Runtime;
use crate::tensor::{Spec, Tensor};
use std::sync::Arc;

/// A fresh tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Create {
    /// Shape of the result.
    pub shape: Dims,
    /// dtype of the result.
    pub dtype: DType,
    /// What fills it.
    pub fill: Fill,
}

/// What fills a fresh tensor.
#[derive(Clone, Debug, PartialEq)]
pub enum Fill {
    /// One value.
    Full(f64),
    /// `start + i * step`.
    Arange {
        /// First value.
        start: f64,
        /// Distance.
        step: f64,
    },
    /// Given values; `None` on the meta device.
    Data(Option<Arc<Vec<f64>>>),
    /// Random numbers drawn at a site of the generator.
    Random {
        /// Distribution.
        kind: Random,
        /// Site of the generator.
        site: u64,
        /// Seed and stream of the generator.
        rng: Rng,
    },
}

/// Distributions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Random {
    /// Uniform on `[low, high)`.
    Uniform(f64, f64),
    /// Normal with mean and standard deviation.
    Normal(f64, f64),
    /// Normal with mean and standard deviation, cut at `cut` standard deviations on both sides.
    TruncatedNormal(f64, f64, f64),
    /// 1 with this probability, else 0.
    Bernoulli(f64),
}

impl Rule for Create {
    fn name(&self) -> &'static str {
        match &self.fill {
            Fill::Full(_) => "full",
            Fill::Arange { .. } => "arange",
            Fill::Data(_) => "from_data",
            Fill::Random { kind, .. } => match kind {
                Random::Uniform(..) => "rand",
                Random::Normal(..) => "randn",
                Random::TruncatedNormal(..) => "truncated_normal",
                Random::Bernoulli(_) => "bernoulli",
            },
        }
    }

    fn infer(&self, _: &[Spec]) -> Result<Outs> {
        one_fresh(&self.shape, self.dtype)
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        super::traffic(inputs, outputs)
    }

    fn run<T: Num>(&self, _: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let count = outputs[0].shape().iter().product::<usize>();
        let value: Box<dyn Fn(usize) -> f64> = match &self.fill {
            Fill::Full(x) => Box::new(move |_| *x),
            Fill::Arange { start, step } => Box::new(move |i| start + i as f64 * step),
            Fill::Data(Some(values)) => Box::new(move |i| values[i]),
            Fill::Data(None) => return Ok(()),
            Fill::Random { kind, site, rng } => random(*kind, *site, *rng)?,
        };
        for i in 0..count {
            match &mut outputs[0] {
                Data::Num(out) => out.data[i] = T::from_f64(value(i)),
                Data::Int(out) => out.data[i] = value(i) as i64,
            }
        }
        Ok(())
    }

    #[cfg(feature = "cpu")]
    fn run_cpu(&self, args: &mut Args<'_>) -> Result<bool> {
        let fill: Filler<'_> = match &self.fill {
            Fill::Full(x) => Box::new(|_, to| to.fill(*x)),
            Fill::Arange { start, step } => Box::new(move |first, to| {
                for (i, to) in to.iter_mut().enumerate() {
                    *to = start + (first + i) as f64 * step;
                }
            }),
            Fill::Data(Some(values)) => {
                let values: &[f64] = values;
                Box::new(move |first, to| to.copy_from_slice(&values[first..first + to.len()]))
            }
            Fill::Data(None) => return Ok(true),
            Fill::Random { kind, site, rng } => fill_random(*kind, *site, *rng)?,
        };
        let output = &mut args.outputs[0];
        let (count, whole) = (output.elements(), !output.dtype.is_float());
        in_pieces(count, CHUNK, [(output.typed(), 1)], |first, count, [mut to]| {
            let mut block = [0.0; BLOCK];
            for start in (0..count).step_by(BLOCK) {
                let block = &mut block[..BLOCK.min(count - start)];
                fill(first + start, block);
                if whole {
                    // Before a truth value is made of it, a fraction is cut off.
                    for x in block.iter_mut() {
                        *x = x.trunc();
                    }
                }
                to.write(start, 1, block);
            }
        });
        Ok(true)
    }
}

/// The generator of element `i`.
fn random(kind: Random, site: u64, rng: Rng) -> Result<Box<dyn Fn(usize) -> f64>> {
    Ok(match kind {
        Random::Uniform(low, high) => Box::new(move |i| low + (high - low) * rng.uniform_f64(site, i as u64)),
        Random::Normal(mean, std) => Box::new(move |i| mean + std * rng.normal(site, i as u64)),
        Random::TruncatedNormal(mean, std, cut) => {
            let shape = truncated(cut)?;
            Box::new(move |i| mean + std * rng.truncated_normal(site, i as u64, &shape))
        }
        Random::Bernoulli(p) => Box::new(move |i| f64::from(u8::from(rng.bernoulli(site, i as u64, p)))),
    })
}

/// Writes the elements from one on.
#[cfg(feature = "cpu")]
type Filler<'a> = Box<dyn Fn(usize, &mut [f64]) + Sync + 'a>;

/// Numbers made at once: as many as stay in the first-level cache.
#[cfg(feature = "cpu")]
const BLOCK: usize = 1024;

/// Writes the elements from one on: the numbers of [`random`].
#[cfg(feature = "cpu")]
fn fill_random(kind: Random, site: u64, rng: Rng) -> Result<Filler<'static>> {
    /// `mean + std x`, as it is rounded there.
    fn scale(to: &mut [f64], mean: f64, std: f64) {
        vectorized(
            #[inline(always)]
            || to.iter_mut().for_each(|x| *x = mean + std * *x),
        );
    }
    Ok(match kind {
        Random::Uniform(low, high) => Box::new(move |first, to| {
            rng.fill_uniform_f64(site, first as u64, to);
            scale(to, low, high - low);
        }),
        Random::Normal(mean, std) => Box::new(move |first, to| {
            rng.fill_normal_f64(site, first as u64, to);
            scale(to, mean, std);
        }),
        Random::TruncatedNormal(mean, std, cut) => {
            let shape = truncated(cut)?;
            Box::new(move |first, to| {
                for (i, to) in to.iter_mut().enumerate() {
                    *to = mean + std * rng.truncated_normal(site, (first + i) as u64, &shape);
                }
            })
        }
        Random::Bernoulli(p) => Box::new(move |first, to| {
            let mut bits = [0; BLOCK];
            let bits = &mut bits[..to.len()];
            rng.fill_bernoulli(site, first as u64, p, bits);
            for (to, &bit) in to.iter_mut().zip(&*bits) {
                *to = f64::from(bit);
            }
        }),
    })
}

/// Standard normal cut at `cut` on both sides.
fn truncated(cut: f64) -> Result<TruncatedNormal> {
    TruncatedNormal::new(-cut, cut).map_err(|e| Error::Argument { op: "truncated_normal", what: e.to_string() })
}

impl Runtime {
    fn create(&self, shape: &[u64], dtype: DType, fill: Fill) -> Result<Tensor> {
        let op = Op::Create(Create { shape: shape.into(), dtype, fill });
        Ok(apply_on(self, op, &[])?.swap_remove(0))
    }

    /// All elements `value`.
    pub fn full(&self, shape: &[u64], value: f64, dtype: DType) -> Result<Tensor> {
        self.create(shape, dtype, Fill::Full(value))
    }

    /// All elements 0.
    pub fn zeros(&self, shape: &[u64], dtype: DType) -> Result<Tensor> {
        self.full(shape, 0.0, dtype)
    }

    /// All elements 1.
    pub fn ones(&self, shape: &[u64], dtype: DType) -> Result<Tensor> {
        self.full(shape, 1.0, dtype)
    }

    /// `start, start + step, ...`, `count` of them.
    pub fn arange(&self, count: u64, start: f64, step: f64, dtype: DType) -> Result<Tensor> {
        self.create(&[count], dtype, Fill::Arange { start, step })
    }

    /// Given values in row-major order. On the meta device only their number is looked at.
    ///
    /// # Errors
    /// [`Error::Argument`] if there are not as many values as the shape has elements.
    pub fn tensor(&self, values: &[f64], shape: &[u64], dtype: DType) -> Result<Tensor> {
        let count = crate::layout::checked_count(shape)?;
        if count != values.len() as u64 {
            return Err(Error::Argument {
                op: "tensor",
                what: format!("{} values for shape {shape:?}, which has {count} elements", values.len()),
            });
        }
        let data = self.holds_data().then(|| Arc::new(values.to_vec()));
        self.create(shape, dtype, Fill::Data(data))
    }

    /// [`Runtime::tensor`] whose values are made only where the device holds data.
    ///
    /// # Errors
    /// As [`Runtime::tensor`].
    pub fn tensor_with(&self, shape: &[u64], dtype: DType, values: impl FnOnce() -> Vec<f64>) -> Result<Tensor> {
        if self.holds_data() { self.tensor(&values(), shape, dtype) } else { self.create(shape, dtype, Fill::Data(None)) }
    }

    /// A tensor that the program is given, such as tokens: role `input`.
    pub fn input(&self, values: &[f64], shape: &[u64], dtype: DType) -> Result<Tensor> {
        Ok(self.tensor(values, shape, dtype)?.with_role(Role::Input))
    }

    /// Random numbers at a site of their own.
    pub fn random(&self, shape: &[u64], kind: Random, stream: Stream, dtype: DType) -> Result<Tensor> {
        let fill = Fill::Random { kind, site: self.next_random_site(), rng: self.rng().for_stream(stream) };
        self.create(shape, dtype, fill)
    }

    /// Standard normal numbers.
    pub fn randn(&self, shape: &[u64], dtype: DType) -> Result<Tensor> {
        self.random(shape, Random::Normal(0.0, 1.0), Stream::Init, dtype)
    }

    /// Normal numbers cut at `cut` standard deviations.
    pub fn truncated_normal(&self, shape: &[u64], std: f64, cut: f64, dtype: DType) -> Result<Tensor> {
        self.random(shape, Random::TruncatedNormal(0.0, std, cut), Stream::Init, dtype)
    }
}
