//! What one rank of a stage does, written down for models of the shapes of GPT and Llama.
//!
//! A stand-in for the trace of a rank: the same ops, in closed form.

use super::collective_time::Collective;
use super::machine::{Item, Talk};
use super::op_time::{Piece, Work};
use super::topology::Axis;

/// A model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Blocks.
    pub layers: u64,
    /// Width of the model.
    pub width: u64,
    /// Heads of queries.
    pub heads: u64,
    /// Heads of keys and of values.
    pub kv_heads: u64,
    /// Width of a head.
    pub head: u64,
    /// Width of the feed-forward part.
    pub inner: u64,
    /// Whether that has a gate, and positions are rotations.
    pub llama: bool,
    /// Rows of the embedding, as they are divided (padded).
    pub vocab: u64,
    /// Whether the head shares the embedding.
    pub tied: bool,
    /// Tokens of a sequence.
    pub seq: u64,
}

/// How one rank runs it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// Sequences of a micro-batch.
    pub micro_batch: u64,
    /// Ranks that share matrices.
    pub tp: u64,
    /// Whether what lies between them is divided along the sequence.
    pub sp: bool,
    /// Ranks that share a sequence.
    pub cp: u64,
    /// What is run again in backward.
    pub again: Again,
    /// Whether attention is one fused op.
    pub fused_attention: bool,
    /// Whether exchanges of tensor parallelism run beside products that do not need them.
    pub beside: bool,
    /// Whether a map multiplies the rows that a rank has itself while those of the others are gathered.
    pub own_first: bool,
    /// Whether modules are plain ones, each of whose small ops is a kernel.
    pub plain: bool,
    /// How gradients of micro-batches are added up.
    pub accumulation: Accumulation,
    /// Bytes that the loss reads and writes of a logit, forward and backward.
    pub loss_bytes: [f64; 2],
}

/// How the gradients of micro-batches are added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accumulation {
    /// By the product that makes them, into a buffer of 32 bits, which is read and written when a tile is done, with nothing
    /// left to hide that.
    Fused,
    /// By an op of its own, into a buffer of 32 bits.
    Wide,
    /// By an op of its own, in 16 bits.
    Narrow,
}

/// What is run again in backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Again {
    /// Nothing.
    Nothing,
    /// Scores, softmax and values.
    Attention,
    /// Whole blocks.
    Blocks,
}

/// What a rank does for one micro-batch in one part of the model.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Part {
    /// Forward.
    pub forward: Vec<Item>,
    /// Gradients of what came in, and what is run again.
    pub backward: Vec<Item>,
    /// Gradients of weights, where they are ops of their own.
    pub weights: Vec<Item>,
}

/// Bytes of an activation.
const WIDTH: f64 = 2.0;

impl Shape {
    /// Parameters of a block.
    pub fn block_parameters(&self) -> f64 {
        let [width, head, heads, kv_heads, inner] =
            [self.width, self.head, self.heads, self.kv_heads, self.inner].map(|size| size as f64);
        let matrices = if self.llama { 3.0 } else { 2.0 };
        width * head * 2.0 * (heads + kv_heads) + matrices * width * inner
    }

    /// Parameters of the embedding.
    pub fn embedding_parameters(&self) -> f64 {
        self.vocab as f64 * self.width as f64
    }
}

/// A linear map of a block, forward and backward.
struct Linear {
    tokens: u64,
    from: u64,
    to: u64,
}

impl Linear {
    fn forward(&self) -> Piece {
        Piece::product(1, self.tokens, self.to, self.from, WIDTH)
    }

    fn input(&self) -> Piece {
        Piece::product(1, self.tokens, self.from, self.to, WIDTH)
    }

    fn weight(&self) -> Piece {
        Piece::product(1, self.to, self.from, self.tokens, WIDTH)
    }
}

/// An op as slow as its bytes, of so many kernels.
fn moves(bytes: f64, launches: f64) -> Item {
    Item::Op(Piece { launches, ..Piece::moves(bytes) })
}

struct Writer<'a> {
    shape: &'a Shape,
    share: &'a Share,
    tokens: u64,
    between: f64,
}

impl<'a> Writer<'a> {
    fn new(shape: &'a Shape, share: &'a Share) -> Self {
        let tokens = share.micro_batch * shape.seq / share.cp;
        let between = tokens as f64 * shape.width as f64 * WIDTH / if share.sp { share.tp as f64 } else { 1.0 };
        Self { shape, share, tokens, between }
    }

    fn gathered(&self) -> f64 {
        self.tokens as f64 * self.shape.width as f64 * WIDTH
    }

