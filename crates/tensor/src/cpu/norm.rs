//! Layer and RMS normalisation over rows, forward and backward: one kernel for both, with and without the mean.
//!
//! Gradients of the channels are summed over fixed blocks of rows, and the blocks added in order.

use super::args::{Args, Input, Output};
use super::reduce::{sum, sums};
use super::rows::{Rows, in_pieces, place, put, rows_per_piece, vector};
use super::simd::vectorized;
use super::typed::{Real, TypedMut};
use std::borrow::Cow;

/// Blocks of rows whose sums are kept apart, at most; and the fewest rows of a block that others are needed for.
const BLOCKS: usize = 32;
const FEWEST_ROWS: usize = 16;

/// What is done to each row, and where its operands stand among the inputs of the op.
#[derive(Clone, Copy, Debug)]
pub struct Norm {
    /// Added to the variance; 0 in a backward pass.
    pub eps: f64,
    /// Whether the mean is taken away first: layer norm.
    pub centred: bool,
    /// The weight, if there is one.
    pub weight: Option<usize>,
    /// Whether 1 is added to the weight.
    pub unit_offset: bool,
    /// The bias, if there is one.
    pub bias: Option<usize>,
}

/// Which gradients a backward pass gives.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// That of the input.
    pub dx: bool,
    /// That of the weight.
    pub dw: bool,
    /// That of the bias.
    pub db: bool,
}

/// An output that is not there.
fn nothing<'a>() -> TypedMut<'a> {
    TypedMut::F32(&mut [])
}

