//! Products of small matrices that lie in the caches: a block of rows of sums stays in registers.

#![allow(unsafe_code)]

use super::heads::Rows;
use crate::cpu::lanes::{Kernel, Lanes};
use crate::cpu::planes::Plane;
use crate::cpu::work;

/// The first factor: element `(r, k)` lies at `r row + k step`. Each is read once, so that any order will do.
#[derive(Clone, Copy)]
pub(super) struct Factor<'a> {
    pub data: &'a [f32],
    pub row: usize,
    pub step: usize,
}

/// What the sums begin with.
#[derive(Clone, Copy)]
pub(super) enum Start<'a> {
    Zero,
    /// What the result holds.
    Held,
    /// What row `r` of the result holds, times number `r`.
    Scaled(&'a [f32]),
}

/// `C = start + A B` for as many rows as a block of sums has at most.
///
/// # Shapes
/// A `rows depth`, B `depth columns`, C `rows columns`; columns a multiple of the lanes
pub(super) struct Product<'a, 'b, 'c> {
    pub a: Factor<'a>,
    pub b: Rows<'a>,
    pub depth: usize,
    pub rows: usize,
    pub columns: usize,
    pub start: Start<'a>,
    pub c: &'b mut Plane<'c, f32>,
    /// First row and column of the result within `c`.
    pub at: (usize, usize),
}

impl Kernel for Product<'_, '_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let Self { a, b, depth, rows, columns, start, c, at } = self;
        assert!(rows <= L::ROWS && columns % L::COUNT == 0, "a block of sums fits the registers");
        assert!(c.has_dense_rows() && at.0 + rows <= c.rows && at.1 + columns <= c.width, "the result has its room");
        if rows == 0 || columns == 0 {
            return;
        }
        if depth > 0 {
            assert!((rows - 1) * a.row + (depth - 1) * a.step < a.data.len(), "the first factor is whole");
            assert!((depth - 1) * b.stride + columns <= b.data.len(), "the second factor is whole");
        }
        if let Start::Scaled(by) = start {
            assert!(by.len() >= rows, "a number for each row");
        }
        let block = Block {
            a: a.data.as_ptr(),
            a_row: a.row,
            a_step: a.step,
            b: b.data.as_ptr(),
            b_row: b.stride,
            depth,
            start,
            c: c.pointer(at.0).wrapping_add(at.1),
            c_row: c.row_stride(),
        };
        work::count(rows, columns, depth);
        let vectors = columns / L::COUNT;
        let mut done = 0;
        while done < vectors {
            // As even as possible: 5 vectors are 3 and 2, not 4 and 1.
            let left = vectors - done;
            let next = left.div_ceil(left.div_ceil(L::COLUMNS));
            let shift = done * L::COUNT;
            let block = Block { b: block.b.wrapping_add(shift), c: block.c.wrapping_add(shift), ..block };
            // SAFETY: the factors and the result have been checked above to have these rows, columns and depth.
            unsafe { block.rows(l, rows, next) };
            done += next;
        }
    }
}

#[derive(Clone, Copy)]
struct Block<'a> {
    a: *const f32,
    a_row: usize,
    a_step: usize,
    b: *const f32,
    b_row: usize,
    depth: usize,
    start: Start<'a>,
    c: *mut f32,
    c_row: usize,
}

impl Block<'_> {
    /// The block of so many rows and vectors.
    ///
    /// # Safety
    /// As [`Block::sums`].
    #[inline(always)]
    unsafe fn rows<L: Lanes>(self, l: L, rows: usize, vectors: usize) {
        macro_rules! by_rows {
            ($($rows:literal)*) => {
                match rows {
                    // SAFETY: by the caller.
                    $($rows if $rows <= L::ROWS => unsafe { self.columns::<L, $rows>(l, vectors) },)*
                    _ => unreachable!("a block has 1 to {} rows", L::ROWS),
                }
            };
        }
        by_rows!(1 2 3 4 5 6);
    }

    /// # Safety
    /// As [`Block::sums`].
    #[inline(always)]
    unsafe fn columns<L: Lanes, const R: usize>(self, l: L, vectors: usize) {
        macro_rules! by_columns {
            ($($columns:literal)*) => {
                match vectors {
                    // SAFETY: by the caller.
                    $($columns if $columns <= L::COLUMNS => unsafe { self.sums::<L, R, $columns>(l) },)*
                    _ => unreachable!("a block has 1 to {} vectors", L::COLUMNS),
                }
            };
        }
        by_columns!(1 2 3 4);
    }

    /// # Safety
    /// The first factor has `R` rows of `depth`, the second `depth` rows of `C` vectors, the result `R` rows of `C`
    /// vectors, and there are `R` numbers to scale by.
    #[inline(always)]
    unsafe fn sums<L: Lanes, const R: usize, const C: usize>(self, l: L) {
        let Self { mut a, mut b, c, .. } = self;
        // SAFETY: by the caller.
        unsafe {
            let mut sums = [[l.splat(0.0); C]; R];
            match self.start {
                Start::Zero => {}
                Start::Held => {
                    for (r, row) in sums.iter_mut().enumerate() {
                        for (v, x) in row.iter_mut().enumerate() {
                            *x = l.load(c.add(r * self.c_row + v * L::COUNT));
                        }
                    }
                }
                Start::Scaled(by) => {
                    for (r, row) in sums.iter_mut().enumerate() {
                        let by = l.splat(*by.get_unchecked(r));
                        for (v, x) in row.iter_mut().enumerate() {
                            *x = l.mul(by, l.load(c.add(r * self.c_row + v * L::COUNT)));
                        }
                    }
                }
            }
            for _ in 0..self.depth {
                let mut columns = [l.splat(0.0); C];
                for (v, y) in columns.iter_mut().enumerate() {
                    *y = l.load(b.add(v * L::COUNT));
                }
                for (r, row) in sums.iter_mut().enumerate() {
                    let x = l.splat(*a.add(r * self.a_row));
                    for (sum, y) in row.iter_mut().zip(columns) {
                        *sum = l.fma(x, y, *sum);
                    }
                }
                a = a.wrapping_add(self.a_step);
                b = b.wrapping_add(self.b_row);
            }
            for (r, row) in sums.iter().enumerate() {
                for (v, x) in row.iter().enumerate() {
                    l.store(c.add(r * self.c_row + v * L::COUNT), *x);
                }
            }
        }
    }
}
