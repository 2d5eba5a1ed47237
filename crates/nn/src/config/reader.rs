//! How a model family takes its sizes out of a [`Config`].

use std::collections::{BTreeMap, BTreeSet};

use units::diagnostic::{Diagnostic, Diagnostics, Location};

use super::json::Value;
use super::record::{Assumption, Names, Reading, Resolved};
use super::scalar::{self, Refusal, Scalar};
use super::source::push_pointer;
use super::{Config, Found, is_free};

/// Problems that are reported one by one; a file with more of them is of another kind.
pub(super) const MAX_PROBLEMS: usize = 100;

/// Reads keys of a [`Config`] and collects every problem.
///
/// A method that fails records why and returns a harmless value, so that a family reads all its keys before it stops at
/// [`Reader::finish`]. A key that is `null` is as good as absent.
#[derive(Debug)]
pub struct Reader<'a> {
    pub(super) config: &'a Config,
    pub(super) asked: BTreeSet<String>,
    pub(super) known: BTreeSet<String>,
    pub(super) bad: BTreeSet<String>,
    /// First name of a key to the name under which it was found.
    aliases: BTreeMap<String, String>,
    readings: BTreeMap<String, (usize, Reading)>,
    assumptions: Vec<Assumption>,
    pub(super) problems: Vec<Diagnostic>,
    pub(super) errors: usize,
    pub(super) warnings: usize,
}

/// The first of several names that is present.
pub(super) struct Got<'a> {
    pub(super) key: String,
    pub(super) found: Found<'a>,
}

impl<'a> Reader<'a> {
    /// A reader over `config`. `model_type` counts as read.
    pub fn new(config: &'a Config) -> Self {
        Self {
            config,
            asked: BTreeSet::new(),
            known: BTreeSet::from(["model_type".to_owned()]),
            bad: BTreeSet::new(),
            aliases: BTreeMap::new(),
            readings: BTreeMap::new(),
            assumptions: Vec::new(),
            problems: Vec::new(),
            errors: 0,
            warnings: 0,
        }
    }

