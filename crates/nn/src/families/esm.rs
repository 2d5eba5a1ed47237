//! ESM-2, a language model of proteins: BERT with norms before its parts, which turns queries and keys.

use super::bert::{Kin, Norms, ROBERTA, encoder};
use super::common::{FAMILY, change_layers, rotary};
use crate::config::Reader;
use crate::spec::{AttentionSteps, CountedSpec, ModelSpec, NormKind, NormSpec};

pub(super) fn read(r: &mut Reader<'_>) -> ModelSpec {
    let norms = Norms::Before(["attention.LayerNorm", "LayerNorm", "encoder.emb_layer_norm_after"]);
    let turned = r.choice("position_embedding_type", &["absolute", "rotary"], FAMILY) == "rotary";
    let normed = r.flag_or("emb_layer_norm_before", false, FAMILY);
    let dropped = r.flag_or("token_dropout", false, FAMILY);
    r.known(&["mask_token_id", "vocab_list", "rope_theta", "hidden_act"]);
    if r.flag_or("is_folding_model", false, FAMILY) {
        r.not_applied(
            "is_folding_model",
            "`is_folding_model` puts a model of structures behind this one",
            "the language model alone is counted",
            "--set is_folding_model=false",
        );
    }
    r.known(&["esmfold_config"]);
    let mut model = encoder(r, Kin { body: "esm", norms, embed_norm: false, kinds: 0, ..ROBERTA });
    let (l, eps) = (model.layers.len() as u64, model.final_norm.as_ref().map_or(1e-12, |norm| norm.eps));
    model.names.embed_norm = "embeddings.layer_norm";
    model.embedding.norm = normed.then_some(NormSpec { kind: NormKind::LayerNorm { bias: true }, eps });
    // In a text without masks; the more of it is masked, the nearer this comes to 1.
    model.embedding.scale = dropped.then_some(1.0 - 0.15 * 0.8);
    let Some((heads, d)) =
        model.layers.first().and_then(|layer| layer.attention()).map(|one| (one.heads, one.head_dim))
    else {
        return model;
    };
    if turned {
        model.embedding.positions = None;
    }
    change_layers(&mut model.layers, |layer| {
        if let Some(attention) = layer.attention_mut() {
            attention.rotary = turned.then(|| rotary(d, 10_000.0));
            attention.steps = AttentionSteps::ScaledQueries;
        }
    });
    // Says from attention weights which residues touch; no loss here reads it.
    let names = ["contact_head.regression.weight", "contact_head.regression.bias"];
    model.unused.push(CountedSpec::new(names[0], &[1, l.saturating_mul(heads)]));
    model.unused.push(CountedSpec::new(names[1], &[1]));
    model
}
