//! What a reader takes and gives: names of keys, values that were read, defaults that were assumed.

use units::diagnostic::Diagnostics;

/// A default that was used because the file does not say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assumption {
    /// The key that is absent or `null`.
    pub key: String,
    /// The value used.
    pub value: String,
    /// Why that value.
    pub why: String,
    /// The argument that changes it, such as `--set head_dim=128`.
    pub flag: String,
}

/// A key that was read, and what it gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The key, or dotted path.
    pub key: String,
    /// Its value as written, shortened.
    pub value: String,
    /// Where it stands, such as `config.json:14:26` or `--set`.
    pub origin: String,
}

/// What a family has read, once nothing is wrong with it.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// Keys in the order they were read.
    pub readings: Vec<Reading>,
    /// Defaults in the order they were used.
    pub assumptions: Vec<Assumption>,
    /// Warnings and notes.
    pub diagnostics: Diagnostics,
}

/// One key, or several names for the same thing in order of preference.
pub trait Names {
    /// The names; the first is used in messages when none is present.
    fn names(&self) -> Vec<&str>;
}

impl Names for &str {
    fn names(&self) -> Vec<&str> {
        vec![self]
    }
}

impl Names for &String {
    fn names(&self) -> Vec<&str> {
        vec![self.as_str()]
    }
}

impl<const N: usize> Names for [&str; N] {
    fn names(&self) -> Vec<&str> {
        self.to_vec()
    }
}

impl<const N: usize> Names for &[&str; N] {
    fn names(&self) -> Vec<&str> {
        self.to_vec()
    }
}

impl Names for &[&str] {
    fn names(&self) -> Vec<&str> {
        self.to_vec()
    }
}

/// One side of [`Reader::require_divides`].
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// The key.
    pub key: &'a str,
    /// Its value.
    pub value: u64,
    /// What it counts, such as "query heads".
    pub noun: &'a str,
}

impl<'a> Part<'a> {
    /// `value` things called `noun`, from `key`.
    pub fn new(key: &'a str, value: u64, noun: &'a str) -> Self {
        Self { key, value, noun }
    }
}
