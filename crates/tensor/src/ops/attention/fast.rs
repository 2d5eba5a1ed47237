//! The fast kernels' way in: operands, scratch, and how the work is shared out among threads.

use super::backward::{Backward, Gradients};
use super::decode::FEW;
use super::forward::{Forward, Results};
use super::heads::{Element, Heads, Numbers, written};
use super::tile::{QUERIES, Scores, Sight};
use super::{Attention, Sizes};
use crate::cpu::lanes::{Kernel, Lanes, dispatch};
use crate::cpu::planes::Planes;
use crate::cpu::{Args, Output, scratch, work as counts};
use crate::dtype::DType;
use crate::layout::Layout;
use half::{bf16, f16};
use rayon::iter::ParallelIterator;

/// FLOP below which other threads cost more than they save.
const WORTH_THREADS: u128 = 1 << 20;

/// Runs forward; `false` if the operands are of a type or layout that only the plain kernel knows.
pub(super) fn forward(op: &Attention, args: &mut Args<'_>) -> bool {
    match args.inputs[0].dtype {
        DType::F32 => forward_of::<f32>(op, args),
        DType::BF16 => forward_of::<bf16>(op, args),
        DType::F16 => forward_of::<f16>(op, args),
        _ => None,
    }
    .is_some()
}

/// Runs backward; `false` as for [`forward`].
pub(super) fn backward(op: &Attention, args: &mut Args<'_>) -> bool {
    match args.inputs[0].dtype {
        DType::F32 => backward_of::<f32>(op, args),
        DType::BF16 => backward_of::<bf16>(op, args),
        DType::F16 => backward_of::<f16>(op, args),
        _ => None,
    }
    .is_some()
}

/// `None` if there is nothing to do in one of the sizes: the plain kernel knows what that means.
fn not_empty(args: &Args<'_>) -> Option<()> {
    args.inputs.iter().all(|i| i.elements() > 0).then_some(())
}

/// Runs `work` on parts of `all`: one after another on this thread, or on several.
fn share<P: Send>(all: P, threads: bool, split: impl Fn(P) -> (P, Option<P>) + Sync + Send, work: impl Fn(P) + Sync + Send) {
    let work = |part| {
        work(part);
        counts::publish();
    };
    if threads {
        rayon::iter::split(all, split).for_each(work);
    } else {
        work(all);
    }
}

fn forward_of<T: Element>(op: &Attention, args: &mut Args<'_>) -> Option<()> {
    not_empty(args)?;
    let (inputs, outputs) = (&args.inputs, &mut args.outputs);
    let n = Sizes::of_layouts([&inputs[0], &inputs[1], &inputs[2]].map(|input| input.layout));
    let work = Forward {
        q: Heads::<T>::new(&inputs[0])?,
        k: Heads::new(&inputs[1])?,
        v: Heads::new(&inputs[2])?,
        group: (n.a / n.kv) as usize,
        sight: Sight::new(op, n.sq as usize, n.sk as usize),
        scores: Scores::new(op, inputs)?,
        sinks: if op.sinks { Some(Numbers::new(&inputs[op.sinks_at()])?) } else { None },
    };
    let [out, lse] = &mut outputs[..] else { return None };
    let (layout, lse_layout) = (out.layout, lse.layout.unsqueeze(3));
    let out = Planes::new(written::<T>(out)?, layout, QUERIES)?;
    let lse = Planes::new(written::<f32>(lse)?, &lse_layout, QUERIES)?;
    let threads = n.products(op.pairs(n), n.d + n.dv) >= WORTH_THREADS;
    dispatch(ForwardOn { work: &work, results: Results { out, lse }, threads });
    Some(())
}

struct ForwardOn<'a, 'b, T> {
    work: &'b Forward<'b, T>,
    results: Results<'a, T>,
    threads: bool,
}

