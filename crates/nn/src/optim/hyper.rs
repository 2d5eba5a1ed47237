//! Rates and decays, and how they differ between parameters.

use super::Kind;
use crate::param::{Param, ParamKind};

/// Rates and decays.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hyper {
    /// Learning rate.
    pub lr: f64,
    /// Decay of the running mean of gradients (momentum).
    pub beta1: f64,
    /// Decay of the running mean of squares; in Lion, of the mean itself.
    pub beta2: f64,
    /// Added to the root.
    pub eps: f64,
    /// Decoupled weight decay. `sgd` to `adam` of the lattice have none.
    pub weight_decay: f64,
    /// Decay of the momentum of Muon's matrices; `beta1` and `beta2` are those of its `AdamW`.
    pub momentum: f64,
}

impl Default for Hyper {
    fn default() -> Self {
        Self { lr: 1e-3, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01, momentum: 0.95 }
    }
}

impl Hyper {
    /// What the authors of a rule set: Chen et al. 2023 for Lion; Shazeer and Stern 2018 for Adafactor, whose rate is
    /// relative to the weight; the field's frameworks for the others.
    pub fn of(kind: Kind) -> Self {
        let usual = Self::default();
        match kind {
            Kind::Adafactor => Self { lr: 1e-2, weight_decay: 0.0, ..usual },
            Kind::Lion => Self { lr: 1e-4, beta2: 0.99, ..usual },
            Kind::AdaGrad => Self { lr: 1e-2, eps: 1e-10, ..usual },
            Kind::RmsProp => Self { lr: 1e-2, beta2: 0.99, ..usual },
            _ => usual,
        }
    }
}

/// What a group of parameters has of the optimizer's rate and decay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Group {
    /// Factor of the learning rate.
    pub lr: f64,
    /// Factor of the weight decay.
    pub weight_decay: f64,
}

impl Group {
    /// The rate and the decay of the optimizer.
    pub const WHOLE: Self = Self { lr: 1.0, weight_decay: 1.0 };
    /// Its rate, without decay.
    pub const NO_DECAY: Self = Self { lr: 1.0, weight_decay: 0.0 };
}

/// The groups of parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Groups {
    /// Token and position tables.
    pub embedding: Group,
    /// Matrix of the output projection.
    pub head: Group,
    /// Matrices of blocks, experts too.
    pub matrix: Group,
    /// Norms and biases.
    pub vector: Group,
}

impl Default for Groups {
    fn default() -> Self {
        Self { embedding: Group::WHOLE, head: Group::WHOLE, matrix: Group::WHOLE, vector: Group::NO_DECAY }
    }
}

impl Groups {
    /// The group of a parameter. A vector is one whatever it is used for: the bias of the head too.
    pub fn of(&self, param: &Param) -> Group {
        match param.kind {
            _ if param.tensor.rank() < 2 => self.vector,
            ParamKind::Vector => self.vector,
            ParamKind::Embedding => self.embedding,
            ParamKind::Head => self.head,
            ParamKind::Matrix | ParamKind::Adapter | ParamKind::ExpertAdapter { .. } | ParamKind::Expert { .. } => {
                self.matrix
            }
        }
    }
}
