//! Numbers that carry a unit: parsed from what people type, computed with only where the arithmetic means something,
//! and printed one way everywhere.
//!
//! | module | holds |
//! |---|---|
//! | [`counts`] | [`Flops`], [`Bytes`], [`Params`], [`Tokens`]: exact integers |
//! | [`rates`] | [`FlopPerSecond`], [`BytesPerSecond`], [`TokensPerSecond`], [`Seconds`], [`FlopPerByte`], [`Mfu`], [`Hfu`] |
//! | [`parse`] | text to numbers, exactly; `80G` is refused |
//! | [`display`] | numbers to text, three significant digits |
//! | [`diagnostic`] | the error form every crate hands to its caller |
//!
//! ```
//! # use napkin_units as units;
//! use units::{FlopPerSecond, Flops, Mfu};
//!
//! let work: Flops = "6.3e24".parse()?;
//! let rate = FlopPerSecond::tera(989.5) * 1024.0 * Mfu::new(0.5)?;
//! assert_eq!((work / rate).to_string(), "143.9 days");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod counts;
pub mod diagnostic;
pub mod display;
pub mod parse;
pub mod rates;

pub use counts::{Bytes, Flops, Params, Tokens};
pub use diagnostic::{Diagnostic, Diagnostics, Label, Location, Severity, columns};
pub use display::{group_digits, percent};
pub use parse::{ParseError, Problem, parse_count};
pub use rates::{BytesPerSecond, FlopPerByte, FlopPerSecond, Hfu, Mfu, RangeError, Seconds, TokensPerSecond};
