//! A model as engines describe one: a decoder whose blocks are alike, in a few numbers.

use nn::spec::{
    Activation, AttentionSpec, BlockForm, Correction, ExpertGate, FeedForwardSpec, KvSharing, LayerSpec, LinearSpec,
    MlpInput, MlpSpec, ModelSpec, MoeSpec, NormKind, NormSpec, Projection, QkNorm, Scores, SourceSpec, Task, Tuning,
};

/// Sizes of a decoder whose blocks differ at most in whether they have experts.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// Blocks.
    pub layers: u64,
    /// Width of the residual stream.
    pub hidden: u64,
    /// Token ids.
    pub vocab: u64,
    /// Whether the head is the token table.
    pub tied: bool,
    /// Longest sequence the position scheme allows.
    pub max_positions: Option<u64>,
    /// Whether a trained table of positions is added to the tokens.
    pub position_table: bool,
    /// The norms.
    pub norm: NormSpec,
    /// Query heads.
    pub heads: u64,
    /// Key/value heads.
    pub kv_heads: u64,
    /// Width of one head.
    pub head_dim: u64,
    /// Whether queries, keys and values have biases.
    pub qkv_bias: bool,
    /// Whether the other linear maps of a block have biases.
    pub bias: bool,
    /// Whether queries and keys of each head are normalised.
    pub qk_norm: bool,
    /// Base of the rotary frequencies, and the width that is rotated.
    pub rotary: Option<(f64, u64)>,
    /// Whether rotated pairs are neighbours.
    pub interleaved: bool,
    /// Each query sees this many keys.
    pub window: Option<u64>,
    /// Ranks and widths of latent attention.
    pub latent: Option<Latent>,
    /// Inner width of dense feed-forward parts, where there are any.
    pub ffn: Option<u64>,
    /// Whether feed-forward parts have a gate.
    pub gated: bool,
    /// Their activation.
    pub act: Activation,
    /// The experts.
    pub experts: Option<Experts>,
    /// Which blocks have them.
    pub sparse: Vec<bool>,
}

/// Ranks and widths of multi-head latent attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latent {
    /// Rank of compressed queries.
    pub q_rank: Option<u64>,
    /// Rank of compressed keys and values.
    pub kv_rank: u64,
    /// Width of a head without rotation.
    pub nope_dim: u64,
    /// Width of the rotated part.
    pub rope_dim: u64,
    /// Width of the values of a head.
    pub value_dim: u64,
}

/// A mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Experts {
    /// Routed experts.
    pub count: u64,
    /// Experts of a token.
    pub top_k: u64,
    /// Inner width of one.
    pub width: u64,
    /// Inner width of those that every token passes, together.
    pub shared: Option<u64>,
    /// How logits become weights.
    pub scores: Scores,
    /// Groups of experts, and how many of them a token may choose from.
    pub groups: Option<(u64, u64)>,
    /// Whether a bias that gradients do not train corrects the choice.
    pub corrected: bool,
    /// Whether the weights of the chosen are normalised.
    pub normalised: bool,
    /// Factor of the weights.
    pub scale: Option<f64>,
}

