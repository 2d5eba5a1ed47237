//! Keys that cannot change what training costs, so that nobody has to be told they were not read.
//!
//! Made by going through every key of 187 released configurations. A key is listed only if no value it can take changes a
//! parameter, a contraction, or a tensor that is kept: scales and epsilons are free, a dropout rate is not (its mask is
//! kept), a soft cap is not (it adds a kept tensor), `sliding_window` is not.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use super::json::{Kind, Value};

/// Free whatever the value. One text per reason, keys separated by spaces.
const ALWAYS: &[&str] = &[
    // Who made the file, and for what program.
    "context_length use_mamba_kernels use_associative_scan use_mambapy use_mem_eff_path \
     bias_dropout_fusion mode step_kernel sequence_kernel chunkwise_kernel autocast_kernel_dtype \
     inference_state_dtype max_inference_chunksize return_last_states _attn_implementation _attn_implementation_autoset _commit_hash _flash_attn_2_enabled \
     _from_model_config _name_or_path _num_labels architectures attn_implementation auto_map \
     custom_pipelines init_device is_llama_config jax legacy model_version name_or_path onnx \
     output_past tokenizer_class torchscript transformers.js_config transformers_version \
     use_flash_attn flash_attn flash_rotary fused_dense deterministic_flash_attn use_cache \
     use_cache_kernel use_cache_quantization use_legacy_cache return_dict unsloth_fixed \
     unsloth_version xla_device use_bfloat16 bf16 fp16 fp32 pretraining_tp ep_size \
     slow_but_exact num_logits_to_keep model_max_length compression_config base_model_tp_plan \
     keys_to_ignore_at_inference is_decoder",
    // Token ids and text.
    "bos_token_id eos_token_id pad_token_id unk_token_id sep_token_id cls_token_id mask_token_id \
     eod_token_id decoder_start_token_id forced_bos_token_id forced_eos_token_id ignore_index \
     image_token_id image_token_index video_token_id video_token_index audio_token_id \
     boi_token_id eoi_token_id boa_token_id eoa_token_id boi_token_index eoi_token_index \
     vision_start_token_id vision_end_token_id vision_token_id media_placeholder_token_id \
     suppress_tokens begin_suppress_tokens sparse_pred_ignore_index n_special \
     predict_special_tokens prefix",
    // Initialisation.
    "initializer_range initializer_factor initializer_cutoff_factor init_std init_method_std \
     init_method embedding_initializer_range emb_init_std final_w_init_variance_scale \
     w_init_variance_scale rescale_prenorm_residual lambda_std_dev hidden_init_std \
     time_step_init_scheme time_step_scale time_step_floor time_step_min time_step_max \
     time_step_limit",
    // Scalars inside an operation that is counted anyway.
    "rms_norm_eps layer_norm_eps layer_norm_epsilon layernorm_epsilon norm_eps norm_epsilon \
     mixer_rms_eps rms_norm_epsilon rmsnorm_eps hc_eps eps query_pre_attn_scalar attn_scale \
     attention_multiplier scale_attn_weights scale_attn_by_inverse_layer_idx \
     reorder_and_upcast_attn attention_softmax_in_fp32 scale_attention_softmax_in_fp32 \
     apply_query_key_layer_scaling swiglu_limit swiglu_alpha attention_value_scale scale_embedding scale_emb scale_depth dim_model_base \
     embedding_multiplier residual_multiplier \
     attn_temperature_tuning floor_scale use_logn_attn logits_scaling",
    // Position encodings by rotation hold no parameters, whatever their base and stretch.
    "rope_theta rope_scaling rope_parameters rope_local_base_freq rope_base rope_ratio \
     rope_interleave rope_interleaved rope_traditional rope_scaling_type rope_scaling_factor \
     swa_rope_theta compress_rope_theta rotary_emb_base rotary_base indexer_rope_interleave \
     use_mrope use_dynamic_ntk original_rope original_max_position_embeddings \
     initial_context_length",
    // Routing: weights of the chosen experts and loss terms on the router's probabilities.
    "router_aux_loss_coef aux_loss_alpha aux_loss_coef seq_aux router_z_loss_coef \
     z_loss_coefficient load_balance_coeff router_jitter_noise router_bias_update_speed \
     norm_topk_prob routed_scaling_factor route_scale route_norm router_scaling_factor \
     moe_router_scaling_factor moe_norm_min moe_renormalize scoring_func score_func n_group \
     topk_group num_expert_group",
    // Generation.
    "bad_words_ids cache_implementation diversity_penalty do_sample early_stopping \
     encoder_no_repeat_ngram_size exponential_decay_length_penalty length_penalty max_length \
     max_new_tokens min_length min_new_tokens no_repeat_ngram_size num_beam_groups num_beams \
     num_return_sequences output_scores remove_invalid_values repetition_penalty \
     return_dict_in_generate temperature top_k top_p typical_p generation_config min_p",
    // Heads for other tasks, which language-model training does not build.
    "classifier_activation classifier_bias classifier_dropout classifier_dropout_prob \
     classifier_pooling classifier_proj_size cls_dropout finetuning_task id2label label2id \
     num_labels problem_type qa_dropout seq_classif_dropout summary_activation \
     summary_first_dropout summary_last_dropout summary_proj_to_labels summary_type \
     summary_use_proj task_specific_params start_n_top end_n_top reference_compile \
     tf_legacy_loss",
];

