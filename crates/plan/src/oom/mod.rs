//! An out-of-memory message explained: which tensor was refused, where the memory is, and what frees enough.
//!
//! | module | noun |
//! |---|---|
//! | [`message`] | the numbers of a message |
//! | [`size`] | one of them: rounded to its digits, perhaps to a segment |
//! | [`tensors`] | tensors of the traced step that have the size |
//! | [`flat`] | buffers of many parameters that have it |
//! | [`backwards`] | from bytes to tokens |

pub mod backwards;
pub mod flat;
pub mod message;
pub mod size;
pub mod tensors;

use nn::Profile;
use nn::blocks::Blocks;
use nn::spec::ModelSpec;
use nn::step::{StepOptions, StepTrace};
use units::{Bytes, Diagnostic, Diagnostics, group_digits};

use crate::evidence::Sum;
use crate::formulas;
use crate::ledger;
use crate::levers::{self, Clock, Levers, Own, Setup};
use crate::model::{Model, trace};
use crate::phrase;
use crate::report::{Block, Cell, Column, Derivation, KeyValue, Phrase, Report, Row, Table, Value, Verdict};
use backwards::Product;
use flat::Buffer;
use message::{Device, Message};
use size::{Fit, Printed};
use tensors::{Tensor, Wanted};

/// Most tensors that are shown to people; programs get all.
const SHOWN: usize = 10;

/// The question: a message, and the step that it came from, where that is known.
#[derive(Debug)]
pub struct Request<'a> {
    /// What was printed.
    pub message: Message,
    /// The model and its step.
    pub step: Option<(&'a Model, ledger::Request<'a>)>,
}

