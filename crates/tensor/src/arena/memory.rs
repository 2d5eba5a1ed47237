//! Memory from the system, and the blocks of it that storages own: the only unsafe code of the allocator.

#![allow(unsafe_code)]

use super::{ALIGNMENT, Arena, Place};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ops::Range;
use std::ptr::NonNull;

/// A segment: zero bytes from the system, which backs them page by page as they are written.
#[derive(Debug)]
pub(super) struct Memory {
    allocation: NonNull<u8>,
    layout: Layout,
    /// First byte at a multiple of [`ALIGNMENT`].
    first: NonNull<u8>,
    bytes: u64,
}

impl Memory {
    /// `bytes` zero bytes, a multiple of [`ALIGNMENT`] and not 0; `None` if the system has no more.
    pub(super) fn zeroed(bytes: u64) -> Option<Self> {
        // The alignment is made here: asked for it, the allocator of some systems writes every zero itself, and touches
        // every page.
        let layout = Layout::from_size_align(usize::try_from(bytes.checked_add(ALIGNMENT)?).ok()?, 1).ok()?;
        // SAFETY: the size is at least `ALIGNMENT`.
        let allocation = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        let skip = allocation.as_ptr().align_offset(ALIGNMENT as usize);
        // SAFETY: `skip` is below `ALIGNMENT`, by which the allocation is larger than `bytes`.
        let first = unsafe { allocation.add(skip) };
        Some(Self { allocation, layout, first, bytes })
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Where it lies.
    pub(super) fn addresses(&self) -> Range<usize> {
        let start = self.allocation.as_ptr().addr();
        start..start + self.layout.size()
    }

    /// Bytes asked of the system: with what aligning took.
    pub(super) fn taken(&self) -> u64 {
        self.layout.size() as u64
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: `allocation` came from `alloc_zeroed` with this layout, and is freed once.
        unsafe { dealloc(self.allocation.as_ptr(), self.layout) }
    }
}

/// Bytes of a storage, aligned to a cache line and always initialised. Go back to their arena when dropped.
#[derive(Debug)]
pub struct Buffer {
    first: NonNull<u8>,
    bytes: usize,
    /// Where they came from; nowhere if there are none.
    from: Option<(Arena, Piece)>,
}

/// What a buffer owns of its arena.
#[derive(Debug)]
enum Piece {
    /// A block of a segment, which the handle to the arena keeps.
    Block(Place),
    /// A piece of the system's memory of its own.
    Alone(Memory),
}

/// The address of no bytes at all, aligned as if there were some.
#[repr(align(64))]
struct Nothing;
const _: () = assert!(align_of::<Nothing>() as u64 == ALIGNMENT);

impl Buffer {
    /// No bytes.
    pub(super) fn empty() -> Self {
        Self { first: NonNull::<Nothing>::dangling().cast(), bytes: 0, from: None }
    }

    /// The first `bytes` bytes of a block of the arena, which nobody else owns.
    pub(super) fn new(arena: Arena, place: Place, bytes: u64) -> Self {
        let first = {
            let inner = arena.0.borrow();
            let memory = inner.memory[place.segment as usize].as_ref().expect("a block lies in a segment");
            assert!(
                bytes <= place.bytes && place.start + place.bytes <= memory.bytes,
                "a block lies within its segment"
            );
            // SAFETY: the offset is within the allocation, as was just seen.
            unsafe { memory.first.add(place.start as usize) }
        };
        Self { first, bytes: bytes as usize, from: Some((arena, Piece::Block(place))) }
    }

    /// The first `bytes` bytes of memory of its own.
    pub(super) fn alone(arena: Arena, memory: Memory, bytes: u64) -> Self {
        assert!(bytes <= memory.bytes, "the memory is large enough");
        Self { first: memory.first, bytes: bytes as usize, from: Some((arena, Piece::Alone(memory))) }
    }

    /// The bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the block is initialised (zeroed by the system, then written by its owners only as whole bytes), lies in
        // a segment that lives as long as the handle to the arena or in memory of this buffer, and is owned by this buffer
        // alone until it is dropped: `Blocks` hands out no byte twice.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.bytes) }
    }

    /// The bytes, to be written.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.first.as_ptr(), self.bytes) }
    }

    /// The bytes as elements of a plain type. A storage holds a whole number of them.
    pub(crate) fn slice<T: bytemuck::Pod>(&self) -> &[T] {
        let whole = self.bytes / size_of::<T>() * size_of::<T>();
        bytemuck::cast_slice(&self.bytes()[..whole])
    }

    /// The same, to be written.
    pub(crate) fn slice_mut<T: bytemuck::Pod>(&mut self) -> &mut [T] {
        let whole = self.bytes / size_of::<T>() * size_of::<T>();
        bytemuck::cast_slice_mut(&mut self.bytes_mut()[..whole])
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        match self.from.take() {
            Some((arena, Piece::Block(place))) => arena.free(place, self.bytes as u64),
            Some((arena, Piece::Alone(memory))) => arena.free_alone(&memory, self.bytes as u64),
            None => (),
        }
    }
}
