//! Memory of one device, line by line, at the peak of a training step; phases and timeline of the step.

use nn::blocks::Blocks;
use nn::objective::REFERENCE;
use nn::spec::ModelNames;
use nn::step::{Precision, StepOptions, StepTrace};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::rc::Rc;
use tensor::{Role, Trace};
use units::{Bytes, Diagnostic, Diagnostics, group_digits};

use crate::allocator::Process;
use crate::evidence::{self, Sum};
use crate::flops::{step_assumptions, step_inputs};
use crate::hardware::Hardware;
use crate::levers::{self, Alone, Setup};
use crate::model::{Model, Patterns, pattern};
use crate::on_device::OnDevice;
use crate::phrase;
use crate::report::{
    Assumption, Block, Cell, Chart, Column, Derivation, KeyValue, Origin, Phrase, Report, Row, Stack, Table, Value,
    Verdict,
};
use crate::sharding::{Gathering, Sharding, Wrap};
use crate::step_timeline;
use crate::timeline::{ByRole, Device, Phase, Point, Timeline, last_step, thin};
use crate::tuning::storage_words;

/// The question.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The step.
    pub options: StepOptions,
    /// What is divided over the data-parallel devices.
    pub sharding: Sharding,
    /// The device, if the question is whether it fits.
    pub hardware: Option<&'a Hardware>,
    /// Context and communicators, outside of the program's own allocations.
    pub runtime: Bytes,
    /// Whether the user gave `runtime`.
    pub runtime_given: bool,
    /// Whether optimizer states are in memory that the driver moves to the host where the device is full (paged optimizers of
    /// bitsandbytes).
    pub paged: bool,
    /// The allocator of the process, where it is simulated.
    pub process: Option<Process>,
    /// Levels of modules below a line.
    pub depth: usize,
    /// Whether the step is told moment by moment.
    pub timeline: bool,
}

impl Request<'_> {
    /// The same question of the steady state alone: one step whose states are made before it. Where an allocator is
    /// simulated, the step that makes them stays, since it decides where they come to lie.
    pub fn steady(mut self) -> Self {
        if self.process.is_none() {
            self.options = self.options.steady();
        }
        self
    }
}

/// A line of the ledger.
#[derive(Clone, Debug)]
pub struct Line {
    /// Bucket, such as `activations`.
    pub bucket: &'static str,
    /// Part of it, such as `mlp`.
    pub part: String,
    /// Bytes at the peak.
    pub bytes: u64,
    /// Number of storages.
    pub storages: u64,
    /// What it is the sum of.
    pub sum: Sum,
}

impl Line {
    /// Stable name: `activations.mlp`.
    pub fn id(&self) -> String {
        if self.part.is_empty() { self.bucket.to_owned() } else { format!("{}.{}", self.bucket, self.part) }
    }
}

/// The memory of a traced step on one device.
#[derive(Clone, Debug)]
pub struct Ledger {
    /// Lines at the peak, biggest first; their bytes sum to `peak_bytes`.
    pub lines: Vec<Line>,
    /// Highest bytes of the last step, runtime included.
    pub peak_bytes: u64,
    /// Index of the phase of the peak.
    pub peak_phase: usize,
    /// All phases.
    pub phases: Vec<Phase>,
    /// Live bytes over time, at most [`TIMELINE_POINTS`](crate::timeline::TIMELINE_POINTS) moments, each the highest of its stretch.
    pub timeline: Vec<Point>,
}

/// The phases of the last optimizer step, which is the steady state: what came before made the states.
pub fn steady(phases: &[Phase]) -> std::ops::Range<usize> {
    last_step(phases.len(), |i| &phases[i].name)
}

/// The highest of the phases of the last optimizer step; the first of them, where several are.
pub fn highest(phases: &[Phase]) -> Option<usize> {
    steady(phases).max_by_key(|&i| (phases[i].peak_bytes, std::cmp::Reverse(i)))
}

/// Bytes at the peak of a run on a device that holds nothing yet, with what lies outside of the program.
pub fn peak_on(device: Device<'_>, runtime: Bytes) -> Bytes {
    let (Timeline { phases, .. }, _) = Timeline::on(device);
    let peak = highest(&phases).map_or(0, |i| phases[i].peak_bytes);
    Bytes(peak.saturating_add(runtime.get()))
}

