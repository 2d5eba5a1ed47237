//! What the readers of all engines share: values with places, what was not looked at, number formats and batches.

use nn::HeadLoss;
use nn::config::near_matches;
use nn::optim::OptimizerKind;
use nn::spec::ModelSpec;
use nn::step::Precision;
use std::collections::BTreeMap;
use std::ops::Range;
use units::{Diagnostic, Diagnostics, Location};

use super::options::{self, Kind};
use super::settings::Setting;
use super::{Engine, settled};
use crate::layout::Layout;

/// What is known beside the text.
#[derive(Clone, Copy, Debug)]
pub struct Around<'a> {
    /// Name of the file, for messages.
    pub file: &'a str,
    /// The model that is trained.
    pub model: &'a ModelSpec,
    /// Devices of the run, where the text may leave them open.
    pub devices: Option<u64>,
}

/// A layout that was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Taken {
    /// The layout.
    pub layout: Layout,
    /// Tokens of a sequence, where the text says so.
    pub seq_len: Option<u64>,
    /// Number formats, where the text says so.
    pub precision: Option<Precision>,
    /// The update, where the text says so.
    pub optimizer: Option<OptimizerKind>,
    /// How head and loss run, where the text says so.
    pub loss: Option<HeadLoss>,
    /// What may change the cost and is not in the layout, and what was read as the nearest that there is.
    pub warnings: Vec<Diagnostic>,
}

/// Largest text that is read.
pub(super) const MAX_BYTES: usize = 1 << 20;

/// Most options that are named one by one where the engine does not have them.
const MOST_UNKNOWN: usize = 20;

/// The options of a text.
pub(super) struct Values<'a> {
    engine: Engine,
    around: &'a Around<'a>,
    text: &'a str,
    entries: BTreeMap<String, Entry>,
    capitals: Option<&'static str>,
    unreadable: bool,
    /// What is wrong so far.
    pub problems: Diagnostics,
}

struct Entry {
    value: Setting,
    span: Range<usize>,
    looked_at: bool,
}

impl<'a> Values<'a> {
    /// No options yet.
    ///
    /// # Errors
    /// `T0494` for a text that is too long.
    pub fn new(engine: Engine, text: &'a str, around: &'a Around<'a>) -> Result<Self, Diagnostics> {
        if text.len() > MAX_BYTES {
            let problem = Diagnostic::error("T0494", format!("`{}` has {} bytes", around.file, text.len()));
            return Err(problem.help(format!("configurations of at most {MAX_BYTES} bytes are read")).into());
        }
        Ok(Self {
            engine,
            around,
            text,
            entries: BTreeMap::new(),
            capitals: None,
            unreadable: false,
            problems: Diagnostics::new(),
        })
    }

    fn place(&self, span: &Range<usize>) -> Location {
        Location::in_source(self.around.file, self.text, span.clone())
    }

    /// Reads the words of an option that is added from here on in capitals.
    pub fn in_capitals(&mut self, name: &'static str) {
        self.capitals = Some(name);
    }

    /// Adds an option; one that the engine knows must have a value it takes. Of two the later one holds.
    pub fn add(&mut self, name: &str, value: Setting, span: Range<usize>) {
        let value = match value {
            Setting::Text(word) if self.capitals == Some(name) => Setting::Text(word.to_ascii_uppercase()),
            value => value,
        };
        if let Some(known) = options::of(self.engine).get(name)
            && !known.takes(&value)
        {
            let takes = match known.kind {
                Kind::Flag => "no value".to_owned(),
                Kind::Bool => "true or false".to_owned(),
                Kind::Int => "a whole number".to_owned(),
                Kind::Float => "a number".to_owned(),
                Kind::Str | Kind::Map => "a word".to_owned(),
                Kind::Choice | Kind::List if known.choices.is_empty() => "a list".to_owned(),
                Kind::Choice | Kind::List => known.choices.join(", "),
            };
            let problem =
                Diagnostic::error("T0494", format!("`{name}` does not take this value")).at(self.place(&span));
            self.problems.push(problem.help(format!("it takes {takes}")));
        }
        let entry = Entry { value, span, looked_at: false };
        if let Some(before) = self.entries.insert(name.to_owned(), entry) {
            let after = &self.entries[name];
            if before.value != after.value {
                let problem =
                    Diagnostic::warning("T0496", format!("`{name}` is given twice")).at(self.place(&after.span));
                self.problems.push(problem.label(self.place(&before.span), "this one is not used"));
            }
        }
    }

