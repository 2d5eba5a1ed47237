//! What a block of a product is made of: packing of panels and tiles of the result, for each instruction set.

#![allow(unsafe_code)]
#![allow(clippy::inline_always)] // what is not inlined is not compiled for the instruction set of the caller
#![allow(clippy::cast_ptr_alignment)] // bytes of matrices are those of their elements

use super::element::{E4m3, E5m2, Kind, Rounded, Single};
use super::workspace::Workspace;
use half::{bf16, f16};

/// A part of a factor, seen from the side of the product: *lines* (rows of the first factor, columns of the second) of
/// numbers along the *depth* k.
#[derive(Clone, Copy)]
pub(super) struct Factor {
    /// First element.
    pub data: *const u8,
    /// Type of the elements.
    pub kind: Kind,
    /// From one line to the next, in elements.
    pub line: isize,
    /// From one element of a line to the next, in elements.
    pub depth: isize,
}

impl Factor {
    /// The part that begins at line `line`, depth `depth`.
    pub(super) fn at(self, line: usize, depth: usize) -> Self {
        let elements = line as isize * self.line + depth as isize * self.depth;
        Self { data: self.data.wrapping_offset(elements * self.kind.bytes() as isize), ..self }
    }

    /// The first element, widened.
    ///
    /// # Safety
    /// The element is there.
    pub(super) unsafe fn value(self) -> f32 {
        // SAFETY: by the caller, and it is of the kind that the factor names.
        unsafe {
            match self.kind {
                Kind::F32 => *self.data.cast::<f32>(),
                Kind::Bf16 => (*self.data.cast::<bf16>()).widen(),
                Kind::F16 => (*self.data.cast::<f16>()).widen(),
                Kind::E4m3 => (*self.data.cast::<E4m3>()).widen(),
                Kind::E5m2 => (*self.data.cast::<E5m2>()).widen(),
                Kind::F64 => unreachable!("products of f64 are made by a library"),
            }
        }
    }
}

/// A result of a half type, which takes sums when they are whole.
#[derive(Clone, Copy)]
pub(super) struct Half {
    /// First element; columns lie side by side.
    pub data: *mut u8,
    /// Type of the elements.
    pub kind: Kind,
    /// From one row to the next, in elements.
    pub row: isize,
    /// Whether the sums are added to what is there.
    pub accumulate: bool,
}

impl Half {
    /// The part that begins at this row and column.
    pub(super) fn at(self, row: usize, col: usize) -> Self {
        let elements = row as isize * self.row + col as isize;
        Self { data: self.data.wrapping_offset(elements * self.kind.bytes() as isize), ..self }
    }
}

/// What a run of k adds to the sums of a block.
pub(super) struct Run {
    /// Rows of the block.
    pub rows: usize,
    /// Columns of the block.
    pub cols: usize,
    /// Length of the run.
    pub depth: usize,
    /// First factor, from the first row and depth of the run on.
    pub a: Factor,
    /// Second factor, from the first column and depth of the run on.
    pub b: Factor,
    /// Sums of the block; columns lie side by side. Of a half type with all its sums in one run: room for one tile.
    pub sums: *mut f32,
    /// From one row of the sums to the next, in elements.
    pub sums_row: isize,
    /// Whether the run is added to what is there.
    pub accumulate: bool,
    /// What the sums are multiplied with after the last run; 1 before.
    pub scale: f32,
    /// One number per column that is added after the last run, up to a multiple of [`Kernel::nr`].
    pub bias: Option<*const f32>,
    /// Where the sums go after the last run, if they are not of f32.
    pub half: Option<Half>,
}

/// A tile of the result: `rows x cols` sums over `depth`, of a panel of either factor.
pub(super) struct Tile {
    /// Panel of the first factor: `depth` groups of [`Kernel::mr`] numbers.
    pub a: *const f32,
    /// Panel of the second factor: `depth` groups of [`Kernel::nr`] numbers, aligned to a cache line.
    pub b: *const f32,
    /// Length of the sums.
    pub depth: usize,
    /// First element of the result; columns lie side by side.
    pub c: *mut f32,
    /// From one row of the result to the next, in elements.
    pub c_row: isize,
    /// At most [`Kernel::mr`].
    pub rows: usize,
    /// At most [`Kernel::nr`].
    pub cols: usize,
    /// Whether the sums are added to what is there.
    pub accumulate: bool,
    /// What the sums are multiplied with.
    pub scale: f32,
    /// One number per column that is added last, [`Kernel::nr`] of them; or null.
    pub bias: *const f32,
}

/// Code for one instruction set.
///
/// The ones for vectors of f32 add the products of a sum in the same order, with the same fused multiply-adds.
pub(super) struct Kernel {
    /// Rows of a tile.
    pub mr: usize,
    /// Columns of a tile.
    pub nr: usize,
    /// Rows of the first factor that are packed at a time: with a panel of the second they fit the L2 cache.
    pub mc: usize,
    /// Elements along the depth that are packed into one number of a panel.
    pub group: usize,
    /// Longest run of k.
    pub kc: usize,
    /// [`super::narrow::run`] compiled for this instruction set, if that has fused multiply-adds.
    pub narrow: Option<Narrow>,
    /// Rows up to which that is better than tiles.
    pub few: usize,
    /// Makes one tile.
    ///
    /// Safety: the processor has the instructions; panels and result are as [`Tile`] says.
    pub tile: unsafe fn(&Tile),
    /// Packs up to `mr` lines: `(factor, lines, depth, panel)`. Missing lines become zero.
    ///
    /// Safety: the processor has the instructions; the factor has that many lines and that depth, the panel room for
    /// `mr * depth / group` numbers.
    pub pack_a: unsafe fn(Factor, usize, usize, *mut f32),
    /// The same for the second factor, `nr` lines.
    pub pack_b: unsafe fn(Factor, usize, usize, *mut f32),
    /// Rounds that many sums to a row of a half type.
    ///
    /// Safety: the processor has the instructions; there are as many sums, and as many elements.
    pub round: Round,
}

/// Makes a run without packing.
pub(super) type Narrow = unsafe fn(&mut Workspace, &Run, Round);

/// Rounds that many sums to a row of a half type.
pub(super) type Round = unsafe fn(*const f32, usize, Half);

impl Kernel {
    /// The length of the runs that k is cut into: as few as possible, of nearly the same length. It depends on k alone,
    /// since it decides how sums are rounded.
    pub(super) fn depth_of_run(&self, k: usize) -> usize {
        k.div_ceil(k.div_ceil(self.kc).max(1)).max(1).next_multiple_of(8)
    }
}

/// [`Kernel::round`] for one element type, as a loop.
///
/// # Safety
/// As of [`Kernel::round`]; the elements are of type `T`.
#[inline(always)]
pub(super) unsafe fn round<T: Rounded>(sums: *const f32, count: usize, half: Half) {
    for j in 0..count {
        // SAFETY: by the caller.
        unsafe {
            let (sum, to) = (*sums.add(j), half.data.cast::<T>().add(j));
            *to = T::round(if half.accumulate { (*to).widen() + sum } else { sum });
        }
    }
}