impl Request<'_> {
    /// Answers it.
    ///
    /// # Errors
    /// As [`Model::trace`].
    pub fn report(&self) -> Result<Report, Diagnostics> {
        match &self.step {
            Some((model, request)) => self.with_model(model, request),
            None => Ok(self.without_model()),
        }
    }

    fn without_model(&self) -> Report {
        let message = &self.message;
        let size = message.request.text.as_str();
        let products = backwards::guesses(&message.request, message.segments());
        let mut report = match products.first().filter(|_| !message.request.is_shared()) {
            Some(first) => Report::new("explain-oom", phrase![size, " may be ", first.what.as_str()])
                .qualified(phrase![first.words()])
                .qualified(phrase!["a guess: give the model"]),
            None => Report::new("explain-oom", phrase![size]).qualified(phrase!["give the model to name the tensor"]),
        };
        self.books(&mut report);
        if !products.is_empty() && !message.request.is_shared() {
            report.blocks.push(product_table("vocabularies whose logits have this size, by guess", &products).into());
        }
        self.remarks(&mut report);
        report.result.insert("products", Value::List(products.iter().map(product_value).collect()));
        report.derivations.extend(products.iter().map(derivation));
        let next = format!(
            "napkin explain-oom '{size}' MODEL --batch 4 --seq-len 1024 names the tensor and what frees enough"
        );
        report.notes.push(phrase![next]);
        report
    }

    fn with_model(&self, model: &Model, request: &ledger::Request<'_>) -> Result<Report, Diagnostics> {
        let (message, spec, options) = (&self.message, &model.spec, &request.options);
        let wanted = Wanted {
            size: &message.request,
            segments: message.segments(),
            allocated: message.allocated.as_ref().map(|size| size.bytes),
        };
        let traced = model.trace(options)?;
        let found = tensors::of_size(spec, &traced, options, request.sharding, wanted);
        let (blocks, dp) = (Blocks::of(&spec.names), request.sharding.dp);
        let mut buffers = flat::of_size(&traced.params, blocks, dp, &message.request, message.segments());
        if message.request.is_shared() {
            buffers.clear();
        }
        let products = backwards::tokens(spec, options, &message.request, message.segments());
        let budget = self.budget(request);
        let own = Own { spec, runtime: Bytes::ZERO, budget, clock: Clock::of(model, request) };
        let levers = levers::find(&own, &Setup::alone(options, request.sharding))?;

        let mut report = headline(&message.request, &found, &buffers);
        self.books(&mut report);
        if !found.is_empty() {
            report.blocks.push(tensor_table(&found, wanted.allocated.is_some()).into());
        }
        if !buffers.is_empty() {
            let lines = buffers.iter().map(|buffer| phrase![buffer.words(), ": ", Bytes(buffer.bytes())]);
            report
                .blocks
                .push(Block::text("many parameters in one buffer, as FSDP, DeepSpeed and Megatron hold them", lines));
        }
        let elsewhere = if found.is_empty() { other_profiles(spec, request, wanted)? } else { Vec::new() };
        if !elsewhere.is_empty() {
            let lines = elsewhere.iter().map(|(profile, tensor)| {
                phrase![format!("--profile {profile}: {} {}, {}", tensor.name, tensor.shape_words(), tensor.place())]
            });
            report.blocks.push(Block::text("in another implementation", lines));
        }
        if !products.is_empty() {
            report.blocks.push(product_table("tokens that make tensors of this model that large", &products).into());
        }
        report.blocks.push(memory_block(&levers, budget, self, request));
        if !levers.each.is_empty() {
            report.blocks.push(levers.table().into());
        }
        self.remarks(&mut report);
        report.notes.extend(advice(&levers, budget));
        if self.is_fragmented() == Some(true) && budget.is_some_and(|budget| levers.now.bytes() > budget) {
            report
                .notes
                .push(phrase!["expandable segments alone let this tensor in, and the step fails at a later one"]);
        }
        report.warnings.extend(self.differs(&found));
        report.inputs = ledger::inputs(model, request).with("message", report.inputs.clone());
        report.result.insert("tensors", Value::List(found.iter().map(tensor_value).collect()));
        report.result.insert("buffers", Value::List(buffers.iter().map(buffer_value).collect()));
        report.result.insert("products", Value::List(products.iter().map(product_value).collect()));
        report.result.insert("peak_bytes", levers.now.bytes());
        report.result.insert("budget_bytes", budget);
        report.result.insert("levers", levers.value());
        report.warnings.extend(model.step_warnings(options));
        report.derivations.extend(found.first().map(|tensor| {
            let mut sum = Sum::default();
            sum.add(format!("{} ({})", tensor.shape_words(), tensor.place()), u128::from(tensor.bytes));
            sum.derive("requested", "traced-bytes", Bytes(tensor.bytes))
        }));
        report.derivations.extend(products.iter().map(derivation));
        report.assumptions = model.assumptions();
        report.assumptions.extend(crate::flops::step_assumptions(options));
        report.assumptions.extend(ledger::assumptions(request));
        Ok(report)
    }

    /// Bytes that the program can have: what the message leaves, or the memory of the device that is named.
    fn budget(&self, request: &ledger::Request<'_>) -> Option<u64> {
        let of_device = || {
            let capacity = request.hardware?.capacity();
            Some(capacity.saturating_sub(request.runtime).get())
        };
        self.message.budget().or_else(of_device)
    }

    /// A warning where the program held another number of bytes than the step does at that tensor.
    fn differs(&self, found: &[Tensor]) -> Option<Diagnostic> {
        let (stated, predicted) = (self.message.allocated.as_ref()?.bytes, found.first()?.live_before);
        if stated.abs_diff(predicted) <= stated / 5 {
            return None;
        }
        let (stated, predicted) = (Bytes(stated), Bytes(predicted));
        let message =
            format!("before this tensor {predicted} are live in the traced step, and {stated} were in the run");
        let problem =
            Diagnostic::warning("T0322", message).effect("the levers are those of the traced step, not of the run");
        Some(problem.help("the --batch, --precision, --optimizer, --profile and --zero of the run"))
    }

    /// What each number of the message means.
    fn books(&self, report: &mut Report) {
        let message = &self.message;
        let mut rows = Vec::new();
        let mut inputs = Value::map().with("text", message.request.text.as_str());
        let mut result = Value::map();
        let mut row = |key: &str, id: &str, size: Option<u64>, note: &str| {
            let Some(bytes) = size else { return };
            rows.push(KeyValue::new(key, Bytes(bytes)).note(phrase![note]));
            inputs.insert(format!("{id}_bytes"), bytes);
        };
        let of = |size: &Option<Printed>| size.as_ref().map(|size| size.bytes);
        let asked = match message.device {
            Device::Cached => "what the allocator asked the driver for: a tensor, rounded up to a segment of 2 MiB",
            Device::Metal => "one buffer; GB of this message are 2^30 bytes",
            Device::Host => "one tensor, to the byte: the system refused it",
        };
        row("requested", "requested", Some(message.request.bytes), asked);
        row("capacity", "capacity", of(&message.capacity), "of the device");
        row("free", "free", of(&message.free), "what the driver still had");
        row("allowed", "allowed", of(&message.allowed), "the limit that this program set itself");
        row("allocated", "allocated", of(&message.allocated), "live tensors");
        row("in graph pools", "private", of(&message.private), "kept for captured graphs, whoever needs it");
        row("cached", "unallocated", of(&message.unallocated), "reserved by PyTorch with no tensor in it");
        let others: u64 = message.others.iter().fold(0, |all, size| all.saturating_add(size.bytes));
        let outside = message.outside().map(|bytes| bytes.saturating_sub(others));
        row("outside PyTorch", "outside", outside, "driver context, libraries, communicators");
        row("other processes", "other_processes", Some(others).filter(|bytes| *bytes > 0), "on the same device");
        if rows.len() > 1 {
            report.blocks.push(Block::key_values("the message", rows));
        }
        report.inputs = inputs;
        result.insert("requested_bytes", message.request.bytes);
        if let Some(shortage) = self.shortage() {
            result.insert("shortage_bytes", shortage);
        }
        report.result = result;
    }

    /// Bytes that lack even if all that is cached could be used.
    fn shortage(&self) -> Option<u64> {
        let message = &self.message;
        let free = message.free.as_ref()?.bytes;
        let cached = message.unallocated.as_ref().map_or(0, |size| size.bytes);
        Some(message.request.bytes.saturating_sub(free).saturating_sub(cached))
    }

    /// Whether what is free and what is cached hold the request together and not alone; `None` where the message does not
    /// say what is cached.
    fn is_fragmented(&self) -> Option<bool> {
        let message = &self.message;
        let cached = message.unallocated.as_ref()?.bytes;
        let free = message.free.as_ref().map_or(0, |size| size.bytes);
        let asked = message.request.bytes;
        Some(asked > free && asked <= free.saturating_add(cached))
    }

    /// Whether fragmentation is to blame, and what the numbers contradict.
    fn remarks(&self, report: &mut Report) {
        let message = &self.message;
        let asked = message.request.bytes;
        let free = message.free.as_ref().map_or(0, |size| size.bytes);
        let mut lines = Vec::new();
        let cached = message.unallocated.as_ref().map(|size| size.bytes);
        if let (Some(fragmented), Some(cached)) = (self.is_fragmented(), cached) {
            report.result.insert("fragmentation_holds_the_request", Value::Bool(fragmented));
            lines.push(if asked <= free {
                phrase!["fragmentation is not the cause: what is free would hold the request"]
            } else if fragmented {
                phrase![
                    "fragmentation: cached and free are ",
                    Bytes(free.saturating_add(cached)),
                    " together, enough but not in one piece: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
                ]
            } else {
                let lacks = Bytes(asked - free - cached);
                phrase![
                    "not fragmentation: with all that is cached and free, ",
                    lacks,
                    " still lack for this tensor alone"
                ]
            });
        }
        if message.free.is_some() && asked <= free && message.allowed.is_none() {
            lines.push(phrase![
                "more is free than was asked for: another process took memory at that moment, or a limit holds ",
                "(memory fraction, unified memory, a partition of the device)"
            ]);
        }
        if let (Some(allowed), Some(reserved)) = (&message.allowed, &message.reserved)
            && reserved.bytes.saturating_add(asked) > allowed.bytes
        {
            lines.push(phrase!["the program's own limit refused it, not the device: set_per_process_memory_fraction"]);
        }
        if message.request.is_shared() && message.segments() {
            lines.push(phrase![
                "many small tensors share a segment of this size: it names none of them, and the device was full before"
            ]);
        }
        if message.more > 0 {
            lines.push(phrase![message.more as u64, " more messages follow in the text; the first is the cause"]);
        }
        if !lines.is_empty() {
            report.blocks.push(Block::text("", lines));
        }
    }
}

