//! Layer normalisation over the last dimension. Source: Ba, Kiros and Hinton, arXiv:1607.06450.

use super::unary::need_float;
use super::{Needs, Op, Out, Outs, Rule, Saves, elementwise};
use crate::apply::apply;
use crate::autograd::{Back, Grads};
#[cfg(feature = "cpu")]
use crate::cpu::{
    Args,
    elementwise::in_compute_dtype,
    norm::{Norm, Wanted},
};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel::{Data, Num};
use crate::layout::Dims;
use crate::meter::Cost;
use crate::tensor::{Spec, Tensor};
use smallvec::{SmallVec, smallvec};

/// dtype in which the statistics of each row are kept for backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stats {
    /// f32 for low-precision inputs, as GPU kernels do.
    Full,
    /// The dtype of the input, unless the weight has another: what the reference framework does on a CPU.
    AsInput,
}

/// Inputs: `x (.. h)`, weight `(h)` if there is one, bias `(h)` if there is one. Outputs: `(.. h)`, mean `(.. 1)`,
/// `1 / √(variance + eps)` `(.. 1)`. Keeps all but the normalised result.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerNorm {
    /// Added to the variance.
    pub eps: f64,
    /// Whether there is a weight.
    pub weight: bool,
    /// Whether there is a bias.
    pub bias: bool,
    /// dtype of the statistics.
    pub stats: Stats,
}

/// `(rows, h)` of a normalised shape.
pub(super) fn rows_of(shape: &[u64]) -> (u128, u128) {
    let last = shape.len() - 1;
    (shape[..last].iter().map(|&n| u128::from(n)).product(), u128::from(shape[last]))
}

/// Checks of a norm over the last dimension with per-channel operands.
pub(super) fn check_norm(op: &'static str, eps: f64, x: &Spec, channels: &[Spec]) -> Result<()> {
    need_float(op, x)?;
    if eps.is_nan() || eps < 0.0 {
        return Err(Error::Argument { op, what: format!("eps must be a number that is not negative, not {eps}") });
    }
    let Some(&h) = x.shape().last() else {
        return Err(Error::Rank { op, expected: 1, shape: x.shape().into() });
    };
    for channel in channels {
        need_float(op, channel)?;
        if channel.shape() != [h] {
            let rule = "weight and bias must have one element per channel of the last dimension";
            return Err(Error::Shapes { op, a: x.shape().into(), b: channel.shape().into(), rule });
        }
        if channel.dtype != channels[0].dtype {
            return Err(Error::NoPromotion { op, a: channels[0].dtype, b: channel.dtype });
        }
    }
    Ok(())
}

/// Shape `(.. 1)` of the statistics of `(.. h)`.
pub(super) fn stats_shape(shape: &[u64]) -> Dims {
    shape[..shape.len() - 1].iter().copied().chain([1]).collect()
}

impl LayerNorm {
    fn stats_dtype(&self, inputs: &[Spec]) -> DType {
        let x = inputs[0].dtype;
        let mixed = inputs.get(1).is_some_and(|w| w.dtype != x);
        if x == DType::F64 || (self.stats == Stats::AsInput && !mixed) { x } else { DType::F32 }
    }
}

