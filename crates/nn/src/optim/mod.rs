//! Optimizers as a family: SGD, Momentum, AdaGrad, RMSProp, Adam, AdamW.
//!
//! Each adds one idea to the one before it. State tensors are tensors with role `optimizer_state`, so the ledger sees
//! them like everything else.

use crate::param::{Param, ParamKind};
use std::fmt;
use std::str::FromStr;
use tensor::ops::adamw::AdamW;
use tensor::{DType, Phase, Result, Role, Runtime, Tensor};

/// The update rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// `w -= lr g`
    Sgd,
    /// A running sum of gradients takes the place of the gradient.
    Momentum,
    /// Each weight's rate falls with its sum of squared gradients.
    AdaGrad,
    /// The sum becomes a running mean.
    RmsProp,
    /// Running means of gradient and square, corrected for their start.
    Adam,
    /// Adam with weight decay apart from the gradient.
    AdamW,
}

/// How the update is carried out; decides the transient bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Implementation {
    /// One kernel per parameter, no temporaries.
    Fused,
    /// Small ops, one parameter at a time: up to two temporaries of the largest parameter.
    ForLoop,
    /// Small ops over all parameters at once: a full extra set of temporaries.
    ForEach,
}

/// An update rule with its implementation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OptimizerKind {
    /// Rule.
    pub kind: Kind,
    /// Implementation.
    pub implementation: Implementation,
}

impl Kind {
    /// Names of its states, each as large as the parameter.
    pub const fn slots(self) -> &'static [&'static str] {
        match self {
            Self::Sgd => &[],
            Self::Momentum => &["momentum_buffer"],
            Self::AdaGrad => &["sum"],
            Self::RmsProp => &["square_avg"],
            Self::Adam | Self::AdamW => &["exp_avg", "exp_avg_sq"],
        }
    }

    /// Name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sgd => "sgd",
            Self::Momentum => "sgd-momentum",
            Self::AdaGrad => "adagrad",
            Self::RmsProp => "rmsprop",
            Self::Adam => "adam",
            Self::AdamW => "adamw",
        }
    }

    /// All rules.
    pub const ALL: [Self; 6] = [Self::Sgd, Self::Momentum, Self::AdaGrad, Self::RmsProp, Self::Adam, Self::AdamW];
}

impl fmt::Display for OptimizerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let suffix = match self.implementation {
            Implementation::Fused => "-fused",
            Implementation::ForLoop => "-forloop",
            Implementation::ForEach => "-foreach",
        };
        write!(f, "{}{suffix}", self.kind.name())
    }
}

/// Parses `adamw`, `adamw-foreach`, `adamw_forloop`, `sgd_momentum`, ...; the implementation is `None` if not said.
///
/// # Errors
/// A message naming the valid forms.
pub fn parse(text: &str) -> Result<(Kind, Option<Implementation>), String> {
    let lower = text.to_ascii_lowercase().replace('_', "-");
    let (name, implementation) = [
        ("-fused", Implementation::Fused),
        ("-forloop", Implementation::ForLoop),
        ("-foreach", Implementation::ForEach),
    ]
    .iter()
    .find_map(|&(suffix, i)| lower.strip_suffix(suffix).map(|name| (name.to_owned(), Some(i))))
    .unwrap_or((lower, None));
    let kind = match name.as_str() {
        "momentum" => Some(Kind::Momentum),
        name => Kind::ALL.into_iter().find(|k| k.name() == name),
    };
    kind.map(|k| (k, implementation)).ok_or_else(|| {
        let names: Vec<&str> = Kind::ALL.iter().map(|k| k.name()).collect();
        format!("unknown optimizer `{text}`: valid are {}, each with -fused, -forloop or -foreach", names.join(", "))
    })
}

impl FromStr for OptimizerKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse(text).map(|(kind, i)| Self { kind, implementation: i.unwrap_or(Implementation::Fused) })
    }
}

/// Rates and decays.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hyper {
    /// Learning rate.
    pub lr: f64,
    /// Decay of the running mean of gradients (momentum).
    pub beta1: f64,
    /// Decay of the running mean of squares.
    pub beta2: f64,
    /// Added to the root.
    pub eps: f64,
    /// Decoupled weight decay of AdamW, on matrices only. The other rules have none.
    pub weight_decay: f64,
}