impl Ledger {
    /// Replays a trace on one device of `sharding`.
    pub fn of(
        traced: &StepTrace,
        options: &StepOptions,
        sharding: Sharding,
        names: &ModelNames,
        runtime: Bytes,
    ) -> Self {
        Self::on(Device::new(traced, options, sharding, Blocks::of(names)), names, runtime).0
    }

    /// The same on a device that holds nothing yet; what it holds when the last step begins is with it.
    pub fn on<'a>(device: Device<'a>, names: &ModelNames, runtime: Bytes) -> (Self, Device<'a>) {
        let (Timeline { phases, points }, begins) = Timeline::on(device);
        let peak_phase = highest(&phases).unwrap_or(0);
        let lines = lines(begins.clone(), names, &phases[peak_phase], runtime);
        let ledger = Self {
            peak_bytes: phases[peak_phase].peak_bytes.saturating_add(runtime.get()),
            lines,
            peak_phase,
            phases,
            timeline: thin(&points, runtime),
        };
        (ledger, begins)
    }

    /// The phase of the peak.
    pub fn peak(&self) -> &Phase {
        &self.phases[self.peak_phase]
    }

    /// Sum of the lines of a bucket.
    pub fn bucket(&self, bucket: &str) -> u64 {
        self.lines.iter().filter(|l| l.bucket == bucket).map(|l| l.bytes).sum()
    }
}

/// The lines of the ledger at the peak of `phase`, on a device at the beginning of its step.
fn lines(mut device: Device<'_>, names: &ModelNames, phase: &Phase, runtime: Bytes) -> Vec<Line> {
    let trace = device.trace();
    device.apply_until(phase.peak_event);
    // What is alike is counted before it is put into words: there are many blocks.
    let patterns = Patterns::of(trace);
    let mut alike: BTreeMap<(Role, usize, u64, evidence::Made<'_>), u64> = BTreeMap::new();
    for (id, held) in device.live().iter().enumerate() {
        let Some((role, bytes)) = held.filter(|(_, bytes)| *bytes > 0) else { continue };
        let pattern = patterns.number(trace.storages[id].module);
        *alike.entry((role, pattern, bytes, evidence::made(trace, id))).or_default() += 1;
    }
    let mut groups: BTreeMap<(&'static str, String), (u64, u64, Sum)> = BTreeMap::new();
    let mut add = |bucket, part: String, bytes: u64, times: u64, what: String| {
        let entry = groups.entry((bucket, part)).or_default();
        entry.0 += bytes * times;
        entry.1 += times;
        entry.2.add_times(what, times, u128::from(bytes) * u128::from(times));
    };
    for ((role, pattern, bytes, made), times) in alike {
        let (bucket, part) = place(role, &patterns.distinct()[pattern], names);
        let mut what = made.to_string();
        if bytes != made.bytes() {
            let _ = write!(what, " ÷ {}", device.sharding().dp);
        }
        add(bucket, part, bytes, times, what);
    }
    let (weights, gradients) = phase.peak_op.map_or((0, 0), |op| device.communication(op));
    for (bucket, part, bytes) in [
        ("communication", "gathered_weights", weights),
        ("gradients", "not_reduced_yet", gradients),
        ("runtime", "", runtime.get()),
    ] {
        if bytes > 0 {
            add(bucket, part.to_owned(), bytes, 1, format!("{} B", group_digits(u128::from(bytes))));
        }
    }
    let mut out: Vec<Line> = groups
        .into_iter()
        .map(|((bucket, part), (bytes, storages, sum))| Line { bucket, part, bytes, storages, sum })
        .collect();
    out.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.id().cmp(&b.id())));
    out
}

/// Bucket and part of a storage: by role, and by the module of a block it was made in. Logits and what the loss makes of
/// them, which is what is made outside of the body, are a bucket of their own: they are often the largest.
pub(crate) fn place(role: Role, path: &str, names: &ModelNames) -> (&'static str, String) {
    let blocks = Blocks::of(names);
    // A model without a head has no body of its own: all but the loss is in it. A decoder stands in one module with what it
    // reads.
    let body = names.body.split('.').next().unwrap_or(names.body);
    let in_body = if body.is_empty() { !path.is_empty() } else { path.split('.').next() == Some(body) };
    match role {
        Role::Activation | Role::Temporary | Role::Recompute => {
            if blocks.hold(path) {
                (role.name(), blocks.part(path).unwrap_or("residual").to_owned())
            } else if in_body {
                (role.name(), path.rsplit('.').next().unwrap_or(path).to_owned())
            } else {
                ("logits_and_loss", String::new())
            }
        }
        Role::Parameter | Role::Buffer if path.split('.').next() == Some(REFERENCE) => {
            (role.name(), REFERENCE.to_owned())
        }
        _ => (role.name(), String::new()),
    }
}

