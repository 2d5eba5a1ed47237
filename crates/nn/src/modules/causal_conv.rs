//! Short causal convolutions over time, one filter per channel.

use super::hf;
use crate::context::Forward;
use crate::param::{Builder, Init, ParamKind};
use crate::spec::{Activation, ConvSpec};
use tensor::{Result, Tensor};

/// A causal convolution and the activation behind it.
#[derive(Clone, Debug)]
pub struct CausalConv {
    name: &'static str,
    filters: Tensor,
    bias: Option<Tensor>,
    act: Option<Activation>,
}

impl CausalConv {
    /// A convolution of `channels` channels in the module `spec.name`.
    ///
    /// # Errors
    /// If the filters are too large to count.
    pub fn new(b: &Builder<'_>, spec: &ConvSpec, channels: u64) -> Result<Self> {
        let _scope = b.runtime().scope(spec.name);
        let filters = b.param("weight", &[channels, 1, spec.taps], ParamKind::Matrix, Init::FanIn(spec.taps))?;
        let bias = spec.bias.then(|| b.param("bias", &[channels], ParamKind::Vector, Init::Zeros)).transpose()?;
        Ok(Self { name: spec.name, filters, bias, act: spec.act })
    }

    /// `b c s -> b c s`
    ///
    /// The reference pads both ends and cuts the later one off.
    pub fn forward(&self, f: &Forward, x: &Tensor) -> Result<Tensor> {
        let _scope = f.runtime.scope(self.name);
        let (s, taps) = (x.size(2), self.filters.size(2));
        let filters = f.weight(&self.filters)?.squeeze(1)?;
        let bias = self.bias.as_ref().map(|bias| f.weight(bias)).transpose()?;
        let padded = x.depthwise_conv1d(&filters, bias.as_ref(), taps - 1)?;
        let out = padded.narrow(2, 0, s)?;
        drop(padded);
        match self.act {
            Some(act) => hf::activate(f, act, out),
            None => Ok(out),
        }
    }
}
