//! Memory for packed panels: one workspace per thread, kept between products.

use super::element::Line;
use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of all workspaces of all threads.
static BYTES: AtomicU64 = AtomicU64::new(0);

/// Bytes that the packing workspaces of all threads hold now.
pub fn workspace_bytes() -> u64 {
    BYTES.load(Ordering::Relaxed)
}

/// A buffer of numbers aligned to a cache line. It grows and never shrinks.
#[derive(Default)]
pub(super) struct Scratch {
    lines: Vec<Line>,
}

impl Scratch {
    /// At least `count` numbers with any contents.
    pub(super) fn get(&mut self, count: usize) -> &mut [f32] {
        let lines = count.div_ceil(Line::LEN);
        if lines > self.lines.len() {
            BYTES.fetch_sub(self.bytes(), Ordering::Relaxed);
            // Dropped first, so that old and new never stand side by side; nothing in it is kept.
            self.lines = Vec::new();
            self.lines = vec![Line::ZERO; lines];
            BYTES.fetch_add(self.bytes(), Ordering::Relaxed);
        }
        bytemuck::cast_slice_mut(&mut self.lines)
    }

    fn bytes(&self) -> u64 {
        (self.lines.len() * size_of::<Line>()) as u64
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        BYTES.fetch_sub(self.bytes(), Ordering::Relaxed);
    }
}

/// What one thread needs for one block of a product.
#[derive(Default)]
pub(super) struct Workspace {
    /// Packed rows of the first factor.
    pub a: Scratch,
    /// Packed columns of the second factor.
    pub b: Scratch,
    /// Sums of a block whose result is of a half type.
    pub c: Scratch,
    /// The bias of a block.
    pub bias: Scratch,
}

thread_local! {
    static WORKSPACE: RefCell<Workspace> = RefCell::default();
}

/// Runs `f` with the workspace of this thread.
pub(super) fn with<R>(f: impl FnOnce(&mut Workspace) -> R) -> R {
    WORKSPACE.with_borrow_mut(f)
}
