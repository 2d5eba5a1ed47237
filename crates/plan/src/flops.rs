//! How much arithmetic, by phase, module and op, under each convention.

use nn::spec::SourceSpec;
use nn::step::{StepOptions, StepTrace, Until};
use std::collections::BTreeMap;
use tensor::meter::OpEvent;
use tensor::{Cost, Phase, Trace};
use units::{Diagnostics, Flops};

use crate::charts;
use crate::evidence::{self, Sum};
use crate::filling::Filling;
use crate::formulas;
use crate::model::{Model, last_micro_batches, pattern, repeats};
use crate::params::Counts;
use crate::phrase;
use crate::report::{Assumption, Block, Cell, Chart, Column, Derivation, KeyValue, Origin, Report, Row, Table, Value};
use crate::work::{Convention, Work};

/// Costs of one training step (forward and backward) of one device's micro-batch.
#[derive(Clone, Debug)]
pub struct StepFlops {
    /// Forward pass.
    pub forward: Cost,
    /// Backward pass.
    pub backward: Cost,
    /// Forward work done again in backward by a recompute policy.
    pub recompute: Cost,
    /// Tokens of the micro-batch.
    pub tokens: u64,
}

impl StepFlops {
    /// Sums the costs of a trace of one step.
    pub fn of(trace: &Trace, options: &StepOptions) -> Self {
        let of = |phase| trace.cost(|e| e.phase == phase);
        Self {
            forward: of(Phase::Forward),
            backward: of(Phase::Backward),
            recompute: of(Phase::Recompute),
            tokens: options.tokens(),
        }
    }

    /// Model FLOP per token: causal pairs, no recomputation.
    pub fn per_token(&self) -> Flops {
        Flops((self.forward.matmul + self.backward.matmul) / u128::from(self.tokens.max(1)))
    }

    /// Model FLOP per token with the full square of attention.
    pub fn per_token_full(&self, trace: &Trace) -> Flops {
        // The fused backward's recomputed scores are hardware work: three times the forward square is the model's.
        let extra: u128 =
            trace.ops.iter().filter(|e| e.phase == Phase::Backward).map(|e| e.cost.recomputed_dense).sum();
        let model = self.forward.matmul_dense + self.backward.matmul_dense - extra;
        Flops(model / u128::from(self.tokens.max(1)))
    }
}

/// Options of a trace that ends with the backward pass of one step.
fn one_step(options: &StepOptions) -> StepOptions {
    StepOptions { steps: 1, until: Until::Backward, ..*options }
}

/// Work of one token, for time and utilization.
///
/// # Errors
/// As [`Model::trace`].
pub fn work(model: &Model, options: &StepOptions) -> Result<Work, Diagnostics> {
    let options = one_step(options);
    Ok(work_of(model, &options, &*model.trace(&options)?))
}

/// Work of one token, from a trace.
pub fn work_of(model: &Model, options: &StepOptions, traced: &StepTrace) -> Work {
    let flops = StepFlops::of(&traced.trace, options);
    let attention = traced.trace.cost(|e| is_attention_core(e) && e.phase != Phase::Recompute).matmul
        / u128::from(flops.tokens.max(1));
    let Counts { stored, active, .. } = Counts::of(&traced.params);
    Work {
        model: model.name.clone(),
        parameters: Some(stored),
        active: Some(active).filter(|active| *active != stored),
        per_token: vec![
            (Convention::Causal, flops.per_token()),
            (Convention::Full, flops.per_token_full(&traced.trace)),
            (Convention::SixN, formulas::flop_per_token(active)),
        ],
        attention: Some(Flops(attention)),
        seq_len: Some(options.seq_len),
        useful: None,
        assumptions: model.assumptions().into_iter().chain([seq_len_assumption(options)]).collect(),
        warnings: model.step_warnings(options),
    }
}

/// Whether an op is scores or values of attention: the fused op, or a batched product with activations on both sides.
pub(crate) fn is_attention_core(event: &OpEvent) -> bool {
    use tensor::Op;
    match &event.op {
        Op::Attention(_) | Op::AttentionBackward(_) => true,
        Op::MatMul(m) => m.mask.is_some(),
        _ => false,
    }
}

