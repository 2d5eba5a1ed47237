//! The step as a file for trace viewers (the trace event format of Chrome, which Perfetto reads too): stretches, modules and
//! ops as slices, live bytes by bucket as a counter. A microsecond is one of the step's own, or an op where no device is named.

use plan::report::{Axis, Report, Slice, StepTimeline, Value};

use crate::json::compact;

/// Rows of slices of the one process.
const STRETCHES: u64 = 1;
const OPS: u64 = 2;

/// The report as such a file; `None` where it has no timeline.
pub fn trace(report: &Report) -> Option<String> {
    let timeline = report.timeline().filter(|timeline| !timeline.samples.is_empty())?;
    let mut events = vec![
        named("process_name", 0, &report.command),
        named("thread_name", STRETCHES, "step"),
        named("thread_name", OPS, "modules and ops"),
    ];
    let scale = if timeline.axis == Axis::Seconds { 1e6 } else { 1.0 };
    for stretch in &timeline.stretches {
        events.push(slice(&stretch.name, STRETCHES, stretch.start * scale, stretch.end * scale));
    }
    modules(timeline, scale, &mut events);
    for op in &timeline.slices {
        let args = Value::map()
            .with("module", timeline.module(op))
            .with("phase", op.phase)
            .with("matmul_flop", op.flop)
            .with("traffic_bytes", op.traffic);
        events.push(slice(op.name, OPS, op.start * scale, op.end * scale).with("cat", op.phase).with("args", args));
    }
    let mut last = None;
    for sample in &timeline.samples {
        if last == Some(&sample.bytes) {
            continue;
        }
        let bytes = timeline.buckets.iter().cloned().zip(sample.bytes.iter().map(|bytes| Value::from(*bytes)));
        let counter = Value::map()
            .with("name", "live bytes")
            .with("ph", "C")
            .with("pid", 1u64)
            .with("ts", timeline.at(sample) * scale)
            .with("args", Value::Map(bytes.collect()));
        events.push(counter);
        last = Some(&sample.bytes);
    }
    let unit = if timeline.axis == Axis::Seconds { "predicted time (roofline)" } else { "ops: 1 us is one op" };
    let other = Value::map().with("axis", unit).with("schema", "napkin.trace/1");
    let document =
        Value::map().with("traceEvents", Value::List(events)).with("displayTimeUnit", "ms").with("otherData", other);
    Some(compact(&document))
}

/// Modules as slices around the ops that run in them one after another.
fn modules(timeline: &StepTimeline, scale: f64, events: &mut Vec<Value>) {
    let parts = |op: &Slice| -> Vec<String> {
        let path = timeline.module(op).split('.').filter(|part| !part.is_empty());
        std::iter::once(op.phase).chain(path).map(str::to_owned).collect()
    };
    let mut open: Vec<(String, f64)> = Vec::new();
    let mut close = |open: &mut Vec<(String, f64)>, depth: usize, end: f64| {
        while open.len() > depth {
            if let Some((name, start)) = open.pop() {
                events.push(slice(&name, OPS, start * scale, end * scale));
            }
        }
    };
    for op in &timeline.slices {
        let path = parts(op);
        let shared = open.iter().zip(&path).take_while(|((name, _), part)| name == *part).count();
        close(&mut open, shared, op.start);
        open.extend(path.into_iter().skip(shared).map(|part| (part, op.start)));
    }
    close(&mut open, 0, timeline.end());
}

fn slice(name: &str, thread: u64, start: f64, end: f64) -> Value {
    Value::map()
        .with("name", name)
        .with("ph", "X")
        .with("pid", 1u64)
        .with("tid", thread)
        .with("ts", start)
        .with("dur", end - start)
}

