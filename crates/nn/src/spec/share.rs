//! The part of a model that one of several ranks holds.

use super::{
    AttentionSpec, BlockForm, FeedForwardSpec, FusedOrder, KvSharing, LayerSpec, MlpSpec, ModelSpec, MoeSpec,
    Projection, QkNorm, SourceSpec, Task,
};
use crate::ranks::Ranks;
use std::sync::Arc;

impl ModelSpec {
    /// The spec of the part of one rank: its heads, its inner channels. Experts and vocabulary keep their numbers, for a
    /// router and a loss see all of them; what the rank holds of them follows from its [`Ranks`]. The vocabulary is filled up
    /// to a number that the ranks divide.
    ///
    /// # Errors
    /// What cannot be divided, each in words.
    pub fn share(&self, ranks: Ranks) -> Result<Self, Vec<String>> {
        let mut problems = Vec::new();
        let mut part = self.clone();
        part.ranks = ranks;
        if ranks.is_alone() {
            return Ok(part);
        }
        if ranks.tp > 1 {
            whole_model(self, &mut problems);
            part.vocab_size = self.vocab_size.next_multiple_of(ranks.tp.max(1));
        }
        if ranks.cp > 1 {
            whole_sequence(self, ranks, &mut problems);
        }
        if (ranks.ep > 1 || ranks.etp > 1) && self.tuning.lora.as_ref().is_some_and(|lora| !lora.stacks.is_empty()) {
            problems.push("adapters of stacks of experts are not divided over ranks".to_owned());
        }
        let experts = self.layers.iter().any(|layer| matches!(layer.feed_forward, FeedForwardSpec::Moe(_)));
        if !experts && (ranks.ep > 1 || ranks.etp > 1) {
            problems.push("there are no experts to divide over ranks".to_owned());
        }
        let mut shared: Vec<(Arc<LayerSpec>, Arc<LayerSpec>)> = Vec::new();
        for layer in &mut part.layers {
            // Equal blocks go on sharing one description.
            let known = shared.iter().find(|(whole, _)| Arc::ptr_eq(whole, layer)).map(|(_, part)| part.clone());
            let own = known.unwrap_or_else(|| {
                let own = Arc::new(layer_part(layer, ranks, &mut problems));
                shared.push((layer.clone(), own.clone()));
                own
            });
            *layer = own;
        }
        if problems.is_empty() {
            return Ok(part);
        }
        problems.sort();
        problems.dedup();
        Err(problems)
    }
}

/// What reads or mixes positions otherwise than by attention with rotated heads.
fn whole_sequence(model: &ModelSpec, ranks: Ranks, problems: &mut Vec<String>) {
    let mut refuse = |bad: bool, what: &str| {
        if bad {
            problems.push(format!("{what} is not divided over ranks that share a sequence"));
        }
    };
    refuse(model.encoder.is_some(), "an encoder");
    refuse(model.patches.is_some(), "a model over patches of bytes");
    refuse(model.task != Task::NextToken, "a loss that is not that of the next token");
    refuse(model.embedding.positions.is_some() || !model.embedding.types.is_empty(), "a table of positions");
    refuse(!matches!(model.embedding.source, SourceSpec::Tokens), "an embedding of numbers");
    for layer in &model.layers {
        refuse(!matches!(layer.mixer, super::Mixer::Attention(_) | super::Mixer::None), "a mixer that is no attention");
        refuse(matches!(layer.feed_forward, FeedForwardSpec::ChannelMix(_)), "a channel mix");
        refuse(matches!(layer.form, BlockForm::Alternating { .. } | BlockForm::Mixed { .. }), "a block with streams");
        refuse(layer.input.is_some(), "an input of each block");
        let Some(attention) = layer.attention() else { continue };
        let each = ranks.tp.saturating_mul(ranks.cp);
        let divided = attention.heads.is_multiple_of(each) && attention.kv_heads.is_multiple_of(each);
        refuse(!divided && !ranks.ring, "a number of heads that tp × cp does not divide");
        refuse(ranks.ring && attention.window.is_some(), "a window that keys and values would go round for");
        refuse(attention.sinks, "a logit of each head that joins the softmax");
        refuse(attention.relative.is_some() || attention.alibi, "a position bias");
        refuse(attention.keep.is_some() || attention.differential.is_some(), "an attention in several parts");
        refuse(matches!(attention.projection, Projection::Routed(_)), "a mixture of heads");
        refuse(!attention.causal, "attention in both directions");
        if let Projection::Latent(latent) = &attention.projection {
            refuse(latent.indexer.is_some(), "an indexer");
        }
    }
}

/// What a model has outside of its blocks.
fn whole_model(model: &ModelSpec, problems: &mut Vec<String>) {
    let mut refuse = |bad: bool, what: &str| {
        if bad {
            problems.push(format!("{what} is not divided over tp ranks"));
        }
    };
    refuse(model.encoder.is_some(), "an encoder");
    refuse(model.patches.is_some(), "a model over patches of bytes");
    refuse(!matches!(model.task, Task::NextToken | Task::OwnToken), "a head of classes or none");
    refuse(!matches!(model.embedding.source, SourceSpec::Tokens), "an embedding of numbers");
    refuse(model.embedding.extra > 0, "a token table with rows beyond the vocabulary");
    refuse(model.embedding.shared.is_some(), "a token table outside of the stack");
    refuse(model.embedding.width.is_some_and(|width| width != model.hidden_size), "a projected embedding");
    refuse(!model.head.transform.is_empty(), "a head with maps of its own");
    refuse(model.head.offsets, "a row that is added to the logits");
    refuse(!model.pooler.is_empty(), "a pooler");
    refuse(model.tuning.lora.is_some(), "an adapter");
    refuse(model.tuning.packed.is_some(), "a packed weight");
}