    fn talk(&self, collective: Collective) -> Talk {
        Talk { collective, bytes: self.gathered(), axis: Axis::Tp }
    }

    /// Behind a map that is divided by rows.
    fn leave(&self, items: &mut Vec<Item>) {
        if self.share.tp > 1 {
            let collective = if self.share.sp { Collective::ReduceScatter } else { Collective::AllReduce };
            items.push(Item::Talk(self.talk(collective)));
        }
    }

    /// A product with rows that are gathered before it.
    fn gathered_product(&self, map: &Linear, piece: impl Fn(&Linear) -> Piece, items: &mut Vec<Item>) {
        let tp = self.share.tp;
        if tp == 1 || !self.share.sp {
            items.push(Item::Op(piece(map)));
            return;
        }
        let talk = self.talk(Collective::AllGather);
        let own = map.tokens / tp;
        if self.share.own_first && own > 0 {
            // What is gathered lies before and behind the own rows: two products, but on the first and last rank.
            let rest = piece(&Linear { tokens: map.tokens - own, ..*map });
            let launches = if tp > 2 { 2.0 } else { 1.0 };
            items.push(Item::Both(piece(&Linear { tokens: own, ..*map }), talk));
            items.push(Item::Op(Piece { launches, ..rest }));
        } else {
            items.extend([Item::Talk(talk), Item::Op(piece(map))]);
        }
    }

    /// Backward of a map divided by columns: its input is gathered again, its gradient summed.
    fn column(&self, map: &Linear, part: &mut Part) {
        let (input, weight) = (map.input(), map.weight());
        let tp = self.share.tp > 1;
        let beside = |piece: Piece, talk: Talk, items: &mut Vec<Item>| {
            if self.share.beside {
                items.push(Item::Both(piece, talk));
            } else {
                items.extend([Item::Op(piece), Item::Talk(talk)]);
            }
        };
        if tp && self.share.sp {
            beside(input, self.talk(Collective::AllGather), &mut part.backward);
            beside(weight, self.talk(Collective::ReduceScatter), &mut part.weights);
        } else if tp {
            part.backward.push(Item::Op(input));
            beside(weight, self.talk(Collective::AllReduce), &mut part.weights);
        } else {
            part.backward.push(Item::Op(input));
            part.weights.push(Item::Op(weight));
        }
        self.accumulate(map, part);
    }

    /// Backward of a map divided by rows: the gradient of its result is gathered.
    fn row(&self, map: &Linear, part: &mut Part) {
        self.gathered_product(map, Linear::input, &mut part.backward);
        part.weights.push(Item::Op(map.weight()));
        self.accumulate(map, part);
    }

    fn accumulate(&self, map: &Linear, part: &mut Part) {
        // The buffer is read and written, and what an op of its own adds is read.
        let (bytes, launches) = match self.share.accumulation {
            Accumulation::Fused => (8.0, 0.0),
            Accumulation::Wide => (10.0, 1.0),
            Accumulation::Narrow => (6.0, 1.0),
        };
        part.weights.push(moves(bytes * map.from as f64 * map.to as f64, launches));
    }

    /// What is done to queries, keys and values between their map and attention.
    ///
    /// Plain modules forward: all three are put in an order of their own, keys and values joined and put in another, queries
    /// and keys rotated, and what attention gives is put back; lengths of sequences are summed by small kernels. Backward
    /// the same, and gradients that were split are joined.
    ///
    /// Source of the plain ones: huggingface/nanotron, `src/nanotron/models/llama.py`, `CausalSelfAttention.forward` and
    /// `CoreAttention.forward`.
    fn heads(&self, backward: bool) -> Item {
        let Shape { head, heads, kv_heads, llama, .. } = *self.shape;
        let bytes = |heads: u64| self.tokens as f64 * (head * heads) as f64 / self.share.tp as f64 * WIDTH;
        let (q, k) = (bytes(heads), bytes(kv_heads));
        if !self.share.plain {
            return moves(if llama { 4.0 } else { 2.0 } * (q + k), 2.0);
        }
        let ordered = 2.0 * (q + 2.0 * k);
        let back = if self.share.micro_batch > 1 { 2.0 * q } else { 0.0 };
        if backward {
            moves(2.0 * ordered + 4.0 * k + 2.0 * q + 2.0 * k + back, 7.0)
        } else {
            moves(ordered + 8.0 * k + 2.0 * q + 2.0 * k + back, 12.0)
        }
    }

