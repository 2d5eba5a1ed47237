//! Constants of the model of time: what each is, where it comes from, and how sure it is.
//!
//! They stand in `data/time`: one file for each architecture, one for all others, and one of rules that belong to none.

use std::sync::LazyLock;

use toml::{Table, Value};

use crate::hardware::{Hardware, Source};
use crate::section::Section;

/// How a constant came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It follows from definitions.
    Exact,
    /// A maker or an author states it.
    Datasheet,
    /// Measured of that thing alone.
    Measured,
    /// Chosen so that whole steps come out right, on rows that may be used for that.
    Fitted,
    /// What is usual, or lies between others.
    Assumed,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 5] = [Self::Exact, Self::Datasheet, Self::Measured, Self::Fitted, Self::Assumed];

    /// Name in data files and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Datasheet => "datasheet",
            Self::Measured => "measured",
            Self::Fitted => "fitted",
            Self::Assumed => "assumed",
        }
    }
}

/// A number with its origin.
#[derive(Clone, Debug, PartialEq)]
pub struct Constant {
    /// Its name, with its unit where it has one.
    pub name: String,
    /// The number.
    pub value: f64,
    /// How it came about.
    pub kind: Kind,
    /// Who says so.
    pub source: Source,
}

impl Constant {
    /// Reads `{ value, kind, source, date }`.
    pub(super) fn read(section: &Section<'_>, key: &str) -> Result<Self, String> {
        let table = section.get(key, "table", Value::as_table)?;
        let fields = Section::new(key, table, &["value", "kind", "source", "date"])?;
        let value = fields.get("value", "number of at least zero", |value| {
            let number = value.as_float().or_else(|| value.as_integer().map(|n| n as f64))?;
            (number >= 0.0 && number.is_finite()).then_some(number)
        })?;
        let text = fields.text("kind")?;
        let kind = Kind::ALL.into_iter().find(|kind| kind.name() == text);
        let kind = kind.ok_or_else(|| format!("`kind = \"{text}\"` of {key}: no such kind"))?;
        Ok(Self { name: key.to_owned(), value, kind, source: fields.source()? })
    }
}

/// What a training step reaches of the numbers of an accelerator.
#[derive(Clone, Debug, PartialEq)]
pub struct Family {
    /// The architecture, as the hardware table has it; `generic` for all that have no file.
    pub architecture: String,
    /// The constants.
    pub constants: Vec<Constant>,
}

/// Names of the constants of a family, and whether it may lack them.
const OF_FAMILY: [(&str, bool); 11] = [
    ("products", false),
    ("attention", false),
    ("bandwidth", false),
    ("launch_us", false),
    ("kernel_us", false),
    ("processors", false),
    ("node_ring", false),
    ("node_reduce", true),
    ("node_tree_gb_s", false),
    ("node_step_us", false),
    ("node_start_us", false),
];

impl Family {
    fn read(text: &str) -> Result<Self, String> {
        let table: Table = text.parse().map_err(|error: toml::de::Error| error.to_string())?;
        let top = Section::new("the file", &table, &["architecture", "constant"])?;
        let section = top.section("constant", &OF_FAMILY.map(|(name, _)| name))?;
        let needed = OF_FAMILY.iter().filter(|(name, optional)| !optional || section.has(name));
        Ok(Self {
            architecture: top.text("architecture")?,
            constants: needed.map(|(name, _)| Constant::read(&section, name)).collect::<Result<_, _>>()?,
        })
    }

    /// The constant of that name.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.constants.iter().find(|constant| constant.name == name).map(|constant| constant.value)
    }

    /// The same with another value for a constant, which a measurement of one's own may be.
    #[must_use]
    pub fn with(mut self, name: &str, value: f64) -> Self {
        for constant in self.constants.iter_mut().filter(|constant| constant.name == name) {
            constant.value = value;
        }
        self
    }

    /// That of an accelerator: of its architecture, or the generic one.
    pub fn of(hardware: &Hardware) -> &'static Self {
        let families = families();
        let own = families.iter().find(|family| family.architecture == hardware.architecture);
        own.unwrap_or(&families[families.len() - 1])
    }
}

/// All families, the generic one last.
pub fn families() -> &'static [Family] {
    static FAMILIES: LazyLock<Vec<Family>> = LazyLock::new(|| {
        FAMILY_FILES
            .iter()
            .map(|(name, text)| {
                Family::read(text).unwrap_or_else(|problem| unreachable!("data/time/{name}: {problem}"))
            })
            .collect()
    });
    &FAMILIES
}

const FAMILY_FILES: [(&str, &str); 4] = [
    ("hopper.toml", include_str!("../../../../data/time/hopper.toml")),
    ("ampere.toml", include_str!("../../../../data/time/ampere.toml")),
    ("blackwell.toml", include_str!("../../../../data/time/blackwell.toml")),
    ("generic.toml", include_str!("../../../../data/time/generic.toml")),
];

