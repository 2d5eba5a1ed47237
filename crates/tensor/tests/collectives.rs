//! Ops between ranks, on ranks that are threads: what each gets, what backward brings, and what goes over the wire.

#![allow(clippy::unwrap_used)]

use napkin_tensor::collective::Ranks;
use napkin_tensor::ops::all_to_all::Rows;
use napkin_tensor::ops::nll_loss::Reduction;
use napkin_tensor::{Axis, Combine, Cost, DType, Device, Error, Group, Runtime, Tensor};
use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

const N: u64 = 3;
const TP: Group = Group { axis: Axis::Tp, size: N };

/// Runs `program` on every rank; results in the order of the ranks, with the cost of all that was done.
fn on_ranks<T: Send>(degrees: &[(Axis, u64)], program: impl Fn(&Runtime, u64) -> T + Sync) -> Vec<(T, Cost)> {
    let ranks = Ranks::new(degrees);
    thread::scope(|scope| {
        let run = |rank: u64| {
            let (ranks, program) = (&ranks, &program);
            scope.spawn(move || {
                let runtime = Runtime::new(Device::Cpu);
                runtime.set_peers(Rc::new(ranks.peers(rank)));
                let result = program(&runtime, rank);
                (result, runtime.take_trace().cost(|_| true))
            })
        };
        let threads: Vec<_> = (0..ranks.count()).map(run).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn tensor(runtime: &Runtime, values: &[f64], shape: &[u64]) -> Tensor {
    runtime.tensor(values, shape, DType::F64).unwrap().require_grad().unwrap()
}

/// `r`, `r + 10`, ... in rank `r`.
fn own(runtime: &Runtime, rank: u64, shape: &[u64]) -> Tensor {
    let values: Vec<f64> = (0..shape.iter().product()).map(|i: u64| (10 * i + rank) as f64).collect();
    tensor(runtime, &values, shape)
}

/// Gradient of `x` where that of `y` is `r + 1` times 1, 2, 3, ... on rank `r`.
fn pulled(y: &Tensor, x: &Tensor, rank: u64) -> Vec<f64> {
    let weights: Vec<f64> = (0..y.elements()).map(|i| ((i + 1) * (rank + 1)) as f64).collect();
    let weights = y.runtime().tensor(&weights, y.shape(), DType::F64).unwrap();
    let loss = y.mul(&weights).unwrap().reshape(&[y.elements()]).unwrap().sum(&[0], false).unwrap();
    loss.backward().unwrap();
    x.grad().unwrap().to_vec().unwrap()
}

#[test]
fn sums_and_maxima_are_everywhere() {
    for ((sum, max), cost) in on_ranks(&[(Axis::Tp, N)], |rt, rank| {
        let x = own(rt, rank, &[2]).detach();
        let sum = x.copy().unwrap().all_reduce(TP, Combine::Sum).unwrap().to_vec().unwrap();
        (sum, x.all_reduce(TP, Combine::Max).unwrap().to_vec().unwrap())
    }) {
        assert_eq!((sum, max), (vec![3.0, 33.0], vec![2.0, 12.0]));
        // Two elements of 8 bytes in three parts: 6 bytes of each go out twice, to two others.
        assert_eq!((cost.sent, cost.received), (2 * 2 * 2 * 6, 2 * 2 * 2 * 6));
    }
}

#[test]
fn what_is_replicated_has_the_sum_of_all_gradients() {
    for (gradient, _) in on_ranks(&[(Axis::Tp, N)], |rt, rank| {
        let x = tensor(rt, &[1.0, 2.0], &[2]);
        pulled(&x.replicate(TP).unwrap(), &x, rank)
    }) {
        assert_eq!(gradient, [1.0 + 2.0 + 3.0, 2.0 + 4.0 + 6.0]);
    }
}

#[test]
fn a_sum_passes_its_gradient_on() {
    for (rank, (gradient, _)) in on_ranks(&[(Axis::Tp, N)], |rt, rank| {
        let x = own(rt, rank, &[2]);
        let y = x.mul_scalar(1.0).unwrap().all_reduce(TP, Combine::Sum).unwrap();
        pulled(&y, &x, rank)
    })
    .into_iter()
    .enumerate()
    {
        let own = (rank + 1) as f64;
        assert_eq!(gradient, [own, 2.0 * own]);
    }
}

#[test]
fn parts_are_gathered_and_their_gradients_summed() {
    for dim in [0, 1] {
        for (rank, ((whole, gradient), cost)) in on_ranks(&[(Axis::Tp, N)], |rt, rank| {
            let x = own(rt, rank, &[1, 2]);
            let y = x.all_gather(TP, dim).unwrap();
            (y.to_vec().unwrap(), pulled(&y, &x, rank))
        })
        .into_iter()
        .enumerate()
        {
            assert_eq!(whole, [0.0, 10.0, 1.0, 11.0, 2.0, 12.0]);
            // Weights 1 to 6 times 1 + 2 + 3 over the ranks; mine are the two from place 2 rank.
            let first = (2 * rank + 1) as f64;
            assert_eq!(gradient, [6.0 * first, 6.0 * (first + 1.0)]);
            // 16 bytes to two others, and their gradients back.
            assert_eq!((cost.sent, cost.received), (64, 64));
        }
    }
}

#[test]
fn parts_of_what_all_hold_have_their_gradients_gathered() {
    for (rank, ((part, gradient), _)) in on_ranks(&[(Axis::Tp, N)], |rt, rank| {
        let x = tensor(rt, &[5.0, 6.0, 7.0], &[1, 3]);
        let y = x.partition(TP, 1).unwrap();
        (y.to_vec().unwrap(), pulled(&y, &x, rank))
    })
    .into_iter()
    .enumerate()
    {
        assert_eq!(part, [5.0 + rank as f64]);
        assert_eq!(gradient, [1.0, 2.0, 3.0]);
    }
}

#[test]
fn sums_are_cut_up_and_their_gradients_gathered() {
    for (rank, ((part, gradient), _)) in on_ranks(&[(Axis::Tp, N)], |rt, rank| {
        let x = own(rt, rank, &[2, 3]);
        let y = x.reduce_scatter(TP, 1).unwrap();
        (y.to_vec().unwrap(), pulled(&y, &x, rank))
    })
    .into_iter()
    .enumerate()
    {
        let column = 10.0 * rank as f64;
        assert_eq!(part, [3.0 * column + 3.0, 3.0 * (column + 30.0) + 3.0]);
        assert_eq!(gradient, [1.0, 2.0, 3.0, 2.0, 4.0, 6.0]);
    }
}

#[test]
fn everyone_gets_a_part_of_everyone() {
    for (rank, ((part, back), _)) in on_ranks(&[(Axis::Tp, N)], |rt, rank| {
        let x = own(rt, rank, &[3, 1]);
        let y = x.all_to_all(TP, 0, 1).unwrap();
        assert_eq!(y.shape(), [1, 3]);
        let back = y.all_to_all(TP, 1, 0).unwrap();
        assert_eq!(back.to_vec().unwrap(), x.to_vec().unwrap());
        (y.to_vec().unwrap(), pulled(&y, &x, rank))
    })
    .into_iter()
    .enumerate()
    {
        let row = 10.0 * rank as f64;
        assert_eq!(part, [row, row + 1.0, row + 2.0]);
        // Element i of what rank r got came from rank i: its weight there was (i + 1)(r + 1).
        let mine = (rank + 1) as f64;
        assert_eq!(back, [mine, 2.0 * mine, 3.0 * mine]);
    }
}

#[test]
fn rows_go_in_parts_of_any_size() {
    // Rows from rank r to rank q: r + q.
    let count = |r: u64, q: u64| r + q;
    for (rank, ((got, gradient), _)) in on_ranks(&[(Axis::Tp, N)], |rt, rank| {
        let sent: Vec<u64> = (0..N).map(|q| count(rank, q)).collect();
        let taken: Vec<u64> = (0..N).map(|r| count(r, rank)).collect();
        let rows = Rows { received: taken.iter().sum(), counts: Some(Arc::new([sent.clone(), taken])) };
        let x = own(rt, rank, &[sent.iter().sum(), 1]);
        let y = x.all_to_all_rows(TP, rows).unwrap();
        (y.to_vec().unwrap(), pulled(&y, &x, rank))
    })
    .into_iter()
    .enumerate()
    {
        let rank = rank as u64;
        let expected: Vec<f64> = (0..N)
            .flat_map(|r| {
                let before: u64 = (0..rank).map(|q| count(r, q)).sum();
                (before..before + count(r, rank)).map(move |i| (10 * i + r) as f64)
            })
            .collect();
        assert_eq!(got, expected);
        // At rank q, my rows stand behind those of the ranks before me; their weight is place times q + 1.
        let expected: Vec<f64> = (0..N)
            .flat_map(|q| {
                let before: u64 = (0..rank).map(|r| count(r, q)).sum();
                (before..before + count(rank, q)).map(move |i| ((i + 1) * (q + 1)) as f64)
            })
            .collect();
        assert_eq!(gradient, expected);
    }
}

#[test]
fn the_first_rank_tells_the_others() {
    for (got, _) in
        on_ranks(&[(Axis::Tp, N)], |rt, rank| own(rt, rank, &[2]).detach().broadcast(TP).unwrap().to_vec().unwrap())
    {
        assert_eq!(got, [0.0, 10.0]);
    }
}

#[test]
fn letters_go_round_the_ring() {
    for (rank, (got, cost)) in on_ranks(&[(Axis::Tp, N)], |rt, rank| {
        own(rt, rank, &[2]).send(TP, 1).unwrap();
        Tensor::recv(rt, TP, -1, &[2], DType::F64).unwrap().to_vec().unwrap()
    })
    .into_iter()
    .enumerate()
    {
        let before = (rank as u64 + N - 1) % N;
        assert_eq!(got, [before as f64, (10 + before) as f64]);
        assert_eq!((cost.sent, cost.received), (16, 16));
    }
}

/// The last rank comes late, when the first has long been done: who waits for the last does not miss the first.
#[test]
fn a_rank_that_is_done_is_not_missed() {
    let results = on_ranks(&[(Axis::Tp, N)], |rt, rank| match rank {
        0 => Vec::new(),
        1 => Tensor::recv(rt, TP, 1, &[2], DType::F64).unwrap().to_vec().unwrap(),
        _ => {
            thread::sleep(Duration::from_millis(50));
            own(rt, rank, &[2]).send(TP, -1).unwrap();
            Vec::new()
        }
    });
    assert_eq!(results[1].0, [2.0, 12.0]);
}

#[test]
fn groups_are_the_ranks_that_differ_along_one_axis() {
    let degrees = [(Axis::Tp, 2), (Axis::Dp, 3)];
    for (rank, ((tp, dp), _)) in on_ranks(&degrees, |rt, rank| {
        let sum = |axis, size| {
            let x = own(rt, rank, &[1]).detach();
            x.all_reduce(Group { axis, size }, Combine::Sum).unwrap().to_vec().unwrap()[0]
        };
        (sum(Axis::Tp, 2), sum(Axis::Dp, 3))
    })
    .into_iter()
    .enumerate()
    {
        let (tp_place, dp_place) = (rank % 2, rank / 2);
        assert_eq!(tp, (4 * dp_place + 1) as f64);
        assert_eq!(dp, (3 * tp_place + 6) as f64);
    }
}

#[test]
fn parts_of_the_vocabulary_have_the_loss_and_gradient_of_the_whole() {
    let (rows, width) = (4u64, 2u64);
    let logit = |r: u64, c: u64| ((r * 7 + c * 5) % 11) as f64 / 3.0;
    let targets = [5.0, 0.0, -100.0, 3.0];
    let whole = {
        let rt = Runtime::new(Device::Cpu);
        let values: Vec<f64> = (0..rows).flat_map(|r| (0..N * width).map(move |c| logit(r, c))).collect();
        let logits = tensor(&rt, &values, &[rows, N * width]);
        let loss = logits.cross_entropy(&rt.input(&targets, &[rows], DType::I64).unwrap(), Reduction::Mean).unwrap();
        loss.backward().unwrap();
        (loss.item().unwrap(), logits.grad().unwrap().to_vec().unwrap())
    };
    for (rank, ((loss, gradient), _)) in on_ranks(&[(Axis::Tp, N)], |rt, rank| {
        let first = rank * width;
        let values: Vec<f64> = (0..rows).flat_map(|r| (first..first + width).map(move |c| logit(r, c))).collect();
        let logits = tensor(rt, &values, &[rows, width]);
        let lse = rt.no_grad(|| {
            let own = logits.logsumexp(-1, false).unwrap().unsqueeze(0).unwrap();
            own.all_gather(TP, 0).unwrap().logsumexp(0, false).unwrap()
        });
        let targets = rt.input(&targets, &[rows], DType::I64).unwrap();
        let part = logits.cross_entropy_shard(&targets, &lse, first, Reduction::Mean).unwrap();
        let loss = part.all_reduce(TP, Combine::Sum).unwrap();
        loss.backward().unwrap();
        (loss.item().unwrap(), logits.grad().unwrap().to_vec().unwrap())
    })
    .into_iter()
    .enumerate()
    {
        assert!((loss - whole.0).abs() < 1e-12, "{loss} {}", whole.0);
        for r in 0..rows as usize {
            for c in 0..width as usize {
                let want = whole.1[r * (N * width) as usize + rank * width as usize + c];
                assert!((gradient[r * width as usize + c] - want).abs() < 1e-12);
            }
        }
    }
}

#[test]
fn one_rank_alone_cannot_compute_with_others() {
    let rt = Runtime::new(Device::Cpu);
    let x = own(&rt, 0, &[2]).detach();
    let refused = x.all_reduce(TP, Combine::Sum).unwrap_err();
    assert_eq!(refused, Error::NoPeers { op: "all_reduce", axis: "tp" });
    // On the meta device nothing is computed.
    let rt = Runtime::new(Device::Meta);
    let x = rt.zeros(&[2, 6], DType::F32).unwrap();
    assert_eq!(x.reduce_scatter(TP, 1).unwrap().shape(), [2, 2]);
    assert!(x.reduce_scatter(TP, 0).is_err());
}

#[test]
fn a_rank_that_fails_does_not_leave_the_others_waiting() {
    let results = on_ranks(&[(Axis::Tp, N)], |rt, rank| {
        let x = own(rt, rank, &[2]).detach();
        if rank == 1 { None } else { Some(x.all_reduce(TP, Combine::Sum).is_err()) }
    });
    assert_eq!(results.into_iter().map(|(failed, _)| failed).collect::<Vec<_>>(), [Some(true), None, Some(true)]);
}

#[test]
fn what_is_gathered_again_is_kept_in_parts_and_has_the_same_gradients() {
    let run = |again: bool| {
        on_ranks(&[(Axis::Tp, N)], |rt, rank| {
            let x = own(rt, rank, &[2, 4]);
            let weights = [tensor(rt, &[0.5; 8], &[2, 4]), tensor(rt, &[0.25; 8], &[2, 4])];
            let before = rt.live_bytes();
            // The stream is something that was made: the norm in front of the maps.
            let stream = x.mul_scalar(2.0).unwrap();
            let whole = if again { stream.all_gather_again(TP, 0) } else { stream.all_gather(TP, 0) }.unwrap();
            let out = weights.iter().map(|w| whole.linear(w, None).unwrap()).collect::<Vec<_>>();
            drop((stream, whole));
            let out = out[0].add(&out[1]).unwrap();
            let kept = rt.live_bytes() - before;
            let gradient = pulled(&out, &x, rank);
            let of_weights = weights.map(|w| w.grad().unwrap().to_vec().unwrap());
            let gathers = rt.take_trace().ops.iter().filter(|event| event.op.name() == "all_gather").count();
            (kept, gradient, of_weights, gathers)
        })
    };
    for (((kept, gradient, weights, gathers), _), ((kept_whole, expected, of_weights, once), _)) in
        run(true).into_iter().zip(run(false))
    {
        assert_eq!((gradient, weights), (expected, of_weights));
        // 2 of 6 rows of 4 numbers instead of all, and both maps read what is gathered once more.
        assert_eq!(kept_whole - kept, 4 * 4 * 8);
        assert_eq!((once, gathers), (1, 2));
    }
}
