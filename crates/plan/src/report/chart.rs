//! What of an answer is drawn: plain data, in base units.

use units::{Bytes, BytesPerSecond, FlopPerByte, FlopPerSecond, Flops, Seconds};

use super::{Cell, StepTimeline};

/// One drawing.
#[derive(Clone, Debug, PartialEq)]
pub enum Chart {
    /// Memory of one device by bucket, in a bar, against what the device has.
    Bar(Stack),
    /// Memory over one step.
    Timeline(StepTimeline),
    /// Shares of a tree, as indented bars.
    Tree(Tree),
    /// Kinds of op by the work they do for each byte they move.
    Roofline(Roofline),
    /// One quantity over two degrees of a layout.
    Heat(Heat),
    /// Time against a number of devices.
    Curve(Curve),
    /// Bits of numbers in one or more formats.
    Bits(Bits),
}

impl Chart {
    /// A name that is unique in a report and usable in file names.
    pub const fn id(&self) -> &'static str {
        match self {
            Self::Bar(_) => "ledger",
            Self::Timeline(_) => "timeline",
            Self::Tree(_) => "flop-tree",
            Self::Roofline(_) => "roofline",
            Self::Heat(_) => "layouts",
            Self::Curve(_) => "time",
            Self::Bits(_) => "bits",
        }
    }
}

/// Memory of one device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stack {
    /// Buckets from left to right, each with its bytes; they sum to the total.
    pub segments: Vec<(String, Bytes)>,
    /// Memory of the device.
    pub capacity: Option<Bytes>,
}

impl Stack {
    /// Bytes of all segments.
    pub fn total(&self) -> Bytes {
        self.segments.iter().map(|(_, bytes)| *bytes).sum()
    }

    /// The share of a segment of so many bytes.
    pub fn share(&self, bytes: Bytes) -> f64 {
        bytes.as_f64() / self.total().as_f64().max(1.0)
    }
}

/// A tree whose branches share a whole.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tree {
    /// What is shared, in words: `FLOP of a step by module`.
    pub title: String,
    /// Branches, each before those under it.
    pub branches: Vec<Branch>,
}

/// A branch of a [`Tree`].
#[derive(Clone, Debug, PartialEq)]
pub struct Branch {
    /// Level; the first is 0.
    pub level: u8,
    /// Its name.
    pub name: String,
    /// Its size.
    pub size: Cell,
    /// Its share of the whole, from 0 to 1.
    pub share: f64,
}

/// What a device can do, and what ops ask of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Roofline {
    /// The device.
    pub device: String,
    /// Arithmetic of the peak.
    pub arithmetic: String,
    /// Dense peak.
    pub peak: FlopPerSecond,
    /// Bandwidth of its memory.
    pub bandwidth: BytesPerSecond,
    /// Kinds of op.
    pub dots: Vec<Dot>,
}

impl Roofline {
    /// FLOP per byte from which on the peak is the limit.
    pub fn ridge(&self) -> f64 {
        self.peak.get() / self.bandwidth.get()
    }

    /// The rate that an op of this intensity reaches at most, in FLOP per second.
    pub fn attainable(&self, intensity: f64) -> f64 {
        (intensity * self.bandwidth.get()).min(self.peak.get())
    }

    /// Whether the peak, not the memory, is the limit of an op.
    pub fn is_bound_by_peak(&self, dot: &Dot) -> bool {
        dot.intensity.get() >= self.ridge()
    }

    /// The share of an op of the least time of all.
    pub fn share(&self, dot: &Dot) -> f64 {
        let whole: f64 = self.dots.iter().map(|dot| dot.time.get()).sum();
        if whole > 0.0 { dot.time.get() / whole } else { 0.0 }
    }
}

/// A kind of op in a [`Roofline`].
#[derive(Clone, Debug, PartialEq)]
pub struct Dot {
    /// Its name.
    pub name: String,
    /// FLOP of all such ops of a step.
    pub flop: Flops,
    /// FLOP for each byte read or written.
    pub intensity: FlopPerByte,
    /// The least time that all of them take.
    pub time: Seconds,
}

/// One quantity over two degrees.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Heat {
    /// What is shown, in words: `best MFU`.
    pub title: String,
    /// Name of the degree from left to right.
    pub x: String,
    /// Name of the degree from top to bottom.
    pub y: String,
    /// Values of `x`.
    pub columns: Vec<u64>,
    /// Values of `y`.
    pub rows: Vec<u64>,
    /// Row by row.
    pub cells: Vec<HeatCell>,
}

/// A cell of a [`Heat`].
#[derive(Clone, Debug, Default, PartialEq)]
pub enum HeatCell {
    /// No legal layout.
    #[default]
    None,
    /// None that fits.
    TooLarge,
    /// The best share, from 0 to 1, and which layout has it.
    Best {
        /// The share.
        share: f64,
        /// The layout, in words.
        layout: String,
    },
}

/// Time against devices.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Curve {
    /// What is shown, in words.
    pub title: String,
    /// Points of each line, by devices: its name, then devices and seconds.
    pub lines: Vec<(String, Vec<(u64, Seconds)>)>,
    /// The number of devices that is asked for.
    pub at: u64,
}

/// Bits of numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bits {
    /// One strip for each format.
    pub strips: Vec<Strip>,
}

/// The bits of a number in one format.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Strip {
    /// The format.
    pub format: String,
    /// Its value, in words.
    pub value: String,
    /// The bits, the sign first.
    pub bits: Vec<bool>,
    /// How many of them are sign bits and exponent bits; the rest are the fraction.
    pub sign: usize,
    /// See `sign`.
    pub exponent: usize,
}
