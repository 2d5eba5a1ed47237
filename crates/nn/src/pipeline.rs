//! The step of one rank of a pipeline: passes of micro-batches through its stages, in the order it is given.
//!
//! Between stages go the stream and, backwards, its gradient. A stage that has sent its output on keeps only where its
//! history ends.

use crate::loss::Labels;
use crate::optim::Hyper;
use crate::param::{Param, ParamKind};
use crate::spec::ModelSpec;
use crate::step::{Recorded, StepOptions, StepTrace, example};
use crate::training::Training;
use crate::unroll;
use std::collections::HashMap;
use tensor::autograd::{History, Root};
use tensor::{Axis, Combine, Device, Group, Phase, Result, Role, Runtime, Tensor};

/// A pass of a micro-batch through one of the stages of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pass {
    /// Forward.
    Forward {
        /// Which of the rank's stages.
        chunk: usize,
        /// Which micro-batch.
        micro_batch: usize,
    },
    /// Backward, weight gradients included.
    Backward {
        /// Which of the rank's stages.
        chunk: usize,
        /// Which micro-batch.
        micro_batch: usize,
    },
}

/// When gradients in the dtype of their parameters are added to wider buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Accumulation {
    /// As soon as they are there.
    #[default]
    AtOnce,
    /// By the products that make them, in blocks; elsewhere at once.
    InProducts,
    /// Once the backward pass is over.
    Late,
}

/// What a stage keeps of a micro-batch until its backward pass.
struct Held {
    /// The stream that came in.
    input: Option<Tensor>,
    end: End,
    history: History,
}

enum End {
    Loss(Tensor),
    Sent(Root),
    /// Sent on as it came, by a stage that has nothing.
    PassedOn,
}

/// One rank of a pipeline in training.
pub struct PipelineRank {
    runtime: Runtime,
    stages: Vec<Training>,
    /// All ranks of the pipeline.
    ranks: Group,
    options: StepOptions,
    tokens: Tensor,
    labels: Tensor,
    late: bool,
    held: HashMap<(usize, usize), Held>,
}

impl PipelineRank {
    /// Builds the stages of a rank: `stages` in the order of the model, the first of them the nearest to the tokens.
    ///
    /// # Errors
    /// If a size is too large to count, or something is not made for parts of a model.
    pub fn new(runtime: &Runtime, stages: &[ModelSpec], ranks: u64, options: &StepOptions) -> Result<Self> {
        let training = options.training();
        let spec = stages.first().ok_or(tensor::Error::Backward("a rank of a pipeline without a stage"))?;
        let stages = stages.iter().map(|spec| Training::new(runtime, spec, &training)).collect::<Result<Vec<_>>>()?;
        let (tokens, labels) = example(runtime, spec, options.sequences(), options.seq_len)?;
        let ranks = Group { axis: Axis::Pp, size: ranks };
        let (runtime, options, held) = (runtime.clone(), *options, HashMap::new());
        Ok(Self { runtime, stages, ranks, options, tokens, labels, late: false, held })
    }

    /// The stages.
    pub fn stages(&self) -> &[Training] {
        &self.stages
    }

    /// Says when gradients are added to wider buffers.
    pub fn set_accumulation(&mut self, accumulation: Accumulation) {
        self.late = accumulation == Accumulation::Late;
        let blocks = |param: &&Param| matches!(param.kind, ParamKind::Matrix | ParamKind::Expert { .. });
        for param in self.stages.iter().flat_map(|training| training.model().params()).filter(blocks) {
            param.tensor.set_adds_to_buffer(accumulation == Accumulation::InProducts);
        }
    }

    /// What the first stage reads from now on, and what the last one is held against.
    pub fn set_batch(&mut self, tokens: Tensor, labels: Tensor) {
        (self.tokens, self.labels) = (tokens, labels);
    }

    /// Runs one pass, as part of optimizer step `step`; the loss of a forward pass through the last stage.
    ///
    /// # Errors
    /// If another rank is gone, or a backward pass has no forward pass before it.
    pub fn pass(&mut self, pass: Pass, step: u64) -> Result<Option<Tensor>> {
        match pass {
            Pass::Forward { chunk, micro_batch } => self.forward(chunk, micro_batch, step),
            Pass::Backward { chunk, micro_batch } => self.backward(chunk, micro_batch, step).map(|()| None),
        }
    }

    fn begin(&self, part: &str, (chunk, micro_batch): (usize, usize), step: u64, phase: Phase) {
        let chunk = if self.stages.len() > 1 { format!(" stage {chunk}") } else { String::new() };
        self.runtime.begin(&format!("{part}{step}.{}{chunk}", micro_batch + 1), phase);
    }

    fn forward(&mut self, chunk: usize, micro_batch: usize, step: u64) -> Result<Option<Tensor>> {
        self.begin("fwd", (chunk, micro_batch), step, Phase::Forward);
        let training = self.stages.get_mut(chunk).ok_or(NO_STAGE)?;
        let (spec, rt) = (training.model().spec().clone(), &self.runtime);
        let input = if spec.stage.first {
            None
        } else {
            let shape = stream_shape(&spec, &self.options);
            let stream = Tensor::recv(rt, self.ranks, -1, &shape, training.stream_dtype())?;
            Some(stream.with_role(Role::Communication).require_grad()?)
        };
        let labels =
            if self.options.profile.is_hf() { Labels::Tokens(&self.labels) } else { Labels::Targets(&self.labels) };
        let out = training.stage_forward(input.as_ref().unwrap_or(&self.tokens), labels)?;
        let (end, loss) = if spec.stage.last {
            (End::Loss(out.clone()), Some(out.detach()))
        } else {
            out.send(self.ranks, 1)?;
            let end = if spec.layers.is_empty() && !spec.stage.first { End::PassedOn } else { End::Sent(out.root()?) };
            (end, None)
        };
        drop(out);
        let history = rt.swap_history(History::default());
        self.held.insert((chunk, micro_batch), Held { input, end, history });
        Ok(loss)
    }