fn layer_part(layer: &LayerSpec, ranks: Ranks, problems: &mut Vec<String>) -> LayerSpec {
    let mut part = layer.clone();
    match &mut part.feed_forward {
        FeedForwardSpec::Mlp(mlp) => mlp_part(mlp, ranks.tp, problems),
        FeedForwardSpec::Moe(moe) => moe_part(moe, ranks, problems),
        FeedForwardSpec::Beside(_) => problems.push("a dense part beside experts is not divided over ranks".to_owned()),
        FeedForwardSpec::ChannelMix(_) if ranks.tp > 1 => {
            problems.push("a channel mix is not divided over tp ranks".to_owned());
        }
        FeedForwardSpec::ChannelMix(_) | FeedForwardSpec::None => {}
    }
    let routed = |attention: &AttentionSpec| matches!(attention.projection, Projection::Routed(_));
    if part.attention().is_some_and(routed) {
        problems.push("a mixture of heads is not divided over ranks".to_owned());
    }
    if ranks.tp == 1 {
        return part;
    }
    if matches!(part.form, BlockForm::Shortcut { .. } | BlockForm::Alternating { .. } | BlockForm::Mixed { .. }) {
        problems.push("a block with streams or a second block in it is not divided over tp ranks".to_owned());
    }
    if part.input.is_some() {
        problems.push("an input of each block is not divided over tp ranks".to_owned());
    }
    if part.cross.is_some() {
        problems.push("attention to another stack is not divided over tp ranks".to_owned());
    }
    match part.mixer {
        super::Mixer::Attention(_) | super::Mixer::None => {}
        _ => problems.push("a mixer that is no attention is not divided over tp ranks".to_owned()),
    }
    if let Some(attention) = part.attention_mut() {
        attention_part(attention, ranks.tp, problems);
    }
    part
}

/// A number divided by its ranks.
fn divide(what: &str, count: &mut u64, ranks: u64, problems: &mut Vec<String>) {
    if count.is_multiple_of(ranks) {
        *count /= ranks;
    } else {
        problems.push(format!("{ranks} ranks do not divide {count} {what}"));
    }
}

fn attention_part(attention: &mut AttentionSpec, tp: u64, problems: &mut Vec<String>) {
    divide("attention heads", &mut attention.heads, tp, problems);
    divide("key/value heads", &mut attention.kv_heads, tp, problems);
    let mut refuse = |bad: bool, what: &str| {
        if bad {
            problems.push(format!("{what} is not divided over tp ranks"));
        }
    };
    refuse(matches!(attention.qk_norm, QkNorm::Full(_)), "a norm over all heads");
    refuse(matches!(attention.qk_norm, QkNorm::Modules(_)), "a norm of each head in a module of its own");
    refuse(attention.out_norm.is_some(), "a norm of the mixed values of all heads");
    refuse(attention.keep.is_some(), "a weight of keys");
    refuse(attention.differential.is_some(), "a difference of two attentions");
    refuse(attention.relative.is_some(), "a table of position biases");
    refuse(attention.alibi, "a linear position bias");
    refuse(attention.sharing != KvSharing::Own, "a key or value of another block");
    if let Projection::Latent(latent) = &attention.projection {
        refuse(latent.indexer.is_some(), "an indexer");
    }
    if let Projection::Fused { order: FusedOrder::Parts(parts), .. } = &mut attention.projection {
        divide("parts of a fused projection", parts, tp, problems);
    }
}

fn mlp_part(mlp: &mut MlpSpec, tp: u64, problems: &mut Vec<String>) {
    if tp == 1 {
        return;
    }
    divide("inner channels", &mut mlp.intermediate_size, tp, problems);
    if mlp.norm.is_some() {
        problems.push("a norm of inner channels is not divided over tp ranks".to_owned());
    }
    if mlp.sparsity.is_some_and(|part| part > 0.0) {
        problems.push("a gate that is cut by its own statistics is not divided over tp ranks".to_owned());
    }
}

fn moe_part(moe: &mut MoeSpec, ranks: Ranks, problems: &mut Vec<String>) {
    if !moe.experts.is_multiple_of(ranks.ep) {
        problems.push(format!("{} ranks do not divide {} experts", ranks.ep, moe.experts));
    }
    divide("inner channels of an expert", &mut moe.intermediate_size, ranks.etp, problems);
    if let Some(shared) = &mut moe.shared {
        mlp_part(&mut shared.mlp, ranks.tp, problems);
    }
    let mut refuse = |bad: bool, what: &str| {
        if bad {
            problems.push(format!("{what} is not divided over ranks"));
        }
    };
    refuse(moe.zero_experts > 0, "a mixture with experts that return their input");
    refuse(moe.everywhere, "a mixture that weighs tokens before its experts");
    refuse(ranks.etp > 1 && moe.expert_bias, "a bias of an expert's output");
    refuse(
        ranks.tp > 1 && !ranks.sp,
        "a mixture behind a stream that all ranks hold whole (tp without sp; with sp it is)",
    );
}
