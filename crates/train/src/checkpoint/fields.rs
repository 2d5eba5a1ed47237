//! A JSON object of which every key must be there and no other: nothing optional, nothing ignored.

use nn::config::near_matches;
use serde_json::{Map, Value};
use units::{Diagnostic, Diagnostics, Location};

/// A number as JSON that comes back to the last bit. JSON has no infinities and no NaN: they become text.
pub fn exact(number: f64) -> Value {
    if number.is_finite() { Value::from(number) } else { Value::from(number.to_string()) }
}

/// Reads an object key by key and collects all that is wrong with it.
///
/// Getters give a stand-in where a key is absent or of another type; [`Fields::finish`] then fails.
///
/// ```
/// use napkin_train::checkpoint::Fields;
/// let saved = serde_json::json!({"scale": 65536.0, "god_steps": 7});
/// let mut fields = Fields::new("scaler", &saved);
/// let (_scale, _good) = (fields.float("scale"), fields.count("good_steps"));
/// let problems = fields.finish().unwrap_err();
/// assert!(problems[0].message.contains("`good_steps` is absent"));
/// assert!(problems[1].help[0].contains("did you mean `good_steps`?"));
/// ```
#[derive(Debug)]
pub struct Fields<'a> {
    file: String,
    pointer: String,
    members: Option<&'a Map<String, Value>>,
    asked: Vec<&'static str>,
    problems: Vec<Diagnostic>,
}

impl<'a> Fields<'a> {
    /// Reads `value`, which messages call `file`.
    pub fn new(file: impl Into<String>, value: &'a Value) -> Self {
        Self::at(file.into(), String::new(), value)
    }

    fn at(file: String, pointer: String, value: &'a Value) -> Self {
        let mut fields = Self { file, pointer, members: value.as_object(), asked: Vec::new(), problems: Vec::new() };
        if fields.members.is_none() {
            let problem = fields.problem(format!("{} stands where an object should", shown(value)));
            fields.problems.push(problem);
        }
        fields
    }

    fn problem(&self, message: String) -> Diagnostic {
        Diagnostic::error("T0606", message).at(Location::file(self.file.as_str()).pointer(self.pointer.as_str()))
    }

    /// The value under `key`, whatever it is.
    pub fn value(&mut self, key: &'static str) -> Value {
        self.find(key).cloned().unwrap_or_default()
    }

    fn find(&mut self, key: &'static str) -> Option<&'a Value> {
        self.asked.push(key);
        let members = self.members?;
        let found = members.get(key);
        if found.is_none() {
            let problem = self.problem(format!("`{key}` is absent"));
            self.problems.push(problem);
        }
        found
    }

    fn take<T>(&mut self, key: &'static str, expected: &str, read: impl FnOnce(&'a Value) -> Option<T>) -> Option<T> {
        let value = self.find(key)?;
        let read = read(value);
        if read.is_none() {
            let problem = self.problem(format!("`{key}` is {}, not {expected}", shown(value)));
            self.problems.push(problem);
        }
        read
    }

    /// A value that `read` makes something of; `expected` says what it should be.
    pub fn converted<T>(
        &mut self,
        key: &'static str,
        expected: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Option<T> {
        self.take(key, expected, read)
    }

    /// A whole number.
    pub fn count(&mut self, key: &'static str) -> u64 {
        self.take(key, "a whole number of 64 bits", Value::as_u64).unwrap_or_default()
    }

    /// A number, as [`exact`] wrote it.
    pub fn float(&mut self, key: &'static str) -> f64 {
        self.take(key, "a number", as_float).unwrap_or_default()
    }

    /// A number or `null`.
    pub fn float_or_null(&mut self, key: &'static str) -> Option<f64> {
        let read = |value: &Value| if value.is_null() { Some(None) } else { as_float(value).map(Some) };
        self.take(key, "a number or null", read).flatten()
    }

    /// A text.
    pub fn text(&mut self, key: &'static str) -> String {
        self.take(key, "a text", Value::as_str).unwrap_or_default().to_owned()
    }

    /// `true` or `false`.
    pub fn flag(&mut self, key: &'static str) -> bool {
        self.take(key, "true or false", Value::as_bool).unwrap_or_default()
    }

    /// An object, read by `read`.
    pub fn object<T: Default>(&mut self, key: &'static str, read: impl FnOnce(&mut Fields<'a>) -> T) -> T {
        let Some(value) = self.find(key) else { return T::default() };
        self.inner(format!("{}/{key}", self.pointer), value, read)
    }

