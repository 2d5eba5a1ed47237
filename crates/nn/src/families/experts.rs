//! What families with experts read alike.

use super::common::{FAMILY, FREE, gated_mlp, is_null, layers_called};
use crate::config::{Names, Part, Reader};
use crate::spec::{
    Activation, AttentionSpec, BlockForm, Correction, ExpertGate, ExpertGroups, ExpertLayout, FeedForwardSpec,
    LayerSpec, ModelSpec, MoeSpec, RouterSpec, Scores, SharedSpec,
};
use crate::step;
use std::sync::Arc;
use units::group_digits;

/// Numbers of a mixture under their usual keys.
pub struct Counts {
    /// Routed experts.
    pub experts: u64,
    /// Of which each token uses so many.
    pub top_k: u64,
    /// Inner width of one.
    pub f: u64,
}

/// The bias that corrects the choice of experts where DeepSeek-V3 and its descendants keep it.
const GATE_BUFFER: Correction = Correction::Buffer("gate.e_score_correction_bias");

/// Which layers are dense: the first so many, or as `mlp_layer_types` lists them.
pub fn dense_layers(r: &mut Reader<'_>, l: u64, default: u64) -> Vec<bool> {
    if let Some(listed) = layers_called(r, &["mlp_layer_types"], l, &["dense"], &["sparse"]) {
        r.known(&["first_k_dense_replace"]);
        return listed;
    }
    let first = r.count_or("first_k_dense_replace", default, FAMILY);
    (0..l).map(|i| i < first).collect()
}

/// Which layers are dense: those that `mlp_only_layers` lists, and all but every so many, as `decoder_sparse_step` says.
pub fn dense_by_step(r: &mut Reader<'_>, l: u64) -> Vec<bool> {
    let step = r.size_or("decoder_sparse_step", 1, FAMILY);
    let listed = r.counts("mlp_only_layers").unwrap_or_default();
    (0..l).map(|i| listed.contains(&i) || !(i + 1).is_multiple_of(step)).collect()
}

/// Checks that the numbers of a mixture fit together.
pub fn counts(r: &mut Reader<'_>, h: u64, (key, experts): (&str, u64), top_k: u64, (f_key, f): (&str, u64)) -> Counts {
    if top_k > experts {
        r.reject(
            "num_experts_per_tok",
            format!("each token uses {top_k} experts, but there are {experts}"),
            "a token uses an expert once",
            &format!("--set num_experts_per_tok={experts}"),
        );
    }
    r.check_product("the weights of the experts", &[(key, experts), (f_key, f), ("hidden_size", h)]);
    Counts { experts, top_k, f }
}

/// A mixture with the names most families use.
pub fn mixture(counts: &Counts, act: Activation, router: RouterSpec, shared: Option<SharedSpec>) -> MoeSpec {
    MoeSpec {
        experts: counts.experts,
        zero_experts: 0,
        top_k: counts.top_k,
        intermediate_size: counts.f,
        act,
        router,
        shared,
        layout: ExpertLayout::default(),
        gate: ExpertGate::default(),
        latent: None,
        expert_bias: false,
        everywhere: false,
        name: "experts",
    }
}

/// A block whose feed-forward part is a mixture, under Llama's names.
pub fn sparse(attention: AttentionSpec, moe: MoeSpec, form: BlockForm) -> LayerSpec {
    LayerSpec::new(attention, FeedForwardSpec::Moe(Box::new(moe)), form)
}

/// Layers that are dense where `is_dense` says so.
pub fn mixed(l: u64, dense: LayerSpec, sparse: &Arc<LayerSpec>, is_dense: impl Fn(u64) -> bool) -> Vec<Arc<LayerSpec>> {
    let dense = Arc::new(dense);
    (0..l).map(|i| if is_dense(i) { dense.clone() } else { sparse.clone() }).collect()
}

/// Groups of experts among which a router chooses first.
pub fn groups(r: &mut Reader<'_>, counts: &Counts, count: u64, kept: u64) -> ExpertGroups {
    r.require_divides(
        Part::new("n_routed_experts", counts.experts, "routed experts"),
        Part::new("n_group", count, "groups"),
        "groups of experts are of equal size",
    );
    let open = kept.saturating_mul(counts.experts / count.max(1));
    if kept > count || open < counts.top_k {
        r.reject(
            "topk_group",
            format!("{kept} of {count} groups hold {open} experts, of which each token uses {}", counts.top_k),
            "the kept groups must exist and hold the experts of a token",
            &format!("--set topk_group={count}"),
        );
    }
    ExpertGroups { count: count.max(1), kept: kept.min(count) }
}

