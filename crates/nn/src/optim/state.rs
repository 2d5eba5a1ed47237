//! State tensors of one parameter.

use super::OptimizerKind;
use super::update::Update;
use crate::param::Param;
use tensor::{DType, Result, Role, Tensor};

/// A state tensor that a rule asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Its name, that of the field's frameworks where they have one.
    pub name: &'static str,
    /// Sizes.
    pub shape: Vec<u64>,
    /// Element type.
    pub dtype: DType,
}

impl Slot {
    /// Counter of updates, where the implementation keeps it as a tensor.
    pub const STEP: &str = "step";
    /// f32 copy of the parameter.
    pub const MASTER: &str = "master";

    pub(super) fn new(name: &'static str, shape: &[u64], dtype: DType) -> Self {
        Self { name, shape: shape.to_vec(), dtype }
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.shape.iter().product::<u64>() * self.dtype.size_in_bytes()
    }
}

/// The state tensors of one parameter, by name.
#[derive(Clone, Debug, Default)]
pub(super) struct State(Vec<(&'static str, Tensor)>);

impl State {
    /// States from before the first update: the master copy equals the parameter, everything else is zero.
    pub fn fresh(kind: OptimizerKind, param: &Param, master: bool) -> Result<Self> {
        let tensor = &param.tensor;
        let slots = kind.slots(param.kind, tensor.shape(), tensor.dtype(), master);
        let make = |slot: &Slot| {
            let made = if slot.name == Slot::MASTER {
                tensor.detach().to_dtype(slot.dtype)?
            } else {
                tensor.runtime().zeros(&slot.shape, slot.dtype)?
            };
            Ok((slot.name, made.with_role(Role::OptimizerState)))
        };
        Ok(Self(slots.iter().map(make).collect::<Result<_>>()?))
    }

    /// States made elsewhere.
    pub fn of(tensors: Vec<(&'static str, Tensor)>) -> Self {
        Self(tensors)
    }

    /// A state that the rule may not have.
    pub fn find(&self, name: &str) -> Option<&Tensor> {
        self.0.iter().find(|(n, _)| *n == name).map(|(_, t)| t)
    }

    /// A state that the rule has asked for.
    ///
    /// # Panics
    /// If it has not.
    pub fn get(&self, name: &str) -> &Tensor {
        self.find(name).unwrap_or_else(|| unreachable!("the rule has no state `{name}`"))
    }

    /// All of them, in the order of [`OptimizerKind::slots`].
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &Tensor)> {
        self.0.iter().map(|(name, tensor)| (*name, tensor))
    }
}

impl Update<'_> {
    /// Counts the update, where the counter is a tensor.
    pub(super) fn count(&self) -> Result<()> {
        self.state.find(Slot::STEP).map_or(Ok(()), |step| step.add_scalar_(1.0).map(drop))
    }
}