/// Which part of a step to show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Part {
    /// Forward and backward.
    #[default]
    Step,
    /// Forward only.
    Forward,
    /// Backward only.
    Backward,
}

/// How to show it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct View {
    /// Which part of the step the table of modules shows.
    pub part: Part,
    /// How sequences are filled, where that is said.
    pub filling: Filling,
    /// Levels of modules below a block.
    pub depth: usize,
}

/// FLOP of one step, by module, phase, op and convention.
///
/// # Errors
/// As [`Model::trace`].
pub fn report(model: &Model, options: &StepOptions, view: View) -> Result<Report, Diagnostics> {
    let options = &one_step(options);
    let traced = model.trace(options)?;
    let trace = &traced.trace;
    let flops = StepFlops::of(trace, options);
    let work = work_of(model, options, &traced);
    let counts = Counts::of(&traced.params);
    let per_token = flops.per_token();
    let sequence = |cost: u128| Flops(cost / u128::from((options.sequences() * options.grad_accum_steps).max(1)));
    let total = flops.forward.matmul + flops.backward.matmul;

    let mut report = Report::new("flops", phrase![per_token, " per token"]).qualified(phrase![
        sequence(total),
        " per ",
        Cell::Count(u128::from(options.seq_len)),
        "-token sequence (forward ",
        sequence(flops.forward.matmul),
        ", backward ",
        sequence(flops.backward.matmul),
        ")"
    ]);
    report.blocks.push(modules(trace, view).into());
    report.blocks.push(conventions(&work, &flops, trace, &counts).into_block());
    let filled = view.filling.applied(work.clone())?;
    report.blocks.extend(filling_rows(&filled, view.filling));
    if flops.recompute.matmul > 0 {
        report.blocks.push(Block::key_values(
            "",
            [KeyValue::new("recompute", sequence(flops.recompute.matmul))
                .note("forward work done again: hardware FLOP, in no model count")],
        ));
    }
    let (towers, tower_values) = other_parts(model, options);
    report.blocks.extend(towers);
    report.inputs = Value::map().with("model", model.inputs()).with("step", step_inputs(options));
    report.result = Value::map()
        .with("forward", cost_value(&flops.forward))
        .with("backward", cost_value(&flops.backward))
        .with("recompute", cost_value(&flops.recompute))
        .with("by_op", by_op(trace, options))
        .with("by_module", by_module(trace))
        .with("per_token", per_token)
        .with("per_token_full", flops.per_token_full(trace))
        .with("per_token_6n", formulas::flop_per_token(counts.stored))
        .with("per_token_6n_active", formulas::flop_per_token(counts.active))
        .with("tokens", flops.tokens);
    if let Some(values) = tower_values {
        report.result.insert("other_parts", values);
    }
    report.charts.extend(charts::flop_tree(trace).map(Chart::Tree));
    report.derivations = derivations(trace, options, view);
    report.warnings = model.step_warnings(options);
    report.assumptions = model.assumptions();
    report.assumptions.extend(step_assumptions(options));
    Ok(report)
}

/// What one image or sound costs beside the language model, which is all that the numbers above count.
fn other_parts(model: &Model, options: &StepOptions) -> (Option<Block>, Option<Value>) {
    let (mut rows, mut values) = (Vec::new(), Value::map());
    for tower in &model.spec.towers {
        let SourceSpec::Signal(signal) = &tower.stack.embedding.source else { continue };
        let name = format!("{} part", tower.what);
        let Ok(cost) = nn::step::tower_cost(tower, options.profile) else {
            rows.push(KeyValue::new(name, Cell::Empty).note("the sizes of the file do not fit together: not counted"));
            continue;
        };
        let (forward, backward) = (Flops(cost.forward.matmul), Flops(cost.backward.matmul));
        let note = phrase![
            "forward of one ",
            signal.what.as_str(),
            ", ",
            cost.positions,
            " positions of the text; backward ",
            backward,
            " where it is trained; in no number above"
        ];
        rows.push(KeyValue::new(name, forward).note(note));
        let value = Value::map()
            .with("input", signal.what.as_str())
            .with("forward", cost_value(&cost.forward))
            .with("backward", cost_value(&cost.backward))
            .with("positions", cost.positions);
        values.insert(tower.what, value);
    }
    if rows.is_empty() {
        return (None, None);
    }
    (Some(Block::key_values("beside the language model", rows)), Some(values))
}

