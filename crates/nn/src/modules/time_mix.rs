//! Time and channel mixing of RWKV 4.

use super::Linear;
use crate::context::Forward;
use crate::param::{Builder, Init, ParamKind};
use crate::spec::{LinearSpec, TimeMixSpec};
use tensor::{DType, Result, Tensor};

/// How much of each channel comes from the position itself; the rest comes from the one before.
#[derive(Clone, Debug)]
struct Mix(Tensor);

impl Mix {
    fn new(b: &Builder<'_>, name: &str, h: u64) -> Result<Self> {
        b.param(name, &[1, 1, h], ParamKind::Vector, Init::Constant(0.5)).map(Self)
    }

    /// `x m + before (1 - m)`
    fn of(&self, f: &Forward, x: &Tensor, before: &Tensor) -> Result<Tensor> {
        let own = f.weight(&self.0)?;
        x.mul(&own)?.add(&before.mul(&own.neg()?.add_scalar(1.0)?)?)
    }
}

/// The stream one position later, zeros in front: `b s h -> b s h`
fn shifted(x: &Tensor) -> Result<Tensor> {
    let (rt, s) = (x.runtime(), x.size(1));
    let zeros = rt.no_grad(|| rt.zeros(&[x.size(0), 1, x.size(2)], x.dtype()))?;
    Tensor::cat(&[&zeros, &x.narrow(1, 0, s - 1)?], 1)
}

/// The recurrence on keys and values.
#[derive(Clone, Debug)]
pub struct TimeMix {
    decay: Tensor,
    first: Tensor,
    mixes: [Mix; 3],
    maps: [Linear; 3],
    out: Linear,
}

impl TimeMix {
    /// Time mixing of a residual stream of width `h`, in the current module.
    ///
    /// # Errors
    /// If a weight is too large to count.
    pub fn new(b: &Builder<'_>, spec: TimeMixSpec, h: u64, layers: u64) -> Result<Self> {
        let width = spec.width;
        let map = |name, from, to, init| Linear::new(b, &LinearSpec::new(name, false), from, to, init);
        let each = |name| map(name, h, width, Init::FanIn(h));
        let vector = |name| b.param(name, &[width], ParamKind::Vector, Init::Zeros);
        Ok(Self {
            decay: vector("time_decay")?,
            first: vector("time_first")?,
            mixes: [
                Mix::new(b, "time_mix_key", h)?,
                Mix::new(b, "time_mix_value", h)?,
                Mix::new(b, "time_mix_receptance", h)?,
            ],
            maps: [each("key")?, each("value")?, each("receptance")?],
            out: map("output", width, h, Init::ScaledResidual { fan_in: width, layers })?,
        })
    }

    /// `b s h -> b s h`
    pub fn forward(&self, f: &Forward, x: &Tensor) -> Result<Tensor> {
        let before = shifted(x)?;
        let mapped = |i: usize| self.maps[i].forward(f, &self.mixes[i].of(f, x, &before)?);
        let (key, value, open) = (mapped(0)?, mapped(1)?, mapped(2)?.sigmoid()?);
        drop(before);
        let read = self.recur(&key, &value)?.to_dtype(open.dtype())?;
        self.out.forward(f, &open.mul(&read)?)
    }

    /// The mean of the values so far, weighted by their keys and their age.
    ///
    /// Numerator and denominator are held relative to the largest key of a channel, where the reference follows it step by
    /// step: equal unless keys of a text differ by more than f32 holds.
    ///
    /// # Shapes
    /// `b s w`, `b s w` -> `b s w` (f32)
    fn recur(&self, key: &Tensor, value: &Tensor) -> Result<Tensor> {
        let (key, value) = (key.to_dtype(DType::F32)?, value.to_dtype(DType::F32)?);
        let rt = key.runtime();
        let most = rt.no_grad(|| key.max(1, true))?.0;
        let weight = key.sub(&most)?.exp()?;
        let weighted = weight.mul(&value)?;
        let decay = self.decay.to_dtype(DType::F32)?.exp()?.neg()?.exp()?.expand(key.shape())?;
        // What the positions before have left, from the second on.
        let left = |t: &Tensor| shifted(&decay.linear_scan(t, 1)?);
        let bonus = self.first.to_dtype(DType::F32)?.exp()?;
        let above = left(&weighted)?.add(&weighted.mul(&bonus)?)?;
        let below = left(&weight)?.add(&weight.mul(&bonus)?)?;
        above.div(&below)
    }
}

/// A feed-forward part on the stream mixed with that of the position before: `σ(r) * value(relu(key)²)`.
#[derive(Clone, Debug)]
pub struct ChannelMix {
    mixes: [Mix; 2],
    key: Linear,
    receptance: Linear,
    value: Linear,
}

impl ChannelMix {
    /// Channel mixing with `inner` channels inside, in the current module.
    ///
    /// # Errors
    /// If a weight is too large to count.
    pub fn new(b: &Builder<'_>, inner: u64, h: u64, layers: u64) -> Result<Self> {
        let map = |name, from, to, init| Linear::new(b, &LinearSpec::new(name, false), from, to, init);
        Ok(Self {
            mixes: [Mix::new(b, "time_mix_key", h)?, Mix::new(b, "time_mix_receptance", h)?],
            key: map("key", h, inner, Init::FanIn(h))?,
            receptance: map("receptance", h, h, Init::FanIn(h))?,
            value: map("value", inner, h, Init::ScaledResidual { fan_in: inner, layers })?,
        })
    }

    /// `b s h -> b s h`
    pub fn forward(&self, f: &Forward, x: &Tensor) -> Result<Tensor> {
        let before = shifted(x)?;
        let inner = self.key.forward(f, &self.mixes[0].of(f, x, &before)?)?.relu()?.pow_scalar(2.0)?;
        let value = self.value.forward(f, &inner)?;
        let open = self.receptance.forward(f, &self.mixes[1].of(f, x, &before)?)?.sigmoid()?;
        open.mul(&value)
    }
}
