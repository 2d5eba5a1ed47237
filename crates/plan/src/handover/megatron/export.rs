//! A layout as Megatron-LM's arguments.

use nn::HeadLoss;
use nn::context::Recompute;
use nn::optim::{Implementation, Kind, OptimizerKind};
use nn::step::Precision;

use super::{model, stages};
use crate::handover::settings::Setting;
use crate::handover::{Draft, has_experts};
use crate::layout::{ContextParallel, Schedule};

/// Writes the arguments, or what stands against them.
pub fn export(draft: &mut Draft<'_>) {
    degrees(draft);
    pipeline(draft);
    sharding(draft);
    batches(draft);
    recompute(draft);
    offload(draft);
    precision(draft);
    optimizer(draft);
    loss(draft);
    model::write(draft);
    nodes(draft);
}

fn degrees(draft: &mut Draft<'_>) {
    let layout = draft.layout.clone();
    let sparse = has_experts(draft.run.model);
    let settings = &mut draft.settings;
    settings.set("--tensor-model-parallel-size", layout.tp);
    if layout.sp {
        settings.flag("--sequence-parallel");
    }
    if layout.cp > 1 {
        settings.set("--context-parallel-size", layout.cp);
        let form = match layout.context {
            ContextParallel::Ring => "p2p",
            ContextParallel::AllToAll => "a2a",
        };
        settings.set("--cp-comm-type", Setting::List(vec![form.into()]));
    }
    if sparse {
        settings.set("--expert-model-parallel-size", layout.ep);
        settings.set("--expert-tensor-parallel-size", layout.etp);
    }
    let seq_len = draft.run.seq_len;
    if layout.cp > 1 && !seq_len.is_multiple_of(layout.cp.saturating_mul(2)) {
        let what = format!("sequences of {seq_len} tokens on cp {}", layout.cp);
        draft.refuse(
            "T0493",
            what,
            "it cuts a sequence into twice as many parts as there are ranks",
            "another sequence length",
        );
    }
    if sparse && layout.tp > 1 && !layout.sp {
        draft.refuse(
            "T0490",
            "experts with tp but without sp",
            "its mixture of experts refuses that in training",
            "sp",
        );
    }
    if layout.ep > 1 && draft.run.precision == Precision::Fp16Mixed {
        draft.refuse(
            "T0492",
            "ep with fp16",
            "it refuses expert parallelism in fp16",
            "--precision bf16-master-fp32-grads",
        );
    }
}

fn pipeline(draft: &mut Draft<'_>) {
    let layout = draft.layout.clone();
    draft.settings.set("--pipeline-model-parallel-size", layout.pp);
    if layout.pp == 1 {
        return;
    }
    match layout.schedule {
        Schedule::OneFOneB | Schedule::Interleaved => {}
        other => {
            let why = "its schedules are 1F1B, and interleaved 1F1B with several virtual stages";
            draft.refuse("T0490", format!("schedule {other}"), why, "schedule 1f1b or interleaved");
        }
    }
    let layers = draft.run.model.depth() as u64;
    let stages = layout.pp.saturating_mul(layout.virtual_stages);
    if layout.blocks.is_some() || !layers.is_multiple_of(stages) {
        draft.settings.set("--pipeline-model-parallel-layout", stages::write(&layout.blocks_of(layers)));
    } else if layout.virtual_stages > 1 {
        draft.settings.set("--num-layers-per-virtual-pipeline-stage", layers / stages);
    }
}

