//! Two configs of which one model must come.

use nn::config::Config;
use nn::config::json::Value;
use nn::families;
use nn::spec::ModelSpec;
use std::collections::BTreeMap;
use units::{Diagnostic, Diagnostics, Location};

/// Checks that the config of a checkpoint and another describe one model.
///
/// What decides is the model and not the text: keys that change nothing in it may differ.
///
/// # Errors
/// `T0616` for each key by which the models differ; whatever is wrong with one of the configs.
pub(crate) fn compare(saved: &Config, family: &str, given: &Config) -> Result<(), Diagnostics> {
    let here = Location::file(given.file_name());
    let stated = |config: &Config| config.model_type().unwrap_or(family).to_owned();
    if stated(saved) != stated(given) {
        let (was, is) = (stated(saved), stated(given));
        let message = format!("the checkpoint is of a `{was}` model, the config of a `{is}` model");
        return Err(complete(vec![Diagnostic::error("T0616", message).at(here)], saved));
    }
    let ours = families::load(saved, Some(family))?.spec;
    let theirs = families::load(given, Some(family))?.spec;
    if ours == theirs {
        return Ok(());
    }
    let keys = differing(saved, given).into_iter().filter(|key| matters(saved, family, &ours, key, given));
    let mut problems: Vec<Diagnostic> = keys
        .map(|key| {
            let (was, is) = (value_of(saved, &key), value_of(given, &key));
            let message = format!("`{key}` is {was} in the checkpoint and {is} in the config");
            Diagnostic::error("T0616", message).at(here.clone())
        })
        .collect();
    if problems.is_empty() {
        let message = "the config describes another model than the checkpoint";
        problems.push(Diagnostic::error("T0616", message).at(here));
    }
    Err(complete(problems, saved))
}

/// The problems, of which the last says why and what to do.
fn complete(mut problems: Vec<Diagnostic>, saved: &Config) -> Diagnostics {
    if let Some(last) = problems.last_mut() {
        last.why = Some("a checkpoint goes on only as the model it was saved from".to_owned());
        last.help.push(format!("use the checkpoint's own config: {}", saved.file_name()));
    }
    Diagnostics(problems)
}

/// Keys of the parts that describe the model under which the two hold different values.
fn differing(a: &Config, b: &Config) -> Vec<String> {
    let (a, b) = (leaves(a), leaves(b));
    let mut keys: Vec<String> = a.keys().chain(b.keys()).filter(|key| a.get(*key) != b.get(*key)).cloned().collect();
    keys.sort();
    keys.dedup();
    keys
}

/// Members by dotted path, each as text. Lists are one value.
fn leaves(config: &Config) -> BTreeMap<String, String> {
    fn walk(value: &Value, path: &str, out: &mut BTreeMap<String, String>) {
        for member in value.members() {
            let path = if path.is_empty() { member.key.to_string() } else { format!("{path}.{}", member.key) };
            if member.value.is_object() {
                walk(&member.value, &path, out);
            } else {
                out.insert(path, member.value.to_string());
            }
        }
    }
    let mut out = BTreeMap::new();
    walk(config.effective(), "", &mut out);
    out
}

fn value_of(config: &Config, key: &str) -> String {
    leaves(config).remove(key).unwrap_or_else(|| "absent".to_owned())
}

/// Whether the value that `given` has under `key` would make another model of the saved config.
fn matters(saved: &Config, family: &str, ours: &ModelSpec, key: &str, given: &Config) -> bool {
    let value = leaves(given).remove(key).unwrap_or_else(|| "null".to_owned());
    let (changed, problems) = saved.clone().with_overrides(&[(key.to_owned(), value)]);
    problems.has_errors() || families::load(&changed, Some(family)).map_or(true, |loaded| loaded.spec != *ours)
}