fn cost_value(cost: &Cost) -> Value {
    Value::map()
        .with("matmul", cost.matmul)
        .with("matmul_dense", cost.matmul_dense)
        .with("recomputed_in_kernels", cost.recomputed)
        .with("elementwise", cost.elementwise)
        .with("read_bytes", cost.read)
        .with("written_bytes", cost.written)
}

/// What was asked of the step, for programs.
pub fn step_inputs(options: &StepOptions) -> Value {
    Value::map()
        .with("batch", options.batch)
        .with("seq_len", options.seq_len)
        .with("grad_accum_steps", options.grad_accum_steps)
        .with("profile", options.profile.name())
        .with("precision", options.precision.name())
        .with("optimizer", options.optimizer.to_string())
        .with("recompute", options.recompute.name())
        .with("loss", options.objective.head.to_string())
        .with("offload", options.offload.is_any().then(|| options.offload.to_string()))
        .with("optimizer_in_backward", options.in_backward.then_some("yes"))
        .with("dpo", options.objective.preference.map(nn::Reference::name))
}

/// What of the step the answer rests on.
pub fn step_assumptions(options: &StepOptions) -> Vec<Assumption> {
    let mut all = vec![
        Assumption::new("profile", "profile", options.profile.name(), Origin::Default)
            .why(match options.profile {
                nn::Profile::Fused => "fused kernels, as Transformer Engine and Napkin's own engine run them",
                nn::Profile::HfSdpa => "transformers modules with PyTorch's fused attention",
                nn::Profile::HfEager => "transformers modules with explicit attention",
            })
            .flag("--profile"),
        Assumption::new("multiply_add", "multiply-add", "2 FLOP", Origin::Default)
            .why("elementwise work is counted apart"),
        batch_assumption(options),
        seq_len_assumption(options),
    ];
    if options.in_backward {
        let why = "each parameter is updated as soon as its gradient is complete, which is then freed (torchtune)";
        let given = Assumption::new("optimizer_in_backward", "optimizer in backward", "yes", Origin::Given);
        all.push(given.why(why).flag("--optimizer-in-backward"));
    }
    all.extend(objective_assumption(options));
    if options.grad_accum_steps > 1 {
        let steps = options.grad_accum_steps;
        let one = Assumption::new("grad_accum", "grad_accum", steps, Origin::Default).flag("--grad-accum");
        all.push(if repeats(options) > 1 { one.why("micro-batches after the third are like it") } else { one });
    }
    all
}

fn batch_assumption(options: &StepOptions) -> Assumption {
    let batch = Assumption::new("batch", "batch", options.batch, Origin::Default).flag("--batch");
    if options.objective.preference.is_some() { batch.why("pairs of sequences") } else { batch }
}

fn seq_len_assumption(options: &StepOptions) -> Assumption {
    Assumption::new("seq_len", "seq_len", options.seq_len, Origin::Default).flag("--seq-len")
}

/// FLOP of a token in sequences that are filled otherwise than with one text.
fn filling_rows(filled: &Work, filling: Filling) -> Option<Block> {
    let mut rows = Vec::new();
    if let Some(n) = filling.doc_len {
        let note = phrase!["per token, attention within documents of ", Cell::Count(u128::from(n)), " tokens"];
        rows.push(KeyValue::new("packed", filled.flop_per_token()).note(note));
    }
    if let Some(share) = filling.useful {
        let each = Flops((filled.flop_per_token().as_f64() / share).round() as u128);
        rows.push(
            KeyValue::new("per useful token", each).note(phrase![Cell::Percent(share), " of the tokens are useful"]),
        );
    }
    (!rows.is_empty()).then(|| Block::key_values("as the batch is filled", rows))
}

