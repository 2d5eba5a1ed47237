//! Root-mean-square normalisation over the last dimension. Source: Zhang and Sennrich, arXiv:1910.07467.

use super::layer_norm::{check_norm, rows_of, stats_shape};
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
use crate::meter::Cost;
use crate::tensor::{Spec, Tensor};
use smallvec::{SmallVec, smallvec};

/// Inputs: `x (.. h)`, weight `(h)` if there is one. Outputs: `(.. h)` and `1 / √(mean of squares + eps)` `(.. 1)` in
/// f32. Keeps input, weight and the latter.
#[derive(Clone, Debug, PartialEq)]
pub struct RmsNorm {
    /// Added to the mean of squares.
    pub eps: f64,
    /// Whether there is a weight.
    pub weight: bool,
    /// Whether channels are scaled by `1 + weight` (Gemma).
    pub unit_offset: bool,
}

/// The factor of each channel.
fn scale_of<T: Num>(weight: Option<&Data<T>>, unit_offset: bool) -> Option<Vec<T>> {
    weight.map(|w| w.num().data.iter().map(|&w| if unit_offset { T::one() + w } else { w }).collect())
}

impl Rule for RmsNorm {
    fn name(&self) -> &'static str {
        "rms_norm"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        let x = &inputs[0];
        check_norm(self.name(), self.eps, x, &inputs[1..])?;
        let dtype = if x.dtype == DType::F64 { DType::F64 } else { DType::F32 };
        Ok(smallvec![Out::fresh(x.shape(), x.dtype)?, Out::fresh(&stats_shape(x.shape()), dtype)?])
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        let (rows, h) = rows_of(inputs[0].shape());
        let offset = if self.weight && self.unit_offset { h } else { 0 };
        // Per element: square, sum, scale by the row. Per row: division, eps, root, inverse.
        elementwise(inputs, outputs, rows * ((3 + u128::from(self.weight)) * h + 4) + offset)
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let x = inputs[0].num();
        let scale = scale_of(inputs.get(1), self.unit_offset);
        let (h, rows) = (x.last(), outputs[1].num().data.len());
        for r in 0..rows {
            let row = &x.data[r * h..(r + 1) * h];
            let mean = row.iter().fold(T::zero(), |sum, &x| sum + x * x) / T::from_f64(h as f64);
            let rstd = T::one() / (mean + T::from_f64(self.eps)).sqrt();
            let out = &mut outputs[0].num_mut().data[r * h..(r + 1) * h];
            for (j, (out, &x)) in out.iter_mut().zip(row).enumerate() {
                *out = x * rstd;
                if let Some(scale) = &scale {
                    *out = *out * scale[j];
                }
            }
            outputs[1].num_mut().data[r] = rstd;
        }
        Ok(())
    }

    #[cfg(feature = "cpu")]
    fn run_cpu(&self, args: &mut Args<'_>) -> Result<bool> {
        let weight = self.weight.then_some(1);
        let norm = Norm { eps: self.eps, centred: false, weight, unit_offset: self.unit_offset, bias: None };
        Ok(in_compute_dtype!(args, C => norm.forward::<C>(args)))
    }

    fn saves(&self, _: Needs) -> Saves {
        Saves { inputs: if self.weight { 0b11 } else { 0b01 }, outputs: 0b10 }
    }

    fn differentiable(&self) -> u8 {
        0b11
    }

    fn gradient(&self, back: &Back<'_>) -> Result<Grads> {
        if back.grad_of(1).is_some() {
            return Err(Error::Backward("the statistics of rms_norm carry no gradient"));
        }
        let op = RmsNormBackward {
            weight: self.weight,
            unit_offset: self.unit_offset,
            dx: back.wants(0),
            dw: self.weight && back.wants(1),
        };
        let mut inputs: SmallVec<[&Tensor; 4]> = smallvec![back.grad()?, back.input(0)?, back.output(1)?];
        if self.weight {
            inputs.push(back.input(1)?);
        }
        let mut made = apply(Op::RmsNormBackward(op.clone()), &inputs)?.into_iter();
        let mut out: Grads = smallvec![if op.dx { made.next() } else { None }];
        if self.weight {
            out.push(if op.dw { made.next() } else { None });
        }
        Ok(out)
    }
}