impl Default for Hyper {
    fn default() -> Self {
        Self { lr: 1e-3, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 }
    }
}

/// State of one parameter.
struct State {
    step: Option<Tensor>,
    master: Option<Tensor>,
    first: Option<Tensor>,
    second: Option<Tensor>,
}

/// An optimizer over the parameters of a model.
pub struct Optimizer {
    kind: OptimizerKind,
    hyper: Hyper,
    master: bool,
    steps: u64,
    states: Vec<State>,
}

impl Optimizer {
    /// An optimizer whose states are made at the first step, as the field's frameworks do.
    ///
    /// With `master`, it keeps f32 copies of low-precision parameters and f32 states.
    pub fn new(kind: OptimizerKind, hyper: Hyper, master: bool) -> Self {
        Self { kind, hyper, master, steps: 0, states: Vec::new() }
    }

    /// Makes the states of all trainable parameters now instead of at the first step.
    ///
    /// # Errors
    /// None for a model of this crate.
    pub fn prepare(&mut self, params: &[Param]) -> Result<()> {
        let Some(first) = params.first() else { return Ok(()) };
        let runtime = first.tensor.runtime().clone();
        runtime.no_grad(|| {
            for param in params.iter().filter(|p| p.trainable) {
                self.states.push(self.fresh_state(&runtime, &param.tensor)?);
            }
            Ok(())
        })
    }

    /// One update of every trainable parameter that has a gradient.
    ///
    /// # Errors
    /// None for a model of this crate.
    pub fn step(&mut self, params: &[Param]) -> Result<()> {
        let Some(first) = params.first() else { return Ok(()) };
        let runtime = first.tensor.runtime().clone();
        let phase = runtime.phase();
        debug_assert!(phase == Phase::Optimizer || phase == Phase::Init, "the caller names the phase");
        runtime.no_grad(|| self.step_all(&runtime, params))
    }

    fn step_all(&mut self, runtime: &Runtime, params: &[Param]) -> Result<()> {
        let trained: Vec<(&Param, Tensor)> =
            params.iter().filter(|p| p.trainable).filter_map(|p| p.tensor.grad().map(|g| (p, g))).collect();
        if self.states.is_empty() {
            for (param, _) in &trained {
                self.states.push(self.fresh_state(runtime, &param.tensor)?);
            }
        }
        self.steps += 1;
        if self.kind.implementation == Implementation::ForEach && self.kind.kind >= Kind::Adam {
            return self.step_foreach(&trained);
        }
        // The reference's root of the last parameter lives until that of the next one is made.
        let mut root = None;
        for ((param, grad), state) in trained.into_iter().zip(&mut self.states) {
            root = update(self.kind, &self.hyper, self.steps, param, &grad, state)?;
        }
        drop(root);
        Ok(())
    }

    fn fresh_state(&self, runtime: &Runtime, param: &Tensor) -> Result<State> {
        let kind = self.kind.kind;
        let dtype = if self.master { DType::F32 } else { param.dtype() };
        let like = || Ok::<_, tensor::Error>(runtime.zeros(param.shape(), dtype)?.with_role(Role::OptimizerState));
        let counts = kind >= Kind::AdaGrad && self.kind.implementation != Implementation::Fused;
        let master = self.master && param.dtype() != DType::F32;
        Ok(State {
            step: counts
                .then(|| Ok::<_, tensor::Error>(runtime.zeros(&[], DType::F32)?.with_role(Role::OptimizerState)))
                .transpose()?,
            master: master
                .then(|| Ok::<_, tensor::Error>(param.detach().to_dtype(DType::F32)?.with_role(Role::OptimizerState)))
                .transpose()?,
            first: matches!(kind, Kind::Momentum | Kind::Adam | Kind::AdamW).then(like).transpose()?,
            second: (kind >= Kind::AdaGrad).then(like).transpose()?,
        })
    }

