//! What was measured of a run, with what the run was: a JSON file.

use std::collections::HashMap;
use std::path::Path;

use plan::reconcile::{Ceilings, Heap, HeapPart, Measured, Resident, ResidentPart, StepWork, TimedStep};
use serde_json::{Map, Value, json};
use tensor::Role;
use units::{Bytes, BytesPerSecond, Diagnostic, Diagnostics, FlopPerSecond, Flops};

use crate::checkpoint::{Fields, exact};
use crate::run::Settings;

/// Key by which a record is known, and its version.
const MARK: &str = "napkin_record";
const VERSION: u64 = 1;

/// A run and what was measured of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// What the model is called.
    pub model: String,
    /// Its config as JSON.
    pub config: String,
    /// How it was trained.
    pub settings: Settings,
    /// What was measured.
    pub measured: Measured,
}

impl Record {
    /// Whether a text begins as a record does, so that it is no config.
    pub fn is_one(text: &[u8]) -> bool {
        let start = text.iter().position(|byte| !b" \t\r\n{".contains(byte)).unwrap_or_default();
        text[start..].starts_with(format!("\"{MARK}\"").as_bytes())
    }

    /// As the text of a file.
    pub fn to_text(&self) -> String {
        let m = &self.measured;
        let value = json!({
            "version": env!("CARGO_PKG_VERSION"),
            "model": self.model,
            "config": self.config,
            "settings": self.settings.to_json(),
            "measured": {
                "parameters": m.parameters,
                "kernels_flop": m.kernels.get().to_string(),
                "allocated_peak_bytes": m.allocated.map(Bytes::get),
                "work": m.work.as_ref().map(work_json),
                "heap": m.heap.as_ref().map(heap_json),
                "process": m.process.as_ref().map(process_json),
                "time": m.timed.as_ref().map(|(step, ceilings)| time_json(step, ceilings)),
            },
        });
        // The mark stands first, whatever order the map has.
        let text = value.to_string();
        format!("{{\"{MARK}\":{VERSION},{}\n", text.trim_start_matches('{'))
    }

    /// From the text of a file.
    ///
    /// # Errors
    /// `T0722` for what is no record or one of another version; every key that is absent, unknown or of another type.
    pub fn from_text(file: &str, text: &[u8]) -> Result<Self, Diagnostics> {
        let no_record = |why: String| {
            Diagnostics::from(
                Diagnostic::error("T0722", format!("`{file}` is no record of a run: {why}"))
                    .help("napkin train MODEL --record run.json makes one"),
            )
        };
        let value: Value = serde_json::from_slice(text).map_err(|error| no_record(error.to_string()))?;
        match value.get(MARK).map(Value::as_u64) {
            Some(Some(VERSION)) => {}
            Some(_) => return Err(no_record(format!("it is of another version of napkin than this, {VERSION}"))),
            None => return Err(no_record(format!("it has no `{MARK}`"))),
        }
        let mut f = Fields::new(file, &value);
        f.count(MARK);
        f.text("version");
        let (model, config, settings) = (f.text("model"), f.text("config"), f.value("settings"));
        let measured = f.object("measured", |f| Measured {
            parameters: f.count("parameters"),
            kernels: flop(f, "kernels_flop"),
            allocated: f
                .converted("allocated_peak_bytes", "a count of bytes or null", |value| {
                    if value.is_null() { Some(None) } else { value.as_u64().map(Some) }
                })
                .flatten()
                .map(Bytes),
            work: f.object_or_null("work", work),
            heap: f.object_or_null("heap", heap),
            process: f.object_or_null("process", process),
            timed: f.object_or_null("time", time).flatten(),
        });
        f.finish()?;
        Ok(Self { model, config, settings: Settings::from_json(file, &settings)?, measured })
    }

    /// Reads a file.
    ///
    /// # Errors
    /// As [`from_text`](Self::from_text); it cannot be read.
    pub fn read(path: &Path) -> Result<Self, Diagnostics> {
        let shown = path.display().to_string();
        let text = std::fs::read(path)
            .map_err(|error| Diagnostic::error("T0722", format!("`{shown}` cannot be read: {error}")))?;
        Self::from_text(&shown, &text)
    }
}