    /// The activation between the maps of a feed-forward part of so many bytes inside.
    ///
    /// Plain gates: the activation, its product with the other half; backward the two products, the activation, and both
    /// gradients joined. Source: `GLUActivation` of the same file.
    fn activation(&self, inner: f64, backward: bool) -> Item {
        let [forward, back] = match (self.shape.llama, self.share.plain) {
            (true, true) => [(5.0, 2.0), (13.0, 4.0)],
            (true, false) => [(3.0, 1.0), (5.0, 1.0)],
            (false, _) => [(2.0, 1.0), (3.0, 1.0)],
        };
        let (bytes, launches) = if backward { back } else { forward };
        moves(bytes * inner, launches)
    }

    /// Attention without its maps.
    fn attention(&self, backward: bool) -> Vec<Item> {
        let Share { tp, cp, micro_batch, .. } = *self.share;
        let Shape { seq, head, heads, kv_heads, .. } = *self.shape;
        let mine = micro_batch * heads.div_ceil(tp);
        let queries = seq / cp;
        let io = self.tokens as f64 * head as f64 * (2.0 * heads as f64 + 2.0 * kv_heads as f64) / tp as f64 * WIDTH;
        if self.share.fused_attention {
            // Parts of a causal sequence are dealt so that every rank has as many pairs.
            let keys = if cp > 1 { u64::midpoint(seq, queries) } else { seq };
            let work = Work::Attention { heads: mine, queries, keys, width: head, causal: cp == 1, backward };
            return vec![Item::Op(Piece { work, bytes: io * if backward { 2.0 } else { 1.0 }, launches: 1.0 })];
        }
        let scores = mine as f64 * queries as f64 * seq as f64;
        let (qk, pv) = ((queries, seq, head), (queries, head, seq));
        let product = |(m, n, k): (u64, u64, u64)| Item::Op(Piece::product(mine, m, n, k, WIDTH));
        let [softmax, gradient] = softmax(mine, queries);
        let (softmax, gradient) = (moves(scores * softmax.0, softmax.1), moves(scores * gradient.0, gradient.1));
        if backward {
            vec![
                product((queries, seq, head)),
                product((seq, head, queries)),
                // Dropout.
                moves(scores * 5.0, 1.0),
                gradient,
                product((queries, head, seq)),
                product((seq, head, queries)),
            ]
        } else {
            vec![product(qk), softmax, moves(scores * 5.0, 1.0), product(pv)]
        }
    }
}

/// Bytes of a score and kernels of the softmax of `heads` rows of scores, forward and backward: one kernel, which takes four
/// heads of all sequences at once, or else one each to widen, scale, mask, divide and narrow.
///
/// Source: NVIDIA/Megatron-LM, `megatron/core/fusions/fused_softmax.py`, `is_kernel_available` and `forward_torch_softmax`.
fn softmax(heads: u64, queries: u64) -> [(f64, f64); 2] {
    if heads.is_multiple_of(4) && queries.is_multiple_of(4) {
        [(4.0, 1.0), (6.0, 1.0)]
    } else {
        [(6.0 + 8.0 + 9.0 + 8.0 + 6.0, 5.0), (6.0 + 12.0 + 9.0 + 8.0 + 6.0, 5.0)]
    }
}

/// One block.
pub fn block(shape: &Shape, share: &Share) -> Part {
    let writer = Writer::new(shape, share);
    let tokens = writer.tokens;
    let (between, tp) = (writer.between, share.tp);
    let matrices = if shape.llama { 2 } else { 1 };
    let qkv = Linear { tokens, from: shape.width, to: shape.head * (shape.heads + 2 * shape.kv_heads) / tp };
    let out = Linear { tokens, from: shape.head * shape.heads / tp, to: shape.width };
    let up = Linear { tokens, from: shape.width, to: matrices * shape.inner / tp };
    let down = Linear { tokens, from: shape.inner / tp, to: shape.width };
    let inner = tokens as f64 * shape.inner as f64 / tp as f64 * WIDTH;

    let mut forward = Vec::new();
    forward.push(moves(2.0 * between, 1.0));
    writer.gathered_product(&qkv, Linear::forward, &mut forward);
    forward.push(writer.heads(false));
    forward.extend(writer.attention(false));
    forward.push(Item::Op(out.forward()));
    writer.leave(&mut forward);
    forward.push(moves(3.0 * between, 1.0));
    forward.push(moves(2.0 * between, 1.0));
    writer.gathered_product(&up, Linear::forward, &mut forward);
    forward.push(writer.activation(inner, false));
    forward.push(Item::Op(down.forward()));
    writer.leave(&mut forward);
    forward.push(moves(3.0 * between, 1.0));

    let mut part = Part::default();
    match share.again {
        Again::Nothing => {}
        Again::Attention => part.backward.extend(writer.attention(false)),
        Again::Blocks => part.backward.extend(forward.iter().copied()),
    }
    part.forward = forward;
    writer.row(&down, &mut part);
    part.backward.push(writer.activation(inner, true));
    writer.column(&up, &mut part);
    part.backward.push(moves(4.0 * between, 2.0));
    part.backward.push(moves(3.0 * between, 1.0));
    writer.row(&out, &mut part);
    part.backward.extend(writer.attention(true));
    part.backward.push(writer.heads(true));
    writer.column(&qkv, &mut part);
    part.backward.push(moves(4.0 * between, 2.0));
    part.backward.push(moves(3.0 * between, 1.0));
    part
}

