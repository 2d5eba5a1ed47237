//! The core in a browser: words in, an answer in JSON out. Nothing is decided here; the page shows what it is given.
//!
//! | function | gives |
//! |---|---|
//! | [`answer`] | what `napkin WORDS` answers, as JSON, as a part of a page, and the line that asks it |
//! | [`document`] | the last answer, or what was wrong, as the document of `--json` |
//! | [`redraw`] | a chart of the last answer again: another width, a part of the step |
//! | [`moment`] | what is live where a pointer is on the drawing of a step |
//! | [`flipped`] | a number with one bit the other way |
//! | [`preset`] | the config of a preset |
//! | [`catalogue`] | presets, accelerators, families, and every question with its flags |
//!
//! Strings cross the door, and the bytes of a file that was dropped into the page.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod catalogue;

use std::cell::RefCell;
use std::collections::BTreeMap;

use plan::report::{Chart, Report, Verdict};
use render::{ChartOptions, Units};
use serde_json::json;
use units::{Diagnostic, Diagnostics};
use wasm_bindgen::prelude::wasm_bindgen;

/// Answers are many small allocations: a fifth of their time with the allocator that comes with Rust.
#[cfg(target_arch = "wasm32")]
#[global_allocator]
static ALLOCATOR: talc::wasm::WasmDynamicTalc = talc::wasm::new_wasm_dynamic_allocator();

thread_local! {
    /// The last answer, whose charts are drawn again as the page changes; or what was wrong.
    static LAST: RefCell<Option<Result<Report, Diagnostics>>> = const { RefCell::new(None) };
}

/// Hands the words of a panic to the page, which otherwise only learns that there was one.
#[cfg(target_arch = "wasm32")]
#[wasm_bindgen(start)]
pub fn start() {
    std::panic::set_hook(Box::new(|info| wasm_bindgen::throw_str(&info.to_string())));
}

/// The flag by which the page has the rest of an answer sooner. Where a step fits the answer is the same without it.
const SOONER: &str = " --no-levers";

/// What `napkin WORDS` answers. `words` is a JSON list of them; `name` is that of a file which they may name, and `bytes` is
/// what is in it; charts are `width` pixels wide.
///
/// Gives JSON: `ok`, and then `no` (the answer is "no"), `kind`, `command` and the pieces of a page, which are those of
/// [`render::Pieces`]; or `problems` (text) with the question.
/// Either way `warnings`, each with its `message` and the `pointer` to the key of the config that it is about.
#[wasm_bindgen]
pub fn answer(words: &str, name: &str, bytes: &[u8], width: f64) -> String {
    let words: Vec<String> = match serde_json::from_str(words) {
        Ok(words) => words,
        Err(error) => return json!({"ok": false, "problems": format!("words: {error}"), "warnings": []}).to_string(),
    };
    let files = ask::Given(BTreeMap::from([(name.to_owned(), bytes.to_vec())]));
    let mut answered = ask::answer(&words, &files);
    if let Ok(report) = &mut answered {
        report.command = report.command.replace(SOONER, "");
    }
    let said = match &answered {
        Ok(report) => {
            let pieces = render::pieces(report, ChartOptions { width, units: Units::Iec });
            json!({
                "ok": true,
                "no": report.verdict == Verdict::No,
                "kind": report.kind,
                "command": report.command,
                "answer": pieces.answer,
                "remarks": pieces.remarks,
                "shown": pieces.shown,
                "assumed": pieces.assumed,
                "warnings": report.warnings.iter().map(warning).collect::<Vec<_>>(),
            })
        }
        Err(problems) => json!({
            "ok": false,
            "problems": render::problems_text(problems),
            "warnings": problems.iter().filter(|one| !one.is_error()).map(warning).collect::<Vec<_>>(),
        }),
    };
    LAST.set(Some(answered));
    said.to_string()
}

fn warning(one: &Diagnostic) -> serde_json::Value {
    json!({"message": one.message, "pointer": one.location.as_ref().map(|place| &place.pointer)})
}

/// The last answer, or what was wrong with the question, as the document of `--json`; empty before the first.
#[wasm_bindgen]
pub fn document() -> String {
    LAST.with_borrow(|last| match last {
        Some(Ok(report)) => render::json(report),
        Some(Err(problems)) => render::problems_json(problems),
        None => String::new(),
    })
}

/// A chart of the last answer as SVG, `width` pixels wide; of a step, the part from column `from` to column `to` of its drawing
/// where `to` is larger. Empty where there is no such chart, or nothing in that part.
#[wasm_bindgen]
pub fn redraw(id: &str, width: f64, from: f64, to: f64) -> String {
    let options = ChartOptions { width, units: Units::Iec };
    with_chart(id, |chart| match chart {
        Chart::Timeline(step) if to > from => {
            let place = |column| render::timeline_place(step, column, width);
            let part = step.part(place(from), place(to));
            part.map(|part| render::chart(&Chart::Timeline(part), options)).unwrap_or_default()
        }
        chart => render::chart(chart, options),
    })
}

/// What is live at column `x` of the drawing of the last answer's step, in words; of the part that [`redraw`] drew where `to` is
/// larger than `from`.
#[wasm_bindgen]
pub fn moment(x: f64, width: f64, from: f64, to: f64) -> String {
    with_chart("timeline", |chart| match chart {
        Chart::Timeline(step) if to > from => {
            let place = |column| render::timeline_place(step, column, width);
            let part = step.part(place(from), place(to));
            part.map(|part| render::moment(&part, x, width, Units::Iec)).unwrap_or_default()
        }
        Chart::Timeline(step) => render::moment(step, x, width, Units::Iec),
        _ => String::new(),
    })
}

