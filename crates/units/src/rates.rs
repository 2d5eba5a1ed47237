//! Rates, times and ratios. Floats that are never negative and never NaN, so they can be ordered and compared.
//!
//! Only meaningful combinations exist. Dividing by zero gives infinity (work at no rate never ends); zero divided by
//! anything, and zero times anything, is zero.

use std::cmp::Ordering;
use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul};

use crate::counts::{Bytes, Flops, Tokens};

/// A number that cannot be a rate, a time or a ratio.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RangeError {
    /// Below zero.
    Negative {
        /// What the number was to be, such as "MFU".
        quantity: &'static str,
        /// The number found.
        value: f64,
    },
    /// NaN.
    NotANumber {
        /// What the number was to be.
        quantity: &'static str,
    },
    /// Positive infinity.
    Infinite {
        /// What the number was to be.
        quantity: &'static str,
    },
}

impl fmt::Display for RangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Negative { quantity, value } => {
                write!(f, "{quantity} cannot be negative: {value}")
            }
            Self::NotANumber { quantity } => write!(f, "{quantity} is not a number"),
            Self::Infinite { quantity } => write!(f, "{quantity} is infinite"),
        }
    }
}

impl std::error::Error for RangeError {}

fn check(quantity: &'static str, value: f64) -> Result<f64, RangeError> {
    if value.is_nan() {
        Err(RangeError::NotANumber { quantity })
    } else if value < 0.0 {
        Err(RangeError::Negative { quantity, value })
    } else if value.is_infinite() {
        Err(RangeError::Infinite { quantity })
    } else {
        // Turns -0.0 into 0.0, which would otherwise order below it.
        Ok(value + 0.0)
    }
}

#[track_caller]
fn known(quantity: &'static str, value: f64) -> f64 {
    match check(quantity, value) {
        Ok(value) => value,
        Err(error) => panic!("{error}"),
    }
}

fn quotient(a: f64, b: f64) -> f64 {
    if a == 0.0 {
        0.0
    } else if a.is_infinite() {
        f64::INFINITY
    } else {
        a / b
    }
}

#[track_caller]
fn product(a: f64, b: f64) -> f64 {
    assert!(b >= 0.0, "factor {b} is negative or not a number");
    if a == 0.0 || b == 0.0 { 0.0 } else { a * b }
}

macro_rules! number {
    ($(#[$doc:meta])* $name:ident, $quantity:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq)]
        pub struct $name(f64);

        impl $name {
            /// Zero.
            pub const ZERO: Self = Self(0.0);

            /// From a number in the base unit.
            ///
            /// # Errors
            /// [`RangeError`] if it is negative, NaN or infinite.
            pub fn new(value: f64) -> Result<Self, RangeError> {
                check($quantity, value).map(Self)
            }

            /// The number in the base unit.
            pub const fn get(self) -> f64 {
                self.0
            }

            /// True unless a division by zero led here.
            pub const fn is_finite(self) -> bool {
                self.0.is_finite()
            }
        }

        impl Eq for $name {}

        impl Ord for $name {
            fn cmp(&self, other: &Self) -> Ordering {
                self.0.total_cmp(&other.0)
            }
        }

        impl PartialOrd for $name {
            fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
                Some(self.cmp(other))
            }
        }

        /// The ratio of two of a kind.
        impl Div for $name {
            type Output = f64;
            fn div(self, other: Self) -> f64 {
                quotient(self.0, other.0)
            }
        }
    };
}

macro_rules! quantity {
    ($(#[$doc:meta])* $name:ident, $quantity:literal) => {
        number!($(#[$doc])* $name, $quantity);

        impl Add for $name {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Self(self.0 + other.0)
            }
        }

        impl AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                *self = *self + other;
            }
        }

        impl Sum for $name {
            fn sum<I: Iterator<Item = Self>>(items: I) -> Self {
                items.fold(Self::ZERO, Add::add)
            }
        }

        /// Scaling. Panics if the factor is negative or NaN.
        impl Mul<f64> for $name {
            type Output = Self;
            #[track_caller]
            fn mul(self, factor: f64) -> Self {
                Self(product(self.0, factor))
            }
        }

        impl Mul<$name> for f64 {
            type Output = $name;
            #[track_caller]
            fn mul(self, value: $name) -> $name {
                value * self
            }
        }
    };
}

