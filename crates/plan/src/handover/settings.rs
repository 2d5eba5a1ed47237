//! Options with values, and the forms in which engines read them.

use std::fmt::Write as _;

/// The value of an option.
#[derive(Clone, Debug, PartialEq)]
pub enum Setting {
    /// True or false; a flag that is given.
    Bool(bool),
    /// A whole number.
    Int(u64),
    /// A number.
    Float(f64),
    /// A word.
    Text(String),
    /// Several.
    List(Vec<Setting>),
}

impl From<bool> for Setting {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<u64> for Setting {
    fn from(value: u64) -> Self {
        Self::Int(value)
    }
}

impl From<f64> for Setting {
    fn from(value: f64) -> Self {
        Self::Float(value)
    }
}

impl From<&str> for Setting {
    fn from(value: &str) -> Self {
        Self::Text(value.to_owned())
    }
}

impl From<String> for Setting {
    fn from(value: String) -> Self {
        Self::Text(value)
    }
}

/// A number that every reader of the four forms takes for one with a fraction.
fn float(value: f64) -> String {
    let text = format!("{value:?}");
    // YAML 1.1 takes `1e-5` and `1.0e5` for words.
    match text.split_once('e') {
        Some((digits, power)) => {
            let point = if digits.contains('.') { "" } else { ".0" };
            format!("{digits}{point}e{}{power}", if power.starts_with('-') { "" } else { "+" })
        }
        None => text,
    }
}

/// In double quotes, with the escapes that JSON, TOML and YAML have in common.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => drop(write!(out, "\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

impl Setting {
    /// As JSON; TOML and YAML read it, too.
    fn value(&self) -> String {
        match self {
            Self::Bool(value) => value.to_string(),
            Self::Int(value) => value.to_string(),
            Self::Float(value) => float(*value),
            Self::Text(value) => quoted(value),
            Self::List(items) => {
                let items: Vec<String> = items.iter().map(Self::value).collect();
                format!("[{}]", items.join(", "))
            }
        }
    }

    /// As words of a command line.
    fn words(&self) -> String {
        match self {
            Self::Bool(_) => String::new(),
            Self::Text(value) if value.chars().all(|c| c.is_ascii_alphanumeric() || "_-.+/".contains(c)) => {
                value.clone()
            }
            Self::Text(value) => format!("'{}'", value.replace('\'', r"'\''")),
            Self::List(items) => items.iter().map(Self::words).collect::<Vec<_>>().join(" "),
            other => other.value(),
        }
    }
}

/// Options in the order in which they are written. Options inside others have names with points.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings(Vec<(String, Setting)>);

impl Settings {
    /// Adds an option.
    pub fn set(&mut self, name: impl Into<String>, value: impl Into<Setting>) {
        self.0.push((name.into(), value.into()));
    }

    /// Adds a flag.
    pub fn flag(&mut self, name: impl Into<String>) {
        self.set(name, true);
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Setting)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// Arguments of a command, one on a line, each continued.
    pub fn arguments(&self) -> String {
        self.iter().fold(String::new(), |mut out, (name, value)| {
            let words = value.words();
            let _ = writeln!(out, "  {name}{}{words} \\", if words.is_empty() { "" } else { " " });
            out
        })
    }

    /// TOML.
    pub fn toml(&self) -> String {
        let mut sections: Vec<(&str, String)> = Vec::new();
        for (name, value) in self.iter() {
            let (section, key) = name.rsplit_once('.').unwrap_or(("", name));
            let line = format!("{key} = {}\n", value.value());
            match sections.iter_mut().find(|(open, _)| *open == section) {
                Some((_, lines)) => lines.push_str(&line),
                None => sections.push((section, format!("[{section}]\n{line}"))),
            }
        }
        let sections: Vec<String> = sections.into_iter().map(|(_, lines)| lines).collect();
        sections.join("\n").trim_start_matches("[]\n").to_owned()
    }

    /// JSON.
    pub fn json(&self) -> String {
        let mut out = String::from("{\n");
        self.nest(&mut Json { out: &mut out, first: true });
        out.push_str("\n}\n");
        out
    }

    /// YAML.
    pub fn yaml(&self) -> String {
        let mut out = String::new();
        self.nest(&mut Yaml { out: &mut out });
        out
    }

