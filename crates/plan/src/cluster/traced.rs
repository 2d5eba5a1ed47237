//! What a rank did in a trace, as the model of time takes it.

use tensor::meter::{ModuleId, OpEvent, TensorRef};
use tensor::ops::attention::{Attention, pairs};
use tensor::{Axis as Group, Op};

use super::collective_time::Collective;
use super::constants::rules;
use super::machine::{Item, Talk};
use super::op_time::{Piece, Work};
use super::topology::Axis;

/// The items of the ops of a trace, in their order. Views are nothing; what goes to neighbours in a pipeline is left out,
/// because [`Pipeline`](super::pipeline::Pipeline) has it.
///
/// Keys and values that go round the ranks of a sequence do so beside the attention that follows in the same module.
///
/// Source: NVIDIA/TransformerEngine, `context_parallel.py`: messages of the next step are under way on a stream of their own.
pub fn items<'a>(events: impl IntoIterator<Item = &'a OpEvent>) -> Vec<Item> {
    placed(events).into_iter().map(|(_, item)| item).collect()
}

/// The same, each with the position of the event it belongs to.
pub fn placed<'a>(events: impl IntoIterator<Item = &'a OpEvent>) -> Vec<(usize, Item)> {
    let mut items = Vec::new();
    let launches = rules().get("trace_launches");
    // What was sent last, with the module and the position of that.
    let mut under_way: Option<(ModuleId, usize, Talk)> = None;
    for (at, event) in events.into_iter().enumerate() {
        // Another module waits for what is under way.
        if let Some((_, sent, talk)) = under_way.take_if(|(module, ..)| *module != event.module) {
            items.push((sent, Item::Talk(talk)));
        }
        match item(event, launches) {
            Some(Item::Talk(talk)) if talk.collective == Collective::Send => {
                let before = under_way.map_or(0.0, |(.., talk)| talk.bytes);
                under_way = Some((event.module, at, Talk { bytes: before + talk.bytes, ..talk }));
            }
            Some(Item::Op(piece)) if matches!(event.op, Op::Attention(_) | Op::AttentionBackward(_)) => {
                items.push((at, under_way.take().map_or(Item::Op(piece), |(.., talk)| Item::Both(piece, talk))));
            }
            other => items.extend(other.map(|item| (at, item))),
        }
        items.extend(buffer(event).map(|item| (at, item)));
    }
    items.extend(under_way.map(|(_, sent, talk)| (sent, Item::Talk(talk))));
    items
}

/// What a product that adds to a buffer does beside multiplying: the buffer is read and written when a tile is done, with
/// nothing left to hide that.
fn buffer(event: &OpEvent) -> Option<Item> {
    if !matches!(event.op, Op::MatMulInto(_) | Op::GroupedMatMulInto(_)) {
        return None;
    }
    let bytes = 2.0 * event.cost.written as f64;
    Some(Item::Op(Piece { launches: 0.0, ..Piece::moves(bytes) }))
}

/// One op, of so many launches; nothing for a view and for what goes to a neighbour in a pipeline.
fn item(event: &OpEvent, launches: f64) -> Option<Item> {
    if let Some(talk) = talk(event) {
        return (talk.bytes > 0.0 && talk.axis != Axis::Pp).then_some(Item::Talk(talk));
    }
    let bytes = event.cost.traffic().get() as f64 - buffer(event).map_or(0.0, |_| 2.0 * event.cost.written as f64);
    let work = work(event);
    (bytes > 0.0 || work != Work::Moves).then_some(Item::Op(Piece { work, bytes, launches }))
}

/// The exchange that an op is.
fn talk(event: &OpEvent) -> Option<Talk> {
    let bytes = |tensors: &[TensorRef]| {
        tensors.first().map_or(0, |tensor| tensor.layout.elements() * tensor.dtype.size_in_bytes())
    };
    let (collective, group, bytes) = match &event.op {
        Op::AllReduce(op) => (Collective::AllReduce, op.group, bytes(&event.inputs)),
        Op::AllGather(op) => (Collective::AllGather, op.group, bytes(&event.outputs)),
        Op::ReduceScatter(op) => (Collective::ReduceScatter, op.group, bytes(&event.inputs)),
        Op::AllToAll(op) => (Collective::AllToAll, op.group, bytes(&event.inputs)),
        Op::Broadcast(op) => (Collective::Broadcast, op.group, bytes(&event.outputs)),
        Op::Send(op) => (Collective::Send, op.group, bytes(&event.inputs)),
        // Who receives waits for as long as who sends takes.
        Op::Recv(op) => (Collective::Send, op.group, 0),
        _ => return None,
    };
    let axis = match group.axis {
        Group::Dp => Axis::Dp,
        Group::Tp => Axis::Tp,
        Group::Cp => Axis::Cp,
        Group::Ep => Axis::Ep,
        Group::Etp => Axis::Etp,
        Group::ExpertDp => Axis::ExpertDp,
        Group::Pp => Axis::Pp,
    };
    let alone = group.size <= 1;
    Some(Talk { collective, bytes: if alone { 0.0 } else { bytes as f64 }, axis })
}

