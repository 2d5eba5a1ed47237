//! Memory that kernels work in: one block per thread, kept between calls.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of the blocks of all threads.
static BYTES: AtomicU64 = AtomicU64::new(0);

/// Bytes that the blocks of all threads hold now.
pub fn scratch_bytes() -> u64 {
    BYTES.load(Ordering::Relaxed)
}

/// Numbers of a cache line.
pub const LINE: usize = 16;

/// Grows, and never shrinks.
#[derive(Default)]
struct Block(Vec<f32>);

impl Block {
    fn bytes(&self) -> u64 {
        (self.0.len() * size_of::<f32>()) as u64
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        BYTES.fetch_sub(self.bytes(), Ordering::Relaxed);
    }
}

thread_local! {
    static BLOCK: RefCell<Block> = RefCell::default();
}

/// Numbers of any value, to be handed out in parts that begin at a cache line.
pub struct Scratch<'a>(&'a mut [f32]);

impl<'a> Scratch<'a> {
    /// The next `count` numbers.
    ///
    /// # Panics
    /// If fewer are left.
    pub fn take(&mut self, count: usize) -> &'a mut [f32] {
        let left = std::mem::take(&mut self.0);
        let (part, rest) = left.split_at_mut(rounded(count).min(left.len()));
        self.0 = rest;
        &mut part[..count]
    }

    /// What is left, to be handed out again afterwards.
    pub fn again(&mut self) -> Scratch<'_> {
        Scratch(self.0)
    }
}

/// Runs `f` with `count` numbers.
///
/// `f` must not hand work to other threads: while it waits, its thread may take up work that asks for the same block.
pub fn with<R>(count: usize, f: impl FnOnce(Scratch<'_>) -> R) -> R {
    BLOCK.with_borrow_mut(|block| {
        // The allocator aligns to less than a line.
        if count + LINE > block.0.len() {
            // The old one goes first, so that they never stand side by side: nothing in it is kept.
            *block = Block::default();
            block.0 = vec![0.0; count + LINE];
            BYTES.fetch_add(block.bytes(), Ordering::Relaxed);
        }
        let skip = block.0.as_ptr().align_offset(LINE * size_of::<f32>());
        f(Scratch(&mut block.0[skip..][..count]))
    })
}

/// `count` rounded up to whole cache lines.
pub const fn rounded(count: usize) -> usize {
    count.next_multiple_of(LINE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_aligned_kept_and_counted() {
        std::thread::spawn(|| {
            let address = |count| with(count, |block| (block.0.as_ptr() as usize, block.0.len()));
            let (first, len) = address(100);
            assert_eq!((first % 64, len), (0, 100));
            assert_eq!(address(60), (first, 60));
            with(100, |mut block| {
                let (a, b) = (block.take(3), block.take(20));
                assert_eq!((a.len(), b.len(), b.as_ptr() as usize), (3, 20, first + 64));
            });
            let before = scratch_bytes();
            address(1 << 20);
            assert!(scratch_bytes() >= before + (4 << 20) - 4096);
        })
        .join()
        .unwrap();
    }
}
