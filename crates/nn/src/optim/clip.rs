//! Clipping of gradients by their common norm. Source: Pascanu, Mikolov and Bengio, arXiv:1211.5063.

use crate::param::Param;
use tensor::{DType, Result, Tensor};

/// Added to the norm before it divides, as the field's frameworks do.
const EPS: f64 = 1e-6;

/// Scales all gradients so that their common norm is at most `longest`; an infinite one leaves them as they are. Gives
/// the norm before, on a device that holds data.
///
/// The factor is never looked at: it is multiplied in even where it is 1, so that what runs does not depend on values.
///
/// # Errors
/// None for a model of this crate.
pub fn clip_grad_norm(params: &[Param], longest: f64) -> Result<Option<f64>> {
    let gradients: Vec<Tensor> = params.iter().filter(|p| p.trainable).filter_map(|p| p.tensor.grad()).collect();
    let Some(first) = gradients.first() else { return Ok(Some(0.0)) };
    let runtime = first.runtime().clone();
    runtime.no_grad(|| {
        let total = runtime.zeros(&[], DType::F32)?;
        for gradient in &gradients {
            total.add_(&gradient.sum_squares_all()?)?;
        }
        let norm = total.sqrt()?;
        drop(total);
        if longest.is_finite() {
            let factor = norm.add_scalar(EPS)?.pow_scalar(-1.0)?.mul_scalar(longest)?.clamp(0.0, 1.0)?;
            for gradient in &gradients {
                gradient.mul_(&factor.to_dtype(gradient.dtype())?)?;
            }
        }
        if runtime.holds_data() { norm.item().map(Some) } else { Ok(None) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::param::ParamKind;
    use tensor::{Device, Runtime};

    fn params(dtype: DType) -> Vec<Param> {
        let rt = Runtime::new(Device::Cpu);
        // Norm 13: 3, 4 and 12.
        [(vec![3.0, 4.0], [2, 1]), (vec![12.0, 0.0], [1, 2])]
            .map(|(grad, shape)| {
                let tensor = rt.zeros(&shape, dtype).unwrap().require_grad().unwrap();
                tensor.set_grad(Some(rt.tensor(&grad, &shape, dtype).unwrap()));
                let (name, tied) = (String::new(), Vec::new());
                Param { name, tensor, kind: ParamKind::Matrix, tied, trainable: true }
            })
            .into()
    }

    #[test]
    fn the_common_norm_is_cut_to_the_longest() {
        for (dtype, tolerance) in [(DType::F32, 1e-6), (DType::BF16, 1e-2)] {
            for (longest, factor) in [(6.5, 0.5), (13.0, 1.0), (100.0, 1.0), (f64::INFINITY, 1.0)] {
                let params = params(dtype);
                assert_eq!(clip_grad_norm(&params, longest).unwrap(), Some(13.0));
                let grads = params.iter().flat_map(|p| p.tensor.grad().unwrap().to_vec().unwrap());
                for (grad, before) in grads.zip([3.0, 4.0, 12.0, 0.0]) {
                    assert!((grad - before * factor).abs() <= tolerance * before, "{dtype:?} {longest}: {grad}");
                }
            }
        }
    }

    #[test]
    fn no_gradient_has_no_length() {
        assert_eq!(clip_grad_norm(&[], 1.0).unwrap(), Some(0.0));
    }
}
