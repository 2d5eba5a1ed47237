//! The heap as an allocator sees it: a witness that knows nothing of tensors.

#![allow(unsafe_code)] // a global allocator is an unsafe trait; every call goes on to another allocator

use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use units::Bytes;

/// An allocator that counts what another one hands out. A program makes it its own:
///
/// ```
/// use napkin_train::probe::heap;
/// use std::alloc::System;
///
/// #[global_allocator]
/// static HEAP: heap::Counting<System> = heap::Counting(System);
///
/// fn main() {
///     heap::count();
///     let before = heap::live().unwrap();
///     let block = vec![1u8; 1 << 20];
///     assert_eq!(heap::live().unwrap().get() - before.get(), 1 << 20);
///     drop(block);
///     assert!(heap::peak().unwrap().get() >= before.get() + (1 << 20));
/// }
/// ```
///
/// Nothing is counted before [`count`] is called, for two additions per allocation that all threads write to the same place are a
/// tenth of the time of who allocates much.
#[derive(Debug)]
pub struct Counting<A>(pub A);

/// Whether bytes are counted.
static COUNTS: AtomicBool = AtomicBool::new(false);
/// Bytes asked for and not given back since then; what was asked for before, and is given back, counts below zero.
static LIVE: AtomicI64 = AtomicI64::new(0);
/// The most of them since [`reset_peak`].
static PEAK: AtomicI64 = AtomicI64::new(0);

/// Counts from now on: at the start of the program, so that little was allocated before.
pub fn count() {
    COUNTS.store(true, Ordering::Relaxed);
}

/// Bytes that are allocated now; `None` where they are not counted.
pub fn live() -> Option<Bytes> {
    counted(&LIVE)
}

/// The most bytes that were allocated at once since [`reset_peak`]; `None` where they are not counted.
pub fn peak() -> Option<Bytes> {
    counted(&PEAK)
}

/// From now on, [`peak`] is the most since now.
pub fn reset_peak() {
    PEAK.store(LIVE.load(Ordering::Relaxed), Ordering::Relaxed);
}

fn counted(bytes: &AtomicI64) -> Option<Bytes> {
    let bytes = || Bytes(u64::try_from(bytes.load(Ordering::Relaxed)).unwrap_or(0));
    COUNTS.load(Ordering::Relaxed).then(bytes)
}

fn add(bytes: usize) {
    if !COUNTS.load(Ordering::Relaxed) {
        return;
    }
    // No block is larger than the address space.
    let bytes = bytes as i64;
    let live = LIVE.fetch_add(bytes, Ordering::Relaxed) + bytes;
    // Rarely a new peak: a look is cheaper than a write that other threads wait for.
    if live > PEAK.load(Ordering::Relaxed) {
        PEAK.fetch_max(live, Ordering::Relaxed);
    }
}

fn remove(bytes: usize) {
    if COUNTS.load(Ordering::Relaxed) {
        LIVE.fetch_sub(bytes as i64, Ordering::Relaxed);
    }
}

// SAFETY: every call is the other allocator's with the same arguments, whose contract is this trait's.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Counting<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `GlobalAlloc`.
        let block = unsafe { self.0.alloc(layout) };
        if !block.is_null() {
            add(layout.size());
        }
        block
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as in `alloc`.
        let block = unsafe { self.0.alloc_zeroed(layout) };
        if !block.is_null() {
            add(layout.size());
        }
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as in `alloc`.
        unsafe { self.0.dealloc(block, layout) };
        remove(layout.size());
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as in `alloc`.
        let new = unsafe { self.0.realloc(block, layout, size) };
        if !new.is_null() {
            add(size);
            remove(layout.size());
        }
        new
    }
}