fn headline(size: &Printed, found: &[Tensor], buffers: &[Buffer]) -> Report {
    let Some(first) = found.first() else {
        if let Some(buffer) = buffers.first() {
            return Report::new("explain-oom", phrase![size.text.as_str(), " may be ", buffer.words()])
                .qualified(phrase!["no single tensor of this step has it"]);
        }
        let mut report = Report::new("explain-oom", phrase!["no tensor of this step has ", size.text.as_str()])
            .qualified(phrase!["another batch, sequence or implementation: see the tokens below"]);
        report.verdict = Verdict::No;
        return report;
    };
    let alike = found.iter().filter(|tensor| tensor.fit == first.fit).count() as u64;
    let mut report = Report::new("explain-oom", phrase![size.text.as_str(), " is ", first.name.as_str()])
        .qualified(phrase![first.shape_words()])
        .qualified(phrase![format!("{}, {}", first.phase.name(), first.place())]);
    if first.fit == Fit::Segment {
        report.headline.qualifiers.push(phrase![Bytes(first.bytes), " rounded up to a segment"]);
    }
    if alike > 1 {
        report.headline.qualifiers.push(phrase!["the likeliest of ", alike, " kinds"]);
    }
    report
}

fn tensor_table(found: &[Tensor], with_live: bool) -> Table {
    let mut columns = vec![
        Column::left("tensor"),
        Column::left("shape"),
        Column::left("phase"),
        Column::left("made by"),
        Column::right("bytes"),
        Column::right("in a step"),
    ];
    if with_live {
        columns.push(Column::right("live before"));
    }
    let mut table = Table::new("tensors of this size in the traced step, likeliest first", columns);
    for tensor in found.iter().take(SHOWN) {
        let mut cells: Vec<Cell> = vec![
            tensor.name.as_str().into(),
            tensor.shape_words().into(),
            tensor.phase.name().into(),
            tensor.place().into(),
            Bytes(tensor.bytes).into(),
            tensor.count.into(),
        ];
        if with_live {
            cells.push(Bytes(tensor.live_before).into());
        }
        table.rows.push(Row::new(cells));
    }
    if found.len() > SHOWN {
        table.rows.push(Row::new([Cell::from(format!("and {} more kinds", found.len() - SHOWN))]));
    }
    table
}

