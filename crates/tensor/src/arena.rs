//! The caching allocator behind storages that hold data.
//!
//! A program takes memory from the system in few big segments and gives none back while it runs: what a tensor frees,
//! the next one gets. A training step frees all it allocates, so from the second step on the same sequence of requests
//! meets the same free blocks, and neither the system allocator nor a page fault is on any path.
//!
//! Two levels are counted apart. *Mapped* is the size of the segments. *Reserved* is the part of them that was ever
//! handed out: memory the process really holds, since the system backs a page only once it is written.

mod memory;

pub use memory::Buffer;
use memory::Memory;
use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

/// Blocks start and end at multiples of this: a cache line, and the widest vector.
pub const ALIGNMENT: u64 = 64;

/// No segment is smaller, but for one that the system would not give larger.
const SMALLEST_SEGMENT: u64 = 32 << 20;

/// A block that was handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Number of its segment.
    pub segment: u32,
    /// Offset of its first byte in the segment.
    pub start: u64,
    /// Size: what was asked for, rounded up to [`ALIGNMENT`].
    pub bytes: u64,
}

/// What an arena holds, in bytes where nothing else is said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Blocks handed out, rounded.
    pub handed_out: u64,
    /// What rounding added to the blocks handed out.
    pub rounding: u64,
    /// Segments up to the highest byte ever handed out of each.
    pub reserved: u64,
    /// Highest `reserved` so far.
    pub peak_reserved: u64,
    /// Segments whole.
    pub mapped: u64,
    /// Number of segments.
    pub segments: usize,
}

impl Usage {
    /// Free blocks kept for the next request.
    pub fn cached(&self) -> u64 {
        self.reserved - self.handed_out
    }

    /// A block of `bytes` that came from the system alone, in a piece of `piece` bytes.
    fn add_own(&mut self, bytes: u64, piece: u64) {
        self.handed_out += piece;
        self.rounding += piece - bytes;
        self.reserved += piece;
        self.peak_reserved = self.peak_reserved.max(self.reserved);
        self.mapped += piece;
        self.segments += 1;
    }

    /// It went back.
    fn remove_own(&mut self, bytes: u64, piece: u64) {
        self.handed_out -= piece;
        self.rounding -= piece - bytes;
        self.reserved -= piece;
        self.mapped -= piece;
        self.segments -= 1;
    }
}

/// A free stretch of a segment.
#[derive(Clone, Copy, Debug)]
struct Free {
    start: u64,
    bytes: u64,
}

/// One stretch of address space.
#[derive(Debug)]
struct Segment {
    capacity: u64,
    /// End of the highest block ever handed out. Beyond lies what was never touched.
    top: u64,
    /// Free stretches below `top`, by address; no two touch.
    free: Vec<Free>,
}

impl Segment {
    /// The free stretch that ends at `top`: a block that outgrows it only has to take new memory for the rest.
    fn tail(&self) -> u64 {
        self.free.last().filter(|f| f.start + f.bytes == self.top).map_or(0, |f| f.bytes)
    }

    fn take(&mut self, index: usize, bytes: u64) -> u64 {
        let block = &mut self.free[index];
        let start = block.start;
        if block.bytes == bytes {
            self.free.remove(index);
        } else {
            *block = Free { start: start + bytes, bytes: block.bytes - bytes };
        }
        start
    }

    /// Takes `bytes` at the end, beginning in the tail. Gives the start and how much is new.
    fn extend(&mut self, bytes: u64) -> (u64, u64) {
        let tail = self.tail();
        if tail > 0 {
            self.free.pop();
        }
        let start = self.top - tail;
        self.top = start + bytes;
        (start, bytes - tail)
    }

