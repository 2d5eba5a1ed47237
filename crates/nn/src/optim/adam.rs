//! Adam and `AdamW`. Sources: Kingma and Ba, arXiv:1412.6980; Loshchilov and Hutter, arXiv:1711.05101.

use super::update::Update;
use super::{Hyper, Kind};
use tensor::ops::adamw::AdamW;
use tensor::{Result, Tensor};

/// Running mean of gradients.
pub(super) const MEAN: &str = "exp_avg";
/// Running mean of squared gradients.
pub(super) const SQUARES: &str = "exp_avg_sq";

/// Bias corrections of the means after `steps` updates.
fn corrections(h: &Hyper, steps: u64) -> (f64, f64) {
    let power = |beta: f64| 1.0 - beta.powi(i32::try_from(steps).unwrap_or(i32::MAX));
    (power(h.beta1), power(h.beta2))
}

/// `m` and `v` towards gradient and square, `w -= lr m̂ / (√v̂ + eps)`.
pub(super) fn update(u: &Update<'_>) -> Result<Option<Tensor>> {
    let (first, second) = (u.state.get(MEAN), u.state.get(SQUARES));
    if u.fused() {
        u.param.adamw_(u.grad, first, second, u.master(), &op(u))?;
        return Ok(None);
    }
    let h = &u.hyper;
    decay_and_average(u)?;
    let (c1, c2) = corrections(h, u.step);
    let root = second.sqrt()?.div_scalar(c2.sqrt())?;
    root.add_scalar_(h.eps)?;
    u.weight().addcdiv_(first, &root, -h.lr / c1)?;
    Ok(Some(root))
}

/// The update as one op.
pub(super) fn op(u: &Update<'_>) -> AdamW {
    let Hyper { lr, beta1, beta2, eps, weight_decay, .. } = u.hyper;
    let weight_decay = if u.rule == Kind::Adam { 0.0 } else { weight_decay };
    AdamW { lr, beta1, beta2, eps, weight_decay, step: u.step, master: u.master().is_some() }
}

/// The part before the root: decay, then both running means.
fn decay_and_average(u: &Update<'_>) -> Result<()> {
    u.count()?;
    u.decay()?;
    let (h, second) = (&u.hyper, u.state.get(SQUARES));
    u.state.get(MEAN).lerp_(u.grad, 1.0 - h.beta1)?;
    second.mul_scalar_(h.beta2)?;
    second.addcmul_(u.grad, u.grad, 1.0 - h.beta2)?;
    Ok(())
}

/// All parameters at once: the roots of all second moments live together.
pub(super) fn update_foreach(updates: &[Update<'_>]) -> Result<()> {
    for u in updates {
        decay_and_average(u)?;
    }
    let roots = updates.iter().map(|u| u.state.get(SQUARES).sqrt()).collect::<Result<Vec<_>>>()?;
    for (u, root) in updates.iter().zip(&roots) {
        let (_, c2) = corrections(&u.hyper, u.step);
        root.div_scalar_(c2.sqrt())?;
        root.add_scalar_(u.hyper.eps)?;
    }
    for (u, root) in updates.iter().zip(&roots) {
        let (c1, _) = corrections(&u.hyper, u.step);
        u.weight().addcdiv_(u.state.get(MEAN), root, -u.hyper.lr / c1)?;
        u.publish()?;
    }
    Ok(())
}