fn product_table(title: &str, products: &[Product]) -> Table {
    let columns = [Column::left("as"), Column::left("product"), Column::right("tokens"), Column::left("")];
    let mut table = Table::new(title, columns);
    for product in products {
        let exact = if product.exact { "to the byte" } else { "within the rounding" };
        let row = Row::new([product.what.as_str().into(), product.words().into(), product.tokens.into(), exact.into()]);
        table.rows.push(row.note(phrase![product.width_name.as_str()]));
    }
    table
}

/// The predicted peak against what the device has.
fn memory_block(levers: &Levers, budget: Option<u64>, of: &Request<'_>, request: &ledger::Request<'_>) -> Block {
    let mut rows =
        vec![KeyValue::new("predicted peak", Bytes(levers.now.bytes())).note(phrase!["of this step, in steady state"])];
    if let Some(allocated) = of.message.allocated.as_ref() {
        let sum = Bytes(allocated.bytes.saturating_add(of.message.request.bytes));
        rows.push(KeyValue::new("at the failure", sum).note(phrase!["live tensors and the request"]));
    }
    if let Some(budget) = budget {
        let from = match request.hardware {
            _ if of.message.budget().is_some() => phrase!["what the message leaves to PyTorch"],
            Some(hardware) => phrase![hardware.display.as_str(), ", less ", request.runtime, " of runtime"],
            None => Phrase::default(),
        };
        rows.push(KeyValue::new("there is room for", Bytes(budget)).note(from));
        if levers.now.bytes() > budget {
            rows.push(KeyValue::new("has to go", Bytes(levers.now.bytes() - budget)));
        }
    }
    Block::key_values("the step", rows)
}

