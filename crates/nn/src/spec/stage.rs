//! The blocks of a model that one stage of a pipeline holds.

use super::{BiasSource, BlockForm, KvSharing, LayerSpec, Mixer, ModelSpec, Task};
use std::ops::Range;
use std::sync::Arc;

/// Which blocks of a model are here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stage {
    /// Blocks of the model in front of them.
    pub before: usize,
    /// Whether tokens come in; otherwise the stream of the stage before does.
    pub first: bool,
    /// Whether norm, head and loss are here; otherwise the stream goes on.
    pub last: bool,
}

/// What a stage has beside its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// The embedding.
    pub first: bool,
    /// Norm, head and loss.
    pub last: bool,
}

impl Ends {
    /// Those of a stage of so many.
    pub const fn of(stage: usize, stages: usize) -> Self {
        Self { first: stage == 0, last: stage + 1 == stages }
    }
}

impl Stage {
    /// All blocks.
    pub const WHOLE: Self = Self { before: 0, first: true, last: true };
}

impl Default for Stage {
    fn default() -> Self {
        Self::WHOLE
    }
}

impl ModelSpec {
    /// The spec of a stage with these blocks, maybe none. A head that is the token table is a copy of it where that is in another
    /// stage.
    ///
    /// # Errors
    /// What cannot be cut, each in words.
    pub fn stage(&self, blocks: Range<usize>, ends: Ends) -> Result<Self, Vec<String>> {
        let whole = self.layers.len();
        let stage = Stage { before: blocks.start, first: ends.first, last: ends.last };
        if stage.first && stage.last {
            return Ok(self.clone());
        }
        let mut problems = Vec::new();
        let mut refuse = |bad: bool, what: &str| {
            if bad {
                problems.push(format!("{what} cannot be cut into stages"));
            }
        };
        let shares = |layer: &Arc<LayerSpec>| layer.attention().is_some_and(|a| a.sharing != KvSharing::Own);
        let biased = |layer: &Arc<LayerSpec>| {
            let relative = layer.attention().and_then(|attention| attention.relative);
            relative.is_some_and(|relative| relative.from != BiasSource::Own)
        };
        refuse(self.layers.iter().any(biased), "a stack whose blocks share position biases");
        refuse(self.encoder.is_some(), "an encoder with a decoder");
        refuse(self.patches.is_some(), "a model over patches of bytes");
        refuse(self.order.is_some(), "a stack whose blocks run repeatedly");
        refuse(!matches!(self.task, Task::NextToken | Task::OwnToken), "a model with a head of classes or none");
        refuse(self.layers.iter().any(shares), "a stack with keys and values of other blocks");
        refuse(
            self.layers.iter().any(|layer| matches!(layer.mixer, Mixer::Hybrid(_))),
            "a stack with a block that is used in several places",
        );
        let several =
            |layer: &Arc<LayerSpec>| matches!(layer.form, BlockForm::Mixed { .. } | BlockForm::Alternating { .. });
        refuse(self.layers.iter().any(several), "a stack of several streams");
        refuse(self.layers.iter().any(|layer| layer.input.is_some()), "a stack whose blocks have inputs of their own");
        refuse(
            self.embedding.width.is_some_and(|width| width != self.hidden_size),
            "a stack with a projected embedding",
        );
        refuse(self.embedding.shared.is_some(), "a stack with its token table outside");
        let Some(layers) = self.layers.get(blocks.clone()) else {
            problems.push(format!("blocks {} to {} of {whole}", blocks.start, blocks.end));
            return Err(problems);
        };
        if !problems.is_empty() {
            return Err(problems);
        }
        let mut part = Self { layers: layers.to_vec(), stage, ..self.clone() };
        for buffer in part.buffers.iter_mut().filter(|buffer| buffer.count == whole as u64) {
            buffer.count = layers.len() as u64;
        }
        if !stage.last {
            part.final_norm = None;
            part.pooler = Vec::new();
            part.head.absent = true;
            part.head.transform = Vec::new();
        }
        Ok(part)
    }
}
