//! A layout out of DeepSpeed's JSON.

use nn::config::Source;
use nn::config::json::{self, Kind, Value};
use nn::optim::{self, Implementation, OptimizerKind};
use nn::step::Precision;
use units::{Diagnostic, Diagnostics};

use crate::handover::reading::{Around, Taken, Values};
use crate::handover::settings::Setting;
use crate::handover::{Engine, has_experts};
use crate::layout::{ContextParallel, Layout};

/// Reads the file.
///
/// # Errors
/// `T0494` to `T0496`.
pub fn read(text: &str, around: &Around<'_>) -> Result<Taken, Diagnostics> {
    let mut values = Values::new(Engine::DeepSpeed, text, around)?;
    let (root, problems) = json::parse(&Source::new(around.file, text.to_owned()), 0, 0);
    values.problems.extend(problems);
    let Some(root) = root.filter(|_| !values.problems.has_errors()) else { return Err(values.problems) };
    if !root.is_object() {
        return Err(
            Diagnostic::error("T0494", "this is no object: `{ \"zero_optimization\": ... }` is expected").into()
        );
    }
    flatten(&mut values, "", &root);
    // What the exporter says of the run.
    values.skip(&["napkin"]);
    let mut layout = Layout { tp: values.int("tensor_parallel.autotp_size").unwrap_or(0).max(1), ..Layout::default() };
    layout.cp = values.degree("sequence_parallel_size");
    layout.context = ContextParallel::AllToAll;
    pipeline(&mut values);
    experts(&mut values, &mut layout, around);
    if let Some(dp) = values.replicas(None, layout.tp.saturating_mul(layout.cp)) {
        layout.dp = dp;
    }
    zero(&mut values, &mut layout);
    batches(&mut values, &mut layout);
    let precision = precision(&mut values);
    let optimizer = optimizer(&mut values);
    values.problems.push(
        Diagnostic::note("T0499", "recomputation and sequence length are not in the file: the program decides them")
            .help("--recompute full, --seq-len 4096"),
    );
    Ok(Taken { optimizer, ..values.finish(&layout, None, Some(precision))? })
}

/// The update, where the program does not bring it. Its own kernels are fused.
///
/// Source: `runtime/engine.py`, `_configure_basic_optimizer`, of DeepSpeed 0.19.8.
fn optimizer(values: &mut Values<'_>) -> Option<OptimizerKind> {
    let name = "optimizer.type";
    let kind = match values.word(name)?.to_ascii_lowercase().as_str() {
        "adam" => optim::Kind::Adam,
        "adamw" => optim::Kind::AdamW,
        "lion" => optim::Kind::Lion,
        "muon" => optim::Kind::Muon,
        "adagrad" => optim::Kind::AdaGrad,
        _ => {
            values.nearest(name, "adamw", "states of another optimizer take other bytes");
            optim::Kind::AdamW
        }
    };
    Some(OptimizerKind { kind, implementation: Implementation::Fused })
}

/// The options of an object and of those in it. `null` and `auto` leave an option to the program.
fn flatten(values: &mut Values<'_>, prefix: &str, object: &Value) {
    for member in object.members() {
        let name = format!("{prefix}{}", member.key);
        let span = member.value.span.start as usize..member.value.span.end as usize;
        match &member.value.kind {
            Kind::Object(_) => flatten(values, &format!("{name}."), &member.value),
            Kind::Null => {}
            Kind::String(text) if &**text == "auto" => {}
            // The old form of ZeRO 1.
            Kind::Bool(on) if name == "zero_optimization" => {
                values.add("zero_optimization.stage", Setting::Int(u64::from(*on)), span);
            }
            _ => values.add(&name, setting(&member.value), span),
        }
    }
}

fn setting(value: &Value) -> Setting {
    match &value.kind {
        Kind::Bool(value) => Setting::Bool(*value),
        Kind::Number(text) => number(text),
        Kind::Array(items) => Setting::List(items.iter().map(setting).collect()),
        Kind::String(text) => Setting::from(&**text),
        Kind::Null | Kind::Object(_) => Setting::from(""),
    }
}

/// A number; `5e8`, which is how bucket sizes are written, is a whole one.
fn number(text: &str) -> Setting {
    if let Ok(value) = text.parse::<u64>() {
        return Setting::Int(value);
    }
    match text.parse::<f64>() {
        // Whole numbers below 2^53 are exact.
        Ok(value) if value.fract() == 0.0 && (0.0..9e15).contains(&value) => Setting::Int(value as u64),
        Ok(value) if value.is_finite() => Setting::Float(value),
        _ => text.into(),
    }
}

fn pipeline(values: &mut Values<'_>) {
    if values.value("pipeline.stages").is_some() {
        let warning =
            Diagnostic::warning("T0497", "pipeline stages are not read: the program decides how many there are");
        values.problem("pipeline.stages", warning.help("--pp 4"));
    }
    values.skip(&["pipeline.partition"]);
}