    /// Writes options under those that they are inside of, in the order in which each is first named.
    fn nest(&self, form: &mut dyn Form) {
        nest(&self.iter().collect::<Vec<_>>(), 0, form);
    }
}

fn nest(options: &[(&str, &Setting)], depth: usize, form: &mut dyn Form) {
    let mut done: Vec<&str> = Vec::new();
    for (name, value) in options {
        let Some((outer, _)) = name.split_once('.') else {
            form.entry(depth, name, value);
            continue;
        };
        if done.contains(&outer) {
            continue;
        }
        done.push(outer);
        let inner: Vec<(&str, &Setting)> = options
            .iter()
            .filter_map(|(name, value)| {
                name.split_once('.').filter(|(first, _)| *first == outer).map(|(_, rest)| (rest, *value))
            })
            .collect();
        form.open(depth, outer);
        nest(&inner, depth + 1, form);
        form.close(depth);
    }
}

/// How nested options are written.
trait Form {
    fn open(&mut self, depth: usize, key: &str);
    fn entry(&mut self, depth: usize, key: &str, value: &Setting);
    fn close(&mut self, depth: usize);
}

struct Json<'a> {
    out: &'a mut String,
    first: bool,
}

impl Json<'_> {
    fn key(&mut self, depth: usize, key: &str) {
        if !self.first {
            self.out.push_str(",\n");
        }
        self.first = false;
        let _ = write!(self.out, "{}{}: ", "  ".repeat(depth + 1), quoted(key));
    }
}

impl Form for Json<'_> {
    fn open(&mut self, depth: usize, key: &str) {
        self.key(depth, key);
        self.out.push_str("{\n");
        self.first = true;
    }

    fn entry(&mut self, depth: usize, key: &str, value: &Setting) {
        self.key(depth, key);
        self.out.push_str(&value.value());
    }

    fn close(&mut self, depth: usize) {
        let _ = write!(self.out, "\n{}}}", "  ".repeat(depth + 1));
        self.first = false;
    }
}

struct Yaml<'a> {
    out: &'a mut String,
}

impl Form for Yaml<'_> {
    fn open(&mut self, depth: usize, key: &str) {
        let _ = writeln!(self.out, "{}{key}:", "  ".repeat(depth));
    }

    fn entry(&mut self, depth: usize, key: &str, value: &Setting) {
        let _ = writeln!(self.out, "{}{key}: {}", "  ".repeat(depth), value.value());
    }

    fn close(&mut self, _: usize) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> Settings {
        let mut all = Settings::default();
        all.set("name", "a \"b\"\n");
        all.set("a.b.c", 1u64);
        all.set("a.b.d", 1e-5);
        all.set("a.e", Setting::List(vec![true.into(), "x y".into()]));
        all.set("f.g", 2.0);
        all.set("a.b.h", 1e20);
        all
    }

    #[test]
    fn four_forms() {
        assert_eq!(
            some().json(),
            "{\n  \"name\": \"a \\\"b\\\"\\u000a\",\n  \"a\": {\n    \"b\": {\n      \"c\": 1,\n      \"d\": 1.0e-5,\n      \"h\": 1.0e+20\n    },\n    \
             \"e\": [true, \"x y\"]\n  },\n  \"f\": {\n    \"g\": 2.0\n  }\n}\n"
        );
        assert_eq!(
            some().yaml(),
            "name: \"a \\\"b\\\"\\u000a\"\na:\n  b:\n    c: 1\n    d: 1.0e-5\n    h: 1.0e+20\n  e: [true, \"x y\"]\nf:\n  g: 2.0\n"
        );
        let table: toml::Table = some().toml().parse().unwrap();
        assert_eq!(table["a"]["b"]["d"].as_float(), Some(1e-5));
        assert_eq!(table["name"].as_str(), Some("a \"b\"\n"));
        assert_eq!(table["a"]["b"]["h"].as_float(), Some(1e20));
        assert_eq!(table["f"]["g"].as_float(), Some(2.0));
        let mut words = Settings::default();
        words.flag("--bf16");
        words.set("--layout", "Et*2|t*2L");
        words.set("--modules", Setting::List(vec!["a".into(), "it's".into()]));
        assert_eq!(words.arguments(), "  --bf16 \\\n  --layout 'Et*2|t*2L' \\\n  --modules a 'it'\\''s' \\\n");
    }
}
