//! One block: attention, or what else mixes positions, and feed-forward joined by norms and residuals.

use super::hybrid::Sharing;
use super::{
    Attention, Beside, BlockInput, ChannelMix, CompressedAttention, Connection, Delta, Distance, Hybrid, Lightning,
    Mamba, Mamba2, Mlp, Mlstm, Moe, Norm, Parallel, RgLru, ShortConv, TimeMix, Updates,
};
use crate::context::{Forward, Profile};
use crate::param::{Builder, Init, ParamKind};
use crate::spec::{BlockForm, CrossSpec, FeedForwardSpec, LayerSpec, Mixer as MixerSpec, NamedNorm};
use std::rc::Rc;
use std::sync::Arc;
use tensor::runtime::ScopeGuard;
use tensor::{DType, Result, Runtime, Tensor};

/// Only forms with one part run a block that lacks the other.
const NO_PART: tensor::Error = tensor::Error::Backward("a block without the part its form asks for");

/// One block of the residual stream.
#[derive(Clone, Debug)]
pub struct Block {
    spec: Arc<LayerSpec>,
    mixer: Mixer,
    cross: Option<Cross>,
    feed_forward: FeedForward,
    norms: Norms,
    /// Weights of the residual stream, where they are trained.
    residuals: Vec<Tensor>,
    /// Factors of the branches, of attention and of feed-forward, where they are trained.
    scales: Option<[Tensor; 2]>,
    /// The mixture beside, and the block that runs behind the parts above.
    shortcut: Option<Box<(Moe, Block)>>,
    /// What runs around it, where it is one of several streams.
    updates: Option<Box<Updates>>,
    /// What runs around its parts, where each reads several streams: of attention, of feed-forward.
    connections: Option<Box<[Connection; 2]>>,
    input: Option<BlockInput>,
}

/// Attention to another stack, with its norm.
#[derive(Clone, Debug)]
struct Cross {
    name: &'static str,
    attention: Attention,
    norm: Norm,
}

/// What mixes positions.
#[derive(Clone, Debug)]
pub(super) enum Mixer {
    Attention(Box<Attention>),
    Mamba(Box<Mamba>),
    Mamba2(Box<Mamba2>),
    Delta(Box<Delta>),
    Compressed(Box<CompressedAttention>),
    Distance(Box<Distance>),
    ShortConv(Box<ShortConv>),
    RgLru(Box<RgLru>),
    Lightning(Box<Lightning>),
    Mlstm(Box<Mlstm>),
    TimeMix(Box<TimeMix>),
    Hybrid(Box<Hybrid>),
    Parallel(Box<Parallel>),
    None,
}

#[derive(Clone, Debug)]
enum FeedForward {
    Mlp(Box<Mlp>),
    Moe(Box<Moe>),
    Beside(Box<Beside>),
    ChannelMix(Box<ChannelMix>),
    None,
}

/// The norms of a block in the order of [`BlockForm`]'s fields.
type Norms = Rc<[Norm]>;