/// What is minimised, where that is more than the next token.
fn objective_assumption(options: &StepOptions) -> Option<Assumption> {
    let reference = options.objective.preference?;
    let why = match reference {
        nn::Reference::Model => "a frozen copy of the model in the dtype of the contractions reads each batch, too",
        nn::Reference::Base => "the model without its adapters reads each batch, too",
        nn::Reference::Stored => "log-probabilities of the reference are computed before",
    };
    Some(Assumption::new("dpo", "dpo", reference.name(), Origin::Given).why(why).flag("--dpo"))
}

/// FLOP per token under each convention, beside the trace.
struct Conventions(Vec<KeyValue>);

fn conventions(work: &Work, flops: &StepFlops, trace: &Trace, counts: &Counts) -> Conventions {
    let per_token = flops.per_token();
    let beside = |other: Flops| Cell::Change(other / per_token - 1.0);
    let six = formulas::flop_per_token(counts.stored);
    let full = flops.per_token_full(trace);
    let mut rows = vec![KeyValue::new("this trace", per_token).note("per token, exactly the pairs the mask leaves")];
    rows.push(
        KeyValue::new("full attention", full)
            .note(phrase![beside(full), ", what common FLOP counters and PaLM's formula count"]),
    );
    let what = if work.active.is_some() {
        ", no attention, every expert counted"
    } else {
        ", no attention, embeddings counted as compute"
    };
    rows.push(KeyValue::new("6N", six).note(phrase![beside(six), what]));
    if counts.trainable != counts.stored {
        let tuned = formulas::flop_per_tuned_token(counts.matmul, counts.trainable);
        let note = phrase![beside(tuned), ", no attention, frozen weights without gradients of their own"];
        rows.push(KeyValue::new("4N + 2 trained", tuned).note(note));
    }
    if let Some(active) = work.active {
        let six = formulas::flop_per_token(active);
        let note = phrase![beside(six), ", no attention, embeddings counted as compute"];
        rows.push(KeyValue::new("6N active", six).note(note));
    }
    if let Some(attention) = work.attention {
        rows.push(
            KeyValue::new("attention", attention)
                .note(phrase![Cell::Percent(attention / per_token), " of the trace is scores and values"]),
        );
    }
    Conventions(rows)
}

impl Conventions {
    fn into_block(self) -> Block {
        Block::key_values("conventions", self.0)
    }
}

fn in_part(phase: Phase, part: Part) -> bool {
    match part {
        Part::Step => matches!(phase, Phase::Forward | Phase::Backward),
        Part::Forward => phase == Phase::Forward,
        Part::Backward => phase == Phase::Backward,
    }
}

/// Contractions of each module, layer numbers folded.
fn modules(trace: &Trace, view: View) -> Table {
    let mut groups: BTreeMap<String, (u128, u128, bool)> = BTreeMap::new();
    let mut total = 0u128;
    for event in trace.ops.iter().filter(|e| in_part(e.phase, view.part) && e.cost.matmul > 0) {
        let name = row_name(trace, event, view.depth);
        let entry = groups.entry(name).or_insert((0, 0, false));
        entry.0 += event.cost.matmul;
        // What the kernel computes twice is no part of the square.
        entry.1 += event.cost.matmul_dense - event.cost.recomputed_dense;
        entry.2 |= is_attention_core(event);
        total += event.cost.matmul;
    }
    let mut rows: Vec<(String, (u128, u128, bool))> = groups.into_iter().collect();
    rows.sort_by(|a, b| b.1.0.cmp(&a.1.0).then_with(|| a.0.cmp(&b.0)));
    let what = match view.part {
        Part::Step => "forward and backward",
        Part::Forward => "forward",
        Part::Backward => "backward",
    };
    let mut table =
        Table::new("", [Column::left("module"), Column::one_unit(what), Column::right("share"), Column::left("")]);
    for (name, (flop, dense, attends)) in rows {
        let share = flop as f64 / total.max(1) as f64;
        let mut row = Row::new([name.into(), Flops(flop).into(), Cell::Percent(share), Cell::Bar(share)]);
        // State-space blocks have masked products of their own, over chunks.
        if attends && dense > flop {
            row = row.note(phrase!["causal: ", Cell::Percent(flop as f64 / dense as f64), " of full attention"]);
        }
        table.rows.push(row);
    }
    table.total = Some(Row::new([Cell::Empty, Flops(total).into(), Cell::Percent(1.0)]));
    table
}

