//! What engines hold beside the tensors of the model, by their own code.

use nn::pipeline::Accumulation;
use nn::spec::{AttentionSpec, FeedForwardSpec, MlpInput, MlpSpec, ModelSpec, MoeSpec, Projection};
use std::collections::BTreeSet;

use crate::handover::Engine;

/// When an engine adds gradients to buffers that are wider than they.
///
/// Source: NVIDIA/Megatron-LM, `megatron/core/tensor_parallel/layers.py`, `gradient_accumulation_fusion`, on by default with
/// Transformer Engine; its own output layer makes a tensor of the weight's size all the same. huggingface/nanotron,
/// `src/nanotron/optim/gradient_accumulator.py`, `FP32GradientAccumulator.backward`.
pub const fn accumulation(engine: Option<Engine>) -> Accumulation {
    match engine {
        Some(Engine::Megatron) => Accumulation::InProducts,
        Some(Engine::Nanotron) => Accumulation::Late,
        _ => Accumulation::AtOnce,
    }
}

/// Blocks of each stage as nanotron deals them: a stage is full once all blocks up to its end cost more than its share of the
/// whole, of which the head is a part that comes last.
///
/// Source: huggingface/nanotron, `src/nanotron/models/base.py`, `build_model`.
pub fn blocks_by_cost(costs: impl IntoIterator<Item = u64> + Clone, head: u64, stages: u64) -> Vec<u64> {
    let whole = costs.clone().into_iter().fold(head, u64::saturating_add) as f64;
    let mut blocks = vec![0; stages as usize];
    let (mut stage, mut sum) = (0, 0_u64);
    for cost in costs {
        blocks[stage] += 1;
        sum = sum.saturating_add(cost);
        if stage + 1 < blocks.len() && sum as f64 > whole * ((stage + 1) as f64 / stages as f64) {
            stage += 1;
        }
    }
    blocks
}

/// Bytes that an engine holds from its first backward pass on beside all that is traced, of a rank with these stages.
///
/// Megatron-LM on Transformer Engine: where gradients of weights are added to their buffers, backward hands out an empty
/// tensor in place of each, one for every shape of weights there is, which is kept.
///
/// Source: NVIDIA/TransformerEngine, `transformer_engine/pytorch/module/base.py`, `get_dummy_wgrad`, from 2.3 on.
pub fn beside(engine: Option<Engine>, stages: &[ModelSpec], weight_bytes: u64) -> u64 {
    held(&shapes(engine, stages), weight_bytes)
}

/// Bytes of one weight of each shape.
pub fn held(shapes: &BTreeSet<[u64; 2]>, weight_bytes: u64) -> u64 {
    shapes.iter().map(|[n, k]| n.saturating_mul(*k).saturating_mul(weight_bytes)).fold(0, u64::saturating_add)
}

/// Shapes of the weights of which [`beside`] counts one each.
pub fn shapes(engine: Option<Engine>, stages: &[ModelSpec]) -> BTreeSet<[u64; 2]> {
    let mut shapes = BTreeSet::new();
    if accumulation(engine) != Accumulation::InProducts {
        return shapes;
    }
    for layer in stages.iter().flat_map(|stage| stage.layers.iter().map(move |layer| (stage.hidden_size, layer))) {
        let (h, layer) = layer;
        if let Some(attention) = layer.attention() {
            shapes.extend(attention_weights(attention, h));
        }
        match &layer.feed_forward {
            FeedForwardSpec::Mlp(mlp) => shapes.extend(mlp_weights(mlp, h)),
            FeedForwardSpec::Moe(moe) => shapes.extend(moe_weights(moe, h)),
            _ => {}
        }
    }
    shapes
}

/// Weights `out in` of an attention as the engine has them: queries, keys and values in one, unless they are compressed.
fn attention_weights(spec: &AttentionSpec, h: u64) -> Vec<[u64; 2]> {
    let (a, k, d, dv) = (spec.heads, spec.kv_heads, spec.head_dim, spec.value_dim);
    let mut weights = vec![[h, a * dv]];
    match &spec.projection {
        Projection::Latent(latent) => {
            let width = latent.nope_dim + latent.rope_dim;
            match latent.q_rank {
                Some(rank) => weights.extend([[rank, h], [a * width, rank]]),
                None => weights.push([a * width, h]),
            }
            weights.push([latent.kv_rank + latent.rope_dim, h]);
            weights.push([a * (latent.nope_dim + dv), latent.kv_rank]);
        }
        _ => weights.push([a * d + k * (d + dv), h]),
    }
    weights
}

/// Of a dense part: the map of gate and value in one, and the map back.
fn mlp_weights(spec: &MlpSpec, h: u64) -> [[u64; 2]; 2] {
    let f = spec.intermediate_size;
    let both = if matches!(spec.input, MlpInput::Plain(_)) { f } else { 2 * f };
    [[both, h], [h, f]]
}

/// Of one expert, and of the shared ones.
fn moe_weights(spec: &MoeSpec, h: u64) -> Vec<[u64; 2]> {
    let f = spec.intermediate_size;
    let shared = spec.shared.iter().flat_map(|shared| mlp_weights(&shared.mlp, h));
    [[2 * f, h], [h, f]].into_iter().chain(shared).collect()
}
