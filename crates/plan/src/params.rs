//! How many parameters, by module; total, embedding, active.

use nn::ParamKind;
use nn::step::ParamInfo;
use std::collections::{BTreeMap, BTreeSet};
use units::{Diagnostics, Params};

use crate::evidence::Sum;
use crate::model::{Model, pattern};
use crate::phrase;
use crate::report::{Block, Cell, Column, Derivation, KeyValue, Report, Row, Table, Value};

/// The counts of a model under every convention in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Each tensor once.
    pub stored: Params,
    /// Each name once: a tied head counts again.
    pub untied: Params,
    /// Those that are trained.
    pub trainable: Params,
    /// Token and position tables.
    pub embedding: Params,
    /// Those a token passes: chosen experts only, embeddings, head and router included.
    pub active: Params,
    /// Weights a token is multiplied with: active, without tables that are only looked up, norms and biases; a tied
    /// head is in.
    pub matmul: Params,
}

impl Counts {
    /// Counts the parameters of a model.
    pub fn of(params: &[ParamInfo]) -> Self {
        let sum = |f: &dyn Fn(&ParamInfo) -> u64| Params(params.iter().map(f).sum());
        let active = |p: &ParamInfo| match p.kind {
            ParamKind::Expert { experts, top_k } | ParamKind::ExpertAdapter { experts, top_k } => {
                p.elements / experts.max(1) * top_k
            }
            _ => p.elements,
        };
        Self {
            stored: sum(&|p| p.elements),
            untied: sum(&|p| p.elements * (1 + p.tied.len() as u64)),
            trainable: sum(&|p| if p.trainable { p.elements } else { 0 }),
            embedding: sum(&|p| if p.kind == ParamKind::Embedding { p.elements } else { 0 }),
            active: sum(&active),
            matmul: sum(&|p| match p.kind {
                // A table that two stacks read is looked up in both, and multiplied where it is the head.
                ParamKind::Embedding => {
                    p.elements * p.tied.iter().filter(|name| !name.contains("embed")).count() as u64
                }
                _ if p.shape.len() < 2 => 0,
                // Biases of experts are tables of vectors.
                ParamKind::Expert { .. } if p.shape.len() < 3 => 0,
                _ => active(p),
            }),
        }
    }

    /// All but the embedding.
    pub fn non_embedding(&self) -> Params {
        self.stored.saturating_sub(self.embedding)
    }

    /// For programs.
    pub fn result(&self) -> Value {
        Value::map()
            .with("stored", self.stored)
            .with("untied", self.untied)
            .with("trainable", self.trainable)
            .with("embedding", self.embedding)
            .with("non_embedding", self.non_embedding())
            .with("active", self.active)
            .with("matmul", self.matmul)
    }
}

/// The parameters of a model.
///
/// # Errors
/// `T0305` for sizes that cannot be counted.
pub fn parameters(model: &Model) -> Result<Vec<ParamInfo>, Diagnostics> {
    crate::model::parameters(&model.spec)
}

/// The parameters of parts beside the language model.
///
/// # Errors
/// `T0305` for sizes that cannot be counted.
pub fn other_parameters(model: &Model) -> Result<Vec<ParamInfo>, Diagnostics> {
    Ok(nn::step::tower_parameters(&model.spec).map_err(|error| crate::model::uncountable(&error))?)
}

/// How many parameters, by module down to `depth` levels below a block.
///
/// # Errors
/// `T0305` for sizes that cannot be counted.
pub fn report(model: &Model, depth: usize) -> Result<Report, Diagnostics> {
    let params = parameters(model)?;
    let counts = Counts::of(&params);
    let mut report = Report::new("params", phrase![Cell::Exact(u128::from(counts.stored.get())), " parameters"]);
    report = report.qualified(phrase![counts.stored]);
    if counts.active != counts.stored {
        report = report.qualified(phrase![counts.active, " active per token"]);
    }
    let mut rows = vec![KeyValue::new("stored", exact(counts.stored)).note("each tensor once")];
    if counts.untied != counts.stored {
        rows.push(
            KeyValue::new("untied", exact(counts.untied)).note("the head is the token embedding; counted again here"),
        );
    }
    if counts.trainable != counts.stored {
        rows.push(KeyValue::new("trainable", exact(counts.trainable)));
    }
    rows.push(KeyValue::new("embedding", exact(counts.embedding)).note("looked up, not multiplied"));
    rows.push(KeyValue::new("non-embedding", exact(counts.non_embedding())));
    rows.push(KeyValue::new("active", exact(counts.active)).note("per token, embedding and head included"));
    rows.push(
        KeyValue::new("matmul", exact(counts.matmul))
            .note("weights a token is multiplied with; the N of 6N that is work"),
    );
    report.blocks.push(Block::key_values("", rows));
    report.blocks.push(tree(&params, counts.stored, &lists(model, &params), depth).into());
    let others = other_parameters(model)?;
    if !others.is_empty() {
        report.blocks.push(other_parts(model, &params, &others));
    }
    let modules = by_module(&params);
    report.result =
        counts.result().with("by_module", Value::Map(modules.into_iter().map(|(m, n)| (m, n.into())).collect()));
    if !others.is_empty() {
        let whole: Vec<ParamInfo> = params.iter().chain(&others).cloned().collect();
        report.result.insert("other_parts", Counts::of(&others).result());
        report.result.insert("whole_model", Counts::of(&whole).result());
    }
    report.derivations = derivations(&params);
    report.inputs = Value::map().with("model", model.inputs());
    report.warnings = model.warnings();
    report.assumptions = model.assumptions();
    Ok(report)
}

