//! A layout out of torchtitan's TOML.

use nn::context::Recompute;
use nn::optim::{self, Implementation, OptimizerKind};
use nn::step::Precision;
use toml::de::{DeTable, DeValue};
use units::{Diagnostic, Diagnostics, Location};

use super::stages;
use crate::handover::reading::{Around, Taken, Values};
use crate::handover::settings::Setting;
use crate::handover::{Engine, has_experts};
use crate::layout::{Layout, Schedule};

/// Most stages that are generated.
const MOST_STAGES: u64 = 1 << 16;

/// Reads the file.
///
/// # Errors
/// `T0494` to `T0496`.
pub fn read(text: &str, around: &Around<'_>) -> Result<Taken, Diagnostics> {
    let mut values = Values::new(Engine::Torchtitan, text, around)?;
    let table = DeTable::parse(text).map_err(|error| {
        let problem = Diagnostic::error("T0494", format!("this is no TOML: {}", error.message()));
        Diagnostics::from(match error.span() {
            Some(span) => problem.at(Location::in_source(around.file, text, span)),
            None => problem.at(Location::file(around.file)),
        })
    })?;
    flatten(&mut values, "", table.get_ref());
    let mut layout = Layout {
        tp: values.degree("parallelism.tensor_parallel_degree"),
        cp: values.degree("parallelism.context_parallel_degree"),
        pp: values.degree("parallelism.pipeline_parallel_degree"),
        ..Layout::default()
    };
    layout.sp = layout.tp > 1;
    data(&mut values, &mut layout);
    experts(&mut values, &mut layout, around);
    context(&mut values, layout.cp);
    pipeline(&mut values, &mut layout, around);
    batches(&mut values, &mut layout);
    recompute(&mut values, &mut layout);
    layout.offload.optimizer = values.is("training.enable_cpu_offload");
    if layout.offload.optimizer {
        let effect = "parameters and gradients are on the host, too: less on the device, and more copies";
        values.nearest("training.enable_cpu_offload", "an optimizer on the host", effect);
    }
    let precision = precision(&mut values);
    let optimizer = optimizer(&mut values);
    let seq_len = values.some("training.seq_len");
    values.skip(&["model.name", "model.flavor"]);
    Ok(Taken { optimizer, ..values.finish(&layout, seq_len, Some(precision))? })
}

/// The update; with fused kernels where the file does not say how.
fn optimizer(values: &mut Values<'_>) -> Option<OptimizerKind> {
    let (name, form) = ("optimizer.name", "optimizer.implementation");
    let implementation = match values.word(form).as_deref() {
        Some("foreach") => Implementation::ForEach,
        Some("for-loop") => Implementation::ForLoop,
        _ => Implementation::Fused,
    };
    let word = values.word(name);
    let kind = match word.as_deref() {
        Some("Adam") => optim::Kind::Adam,
        Some("AdamW") => optim::Kind::AdamW,
        Some(_) => {
            values.nearest(name, "adamw", "states of another optimizer take other bytes");
            optim::Kind::AdamW
        }
        None => values.value(form).map(|_| optim::Kind::AdamW)?,
    };
    Some(OptimizerKind { kind, implementation })
}

/// The options of a table and of those in it.
fn flatten(values: &mut Values<'_>, prefix: &str, table: &DeTable<'_>) {
    for (key, value) in table {
        let mut name = format!("{prefix}{}", key.get_ref());
        if name == "training.batch_size" {
            // Its name before 0.1.
            "training.local_batch_size".clone_into(&mut name);
        }
        match value.get_ref() {
            DeValue::Table(inner) => flatten(values, &format!("{name}."), inner),
            // The default of all options that may be below zero: what is left over, or none.
            DeValue::Integer(number) if number.as_str() == "-1" => {}
            // A list may be written as one word.
            DeValue::String(text) if name == "model.converters" => {
                let words = text.split(',').map(str::trim).filter(|word| !word.is_empty()).map(Setting::from);
                values.add(&name, Setting::List(words.collect()), value.span());
            }
            other => values.add(&name, setting(other), value.span()),
        }
    }
}

fn setting(value: &DeValue<'_>) -> Setting {
    match value {
        DeValue::String(text) => Setting::from(text.as_ref()),
        DeValue::Boolean(value) => Setting::Bool(*value),
        DeValue::Integer(number) => {
            let digits = number.as_str();
            match u64::from_str_radix(digits, number.radix()) {
                Ok(value) => Setting::Int(value),
                // The text is what the table then refuses.
                Err(_) => digits.into(),
            }
        }
        DeValue::Float(number) => {
            number.as_str().parse::<f64>().map_or_else(|_| number.as_str().into(), Setting::Float)
        }
        DeValue::Array(items) => Setting::List(items.iter().map(|item| setting(item.get_ref())).collect()),
        DeValue::Table(_) | DeValue::Datetime(_) => Setting::from(""),
    }
}