    /// Adam and AdamW over all parameters at once: the roots of all second moments live together.
    fn step_foreach(&mut self, trained: &[(&Param, Tensor)]) -> Result<()> {
        let h = self.hyper;
        let mut roots = Vec::with_capacity(trained.len());
        for ((param, grad), state) in trained.iter().zip(&mut self.states) {
            decay_and_average(self.kind.kind, &h, param, grad, state)?;
        }
        let (c1, c2) = corrections(&h, self.steps);
        for state in &self.states {
            if let Some(second) = &state.second {
                roots.push(second.sqrt()?);
            }
        }
        for root in &roots {
            root.div_scalar_(c2.sqrt())?;
            root.add_scalar_(h.eps)?;
        }
        for (((param, _), state), root) in trained.iter().zip(&self.states).zip(&roots) {
            if let Some(first) = &state.first {
                param.tensor.detach().addcdiv_(first, root, -h.lr / c1)?;
            }
        }
        Ok(())
    }
}

/// Bias corrections of Adam's means after `steps` updates.
fn corrections(h: &Hyper, steps: u64) -> (f64, f64) {
    let power = |beta: f64| 1.0 - beta.powi(i32::try_from(steps).unwrap_or(i32::MAX));
    (power(h.beta1), power(h.beta2))
}

/// The part of Adam before the root: decay, then both running means.
fn decay_and_average(kind: Kind, h: &Hyper, param: &Param, grad: &Tensor, state: &mut State) -> Result<()> {
    let weight = param.tensor.detach();
    if let Some(step) = &state.step {
        step.add_scalar_(1.0)?;
    }
    if kind == Kind::AdamW {
        weight.mul_scalar_(1.0 - h.lr * decay(h, param))?;
    }
    if let Some(first) = &state.first {
        first.lerp_(grad, 1.0 - h.beta1)?;
    }
    if let Some(second) = &state.second {
        second.mul_scalar_(h.beta2)?;
        second.addcmul_(grad, grad, 1.0 - h.beta2)?;
    }
    Ok(())
}

/// Weight decay of a parameter: none on norms and biases.
fn decay(h: &Hyper, param: &Param) -> f64 {
    if param.kind == ParamKind::Vector { 0.0 } else { h.weight_decay }
}

/// One parameter's update in small ops or one kernel; gives the root of its second moment back, if small ops made one.
fn update(
    kind: OptimizerKind,
    h: &Hyper,
    steps: u64,
    param: &Param,
    grad: &Tensor,
    state: &mut State,
) -> Result<Option<Tensor>> {
    let weight = param.tensor.detach();
    let fused = kind.implementation == Implementation::Fused;
    match kind.kind {
        Kind::Sgd => {
            weight.add_scaled_(grad, -h.lr)?;
        }
        Kind::Momentum => {
            if let Some(buffer) = &state.first {
                buffer.mul_scalar_(h.beta1)?;
                buffer.add_(grad)?;
                weight.add_scaled_(buffer, -h.lr)?;
            }
        }
        Kind::AdaGrad | Kind::RmsProp => {
            if let Some(step) = &state.step {
                step.add_scalar_(1.0)?;
            }
            let Some(squares) = &state.second else { return Ok(None) };
            if kind.kind == Kind::AdaGrad {
                squares.addcmul_(grad, grad, 1.0)?;
            } else {
                squares.mul_scalar_(h.beta2)?;
                squares.addcmul_(grad, grad, 1.0 - h.beta2)?;
            }
            let root = squares.sqrt()?;
            root.add_scalar_(h.eps)?;
            weight.addcdiv_(grad, &root, -h.lr)?;
            return Ok(Some(root));
        }
        Kind::Adam | Kind::AdamW if fused => {
            let (Some(first), Some(second)) = (&state.first, &state.second) else { return Ok(None) };
            let decay = if kind.kind == Kind::AdamW { decay(h, param) } else { 0.0 };
            let op = AdamW {
                lr: h.lr,
                beta1: h.beta1,
                beta2: h.beta2,
                eps: h.eps,
                weight_decay: decay,
                step: steps,
                master: state.master.is_some(),
            };
            weight.adamw_(grad, first, second, state.master.as_ref(), &op)?;
        }
        Kind::Adam | Kind::AdamW => {
            decay_and_average(kind.kind, h, param, grad, state)?;
            let (Some(first), Some(second)) = (&state.first, &state.second) else { return Ok(None) };
            let (c1, c2) = corrections(h, steps);
            let root = second.sqrt()?.div_scalar(c2.sqrt())?;
            root.add_scalar_(h.eps)?;
            weight.addcdiv_(first, &root, -h.lr / c1)?;
            return Ok(Some(root));
        }
    }
    Ok(None)
}
