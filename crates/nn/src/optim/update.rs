//! One update of one parameter: what a rule is given, and which rule it is.

use super::state::{Slot, State};
use super::{Hyper, Implementation, Kind, OptimizerKind, adafactor, adam, adam8bit, lion, muon, simple};
use tensor::rng::Stream;
use tensor::{DType, Result, Tensor};

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
    /// Number of the parameter.
    pub index: usize,
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

    /// What weight decay apart from the gradient multiplies weights by; `None` where there is none.
    pub fn decay_factor(&self) -> Option<f64> {
        let part = self.hyper.lr * self.hyper.weight_decay;
        let decays = matches!(self.rule, Kind::AdamW | Kind::Adafactor | Kind::Adam8bit | Kind::Muon | Kind::Lion);
        (decays && part != 0.0).then_some(1.0 - part)
    }

    /// Weight decay apart from the gradient.
    pub fn decay(&self) -> Result<()> {
        self.decay_factor().map_or(Ok(()), |factor| self.weight().mul_scalar_(factor).map(drop))
    }

    /// Carries it out in f32 and rounds what is bf16, parameter and states, up or down at random.
    pub fn run_rounding(&self) -> Result<()> {
        let runtime = self.param.runtime();
        let narrow = |t: &Tensor| t.dtype() == DType::BF16;
        let wide = self.param.to_dtype(DType::F32)?;
        let states = self.state.iter().map(|(name, t)| {
            let t = if narrow(t) { t.to_dtype(DType::F32)? } else { t.clone() };
            Ok((name, t))
        });
        let states = State::of(states.collect::<Result<_>>()?);
        drop(Update { param: &wide, state: &states, ..*self }.run()?);
        // A site of its own for each tensor of each update, which a resumed run finds again.
        let rng = runtime.rng().for_stream(Stream::Rounding);
        let first = self.step << 24 | (self.index as u64) << 3;
        let tensors = self.state.iter().map(|(name, t)| (t, states.get(name)));
        for (site, (to, from)) in (first..).zip(std::iter::once((self.param, &wide)).chain(tensors)) {
            if narrow(to) {
                to.stochastic_round_(from, rng, site)?;
            }
        }
        Ok(())
    }
}
