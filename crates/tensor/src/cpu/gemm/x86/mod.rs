//! Kernels in vector instructions of x86-64.

#![allow(unsafe_code)]
#![allow(clippy::wildcard_imports)] // of intrinsics
#![allow(clippy::needless_range_loop)] // constant bounds keep arrays in registers

pub(super) mod avx2;
pub(super) mod avx512;
