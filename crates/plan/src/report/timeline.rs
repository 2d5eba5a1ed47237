//! Bytes and ops of one step, for charts and trace viewers.

/// What a moment of a [`StepTimeline`] is measured in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Axis {
    /// Ops, one after another.
    #[default]
    Ops,
    /// Seconds, each op taking the longer of its arithmetic at the dense peak and its bytes at the bandwidth.
    Seconds,
}

/// A named stretch of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Stretch {
    /// In words: `forward`, `backward`, `optimizer step`.
    pub name: String,
    /// Where it begins.
    pub start: f64,
    /// Where it ends.
    pub end: f64,
    /// Index of its last moment; none if nothing changed in it or before it.
    pub last_sample: Option<usize>,
}

/// An op of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Slice {
    /// Its name.
    pub name: &'static str,
    /// Number of its module in [`StepTimeline::modules`].
    pub module: u32,
    /// Part of the step it belongs to.
    pub phase: &'static str,
    /// Where it begins.
    pub start: f64,
    /// Where it ends.
    pub end: f64,
    /// Its FLOP in contractions.
    pub flop: u128,
    /// Bytes read and written.
    pub traffic: u64,
}

/// Most buckets of a timeline.
pub const BUCKETS: usize = 12;

/// What is live after something was allocated, freed or handed on. There may be a million of them, so they hold no list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Op at which it is so.
    pub op: u32,
    /// Bytes of each bucket of the timeline; behind them 0.
    pub bytes: [u64; BUCKETS],
}

impl Sample {
    /// The first buckets; those that are not given are empty.
    pub fn new(op: u32, first: &[u64]) -> Self {
        let mut bytes = [0; BUCKETS];
        for (place, given) in bytes.iter_mut().zip(first) {
            *place = *given;
        }
        Self { op, bytes }
    }

    /// Bytes of all buckets.
    pub fn total(&self) -> u64 {
        self.bytes.iter().sum()
    }
}

/// One step of the steady state on one device.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepTimeline {
    /// Unit of `start` and `end`.
    pub axis: Axis,
    /// Buckets, those that change least first.
    pub buckets: Vec<String>,
    /// Stretches, in order.
    pub stretches: Vec<Stretch>,
    /// Ops, in order; the first has the number `first_op`.
    pub slices: Vec<Slice>,
    /// Paths of modules; that of the root is empty.
    pub modules: Vec<String>,
    /// Number of the first op.
    pub first_op: u32,
    /// Moments, in order.
    pub samples: Vec<Sample>,
    /// Index of the highest moment.
    pub peak: usize,
    /// Where that is, in words.
    pub peak_at: String,
    /// Memory of the device, if that is known.
    pub capacity: Option<u64>,
}

impl StepTimeline {
    /// Where a moment lies on the axis.
    pub fn at(&self, sample: &Sample) -> f64 {
        let index = sample.op.saturating_sub(self.first_op) as usize;
        self.slices.get(index).map_or_else(|| self.end(), |slice| slice.start)
    }

    /// The module of an op; empty for the root.
    pub fn module(&self, slice: &Slice) -> &str {
        self.modules.get(slice.module as usize).map_or("", String::as_str)
    }

    /// Where the step ends.
    pub fn end(&self) -> f64 {
        self.slices.last().map_or(0.0, |slice| slice.end)
    }

    /// The moment that holds at a place of the axis.
    pub fn sample_at(&self, place: f64) -> Option<&Sample> {
        let after = self.samples.partition_point(|sample| self.at(sample) <= place);
        self.samples.get(after.saturating_sub(1))
    }

    /// The op that runs at a place of the axis.
    pub fn slice_at(&self, place: f64) -> Option<&Slice> {
        self.slices.get(self.slices.partition_point(|slice| slice.end <= place)).or(self.slices.last())
    }