    fn backward(&mut self, chunk: usize, micro_batch: usize, step: u64) -> Result<()> {
        let rt = self.runtime.clone();
        self.begin("bwd", (chunk, micro_batch), step, Phase::Backward);
        let Held { input, end, history } = self.held.remove(&(chunk, micro_batch)).ok_or(NO_FORWARD)?;
        rt.swap_history(history);
        let training = self.stages.get_mut(chunk).ok_or(NO_STAGE)?;
        let (ranks, options) = (self.ranks, &self.options);
        let passed_on = matches!(end, End::PassedOn);
        let received = |training: &Training| {
            let shape = stream_shape(training.model().spec(), options);
            let gradient = Tensor::recv(&rt, ranks, 1, &shape, training.stream_dtype())?;
            Ok::<_, tensor::Error>(gradient.with_role(Role::Communication))
        };
        let run = |training: &mut Training| match end {
            End::Loss(loss) => training.stage_backward(loss, 1.0 / options.grad_accum_steps as f64),
            End::Sent(root) => root.backward(received(training)?),
            End::PassedOn => received(training)?.send(ranks, -1),
        };
        if self.late { training.accumulate_late(run) } else { run(training) }?;
        // What led to no gradient goes with the rest of its micro-batch.
        drop(rt.swap_history(History::default()));
        if let Some(input) = input.filter(|_| !passed_on) {
            let gradient =
                input.grad().ok_or(tensor::Error::Backward("no gradient reached the stream that came in"))?;
            gradient.send(self.ranks, -1)?;
        }
        Ok(())
    }

    /// Adds up what several ranks hold of the same parameters, and updates all stages.
    ///
    /// # Errors
    /// If another rank is gone.
    pub fn update(&mut self, lr: f64) -> Result<()> {
        self.add_up_tables()?;
        self.stages.iter_mut().try_for_each(|training| training.update(lr).map(drop))
    }

    /// A head that is the token table stands in another stage than the table: both have a copy, and its gradient is the sum,
    /// unless they are trained apart.
    ///
    /// # Errors
    /// If the other rank is gone.
    pub fn add_up_tables(&self) -> Result<()> {
        let both = Group { size: 2, ..self.ranks };
        for training in &self.stages {
            let spec = training.model().spec();
            let tied = spec.head.tied && spec.tuning.copied.is_empty();
            if self.ranks.is_alone() || !tied || spec.stage.first == spec.stage.last {
                continue;
            }
            let Some(table) = training.model().table() else { continue };
            self.runtime.begin("tied", Phase::Communication);
            if let Some(gradient) = table.grad() {
                table.set_grad(None);
                let sum = self.runtime.no_grad(|| gradient.all_reduce(both, Combine::Sum))?;
                table.set_grad(Some(sum));
            }
        }
        Ok(())
    }
}

/// What goes from stage to stage of a micro-batch: a rank's positions of the stream, `b s h`.
fn stream_shape(spec: &ModelSpec, options: &StepOptions) -> [u64; 3] {
    let positions = if spec.ranks.sp { options.seq_len / spec.ranks.tp } else { options.seq_len };
    [options.sequences(), positions, spec.hidden_size]
}

/// What one rank of a pipeline does in a step.
#[derive(Clone, Copy, Debug)]
pub struct Rank<'a> {
    /// Its stages, in the order of the model.
    pub stages: &'a [ModelSpec],
    /// All ranks of the pipeline.
    pub ranks: u64,
    /// How it trains.
    pub options: &'a StepOptions,
    /// Passes of a step.
    pub passes: &'a [Pass],
    /// When gradients are added to wider buffers.
    pub accumulation: Accumulation,
}

impl Rank<'_> {
    /// Its steps on the meta device, where it has a single stage as [`crate::step::trace`] traces them.
    ///
    /// # Errors
    /// As [`PipelineRank::new`] and [`PipelineRank::pass`].
    pub fn trace(&self) -> Result<StepTrace> {
        let short = |short: &ModelSpec| Rank { stages: std::slice::from_ref(short), ..*self }.record();
        let unrolled = match self.stages {
            [stage] => unroll::recorded(stage, self.options, short, None),
            _ => None,
        };
        unrolled.map_or_else(|| self.trace_of_all(), |(recorded, _)| Ok(recorded.finish(self.options)))
    }

    /// The same of stages that are traced with all their blocks.
    ///
    /// # Errors
    /// As [`Rank::trace`].
    pub fn trace_of_all(&self) -> Result<StepTrace> {
        Ok(self.record()?.finish(self.options))
    }

    fn record(&self) -> Result<Recorded> {
        let runtime = Runtime::new(Device::Meta);
        let mut rank = PipelineRank::new(&runtime, self.stages, self.ranks, self.options)?;
        rank.set_accumulation(self.accumulation);
        if self.options.warm {
            rank.stages.iter_mut().try_for_each(Training::prepare)?;
        }
        for step in 1..=self.options.steps {
            for &pass in self.passes {
                rank.pass(pass, step)?;
            }
            rank.update(Hyper::default().lr)?;
        }
        let models: Vec<_> = rank.stages.iter().map(Training::model).collect();
        Ok(Recorded::of(&runtime, &models, self.options))
    }
}

const NO_STAGE: tensor::Error = tensor::Error::Backward("a pass through a stage that is not here");
const NO_FORWARD: tensor::Error = tensor::Error::Backward("a backward pass of a micro-batch that was not seen");
