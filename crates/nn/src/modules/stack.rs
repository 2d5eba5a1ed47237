//! Blocks one after another.

use super::hybrid::Sharing;
use super::{Block, BlockInputs, HyperHead, Norm, Streams, hf, relative, rotary};
use crate::context::Forward;
use crate::param::Builder;
use crate::spec::{BiasSource, BlockForm, FeedForwardSpec, KvSharing, LayerSpec, Mixer, ModelNames, NormSpec};
use std::sync::Arc;
use tensor::{Result, Tensor, checkpoint_keeping};

/// The blocks of a stack, and the norm behind them.
#[derive(Clone, Debug)]
pub struct Stack {
    specs: Vec<Arc<LayerSpec>>,
    blocks: Vec<Block>,
    order: Vec<usize>,
    list: &'static str,
    /// Blocks of the model in front of these.
    before: usize,
    final_norm: Option<Norm>,
    streams: Option<Streams>,
    hyper: Option<HyperHead>,
    inputs: Option<BlockInputs>,
    /// Position biases of all blocks, where their table lies beside them.
    biases: Option<Tensor>,
}

impl Stack {
    /// Blocks on a stream of width `h`, in the current module; `order` says which of them run where some run repeatedly.
    ///
    /// # Errors
    /// If a size is too large to count.
    pub fn new(
        b: &Builder<'_>,
        (layers, order, before): (&[Arc<LayerSpec>], Option<&[usize]>, usize),
        h: u64,
        names: &ModelNames,
        final_norm: Option<&NormSpec>,
    ) -> Result<Self> {
        let count = order.map_or(layers.len(), <[usize]>::len) as u64;
        let mut blocks = Vec::with_capacity(layers.len());
        let sharing = Sharing::default();
        for (i, layer) in layers.iter().enumerate() {
            let _list = b.runtime().scope(names.layers);
            let _scope = b.runtime().scope((before + i).to_string());
            blocks.push(Block::new(b, layer, h, count, &sharing)?);
        }
        let final_norm = final_norm.map(|norm| Norm::new(b, names.norm, norm, &[h])).transpose()?;
        let order = order.map_or_else(|| (0..layers.len()).collect(), <[usize]>::to_vec);
        let streams = match layers.first().map(|layer| &layer.form) {
            Some(BlockForm::Alternating { updates, .. }) => Some(Streams::new(b, updates, h, layers.len() as u64)?),
            _ => None,
        };
        let hyper = match layers.first().map(|layer| &layer.form) {
            Some(BlockForm::Mixed { hyper }) => Some(HyperHead::new(b, hyper, h)?),
            _ => None,
        };
        let input = layers.first().and_then(|layer| layer.input.as_ref());
        let inputs = input.map(|input| BlockInputs::new(b, input, h, layers.len() as u64)).transpose()?;
        let first = layers.first().and_then(|layer| layer.attention());
        let beside = first.and_then(|one| Some((one.relative.filter(|r| r.from == BiasSource::Beside)?, one.heads)));
        let biases = beside.map(|(relative, heads)| {
            let around = names.layers.rsplit_once('.').map(|(around, _)| b.runtime().scope(around));
            let table = relative::table(b, relative, heads);
            drop(around);
            table
        });
        let biases = biases.transpose()?;
        Ok(Self {
            specs: layers.to_vec(),
            blocks,
            order,
            list: names.layers,
            before,
            final_norm,
            streams,
            hyper,
            inputs,
            biases,
        })
    }

    /// Whether it reads the tokens beside the stream: its pass then has them as [`Forward::tokens`].
    pub fn reads_tokens(&self) -> bool {
        let by_table = |layer: &Arc<LayerSpec>| match &layer.feed_forward {
            FeedForwardSpec::Moe(moe) => moe.router.table.is_some(),
            _ => false,
        };
        self.streams.is_some() || self.inputs.is_some() || self.specs.iter().any(by_table)
    }

    /// The stream behind the last norm.
    ///
    /// # Shapes
    /// `b s h -> b s h`
    ///
    /// # Errors
    /// If shapes do not fit.
    pub fn forward(&self, f: &Forward, x: Tensor) -> Result<Tensor> {
        self.forward_between(f, x, &|_, x| Ok(x))
    }

