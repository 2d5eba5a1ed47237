//! Networks between nodes that a run may have, with what libraries reach of them.

use std::sync::LazyLock;

use toml::{Table, Value};
use units::{BytesPerSecond, Diagnostic};

use super::collective_time::Network;
use super::constants::Constant;
use crate::hardware::Source;
use crate::nearest::nearest;
use crate::section::Section;

/// A network, by the adapter of one device.
#[derive(Clone, Debug, PartialEq)]
pub struct NetworkKind {
    /// Canonical name, such as `infiniband-ndr`.
    pub name: String,
    /// Name for people.
    pub display: String,
    /// Other names it answers to.
    pub aliases: Vec<String>,
    /// Rate of the adapter of one device in one direction.
    pub per_device: BytesPerSecond,
    /// Where that comes from.
    pub source: Source,
    /// What a library reaches: `ring` of the rate, `step_us`, `tree_step_us`.
    pub reached: Vec<Constant>,
}

impl NetworkKind {
    fn reached(&self, name: &str) -> f64 {
        self.reached.iter().find(|constant| constant.name == name).map_or(0.0, |constant| constant.value)
    }

    /// The same kind of network at another rate.
    #[must_use]
    pub fn at(&self, per_device: BytesPerSecond) -> Self {
        Self { per_device, ..self.clone() }
    }

    /// As collectives are reckoned on it.
    pub fn network(&self) -> Network {
        Network {
            ring: self.per_device.get() * self.reached("ring"),
            step: self.reached("step_us") * 1e-6,
            tree_step: self.reached("tree_step_us") * 1e-6,
        }
    }
}

const FILES: [(&str, &str); 3] = [
    ("infiniband.toml", include_str!("../../../../data/network/infiniband.toml")),
    ("efa.toml", include_str!("../../../../data/network/efa.toml")),
    ("ethernet.toml", include_str!("../../../../data/network/ethernet.toml")),
];

const REACHED: [&str; 3] = ["ring", "step_us", "tree_step_us"];

/// All networks.
pub fn networks() -> &'static [NetworkKind] {
    static NETWORKS: LazyLock<Vec<NetworkKind>> = LazyLock::new(|| {
        FILES
            .iter()
            .flat_map(|(name, text)| {
                read(text).unwrap_or_else(|problem| unreachable!("data/network/{name}: {problem}"))
            })
            .collect()
    });
    &NETWORKS
}

fn read(text: &str) -> Result<Vec<NetworkKind>, String> {
    let table: Table = text.parse().map_err(|error: toml::de::Error| error.to_string())?;
    let top = Section::new("the file", &table, &["reached", "network"])?;
    let section = top.section("reached", &REACHED)?;
    let reached: Vec<Constant> = REACHED.iter().map(|name| Constant::read(&section, name)).collect::<Result<_, _>>()?;
    let entries = top.get("network", "list of tables", Value::as_array)?;
    entries
        .iter()
        .map(|entry| {
            let table = entry.as_table().ok_or("`network` is no list of tables")?;
            let keys = ["name", "display", "aliases", "gb_s_per_device", "source", "date"];
            let section = Section::new("[[network]]", table, &keys)?;
            Ok(NetworkKind {
                name: section.text("name")?,
                display: section.text("display")?,
                aliases: section.texts("aliases")?,
                per_device: section.gigabytes("gb_s_per_device")?,
                source: section.source()?,
                reached: reached.clone(),
            })
        })
        .collect()
}

/// The network between nodes where nobody says which.
pub const USUAL: &str = "infiniband-ndr";

/// The network of that name or alias; case, spaces and underscores do not matter.
///
/// # Errors
/// `T0487` for an unknown name, with those that are near it.
pub fn find(name: &str) -> Result<&'static NetworkKind, Diagnostic> {
    let plain = |text: &str| text.trim().to_ascii_lowercase().replace([' ', '_'], "-");
    let query = plain(name);
    let names = |kind: &'static NetworkKind| std::iter::once(&kind.name).chain(&kind.aliases);
    if let Some(kind) = networks().iter().find(|kind| names(kind).any(|known| *known == query)) {
        return Ok(kind);
    }
    let all = || networks().iter().map(|kind| kind.name.as_str());
    let near: Vec<&str> = nearest(&query, all());
    let valid = if near.is_empty() {
        format!("valid: {}", all().collect::<Vec<_>>().join(", "))
    } else {
        format!("nearest: {}", near.join(", "))
    };
    Err(Diagnostic::error("T0487", format!("unknown network `{}`", name.trim()))
        .why("rates and latencies of networks come from a table, each with its source")
        .help(valid))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_file_is_read_and_names_are_unique() {
        for (name, text) in FILES {
            read(text).unwrap_or_else(|problem| panic!("{name}: {problem}"));
        }
        let names: Vec<_> =
            networks().iter().flat_map(|kind| std::iter::once(&kind.name).chain(&kind.aliases)).collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
        // 400 Gb/s a port.
        assert_eq!(find("IB 400G").unwrap().per_device.get() * 8.0, 400e9);
        assert_eq!(find("efa").unwrap().name, "efa-p5");
    }

    #[test]
    fn an_unknown_network_names_its_neighbours() {
        let problem = find("infiniband-ndx").unwrap_err();
        assert!(problem.help.iter().any(|help| help.contains("infiniband-ndr")), "{problem:?}");
    }
}