/// What a wrapper has beside its language model: not in the counts above, for a step on texts does not run it.
fn other_parts(model: &Model, params: &[ParamInfo], others: &[ParamInfo]) -> Block {
    let apart = Counts::of(others);
    let whole: Vec<ParamInfo> = params.iter().chain(others).cloned().collect();
    let what: Vec<&str> = model.spec.towers.iter().map(|tower| tower.what).collect();
    let name = format!("{} part", what.join(" and "));
    let whole = Counts::of(&whole);
    Block::key_values(
        "beside the language model",
        [
            KeyValue::new(name, exact(apart.stored)).note("not counted above: a step on texts does not run it"),
            KeyValue::new("whole model", exact(whole.stored)).note("each tensor once"),
            KeyValue::new("whole model, untied", exact(whole.untied)),
        ],
    )
}

fn exact(count: Params) -> Cell {
    Cell::Count(u128::from(count.get()))
}

/// Each module's parameters as the sum of its tensors.
fn derivations(params: &[ParamInfo]) -> Vec<Derivation> {
    let mut rows: BTreeMap<String, (u64, Sum)> = BTreeMap::new();
    for p in params {
        let (module, tensor) = p.name.rsplit_once('.').unwrap_or(("", &p.name));
        let entry = rows.entry(pattern(module)).or_default();
        entry.0 += p.elements;
        entry.1.add(format!("{:?} ({tensor})", p.shape), u128::from(p.elements));
    }
    rows.into_iter().map(|(name, (count, sum))| sum.derive(name, "traced-params", Params(count))).collect()
}

/// Parameters of each module, layer numbers folded into `*`.
pub fn by_module(params: &[ParamInfo]) -> BTreeMap<String, u64> {
    let mut out = BTreeMap::new();
    for p in params {
        let module = p.name.rsplit_once('.').map_or("", |(module, _)| module);
        *out.entry(pattern(module)).or_insert(0) += p.elements;
    }
    out
}

/// How many modules stand in each list, such as `model.layers.*`; of the blocks themselves, how many run.
fn lists(model: &Model, params: &[ParamInfo]) -> BTreeMap<String, u64> {
    let mut numbers: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for param in params {
        let parts: Vec<&str> = param.name.split('.').collect();
        for (i, part) in parts.iter().enumerate().filter(|(_, part)| pattern(part) == "*") {
            numbers.entry(pattern(&parts[..=i].join("."))).or_default().insert(part);
        }
    }
    let names = &model.spec.names;
    let blocks = pattern(&[names.body, names.layers, "*"].join(".")).trim_start_matches('.').to_owned();
    let run = model.spec.depth() as u64;
    let count = |(list, numbers): (String, BTreeSet<&str>)| {
        let count = if blocks.starts_with(&list) { run } else { numbers.len() as u64 };
        (list, count)
    };
    numbers.into_iter().map(count).collect()
}

/// The tree of modules, biggest first, `depth` levels.
fn tree(params: &[ParamInfo], total: Params, lists: &BTreeMap<String, u64>, depth: usize) -> Table {
    let columns = [Column::left("module"), Column::right("parameters"), Column::right("share"), Column::left("")];
    let mut table = Table::new("", columns);
    let leaves = by_module(params);
    push_level(&mut table, &leaves, "", total, lists, 0, depth.max(1));
    table.total = Some(Row::new([Cell::Empty, exact(total), Cell::Percent(1.0)]));
    table
}

/// One level of the tree below `prefix`.
fn push_level(
    table: &mut Table,
    leaves: &BTreeMap<String, u64>,
    prefix: &str,
    total: Params,
    lists: &BTreeMap<String, u64>,
    level: u8,
    depth: usize,
) {
    let mut groups: BTreeMap<String, u64> = BTreeMap::new();
    for (path, &count) in leaves {
        let Some(rest) = below(path, prefix) else { continue };
        // A list and its `*` are one level: `layers.*`.
        let mut parts = rest.split('.');
        let Some(head) = parts.next().filter(|h| !h.is_empty()) else { continue };
        let name = match parts.next() {
            Some("*") => format!("{head}.*"),
            _ => head.to_owned(),
        };
        *groups.entry(name).or_insert(0) += count;
    }
    let mut groups: Vec<(String, u64)> = groups.into_iter().collect();
    groups.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    for (name, count) in groups {
        let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
        let share = count as f64 / total.as_f64().max(1.0);
        let mut row = Row::new([name.as_str().into(), exact(Params(count)), Cell::Percent(share), Cell::Bar(share)])
            .indent(level);
        if let Some(count) = lists.get(&path) {
            row = row.note(phrase![*count, " blocks"]);
        }
        table.rows.push(row);
        if depth > 1 {
            push_level(table, leaves, &path, total, lists, level + 1, depth - 1);
        }
    }
}

fn below<'a>(path: &'a str, prefix: &str) -> Option<&'a str> {
    if prefix.is_empty() {
        return Some(path);
    }
    path.strip_prefix(prefix)?.strip_prefix('.')
}