impl Rule for LayerNorm {
    fn name(&self) -> &'static str {
        "layer_norm"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        let x = &inputs[0];
        check_norm(self.name(), self.eps, x, &inputs[1..])?;
        let (shape, dtype) = (stats_shape(x.shape()), self.stats_dtype(inputs));
        Ok(smallvec![Out::fresh(x.shape(), x.dtype)?, Out::fresh(&shape, dtype)?, Out::fresh(&shape, dtype)?])
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        let (rows, h) = rows_of(inputs[0].shape());
        // Per element: 1 for the mean, 3 for the variance, 2 to normalise. Per row: 2 divisions, eps, root, inverse.
        let per_element = 6 + u128::from(self.weight) + u128::from(self.bias);
        elementwise(inputs, outputs, rows * (per_element * h + 5))
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let x = inputs[0].num();
        let weight = self.weight.then(|| inputs[1].num());
        let bias = self.bias.then(|| inputs[1 + usize::from(self.weight)].num());
        let (h, rows) = (x.last(), outputs[1].num().data.len());
        let count = T::from_f64(h as f64);
        for r in 0..rows {
            let row = &x.data[r * h..(r + 1) * h];
            let mean = row.iter().fold(T::zero(), |sum, &x| sum + x) / count;
            let square = |x: T| {
                let d = x - mean;
                d * d
            };
            let variance = row.iter().fold(T::zero(), |sum, &x| sum + square(x)) / count;
            let rstd = T::one() / (variance + T::from_f64(self.eps)).sqrt();
            let out = &mut outputs[0].num_mut().data[r * h..(r + 1) * h];
            for (j, (out, &x)) in out.iter_mut().zip(row).enumerate() {
                *out = (x - mean) * rstd;
                if let Some(weight) = weight {
                    *out = *out * weight.data[j];
                }
                if let Some(bias) = bias {
                    *out = *out + bias.data[j];
                }
            }
            outputs[1].num_mut().data[r] = mean;
            outputs[2].num_mut().data[r] = rstd;
        }
        Ok(())
    }

    #[cfg(feature = "cpu")]
    fn run_cpu(&self, args: &mut Args<'_>) -> Result<bool> {
        let norm = Norm {
            eps: self.eps,
            centred: true,
            weight: self.weight.then_some(1),
            unit_offset: false,
            bias: self.bias.then_some(1 + usize::from(self.weight)),
        };
        Ok(in_compute_dtype!(args, C => norm.forward::<C>(args)))
    }

    fn saves(&self, _: Needs) -> Saves {
        // Input, weight, bias, mean and rstd: the reference keeps the bias too, though only its shape matters.
        let channels = if self.weight { 0b010 } else { 0 } | if self.bias { 0b010 << u8::from(self.weight) } else { 0 };
        Saves { inputs: 0b001 | channels, outputs: 0b110 }
    }

    fn differentiable(&self) -> u8 {
        0b111
    }

    fn gradient(&self, back: &Back<'_>) -> Result<Grads> {
        if back.grad_of(1).is_some() || back.grad_of(2).is_some() {
            return Err(Error::Backward("the statistics of layer_norm carry no gradient"));
        }
        let op = LayerNormBackward {
            weight: self.weight,
            dx: back.wants(0),
            dw: self.weight && back.wants(1),
            db: self.bias && back.wants(1 + usize::from(self.weight)),
        };
        let mut inputs: SmallVec<[&Tensor; 5]> =
            smallvec![back.grad()?, back.input(0)?, back.output(1)?, back.output(2)?];
        if self.weight {
            inputs.push(back.input(1)?);
        }
        let mut made = apply(Op::LayerNormBackward(op.clone()), &inputs)?.into_iter();
        let mut next = |wanted: bool| if wanted { made.next() } else { None };
        let (dx, dw, db) = (next(op.dx), next(op.dw), next(op.db));
        let mut out: Grads = smallvec![dx];
        if self.weight {
            out.push(dw);
        }
        if self.bias {
            // The kernel sums in the dtype of the gradient where there is no weight to tell another.
            let dtype = back.spec(1 + usize::from(self.weight)).dtype;
            out.push(db.map(|g| g.to_dtype(dtype)).transpose()?);
        }
        Ok(out)
    }
}

/// Gradients of [`LayerNorm`] in one pass. Inputs: gradient, `x`, mean, rstd, weight if there is one. Outputs: those
/// of dx `(.. h)`, dw `(h)`, db `(h)` that are wanted.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerNormBackward {
    /// Whether there is a weight.
    pub weight: bool,
    /// Whether the gradient of the input is wanted.
    pub dx: bool,
    /// Whether the gradient of the weight is wanted.
    pub dw: bool,
    /// Whether the gradient of the bias is wanted.
    pub db: bool,
}

