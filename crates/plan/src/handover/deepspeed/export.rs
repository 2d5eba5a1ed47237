//! A layout as DeepSpeed's JSON.
//!
//! Source of the rules: `runtime/config.py`, `runtime/engine.py` and `module_inject/auto_ep_folding.py` of DeepSpeed 0.19.8.

use nn::context::Recompute;
use nn::step::Precision;

use crate::handover::settings::{Setting, Settings};
use crate::handover::{Draft, has_experts};
use crate::layout::ContextParallel;

/// Writes the options, or what stands against them.
pub fn export(draft: &mut Draft<'_>) {
    batches(draft);
    precision(draft);
    zero(draft);
    degrees(draft);
    draft.asks_for_recipe();
    if draft.layout.recompute != Recompute::None {
        draft.asks(format!("recompute {}, as gradient checkpointing", draft.layout.recompute.name()));
    }
    if draft.layout.offload.activations {
        draft.refuse(
            "T0490",
            "activations on the host",
            "its configuration has no such option",
            "recompute full instead",
        );
    }
}

/// The file. DeepSpeed reads the keys it knows at the top and leaves others alone, so remarks have a key of their own.
pub fn json(draft: &Draft<'_>) -> String {
    let mut all = Settings::default();
    all.set("napkin", Setting::List(draft.remarks().into_iter().map(Setting::from).collect()));
    for (name, value) in draft.settings.iter() {
        all.set(name, value.clone());
    }
    all.json()
}

fn batches(draft: &mut Draft<'_>) {
    draft.settings.set("train_batch_size", draft.layout.global_batch());
    draft.settings.set("train_micro_batch_size_per_gpu", draft.layout.micro_batch);
    draft.settings.set("gradient_accumulation_steps", draft.layout.grad_accum);
}

fn precision(draft: &mut Draft<'_>) {
    let zero = draft.layout.zero;
    let settings = &mut draft.settings;
    match draft.run.precision {
        Precision::Fp32 => {}
        Precision::Bf16Mixed | Precision::Fp16Mixed => {
            let half = if draft.run.precision == Precision::Fp16Mixed { "float16" } else { "bfloat16" };
            settings.set("torch_autocast.enabled", true);
            settings.set("torch_autocast.dtype", half);
        }
        Precision::Bf16Master => {
            settings.set("bf16.enabled", true);
            settings.set("data_types.grad_accum_dtype", "bf16");
        }
        Precision::Bf16MasterFp32Grads if zero > 0 => {
            settings.set("bf16.enabled", true);
            settings.set("data_types.grad_accum_dtype", "fp32");
        }
        Precision::Bf16Pure if zero > 0 => {
            settings.set("bf16.enabled", true);
            settings.set("bf16.bf16_master_weights_and_grads", true);
            settings.set("bf16.bf16_optimizer_states", true);
        }
        other @ (Precision::Bf16MasterFp32Grads | Precision::Bf16Pure) => {
            let why = "without ZeRO, gradients and masters of bf16 parameters have formats of its own choice";
            draft.refuse(
                "T0492",
                format!("precision {} with zero 0", other.name()),
                why,
                "zero 1, or --precision bf16-master",
            );
        }
        Precision::Fp8 => {
            draft.refuse("T0492", "precision fp8", "its configuration has no such option", "--precision bf16-master");
        }
    }
}

fn zero(draft: &mut Draft<'_>) {
    let layout = draft.layout.clone();
    draft.settings.set("zero_optimization.stage", u64::from(layout.zero));
    if layout.zero > 0 {
        draft.settings.set("zero_optimization.overlap_comm", true);
    }
    if layout.offload.optimizer {
        if layout.zero == 0 {
            draft.refuse(
                "T0490",
                "an optimizer on the host with zero 0",
                "offloading is a part of ZeRO",
                "zero 1, 2 or 3",
            );
        }
        draft.settings.set("zero_optimization.offload_optimizer.device", "cpu");
        draft.settings.set("zero_optimization.offload_optimizer.pin_memory", true);
    }
    if layout.shard.is_some() {
        let why = "its ZeRO divides over all replicas; copies on every node are of parameters alone";
        draft.refuse("T0490", "states divided over some of the replicas", why, "all replicas");
    }
    draft.refuse_other_units();
    if layout.zero == 3 && !layout.gathering.prefetch {
        draft.settings.set("zero_optimization.stage3_prefetch_bucket_size", 0u64);
    }
    if !layout.gathering.reshard {
        let why = "its ZeRO 3 gives gathered parameters up";
        draft.refuse("T0490", "zero 3 that keeps gathered parameters", why, "zero 3 with resharding, or zero 2");
    }
}

fn degrees(draft: &mut Draft<'_>) {
    let layout = draft.layout.clone();
    if layout.pp > 1 {
        let why = "stages are not in its configuration: a program builds them as PipelineModule";
        draft.refuse("T0490", format!("pp {}", layout.pp), why, "pp 1, or megatron");
    }
    if layout.sp {
        draft.refuse("T0490", "tp with sp", "its tensor parallelism leaves sequences whole", "no sp");
    }
    if layout.tp > 1 {
        draft.settings.set("tensor_parallel.autotp_size", layout.tp);
    }
    if layout.cp > 1 {
        if layout.context == ContextParallel::Ring {
            let why = "its sequence parallelism exchanges heads for positions";
            draft.refuse("T0490", "cp by a ring", why, "cp by all-to-all");
        }
        if layout.tp > 1 {
            draft.refuse("T0490", "cp with tp", "its program sets up one of the two", "one of them");
        }
        draft.settings.set("sequence_parallel_size", layout.cp);
        draft.asks(format!("Ulysses attention over {} ranks, registered before the model is made", layout.cp));
    }
    if !has_experts(draft.run.model) {
        return;
    }
    if layout.ep > 1 {
        draft.settings.set("expert_parallel.enabled", true);
        draft.settings.set("expert_parallel.autoep_size", layout.ep);
        if layout.etp > 1 {
            draft.refuse(
                "T0490",
                format!("etp {}", layout.etp),
                "expert tensor parallelism is reserved, not built",
                "etp 1",
            );
        }
        if layout.cp > 1 && layout.zero == 3 {
            let what = "ep with sequence parallelism and zero 3";
            draft.refuse("T0490", what, "its experts refuse the three together", "zero 1 or 2");
        }
        if layout.tp > 1 && layout.offload.optimizer {
            draft.refuse(
                "T0490",
                "ep with tp and an optimizer on the host",
                "it refuses the three together",
                "no offload",
            );
        }
    } else if layout.etp != layout.tp {
        let what = format!("etp {} with tp {} and ep 1", layout.etp, layout.tp);
        draft.refuse("T0490", what, "experts share matrices as the rest does", format!("etp {}", layout.tp));
    }
}
