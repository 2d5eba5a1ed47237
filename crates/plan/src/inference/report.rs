//! The answer: bytes of weights and cache, the room there is, times of prompts and tokens.

mod assumptions;
mod derivations;
mod times;

use units::{Bytes, Diagnostic, Diagnostics, Tokens};

use super::cache::{Cache, Kept};
use super::paged::{Engine, Layout};
use super::subject::Subject;
use super::{Request, Room};
use crate::fit::Memory;
use crate::phrase;
use crate::quant;
use crate::report::{Block, Cell, Column, KeyValue, Phrase, Report, Row, Table, Value, Verdict};
use derivations::derive_weights;

/// Memory of one device, in the order of its lines.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Budget {
    capacity: u64,
    usable: u64,
    weights: u64,
    activations: u64,
    runtime: u64,
}

impl Budget {
    /// What is left for the cache; `Err` with what is missing.
    fn pool(&self) -> Result<u64, u64> {
        let taken = self.weights.saturating_add(self.activations).saturating_add(self.runtime);
        self.usable.checked_sub(taken).ok_or_else(|| taken - self.usable)
    }
}

/// The cache of a request with its engine, and the pool if there is one.
struct Holding<'a> {
    cache: &'a Cache,
    layout: Layout,
    /// Bytes of the pool, and its blocks.
    pool: Option<(u64, u64)>,
}

