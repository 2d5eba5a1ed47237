//! Which part of a model a tensor belongs to, by its name in transformers or llama.cpp.

/// A part of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Group {
    /// Tables of tokens and positions.
    Embedding,
    /// Attention, its projections and biases.
    Attention,
    /// Feed-forward parts that every token passes.
    Mlp,
    /// Routed and shared experts.
    Experts,
    /// Routers of experts.
    Router,
    /// State-space and other recurrent mixers.
    Recurrent,
    /// Norms.
    Norms,
    /// Output projection to the vocabulary.
    Head,
    /// An image encoder beside a language model, and what makes its positions those of the text.
    Vision,
    /// Its name says no part.
    Unrecognized,
}

impl Group {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Embedding => "embedding",
            Self::Attention => "attention",
            Self::Mlp => "mlp",
            Self::Experts => "experts",
            Self::Router => "router",
            Self::Recurrent => "recurrent",
            Self::Norms => "norms",
            Self::Head => "head",
            Self::Vision => "vision",
            Self::Unrecognized => "name not recognized",
        }
    }

    /// The part that a tensor of this name belongs to.
    pub fn of(name: &str) -> Self {
        let parts: Vec<&str> = name.split('.').collect();
        let any = |test: &dyn Fn(&str) -> bool| parts.iter().any(|part| test(part));
        let is = |names: &[&str]| any(&|part| names.contains(&part));
        let has = |pieces: &[&str]| any(&|part| pieces.iter().any(|piece| part.contains(piece)));
        let in_block = any(&|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()));
        // The order matters: `post_attention_layernorm` is a norm, and a norm of experts is one too; all of an image encoder
        // is vision.
        if is(&["vision_tower", "vision_model", "visual", "embed_vision", "multi_modal_projector", "mm_projector"]) {
            Self::Vision
        } else if has(&["norm"]) || any(&|part| part.starts_with("ln_")) || is(&["ln1", "ln2"]) {
            Self::Norms
        } else if is(&["lm_head", "embed_out"]) || parts.first() == Some(&"output") {
            Self::Head
        } else if any(&|part| part.starts_with("ffn_gate_inp"))
            || is(&["router", "e_score_correction_bias", "shared_expert_gate"])
            || name.ends_with("mlp.gate.weight")
            || name.ends_with("block_sparse_moe.gate.weight")
            || any(&|part| part.starts_with("exp_probs"))
        {
            Self::Router
        } else if is(&["experts"]) || has(&["shared_expert", "_exps", "_shexp", "shared_mlp"]) {
            Self::Experts
        } else if has(&["mamba", "ssm", "conv1d", "rglru", "time_mix", "recurrent"]) || is(&["mixer", "linear_attn"]) {
            Self::Recurrent
        } else if has(&["attn", "attention"]) || is(&["q_proj", "k_proj", "v_proj", "o_proj"]) {
            Self::Attention
        } else if has(&["mlp", "ffn", "feed_forward"])
            || is(&["fc1", "fc2", "gate_proj", "up_proj", "down_proj", "dense_h_to_4h", "dense_4h_to_h"])
        {
            Self::Mlp
        } else if !in_block && (has(&["embed", "embd"]) || is(&["wte", "wpe"])) {
            Self::Embedding
        } else {
            Self::Unrecognized
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_real_models() {
        for (name, group) in [
            ("model.embed_tokens.weight", Group::Embedding),
            ("transformer.wpe.weight", Group::Embedding),
            ("token_embd.weight", Group::Embedding),
            ("gpt_neox.embed_in.weight", Group::Embedding),
            ("model.layers.0.self_attn.q_proj.weight", Group::Attention),
            ("transformer.h.11.attn.c_attn.bias", Group::Attention),
            ("blk.3.attn_output.weight", Group::Attention),
            ("blk.3.attn_norm.weight", Group::Norms),
            ("model.layers.0.self_attn.q_norm.weight", Group::Norms),
            ("model.layers.0.post_attention_layernorm.weight", Group::Norms),
            ("transformer.ln_f.weight", Group::Norms),
            ("output_norm.weight", Group::Norms),
            ("output.weight", Group::Head),
            ("lm_head.weight", Group::Head),
            ("embed_out.weight", Group::Head),
            ("model.layers.0.mlp.down_proj.weight", Group::Mlp),
            ("blk.0.ffn_down.weight", Group::Mlp),
            ("gpt_neox.layers.3.mlp.dense_h_to_4h.weight", Group::Mlp),
            ("model.layers.3.mlp.experts.17.up_proj.weight", Group::Experts),
            ("model.layers.3.mlp.shared_experts.up_proj.weight", Group::Experts),
            ("model.layers.0.block_sparse_moe.experts.0.w1.weight", Group::Experts),
            ("blk.0.ffn_gate_exps.weight", Group::Experts),
            ("model.layers.3.mlp.gate.weight", Group::Router),
            ("model.layers.0.block_sparse_moe.gate.weight", Group::Router),
            ("blk.0.ffn_gate_inp.weight", Group::Router),
            ("backbone.layers.0.mixer.conv1d.weight", Group::Recurrent),
            ("blk.0.ssm_in.weight", Group::Recurrent),
            ("model.vision_tower.encoder.layers.1.self_attn.q_proj.weight", Group::Vision),
            ("visual.merger.ln_q.weight", Group::Vision),
            ("model.language_model.layers.0.self_attn.q_proj.weight", Group::Attention),
            ("rope_freqs.weight", Group::Unrecognized),
        ] {
            assert_eq!(Group::of(name), group, "{name}");
        }
    }
}
