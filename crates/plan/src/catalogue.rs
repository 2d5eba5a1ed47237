//! The presets and families that are known.

use nn::families;
use units::Diagnostics;

use crate::model::Model;
use crate::params::{Counts, parameters};
use crate::phrase;
use crate::presets::PRESETS;
use crate::report::{Block, Cell, Column, Phrase, Report, Row, Table, Value};

/// All presets with their sizes, and the families a config may declare.
///
/// # Errors
/// None: the presets are tested.
pub fn report() -> Result<Report, Diagnostics> {
    let columns = ["preset", "family"].map(Column::left).into_iter();
    let columns = columns.chain(["parameters", "active"].map(Column::right));
    let mut table = Table::new("", columns);
    let mut list = Vec::new();
    for (name, text) in PRESETS {
        let model = Model::from_text(*name, &format!("{name}.json"), text.as_bytes(), &[], None)?;
        let counts = Counts::of(&parameters(&model)?);
        let active = if counts.active == counts.stored { Cell::Empty } else { counts.active.into() };
        table.rows.push(Row::new([Cell::from(*name), model.spec.family.as_str().into(), counts.stored.into(), active]));
        let entry = Value::map().with("name", *name).with("model_type", model.spec.family.as_str());
        list.push(entry.with("params", counts.result()));
    }
    let names = families::names();
    let mut report =
        Report::new("models", phrase![PRESETS.len() as u64, " presets of ", names.len() as u64, " families"]);
    report.blocks.push(table.into());
    report.blocks.push(Block::text("model_type in a config.json may be", [Phrase::from(names.join(", "))]));
    report.result = Value::map().with("presets", Value::List(list)).with("families", Value::list(names));
    Ok(report)
}
