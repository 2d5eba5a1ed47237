//! The blocks of a model, told from the rest of it by the names of modules and parameters.

use crate::spec::ModelNames;
use crate::step::ParamInfo;
use std::collections::BTreeMap;
use std::ops::Range;

/// Which modules and parameters stand in a block. The list of blocks may stand in modules of its own
/// (`encoder.layer.0.attention`), of which only the last tells blocks from the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    list: &'static str,
}

impl Blocks {
    /// Those of a model with these names.
    pub fn of(names: &ModelNames) -> Self {
        Self { list: names.layers.rsplit('.').next().unwrap_or(names.layers) }
    }

    /// Whether a path stands in the list of blocks.
    pub fn hold(self, path: &str) -> bool {
        path.split('.').any(|part| part == self.list)
    }

    /// The number of the block that a path stands in, such as 3 for `model.layers.3.mlp.up_proj`.
    pub fn number(self, path: &str) -> Option<usize> {
        self.numbered(path).map(|(_, number)| number)
    }

    /// Where the number of a block stands in a path, and the number.
    pub fn numbered(self, path: &str) -> Option<(Range<usize>, usize)> {
        let behind = self.behind(path)?;
        let digits = behind.split('.').next()?;
        let start = path.len() - behind.len();
        Some((start..start + digits.len(), digits.parse().ok()?))
    }

    /// The part of a block that a path stands in, such as `mlp`; whether the block has a number or a `*` is the same.
    pub fn part(self, path: &str) -> Option<&str> {
        self.behind(path)?.split('.').nth(1)
    }

    /// What follows the list.
    fn behind(self, path: &str) -> Option<&str> {
        let mut rest = path;
        loop {
            let (part, behind) = rest.split_once('.')?;
            if part == self.list {
                return Some(behind);
            }
            rest = behind;
        }
    }

    /// Parameters by the unit that gathers and reduces them.
    pub fn units(self, params: &[ParamInfo]) -> Units<'_> {
        let mut units = Units::default();
        for param in params {
            match self.number(&param.name) {
                Some(number) => units.blocks.entry(number).or_default().push(param),
                None => units.root.push(param),
            }
        }
        units
    }
}

/// Parameters by unit: each block is one, and everything else the root, as FSDP wraps a model.
#[derive(Clone, Debug, Default)]
pub struct Units<'a> {
    /// Outside of the blocks.
    pub root: Vec<&'a ParamInfo>,
    /// Each block, by its number.
    pub blocks: BTreeMap<usize, Vec<&'a ParamInfo>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stand_in_a_block_or_do_not() {
        let names = ModelNames { layers: "encoder.layer", ..ModelNames::default() };
        let blocks = Blocks::of(&names);
        for (path, hold, number, part) in [
            ("bert.encoder.layer.11.attention.self.query", true, Some(11), Some("attention")),
            ("bert.encoder.layer.*.output", true, None, Some("output")),
            ("bert.encoder.layer.0", true, Some(0), None),
            ("bert.encoder.layer", true, None, None),
            ("bert.embeddings.layer_norm", false, None, None),
            ("", false, None, None),
        ] {
            assert_eq!((blocks.hold(path), blocks.number(path), blocks.part(path)), (hold, number, part), "{path}");
        }
    }
}
