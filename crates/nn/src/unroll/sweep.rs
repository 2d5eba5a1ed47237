//! Lists of which parts go over all repetitions.

use std::ops::Range;

/// Something of a list: of no repetition, or of one, and there the `place`-th of its run.
#[derive(Clone, Copy, Debug)]
pub(super) enum Owner {
    Once(usize),
    Each { sweep: usize, repetition: usize, place: usize },
}

/// A run of a recording in which nothing tells repetitions apart, or a sweep over all of them.
pub(super) enum Part<T> {
    Once(T),
    /// By repetition; whether the last one comes first.
    Each {
        runs: Vec<T>,
        backwards: bool,
    },
}

/// Where something is written that was recorded.
#[derive(Clone, Copy)]
pub(super) enum Place {
    /// Of no repetition.
    Once,
    /// In repetition `to` of a sweep, after the model of `from`.
    Each { sweep: usize, from: usize, to: usize },
}

/// Parts with `times` repetitions: what is written, and where.
pub(super) fn written<T>(parts: &[Part<T>], times: usize) -> impl Iterator<Item = (Place, &T)> {
    let mut sweeps = 0;
    parts.iter().flat_map(move |part| {
        let (once, each) = match part {
            Part::Once(run) => (Some((Place::Once, run)), None),
            Part::Each { runs, backwards } => {
                let sweep = sweeps;
                sweeps += 1;
                let each = in_order(times, *backwards).map(move |to| {
                    let from = stands_for(to, runs.len(), times);
                    (Place::Each { sweep, from, to }, &runs[from])
                });
                (None, Some(each))
            }
        };
        once.into_iter().chain(each.into_iter().flatten())
    })
}

/// How many sweeps there are among parts.
pub(super) fn count<T>(parts: &[Part<T>]) -> usize {
    parts.iter().filter(|part| matches!(part, Part::Each { .. })).count()
}

/// Puts runs, each with its repetition, together to sweeps. What goes over some repetitions only is there once.
pub(super) fn sweeps<T>(runs: Vec<(Option<usize>, T)>, times: usize) -> Vec<Part<T>> {
    let labels: Vec<Option<usize>> = runs.iter().map(|(label, _)| *label).collect();
    let is_sweep = |at: usize, backwards: bool| {
        let expected = in_order(times, backwards).map(Some);
        labels.get(at..at + times).is_some_and(|labels| labels.iter().copied().eq(expected))
    };
    let mut parts = Vec::new();
    let mut at = 0;
    let mut runs = runs.into_iter().map(|(_, run)| run);
    while let Some(run) = runs.next() {
        let backwards = is_sweep(at, true);
        if backwards || is_sweep(at, false) {
            let mut all: Vec<T> = std::iter::once(run).chain(runs.by_ref().take(times - 1)).collect();
            if backwards {
                all.reverse();
            }
            parts.push(Part::Each { runs: all, backwards });
            at += times;
        } else {
            parts.push(Part::Once(run));
            at += 1;
        }
    }
    parts
}

/// Neighbours of the same repetition as one run.
pub(super) fn runs(labels: impl Iterator<Item = Option<usize>>) -> Vec<(Option<usize>, Range<usize>)> {
    let mut all: Vec<(Option<usize>, Range<usize>)> = Vec::new();
    for (i, label) in labels.enumerate() {
        match all.last_mut() {
            Some((last, range)) if *last == label => range.end = i + 1,
            _ => all.push((label, i..i + 1)),
        }
    }
    all
}

fn in_order(times: usize, backwards: bool) -> impl Iterator<Item = usize> {
    (0..times).map(move |i| if backwards { times - 1 - i } else { i })
}

/// Which of the traced repetitions one of `times` is like: the first, the last, or any between.
fn stands_for(to: usize, traced: usize, times: usize) -> usize {
    if to == 0 {
        0
    } else if to + 1 == times {
        traced - 1
    } else {
        1
    }
}

pub(super) fn owners(parts: &[Part<Range<usize>>], len: usize) -> Vec<Owner> {
    let mut owners: Vec<Owner> = (0..len).map(Owner::Once).collect();
    let each = parts.iter().filter_map(|part| if let Part::Each { runs, .. } = part { Some(runs) } else { None });
    for (sweep, runs) in each.enumerate() {
        for (repetition, run) in runs.iter().enumerate() {
            for (place, i) in run.clone().enumerate() {
                owners[i] = Owner::Each { sweep, repetition, place };
            }
        }
    }
    owners
}