fn named(what: &str, thread: u64, name: &str) -> Value {
    let args = Value::map().with("name", name);
    Value::map().with("name", what).with("ph", "M").with("pid", 1u64).with("tid", thread).with("args", args)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Units;
    use plan::report::{Chart, Sample, Stretch};
    use serde_json::Value as Json;

    fn report() -> Report {
        let op = |name, module, phase, start: f64| Slice {
            name,
            module,
            phase,
            start,
            end: start + 1.0,
            flop: 6,
            traffic: 12,
        };
        let mut report = Report::new("ledger", "3 B");
        report.command = "napkin ledger a --set b=<script>".to_owned();
        report.charts.push(Chart::Timeline(StepTimeline {
            buckets: vec!["parameters".to_owned(), "activations".to_owned()],
            stretches: vec![
                Stretch { name: "forward".to_owned(), start: 0.0, end: 2.0, last_sample: None },
                Stretch { name: "backward".to_owned(), start: 2.0, end: 3.0, last_sample: None },
            ],
            slices: vec![
                op("linear", 1, "forward", 0.0),
                op("add", 0, "forward", 1.0),
                op("matmul", 0, "backward", 2.0),
            ],
            modules: vec!["model".to_owned(), "model.layers.0".to_owned()],
            first_op: 10,
            samples: vec![Sample::new(10, &[1, 0]), Sample::new(11, &[1, 2]), Sample::new(13, &[1, 0])],
            peak: 1,
            peak_at: "forward, add in model".to_owned(),
            capacity: Some(4),
            ..StepTimeline::default()
        }));
        report
    }

    #[test]
    fn slices_nest_and_counters_add_up() {
        let document: Json = serde_json::from_str(&trace(&report()).unwrap()).unwrap();
        let events = document["traceEvents"].as_array().unwrap();
        let of = |kind: &str| events.iter().filter(|event| event["ph"] == kind).collect::<Vec<_>>();
        let spans: Vec<(String, f64, f64)> = of("X")
            .iter()
            .filter(|event| event["tid"] == 2)
            .map(|event| {
                let start = event["ts"].as_f64().unwrap();
                (event["name"].as_str().unwrap().to_owned(), start, start + event["dur"].as_f64().unwrap())
            })
            .collect();
        for (name, start, end) in [("forward", 0.0, 2.0), ("model", 0.0, 2.0), ("layers", 0.0, 1.0), ("0", 0.0, 1.0)] {
            assert!(spans.contains(&(name.to_owned(), start, end)), "{name}: {spans:?}");
        }
        // Two slices of a row are apart, or one is inside the other.
        for (_, a, b) in &spans {
            assert!(spans.iter().all(|(_, c, d)| b <= c || d <= a || (a <= c && d <= b) || (c <= a && b <= d)));
        }
        assert_eq!(of("C").len(), 3);
        assert_eq!(of("C")[1]["args"]["activations"], 2);
        assert_eq!(trace(&Report::new("time", "")), None);
    }

    #[test]
    fn a_page_needs_nothing_else_and_runs_nothing() {
        let page = crate::html(&report(), Units::Iec);
        for part in [
            "<title id=\"timeline-title\">Memory of one device over one step, 3 B at its peak",
            "prefers-color-scheme: dark",
            "forward, backward",
            "&lt;script&gt;",
            "4 B of the device",
        ] {
            assert!(page.contains(part), "{part} in {page}");
        }
        let outside = page.replace("http://www.w3.org/2000/svg", "");
        for part in ["http", "<script", "src=", "@import"] {
            assert!(!outside.contains(part), "{part} in {page}");
        }
        // Hatching is in the page itself.
        assert_eq!(page.matches("url(").count(), page.matches("url(#").count());
        assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
    }

    /// However many moments there are, none of the highest is lost.
    #[test]
    fn a_peak_of_one_moment_is_drawn() {
        let mut report = report();
        let Some(Chart::Timeline(timeline)) = report.charts.first_mut() else { panic!("a timeline") };
        let slice = timeline.slices[0].clone();
        timeline.slices =
            (0..50_000).map(|i| Slice { start: f64::from(i), end: f64::from(i + 1), ..slice.clone() }).collect();
        timeline.samples = (0..50_000).map(|i| Sample::new(10 + i, &[1, if i == 31_415 { 1000 } else { 1 }])).collect();
        timeline.peak = 31_415;
        let page = crate::html(&report, Units::Iec);
        assert!(page.len() < 200_000, "{}", page.len());
        // 5 % above the peak is the top of the drawing, which is 342 high: how far it is up there from what is around it, and back.
        let y = |bytes: f64| ((420.0 - 34.0 - bytes / (1001.0 * 1.05) * 342.0) * 10.0).round();
        let far = (y(2.0) - y(1001.0)) / 10.0;
        assert!(page.contains(&format!("v-{far}h")) && page.contains(&format!("v{far}h")), "{far}");
    }
}
