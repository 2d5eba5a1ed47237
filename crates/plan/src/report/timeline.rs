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
    /// Path of its module; empty for the root.
    pub module: String,
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

/// What is live after something was allocated, freed or handed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Op at which it is so.
    pub op: u32,
    /// Bytes of each bucket.
    pub bytes: Vec<u64>,
}

impl Sample {
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

    /// Where the step ends.
    pub fn end(&self) -> f64 {
        self.slices.last().map_or(0.0, |slice| slice.end)
    }
}
