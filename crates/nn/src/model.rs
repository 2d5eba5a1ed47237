//! A whole model: what it reads, its blocks, its head, and the stack it attends to if there is one.

use crate::context::Forward;
use crate::modules::{Embedding, Linear, Patches, Sequence, Stack};
use crate::output::Output;
use crate::param::{Builder, Init, Param, ParamKind};
use crate::spec::{LinearSpec, ModelSpec, SourceSpec, StackSpec, TowerSpec};
use std::rc::Rc;
use tensor::{DType, Result, Runtime, Tensor};

/// A model with its parameters.
pub struct Model {
    spec: Rc<ModelSpec>,
    encoder: Option<Encoder>,
    patches: Option<Box<Patches>>,
    /// `None` behind the first stage of a pipeline, and where patches are made of bytes.
    embed: Option<Embedding>,
    stack: Stack,
    project_out: Option<Linear>,
    pooler: Sequence,
    output: Output,
    params: Vec<Param>,
    buffers: Vec<(String, Tensor)>,
}

/// A stack that reads something of its own.
struct Encoder {
    spec: Rc<StackSpec>,
    embed: Embedding,
    stack: Stack,
}

/// A part that turns images or sounds into positions of the text, with its parameters.
///
/// It is no part of [`Model`]: a step on texts alone does not run it.
pub struct Tower {
    spec: Rc<TowerSpec>,
    encoder: Encoder,
    projector: Sequence,
    params: Vec<Param>,
}

impl Tower {
    /// Builds the part with parameters of `dtype`.
    ///
    /// # Errors
    /// If a size is too large to count.
    pub fn build(runtime: &Runtime, spec: &TowerSpec, dtype: DType) -> Result<Self> {
        let b = Builder::new(runtime, dtype);
        let encoder = Encoder::new(&b, &spec.stack, 0, None)?;
        let projector = Sequence::new(&b, &spec.projector)?;
        for (name, shape, kind) in &spec.counted {
            b.param(name, shape, *kind, Init::Zeros)?;
        }
        Ok(Self { spec: Rc::new(spec.clone()), encoder, projector, params: b.finish().0 })
    }

    /// What it was built from.
    pub fn spec(&self) -> &TowerSpec {
        &self.spec
    }

    /// Its parameters.
    pub fn params(&self) -> &[Param] {
        &self.params
    }

    /// The positions of the text that an input becomes.
    ///
    /// # Shapes
    /// `b n width -> b s h`
    ///
    /// # Errors
    /// If shapes do not fit.
    pub fn forward(&self, f: &Forward, input: &Tensor) -> Result<Tensor> {
        let x = self.encoder.forward(f, input)?;
        self.projector.forward(f, &x)
    }
}

impl Encoder {
    /// A stack under the names of `spec`, from the root; `table` holds its tokens where that is shared.
    fn new(b: &Builder<'_>, spec: &StackSpec, v: u64, table: Option<&Tensor>) -> Result<Self> {
        let _body = b.runtime().scope(spec.names.body);
        let h = spec.hidden_size;
        let embed = Embedding::new(b, &spec.embedding, &spec.names, (v, h), table)?;
        let stack = Stack::new(b, (&spec.layers, None, 0), h, &spec.names, spec.final_norm.as_ref())?;
        Ok(Self { spec: Rc::new(spec.clone()), embed, stack })
    }

    /// `b s`, or `b n width` -> `b s h`
    fn forward(&self, f: &Forward, input: &Tensor) -> Result<Tensor> {
        let f = &f.beside(positions(&self.spec.embedding.source, input));
        let _body = f.runtime.scope(self.spec.names.body);
        let (x, held) = self.embed.forward(f, input)?;
        let x = self.stack.forward(f, x)?;
        drop(held);
        f.drop_tables();
        Ok(x)
    }
}

/// Positions that a stack sees of an input: tokens `b s`, or numbers.
fn positions(source: &SourceSpec, input: &Tensor) -> u64 {
    match source {
        SourceSpec::Tokens => input.size(1),
        SourceSpec::Signal(signal) => signal.positions(),
    }
}

impl Model {
    /// Builds the model with parameters of `dtype`.
    ///
    /// # Errors
    /// If a size is too large to count.
    pub fn build(runtime: &Runtime, spec: &ModelSpec, dtype: DType) -> Result<Self> {
        Self::build_frozen(runtime, spec, dtype, spec.tuning.frozen_dtype.unwrap_or(dtype))
    }

