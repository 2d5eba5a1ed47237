//! Which options each engine has, as facts: the tables of `data/engines`, each row with who says so.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use super::Engine;
use super::settings::Setting;

/// What an option takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Nothing: it is given, or it is not.
    Flag,
    /// True or false.
    Bool,
    /// A whole number.
    Int,
    /// A number.
    Float,
    /// One of some words.
    Choice,
    /// Any word.
    Str,
    /// Several words.
    List,
    /// Options of its own, which the table does not go into.
    Map,
}

/// One option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// What it takes.
    pub kind: Kind,
    /// The words it may be, where they are few.
    pub choices: Vec<&'static str>,
    /// Whether it may change what a step takes of memory or time.
    pub costs: bool,
    /// Who says so.
    pub source: &'static str,
    /// When that was read.
    pub read: &'static str,
}

impl Known {
    /// Whether the engine takes this value.
    pub fn takes(&self, value: &Setting) -> bool {
        let listed = |word: &str| self.choices.is_empty() || self.choices.contains(&word);
        match (self.kind, value) {
            (Kind::Flag | Kind::Bool, Setting::Bool(_))
            | (Kind::Float, Setting::Int(_) | Setting::Float(_))
            | (Kind::Int, Setting::Int(_))
            | (Kind::Str, Setting::Text(_) | Setting::Int(_)) => true,
            (Kind::Choice, Setting::Text(word)) => listed(word),
            (Kind::Choice, Setting::Bool(value)) => listed(&value.to_string()),
            (Kind::Choice, Setting::Int(number)) => listed(&number.to_string()),
            (Kind::List, Setting::List(words)) => words.iter().all(|word| match word {
                Setting::Text(word) => listed(word),
                Setting::List(_) => self.choices.is_empty(),
                _ => true,
            }),
            _ => false,
        }
    }
}

/// All options of an engine by name. Options inside others have names with points: `zero_optimization.stage`.
pub fn of(engine: Engine) -> &'static BTreeMap<&'static str, Known> {
    static TABLES: OnceLock<[BTreeMap<&'static str, Known>; 5]> = OnceLock::new();
    let tables =
        TABLES.get_or_init(|| Engine::ALL.map(|engine| table(engine).lines().skip(1).filter_map(row).collect()));
    &tables[engine as usize]
}

/// The table of an engine.
const fn table(engine: Engine) -> &'static str {
    match engine {
        Engine::Megatron => include_str!("../../../../data/engines/megatron.csv"),
        Engine::Torchtitan => include_str!("../../../../data/engines/torchtitan.csv"),
        Engine::DeepSpeed => include_str!("../../../../data/engines/deepspeed.csv"),
        Engine::Fsdp => include_str!("../../../../data/engines/fsdp.csv"),
        Engine::Nanotron => include_str!("../../../../data/engines/nanotron.csv"),
    }
}

/// A row of a table; nothing for what is none, which a test looks for.
fn row(line: &'static str) -> Option<(&'static str, Known)> {
    let mut cells = line.split(',');
    let mut cell = || cells.next();
    let name = cell()?;
    let kind = match cell()? {
        "flag" => Kind::Flag,
        "bool" => Kind::Bool,
        "int" => Kind::Int,
        "float" => Kind::Float,
        "choice" => Kind::Choice,
        "str" => Kind::Str,
        "list" => Kind::List,
        "map" => Kind::Map,
        _ => return None,
    };
    let choices = cell()?.split('|').filter(|word| !word.is_empty()).collect();
    let costs = match cell()? {
        "yes" => true,
        "no" => false,
        _ => return None,
    };
    Some((name, Known { kind, choices, costs, source: cell()?, read: cell()? }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_every_table_is_read() {
        for engine in Engine::ALL {
            assert_eq!(of(engine).len() + 1, table(engine).lines().count(), "{engine}");
            for (name, known) in of(engine) {
                assert!(known.source.contains('/') && known.read.starts_with("20"), "{engine}: {name}");
                assert_eq!(known.kind == Kind::Choice, !known.choices.is_empty() && known.kind != Kind::List, "{name}");
            }
        }
    }
}
