//! One optimizer step and one evaluation. The same program predicts on the meta device and trains.

use nn::training::Skipped;
use nn::{Labels, Training};
use tensor::{Result, Role, Runtime, Tensor};

/// What a step gave.
#[derive(Clone, Debug, PartialEq)]
pub struct Stepped {
    /// Mean loss of the step's tokens; `None` on the meta device.
    pub loss: Option<f64>,
    /// Norm of the gradient before clipping; `None` on the meta device, or where it is not looked at.
    pub grad_norm: Option<f64>,
    /// Set if a gradient was not finite, and so nothing was updated.
    pub skipped: Option<Skipped>,
}

/// Tokens of a micro-batch and the token that follows each: `b s`, `b s`.
pub type Pair = (Tensor, Tensor);

/// One optimizer step over equally large micro-batches.
///
/// `check` sees the loss of every micro-batch before its gradients are added: an error it returns stops the step with
/// parameters and states untouched.
///
/// # Errors
/// Those of `next`, of `check`, and of the model.
pub fn step<E: From<tensor::Error>>(
    training: &mut Training,
    lr: f64,
    mut next: impl FnMut() -> std::result::Result<Pair, E>,
    mut check: impl FnMut(f64) -> std::result::Result<(), E>,
) -> std::result::Result<Stepped, E> {
    // States that the first update made would lie among what is freed after it, and the next step would find its large
    // blocks in pieces.
    training.prepare()?;
    let micro_batches = training.options().grad_accum_steps;
    let share = 1.0 / micro_batches as f64;
    let mut sum = None;
    for _ in 0..micro_batches {
        let (tokens, targets) = next()?;
        let (tokens, targets) = (tokens.with_role(Role::Input), targets.with_role(Role::Input));
        let loss = training.forward(&tokens, Labels::Targets(&targets))?;
        if let Some(value) = value(&loss)? {
            check(value)?;
            sum = Some(sum.unwrap_or(0.0) + value * share);
        }
        training.backward(loss, share)?;
    }
    let done = training.update(lr)?;
    Ok(Stepped { loss: sum, grad_norm: done.grad_norm, skipped: done.skipped })
}

/// Mean loss of one batch, without gradients; `None` on the meta device.
///
/// # Errors
/// Those of the model.
pub fn evaluate(training: &Training, (tokens, targets): Pair) -> Result<Option<f64>> {
    let (tokens, targets) = (tokens.with_role(Role::Input), targets.with_role(Role::Input));
    value(&training.evaluate(&tokens, Labels::Targets(&targets))?)
}

/// Elements of all parameters, each tensor once.
pub fn parameter_count(training: &Training) -> u64 {
    training.model().params().iter().map(|param| param.shape.iter().product::<u64>()).sum()
}

fn value(loss: &Tensor) -> Result<Option<f64>> {
    let runtime: &Runtime = loss.runtime();
    if runtime.holds_data() { loss.item().map(Some) } else { Ok(None) }
}