impl Shape {
    /// The shape of a model.
    ///
    /// # Errors
    /// All that such a shape cannot say, in words.
    pub fn of(model: &ModelSpec) -> Result<Self, Vec<String>> {
        let mut odd = Odd(Vec::new());
        whole(model, &mut odd);
        let first = model.layers.first();
        let attention = first.and_then(|layer| layer.attention());
        let (Some(first), Some(attention)) = (first, attention) else {
            odd.0.push("blocks without attention".to_owned());
            return Err(odd.0);
        };
        let norm = norm_of(first);
        for layer in &model.layers {
            odd.is(layer.attention() != Some(attention), "attention that differs between blocks");
            block(layer, norm.as_ref(), &mut odd);
        }
        mixing(attention, &mut odd);
        let dense = model.layers.iter().find_map(|layer| match &layer.feed_forward {
            FeedForwardSpec::Mlp(mlp) => Some(mlp),
            _ => None,
        });
        let mixture = model.layers.iter().find_map(|layer| match &layer.feed_forward {
            FeedForwardSpec::Moe(moe) => Some(moe),
            _ => None,
        });
        for layer in &model.layers {
            match &layer.feed_forward {
                FeedForwardSpec::Mlp(mlp) => {
                    odd.is(Some(mlp) != dense, "feed-forward parts of several widths");
                    feed(mlp, &mut odd);
                }
                FeedForwardSpec::Moe(moe) => {
                    odd.is(Some(moe) != mixture, "mixtures of experts of several sizes");
                    sparse(moe, &mut odd);
                }
                _ => odd.0.push("feed-forward parts that are neither an MLP nor experts".to_owned()),
            }
        }
        let gated = |mlp: &MlpSpec| !matches!(mlp.input, MlpInput::Plain(_));
        let (act, gate) = match (dense, mixture) {
            (Some(mlp), _) => (mlp.act, gated(mlp)),
            (None, Some(moe)) => (moe.act, moe.gate == ExpertGate::Halves),
            (None, None) => (Activation::Silu, true),
        };
        odd.is(
            mixture.is_some_and(|moe| moe.act != act || (moe.gate == ExpertGate::Halves) != gate),
            "experts unlike the MLP",
        );
        let (qkv_bias, latent) = projection(attention, &mut odd);
        let bias = attention.out.bias;
        odd.is(dense.is_some_and(|mlp| biased(mlp) != [bias, bias]), "biases on some of the linear maps");
        let Some(norm) = norm else {
            return Err(odd.0);
        };
        odd.finish(Self {
            layers: model.depth() as u64,
            hidden: model.hidden_size,
            vocab: model.vocab_size,
            tied: model.head.tied,
            max_positions: model.max_positions,
            position_table: model.embedding.positions.is_some(),
            norm,
            heads: attention.heads,
            kv_heads: attention.kv_heads,
            head_dim: attention.head_dim,
            qkv_bias,
            bias,
            qk_norm: attention.qk_norm != QkNorm::None,
            rotary: attention.rotary.as_ref().map(|rotary| (rotary.theta, rotary.dim)),
            interleaved: attention.rotary.as_ref().is_some_and(|rotary| rotary.interleaved),
            window: attention.window,
            latent,
            ffn: dense.map(|mlp| mlp.intermediate_size),
            gated: gate,
            act,
            experts: mixture.map(|moe| experts(moe)),
            sparse: model.layers.iter().map(|layer| matches!(layer.feed_forward, FeedForwardSpec::Moe(_))).collect(),
        })
    }

    /// Whether every block has experts.
    pub fn all_sparse(&self) -> bool {
        self.sparse.iter().all(|sparse| *sparse)
    }
}

/// What is unlike a plain decoder, each thing once.
struct Odd(Vec<String>);

impl Odd {
    fn is(&mut self, odd: bool, what: &str) {
        if odd && !self.0.iter().any(|said| said == what) {
            self.0.push(what.to_owned());
        }
    }

    fn finish<T>(self, value: T) -> Result<T, Vec<String>> {
        if self.0.is_empty() { Ok(value) } else { Err(self.0) }
    }
}

/// The parts around the blocks.
fn whole(model: &ModelSpec, odd: &mut Odd) {
    let (embedding, head) = (&model.embedding, &model.head);
    odd.is(model.encoder.is_some() || !model.towers.is_empty(), "an encoder beside the decoder");
    odd.is(model.patches.is_some(), "patches of bytes");
    odd.is(model.order.is_some(), "blocks that share weights");
    odd.is(embedding.source != SourceSpec::Tokens, "inputs that are no tokens");
    odd.is(embedding.width.is_some() || embedding.projection.is_some(), "embeddings of another width than the blocks");
    odd.is(embedding.scale.is_some(), "embeddings that are scaled");
    odd.is(embedding.norm.is_some(), "a norm on the embeddings");
    odd.is(!embedding.types.is_empty(), "embeddings of kinds of tokens");
    odd.is(embedding.positions.as_ref().is_some_and(|table| !table.trained), "a fixed table of positions");
    odd.is(head.absent || model.task != Task::NextToken, "a task other than the next token");
    odd.is(head.bias, "a bias on the logits");
    odd.is(head.softcap.is_some(), "capped logits");
    odd.is(head.input_scale.is_some() || head.scale.is_some(), "logits that are scaled");
    odd.is(!head.transform.is_empty(), "layers in front of the head");
    odd.is(model.final_norm.is_none(), "no norm before the head");
    odd.is(model.tuning != Tuning::default(), "adapters or frozen parameters");
}

fn norm_of(layer: &LayerSpec) -> Option<NormSpec> {
    match &layer.form {
        BlockForm::Sequential { n1, .. } => Some(n1.spec.clone()),
        _ => None,
    }
}

fn block(layer: &LayerSpec, norm: Option<&NormSpec>, odd: &mut Odd) {
    match &layer.form {
        BlockForm::Sequential { n1, n2 } => {
            odd.is(Some(&n1.spec) != norm || Some(&n2.spec) != norm, "norms that differ");
        }
        _ => odd.is(true, "blocks whose norms do not stand in front of attention and feed-forward"),
    }
    odd.is(layer.cross.is_some(), "attention to another stack");
    odd.is(layer.residual_scale.is_some(), "branches that are scaled");
}

