//! A layout as nanotron's YAML.
//!
//! Source of the rules: `config.py`, `parallelism_config.py`, `models_config.py`, `nn/attention.py` and `nn/moe.py` of nanotron at
//! the commits that `data/engines/nanotron.csv` names (`nn/moe.py`: 030bbb09fd).

use nn::context::Recompute;
use nn::optim::{Implementation, Kind, OptimizerKind};
use nn::spec::Activation;
use nn::step::Precision;

use crate::handover::Draft;
use crate::handover::shape::{Shape, rms};
use crate::layout::{ContextParallel, Schedule};

/// Writes the options, or what stands against them.
pub fn export(draft: &mut Draft<'_>) {
    draft.settings.set("general.project", "napkin");
    draft.settings.set("general.run", draft.run.name);
    draft.settings.set("general.seed", 42u64);
    degrees(draft);
    model(draft);
    tokens(draft);
    optimizer(draft);
    draft.refuse_other_loss(draft.engine.usual_loss());
    draft.notes.push("data_stages, tokenizer, checkpoints and the learning rate are yours to set".to_owned());
}

fn degrees(draft: &mut Draft<'_>) {
    let layout = draft.layout.clone();
    let engine = match layout.schedule {
        Schedule::GPipe => "afab",
        Schedule::OneFOneB => "1f1b",
        other => {
            draft.refuse(
                "T0490",
                format!("schedule {other}"),
                "its engines are afab and 1f1b",
                "schedule gpipe or 1f1b",
            );
            "1f1b"
        }
    };
    if layout.virtual_stages > 1 {
        draft.refuse(
            "T0490",
            format!("{} virtual stages", layout.virtual_stages),
            "a rank has one stage",
            "one virtual stage",
        );
    }
    if layout.blocks.is_some() {
        draft.refuse(
            "T0490",
            "stages with numbers of blocks of your own",
            "it places blocks by what they cost",
            "even stages",
        );
    }
    if layout.pp > 1 {
        let effect = "stages may hold other blocks than planned";
        draft.differs("it places blocks by what they cost, the head included", effect);
    }
    if layout.cp > 1 && layout.context == ContextParallel::AllToAll {
        draft.refuse("T0490", "cp by all-to-all of heads", "its context parallelism is a ring", "a ring");
    }
    let recompute = match layout.recompute {
        Recompute::None => false,
        Recompute::Full => true,
        Recompute::Selective | Recompute::Budget(_) => {
            let what = format!("recompute {}", layout.recompute.name());
            draft.refuse("T0490", what, "it runs whole blocks again, or none", "recompute none or full");
            false
        }
    };
    if layout.offload.is_any() {
        draft.refuse(
            "T0490",
            format!("{} on the host", layout.offload),
            "it keeps everything on devices",
            "no offload",
        );
    }
    let settings = &mut draft.settings;
    settings.set("parallelism.dp", layout.dp);
    settings.set("parallelism.tp", layout.tp);
    settings.set("parallelism.pp", layout.pp);
    settings.set("parallelism.context_parallel_size", layout.cp);
    settings.set("parallelism.expert_parallel_size", layout.ep);
    settings.set("parallelism.pp_engine", engine);
    settings.set("parallelism.tp_mode", if layout.sp { "REDUCE_SCATTER" } else { "ALL_REDUCE" });
    settings.set("parallelism.tp_linear_async_communication", layout.sp);
    settings.set("parallelism.recompute_layer", recompute);
}

/// Its one model for all of these is that of Qwen 2, whose biases are optional.
fn model(draft: &mut Draft<'_>) {
    let Some(shape) = draft.shape() else { return };
    odd(draft, &shape);
    let (seq_len, cp, vocab, tp) = (draft.run.seq_len, draft.layout.cp, shape.vocab, draft.layout.tp);
    draft.notes.push("scaling of rotary frequencies, where the model has it, is yours to add".to_owned());
    let settings = &mut draft.settings;
    let prefix = "model.model_config.";
    settings.set(format!("{prefix}is_qwen2_config"), true);
    settings.set(format!("{prefix}num_hidden_layers"), shape.layers);
    settings.set(format!("{prefix}hidden_size"), shape.hidden);
    settings.set(format!("{prefix}intermediate_size"), shape.ffn.unwrap_or(0));
    settings.set(format!("{prefix}hidden_act"), "silu");
    settings.set(format!("{prefix}num_attention_heads"), shape.heads);
    settings.set(format!("{prefix}num_key_value_heads"), shape.kv_heads);
    settings.set(format!("{prefix}attention_bias"), shape.qkv_bias);
    settings.set(format!("{prefix}rms_norm_eps"), shape.norm.eps);
    if let Some((theta, _)) = shape.rotary {
        settings.set(format!("{prefix}rope_theta"), theta);
    }
    settings.set(format!("{prefix}rope_interleaved"), shape.interleaved);
    settings.set(format!("{prefix}max_position_embeddings"), shape.max_positions.unwrap_or(seq_len).max(seq_len));
    if let Some(window) = shape.window {
        settings.set(format!("{prefix}sliding_window_size"), window);
    }
    settings.set(format!("{prefix}tie_word_embeddings"), shape.tied);
    settings.set(format!("{prefix}vocab_size"), vocab);
    settings.set(format!("{prefix}_attn_implementation"), if cp > 1 { "ring" } else { "flash_attention_2" });
    settings.set("model.init_method.std", 0.02);
    settings.set("model.make_vocab_size_divisible_by", 1u64);
    if !vocab.is_multiple_of(tp) {
        let effect = format!("the table is padded to {} rows", vocab.next_multiple_of(tp));
        draft.differs(format!("{vocab} token ids on {tp} ranks"), effect);
    }
}

