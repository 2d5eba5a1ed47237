//! Names of what stands in a block.

use super::sweep::{Part, in_order, runs, stands_for, sweeps};
use crate::step::ParamInfo;
use std::ops::Range;

/// Which repetition a name stands in.
#[derive(Clone, Copy)]
pub(super) struct Numbered {
    pub(super) list: &'static str,
    pub(super) first: usize,
    pub(super) period: usize,
    pub(super) times: usize,
}

impl Numbered {
    /// Where the number of a block stands in a path, and the number.
    fn number(self, path: &str) -> Option<(Range<usize>, usize)> {
        let mut at = 0;
        let mut parts = path.split('.').map(|part| {
            let here = at;
            at += part.len() + 1;
            (here, part)
        });
        parts.find(|(_, part)| *part == self.list)?;
        let (start, digits) = parts.next()?;
        Some((start..start + digits.len(), digits.parse().ok()?))
    }

    pub(super) fn repetition(self, path: &str) -> Option<usize> {
        let (_, number) = self.number(path)?;
        let within = number.checked_sub(self.first)? / self.period;
        (within < self.times).then_some(within)
    }

    /// The path of the same module where there are more repetitions: in repetition `to`, or behind all of them.
    pub(super) fn renamed(self, path: &str, from: Option<usize>, to: usize, times: usize) -> String {
        let Some((digits, number)) = self.number(path) else { return path.to_owned() };
        let number = match from {
            Some(from) => number + self.period * to - self.period * from,
            None if number < self.first => number,
            None => number + self.period * times - self.period * self.times,
        };
        format!("{}{number}{}", &path[..digits.start], &path[digits.end..])
    }

    /// Parameters with `times` repetitions out of those with the traced ones, and with one more to check it by.
    pub(super) fn params(self, [few, more]: [&[ParamInfo]; 2], times: usize) -> Option<Vec<ParamInfo>> {
        let parts = sweeps(runs(few.iter().map(|param| self.repetition(&param.name))), self.times);
        let renamed = |param: &ParamInfo, from: Option<usize>, to: usize, times: usize| ParamInfo {
            name: self.renamed(&param.name, from, to, times),
            tied: param.tied.iter().map(|name| self.renamed(name, from, to, times)).collect(),
            ..param.clone()
        };
        let write = |times: usize| {
            let mut out = Vec::new();
            for part in &parts {
                match part {
                    Part::Once(range) => {
                        out.extend(few[range.clone()].iter().map(|param| renamed(param, None, 0, times)));
                    }
                    Part::Each { runs, backwards } => {
                        for to in in_order(times, *backwards) {
                            let from = stands_for(to, runs.len(), times);
                            let of_block = few[runs[from].clone()].iter();
                            out.extend(of_block.map(|param| renamed(param, Some(from), to, times)));
                        }
                    }
                }
            }
            out
        };
        (write(self.times + 1) == more).then(|| write(times))
    }
}