impl Block {
    /// A block on a residual stream of width `h`, in the current module.
    ///
    /// # Errors
    /// If a weight is too large to count.
    pub fn new(b: &Builder<'_>, spec: &Arc<LayerSpec>, h: u64, layers: u64, sharing: &Sharing) -> Result<Self> {
        let norm = |n: &NamedNorm| Norm::named(b, n, h);
        let norms: Vec<Norm> = match &spec.form {
            BlockForm::Bare => Vec::new(),
            BlockForm::Single { n, .. } => vec![norm(n)?],
            BlockForm::Sequential { n1, n2 }
            | BlockForm::Shortcut { n1, n2, .. }
            | BlockForm::Normed { n1, n2 }
            | BlockForm::WeightedResidual { n1, n2, .. }
            | BlockForm::NormedScaled { n1, n2, .. } => vec![norm(n1)?, norm(n2)?],
            BlockForm::Sandwich { n1, m1, n2, m2 } | BlockForm::Alternating { n1, m1, n2, m2, .. } => {
                vec![norm(n1)?, norm(m1)?, norm(n2)?, norm(m2)?]
            }
            BlockForm::Mixed { hyper } => vec![norm(&hyper.n1)?, norm(&hyper.n2)?],
            BlockForm::PostBranch { m1, m2 } | BlockForm::PostResidual { m1, m2 } => vec![norm(m1)?, norm(m2)?],
            BlockForm::Parallel { n1, n2: None }
            | BlockForm::ParallelInPlace { n1, n2: None }
            | BlockForm::ParallelInto { n1 } => vec![norm(n1)?],
            BlockForm::Parallel { n1, n2: Some(n2) } | BlockForm::ParallelInPlace { n1, n2: Some(n2) } => {
                vec![norm(n1)?, norm(n2)?]
            }
        };
        let mixer = {
            let _scope = scope(b.runtime(), spec.names.attention);
            Mixer::new(b, &spec.mixer, h, layers, sharing)?
        };
        let cross = spec.cross.as_ref().map(|cross| Cross::new(b, cross, h, layers)).transpose()?;
        for one in &spec.counted {
            b.param(one.name, &one.shape, one.kind, Init::Zeros)?;
        }
        let feed_forward = {
            let _scope = scope(b.runtime(), spec.names.feed_forward);
            match &spec.feed_forward {
                FeedForwardSpec::Mlp(mlp) => FeedForward::Mlp(Box::new(Mlp::new(b, mlp, h, layers)?)),
                FeedForwardSpec::Moe(moe) => {
                    FeedForward::Moe(Box::new(Moe::new(b, &Rc::new((**moe).clone()), h, layers)?))
                }
                FeedForwardSpec::Beside(both) => FeedForward::Beside(Box::new(Beside::new(b, both, h, layers)?)),
                FeedForwardSpec::ChannelMix(inner) => {
                    FeedForward::ChannelMix(Box::new(ChannelMix::new(b, *inner, h, layers)?))
                }
                FeedForwardSpec::None => FeedForward::None,
            }
        };
        let residuals = match &spec.form {
            BlockForm::WeightedResidual { weights, .. } => {
                let one = |name: &&str| b.param(name, &[h], ParamKind::Vector, Init::Ones);
                weights.iter().map(one).collect::<Result<_>>()?
            }
            _ => Vec::new(),
        };
        let scale = |name| b.param(name, &[h], ParamKind::Vector, Init::Ones);
        let scales = match spec.branch_scales {
            Some([first, second]) => Some([scale(first)?, scale(second)?]),
            None => None,
        };
        let shortcut = match &spec.form {
            BlockForm::Shortcut { beside, name, then, .. } => {
                let moe = {
                    let _scope = scope(b.runtime(), name);
                    Moe::new(b, &Rc::new((**beside).clone()), h, layers)?
                };
                Some(Box::new((moe, Self::new(b, then, h, layers, sharing)?)))
            }
            _ => None,
        };
        let updates = match &spec.form {
            BlockForm::Alternating { updates, .. } => Some(Box::new(Updates::new(b, updates, h)?)),
            _ => None,
        };
        let connections = match &spec.form {
            BlockForm::Mixed { hyper } => {
                Some(Box::new([Connection::new(b, "attn_hc", hyper, h)?, Connection::new(b, "ffn_hc", hyper, h)?]))
            }
            _ => None,
        };
        let input = spec.input.as_ref().map(|input| BlockInput::new(b, input, h)).transpose()?;
        let (spec, norms) = (spec.clone(), norms.into());
        Ok(Self { spec, mixer, cross, feed_forward, norms, residuals, scales, shortcut, updates, connections, input })
    }

    /// What it was built from.
    pub fn spec(&self) -> &LayerSpec {
        &self.spec
    }

