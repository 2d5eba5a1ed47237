//! The memory of one step as a drawing: live bytes by bucket, stacked, over the ops of the step.

use plan::report::{Axis, Sample, StepTimeline};
use units::{Bytes, Seconds};

use super::canvas::{Canvas, LETTER};
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
    // From the top of the stack down, each to the ground: what is below is drawn over it, and an edge is drawn once.
    let mut above: Vec<u64> = columns.iter().map(|(_, sample)| sample.total()).collect();
    for (number, bucket) in timeline.buckets.iter().enumerate().rev() {
        // A moment lasts until the next, so the edge has steps.
        let next = columns.iter().skip(1).map(|(at, _)| *at).chain([end]);
        let steps = columns.iter().zip(next).zip(&above);
        let edge = steps.flat_map(|(((at, _), next), bytes)| [*at, next].map(|at| (x(at), y(*bytes as f64))));
        let ground = [end, columns.first().map_or(0.0, |(at, _)| *at)].map(|at| (x(at), y(0.0)));
        let class = bucket_class(bucket, number);
        let hatched = prepare(&mut canvas, class);
        canvas.area(&format!("b{class}"), hatched, edge.chain(ground), bucket);
        for (bytes, (_, sample)) in above.iter_mut().zip(&columns) {
            *bytes -= sample.bytes[number];
        }
    }
    // Where the words of the stretches before end.
    let mut taken = 0.0;
    for stretch in &timeline.stretches {
        let start = x(stretch.start);
        canvas.line("mark", (start, TOP - 22.0), (start, HEIGHT - BOTTOM));
        // Behind its line, or in front of it at the right edge; nowhere where there is no room, since the table has it too.
        let size = stretch.name.chars().count() as f64 * LETTER;
        let behind = start + 5.0 > taken && start + 5.0 + size <= width;
        if behind {
            canvas.text("", (start + 5.0, TOP - 12.0), &stretch.name);
            taken = start + 5.0 + size;
        } else if start - 5.0 - size > taken {
            canvas.text("end", (start - 5.0, TOP - 12.0), &stretch.name);
            taken = start;
        }
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
    if (first.chars().count() + last.chars().count() + 2) as f64 * LETTER <= width - LEFT - RIGHT {
        canvas.text("", (LEFT, HEIGHT - 12.0), &first);
    }
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

#[cfg(test)]
mod tests {
    use plan::report::{Slice, Stretch};

    use super::*;

    /// Row, left and right edge of all words of a drawing, by the width that a letter is taken to have.
    fn words(drawing: &str) -> Vec<(f64, f64, f64)> {
        let attribute = |text: &str, name: &str| -> f64 {
            text.split_once(&format!(" {name}=\"")).unwrap().1.split('"').next().unwrap().parse().unwrap()
        };
        drawing
            .split("<text ")
            .skip(1)
            .map(|text| {
                let (opening, rest) = text.split_once('>').unwrap();
                let size = rest.split('<').next().unwrap().chars().count() as f64 * LETTER;
                let (x, y) = (attribute(opening, "x"), attribute(opening, "y"));
                if opening.starts_with("class=\"end\"") { (y, x - size, x) } else { (y, x, x + size) }
            })
            .collect()
    }

    #[test]
    fn words_stand_apart_at_every_width() {
        let slice = |at: u32| Slice {
            name: "op",
            module: 0,
            phase: "forward",
            start: f64::from(at) * 1e-3,
            end: f64::from(at + 1) * 1e-3,
            flop: 0,
            traffic: 0,
        };
        let stretch =
            |name: &str, start: f64, end: f64| Stretch { name: name.to_owned(), start, end, last_sample: Some(0) };
        let timeline = StepTimeline {
            axis: Axis::Seconds,
            buckets: vec!["parameters".to_owned()],
            stretches: vec![
                stretch("forward", 0.0, 0.05),
                stretch("backward", 0.05, 0.9),
                stretch("optimizer step", 0.9, 1.0),
            ],
            slices: (0..1000).map(slice).collect(),
            samples: vec![Sample::new(0, &[5 << 30]), Sample::new(500, &[7 << 30])],
            peak: 1,
            ..StepTimeline::default()
        };
        for width in (280..=1280).step_by(20).map(f64::from) {
            let drawn = draw(&timeline, width, Units::Iec).finish();
            let words = words(&drawn);
            for (i, a) in words.iter().enumerate() {
                assert!(a.1 >= 0.0 && a.2 <= width + LETTER, "{width}: {a:?}");
                let apart = |b: &(f64, f64, f64)| (a.0 - b.0).abs() > 8.0 || a.2 <= b.1 || b.2 <= a.1;
                assert!(words[i + 1..].iter().all(apart), "{width}: {words:?}");
            }
            assert!(drawn.contains("forward") && drawn.contains("roofline"), "{width}");
        }
    }
}
