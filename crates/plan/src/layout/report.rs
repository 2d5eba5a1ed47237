//! A layout in words: who shares what with whom, and which blocks stand where.

use nn::step::Precision;
use units::{Diagnostics, Tokens, group_digits};

use super::{ContextParallel, Layout, check, moe};
use crate::model::Model;
use crate::phrase;
use crate::report::{Assumption, Block, Cell, Column, KeyValue, Origin, Report, Row, Table, Value};

/// Most stages that are listed for people.
const MOST_STAGES: usize = 32;

/// A layout of a run.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The model.
    pub model: &'a Model,
    /// How it is divided.
    pub layout: &'a Layout,
    /// Devices there are, where that is said.
    pub devices: Option<u64>,
    /// Tokens of a sequence, and who says so.
    pub seq_len: (u64, Origin),
    /// Number formats, and who says so.
    pub precision: (Precision, Origin),
}

/// Says what a layout is.
///
/// # Errors
/// As [`check`].
pub fn report(request: &Request<'_>) -> Result<Report, Diagnostics> {
    let (layout, (seq_len, _)) = (request.layout, request.seq_len);
    check(layout, &request.model.spec, seq_len, request.devices)?;
    let answer = phrase![counted(layout.devices(), "device", "devices")];
    let mut report = Report::new("layout", answer).qualified(layout.to_string());
    report.blocks.push(Block::key_values("", groups(request)));
    let blocks = layout.blocks_of(request.model.spec.depth() as u64);
    if layout.pp > 1 {
        report.blocks.push(stages(layout, &blocks).into());
    }
    report.result = result(layout, &blocks, seq_len);
    let ((_, len_from), (precision, precision_from)) = (request.seq_len, request.precision);
    let said = |from: Origin| if from == Origin::File { "as the file says" } else { "" };
    let tokens = Assumption::new("seq_len", "sequence length", Tokens(seq_len), len_from).why(said(len_from));
    report.assumptions.push(tokens.flag("--seq-len"));
    let recipe = Assumption::new("precision", "precision", precision.name(), precision_from).why(said(precision_from));
    report.assumptions.push(recipe.flag("--precision"));
    report.warnings.extend(request.model.warnings());
    Ok(report)
}

/// So many of something, in words.
pub(super) fn counted(count: u64, one: &str, many: &str) -> String {
    format!("{} {}", group_digits(u128::from(count)), if count == 1 { one } else { many })
}

pub(crate) fn groups(request: &Request<'_>) -> Vec<KeyValue> {
    let layout = request.layout;
    let step = layout.global_batch();
    let mut rows = vec![KeyValue::new("batch", Tokens(step.saturating_mul(request.seq_len.0))).note(phrase![
        "a step: ",
        counted(layout.dp, "replica", "replicas"),
        " × ",
        layout.micro_batch,
        " × ",
        layout.grad_accum,
        " sequences of ",
        request.seq_len.0,
        " tokens"
    ])];
    let states = match layout.zero {
        0 if layout.dp.saturating_mul(layout.cp) == 1 => "nothing to divide states over",
        0 => "every replica holds all states",
        1 => "optimizer states are divided over them",
        2 => "optimizer states and gradients are divided over them",
        _ => "states, gradients and parameters are divided over them",
    };
    let other = layout.sharding().other_gathering();
    let states = [states].into_iter().chain(other).collect::<Vec<_>>().join("; ");
    let sharing = if layout.zero == 0 { 1 } else { layout.sharing_ranks() };
    rows.push(KeyValue::new("zero", u64::from(layout.zero)).note(phrase![
        counted(sharing, "rank", "ranks"),
        ": ",
        states
    ]));
    if layout.tp > 1 {
        let between =
            if layout.sp { "; what lies between is divided by position" } else { "; each holds what lies between" };
        rows.push(KeyValue::new("tp", layout.tp).note(phrase!["ranks share matrices", between]));
    }
    if layout.cp > 1 {
        let how = match layout.context {
            ContextParallel::Ring => "ranks share a sequence; keys and values go round",
            ContextParallel::AllToAll => "ranks share a sequence; heads are exchanged for positions",
        };
        rows.push(KeyValue::new("cp", layout.cp).note(how));
    }
    let experts = request.model.spec.layers.iter().find_map(|layer| moe(&layer.feed_forward));
    if let Some(moe) = experts {
        rows.push(KeyValue::new("ep", layout.ep).note(phrase![
            "each holds ",
            moe.experts / layout.ep,
            " of ",
            moe.experts,
            " experts; ",
            counted(layout.expert_dp(), "replica", "replicas"),
            " of one"
        ]));
        rows.push(KeyValue::new("etp", layout.etp).note("ranks share the matrices of an expert"));
    }
    if layout.pp > 1 {
        let runs = match layout.virtual_stages {
            1 => String::new(),
            n => format!(", {n} runs of blocks on each rank"),
        };
        rows.push(KeyValue::new("pp", layout.pp).note(phrase![
            layout.schedule.name(),
            runs,
            ", ",
            counted(layout.grad_accum, "micro-batch", "micro-batches")
        ]));
    }
    rows.push(KeyValue::new("recompute", layout.recompute.name()));
    if layout.offload.is_any() {
        rows.push(KeyValue::new("on the host", layout.offload.to_string()));
    }
    rows
}

fn stages(layout: &Layout, blocks: &[u64]) -> Table {
    let columns = [Column::right("stage"), Column::right("rank"), Column::right("blocks"), Column::left("which")];
    let mut table = Table::new("stages", columns);
    let mut next = 0u64;
    for (stage, count) in blocks.iter().enumerate() {
        let which = (*count > 0).then(|| format!("{next} to {}", next + count - 1));
        next += count;
        let more = match stage {
            0 => Some("embedding in front".to_owned()),
            last if last + 1 == blocks.len() => Some("norm, head and loss behind".to_owned()),
            _ => None,
        };
        let which: Vec<String> = which.into_iter().chain(more).collect();
        if stage < MOST_STAGES || stage + 1 == blocks.len() {
            let cells =
                [Cell::from(stage as u64), (stage as u64 % layout.pp).into(), (*count).into(), which.join(", ").into()];
            table.rows.push(Row::new(cells));
        }
    }
    table
}

/// A layout for programs.
pub(crate) fn result(layout: &Layout, blocks: &[u64], seq_len: u64) -> Value {
    let context = match layout.context {
        ContextParallel::Ring => "ring",
        ContextParallel::AllToAll => "all-to-all",
    };
    Value::map()
        .with("devices", layout.devices())
        .with("dp", layout.dp)
        .with("tp", layout.tp)
        .with("sp", layout.sp)
        .with("cp", layout.cp)
        .with("context", context)
        .with("ep", layout.ep)
        .with("etp", layout.etp)
        .with("expert_dp", layout.expert_dp())
        .with("pp", layout.pp)
        .with("virtual_stages", layout.virtual_stages)
        .with("schedule", layout.schedule.name())
        .with("blocks", Value::list(blocks.iter().copied()))
        .with("zero", u64::from(layout.zero))
        .with("shard_ranks", layout.sharing_ranks())
        .with_all(layout.gathering.values())
        .with("micro_batch", layout.micro_batch)
        .with("grad_accum", layout.grad_accum)
        .with("recompute", layout.recompute.name())
        .with("offload", layout.offload.to_string())
        .with("sequences_per_step", layout.global_batch())
        .with("tokens_per_step", layout.global_batch().saturating_mul(seq_len))
}
