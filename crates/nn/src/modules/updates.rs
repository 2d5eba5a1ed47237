//! Alternating updates: a block runs on one of several streams, a small map predicts them all before it and corrects them
//! behind it. With them, a low-rank branch beside attention and an input of its own for each block.

use super::{BlockInput, BlockInputs, Linear, Norm};
use crate::context::Forward;
use crate::param::{Builder, Init, ParamKind};
use crate::spec::{LinearSpec, UpdatesSpec};
use std::sync::Arc;
use tensor::{DType, Result, Tensor};

/// Names of the maps into and out of the streams; a model has at most one stream more.
const NUMBERS: [&str; UpdatesSpec::MOST_STREAMS as usize - 1] = ["0", "1", "2", "3", "4", "5", "6"];

/// The mean of squares is held above this before its root divides.
const SMALLEST: f64 = 1e-5;

/// What runs around one block.
#[derive(Clone, Debug)]
pub struct Updates {
    spec: Arc<UpdatesSpec>,
    output_scale: Tensor,
    correction: Tensor,
    prediction: Tensor,
    router: Linear,
    router_norm: Norm,
    left: Linear,
    right: Linear,
    low_rank_norm: Norm,
    input: BlockInput,
}

impl Updates {
    /// Updates of streams of width `h`, in the current module.
    ///
    /// # Errors
    /// If a weight is too large to count.
    pub fn new(b: &Builder<'_>, spec: &Arc<UpdatesSpec>, h: u64) -> Result<Self> {
        let (c, rank, norm) = (spec.streams, spec.rank, &spec.input.norm);
        let map = |name, from, to| Linear::new(b, &LinearSpec::new(name, false), from, to, Init::FanIn(from));
        let small = |name: &'static str, rows| {
            let _scope = b.runtime().scope(name);
            b.param("weight", &[rows, c], ParamKind::Matrix, Init::FanIn(c))
        };
        let altup = b.runtime().scope("altup");
        let output_scale = b.param("correct_output_scale", &[h], ParamKind::Vector, Init::Zeros)?;
        let (correction, prediction) = (small("correction_coefs", c)?, small("prediction_coefs", c * c)?);
        let router = map("modality_router", h, c)?;
        let router_norm = Norm::new(b, "router_norm", norm, &[h])?;
        drop(altup);
        let laurel = b.runtime().scope("laurel");
        let (left, right) = (map("linear_left", h, rank)?, map("linear_right", rank, h)?);
        let low_rank_norm = Norm::new(b, "post_laurel_norm", norm, &[h])?;
        drop(laurel);
        Ok(Self {
            spec: spec.clone(),
            output_scale,
            correction,
            prediction,
            router,
            router_norm,
            left,
            right,
            low_rank_norm,
            input: BlockInput::new(b, &spec.input, h)?,
        })
    }

    /// The stream that the block runs on: `c b s h -> b s h`.
    ///
    /// # Errors
    /// If shapes do not fit.
    pub fn active(&self, streams: &Tensor) -> Result<Tensor> {
        streams.select(0, self.spec.active)
    }

    /// What the streams will be behind the block: `c b s h -> c b s h`.
    ///
    /// # Errors
    /// If shapes do not fit.
    pub fn predict(&self, f: &Forward, streams: &Tensor) -> Result<Tensor> {
        let _scope = f.runtime.scope("altup");
        let (c, shape) = (self.spec.streams, streams.shape().to_vec());
        let modalities = self.modalities(f, &self.active(streams)?)?;
        let weights = modalities.linear(&self.small(f, &self.prediction)?, None)?;
        let weights = weights.view(&[shape[1], shape[2], c, c])?.permute(&[0, 1, 3, 2])?;
        let mixed = streams.permute(&[1, 2, 3, 0])?.matmul(&weights)?; // b s h c
        mixed.permute(&[3, 0, 1, 2])?.add(streams)?.contiguous()
    }

    /// The streams once the block has run on the active one, with the input of the block on all but the first.
    ///
    /// # Shapes
    /// `c b s h`, `b s h -> c b s h`
    ///
    /// # Errors
    /// If the pass has no inputs of blocks, or shapes do not fit.
    pub fn correct(&self, f: &Forward, predicted: &Tensor, activated: &Tensor) -> Result<Tensor> {
        let altup = f.runtime.scope("altup");
        let modalities = self.modalities(f, activated)?;
        let innovation = activated.sub(&self.active(predicted)?)?.unsqueeze(0)?;
        let weights = modalities.linear(&self.small(f, &self.correction)?, None)?.add_scalar(1.0)?;
        let weights = weights.permute(&[2, 0, 1])?.unsqueeze(-1)?; // c b s 1
        let corrected = innovation.mul(&weights)?.add(predicted)?;
        let mut first = self.active(&corrected)?;
        if self.spec.scaled {
            first = first.mul(&f.weight(&self.output_scale)?)?;
        }
        drop(altup);
        let added = self.input.added(f, &first)?;
        let others = corrected.narrow(0, 1, self.spec.streams - 1)?.add(&added)?;
        Tensor::cat(&[&corrected.narrow(0, 0, 1)?, &others], 0)
    }

    /// The input of attention with its low-rank branch: `b s h -> b s h`.
    ///
    /// # Errors
    /// If shapes do not fit.
    pub fn low_rank(&self, f: &Forward, x: &Tensor) -> Result<Tensor> {
        let _scope = f.runtime.scope("laurel");
        let branch = self.right.forward(f, &self.left.forward(f, x)?)?;
        x.add(&self.low_rank_norm.forward(f, &branch)?)
    }

    /// `b s h -> b s c`
    fn modalities(&self, f: &Forward, x: &Tensor) -> Result<Tensor> {
        let inner = self.router_norm.forward(f, x)?.mul_scalar(1.0 / x.size(-1) as f64)?;
        self.router.forward(f, &inner)?.to_dtype(DType::F32)?.tanh()?.to_dtype(x.dtype())
    }

    /// A map between streams, held within its bounds while training.
    fn small(&self, f: &Forward, weight: &Tensor) -> Result<Tensor> {
        let weight = f.weight(weight)?;
        match self.spec.clip.filter(|_| f.training) {
            Some(clip) => weight.clamp(-clip, clip),
            None => Ok(weight),
        }
    }
}