    /// Makes what this block makes for all blocks of its stack: trained position biases.
    ///
    /// # Errors
    /// If shapes do not fit.
    pub fn prepare(&self, f: &Forward, x: &Tensor) -> Result<()> {
        if let Mixer::Attention(attention) = &self.mixer {
            let _scope = f.runtime.scope(self.spec.names.attention);
            attention.prepare(f, x)?;
        }
        if let Mixer::Compressed(attention) = &self.mixer {
            attention.prepare(f, x)?;
        }
        if let Mixer::Distance(attention) = &self.mixer {
            attention.prepare(f, x)?;
        }
        self.cross.as_ref().map_or(Ok(()), |cross| cross.attention.prepare(f, x))
    }

    /// The branch; what the reference keeps beside it until the block ends goes to `weights`.
    fn attend(&self, f: &Forward, x: &Tensor, weights: &mut Option<Tensor>) -> Result<Tensor> {
        let out = self.attend_plain(f, x, weights)?;
        self.branch(f, self.scaled(f, 0, out)?)
    }

    fn attend_plain(&self, f: &Forward, x: &Tensor, weights: &mut Option<Tensor>) -> Result<Tensor> {
        let _scope = scope(&f.runtime, self.spec.names.attention);
        let (out, kept) = self.mixer.forward(f, x)?;
        *weights = kept;
        Ok(out)
    }

    /// The stream behind the attention to another stack, where there is one: normalised before it or behind its residual.
    fn cross(&self, f: &Forward, x: Tensor, normed_first: bool) -> Result<Tensor> {
        let Some(cross) = &self.cross else { return Ok(x) };
        let inner = if normed_first { cross.norm.forward(f, &x)? } else { x.clone() };
        let attended = {
            let _scope = f.runtime.scope(cross.name);
            cross.attention.forward(f, &inner)?.0
        };
        drop(inner);
        let sum = self.join(&x, &self.branch(f, attended)?)?;
        if normed_first { Ok(sum) } else { cross.norm.forward(f, &sum) }
    }

    fn feed(&self, f: &Forward, x: &Tensor) -> Result<Tensor> {
        let out = self.feed_forward(f, x)?;
        let out = self.scaled(f, 1, out)?;
        if self.spec.feeds_whole { Ok(out) } else { self.branch(f, out) }
    }

    fn feed_forward(&self, f: &Forward, x: &Tensor) -> Result<Tensor> {
        let _scope = scope(&f.runtime, self.spec.names.feed_forward);
        match &self.feed_forward {
            FeedForward::Mlp(mlp) => mlp.forward(f, x),
            FeedForward::Moe(moe) => moe.forward(f, x),
            FeedForward::ChannelMix(part) => part.forward(f, x),
            FeedForward::Beside(_) | FeedForward::None => Err(NO_PART),
        }
    }

    /// A branch times its trained factors, where it has some.
    fn scaled(&self, f: &Forward, which: usize, out: Tensor) -> Result<Tensor> {
        self.scales.as_ref().map_or(Ok(out.clone()), |scales| out.mul(&f.weight(&scales[which])?))
    }

    /// Dropout on a branch.
    fn branch(&self, f: &Forward, out: Tensor) -> Result<Tensor> {
        if !f.training || self.spec.dropout <= 0.0 {
            return Ok(out);
        }
        if f.profile.is_hf() { out.dropout_composed(self.spec.dropout) } else { out.dropout(self.spec.dropout) }
    }

    /// `x + branch`, scaled first where the family does so.
    fn join(&self, x: &Tensor, branch: &Tensor) -> Result<Tensor> {
        match self.spec.residual_scale {
            Some(scale) => x.add(&branch.mul_scalar(scale)?),
            None => x.add(branch),
        }
    }

