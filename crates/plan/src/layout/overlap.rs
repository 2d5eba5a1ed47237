//! Which exchanges of replicas run beside passes, by engine: rows of `data/engines/overlap.csv`, each with who says so.

use std::sync::OnceLock;

use crate::cluster::step::Sync;
use crate::handover::Engine;

/// What is exchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchange {
    /// Gradients, in the last backward pass.
    Gradients,
    /// Parameters, in the first forward pass behind their update.
    Parameters,
}

impl Exchange {
    const fn name(self) -> &'static str {
        match self {
            Self::Gradients => "gradients",
            Self::Parameters => "parameters",
        }
    }
}

/// One row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Row {
    engine: &'static str,
    zero: (u8, u8),
    exchange: &'static str,
    /// Parameters of a part, and the same for each replica; the larger counts.
    parameters: (u64, u64),
    /// Bytes of a part, where they are what is bounded.
    bytes: Option<u64>,
}

fn lines() -> impl Iterator<Item = &'static str> {
    include_str!("../../../../data/engines/overlap.csv").lines().filter(|line| !line.starts_with('#')).skip(1)
}

fn row(line: &'static str) -> Option<Row> {
    let fields: Vec<&'static str> = line.splitn(9, ',').collect();
    let [engine, from, to, exchange, parameters, per_replica, bytes, _, _] = fields[..] else { return None };
    let count = |text: &str| if text.is_empty() { Some(0) } else { text.parse().ok() };
    Some(Row {
        engine,
        zero: (from.parse().ok()?, to.parse().ok()?),
        exchange,
        parameters: (count(parameters)?, count(per_replica)?),
        bytes: if bytes.is_empty() { None } else { Some(bytes.parse().ok()?) },
    })
}

fn table() -> &'static [Row] {
    static TABLE: OnceLock<Vec<Row>> = OnceLock::new();
    TABLE.get_or_init(|| lines().filter_map(row).collect())
}

/// When an engine makes an exchange between so many replicas, of elements of `width` bytes.
pub fn sync(engine: Option<Engine>, zero: u8, exchange: Exchange, replicas: u64, width: u64) -> Sync {
    let own = |row: &&Row| {
        engine.is_some_and(|engine| engine.name() == row.engine)
            && (row.zero.0..=row.zero.1).contains(&zero)
            && row.exchange == exchange.name()
    };
    table().iter().find(own).map_or(Sync::Behind, |row| {
        let (parameters, each) = row.parameters;
        let counted = parameters.max(each.saturating_mul(replicas)).saturating_mul(width);
        Sync::During { bucket: row.bytes.unwrap_or(counted) as f64 }
    })
}

#[cfg(test)]
mod tests {
    use super::Exchange::{Gradients, Parameters};
    use super::*;

    #[test]
    fn every_row_is_read_and_is_of_an_engine() {
        assert_eq!(table().len(), lines().count());
        for (row, line) in table().iter().zip(lines()) {
            assert!(Engine::ALL.iter().any(|engine| engine.name() == row.engine), "{line}");
            assert!(["gradients", "parameters"].contains(&row.exchange) && row.zero.0 <= row.zero.1, "{line}");
            assert!((row.parameters.0 > 0) != row.bytes.is_some(), "{line}");
        }
    }

    #[test]
    fn parts_are_those_of_the_engines() {
        let of = |engine, zero, exchange, replicas| sync(engine, zero, exchange, replicas, 4);
        let megatron = Some(Engine::Megatron);
        assert_eq!(of(megatron, 1, Gradients, 8), Sync::During { bucket: 160e6 });
        assert_eq!(of(megatron, 1, Parameters, 128), Sync::During { bucket: 512e6 });
        assert_eq!(of(megatron, 0, Parameters, 8), Sync::Behind);
        assert_eq!(of(Some(Engine::Nanotron), 0, Gradients, 64), Sync::During { bucket: 26_214_400.0 });
        assert_eq!(of(Some(Engine::Nanotron), 1, Gradients, 64), Sync::Behind);
        assert_eq!(of(Some(Engine::DeepSpeed), 2, Gradients, 64), Sync::During { bucket: 2e9 });
        assert_eq!(of(None, 0, Gradients, 64), Sync::Behind);
    }
}