/// What stands in front of the first block.
pub fn embedding(shape: &Shape, share: &Share) -> Part {
    let writer = Writer::new(shape, share);
    let rows = shape.vocab as f64 / share.tp as f64 * shape.width as f64;
    let mut part = Part::default();
    part.forward.push(moves(2.0 * writer.gathered(), 2.0));
    writer.leave(&mut part.forward);
    if share.tp > 1 && share.sp {
        part.backward.push(Item::Talk(writer.talk(Collective::AllGather)));
    }
    part.backward.push(moves(2.0 * writer.gathered() + 12.0 * rows, 3.0));
    part
}

/// What stands behind the last block: norm, logits, loss.
pub fn head(shape: &Shape, share: &Share) -> Part {
    let writer = Writer::new(shape, share);
    let tokens = writer.tokens;
    let map = Linear { tokens, from: shape.width, to: shape.vocab / share.tp };
    let logits = tokens as f64 * shape.vocab as f64 / share.tp as f64;
    let mut part = Part::default();
    part.forward.push(moves(2.0 * writer.between, 1.0));
    writer.gathered_product(&map, Linear::forward, &mut part.forward);
    part.forward.push(moves(share.loss_bytes[0] * logits, 6.0));
    if share.tp > 1 {
        // Largest logit, that of the target, sum of exponentials.
        for _ in 0..3 {
            part.forward.push(Item::Talk(Talk {
                collective: Collective::AllReduce,
                bytes: tokens as f64 * 4.0,
                axis: Axis::Tp,
            }));
        }
    }
    part.backward.push(moves(share.loss_bytes[1] * logits, 3.0));
    writer.column(&map, &mut part);
    part.backward.push(moves(4.0 * writer.between, 2.0));
    part
}

#[cfg(test)]
mod tests {
    use super::*;

    const LLAMA: Shape = Shape {
        layers: 32,
        width: 4096,
        heads: 32,
        kv_heads: 8,
        head: 128,
        inner: 14336,
        llama: true,
        vocab: 128_256,
        tied: false,
        seq: 4096,
    };

    const ALONE: Share = Share {
        micro_batch: 2,
        tp: 1,
        sp: false,
        cp: 1,
        again: Again::Nothing,
        fused_attention: true,
        beside: false,
        own_first: false,
        plain: false,
        accumulation: Accumulation::Fused,
        loss_bytes: [4.0, 4.0],
    };

    fn flop(items: &[Item]) -> f64 {
        let of = |item: &Item| match item {
            Item::Op(piece) | Item::Both(piece, _) => piece.flop(),
            Item::Talk(_) => 0.0,
        };
        items.iter().map(of).sum()
    }

    fn talks(items: &[Item]) -> Vec<Collective> {
        let of = |item: &Item| match item {
            Item::Talk(talk) | Item::Both(_, talk) => Some(talk.collective),
            Item::Op(_) => None,
        };
        items.iter().filter_map(of).collect()
    }

