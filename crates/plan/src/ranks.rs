//! How many parameters one rank holds where matrices are divided over tensor-parallel ranks and experts over groups of
//! their own: those of the model's part that the rank has ([`ModelSpec::share`](nn::spec::ModelSpec::share)).
//!
//! Source: Megatron-Core, `parallel_state` (expert tensor and expert data groups): experts are divided by
//! `expert_tensor_parallel_size x expert_model_parallel_size`, whatever the tensor-parallel size of the rest is.

use nn::spec::ModelSpec;
use nn::step::ParamInfo;
use nn::{ParamKind, Ranks, Share};
use units::{Diagnostic, Diagnostics, Params};

use crate::model::{self, Model};
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
    /// Of other parameters of which each rank holds another part: maps with their biases, tables and the head.
    pub divided: u64,
    /// What every rank holds: norms, routers, maps into compressed streams.
    pub replicated: u64,
}

impl Rank {
    /// What one rank holds of a model.
    ///
    /// # Errors
    /// `T0471`: what cannot be divided. `T0305` for sizes that cannot be counted.
    pub fn of(spec: &ModelSpec, split: Split) -> Result<Self, Diagnostics> {
        let Split { tp, ep, etp } = split;
        // A mixture is divided with the positions of its stream; that moves no parameter.
        let ranks = Ranks { tp, sp: tp > 1, ep, etp, ..Ranks::ALONE };
        let refused = |what: Vec<String>| {
            let problems = what.into_iter().map(|what| Diagnostic::error("T0471", what));
            Diagnostics(problems.collect())
        };
        Ok(Self::sum(&model::parameters(&spec.share(ranks).map_err(refused)?)?))
    }

    fn sum(params: &[ParamInfo]) -> Self {
        let mut rank = Self::default();
        for param in params {
            match (param.kind, param.share) {
                (ParamKind::Expert { .. }, _) => rank.experts += param.elements,
                (_, Share::Part) => rank.divided += param.elements,
                (_, Share::Whole | Share::Alike | Share::Inside) => rank.replicated += param.elements,
            }
        }
        rank
    }

    /// All of them.
    pub const fn total(&self) -> u64 {
        self.experts + self.divided + self.replicated
    }
}

/// Adds to a report of parameters what one rank holds of them.
///
/// # Errors
/// `T0471` for a split that divides heads or experts into parts, or what is not there or not divided.
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
    if problems.has_errors() {
        return Err(problems);
    }
    let rank = Rank::of(&model.spec, split)?;
    let exact = |count: u64| Cell::Count(u128::from(count));
    let divided = phrase!["÷ ", split.tp];
    let divided = match model.spec.vocab_size.next_multiple_of(split.tp) {
        rows if rows == model.spec.vocab_size => divided,
        rows => divided.and(phrase![", the vocabulary filled up to ", exact(rows)]),
    };
    let rows = [
        KeyValue::new("of experts", exact(rank.experts)).note(phrase!["÷ ", split.ep, " × ", split.etp]),
        KeyValue::new("of maps and tables", exact(rank.divided)).note(divided),
        KeyValue::new("on every rank", exact(rank.replicated)).note("norms, routers, maps into compressed streams"),
        KeyValue::new("one rank", exact(rank.total())),
    ];
    report.blocks.push(Block::key_values("on one rank", rows));
    report.headline.qualifiers.push(phrase![Params(rank.total()), " on one rank"]);
    let value = Value::map()
        .with("tp", split.tp)
        .with("ep", split.ep)
        .with("etp", split.etp)
        .with("experts", rank.experts)
        .with("divided", rank.divided)
        .with("replicated", rank.replicated)
        .with("parameters", rank.total());
    report.result.insert("rank", value);
    Ok(())
}