fn advice(levers: &Levers, budget: Option<u64>) -> Vec<Phrase> {
    if levers.now.fits {
        let differs = phrase![
            "this step fits as it is predicted: the run differs in batch, sequence, implementation or optimizer, or the ",
            "memory is fragmented or held by something else"
        ];
        return budget.map(|_| differs).into_iter().collect();
    }
    levers.advice()
}

/// Tensors of that size in the other implementations of the step, of which a few blocks are enough.
fn other_profiles(
    spec: &ModelSpec,
    request: &ledger::Request<'_>,
    wanted: Wanted<'_>,
) -> Result<Vec<(Profile, Tensor)>, Diagnostics> {
    let mut short = spec.clone();
    short.truncate(2);
    let mut out = Vec::new();
    for profile in [Profile::HfEager, Profile::HfSdpa, Profile::Fused] {
        if profile == request.options.profile || (profile == Profile::HfSdpa && !spec.has_sdpa) {
            continue;
        }
        let options = StepOptions { profile, ..request.options };
        let traced: StepTrace = trace(&short, &options)?;
        let found = tensors::of_size(&short, &traced, &options, request.sharding, Wanted { allocated: None, ..wanted });
        out.extend(found.into_iter().next().map(|tensor| (profile, tensor)));
    }
    Ok(out)
}

fn tensor_value(tensor: &Tensor) -> Value {
    Value::map()
        .with("name", tensor.name.as_str())
        .with("shape", Value::list(tensor.shape.iter().copied()))
        .with("dtype", tensor.dtype)
        .with("phase", tensor.phase.name())
        .with("op", tensor.op)
        .with("module", tensor.module.as_str())
        .with("bytes", tensor.bytes)
        .with("exact", tensor.fit == Fit::Exact)
        .with("count", tensor.count)
        .with("live_bytes_before", tensor.live_before)
}

fn buffer_value(buffer: &Buffer) -> Value {
    Value::map()
        .with("what", buffer.what)
        .with("elements", buffer.elements)
        .with("element_bytes", buffer.element)
        .with("devices", buffer.devices)
        .with("bytes", buffer.bytes())
        .with("exact", buffer.fit == Fit::Exact)
}

/// The bytes of a product by its formula.
fn derivation(product: &Product) -> Derivation {
    let formula = if product.heads.is_some() { "scores" } else { "logits" };
    let bytes = Bytes(u64::try_from(product.bytes()).unwrap_or(u64::MAX));
    formulas::derive(product.what.as_str(), formula, product.words(), bytes)
}

fn product_value(product: &Product) -> Value {
    Value::map()
        .with("what", product.what.as_str())
        .with("width", product.width)
        .with("element_bytes", product.element)
        .with("tokens", product.tokens)
        .with("batch", product.batch.map(|(batch, _)| batch))
        .with("seq_len", product.batch.map(|(_, seq)| seq))
        .with("bytes", product.bytes())
        .with("exact", product.exact)
}

/// Refuses a text that is too long to be a message.
///
/// # Errors
/// `T0321` above [`MOST_BYTES`].
pub fn check_length(bytes: usize) -> Result<(), Diagnostic> {
    if bytes <= MOST_BYTES {
        return Ok(());
    }
    let most = group_digits(MOST_BYTES as u128);
    Err(Diagnostic::error("T0321", format!("the text is longer than {most} bytes"))
        .help("grep -m1 'Tried to allocate' train.log | napkin explain-oom -"))
}

/// Longest text that is read.
pub const MOST_BYTES: usize = 16 << 20;
