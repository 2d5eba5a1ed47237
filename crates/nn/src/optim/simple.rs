//! SGD, momentum, `AdaGrad`, `RMSProp`: at most one state.

use super::update::Update;
use tensor::{Result, Tensor};

/// Running sum of gradients.
pub(super) const MOMENTUM: &str = "momentum_buffer";
/// Sum of squared gradients.
pub(super) const SUM: &str = "sum";
/// Running mean of squared gradients.
pub(super) const SQUARES: &str = "square_avg";

/// `w -= lr g`
pub(super) fn sgd(u: &Update<'_>) -> Result<Option<Tensor>> {
    u.weight().add_scaled_(u.grad, -u.hyper.lr)?;
    Ok(None)
}

/// `m = beta1 m + g`, `w -= lr m`
pub(super) fn momentum(u: &Update<'_>) -> Result<Option<Tensor>> {
    let buffer = u.state.get(MOMENTUM);
    buffer.mul_scalar_(u.hyper.beta1)?;
    buffer.add_(u.grad)?;
    u.weight().add_scaled_(buffer, -u.hyper.lr)?;
    Ok(None)
}

/// `v += g²`, `w -= lr g / (√v + eps)`. Source: Duchi, Hazan and Singer 2011.
pub(super) fn adagrad(u: &Update<'_>) -> Result<Tensor> {
    u.count()?;
    let squares = u.state.get(SUM);
    squares.addcmul_(u.grad, u.grad, 1.0)?;
    descend(u, squares)
}

/// `v = beta2 v + (1 - beta2) g²`, `w -= lr g / (√v + eps)`. Source: Hinton's lecture 6e, 2012.
pub(super) fn rmsprop(u: &Update<'_>) -> Result<Tensor> {
    u.count()?;
    let squares = u.state.get(SQUARES);
    squares.mul_scalar_(u.hyper.beta2)?;
    squares.addcmul_(u.grad, u.grad, 1.0 - u.hyper.beta2)?;
    descend(u, squares)
}

fn descend(u: &Update<'_>, squares: &Tensor) -> Result<Tensor> {
    let root = squares.sqrt()?;
    root.add_scalar_(u.hyper.eps)?;
    u.weight().addcdiv_(u.grad, &root, -u.hyper.lr)?;
    Ok(root)
}
