//! Random numbers as a function of position: a counter-based generator with separate streams.
//!
//! The number of element `i` of call site `site` depends on the seed, the stream, `site` and `i`, and on nothing
//! else: not on how many numbers were drawn before, on the order of evaluation or on the number of threads. So
//! recomputation in backward redraws the same dropout mask from a saved site number, and a sharded initialisation
//! equals the unsharded one. The numbers are also the same on every platform, because the elementary functions are
//! written out here.
//!
//! The generator is Philox-4x32 with 10 rounds, from J. K. Salmon, M. A. Moraes, R. O. Dror and D. E. Shaw, "Parallel
//! random numbers: as easy as 1, 2, 3", SC 2011. It is not for secrets.

mod math;

use std::error::Error;
use std::fmt;
use std::num::NonZeroU64;

/// Multipliers of the two halves of a round, and the Weyl steps of the key (golden ratio, square root of 3).
const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const KEY_STEPS: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// One block of Philox-4x32-10: 128 random bits for a 128-bit counter under a 64-bit key, least significant words
/// first.
pub const fn philox4x32_10(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    let mut round = 0;
    while round < 10 {
        let left = MULTIPLIERS[0] as u64 * counter[0] as u64;
        let right = MULTIPLIERS[1] as u64 * counter[2] as u64;
        counter = [
            (right >> 32) as u32 ^ counter[1] ^ key[0],
            right as u32,
            (left >> 32) as u32 ^ counter[3] ^ key[1],
            left as u32,
        ];
        key = [key[0].wrapping_add(KEY_STEPS[0]), key[1].wrapping_add(KEY_STEPS[1])];
        round += 1;
    }
    counter
}

/// What random numbers are for. Streams of one seed are independent, so that switching dropout off leaves the
/// initial weights and the order of the data as they were.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Stream {
    /// Initial values of parameters.
    Init,
    /// Dropout masks.
    Dropout,
    /// Order of the training data.
    DataOrder,
    /// Choice of generated tokens.
    Sampling,
    /// Rounding of parameters that is right in the mean.
    Rounding,
}

impl Stream {
    /// Part of the saved format: a number is never reused for another purpose.
    const fn number(self) -> u32 {
        match self {
            Self::Init => 0,
            Self::Dropout => 1,
            Self::DataOrder => 2,
            Self::Sampling => 3,
            Self::Rounding => 4,
        }
    }
}

/// The random numbers of one seed and stream. Stateless: every method takes the position.
///
/// A `site` names one use: the number of a random op in the order of execution, or a hash of a parameter's name.
/// Numbers of different kinds (uniform, normal) drawn at the *same* site and element come from the same bits, so give
/// each use its own site.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Rng {
    seed: u64,
    stream: Stream,
    key: [u32; 2],
}

impl Rng {
    /// The generator of `seed` for one purpose.
    pub const fn new(seed: u64, stream: Stream) -> Self {
        // The stream goes into the key, by one block under the seed, because sites and elements fill the counter.
        let block = philox4x32_10([stream.number(), 0, 0, 0], [seed as u32, (seed >> 32) as u32]);
        Self { seed, stream, key: [block[0], block[1]] }
    }

    /// The generator of the same seed for another purpose.
    pub const fn for_stream(&self, stream: Stream) -> Self {
        Self::new(self.seed, stream)
    }

    /// The seed as given.
    pub const fn seed(&self) -> u64 {
        self.seed
    }

    /// The purpose as given.
    pub const fn stream(&self) -> Stream {
        self.stream
    }

    /// 128 random bits.
    const fn block(&self, site: u64, block: u64) -> [u32; 4] {
        philox4x32_10([block as u32, (block >> 32) as u32, site as u32, (site >> 32) as u32], self.key)
    }

    /// 32 random bits for element `i`; four elements share a block.
    pub const fn bits32(&self, site: u64, i: u64) -> u32 {
        self.block(site, i / 4)[(i % 4) as usize]
    }

    /// [`bits32`](Self::bits32) of the elements `i` to `i + 3`, for an `i` that is a multiple of 4.
    pub const fn four_bits32(&self, site: u64, i: u64) -> [u32; 4] {
        self.block(site, i / 4)
    }

    /// 64 random bits for element `i`; two elements share a block.
    pub const fn bits64(&self, site: u64, i: u64) -> u64 {
        let words = self.block(site, i / 2);
        let low = (i % 2 * 2) as usize;
        (words[low + 1] as u64) << 32 | words[low] as u64
    }

    /// Uniform in `0..1` on the grid of 2^-24, so that 1 is never reached by rounding.
    pub fn uniform_f32(&self, site: u64, i: u64) -> f32 {
        unit_f32(self.bits32(site, i))
    }

    /// Uniform in `0..1` on the grid of 2^-53.
    pub fn uniform_f64(&self, site: u64, i: u64) -> f64 {
        (self.bits64(site, i) >> 11) as f64 * 2.0_f64.powi(-53)
    }

    /// True with probability `p`, to within 2^-32. Never for `p <= 0` or NaN, always for `p >= 1`.
    pub fn bernoulli(&self, site: u64, i: u64, p: f64) -> bool {
        // The cast saturates, and takes NaN to zero.
        u64::from(self.bits32(site, i)) < (p * 2.0_f64.powi(32)) as u64
    }