fn mixing(attention: &AttentionSpec, odd: &mut Odd) {
    let usual = (attention.head_dim as f64).powf(-0.5);
    odd.is(!attention.causal, "attention to later positions");
    odd.is(attention.gate.is_some() || attention.query_gate, "gated attention");
    odd.is(attention.out_norm.is_some() || attention.value_norm.is_some(), "norms inside attention");
    odd.is(attention.alibi || attention.relative.is_some(), "position biases");
    odd.is(attention.differential.is_some(), "differential attention");
    odd.is(attention.keep.is_some(), "attention to chosen keys");
    odd.is(attention.sharing != KvSharing::Own, "keys and values shared between blocks");
    odd.is(attention.softcap.is_some() || attention.clip_qkv.is_some(), "capped attention");
    odd.is(attention.sinks, "learned logits in the softmax");
    odd.is(attention.value_scale.is_some(), "values that are scaled");
    odd.is(
        !matches!(attention.projection, Projection::Latent(_)) && (attention.scale - usual).abs() > 1e-9,
        "scores scaled by another factor than the root of the width",
    );
    odd.is(!matches!(attention.qk_norm, QkNorm::None | QkNorm::PerHead(_)), "norms over all queries and keys");
}

/// Whether queries, keys and values have biases, and what is compressed.
fn projection(attention: &AttentionSpec, odd: &mut Odd) -> (bool, Option<Latent>) {
    match &attention.projection {
        Projection::Separate { q, k, v } => {
            odd.is(q.bias != k.bias || q.bias != v.bias, "biases on some of queries, keys and values");
            (q.bias, None)
        }
        Projection::Fused { qkv, .. } => (qkv.bias, None),
        Projection::Latent(latent) => {
            odd.is(latent.indexer.is_some(), "attention to keys that an indexer chooses");
            odd.is(latent.scales.is_some(), "compressed streams that are scaled");
            let latent_dims = Latent {
                q_rank: latent.q_rank,
                kv_rank: latent.kv_rank,
                nope_dim: latent.nope_dim,
                rope_dim: latent.rope_dim,
                value_dim: attention.value_dim,
            };
            (latent.bias, Some(latent_dims))
        }
        Projection::Paired { .. } | Projection::Routed(_) => {
            odd.is(true, "queries, keys and values made in another way");
            (false, None)
        }
    }
}

fn feed(mlp: &MlpSpec, odd: &mut Odd) {
    odd.is(mlp.norm.is_some(), "a norm inside feed-forward parts");
    odd.is(mlp.multipliers.is_some() || mlp.sparsity.is_some(), "feed-forward parts that scale or cut off");
}

/// Whether the input and output maps have biases.
fn biased(mlp: &MlpSpec) -> [bool; 2] {
    let input = match &mlp.input {
        MlpInput::Plain(map) | MlpInput::GatedFused(map) | MlpInput::Gated { gate: map, .. } => map,
    };
    [input, &mlp.down].map(|map: &LinearSpec| map.bias)
}

fn sparse(moe: &MoeSpec, odd: &mut Odd) {
    odd.is(moe.zero_experts > 0, "experts that return their input");
    odd.is(matches!(moe.gate, ExpertGate::Clamped { .. }), "gates that are held below a bound");
    odd.is(moe.latent.is_some(), "a narrower stream for the experts");
    odd.is(moe.expert_bias || moe.router.bias, "biases of experts or router");
    odd.is(moe.everywhere || moe.router.scaled.is_some(), "tokens weighted before the experts");
    odd.is(moe.shared.as_ref().is_some_and(|shared| shared.gate.is_some()), "a gate on shared experts");
}

fn experts(moe: &MoeSpec) -> Experts {
    Experts {
        count: moe.experts,
        top_k: moe.top_k,
        width: moe.intermediate_size,
        shared: moe.shared.as_ref().map(|shared| shared.mlp.intermediate_size),
        scores: moe.router.scores,
        groups: moe.router.groups.map(|groups| (groups.count, groups.kept)),
        corrected: moe.router.correction != Correction::None,
        normalised: moe.router.normalise,
        scale: moe.router.scale,
    }
}

/// Whether a norm is by the root mean square, and whether it has a bias; nothing for others.
pub fn rms(norm: &NormSpec) -> Option<bool> {
    match norm.kind {
        NormKind::Rms | NormKind::RmsWeightInF32 => Some(true),
        NormKind::LayerNorm { .. } => Some(false),
        _ => None,
    }
}