    /// The block, and the attention weights if the reference hands them to its loop over the blocks.
    ///
    /// # Shapes
    /// `b s h -> b s h`
    pub fn forward(&self, f: &Forward, x: Tensor) -> Result<(Tensor, Option<Tensor>)> {
        // The weights live to the end of the block in any case.
        let mut weights = None;
        let mut out = self.run(f, x, &mut weights)?;
        if let Some(input) = &self.input {
            out = out.add(&input.added(f, &out)?)?;
        }
        let handed =
            f.profile == Profile::HfEager && self.spec.attention().is_some_and(|a| a.steps.hands_out_weights());
        Ok((out, weights.filter(|_| handed)))
    }

    fn run(&self, f: &Forward, x: Tensor, weights: &mut Option<Tensor>) -> Result<Tensor> {
        let norm = |i: usize, x: &Tensor| self.norms[i].forward(f, x);
        match &self.spec.form {
            BlockForm::Bare => {
                let branch = self.attend(f, &x, weights)?;
                self.join(&x, &branch)
            }
            BlockForm::Single { wide, .. } => {
                let narrow = if *wide { x.to_dtype(self.norms[0].dtype(f))? } else { x.clone() };
                let x = if *wide { x.to_dtype(DType::F32)? } else { x };
                let inner = norm(0, &narrow)?;
                drop(narrow);
                let mixes = !matches!(self.mixer, Mixer::None);
                let branch = if mixes { self.attend(f, &inner, weights)? } else { self.feed(f, &inner)? };
                drop(inner);
                self.join(&x, &branch)
            }
            BlockForm::Sequential { .. } => {
                let inner = norm(0, &x)?;
                let attended = self.attend(f, &inner, weights)?;
                drop(inner);
                let middle = self.join(&x, &attended)?;
                drop(attended);
                let middle = self.cross(f, middle, true)?;
                let inner = norm(1, &middle)?;
                let fed = self.feed(f, &inner)?;
                drop(inner);
                self.join(&middle, &fed)
            }
            BlockForm::Shortcut { name, .. } => {
                let (moe, then) = &**self.shortcut.as_ref().ok_or(NO_PART)?;
                let attended = self.attend(f, &norm(0, &x)?, weights)?;
                let middle = self.join(&x, &attended)?;
                drop((x, attended));
                let inner = norm(1, &middle)?;
                let mixed = {
                    let _scope = scope(&f.runtime, name);
                    moe.forward(f, &inner)?
                };
                let middle = self.join(&middle, &self.feed(f, &inner)?)?;
                drop(inner);
                self.join(&then.forward(f, middle)?.0, &mixed)
            }
            BlockForm::Sandwich { .. } => {
                let inner = norm(0, &x)?;
                let attended = self.attend(f, &inner, weights)?;
                drop(inner);
                let branch = norm(1, &attended)?;
                drop(attended);
                let middle = self.join(&x, &branch)?;
                drop(branch);
                let inner = norm(2, &middle)?;
                let fed = match &self.feed_forward {
                    FeedForward::Beside(both) => both.forward(f, &inner, &middle)?,
                    _ => self.feed(f, &inner)?,
                };
                drop(inner);
                let branch = norm(3, &fed)?;
                drop(fed);
                self.join(&middle, &branch)
            }
            BlockForm::Alternating { .. } => {
                let updates = self.updates.as_ref().ok_or(NO_PART)?;
                let predicted = updates.predict(f, &x)?;
                drop(x);
                let active = updates.active(&predicted)?;
                let inner = norm(0, &active)?;
                let low = updates.low_rank(f, &inner)?;
                let attended = self.attend(f, &inner, weights)?;
                drop(inner);
                let gated = active.add(&norm(1, &attended)?)?;
                let middle = gated.add(&low)?.mul_scalar(std::f64::consts::FRAC_1_SQRT_2)?;
                drop((attended, gated, low));
                let fed = self.feed(f, &norm(2, &middle)?)?;
                let activated = middle.add(&norm(3, &fed)?)?;
                drop((middle, fed));
                updates.correct(f, &predicted, &activated)
            }
            BlockForm::Mixed { .. } => {
                let [before, behind] = &**self.connections.as_ref().ok_or(NO_PART)?;
                let part = before.collapse(f, &x)?;
                let attended = self.attend(f, &norm(0, &part.input)?, weights)?;
                let middle = part.expand(&x, &attended)?;
                drop((x, part, attended));
                let part = behind.collapse(f, &middle)?;
                let fed = self.feed(f, &norm(1, &part.input)?)?;
                part.expand(&middle, &fed)
            }
            BlockForm::PostBranch { .. } => {
                let attended = self.attend(f, &x, weights)?;
                let branch = norm(0, &attended)?;
                drop(attended);
                let middle = self.join(&x, &branch)?;
                drop(branch);
                let fed = self.feed(f, &middle)?;
                let branch = norm(1, &fed)?;
                drop(fed);
                self.join(&middle, &branch)
            }
            BlockForm::PostResidual { .. } => {
                let attended = self.attend(f, &x, weights)?;
                let middle = norm(0, &self.join(&x, &attended)?)?;
                drop(attended);
                let middle = self.cross(f, middle, false)?;
                norm(1, &self.join(&middle, &self.feed(f, &middle)?)?)
            }
            BlockForm::ParallelInto { .. } => {
                let inner = norm(0, &x)?;
                let attended = self.attend(f, &inner, weights)?;
                let fed = self.feed(f, &inner)?;
                self.join(&self.join(&x, &attended)?, &fed)
            }
            BlockForm::Normed { .. } => {
                let inner = norm(0, &x)?;
                let attended = self.attend(f, &inner, weights)?;
                let x = inner.add(&attended)?;
                drop((inner, attended));
                let inner = norm(1, &x)?;
                inner.add(&self.feed(f, &inner)?)
            }
            BlockForm::WeightedResidual { .. } => {
                let weighted = |i: usize, x: &Tensor| f.weight(&self.residuals[i])?.mul(x);
                let attended = self.attend(f, &norm(0, &x)?, weights)?;
                let x = weighted(0, &x)?.add(&attended)?;
                drop(attended);
                let fed = self.feed(f, &norm(1, &x)?)?;
                weighted(1, &x)?.add(&fed)
            }
            BlockForm::NormedScaled { mixed, fed, .. } => {
                let joined =
                    |x: &Tensor, branch: &Tensor, by: &[f64; 2]| x.mul_scalar(by[0])?.add(&branch.mul_scalar(by[1])?);
                let inner = norm(0, &x)?;
                let attended = self.attend(f, &inner, weights)?;
                let x = joined(&inner, &attended, mixed)?;
                drop((inner, attended));
                let inner = norm(1, &x)?;
                joined(&inner, &self.feed(f, &inner)?, fed)
            }
            BlockForm::ParallelInPlace { n2, .. } => {
                let first = norm(0, &x)?;
                let second = if n2.is_some() { norm(1, &x)? } else { first.clone() };
                let attended = self.attend_plain(f, &first, weights)?;
                let sum = self.feed_forward(f, &second)?.add_reusing(&attended)?;
                x.add(&self.branch(f, sum)?)
            }
            BlockForm::Parallel { n2: Some(_), .. } => {
                let attended = self.attend(f, &norm(0, &x)?, weights)?;
                let fed = self.feed(f, &norm(1, &x)?)?;
                fed.add(&attended)?.add(&x)
            }
            BlockForm::Parallel { n2: None, .. } => {
                let inner = norm(0, &x)?;
                let attended = self.attend(f, &inner, weights)?;
                let fed = self.feed(f, &inner)?;
                attended.add(&fed)?.add(&x)
            }
        }
    }
}

