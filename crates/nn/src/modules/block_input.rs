//! Inputs of blocks beside the stream (Gemma 3n, Gemma 4): made of the tokens and of what the model makes of them.

use super::{Linear, Norm, hf};
use crate::context::Forward;
use crate::param::{Builder, Init, ParamKind};
use crate::spec::{InputSpec, LinearSpec};
use tensor::{Result, Tensor};

/// What one block does with its input.
#[derive(Clone, Debug)]
pub struct BlockInput {
    spec: InputSpec,
    gate: Linear,
    projection: Linear,
    norm: Norm,
}

impl BlockInput {
    /// Of a block on a stream of width `h`, in the current module.
    ///
    /// # Errors
    /// If a weight is too large to count.
    pub fn new(b: &Builder<'_>, spec: &InputSpec, h: u64) -> Result<Self> {
        let map = |name, from, to| Linear::new(b, &LinearSpec::new(name, false), from, to, Init::FanIn(from));
        Ok(Self {
            gate: map("per_layer_input_gate", h, spec.width)?,
            projection: map("per_layer_projection", spec.width, h)?,
            norm: Norm::new(b, "post_per_layer_input_norm", &spec.norm, &[h])?,
            spec: spec.clone(),
        })
    }

    /// What the input adds to a stream, whose gate it passes: `b s h -> b s h`
    ///
    /// # Errors
    /// If the pass has no inputs of blocks, or shapes do not fit.
    pub fn added(&self, f: &Forward, x: &Tensor) -> Result<Tensor> {
        let input = f.block_input.as_ref().ok_or(NO_INPUT)?;
        let gate = hf::activate(f, self.spec.act, self.gate.forward(f, x)?)?;
        let added = self.projection.forward(f, &gate.mul(input)?)?;
        self.norm.forward(f, &added)
    }
}

/// What makes the inputs of all blocks of a stack.
#[derive(Clone, Debug)]
pub struct BlockInputs {
    spec: InputSpec,
    layers: u64,
    table: Tensor,
    projection: Linear,
    norm: Norm,
}

impl BlockInputs {
    /// Of `layers` blocks on a stream of width `h`, in the module of the stack.
    ///
    /// # Errors
    /// If a weight is too large to count.
    pub fn new(b: &Builder<'_>, spec: &InputSpec, h: u64, layers: u64) -> Result<Self> {
        let wide = layers * spec.width;
        let table = {
            let _scope = b.runtime().scope("embed_tokens_per_layer");
            b.param("weight", &[spec.rows, wide], ParamKind::Embedding, Init::TruncatedNormal(0.02))?
        };
        let map = LinearSpec::new("per_layer_model_projection", false);
        Ok(Self {
            layers,
            table,
            projection: Linear::new(b, &map, h, wide, Init::FanIn(h))?,
            norm: Norm::new(b, "per_layer_projection_norm", &spec.norm, &[spec.width])?,
            spec: spec.clone(),
        })
    }

    /// Inputs of all blocks, from the tokens of the pass and the embedded stream.
    ///
    /// # Shapes
    /// tokens `b s`, `b s h -> b s l p`
    ///
    /// # Errors
    /// If the pass does not say which tokens there are.
    pub fn all(&self, f: &Forward, x: &Tensor) -> Result<Tensor> {
        let tokens = f.tokens.as_ref().ok_or(NO_INPUT)?;
        let p = self.spec.width;
        let shape = [x.size(0), x.size(1), self.layers, p];
        let scope = f.runtime.scope("embed_tokens_per_layer");
        let known = f.runtime.no_grad(|| {
            let end = f.runtime.full(&[], self.spec.rows as f64, tokens.dtype())?;
            tokens.masked_fill(&tokens.greater_equal(&end)?, 0.0)
        })?;
        let looked_up = self.table.embedding(&known)?.to_dtype(x.dtype())?;
        let looked_up = looked_up.mul_scalar((p as f64).sqrt())?.view(&shape)?;
        drop(scope);
        let projected = self.projection.forward(f, x)?.mul_scalar((x.size(-1) as f64).powf(-0.5))?;
        let projected = self.norm.forward(f, &projected.view(&shape)?)?;
        projected.add(&looked_up)?.mul_scalar(std::f64::consts::FRAC_1_SQRT_2)
    }
}

/// Inputs of blocks are made in a pass that knows its tokens.
const NO_INPUT: tensor::Error = tensor::Error::Backward("inputs of blocks without the tokens of the pass");