quantity! {
    /// Floating-point operations per second.
    FlopPerSecond, "FLOP/s"
}
quantity! {
    /// Bytes per second.
    BytesPerSecond, "bytes per second"
}
quantity! {
    /// Tokens per second.
    TokensPerSecond, "tokens per second"
}
quantity! {
    /// Time in seconds.
    Seconds, "time"
}
quantity! {
    /// Arithmetic intensity, or the ridge point of a device: FLOP per byte moved.
    FlopPerByte, "FLOP per byte"
}
number! {
    /// Model FLOP utilization: model FLOP/s over the dense peak. A ratio, 1 is the peak.
    ///
    /// Above 1 can be held, so that it can be reported; see [`Mfu::is_impossible`].
    Mfu, "MFU"
}
number! {
    /// Hardware FLOP utilization: model and recomputed FLOP/s over the dense peak. A ratio, 1 is the peak.
    Hfu, "HFU"
}

macro_rules! scales {
    ($name:ident, $unit:literal, $($scale:ident = $factor:literal),+) => {
        impl $name {
            $(
                #[doc = concat!("From a number in ", stringify!($factor), " ", $unit, ".")]
                ///
                /// For numbers already checked: panics on a negative, NaN or infinite one.
                #[track_caller]
                pub fn $scale(value: f64) -> Self {
                    Self(known($unit, value * $factor))
                }
            )+
        }
    };
}

scales!(FlopPerSecond, "FLOP/s", per_second = 1.0, giga = 1e9, tera = 1e12, peta = 1e15);
scales!(BytesPerSecond, "bytes per second", per_second = 1.0, mega = 1e6, giga = 1e9, tera = 1e12);
scales!(TokensPerSecond, "tokens per second", per_second = 1.0);
scales!(
    Seconds,
    "seconds",
    from_secs = 1.0,
    from_millis = 1e-3,
    from_micros = 1e-6,
    from_minutes = 60.0,
    from_hours = 3600.0,
    from_days = 86_400.0
);

impl Seconds {
    /// The time in hours.
    pub fn hours(self) -> f64 {
        self.0 / 3600.0
    }

    /// The time in days of 24 hours.
    pub fn days(self) -> f64 {
        self.0 / 86_400.0
    }

    /// What is left of `self` after `other` has passed; zero if nothing is. The exposed part of overlapped work.
    pub fn saturating_sub(self, other: Self) -> Self {
        if other.0 >= self.0 { Self::ZERO } else { Self(self.0 - other.0) }
    }
}

impl From<std::time::Duration> for Seconds {
    fn from(time: std::time::Duration) -> Self {
        Self(time.as_secs_f64())
    }
}

macro_rules! utilization {
    ($($name:ident),+) => {
        $(
            impl $name {
                /// Achieved rate over the dense peak of the data type used.
                ///
                /// # Errors
                /// [`RangeError::Infinite`] if the peak is zero and something was achieved.
                pub fn achieved(rate: FlopPerSecond, dense_peak: FlopPerSecond) -> Result<Self, RangeError> {
                    Self::new(rate / dense_peak)
                }

                /// True above 1: more than the peak cannot have been done, so a count, a time or a peak is wrong.
                pub fn is_impossible(self) -> bool {
                    self.0 > 1.0
                }
            }

            /// The rate reached at this share of a peak.
            impl Mul<$name> for FlopPerSecond {
                type Output = Self;
                fn mul(self, share: $name) -> Self {
                    Self(product(self.0, share.0))
                }
            }
        )+
    };
}

utilization!(Mfu, Hfu);

