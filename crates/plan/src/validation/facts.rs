//! What the trace of one model says, in the terms that sources count in.

use nn::ParamKind;
use nn::Profile;
use nn::Recompute;
use nn::offload::Offload;
use nn::optim::{Implementation, Kind, OptimizerKind};
use nn::step::{Precision, StepOptions, Until};
use std::collections::BTreeMap;
use std::rc::Rc;
use tensor::{CastLists, Phase};

use super::architecture;
use super::conventions::{Pairs, Terms, Weights};
use super::row::Row;
use crate::flops::{StepFlops, is_attention_core};
use crate::model::{Model, parameters};
use crate::params::Counts;
use crate::work::Convention as Traced;

/// Forward FLOP of a token by part, and what else is counted.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The traced counts of a token, forward and backward: with the pairs of the mask, with all pairs.
    causal: f64,
    full: f64,
    /// Forward: weights, head included; the head; the weights of attention; experts.
    weights: f64,
    head: f64,
    attention: f64,
    experts: f64,
    /// Forward: scores and values over all pairs, and over those of the mask.
    all_pairs: f64,
    masked_pairs: f64,
    /// Width of a head over that of the stream divided by their number.
    head_width: f64,
    /// Parameters.
    counts: Counts,
    /// Those of norms and biases.
    vectors: u64,
}

/// Steps of models, each traced once.
#[derive(Debug, Default)]
pub struct Traces {
    facts: BTreeMap<(String, u64), Rc<Facts>>,
    counts: BTreeMap<String, Counts>,
}

/// A plain step, to count its FLOP.
fn options(seq_len: u64) -> StepOptions {
    StepOptions {
        batch: 1,
        seq_len,
        profile: Profile::Fused,
        precision: Precision::Bf16Master,
        optimizer: OptimizerKind { kind: Kind::AdamW, implementation: Implementation::Fused },
        recompute: Recompute::None,
        grad_accum_steps: 1,
        autocast: CastLists::Cuda,
        steps: 1,
        warm: false,
        dropout: false,
        objective: nn::Objective::DEFAULT,
        offload: Offload::default(),
        in_backward: false,
        until: Until::Backward,
    }
}

impl Traces {
    /// The facts of a config at a sequence length.
    ///
    /// # Errors
    /// What is wrong with the sizes.
    pub fn facts(&mut self, label: &str, config: &str, seq_len: u64) -> Result<Rc<Facts>, String> {
        let key = (config.to_owned(), seq_len);
        if let Some(facts) = self.facts.get(&key) {
            return Ok(Rc::clone(facts));
        }
        let facts = Rc::new(Facts::of(&architecture::model(label, config)?, seq_len)?);
        self.facts.insert(key, Rc::clone(&facts));
        Ok(facts)
    }

    /// The parameters of a config.
    ///
    /// # Errors
    /// What is wrong with the sizes.
    pub fn counts(&mut self, label: &str, config: &str) -> Result<Counts, String> {
        if let Some(counts) = self.counts.get(config) {
            return Ok(*counts);
        }
        let params = parameters(&architecture::model(label, config)?.spec).map_err(|problems| first(&problems))?;
        let counts = Counts::of(&params);
        self.counts.insert(config.to_owned(), counts);
        Ok(counts)
    }
}

/// The first problem, in one line.
pub(super) fn first(problems: &units::Diagnostics) -> String {
    problems.iter().next().map_or_else(String::new, |problem| problem.message.clone())
}

