//! What a training step takes of a device, as three numbers: allocated by its tensors, reserved by the allocator, and in
//! all, with what lies outside of it.

use nn::Offload;
use nn::blocks::Blocks;
use nn::optim::Slot;
use nn::step::{StepOptions, StepTrace};
use units::{Bytes, Diagnostic};

use crate::allocator::{Conf, Process, Reserved, Usage};
use crate::hardware::Hardware;
use crate::ledger::{Ledger, Request};
use crate::model::Model;
use crate::phrase;
use crate::report::{Cell, Column, Phrase, Row, Table, Value};
use crate::runtime::{self, Part};
use crate::timeline::Device;

/// A step on a device.
#[derive(Clone, Debug, PartialEq)]
pub struct OnDevice {
    /// What the allocator reserves, where it is simulated. Where the device has no room for it, what it would reserve.
    pub reserved: Option<Reserved>,
    /// Bytes of the device: reserved, or else allocated, and what lies outside.
    pub total: Bytes,
    /// Memory of the device, if that is known.
    pub capacity: Option<Bytes>,
    /// Bytes of paged optimizer states that are on the host because the device has no room for them.
    pub paged: Option<Bytes>,
    /// Whether an allocation failed for want of room.
    refused: bool,
}

/// Fewest elements of a parameter whose states are paged.
///
/// Source: bitsandbytes (51294d9), `optim/optimizer.py`, `Optimizer8bit.get_state_buffer`: `p.numel() < 1e5`, whatever the dtype of
/// the state. Scales of 8-bit states are made beside it (`init_state`) and never paged.
const SMALLEST_PAGED: u64 = 100_000;

/// Bytes of optimizer states that can be on the host: those with an element for each of a parameter that is large enough.
fn pageable(traced: &StepTrace, request: &Request<'_>) -> Bytes {
    let (options, sharding) = (&request.options, request.sharding);
    let (dtype, master) = (options.precision.param_dtype(), options.precision.has_master());
    let paged = traced.params.iter().filter(|param| param.trainable && param.elements >= SMALLEST_PAGED);
    let slots = paged.flat_map(|param| {
        let own = options.optimizer.slots(param.kind, &param.shape, dtype, master).into_iter();
        own.filter(|slot| slot.name != Slot::MASTER && slot.shape == param.shape)
    });
    let all: u64 = slots.map(|slot| slot.bytes()).fold(0, u64::saturating_add);
    Bytes(if sharding.zero > 0 { all / sharding.dp.max(1) } else { all })
}

impl OnDevice {
    /// Simulates the allocator of the request, if it has one.
    pub fn of(model: &Model, traced: &StepTrace, ledger: &Ledger, request: &Request<'_>) -> Self {
        Self::named(Blocks::of(&model.spec.names), traced, ledger, request, request.hardware.map(Hardware::capacity))
    }

    /// The same for a model with these blocks, on a device of this capacity.
    pub fn named(
        blocks: Blocks,
        traced: &StepTrace,
        ledger: &Ledger,
        request: &Request<'_>,
        capacity: Option<Bytes>,
    ) -> Self {
        let empty = Device::new(traced, &request.options, request.sharding, blocks);
        Self::on(&empty, traced, Bytes(ledger.peak_bytes), request, capacity)
    }

    /// The same, given the device on which nothing is allocated yet, and the peak of its tensors with what lies outside.
    pub fn on(
        empty: &Device<'_>,
        traced: &StepTrace,
        tensors: Bytes,
        request: &Request<'_>,
        capacity: Option<Bytes>,
    ) -> Self {
        let Some(process) = &request.process else {
            let refused = capacity.is_some_and(|capacity| tensors > capacity);
            return Self { reserved: None, total: tensors, capacity, paged: None, refused }.paging(traced, request);
        };
        let room = capacity.map(|capacity| capacity.saturating_sub(request.runtime));
        let reserved = process.wanted(empty, room);
        let refused = reserved.refused.is_some();
        let total = Bytes(reserved.end.peak_reserved.saturating_add(request.runtime.get()));
        Self { reserved: Some(reserved), total, capacity, paged: None, refused }.paging(traced, request)
    }

    /// The same where the driver may move optimizer states to the host for what is missing.
    fn paging(self, traced: &StepTrace, request: &Request<'_>) -> Self {
        let missing = self.capacity.map(|capacity| self.total.saturating_sub(capacity));
        let missing = missing.filter(|_| request.paged && self.refused);
        match (missing, self.capacity) {
            (Some(missing), Some(capacity)) if missing <= pageable(traced, request) => {
                Self { total: capacity, paged: Some(missing), refused: false, ..self }
            }
            _ => self,
        }
    }

    /// Whether the step can be made; true where no capacity is known.
    pub const fn fits(&self) -> bool {
        !self.refused
    }

    /// What to warn about: a step that only goes on because cached memory is given back.
    pub fn warning(&self) -> Option<Diagnostic> {
        let reserved = self.reserved.as_ref().filter(|reserved| !self.refused && reserved.end.retries > 0)?;
        let message = format!(
            "the allocator gives back its cached segments {} times in {} steps to go on",
            reserved.end.retries, reserved.steps
        );
        let problem =
            Diagnostic::warning("T0323", message).effect("each time waits for the device; the step is slower");
        Some(problem.help("--alloc-conf expandable_segments:True").help("a smaller --batch"))
    }

