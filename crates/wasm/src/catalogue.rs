//! What the page offers: presets, accelerators, families, questions with their flags.

use serde_json::{Value, json};

/// All of it as JSON.
pub(crate) fn json() -> String {
    let hardware: Vec<Value> =
        plan::hardware::table().iter().map(|one| json!({"name": one.name, "display": one.display})).collect();
    let questions: Vec<Value> = ask::questions()
        .iter()
        .map(|one| {
            let flags: Vec<Value> = one
                .flags
                .iter()
                .map(|flag| {
                    json!({
                        "name": flag.name,
                        "value": flag.value,
                        "repeats": flag.repeats,
                        "help": flag.help,
                        "group": flag.group,
                    })
                })
                .collect();
            json!({"name": one.name, "about": one.about, "flags": flags})
        })
        .collect();
    json!({
        "presets": plan::presets::names().collect::<Vec<_>>(),
        "hardware": hardware,
        "families": nn::families::names(),
        "questions": questions,
    })
    .to_string()
}
