//! One moment of a step in words, for who points at its drawing.

use plan::report::StepTimeline;
use units::Bytes;

use crate::format::{Units, memory};
use crate::svg::timeline_place;

/// What is live at column `x` of the drawing of a step that is `width` wide: the op that runs, the bytes of all buckets and of
/// each, the largest first. Empty where nothing is drawn.
pub fn moment(timeline: &StepTimeline, x: f64, width: f64, units: Units) -> String {
    let place = timeline_place(timeline, x, width);
    let (Some(sample), Some(slice)) = (timeline.sample_at(place), timeline.slice_at(place)) else {
        return String::new();
    };
    let bytes = |bytes: u64| memory(Bytes(bytes), units);
    let mut buckets: Vec<(&str, u64)> =
        timeline.buckets.iter().map(String::as_str).zip(sample.bytes.iter().copied()).filter(|one| one.1 > 0).collect();
    buckets.sort_by_key(|one| std::cmp::Reverse(one.1));
    let parts: Vec<String> = buckets.iter().map(|(name, size)| format!("{name} {}", bytes(*size))).collect();
    let module = match timeline.module(slice) {
        "" => String::new(),
        path => format!(" in {path}"),
    };
    format!("{}, {}{module}: {} = {}", slice.phase, slice.name, bytes(sample.total()), parts.join(" + "))
}

#[cfg(test)]
mod tests {
    use plan::report::{Sample, Slice};

    use super::*;

    #[test]
    fn the_largest_bucket_comes_first_and_empty_ones_not_at_all() {
        let slice = Slice { name: "matmul", module: 0, phase: "forward", start: 0.0, end: 1.0, flop: 0, traffic: 0 };
        let timeline = StepTimeline {
            buckets: ["parameters", "inputs", "activations"].map(str::to_owned).into(),
            slices: vec![slice],
            modules: vec!["layers.0".to_owned()],
            samples: vec![Sample::new(0, &[1 << 30, 0, 3 << 30])],
            ..StepTimeline::default()
        };
        let said = "forward, matmul in layers.0: 4.00 GiB = activations 3.00 GiB + parameters 1.00 GiB";
        assert_eq!(moment(&timeline, 300.0, 600.0, Units::Iec), said);
        assert_eq!(moment(&StepTimeline::default(), 300.0, 600.0, Units::Iec), "");
    }
}
