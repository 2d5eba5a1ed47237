//! A table of a data file, read strictly: what is missing, unknown or out of range is an error with its name.

use toml::{Table, Value};
use units::BytesPerSecond;

use crate::hardware::{Precision, Source};

/// A table of the file, with its name for messages.
pub(crate) struct Section<'a> {
    name: &'a str,
    pub(crate) table: &'a Table,
}

impl<'a> Section<'a> {
    pub(crate) fn new(name: &'a str, table: &'a Table, known: &[&str]) -> Result<Self, String> {
        match table.keys().find(|key| !known.contains(&key.as_str())) {
            Some(key) => Err(format!("unknown key `{key}` in {name}")),
            None => Ok(Self { name, table }),
        }
    }

    pub(crate) fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    pub(crate) fn get<T>(&self, key: &str, what: &str, read: impl FnOnce(&'a Value) -> Option<T>) -> Result<T, String> {
        let value = self.table.get(key).ok_or_else(|| format!("no `{key}` in {}", self.name))?;
        read(value).ok_or_else(|| format!("`{key}` in {} is no {what}", self.name))
    }

    pub(crate) fn section(&self, key: &'a str, known: &[&str]) -> Result<Section<'a>, String> {
        Section::new(key, self.get(key, "table", Value::as_table)?, known)
    }

    pub(crate) fn text(&self, key: &str) -> Result<String, String> {
        self.get(key, "text", |value| value.as_str().filter(|text| !text.trim().is_empty()).map(str::to_owned))
    }

    pub(crate) fn texts(&self, key: &str) -> Result<Vec<String>, String> {
        self.get(key, "list of texts", |value| {
            value.as_array()?.iter().map(|item| item.as_str().map(str::to_owned)).collect()
        })
    }

    pub(crate) fn flag(&self, key: &str) -> Result<bool, String> {
        self.get(key, "true or false", Value::as_bool)
    }

    pub(crate) fn integer(&self, key: &str) -> Result<u64, String> {
        self.get(key, "whole number above zero", |value| u64::try_from(value.as_integer()?).ok().filter(|n| *n > 0))
    }

    pub(crate) fn count(&self, key: &str) -> Result<u32, String> {
        self.get(key, "whole number above zero", |value| u32::try_from(value.as_integer()?).ok().filter(|n| *n > 0))
    }

    pub(crate) fn positive(&self, key: &str) -> Result<f64, String> {
        self.get(key, "number above zero", |value| {
            let number = value.as_float().or_else(|| value.as_integer().map(|n| n as f64))?;
            (number > 0.0 && number.is_finite()).then_some(number)
        })
    }

    pub(crate) fn gigabytes(&self, key: &str) -> Result<BytesPerSecond, String> {
        BytesPerSecond::new(self.positive(key)? * 1e9).map_err(|error| error.to_string())
    }

    pub(crate) fn source(&self) -> Result<Source, String> {
        Ok(Source { document: self.text("source")?, date: self.text("date")? })
    }

    /// The numbers under the names of precisions, widest first.
    pub(crate) fn rates(&self) -> Result<Vec<(Precision, f64)>, String> {
        Precision::ALL
            .into_iter()
            .filter(|precision| self.has(precision.name()))
            .map(|precision| Ok((precision, self.positive(precision.name())?)))
            .collect()
    }
}
