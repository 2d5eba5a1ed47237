//! Maps: the same formula for each element of one to several operands.
//!
//! A formula is written over [`Num`] and stands with its op; here it runs over blocks of f32 (or f64) that stay in the
//! first-level cache. Operands of other dtypes, or with strides, are brought there first; contiguous f32 is used where it
//! lies.

use super::args::{Args, Input};
use super::nest::Nest;
use super::simd::vectorized;
use super::typed::{Real, Typed, TypedMut};
use crate::dtype::DType;
use crate::kernel::Num;
use crate::layout::Layout;
use rayon::prelude::*;
use std::array::from_fn;

/// A formula of `I` operands with `O` results.
pub trait Map<const I: usize, const O: usize>: Sync {
    /// The results of one element. Inline it, so that it is compiled for the vector instructions at hand.
    fn of<T: Num>(&self, x: [T; I]) -> [T; O];
}

/// Elements of a block: 2 KiB of f32, so that five operands fit the first-level cache beside their sources.
const BLOCK: usize = 512;
/// Elements computed before they are stored.
const GROUP: usize = 64;
/// Elements of one piece of work for a thread.
pub const CHUNK: usize = 1 << 15;

/// The type the plain kernels would compute in: the widest float among the operands. Without floats, truth values of
/// small integers come out right in f32; `None` for the others.
pub fn compute_dtype(args: &Args<'_>) -> Option<DType> {
    let dtypes = args.inputs.iter().map(|x| x.dtype).chain(args.outputs.iter().map(|x| x.dtype));
    if dtypes.clone().any(|d| d == DType::F64) {
        Some(DType::F64)
    } else {
        let small = |d| matches!(d, DType::Bool | DType::U8 | DType::U16);
        let truths = args.outputs.iter().all(|x| x.dtype.is_bool()) && dtypes.clone().all(small);
        (truths || dtypes.clone().any(DType::is_float)).then_some(DType::F32)
    }
}

/// Runs a kernel over the type the plain ones would compute in: `in_compute_dtype!(args, C => expression)`, which is an
/// option. `false` if it gives `None` or there is no float.
macro_rules! in_compute_dtype {
    ($args:expr, $c:ident => $kernel:expr) => {
        match $crate::cpu::elementwise::compute_dtype($args) {
            Some($crate::dtype::DType::F64) => {
                type $c = f64;
                $kernel.is_some()
            }
            Some(_) => {
                type $c = f32;
                $kernel.is_some()
            }
            None => false,
        }
    };
}
pub(crate) use in_compute_dtype;

/// Writes the formula of all inputs, in order, to all outputs. `false` if there is no float among the operands.
pub fn map<const I: usize, const O: usize>(args: &mut Args<'_>, formula: &impl Map<I, O>) -> bool {
    map_inputs(args, from_fn(|i| i), formula)
}

/// [`map`] of some of the inputs.
pub fn map_inputs<const I: usize, const O: usize>(
    args: &mut Args<'_>,
    inputs: [usize; I],
    formula: &impl Map<I, O>,
) -> bool {
    let views = inputs.map(|i| (i, args.inputs[i].layout));
    map_views(args, views, args.outputs[0].layout, formula)
}

/// [`map`] of views: each input with the layout to be read, and the layout to be written, a part of the only output.
pub fn map_views<const I: usize, const O: usize>(
    args: &mut Args<'_>,
    inputs: [(usize, &Layout); I],
    output: &Layout,
    formula: &impl Map<I, O>,
) -> bool {
    match compute_dtype(args) {
        Some(DType::F64) => run::<f64, I, O>(args, inputs, output, &|x, y| apply(formula, x, y)),
        Some(_) => run::<f32, I, O>(args, inputs, output, &|x, y| {
            vectorized(
                #[inline(always)]
                || apply(formula, x, y),
            );
        }),
        None => false,
    }
}

