//! Attention and a state space side by side on one input.

use super::{Attention, Mamba2};
use crate::context::Forward;
use crate::param::Builder;
use crate::spec::ParallelSpec;
use std::rc::Rc;
use tensor::{Result, Tensor};

/// Attention and a state space whose outputs are added.
#[derive(Clone, Debug)]
pub struct Parallel {
    attention: Attention,
    attention_scales: [f64; 2],
    mamba: Mamba2,
    mamba_scale: f64,
}

impl Parallel {
    /// Both on a residual stream of width `h`, as modules of the current one.
    ///
    /// # Errors
    /// If a weight is too large to count.
    pub fn new(b: &Builder<'_>, spec: &ParallelSpec, h: u64, layers: u64) -> Result<Self> {
        let mamba = {
            let _scope = b.runtime().scope("mamba");
            Mamba2::new(b, &Rc::new(spec.mamba.clone()), h, layers)?
        };
        let _scope = b.runtime().scope("self_attn");
        let attention = Attention::new(b, &Rc::new(spec.attention.clone()), h, layers)?;
        Ok(Self { attention, attention_scales: spec.attention_scales, mamba, mamba_scale: spec.mamba_scale })
    }

    /// `b s h -> b s h`, and the attention weights where the reference returns them beside it
    pub fn forward(&self, f: &Forward, x: &Tensor) -> Result<(Tensor, Option<Tensor>)> {
        let scanned = {
            let _scope = f.runtime.scope("mamba");
            self.mamba.forward(f, x)?
        };
        let scanned = scanned.mul_scalar(self.mamba_scale)?;
        let (attended, weights) = {
            let _scope = f.runtime.scope("self_attn");
            self.attention.forward(f, &x.mul_scalar(self.attention_scales[0])?)?
        };
        let attended = attended.mul_scalar(self.attention_scales[1])?;
        Ok((scanned.add(&attended)?, weights))
    }
}