/// The ledger of a model's training step.
///
/// # Errors
/// As [`Model::trace`].
pub fn ledger(model: &Model, request: &Request<'_>) -> Result<(Ledger, Rc<StepTrace>), Diagnostics> {
    let traced = model.trace(&request.options)?;
    let ledger = Ledger::of(&traced, &request.options, request.sharding, &model.spec.names, request.runtime);
    Ok((ledger, traced))
}

/// The ledger as a report; with the changes that would make it fit where it does not, if `levers` are asked for.
///
/// # Errors
/// As [`Model::trace`].
pub fn report(model: &Model, request: &Request<'_>, levers: bool) -> Result<Report, Diagnostics> {
    let traced = model.trace(&request.options)?;
    let names = &model.spec.names;
    let empty = Device::new(&traced, &request.options, request.sharding, Blocks::of(names));
    let (ledger, begins) = Ledger::on(empty.clone(), names, request.runtime);
    let capacity = request.hardware.map(Hardware::capacity);
    let device = OnDevice::on(&empty, &traced, Bytes(ledger.peak_bytes), request, capacity);
    let answer = match capacity {
        Some(capacity) => phrase![device.total, " of ", capacity],
        None => phrase![device.total],
    };
    let mut report = Report::new("ledger", answer);
    report.verdict = if device.fits() { Verdict::Answered } else { Verdict::No };
    report.headline.qualifiers.extend(capacity.map(|capacity| fit_words(device.total, capacity)));
    report.headline.qualifiers.push(phrase!["peak at: ", peak_words(&ledger, &traced.trace)]);
    report.blocks.push(table(model, request, &ledger).into());
    report.blocks.extend(device.table(request).map(Into::into));
    report.blocks.extend(host_rows(&traced, request, &device));
    report.inputs = inputs(model, request);
    report.result =
        result(&ledger, &device, &traced.trace, request).with("host", host_result(&traced, request, &device));
    if levers && !device.fits() {
        let alone = Alone::new(model, request, &ledger, &device);
        let found = levers::find(&alone, &Setup::alone(&request.options, request.sharding))?;
        report.blocks.push(found.table().into());
        report.result.insert("levers", found.value());
        report.notes.extend(found.advice());
    }
    report.warnings = model.step_warnings(&request.options);
    report.warnings.extend(warnings(request));
    report.warnings.extend(device.warning());
    report.notes.extend(device.remedy(Blocks::of(&model.spec.names), &traced, &ledger, request));
    report.notes.extend(device.gaps(model, &traced, &ledger, request));
    report.derivations = derivations(&ledger);
    report.assumptions = model.assumptions();
    report.assumptions.extend(step_assumptions(&request.options));
    report.assumptions.extend(assumptions(request));
    report.charts.push(Chart::Bar(stack(&ledger, &device)));
    if request.timeline {
        report.blocks.push(stretches(&ledger, &traced.trace).into());
        report.charts.push(Chart::Timeline(step_timeline::of(model, begins, &ledger, request)));
    }
    Ok(report)
}

/// What the allocator holds beside the tensors.
pub(crate) const ALLOCATOR: &str = "allocator";

/// The buckets of a device at the peak, the largest first, and what the allocator holds beside them.
pub(crate) fn stack(ledger: &Ledger, device: &OnDevice) -> Stack {
    let mut segments: Vec<(String, Bytes)> = Vec::new();
    for line in &ledger.lines {
        let name = line.bucket.replace('_', " ");
        match segments.iter_mut().find(|(known, _)| *known == name) {
            Some((_, bytes)) => *bytes += Bytes(line.bytes),
            None => segments.push((name, Bytes(line.bytes))),
        }
    }
    segments.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    let allocator = device.total.saturating_sub(Bytes(ledger.peak_bytes));
    if device.reserved.is_some() {
        segments.push((ALLOCATOR.to_owned(), allocator));
    }
    Stack { segments, capacity: device.capacity }
}