/// Element `i` of each operand.
#[inline(always)]
fn lifted<C: Real, X: AsRef<[C]>, const I: usize>(x: &[X; I], i: usize) -> [C::Math; I] {
    let mut values = [C::Math::default(); I];
    for k in 0..I {
        values[k] = x[k].as_ref()[i].lift();
    }
    values
}

/// One loop over a block.
#[allow(clippy::needless_range_loop)] // one index for all operands: what the compiler vectorises best
#[inline(always)]
fn apply<C: Real, const I: usize, const O: usize>(formula: &impl Map<I, O>, x: [&[C]; I], mut y: [&mut [C]; O]) {
    let len = y[0].len();
    let x = x.map(|x| &x[..len]);
    for y in &mut y {
        *y = &mut std::mem::take(y)[..len];
    }
    let mut done = 0;
    if O > 1 {
        // Results first go where nothing else lies: among many operands the compiler does not check for overlaps.
        let mut results = [[C::zero(); GROUP]; O];
        while done + GROUP <= len {
            let x: [&[C; GROUP]; I] = x.map(|x| x[done..].first_chunk().expect("a whole group is left"));
            for i in 0..GROUP {
                let values = formula.of(lifted(&x, i));
                for k in 0..O {
                    results[k][i] = C::lower(values[k]);
                }
            }
            for (y, results) in y.iter_mut().zip(&results) {
                y[done..done + GROUP].copy_from_slice(results);
            }
            done += GROUP;
        }
    }
    for i in done..len {
        let values = formula.of(lifted(&x, i));
        for k in 0..O {
            y[k][i] = C::lower(values[k]);
        }
    }
}

/// A formula over blocks.
type Kernel<'k, C, const I: usize, const O: usize> = &'k (dyn Fn([&[C]; I], [&mut [C]; O]) + Sync);

/// Where the elements of an input come from.
#[derive(Clone, Copy)]
enum Source<'a> {
    /// Elements from the first one on.
    Read(Typed<'a>),
    /// What output `j` holds before it is written.
    Output(usize),
}

impl<'a> Source<'a> {
    fn of(input: &'a Input<'_>, view: &Layout) -> Self {
        match (input.elements_from(view.offset()), input.output()) {
            (Some(typed), _) => Self::Read(typed),
            (None, j) => Self::Output(j.unwrap_or(0)),
        }
    }
}

fn run<C: Real, const I: usize, const O: usize>(
    args: &mut Args<'_>,
    inputs: [(usize, &Layout); I],
    output: &Layout,
    kernel: Kernel<'_, C, I, O>,
) -> bool {
    let Args { inputs: all, outputs } = args;
    let alike = |other: &Layout| other.shape() == output.shape() && other.strides() == output.strides();
    let backwards = |layout: &Layout| layout.strides().iter().any(|&stride| stride < 0);
    let odd = backwards(output) || inputs.iter().any(|(_, view)| backwards(view));
    if odd || !outputs[1..O].iter().all(|o| alike(o.layout)) {
        return false;
    }
    let nest = Nest::new(output, inputs.map(|(_, view)| view));
    let sources = inputs.map(|(i, view)| Source::of(&all[i], view));
    let mut targets = outputs.iter_mut().map(|o| {
        let before = output.offset().saturating_sub(o.layout.offset());
        let mut target = o.typed();
        target.take(if O == 1 { before as usize } else { 0 });
        target
    });
    let targets = from_fn(|_| targets.next().expect("there are as many outputs"));
    over_blocks(&nest, sources, targets, kernel);
    true
}

/// A piece of the output: the elements `first..first + count` of the nest, which begin at position `base`.
struct Piece<'a, const O: usize> {
    first: usize,
    count: usize,
    base: isize,
    targets: [TypedMut<'a>; O],
}