/// What the time of an op depends on.
fn work(event: &OpEvent) -> Work {
    let shape = |index: usize| event.inputs.get(index).map_or(&[][..], |tensor| tensor.layout.shape());
    let flop = (event.cost.matmul + event.cost.recomputed) as f64;
    let known = match &event.op {
        Op::Linear(op) => linear(shape(0), shape(1), op.transposed),
        Op::MatMul(_) => match (shape(0), shape(1)) {
            ([batch @ .., m, k], [.., n]) => Some(Work::Product { batch: batch.iter().product(), m: *m, n: *n, k: *k }),
            _ => None,
        },
        Op::MatMulAdd(_) => match (shape(1), shape(2)) {
            ([batch, m, k], [.., n]) => Some(Work::Product { batch: *batch, m: *m, n: *n, k: *k }),
            _ => None,
        },
        Op::ScaledMatMul(_) => linear(shape(0), shape(1), false),
        // Rows are shared out to the experts; each multiplies its own.
        Op::GroupedLinear(op) => match (shape(0), shape(1)) {
            ([rows, k], [experts, a, b]) => {
                let n = if op.transposed { *b } else { *a };
                Some(Work::Product { batch: *experts, m: rows.div_ceil(*experts.max(&1)), n, k: *k })
            }
            _ => None,
        },
        Op::GroupedWeightGrad(_) => match (shape(0), shape(1), shape(2)) {
            ([rows, m], [_, n], [experts]) => {
                Some(Work::Product { batch: *experts, m: *m, n: *n, k: rows.div_ceil(*experts.max(&1)) })
            }
            _ => None,
        },
        Op::MatMulInto(_) => match (shape(1), shape(2)) {
            ([m, k], [_, n]) => Some(Work::Product { batch: 1, m: *m, n: *n, k: *k }),
            _ => None,
        },
        Op::GroupedMatMulInto(_) => match (shape(1), shape(2), shape(3)) {
            ([rows, m], [_, n], [experts]) => {
                Some(Work::Product { batch: *experts, m: *m, n: *n, k: rows.div_ceil(*experts.max(&1)) })
            }
            _ => None,
        },
        Op::Attention(op) => attention(op, shape(0), shape(1), shape(2), false),
        Op::AttentionBackward(op) => attention(&op.of, shape(0), shape(1), shape(2), true),
        _ => None,
    };
    match known {
        Some(work) => work,
        None if flop > 0.0 => Work::Mixed { flop },
        None => Work::Moves,
    }
}

/// `x (rows.. k)` by a weight `(n k)`, or `(k n)`.
fn linear(x: &[u64], w: &[u64], transposed: bool) -> Option<Work> {
    let ([rows @ .., k], [a, b]) = (x, w) else { return None };
    Some(Work::Product { batch: 1, m: rows.iter().product(), n: if transposed { *b } else { *a }, k: *k })
}

