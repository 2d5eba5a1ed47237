//! One update of one parameter: what a rule is given, and which rule it is.

use super::state::{Slot, State};
use super::{Hyper, Implementation, Kind, OptimizerKind, adafactor, adam, adam8bit, lion, muon, simple};
use tensor::{Result, Tensor};

/// What a rule is given.
pub(super) struct Update<'a> {
    /// Which rule, and how.
    pub kind: OptimizerKind,
    /// The rule of this parameter.
    pub rule: Kind,
    /// Rates and decays; of this parameter's group.
    pub hyper: Hyper,
    /// Number of this update, from 1.
    pub step: u64,
    /// The parameter.
    pub param: &'a Tensor,
    /// Its gradient.
    pub grad: &'a Tensor,
    /// Its states.
    pub state: &'a State,
}

impl Update<'_> {
    /// Whether one kernel does it.
    pub fn fused(&self) -> bool {
        self.kind.implementation == Implementation::Fused
    }

    /// The f32 copy of the parameter, if there is one.
    pub fn master(&self) -> Option<&Tensor> {
        self.state.find(Slot::MASTER)
    }

    /// What small ops change: the master copy, or the parameter where there is none.
    pub fn weight(&self) -> &Tensor {
        self.master().unwrap_or(self.param)
    }

    /// Carries it out; gives the root of the second moment back, if small ops made one.
    pub fn run(&self) -> Result<Option<Tensor>> {
        let root = match self.rule {
            Kind::Sgd => simple::sgd(self)?,
            Kind::Momentum => simple::momentum(self)?,
            Kind::AdaGrad => Some(simple::adagrad(self)?),
            Kind::RmsProp => Some(simple::rmsprop(self)?),
            Kind::Adam | Kind::AdamW => adam::update(self)?,
            Kind::Adafactor => adafactor::update(self)?,
            Kind::Adam8bit => adam8bit::update(self)?,
            Kind::Muon => muon::update(self)?,
            Kind::Lion => lion::update(self)?,
        };
        if !self.kind.is_one_kernel(self.rule) {
            self.publish()?;
        }
        Ok(root)
    }

    /// Writes the rounded master copy to the parameter.
    pub fn publish(&self) -> Result<()> {
        self.master().map_or(Ok(()), |master| self.param.copy_(master).map(drop))
    }

    /// Weight decay apart from the gradient.
    pub fn decay(&self) -> Result<()> {
        let part = self.hyper.lr * self.hyper.weight_decay;
        if part == 0.0 { Ok(()) } else { self.weight().mul_scalar_(1.0 - part).map(drop) }
    }
}