    fn give_back(&mut self, start: u64, bytes: u64) {
        let at = self.free.partition_point(|f| f.start < start);
        let touches_next = self.free.get(at).is_some_and(|next| start + bytes == next.start);
        let touches_last = at > 0 && self.free[at - 1].start + self.free[at - 1].bytes == start;
        match (touches_last, touches_next) {
            (true, true) => {
                self.free[at - 1].bytes += bytes + self.free[at].bytes;
                self.free.remove(at);
            }
            (true, false) => self.free[at - 1].bytes += bytes,
            (false, true) => self.free[at] = Free { start, bytes: bytes + self.free[at].bytes },
            (false, false) => self.free.insert(at, Free { start, bytes }),
        }
    }

    fn is_unused(&self) -> bool {
        self.capacity > 0 && self.tail() == self.top
    }
}

/// The bookkeeping of an arena, without the memory: which block goes where.
///
/// A request takes the tightest free block that was handed out before. Where none is large enough, it takes the place
/// that needs the least memory never touched so far; where no segment has room, a new one is asked for. What that leaves
/// unused on whole training steps is in `docs/benchmarks.md`.
///
/// It can be replayed over a trace, to know `reserved` before anything runs.
#[derive(Debug, Default)]
pub struct Blocks {
    segments: Vec<Segment>,
    usage: Usage,
    wanted: u64,
}

impl Blocks {
    /// An empty arena.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sizes of the blocks, segments and gaps.
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// The next segment shall hold at least so many bytes: the predicted peak of a program, asked for before it runs,
    /// puts all of it in one segment.
    pub fn want(&mut self, bytes: u64) {
        // Gaps between blocks need some room too: without it the last large block would go to a segment of its own.
        self.wanted = bytes.saturating_add(bytes / 50);
    }

    /// A block of at least `bytes` bytes, if there is room for it.
    pub fn place(&mut self, bytes: u64) -> Option<Place> {
        let rounded = round(bytes)?;
        let (segment, start) = self.reuse(rounded).or_else(|| self.extend(rounded))?;
        self.usage.handed_out += rounded;
        self.usage.rounding += rounded - bytes;
        Some(Place { segment: segment as u32, start, bytes: rounded })
    }

    /// The tightest free block.
    fn reuse(&mut self, bytes: u64) -> Option<(usize, u64)> {
        let mut best: Option<(u64, usize, usize)> = None;
        'search: for (s, segment) in self.segments.iter().enumerate() {
            for (i, free) in segment.free.iter().enumerate() {
                if free.bytes >= bytes && best.is_none_or(|(size, ..)| free.bytes < size) {
                    best = Some((free.bytes, s, i));
                    if free.bytes == bytes {
                        break 'search;
                    }
                }
            }
        }
        best.map(|(_, s, i)| (s, self.segments[s].take(i, bytes)))
    }

    /// The end of the segment that has to grow least.
    fn extend(&mut self, bytes: u64) -> Option<(usize, u64)> {
        let room = |s: &Segment| s.capacity - s.top + s.tail();
        let fits = self.segments.iter().enumerate().filter(|(_, s)| room(s) >= bytes);
        let (index, _) = fits.max_by_key(|(i, s)| (s.tail(), std::cmp::Reverse(*i)))?;
        let (start, grown) = self.segments[index].extend(bytes);
        self.usage.reserved += grown;
        self.usage.peak_reserved = self.usage.peak_reserved.max(self.usage.reserved);
        Some((index, start))
    }

    /// Takes back a block, of which `bytes` were asked for.
    pub fn free(&mut self, place: Place, bytes: u64) {
        self.usage.handed_out -= place.bytes;
        self.usage.rounding -= place.bytes - bytes;
        self.segments[place.segment as usize].give_back(place.start, place.bytes);
    }

    /// Size of the segment to add when `bytes` have no place: half of all there is, so that segments stay few and what
    /// is mapped in excess stays small.
    pub fn next_segment(&self, bytes: u64) -> Option<u64> {
        Some(round(bytes)?.max(SMALLEST_SEGMENT).max(self.wanted).max(round(self.usage.mapped / 2)?))
    }

    /// Adds a segment; gives its number.
    pub fn add_segment(&mut self, capacity: u64) -> usize {
        self.wanted = 0;
        self.usage.mapped += capacity;
        self.usage.segments += 1;
        let fresh = Segment { capacity, top: 0, free: Vec::new() };
        if let Some(gap) = self.segments.iter().position(|s| s.capacity == 0) {
            self.segments[gap] = fresh;
            gap
        } else {
            self.segments.push(fresh);
            self.segments.len() - 1
        }
    }

    /// Removes the segments in which no block is handed out; gives their numbers.
    pub fn remove_unused(&mut self) -> Vec<usize> {
        let unused: Vec<usize> = (0..self.segments.len()).filter(|&s| self.segments[s].is_unused()).collect();
        for &s in &unused {
            let segment = std::mem::replace(&mut self.segments[s], Segment { capacity: 0, top: 0, free: Vec::new() });
            self.usage.mapped -= segment.capacity;
            self.usage.reserved -= segment.top;
            self.usage.segments -= 1;
        }
        unused
    }
}