    /// The same, parameters that are not trained in a dtype of their own.
    ///
    /// # Errors
    /// If a size is too large to count.
    pub fn build_frozen(runtime: &Runtime, spec: &ModelSpec, dtype: DType, frozen: DType) -> Result<Self> {
        let b = Builder::tuned(runtime, (dtype, frozen), &spec.tuning, spec.ranks);
        let (h, v) = (spec.hidden_size, spec.vocab_size);
        let width = spec.embedding.width.unwrap_or(h);

        let mut shared = None;
        if let Some(table) = &spec.embedding.shared {
            let _scope = runtime.scope(table.name);
            let std = Init::TruncatedNormal(0.02);
            let made = b.param("weight", &[v, width], ParamKind::Embedding, std)?;
            table.ties.iter().for_each(|name| b.tie(&made, name));
            shared = Some(made).filter(|_| table.used);
        }
        let encoder = spec.encoder.as_ref().map(|stack| Encoder::new(&b, stack, v, shared.as_ref())).transpose()?;
        let patches = spec
            .patches
            .as_ref()
            .map(|patches| Patches::new(&b, patches, spec.names.body, h, spec.layers.len()).map(Box::new));
        let patches = patches.transpose()?;

        let body = runtime.scope(spec.names.body);
        let embed = (spec.stage.first && patches.is_none())
            .then(|| Embedding::new(&b, &spec.embedding, &spec.names, (v, h), shared.as_ref()));
        let embed = embed.transpose()?;
        let (order, before) = (spec.order.as_deref(), spec.stage.before);
        let stack = Stack::new(&b, (&spec.layers, order, before), h, &spec.names, spec.final_norm.as_ref())?;
        let project_out = (width != h && spec.embedding.projection.is_none())
            .then(|| Linear::new(&b, &LinearSpec::new("project_out", false), h, width, Init::FanIn(h)))
            .transpose()?;
        for buffer in &spec.buffers {
            for _ in 0..buffer.count {
                b.buffer(buffer.name, &buffer.shape, buffer.dtype.unwrap_or(dtype))?;
            }
        }
        for one in &spec.unused {
            if one.frozen {
                let count = one.shape.iter().product::<u64>() as usize;
                b.frozen_with(one.name, &one.shape, one.kind, || vec![0.0; count])?;
            } else {
                b.param(one.name, &one.shape, one.kind, Init::TruncatedNormal(0.02))?;
            }
        }
        drop(body);

        let pooler = Sequence::new(&b, &spec.pooler)?;
        let shared_spec = Rc::new(spec.clone());
        let table = embed.as_ref().and_then(Embedding::table).or_else(|| patches.as_deref().map(Patches::table));
        let output = Output::new(&b, &shared_spec, table)?;
        let (params, buffers) = b.finish();
        let spec = shared_spec;
        Ok(Self { spec, encoder, patches, embed, stack, project_out, pooler, output, params, buffers })
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

    /// What blocks with attention to another stack read: the outputs of that stack. `None` if there is none.
    ///
    /// # Shapes
    /// tokens `b s` (integers), or numbers `b n width` -> `b s h`
    ///
    /// # Errors
    /// As [`Model::forward`].
    pub fn encode(&self, f: &Forward, input: &Tensor) -> Result<Option<Tensor>> {
        self.encoder.as_ref().map(|encoder| encoder.forward(f, input)).transpose()
    }

    /// Hidden states before the head.
    ///
    /// # Shapes
    /// tokens `b s`, or numbers `b n width`, where that is what the model reads -> `b s h`
    ///
    /// # Errors
    /// As [`Model::forward`].
    pub fn body(&self, f: &Forward, input: &Tensor) -> Result<Tensor> {
        if let Some(patches) = &self.patches {
            return patches.forward(f, input, &self.stack);
        }
        let body = f.runtime.scope(self.spec.names.body);
        let mut own = f.clone();
        if self.stack.reads_tokens() {
            own.tokens = Some(input.clone());
        }
        let f = &own;
        let (x, embedded) = match &self.embed {
            Some(embed) => embed.forward(f, input)?,
            None => (input.clone(), Vec::new()),
        };
        let mut x = self.stack.forward(f, x)?;
        if let Some(project) = &self.project_out {
            x = project.forward(f, &x)?;
        }
        drop((body, embedded));
        f.drop_tables();
        if !self.pooler.is_empty() {
            // Computed and used by no loss.
            self.pooler.forward(f, &x)?;
        }
        Ok(x)
    }

    /// What the head makes of hidden states.
    ///
    /// # Shapes
    /// `b s h -> b s v`; `b h -> b n` or `b s h -> b n` for classes
    ///
    /// # Errors
    /// If shapes do not fit.
    pub fn logits(&self, f: &Forward, hidden: &Tensor) -> Result<Tensor> {
        self.output.logits(f, hidden)
    }

    /// The token table, or the copy of it that is the head.
    pub fn table(&self) -> Option<&Tensor> {
        let own = self.embed.as_ref().and_then(Embedding::table);
        own.or_else(|| self.patches.as_deref().map(Patches::table)).or_else(|| self.output.weight())
    }

    /// What makes logits of hidden states.
    pub fn output(&self) -> &Output {
        &self.output
    }
}