fn data(values: &mut Values<'_>, layout: &mut Layout) {
    let copies = values.degree("parallelism.data_parallel_replicate_degree");
    let shard = values.some("parallelism.data_parallel_shard_degree");
    let reshard = values.word("parallelism.fsdp_reshard_after_forward");
    let shared = [layout.tp, layout.cp, layout.pp, copies].into_iter().fold(1u64, u64::saturating_mul);
    let ranks = match shard {
        Some(ranks) => {
            values.makes(shared.saturating_mul(ranks));
            ranks
        }
        None => values.replicas(None, shared).unwrap_or(1),
    };
    layout.dp = copies.saturating_mul(ranks);
    if ranks > 1 || layout.cp > 1 {
        layout.zero = 3;
        layout.shard = Some(ranks.saturating_mul(layout.cp));
    }
    layout.gathering.reshard = match reshard.as_deref() {
        Some("always") => true,
        Some("never") => false,
        // "Smart defaults": gathered parameters stay where a pipeline would gather them for every micro-batch.
        _ => layout.pp == 1,
    };
}

fn experts(values: &mut Values<'_>, layout: &mut Layout, around: &Around<'_>) {
    let ep = values.degree("parallelism.expert_parallel_degree");
    let etp = values.degree("parallelism.expert_tensor_parallel_degree");
    if has_experts(around.model) {
        layout.ep = ep;
        layout.etp = if ep == 1 { layout.tp } else { etp };
    } else if ep > 1 {
        let warning = Diagnostic::warning("T0496", format!("expert parallel {ep}: the model has no experts"));
        values.problem("parallelism.expert_parallel_degree", warning.effect("it is read as 1, as torchtitan does"));
    }
}

fn context(values: &mut Values<'_>, cp: u64) {
    let name = "parallelism.context_parallel_rotate_method";
    let method = values.word(name);
    values.skip(&["parallelism.context_parallel_load_balancer"]);
    if cp > 1 && method.as_deref() != Some("alltoall") {
        let warning = Diagnostic::warning("T0499", format!("`{name}` is allgather, and is read as a ring"));
        values.problem(
            name,
            warning.effect("all keys and values of a sequence lie on every rank at once, which is not counted"),
        );
    }
}

fn pipeline(values: &mut Values<'_>, layout: &mut Layout, around: &Around<'_>) {
    let name = "parallelism.pipeline_parallel_schedule";
    let schedule = values.word(name).unwrap_or_else(|| "1F1B".to_owned());
    let parts = values.value("parallelism.module_fqns_per_model_part").cloned();
    let per_stage = values.some("parallelism.pipeline_parallel_layers_per_stage");
    let weights = ["first", "last"]
        .map(|end| values.int(&format!("parallelism.pipeline_parallel_{end}_stage_less_layers")).unwrap_or(1));
    layout.micro_batch = values.degree("parallelism.pipeline_parallel_microbatch_size");
    if layout.pp == 1 {
        return;
    }
    let several = match schedule.as_str() {
        "1F1B" => false,
        "GPipe" => {
            layout.schedule = Schedule::GPipe;
            false
        }
        "Interleaved1F1B" => {
            layout.schedule = Schedule::Interleaved;
            true
        }
        "LoopedBFS" | "InterleavedZeroBubble" | "ZBVZeroBubble" | "DualPipeV" => {
            layout.schedule = Schedule::Interleaved;
            values.nearest(
                name,
                "schedule interleaved",
                "other orders of the same stages have other bubbles and other memory",
            );
            true
        }
        _ => {
            values.nearest(name, "schedule 1f1b", "its order stands in a file of its own");
            false
        }
    };
    let layers = around.model.depth() as u64;
    let Some((blocks, usual)) = (match parts {
        Some(parts) => named(values, &parts),
        None => generated(values, layout.pp, if several { 2 } else { 1 }, per_stage, layers, weights),
    }) else {
        return;
    };
    if !usual {
        let name = "parallelism.module_fqns_per_model_part";
        values.nearest(
            name,
            "embedding on the first stage and head on the last",
            "a stage of their own would hold them",
        );
    }
    let stages = blocks.len() as u64;
    layout.virtual_stages = stages / layout.pp;
    if !stages.is_multiple_of(layout.pp)
        || layout.virtual_stages > 1 && !several
        || layout.virtual_stages < 2 && several
    {
        let problem =
            Diagnostic::error("T0496", format!("{stages} stages on {} ranks under schedule {schedule}", layout.pp));
        let help = if several { "two stages or more on every rank" } else { "one stage on every rank" };
        values.problem(name, problem.help(help));
        layout.virtual_stages = 1;
    }
    layout.blocks = Some(blocks);
}