impl Request<'_> {
    /// Answers it.
    ///
    /// # Errors
    /// Sizes of zero or beyond counting, shares that are none, heads that cannot be divided; a device without a rate.
    pub fn report(&self) -> Result<Report, Diagnostics> {
        self.check()?;
        let subject = Subject::of(self)?;
        let budget = self.budget(&subject);
        let kept = self.kept(&subject, budget.as_ref());
        let mut report = self.headline(&subject, budget.as_ref(), kept.as_ref());
        report.inputs = self.inputs(&subject);
        if !subject.weights.total.is_zero() {
            report.result.insert("weights", weights_value(&subject));
            report.blocks.push(weights_block(&subject));
            report.derivations.push(derive_weights(&subject));
        }
        if let Some(kept) = &kept {
            self.add_cache(&mut report, kept);
        }
        if let Some(budget) = &budget {
            add_budget(&mut report, budget);
        }
        if let Some(kept) = &kept {
            self.add_room(&mut report, kept);
        }
        if self.fleet.is_some() {
            self.add_times(&mut report, &subject, kept.as_ref())?;
        }
        report.assumptions.extend(self.assumptions(&subject, kept.as_ref()));
        report.assumptions.extend(subject.assumptions.iter().cloned());
        // The reader of families does not know what the format of weights costs; here it is counted.
        report.warnings.extend(subject.warnings.iter().filter(|w| !quant::is_of_stored(w)).cloned());
        if let (Some(Err(what)), false) = (&self.stated, self.weights.given) {
            let message = format!("`quantization_config` = {what} is no format that is known");
            let problem = Diagnostic::warning("T0468", message);
            report.warnings.push(problem.effect("weights are counted in 16 bits").help("--weights nf4"));
        }
        if subject.cache.is_none() {
            let problem = Diagnostic::warning("T0464", "nothing is known of layers and heads");
            let problem = problem.effect("keys and values are not counted").help("--kv 32x8x128");
            report.warnings.push(problem);
        }
        Ok(report)
    }

    fn engine(&self) -> Engine {
        Engine { block: self.block.value, chunk: self.chunk.value }
    }

    fn budget(&self, subject: &Subject) -> Option<Budget> {
        let capacity = self.capacity()?.get();
        Some(Budget {
            capacity,
            usable: (capacity as f64 * self.utilization.value) as u64,
            weights: subject.weights.device_bytes,
            activations: subject.passes.activation_bytes,
            runtime: self.runtime.value.get(),
        })
    }

    fn kept<'a>(&self, subject: &'a Subject, budget: Option<&Budget>) -> Option<Holding<'a>> {
        let cache = subject.cache.as_ref()?;
        let layout = Layout::of(cache, self.engine(), self.tp.value, self.seq_len.value)?;
        let of_bytes = |bytes: u64| (bytes, layout.pool_blocks(bytes));
        let pool = match &self.room {
            Room::None => None,
            Room::Bytes(bytes) => Some(of_bytes(bytes.get())),
            Room::Tokens(tokens) => {
                let blocks = layout.blocks_of_tokens(*tokens);
                Some((blocks.saturating_mul(layout.block_bytes), blocks))
            }
            Room::Memory(_) => budget.and_then(|budget| budget.pool().ok()).map(of_bytes),
        };
        Some(Holding { cache, layout, pool })
    }

    fn sequence(&self, cache: &Cache) -> u128 {
        cache.sequence_bytes(self.seq_len.value, self.tp.value)
    }

    fn headline(&self, subject: &Subject, budget: Option<&Budget>, kept: Option<&Holding<'_>>) -> Report {
        let length = phrase![self.seq_len.value, " tokens"];
        let weights = if subject.weights.total.is_zero() {
            phrase!["weights not counted"]
        } else {
            phrase!["weights ", Bytes(subject.weights.all_bytes())]
        };
        if let Some(missing) = budget.and_then(|budget| budget.pool().err()) {
            let mut report = Report::new("infer", phrase!["does not fit, ", Bytes(missing), " over"]);
            report.verdict = Verdict::No;
            report = report.qualified(weights);
            return report.qualified(self.device());
        }
        match kept.map(|kept| (kept, kept.pool)) {
            Some((kept, Some((_, blocks)))) => {
                let served = kept.layout.concurrency(blocks);
                let many = served as u64;
                let answer = match many {
                    0 => phrase!["not one sequence of ", self.seq_len.value, " tokens fits"],
                    1 => phrase!["1 sequence of ", self.seq_len.value, " tokens at a time"],
                    _ => phrase![many, " sequences of ", self.seq_len.value, " tokens at a time"],
                };
                let mut report = Report::new("infer", answer).qualified(weights);
                if matches!(self.room, Room::Memory(_)) {
                    report = report.qualified(self.device());
                }
                if many == 0 {
                    report.verdict = Verdict::No;
                }
                report
            }
            Some((kept, None)) => {
                let of = phrase!["of keys and values for "].and(length);
                let bytes = bytes_of(self.sequence(kept.cache));
                Report::new("infer", phrase![bytes, " "].and(of)).qualified(weights)
            }
            None => {
                let mut report = Report::new("infer", phrase![Bytes(subject.weights.bytes), " of weights"]);
                if let Some(budget) = budget {
                    report = report.qualified(phrase!["fits in ", Bytes(budget.usable)]);
                }
                report
            }
        }
    }

    /// `on 8 × H100 SXM`.
    fn device(&self) -> Phrase {
        match &self.room {
            Room::Memory(Memory::Of(hardware)) => {
                let on = phrase!["on ", self.tp.value, " × ", hardware.display.as_str()];
                match self.replicas() {
                    1 => on,
                    many => on.and(phrase![", each of ", many, " replicas"]),
                }
            }
            Room::Memory(Memory::Given(bytes)) => phrase!["in ", self.tp.value, " × ", *bytes],
            _ => Phrase::default(),
        }
    }

    fn add_cache(&self, report: &mut Report, kept: &Holding<'_>) {
        let (cache, tp, length) = (kept.cache, self.tp.value, self.seq_len.value);
        let token = cache.token_bytes(tp);
        let (sequence, uncapped) = (self.sequence(cache), cache.uncapped_bytes(length, tp));
        let charged = kept.layout.sequence_bytes();
        let mut rows = Vec::new();
        if token > 0 {
            let exact = phrase![Cell::Count(u128::from(token)), " B = "].and(cache.token_sum(tp));
            let exact = if tp > 1 { exact.and(phrase![", on each of ", tp, " devices"]) } else { exact };
            rows.push(KeyValue::new("per token", Bytes(token)).note(exact));
        }
        let state = cache.state_bytes(tp);
        if state > 0 {
            rows.push(KeyValue::new("state", Bytes(state)).note("of a sequence, however long"));
        }
        rows.push(KeyValue::new("sequence", bytes_of(sequence)).note(phrase![length, " tokens; what the model needs"]));
        if uncapped != sequence {
            let far = phrase![Bytes(cache.far_token_bytes(tp)), " for each token beyond the windows"];
            rows.push(KeyValue::new("without windows", bytes_of(uncapped)).note(far));
        }
        let layout = &kept.layout;
        let mut rule = match layout.groups[..] {
            [only] => phrase![only.blocks, " blocks of ", only.block, " tokens"],
            _ => phrase![layout.blocks, " blocks of ", Bytes(layout.block_bytes)],
        };
        if let Some(tokens) = layout.charged_tokens() {
            rule = rule.and(phrase![": ", Cell::Count(u128::from(tokens)), " tokens"]);
        }
        rows.push(KeyValue::new("paged engine", bytes_of(charged)).note(rule));
        report.blocks.push(Block::key_values("keys and values", rows));
        if cache.kinds.len() > 1 {
            report.blocks.push(self.kinds_table(kept).into());
        }
        report.result.insert("cache", self.cache_value(kept));
        report.result.insert("engine", self.engine_value(kept));
        report.derivations.extend(self.derive_cache(kept));
    }

    fn kinds_table(&self, kept: &Holding<'_>) -> Table {
        let (cache, tp) = (kept.cache, self.tp.value);
        let columns = [
            Column::left("layers that keep"),
            Column::right("layers"),
            Column::right("B per token"),
            Column::right("tokens kept"),
            Column::right("sequence"),
            Column::right("engine blocks"),
        ];
        let mut table = Table::new("", columns);
        for kind in &cache.kinds {
            let token = kind.token_bytes(cache.format, tp);
            let tokens = kind.tokens(self.seq_len.value);
            let own =
                u128::from(kind.layers) * (u128::from(token) * u128::from(tokens) + u128::from(kind.state_bytes(tp)));
            let group =
                kept.layout.groups.iter().find(|group| group.kind.kept == kind.kept && group.kind.reach == kind.reach);
            let state = matches!(kind.kept, Kept::State { .. });
            let blocks = group.filter(|_| kept.layout.groups.len() > 1);
            table.rows.push(Row::new([
                kind.name().into(),
                kind.layers.into(),
                if state { Cell::Empty } else { cache.kind_bytes(kind, tp).into() },
                if state { Cell::Empty } else { tokens.into() },
                bytes_of(own),
                blocks.map_or(Cell::Empty, |group| {
                    Cell::Text(format!("{} × {} of {}", group.groups, group.blocks, group.block))
                }),
            ]));
        }
        table
    }

    fn add_room(&self, report: &mut Report, kept: &Holding<'_>) {
        let Some((bytes, blocks)) = kept.pool else { return };
        let (cache, layout, tp) = (kept.cache, &kept.layout, self.tp.value);
        let needs = ratio(u128::from(bytes), self.sequence(cache));
        let naive = ratio(u128::from(bytes), cache.uncapped_bytes(self.seq_len.value, tp));
        let longest = cache.longest(bytes, tp);
        let columns = [Column::left(""), Column::right("sequences"), Column::left("")];
        let mut table = Table::new(
            format!("sequences of {} tokens at a time", units::group_digits(u128::from(self.seq_len.value))),
            columns,
        );
        let number = |value: f64| Cell::Number { value, decimals: 2 };
        let rule = phrase![Cell::Count(u128::from(blocks)), " blocks ÷ ", Cell::Count(u128::from(layout.blocks))];
        table.rows.push(Row::new(["paged engine".into(), number(layout.concurrency(blocks))]).note(rule));
        table.rows.push(Row::new(["what the model needs".into(), number(needs)]).note("an upper bound"));
        if (naive - needs).abs() > 1e-9 {
            table.rows.push(Row::new(["if no layer had a window".into(), number(naive)]));
        }
        report.blocks.push(table.into());
        let tokens = layout.tokens_of_blocks(blocks);
        let mut rows = vec![KeyValue::new("cache", bytes_of(u128::from(bytes))).note(phrase![
            "the engine calls it ",
            Cell::Count(u128::from(tokens)),
            " tokens"
        ])];
        if let Some(longest) = longest {
            rows.push(
                KeyValue::new("longest", Tokens(longest))
                    .note(phrase![Cell::Count(u128::from(longest)), " tokens of one sequence fill it"]),
            );
        }
        report.blocks.push(Block::key_values("", rows));
        let far = cache.token_bytes(tp);
        let plain = bytes.checked_div(far);
        report.result.insert(
            "room",
            Value::map()
                .with("pool_bytes", bytes)
                .with("pool_blocks", blocks)
                .with("pool_tokens", plain)
                .with("engine_tokens", tokens)
                .with("sequences_engine", layout.concurrency(blocks))
                .with("sequences_model", needs)
                .with("sequences_without_windows", naive)
                .with("longest_sequence_tokens", longest),
        );
    }

    fn cache_value(&self, kept: &Holding<'_>) -> Value {
        let (cache, tp) = (kept.cache, self.tp.value);
        let kinds = cache.kinds.iter().map(|kind| {
            let token = kind.token_bytes(cache.format, tp);
            Value::map()
                .with("kind", kind.name())
                .with("layers", kind.layers)
                .with("bytes_per_token_per_layer", token)
                .with("tokens_kept", kind.tokens(self.seq_len.value))
                .with("state_bytes_per_layer", kind.state_bytes(tp))
        });
        Value::map()
            .with("format", cache.format.name)
            .with("layers", cache.layers)
            .with("attention_layers", cache.attention_layers())
            .with("bytes_per_token", cache.token_bytes(1))
            .with("bytes_per_token_device", cache.token_bytes(tp))
            .with("bytes_per_token_beyond_windows_device", cache.far_token_bytes(tp))
            .with("state_bytes_device", cache.state_bytes(tp))
            .with("sequence_bytes_device", self.sequence(cache))
            .with("sequence_bytes_without_windows_device", cache.uncapped_bytes(self.seq_len.value, tp))
            .with("by_kind", Value::List(kinds.collect()))
    }

    fn engine_value(&self, kept: &Holding<'_>) -> Value {
        let layout = &kept.layout;
        let groups = layout.groups.iter().map(|group| {
            Value::map()
                .with("kind", group.kind.name())
                .with("layers", group.layers)
                .with("groups", group.groups)
                .with("block_tokens", group.block)
                .with("blocks_per_sequence", group.blocks)
        });
        Value::map()
            .with("block_tokens", self.block.value)
            .with("prefill_chunk", self.chunk.value)
            .with("block_bytes_device", layout.block_bytes)
            .with("layers_per_group", layout.group_layers)
            .with("blocks_per_sequence", layout.blocks)
            .with("tokens_charged_per_sequence", layout.charged_tokens())
            .with("sequence_bytes_device", layout.sequence_bytes())
            .with("groups", Value::List(groups.collect()))
    }

    fn inputs(&self, subject: &Subject) -> Value {
        Value::map()
            .with("model", subject.inputs.clone())
            .with("weights", self.weights.value.to_string())
            .with("kv_dtype", self.cache.value.name)
            .with("seq_len", self.seq_len.value)
            .with("prompt", self.prompt.value)
            .with("batch", self.batch.value)
            .with("tp", self.tp.value)
            .with("block_size", self.block.value)
            .with("prefill_chunk", self.chunk.value)
            .with("hardware", self.fleet.as_ref().map(crate::fleet::Fleet::inputs))
    }
}