/// Free while they say no: `false`, 0, or nothing.
const WHEN_OFF: &[&str] = &["activation_dropout add_cross_attention attention_dropout attention_probs_dropout_prob \
     attn_dropout attn_dropout_prob attn_pdrop chunk_size_feed_forward decoder_layerdrop dropout \
     dropout_rate emb_dropout_prob emb_pdrop embd_pdrop embed_dropout embedding_dropout \
     encoder_layerdrop ffn_dropout gradient_checkpointing hidden_dropout hidden_dropout_prob \
     is_encoder_decoder layerdrop mlp_dropout output_attentions output_hidden_states \
     output_router_logits resid_dropout resid_pdrop residual_dropout tie_encoder_decoder \
     use_mem_rope use_long_context fp32_residual_connection residual_in_fp32 post_embed_norm \
     pooler_dropout feat_proj_dropout final_dropout relative_attention mup_enabled is_moe alibi \
     sparse_prediction use_bidirectional_attention"];

// Sets, because a hostile file may have every key of a dictionary.
static ALWAYS_SET: LazyLock<BTreeSet<&str>> = LazyLock::new(|| keys(ALWAYS));
static WHEN_OFF_SET: LazyLock<BTreeSet<&str>> = LazyLock::new(|| keys(WHEN_OFF));

fn keys(groups: &[&'static str]) -> BTreeSet<&'static str> {
    groups.iter().flat_map(|group| group.split(' ')).collect()
}

/// Keys of the wrapper that hold for the language model inside too.
pub const SHARED_WITH_WRAPPER: &[&str] = &["tie_word_embeddings", "torch_dtype", "dtype", "quantization_config"];

/// Whether `key` with this value cannot change what training costs.
///
/// Nothing given (`null`, `[]`, `{}`) is as if the key were absent.
pub fn is_free(key: &str, value: &Value) -> bool {
    let nothing = match &value.kind {
        Kind::Null => true,
        Kind::Array(items) => items.is_empty(),
        Kind::Object(members) => members.is_empty(),
        _ => false,
    };
    nothing || ALWAYS_SET.contains(key) || (WHEN_OFF_SET.contains(key) && is_off(value))
}

fn is_off(value: &Value) -> bool {
    match &value.kind {
        Kind::Bool(flag) => !flag,
        Kind::Number(text) => text.parse::<f64>().is_ok_and(|number| number == 0.0),
        _ => false,
    }
}
