//! A whole decoder-only language model.

use crate::context::Forward;
use crate::modules::{Block, Linear, Norm, hf, rotary};
use crate::param::{Builder, Init, Param, ParamKind};
use crate::spec::{AttentionSteps, LinearSpec, ModelSpec, PositionTable};
use std::rc::Rc;
use tensor::{DType, Result, Runtime, Tensor, checkpoint_keeping};

/// A model with its parameters.
pub struct Model {
    spec: Rc<ModelSpec>,
    embed: Tensor,
    positions: Option<Tensor>,
    project_in: Option<Linear>,
    embed_norm: Option<Norm>,
    blocks: Vec<Block>,
    final_norm: Option<Norm>,
    project_out: Option<Linear>,
    head: Option<Tensor>,
    head_bias: Option<Tensor>,
    params: Vec<Param>,
    buffers: Vec<(String, Tensor)>,
}

impl Model {
    /// Builds the model with parameters of `dtype`.
    ///
    /// # Errors
    /// If a size is too large to count.
    pub fn build(runtime: &Runtime, spec: &ModelSpec, dtype: DType) -> Result<Self> {
        let b = Builder::new(runtime, dtype);
        let (h, v) = (spec.hidden_size, spec.vocab_size);
        let width = spec.embedding.width.unwrap_or(h);
        let layers = spec.layers.len() as u64;
        let std = Init::TruncatedNormal(0.02);

        let body = runtime.scope(spec.names.body);
        let embed = {
            let _scope = runtime.scope(spec.names.embed);
            b.param("weight", &[v, width], ParamKind::Embedding, std)?
        };
        let positions = match &spec.embedding.positions {
            None => None,
            Some(p) => {
                let _scope = runtime.scope(p.name);
                let shape = [p.count + p.offset, h];
                Some(if p.trained {
                    b.param("weight", &shape, ParamKind::Embedding, std)?
                } else {
                    b.buffer_with("weights", &shape, dtype, || sinusoids(shape[0], h))?
                })
            }
        };
        let project = |name, from, to| -> Result<Option<Linear>> {
            (width != h)
                .then(|| Linear::new(&b, &LinearSpec::new(name, false), from, to, Init::FanIn(from)))
                .transpose()
        };
        let project_in = project("project_in", width, h)?;
        let embed_norm = match &spec.embedding.norm {
            None => None,
            Some(norm) => Some(Norm::new(&b, spec.names.embed_norm, norm, &[h])?),
        };
        let mut blocks = Vec::with_capacity(spec.layers.len());
        for (i, layer) in spec.layers.iter().enumerate() {
            let _list = runtime.scope(spec.names.layers);
            let _scope = runtime.scope(i.to_string());
            blocks.push(Block::new(&b, layer, h, layers)?);
        }
        let final_norm = spec.final_norm.as_ref().map(|norm| Norm::new(&b, spec.names.norm, norm, &[h])).transpose()?;
        let project_out = project("project_out", h, width)?;
        if let (Some(layer), Some(count)) = (spec.layers.first(), spec.max_positions)
            && let Some(attention) = layer.attention()
            && let (AttentionSteps::GptJ, Some(rotary)) = (attention.steps, &attention.rotary)
        {
            let _scope = runtime.scope("rotary_emb");
            b.buffer("embed_positions", &[count, rotary.dim], dtype)?;
        }
        for buffer in &spec.buffers {
            for _ in 0..buffer.count {
                b.buffer(buffer.name, &buffer.shape, buffer.dtype.unwrap_or(dtype))?;
            }
        }
        drop(body);

        let _scope = runtime.scope(spec.names.head);
        let head = if spec.head.tied {
            b.tie(&embed, &format!("{}.weight", spec.names.head));
            None
        } else {
            Some(b.param("weight", &[v, width], ParamKind::Head, Init::FanIn(h))?)
        };
        let head_bias = spec.head.bias.then(|| b.param("bias", &[v], ParamKind::Head, Init::Zeros)).transpose()?;
        let (params, buffers) = b.finish();
        Ok(Self {
            spec: Rc::new(spec.clone()),
            embed,
            positions,
            project_in,
            embed_norm,
            blocks,
            final_norm,
            project_out,
            head,
            head_bias,
            params,
            buffers,
        })
    }

    /// What it was built from.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// Its parameters, each tensor once.
    pub fn params(&self) -> &[Param] {
        &self.params
    }

    /// Its buffers.
    pub fn buffers(&self) -> &[(String, Tensor)] {
        &self.buffers
    }

    /// Logits of every position.
    ///
    /// # Shapes
    /// tokens `b s` (integers) -> `b s v`
    ///
    /// # Errors
    /// [`tensor::Error::Argument`] if the sequence is longer than the learned positions.
    pub fn forward(&self, f: &Forward, tokens: &Tensor) -> Result<Tensor> {
        let hidden = self.body(f, tokens)?;
        self.logits(f, &hidden)
    }

