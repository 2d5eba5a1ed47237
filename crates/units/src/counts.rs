//! Exact counts. Integers, so that the lines of a ledger sum to its total without rounding.

use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul, Sub, SubAssign};

macro_rules! count {
    ($(#[$doc:meta])* $name:ident($int:ty)) => {
        $(#[$doc])*
        ///
        /// `+`, `*` and sums saturate at [`Self::MAX`], a value too absurd to be mistaken for an answer; where the
        /// operands come from a user, `checked_add` and `checked_mul` say so instead. `-` below zero panics, as it does
        /// for [`std::time::Duration`]; use `checked_sub` where that can happen.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $int);

        impl $name {
            /// Nothing.
            pub const ZERO: Self = Self(0);
            /// The largest count that can be held; also what saturated arithmetic returns.
            pub const MAX: Self = Self(<$int>::MAX);

            /// The count as a plain integer.
            pub const fn get(self) -> $int {
                self.0
            }

            /// The count as a float, exact up to 2^53.
            pub const fn as_f64(self) -> f64 {
                self.0 as f64
            }

            /// True if there is nothing.
            pub const fn is_zero(self) -> bool {
                self.0 == 0
            }

            /// True if arithmetic overflowed on the way here.
            pub const fn is_saturated(self) -> bool {
                self.0 == <$int>::MAX
            }

            /// Sum, or `None` on overflow.
            pub const fn checked_add(self, other: Self) -> Option<Self> {
                match self.0.checked_add(other.0) {
                    Some(sum) => Some(Self(sum)),
                    None => None,
                }
            }

            /// Difference, or `None` below zero.
            pub const fn checked_sub(self, other: Self) -> Option<Self> {
                match self.0.checked_sub(other.0) {
                    Some(difference) => Some(Self(difference)),
                    None => None,
                }
            }

            /// Product with a plain number, or `None` on overflow.
            pub const fn checked_mul(self, factor: $int) -> Option<Self> {
                match self.0.checked_mul(factor) {
                    Some(product) => Some(Self(product)),
                    None => None,
                }
            }

            /// Difference, or zero where it would be negative.
            pub const fn saturating_sub(self, other: Self) -> Self {
                Self(self.0.saturating_sub(other.0))
            }

            /// Distance between two counts, whichever is larger.
            pub const fn abs_diff(self, other: Self) -> Self {
                Self(self.0.abs_diff(other.0))
            }

            /// The largest share when split over `parts` devices as evenly as integers allow.
            ///
            /// Panics if `parts` is zero.
            pub const fn div_ceil(self, parts: $int) -> Self {
                Self(self.0.div_ceil(parts))
            }
        }

        impl Add for $name {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Self(self.0.saturating_add(other.0))
            }
        }

        impl AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                *self = *self + other;
            }
        }

        impl Sub for $name {
            type Output = Self;
            #[track_caller]
            fn sub(self, other: Self) -> Self {
                match self.checked_sub(other) {
                    Some(difference) => difference,
                    None => panic!("{} - {} {} is below zero", self.0, other.0, stringify!($name)),
                }
            }
        }

        impl SubAssign for $name {
            #[track_caller]
            fn sub_assign(&mut self, other: Self) {
                *self = *self - other;
            }
        }

        impl Mul<$int> for $name {
            type Output = Self;
            fn mul(self, factor: $int) -> Self {
                Self(self.0.saturating_mul(factor))
            }
        }

        impl Mul<$name> for $int {
            type Output = $name;
            fn mul(self, count: $name) -> $name {
                count * self
            }
        }

        /// The ratio of two counts, for shares. Zero over anything is zero.
        impl Div for $name {
            type Output = f64;
            fn div(self, whole: Self) -> f64 {
                if self.0 == 0 { 0.0 } else { self.as_f64() / whole.as_f64() }
            }
        }

        impl Sum for $name {
            fn sum<I: Iterator<Item = Self>>(items: I) -> Self {
                items.fold(Self::ZERO, Add::add)
            }
        }

        impl<'a> Sum<&'a $name> for $name {
            fn sum<I: Iterator<Item = &'a Self>>(items: I) -> Self {
                items.copied().sum()
            }
        }
    };
}