    /// The value of an option.
    pub fn value(&mut self, name: &str) -> Option<&Setting> {
        let entry = self.entries.get_mut(name)?;
        entry.looked_at = true;
        Some(&entry.value)
    }

    /// Whether a flag is given, or an option is true.
    pub fn is(&mut self, name: &str) -> bool {
        self.value(name) == Some(&Setting::Bool(true))
    }

    /// A whole number.
    pub fn int(&mut self, name: &str) -> Option<u64> {
        match self.value(name)? {
            Setting::Int(value) => Some(*value),
            _ => None,
        }
    }

    /// A whole number above zero.
    pub fn some(&mut self, name: &str) -> Option<u64> {
        let value = self.int(name)?;
        if value == 0 {
            self.problem(name, Diagnostic::error("T0494", format!("`{name}` is 0")).help("1 divides nothing"));
            return None;
        }
        Some(value)
    }

    /// A degree: 1 where nothing is said.
    pub fn degree(&mut self, name: &str) -> u64 {
        self.some(name).unwrap_or(1)
    }

    /// A number.
    pub fn number(&mut self, name: &str) -> Option<f64> {
        match self.value(name)? {
            Setting::Int(value) => Some(*value as f64),
            Setting::Float(value) => Some(*value),
            _ => None,
        }
    }

    /// A word.
    pub fn word(&mut self, name: &str) -> Option<String> {
        match self.value(name)? {
            Setting::Text(word) => Some(word.clone()),
            _ => None,
        }
    }

    /// Several words.
    pub fn words(&mut self, name: &str) -> Option<Vec<String>> {
        match self.value(name)? {
            Setting::List(items) => {
                let words = items.iter().map(|item| match item {
                    Setting::Text(word) => word.clone(),
                    Setting::Int(number) => number.to_string(),
                    other => format!("{other:?}"),
                });
                Some(words.collect())
            }
            _ => None,
        }
    }

    /// Notes a problem with an option, at its place.
    pub fn problem(&mut self, name: &str, problem: Diagnostic) {
        let problem = match self.entries.get(name) {
            Some(entry) => problem.at(self.place(&entry.span)),
            None => problem,
        };
        self.problems.push(problem);
    }

    /// Notes that the text cannot be read from a place on.
    pub fn unreadable(&mut self, span: Range<usize>, what: &str, help: &str) {
        self.unreadable = true;
        let place = if span.is_empty() { Location::file(self.around.file) } else { self.place(&span) };
        self.problems.push(Diagnostic::error("T0494", what).at(place).help(help));
    }

    /// Ends the reading of a text that cannot be read.
    ///
    /// # Errors
    /// What was noted.
    pub fn stop(&mut self) -> Result<(), Diagnostics> {
        if self.unreadable { Err(std::mem::take(&mut self.problems)) } else { Ok(()) }
    }

    /// Notes that an option was read as the nearest that there is.
    pub fn nearest(&mut self, name: &str, as_what: &str, effect: &str) {
        let warning = Diagnostic::warning("T0499", format!("`{name}` is read as {as_what}")).effect(effect);
        self.problem(name, warning);
    }

    /// Holds a size in the text against that of the model.
    pub fn same(&mut self, name: &str, size: Option<u64>) {
        let (Some(stated), Some(size)) = (self.int(name), size) else { return };
        if stated != size {
            let problem = Diagnostic::warning("T0496", format!("`{name}` is {stated}, that of the model is {size}"));
            self.problem(name, problem.effect("the layout is read for the model given, not for the one in the file"));
        }
    }

    /// Sees these without asking.
    pub fn skip(&mut self, names: &[&str]) {
        for name in names {
            self.value(name);
        }
    }