fn add_budget(report: &mut Report, budget: &Budget) {
    let columns = [Column::left("memory of one device"), Column::one_unit("bytes"), Column::right("share")];
    let mut table = Table::new("", columns);
    let whole = budget.capacity.max(1) as f64;
    let mut add = |name: &str, bytes: u64| {
        table.rows.push(Row::new([name.into(), Bytes(bytes).into(), Cell::Percent(bytes as f64 / whole)]));
    };
    add("weights", budget.weights);
    add("activations", budget.activations);
    add("runtime", budget.runtime);
    let pool = budget.pool();
    if let Ok(pool) = pool {
        add("left for keys and values", pool);
        add("left to others", budget.capacity - budget.usable);
        let total = [Cell::Empty, Bytes(budget.capacity).into(), Cell::Percent(1.0)];
        table.total = Some(Row::new(total));
    }
    report.blocks.push(table.into());
    report.result.insert(
        "memory",
        Value::map()
            .with("fits", pool.is_ok())
            .with("capacity_bytes", budget.capacity)
            .with("usable_bytes", budget.usable)
            .with("weights_bytes", budget.weights)
            .with("activations_bytes", budget.activations)
            .with("runtime_bytes", budget.runtime)
            .with("pool_bytes", pool.ok())
            .with("missing_bytes", pool.err()),
    );
}