impl Rule for LayerNormBackward {
    fn name(&self) -> &'static str {
        "layer_norm_backward"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        let (grad, x) = (&inputs[0], &inputs[1]);
        check_norm(self.name(), 0.0, x, inputs.get(4..).unwrap_or(&[]))?;
        if grad.shape() != x.shape() {
            let rule = "gradient and input must have one shape";
            return Err(Error::Shapes { op: self.name(), a: grad.shape().into(), b: x.shape().into(), rule });
        }
        let h = *x.shape().last().unwrap_or(&1);
        let channels = inputs.get(4).map_or(x.dtype, |w| w.dtype);
        let mut outs = Outs::new();
        if self.dx {
            outs.push(Out::fresh(x.shape(), x.dtype)?);
        }
        for _ in 0..usize::from(self.dw) + usize::from(self.db) {
            outs.push(Out::fresh(&[h], channels)?);
        }
        Ok(outs)
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        let (rows, h) = rows_of(inputs[1].shape());
        let normalised = if self.dx || self.dw { 2 } else { 0 };
        // Both sums over the row take 3 per element, their use 4; two divisions per row.
        let dx = if self.dx { (u128::from(self.weight) + 7) * h + 2 } else { 0 };
        let dw = if self.dw { 2 * h } else { 0 };
        let db = if self.db { h } else { 0 };
        elementwise(inputs, outputs, rows * (normalised * h + dx + dw + db))
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let (grad, x, mean, rstd) = (inputs[0].num(), inputs[1].num(), inputs[2].num(), inputs[3].num());
        let weight = self.weight.then(|| inputs[4].num());
        let h = x.last();
        let count = T::from_f64(h as f64);
        let at_dw = usize::from(self.dx);
        let at_db = at_dw + usize::from(self.dw);
        let mut normal = vec![T::zero(); h];
        let mut scaled = vec![T::zero(); h];
        for (r, (&mean, &rstd)) in mean.data.iter().zip(&rstd.data).enumerate() {
            let (grad, x) = (&grad.data[r * h..(r + 1) * h], &x.data[r * h..(r + 1) * h]);
            if self.dx || self.dw {
                for (n, &x) in normal.iter_mut().zip(x) {
                    *n = (x - mean) * rstd;
                }
            }
            if self.dx {
                let (mut sum, mut along) = (T::zero(), T::zero());
                for j in 0..h {
                    scaled[j] = weight.map_or(grad[j], |w| grad[j] * w.data[j]);
                    sum = sum + scaled[j];
                    along = along + scaled[j] * normal[j];
                }
                let (sum, along) = (sum / count, along / count);
                let dx = &mut outputs[0].num_mut().data[r * h..(r + 1) * h];
                for (j, dx) in dx.iter_mut().enumerate() {
                    *dx = rstd * (scaled[j] - sum - normal[j] * along);
                }
            }
            if self.dw {
                let dw = &mut outputs[at_dw].num_mut().data;
                for j in 0..h {
                    dw[j] = dw[j] + grad[j] * normal[j];
                }
            }
            if self.db {
                let db = &mut outputs[at_db].num_mut().data;
                for j in 0..h {
                    db[j] = db[j] + grad[j];
                }
            }
        }
        Ok(())
    }

    #[cfg(feature = "cpu")]
    fn run_cpu(&self, args: &mut Args<'_>) -> Result<bool> {
        let weight = self.weight.then_some(4);
        let norm = Norm { eps: 0.0, centred: true, weight, unit_offset: false, bias: None };
        let wanted = Wanted { dx: self.dx, dw: self.dw, db: self.db };
        Ok(in_compute_dtype!(args, C => norm.backward::<C>(wanted, args)))
    }
}

impl Tensor {
    /// Layer normalisation over the last dimension.
    ///
    /// # Shapes
    /// `.. h`, weight `h`, bias `h` -> `.. h`
    pub fn layer_norm(&self, weight: Option<&Self>, bias: Option<&Self>, eps: f64) -> Result<Self> {
        self.layer_norm_keeping(weight, bias, eps, Stats::Full)
    }

    /// [`Tensor::layer_norm`] that keeps the statistics of the rows in a given dtype.
    pub fn layer_norm_keeping(
        &self,
        weight: Option<&Self>,
        bias: Option<&Self>,
        eps: f64,
        stats: Stats,
    ) -> Result<Self> {
        let op = LayerNorm { eps, weight: weight.is_some(), bias: bias.is_some(), stats };
        let mut inputs: SmallVec<[&Self; 3]> = smallvec![self];
        inputs.extend(weight);
        inputs.extend(bias);
        Self::op(Op::LayerNorm(op), &inputs)
    }
}
