//! What a block of a product is made of: packing of panels and tiles of the result, for each instruction set.

use super::element::Kind;

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
    /// One number per column that is added last, [`Kernel::nr`] of them; or null.
    pub bias: *const f32,
}

/// Code for one instruction set.
///
/// All of them add the products of a sum in the same order, with the same fused multiply-adds.
pub(super) struct Kernel {
    /// Rows of a tile.
    pub mr: usize,
    /// Columns of a tile.
    pub nr: usize,
    /// Rows of the first factor that are packed at a time: with a panel of the second they fit the L2 cache.
    pub mc: usize,
    /// Makes one tile.
    ///
    /// Safety: the processor has the instructions; panels and result are as [`Tile`] says.
    pub tile: unsafe fn(&Tile),
    /// Packs up to `mr` lines: `(factor, lines, depth, panel)`. Missing lines become zero.
    ///
    /// Safety: the processor has the instructions; the factor has that many lines and that depth, the panel room for
    /// `mr * depth` numbers.
    pub pack_a: unsafe fn(Factor, usize, usize, *mut f32),
    /// The same for the second factor, `nr` lines.
    pub pack_b: unsafe fn(Factor, usize, usize, *mut f32),
}
