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
    let mut done = 0;
    while done < 10 {
        counter = round(counter, key);
        key = next_key(key);
        done += 1;
    }
    counter
}

#[inline(always)]
const fn round(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let left = MULTIPLIERS[0] as u64 * counter[0] as u64;
    let right = MULTIPLIERS[1] as u64 * counter[2] as u64;
    [(right >> 32) as u32 ^ counter[1] ^ key[0], right as u32, (left >> 32) as u32 ^ counter[3] ^ key[1], left as u32]
}

#[inline(always)]
const fn next_key(key: [u32; 2]) -> [u32; 2] {
    [key[0].wrapping_add(KEY_STEPS[0]), key[1].wrapping_add(KEY_STEPS[1])]
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
        let bits = self.bits64(site, i);
        unit_f64(bits as u32, (bits >> 32) as u32)
    }

    /// True with probability `p`, to within 2^-32. Never for `p <= 0` or NaN, always for `p >= 1`.
    pub fn bernoulli(&self, site: u64, i: u64, p: f64) -> bool {
        u64::from(self.bits32(site, i)) < threshold(p)
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

    /// [`normal`](Self::normal) of elements `first..first + out.len()`: the same numbers.
    pub fn fill_normal_f64(&self, site: u64, first: u64, out: &mut [f64]) {
        self.fill(site, first, out, normals);
    }

    /// [`uniform_f64`](Self::uniform_f64) of elements `first..first + out.len()`: the same numbers.
    pub fn fill_uniform_f64(&self, site: u64, first: u64, out: &mut [f64]) {
        self.fill(site, first, out, |[a, b, c, d]| [unit_f64(a, b), unit_f64(c, d)]);
    }

    /// [`bernoulli`](Self::bernoulli) of elements `first..first + out.len()`, 1 for true.
    pub fn fill_bernoulli(&self, site: u64, first: u64, p: f64, out: &mut [u8]) {
        let threshold = threshold(p);
        self.fill(site, first, out, |words| words.map(|word| u8::from(u64::from(word) < threshold)));
    }

    /// Elements `first..first + out.len()`, of which each block gives `E`.
    fn fill<T: Copy + Default, const E: usize>(
        &self,
        site: u64,
        first: u64,
        out: &mut [T],
        of: impl Fn([u32; 4]) -> [T; E],
    ) {
        let lead = (first % E as u64) as usize;
        let (head, body) = out.split_at_mut(((E - lead) % E).min(out.len()));
        if !head.is_empty() {
            let values = of(self.block(site, first / E as u64));
            head.copy_from_slice(&values[lead..lead + head.len()]);
        }
        let mut block = first.div_ceil(E as u64);
        let mut groups = body.chunks_exact_mut(SIDE_BY_SIDE * E);
        for group in &mut groups {
            vectorized(
                #[inline(always)]
                || {
                    let words = self.blocks(site, block);
                    let mut values = [[T::default(); SIDE_BY_SIDE]; E];
                    for i in 0..SIDE_BY_SIDE {
                        let here = of(words.map(|word| word[i]));
                        for (values, value) in values.iter_mut().zip(here) {
                            values[i] = value;
                        }
                    }
                    for (i, to) in group.chunks_exact_mut(E).enumerate() {
                        for (to, values) in to.iter_mut().zip(&values) {
                            *to = values[i];
                        }
                    }
                },
            );
            block += SIDE_BY_SIDE as u64;
        }
        for (block, chunk) in (block..).zip(groups.into_remainder().chunks_mut(E)) {
            chunk.copy_from_slice(&of(self.block(site, block))[..chunk.len()]);
        }
    }

    /// The words of [`block`](Self::block) for as many blocks: first all first ones, and so on.
    #[allow(clippy::needless_range_loop)] // one index for four arrays: what the compiler makes vectors of
    #[inline(always)]
    fn blocks(&self, site: u64, first: u64) -> [[u32; SIDE_BY_SIDE]; 4] {
        let mut counter = [[0; SIDE_BY_SIDE]; 4];
        for i in 0..SIDE_BY_SIDE {
            let block = first + i as u64;
            counter[0][i] = block as u32;
            counter[1][i] = (block >> 32) as u32;
            counter[2][i] = site as u32;
            counter[3][i] = (site >> 32) as u32;
        }
        let mut key = self.key;
        for _ in 0..10 {
            for i in 0..SIDE_BY_SIDE {
                let words = round([counter[0][i], counter[1][i], counter[2][i], counter[3][i]], key);
                for (counter, word) in counter.iter_mut().zip(words) {
                    counter[i] = word;
                }
            }
            key = next_key(key);
        }
        counter
    }
}

/// Blocks computed side by side: the compiler makes vectors of them.
const SIDE_BY_SIDE: usize = 16;

/// Compiles the closure for the best vector instructions there are.
#[inline]
fn vectorized<R>(f: impl FnOnce() -> R) -> R {
    #[cfg(feature = "cpu")]
    return crate::cpu::simd::vectorized(f);
    #[cfg(not(feature = "cpu"))]
    f()
}

/// Of 2^32 words, so many are below with probability `p`. The cast saturates, and takes NaN to zero.
fn threshold(p: f64) -> u64 {
    (p * 2.0_f64.powi(32)) as u64
}

/// The upper 53 bits of two words as a fraction.
#[inline(always)]
fn unit_f64(low: u32, high: u32) -> f64 {
    // In two parts, each exact, as their sum is: vectors convert 32 bits at once.
    f64::from(high) * 2.0_f64.powi(-32) + f64::from(low >> 11) * 2.0_f64.powi(-53)
}

/// The upper 24 bits as a fraction; an `f32` holds them exactly.
#[inline(always)]
fn unit_f32(word: u32) -> f32 {
    (word >> 8) as f32 * 2.0_f32.powi(-24)
}

/// Four standard normals from one block.
#[inline(always)]
fn normals(words: [u32; 4]) -> [f64; 4] {
    let [a, b] = normal_pair(words[0], words[1]);
    let [c, d] = normal_pair(words[2], words[3]);
    [a, b, c, d]
}

#[inline(always)]
fn normal_pair(radius: u32, angle: u32) -> [f64; 2] {
    let unit = 2.0_f64.powi(-32);
    // In (0, 1]: the logarithm stays finite.
    let u = (f64::from(radius) + 1.0) * unit;
    let length = (-2.0 * math::ln(u)).sqrt();
    let (sin, cos) = math::sin_cos_turns(f64::from(angle) * unit);
    [length * cos, length * sin]
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