    /// Hidden states before the head.
    ///
    /// # Shapes
    /// `b s -> b s h`
    pub fn body(&self, f: &Forward, tokens: &Tensor) -> Result<Tensor> {
        let body = f.runtime.scope(self.spec.names.body);
        let (mut x, embedded) = self.embed(f, tokens)?;
        if f.profile.is_hf() {
            hf::prepare(f, &self.spec.layers, x.dtype())?;
        } else {
            rotary::prepare(f, &self.spec.layers, f.activation_dtype(&x))?;
        }
        // Attention weights of the block before, where the reference's loop holds them.
        let mut weights = None;
        for (i, block) in self.blocks.iter().enumerate() {
            let _list = f.runtime.scope(self.spec.names.layers);
            let _scope = f.runtime.scope(i.to_string());
            (x, weights) = if let Some(keep) = f.recompute.whole_blocks() {
                let (block, forward) = (block.clone(), f.held(block.spec().attention()));
                let region = move |t: &[Tensor]| {
                    let (out, weights) = block.forward(&forward, t[0].clone())?;
                    Ok(std::iter::once(out).chain(weights).collect())
                };
                let mut outputs = checkpoint_keeping(&[&x], keep, region)?;
                (outputs.remove(0), outputs.pop())
            } else {
                block.forward(f, x)?
            };
        }
        if let Some(norm) = &self.final_norm {
            x = norm.forward(f, &x)?;
        }
        if let Some(project) = &self.project_out {
            x = project.forward(f, &x)?;
        }
        drop((body, embedded, weights));
        f.drop_tables();
        Ok(x)
    }

    /// The embedded tokens, and what the reference names beside them to the end of the body.
    fn embed(&self, f: &Forward, tokens: &Tensor) -> Result<(Tensor, Vec<Tensor>)> {
        let spec = &self.spec.embedding;
        let mut held = Vec::new();
        let mut x = {
            let _scope = f.runtime.scope(self.spec.names.embed);
            self.embed.embedding(tokens)?
        };
        if let Some(compute) = f.compute {
            x = x.to_dtype(compute)?;
        }
        if let Some(scale) = spec.scale {
            x = x.mul_scalar(scale)?;
        }
        if let Some(project) = &self.project_in {
            x = project.forward(f, &x)?;
        }
        if f.profile.is_hf() {
            held.push(x.clone());
        }
        if let (Some(table), Some(p)) = (&self.positions, &spec.positions) {
            let s = f.start() + tokens.size(1);
            if s > p.count {
                return Err(tensor::Error::Argument {
                    op: "embedding",
                    what: format!("seq_len {s} is longer than the {} learned positions of this model", p.count),
                });
            }
            let scope = f.runtime.scope(p.name);
            let index = f.runtime.no_grad(|| position_index(f, p, tokens))?;
            let mut added = table.embedding(&index)?;
            if let Some(compute) = f.compute {
                added = added.to_dtype(compute)?;
            }
            drop(scope);
            x = x.add(&added)?;
            if f.profile.is_hf() {
                held.push(added);
            }
        }
        if let Some(norm) = &self.embed_norm {
            x = norm.forward(f, &x)?;
        }
        if f.training && spec.dropout > 0.0 {
            x = if f.profile.is_hf() { x.dropout_composed(spec.dropout)? } else { x.dropout(spec.dropout)? };
        }
        Ok((x, held))
    }

    /// The head: `b s h -> b s v`
    pub fn logits(&self, f: &Forward, hidden: &Tensor) -> Result<Tensor> {
        let head = &self.spec.head;
        let scaled = head.input_scale.map(|scale| hidden.mul_scalar(scale)).transpose()?;
        let hidden = scaled.as_ref().unwrap_or(hidden);
        let mut logits = {
            let _scope = f.runtime.scope(self.spec.names.head);
            let weight = f.weight(self.head.as_ref().unwrap_or(&self.embed))?;
            let bias = self.head_bias.as_ref().map(|b| f.weight(b)).transpose()?;
            hidden.linear(&weight, bias.as_ref())?
        };
        if let Some(scale) = head.scale {
            logits = logits.mul_scalar(scale)?;
        }
        if let Some(cap) = head.softcap {
            logits = logits.div_scalar(cap)?;
            logits = logits.tanh()?;
            logits = logits.mul_scalar(cap)?;
        }
        Ok(logits)
    }
}

/// Sines, then cosines of `rows` positions, row-major: `rows h`.
///
/// Source: tensor2tensor's form of Vaswani et al. 2017, the last frequency being exactly 1/10000.
fn sinusoids(rows: u64, h: u64) -> Vec<f64> {
    let half = h / 2;
    let step = 10_000f64.ln() / (half as f64 - 1.0).max(1.0);
    let angle = |row: u64, i: u64| row as f64 * (-step * i as f64).exp();
    let row = |row: u64| {
        let sines = (0..half).map(move |i| angle(row, i).sin());
        let cosines = (0..half).map(move |i| angle(row, i).cos());
        sines.chain(cosines).chain((2 * half..h).map(|_| 0.0))
    };
    (0..rows).flat_map(row).collect()
}

/// Positions of the tokens: `1 s`, or `b s` where the reference in question makes them from a mask of the batch.
fn position_index(f: &Forward, p: &PositionTable, tokens: &Tensor) -> Result<Tensor> {
    let (b, s) = (tokens.size(0), tokens.size(1));
    let one = f.runtime.arange(s, (f.start() + p.offset) as f64, 1.0, DType::I64)?.unsqueeze(0)?;
    if p.per_sequence && f.profile.is_hf() { one.expand(&[b, s])?.contiguous() } else { Ok(one) }
}