    /// The configuration that is read.
    pub fn config(&self) -> &'a Config {
        self.config
    }

    /// A positive whole number that must be there; 1 if it is missing or wrong.
    pub fn size(&mut self, key: impl Names) -> u64 {
        self.required(&key, |value| scalar::whole(value, 1)).unwrap_or(1)
    }

    /// The number of blocks, which must be there; 1 if it is missing or wrong.
    pub fn layers(&mut self, key: impl Names) -> u64 {
        self.required(&key, scalar::layers).unwrap_or(1)
    }

    /// The number of blocks, or `default`, recorded as an assumption with `why`.
    pub fn layers_or(&mut self, key: impl Names, default: u64, why: &str) -> u64 {
        self.or_default(&key, scalar::layers, default, why)
    }

    /// A positive whole number, or `default`, recorded as an assumption with `why`.
    pub fn size_or(&mut self, key: impl Names, default: u64, why: &str) -> u64 {
        self.or_default(&key, |value| scalar::whole(value, 1), default, why)
    }

    /// A positive whole number, if it is there.
    pub fn opt_size(&mut self, key: impl Names) -> Option<u64> {
        self.optional(&key, |value| scalar::whole(value, 1))
    }

    /// A whole number that may be 0 and must be there; 1 if it is missing or wrong.
    pub fn count(&mut self, key: impl Names) -> u64 {
        self.required(&key, |value| scalar::whole(value, 0)).unwrap_or(1)
    }

    /// A whole number that may be 0, or `default`, recorded as an assumption with `why`.
    pub fn count_or(&mut self, key: impl Names, default: u64, why: &str) -> u64 {
        self.or_default(&key, |value| scalar::whole(value, 0), default, why)
    }

    /// A whole number that may be 0, if it is there.
    pub fn opt_count(&mut self, key: impl Names) -> Option<u64> {
        self.optional(&key, |value| scalar::whole(value, 0))
    }

    /// A switch, or the default of this model type, recorded as an assumption.
    pub fn flag(&mut self, key: impl Names, default: bool) -> bool {
        self.flag_or(key, default, "the default of this model type")
    }

    /// A switch, or `default`, recorded as an assumption with `why`.
    pub fn flag_or(&mut self, key: impl Names, default: bool, why: &str) -> bool {
        self.or_default(&key, scalar::switch, default, why)
    }

    /// A switch, if it is there.
    pub fn opt_flag(&mut self, key: impl Names) -> Option<bool> {
        self.optional(&key, scalar::switch)
    }

    /// A finite number, or `default`, recorded as an assumption with `why`.
    pub fn float_or(&mut self, key: impl Names, default: f64, why: &str) -> f64 {
        self.or_default(&key, scalar::finite, default, why)
    }

    /// A finite number, if it is there.
    pub fn opt_float(&mut self, key: impl Names) -> Option<f64> {
        self.optional(&key, scalar::finite)
    }

    /// A string that must be there; empty if it is missing or wrong.
    pub fn text(&mut self, key: impl Names) -> String {
        self.required(&key, string).unwrap_or_default()
    }

    /// A string, or `default`, recorded as an assumption with `why`.
    pub fn text_or(&mut self, key: impl Names, default: &str, why: &str) -> String {
        self.or_default(&key, string, default.to_owned(), why)
    }

    /// A string, if it is there.
    pub fn opt_text(&mut self, key: impl Names) -> Option<String> {
        self.optional(&key, string)
    }

    /// A string out of `allowed`; `allowed[0]`, recorded as an assumption with `why`, if it is absent.
    pub fn choice<'c>(&mut self, key: impl Names, allowed: &[&'c str], why: &str) -> &'c str {
        let first = allowed.first().copied().unwrap_or("");
        let Some(got) = self.fetch(&key.names()) else {
            self.assume(key.names()[0], first, why);
            return first;
        };
        match string(got.found.value) {
            Ok(text) => {
                if let Some(one) = allowed.iter().find(|one| **one == text.value) {
                    return one;
                }
                let shown = scalar::short(got.found.value);
                let message = format!("`{}` is {shown}, which is not known", got.key);
                let near = super::near_matches(&text.value, allowed);
                let try_this = near.first().map_or(first, String::as_str);
                let valid = allowed.join(", ");
                let error = Diagnostic::error("T0206", message)
                    .at(self.at(&got.found))
                    .why("what it costs cannot be said")
                    .help(format!("--set {}={try_this}   (known: {valid})", got.key));
                self.fail(&got.key, error);
            }
            Err(refusal) => self.refused(&got, &refusal),
        }
        first
    }

    /// A list of positive whole numbers, if it is there.
    pub fn sizes(&mut self, key: impl Names) -> Option<Vec<u64>> {
        self.list(&key, |value| scalar::whole(value, 1))
    }

    /// A list of whole numbers that may be 0, if it is there.
    pub fn counts(&mut self, key: impl Names) -> Option<Vec<u64>> {
        self.list(&key, |value| scalar::whole(value, 0))
    }

    /// A list of strings, if it is there.
    pub fn texts(&mut self, key: impl Names) -> Option<Vec<String>> {
        self.list(&key, string)
    }

    /// A list of numbers, if it is there.
    pub fn floats(&mut self, key: impl Names) -> Option<Vec<f64>> {
        self.list(&key, scalar::finite)
    }

    /// A list of switches, if it is there.
    pub fn flags(&mut self, key: impl Names) -> Option<Vec<bool>> {
        self.list(&key, scalar::switch)
    }

    /// Length of a list, if it is there. Its items are read by path: `format!("blocks.{i}.width")`.
    pub fn list_len(&mut self, key: impl Names) -> Option<usize> {
        let got = self.fetch(&key.names())?;
        if let Some(items) = got.found.value.items() {
            Some(items.len())
        } else {
            self.wrong_kind(&got, "a list");
            None
        }
    }

    /// The storage dtype from `dtype` or `torch_dtype`, without the prefix `torch.`; `None` if absent or `auto`.
    pub fn dtype(&mut self) -> Option<String> {
        let text = self.opt_text(["dtype", "torch_dtype"])?;
        let plain = text.strip_prefix("torch.").unwrap_or(&text);
        (plain != "auto").then(|| plain.to_owned())
    }

    /// Whether the key is there and not `null`. Does not count as reading it.
    pub fn has(&self, key: &str) -> bool {
        self.config.find(key).is_some_and(|found| !found.value.is_null())
    }

    /// Whether the key holds an object. Does not count as reading it.
    pub fn is_object(&self, key: &str) -> bool {
        self.config.find(key).is_some_and(|found| found.value.is_object())
    }

    /// The value as it stands, for what no other method reads. Counts as reading all of it.
    pub fn raw(&mut self, key: impl Names) -> Option<&'a Value> {
        let got = self.fetch(&key.names())?;
        self.known.insert(got.key);
        Some(got.found.value)
    }

    /// Declares keys that this family knows and that cannot change what it costs.
    pub fn known(&mut self, keys: &[&str]) {
        self.known.extend(keys.iter().map(|key| (*key).to_owned()));
    }

    /// Records a value that the family chose because the file does not say.
    pub fn assume(&mut self, key: &str, value: impl ToString, why: &str) {
        let value = value.to_string();
        let flag = format!("--set {key}={value}");
        self.assumptions.push(Assumption { key: key.to_owned(), value, why: why.to_owned(), flag });
    }

    /// Takes over what a reader of the sub-configuration `key` has collected.
    pub fn absorb(&mut self, key: &str, mut part: Reader<'_>) {
        let config = part.config;
        part.unread(config.effective(), "", &config.effective_pointer());
        self.errors += part.errors;
        self.warnings += part.warnings;
        self.problems.extend(part.problems);
        self.assumptions.extend(part.assumptions.into_iter().map(|one| {
            let key = format!("{key}.{}", one.key);
            let flag = format!("--set {key}={}", one.value);
            Assumption { key, flag, ..one }
        }));
        self.known(&[key]);
    }

    /// Takes over what is wrong with the keys another reader asked for, and what it assumed; keys it did not ask for are
    /// not its business.
    pub fn absorb_problems(&mut self, part: Reader<'_>) {
        self.errors += part.errors;
        self.warnings += part.warnings;
        self.problems.extend(part.problems);
        self.assumptions.extend(part.assumptions);
    }

    /// Whether an error was recorded so far.
    pub fn failed(&self) -> bool {
        self.errors > 0
    }

    /// Warns about every key that nobody read, then gives what was read, or all problems if one of them is an error.
    pub fn finish(mut self) -> Result<Resolved, Diagnostics> {
        let config = self.config;
        self.unread(config.effective(), "", &config.effective_pointer());
        let mut problems = self.problems;
        if self.errors > MAX_PROBLEMS {
            let more = self.errors - MAX_PROBLEMS;
            problems.push(Diagnostic::error("T0200", format!("{more} more errors")));
        }
        if self.warnings > MAX_PROBLEMS {
            let more = self.warnings - MAX_PROBLEMS;
            problems.push(Diagnostic::warning("T0200", format!("{more} more warnings")));
        }
        problems.sort_by_key(|problem| match &problem.location {
            Some(place) => (place.file == "--set", place.line, place.column),
            None => (true, u32::MAX, 0),
        });
        // A key that is read twice says the same thing twice.
        problems.dedup();
        let diagnostics = Diagnostics(problems);
        if self.errors > 0 {
            return Err(diagnostics);
        }
        let mut readings: Vec<(usize, Reading)> = self.readings.into_values().collect();
        readings.sort_by_key(|(order, _)| *order);
        let readings = readings.into_iter().map(|(_, reading)| reading).collect();
        Ok(Resolved { readings, assumptions: self.assumptions, diagnostics })
    }

    /// Warns about the unread keys under `value`, whose path is `path`.
    fn unread(&mut self, value: &Value, path: &str, pointer: &str) {
        for member in value.members() {
            let key = if path.is_empty() { member.key.to_string() } else { format!("{path}.{}", member.key) };
            if is_free(&member.key, &member.value) || self.known.contains(&key) {
                continue;
            }
            let mut place = pointer.to_owned();
            push_pointer(&mut place, &member.key);
            let inside = format!("{key}.");
            let part_read = self.asked.range(inside.clone()..).next().is_some_and(|asked| asked.starts_with(&inside));
            if part_read {
                self.unread(&member.value, &key, &place);
            } else if !self.asked.contains(&key) {
                self.unknown(&key, member, &place);
            }
        }
        for (index, item) in value.items().unwrap_or(&[]).iter().enumerate() {
            self.unread(item, &format!("{path}.{index}"), &format!("{pointer}/{index}"));
        }
    }

    pub(super) fn at(&self, found: &Found<'_>) -> Location {
        self.config.location(found.value.span, &found.pointer)
    }

    /// `read` of the value, and all names of the key marked as bad if it cannot be used.
    fn accept_named<T>(
        &mut self,
        names: &[&str],
        got: &Got<'_>,
        read: impl Fn(&Value) -> Result<Scalar<T>, Refusal>,
    ) -> Option<T> {
        let value = self.accept(got, read);
        if value.is_none() {
            self.bad.extend(names.iter().map(|name| (*name).to_owned()));
        }
        value
    }

    /// Where the value of `key` stands, unless it is absent or `null`.
    pub(super) fn place(&self, key: &str) -> Option<Location> {
        let used = self.aliases.get(key).map_or(key, String::as_str);
        let found = self.config.find(used).filter(|found| !found.value.is_null())?;
        Some(self.at(&found))
    }

    /// The first of `names` that is present, recorded as read. Names that disagree are warned about.
    fn fetch(&mut self, names: &[&str]) -> Option<Got<'a>> {
        let mut first: Option<Got<'a>> = None;
        for name in names {
            self.asked.insert((*name).to_owned());
            let Some(found) = self.config.find(name).filter(|found| !found.value.is_null()) else {
                continue;
            };
            let Some(used) = &first else {
                first = Some(Got { key: (*name).to_owned(), found });
                continue;
            };
            let (a, b) = (scalar::short(used.found.value), scalar::short(found.value));
            if a != b {
                let message = format!("`{}` is {a}, but `{name}` is {b}", used.key);
                let warning = Diagnostic::warning("T0208", message)
                    .at(self.at(&used.found))
                    .label(self.at(&found), "not used")
                    .why("both keys name the same quantity")
                    .effect(format!("`{}` is used", used.key));
                if !self.readings.contains_key(&used.key) {
                    self.note(warning);
                }
            }
        }
        if let Some(got) = &first {
            self.record(got);
            if names.first().is_some_and(|name| *name != got.key) {
                self.aliases.insert(names[0].to_owned(), got.key.clone());
            }
        }
        first
    }

    fn record(&mut self, got: &Got<'_>) {
        // A long list of blocks is read item by item; naming each would cost a line search per item.
        if self.readings.len() >= 10 * MAX_PROBLEMS || self.readings.contains_key(&got.key) {
            return;
        }
        let place = self.at(&got.found);
        let origin =
            if place.file == "--set" { place.file } else { format!("{}:{}:{}", place.file, place.line, place.column) };
        let reading = Reading { key: got.key.clone(), value: scalar::short(got.found.value), origin };
        self.readings.insert(got.key.clone(), (self.readings.len(), reading));
    }

    fn required<T>(&mut self, key: &impl Names, read: impl Fn(&Value) -> Result<Scalar<T>, Refusal>) -> Option<T> {
        let names = key.names();
        if let Some(got) = self.fetch(&names) {
            self.accept_named(&names, &got, read)
        } else {
            self.missing(&names);
            None
        }
    }

    fn optional<T>(&mut self, key: &impl Names, read: impl Fn(&Value) -> Result<Scalar<T>, Refusal>) -> Option<T> {
        let names = key.names();
        let got = self.fetch(&names)?;
        self.accept_named(&names, &got, read)
    }

    fn or_default<T: ToString>(
        &mut self,
        key: &impl Names,
        read: impl Fn(&Value) -> Result<Scalar<T>, Refusal>,
        default: T,
        why: &str,
    ) -> T {
        let names = key.names();
        if let Some(got) = self.fetch(&names) {
            self.accept_named(&names, &got, read).unwrap_or(default)
        } else {
            self.assume(names.first().copied().unwrap_or(""), default.to_string(), why);
            default
        }
    }

    fn list<T>(&mut self, key: &impl Names, read: impl Fn(&Value) -> Result<Scalar<T>, Refusal>) -> Option<Vec<T>> {
        let got = self.fetch(&key.names())?;
        let Some(items) = got.found.value.items() else {
            self.wrong_kind(&got, "a list");
            return None;
        };
        let mut list = Vec::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            let key = format!("{}.{index}", got.key);
            let pointer = format!("{}/{index}", got.found.pointer);
            let one = Got { key, found: Found { value: item, pointer } };
            list.extend(self.accept(&one, &read));
            if self.bad.contains(&one.key) {
                self.bad.insert(got.key.clone());
            }
        }
        (list.len() == items.len()).then_some(list)
    }

    fn accept<T>(&mut self, got: &Got<'_>, read: impl Fn(&Value) -> Result<Scalar<T>, Refusal>) -> Option<T> {
        match read(got.found.value) {
            Ok(scalar) => {
                if let Some(form) = scalar.odd_form {
                    self.odd_form(got, form);
                }
                Some(scalar.value)
            }
            Err(refusal) => {
                self.refused(got, &refusal);
                None
            }
        }
    }
}

fn string(value: &Value) -> Result<Scalar<String>, Refusal> {
    match value.as_str() {
        Some(text) => Ok(Scalar { value: text.to_owned(), odd_form: None }),
        None => Err(Refusal { code: "T0202", is: value.kind_name().to_owned(), expected: "a string" }),
    }
}
