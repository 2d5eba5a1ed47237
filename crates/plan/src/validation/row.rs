//! A published measurement: one row of a table, typed.

use std::fmt;

use crate::cluster::published::Measured;

/// A number as it was printed: what it is, and how far the digits that were not printed may take it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reading {
    /// The number.
    pub value: f64,
    /// Half a unit of its last digit, zeros at the end of a whole number not counted as digits.
    pub slack: f64,
}

impl Reading {
    /// Reads a number; nothing for what is none, or none that can be measured.
    pub fn parse(text: &str) -> Option<Self> {
        let value: f64 = text.parse().ok()?;
        if !value.is_finite() || value < 0.0 {
            return None;
        }
        // More digits than a double holds are an artefact of one: 2029999999.9999998 was 2.03e9.
        let significant = text.bytes().take_while(|b| !matches!(b, b'e' | b'E')).filter(u8::is_ascii_digit).count();
        if significant > 15 && value > 0.0 {
            let short = format!("{value:.11e}");
            let (mantissa, exponent) = short.split_once('e')?;
            let mantissa = mantissa.trim_end_matches('0').trim_end_matches('.');
            return Self::parse(&format!("{mantissa}e{exponent}"));
        }
        let (digits, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        let exponent: i32 = exponent.parse().ok()?;
        let last = match digits.split_once('.') {
            Some((_, decimals)) => -(decimals.len() as i32),
            None => (digits.len() - digits.trim_end_matches('0').len()) as i32,
        };
        let slack = if value == 0.0 { 0.0 } else { 0.5 * 10f64.powi((last + exponent).clamp(-300, 300)) };
        Some(Self { value, slack })
    }

    /// The slack as a share of the number.
    pub fn relative(self) -> f64 {
        if self.value > 0.0 { self.slack / self.value } else { 0.0 }
    }
}

/// Sizes of the model, where the row states them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sizes {
    /// Blocks.
    pub layers: Option<u64>,
    /// Width of the residual stream.
    pub hidden: Option<u64>,
    /// Query heads.
    pub heads: Option<u64>,
    /// Key/value heads.
    pub kv_heads: Option<u64>,
    /// Width of one head.
    pub head_dim: Option<u64>,
    /// Inner width of dense feed-forward parts.
    pub intermediate: Option<u64>,
    /// Whether feed-forward parts have three matrices.
    pub gated: Option<bool>,
    /// Rows of the token table.
    pub vocab: Option<u64>,
    /// Whether the head is the token table.
    pub tied: Option<bool>,
    /// Routed experts.
    pub experts: Option<u64>,
    /// Experts of a token.
    pub top_k: Option<u64>,
    /// Shared experts.
    pub shared: Option<u64>,
    /// Inner width of an expert.
    pub expert_width: Option<u64>,
    /// Blocks without experts, first in the stack.
    pub dense_layers: Option<u64>,
    /// Rank of compressed queries.
    pub q_rank: Option<u64>,
    /// Rank of compressed keys and values.
    pub kv_rank: Option<u64>,
    /// Width of a head without positions.
    pub nope_dim: Option<u64>,
    /// Width of a head with positions.
    pub rope_dim: Option<u64>,
    /// Width of the values of a head.
    pub value_dim: Option<u64>,
}

/// How the run is divided over devices, where the row states it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Layout {
    /// Devices.
    pub devices: Option<u64>,
    /// Tensor parallelism.
    pub tp: Option<u64>,
    /// Sequence parallelism.
    pub sp: Option<bool>,
    /// Pipeline stages.
    pub pp: Option<u64>,
    /// Stages of one device.
    pub vp: Option<u64>,
    /// Context parallelism.
    pub cp: Option<u64>,
    /// Expert parallelism.
    pub ep: Option<u64>,
    /// Replicas.
    pub dp: Option<u64>,
    /// Blocks of the first stage.
    pub first_stage: Option<u64>,
    /// Sharding of states, in the words of the table.
    pub sharding: String,
}

