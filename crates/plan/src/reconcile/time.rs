//! The time of a step, class by class: by roofline with the ceilings of this machine, and as it was.

use nn::step::Precision;
use tensor::meter::OpEvent;
use tensor::{Op, Trace};
use units::{BytesPerSecond, FlopPerSecond, Seconds};

use crate::report::{Cell, Column, Row, Table, Value};

/// Ops that have a ceiling in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Matrix products.
    Products,
    /// Fused attention.
    Attention,
    /// Losses and softmax.
    Loss,
    /// Layer and RMS norms.
    Norms,
    /// One element from one or more.
    Elementwise,
    /// Sums and other reductions.
    Reductions,
    /// Rows and elements by index.
    Indexing,
    /// Bytes from one place to another, casts and fills.
    Moves,
    /// Updates of parameters and states.
    Optimizer,
    /// From and to other ranks.
    Communication,
}

impl Class {
    /// The class of an op.
    pub fn of(event: &OpEvent) -> Self {
        if event.phase == tensor::Phase::Optimizer {
            return Self::Optimizer;
        }
        match &event.op {
            Op::MatMul(_)
            | Op::MatMulAdd(_)
            | Op::MatMulInto(_)
            | Op::GroupedMatMulInto(_)
            | Op::Linear(_)
            | Op::GroupedLinear(_)
            | Op::GroupedWeightGrad(_)
            | Op::ScaledMatMul(_)
            | Op::DepthwiseConv1d(_)
            | Op::DepthwiseConv1dInput(_)
            | Op::DepthwiseConv1dWeight(_)
            | Op::PackedLinear(_)
            | Op::LinearCrossEntropy(_)
            | Op::ChunkScan(_)
            | Op::ChunkScanBackward(_)
            | Op::SolveTriangular(_)
            | Op::LowerInverse(_)
            | Op::LowerInverseBackward(_) => Self::Products,
            Op::Attention(_) | Op::AttentionBackward(_) | Op::RingAttention(_) => Self::Attention,
            Op::Softmax(_)
            | Op::SoftmaxBackward(_)
            | Op::LogSoftmax(_)
            | Op::LogSoftmaxBackward(_)
            | Op::NllLoss(_)
            | Op::NllLossBackward(_)
            | Op::CrossEntropy(_)
            | Op::CrossEntropyBackward(_)
            | Op::CrossEntropyShard(_)
            | Op::CrossEntropyShardBackward(_) => Self::Loss,
            Op::LayerNorm(_) | Op::LayerNormBackward(_) | Op::RmsNorm(_) | Op::RmsNormBackward(_) => Self::Norms,
            Op::Sum(_)
            | Op::Mean(_)
            | Op::SumSquares(_)
            | Op::Extremum(_)
            | Op::LogSumExp(_)
            | Op::Cumsum(_)
            | Op::LinearScan(_)
            | Op::LinearScanBackward(_)
            | Op::DecayedScores(_)
            | Op::DecayedScoresBackward(_)
            | Op::TopK(_)
            | Op::ArgSort(_)
            | Op::BinCount(_) => Self::Reductions,
            Op::Embedding(_) | Op::EmbeddingBackward(_) | Op::IndexAdd(_) | Op::Gather(_) | Op::Scatter(_) => {
                Self::Indexing
            }
            Op::Create(_)
            | Op::View(_)
            | Op::Copy(_)
            | Op::Cast(_)
            | Op::ScaledCast(_)
            | Op::Cat(_)
            | Op::Triangle(_) => Self::Moves,
            Op::AllReduce(_)
            | Op::AllGather(_)
            | Op::ReduceScatter(_)
            | Op::AllToAll(_)
            | Op::Broadcast(_)
            | Op::Send(_)
            | Op::Recv(_)
            | Op::Replicate(_)
            | Op::Partition(_) => Self::Communication,
            Op::AdamW(_)
            | Op::AdamW8bit(_)
            | Op::Lion(_)
            | Op::Lerp(_)
            | Op::Addc(_)
            | Op::QuantizeBlockwise(_)
            | Op::DequantizeBlockwise(_)
            | Op::StochasticRound(_) => Self::Optimizer,
            Op::Unary(_)
            | Op::UnaryBackward(_)
            | Op::Binary(_)
            | Op::Scalar(_)
            | Op::Clamp(_)
            | Op::Gelu(_)
            | Op::GeluBackward(_)
            | Op::Silu(_)
            | Op::SiluBackward(_)
            | Op::GatedAct(_)
            | Op::GatedActBackward(_)
            | Op::Dropout(_)
            | Op::DropoutBackward(_)
            | Op::Rope(_)
            | Op::Where(_)
            | Op::MaskedFill(_)
            | Op::Custom(_) => Self::Elementwise,
        }
    }

    /// Name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Products => "matrix products",
            Self::Attention => "attention",
            Self::Loss => "softmax and loss",
            Self::Norms => "norms",
            Self::Elementwise => "elementwise",
            Self::Reductions => "reductions",
            Self::Indexing => "by index",
            Self::Moves => "copies, casts, fills",
            Self::Optimizer => "optimizer",
            Self::Communication => "communication",
        }
    }
}

/// What this machine can do at most, measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ceilings {
    /// Peak in fp32.
    pub fp32: FlopPerSecond,
    /// Peak in the arithmetic of the products.
    pub products: FlopPerSecond,
    /// Main memory.
    pub bandwidth: BytesPerSecond,
    /// Threads of the step.
    pub threads: u64,
}