/// What makes the streams of a stack and the inputs of its blocks.
#[derive(Clone, Debug)]
pub struct Streams {
    inputs: BlockInputs,
    into: Vec<Linear>,
    out_of: Vec<Linear>,
}

impl Streams {
    /// Streams of width `h` for `layers` blocks, in the module of the stack.
    ///
    /// # Errors
    /// If a weight is too large to count.
    pub fn new(b: &Builder<'_>, spec: &Arc<UpdatesSpec>, h: u64, layers: u64) -> Result<Self> {
        let inputs = BlockInputs::new(b, &spec.input, h, layers)?;
        let map = |name| Linear::new(b, &LinearSpec::new(name, false), h, h, Init::FanIn(h));
        let list = |list: &'static str| -> Result<Vec<Linear>> {
            let _scope = b.runtime().scope(list);
            NUMBERS.iter().take(spec.streams as usize - 1).map(|name| map(name)).collect()
        };
        Ok(Self { inputs, into: list("altup_projections")?, out_of: list("altup_unembed_projections")? })
    }

    /// Inputs of all blocks.
    ///
    /// # Shapes
    /// tokens `b s`, `b s h -> b s l p`
    ///
    /// # Errors
    /// If the pass does not say which tokens there are.
    pub fn inputs(&self, f: &Forward, x: &Tensor) -> Result<Tensor> {
        self.inputs.all(f, x)
    }

    /// The streams at the first block: `b s h -> c b s h`.
    ///
    /// # Errors
    /// If shapes do not fit.
    pub fn fan_out(&self, f: &Forward, x: Tensor) -> Result<Tensor> {
        let target = magnitude(&x)?;
        let mut streams = Vec::with_capacity(self.into.len() + 1);
        for map in &self.into {
            let _scope = f.runtime.scope("altup_projections");
            streams.push(at_magnitude(&map.forward(f, &x)?, &target)?.unsqueeze(0)?);
        }
        streams.insert(0, x.unsqueeze(0)?);
        Tensor::cat(&streams.iter().collect::<Vec<_>>(), 0)
    }

    /// One stream of all behind the last block: `c b s h -> b s h`.
    ///
    /// # Errors
    /// If shapes do not fit.
    pub fn join(&self, f: &Forward, streams: &Tensor) -> Result<Tensor> {
        let first = streams.select(0, 0)?;
        let target = magnitude(&first)?;
        let mut all = vec![first.unsqueeze(0)?];
        for (i, map) in (1..).zip(&self.out_of) {
            let _scope = f.runtime.scope("altup_unembed_projections");
            all.push(at_magnitude(&map.forward(f, &streams.select(0, i)?)?, &target)?.unsqueeze(0)?);
        }
        Tensor::cat(&all.iter().collect::<Vec<_>>(), 0)?.mean(&[0], false)
    }
}

/// Root mean square of each position: `b s h -> b s 1`.
fn magnitude(x: &Tensor) -> Result<Tensor> {
    x.pow_scalar(2.0)?.mean(&[-1], true)?.sqrt()
}

/// The same direction with another magnitude.
fn at_magnitude(x: &Tensor, target: &Tensor) -> Result<Tensor> {
    let own = x.pow_scalar(2.0)?.mean(&[-1], true)?.clamp(SMALLEST, f64::INFINITY)?.sqrt()?;
    x.mul(target)?.div(&own)
}
