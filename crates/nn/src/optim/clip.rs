//! The norm of all gradients together, and clipping by it. Source: Pascanu, Mikolov and Bengio, arXiv:1211.5063.

use crate::param::Param;
use tensor::{Result, Tensor};

/// Keeps the division by a norm of zero finite, as `torch.nn.utils.clip_grad_norm_` does.
const EPS: f64 = 1e-6;

/// The norm of the gradients of all parameters, as if they were one vector.
pub struct GradNorm<'a> {
    total: Tensor,
    /// Each gradient, whose it is, and the sum of its squares.
    parts: Vec<(&'a Param, Tensor, Tensor)>,
    scale: f64,
}

impl<'a> GradNorm<'a> {
    /// Norm of the gradients, of a loss that was multiplied by `scale`: 1, or that of a loss scaler. `None` if there are
    /// none.
    ///
    /// # Errors
    /// None for gradients of one program.
    pub fn of(params: &'a [Param], scale: f64) -> Result<Option<Self>> {
        let Some(first) = params.first() else { return Ok(None) };
        first.tensor.runtime().no_grad(|| {
            let mut parts = Vec::new();
            for param in params.iter().filter(|p| p.trainable) {
                if let Some(grad) = param.tensor.grad() {
                    let squares = grad.sum_squares_all()?;
                    parts.push((param, grad, squares));
                }
            }
            if parts.is_empty() {
                return Ok(None);
            }
            let squares: Vec<&Tensor> = parts.iter().map(|(_, _, squares)| squares).collect();
            let total = Tensor::stack(&squares, 0)?.sum_all()?.sqrt()?.div_scalar(scale)?;
            Ok(Some(Self { total, parts, scale }))
        })
    }

    /// The norm, an f32 scalar.
    pub fn tensor(&self) -> &Tensor {
        &self.total
    }

    /// The parameter whose gradient was the first in backward to be infinite or not a number: of those that are, the one
    /// nearest to the loss. `None` if all are finite.
    ///
    /// # Errors
    /// On the meta device.
    pub fn first_non_finite(&self) -> Result<Option<&'a Param>> {
        for (param, _, squares) in self.parts.iter().rev() {
            if !squares.item()?.is_finite() {
                return Ok(Some(param));
            }
        }
        Ok(None)
    }

    /// Takes the scale of the loss out of the gradients, and scales them down to a norm of at most `max_norm`.
    ///
    /// # Errors
    /// None for gradients of one program.
    pub fn unscale_and_clip(&self, max_norm: f64) -> Result<()> {
        let apply = || -> Result<()> {
            if max_norm.is_finite() {
                let part = self.total.add_scalar(EPS)?.reciprocal()?.mul_scalar(max_norm)?;
                let factor = part.clamp(f64::NEG_INFINITY, 1.0)?.div_scalar(self.scale)?;
                self.parts.iter().try_for_each(|(_, grad, _)| grad.mul_(&factor).map(drop))
            } else if self.scale == 1.0 {
                Ok(())
            } else {
                self.parts.iter().try_for_each(|(_, grad, _)| grad.div_scalar_(self.scale).map(drop))
            }
        };
        self.total.runtime().no_grad(apply)
    }
}