fn odd(draft: &mut Draft<'_>, shape: &Shape) {
    let all: [(bool, &str); 8] = [
        (shape.experts.is_some(), "experts: those of its mixture do not exchange tokens between ranks"),
        (rms(&shape.norm) != Some(true), "norms other than RMSNorm"),
        (!shape.gated || shape.act != Activation::Silu, "feed-forward parts other than SwiGLU"),
        (shape.bias, "biases on all linear maps"),
        (shape.qk_norm, "norms on queries and keys"),
        (shape.latent.is_some(), "latent attention"),
        (shape.rotary.is_none_or(|(_, dim)| dim != shape.head_dim), "positions other than rotary ones of full width"),
        (shape.head_dim.checked_mul(shape.heads) != Some(shape.hidden), "heads that do not make the hidden size"),
    ];
    for (_, what) in all.iter().filter(|(is, _)| *is) {
        let why = "it runs models with the modules of Llama and Qwen 2";
        draft.refuse("T0491", what, why, "megatron; deepspeed and fsdp take the model from your program");
    }
}

fn tokens(draft: &mut Draft<'_>) {
    let (layout, run) = (draft.layout.clone(), *draft.run);
    draft.settings.set("tokens.sequence_length", run.seq_len);
    draft.settings.set("tokens.micro_batch_size", layout.micro_batch);
    draft.settings.set("tokens.batch_accumulation_per_replica", layout.grad_accum);
    if run.steps.is_none() {
        draft.notes.push("tokens.train_steps is yours to set: 100 is enough to measure a step".to_owned());
    }
    draft.settings.set("tokens.train_steps", run.steps.unwrap_or(100));
}

fn optimizer(draft: &mut Draft<'_>) {
    let zero = draft.layout.zero;
    if zero > 1 {
        draft.refuse(
            "T0490",
            format!("zero {zero}"),
            "it divides optimizer states, not gradients or parameters",
            "zero 0 or 1",
        );
    }
    let replicas = draft.layout.dp;
    if zero == 1 && draft.layout.sharing_ranks() != replicas {
        let what = format!("states divided over {} ranks", draft.layout.sharing_ranks());
        draft.refuse(
            "T0490",
            what,
            "its ZeRO divides over the ranks of data parallelism",
            format!("{replicas} ranks, or zero 0"),
        );
    }
    let (dtype, wide) = match draft.run.precision {
        Precision::Fp32 => ("float32", false),
        Precision::Bf16MasterFp32Grads => ("bfloat16", true),
        Precision::Bf16Pure => ("bfloat16", false),
        other => {
            let why = "with gradients in f32 it has masters in f32; without, everything is in the dtype of the model";
            let help = "--precision bf16-master-fp32-grads";
            draft.refuse("T0492", format!("precision {}", other.name()), why, help);
            ("bfloat16", true)
        }
    };
    let settings = &mut draft.settings;
    settings.set("model.dtype", dtype);
    settings.set("optimizer.zero_stage", u64::from(zero));
    settings.set("optimizer.accumulate_grad_in_fp32", wide);
    let prefix = "optimizer.optimizer_factory.";
    match draft.run.optimizer {
        OptimizerKind {
            kind: Kind::AdamW,
            implementation: form @ (Implementation::Fused | Implementation::ForEach),
        } => {
            settings.set(format!("{prefix}name"), "adamW");
            settings.set(format!("{prefix}adam_beta1"), 0.9);
            settings.set(format!("{prefix}adam_beta2"), 0.95);
            settings.set(format!("{prefix}adam_eps"), 1e-8);
            settings.set(format!("{prefix}torch_adam_is_fused"), form == Implementation::Fused);
        }
        // As PyTorch runs it unasked.
        OptimizerKind { kind: Kind::Sgd, implementation: Implementation::ForEach } => {
            settings.set(format!("{prefix}name"), "sgd");
        }
        _ => draft.refuse_optimizer("adamw, fused or foreach, and sgd-foreach"),
    }
    let settings = &mut draft.settings;
    settings.set("optimizer.weight_decay", 0.1);
    settings.set("optimizer.clip_grad", 1.0);
    settings.set("optimizer.learning_rate_scheduler.learning_rate", 3e-4);
    settings.set("optimizer.learning_rate_scheduler.lr_warmup_steps", 0u64);
    settings.set("optimizer.learning_rate_scheduler.lr_warmup_style", "linear");
    settings.set("optimizer.learning_rate_scheduler.lr_decay_style", "cosine");
    settings.set("optimizer.learning_rate_scheduler.min_decay_lr", 3e-5);
}
