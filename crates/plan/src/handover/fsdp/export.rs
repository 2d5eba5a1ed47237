//! A layout as accelerate's YAML.
//!
//! Source of the rules: `parallelism_config.py`, `utils/launch.py` and `commands/launch.py` of accelerate 1.15.0.

use nn::context::Recompute;
use nn::step::Precision;

use crate::handover::{Draft, has_experts};
use crate::layout::{ContextParallel, Layout};
use crate::sharding::Wrap;

/// Writes the options, or what stands against them.
pub fn export(draft: &mut Draft<'_>) {
    launch(draft);
    sharding(draft);
    degrees(draft);
    draft.asks_for_recipe();
    let Layout { micro_batch, grad_accum, gathering, .. } = draft.layout;
    // Left to itself, it adds gradients up whole.
    let steps = if grad_accum > 1 && gathering.sync {
        let plugin = format!("GradientAccumulationPlugin(num_steps={grad_accum}, sync_each_batch=True)");
        format!("gradient_accumulation_plugin={plugin}")
    } else {
        format!("gradient_accumulation_steps={grad_accum}")
    };
    draft.asks(format!("micro-batches of {micro_batch} × {} tokens, Accelerator({steps})", draft.run.seq_len));
}

fn launch(draft: &mut Draft<'_>) {
    let (devices, per_node) = (draft.layout.devices(), draft.run.devices_per_node);
    if per_node == 0 || (devices > per_node && !devices.is_multiple_of(per_node)) {
        let what = format!("{devices} devices on nodes of {per_node}");
        draft.refuse(
            "T0493",
            what,
            "the launcher starts as many processes on every node",
            "a number of devices that fills nodes",
        );
        return;
    }
    let settings = &mut draft.settings;
    settings.set("compute_environment", "LOCAL_MACHINE");
    settings.set("distributed_type", "FSDP");
    settings.set("num_machines", devices.div_ceil(per_node));
    settings.set("num_processes", devices);
    settings.set("machine_rank", 0u64);
    settings.set("main_training_function", "main");
    let half = match draft.run.precision {
        Precision::Fp32 => "no",
        Precision::Bf16Mixed => "bf16",
        Precision::Fp16Mixed => "fp16",
        Precision::Bf16Pure => {
            draft.asks("the model in bfloat16, and its optimizer with it");
            "no"
        }
        other => {
            let why = "its parameters are as the program makes them, f32 with copies of 16 bits where it asks for them";
            draft.refuse("T0492", format!("precision {}", other.name()), why, "--precision bf16-mixed");
            "no"
        }
    };
    draft.settings.set("mixed_precision", half);
}

fn sharding(draft: &mut Draft<'_>) {
    let layout = draft.layout.clone();
    if layout.zero != 3 {
        let why = "FSDP2 divides parameters, gradients and states together; DDP is another configuration";
        draft.refuse("T0490", format!("zero {}", layout.zero), why, "zero 3, with or without resharding");
    }
    let recompute = match layout.recompute {
        Recompute::None => false,
        Recompute::Full => true,
        Recompute::Selective | Recompute::Budget(_) => {
            let why = "it runs whole blocks again, or none";
            draft.refuse("T0490", format!("recompute {}", layout.recompute.name()), why, "recompute none or full");
            false
        }
    };
    draft.refuse_no_prefetch();
    if layout.offload.activations && !recompute {
        let why = "it offloads the inputs of blocks that are run again";
        draft.refuse("T0490", "activations on the host without recomputing", why, "recompute full");
    }
    let settings = &mut draft.settings;
    settings.set("fsdp_config.fsdp_version", 2u64);
    settings.set("fsdp_config.fsdp_reshard_after_forward", layout.gathering.reshard);
    let policy = if layout.gathering.wrap == Wrap::Model { "NO_WRAP" } else { "TRANSFORMER_BASED_WRAP" };
    settings.set("fsdp_config.fsdp_auto_wrap_policy", policy);
    settings.set("fsdp_config.fsdp_state_dict_type", "SHARDED_STATE_DICT");
    settings.set("fsdp_config.fsdp_cpu_ram_efficient_loading", true);
    settings.set("fsdp_config.fsdp_offload_params", layout.offload.optimizer);
    settings.set("fsdp_config.fsdp_activation_checkpointing", recompute);
    if layout.offload.activations {
        settings.set("fsdp_config.fsdp_activation_checkpointing_offload", true);
    }
    if layout.offload.optimizer {
        let effect = "less on the device than planned, and more copies";
        draft.differs("parameters and gradients are on the host with the optimizer", effect);
    }
}

fn degrees(draft: &mut Draft<'_>) {
    let layout = draft.layout.clone();
    let (ranks, copies) = draft.sharding();
    if layout.pp > 1 {
        draft.refuse("T0490", format!("pp {}", layout.pp), "it has no pipeline", "pp 1, or torchtitan or megatron");
    }
    if layout.sp {
        draft.refuse("T0490", "tp with sp", "plans of transformers leave sequences whole", "no sp");
    }
    if layout.cp > 1 && layout.context == ContextParallel::AllToAll {
        draft.refuse(
            "T0490",
            "cp by all-to-all of heads",
            "accelerate has that with DeepSpeed alone",
            "a ring, or deepspeed",
        );
    }
    if layout.ep > 1 {
        draft.refuse("T0490", format!("ep {}", layout.ep), "its configuration has no expert parallelism", "ep 1");
    } else if layout.etp != layout.tp && has_experts(draft.run.model) {
        let what = format!("etp {} with tp {}", layout.etp, layout.tp);
        draft.refuse("T0490", what, "experts share matrices as the rest does", format!("etp {}", layout.tp));
    }
    if !ranks.is_multiple_of(layout.cp) {
        let what = format!("parameters divided over {ranks} ranks with cp {}", layout.cp);
        draft.refuse(
            "T0490",
            what,
            "context-parallel ranks are always among those that share parameters",
            "a multiple of cp",
        );
    }
    let shard = ranks / layout.cp;
    if (layout.tp > 1 || layout.cp > 1) && copies > 1 && shard == 1 {
        let what = format!("{copies} copies, each divided over cp {} alone", layout.cp);
        draft.refuse(
            "T0490",
            what,
            "with tp or cp it wants ranks of data parallelism among those that share",
            "fewer copies",
        );
    }
    let settings = &mut draft.settings;
    let prefix = "parallelism_config.parallelism_config_";
    settings.set(format!("{prefix}dp_replicate_size"), copies);
    settings.set(format!("{prefix}dp_shard_size"), shard);
    settings.set(format!("{prefix}tp_size"), layout.tp);
    settings.set(format!("{prefix}cp_size"), layout.cp);
    if layout.cp > 1 {
        settings.set(format!("{prefix}cp_comm_strategy"), "alltoall");
    }
    if layout.tp > 1 {
        draft.asks(format!("a model of transformers with tp_plan=\"auto\" and tp_size={}", layout.tp));
    }
}
