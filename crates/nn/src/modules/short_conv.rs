//! Gated short convolutions (LFM 2).

use super::{CausalConv, Linear};
use crate::context::Forward;
use crate::param::{Builder, Init};
use crate::spec::{LinearSpec, ShortConvSpec};
use tensor::{Result, Tensor};

/// `out(C * conv(B * x))`, where one map makes `B`, `C` and `x`.
#[derive(Clone, Debug)]
pub struct ShortConv {
    into: Linear,
    conv: CausalConv,
    out: Linear,
}

impl ShortConv {
    /// A convolution on a residual stream of width `h`, in the current module.
    ///
    /// # Errors
    /// If a weight is too large to count.
    pub fn new(b: &Builder<'_>, spec: &ShortConvSpec, h: u64, layers: u64) -> Result<Self> {
        let map = |name, to, init| Linear::new(b, &LinearSpec::new(name, spec.bias), h, to, init);
        Ok(Self {
            into: map("in_proj", 3 * h, Init::FanIn(h))?,
            conv: CausalConv::new(b, &spec.conv, h)?,
            out: map("out_proj", h, Init::ScaledResidual { fan_in: h, layers })?,
        })
    }

    /// `b s h -> b s h`
    pub fn forward(&self, f: &Forward, x: &Tensor) -> Result<Tensor> {
        let h = x.size(2);
        let parts = self.into.forward(f, x)?.transpose(1, 2)?.split(&[h, h, h], 1)?;
        let mixed = self.conv.forward(f, &parts[0].mul(&parts[2])?)?;
        let gated = parts[1].mul(&mixed)?;
        self.out.forward(f, &gated.transpose(1, 2)?.contiguous()?)
    }
}