fn sharding(draft: &mut Draft<'_>) {
    let zero = draft.layout.zero;
    let (_, copies) = draft.sharding();
    match zero {
        0 if draft.layout.dp.saturating_mul(draft.layout.cp) > 1 => draft.settings.flag("--overlap-grad-reduce"),
        0 => {}
        1 => {
            draft.settings.flag("--use-distributed-optimizer");
            draft.settings.flag("--overlap-grad-reduce");
            draft.settings.flag("--overlap-param-gather");
        }
        _ => {
            let strategy = if zero == 2 { "optim_grads" } else { "optim_grads_params" };
            draft.settings.flag("--use-megatron-fsdp");
            draft.settings.set("--data-parallel-sharding-strategy", strategy);
            draft.settings.flag("--use-distributed-optimizer");
            draft.settings.flag("--overlap-grad-reduce");
            draft.settings.flag("--overlap-param-gather");
            // The one format its FSDP saves.
            draft.settings.set("--ckpt-format", "fsdp_dtensor");
        }
    }
    if copies > 1 && zero > 0 {
        draft.settings.set("--num-distributed-optimizer-instances", copies);
        let experts = draft.layout.expert_dp();
        if !experts.is_multiple_of(copies) {
            let what = format!("states in {copies} copies with {experts} replicas of an expert");
            draft.refuse(
                "T0493",
                what,
                "the copies must divide the replicas of an expert, too",
                "another number of ranks to shard over",
            );
        }
    }
    draft.refuse_other_units();
    draft.refuse_no_prefetch();
    if !draft.layout.gathering.reshard {
        let why = "its FSDP gives gathered parameters up behind the forward pass";
        draft.refuse("T0490", "zero 3 that keeps gathered parameters", why, "zero 3 with resharding, or zero 2");
    }
}

fn batches(draft: &mut Draft<'_>) {
    draft.settings.set("--micro-batch-size", draft.layout.micro_batch);
    draft.settings.set("--global-batch-size", draft.layout.global_batch());
    if let Some(steps) = draft.run.steps {
        draft.settings.set("--train-iters", steps);
    }
}

fn recompute(draft: &mut Draft<'_>) {
    let settings = &mut draft.settings;
    match draft.layout.recompute {
        Recompute::None => {}
        Recompute::Selective => {
            settings.set("--recompute-granularity", "selective");
            settings.set("--recompute-modules", Setting::List(vec!["core_attn".into()]));
        }
        Recompute::Full => {
            settings.set("--recompute-granularity", "full");
            settings.set("--recompute-method", "uniform");
            settings.set("--recompute-num-layers", 1u64);
        }
        Recompute::Budget(_) => {
            let why = "it recomputes modules, not single ops";
            draft.refuse("T0490", "recomputing by budget", why, "recompute none, selective or full");
        }
    }
}

fn offload(draft: &mut Draft<'_>) {
    let offload = draft.layout.offload;
    if offload.optimizer {
        if draft.layout.zero == 0 {
            let why = "its CPU optimizer is a part of the distributed optimizer";
            draft.refuse("T0490", "an optimizer on the host with zero 0", why, "zero 1");
        }
        draft.settings.flag("--optimizer-cpu-offload");
        draft.settings.flag("--use-precision-aware-optimizer");
    }
    if offload.activations {
        let layers = draft.run.model.depth() as u64;
        if draft.layout.pp > 1 || draft.layout.recompute != Recompute::None {
            let why = "it offloads activations neither of pipelines nor of blocks that are run again";
            draft.refuse("T0490", "activations on the host in this layout", why, "pp 1 and recompute none");
        }
        draft.settings.set("--cpu-offloading-num-layers", layers.saturating_sub(1).max(1));
        draft.differs("it offloads all blocks but one", "the activations of one block stay on the device");
    }
}

