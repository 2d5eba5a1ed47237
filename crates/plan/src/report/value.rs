//! A tree of exact values, in order: what JSON can say, without a JSON library.

use units::{
    Bytes, BytesPerSecond, FlopPerByte, FlopPerSecond, Flops, Hfu, Mfu, Params, Seconds, Tokens, TokensPerSecond,
};

/// A value for programs. Maps keep the order in which they were made; integers are exact.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Value {
    /// Nothing known.
    #[default]
    Null,
    /// Yes or no.
    Bool(bool),
    /// A count.
    Uint(u128),
    /// A difference.
    Int(i128),
    /// A measured or computed quantity. What is not finite is written as null.
    Num(f64),
    /// Words.
    Text(String),
    /// Several, in order.
    List(Vec<Value>),
    /// Named ones, in order.
    Map(Vec<(String, Value)>),
}

impl Value {
    /// An empty map.
    pub const fn map() -> Self {
        Self::Map(Vec::new())
    }

    /// A list.
    pub fn list<T: Into<Self>>(items: impl IntoIterator<Item = T>) -> Self {
        Self::List(items.into_iter().map(Into::into).collect())
    }

    /// The map with one more entry; the name carries the unit. What is no map becomes one.
    pub fn with(mut self, name: impl Into<String>, value: impl Into<Self>) -> Self {
        self.insert(name, value);
        self
    }

    /// The map with more entries.
    pub fn with_all<const N: usize>(self, entries: [(&'static str, Self); N]) -> Self {
        entries.into_iter().fold(self, |map, (name, value)| map.with(name, value))
    }

    /// Adds an entry to a map; an entry of that name is replaced.
    pub fn insert(&mut self, name: impl Into<String>, value: impl Into<Self>) {
        let (name, value) = (name.into(), value.into());
        match self {
            Self::Map(entries) => match entries.iter_mut().find(|(known, _)| *known == name) {
                Some((_, old)) => *old = value,
                None => entries.push((name, value)),
            },
            other => *other = Self::Map(vec![(name, value)]),
        }
    }

    /// The entry of a map.
    pub fn get(&self, name: &str) -> Option<&Self> {
        match self {
            Self::Map(entries) => entries.iter().find(|(known, _)| known == name).map(|(_, value)| value),
            _ => None,
        }
    }

    /// The number, if it is one.
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            Self::Uint(value) => Some(value as f64),
            Self::Int(value) => Some(value as f64),
            Self::Num(value) => Some(value),
            _ => None,
        }
    }

    /// The count, if it is one.
    pub fn as_uint(&self) -> Option<u128> {
        match *self {
            Self::Uint(value) => Some(value),
            _ => None,
        }
    }
}

macro_rules! from {
    ($($type:ty => |$value:ident| $made:expr;)+) => {
        $(impl From<$type> for Value {
            fn from($value: $type) -> Self {
                $made
            }
        })+
    };
}

from! {
    bool => |value| Self::Bool(value);
    u8 => |value| Self::Uint(u128::from(value));
    u32 => |value| Self::Uint(u128::from(value));
    u64 => |value| Self::Uint(u128::from(value));
    u128 => |value| Self::Uint(value);
    usize => |value| Self::Uint(value as u128);
    i32 => |value| Self::Int(i128::from(value));
    i64 => |value| Self::Int(i128::from(value));
    i128 => |value| Self::Int(value);
    f64 => |value| Self::Num(value);
    &str => |value| Self::Text(value.to_owned());
    String => |value| Self::Text(value);
    Bytes => |value| Self::Uint(u128::from(value.get()));
    Params => |value| Self::Uint(u128::from(value.get()));
    Tokens => |value| Self::Uint(u128::from(value.get()));
    Flops => |value| Self::Uint(value.get());
    FlopPerSecond => |value| Self::Num(value.get());
    BytesPerSecond => |value| Self::Num(value.get());
    TokensPerSecond => |value| Self::Num(value.get());
    FlopPerByte => |value| Self::Num(value.get());
    Seconds => |value| Self::Num(value.get());
    Mfu => |value| Self::Num(value.get());
    Hfu => |value| Self::Num(value.get());
}

impl<T: Into<Self>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

impl<T: Into<Self>> From<Vec<T>> for Value {
    fn from(items: Vec<T>) -> Self {
        Self::list(items)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_keep_their_order_and_have_each_name_once() {
        let value = Value::map().with("b", Bytes(1)).with("a", 2.5).with("b", Bytes(3));
        assert_eq!(value, Value::Map(vec![("b".to_owned(), Value::Uint(3)), ("a".to_owned(), Value::Num(2.5))]));
        assert_eq!(value.get("b").and_then(Value::as_uint), Some(3));
        assert_eq!(value.get("a").and_then(Value::as_f64), Some(2.5));
        assert_eq!(Value::from(None::<u64>), Value::Null);
    }
}
