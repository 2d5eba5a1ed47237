//! The allocator itself: blocks, free lists and segments of one device and one stream.

mod expandable;

use std::collections::BTreeSet;
use std::ops::Range;

use super::Conf;
use super::size::{BLOCK_STEP, SEGMENT_STEP, SMALL, SMALL_SEGMENT, round_up, segment_of};
use expandable::Expandable;

/// A block that was handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockId(u32);

/// Bytes in the books of the allocator, and how often it went to the driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes asked for.
    pub requested: u64,
    /// Blocks handed out: `torch.cuda.memory_allocated`. On one stream they are also what is active.
    pub allocated: u64,
    /// Highest `allocated`.
    pub peak_allocated: u64,
    /// Free blocks of segments that are partly in use, which cannot be given back to the driver.
    pub inactive_split: u64,
    /// Segments: `torch.cuda.memory_reserved`.
    pub reserved: u64,
    /// Highest `reserved`.
    pub peak_reserved: u64,
    /// Number of segments; those that expand are not counted.
    pub segments: u64,
    /// How often memory was asked of the driver, and got.
    pub mallocs: u64,
    /// How often memory was given back to it.
    pub frees: u64,
    /// How often all cached segments had to be given back before an allocation could be tried again.
    pub retries: u64,
}

/// The driver has no memory left for a request, even after all cached segments were given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    /// Bytes asked for.
    pub requested: u64,
    /// Bytes asked of the driver, which is what the message prints.
    pub segment: u64,
    /// Bytes that the driver had left.
    pub free: u64,
}

#[derive(Clone, Debug)]
struct Block {
    start: u64,
    bytes: u64,
    requested: u64,
    small: bool,
    allocated: bool,
    /// Whether pages lie behind it; false only in segments that expand.
    mapped: bool,
    /// Its segment, if that expands.
    expandable: Option<u32>,
    prev: Option<u32>,
    next: Option<u32>,
    /// What the clock of its pool showed when it became free.
    since: u64,
}

impl Block {
    fn is_split(&self) -> bool {
        self.prev.is_some() || self.next.is_some()
    }

    /// Whether it cannot be given back while it is free. Pages of segments that expand always can.
    fn is_stuck(&self) -> bool {
        self.is_split() && self.expandable.is_none()
    }
}

/// Blocks that are free, smallest first and among equals lowest first; parts of segments without pages, lowest first.
#[derive(Clone, Debug, Default)]
struct Pool {
    free: Free,
    unmapped: BTreeSet<(u64, u32)>,
    /// Searches so far: the clock of the garbage collection.
    clock: u64,
}

/// Free blocks by their bytes. Of thousands of free blocks there are a few dozen sizes, so that no list is long.
#[derive(Clone, Debug, Default)]
struct Free {
    /// Bytes of the blocks of each list, the fewest first.
    sizes: Vec<u64>,
    /// Start and number of each block of a size, the highest first: the lowest is taken, and comes off the end.
    blocks: Vec<Vec<(u64, u32)>>,
    /// Lists that were emptied, for the next size that comes.
    spare: Vec<Vec<(u64, u32)>>,
}

impl Free {
    /// The first list of blocks of at least so many bytes.
    fn at(&self, bytes: u64) -> usize {
        self.sizes.partition_point(|size| *size < bytes)
    }

    fn insert(&mut self, bytes: u64, start: u64, id: u32) {
        let at = self.at(bytes);
        if self.sizes.get(at) == Some(&bytes) {
            let blocks = &mut self.blocks[at];
            blocks.insert(blocks.partition_point(|one| one.0 > start), (start, id));
        } else {
            let mut blocks = self.spare.pop().unwrap_or_default();
            blocks.push((start, id));
            self.sizes.insert(at, bytes);
            self.blocks.insert(at, blocks);
        }
    }

    /// Whether it was there.
    fn remove(&mut self, bytes: u64, start: u64) -> bool {
        let at = self.at(bytes);
        if self.sizes.get(at) != Some(&bytes) {
            return false;
        }
        let blocks = &mut self.blocks[at];
        let Ok(found) = blocks.binary_search_by(|one| start.cmp(&one.0)) else { return false };
        blocks.remove(found);
        if blocks.is_empty() {
            self.sizes.remove(at);
            self.spare.push(self.blocks.remove(at));
        }
        true
    }

    /// Those of at least so many bytes, smallest first and among equals lowest first.
    fn of_at_least(&self, bytes: u64) -> impl Iterator<Item = u32> {
        self.blocks[self.at(bytes)..].iter().flat_map(|blocks| blocks.iter().rev().map(|&(_, id)| id))
    }

