//! Kernels in vector instructions of x86-64.

#![allow(unsafe_code)]
#![allow(clippy::wildcard_imports)] // of intrinsics
#![allow(clippy::needless_range_loop)] // constant bounds keep arrays in registers
#![allow(clippy::cast_ptr_alignment)] // bytes of matrices are those of their elements

/// The function `tile` of a kernel, from a function `sums` that knows rows and vectors of columns as constants.
macro_rules! by_rows {
    ($($rows:literal)*) => {
        unsafe fn tile(tile: &Tile) {
            match (tile.rows, tile.cols > LANES) {
                // SAFETY: by the caller.
                $(($rows, false) => unsafe { sums::<$rows, 1>(tile) },)*
                // SAFETY: as above.
                $(($rows, true) => unsafe { sums::<$rows, 2>(tile) },)*
                (rows, _) => unreachable!("a tile of {rows} rows"),
            }
        }
    };
}

pub(super) mod avx2;
pub(super) mod avx512;
pub(super) mod avx512_bf16;