fn precision(draft: &mut Draft<'_>) {
    match draft.run.precision {
        Precision::Fp32 => {}
        Precision::Bf16MasterFp32Grads => draft.settings.flag("--bf16"),
        Precision::Bf16Master => {
            draft.settings.flag("--bf16");
            draft.settings.flag("--grad-reduce-in-bf16");
        }
        Precision::Fp16Mixed => {
            draft.settings.flag("--fp16");
            draft.differs(
                "weights are f16 beside f32 masters",
                "two bytes more for every parameter than f32 weights alone",
            );
        }
        Precision::Fp8 => {
            draft.settings.flag("--bf16");
            draft.settings.set("--fp8-format", "hybrid");
            draft.settings.set("--fp8-recipe", "tensorwise");
            draft.differs(
                "weights are bf16 beside f32 masters",
                "two bytes more for every parameter than f32 weights alone",
            );
        }
        other @ (Precision::Bf16Mixed | Precision::Bf16Pure) => {
            let why = "its bf16 has masters and gradients in f32";
            draft.refuse("T0492", format!("precision {}", other.name()), why, "--precision bf16-master-fp32-grads");
        }
    }
}

fn optimizer(draft: &mut Draft<'_>) {
    let OptimizerKind { kind, implementation } = draft.run.optimizer;
    if implementation != Implementation::Fused {
        return draft.refuse_optimizer("updates by fused kernels alone");
    }
    match kind {
        Kind::Adam | Kind::AdamW => draft.settings.set("--optimizer", "adam"),
        Kind::Momentum => draft.settings.set("--optimizer", "sgd"),
        Kind::Sgd => {
            draft.settings.set("--optimizer", "sgd");
            draft.settings.set("--sgd-momentum", 0.0);
        }
        Kind::Muon if draft.layout.zero > 0 => {
            let why = "its Muon has no distributed optimizer";
            draft.refuse("T0490", format!("optimizer muon with zero {}", draft.layout.zero), why, "zero 0");
        }
        Kind::Muon => draft.settings.set("--optimizer", "muon"),
        _ => draft.refuse_optimizer("Adam, SGD and Muon"),
    }
}

/// Without fusion it has logits in f32, as `native` fusion has; that of Transformer Engine has no second copy of them.
fn loss(draft: &mut Draft<'_>) {
    match draft.run.loss {
        HeadLoss::Parallel => {}
        HeadLoss::Whole => {
            draft.settings.flag("--cross-entropy-loss-fusion");
            draft.settings.set("--cross-entropy-fusion-impl", "te");
        }
        other => {
            let why = "it makes all logits of a micro-batch";
            draft.refuse("T0490", format!("loss {other}"), why, "--loss whole or parallel");
        }
    }
}

fn nodes(draft: &mut Draft<'_>) {
    let (devices, per_node) = (draft.layout.devices(), draft.run.devices_per_node);
    if per_node == 0 || (devices > per_node && !devices.is_multiple_of(per_node)) {
        let what = format!("{devices} devices on nodes of {per_node}");
        draft.refuse(
            "T0493",
            what,
            "the launcher starts as many processes on every node",
            "a number of devices that fills nodes",
        );
    }
}

/// The script that starts it. What the plan does not decide comes as arguments of the script.
pub fn script(draft: &Draft<'_>) -> String {
    let devices = draft.layout.devices();
    let per_node = draft.run.devices_per_node.clamp(1, devices.max(1));
    // Megatron-LM before Blackwell wants one queue where tp or cp overlap, and several for its FSDP.
    let queue = if draft.layout.zero < 2 && (draft.layout.tp > 1 || draft.layout.cp > 1) {
        "export CUDA_DEVICE_MAX_CONNECTIONS=1\n"
    } else {
        ""
    };
    let mut nodes = format!("  --nnodes {} --nproc-per-node {per_node} \\\n", devices / per_node);
    if devices > per_node {
        nodes += "  --node-rank \"$NODE_RANK\" --master-addr \"$MASTER_ADDR\" --master-port \"$MASTER_PORT\" \\\n";
    }
    format!(
        "#!/bin/sh\n{}# Data, tokenizer, learning rate, length and checkpoints: arguments of this script.\n{queue}exec torchrun \\\n\
         {nodes}  pretrain_gpt.py \\\n{}  \"$@\"\n",
        draft.comments(),
        draft.settings.arguments()
    )
}
