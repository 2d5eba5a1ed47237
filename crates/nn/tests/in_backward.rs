//! Updates within backward: what of a step they change, and what not.
#![allow(clippy::unwrap_used, missing_docs)]

use napkin_nn::config::Config;
use napkin_nn::spec::ModelSpec;
use napkin_nn::step::{self, Precision, StepOptions, StepTrace, Until};
use napkin_nn::{Profile, Recompute, families};
use std::collections::BTreeMap;
use tensor::meter::{MemoryChange, Role};
use tensor::{CastLists, Phase, Trace};

fn spec(tied: bool) -> ModelSpec {
    let text = format!(
        r#"{{"model_type": "llama", "hidden_size": 32, "intermediate_size": 96, "num_hidden_layers": 3,
        "num_attention_heads": 4, "vocab_size": 40, "max_position_embeddings": 64, "tie_word_embeddings": {tied},
        "rms_norm_eps": 1e-5}}"#
    );
    let (config, _) = Config::parse("llama.json", text.as_bytes());
    families::load(&config.unwrap(), None).unwrap().spec
}

fn options(optimizer: &str, precision: Precision, recompute: Recompute, in_backward: bool) -> StepOptions {
    StepOptions {
        batch: 1,
        seq_len: 8,
        profile: Profile::HfSdpa,
        precision,
        optimizer: optimizer.parse().unwrap(),
        recompute,
        grad_accum_steps: 1,
        autocast: CastLists::Cuda,
        steps: 2,
        warm: false,
        dropout: false,
        objective: napkin_nn::Objective::DEFAULT,
        offload: napkin_nn::Offload::NONE,
        in_backward,
        until: Until::Optimizer,
    }
}

/// Live bytes of a role after each memory event, as a maximum, and all live bytes at each mark.
fn live(trace: &Trace, of: Role) -> (u64, u64) {
    let mut roles: BTreeMap<u32, Role> = BTreeMap::new();
    let (mut now, mut most) = (0, 0);
    for event in &trace.memory {
        let bytes = trace.storages[event.storage.0 as usize].bytes;
        let before = roles.get(&event.storage.0).copied();
        let after = match event.change {
            MemoryChange::Alloc(role) | MemoryChange::Role(role) => Some(role),
            MemoryChange::Free => None,
        };
        now += if after == Some(of) { bytes } else { 0 };
        now -= if before == Some(of) { bytes } else { 0 };
        most = most.max(now);
        match after {
            Some(role) => roles.insert(event.storage.0, role),
            None => roles.remove(&event.storage.0),
        };
    }
    (most, now)
}

fn every(mut check: impl FnMut(&str, &StepTrace, &StepTrace, bool)) {
    for tied in [false, true] {
        let spec = spec(tied);
        for optimizer in ["adamw-fused", "adamw-forloop", "sgd", "adafactor", "adam-8bit"] {
            for precision in [Precision::Fp32, Precision::Bf16Mixed, Precision::Bf16Master, Precision::Bf16Pure] {
                for recompute in [Recompute::None, Recompute::Full] {
                    let [plain, within] = [false, true]
                        .map(|on| step::trace(&spec, &options(optimizer, precision, recompute, on)).unwrap());
                    let name = format!("{optimizer} {precision} {} tied {tied}", recompute.name());
                    check(&name, &plain, &within, tied);
                }
            }
        }
    }
}

/// The largest gradient is that of a map of 32 x 96, and of 40 x 32 where the table is used twice: its gradient waits for the
/// embedding. Without the option all are there at once.
#[test]
fn no_gradient_waits_for_another() {
    every(|name, plain, within, tied| {
        let element = if name.contains("fp32") || name.contains("mixed") { 4 } else { 2 };
        let all: u64 = plain.params.iter().map(|p| p.elements).sum();
        assert_eq!(live(&plain.trace, Role::Gradient).0, all * element, "{name}");
        let (most, left) = live(&within.trace, Role::Gradient);
        let waits = if tied { 40 * 32 } else { 0 };
        assert_eq!((most, left), ((32 * 96 + waits) * element, 0), "{name}");
    });
}

/// The same ops, moved: what they cost, what they make and what stays is equal.
#[test]
fn the_same_ops_run() {
    every(|name, plain, within, _| {
        let cost = |trace: &Trace, phase: Phase| trace.cost(|event| event.phase == phase);
        for phase in [Phase::Forward, Phase::Backward, Phase::Recompute, Phase::Optimizer] {
            assert_eq!(cost(&plain.trace, phase), cost(&within.trace, phase), "{name}");
        }
        assert_eq!(plain.trace.ops.len(), within.trace.ops.len(), "{name}");
        assert_eq!(plain.trace.memory.len(), within.trace.memory.len(), "{name}");
        for role in [Role::Parameter, Role::OptimizerState] {
            assert_eq!(live(&plain.trace, role), live(&within.trace, role), "{name}");
        }
        // Nothing is used before it is made or behind its end.
        let mut alive = vec![false; within.trace.storages.len()];
        let mut events = within.trace.memory.iter().peekable();
        for (i, op) in within.trace.ops.iter().enumerate() {
            while let Some(event) = events.next_if(|event| event.op as usize <= i) {
                alive[event.storage.0 as usize] = event.change != MemoryChange::Free;
            }
            let operands = op.inputs.iter().chain(&op.outputs);
            assert!(
                operands.into_iter().all(|operand| alive[operand.storage.0 as usize]),
                "{name}: op {i} {:?}",
                op.op
            );
        }
        // Backward is where parameters change: what is left for the stretch of the update counts steps.
        let marks = &within.trace.marks;
        let at = |name: &str| marks.iter().find(|mark| mark.name == name).unwrap().op as usize;
        let counts = |op: &tensor::meter::OpEvent| {
            op.outputs.iter().all(|operand| within.trace.storages[operand.storage.0 as usize].bytes <= 8)
        };
        let left = &within.trace.ops[at("opt1")..at("fwd2")];
        assert!(left.iter().all(|op| op.phase != Phase::Optimizer || counts(op)), "{name}");
    });
}
