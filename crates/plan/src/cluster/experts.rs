//! What a rank does for models with experts and compressed attention (the shapes of `DeepSeek`), from the trace of its part.

use nn::pipeline::{Accumulation, Pass, Rank};
use nn::spec::Ends;
use nn::step::{Precision, StepOptions, parameters};
use nn::{ModelSpec, Profile, Ranks};
use tensor::Phase;

use super::machine::{Cost, Machine};
use super::shape::{Shape, Share};
use super::step::Passes;
use super::traced::items;
use crate::model::Model;

/// Sizes of experts and of compressed attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Experts {
    /// Experts of a block.
    pub count: u64,
    /// Experts of a token.
    pub top_k: u64,
    /// Inner width of one.
    pub width: u64,
    /// Inner width of what every token goes through beside them.
    pub shared: u64,
    /// Blocks without experts, first in the stack.
    pub dense: u64,
    /// Rank of compressed queries.
    pub q_rank: u64,
    /// Rank of compressed keys and values.
    pub kv_rank: u64,
    /// Width of a head without positions.
    pub nope: u64,
    /// Width of a head with positions.
    pub rope: u64,
    /// Width of the values of a head.
    pub value: u64,
}

/// A stage of the pipeline on one rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stage {
    /// Its passes.
    pub passes: Passes,
    /// Parameters that every replica holds.
    pub parameters: f64,
    /// Parameters of the experts that it holds.
    pub experts: f64,
}

/// The model as a configuration says it.
fn model(shape: &Shape, experts: &Experts) -> Option<ModelSpec> {
    let Shape { layers, width, heads, inner, vocab, seq, tied, .. } = shape;
    let Experts { count, top_k, shared, dense, q_rank, kv_rank, nope, rope, value, .. } = experts;
    let text = format!(
        r#"{{"model_type": "deepseek_v3", "hidden_size": {width}, "intermediate_size": {inner}, "num_hidden_layers": {layers},
        "first_k_dense_replace": {dense}, "num_attention_heads": {heads}, "num_key_value_heads": {heads},
        "n_routed_experts": {count}, "num_experts_per_tok": {top_k}, "moe_intermediate_size": {own},
        "n_shared_experts": {shared}, "moe_layer_freq": 1, "n_group": 8, "topk_group": 4, "topk_method": "noaux_tc",
        "scoring_func": "sigmoid", "norm_topk_prob": true, "routed_scaling_factor": 2.5, "q_lora_rank": {q_rank},
        "kv_lora_rank": {kv_rank}, "qk_nope_head_dim": {nope}, "qk_rope_head_dim": {rope}, "v_head_dim": {value},
        "vocab_size": {vocab}, "rms_norm_eps": 1e-6, "rope_theta": 10000, "max_position_embeddings": {seq},
        "hidden_act": "silu", "tie_word_embeddings": {tied}}}"#,
        own = experts.width,
        shared = shared / experts.width,
    );
    Some(Model::from_text("row", "row", text.as_bytes(), &[], None).ok()?.spec)
}

/// Parameters of a spec: those outside of experts, those in them.
fn counted(spec: &ModelSpec) -> Option<(f64, f64)> {
    let infos = parameters(spec).ok()?;
    let sum = |inside: bool| -> f64 {
        let all = infos.iter().filter(|info| info.name.contains(".experts.") == inside);
        all.map(|info| info.elements as f64).sum()
    };
    Some((sum(false), sum(true)))
}

/// Parameters of the whole model: all, and those that a token goes through.
pub fn totals(shape: &Shape, experts: &Experts) -> Option<(f64, f64)> {
    let (outside, inside) = counted(&model(shape, experts)?)?;
    Some((outside + inside, outside + inside * experts.top_k as f64 / experts.count as f64))
}

/// The stages of a pipeline, of `blocks` each, as the rank of a layout has them.
///
/// Nothing where the layout cannot divide the model.
pub fn stages(
    shape: &Shape,
    experts: &Experts,
    share: &Share,
    ep: u64,
    blocks: &[u64],
    machine: &Machine,
) -> Option<Vec<Stage>> {
    let ranks = Ranks { tp: share.tp, sp: share.sp, ep, ..Ranks::ALONE };
    let spec = model(shape, experts)?.share(ranks).ok()?;
    let options = StepOptions {
        batch: share.micro_batch,
        ..StepOptions::usual(shape.seq / share.cp, Profile::Fused, Precision::Bf16MasterFp32Grads)
    };
    let passes = [Pass::Forward { chunk: 0, micro_batch: 0 }, Pass::Backward { chunk: 0, micro_batch: 0 }];
    let mut first = 0;
    blocks
        .iter()
        .enumerate()
        .map(|(i, count)| {
            let range = first..first + *count as usize;
            first = range.end;
            let stage = spec.stage(range, Ends::of(i, blocks.len())).ok()?;
            let rank = Rank {
                stages: std::slice::from_ref(&stage),
                ranks: blocks.len() as u64,
                options: &options,
                passes: &passes,
                accumulation: Accumulation::InProducts,
            };
            let trace = rank.trace().ok()?;
            let cost = |wanted: &[Phase]| {
                machine.cost(&items(trace.trace.ops.iter().filter(|event| wanted.contains(&event.phase))))
            };
            let (parameters, experts) = counted(&stage)?;
            let passes = Passes {
                forward: cost(&[Phase::Forward]),
                backward: cost(&[Phase::Backward, Phase::Recompute, Phase::Communication]),
                weights: Cost::default(),
            };
            Some(Stage { passes, parameters, experts })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_those_of_the_model() {
        // DeepSeek-V3: 671.03 G, of which a token goes through 37.55 G, with both tables of the vocabulary.
        let shape = Shape {
            layers: 61,
            width: 7168,
            heads: 128,
            kv_heads: 128,
            head: 128,
            inner: 18432,
            llama: true,
            vocab: 129_280,
            tied: false,
            seq: 4096,
        };
        let experts = Experts {
            count: 256,
            top_k: 8,
            width: 2048,
            shared: 2048,
            dense: 3,
            q_rank: 1536,
            kv_rank: 512,
            nope: 128,
            rope: 64,
            value: 128,
        };
        let (all, active) = totals(&shape, &experts).unwrap();
        assert!((all / 671.03e9 - 1.0).abs() < 1e-4 && (active / 37.55e9 - 1.0).abs() < 1e-3, "{all} {active}");
    }
}