/// What is on the host, and what goes over the link to it.
fn host_rows(traced: &StepTrace, request: &Request<'_>, device: &OnDevice) -> Option<Block> {
    let (host, offload) = (traced.host, request.options.offload);
    let mut rows = Vec::new();
    if offload.activations {
        rows.push(
            KeyValue::new("activations", Bytes(host.activations_peak)).note(phrase![
                Bytes(2 * host.activations),
                " there and back in a step; copies in flight are not counted"
            ]),
        );
    }
    if offload.optimizer {
        rows.push(KeyValue::new("optimizer states", Bytes(host.states)).note(phrase![
            Bytes(host.update),
            " of gradients and parameters there and back; the update runs on the host"
        ]));
    }
    if let Some(paged) = device.paged {
        rows.push(KeyValue::new("paged optimizer states", paged).note(phrase![
            "moved by the driver for want of room: at least ",
            Bytes(2 * paged.get()),
            " there and back in a step"
        ]));
    }
    (!rows.is_empty()).then(|| Block::key_values("on the host", rows))
}

/// The same for programs.
fn host_result(traced: &StepTrace, request: &Request<'_>, device: &OnDevice) -> Option<Value> {
    let host = traced.host;
    (request.options.offload.is_any() || device.paged.is_some()).then(|| {
        Value::map()
            .with("paged_state_bytes", device.paged)
            .with("activation_bytes", host.activations)
            .with("activation_peak_bytes", host.activations_peak)
            .with("state_bytes", host.states)
            .with("update_bytes", host.update)
    })
}

/// Each line as the sum of its tensors.
pub fn derivations(ledger: &Ledger) -> Vec<Derivation> {
    ledger.lines.iter().map(|line| line.sum.clone().derive(line.id(), "traced-bytes", Bytes(line.bytes))).collect()
}

/// `fits, 10.38 GiB free (13 %)`, or by how much it does not.
pub fn fit_words(peak: Bytes, capacity: Bytes) -> Phrase {
    if peak <= capacity {
        let free = capacity.saturating_sub(peak);
        phrase!["fits, ", free, " free (", Cell::RoundPercent((free / capacity * 100.0).round() / 100.0), ")"]
    } else {
        phrase!["does not fit: ", peak.saturating_sub(capacity), " too much"]
    }
}

/// The name of a stretch, in words.
pub(crate) fn stretch(name: &str) -> &str {
    match name.get(..3) {
        Some("fwd") => "forward",
        Some("bwd") => "backward",
        Some("opt") => "optimizer step",
        _ => name,
    }
}

/// Where the peak is, in words: `backward of step 2, log_softmax_backward in the loss`.
pub fn peak_words(ledger: &Ledger, trace: &Trace) -> String {
    let phase = ledger.peak();
    let stretch = stretch(&phase.name);
    match phase.peak_op.and_then(|i| trace.ops.get(i)) {
        None => stretch.to_owned(),
        Some(event) => {
            let path = pattern(trace.module(event.module));
            let place = if path.is_empty() { "the loss".to_owned() } else { path };
            let place = if stretch == "optimizer step" { String::new() } else { format!(" in {place}") };
            format!("{stretch}, {}{place}", event.op.name())
        }
    }
}

/// Lines grouped by bucket, biggest first, with a bar.
fn table(model: &Model, request: &Request<'_>, ledger: &Ledger) -> Table {
    let total = ledger.peak_bytes.max(1) as f64;
    let mut buckets: BTreeMap<&'static str, Vec<&Line>> = BTreeMap::new();
    for line in &ledger.lines {
        buckets.entry(line.bucket).or_default().push(line);
    }
    let mut buckets: Vec<(&'static str, u64, Vec<&Line>)> =
        buckets.into_iter().map(|(name, lines)| (name, lines.iter().map(|l| l.bytes).sum(), lines)).collect();
    buckets.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(b.0)));
    let columns = [Column::left(""), Column::one_unit(""), Column::left(""), Column::right("")];
    let mut table = Table::new("", columns);
    for (name, bytes, lines) in buckets {
        let share = bytes as f64 / total;
        let row =
            Row::new([name.replace('_', " ").into(), Bytes(bytes).into(), Cell::Bar(share), Cell::Percent(share)]);
        table.rows.push(row.note(bucket_note(name, bytes, model, request)));
        if lines.len() > 1 && request.depth > 0 {
            for line in lines {
                let whole = if name == "gradients" { "accumulated" } else { "model" };
                let part = if line.part.is_empty() { whole.to_owned() } else { line.part.replace('_', " ") };
                table.rows.push(Row::new([part.into(), Bytes(line.bytes).into()]).indent(1));
            }
        }
    }
    table
}

