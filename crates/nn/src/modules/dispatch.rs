//! Rows of tokens to the ranks that hold their experts, and back.
//!
//! Source: Lepikhin et al. 2020, arXiv:2006.16668; without capacities, as Megatron-Core's all-to-all dispatcher does it.

use super::moe::pick;
use crate::context::Forward;
use std::sync::Arc;
use tensor::ops::all_to_all::Rows as Counts;
use tensor::{DType, Result, Tensor};

/// Rows that have come to this rank, sorted by its experts.
pub(super) struct Dispatched {
    /// `r h`
    pub rows: Tensor,
    /// `r` (i64): which of the rank's experts.
    pub expert: Tensor,
    /// `e / ep` (i32): rows of each.
    pub sizes: Tensor,
    back: Back,
    /// How many come from the ranks of other experts.
    received: u64,
    /// `r` (i64): place in which each of the sorted rows came; none where they came sorted.
    places: Option<Tensor>,
}

/// Rows to the ranks that hold their experts, on all that share one.
fn exchanged(f: &Forward, rows: &Tensor, counts: Counts) -> Result<Tensor> {
    rows.all_to_all_rows(f.ranks.experts(), counts)?.all_gather(f.ranks.expert_tensor(), 0)
}

/// The way back.
struct Back {
    /// How many rows come back.
    rows: u64,
    counts: Option<Arc<[Vec<u64>; 2]>>,
    /// The place where each row that came stands among the sorted ones; none where they came sorted.
    inverse: Option<Tensor>,
}

/// What the ranks have for each other, in numbers of rows.
struct Plan {
    /// Rows to each rank, and from each.
    counts: [Vec<u64>; 2],
    /// Sorted place of rows that come by rank, then by expert.
    order: Vec<f64>,
    expert: Vec<f64>,
    sizes: Vec<f64>,
}

impl Dispatched {
    /// Sends rows `r h`, sorted by expert, where their experts are; `sizes` says how many each expert gets (`e`, i32).
    ///
    /// # Errors
    /// If a rank is gone. On a device with data, matrices of experts are not divided.
    pub fn of(f: &Forward, rows: &Tensor, sizes: &Tensor) -> Result<Self> {
        let (ranks, rt, experts) = (f.ranks, &f.runtime, sizes.size(0));
        if ranks.etp > 1 && rt.holds_data() {
            let what = "experts whose matrices are divided are not computed, only traced".to_owned();
            return Err(tensor::Error::Argument { op: "all_gather", what });
        }
        let group = ranks.experts();
        let own = experts / ranks.ep;
        // Every rank learns how many rows come from each of the others.
        let all = rt.no_grad(|| sizes.unsqueeze(0)?.all_gather(group, 0))?; // ep e
        let place = rt.place(group.axis);
        let plan =
            rt.holds_data().then(|| all.to_vec().map(|all| Plan::of(&all, (ranks.ep, own), place))).transpose()?;
        let received = plan.as_ref().map_or_else(|| ranks.fullest(rows.size(0)), |plan| plan.counts[1].iter().sum());
        let counts = plan.as_ref().map(|plan| Arc::new(plan.counts.clone()));
        let came = exchanged(f, rows, Counts { received, counts: counts.clone() })?;
        let total = came.size(0);
        let numbers = |count: u64, dtype, of: fn(&Plan) -> &Vec<f64>| {
            rt.no_grad(|| {
                rt.tensor_with(&[count], dtype, || plan.as_ref().map_or_else(Vec::new, |plan| of(plan).clone()))
            })
        };
        let expert = numbers(total, DType::I64, |plan| &plan.expert)?;
        let local = numbers(own, DType::I32, |plan| &plan.sizes)?;
        let mut back = Back { rows: rows.size(0), counts, inverse: None };
        let mut places = None;
        let mut sorted = came;
        if own > 1 && ranks.ep > 1 {
            let order = numbers(total, DType::I64, |plan| &plan.order)?;
            back.inverse = Some(rt.no_grad(|| order.argsort())?);
            sorted = pick(f, &sorted, &order)?;
            places = Some(order);
        }
        Ok(Self { rows: sorted, expert, sizes: local, back, received, places })
    }

    /// Sends something else of each row after it, such as its weight.
    ///
    /// # Shapes
    /// `r w -> r w`
    ///
    /// # Errors
    /// If a rank is gone.
    pub fn follow(&self, f: &Forward, rows: &Tensor) -> Result<Tensor> {
        let came = exchanged(f, rows, Counts { received: self.received, counts: self.back.counts.clone() })?;
        self.places.as_ref().map_or(Ok(came.clone()), |order| pick(f, &came, order))
    }

    /// What the experts made of the rows, in the order in which they were sent.
    ///
    /// # Shapes
    /// `r h -> r h`
    ///
    /// # Errors
    /// If a rank is gone.
    pub fn back(self, f: &Forward, out: Tensor) -> Result<Tensor> {
        let out = match &self.back.inverse {
            Some(inverse) => pick(f, &out, inverse)?,
            None => out,
        };
        let out = out.reduce_scatter(f.ranks.expert_tensor(), 0)?;
        let counts = self.back.counts.map(|counts| Arc::new([counts[1].clone(), counts[0].clone()]));
        out.all_to_all_rows(f.ranks.experts(), Counts { received: self.back.rows, counts })
    }
}

impl Plan {
    /// `all` is how many rows each rank has for each expert, `ep (ep own)`.
    fn of(all: &[f64], (ranks, own): (u64, u64), place: u64) -> Self {
        let experts = (ranks * own) as usize;
        let (own, place) = (own as usize, place as usize);
        let of = |rank: usize, expert: usize| all[rank * experts + expert] as u64;
        let ranks = 0..ranks as usize;
        let to = |rank: usize, from: usize| (0..own).map(|i| of(from, rank * own + i)).sum::<u64>();
        let counts = [ranks.clone().map(|q| to(q, place)).collect(), ranks.clone().map(|r| to(place, r)).collect()];
        let (mut order, mut expert, mut sizes) = (Vec::new(), Vec::new(), Vec::new());
        for i in 0..own {
            let before = order.len();
            let mut start = 0;
            for r in ranks.clone() {
                for j in 0..own {
                    let count = of(r, place * own + j);
                    if i == j {
                        order.extend((start..start + count).map(|at| at as f64));
                    }
                    start += count;
                }
            }
            expert.resize(order.len(), i as f64);
            sizes.push((order.len() - before) as f64);
        }
        Self { counts, order, expert, sizes }
    }
}