impl Cross {
    fn new(b: &Builder<'_>, spec: &CrossSpec, h: u64, layers: u64) -> Result<Self> {
        let norm = Norm::named(b, &spec.norm, h)?;
        let _scope = b.runtime().scope(spec.name);
        let attention = Attention::to(b, &Rc::new((*spec.attention).clone()), h, spec.width, layers)?;
        Ok(Self { name: spec.name, attention, norm })
    }
}

impl Mixer {
    pub(super) fn new(b: &Builder<'_>, spec: &MixerSpec, h: u64, layers: u64, sharing: &Sharing) -> Result<Self> {
        Ok(match spec {
            MixerSpec::Attention(spec) => {
                Self::Attention(Box::new(Attention::new(b, &Rc::new((**spec).clone()), h, layers)?))
            }
            MixerSpec::Mamba(spec) => Self::Mamba(Box::new(Mamba::new(b, &Rc::new((**spec).clone()), h, layers)?)),
            MixerSpec::Mamba2(spec) => Self::Mamba2(Box::new(Mamba2::new(b, &Rc::new((**spec).clone()), h, layers)?)),
            MixerSpec::Delta(spec) => Self::Delta(Box::new(Delta::new(b, &Rc::new((**spec).clone()), h, layers)?)),
            MixerSpec::Compressed(spec) => Self::Compressed(Box::new(CompressedAttention::new(b, spec, h, layers)?)),
            MixerSpec::Distance(spec) => Self::Distance(Box::new(Distance::new(b, spec, h, layers)?)),
            MixerSpec::ShortConv(spec) => Self::ShortConv(Box::new(ShortConv::new(b, spec, h, layers)?)),
            MixerSpec::Lightning(spec) => Self::Lightning(Box::new(Lightning::new(b, spec, h, layers)?)),
            MixerSpec::Mlstm(spec) => Self::Mlstm(Box::new(Mlstm::new(b, spec, h, layers)?)),
            MixerSpec::TimeMix(spec) => Self::TimeMix(Box::new(TimeMix::new(b, *spec, h, layers)?)),
            MixerSpec::RgLru(spec) => Self::RgLru(Box::new(RgLru::new(b, spec, h, layers)?)),
            MixerSpec::Hybrid(spec) => Self::Hybrid(Box::new(Hybrid::new(b, spec, h, layers, sharing)?)),
            MixerSpec::Parallel(spec) => Self::Parallel(Box::new(Parallel::new(b, spec, h, layers)?)),
            MixerSpec::None => Self::None,
        })
    }

