//! Kinds of op by FLOP per byte and the rate they reach at most, under the roof of a device; both axes are logarithmic.

use plan::report::Roofline;
use units::{FlopPerByte, FlopPerSecond};

use super::canvas::{Canvas, LETTER};

const HEIGHT: f64 = 380.0;
const LEFT: f64 = 86.0;
const RIGHT: f64 = 18.0;
const TOP: f64 = 24.0;
const BOTTOM: f64 = 40.0;

/// The drawing. A dot's area is its share of the least time of a step.
pub(super) fn draw(roofline: &Roofline, width: f64) -> Canvas {
    let ridge = roofline.ridge();
    let all = roofline.dots.iter().map(|dot| dot.intensity.get()).filter(|value| *value > 0.0);
    let (low, high) = all.fold((ridge, ridge), |(low, high), value| (low.min(value), high.max(value)));
    let (x0, x1) = ((low / 2.0).log10().floor(), (high * 2.0).log10().ceil());
    let top = roofline.peak.get().log10();
    let bottom = roofline.attainable(10f64.powf(x0)).log10().floor();
    let ceiling = top + 0.15;
    let x = |intensity: f64| LEFT + (intensity.log10() - x0) / (x1 - x0) * (width - LEFT - RIGHT);
    let y = |rate: f64| HEIGHT - BOTTOM - (rate.log10() - bottom) / (ceiling - bottom) * (HEIGHT - TOP - BOTTOM);
    let peak = roofline.peak.to_string();
    let title =
        format!("Roofline of {}: {peak} in {}, ridge at {ridge:.1} FLOP/B", roofline.device, roofline.arithmetic);
    let said: Vec<String> = roofline
        .dots
        .iter()
        .map(|dot| {
            let bound = if roofline.is_bound_by_peak(dot) { "by the peak" } else { "by memory" };
            format!("{} {}, bound {bound}", dot.name, dot.intensity)
        })
        .collect();
    let mut canvas = Canvas::new(width, HEIGHT, "roofline", &title, &format!("{}.", said.join("; ")));
    for power in (x0 as i32)..=(x1 as i32) {
        let at = x(10f64.powi(power));
        canvas.line("grid", (at, TOP), (at, HEIGHT - BOTTOM));
        canvas.text("middle", (at, HEIGHT - BOTTOM + 16.0), &plain(10f64.powi(power)));
    }
    canvas.text("end quiet", (width - RIGHT, HEIGHT - 6.0), "FLOP per byte");
    for power in (bottom as i32)..=(top.floor() as i32) {
        let at = y(10f64.powi(power));
        canvas.line("grid", (LEFT, at), (width - RIGHT, at));
        let rate = FlopPerSecond::new(10f64.powi(power)).unwrap_or_default();
        canvas.text("end", (LEFT - 8.0, at + 4.0), &rate.to_string());
    }
    let (start, end) = (10f64.powf(x0), 10f64.powf(x1));
    let roof = [start, ridge, end].map(|at| (x(at), y(roofline.attainable(at))));
    canvas.polyline("roof", roof);
    let limits = format!("{peak} in {} (dense), {}", roofline.arithmetic, roofline.bandwidth);
    canvas.text("bold", (LEFT, TOP - 10.0), &limits);
    let mut labels: Vec<(f64, f64)> = Vec::new();
    for (at, dot) in roofline.dots.iter().enumerate() {
        let intensity = dot.intensity.get();
        if intensity <= 0.0 {
            continue;
        }
        let place = (x(intensity), y(roofline.attainable(intensity)));
        let share = roofline.share(dot);
        let class = if roofline.is_bound_by_peak(dot) { "b1" } else { "b5" };
        let title = format!(
            "{}: {} FLOP, {}, at least {} ({})",
            dot.name,
            units::group_digits(dot.flop.get()),
            FlopPerByte::new(intensity).map(|ratio| ratio.to_string()).unwrap_or_default(),
            dot.time,
            units::percent(share)
        );
        canvas.dot(class, place, 4.0 + 18.0 * share.sqrt(), &title);
        // A name stands beside its dot where no other name is.
        let half = dot.name.len() as f64 * LETTER;
        let free = labels.iter().all(|(lx, ly)| (lx - place.0).abs() > half || (ly - place.1).abs() > 14.0);
        if free && at < MOST_LABELS {
            labels.push(place);
            let side =
                if place.0 + half + 12.0 > width - RIGHT { ("end", place.0 - 10.0) } else { ("", place.0 + 10.0) };
            canvas.text(side.0, (side.1, place.1 + 22.0), &dot.name);
        }
    }
    canvas
}

/// Names that are written: those that take longest.
const MOST_LABELS: usize = 14;

fn plain(value: f64) -> String {
    if value >= 1.0 { units::group_digits(value as u128) } else { format!("{value}") }
}