impl Norm {
    /// The factor of each channel.
    fn scale<'a, C: Real>(&self, inputs: &'a [Input<'_>], width: usize) -> Option<Cow<'a, [C]>> {
        let Some(at) = self.weight else { return Some(Cow::Owned(vec![C::one(); width])) };
        let weight = vector::<C>(&inputs[at])?;
        Some(if self.unit_offset { Cow::Owned(weight.iter().map(|&w| C::one() + w).collect()) } else { weight })
    }

    /// Writes the normalised rows, their means if they are centred, and their inverse deviations. `None`, and nothing
    /// written, if an operand has a layout that this does not cover.
    pub fn forward<C: Real>(&self, args: &mut Args<'_>) -> Option<()> {
        let Args { inputs, outputs } = args;
        if outputs.iter().any(|o| !o.layout.is_contiguous()) {
            return None;
        }
        let x = Rows::of(&inputs[0])?;
        let width = x.width();
        let scale = self.scale::<C>(inputs, width)?;
        let bias = self.bias.map(|at| vector::<C>(&inputs[at]).ok_or(())).transpose().ok()?;
        let rows = outputs.last()?.elements();
        let mut typed = outputs.iter_mut().map(Output::typed);
        let normalised = typed.next()?;
        let means = if self.centred { typed.next()? } else { nothing() };
        let targets = [(normalised, width), (means, usize::from(self.centred)), (typed.next()?, 1)];
        in_pieces(rows, rows_per_piece(width), targets, |first, rows, [mut out, mut means, mut deviations]| {
            let (mut buffer, mut block) = (vec![C::zero(); width], vec![C::zero(); width]);
            for r in 0..rows {
                let x = x.get(first + r, 0, width, &mut buffer);
                let y = place(&mut out, r * width, width, &mut block);
                let (mean, rstd) = self.row(x, &scale, bias.as_deref(), y);
                put(&mut out, r * width, width, &block);
                if self.centred {
                    means.write(r, 1, &[mean]);
                }
                deviations.write(r, 1, &[rstd]);
            }
        });
        Some(())
    }

    /// Normalises a row; gives its mean and inverse deviation.
    fn row<C: Real>(&self, x: &[C], scale: &[C], bias: Option<&[C]>, y: &mut [C]) -> (C, C) {
        vectorized(
            #[inline(always)]
            || {
                let count = C::from_f64(x.len() as f64);
                let mean = if self.centred { sum(x) / count } else { C::zero() };
                let [squares] = sums(
                    [x],
                    #[inline(always)]
                    |[x]| [(x - mean) * (x - mean)],
                );
                let rstd = C::one() / (squares / count + C::from_f64(self.eps)).sqrt();
                for ((y, &x), &w) in y.iter_mut().zip(x).zip(scale) {
                    *y = (x - mean) * rstd * w;
                }
                for (y, &b) in y.iter_mut().zip(bias.unwrap_or(&[])) {
                    *y = *y + b;
                }
                (mean, rstd)
            },
        )
    }

    /// Writes the gradients that are wanted. Inputs: gradient, x, means if centred, inverse deviations, weight. `None`,
    /// and nothing written, if an operand has a layout that this does not cover.
    pub fn backward<C: Real>(&self, wanted: Wanted, args: &mut Args<'_>) -> Option<()> {
        let Args { inputs, outputs } = args;
        if outputs.iter().any(|o| !o.layout.is_contiguous()) {
            return None;
        }
        let (grad, x) = (Rows::of(&inputs[0])?, Rows::of(&inputs[1])?);
        let means = if self.centred { Some(Rows::of(&inputs[2])?) } else { None };
        let deviations = Rows::of(&inputs[2 + usize::from(self.centred)])?;
        let width = x.width();
        let scale = self.scale::<C>(inputs, width)?;
        let rows = inputs[2].elements();
        let per_block = rows.div_ceil(BLOCKS).max(FEWEST_ROWS);

        let mut typed = outputs.iter_mut().map(Output::typed);
        let dx = if wanted.dx { typed.next()? } else { nothing() };
        let sums_wanted = wanted.dw || wanted.db;
        let mut partial = vec![C::zero(); if sums_wanted { rows.div_ceil(per_block) * 2 * width } else { 0 }];
        {
            // Each block of rows has its own sums: one piece, whatever its number of rows.
            let mut left = dx;
            let mut parts = partial.chunks_mut((2 * width).max(1));
            let blocks: Vec<_> = (0..rows)
                .step_by(per_block)
                .map(|first| {
                    let count = per_block.min(rows - first);
                    (first, count, left.take(count * width), parts.next().unwrap_or(&mut []))
                })
                .collect();
            super::rows::for_each(blocks, |(first, count, mut dx, part)| {
                let [mut g_row, mut x_row, mut block] = [0; 3].map(|_| vec![C::zero(); width]);
                let half = part.len() / 2;
                let (dw, db) = part.split_at_mut(half);
                for r in 0..count {
                    let g = grad.get(first + r, 0, width, &mut g_row);
                    let x = x.get(first + r, 0, width, &mut x_row);
                    let mean = means.as_ref().map_or(C::zero(), |means| means.element(first + r, 0));
                    let row = Row { g, x, scale: &scale, mean, rstd: deviations.element(first + r, 0) };
                    if wanted.dx {
                        row.input(self.centred, place(&mut dx, r * width, width, &mut block));
                        put(&mut dx, r * width, width, &block);
                    }
                    if sums_wanted {
                        row.channels(dw, db);
                    }
                }
            });
        }
        let halves = [(wanted.dw, 0), (wanted.db, width)];
        for (_, start) in halves.into_iter().filter(|&(wanted, _)| wanted) {
            let mut total = vec![C::zero(); width];
            for part in partial.chunks((2 * width).max(1)) {
                for (total, &part) in total.iter_mut().zip(&part[start..]) {
                    *total = *total + part;
                }
            }
            typed.next()?.write(0, 1, &total);
        }
        Some(())
    }
}

/// One row of a backward pass.
struct Row<'a, C> {
    g: &'a [C],
    x: &'a [C],
    scale: &'a [C],
    mean: C,
    rstd: C,
}

impl<C: Real> Row<'_, C> {
    /// Gradient of the row of the input.
    fn input(&self, centred: bool, dx: &mut [C]) {
        let &Self { g, x, scale, mean, rstd } = self;
        vectorized(
            #[inline(always)]
            || {
                let count = C::from_f64(x.len() as f64);
                let [straight, along] = sums(
                    [g, x, scale],
                    #[inline(always)]
                    |[g, x, w]| [g * w, g * w * ((x - mean) * rstd)],
                );
                let straight = if centred { straight / count } else { C::zero() };
                let along = along / count;
                for (((dx, &g), &x), &w) in dx.iter_mut().zip(g).zip(x).zip(scale) {
                    *dx = rstd * (g * w - straight - (x - mean) * rstd * along);
                }
            },
        );
    }

    /// Adds to the gradients of the channels.
    fn channels(&self, dw: &mut [C], db: &mut [C]) {
        let &Self { g, x, mean, rstd, .. } = self;
        vectorized(
            #[inline(always)]
            || {
                for (((dw, db), &g), &x) in dw.iter_mut().zip(db).zip(g).zip(x) {
                    *dw = *dw + g * ((x - mean) * rstd);
                    *db = *db + g;
                }
            },
        );
    }
}
