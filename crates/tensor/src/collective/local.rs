//! Ranks that are threads of one process.

use super::{Axis, Group, Peers};
use crate::error::{Error, Result};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// The ranks of a run, by the degrees of its axes, and what they hand each other.
#[derive(Debug)]
pub struct Ranks {
    /// Axes with their degrees, neighbours first: once, or in several ways over the same ranks.
    orders: Vec<Vec<(Axis, u64)>>,
    board: Mutex<Board>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Board {
    meetings: HashMap<(Axis, u64), Meeting>,
    /// By axis, sender and receiver.
    letters: HashMap<(Axis, u64, u64), VecDeque<Vec<f64>>>,
    /// Ranks that are done or have failed.
    gone: BTreeSet<u64>,
}

/// An exchange under way.
#[derive(Debug, Default)]
struct Meeting {
    parts: Vec<Option<Vec<f64>>>,
    /// All parts, once they are there, and how many ranks have not taken them.
    result: Option<(Vec<Vec<f64>>, u64)>,
}

impl Ranks {
    /// Ranks for every combination of places along axes of these degrees; the first axis changes fastest.
    pub fn new(degrees: &[(Axis, u64)]) -> Arc<Self> {
        Self::in_orders(&[degrees])
    }

    /// The same, the same ranks having places along other axes too: those that share experts.
    pub fn in_orders(orders: &[&[(Axis, u64)]]) -> Arc<Self> {
        let orders = orders.iter().map(|degrees| degrees.to_vec()).collect();
        Arc::new(Self { orders, board: Mutex::default(), changed: Condvar::new() })
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.orders.first().map_or(1, |degrees| degrees.iter().map(|(_, degree)| degree).product())
    }

    /// What carries data for one of them.
    pub fn peers(self: &Arc<Self>, rank: u64) -> Local {
        Local { ranks: self.clone(), rank }
    }

    /// Ranks between neighbours along an axis, and its degree.
    fn stride(&self, axis: Axis) -> (u64, u64) {
        for degrees in &self.orders {
            let mut stride = 1;
            for &(one, degree) in degrees {
                if one == axis {
                    return (stride, degree);
                }
                stride *= degree;
            }
        }
        (1, 1)
    }

    fn board(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `ready` has something to take, which one of `others` is to bring.
    fn wait<T>(&self, others: &[u64], mut ready: impl FnMut(&mut Board) -> Option<T>) -> Result<T> {
        let mut board = self.board();
        loop {
            if let Some(found) = ready(&mut board) {
                self.changed.notify_all();
                return Ok(found);
            }
            if others.iter().any(|rank| board.gone.contains(rank)) {
                return Err(Error::Argument { op: "exchange", what: "another rank is gone".to_owned() });
            }
            board = self.changed.wait(board).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// What carries data for one rank. When it is dropped, ranks that wait for this one are told.
#[derive(Debug)]
pub struct Local {
    ranks: Arc<Ranks>,
    rank: u64,
}

impl Local {
    /// The first rank of the group along an axis, this rank's place in it, and the way from one to the next.
    fn group(&self, axis: Axis) -> (u64, u64, u64) {
        let (stride, degree) = self.ranks.stride(axis);
        let place = self.rank / stride % degree;
        (self.rank - place * stride, place, stride)
    }

    /// The ranks of the group along an axis.
    fn members(&self, group: Group) -> Vec<u64> {
        let (first, _, stride) = self.group(group.axis);
        (0..group.size).map(|place| first + place * stride).collect()
    }

    fn neighbour(&self, group: Group, away: i64) -> u64 {
        let (first, place, stride) = self.group(group.axis);
        let size = i64::try_from(group.size).unwrap_or(i64::MAX).max(1);
        let to = (i64::try_from(place).unwrap_or(0) + away).rem_euclid(size);
        first + to.unsigned_abs() * stride
    }
}

impl Peers for Local {
    fn place(&self, axis: Axis) -> u64 {
        self.group(axis).1
    }

    fn exchange(&self, group: Group, mine: Vec<f64>) -> Result<Vec<Vec<f64>>> {
        let (first, place, _) = self.group(group.axis);
        let (key, size) = ((group.axis, first), group.size);
        if place >= size {
            let what = format!("place {place} of the axis {} is outside of a group of {size}", group.axis.name());
            return Err(Error::Argument { op: "exchange", what });
        }
        let (mut mine, members) = (Some(mine), self.members(group));
        self.ranks.wait(&members, |board| {
            let meeting = board.meetings.entry(key).or_default();
            // The exchange before is not over while somebody has not taken its result.
            if let (None, Some(part)) = (&meeting.result, mine.take_if(|_| meeting.result.is_none())) {
                meeting.parts.resize(size as usize, None);
                meeting.parts[place as usize] = Some(part);
                if meeting.parts.iter().all(Option::is_some) {
                    meeting.result = Some((std::mem::take(&mut meeting.parts).into_iter().flatten().collect(), size));
                }
                return Some(());
            }
            None
        })?;
        self.ranks.wait(&members, |board| {
            let meeting = board.meetings.get_mut(&key)?;
            let (parts, left) = meeting.result.as_mut()?;
            *left -= 1;
            if *left > 0 {
                return Some(parts.clone());
            }
            meeting.result.take().map(|(parts, _)| parts)
        })
    }

    fn send(&self, group: Group, to: i64, data: Vec<f64>) -> Result<()> {
        let key = (group.axis, self.rank, self.neighbour(group, to));
        let mut data = Some(data);
        self.ranks.wait(&[], |board| {
            board.letters.entry(key).or_default().extend(data.take());
            Some(())
        })
    }

    fn receive(&self, group: Group, from: i64) -> Result<Vec<f64>> {
        let sender = self.neighbour(group, from);
        let key = (group.axis, sender, self.rank);
        self.ranks.wait(&[sender], |board| board.letters.get_mut(&key)?.pop_front())
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        // A rank that is done has taken part in all that others wait for: only one that failed leaves them waiting.
        self.ranks.board().gone.insert(self.rank);
        self.ranks.changed.notify_all();
    }
}
