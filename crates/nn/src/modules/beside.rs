//! A dense MLP and a mixture of experts beside each other.

use super::{Mlp, Moe, Norm};
use crate::context::Forward;
use crate::param::Builder;
use crate::spec::BesideSpec;
use std::rc::Rc;
use tensor::{Result, Tensor};

/// Module of the MLP.
const MLP: &str = "mlp";

/// Both parts with their norms.
#[derive(Clone, Debug)]
pub struct Beside {
    mlp: Mlp,
    moe: Moe,
    m1: Norm,
    n: Norm,
    m2: Norm,
}

impl Beside {
    /// Both parts around a residual stream of width `h`, in the current module.
    ///
    /// # Errors
    /// If a weight is too large to count.
    pub fn new(b: &Builder<'_>, spec: &BesideSpec, h: u64, layers: u64) -> Result<Self> {
        let mlp = {
            let _scope = b.runtime().scope(MLP);
            Mlp::new(b, &spec.mlp, h, layers)?
        };
        let moe = Moe::new(b, &Rc::new(spec.moe.clone()), h, layers)?;
        let norm = |norm| Norm::named(b, norm, h);
        Ok(Self { mlp, moe, m1: norm(&spec.m1)?, n: norm(&spec.n)?, m2: norm(&spec.m2)? })
    }

    /// What both make of the stream, normalised for the MLP already.
    ///
    /// # Shapes
    /// `b s h`, `b s h -> b s h`
    ///
    /// # Errors
    /// If shapes do not fit.
    pub fn forward(&self, f: &Forward, normed: &Tensor, stream: &Tensor) -> Result<Tensor> {
        let dense = {
            let _scope = f.runtime.scope(MLP);
            self.mlp.forward(f, normed)?
        };
        let dense = self.m1.forward(f, &dense)?;
        let routed = self.moe.forward_chosen_by(f, &self.n.forward(f, stream)?, Some(stream))?;
        dense.add(&self.m2.forward(f, &routed)?)
    }
}
