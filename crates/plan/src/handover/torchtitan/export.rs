//! A layout as torchtitan's TOML.
//!
//! Source of the rules: `parallelize.py` of its models, `parallel_dims.py` and `pipeline_parallel.py` of torchtitan 0.2.2.

use nn::HeadLoss;
use nn::context::Recompute;
use nn::optim::{Implementation, Kind, OptimizerKind};
use nn::step::Precision;

use super::{flavors, stages};
use crate::handover::settings::Setting;
use crate::handover::shape::Shape;
use crate::handover::{Draft, has_experts};
use crate::layout::{ContextParallel, Schedule};

/// Writes the sections, or what stands against them.
pub fn export(draft: &mut Draft<'_>) {
    let pipelines = model(draft);
    training(draft);
    degrees(draft);
    pipeline(draft, pipelines);
    recompute(draft);
    optimizer(draft);
    draft.refuse_other_loss(HeadLoss::Whole);
    if draft.run.precision == Precision::Fp8 {
        draft.settings.set("quantize.linear.float8.recipe_name", "tensorwise");
    }
}

fn optimizer(draft: &mut Draft<'_>) {
    let OptimizerKind { kind, implementation } = draft.run.optimizer;
    let name = match kind {
        Kind::Adam => "Adam",
        Kind::AdamW => "AdamW",
        _ => return draft.refuse_optimizer("Adam and AdamW"),
    };
    draft.settings.set("optimizer.name", name);
    let form = match implementation {
        Implementation::Fused => "fused",
        Implementation::ForEach => "foreach",
        Implementation::ForLoop => "for-loop",
    };
    draft.settings.set("optimizer.implementation", form);
}

/// The model by its name and flavor; whether it can be cut into stages.
fn model(draft: &mut Draft<'_>) -> bool {
    let family = draft.run.model.family.clone();
    let Some((name, pipelines)) = flavors::model(&family) else {
        let why = "models with modules of their own here are llama3, qwen3 and deepseek_v3";
        draft.refuse("T0491", format!("a model of family `{family}`"), why, "megatron, deepspeed or fsdp");
        return true;
    };
    if name == "deepseek_v3" && draft.layout.cp > 1 {
        draft.refuse(
            "T0490",
            "cp with deepseek_v3",
            "its flavors attend by FlexAttention, which it does not divide",
            "cp 1",
        );
    }
    let flavor = Shape::of(draft.run.model).ok().and_then(|shape| flavors::find(name, &shape));
    draft.settings.set("model.name", name);
    if let Some(flavor) = flavor {
        draft.settings.set("model.flavor", flavor.name);
    } else {
        draft.settings.set("model.flavor", draft.run.name);
        draft.differs(
            format!("{name} has no flavor of these sizes"),
            format!("add `{}` to torchtitan/models/{name}/__init__.py", draft.run.name),
        );
    }
    let converters: &[&str] = if draft.run.precision == Precision::Fp8 { &["quantize.linear.float8"] } else { &[] };
    draft.settings.set("model.converters", Setting::List(converters.iter().map(|name| Setting::from(*name)).collect()));
    pipelines
}

fn training(draft: &mut Draft<'_>) {
    let (layout, run) = (draft.layout.clone(), *draft.run);
    // A pipeline takes the micro-batches of a step from one local batch; without one each is a local batch.
    let local = if layout.pp > 1 { layout.micro_batch.saturating_mul(layout.grad_accum) } else { layout.micro_batch };
    draft.settings.set("training.local_batch_size", local);
    draft.settings.set("training.global_batch_size", layout.global_batch());
    draft.settings.set("training.seq_len", run.seq_len);
    if let Some(steps) = run.steps {
        draft.settings.set("training.steps", steps);
    }
    let (stored, computed) = match run.precision {
        Precision::Fp32 => ("float32", "float32"),
        Precision::Bf16Mixed | Precision::Fp8 => ("float32", "bfloat16"),
        Precision::Bf16Pure => ("bfloat16", "bfloat16"),
        other => {
            let why = "its parameters are f32, or everything is bf16";
            draft.refuse("T0492", format!("precision {}", other.name()), why, "--precision bf16-mixed");
            ("float32", "bfloat16")
        }
    };
    draft.settings.set("training.dtype", stored);
    draft.settings.set("training.mixed_precision_param", computed);
    if layout.offload.activations {
        let why = "it offloads parameters, gradients and states";
        draft.refuse("T0490", "activations on the host", why, "recompute full instead");
    }
    draft.settings.set("training.enable_cpu_offload", layout.offload.optimizer);
    if layout.offload.optimizer {
        if layout.zero < 3 {
            draft.refuse("T0490", "an optimizer on the host without FSDP", "offloading is a part of FSDP", "zero 3");
        }
        let effect = "less on the device than planned, and more copies";
        draft.differs("parameters and gradients are on the host with the optimizer", effect);
    }
    let parts = layout.tp.saturating_mul(if layout.cp > 1 { layout.cp.saturating_mul(2) } else { 1 });
    if !run.seq_len.is_multiple_of(parts.max(1)) {
        let what = format!("sequences of {} tokens on tp {} and cp {}", run.seq_len, layout.tp, layout.cp);
        draft.refuse("T0493", what, "tp times twice cp must divide them", "another sequence length");
    }
}