fn over_blocks<C: Real, const I: usize, const O: usize>(
    nest: &Nest<I>,
    sources: [Source<'_>; I],
    mut targets: [TypedMut<'_>; O],
    kernel: Kernel<'_, C, I, O>,
) {
    let elements = nest.elements();
    if elements == 0 {
        return;
    }
    if elements <= CHUNK {
        piece(nest, &sources, Piece { first: 0, count: elements, base: 0, targets }, kernel);
        return;
    }
    // A dense output is cut anywhere, another one between turns of the outermost loop.
    let (count, span) = if nest.is_dense() {
        (CHUNK, CHUNK)
    } else {
        let (turns, step) = nest.outermost();
        let together = (CHUNK * turns / elements).max(1);
        (together * (elements / turns), together * step)
    };
    let pieces: Vec<_> = (0..elements.div_ceil(count))
        .map(|i| {
            let first = i * count;
            let targets = targets.each_mut().map(|t| t.take(span));
            Piece { first, count: count.min(elements - first), base: (i * span) as isize, targets }
        })
        .collect();
    pieces.into_par_iter().for_each(|p| piece(nest, &sources, p, kernel));
}

fn piece<C: Real, const I: usize, const O: usize>(
    nest: &Nest<I>,
    sources: &[Source<'_>; I],
    mut to: Piece<'_, O>,
    kernel: Kernel<'_, C, I, O>,
) {
    let (out_stride, in_strides) = nest.inner_strides();
    let mut read = [[C::zero(); BLOCK]; I];
    let mut written = [[C::zero(); BLOCK]; O];
    nest.for_each_run(to.first, to.count, |run| {
        for start in (0..run.len).step_by(BLOCK) {
            let len = BLOCK.min(run.len - start);
            let at = |first: isize, stride: isize| (first + start as isize * stride) as usize;
            let out = at(run.out - to.base, out_stride);
            let mut direct = [None; I];
            for k in 0..I {
                match sources[k] {
                    Source::Read(typed) => {
                        let from = at(run.ins[k], in_strides[k]);
                        direct[k] =
                            C::slice(&typed).filter(|_| in_strides[k] == 1).map(|slice| &slice[from..from + len]);
                        if direct[k].is_none() {
                            typed.read(from, in_strides[k], &mut read[k][..len]);
                        }
                    }
                    Source::Output(j) => to.targets[j].as_read().read(out, out_stride, &mut read[k][..len]),
                }
            }
            let x = from_fn(|k| direct[k].unwrap_or(&read[k][..len]));
            let mut places = to.targets.iter_mut().zip(&mut written);
            let y = from_fn(|_| {
                let (target, block) = places.next().expect("one place for each output");
                match C::slice_mut(target).filter(|_| out_stride == 1) {
                    Some(slice) => &mut slice[out..out + len],
                    None => &mut block[..len],
                }
            });
            kernel(x, y);
            for (target, block) in to.targets.iter_mut().zip(&written) {
                if out_stride != 1 || C::slice_mut(target).is_none() {
                    target.write(out, out_stride, &block[..len]);
                }
            }
        }
    });
}

/// Runs `$run` with a formula `$f` that depends on a variant of an enum, compiled once for each so that no element looks
/// at it: `for_variant!(op: Op, op.kind in Kind { A, B }, |op, kind, [x, y]| [results]: 2 to 1, f => map(args, &f))`.
macro_rules! for_variant {
    ($self:ident: $type:ty, $of:ident.$field:ident in $kinds:ident { $($variant:ident),* },
     |$op:pat_param, $kind:ident, $x:tt| $formula:expr, $inputs:literal to $outputs:literal, $f:ident => $run:expr) => {
        match $of.$field {
            $($kinds::$variant => {
                struct Formula<'a>(&'a $type);
                impl $crate::cpu::elementwise::Map<$inputs, $outputs> for Formula<'_> {
                    #[inline(always)]
                    fn of<T: Num>(&self, $x: [T; $inputs]) -> [T; $outputs] {
                        let ($op, $kind) = (self.0, $kinds::$variant);
                        $formula
                    }
                }
                let $f = Formula($self);
                $run
            })*
        }
    };
}
pub(crate) use for_variant;