/// One step as it was: the one of median time among those that were timed.
#[derive(Clone, Debug, PartialEq)]
pub struct TimedStep {
    /// From its first op to the end of its update.
    pub seconds: f64,
    /// Of it, waiting for data.
    pub waiting: f64,
    /// Of it, each op, in order.
    pub ops: Vec<f64>,
    /// How many steps were timed.
    pub steps: u64,
}

/// A class of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line {
    /// Which.
    pub class: Class,
    /// How many ops.
    pub ops: u64,
    /// Their FLOP in products.
    pub matmul: u128,
    /// Seconds by roofline: each op by its FLOP or by its bytes, whichever is longer.
    pub predicted: f64,
    /// Of them, the ops that are bound by their FLOP.
    pub by_compute: f64,
    /// Seconds as they were.
    pub measured: f64,
}

/// Seconds of an op by roofline: for its FLOP, for its bytes.
fn bounds(event: &OpEvent, ceilings: &Ceilings) -> (f64, f64) {
    let cost = &event.cost;
    // Reduced precision multiplies faster; sums, norms and softmax are in fp32 whatever the operands are.
    let products = (cost.matmul + cost.recomputed) as f64 / ceilings.products.get();
    let elementwise = cost.elementwise as f64 / ceilings.fp32.get();
    (products + elementwise, cost.traffic().get() as f64 / ceilings.bandwidth.get())
}

/// The classes of a step, longest first.
///
/// `ops` are the seconds of the ops of `trace`, in order.
pub fn lines(trace: &Trace, ops: &[f64], ceilings: &Ceilings) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for (event, seconds) in trace.ops.iter().zip(ops) {
        let class = Class::of(event);
        let index = lines.iter().position(|line| line.class == class).unwrap_or_else(|| {
            lines.push(Line { class, ops: 0, matmul: 0, predicted: 0.0, by_compute: 0.0, measured: 0.0 });
            lines.len() - 1
        });
        let line = &mut lines[index];
        let (compute, memory) = bounds(event, ceilings);
        line.ops += 1;
        line.matmul += event.cost.matmul + event.cost.recomputed;
        line.predicted += compute.max(memory);
        line.by_compute += if compute > memory { compute } else { 0.0 };
        line.measured += seconds;
    }
    lines.sort_by(|a, b| b.measured.total_cmp(&a.measured));
    lines
}

/// The classes as a table.
pub fn table(lines: &[Line], step: &TimedStep, ceilings: &Ceilings) -> Table {
    let columns = [
        Column::left("class"),
        Column::right("ops"),
        Column::right("predicted"),
        Column::right("measured"),
        Column::right("share"),
        Column::right("of ceiling"),
        Column::left("bound by"),
    ];
    let mut table = Table::new("time of one step", columns);
    let share = |seconds: f64| Cell::Percent(seconds / step.seconds);
    for line in lines {
        let bound = if line.by_compute * 2.0 > line.predicted { "arithmetic" } else { "memory" };
        table.rows.push(Row::new([
            line.class.name().into(),
            Cell::Count(u128::from(line.ops)),
            seconds(line.predicted),
            seconds(line.measured),
            share(line.measured),
            if line.measured > 0.0 { Cell::Percent(line.predicted / line.measured) } else { Cell::Empty },
            bound.into(),
        ]));
    }
    let between = between(lines, step);
    for (name, time) in [("between ops", between), ("waiting for data", step.waiting)] {
        if time > 0.0 {
            table.rows.push(Row::new([name.into(), Cell::Empty, Cell::Empty, seconds(time), share(time)]));
        }
    }
    let predicted: f64 = lines.iter().map(|line| line.predicted).sum();
    table.total = Some(Row::new([
        Cell::from(format!("step, {} thread{}", ceilings.threads, if ceilings.threads == 1 { "" } else { "s" })),
        Cell::Count(lines.iter().map(|line| u128::from(line.ops)).sum()),
        seconds(predicted),
        seconds(step.seconds),
        share(step.seconds),
        Cell::Percent(predicted / step.seconds),
    ]));
    table
}

/// Seconds of a step in none of its ops: the tape, handles, the loop.
fn between(lines: &[Line], step: &TimedStep) -> f64 {
    step.seconds - step.waiting - lines.iter().map(|line| line.measured).sum::<f64>()
}

/// The classes for programs.
pub fn value(lines: &[Line], step: &TimedStep, ceilings: &Ceilings, precision: Precision) -> Value {
    let classes = lines.iter().map(|line| {
        Value::map()
            .with("class", line.class.name())
            .with("ops", line.ops)
            .with("matmul_flop", line.matmul)
            .with("predicted_seconds", line.predicted)
            .with("measured_seconds", line.measured)
    });
    Value::map()
        .with("threads", ceilings.threads)
        .with("precision", precision.name())
        .with("fp32_flop_per_second", ceilings.fp32)
        .with("products_flop_per_second", ceilings.products)
        .with("bandwidth_bytes_per_second", ceilings.bandwidth)
        .with("predicted_seconds", lines.iter().map(|line| line.predicted).sum::<f64>())
        .with("measured_seconds", step.seconds)
        .with("waiting_seconds", step.waiting)
        .with("between_ops_seconds", between(lines, step))
        .with("timed_steps", step.steps)
        .with("classes", Value::List(classes.collect()))
}

fn seconds(value: f64) -> Cell {
    Seconds::new(value).map_or(Cell::Empty, Cell::Seconds)
}