    /// Bytes and number of the largest, of equals the highest.
    fn largest(&self) -> Option<(u64, u32)> {
        Some((*self.sizes.last()?, self.blocks.last()?.first()?.1))
    }
}

/// PyTorch's caching allocator for one device and one stream, without the device.
///
/// Rules, each from the function of that name in `c10/cuda/CUDACachingAllocator.cpp`:
///
/// | function | rule |
/// |---|---|
/// | `get_pool` | blocks up to 1 MiB and larger ones never share segments |
/// | `get_free_block` | the smallest free block that is large enough, the lowest of equals |
/// | `should_split` | what is left is cut off where it is 512 bytes or more (small, expandable), or above 1 MiB |
/// | `get_allocation_size` | new segments of 2 MiB, of 20 MiB, or of the request rounded up to 2 MiB |
/// | `free_block`, `try_merge_blocks` | a free block joins its free neighbours of the same segment |
/// | `garbage_collect_cached_blocks` | whole cached segments that are older than the mean go back above a threshold |
/// | `release_available_cached_blocks`, `release_cached_blocks` | before an allocation is given up, cached segments go back and it is tried again |
/// | `try_allocate_expandable_block`, `map_block`, `unmap_block` | segments that grow by pages of 2 MiB and 20 MiB |
///
/// Streams, private pools of graphs and sharing between processes are left out: a training step without them has one
/// stream whose frees are at once complete.
#[derive(Clone, Debug)]
pub struct Allocator {
    conf: Conf,
    /// Bytes of the device that are there for it.
    device: Option<u64>,
    /// Bytes taken from the driver.
    taken: u64,
    next_address: u64,
    blocks: Vec<Block>,
    vacant: Vec<u32>,
    pools: [Pool; 2],
    expandable: Vec<Expandable>,
    usage: Usage,
}

impl Allocator {
    /// An allocator that has handed out nothing; `device` is what the driver can give, without limit where it is not known.
    pub fn new(conf: Conf, device: Option<u64>) -> Self {
        Self {
            conf,
            device,
            taken: 0,
            // As drivers do, addresses begin somewhere and rise.
            next_address: SMALL_SEGMENT,
            blocks: Vec::new(),
            vacant: Vec::new(),
            pools: <[Pool; 2]>::default(),
            expandable: Vec::new(),
            usage: Usage::default(),
        }
    }

    /// The books, as they are now.
    pub const fn usage(&self) -> Usage {
        self.usage
    }

    /// Addresses of a block that was handed out.
    pub fn addresses_of(&self, id: BlockId) -> Range<u64> {
        let block = &self.blocks[id.0 as usize];
        block.start..block.start + block.bytes
    }

    /// Hands out a block for `bytes`; one for no bytes is one for a byte.
    ///
    /// # Errors
    /// [`OutOfMemory`] where the device has no room for it. What was cached is then given back.
    pub fn alloc(&mut self, bytes: u64) -> Result<BlockId, OutOfMemory> {
        let size = self.conf.block(bytes);
        let small = size <= SMALL;
        let found = self.find(size, small).or_else(|| {
            self.collect_garbage();
            let first = self.ask_driver(size, small);
            let second = first.or_else(|| self.release_oversize(size, small).then(|| self.ask_driver(size, small))?);
            second.or_else(|| {
                self.empty_cache();
                self.usage.retries += 1;
                self.ask_driver(size, small)
            })
        });
        let Some(id) = found else {
            let segment = segment_of(size, self.conf.large_segment_bytes);
            return Err(OutOfMemory { requested: bytes, segment, free: self.left().unwrap_or(u64::MAX) });
        };
        let id = if self.should_split(id, size) { self.split(id, size) } else { id };
        let block = &mut self.blocks[id as usize];
        block.allocated = true;
        block.requested = bytes;
        self.usage.requested += bytes;
        self.usage.allocated += block.bytes;
        self.usage.peak_allocated = self.usage.peak_allocated.max(self.usage.allocated);
        Ok(BlockId(id))
    }

    /// Takes a block back.
    ///
    /// # Panics
    /// If it is not handed out.
    pub fn free(&mut self, id: BlockId) {
        let id = id.0;
        let block = &mut self.blocks[id as usize];
        assert!(block.allocated, "freed twice");
        block.allocated = false;
        self.usage.requested -= block.requested;
        self.usage.allocated -= block.bytes;
        self.merge(id, true);
        self.merge(id, false);
        self.put(id);
    }

