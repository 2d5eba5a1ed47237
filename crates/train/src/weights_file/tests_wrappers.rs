//! Wrappers of an image encoder and a language model, against the tensors that transformers saves of them
//! (`tests/weights_files/wrappers.py`).

use super::tests::{Row, get, report, uint};
use ::safetensors::tensor::Dtype;
use plan::model::Model;
use plan::report::{Value, Verdict};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

fn wrapper(name: &str) -> Model {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../plan/tests/truth/towers");
    let text = fs::read(folder.join(format!("{name}.json"))).unwrap();
    Model::from_text(name, "config.json", &text, &[], None).unwrap()
}

fn saved() -> BTreeMap<String, Vec<Row>> {
    let table = include_str!("../../tests/weights_files/wrappers.csv");
    let mut out: BTreeMap<String, Vec<Row>> = BTreeMap::new();
    for line in table.lines().skip(1) {
        let cells: Vec<&str> = line.split(',').collect();
        let shape = cells[2].split_whitespace().map(|size| size.parse().unwrap()).collect();
        out.entry(cells[0].to_owned()).or_default().push((cells[1].to_owned(), Dtype::F32, shape));
    }
    out
}

#[test]
fn the_tensors_of_a_wrapper_are_those_of_its_config() {
    let saved = saved();
    assert_eq!(saved.len(), 9);
    for (name, tensors) in saved {
        let model = wrapper(&name);
        let report = report(&tensors, &model);
        assert_eq!(get(&report, "against_config.agrees"), &Value::Bool(true), "{name}: {:?}", report.result);
        // Gemma 3 keeps this weight transposed, in no module of its own.
        let bare = (name == "gemma3").then_some("multi_modal_projector.mm_input_projection.weight.");
        assert_eq!(get(&report, "against_config.cut_otherwise"), &Value::list(bare), "{name}");
        assert!(uint(&report, "by_part.vision.parameters") > 0, "{name}");
    }
}

/// Files of LLaVA 1.5 have one more module around the image encoder than later releases.
#[test]
fn modules_around_the_parts_change_nothing() {
    let mut tensors = saved().remove("llava").unwrap();
    for (name, ..) in &mut tensors {
        *name = name.replace("vision_tower.", "vision_tower.vision_model.");
    }
    assert_eq!(report(&tensors, &wrapper("llava")).verdict, Verdict::Answered);
}

#[test]
fn an_encoder_that_is_missing_cut_or_of_another_shape_is_said() {
    let whole = saved().remove("llava").unwrap();
    let model = wrapper("llava");
    let text: Vec<Row> = whole.iter().filter(|(name, ..)| name.starts_with("language_model.")).cloned().collect();
    let report_of_text = report(&text, &model);
    assert_eq!(report_of_text.verdict, Verdict::No);
    let Value::List(missing) = get(&report_of_text, "against_config.missing") else { panic!() };
    assert_eq!(missing.len(), whole.len() - text.len());

    let mut other = whole;
    let projector = other.iter_mut().find(|(name, ..)| name == "multi_modal_projector.linear_1.weight").unwrap();
    projector.2.reverse();
    let found = report(&other, &model);
    assert_eq!(found.verdict, Verdict::No);
    assert_eq!(get(&found, "against_config.other_shape.0.name"), &Value::from("multi_modal_projector.linear_1.weight"));
}
