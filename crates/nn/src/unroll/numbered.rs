//! Names of what stands in a block.

use super::sweep::{Place, runs, sweeps, written};
use crate::blocks::Blocks;
use crate::step::ParamInfo;

/// Which repetition a name stands in.
#[derive(Clone, Copy)]
pub(super) struct Numbered {
    pub(super) blocks: Blocks,
    pub(super) first: usize,
    pub(super) period: usize,
    pub(super) times: usize,
}

impl Numbered {
    pub(super) fn repetition(self, path: &str) -> Option<usize> {
        let within = self.blocks.number(path)?.checked_sub(self.first)? / self.period;
        (within < self.times).then_some(within)
    }

    /// The path of the same module at a place of `times` repetitions.
    pub(super) fn renamed(self, path: &str, place: Place, times: usize) -> String {
        let Some((digits, number)) = self.blocks.numbered(path) else { return path.to_owned() };
        let number = match place {
            Place::Each { from, to, .. } => number + self.period * to - self.period * from,
            Place::Once if number < self.first => number,
            Place::Once => number + self.period * times - self.period * self.times,
        };
        format!("{}{number}{}", &path[..digits.start], &path[digits.end..])
    }

    /// Parameters with `times` repetitions out of those with the traced ones, and with one more to check it by.
    pub(super) fn params(self, [few, more]: [&[ParamInfo]; 2], times: usize) -> Option<Vec<ParamInfo>> {
        let parts = sweeps(runs(few.iter().map(|param| self.repetition(&param.name))), self.times);
        let write = |times: usize| {
            let renamed = |param: &ParamInfo, place: Place| ParamInfo {
                name: self.renamed(&param.name, place, times),
                tied: param.tied.iter().map(|name| self.renamed(name, place, times)).collect(),
                ..param.clone()
            };
            let all = written(&parts, times);
            all.flat_map(|(place, run)| few[run.clone()].iter().map(move |param| renamed(param, place))).collect()
        };
        let checked: Vec<_> = write(self.times + 1);
        (checked == more).then(|| write(times))
    }
}