    /// Gives all cached segments that hold nothing back to the driver, as `torch.cuda.empty_cache` does.
    pub fn empty_cache(&mut self) {
        // The large ones first, as PyTorch does.
        for small in [false, true] {
            let free: Vec<u32> = self.pool(small).free.of_at_least(0).collect();
            let mut to_unmap = Vec::new();
            for id in free {
                let block = &self.blocks[id as usize];
                if block.expandable.is_some() {
                    to_unmap.push(id);
                } else if !block.is_split() {
                    self.release(id);
                }
            }
            for id in to_unmap {
                self.unmap(id);
            }
        }
    }

    /// Bytes that the driver has left.
    fn left(&self) -> Option<u64> {
        self.device.map(|device| device - self.taken)
    }

    /// Bytes that the process may take, where that is limited.
    fn allowed(&self) -> Option<u64> {
        let (fraction, device) = (self.conf.memory_fraction?, self.device?);
        Some((fraction * device as f64) as u64)
    }

    fn pool(&mut self, small: bool) -> &mut Pool {
        &mut self.pools[usize::from(small)]
    }

    fn add(&mut self, block: Block) -> u32 {
        if let Some(id) = self.vacant.pop() {
            self.blocks[id as usize] = block;
            id
        } else {
            self.blocks.push(block);
            self.blocks.len() as u32 - 1
        }
    }

    /// Puts a free block on its list. What is split stays so as long as it is there.
    fn put(&mut self, id: u32) {
        let block = &self.blocks[id as usize];
        if block.is_stuck() {
            self.usage.inactive_split += block.bytes;
        }
        let (bytes, start, small) = (block.bytes, block.start, block.small);
        let pool = self.pool(small);
        let clock = pool.clock;
        pool.free.insert(bytes, start, id);
        self.blocks[id as usize].since = clock;
    }

    /// Takes a free block off its list.
    fn take(&mut self, id: u32) {
        let block = &self.blocks[id as usize];
        if block.is_stuck() {
            self.usage.inactive_split -= block.bytes;
        }
        let (bytes, start, small, mapped) = (block.bytes, block.start, block.small, block.mapped);
        let pool = self.pool(small);
        let was_there = if mapped { pool.free.remove(bytes, start) } else { pool.unmapped.remove(&(start, id)) };
        debug_assert!(was_there);
    }

    /// `get_free_block`.
    fn find(&mut self, size: u64, small: bool) -> Option<u32> {
        if self.conf.garbage_collection_threshold.is_some() && self.allowed().is_some() {
            self.pool(small).clock += 1;
        }
        let pool = &self.pools[usize::from(small)];
        let mut fitting = pool.free.of_at_least(size);
        let mut id = fitting.next()?;
        // A block at the end of what a segment has mapped counts as large as it can become.
        let room = |id: u32| {
            let block = &self.blocks[id as usize];
            let after = block.next.map(|next| &self.blocks[next as usize]);
            block.bytes + after.filter(|after| !after.mapped).map_or(0, |after| after.bytes)
        };
        while self.blocks[id as usize].expandable.is_some() {
            match fitting.next() {
                Some(next) if room(next) < room(id) => id = next,
                _ => break,
            }
        }
        drop(fitting);
        let bytes = self.blocks[id as usize].bytes;
        if let Some(most) = self.conf.max_split_bytes {
            let is_oversize = size >= most;
            if !is_oversize && bytes >= most {
                return None;
            }
            if is_oversize && bytes >= size.saturating_add(self.conf.max_non_split_rounding_bytes) {
                return None;
            }
        }
        self.take(id);
        Some(id)
    }

    /// `should_split`.
    fn should_split(&self, id: u32, size: u64) -> bool {
        let block = &self.blocks[id as usize];
        let left = block.bytes - size;
        if block.small || self.conf.expandable_segments {
            left >= BLOCK_STEP
        } else {
            self.conf.max_split_bytes.is_none_or(|most| size < most) && left > SMALL
        }
    }

    /// Cuts `size` bytes off the front of a block that is on no list; what is left goes on its list.
    fn split(&mut self, id: u32, size: u64) -> u32 {
        let rest = self.blocks[id as usize].clone();
        let front = self.add(Block { bytes: size, next: Some(id), ..rest.clone() });
        if let Some(prev) = rest.prev {
            self.blocks[prev as usize].next = Some(front);
        }
        let block = &mut self.blocks[id as usize];
        block.prev = Some(front);
        block.start += size;
        block.bytes -= size;
        self.put(id);
        front
    }