/// The router of DeepSeek-V3 and its descendants: sigmoid scores, a bias that corrects who is chosen, groups. Weights are
/// normalised as `norm_topk_prob` says, or else as the family does.
pub fn corrected_router(r: &mut Reader<'_>, counts: &Counts, normalise: bool) -> RouterSpec {
    corrected_router_or(r, counts, normalise, 1.0)
}

/// The same, with the factor of the weights that this family has where the file names none.
pub fn corrected_router_or(r: &mut Reader<'_>, counts: &Counts, normalise: bool, scale: f64) -> RouterSpec {
    let (count, kept) = (r.size_or("n_group", 1, FAMILY), r.size_or("topk_group", 1, FAMILY));
    let groups = groups(r, counts, count, kept);
    let normalise = r.flag("norm_topk_prob", normalise);
    corrected(groups, normalise, r.float_or("routed_scaling_factor", scale, FREE))
}

/// The same with what is read under other keys.
pub fn corrected(groups: ExpertGroups, normalise: bool, scale: f64) -> RouterSpec {
    RouterSpec {
        name: "gate",
        scores: Scores::Sigmoid,
        f32_map: true,
        correction: GATE_BUFFER,
        groups: Some(groups),
        normalise,
        scale: Some(scale),
        ..RouterSpec::default()
    }
}

/// Experts that every token uses, as one gated MLP of `count` times their width.
pub fn shared_experts(
    r: &mut Reader<'_>,
    counts: &Counts,
    (key, count): (&str, u64),
    act: Activation,
    bias: bool,
) -> SharedSpec {
    let sizes = [("moe_intermediate_size", counts.f), (key, count)];
    let width = r.check_product("the inner width of the shared experts", &sizes);
    SharedSpec { mlp: gated_mlp(width, act, bias), name: "shared_experts", gate: None }
}

/// Loss terms and noise of a router that are read for their effect on cost.
pub fn router_extras(r: &mut Reader<'_>, not_modelled: &mut Vec<String>) {
    if r.flag("output_router_logits", false) {
        not_modelled.push(
            "the load-balancing loss (`output_router_logits`): elementwise work on one number per token and expert"
                .to_owned(),
        );
    }
    if r.float_or(["router_jitter_noise", "ffn_config.moe_jitter_eps"], 0.0, FREE) > 0.0 {
        not_modelled.push(
            "router noise in training (`router_jitter_noise`): one temporary as large as the input of each mixture"
                .to_owned(),
        );
    }
}

/// A number that `null` turns off and whose absence means `default`.
pub fn size_or_off(r: &mut Reader<'_>, key: &str, default: u64) -> Option<u64> {
    if is_null(r, key) { r.opt_size(key) } else { Some(r.size_or(key, default, FAMILY)) }
}

/// Notes layers for multi-token prediction, which the reference does not build, with their size: each is `layer`, a map
/// from `2h` to `h` and three norms.
pub fn extra_predictors(r: &mut Reader<'_>, key: impl Names, spec: &mut ModelSpec, layer: &Arc<LayerSpec>) {
    let count = r.opt_count(key).unwrap_or(0);
    announce_predictors(r, count, spec, std::slice::from_ref(layer));
}

/// The same where their number is known, each of so many blocks.
pub fn announce_predictors(r: &Reader<'_>, count: u64, spec: &mut ModelSpec, blocks: &[Arc<LayerSpec>]) {
    // Sizes that were refused are not built.
    if count == 0 || r.failed() {
        return;
    }
    let alone = ModelSpec { layers: blocks.to_vec(), ..spec.clone() };
    // A block too large to count is one of the model's own too, and refused there.
    let Ok(params) = step::parameters(&alone) else { return };
    let prefix = format!("{}.{}.", spec.names.body, spec.names.layers);
    let inside: u128 = params.iter().filter(|p| p.name.starts_with(&prefix)).map(|p| u128::from(p.elements)).sum();
    let h = u128::from(spec.hidden_size);
    let each = inside + 2 * h * h + 3 * h;
    let (total, each) = (group_digits(each.saturating_mul(u128::from(count))), group_digits(each));
    let layers = if count == 1 { "layer" } else { "layers" };
    spec.not_modelled.push(format!(
        "{count} {layers} for multi-token prediction that the config announces: transformers does not build them either. \
         Each is a block and a map from 2h to h, {each} parameters ({total} in all), plus embedding and head where a \
         checkpoint stores them twice"
    ));
}