    /// Replicas of the model, from the devices and how many of them hold one.
    pub fn replicas(&mut self, devices: Option<u64>, shared: u64) -> Option<u64> {
        let Some(devices) = self.around.devices.or(devices) else {
            self.problems.push(
                Diagnostic::error("T0495", "how many devices run this is not in the file")
                    .why("replicas are the devices over those that share one model")
                    .help("say so: -n DEVICES"),
            );
            return None;
        };
        if devices == 0 || shared == 0 || !devices.is_multiple_of(shared) {
            let problem = Diagnostic::error(
                "T0496",
                format!("{devices} devices are no multiple of the {shared} that share one model"),
            );
            let nearest = (devices / shared.max(1)).max(1).saturating_mul(shared);
            self.problems.push(problem.help(format!("{nearest} devices would do")));
            return None;
        }
        Some(devices / shared)
    }

    /// Holds the devices that the file makes against those that were said.
    pub fn makes(&mut self, devices: u64) {
        // A degree that is wrong makes a number that is wrong.
        let said = self.around.devices.filter(|said| *said != devices && !self.problems.has_errors());
        if let Some(said) = said {
            let problem = Diagnostic::error("T0496", format!("the file is for {devices} devices, not for {said}"));
            self.problems.push(problem.help(format!("-n {devices}")));
        }
    }

    /// Micro-batches of a step, where the batch of a step and that of all replicas at once are known.
    pub fn accumulation(&mut self, name: &str, global: u64, at_once: u64) -> u64 {
        if at_once == 0 || global == 0 || !global.is_multiple_of(at_once) {
            let problem = Diagnostic::error(
                "T0496",
                format!("a batch of {global} sequences is no multiple of the {at_once} that replicas take at once"),
            );
            let nearest = global.div_ceil(at_once.max(1)).saturating_mul(at_once);
            self.problem(name, problem.help(format!("{nearest} sequences would do")));
            return 1;
        }
        global / at_once
    }

    /// The layout, with what was not looked at.
    ///
    /// # Errors
    /// All problems that leave no layout.
    pub fn finish(
        mut self,
        layout: &Layout,
        seq_len: Option<u64>,
        precision: Option<Precision>,
    ) -> Result<Taken, Diagnostics> {
        let known = options::of(self.engine);
        // What stands in an option that the table does not go into counts as that option.
        let find = |name: &str| {
            let inside = || {
                let mut outer = name;
                while let Some((before, _)) = outer.rsplit_once('.') {
                    outer = before;
                    if let Some(map) = known.get(outer).filter(|map| map.kind == Kind::Map) {
                        return Some(map);
                    }
                }
                None
            };
            known.get(name).or_else(inside)
        };
        let (mut costly, mut strange) = (Vec::new(), Vec::new());
        for (name, entry) in self.entries.iter().filter(|(_, entry)| !entry.looked_at) {
            match find(name) {
                Some(option) if option.costs => costly.push(name.clone()),
                Some(_) => {}
                None => strange.push((name.clone(), entry.span.clone())),
            }
        }
        if !costly.is_empty() {
            let text = format!("not in the layout: {}", costly.join(", "));
            self.problems.push(
                Diagnostic::warning("T0497", text)
                    .effect("these may change what a step takes of memory or time; answers leave them out"),
            );
        }
        let title = self.engine.title();
        let names: Vec<&str> = known.keys().copied().collect();
        for (name, span) in strange.iter().take(MOST_UNKNOWN) {
            let warning = Diagnostic::warning("T0498", format!("{title} has no option `{name}` that is known here"));
            let near = near_matches(name, &names);
            let warning = warning.at(self.place(span)).effect("it is not read");
            self.problems.push(match near.first() {
                Some(near) => warning.help(format!("`{near}`")),
                None => warning,
            });
        }
        if strange.len() > MOST_UNKNOWN {
            let text = format!("{} more options that {title} does not have", strange.len() - MOST_UNKNOWN);
            self.problems.push(Diagnostic::warning("T0498", text));
        }
        if self.problems.has_errors() {
            return Err(self.problems.into_iter().filter(Diagnostic::is_error).collect());
        }
        let layout = settled(layout, self.around.model);
        Ok(Taken { layout, seq_len, precision, optimizer: None, loss: None, warnings: self.problems.0 })
    }
}
