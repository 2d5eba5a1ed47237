//! A layout out of nanotron's YAML.

use nn::context::Recompute;
use nn::optim::{self, Implementation, OptimizerKind};
use nn::step::Precision;
use units::{Diagnostic, Diagnostics};

use crate::handover::reading::{Around, Taken, Values};
use crate::handover::shape::Shape;
use crate::handover::{Engine, yaml};
use crate::layout::{Layout, Schedule};

/// Reads the file.
///
/// # Errors
/// `T0494` to `T0496`, `T0490` for experts.
pub fn read(text: &str, around: &Around<'_>) -> Result<Taken, Diagnostics> {
    let mut values = Values::new(Engine::Nanotron, text, around)?;
    values.in_capitals("parallelism.tp_mode");
    yaml::read(text, around, &mut values)?;
    let mut layout = Layout {
        dp: values.degree("parallelism.dp"),
        tp: values.degree("parallelism.tp"),
        pp: values.degree("parallelism.pp"),
        cp: values.degree("parallelism.context_parallel_size"),
        ..Layout::default()
    };
    values.makes([layout.dp, layout.tp, layout.pp, layout.cp].into_iter().fold(1, u64::saturating_mul));
    if values.degree("parallelism.expert_parallel_size") > 1 {
        let problem = Diagnostic::error("T0490", "expert parallelism of nanotron is not read");
        let why = "its mixture of experts does not exchange tokens between ranks";
        values.problem("parallelism.expert_parallel_size", problem.why(why).help("expert_parallel_size: 1"));
    }
    layout.sp = values.word("parallelism.tp_mode").is_some_and(|mode| mode == "REDUCE_SCATTER");
    values.skip(&["parallelism.tp_linear_async_communication", "parallelism.tp_recompute_allgather"]);
    pipeline(&mut values, &mut layout);
    layout.recompute = if values.is("parallelism.recompute_layer") { Recompute::Full } else { Recompute::None };
    layout.zero = values.int("optimizer.zero_stage").map_or(0, |stage| u8::try_from(stage).unwrap_or(u8::MAX));
    if layout.cp > 1 {
        // It divides states over the ranks of data parallelism alone.
        layout.shard = Some(layout.dp);
    }
    layout.micro_batch = values.degree("tokens.micro_batch_size");
    layout.grad_accum = values.degree("tokens.batch_accumulation_per_replica");
    let seq_len = values.some("tokens.sequence_length");
    let precision = precision(&mut values);
    compare(&mut values, Shape::of(around.model).ok().as_ref());
    let optimizer = optimizer(&mut values);
    let loss = Some(Engine::Nanotron.usual_loss());
    Ok(Taken { optimizer, loss, ..values.finish(&layout, seq_len, Some(precision))? })
}

/// The update; AdamW by fused kernels where the file says so, all else as PyTorch runs it unasked.
fn optimizer(values: &mut Values<'_>) -> Option<OptimizerKind> {
    let fused = values.is("optimizer.optimizer_factory.torch_adam_is_fused");
    let kind = match values.word("optimizer.optimizer_factory.name")?.as_str() {
        "sgd" => optim::Kind::Sgd,
        _ => optim::Kind::AdamW,
    };
    let fused = fused && kind == optim::Kind::AdamW;
    let implementation = if fused { Implementation::Fused } else { Implementation::ForEach };
    Some(OptimizerKind { kind, implementation })
}

fn pipeline(values: &mut Values<'_>, layout: &mut Layout) {
    let name = "parallelism.pp_engine";
    let engine = values.word(name);
    if layout.pp == 1 {
        return;
    }
    // Its default, which it calls conservative.
    layout.schedule = if engine.as_deref() == Some("1f1b") { Schedule::OneFOneB } else { Schedule::GPipe };
    let warning = Diagnostic::warning("T0499", "stages are read as even");
    values.problem("parallelism.pp", warning.effect("nanotron places blocks by what they cost, the head included"));
}

fn precision(values: &mut Values<'_>) -> Precision {
    let wide = values.is("optimizer.accumulate_grad_in_fp32");
    match (values.word("model.dtype").as_deref(), wide) {
        (Some("float32" | "float64"), _) => Precision::Fp32,
        (Some("float16"), _) => {
            let effect = "weights are f16, with what gradients and masters it has in f32";
            values.nearest("model.dtype", "precision fp16-mixed", effect);
            Precision::Fp16Mixed
        }
        (_, true) => Precision::Bf16MasterFp32Grads,
        (_, false) => Precision::Bf16Pure,
    }
}

/// Holds the sizes in the file against those of the model.
fn compare(values: &mut Values<'_>, shape: Option<&Shape>) {
    let size = |f: fn(&Shape) -> Option<u64>| shape.and_then(f);
    let prefix = "model.model_config.";
    values.same(&format!("{prefix}num_hidden_layers"), size(|s| Some(s.layers)));
    values.same(&format!("{prefix}hidden_size"), size(|s| Some(s.hidden)));
    values.same(&format!("{prefix}intermediate_size"), size(|s| s.ffn));
    values.same(&format!("{prefix}num_attention_heads"), size(|s| Some(s.heads)));
    values.same(&format!("{prefix}num_key_value_heads"), size(|s| Some(s.kv_heads)));
    values.same(&format!("{prefix}vocab_size"), size(|s| Some(s.vocab)));
    for name in [
        "hidden_act",
        "is_llama_config",
        "is_qwen2_config",
        "max_position_embeddings",
        "attention_bias",
        "pretraining_tp",
        "rms_norm_eps",
        "rope_theta",
        "rope_interleaved",
        "tie_word_embeddings",
        "_attn_implementation",
        "sliding_window_size",
        "no_rope_layer",
        "_fused_rotary_emb",
        "_fused_rms_norm",
        "_use_qkv_packed",
        "z_loss_enabled",
    ] {
        values.skip(&[&format!("{prefix}{name}")]);
    }
    values.skip(&["model.make_vocab_size_divisible_by", "model.ddp_bucket_cap_mb"]);
    values.skip(&["optimizer.optimizer_factory.name", "optimizer.optimizer_factory.torch_adam_is_fused"]);
}