    /// The same, where `between` makes of the stream what the block of this number reads; it is not run again in backward.
    ///
    /// # Errors
    /// As [`Stack::forward`], and those of `between`.
    pub fn forward_between(
        &self,
        f: &Forward,
        mut x: Tensor,
        between: &dyn Fn(usize, Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        // Some blocks read the embedded tokens beside the stream.
        let mut own = f.clone();
        if self.specs.iter().any(|layer| matches!(layer.mixer, Mixer::Hybrid(_))) {
            own.embedded = Some(x.copy()?);
        }
        let f = &own;
        if f.profile.is_hf() {
            hf::prepare(f, &self.specs, x.dtype())?;
        } else {
            rotary::prepare(f, &self.specs, f.activation_dtype(&x))?;
        }
        let mut inputs = self.inputs.as_ref().map(|inputs| inputs.all(f, &x)).transpose()?;
        if let Some(streams) = &self.streams {
            inputs = Some(streams.inputs(f, &x)?);
            x = streams.fan_out(f, x)?;
        }
        if let Some(spec) = self.specs.first().and_then(|layer| layer.attention()) {
            relative::make(f, spec, self.biases.as_ref(), x.size(1))?;
        }
        for (i, block) in self.blocks.iter().enumerate() {
            let _list = f.runtime.scope(self.list);
            let _scope = f.runtime.scope((self.before + i).to_string());
            block.prepare(f, &x)?;
        }
        if let Some(hyper) = &self.hyper {
            x = hyper.fan_out(&x)?;
        }
        // Attention weights of the block before, where the reference's loop holds them.
        let mut weights = None;
        for &i in &self.order {
            x = between(i, x)?;
            let block = &self.blocks[i];
            let mut own = f.clone();
            if let Some(inputs) = &inputs {
                own.block_input = Some(inputs.select(2, i as u64)?);
            }
            let f = &own;
            let sharing = block.spec().attention().map_or(KvSharing::Own, |attention| attention.sharing);
            // What other blocks read is no intermediate value: a block that gives keys and values is not run again.
            let keep = f.recompute.whole_blocks().filter(|_| !matches!(sharing, KvSharing::Gives(_)));
            let _list = f.runtime.scope(self.list);
            let _scope = f.runtime.scope((self.before + i).to_string());
            (x, weights) = if let Some(keep) = keep {
                let (block, forward) = (block.clone(), f.held(block.spec().attention()));
                let taken = if let KvSharing::Takes(_) = sharing { Some(f.taken(sharing)?) } else { None };
                let mut inputs: Vec<&Tensor> = std::iter::once(&x).chain(f.read_by_blocks()).collect();
                let read = inputs.len();
                inputs.extend(taken.iter().flat_map(|(k, v)| [k, v]));
                let region = move |t: &[Tensor]| {
                    let mut forward = forward.clone();
                    forward.replace_read_by_blocks(&t[1..read]);
                    if let (KvSharing::Takes(number), [k, v]) = (sharing, &t[read..]) {
                        forward = forward.held(block.spec().attention());
                        forward.give(KvSharing::Gives(number), k, v);
                    }
                    let (out, weights) = block.forward(&forward, t[0].clone())?;
                    Ok(std::iter::once(out).chain(weights).collect())
                };
                let mut outputs = checkpoint_keeping(&inputs, keep, region)?;
                (outputs.remove(0), outputs.pop())
            } else {
                block.forward(f, x)?
            };
        }
        if let Some(streams) = &self.streams {
            x = streams.join(f, &x)?;
        }
        if let Some(hyper) = &self.hyper {
            x = hyper.join(f, &x)?;
        }
        if let Some(compute) = f.compute {
            // The stream may be wider than what is computed in.
            x = x.to_dtype(compute)?;
        }
        if let Some(norm) = &self.final_norm {
            x = norm.forward(f, &x)?;
        }
        drop(weights);
        Ok(x)
    }
}