/// Stages by the names of their modules.
fn named(values: &mut Values<'_>, parts: &Setting) -> Option<(Vec<u64>, bool)> {
    let read = stages::read(parts);
    if read.is_none() {
        let problem = Diagnostic::error("T0494", "`module_fqns_per_model_part` is no list of stages");
        let help = "such as [[\"tok_embeddings\", \"layers.0\"], [\"layers.1\", \"norm\", \"output\"]]";
        values.problem("parallelism.module_fqns_per_model_part", problem.help(help));
    }
    read
}

/// Stages as torchtitan makes them.
fn generated(
    values: &mut Values<'_>,
    ranks: u64,
    per_rank: u64,
    per_stage: Option<u64>,
    layers: u64,
    weights: [u64; 2],
) -> Option<(Vec<u64>, bool)> {
    let slots = layers.saturating_add(weights[0]).saturating_add(weights[1]);
    let stages = per_stage.map_or(ranks.saturating_mul(per_rank), |blocks| slots.div_ceil(blocks));
    let blocks = stages::generated(stages.min(MOST_STAGES), layers, weights);
    if blocks.is_none() {
        let problem = Diagnostic::error("T0496", format!("{layers} blocks do not fill {stages} stages"));
        values.problem("parallelism.pipeline_parallel_degree", problem.help("fewer stages"));
    }
    blocks.map(|blocks| (blocks, true))
}

fn batches(values: &mut Values<'_>, layout: &mut Layout) {
    // The default of torchtitan.
    let local = values.some("training.local_batch_size").unwrap_or(8);
    let global = values.some("training.global_batch_size");
    let at_once = local.saturating_mul(layout.dp);
    if layout.pp > 1 {
        if !local.is_multiple_of(layout.micro_batch) {
            let text = format!("a local batch of {local} is no multiple of micro-batches of {}", layout.micro_batch);
            let problem = Diagnostic::error("T0496", text).help("micro-batches that divide it");
            values.problem("parallelism.pipeline_parallel_microbatch_size", problem);
            return;
        }
        layout.grad_accum = local / layout.micro_batch;
    } else {
        layout.micro_batch = local;
    }
    if let Some(global) = global {
        let steps = values.accumulation("training.global_batch_size", global, at_once);
        layout.grad_accum = layout.grad_accum.saturating_mul(steps);
        if layout.pp > 1 && steps > 1 {
            let effect = format!("the pipeline runs empty {steps} times in a step");
            values.nearest("training.global_batch_size", "one run through the pipeline", &effect);
        }
    }
}

fn recompute(values: &mut Values<'_>, layout: &mut Layout) {
    let mode = values.word("activation_checkpoint.mode").unwrap_or_else(|| "selective".to_owned());
    let option = values.word("activation_checkpoint.selective_ac_option").unwrap_or_else(|| "2".to_owned());
    let name = "activation_checkpoint.mode";
    layout.recompute = match (mode.as_str(), option.as_str()) {
        ("none", _) => Recompute::None,
        ("full", _) | ("selective", "1") => Recompute::Full,
        ("selective", "op") => {
            let warning = Diagnostic::warning("T0499", "selective recomputation by op is read as full");
            values.problem(
                name,
                warning
                    .effect("results of products and attention are kept: memory is underestimated, time overestimated"),
            );
            Recompute::Full
        }
        ("selective", n) => {
            let warning =
                Diagnostic::warning("T0499", format!("recomputing one of {n} blocks is read as recomputing none"));
            values.problem(name, warning.effect("memory is overestimated, time underestimated"));
            Recompute::None
        }
        _ => {
            values.nearest(name, "none", "the compiler decides what is kept: memory is overestimated");
            values.skip(&["activation_checkpoint.memory_budget"]);
            Recompute::None
        }
    };
    values.skip(&["activation_checkpoint.preserve_rng_state", "activation_checkpoint.early_stop"]);
}

fn precision(values: &mut Values<'_>) -> Precision {
    let stored = values.word("training.dtype");
    let computed = values.word("training.mixed_precision_param");
    values.skip(&["training.mixed_precision_reduce", "quantize.linear.float8.recipe_name"]);
    let converters = values.words("model.converters").unwrap_or_default();
    if converters.iter().any(|name| name.contains("float8")) {
        return Precision::Fp8;
    }
    match (stored.as_deref(), computed.as_deref()) {
        (Some("bfloat16"), _) => Precision::Bf16Pure,
        (_, Some("float32")) => Precision::Fp32,
        _ => Precision::Bf16Mixed,
    }
}