/// An object of named numbers.
fn named<T: Into<Value>>(pairs: impl IntoIterator<Item = (&'static str, T)>) -> Value {
    Value::Object(pairs.into_iter().map(|(key, value)| (key.to_owned(), value.into())).collect::<Map<_, _>>())
}

fn work_json(w: &StepWork) -> Value {
    // Counts of 128 bits are texts: JSON's numbers are not.
    let flop = |flops: Flops| flops.get().to_string();
    json!({
        "ops": w.ops,
        "matmul_flop": flop(w.matmul),
        "recomputed_flop": flop(w.recomputed),
        "elementwise_flop": flop(w.elementwise),
        "traffic_bytes": w.traffic.get(),
        "peak_bytes": w.peak.get(),
        "at_peak_bytes": named(w.at_peak.iter().map(|(role, bytes)| (role.name(), bytes.get()))),
    })
}

fn flop(f: &mut Fields<'_>, key: &'static str) -> Flops {
    let read = |value: &Value| value.as_str().and_then(|text| text.parse::<u128>().ok());
    Flops(f.converted(key, "a count as a text", read).unwrap_or_default())
}

fn work(f: &mut Fields<'_>) -> StepWork {
    let names = |value: &Value| {
        let names = value.as_array()?.iter().map(|name| name.as_str().map(str::to_owned));
        names.collect::<Option<Vec<String>>>()
    };
    StepWork {
        ops: f.converted("ops", "a list of names", names).unwrap_or_default(),
        matmul: flop(f, "matmul_flop"),
        recomputed: flop(f, "recomputed_flop"),
        elementwise: flop(f, "elementwise_flop"),
        traffic: Bytes(f.count("traffic_bytes")),
        peak: Bytes(f.count("peak_bytes")),
        at_peak: parts(f, "at_peak_bytes", &Role::ALL.map(|role| (role.name(), role)), Value::as_u64)
            .into_iter()
            .map(|(role, bytes)| (role, Bytes(bytes)))
            .collect(),
    }
}

/// Numbers under names of a closed set.
fn parts<P: Copy, T>(
    f: &mut Fields<'_>,
    key: &'static str,
    known: &[(&'static str, P)],
    read: impl Fn(&Value) -> Option<T>,
) -> Vec<(P, T)> {
    let found = f.map(key, "a whole number", read);
    for (name, _) in found.iter().filter(|(name, _)| known.iter().all(|(known, _)| known != name)) {
        f.reject(key, format!("has `{name}`, which is not known"));
    }
    // In the order of the set, not of the file.
    let mut found: HashMap<String, T> = found.into_iter().collect();
    known.iter().filter_map(|(name, part)| Some((*part, found.remove(*name)?))).collect()
}

fn heap_json(h: &Heap) -> Value {
    json!({
        "counted_bytes": h.counted.get(),
        "op": h.op,
        "tensors_bytes": h.tensors.get(),
        "parts_bytes": named(h.parts.iter().map(|(part, bytes)| (part.key(), *bytes))),
    })
}

fn heap(f: &mut Fields<'_>) -> Heap {
    let known: Vec<_> = HeapPart::ALL.iter().map(|part| (part.key(), *part)).collect();
    Heap {
        counted: Bytes(f.count("counted_bytes")),
        op: f.count("op"),
        tensors: Bytes(f.count("tensors_bytes")),
        // More than any address space has is no count.
        parts: parts(f, "parts_bytes", &known, |value| value.as_i64().filter(|bytes| bytes.unsigned_abs() < 1 << 60)),
    }
}

fn process_json(p: &Resident) -> Value {
    json!({
        "resident_bytes": p.now.get(),
        "peak_resident_bytes": p.peak.get(),
        "reserved_bytes": p.reserved.get(),
        "parts_bytes": named(p.parts.iter().map(|(part, bytes)| (part.key(), bytes.get()))),
    })
}

fn process(f: &mut Fields<'_>) -> Resident {
    let known: Vec<_> = ResidentPart::ALL.iter().map(|part| (part.key(), *part)).collect();
    Resident {
        now: Bytes(f.count("resident_bytes")),
        peak: Bytes(f.count("peak_resident_bytes")),
        reserved: Bytes(f.count("reserved_bytes")),
        parts: parts(f, "parts_bytes", &known, Value::as_u64)
            .into_iter()
            .map(|(part, bytes)| (part, Bytes(bytes)))
            .collect(),
    }
}

fn time_json(step: &TimedStep, ceilings: &Ceilings) -> Value {
    json!({
        "seconds": exact(step.seconds),
        "waiting_seconds": exact(step.waiting),
        "timed_steps": step.steps,
        "ops_seconds": step.ops.iter().copied().map(exact).collect::<Vec<_>>(),
        "fp32_flop_per_second": exact(ceilings.fp32.get()),
        "products_flop_per_second": exact(ceilings.products.get()),
        "bandwidth_bytes_per_second": exact(ceilings.bandwidth.get()),
        "threads": ceilings.threads,
    })
}

fn time(f: &mut Fields<'_>) -> Option<(TimedStep, Ceilings)> {
    let time = |value: &Value| value.as_f64().filter(|seconds| *seconds >= 0.0);
    let list = |value: &Value| value.as_array()?.iter().map(time).collect::<Option<Vec<f64>>>();
    let step = TimedStep {
        seconds: f.converted("seconds", "a time", time).unwrap_or_default(),
        waiting: f.converted("waiting_seconds", "a time", time).unwrap_or_default(),
        steps: f.count("timed_steps"),
        ops: f.converted("ops_seconds", "a list of times", list).unwrap_or_default(),
    };
    let positive = |value: &Value| value.as_f64().filter(|rate| *rate > 0.0);
    let mut rate = |key| f.converted(key, "a positive number", positive);
    let rates = (rate("fp32_flop_per_second"), rate("products_flop_per_second"), rate("bandwidth_bytes_per_second"));
    let threads = f.count("threads");
    let (Some(fp32), Some(products), Some(bandwidth)) = rates else { return None };
    let ceilings = Ceilings {
        fp32: FlopPerSecond::new(fp32).ok()?,
        products: FlopPerSecond::new(products).ok()?,
        bandwidth: BytesPerSecond::new(bandwidth).ok()?,
        threads,
    };
    Some((step, ceilings))
}