/// One row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    /// Line of the file, from 1.
    pub line: u64,
    /// Its name.
    pub id: String,
    /// Where it was published.
    pub source: String,
    /// `fit` or `test`; may be empty.
    pub split: String,
    /// What was measured: `pretrain`, `lora`, ...
    pub kind: String,
    /// Label of the model.
    pub model: String,
    /// Sizes of the model.
    pub sizes: Sizes,
    /// Scheme of positions: `rope`, `learned`, ...
    pub positions: String,
    /// Tokens of a sequence.
    pub seq_len: Option<u64>,
    /// Label of the accelerator.
    pub device: String,
    /// Layout.
    pub layout: Layout,
    /// Sequences of a micro-batch.
    pub micro_batch: Option<u64>,
    /// Micro-batches of a step.
    pub grad_accum: Option<u64>,
    /// Precision recipe.
    pub precision: String,
    /// What is recomputed.
    pub recompute: String,
    /// Optimizer.
    pub optimizer: String,
    /// What lies on the host.
    pub offload: String,
    /// Tokens per second of one device.
    pub rate: Option<Reading>,
    /// TFLOP/s of one device.
    pub tflops: Option<Reading>,
    /// Model FLOP utilization in percent.
    pub mfu: Option<Reading>,
    /// How the source counts FLOP.
    pub convention: String,
    /// The peak that utilizations refer to, in TFLOP/s.
    pub peak: Option<f64>,
    /// Time of a step in seconds.
    pub step_time: Option<Reading>,
    /// Peak memory in GiB.
    pub memory: Option<Reading>,
    /// Which memory it is: allocated, reserved, ...
    pub memory_kind: String,
    /// Parameters.
    pub parameters: Option<Reading>,
    /// Tokens of the run.
    pub tokens: Option<Reading>,
    /// FLOP of the run, or of what the notes say.
    pub flop: Option<Reading>,
    /// Activations in percent of those with tensor parallelism alone.
    pub activations: Option<Reading>,
    /// Columns that the source does not state.
    pub inferred: String,
    /// Which checks the row supports; empty where the table does not say.
    pub usable_for: String,
    /// Remarks.
    pub notes: String,
    /// The row as a step whose time is known here, if it states all that takes.
    pub timed: Option<Box<Measured>>,
}

/// A cell that is not what its column holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// Column.
    pub column: &'static str,
    /// What is in it.
    pub text: String,
    /// What should be.
    pub expected: &'static str,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text: String = self.text.chars().take(40).collect();
        write!(f, "{}: `{text}` is no {}", self.column, self.expected)
    }
}

/// Columns without which nothing can be judged; of names in one group, one has to be there.
pub const NEEDED: &[&[&str]] = &[
    &["row_id"],
    &["source_id", "set"],
    &["model"],
    &["n_layers"],
    &["d_model"],
    &["n_heads"],
    &["d_ff"],
    &["vocab"],
    &["seq_len"],
];

