//! The heap as the system's allocator sees it: a witness that knows nothing of tensors.

#![allow(unsafe_code)] // a global allocator is an unsafe trait; every call goes on to the system's own

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};
use units::Bytes;

/// The system's allocator, which counts. A program makes it its own:
///
/// ```
/// use napkin_train::probe::heap;
///
/// #[global_allocator]
/// static HEAP: heap::Counting = heap::Counting;
///
/// fn main() {
///     let before = heap::live().unwrap();
///     let block = vec![1u8; 1 << 20];
///     assert_eq!(heap::live().unwrap().get() - before.get(), 1 << 20);
///     drop(block);
///     assert!(heap::peak().unwrap().get() >= before.get() + (1 << 20));
/// }
/// ```
///
/// It costs two additions per allocation.
#[derive(Debug)]
pub struct Counting;

/// Bytes asked for and not given back.
static LIVE: AtomicU64 = AtomicU64::new(0);
/// The most of them since [`reset_peak`].
static PEAK: AtomicU64 = AtomicU64::new(0);

/// Bytes that are allocated now; `None` where no program counts them.
pub fn live() -> Option<Bytes> {
    counted(&LIVE)
}

/// The most bytes that were allocated at once since [`reset_peak`]; `None` where no program counts them.
pub fn peak() -> Option<Bytes> {
    counted(&PEAK)
}

/// From now on, [`peak`] is the most since now.
pub fn reset_peak() {
    PEAK.store(LIVE.load(Ordering::Relaxed), Ordering::Relaxed);
}

/// A program that runs has allocated something: nothing means that nobody counts.
fn counted(bytes: &AtomicU64) -> Option<Bytes> {
    Some(Bytes(bytes.load(Ordering::Relaxed))).filter(|bytes| bytes.get() > 0)
}

fn add(bytes: usize) {
    let live = LIVE.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64;
    // Rarely a new peak: a look is cheaper than a write that other threads wait for.
    if live > PEAK.load(Ordering::Relaxed) {
        PEAK.fetch_max(live, Ordering::Relaxed);
    }
}

fn remove(bytes: usize) {
    LIVE.fetch_sub(bytes as u64, Ordering::Relaxed);
}

// SAFETY: every call is the system allocator's with the same arguments, whose contract is this trait's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `GlobalAlloc`.
        let block = unsafe { System.alloc(layout) };
        if !block.is_null() {
            add(layout.size());
        }
        block
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as in `alloc`.
        let block = unsafe { System.alloc_zeroed(layout) };
        if !block.is_null() {
            add(layout.size());
        }
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as in `alloc`.
        unsafe { System.dealloc(block, layout) };
        remove(layout.size());
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as in `alloc`.
        let new = unsafe { System.realloc(block, layout, size) };
        if !new.is_null() {
            add(size);
            remove(layout.size());
        }
        new
    }
}
