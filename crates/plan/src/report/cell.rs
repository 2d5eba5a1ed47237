//! One printed quantity, which still knows what it measures.

use units::{
    Bytes, BytesPerSecond, FlopPerByte, FlopPerSecond, Flops, Hfu, Mfu, Params, Seconds, Tokens, TokensPerSecond,
};

use super::Value;

/// A quantity or a word for people. Digits and units are the renderer's choice.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Cell {
    /// Nothing.
    #[default]
    Empty,
    /// Words.
    Text(String),
    /// Memory: GiB, or GB where the user asks for it.
    Bytes(Bytes),
    /// Bytes moved: GB, as bandwidths are in GB/s.
    Traffic(Bytes),
    /// More or fewer bytes than something else.
    BytesChange(i128),
    /// Work.
    Flops(Flops),
    /// Parameters.
    Params(Params),
    /// Tokens.
    Tokens(Tokens),
    /// A time.
    Seconds(Seconds),
    /// A rate of work.
    Rate(FlopPerSecond),
    /// A rate of bytes.
    Bandwidth(BytesPerSecond),
    /// A rate of tokens.
    TokenRate(TokensPerSecond),
    /// FLOP per byte.
    Intensity(FlopPerByte),
    /// A share, 1 is all; one decimal.
    Percent(f64),
    /// A share, 1 is all; a decimal only where it is not zero, for values people chose: `50 %`.
    RoundPercent(f64),
    /// A relative difference, with its sign.
    Change(f64),
    /// A count, with commas between thousands.
    Count(u128),
    /// A count in short: `3.54 M`.
    Short(u128),
    /// A count that is written exactly and shortly: `70e9`, but `8,030,261,248`.
    Exact(u128),
    /// A plain number with this many decimals.
    Number {
        /// The number.
        value: f64,
        /// How many decimals.
        decimals: u8,
    },
    /// A number that may be tiny, such as an error: two digits and an exponent.
    Tiny(f64),
    /// An amount in US dollars.
    Dollars(f64),
    /// A share drawn as a bar.
    Bar(f64),
}

impl Cell {
    /// The quantity for programs: in its base unit, which is named where there is one. Bars are no quantity.
    pub fn raw(&self) -> (Value, &'static str) {
        match self {
            Self::Empty | Self::Bar(_) => (Value::Null, ""),
            Self::Text(text) => (text.as_str().into(), ""),
            Self::Bytes(bytes) | Self::Traffic(bytes) => ((*bytes).into(), "B"),
            Self::BytesChange(change) => ((*change).into(), "B"),
            Self::Flops(flop) => ((*flop).into(), "FLOP"),
            Self::Params(count) => ((*count).into(), "parameters"),
            Self::Tokens(count) => ((*count).into(), "tokens"),
            Self::Seconds(time) => ((*time).into(), "s"),
            Self::Rate(rate) => ((*rate).into(), "FLOP/s"),
            Self::Bandwidth(rate) => ((*rate).into(), "B/s"),
            Self::TokenRate(rate) => ((*rate).into(), "tokens/s"),
            Self::Intensity(ratio) => ((*ratio).into(), "FLOP/B"),
            Self::Percent(ratio) | Self::RoundPercent(ratio) | Self::Change(ratio) => ((*ratio).into(), ""),
            Self::Count(count) | Self::Short(count) | Self::Exact(count) => ((*count).into(), ""),
            Self::Number { value, .. } | Self::Tiny(value) => ((*value).into(), ""),
            Self::Dollars(amount) => ((*amount).into(), "USD"),
        }
    }
}

macro_rules! from {
    ($($type:ty => $variant:ident),+ $(,)?) => {
        $(impl From<$type> for Cell {
            fn from(value: $type) -> Self {
                Self::$variant(value)
            }
        })+
    };
}

from! {
    String => Text,
    Bytes => Bytes,
    Flops => Flops,
    Params => Params,
    Tokens => Tokens,
    Seconds => Seconds,
    FlopPerSecond => Rate,
    BytesPerSecond => Bandwidth,
    TokensPerSecond => TokenRate,
    FlopPerByte => Intensity,
    u128 => Count,
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<u64> for Cell {
    fn from(count: u64) -> Self {
        Self::Count(u128::from(count))
    }
}

impl From<u32> for Cell {
    fn from(count: u32) -> Self {
        Self::Count(u128::from(count))
    }
}

impl From<Mfu> for Cell {
    fn from(share: Mfu) -> Self {
        Self::Percent(share.get())
    }
}

impl From<Hfu> for Cell {
    fn from(share: Hfu) -> Self {
        Self::Percent(share.get())
    }
}

impl<T: Into<Self>> From<Option<T>> for Cell {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Empty, Into::into)
    }
}

/// Cells in a row without spaces between them: words and quantities of one sentence. See [`phrase!`](crate::phrase).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Phrase(pub Vec<Cell>);

impl Phrase {
    /// True if there is nothing to print.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|cell| match cell {
            Cell::Empty => true,
            Cell::Text(text) => text.is_empty(),
            _ => false,
        })
    }

    /// The phrase with more cells behind it.
    pub fn and(mut self, more: impl Into<Self>) -> Self {
        self.0.extend(more.into().0);
        self
    }
}

impl<T: Into<Cell>> From<T> for Phrase {
    fn from(cell: T) -> Self {
        Self(vec![cell.into()])
    }
}

/// A [`Phrase`](crate::report::Phrase) of anything that is a [`Cell`](crate::report::Cell).
#[macro_export]
macro_rules! phrase {
    ($($cell:expr),* $(,)?) => {
        $crate::report::Phrase(vec![$($crate::report::Cell::from($cell)),*])
    };
}