/// The stretches of the step: how high each goes, and what it leaves.
fn stretches(ledger: &Ledger, trace: &Trace) -> Table {
    let columns =
        [Column::left("over the step"), Column::one_unit("peak"), Column::one_unit("at its end"), Column::left("")];
    let mut table = Table::new("", columns);
    for phase in &ledger.phases[steady(&ledger.phases)] {
        let op = phase.peak_op.and_then(|i| trace.ops.get(i)).map_or("", |event| event.op.name());
        table.rows.push(Row::new([
            stretch(&phase.name).into(),
            Bytes(phase.peak_bytes).into(),
            Bytes(phase.end_bytes()).into(),
            op.into(),
        ]));
    }
    table
}

fn bucket_note(bucket: &str, bytes: u64, model: &Model, request: &Request<'_>) -> Phrase {
    let layers = model.spec.depth() as u64;
    let sharding = request.sharding;
    let divided = |yes: bool| if yes && sharding.dp > 1 { format!(", ÷ {}", sharding.dp) } else { String::new() };
    let tuning = &model.spec.tuning;
    match bucket {
        "activations" if layers > 0 => phrase![layers, " blocks × ", Bytes(bytes / layers)],
        "optimizer_states" => {
            phrase![format!("{}{}", request.options.optimizer.kind.name(), divided(sharding.zero >= 1))]
        }
        "gradients" => {
            let whole = !sharding.gathering.sync && request.options.grad_accum_steps > 1;
            let until = if sharding.reduces() && whole { ", whole until the last micro-batch" } else { "" };
            phrase![format!("{}{}{until}", request.options.precision.grad_dtype().name(), divided(sharding.zero >= 2))]
        }
        "parameters" => {
            let stored = storage_words(tuning, request.options.precision);
            phrase![format!("{stored}{}", divided(sharding.zero >= 3))]
        }
        "buffers" if tuning.packed.is_some() => phrase!["constants of packed weights among them"],
        "communication" => phrase![match sharding.gathering {
            Gathering { wrap: Wrap::Model, .. } => "all weights, as one unit",
            Gathering { reshard: false, .. } => "root, and every block from its forward to its backward pass",
            Gathering { prefetch: false, .. } => "root and the block that runs",
            _ => "root, the block that runs and one fetched ahead",
        }],
        "runtime" => phrase![if request.runtime_given { "given" } else { "context, kernels, communicators (typical)" }],
        _ => Phrase::default(),
    }
}

/// What was asked, for programs.
pub fn inputs(model: &Model, request: &Request<'_>) -> Value {
    let Sharding { zero, dp, gathering, .. } = request.sharding;
    let layout = Value::map().with("zero", u64::from(zero)).with("dp", dp).with_all(gathering.values());
    Value::map()
        .with("model", model.inputs())
        .with("step", step_inputs(&request.options))
        .with("layout", layout)
        .with("hardware", request.hardware.map(|h| h.name.clone()))
}

/// What a recipe costs besides bytes.
pub fn warnings(request: &Request<'_>) -> Option<Diagnostic> {
    (request.options.precision == Precision::Bf16Pure).then(|| {
        Diagnostic::warning("T0309", "bf16-pure keeps no f32 master weights")
            .effect("updates below half a spacing of a weight, 2^-9 of it, are lost")
            .help("--precision bf16-master")
    })
}

