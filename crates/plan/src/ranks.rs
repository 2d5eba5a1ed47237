//! How many parameters one rank holds where matrices are divided over tensor-parallel ranks and experts over groups of
//! their own.
//!
//! Source: Megatron-Core, `parallel_state` (expert tensor and expert data groups): experts are divided by
//! `expert_tensor_parallel_size x expert_model_parallel_size`, whatever the tensor-parallel size of the rest is.

use nn::ParamKind;
use nn::step::ParamInfo;
use units::{Diagnostic, Diagnostics, Params};

use crate::model::Model;
use crate::phrase;
use crate::report::{Block, Cell, KeyValue, Report, Value};

/// Over how many ranks parameters are divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split {
    /// Ranks that share matrices outside of experts.
    pub tp: u64,
    /// Ranks that share the experts of a block.
    pub ep: u64,
    /// Ranks that share the matrices of one expert.
    pub etp: u64,
}

/// Parameters of one rank, by how they are divided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rank {
    /// Of experts.
    pub experts: u64,
    /// Of other matrices, tables and the head.
    pub matrices: u64,
    /// What every rank holds: norms, biases, routers, maps into compressed streams.
    pub replicated: u64,
}

impl Rank {
    /// What one rank holds of `params`.
    pub fn of(params: &[ParamInfo], split: Split) -> Self {
        let mut rank = Self::default();
        for param in params {
            match param.kind {
                ParamKind::Expert { .. } => rank.experts += param.elements,
                _ if param.shape.len() < 2 || param.replicated => rank.replicated += param.elements,
                _ => rank.matrices += param.elements,
            }
        }
        // One after the other: the product may be more than is counted.
        rank.experts = rank.experts.div_ceil(split.ep).div_ceil(split.etp);
        rank.matrices = rank.matrices.div_ceil(split.tp);
        rank
    }

    /// All of them.
    pub const fn total(&self) -> u64 {
        self.experts + self.matrices + self.replicated
    }
}

/// Adds to a report of parameters what one rank holds of them.
///
/// # Errors
/// `T0471` for a split that divides heads or experts into parts, or experts where there are none.
pub fn add(report: &mut Report, model: &Model, split: Split) -> Result<(), Diagnostics> {
    let params = crate::params::parameters(model)?;
    let mut problems = Diagnostics::new();
    let experts = params.iter().filter_map(|p| match p.kind {
        ParamKind::Expert { experts, .. } => Some(experts),
        _ => None,
    });
    let experts = experts.max();
    for (flag, ranks) in [("--ep", split.ep), ("--etp", split.etp)] {
        if experts.is_none() && ranks > 1 {
            problems.push(
                Diagnostic::error("T0471", format!("{flag} {ranks} divides experts, and `{}` has none", model.name))
                    .why("its matrices are divided by --tp alone")
                    .help(format!("leave {flag} away")),
            );
        }
    }
    if let Some(experts) = experts.filter(|experts| !experts.is_multiple_of(split.ep)) {
        problems.push(Diagnostic::error("T0471", format!("--ep {} does not divide {experts} experts", split.ep)));
    }
    let heads = model.spec.layers.iter().filter_map(|layer| layer.attention()).map(|attention| attention.kv_heads);
    if let Some(heads) = heads.min().filter(|heads| !heads.is_multiple_of(split.tp)) {
        problems.push(
            Diagnostic::error("T0471", format!("--tp {} does not divide {heads} key/value heads", split.tp))
                .why("heads would have to be held more than once, which is not counted"),
        );
    }
    let width = params.iter().filter(|p| matches!(p.kind, ParamKind::Expert { .. })).find_map(|p| p.shape.last());
    if let Some(width) = width.filter(|width| !width.is_multiple_of(split.etp)) {
        problems
            .push(Diagnostic::error("T0471", format!("--etp {} does not divide experts of width {width}", split.etp)));
    }
    if problems.has_errors() {
        return Err(problems);
    }
    let rank = Rank::of(&params, split);
    let exact = |count: u64| Cell::Count(u128::from(count));
    let rows = [
        KeyValue::new("of experts", exact(rank.experts)).note(phrase!["÷ ", split.ep, " × ", split.etp]),
        KeyValue::new("of matrices and tables", exact(rank.matrices)).note(phrase!["÷ ", split.tp]),
        KeyValue::new("on every rank", exact(rank.replicated))
            .note("norms, biases, routers, maps into compressed streams"),
        KeyValue::new("one rank", exact(rank.total())),
    ];
    report.blocks.push(Block::key_values("on one rank", rows));
    report.headline.qualifiers.push(phrase![Params(rank.total()), " on one rank"]);
    let value = Value::map()
        .with("tp", split.tp)
        .with("ep", split.ep)
        .with("etp", split.etp)
        .with("experts", rank.experts)
        .with("matrices", rank.matrices)
        .with("replicated", rank.replicated)
        .with("parameters", rank.total());
    report.result.insert("rank", value);
    Ok(())
}