    #[test]
    fn a_block_has_the_flop_of_the_field() {
        let part = block(&LLAMA, &ALONE);
        let tokens = 2.0 * 4096.0;
        // Llama-3-8B: 218,103,808 parameters in the matrices of a block.
        let products = 2.0 * 218_103_808.0 * tokens;
        let attention = 4.0 * 4096.0 * 2.0 * 4096.0 * 4097.0 / 2.0;
        assert!((flop(&part.forward) / (products + attention) - 1.0).abs() < 1e-12);
        let backward = flop(&part.backward) + flop(&part.weights);
        assert!((backward / (2.0 * products + 2.5 * attention) - 1.0).abs() < 1e-12);
        let head = head(&LLAMA, &ALONE);
        assert!((flop(&head.forward) / (2.0 * 128_256.0 * 4096.0 * tokens) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn ranks_that_share_matrices_do_the_flop_of_one_between_them() {
        for (tp, sp, own_first) in [(2, false, false), (4, true, false), (8, true, true)] {
            let share = Share { tp, sp, own_first, beside: own_first, plain: own_first, ..ALONE };
            for (whole, part) in
                [(block(&LLAMA, &ALONE), block(&LLAMA, &share)), (head(&LLAMA, &ALONE), head(&LLAMA, &share))]
            {
                for (whole, part) in [
                    (&whole.forward, &part.forward),
                    (&whole.backward, &part.backward),
                    (&whole.weights, &part.weights),
                ] {
                    assert!((flop(part) * tp as f64 - flop(whole)).abs() <= 1e-9 * flop(whole), "{tp}");
                }
            }
        }
    }

    #[test]
    fn plain_modules_move_more_by_more_kernels() {
        let of = |share: &Share| {
            let part = block(&LLAMA, share);
            let sum = |value: fn(&Piece) -> f64| -> f64 {
                let pieces = part.forward.iter().chain(&part.backward).filter_map(|item| match item {
                    Item::Op(piece) if piece.work == Work::Moves => Some(value(piece)),
                    _ => None,
                });
                pieces.sum()
            };
            (sum(|piece| piece.bytes), sum(|piece| piece.launches))
        };
        let (fused, plain) = (of(&ALONE), of(&Share { plain: true, ..ALONE }));
        // Of 8,192 tokens: ten passes more over 14,336 channels; queries of 32 and keys and values of 8 heads of 128.
        let channels = 10.0 * 14_336.0;
        let (q, k) = (32.0 * 128.0, 8.0 * 128.0);
        let heads = 6.0 * (q + 2.0 * k) + 16.0 * k + 8.0 * q - 8.0 * (q + k);
        assert!((plain.0 - fused.0 - 8192.0 * 2.0 * (channels + heads)).abs() < 1.0, "{plain:?} {fused:?}");
        assert_eq!(plain.1 - fused.1, 1.0 + 3.0 + 10.0 + 5.0);
    }

    #[test]
    fn a_softmax_of_less_than_four_heads_is_many_kernels() {
        let [forward, backward] = softmax(4, 1024);
        assert_eq!([forward.1, backward.1], [1.0, 1.0]);
        for (heads, queries) in [(2, 1024), (4, 1023)] {
            let [slow, slower] = softmax(heads, queries);
            assert!(slow.0 > 5.0 * forward.0 && slower.0 > 5.0 * backward.0 && slow.1 == 5.0 && slower.1 == 5.0);
        }
    }

    #[test]
    fn recomputation_adds_the_forward_pass_to_backward() {
        let plain = block(&LLAMA, &ALONE);
        let again = block(&LLAMA, &Share { again: Again::Blocks, ..ALONE });
        assert!((flop(&again.backward) - flop(&plain.backward) - flop(&plain.forward)).abs() < 1.0);
    }

    #[test]
    fn exchanges_are_those_of_tensor_parallelism() {
        use Collective::{AllGather, AllReduce, ReduceScatter};
        assert_eq!(talks(&block(&LLAMA, &ALONE).forward), []);
        let plain = block(&LLAMA, &Share { tp: 4, ..ALONE });
        // Two all-reduces forward and two backward: Shoeybi et al. 2019, figure 4.
        assert_eq!(talks(&plain.forward), [AllReduce, AllReduce]);
        assert_eq!([talks(&plain.backward), talks(&plain.weights)].concat(), [AllReduce, AllReduce]);
        // Gather and scatter in their place, and inputs gathered again: Korthikanti et al. 2022, section 4.2.
        let split = Share { tp: 4, sp: true, ..ALONE };
        let own = block(&LLAMA, &Share { own_first: true, beside: true, ..split });
        assert_eq!(talks(&own.forward), [AllGather, ReduceScatter, AllGather, ReduceScatter]);
        // Maps by columns and by rows gather beside a quarter of the product: the rows that the rank has.
        let quarter =
            |item: &&Item| matches!(item, Item::Both(piece, _) if matches!(piece.work, Work::Product { m: 2048, .. }));
        assert_eq!([&own.forward, &own.backward].map(|items| items.iter().filter(quarter).count()), [2, 2]);
        let sequence = block(&LLAMA, &split);
        assert_eq!(talks(&sequence.forward), [AllGather, ReduceScatter, AllGather, ReduceScatter]);
        assert_eq!(talks(&sequence.backward), [AllGather; 4]);
        assert_eq!(talks(&sequence.weights), [ReduceScatter; 2]);
    }
}