    /// The branch, and the attention weights that the reference returns beside it.
    pub(super) fn forward(&self, f: &Forward, x: &Tensor) -> Result<(Tensor, Option<Tensor>)> {
        if f.cache.is_some() && f.runtime.holds_data() && !matches!(self, Self::Attention(_)) {
            let what = "a text cannot be continued: states of other mixers than attention are not kept".to_owned();
            return Err(tensor::Error::Argument { op: "kv_cache", what });
        }
        match self {
            Self::Attention(attention) => attention.forward(f, x),
            Self::Mamba(mamba) => Ok((mamba.forward(f, x)?, None)),
            Self::Mamba2(mamba) => Ok((mamba.forward(f, x)?, None)),
            Self::Delta(delta) => Ok((delta.forward(f, x)?, None)),
            Self::Compressed(attention) => Ok((attention.forward(f, x)?, None)),
            Self::Distance(attention) => Ok((attention.forward(f, x)?, None)),
            Self::ShortConv(conv) => Ok((conv.forward(f, x)?, None)),
            Self::Lightning(lightning) => Ok((lightning.forward(f, x)?, None)),
            Self::Mlstm(memory) => Ok((memory.forward(f, x)?, None)),
            Self::TimeMix(mix) => Ok((mix.forward(f, x)?, None)),
            Self::RgLru(unit) => Ok((unit.forward(f, x)?, None)),
            Self::Hybrid(hybrid) => hybrid.forward(f, x),
            Self::Parallel(both) => both.forward(f, x),
            Self::None => Err(NO_PART),
        }
    }
}

/// The module of a part of the block; no module of its own if it has no name.
pub(super) fn scope(runtime: &Runtime, name: &'static str) -> Option<ScopeGuard> {
    (!name.is_empty()).then(|| runtime.scope(name))
}
