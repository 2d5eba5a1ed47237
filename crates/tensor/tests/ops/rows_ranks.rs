//! Ops between ranks, where there is one rank: what they do with several is in `tests/collectives.rs`.

use crate::inputs::Inputs;
use crate::rows::{Row, row};
use napkin_tensor::apply::{apply, apply_on};
use napkin_tensor::ops::all_gather::AllGather;
use napkin_tensor::ops::all_reduce::AllReduce;
use napkin_tensor::ops::all_to_all::AllToAll;
use napkin_tensor::ops::attention::Attention;
use napkin_tensor::ops::broadcast::Broadcast;
use napkin_tensor::ops::nll_loss::Reduction;
use napkin_tensor::ops::partition::Partition;
use napkin_tensor::ops::reduce_scatter::ReduceScatter;
use napkin_tensor::ops::replicate::Replicate;
use napkin_tensor::ops::send::{Recv, Send};
use napkin_tensor::{Axis, Combine, DType, Group, Op, Result, Tensor};

const ALONE: Group = Group { axis: Axis::Tp, size: 1 };

pub fn rows() -> Vec<Row> {
    vec![
        row("all_reduce", |g| {
            let op = AllReduce { group: ALONE, combine: Combine::Sum };
            Ok(apply(Op::AllReduce(op), &[&g.float(&[2, 3])?])?.into_vec())
        }),
        row("all_gather", |g| {
            let op = AllGather { group: ALONE, dim: 1 };
            Ok(apply(Op::AllGather(op), &[&g.float(&[2, 3])?])?.into_vec())
        }),
        row("reduce_scatter", |g| {
            let op = ReduceScatter { group: ALONE, dim: 1 };
            Ok(apply(Op::ReduceScatter(op), &[&g.float(&[2, 3])?])?.into_vec())
        }),
        row("all_to_all", |g| {
            let op = AllToAll { group: ALONE, split: 0, join: 1, rows: None };
            Ok(apply(Op::AllToAll(op), &[&g.float(&[2, 3])?])?.into_vec())
        }),
        row("replicate", |g| Ok(apply(Op::Replicate(Replicate { group: ALONE }), &[&g.float(&[2, 3])?])?.into_vec())),
        row("partition", |g| {
            let op = Partition { group: ALONE, dim: 1, place: 0 };
            Ok(apply(Op::Partition(op), &[&g.float(&[2, 3])?])?.into_vec())
        }),
        row("broadcast", |g| Ok(apply(Op::Broadcast(Broadcast { group: ALONE }), &[&g.data(&[2, 3])?])?.into_vec())),
        row("send", |g| Ok(apply(Op::Send(Send { group: ALONE, to: 1 }), &[&g.data(&[2, 3])?])?.into_vec())),
        row("recv", |g| {
            let op = Recv { group: ALONE, from: 1, shape: [2u64, 3].as_slice().into(), dtype: DType::F32 };
            Ok(apply_on(&g.rt, Op::Recv(op), &[])?.into_vec())
        }),
        row("ring_attention", |g| {
            let (q, k, v) = (g.float(&[1, 2, 4, 3])?, g.float(&[1, 1, 4, 3])?, g.float(&[1, 1, 4, 2])?);
            Ok(vec![q.ring_attention(&k, &v, ALONE, Attention::causal(0.7))?])
        }),
        row("cross_entropy_shard", |g| shard(g, Reduction::Mean)),
        row("cross_entropy_shard, sum", |g| shard(g, Reduction::Sum)),
    ]
}

/// All of the vocabulary in one part: only then is its gradient the whole one.
fn shard(g: &mut Inputs, reduction: Reduction) -> Result<Vec<Tensor>> {
    let (logits, targets) = (g.float(&[4, 3])?, g.index(&[4], 3)?);
    let lse = g.rt.no_grad(|| logits.logsumexp(-1, false))?;
    Ok(vec![logits.cross_entropy_shard(&targets, &lse, 0, reduction)?])
}