/// Queries `(b a sq d)`, keys `(b kv sk d)`, values `(b kv sk dv)`.
fn attention(op: &Attention, q: &[u64], k: &[u64], v: &[u64], backward: bool) -> Option<Work> {
    let ([b, a, queries, d], [.., keys, _], [.., dv]) = (q, k, v) else { return None };
    let (heads, width) = (b * a, u64::midpoint(*d, *dv));
    let work = |keys, causal| Work::Attention { heads, queries: *queries, keys, width, causal, backward };
    Some(match op.window {
        // As many keys for every query as they see in the mean.
        Some(_) => work(pairs(*queries, *keys, op.causal, op.window).div_ceil(*queries.max(&1)), false),
        None => work(*keys, op.causal),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::machine::tests::machine;
    use crate::cluster::shape::{Accumulation, Again, Shape, Share, block};
    use crate::cluster::topology::Degrees;
    use crate::model::Model;
    use nn::Profile;
    use nn::ranks::Ranks;
    use nn::step::{Precision, StepOptions, StepTrace};
    use tensor::Phase;

    fn traced(tp: u64, sp: bool) -> StepTrace {
        traced_layers(tp, sp, 2)
    }

    fn traced_layers(tp: u64, sp: bool, layers: u64) -> StepTrace {
        let text = r#"{"model_type": "llama", "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 2,
            "num_attention_heads": 16, "num_key_value_heads": 8, "vocab_size": 4096, "max_position_embeddings": 2048,
            "rms_norm_eps": 1e-5, "tie_word_embeddings": false}"#;
        let text = text.replace("\"num_hidden_layers\": 2", &format!("\"num_hidden_layers\": {layers}"));
        let model = Model::from_text("x", "x", text.as_bytes(), &[], None).unwrap();
        let spec = model.spec.share(Ranks { tp, sp, ..Ranks::ALONE }).unwrap();
        let options =
            StepOptions { batch: 2, ..StepOptions::usual(1024, Profile::Fused, Precision::Bf16MasterFp32Grads) };
        nn::step::trace(&spec, &options).unwrap()
    }

    fn of(trace: &StepTrace, phase: Phase) -> Vec<Item> {
        items(trace.trace.ops.iter().filter(|event| event.phase == phase))
    }

    fn flop(items: &[Item]) -> f64 {
        let of = |item: &Item| match item {
            Item::Op(piece) | Item::Both(piece, _) => piece.flop(),
            Item::Talk(_) => 0.0,
        };
        items.iter().map(of).sum()
    }

    #[test]
    fn items_have_the_flop_of_their_ops() {
        for tp in [1, 4] {
            let trace = traced(tp, tp > 1);
            for phase in [Phase::Forward, Phase::Backward] {
                let events = trace.trace.ops.iter().filter(|event| event.phase == phase);
                let counted: u128 = events.map(|event| event.cost.matmul + event.cost.recomputed).sum();
                let found = flop(&of(&trace, phase));
                assert!((found / counted as f64 - 1.0).abs() < 1e-9, "{tp} {phase:?}: {found} {counted}");
            }
        }
    }

    /// Sums over the items of one block, from traces of two and of three.
    fn one_block(of: impl Fn(&Item) -> f64) -> f64 {
        let sum = |layers: u64| -> f64 {
            let trace = traced_layers(1, false, layers);
            let pass = [super::tests::of(&trace, Phase::Forward), super::tests::of(&trace, Phase::Backward)].concat();
            pass.iter().map(&of).sum()
        };
        sum(3) - sum(2)
    }

    #[test]
    fn a_traced_block_is_that_of_the_closed_form() {
        let shape = Shape {
            layers: 2,
            width: 1024,
            heads: 16,
            kv_heads: 8,
            head: 64,
            inner: 3072,
            llama: true,
            vocab: 4096,
            tied: false,
            seq: 1024,
        };
        let share = Share {
            micro_batch: 2,
            tp: 1,
            sp: false,
            cp: 1,
            again: Again::Nothing,
            fused_attention: true,
            beside: false,
            own_first: false,
            plain: false,
            accumulation: Accumulation::Wide,
            loss_bytes: [4.0, 4.0],
        };
        let part = block(&shape, &share);
        let closed = [part.forward, part.backward, part.weights].concat();
        let sum = |of: &dyn Fn(&Item) -> f64| closed.iter().map(of).sum::<f64>();
        let piece = |of: fn(&Piece) -> f64| move |item: &Item| if let Item::Op(piece) = item { of(piece) } else { 0.0 };
        let (flop, bytes, launches) = (piece(Piece::flop), piece(|piece| piece.bytes), piece(|piece| piece.launches));
        assert!((sum(&flop) / one_block(flop) - 1.0).abs() < 1e-9);
        assert!((sum(&launches) / one_block(launches) - 1.0).abs() < 0.01);
        // The closed form leaves out small ones, and adds gradients of 32 bits by ops of their own.
        assert!((sum(&bytes) / one_block(bytes) - 1.0).abs() < 0.2, "{} {}", sum(&bytes), one_block(bytes));
    }

    #[test]
    fn exchanges_are_those_of_the_rank() {
        let talks = |trace: &StepTrace, collective: Collective| {
            let all = [of(trace, Phase::Forward), of(trace, Phase::Backward), of(trace, Phase::Communication)].concat();
            let is =
                |item: &&Item| matches!(item, Item::Talk(talk) if talk.collective == collective && talk.bytes > 1e5);
            all.iter().filter(is).count()
        };
        assert_eq!(talks(&traced(1, false), Collective::AllReduce), 0);
        // Two blocks, two exchanges each forward and two backward, and those of embedding and head.
        assert!(talks(&traced(4, false), Collective::AllReduce) >= 8);
        assert!(talks(&traced(4, true), Collective::ReduceScatter) >= 8);
    }

    #[test]
    fn a_quarter_of_the_matrices_takes_less_time_on_the_device_but_not_on_the_host() {
        let cost = |tp: u64| {
            let machine = machine(Degrees { tp, cp: 1, dp: 1, pp: 1, ep: 1, etp: 1 });
            let items = of(&traced(tp, tp > 1), Phase::Forward);
            let ops: Vec<Item> = items.iter().copied().filter(|item| matches!(item, Item::Op(_))).collect();
            (machine.cost(&ops).device, machine.cost(&items).host)
        };
        let (one, four) = (cost(1), cost(4));
        assert!(four.0 < 0.75 * one.0 && four.1 > one.1, "{one:?} {four:?}");
    }
}
