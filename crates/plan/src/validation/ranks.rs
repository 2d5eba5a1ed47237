//! Rows of runs whose model is divided: the layout that a row and the code of its source state, and what its ranks hold.

use nn::ModelSpec;
use nn::blocks::Blocks;
use nn::spec::FeedForwardSpec;
use nn::step::StepOptions;

use super::facts::first;
use super::memory::follow;
use super::recipe::{self, Of};
use super::row::Row;
use crate::handover::Engine;
use crate::layout::engine::blocks_by_cost;
use crate::layout::rank::{self, RankTrace};
use crate::layout::{ContextParallel, Layout, Schedule};
use crate::sharding::Sharding;

/// Whether a row is one of ranks: it divides the model itself, not only sequences and states, or its engine is one whose ways
/// are known.
pub(super) fn is_divided(row: &Row) -> bool {
    let layout = &row.layout;
    let known = recipe::find(&row.source, Of::Engine).is_some() && layout.dp.is_some();
    known || [layout.tp, layout.pp, layout.cp, layout.ep].iter().any(|size| size.is_some_and(|size| size > 1))
}

/// Rows of the vocabulary as the source's code stores them: filled up to a multiple of so many for each rank of a matrix.
///
/// # Errors
/// If the row is too large to count.
pub(super) fn filled_up(row: &Row, assumed: &mut Vec<String>) -> Result<Option<u64>, String> {
    let (Some(vocab), Some(unit)) = (row.sizes.vocab, follow(row, Of::Vocabulary, assumed)) else { return Ok(None) };
    let unit: u64 = unit.parse().map_err(|_| format!("no number of rows: {unit}"))?;
    let unit = unit.checked_mul(row.layout.tp.unwrap_or(1).max(1));
    unit.and_then(|unit| vocab.checked_next_multiple_of(unit))
        .map(Some)
        .ok_or_else(|| "sizes that cannot be counted".to_owned())
}

/// The layout of a row whose states are divided as `sharding` says.
///
/// # Errors
/// What neither the row nor the code of its source says.
pub(super) fn layout(
    row: &Row,
    model: &ModelSpec,
    sharding: Sharding,
    step: &StepOptions,
    assumed: &mut Vec<String>,
) -> Result<Layout, String> {
    let of = |size: Option<u64>| size.unwrap_or(1).max(1);
    let (tp, pp, cp, ep) = (of(row.layout.tp), of(row.layout.pp), of(row.layout.cp), of(row.layout.ep));
    let sp = match row.layout.sp {
        Some(sp) => sp && tp > 1,
        None if tp > 1 => return Err("layout: whether sequences are divided with matrices is not stated".to_owned()),
        None => false,
    };
    let dp = row.layout.dp.ok_or("layout: the number of replicas is not stated")?;
    let context = match (cp, follow(row, Of::Context, assumed)) {
        (1, _) => ContextParallel::default(),
        (_, Some(_)) => ContextParallel::AllToAll,
        _ => return Err("layout: how ranks share a sequence is not stated".to_owned()),
    };
    if ep > 1 && follow(row, Of::Experts, assumed).is_none() {
        return Err("layout: how many rows the fullest rank of experts has is not stated".to_owned());
    }
    let virtual_stages = of(row.layout.vp);
    let (mut blocks, mut grad_accum, mut schedule) = (None, step.grad_accum_steps, Schedule::default());
    if pp > 1 {
        let name = follow(row, Of::Schedule, assumed).ok_or("layout: the schedule of the pipeline is not stated")?;
        schedule = if virtual_stages > 1 { Schedule::Interleaved } else { name.parse()? };
        grad_accum = row.grad_accum.ok_or("layout: the number of micro-batches is not stated")?;
        let by_cost = follow(row, Of::Stages, assumed).is_some();
        let depth = model.layers.len() as u64;
        if pp.checked_mul(virtual_stages).is_none_or(|stages| stages > depth) {
            return Err("layout: more stages than blocks".to_owned());
        }
        if by_cost {
            blocks = Some(stages_by_cost(model, pp)?);
            if let Some(stated) = row.layout.first_stage {
                blocks = Some(with_first(blocks.unwrap_or_default(), stated, depth)?);
            }
        } else if !depth.is_multiple_of(pp * virtual_stages) {
            return Err("layout: which blocks a stage has is not stated".to_owned());
        }
    }
    Ok(Layout {
        dp,
        tp,
        sp,
        cp,
        context,
        ep,
        pp,
        virtual_stages,
        schedule,
        blocks,
        zero: sharding.zero,
        micro_batch: step.batch,
        grad_accum,
        recompute: step.recompute,
        offload: step.offload,
        ..Layout::default()
    })
}

/// Blocks of each stage by the cost of their matrices; the head counts as what it is, the token table as nothing.
///
/// # Errors
/// If a stage before the last block has none.
fn stages_by_cost(model: &ModelSpec, stages: u64) -> Result<Vec<u64>, String> {
    let h = model.hidden_size;
    let costs: Vec<u64> = model
        .layers
        .iter()
        .map(|layer| {
            let attention = layer.attention().map_or(0, |a| 4 * a.heads * a.head_dim * h);
            let mlp = match &layer.feed_forward {
                FeedForwardSpec::Mlp(mlp) => 3 * mlp.intermediate_size * h,
                _ => 0,
            };
            attention + mlp
        })
        .collect();
    let blocks = blocks_by_cost(costs, model.vocab_size * h, stages);
    // Those behind the last block have the head and the loss.
    if blocks.iter().rev().skip_while(|count| **count == 0).any(|count| *count == 0) {
        return Err("layout: a stage without a block".to_owned());
    }
    Ok(blocks)
}

/// The same with as many blocks on the first stage as were seen there: the next one has the others.
fn with_first(mut blocks: Vec<u64>, first: u64, depth: u64) -> Result<Vec<u64>, String> {
    let rest = blocks.iter().skip(2).sum::<u64>() + first;
    let second = depth.checked_sub(rest).filter(|_| first > 0);
    let second = second.ok_or("layout: blocks of the first stage that leave none to the others")?;
    (blocks[0], blocks[1]) = (first, second);
    Ok(blocks)
}

/// Who runs the row.
pub(super) fn engine(row: &Row, assumed: &mut Vec<String>) -> Option<Engine> {
    match follow(row, Of::Engine, assumed)? {
        "megatron" => Some(Engine::Megatron),
        _ => Some(Engine::Nanotron),
    }
}

/// Which places of the pipeline a row was read at.
///
/// # Errors
/// If it does not say.
pub(super) fn places(row: &Row, pp: u64) -> Result<Vec<u64>, String> {
    let kind = row.memory_kind.to_lowercase();
    if kind.contains("max over ranks") {
        return Ok((0..pp).collect());
    }
    // Stages are farthest apart in the order of ranks.
    if kind.contains("rank 0") || pp == 1 {
        return Ok(vec![0]);
    }
    Err("memory of which rank is not stated".to_owned())
}

/// The ranks at these places, traced.
///
/// # Errors
/// What the layout does not allow.
pub(super) fn trace(
    model: &ModelSpec,
    layout: &Layout,
    step: &StepOptions,
    engine: Option<Engine>,
    places: Vec<u64>,
) -> Result<Vec<RankTrace>, String> {
    rank::trace(model, layout, step, engine, places).map_err(|problems| first(&problems))
}

/// Blocks of a rank, by the names of its modules.
pub(super) fn blocks_of(rank: &RankTrace) -> Blocks {
    Blocks::of(&rank.stages[0].names)
}