fn experts(values: &mut Values<'_>, layout: &mut Layout, around: &Around<'_>) {
    let on = values.is("expert_parallel.enabled");
    let ep = values.degree("expert_parallel.autoep_size");
    let etp = values.degree("expert_parallel.expert_tensor_parallel_size");
    if has_experts(around.model) {
        (layout.ep, layout.etp) = if on && ep > 1 { (ep, etp) } else { (1, layout.tp) };
    } else if on && ep > 1 {
        let warning = Diagnostic::warning("T0496", format!("expert parallel {ep}: the model has no experts"));
        values.problem("expert_parallel.autoep_size", warning.effect("it is read as 1"));
    }
}

fn zero(values: &mut Values<'_>, layout: &mut Layout) {
    layout.zero = values.int("zero_optimization.stage").map_or(0, |stage| u8::try_from(stage).unwrap_or(u8::MAX));
    values.skip(&[
        "zero_optimization.overlap_comm",
        "zero_optimization.contiguous_gradients",
        "zero_optimization.reduce_scatter",
    ]);
    let ahead = values.int("zero_optimization.stage3_prefetch_bucket_size");
    layout.gathering.prefetch = layout.zero < 3 || ahead != Some(0);
    let old = values.is("zero_optimization.cpu_offload");
    let device = values.word("zero_optimization.offload_optimizer.device");
    layout.offload.optimizer = old || device.as_deref().is_some_and(|device| device != "none");
    values.skip(&["zero_optimization.offload_optimizer.pin_memory"]);
    if device.as_deref() == Some("nvme") {
        values.nearest("zero_optimization.offload_optimizer.device", "cpu", "a disk is slower");
    }
    if values.number("zero_optimization.offload_optimizer.ratio").is_some_and(|share| share < 1.0) {
        values.nearest(
            "zero_optimization.offload_optimizer.ratio",
            "1",
            "what stays on the device is not counted there",
        );
    }
    if layout.offload.optimizer && layout.zero == 0 {
        let problem = Diagnostic::error("T0496", "an optimizer on the host without ZeRO");
        values.problem("zero_optimization.offload_optimizer.device", problem.help("\"stage\": 1"));
    }
}

fn batches(values: &mut Values<'_>, layout: &mut Layout) {
    let global = values.some("train_batch_size");
    let micro = values.some("train_micro_batch_size_per_gpu");
    let steps = values.some("gradient_accumulation_steps");
    let dp = layout.dp;
    (layout.micro_batch, layout.grad_accum) = match (global, micro, steps) {
        (None, Some(micro), steps) => (micro, steps.unwrap_or(1)),
        (Some(global), Some(micro), steps) => {
            let derived = values.accumulation("train_batch_size", global, micro.saturating_mul(dp));
            if let Some(steps) = steps.filter(|steps| *steps != derived && !values.problems.has_errors()) {
                let text = format!("a batch of {global} is not {micro} × {steps} × {dp} replicas");
                let problem = Diagnostic::error("T0496", text);
                values.problem(
                    "gradient_accumulation_steps",
                    problem.help(format!("gradient_accumulation_steps {derived}")),
                );
            }
            (micro, derived)
        }
        (Some(global), None, steps) => {
            let steps = steps.unwrap_or(1);
            (values.accumulation("train_batch_size", global, steps.saturating_mul(dp)), steps)
        }
        (None, None, _) => {
            let problem = Diagnostic::error("T0495", "the batch is not in the file");
            values.problems.push(problem.help("\"train_micro_batch_size_per_gpu\": 1, or --micro-batch 1"));
            (1, 1)
        }
    };
}

fn precision(values: &mut Values<'_>) -> Precision {
    let bf16 = values.is("bf16.enabled");
    let fp16 = values.is("fp16.enabled");
    let pure = values.is("bf16.bf16_master_weights_and_grads");
    let states = values.is("bf16.bf16_optimizer_states");
    let grads = values.word("data_types.grad_accum_dtype");
    let autocast = values.is("torch_autocast.enabled");
    let half = values.word("torch_autocast.dtype");
    if bf16 && fp16 {
        values
            .problem("fp16.enabled", Diagnostic::error("T0496", "bf16 and fp16 are both enabled").help("one of them"));
    }
    if fp16 {
        let effect = "weights are f16 beside f32 masters: two bytes more for every parameter";
        values.nearest("fp16.enabled", "precision fp16-mixed", effect);
        return Precision::Fp16Mixed;
    }
    if bf16 {
        if pure && !states {
            values.nearest(
                "bf16.bf16_master_weights_and_grads",
                "precision bf16-pure",
                "states of the optimizer are f32",
            );
        }
        return match (pure, grads.as_deref()) {
            (true, _) => Precision::Bf16Pure,
            (false, Some("fp32")) => Precision::Bf16MasterFp32Grads,
            (false, _) => Precision::Bf16Master,
        };
    }
    match (autocast, half.as_deref()) {
        (false, _) => Precision::Fp32,
        (true, Some("float16" | "fp16")) => Precision::Fp16Mixed,
        (true, _) => Precision::Bf16Mixed,
    }
}