    /// What to say of a step that does not fit, where segments that expand would make it fit.
    pub fn remedy(&self, blocks: Blocks, traced: &StepTrace, ledger: &Ledger, request: &Request<'_>) -> Option<Phrase> {
        let process = request.process.as_ref().filter(|process| self.refused && !process.conf.expandable_segments)?;
        // Tensors that have no room have none in other segments.
        self.capacity.filter(|capacity| ledger.peak_bytes <= capacity.get())?;
        let conf = Conf { expandable_segments: true, ..process.conf.clone() };
        let request = Request { process: Some(Process { conf, ..process.clone() }), ..request.clone() };
        let other = Self::named(blocks, traced, ledger, &request, self.capacity);
        other.fits().then(|| phrase!["--alloc-conf expandable_segments:True makes it fit, in ", other.total])
    }

    /// What to say of a step that fits and takes more of the device with what it offloads than without: tensors that come
    /// back find no gap of their size.
    pub fn gaps(&self, model: &Model, traced: &StepTrace, ledger: &Ledger, request: &Request<'_>) -> Option<Phrase> {
        let plain = |process: &&Process| !process.conf.expandable_segments;
        let process = request.process.as_ref().filter(plain)?;
        if self.refused || !request.options.offload.is_any() {
            return None;
        }
        let options = StepOptions { offload: Offload::NONE, ..request.options };
        let kept = Request { options, ..request.clone() };
        // The step of the question stays the one that is kept.
        let its_trace = crate::model::trace(&model.spec, &options).ok()?;
        let its_ledger = Ledger::of(&its_trace, &options, kept.sharding, &model.spec.names, kept.runtime);
        let without = Self::of(model, &its_trace, &its_ledger, &kept).total;
        let conf = Conf { expandable_segments: true, ..process.conf.clone() };
        let request = Request { process: Some(Process { conf, ..process.clone() }), ..request.clone() };
        let other = Self::named(Blocks::of(&model.spec.names), traced, ledger, &request, self.capacity).total;
        (self.total > without && other < self.total).then(|| {
            phrase![
                "what is offloaded leaves gaps, and the device holds ",
                self.total,
                " where it held ",
                without,
                ": --alloc-conf expandable_segments:True closes them, in ",
                other
            ]
        })
    }

    /// From the tensors to the device, line by line.
    pub fn table(&self, request: &Request<'_>) -> Option<Table> {
        let reserved = self.reserved.as_ref()?;
        let mut table = Table::new("of the device", [Column::left(""), Column::one_unit("")]);
        let mut push = |indent, name: &str, bytes: u64, note: Phrase| {
            table.rows.push(Row::new([Cell::from(name), Bytes(bytes).into()]).indent(indent).note(note));
        };
        let Usage { requested, allocated, .. } = reserved.peak;
        let end = reserved.end;
        let workspace = workspace(request, &reserved.peak);
        let retries = if end.retries > 0 { format!(", {} retries", end.retries) } else { String::new() };
        let how = format!("{} times asked of the driver{retries}", end.mallocs);
        push(0, "reserved", end.peak_reserved, phrase![how]);
        push(1, "tensors", requested - workspace, phrase!["allocated at the peak"]);
        if workspace > 0 {
            push(1, "workspace", workspace, phrase!["of matrix products"]);
        }
        push(1, "rounding", allocated - requested, phrase!["of blocks to 512 bytes and of those not worth splitting"]);
        let unused = end.peak_reserved - allocated;
        push(
            1,
            "unused",
            unused,
            phrase![Cell::Percent(unused as f64 / end.peak_reserved.max(1) as f64), " of what is reserved"],
        );
        for (name, bytes, note) in outside(request) {
            push(0, name, bytes.get(), note);
        }
        table.total = Some(Row::new([Cell::from("device total"), self.total.into()]));
        Some(table)
    }

    /// The same for programs.
    pub fn value(&self, request: &Request<'_>) -> Value {
        let outside = outside(request).into_iter().map(|(name, bytes, _)| (name.to_owned(), Value::from(bytes)));
        let mut value =
            Value::map().with("total_bytes", self.total).with("outside_bytes", Value::Map(outside.collect()));
        if let (Some(reserved), Some(process)) = (&self.reserved, &request.process) {
            let (peak, end) = (&reserved.peak, &reserved.end);
            let reserved = Value::map()
                .with("alloc_conf", process.conf.to_string())
                .with("requested_bytes", peak.requested)
                .with("workspace_bytes", workspace(request, peak))
                .with("allocated_bytes", peak.allocated)
                .with("inactive_split_bytes_at_peak", peak.inactive_split)
                .with("reserved_bytes", end.peak_reserved)
                .with("fragmentation", 1.0 - peak.allocated as f64 / end.peak_reserved.max(1) as f64)
                .with("segments", end.segments)
                .with("driver_allocations", end.mallocs)
                .with("driver_frees", end.frees)
                .with("retries", end.retries)
                .with("steps_simulated", reserved.steps)
                .with("steady", reserved.steady);
            value.insert("reserved", reserved);
        }
        value
    }
}

/// Bytes of the workspace, once it is there.
fn workspace(request: &Request<'_>, peak: &Usage) -> u64 {
    let bytes = request.process.as_ref().map_or(0, |process| process.workspace.get());
    if bytes <= peak.requested { bytes } else { 0 }
}

/// What lies outside of the allocator: as given, or row by row.
fn outside(request: &Request<'_>) -> Vec<(&'static str, Bytes, Phrase)> {
    let parts = match request.hardware {
        Some(hardware) if !request.runtime_given => runtime::outside(hardware, request.sharding.dp),
        _ => Vec::new(),
    };
    if parts.is_empty() {
        let given = (request.runtime > Bytes::ZERO).then(|| ("runtime", request.runtime, phrase!["given"]));
        return given.into_iter().collect();
    }
    let line = |(what, bytes, row): Part| {
        let note = match row {
            Some(row) => format!("{}: {}", if row.exact { "exact" } else { "typical" }, row.source),
            None => "assumed".to_owned(),
        };
        (what.name(), bytes, phrase![note])
    };
    parts.into_iter().map(line).collect()
}
