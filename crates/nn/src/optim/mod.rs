//! Optimizers as a family, one module for each rule: SGD, Momentum, `AdaGrad`, `RMSProp`, Adam, `AdamW`; Adafactor, 8-bit
//! Adam, Muon, Lion.
//!
//! A rule says which states a parameter has ([`OptimizerKind::slots`], asked wherever their bytes are counted) and how they
//! and the parameter change. State tensors are tensors with role `optimizer_state`, so the ledger sees them like
//! everything else.

mod adafactor;
mod adam;
mod adam8bit;
mod clip;
mod hyper;
mod kind;
mod lion;
mod muon;
mod restore;
mod simple;
mod state;
mod update;

pub use clip::clip_grad_norm;
pub use hyper::{Group, Groups, Hyper};
pub use kind::{Implementation, Kind, OptimizerKind, parse};
pub use muon::orthogonalize;
pub use state::Slot;

use crate::param::Param;
use state::State;
use tensor::{Phase, Result, Tensor};
use units::Diagnostics;
use update::Update;

/// An optimizer over the parameters of a model.
pub struct Optimizer {
    kind: OptimizerKind,
    hyper: Hyper,
    groups: Groups,
    master: bool,
    steps: u64,
    /// By position of the parameter; `None` before its first update.
    states: Vec<Option<State>>,
}

impl Optimizer {
    /// An optimizer whose states are made at the first step, as the field's frameworks do.
    ///
    /// With `master`, it keeps f32 copies of low-precision parameters and f32 states.
    pub fn new(kind: OptimizerKind, hyper: Hyper, master: bool) -> Self {
        Self { kind, hyper, groups: Groups::default(), master, steps: 0, states: Vec::new() }
    }

    /// The same with other rates and decays for some parameters.
    #[must_use]
    pub fn with_groups(self, groups: Groups) -> Self {
        Self { groups, ..self }
    }

    /// The rule and its implementation.
    pub fn kind(&self) -> OptimizerKind {
        self.kind
    }

    /// Number of updates made.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Counts on from `steps`, where the tensors of [`Optimizer::state_tensors`] were restored in place.
    pub fn set_steps(&mut self, steps: u64) {
        self.steps = steps;
    }

    /// The learning rate of the updates to come: a schedule sets it before each.
    pub fn set_lr(&mut self, lr: f64) {
        self.hyper.lr = lr;
    }

    /// Makes the states of all trainable parameters now instead of at the first step.
    ///
    /// # Errors
    /// None for a model of this crate.
    pub fn prepare(&mut self, params: &[Param]) -> Result<()> {
        let Some(first) = params.first() else { return Ok(()) };
        let runtime = first.tensor.runtime().clone();
        runtime.no_grad(|| self.make_states(params, |p| p.trainable))
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
        runtime.no_grad(|| self.step_all(params))
    }

    /// Every state of every parameter that has been updated: name of the parameter, name of the state, tensor. With
    /// [`Optimizer::steps`] this is all that an update depends on besides rates.
    pub fn state_tensors(&self, params: &[Param]) -> Vec<(String, &'static str, Tensor)> {
        let of = |(param, state): (&Param, &Option<State>)| {
            let tensors = state.iter().flat_map(State::iter);
            tensors.map(|(slot, tensor)| (param.name.clone(), slot, tensor.clone())).collect::<Vec<_>>()
        };
        params.iter().zip(&self.states).flat_map(of).collect()
    }

    /// Goes on from where another optimizer was after `steps` updates: takes over its states.
    ///
    /// # Errors
    /// All of: a state that is missing, one that no parameter has, one of another shape or dtype. Nothing is taken over
    /// then.
    pub fn restore(
        &mut self,
        params: &[Param],
        steps: u64,
        tensors: Vec<(String, String, Tensor)>,
    ) -> Result<(), Diagnostics> {
        self.states = restore::states(self.kind, self.master, params, steps, tensors)?;
        self.steps = steps;
        Ok(())
    }

    fn make_states(&mut self, params: &[Param], wanted: impl Fn(&Param) -> bool) -> Result<()> {
        self.states.resize_with(params.len(), || None);
        for (param, state) in params.iter().zip(&mut self.states) {
            if state.is_none() && wanted(param) {
                *state = Some(State::fresh(self.kind, param, self.master)?);
            }
        }
        Ok(())
    }

    fn step_all(&mut self, params: &[Param]) -> Result<()> {
        let gradient = |p: &Param| if p.trainable { p.tensor.grad() } else { None };
        self.make_states(params, |p| gradient(p).is_some())?;
        self.steps += 1;
        let work: Vec<(&Param, Tensor, Tensor, &State)> = params
            .iter()
            .zip(&self.states)
            .filter_map(|(param, state)| Some((param, param.tensor.detach(), gradient(param)?, state.as_ref()?)))
            .collect();
        let updates = work.iter().map(|(param, tensor, grad, state)| self.update(param, tensor, grad, state));
        if self.kind.implementation == Implementation::ForEach && matches!(self.kind.kind, Kind::Adam | Kind::AdamW) {
            return adam::update_foreach(&updates.collect::<Vec<_>>());
        }
        // The reference's root of the last parameter lives until that of the next one is made.
        let mut root = None;
        for update in updates {
            root = update.run()?;
        }
        drop(root);
        Ok(())
    }

    fn update<'a>(&self, param: &Param, tensor: &'a Tensor, grad: &'a Tensor, state: &'a State) -> Update<'a> {
        let group = self.groups.of(param);
        let hyper = Hyper {
            lr: self.hyper.lr * group.lr,
            weight_decay: self.hyper.weight_decay * group.weight_decay,
            ..self.hyper
        };
        let rule = self.kind.kind.of(param.kind, tensor.shape());
        Update { kind: self.kind, rule, hyper, step: self.steps, param: tensor, grad, state }
    }
}