impl<T: Element> Kernel for ForwardOn<'_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let Self { work, results, threads } = self;
        let few = work.sight.queries <= FEW;
        let room = if few { work.room_of_few() } else { work.room() };
        share(results, threads, Results::split, |results| {
            scratch::with(room, |mut scratch| {
                for (mut out, mut lse) in results.out.zip(results.lse) {
                    if few {
                        work.few(l, &mut out, &mut lse, scratch.again());
                    } else {
                        work.tile(l, &mut out, &mut lse, scratch.again());
                    }
                }
            });
        });
    }
}

fn backward_of<T: Element>(op: &Attention, args: &mut Args<'_>) -> Option<()> {
    not_empty(args)?;
    let (inputs, outputs) = (&args.inputs, &mut args.outputs);
    let n = Sizes::of_layouts([&inputs[0], &inputs[1], &inputs[2]].map(|input| input.layout));
    let [out, lse, grad] = [0, 1, 2].map(|i| &inputs[op.arity() + i]);
    let lse_layout = lse.layout.unsqueeze(3);
    let work = Backward {
        q: Heads::<T>::new(&inputs[0])?,
        k: Heads::new(&inputs[1])?,
        v: Heads::new(&inputs[2])?,
        out: Heads::new(out)?,
        lse: Heads::of(lse, &lse_layout)?,
        grad: Heads::new(grad)?,
        group: (n.a / n.kv) as usize,
        sight: Sight::new(op, n.sq as usize, n.sk as usize),
        scores: Scores::new(op, inputs)?,
        scale: op.scale as f32,
        sinks: if op.sinks { Some(Numbers::new(&inputs[op.sinks_at()])?) } else { None },
    };
    let [dq, dk, dv, of_sinks @ ..] = &mut outputs[..] else { return None };
    if [&*dq, dk, dv].iter().any(|o| o.layout.strides()[3] != 1) {
        return None;
    }
    // One number for each head of each batch, added up below: batches in order, whoever made them.
    let heads = if op.sinks { n.b * n.a } else { 0 };
    let mut sinks = vec![0.0f32; heads as usize];
    let sinks_layout = Layout::contiguous(&[n.b, heads / n.b, 1, 1]).ok()?;
    let layouts = [dq.layout, dk.layout, dv.layout];
    let grads = Gradients {
        dq: Planes::new(written::<T>(dq)?, layouts[0], n.sq as usize)?,
        dk: Planes::new(written::<T>(dk)?, layouts[1], n.sk as usize)?,
        dv: Planes::new(written::<T>(dv)?, layouts[2], n.sk as usize)?,
        sinks: Planes::new(&mut sinks, &sinks_layout, 1)?,
    };
    let threads = n.products(op.pairs(n), 3 * n.d + 2 * n.dv) >= WORTH_THREADS;
    dispatch(BackwardOn { work: &work, grads, threads });
    match of_sinks {
        [] => Some(()),
        [output] => {
            let totals = (0..n.a as usize).map(|h| sinks[h..].iter().step_by(n.a as usize).sum());
            match output.dtype {
                DType::F32 => write_all::<f32>(output, totals),
                DType::BF16 => write_all::<bf16>(output, totals),
                DType::F16 => write_all::<f16>(output, totals),
                _ => None,
            }
        }
        _ => None,
    }
}

/// Writes the numbers one after another.
fn write_all<T: Element>(output: &mut Output<'_>, numbers: impl Iterator<Item = f32>) -> Option<()> {
    for (to, x) in output.dense::<T>()?.iter_mut().zip(numbers) {
        *to = T::narrow(x);
    }
    Some(())
}

struct BackwardOn<'a, 'b, T> {
    work: &'b Backward<'b, T>,
    grads: Gradients<'a, T>,
    threads: bool,
}

impl<T: Element> Kernel for BackwardOn<'_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let Self { work, grads, threads } = self;
        let room = work.room();
        share(grads, threads, |grads| grads.split(work.group), |grads| {
            scratch::with(room, |scratch| work.heads(l, grads, scratch));
        });
    }
}