    /// The part between two places of the axis, in whole ops, as a timeline that begins at 0; its peak is the highest moment of
    /// the part. `None` where no op lies between them.
    pub fn part(&self, from: f64, to: f64) -> Option<Self> {
        let first = self.slices.partition_point(|slice| slice.end <= from);
        let end = self.slices.partition_point(|slice| slice.start < to);
        let slices = self.slices.get(first..end).filter(|slices| !slices.is_empty())?;
        let start = slices[0].start;
        let until = slices[slices.len() - 1].end;
        let first_op = self.first_op + first as u32;
        let end_op = self.first_op + end as u32;
        let begins = self.samples.partition_point(|sample| sample.op < first_op);
        let ends = self.samples.partition_point(|sample| sample.op < end_op);
        // What held before the part holds at its start.
        let before = begins.checked_sub(1).map(|at| Sample { op: first_op, ..self.samples[at] });
        let kept = usize::from(before.is_some());
        let samples: Vec<Sample> = before.into_iter().chain(self.samples[begins..ends].iter().copied()).collect();
        let peak = (0..samples.len()).max_by_key(|&at| (samples[at].total(), std::cmp::Reverse(at))).unwrap_or(0);
        let index = |at: usize| Some((at + kept).checked_sub(begins)?.min(samples.len().checked_sub(1)?));
        let stretches = self.stretches.iter().filter(|stretch| stretch.start < until && stretch.end > start);
        let stretches = stretches.map(|stretch| Stretch {
            name: stretch.name.clone(),
            start: stretch.start.max(start) - start,
            end: stretch.end.min(until) - start,
            last_sample: stretch.last_sample.and_then(index),
        });
        let slices = slices.iter().cloned();
        let slices = slices.map(|slice| Slice { start: slice.start - start, end: slice.end - start, ..slice });
        let mut part = Self {
            axis: self.axis,
            buckets: self.buckets.clone(),
            stretches: stretches.collect(),
            slices: slices.collect(),
            modules: self.modules.clone(),
            first_op,
            samples,
            peak,
            peak_at: String::new(),
            capacity: self.capacity,
        };
        let highest = part.samples.get(peak).map_or(0.0, |sample| part.at(sample));
        part.peak_at = part
            .stretches
            .iter()
            .rev()
            .find(|one| one.start <= highest)
            .map_or_else(String::new, |one| one.name.clone());
        Some(part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeline() -> StepTimeline {
        let slice = |at: u32| Slice {
            name: "op",
            module: 0,
            phase: "forward",
            start: f64::from(at),
            end: f64::from(at + 1),
            flop: 0,
            traffic: 0,
        };
        let sample = |op: u32, bytes: u64| Sample::new(op, &[bytes]);
        let stretch = |name: &str, start: f64, end: f64, last| Stretch {
            name: name.to_owned(),
            start,
            end,
            last_sample: Some(last),
        };
        StepTimeline {
            buckets: vec!["activations".to_owned()],
            stretches: vec![stretch("forward", 0.0, 4.0, 2), stretch("backward", 4.0, 8.0, 4)],
            slices: (0..8).map(slice).collect(),
            first_op: 10,
            samples: vec![sample(10, 1), sample(12, 5), sample(13, 9), sample(14, 3), sample(16, 2)],
            peak: 2,
            ..StepTimeline::default()
        }
    }

    #[test]
    fn a_part_has_what_holds_in_it_and_the_highest_of_that() {
        let whole = timeline();
        let part = whole.part(4.0, 6.5).unwrap();
        let seen: Vec<(u32, u64)> = part.samples.iter().map(|sample| (sample.op, sample.total())).collect();
        // 9 bytes until op 14, which is the first of the part.
        assert_eq!(seen, [(14, 9), (14, 3), (16, 2)]);
        assert_eq!((part.first_op, part.slices.len(), part.end(), part.peak), (14, 3, 3.0, 0));
        let stretches: Vec<_> = part.stretches.iter().map(|one| (one.name.as_str(), one.start, one.end)).collect();
        assert_eq!(stretches, [("backward", 0.0, 3.0)]);
        assert_eq!(part.peak_at, "backward");
        assert_eq!(whole.part(0.0, 8.0).unwrap().samples, whole.samples);
        assert!(whole.part(9.0, 10.0).is_none() && whole.part(f64::NAN, f64::NAN).is_none());
    }

    #[test]
    fn a_place_has_its_moment_and_its_op() {
        let whole = timeline();
        let total = |place| whole.sample_at(place).map(Sample::total);
        assert_eq!([0.0, 1.9, 2.0, 3.5, 100.0].map(total), [Some(1), Some(1), Some(5), Some(9), Some(2)]);
        assert_eq!(whole.slice_at(3.5).map(|slice| slice.start), Some(3.0));
        assert_eq!(whole.slice_at(99.0).map(|slice| slice.start), Some(7.0));
        assert!(StepTimeline::default().sample_at(0.0).is_none());
    }
}
