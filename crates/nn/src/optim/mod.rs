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
mod health;
mod hyper;
mod kind;
mod lion;
mod muon;
mod simple;
mod state;
mod update;

pub use clip::GradNorm;
pub use health::Health;
pub use hyper::{Group, Groups, Hyper};
pub use kind::{Implementation, Kind, OptimizerKind, parse};
pub use muon::orthogonalize;
pub use state::Slot;

use crate::param::Param;
use health::Counts;
use state::State;
use tensor::{DType, Phase, Result, Tensor};
use update::Update;

/// An optimizer over the parameters of a model.
pub struct Optimizer {
    kind: OptimizerKind,
    hyper: Hyper,
    groups: Groups,
    master: bool,
    stochastic: bool,
    watched: bool,
    health: Option<Health>,
    steps: u64,
    /// By position of the parameter; `None` before its first update.
    states: Vec<Option<State>>,
}

impl Optimizer {
    /// An optimizer whose states are made at the first step, as the field's frameworks do.
    ///
    /// With `master`, it keeps f32 copies of low-precision parameters and f32 states.
    pub fn new(kind: OptimizerKind, hyper: Hyper, master: bool) -> Self {
        Self {
            kind,
            hyper,
            groups: Groups::default(),
            master,
            stochastic: false,
            watched: false,
            health: None,
            steps: 0,
            states: Vec::new(),
        }
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

    /// Whether bf16 parameters without master copies, and their states, are rounded up or down at random, right in the
    /// mean, instead of to the nearest. One parameter at a time is then updated in f32.
    pub fn set_stochastic_rounding(&mut self, on: bool) {
        self.stochastic = on;
    }

    /// Whether updates are looked at for what rounding takes from them: see [`Optimizer::health`]. It takes a copy of one
    /// parameter at a time and some passes over it.
    pub fn watch(&mut self, on: bool) {
        self.watched = on;
    }

    /// What rounding took from the last update; `None` if it was not watched, or on the meta device.
    pub fn health(&self) -> Option<&Health> {
        self.health.as_ref()
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

    fn make_states(&mut self, params: &[Param], wanted: impl Fn(&Param) -> bool) -> Result<()> {
        self.states.resize_with(params.len(), || None);
        for (param, state) in params.iter().zip(&mut self.states) {
            if state.is_none() && wanted(param) {
                // States belong to the module of their parameter, from wherever they are made.
                let _module =
                    param.tensor.runtime().root_scope(param.name.rsplit_once('.').map_or("", |(path, _)| path));
                *state = Some(State::fresh(self.kind, param, self.master)?);
            }
        }
        Ok(())
    }

    fn step_all(&mut self, params: &[Param]) -> Result<()> {
        let gradient = |p: &Param| if p.trainable { p.tensor.grad() } else { None };
        self.make_states(params, |p| gradient(p).is_some())?;
        self.steps += 1;
        let work: Vec<(usize, &Param, Tensor, Tensor, &State)> = params
            .iter()
            .zip(&self.states)
            .enumerate()
            .filter_map(|(i, (param, state))| {
                Some((i, param, param.tensor.detach(), gradient(param)?, state.as_ref()?))
            })
            .collect();
        let updates = work.iter().map(|(i, param, tensor, grad, state)| {
            let (rule, hyper) = (self.kind.kind.of(param.kind, tensor.shape()), self.hyper_of(param));
            let (kind, step, index) = (self.kind, self.steps, *i);
            (*param, Update { kind, rule, hyper, step, index, param: tensor, grad, state })
        });
        let at_once = self.kind.implementation == Implementation::ForEach && !self.watched && !self.stochastic;
        if at_once && matches!(self.kind.kind, Kind::Adam | Kind::AdamW) {
            let updates: Vec<Update<'_>> = updates.map(|(_, update)| update).collect();
            return adam::update_foreach(&updates);
        }
        // The reference's root of the last parameter lives until that of the next one is made.
        let mut root = None;
        let mut counts = Vec::new();
        for (param, update) in updates {
            let rounds = self.stochastic && !self.master && update.param.dtype() == DType::BF16;
            let before = (self.watched && !rounds).then(|| update.weight().copy()).transpose()?;
            if rounds {
                update.run_rounding()?;
            } else {
                root = update.run()?;
            }
            if self.watched {
                counts.push(Counts::of(&param.name, &update, before.as_ref())?);
            }
        }
        drop(root);
        let readable = self.watched && params.first().is_some_and(|p| p.tensor.runtime().holds_data());
        self.health = readable.then(|| Health::of(&counts)).transpose()?;
        Ok(())
    }

    /// Rates and decays of a parameter.
    fn hyper_of(&self, param: &Param) -> Hyper {
        let (h, group) = (self.hyper, self.groups.of(param));
        Hyper { lr: h.lr * group.lr, weight_decay: h.weight_decay * group.weight_decay, ..h }
    }
}