    /// `try_merge_blocks`: joins a block that is on no list with the free one before or after it.
    fn merge(&mut self, id: u32, before: bool) {
        let block = &self.blocks[id as usize];
        let Some(other) = (if before { block.prev } else { block.next }) else { return };
        let neighbour = &self.blocks[other as usize];
        if neighbour.allocated || neighbour.mapped != block.mapped {
            return;
        }
        self.take(other);
        let neighbour = self.blocks[other as usize].clone();
        let outer = if before { neighbour.prev } else { neighbour.next };
        let block = &mut self.blocks[id as usize];
        block.bytes += neighbour.bytes;
        if before {
            block.start = neighbour.start;
            block.prev = outer;
        } else {
            block.next = outer;
        }
        if let Some(outer) = outer {
            let outer = &mut self.blocks[outer as usize];
            if before { outer.next = Some(id) } else { outer.prev = Some(id) }
        }
        self.vacant.push(other);
    }

    fn reserve(&mut self, bytes: u64) {
        self.taken += bytes;
        self.usage.reserved += bytes;
        self.usage.peak_reserved = self.usage.peak_reserved.max(self.usage.reserved);
        self.usage.mallocs += 1;
    }

    fn give_back(&mut self, bytes: u64) {
        self.taken -= bytes;
        self.usage.reserved -= bytes;
        self.usage.frees += 1;
    }

    /// `alloc_block`: a block of a new segment, or of one that grows; on no list.
    fn ask_driver(&mut self, size: u64, small: bool) -> Option<u32> {
        let bytes = segment_of(size, self.conf.large_segment_bytes);
        if self.allowed().is_some_and(|allowed| self.taken.saturating_add(bytes) > allowed) {
            return None;
        }
        if self.conf.expandable_segments {
            return self.expand(size, small);
        }
        if self.left().is_some_and(|left| bytes > left) {
            return None;
        }
        let start = self.addresses(bytes)?;
        self.reserve(bytes);
        self.usage.segments += 1;
        Some(self.add(Block {
            start,
            bytes,
            requested: 0,
            small,
            allocated: false,
            mapped: true,
            expandable: None,
            prev: None,
            next: None,
            since: 0,
        }))
    }

    /// Addresses that nothing has; none where 64 bits hold no more.
    fn addresses(&mut self, bytes: u64) -> Option<u64> {
        let start = self.next_address;
        self.next_address = start.checked_add(round_up(bytes, SEGMENT_STEP))?;
        Some(start)
    }

    /// `release_block`.
    fn release(&mut self, id: u32) {
        self.take(id);
        self.give_back(self.blocks[id as usize].bytes);
        self.usage.segments -= 1;
        self.vacant.push(id);
    }

    /// `release_available_cached_blocks`: frees the smallest cached segment that may not be split and is large enough, or
    /// several from the largest down. True if that made room. Segments that expand are never whole.
    fn release_oversize(&mut self, size: u64, small: bool) -> bool {
        let Some(most) = self.conf.max_split_bytes.filter(|_| !self.conf.expandable_segments) else { return false };
        let wanted = size.max(most);
        let pool = self.pool(small);
        let first = pool.free.of_at_least(wanted).next();
        if let Some(id) = first {
            self.release(id);
            return true;
        }
        let mut released = 0;
        while released < wanted {
            match self.pool(small).free.largest() {
                Some((bytes, id)) if bytes >= most => {
                    self.release(id);
                    released += bytes;
                }
                _ => break,
            }
        }
        released >= wanted
    }

    /// `garbage_collect_cached_blocks`.
    fn collect_garbage(&mut self) {
        let (Some(threshold), Some(allowed)) = (self.conf.garbage_collection_threshold, self.allowed()) else { return };
        // Segments that expand are never whole.
        if self.conf.expandable_segments {
            return;
        }
        let limit = (threshold * allowed as f64) as u64;
        if self.taken <= limit {
            return;
        }
        let target = self.taken - limit;
        let clock = self.pool(false).clock;
        let age = |block: &Block| clock - block.since;
        let whole = |this: &Self| -> Vec<u32> {
            let free = this.pools[0].free.of_at_least(0);
            free.filter(|&id| !this.blocks[id as usize].is_split()).collect()
        };
        let mut left = whole(self);
        let mut total: u64 = left.iter().map(|&id| age(&self.blocks[id as usize])).sum();
        let (mut reclaimed, mut freed_some) = (0, true);
        while reclaimed < target && freed_some && !left.is_empty() {
            let mean = total as f64 / left.len() as f64;
            freed_some = false;
            for &id in &left {
                let block = &self.blocks[id as usize];
                let (bytes, old) = (block.bytes, age(block));
                if old as f64 >= mean {
                    freed_some = true;
                    reclaimed += bytes;
                    total -= old;
                    self.release(id);
                }
            }
            left = whole(self);
        }
    }
}