/// The FLOP of each row of the table of modules as the sum of its products.
fn derivations(trace: &Trace, options: &StepOptions, view: View) -> Vec<Derivation> {
    let mut rows: BTreeMap<String, (u128, Sum)> = BTreeMap::new();
    let wanted = |e: &OpEvent| in_part(e.phase, view.part) && e.cost.matmul > 0;
    for (event, times) in with_times(trace, options).filter(|(event, _)| wanted(event)) {
        let entry = rows.entry(row_name(trace, event, view.depth)).or_default();
        entry.0 += event.cost.matmul;
        entry.1.add_times(evidence::product(event), times, event.cost.matmul);
    }
    let mut rows: Vec<_> = rows.into_iter().collect();
    rows.sort_by(|a, b| b.1.0.cmp(&a.1.0).then_with(|| a.0.cmp(&b.0)));
    rows.into_iter().map(|(name, (flop, sum))| sum.derive(name, "traced-flop", Flops(flop))).collect()
}

/// The row of the table of modules that an op belongs to.
fn row_name(trace: &Trace, event: &OpEvent, depth: usize) -> String {
    let path = pattern(trace.module(event.module));
    let name = cut(&path, depth);
    if is_attention_core(event) { format!("{name} scores, values") } else { name }
}

/// A module path cut `depth` levels below its block: `model.layers.*.mlp`.
fn cut(path: &str, depth: usize) -> String {
    let parts: Vec<&str> = path.split('.').collect();
    let base = parts.iter().position(|p| *p == "*").map_or(1, |i| i + 1);
    let end = (base + depth.max(1)).min(parts.len());
    let name = parts[..end].join(".");
    if name.is_empty() { "loss".to_owned() } else { name }
}

/// All ops, and for how many each stands.
pub(crate) fn with_times<'a>(trace: &'a Trace, options: &StepOptions) -> impl Iterator<Item = (&'a OpEvent, u64)> {
    let (several, times) = (last_micro_batches(trace, options), repeats(options));
    trace.ops.iter().enumerate().map(move |(at, event)| {
        let stands = several.iter().any(|ops| ops.contains(&at));
        (event, if stands { times } else { 1 })
    })
}

fn by_op(trace: &Trace, options: &StepOptions) -> Value {
    let mut ops: BTreeMap<&'static str, (u64, Cost)> = BTreeMap::new();
    let wanted = |e: &OpEvent| e.phase != Phase::Init && e.phase != Phase::Optimizer;
    for (event, times) in with_times(trace, options).filter(|(event, _)| wanted(event)) {
        let entry = ops.entry(event.op.name()).or_default();
        entry.0 += times;
        entry.1 += event.cost;
    }
    Value::Map(
        ops.into_iter()
            .filter(|(_, (_, c))| *c != Cost::default())
            .map(|(name, (calls, cost))| {
                (
                    name.to_owned(),
                    Value::map()
                        .with("calls", calls)
                        .with("matmul", cost.matmul)
                        .with("matmul_dense", cost.matmul_dense)
                        .with("elementwise", cost.elementwise)
                        .with("read_bytes", cost.read)
                        .with("written_bytes", cost.written),
                )
            })
            .collect(),
    )
}

fn by_module(trace: &Trace) -> Value {
    let mut modules: BTreeMap<String, [Cost; 2]> = BTreeMap::new();
    for event in &trace.ops {
        let at = match event.phase {
            Phase::Forward => 0,
            Phase::Backward => 1,
            _ => continue,
        };
        modules.entry(pattern(trace.module(event.module))).or_default()[at] += event.cost;
    }
    Value::Map(
        modules
            .into_iter()
            .map(|(name, [forward, backward])| {
                let pair = |c: &Cost| {
                    Value::map()
                        .with("matmul", c.matmul)
                        .with("matmul_dense", c.matmul_dense)
                        .with("elementwise", c.elementwise)
                };
                (name, Value::map().with("forward", pair(&forward)).with("backward", pair(&backward)))
            })
            .collect(),
    )
}