/// Presets, accelerators, families, and every question with its flags, as JSON.
#[wasm_bindgen]
pub fn catalogue() -> String {
    catalogue::json()
}

/// The config of a preset as text; empty where there is none of that name.
#[wasm_bindgen]
pub fn preset(name: &str) -> String {
    plan::presets::find(name).map(|(_, text)| text.to_owned()).unwrap_or_default()
}

/// The number that `format` stores for `number` with one of its bits the other way, as text; empty where there is none.
#[wasm_bindgen]
pub fn flipped(number: &str, format: &str, bit: u32) -> String {
    let found = plan::dtype_report::format(format).ok().zip(number.parse::<f64>().ok());
    let flipped = found.and_then(|(format, number)| plan::dtype_report::flipped(number, format, bit));
    flipped.map(|number| number.to_string()).unwrap_or_default()
}

/// The style sheet of charts.
#[wasm_bindgen]
pub fn chart_style() -> String {
    render::style().to_owned()
}

fn with_chart(id: &str, drawn: impl FnOnce(&Chart) -> String) -> String {
    LAST.with_borrow(|last| {
        let report = last.as_ref().and_then(|answered| answered.as_ref().ok());
        let chart = report.and_then(|report| report.charts.iter().find(|chart| chart.id() == id));
        chart.map(drawn).unwrap_or_default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(words: &[&str], name: &str, bytes: &[u8]) -> serde_json::Value {
        let words = serde_json::to_string(words).unwrap();
        serde_json::from_str(&answer(&words, name, bytes, 800.0)).unwrap()
    }

    #[test]
    fn an_answer_is_that_of_the_command_line() {
        let said = asked(&["ledger", "gpt2", "--timeline"], "", b"");
        let words = ["ledger", "gpt2", "--timeline"].map(str::to_owned);
        let report = ask::answer(&words, &ask::Given::default()).unwrap();
        assert_eq!(document(), render::json(&report));
        assert_eq!(said["command"], "napkin ledger gpt2 --timeline");
        let shown: Vec<&str> = said["shown"].as_array().unwrap().iter().filter_map(|one| one.as_str()).collect();
        assert!(shown.iter().any(|html| html.starts_with("<figure id=\"ledger-timeline\"")), "{shown:?}");
        // In pieces it says what it says in one.
        let fragment = render::fragment(&report, ChartOptions { width: 800.0, units: Units::Iec });
        let pieces = shown.iter().copied().chain(said["assumed"].as_str());
        assert!(pieces.map(str::to_owned).all(|html| !html.is_empty() && fragment.contains(&html)));
        assert!(fragment.contains(&format!(">{}</h2>", said["answer"].as_str().unwrap())));
        let remarks = said["remarks"].as_array().unwrap().iter().filter_map(|one| one.as_str());
        assert!(remarks.map(|text| format!("<p>{text}</p>")).all(|html| fragment.contains(&html)), "{fragment}");
        let whole = redraw("timeline", 800.0, 0.0, 0.0);
        let part = redraw("timeline", 800.0, 300.0, 500.0);
        assert!(whole.starts_with("<svg") && part.starts_with("<svg") && whole != part);
        assert!(moment(400.0, 800.0, 0.0, 0.0).contains(" = "), "{}", moment(400.0, 800.0, 0.0, 0.0));
        assert_eq!(redraw("roofline", 800.0, 0.0, 0.0), "");
    }

    #[test]
    fn what_is_no_config_is_refused_in_words() {
        let (_, text) = plan::presets::find("gpt2").unwrap();
        let whole = asked(&["params", "config.json"], "config.json", text.as_bytes());
        assert_eq!(whole["ok"], true);
        for bytes in [&text.as_bytes()[..100], b"\x89PNG\r\n\x1a\n\0\0", b""] {
            let said = asked(&["params", "config.json"], "config.json", bytes);
            assert!(said["ok"] == false && said["problems"].as_str().unwrap().contains("error"), "{said}");
            assert!(document().contains("napkin.error/1"), "{}", document());
        }
        assert_eq!(serde_json::from_str::<serde_json::Value>(&answer("{", "", b"", 1.0)).unwrap()["ok"], false);
    }

    #[test]
    fn warnings_point_at_keys() {
        let (_, text) = plan::presets::find("gpt2").unwrap();
        let text = text.replacen('{', "{\"num_widgets\": 4,", 1);
        let said = asked(&["params", "config.json"], "config.json", text.as_bytes());
        let warned = said["warnings"].as_array().unwrap();
        assert!(warned.iter().any(|one| one["pointer"].as_str().unwrap_or("").contains("num_widgets")), "{said}");
    }

    #[test]
    fn one_bit_the_other_way() {
        // 0.5 in bf16 is 0 01111110 0000000.
        assert_eq!(flipped("0.5", "bf16", 0), "-0.5");
        assert_eq!(flipped("0.5", "bf16", 8), "1");
        assert_eq!(flipped("0.5", "bf16", 9), "0.75");
        assert!(flipped("0.5", "bf16", 16).is_empty() && flipped("x", "bf16", 0).is_empty());
    }

    #[test]
    fn the_catalogue_has_every_preset_and_question() {
        let all: serde_json::Value = serde_json::from_str(&catalogue()).unwrap();
        let names: Vec<&str> = all["presets"].as_array().unwrap().iter().filter_map(|one| one.as_str()).collect();
        assert_eq!(names, plan::presets::names().collect::<Vec<_>>());
        assert!(all["hardware"].as_array().unwrap().iter().any(|one| one["name"] == "h100-sxm"));
        assert!(all["questions"].as_array().unwrap().iter().any(|one| one["name"] == "ledger"));
        assert!(preset("gpt2").contains("n_embd") && preset("no").is_empty());
    }
}
