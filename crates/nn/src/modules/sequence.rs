//! A few modules one after another: heads, poolers, projectors.

use super::{AttentionPool, Conv, Norm, hf};
use crate::context::Forward;
use crate::param::{Builder, Init, ParamKind};
use crate::spec::{Activation, MapSpec, Piece};
use tensor::{Result, Tensor};

/// Modules that run one after another.
#[derive(Clone, Debug, Default)]
pub struct Sequence(Vec<Module>);

#[derive(Clone, Debug)]
enum Module {
    Map(Map),
    Norm(Norm),
    Activation(Activation),
    First,
    Last,
    Mean,
    FirstAndMean(u64),
    WithoutFirst,
    Group(u64),
    Pool(u64),
    Residual(Sequence),
    SideBySide(u64),
    Beside(Sequence),
    Conv(Conv),
    ChannelNorm(Norm),
    WithoutLast,
    AttentionPool(Box<AttentionPool>),
}

/// A linear map whose weight may be stored as a kernel.
#[derive(Clone, Debug)]
struct Map {
    name: &'static str,
    weight: Tensor,
    bias: Option<Tensor>,
    sizes: [u64; 2],
    kernel: bool,
}

impl Map {
    fn new(b: &Builder<'_>, spec: &MapSpec) -> Result<Self> {
        let _scope = b.runtime().scope(spec.map.name);
        let mut shape = vec![spec.output];
        if spec.kernel.is_empty() {
            shape.push(spec.input);
        } else {
            shape.extend(&spec.kernel);
        }
        let weight = b.param("weight", &shape, spec.kind, Init::FanIn(spec.input))?;
        let kind = if spec.kind == ParamKind::Head { ParamKind::Head } else { ParamKind::Vector };
        let bias = spec.map.bias.then(|| b.param("bias", &[spec.output], kind, Init::Zeros)).transpose()?;
        let kernel = !spec.kernel.is_empty();
        Ok(Self { name: spec.map.name, weight, bias, sizes: [spec.output, spec.input], kernel })
    }

    fn forward(&self, f: &Forward, x: &Tensor) -> Result<Tensor> {
        let _scope = f.runtime.scope(self.name);
        let weight = f.weight(&self.weight)?;
        let weight = if self.kernel { weight.view(&self.sizes)? } else { weight };
        let bias = self.bias.as_ref().map(|b| f.weight(b)).transpose()?;
        x.linear(&weight, bias.as_ref())
    }
}

impl Sequence {
    /// The modules of `pieces`, in the current module.
    ///
    /// # Errors
    /// If a weight is too large to count.
    pub fn new(b: &Builder<'_>, pieces: &[Piece]) -> Result<Self> {
        let module = |piece: &Piece| {
            Ok(match piece {
                Piece::Linear(map) => Module::Map(Map::new(b, map)?),
                Piece::Norm(norm, width) => Module::Norm(Norm::named(b, norm, *width)?),
                Piece::Activation(act) => Module::Activation(*act),
                Piece::First => Module::First,
                Piece::Last => Module::Last,
                Piece::Mean => Module::Mean,
                Piece::FirstAndMean(skip) => Module::FirstAndMean(*skip),
                Piece::WithoutFirst => Module::WithoutFirst,
                Piece::Group(n) => Module::Group(*n),
                Piece::Pool(n) => Module::Pool(*n),
                Piece::Residual(inner) => Module::Residual(Self::new(b, inner)?),
                Piece::SideBySide(n) => Module::SideBySide(*n),
                Piece::Beside(inner) => Module::Beside(Self::new(b, inner)?),
                Piece::Conv(conv) => Module::Conv(Conv::new(b, conv)?),
                Piece::ChannelNorm(norm, width) => Module::ChannelNorm(Norm::named(b, norm, *width)?),
                Piece::WithoutLast => Module::WithoutLast,
                Piece::AttentionPool(pool) => Module::AttentionPool(Box::new(AttentionPool::new(b, pool)?)),
            })
        };
        pieces.iter().map(module).collect::<Result<_>>().map(Self)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// `b s h -> ` what the pieces make of it.
    ///
    /// # Errors
    /// If shapes do not fit.
    pub fn forward(&self, f: &Forward, x: &Tensor) -> Result<Tensor> {
        let mut x = x.clone();
        for module in &self.0 {
            x = match module {
                Module::Map(map) => map.forward(f, &x)?,
                Module::Norm(norm) => norm.forward(f, &x)?,
                Module::Activation(act) => hf::activate(f, *act, x)?,
                Module::First => x.select(1, 0)?,
                Module::Last => x.select(1, x.size(1).saturating_sub(1))?,
                Module::Mean => x.mean(&[1], false)?,
                Module::FirstAndMean(skip) => {
                    let rest = x.narrow(1, *skip, x.size(1).saturating_sub(*skip))?.mean(&[1], false)?;
                    Tensor::cat(&[&x.select(1, 0)?, &rest], -1)?
                }
                Module::WithoutFirst => x.narrow(1, 1, x.size(1).saturating_sub(1))?,
                Module::Group(n) => x.reshape(&[x.size(0), x.size(1) / n, n * x.size(2)])?,
                Module::Pool(n) => x.reshape(&[x.size(0), x.size(1) / n, *n, x.size(2)])?.mean(&[2], false)?,
                Module::Residual(inner) => x.add(&inner.forward(f, &x)?)?,
                Module::SideBySide(n) => Tensor::cat(&vec![&x; *n as usize], -1)?,
                Module::Beside(inner) => {
                    inner.forward(f, &x)?;
                    x
                }
                Module::Conv(conv) => conv.forward(f, &x)?,
                Module::ChannelNorm(norm) => norm.over_positions(f, &x)?,
                Module::WithoutLast => x.narrow(1, 0, x.size(1).saturating_sub(1))?,
                Module::AttentionPool(pool) => pool.forward(f, &x)?,
            };
        }
        Ok(x)
    }
}