fn weights_block(subject: &Subject) -> Block {
    let weights = &subject.weights;
    let each = Cell::Exact(u128::from(weights.total.get()));
    let note = phrase![each, " parameters in ", weights.storage.to_string()];
    let mut rows = vec![KeyValue::new("weights", Bytes(weights.bytes)).note(note)];
    if weights.beside_bytes > 0 {
        let note = phrase![weights.beside, " parameters in bf16: they turn images or sounds into positions"];
        rows.push(KeyValue::new("other parts", Bytes(weights.beside_bytes)).note(note));
    }
    if weights.device_bytes != weights.all_bytes() {
        rows.push(KeyValue::new("of one device", Bytes(weights.device_bytes)));
    }
    if weights.is_sparse() {
        let note = phrase![weights.active, " active: what a token reads and computes with, not what memory holds"];
        rows.push(KeyValue::new("of a token", weights.active_bytes()).note(note));
    }
    Block::key_values("", rows)
}

fn weights_value(subject: &Subject) -> Value {
    let weights = &subject.weights;
    Value::map()
        .with("format", weights.storage.to_string())
        .with("parameters", weights.total)
        .with("active_parameters", weights.active)
        .with("bytes", weights.bytes)
        .with("other_parts_parameters", weights.beside)
        .with("other_parts_bytes", weights.beside_bytes)
        .with("device_bytes", weights.device_bytes)
        .with("active_bytes", weights.active_bytes())
        .with("read_bytes_per_step_device", weights.read_bytes(1).round() as u64)
        .with("memory_uses", "total")
        .with("bandwidth_uses", "active")
}

fn bytes_of(bytes: u128) -> Cell {
    Bytes(u64::try_from(bytes).unwrap_or(u64::MAX)).into()
}

fn ratio(of: u128, by: u128) -> f64 {
    if by == 0 { 0.0 } else { of as f64 / by as f64 }
}