fn degrees(draft: &mut Draft<'_>) {
    let layout = draft.layout.clone();
    let (ranks, copies) = draft.sharding();
    let replicas = layout.dp.saturating_mul(layout.cp);
    let (mut replicate, mut shard) = (1, layout.dp);
    match layout.zero {
        3 if replicas == 1 => draft.refuse("T0490", "zero 3 on one replica", "one rank alone has no FSDP", "zero 0"),
        3 if ranks.is_multiple_of(layout.cp) => (replicate, shard) = (copies, ranks / layout.cp),
        3 => {
            let what = format!("parameters divided over {ranks} ranks with cp {}", layout.cp);
            draft.refuse(
                "T0490",
                what,
                "context-parallel ranks are always among those that share parameters",
                "a multiple of cp",
            );
        }
        0 if replicas == 1 => {}
        0 if layout.tp == 1 && layout.cp == 1 && layout.pp == 1 && layout.ep == 1 => {
            (replicate, shard) = (layout.dp, 1);
        }
        0 => draft.refuse("T0490", "zero 0 with tp, cp, pp or ep", "its DDP is for data parallelism alone", "zero 3"),
        zero => {
            let why = "its FSDP always divides parameters; what is kept behind the forward pass is another question";
            draft.refuse("T0490", format!("zero {zero}"), why, "zero 3, with or without resharding");
        }
    }
    draft.refuse_other_units();
    draft.refuse_no_prefetch();
    if layout.tp > 1 && !layout.sp {
        draft.refuse("T0490", "tp without sp", "its tensor parallelism divides the sequence, too", "sp");
    }
    if layout.cp > 1 && layout.context == ContextParallel::AllToAll {
        let why = "its attention passes keys and values around; heads are not exchanged";
        draft.refuse("T0490", "cp by all-to-all of heads", why, "a ring");
    }
    let settings = &mut draft.settings;
    settings.set("parallelism.data_parallel_replicate_degree", replicate);
    settings.set("parallelism.data_parallel_shard_degree", shard);
    settings.set("parallelism.fsdp_reshard_after_forward", if layout.gathering.reshard { "always" } else { "never" });
    settings.set("parallelism.tensor_parallel_degree", layout.tp);
    settings.set("parallelism.context_parallel_degree", layout.cp);
    if layout.cp > 1 {
        settings.set("parallelism.context_parallel_rotate_method", "alltoall");
    }
    if has_experts(draft.run.model) {
        experts(draft);
    }
}

fn experts(draft: &mut Draft<'_>) {
    let (ep, etp, tp) = (draft.layout.ep, draft.layout.etp, draft.layout.tp);
    let (ranks, _) = draft.sharding();
    draft.settings.set("parallelism.expert_parallel_degree", ep);
    draft.settings.set("parallelism.expert_tensor_parallel_degree", if ep == 1 { 1 } else { etp });
    if ep == 1 && etp != tp {
        let what = format!("etp {etp} with tp {tp} and ep 1");
        draft.refuse(
            "T0490",
            what,
            "without expert parallelism experts share matrices as the rest does",
            format!("etp {tp}"),
        );
    }
    if ep > 1 && etp != 1 && etp != tp {
        draft.refuse(
            "T0490",
            format!("etp {etp} with tp {tp}"),
            "it has etp 1 and etp as large as tp",
            format!("etp 1 or {tp}"),
        );
    }
    if ep > 1 && !ranks.saturating_mul(tp).is_multiple_of(ep.saturating_mul(etp)) {
        let what = format!("ep {ep} and etp {etp} on {ranks} ranks that share parameters, times tp {tp}");
        draft.refuse("T0493", what, "experts are divided inside of these", "more ranks that share parameters");
    }
}

fn pipeline(draft: &mut Draft<'_>, pipelines: bool) {
    let layout = draft.layout.clone();
    draft.settings.set("parallelism.pipeline_parallel_degree", layout.pp);
    if layout.pp == 1 {
        return;
    }
    if !pipelines {
        let what = format!("pp {} for a model of family `{}`", layout.pp, draft.run.model.family);
        draft.refuse("T0490", what, "its qwen3 cannot be cut into stages", "pp 1");
    }
    match layout.schedule {
        Schedule::GPipe => draft.settings.set("parallelism.pipeline_parallel_schedule", "GPipe"),
        Schedule::OneFOneB => draft.settings.set("parallelism.pipeline_parallel_schedule", "1F1B"),
        Schedule::Interleaved => draft.settings.set("parallelism.pipeline_parallel_schedule", "Interleaved1F1B"),
        Schedule::ZeroBubble => draft.refuse(
            "T0490",
            "schedule zero-bubble with one stage on a rank",
            "its zero-bubble schedules have two stages on a rank",
            "schedule 1f1b or interleaved",
        ),
    }
    draft.settings.set("parallelism.pipeline_parallel_microbatch_size", layout.micro_batch);
    let blocks = layout.blocks_of(draft.run.model.depth() as u64);
    draft.settings.set("parallelism.module_fqns_per_model_part", stages::write(&blocks));
}

fn recompute(draft: &mut Draft<'_>) {
    let mode = match draft.layout.recompute {
        Recompute::None => "none",
        Recompute::Full => "full",
        Recompute::Selective | Recompute::Budget(_) => {
            let why =
                "its selective modes run every n-th block again, or keep products and attention, which are others";
            draft.refuse("T0490", "recomputing the attention core alone", why, "recompute none or full");
            "none"
        }
    };
    draft.settings.set("activation_checkpoint.mode", mode);
}