/// Rounded up to whole cache lines, if that can be counted.
fn round(bytes: u64) -> Option<u64> {
    bytes.checked_next_multiple_of(ALIGNMENT)
}

/// Memory of one program. Cloning copies the handle.
#[derive(Clone, Debug, Default)]
pub(crate) struct Arena(Rc<RefCell<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    blocks: Blocks,
    memory: Vec<Option<Memory>>,
    /// Whether each buffer comes from the system alone, and goes back to it at once.
    uncached: bool,
}

impl Arena {
    pub(crate) fn usage(&self) -> Usage {
        self.0.borrow().blocks.usage()
    }

    pub(crate) fn want(&self, bytes: u64) {
        self.0.borrow_mut().blocks.want(bytes);
    }

    /// A buffer of `bytes` initialised bytes: zero if they are new, else what was there. `None` if the system has no
    /// more.
    pub(crate) fn buffer(&self, bytes: u64) -> Option<Buffer> {
        if bytes == 0 {
            return Some(Buffer::empty());
        }
        let place = {
            let mut inner = self.0.borrow_mut();
            if inner.uncached {
                let memory = Memory::zeroed(round(bytes)?)?;
                inner.blocks.usage.add_own(bytes, memory.taken());
                return Some(Buffer::alone(self.clone(), memory, bytes));
            }
            match inner.blocks.place(bytes) {
                Some(place) => place,
                None => inner.grow(bytes).then(|| inner.blocks.place(bytes)).flatten()?,
            }
        };
        Some(Buffer::new(self.clone(), place, bytes))
    }

    /// Addresses of the segments.
    pub(crate) fn segments(&self) -> Vec<Range<usize>> {
        self.0.borrow().memory.iter().flatten().map(Memory::addresses).collect()
    }

    pub(crate) fn set_caching(&self, on: bool) {
        self.0.borrow_mut().uncached = !on;
    }

    fn free(&self, place: Place, bytes: u64) {
        self.0.borrow_mut().blocks.free(place, bytes);
    }

    fn free_alone(&self, memory: &Memory, bytes: u64) {
        self.0.borrow_mut().blocks.usage.remove_own(bytes, memory.taken());
    }

    /// Gives the segments that no tensor uses back to the system.
    pub(crate) fn release_unused(&self) {
        self.0.borrow_mut().release_unused();
    }
}

impl Inner {
    /// Adds a segment in which `bytes` have room; a smaller one where the system has no more, after giving back what is
    /// unused.
    fn grow(&mut self, bytes: u64) -> bool {
        let (Some(best), Some(least)) = (self.blocks.next_segment(bytes), round(bytes)) else { return false };
        let mut memory = Memory::zeroed(best);
        if memory.is_none() {
            self.release_unused();
            memory = Memory::zeroed(least);
        }
        let Some(memory) = memory else { return false };
        let index = self.blocks.add_segment(memory.bytes());
        if index == self.memory.len() {
            self.memory.push(Some(memory));
        } else {
            self.memory[index] = Some(memory);
        }
        true
    }

    fn release_unused(&mut self) {
        for index in self.blocks.remove_unused() {
            self.memory[index] = None;
        }
    }
}

#[cfg(test)]
mod tests;