impl Row {
    /// Types the cells of a row; `cell` gives that of a column, nothing where there is no such column.
    ///
    /// # Errors
    /// All cells that are wrong.
    pub fn read<'a>(line: u64, cell: impl Fn(&str) -> Option<&'a str>) -> Result<Self, Vec<Wrong>> {
        let mut cells = Cells { cell: &cell, wrong: Vec::new() };
        let c = &mut cells;
        let sizes = Sizes {
            layers: c.size("n_layers"),
            hidden: c.size("d_model"),
            heads: c.size("n_heads"),
            kv_heads: c.size("n_kv_heads"),
            head_dim: c.size("head_dim"),
            intermediate: c.size("d_ff"),
            gated: c.flag("ffn_gated"),
            vocab: c.size("vocab"),
            tied: c.flag("tied"),
            experts: c.size("n_experts"),
            top_k: c.size("topk"),
            shared: c.size("n_shared"),
            expert_width: c.size("d_ff_expert"),
            dense_layers: c.size("n_dense_layers"),
            q_rank: c.size("q_lora_rank"),
            kv_rank: c.size("kv_lora_rank"),
            nope_dim: c.size("qk_nope"),
            rope_dim: c.size("qk_rope"),
            value_dim: c.size("v_head_dim"),
        };
        let layout = Layout {
            devices: c.size("n_gpus"),
            tp: c.size("tp"),
            sp: c.flag("sp"),
            pp: c.size("pp"),
            vp: c.size("vp"),
            cp: c.size("cp"),
            ep: c.size("ep"),
            dp: c.size("dp"),
            first_stage: c.size("layers_on_stage0"),
            sharding: c.either("zero_fsdp", "zero"),
        };
        let row = Self {
            line,
            id: c.text("row_id"),
            source: c.either("source_id", "set"),
            split: c.text("split"),
            kind: c.text("kind"),
            model: c.text("model"),
            sizes,
            positions: c.text("pos_emb"),
            seq_len: c.size("seq_len"),
            device: c.either("gpu_family", "gpu"),
            layout,
            micro_batch: c.size("micro_batch"),
            grad_accum: c.size("grad_accum"),
            precision: c.text("precision"),
            recompute: c.text("recompute"),
            optimizer: c.text("optimizer"),
            offload: c.text("offload"),
            rate: c.reading("tokens_per_s_per_gpu"),
            tflops: c.reading("tflops_per_gpu"),
            mfu: c.reading("mfu_pct"),
            convention: c.either("flop_convention", "mfu_convention"),
            peak: c.reading("peak_tflops_ref").map(|peak| peak.value),
            step_time: c.reading("step_time_s").or(c.reading("iteration_s")),
            memory: c.reading("peak_mem_gib"),
            memory_kind: c.text("peak_mem_kind"),
            parameters: c.reading("params_total"),
            tokens: c.reading("train_tokens"),
            flop: c.reading("total_flops"),
            activations: c.reading("activation_pct_of_baseline"),
            inferred: c.text("inferred_fields"),
            usable_for: c.text("usable_for"),
            notes: c.text("notes"),
            timed: Measured::read(&cell).map(Box::new),
        };
        if cells.wrong.is_empty() { Ok(row) } else { Err(cells.wrong) }
    }

    /// Whether the table says that the row supports this check; true where it does not say.
    pub fn supports(&self, check: &str) -> bool {
        self.usable_for.is_empty() || self.usable_for.split(';').any(|one| one.trim() == check)
    }
}

struct Cells<'f, F> {
    cell: &'f F,
    wrong: Vec<Wrong>,
}

impl<'a, F: Fn(&str) -> Option<&'a str>> Cells<'_, F> {
    fn text(&self, column: &str) -> String {
        (self.cell)(column).unwrap_or_default().trim().to_owned()
    }

    fn either(&self, column: &str, other: &str) -> String {
        let text = self.text(column);
        if text.is_empty() { self.text(other) } else { text }
    }

    fn parsed<T>(
        &mut self,
        column: &'static str,
        expected: &'static str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Option<T> {
        let text = self.text(column);
        if text.is_empty() {
            return None;
        }
        let parsed = parse(&text);
        if parsed.is_none() {
            self.wrong.push(Wrong { column, text, expected });
        }
        parsed
    }

    fn size(&mut self, column: &'static str) -> Option<u64> {
        self.parsed(column, "whole number", |text| text.parse().ok())
    }

    fn reading(&mut self, column: &'static str) -> Option<Reading> {
        self.parsed(column, "number", Reading::parse)
    }

    fn flag(&mut self, column: &'static str) -> Option<bool> {
        self.parsed(column, "yes or no", |text| match text {
            "yes" => Some(true),
            "no" => Some(false),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_that_are_printed_bound_a_number() {
        for (text, slack) in [
            ("47", 0.5),
            ("7.50", 0.005),
            ("6700000000", 5e7),
            ("1.8e+20", 5e18),
            ("0.5", 0.05),
            ("2029999999.9999998", 5e6),
        ] {
            let read = Reading::parse(text).unwrap();
            assert!((read.slack / slack - 1.0).abs() < 1e-9, "{text}: {}", read.slack);
        }
        for text in ["", "-1", "inf", "NaN", "1e999", "12 GiB", "1e", "--"] {
            assert_eq!(Reading::parse(text), None, "{text}");
        }
    }

    #[test]
    fn all_wrong_cells_are_named() {
        let cells = [("row_id", "a"), ("n_layers", "many"), ("tied", "perhaps"), ("mfu_pct", "40")];
        let wrong = Row::read(7, |column| cells.iter().find(|(name, _)| *name == column).map(|(_, text)| *text));
        let wrong: Vec<String> = wrong.unwrap_err().iter().map(Wrong::to_string).collect();
        assert_eq!(wrong, ["n_layers: `many` is no whole number", "tied: `perhaps` is no yes or no"]);
    }
}
