//! Lion: the sign of a mix of gradient and running mean. Source: Chen et al., arXiv:2302.06675, algorithm 2.

use super::update::Update;
use tensor::ops::lion::Lion;
use tensor::{Result, Tensor};

/// Running mean of gradients.
pub(super) const MEAN: &str = "exp_avg";

/// `w -= lr (sign(beta1 m + (1 - beta1) g) + decay w)`, then `m = beta2 m + (1 - beta2) g`.
pub(super) fn update(u: &Update<'_>) -> Result<Option<Tensor>> {
    let (h, mean) = (&u.hyper, u.state.get(MEAN));
    if u.fused() {
        let op = Lion { lr: h.lr, beta1: h.beta1, beta2: h.beta2, weight_decay: h.weight_decay };
        u.param.lion_(u.grad, mean, u.master(), &op)?;
        return Ok(None);
    }
    u.decay()?;
    let mixed = mean.mul_scalar(h.beta1)?;
    mixed.add_scaled_(u.grad, 1.0 - h.beta1)?;
    u.weight().add_scaled_(&mixed.sign()?, -h.lr)?;
    mean.lerp_(u.grad, 1.0 - h.beta2)?;
    Ok(None)
}