count! {
    /// Floating-point operations: a count, never a rate. One multiply-add is 2 FLOP.
    ///
    /// 128 bits because a 70B model on 15T tokens is 6.3e24 FLOP, beyond 64 bits.
    Flops(u128)
}
count! {
    /// Bytes of memory or traffic.
    Bytes(u64)
}
count! {
    /// Model parameters.
    Params(u64)
}
count! {
    /// Training tokens.
    Tokens(u64)
}

impl Flops {
    /// FLOP of `macs` multiply-adds: two each.
    pub const fn from_macs(macs: u128) -> Self {
        Self(macs.saturating_mul(2))
    }
}

impl Bytes {
    /// `n` MiB, 2^20 bytes each.
    pub const fn mib(n: u64) -> Self {
        Self(n.saturating_mul(1 << 20))
    }

    /// `n` GiB, 2^30 bytes each.
    pub const fn gib(n: u64) -> Self {
        Self(n.saturating_mul(1 << 30))
    }

    /// `n` GB, 10^9 bytes each.
    pub const fn gb(n: u64) -> Self {
        Self(n.saturating_mul(1_000_000_000))
    }

    /// The count in GiB, for columns that share one unit.
    pub const fn as_gib(self) -> f64 {
        self.0 as f64 / (1_u64 << 30) as f64
    }
}

/// Parameters times bytes for each: the memory they take.
impl Mul<Bytes> for Params {
    type Output = Bytes;
    fn mul(self, each: Bytes) -> Bytes {
        Bytes(self.0.saturating_mul(each.0))
    }
}

/// Tokens times FLOP for each: the work of a run.
impl Mul<Flops> for Tokens {
    type Output = Flops;
    fn mul(self, each: Flops) -> Flops {
        each * u128::from(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frontier_run_fits() {
        let work = Tokens(15_000_000_000_000) * Flops(6 * 70_000_000_000);
        assert_eq!(work, Flops(6_300_000_000_000_000_000_000_000));
        assert_eq!(Flops::from_macs(1_073_741_824), Flops(2_147_483_648));
    }

    #[test]
    fn gib_and_gb_differ() {
        assert_eq!(Bytes::gib(80), Bytes(85_899_345_920));
        assert_eq!(Bytes::gb(80), Bytes(80_000_000_000));
        assert_eq!(Bytes::gib(80) - Bytes::gb(80), Bytes(5_899_345_920));
        assert_eq!(Bytes::gib(80).as_gib(), 80.0);
    }

    #[test]
    fn arithmetic() {
        let ledger = [Bytes(3), Bytes(4), Bytes(5)];
        assert_eq!(ledger.iter().sum::<Bytes>(), Bytes(12));
        assert_eq!(ledger.into_iter().sum::<Bytes>(), Bytes(12));
        assert_eq!(Params(70_000_000_000) * Bytes(16), Bytes::gb(1120));
        assert_eq!(Params(7) * 2, 2 * Params(7));
        assert_eq!(Bytes(10).div_ceil(4), Bytes(3));
        assert_eq!(Bytes(1) / Bytes(4), 0.25);
        assert_eq!(Bytes(0) / Bytes(0), 0.0);
        let mut total = Flops::ZERO;
        total += Flops(2);
        total -= Flops(1);
        assert_eq!(total, Flops(1));
    }

    #[test]
    fn overflow_is_caught_or_saturates() {
        assert_eq!(Bytes::MAX.checked_add(Bytes(1)), None);
        assert_eq!(Bytes::MAX.checked_mul(2), None);
        assert_eq!(Bytes(1).checked_sub(Bytes(2)), None);
        assert_eq!(Bytes(1).saturating_sub(Bytes(2)), Bytes::ZERO);
        assert_eq!(Bytes(1).abs_diff(Bytes(3)), Bytes(2));
        assert!((Bytes::MAX + Bytes(1)).is_saturated());
        assert!(Bytes::gib(u64::MAX).is_saturated());
        assert!((Flops::MAX * 2).is_saturated());
    }

    #[test]
    #[should_panic(expected = "1 - 2 Bytes is below zero")]
    fn subtraction_below_zero_is_loud() {
        let _ = Bytes(1) - Bytes(2);
    }
}
