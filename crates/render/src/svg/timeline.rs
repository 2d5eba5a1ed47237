//! The memory of one step as a drawing: live bytes by bucket, stacked, over the ops of the step.

use plan::report::{Axis, Sample, StepTimeline};
use units::{Bytes, Seconds};

use super::canvas::Canvas;
use super::style::{bucket_class, prepare};
use crate::format::{Units, memory};

const HEIGHT: f64 = 420.0;
const LEFT: f64 = 76.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 34.0;

/// Columns of pixels: each shows the highest of its moments, so that no peak is lost however many there are.
const COLUMNS: usize = 900;

/// The drawing.
pub(super) fn draw(timeline: &StepTimeline, width: f64, units: Units) -> Canvas {
    let end = timeline.end().max(f64::MIN_POSITIVE);
    let highest = timeline.samples.get(timeline.peak).map_or(0, Sample::total);
    // The limit of the device is drawn where the step comes near it.
    let limit = timeline.capacity.filter(|capacity| *capacity <= highest.saturating_mul(3) / 2);
    let top = (highest.max(limit.unwrap_or(0)) as f64 * 1.05).max(1.0);
    let x = |at: f64| LEFT + at / end * (width - LEFT - RIGHT);
    let y = |bytes: f64| HEIGHT - BOTTOM - bytes / top * (HEIGHT - TOP - BOTTOM);
    let peak = memory(Bytes(highest), units);
    let title = format!("Memory of one device over one step, {peak} at its peak");
    let description = format!(
        "Stacked areas of live bytes: {}. Stretches: {}. The peak is in the {}.",
        timeline.buckets.join(", "),
        timeline.stretches.iter().map(|stretch| stretch.name.as_str()).collect::<Vec<_>>().join(", "),
        timeline.peak_at
    );
    let mut canvas = Canvas::new(width, HEIGHT, "timeline", &title, &description);
    for tick in ticks(top) {
        canvas.line("grid", (LEFT, y(tick)), (width - RIGHT, y(tick)));
        canvas.text("end", (LEFT - 8.0, y(tick) + 4.0), &memory(Bytes(tick as u64), units));
    }
    let columns = columns(timeline, end);
    let mut below = vec![0u64; columns.len()];
    for (number, bucket) in timeline.buckets.iter().enumerate() {
        let above: Vec<u64> = columns.iter().zip(&below).map(|((_, sample), low)| low + sample.bytes[number]).collect();
        // A moment lasts until the next, so the edge has steps.
        let edge = |heights: &[u64]| -> Vec<(f64, f64)> {
            let next = columns.iter().skip(1).map(|(at, _)| *at).chain([end]);
            let steps = columns.iter().zip(next).zip(heights);
            steps.flat_map(|(((at, _), next), bytes)| [*at, next].map(|at| (x(at), y(*bytes as f64)))).collect()
        };
        let (mut outline, mut back) = (edge(&above), edge(&below));
        back.reverse();
        outline.append(&mut back);
        let class = bucket_class(bucket, number);
        let hatched = prepare(&mut canvas, class);
        canvas.area(&format!("b{class}"), hatched, outline, bucket);
        below = above;
    }
    for stretch in &timeline.stretches {
        canvas.line("mark", (x(stretch.start), TOP - 22.0), (x(stretch.start), HEIGHT - BOTTOM));
        canvas.text("", (x(stretch.start) + 5.0, TOP - 12.0), &stretch.name);
    }
    if let Some(limit) = limit {
        canvas.line("limit", (LEFT, y(limit as f64)), (width - RIGHT, y(limit as f64)));
        let words = format!("{} of the device", memory(Bytes(limit), units));
        canvas.text("end", (width - RIGHT, y(limit as f64) - 5.0), &words);
    }
    if let Some(sample) = timeline.samples.get(timeline.peak) {
        let at = (x(timeline.at(sample)), y(highest as f64));
        canvas.dot("peak", at, 4.0, &format!("peak {peak}"));
        let side = if at.0 > width / 2.0 { ("end", at.0 - 9.0) } else { ("", at.0 + 9.0) };
        canvas.text(side.0, (side.1, at.1 + 4.0), &format!("peak {peak}"));
    }
    let (first, last) = match timeline.axis {
        Axis::Ops => ("op 1".to_owned(), format!("{} ops", timeline.slices.len())),
        Axis::Seconds => {
            let whole = Seconds::new(end).map_or_else(|_| String::new(), |time| time.to_string());
            ("0 s".to_owned(), format!("{whole}, at the least (roofline)"))
        }
    };
    canvas.text("", (LEFT, HEIGHT - 12.0), &first);
    canvas.text("end", (width - RIGHT, HEIGHT - 12.0), &last);
    canvas
}

/// Where column `x` of the drawing lies on the axis.
pub(super) fn place(timeline: &StepTimeline, x: f64, width: f64) -> f64 {
    ((x - LEFT) / (width - LEFT - RIGHT)).clamp(0.0, 1.0) * timeline.end()
}

/// The highest moment of each column of pixels, in order.
fn columns(timeline: &StepTimeline, end: f64) -> Vec<(f64, &Sample)> {
    let column = |at: f64| ((at / end * COLUMNS as f64) as usize).min(COLUMNS - 1);
    let mut out: Vec<(f64, &Sample)> = Vec::new();
    for sample in &timeline.samples {
        let at = timeline.at(sample);
        match out.last_mut() {
            Some((first, highest)) if column(*first) == column(at) => {
                if sample.total() > highest.total() {
                    *highest = sample;
                }
            }
            _ => out.push((at, sample)),
        }
    }
    out
}

/// Round numbers of bytes below `top`: four to eight of them.
fn ticks(top: f64) -> impl Iterator<Item = f64> {
    let mut step = 1.0;
    while top / step > 8.0 {
        step *= 2.0;
    }
    (0..=8).map(move |i| f64::from(i) * step).take_while(move |tick| *tick <= top)
}