/// Rules that belong to no accelerator.
#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    /// The constants.
    pub constants: Vec<Constant>,
    /// Those of frameworks, by their names.
    pub frameworks: Vec<(String, Vec<Constant>)>,
}

const OF_RULES: [&str; 19] = [
    "evenness",
    "taken",
    "jitter",
    "between_failures_h",
    "usual_of_peak",
    "host_copy",
    "host_gb",
    "host_memory_gb_s",
    "host_update",
    "trace_launches",
    "tree_below_mib",
    "restart_s",
    "fetch",
    "ramp",
    "attention_narrow",
    "attention_backward",
    "attention_causal",
    "attention_ramp",
    "attention_ramp_backward",
];
const OF_FRAMEWORK: [&str; 5] = ["head", "slice_ops", "ends_wait", "messages_wait", "mixed_cards"];

impl Rules {
    fn read(text: &str) -> Result<Self, String> {
        let table: Table = text.parse().map_err(|error: toml::de::Error| error.to_string())?;
        let top = Section::new("the file", &table, &["constant", "framework"])?;
        let section = top.section("constant", &OF_RULES)?;
        let constants = OF_RULES.iter().map(|name| Constant::read(&section, name)).collect::<Result<_, _>>()?;
        let mut frameworks = Vec::new();
        for (name, value) in top.get("framework", "table", Value::as_table)? {
            let table = value.as_table().ok_or_else(|| format!("`framework.{name}` is no table"))?;
            let section = Section::new(name, table, &OF_FRAMEWORK)?;
            let constants = OF_FRAMEWORK.iter().map(|key| Constant::read(&section, key)).collect::<Result<_, _>>()?;
            frameworks.push((name.clone(), constants));
        }
        Ok(Self { constants, frameworks })
    }

    /// The number of that name; every name that code asks for is in the file, which a test holds.
    pub fn get(&self, name: &str) -> f64 {
        self.constants.iter().find(|constant| constant.name == name).map_or(0.0, |constant| constant.value)
    }

    /// The number of a framework; 0 for a framework without one.
    pub fn of_framework(&self, framework: &str, name: &str) -> f64 {
        let constants = self.frameworks.iter().find(|(known, _)| known == framework).map(|(_, constants)| constants);
        constants.into_iter().flatten().find(|constant| constant.name == name).map_or(0.0, |constant| constant.value)
    }
}

/// The rules.
pub fn rules() -> &'static Rules {
    static RULES: LazyLock<Rules> = LazyLock::new(|| {
        let text = include_str!("../../../../data/time/rules.toml");
        Rules::read(text).unwrap_or_else(|problem| unreachable!("data/time/rules.toml: {problem}"))
    });
    &RULES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware;

    #[test]
    fn every_file_is_read_and_every_name_is_there() {
        for (name, text) in FAMILY_FILES {
            let family = Family::read(text).unwrap_or_else(|problem| panic!("{name}: {problem}"));
            for (constant, optional) in OF_FAMILY {
                assert!(optional || family.get(constant).is_some_and(|value| value > 0.0), "{name}: {constant}");
            }
        }
        let rules = Rules::read(include_str!("../../../../data/time/rules.toml")).unwrap();
        assert!(rules.get("evenness") > 1.0 && rules.of_framework("megatron-deepspeed", "head") > 1.0);
    }

    #[test]
    fn no_family_has_more_than_six_fitted_constants() {
        // Which framework the rows of a family were measured with.
        for (architecture, frameworks) in [
            ("Hopper", &["nanotron"][..]),
            ("Ampere", &["megatron-deepspeed", "megatron"]),
            ("Blackwell", &["megatron"]),
            ("generic", &[]),
        ] {
            let fitted = |constants: &[Constant]| constants.iter().filter(|one| one.kind == Kind::Fitted).count();
            let family = families().iter().find(|family| family.architecture == architecture).unwrap();
            let used = rules().frameworks.iter().filter(|(name, _)| frameworks.contains(&name.as_str()));
            let count = fitted(&family.constants)
                + fitted(&rules().constants)
                + used.map(|(_, constants)| fitted(constants)).sum::<usize>();
            assert!(count <= 6, "{architecture}: {count}");
        }
    }

    #[test]
    fn accelerators_get_the_family_of_their_architecture_or_the_generic_one() {
        for (name, architecture) in
            [("h200-sxm", "Hopper"), ("a100-pcie-80gb", "Ampere"), ("b200", "Blackwell"), ("mi300x", "generic")]
        {
            assert_eq!(Family::of(hardware::find(name).unwrap()).architecture, architecture);
        }
    }

    #[test]
    fn what_is_no_constant_is_refused() {
        let good = FAMILY_FILES[0].1;
        for (from, to, message) in [
            ("kind = \"fitted\"", "kind = \"guessed\"", "no such kind"),
            ("products =", "produces =", "unknown key `produces`"),
            ("value = 132", "value = -1", "no number of at least zero"),
        ] {
            let problem = Family::read(&good.replacen(from, to, 1)).unwrap_err();
            assert!(problem.contains(message), "{problem}");
        }
    }
}