macro_rules! relation {
    ($($(#[$doc:meta])* $a:ident / $b:ident = $c:ident;)+) => {
        $(
            $(#[$doc])*
            impl Div<$b> for $a {
                type Output = $c;
                fn div(self, other: $b) -> $c {
                    $c(quotient(self.value(), other.value()))
                }
            }
        )+
    };
}

/// The number behind a count or a rate, so that [`relation!`] treats both alike.
trait Value: Copy {
    fn value(self) -> f64;
}

macro_rules! value {
    ($($name:ident),+; $($count:ident),+) => {
        $(impl Value for $name { fn value(self) -> f64 { self.0 } })+
        $(impl Value for $count { fn value(self) -> f64 { self.as_f64() } })+
    };
}

value!(FlopPerSecond, BytesPerSecond, TokensPerSecond, Seconds, FlopPerByte; Flops, Bytes, Tokens);

relation! {
    /// Time to do work at a rate.
    Flops / FlopPerSecond = Seconds;
    /// Rate of work done in a time.
    Flops / Seconds = FlopPerSecond;
    /// Time to move bytes at a rate.
    Bytes / BytesPerSecond = Seconds;
    /// Rate of bytes moved in a time.
    Bytes / Seconds = BytesPerSecond;
    /// Time to train on tokens at a rate.
    Tokens / TokensPerSecond = Seconds;
    /// Rate of tokens trained on in a time.
    Tokens / Seconds = TokensPerSecond;
    /// Arithmetic intensity of work that moves these bytes.
    Flops / Bytes = FlopPerByte;
    /// Ridge point of a device: the intensity at which compute and memory take equally long.
    FlopPerSecond / BytesPerSecond = FlopPerByte;
}

/// The rate that memory allows at an intensity: the slanted part of the roofline.
impl Mul<BytesPerSecond> for FlopPerByte {
    type Output = FlopPerSecond;
    fn mul(self, bandwidth: BytesPerSecond) -> FlopPerSecond {
        FlopPerSecond(product(self.0, bandwidth.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_70b_model_on_15t_tokens_takes_144_days() {
        let work = Flops(6_300_000_000_000_000_000_000_000);
        let rate = FlopPerSecond::tera(1024.0 * 989.5 * 0.5);
        let time = work / rate;
        assert!((time.days() - 143.9).abs() < 0.05, "{}", time.days());
        assert_eq!(time.to_string(), "143.9 days");
        assert_eq!((work / time).to_string(), "506.6 PFLOP/s");
    }

    #[test]
    fn roofline() {
        let peak = FlopPerSecond::tera(989.5);
        let bandwidth = BytesPerSecond::tera(3.35);
        let ridge = peak / bandwidth;
        assert_eq!(ridge.to_string(), "295.4 FLOP/B");
        let intensity = Flops(2_147_483_648) / Bytes(20_971_520);
        assert_eq!(intensity.to_string(), "102.4 FLOP/B");
        assert!(intensity < ridge);
        assert_eq!((Flops(2_147_483_648) / peak).to_string(), "2.17 µs");
        assert_eq!((Bytes(20_971_520) / bandwidth).to_string(), "6.26 µs");
        let bound = Mfu::achieved(intensity * bandwidth, peak).unwrap();
        assert_eq!(bound.to_string(), "34.7 %");
    }

    #[test]
    fn ratios_refuse_what_is_no_ratio() {
        assert!(matches!(Mfu::new(-0.1), Err(RangeError::Negative { .. })));
        assert!(matches!(Mfu::new(f64::NAN), Err(RangeError::NotANumber { .. })));
        assert!(matches!(Hfu::new(f64::INFINITY), Err(RangeError::Infinite { .. })));
        assert!(Mfu::new(1.04).unwrap().is_impossible());
        assert!(!Mfu::new(1.0).unwrap().is_impossible());
        assert_eq!(Mfu::new(-0.0).unwrap().cmp(&Mfu::ZERO), Ordering::Equal);
        assert!(Mfu::achieved(FlopPerSecond::giga(1.0), FlopPerSecond::ZERO).is_err());
        assert_eq!(Mfu::new(-0.1).unwrap_err().to_string(), "MFU cannot be negative: -0.1");
    }

    #[test]
    fn zero_and_infinity_stay_ordered() {
        assert_eq!(Flops(0) / FlopPerSecond::ZERO, Seconds::ZERO);
        let never = Flops(1) / FlopPerSecond::ZERO;
        assert!(!never.is_finite());
        assert!(never > Seconds::from_days(1e9));
        assert_eq!(never * 0.0, Seconds::ZERO);
        assert_eq!(never.saturating_sub(never), Seconds::ZERO);
        assert!(!(never / never).is_nan());
        assert_eq!([Seconds::from_hours(23.0), Seconds::from_minutes(60.0)].into_iter().sum::<Seconds>().days(), 1.0);
    }

    #[test]
    #[should_panic(expected = "FLOP/s cannot be negative")]
    fn a_negative_constant_is_loud() {
        let _ = FlopPerSecond::tera(-1.0);
    }
}
