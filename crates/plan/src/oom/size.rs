//! A number of bytes as a message prints it: rounded, and perhaps that of a segment instead of a tensor.

use crate::allocator::{LARGE, MIDDLE_SEGMENT, SEGMENT_STEP, SMALL, SMALL_SEGMENT, block, segment};

/// How a tensor has the size that was printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fit {
    /// It rounds to the digits that were printed.
    Exact,
    /// The segment that the allocator asks for does.
    Segment,
}

/// Bytes as a message prints them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Printed {
    /// The nearest whole number.
    pub bytes: u64,
    /// Least bytes that are printed so.
    pub low: u64,
    /// Most bytes that are printed so.
    pub high: u64,
    /// As it was written, such as `786.00 MiB`.
    pub text: String,
}

impl Printed {
    /// A number with its unit, as in `786.00 MiB`. `None` for what is no number of bytes that 64 bits hold.
    ///
    /// Messages print two decimals; who types `786 MiB` means them. `binary` reads `GB` as 2^30 bytes, as messages of Metal
    /// devices mean it.
    pub fn read(number: &str, unit: &str, binary: bool) -> Option<Self> {
        let scale = scale(unit, binary)?;
        let digits = number.replace(',', "");
        let value: f64 = digits.parse().ok().filter(|value: &f64| value.is_finite() && *value >= 0.0)?;
        let decimals = digits.split_once('.').map_or(0, |(_, fraction)| fraction.len());
        let decimals = if decimals == 0 { 2 } else { decimals.min(9) };
        let half = if scale == 1.0 { 0.0 } else { scale / 10_f64.powi(decimals as i32) / 2.0 };
        let exact = value * scale;
        // Above 2^53 neighbours of a double are not one apart; no memory is that large.
        if exact + half > 9e15 {
            return None;
        }
        let bytes = exact.round() as u64;
        let low = ((exact - half).max(0.0).ceil() as u64).min(bytes);
        let high = ((exact + half).floor() as u64).max(bytes);
        Some(Self { bytes, low, high, text: format!("{number} {unit}") })
    }

    /// Whether a tensor of `bytes` has this size; `segments` if the message may mean the segment around it.
    pub fn fit(&self, bytes: u64, segments: bool) -> Option<Fit> {
        let within = |bytes: u64| (self.low..=self.high).contains(&bytes);
        if bytes > 0 && (within(bytes) || within(block(bytes))) {
            Some(Fit::Exact)
        } else {
            (segments && bytes > 0 && within(segment(bytes))).then_some(Fit::Segment)
        }
    }

    /// Least bytes of a tensor that may be printed so.
    pub fn least(&self, segments: bool) -> u64 {
        let within = |size: u64| (self.low..=self.high).contains(&size);
        let large = self.low.div_ceil(SEGMENT_STEP).saturating_mul(SEGMENT_STEP);
        match segments {
            true if within(SMALL_SEGMENT) => 1,
            true if within(MIDDLE_SEGMENT) => SMALL + 1,
            true if large >= LARGE && within(large) => large - SEGMENT_STEP + 1,
            _ => self.low,
        }
    }

    /// True for the sizes of segments that many tensors share: they tell one from another by nothing.
    pub fn is_shared(&self) -> bool {
        [SMALL_SEGMENT, MIDDLE_SEGMENT].into_iter().any(|size| (self.low..=self.high).contains(&size))
    }
}

/// Bytes of a unit.
fn scale(unit: &str, binary: bool) -> Option<f64> {
    const TENS: [f64; 5] = [1.0, 1e3, 1e6, 1e9, 1e12];
    let power = |power: usize, two: bool| if two { 2_f64.powi(10 * power as i32) } else { TENS[power] };
    Some(match unit.to_ascii_lowercase().as_str() {
        "b" | "byte" | "bytes" => 1.0,
        "kib" => power(1, true),
        "mib" => power(2, true),
        "gib" => power(3, true),
        "tib" => power(4, true),
        "kb" => power(1, binary),
        "mb" => power(2, binary),
        "gb" => power(3, binary),
        "tb" => power(4, binary),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_bound_the_bytes() {
        let size = Printed::read("786.00", "MiB", false).unwrap();
        assert_eq!((size.bytes, size.low, size.high), (824_180_736, 824_175_494, 824_185_978));
        assert_eq!(size, Printed { text: "786.00 MiB".to_owned(), ..Printed::read("786", "MiB", false).unwrap() });
        assert_eq!(size.fit(4 * 1024 * 50_304 * 4, true), Some(Fit::Exact));
        assert_eq!(size.fit(785 << 20, true), Some(Fit::Segment));
        assert_eq!((size.fit(785 << 20, false), size.fit(784 << 20, true), size.fit(0, true)), (None, None, None));
        assert_eq!((size.least(true), size.least(false)), ((784 << 20) + 1, size.low));
        let exact = Printed::read("68719476736", "bytes", false).unwrap();
        assert_eq!((exact.low, exact.high), (1 << 36, 1 << 36));
        assert_eq!(Printed::read("1", "GB", true).unwrap().bytes, 1 << 30);
        assert_eq!(Printed::read("1", "GB", false).unwrap().bytes, 1_000_000_000);
        for (number, unit) in
            [("1e300", "B"), ("-1", "B"), ("", "MiB"), (".", "MiB"), ("NaN", "B"), ("1", "MW"), ("99999999", "TiB")]
        {
            assert_eq!(Printed::read(number, unit, false), None, "{number} {unit}");
        }
    }

    #[test]
    fn shared_segments_are_known() {
        let twenty = Printed::read("20.00", "MiB", false).unwrap();
        assert!(twenty.is_shared() && twenty.least(true) == (1 << 20) + 1);
        assert!(!Printed::read("22.00", "MiB", false).unwrap().is_shared());
    }
}