    /// Standard normal, by the Box-Muller transform of 32-bit uniforms: magnitudes reach 6.66.
    ///
    /// Of every four elements, two each share a pair of uniforms, as its cosine and its sine.
    pub fn normal(&self, site: u64, i: u64) -> f64 {
        normals(self.block(site, i / 4))[(i % 4) as usize]
    }

    /// Standard normal conditioned on an interval.
    pub fn truncated_normal(&self, site: u64, i: u64, interval: &TruncatedNormal) -> f64 {
        // Half a grid step keeps the argument off 0 and 1.
        interval.quantile(self.uniform_f64(site, i) + 2.0_f64.powi(-54))
    }

    /// An integer in `0..n`. By multiplication of 64 random bits, so the probability of a value is off by less than
    /// 2^-64; relative to `1 / n` that is `n * 2^-64`, which no sample that fits in a computer can show for the sizes
    /// of data sets.
    pub const fn below(&self, site: u64, i: u64, n: NonZeroU64) -> u64 {
        ((self.bits64(site, i) as u128 * n.get() as u128) >> 64) as u64
    }

    /// [`uniform_f32`](Self::uniform_f32) of elements `first..first + out.len()`: the same numbers, each block
    /// computed once.
    pub fn fill_uniform(&self, site: u64, first: u64, out: &mut [f32]) {
        self.fill(site, first, out, |words| words.map(unit_f32));
    }

    /// [`normal`](Self::normal) of elements `first..first + out.len()` as `f32`: the same numbers, each block
    /// computed once.
    pub fn fill_normal(&self, site: u64, first: u64, out: &mut [f32]) {
        self.fill(site, first, out, |words| normals(words).map(|z| z as f32));
    }

    fn fill(&self, site: u64, first: u64, out: &mut [f32], of: impl Fn([u32; 4]) -> [f32; 4]) {
        let lead = (first % 4) as usize;
        let (head, body) = out.split_at_mut(((4 - lead) % 4).min(out.len()));
        if !head.is_empty() {
            let values = of(self.block(site, first / 4));
            head.copy_from_slice(&values[lead..lead + head.len()]);
        }
        for (block, chunk) in (first.div_ceil(4)..).zip(body.chunks_mut(4)) {
            chunk.copy_from_slice(&of(self.block(site, block))[..chunk.len()]);
        }
    }
}

/// The upper 24 bits as a fraction; an `f32` holds them exactly.
fn unit_f32(word: u32) -> f32 {
    (word >> 8) as f32 * 2.0_f32.powi(-24)
}

/// Four standard normals from one block.
fn normals(words: [u32; 4]) -> [f64; 4] {
    let unit = 2.0_f64.powi(-32);
    let pair = |radius: u32, angle: u32| {
        // In (0, 1]: the logarithm stays finite.
        let u = (f64::from(radius) + 1.0) * unit;
        let length = (-2.0 * math::ln(u)).sqrt();
        let (sin, cos) = math::sin_cos_turns(f64::from(angle) * unit);
        [length * cos, length * sin]
    };
    let [a, b] = pair(words[0], words[1]);
    let [c, d] = pair(words[2], words[3]);
    [a, b, c, d]
}

/// A standard normal conditioned on an interval, prepared once for many elements.
///
/// Drawn by inversion of the distribution function: one uniform per element, whatever the interval, where rejection
/// would need an unbounded number in the tails.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TruncatedNormal {
    low: f64,
    high: f64,
    /// Distribution function at the lower end, and the probability of the interval; of the mirror image when
    /// `mirrored`.
    start: f64,
    mass: f64,
    /// Intervals right of zero are drawn on the left, where probabilities near the end do not crowd against 1.
    mirrored: bool,
}

impl TruncatedNormal {
    /// The interval `low..=high`, in standard deviations from the mean; either end may be infinite.
    ///
    /// # Errors
    ///
    /// [`EmptyInterval`] when `low < high` does not hold, or the interval lies so far out (beyond 35 standard
    /// deviations) that its probability is zero in `f64`.
    pub fn new(low: f64, high: f64) -> Result<Self, EmptyInterval> {
        let mirrored = low > 0.0;
        let (left, right) = if mirrored { (-high, -low) } else { (low, high) };
        let start = math::normal_cdf(left);
        let mass = math::normal_cdf(right) - start;
        if low < high && mass > 0.0 {
            Ok(Self { low, high, start, mass, mirrored })
        } else {
            Err(EmptyInterval { low, high })
        }
    }

    /// The value below which a fraction `u` of the distribution lies, for `0 < u < 1`; decreasing instead for
    /// intervals right of zero.
    fn quantile(&self, u: f64) -> f64 {
        // Rounding can reach 1 in the sum when the interval is open to the right.
        let p = (self.start + u * self.mass).min(1.0 - f64::EPSILON / 2.0);
        let x = math::normal_quantile(p);
        (if self.mirrored { -x } else { x }).clamp(self.low, self.high)
    }
}

/// An interval that holds no probability.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct EmptyInterval {
    /// Lower end, in standard deviations.
    pub low: f64,
    /// Upper end, in standard deviations.
    pub high: f64,
}

impl fmt::Display for EmptyInterval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { low, high } = self;
        write!(f, "cannot draw from a normal distribution between {low} and {high} standard deviations: ")?;
        if low < high {
            f.write_str("the interval is too far from the mean to hold any probability")
        } else {
            f.write_str("the lower end must be below the upper end")
        }
    }
}

impl Error for EmptyInterval {}

#[cfg(test)]
mod tests;