/// Gradients of [`RmsNorm`] in one pass. Inputs: gradient, `x`, rstd, weight if there is one. Outputs: those of dx
/// `(.. h)` and dw `(h)` that are wanted.
#[derive(Clone, Debug, PartialEq)]
pub struct RmsNormBackward {
    /// Whether there is a weight.
    pub weight: bool,
    /// Whether channels are scaled by `1 + weight`.
    pub unit_offset: bool,
    /// Whether the gradient of the input is wanted.
    pub dx: bool,
    /// Whether the gradient of the weight is wanted.
    pub dw: bool,
}

impl Rule for RmsNormBackward {
    fn name(&self) -> &'static str {
        "rms_norm_backward"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        let (grad, x) = (&inputs[0], &inputs[1]);
        check_norm(self.name(), 0.0, x, inputs.get(3..).unwrap_or(&[]))?;
        if grad.shape() != x.shape() {
            let rule = "gradient and input must have one shape";
            return Err(Error::Shapes { op: self.name(), a: grad.shape().into(), b: x.shape().into(), rule });
        }
        let mut outs = Outs::new();
        if self.dx {
            outs.push(Out::fresh(x.shape(), x.dtype)?);
        }
        if self.dw {
            outs.push(Out::fresh(inputs[3].shape(), inputs[3].dtype)?);
        }
        Ok(outs)
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        let (rows, h) = rows_of(inputs[1].shape());
        let normalised = h;
        // The sum over the row takes 2 per element, its use 3; one division per row.
        let dx = if self.dx { (u128::from(self.weight) + 5) * h + 1 } else { 0 };
        let dw = if self.dw { 2 * h } else { 0 };
        let offset = if self.weight && self.unit_offset && self.dx { h } else { 0 };
        elementwise(inputs, outputs, rows * (normalised + dx + dw) + offset)
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let (grad, x, rstd) = (inputs[0].num(), inputs[1].num(), inputs[2].num());
        let scale = if self.dx { scale_of(inputs.get(3), self.unit_offset) } else { None };
        let h = x.last();
        let mut normal = vec![T::zero(); h];
        let mut scaled = vec![T::zero(); h];
        for (r, &rstd) in rstd.data.iter().enumerate() {
            let (grad, x) = (&grad.data[r * h..(r + 1) * h], &x.data[r * h..(r + 1) * h]);
            for (n, &x) in normal.iter_mut().zip(x) {
                *n = x * rstd;
            }
            if self.dx {
                let mut along = T::zero();
                for j in 0..h {
                    scaled[j] = scale.as_ref().map_or(grad[j], |scale| grad[j] * scale[j]);
                    along = along + scaled[j] * normal[j];
                }
                let along = along / T::from_f64(h as f64);
                let dx = &mut outputs[0].num_mut().data[r * h..(r + 1) * h];
                for (j, dx) in dx.iter_mut().enumerate() {
                    *dx = rstd * (scaled[j] - normal[j] * along);
                }
            }
            if self.dw {
                let dw = &mut outputs[usize::from(self.dx)].num_mut().data;
                for j in 0..h {
                    dw[j] = dw[j] + grad[j] * normal[j];
                }
            }
        }
        Ok(())
    }

    #[cfg(feature = "cpu")]
    fn run_cpu(&self, args: &mut Args<'_>) -> Result<bool> {
        let weight = self.weight.then_some(3);
        let norm = Norm { eps: 0.0, centred: false, weight, unit_offset: self.unit_offset, bias: None };
        let wanted = Wanted { dx: self.dx, dw: self.dw, db: false };
        Ok(in_compute_dtype!(args, C => norm.backward::<C>(wanted, args)))
    }
}

impl Tensor {
    /// RMS normalisation over the last dimension.
    ///
    /// # Shapes
    /// `.. h`, weight `h` -> `.. h`
    pub fn rms_norm(&self, weight: Option<&Self>, eps: f64) -> Result<Self> {
        self.rms_norm_op(weight, eps, false)
    }

    /// RMS normalisation whose channels are scaled by `1 + weight`.
    ///
    /// # Shapes
    /// `.. h`, weight `h` -> `.. h`
    pub fn rms_norm_unit_offset(&self, weight: &Self, eps: f64) -> Result<Self> {
        self.rms_norm_op(Some(weight), eps, true)
    }

    fn rms_norm_op(&self, weight: Option<&Self>, eps: f64, unit_offset: bool) -> Result<Self> {
        let op = RmsNorm { eps, weight: weight.is_some(), unit_offset };
        let mut inputs: SmallVec<[&Self; 2]> = smallvec![self];
        inputs.extend(weight);
        Self::op(Op::RmsNorm(op), &inputs)
    }
}
