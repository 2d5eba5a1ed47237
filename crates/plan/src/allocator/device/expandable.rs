//! Segments that grow by pages: addresses are reserved once, memory is put behind them as it is asked for.

use super::{Allocator, Block};
use crate::allocator::size::{SMALL_SEGMENT, round_up};

/// Addresses that pages are put behind one after another.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expandable {
    start: u64,
    bytes: u64,
    page: u64,
}

/// Addresses reserved for a segment that expands where the size of the device is not known.
const ADDRESSES: u64 = 1 << 50;

impl Allocator {
    /// Size of the pages by which segments of a pool grow.
    fn page(&self, small: bool) -> u64 {
        if small { SMALL_SEGMENT } else { self.conf.large_segment_bytes }
    }

    /// `try_allocate_expandable_block`.
    pub(super) fn expand(&mut self, size: u64, small: bool) -> Option<u32> {
        let mut candidate = self.find_expandable(size, small)?;
        if !self.blocks[candidate as usize].mapped && !self.map(candidate, size) {
            return None;
        }
        while self.blocks[candidate as usize].bytes < size {
            // A free block with addresses behind it: what is mapped joins it.
            let wanted = size - self.blocks[candidate as usize].bytes;
            let next = self.blocks[candidate as usize].next?;
            if !self.map(next, wanted) {
                return None;
            }
            candidate = next;
        }
        self.take(candidate);
        Some(candidate)
    }

    /// `find_expandable_block`: the lowest place with free addresses for `size`, or a new segment.
    fn find_expandable(&mut self, size: u64, small: bool) -> Option<u32> {
        let is_free = |id: u32| !self.blocks[id as usize].allocated;
        let has_room = |mut at: Option<u32>| {
            let mut bytes = 0;
            while let Some(id) = at.filter(|&id| bytes < size && is_free(id)) {
                bytes += self.blocks[id as usize].bytes;
                at = self.blocks[id as usize].next;
            }
            bytes >= size
        };
        for &(_, id) in &self.pools[usize::from(small)].unmapped {
            let first = self.blocks[id as usize].prev.filter(|&prev| is_free(prev)).unwrap_or(id);
            if has_room(Some(first)) {
                return Some(first);
            }
        }
        let page = self.page(small);
        // An eighth more than the device has, so that pages can be moved to the end.
        let bytes = round_up(self.device.map_or(ADDRESSES, |device| device.saturating_add(device / 8)), page);
        let start = self.addresses(bytes)?;
        let segment = self.expandable.len() as u32;
        self.expandable.push(Expandable { start, bytes, page });
        let id = self.add(Block {
            start,
            bytes,
            requested: 0,
            small,
            allocated: false,
            mapped: false,
            expandable: Some(segment),
            prev: None,
            next: None,
            since: 0,
        });
        self.pool(small).unmapped.insert((start, id));
        // A request above all addresses of the device is never served.
        (bytes >= size).then_some(id)
    }

    /// `map_block`: puts pages behind the first `size` bytes of a block that has none, or behind all of it.
    fn map(&mut self, id: u32, size: u64) -> bool {
        let block = self.blocks[id as usize].clone();
        let Some(segment) = block.expandable.map(|segment| self.expandable[segment as usize]) else { return false };
        let bytes = round_up(size.min(block.bytes), segment.page);
        if self.left().is_some_and(|left| bytes > left) {
            return false;
        }
        self.take(id);
        if bytes < block.bytes {
            let rest = self.add(Block {
                start: block.start + bytes,
                bytes: block.bytes - bytes,
                prev: Some(id),
                next: block.next,
                ..block.clone()
            });
            if let Some(next) = block.next {
                self.blocks[next as usize].prev = Some(rest);
            }
            let mapped = &mut self.blocks[id as usize];
            mapped.next = Some(rest);
            mapped.bytes = bytes;
            self.pool(block.small).unmapped.insert((block.start + bytes, rest));
        }
        self.blocks[id as usize].mapped = true;
        self.merge(id, true);
        self.merge(id, false);
        self.put(id);
        self.reserve(bytes);
        true
    }

    /// `unmap_block`: gives back the pages that lie whole inside a free block.
    pub(super) fn unmap(&mut self, id: u32) {
        let block = self.blocks[id as usize].clone();
        let Some(segment) = block.expandable.map(|segment| self.expandable[segment as usize]) else { return };
        let first = segment.start + round_up(block.start - segment.start, segment.page);
        let end = segment.start + (block.start + block.bytes - segment.start) / segment.page * segment.page;
        if first >= end {
            return;
        }
        self.take(id);
        let (before, after) = (first - block.start, block.start + block.bytes - end);
        if before > 0 {
            let piece = self.add(Block { bytes: before, next: Some(id), ..block.clone() });
            if let Some(prev) = block.prev {
                self.blocks[prev as usize].next = Some(piece);
            }
            self.blocks[id as usize].prev = Some(piece);
            self.put(piece);
        }
        if after > 0 {
            let piece = self.add(Block { start: end, bytes: after, prev: Some(id), ..block.clone() });
            if let Some(next) = block.next {
                self.blocks[next as usize].prev = Some(piece);
            }
            self.blocks[id as usize].next = Some(piece);
            self.put(piece);
        }
        let middle = &mut self.blocks[id as usize];
        (middle.start, middle.bytes, middle.mapped) = (first, end - first, false);
        self.merge(id, true);
        self.merge(id, false);
        let middle = &self.blocks[id as usize];
        let (start, is_split, bytes) = (middle.start, middle.is_split(), middle.bytes);
        self.give_back(end - first);
        if is_split {
            self.pool(block.small).unmapped.insert((start, id));
        } else {
            // The whole segment: its addresses are given up.
            debug_assert_eq!(bytes, segment.bytes);
            self.vacant.push(id);
        }
    }
}
