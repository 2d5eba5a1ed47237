//! A layout out of accelerate's YAML.

use nn::context::Recompute;
use nn::step::Precision;
use units::{Diagnostic, Diagnostics};

use crate::handover::reading::{Around, Taken, Values};
use crate::handover::settings::Setting;
use crate::handover::{Engine, has_experts, yaml};
use crate::layout::Layout;
use crate::sharding::Wrap;

/// Reads the file. Gradients of micro-batches are those of accelerate's `accumulate`, which adds them up whole unless the program
/// says `sync_each_batch`.
///
/// Source: huggingface/accelerate, `src/accelerate/accelerator.py`, `accumulate` and `no_sync`.
///
/// # Errors
/// `T0494` to `T0496`.
pub fn read(text: &str, around: &Around<'_>) -> Result<Taken, Diagnostics> {
    let mut values = Values::new(Engine::Fsdp, text, around)?;
    yaml::read(text, around, &mut values)?;
    if let Some(other) = values.word("distributed_type").filter(|word| word != "FSDP") {
        let problem = Diagnostic::error("T0496", format!("`distributed_type` is {other}, not FSDP"));
        values.problem("distributed_type", problem.help("distributed_type: FSDP"));
    }
    let prefix = "parallelism_config.parallelism_config_";
    let mut layout = Layout {
        tp: values.degree(&format!("{prefix}tp_size")),
        cp: values.degree(&format!("{prefix}cp_size")),
        ..Layout::default()
    };
    if has_experts(around.model) {
        layout.etp = layout.tp;
    }
    context(&mut values, layout.cp);
    sharding(&mut values, &mut layout);
    let recompute = values.is("fsdp_config.fsdp_activation_checkpointing");
    layout.recompute = if recompute { Recompute::Full } else { Recompute::None };
    layout.offload.activations = values.is("fsdp_config.fsdp_activation_checkpointing_offload");
    layout.offload.optimizer = values.is("fsdp_config.fsdp_offload_params");
    if layout.offload.optimizer {
        let effect = "parameters and gradients are on the host, too: less on the device, and more copies";
        values.nearest("fsdp_config.fsdp_offload_params", "an optimizer on the host", effect);
    }
    units(&mut values, &mut layout);
    let precision = precision(&mut values);
    values.problems.push(
        Diagnostic::note("T0499", "batches and sequence length are not in the file: the program decides them")
            .help("--micro-batch 4 --grad-accum 8 --seq-len 4096")
            .effect("with --grad-accum gradients are whole until the last micro-batch, unless --sync says otherwise"),
    );
    let mut taken = values.finish(&layout, None, Some(precision))?;
    // Micro-batches are not known yet.
    taken.layout.gathering.sync = taken.layout.zero < 2;
    Ok(taken)
}

/// What is gathered at a time: a block, everything, or something else.
fn units(values: &mut Values<'_>, layout: &mut Layout) {
    let name = "fsdp_config.fsdp_auto_wrap_policy";
    match values.word(name).as_deref() {
        None | Some("TRANSFORMER_BASED_WRAP") => {}
        Some("NO_WRAP") => layout.gathering.wrap = Wrap::Model,
        Some(_) => values.nearest(name, "one unit for each block", "other units gather other bytes at a time"),
    }
    for option in ["use_orig_params", "backward_prefetch", "forward_prefetch", "transformer_layer_cls_to_wrap"] {
        values.skip(&[&format!("fsdp_config.fsdp_{option}")]);
    }
}

fn context(values: &mut Values<'_>, cp: u64) {
    let name = "parallelism_config.parallelism_config_cp_comm_strategy";
    let way = values.word(name);
    values.skip(&["parallelism_config.parallelism_config_cp_backend"]);
    if cp > 1 && way.as_deref() != Some("alltoall") {
        let warning = Diagnostic::warning("T0499", format!("`{name}` is allgather, and is read as a ring"));
        let effect = "all keys and values of a sequence lie on every rank at once, which is not counted";
        values.problem(name, warning.effect(effect));
    }
}

fn sharding(values: &mut Values<'_>, layout: &mut Layout) {
    let devices = values.some("num_processes");
    if let Some(devices) = devices {
        values.makes(devices);
    }
    let prefix = "parallelism_config.parallelism_config_";
    let copies = values.some(&format!("{prefix}dp_replicate_size"));
    let shard = values.some(&format!("{prefix}dp_shard_size"));
    let shared = layout.tp.saturating_mul(layout.cp);
    if copies.is_some() || shard.is_some() {
        let (copies, shard) = (copies.unwrap_or(1), shard.unwrap_or(1));
        layout.dp = copies.saturating_mul(shard);
        let made = layout.dp.saturating_mul(shared);
        values.makes(made);
        if let Some(devices) = devices.filter(|devices| *devices != made) {
            let problem = Diagnostic::error("T0496", format!("{devices} processes, and degrees that make {made}"));
            values.problem("num_processes", problem.help(format!("num_processes: {made}")));
        }
        layout.shard = Some(shard.saturating_mul(layout.cp));
    } else if let Some(dp) = values.replicas(devices, shared) {
        layout.dp = dp;
    }
    strategy(values, layout);
}

/// FSDP2 says whether gathered parameters stay, FSDP1 which of its strategies it is.
fn strategy(values: &mut Values<'_>, layout: &mut Layout) {
    let name = "fsdp_config.fsdp_reshard_after_forward";
    let second = values.int("fsdp_config.fsdp_version") == Some(2);
    let old = values.word("fsdp_config.fsdp_sharding_strategy");
    (layout.zero, layout.gathering.reshard) = match values.value(name).cloned() {
        Some(Setting::Bool(reshard)) => (3, reshard),
        None if second => (3, true),
        other => {
            let word = match other {
                Some(Setting::Text(word)) => word,
                _ => old.unwrap_or_else(|| "FULL_SHARD".to_owned()),
            };
            if word.starts_with("HYBRID") {
                values.nearest(
                    name,
                    "sharding over 8 ranks",
                    "it divides over the devices of a node, whose number is not in the file",
                );
                layout.shard = Some(8.min(layout.dp));
            }
            match word.as_str() {
                "NO_SHARD" => (0, true),
                "SHARD_GRAD_OP" | "HYBRID_SHARD_ZERO2" => (3, false),
                _ => (3, true),
            }
        }
    };
}

fn precision(values: &mut Values<'_>) -> Precision {
    match values.word("mixed_precision").as_deref() {
        Some("bf16") => Precision::Bf16Mixed,
        Some("fp16") => Precision::Fp16Mixed,
        Some("fp8") => Precision::Fp8,
        _ => Precision::Fp32,
    }
}