/// What the ledger rests on.
pub fn assumptions(request: &Request<'_>) -> Vec<Assumption> {
    let options = &request.options;
    let mut out = vec![
        Assumption::new("precision", "precision", options.precision.name(), Origin::Default).flag("--precision"),
        Assumption::new("optimizer", "optimizer", options.optimizer.to_string(), Origin::Default).flag("--optimizer"),
        Assumption::new("recompute", "recompute", options.recompute.name(), Origin::Default).flag("--recompute"),
        Assumption::new("zero", "zero", u64::from(request.sharding.zero), Origin::Default).flag("--zero"),
        Assumption::new("dp", "dp", request.sharding.dp, Origin::Default).flag("--dp"),
    ];
    if request.hardware.is_some() || request.runtime_given {
        let from = if request.runtime_given { Origin::Given } else { Origin::Default };
        out.push(
            Assumption::new("runtime_bytes", "runtime", request.runtime, from)
                .why("context, kernels and communicators, outside of the program's allocations")
                .flag("--runtime"),
        );
    }
    out.push(match &request.process {
        None => Assumption::new("allocator_waste", "allocator waste", Bytes(0), Origin::Default)
            .why("bytes allocated are counted exactly; no caching allocator is simulated"),
        Some(process) => {
            let conf = process.conf.to_string();
            let value = if conf.is_empty() { "plain".to_owned() } else { conf };
            Assumption::new("allocator", "allocator", value, Origin::Default)
                .why("PyTorch's, simulated over the allocations of the step")
                .flag("--alloc-conf")
        }
    });
    if options.precision == Precision::Fp8 {
        out.push(
            Assumption::new("fp8", "fp8", "linear maps of blocks", Origin::Default).why(
                "attention scores and values, experts, head and norms stay in bf16 and f32; peaks are those of fp8",
            ),
        );
    }
    if request.options.precision.copies().is_some() && request.options.profile.is_hf() {
        let lists = if request.options.autocast == tensor::CastLists::Cuda { "cuda" } else { "cpu" };
        out.push(Assumption::new("autocast", "autocast", lists, Origin::Default).flag("--autocast"));
    }
    out
}

/// The ledger, for programs.
pub fn result(ledger: &Ledger, device: &OnDevice, trace: &Trace, request: &Request<'_>) -> Value {
    let by_role = |roles: &ByRole| {
        Value::Map(Role::ALL.iter().map(|r| (r.name().to_owned(), roles[*r as usize].into())).collect())
    };
    let op = |i: Option<usize>| i.and_then(|i| trace.ops.get(i)).map(|e| e.op.name());
    let module = |i: Option<usize>| i.and_then(|i| trace.ops.get(i)).map(|e| trace.module(e.module).to_owned());
    let lines = ledger
        .lines
        .iter()
        .map(|l| Value::map().with("id", l.id()).with("bytes", l.bytes).with("storages", l.storages));
    let shown = ledger.phases.iter().filter(|p| !p.name.starts_with("zero"));
    let phases = shown.map(|p| {
        Value::map()
            .with("name", p.name.as_str())
            .with("peak_bytes", p.peak_bytes)
            .with("peak_op", op(p.peak_op))
            .with("peak_module", module(p.peak_op))
            .with("peak_by_role", by_role(&p.peak_by_role))
            .with("end_bytes", p.end_bytes())
            .with("end_by_role", by_role(&p.end_by_role))
    });
    let timeline = ledger.timeline.iter().map(|p| {
        Value::map()
            .with("op", u64::from(p.op))
            .with("phase", ledger.phases[p.phase].name.as_str())
            .with("live_bytes", p.bytes)
    });
    let capacity = request.hardware.map(Hardware::capacity);
    Value::map()
        .with("fits", capacity.map(|_| device.fits()))
        .with("peak_bytes", ledger.peak_bytes)
        .with("peak_at", peak_words(ledger, trace))
        .with("peak_phase", ledger.peak().name.as_str())
        .with("capacity_bytes", capacity)
        .with("device", device.value(request))
        .with("lines", Value::List(lines.collect()))
        .with("phases", Value::List(phases.collect()))
        .with("timeline", Value::List(timeline.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::presets;

    /// Whatever a family calls its body and head.
    #[test]
    fn what_the_body_makes_is_not_the_loss() {
        for name in presets::names() {
            let (name, text) = presets::find(name).unwrap();
            let model = Model::from_text(name, name, text.as_bytes(), &[], None).unwrap();
            let names = &model.spec.names;
            let bucket = |path: &str| place(Role::Activation, path, names).0;
            assert_eq!(bucket(names.body), "activations", "{name}: {}", names.body);
            assert_eq!(bucket(&format!("{}.{}", names.body, names.norm)), "activations", "{name}");
            assert_eq!(bucket(&format!("{}.{}.*.mlp", names.body, names.layers)), "activations", "{name}");
            assert_eq!(bucket(names.head), "logits_and_loss", "{name}: {}", names.head);
            assert_eq!(bucket(""), "logits_and_loss", "{name}");
        }
    }
}