impl Facts {
    fn of(model: &Model, seq_len: u64) -> Result<Self, String> {
        let options = options(seq_len);
        let traced = model.trace(&options).map_err(|problems| first(&problems))?;
        let trace = &traced.trace;
        let flops = StepFlops::of(trace, &options);
        let per_token = |flop: u128| flop as f64 / seq_len.max(1) as f64;
        let forward = |wanted: &dyn Fn(&tensor::meter::OpEvent) -> bool| {
            trace.cost(|event| event.phase == Phase::Forward && wanted(event))
        };
        let core = forward(&is_attention_core);
        let all = forward(&|_| true);
        let names = &model.spec.names;
        let at_head = |path: &str| path.rsplit('.').next() == Some(names.head);
        let head = forward(&|event| at_head(trace.module(event.module)));
        let mixer =
            |path: &str| model.spec.layers.iter().any(|layer| path.split('.').any(|p| p == layer.names.attention));
        let attention = forward(&|event| !is_attention_core(event) && mixer(trace.module(event.module)));
        let counts = Counts::of(&traced.params);
        let expert = |p: &&nn::step::ParamInfo| matches!(p.kind, ParamKind::Expert { .. }) && p.shape.len() == 3;
        let experts: u64 = traced.params.iter().filter(expert).map(active).sum();
        let vectors = traced.params.iter().filter(|p| p.shape.len() < 2).map(|p| p.elements).sum();
        let heads = model.spec.layers.iter().find_map(|layer| layer.attention());
        let even = |heads: u64| model.spec.hidden_size as f64 / heads.max(1) as f64;
        Ok(Self {
            causal: flops.per_token().as_f64(),
            full: flops.per_token_full(trace).as_f64(),
            weights: per_token(all.matmul_dense - core.matmul_dense),
            head: per_token(head.matmul_dense),
            attention: per_token(attention.matmul_dense),
            experts: 2.0 * experts as f64,
            all_pairs: per_token(core.matmul_dense),
            masked_pairs: per_token(core.matmul),
            head_width: heads.map_or(1.0, |a| a.head_dim as f64 / even(a.heads)),
            counts,
            vectors,
        })
    }

    /// FLOP of a token by these terms.
    pub fn flop(&self, terms: Terms, row: &Row) -> f64 {
        match terms.traced() {
            Some(Traced::Full) => return self.full,
            Some(Traced::Causal) => return self.causal,
            _ => {}
        }
        let (passes, head) = (terms.passes.of(row), terms.head.of(row));
        let narrow = if terms.weights == Weights::NarrowHeads { 1.0 / self.head_width } else { 1.0 };
        let pairs = narrow
            * match terms.pairs {
                Pairs::Full => self.all_pairs,
                Pairs::Half => self.all_pairs / 2.0,
                Pairs::Masked => self.masked_pairs,
                Pairs::None => 0.0,
            };
        let body = self.weights - self.head;
        let weights = match terms.weights {
            Weights::Multiplied => passes * body + head * self.head,
            Weights::Blocks => passes * body,
            Weights::Stored => passes * 2.0 * self.counts.stored.as_f64(),
            Weights::StoredThreeDigits => passes * 2.0 * three_digits(self.on_devices(row)),
            Weights::TwoMatrixExperts => passes * (body - self.experts / 3.0) + head * self.head,
            Weights::NarrowHeads => passes * (body - self.attention * (1.0 - narrow)) + head * self.head,
        };
        weights + passes * pairs
    }

    /// Parameters as all devices of a replica hold them.
    fn on_devices(&self, row: &Row) -> f64 {
        let staged = row.layout.pp.is_some_and(|pp| pp > 1);
        let stored = if staged { self.counts.untied } else { self.counts.stored };
        let copies = row.layout.tp.unwrap_or(1).saturating_sub(1);
        stored.as_f64() + copies as f64 * self.vectors as f64
    }

    /// FLOP that a layer for multi-token prediction adds to a token, forward: `block` is the forward FLOP of a block.
    pub fn predictor(&self, block: f64, hidden: u64) -> f64 {
        block + 4.0 * (hidden as f64).powi(2) + self.head
    }

    /// Forward FLOP of a token with the pairs of the mask.
    pub const fn forward(&self) -> f64 {
        self.weights + self.masked_pairs
    }
}

fn active(p: &nn::step::ParamInfo) -> u64 {
    match p.kind {
        ParamKind::Expert { experts, top_k } => p.elements / experts.max(1) * top_k,
        _ => p.elements,
    }
}

/// Rounded to three significant digits.
fn three_digits(value: f64) -> f64 {
    if value <= 0.0 {
        return value;
    }
    let unit = 10f64.powi(value.log10().floor() as i32 - 2);
    (value / unit).round() * unit
}