    /// An object, read by `read`, or `null`.
    pub fn object_or_null<T>(&mut self, key: &'static str, read: impl FnOnce(&mut Fields<'a>) -> T) -> Option<T> {
        let value = self.find(key).filter(|value| !value.is_null())?;
        Some(self.inner(format!("{}/{key}", self.pointer), value, read))
    }

    /// A list of objects, each read by `read`.
    pub fn list<T>(&mut self, key: &'static str, read: impl Fn(&mut Fields<'a>) -> T) -> Vec<T> {
        let items = self.take(key, "a list", Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let read_item = |(i, item)| self.inner(format!("{}/{key}/{i}", self.pointer), item, &read);
        items.iter().enumerate().map(read_item).collect()
    }

    /// The members of an object whose keys are names of the program, each read by `read`.
    pub fn map<T>(
        &mut self,
        key: &'static str,
        expected: &str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Vec<(String, T)> {
        let Some(members) = self.take(key, "an object", Value::as_object) else { return Vec::new() };
        let mut all = Vec::with_capacity(members.len());
        for (name, value) in members {
            if let Some(value) = read(value) {
                all.push((name.clone(), value));
            } else {
                let problem = self.problem(format!("`{key}.{name}` is {}, not {expected}", shown(value)));
                self.problems.push(problem);
            }
        }
        all
    }

    fn inner<T>(&mut self, pointer: String, value: &'a Value, read: impl FnOnce(&mut Fields<'a>) -> T) -> T {
        let mut fields = Fields::at(self.file.clone(), pointer, value);
        let out = read(&mut fields);
        self.problems.extend(fields.all_problems());
        out
    }

    /// Notes that a value, though of the right type, cannot be.
    pub fn reject(&mut self, key: &'static str, why: impl std::fmt::Display) {
        let problem = self.problem(format!("`{key}` {why}"));
        self.problems.push(problem);
    }

    /// The end of the object.
    ///
    /// # Errors
    /// `T0606` for each key that is absent, unknown (with the absent one it may be a misspelling of), or of another
    /// type.
    pub fn finish(self) -> Result<(), Diagnostics> {
        let problems = self.all_problems();
        if problems.is_empty() { Ok(()) } else { Err(Diagnostics(problems)) }
    }

    fn all_problems(mut self) -> Vec<Diagnostic> {
        let unknown = self.members.into_iter().flat_map(Map::keys).filter(|key| !self.asked.contains(&key.as_str()));
        let complaints: Vec<_> = unknown
            .map(|key| {
                let near = near_matches(key, &self.asked);
                let problem = self.problem(format!("`{key}` is not known"));
                match near.first() {
                    Some(near) => problem.help(format!("did you mean `{near}`?")),
                    None => problem,
                }
            })
            .collect();
        self.problems.extend(complaints);
        self.problems
    }
}

fn as_float(value: &Value) -> Option<f64> {
    match value {
        Value::String(text) => text.parse::<f64>().ok().filter(|number| !number.is_finite()),
        other => other.as_f64(),
    }
}

/// The value itself, where it is short.
fn shown(value: &Value) -> String {
    match value {
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
        Value::String(text) if text.chars().count() > 40 => "a long text".to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn all_problems_at_once() {
        let value = json!({"step": -1, "epoc": 3, "data": {"file": 7, "hash": "x"}, "rng": [{"seed": 1}, 5]});
        let mut fields = Fields::new("m.json", &value);
        fields.count("step");
        fields.count("epoch");
        fields.object("data", |data| (data.text("file"), data.text("hash")));
        fields.list("rng", |rng| rng.count("sed"));
        let problems = fields.finish().unwrap_err();
        let said: Vec<String> = problems
            .iter()
            .map(|p| format!("{} {} {}", p.location.as_ref().unwrap().pointer, p.message, p.help.join(" ")))
            .collect();
        assert_eq!(
            said,
            [
                " `step` is -1, not a whole number of 64 bits ",
                " `epoch` is absent ",
                "/data `file` is 7, not a text ",
                "/rng/0 `sed` is absent ",
                "/rng/0 `seed` is not known did you mean `sed`?",
                "/rng/1 5 stands where an object should ",
                " `epoc` is not known did you mean `epoch`?",
            ]
        );
    }

    #[test]
    fn every_float_comes_back() {
        for number in [0.1, -0.0, 1e-45, 5e-324, 1.797_693_134_862_315_7e308, f64::INFINITY, f64::NEG_INFINITY, 3.0] {
            let text = serde_json::to_string(&json!({ "x": exact(number) })).unwrap();
            let value: Value = serde_json::from_str(&text).unwrap();
            let mut fields = Fields::new("", &value);
            assert_eq!(fields.float("x").to_bits(), number.to_bits(), "{number}");
            fields.finish().unwrap();
        }
        let value = json!({ "x": exact(f64::NAN), "y": "12" });
        let mut fields = Fields::new("", &value);
        assert!(fields.float("x").is_nan());
        fields.float("y");
        assert_eq!(fields.finish().unwrap_err().len(), 1);
    }
}
