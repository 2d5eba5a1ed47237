//! Blocks never overlap, free neighbours are one, and what the tests below say of segments.

use super::*;
use proptest::prelude::*;

/// Places a block, adding a segment if needed, as the arena does.
fn place(blocks: &mut Blocks, bytes: u64) -> Place {
    if let Some(place) = blocks.place(bytes) {
        return place;
    }
    let size = blocks.next_segment(bytes).unwrap();
    blocks.add_segment(size);
    blocks.place(bytes).unwrap()
}

/// Sums that must hold at any time, from the blocks handed out.
fn check(blocks: &Blocks, held: &[(Place, u64)]) {
    let mut sorted: Vec<Place> = held.iter().map(|h| h.0).collect();
    sorted.sort_by_key(|p| (p.segment, p.start));
    for pair in sorted.windows(2) {
        let apart = pair[0].segment < pair[1].segment || pair[0].start + pair[0].bytes <= pair[1].start;
        assert!(apart, "{pair:?} overlap");
    }
    let usage = blocks.usage();
    assert_eq!(usage.handed_out, held.iter().map(|(p, _)| p.bytes).sum::<u64>());
    assert_eq!(usage.rounding, held.iter().map(|(p, bytes)| p.bytes - bytes).sum::<u64>());
    assert_eq!(usage.reserved, blocks.segments.iter().map(|s| s.top).sum::<u64>());
    assert_eq!(usage.mapped, blocks.segments.iter().map(|s| s.capacity).sum::<u64>());
    assert_eq!(usage.cached(), blocks.segments.iter().flat_map(|s| &s.free).map(|f| f.bytes).sum::<u64>());
    for segment in &blocks.segments {
        assert!(segment.top <= segment.capacity);
        for pair in segment.free.windows(2) {
            assert!(pair[0].start + pair[0].bytes < pair[1].start, "free neighbours are one block");
        }
    }
}

proptest! {
    #[test]
    fn any_sequence_keeps_blocks_apart_and_sums_exact(
        steps in proptest::collection::vec((any::<bool>(), 1..200_000_000u64, any::<prop::sample::Index>()), 1..200),
    ) {
        let mut blocks = Blocks::new();
        let mut held = Vec::new();
        for (frees, bytes, which) in steps {
            if frees && !held.is_empty() {
                let (place, bytes) = held.swap_remove(which.index(held.len()));
                blocks.free(place, bytes);
            } else {
                held.push((place(&mut blocks, bytes), bytes));
            }
            check(&blocks, &held);
        }
        for (place, bytes) in held.drain(..) {
            blocks.free(place, bytes);
        }
        check(&blocks, &[]);
        let segments = blocks.usage().segments;
        prop_assert_eq!(blocks.remove_unused().len(), segments);
        prop_assert_eq!(blocks.usage(), Usage { peak_reserved: blocks.usage().peak_reserved, ..Usage::default() });
    }
}

#[test]
fn the_same_requests_find_the_same_blocks() {
    let mut blocks = Blocks::new();
    let mut step = || {
        let held: Vec<_> = [700, 64, 5_000_000, 1, 130].map(|bytes| (place(&mut blocks, bytes), bytes)).into();
        for &(place, bytes) in held.iter().rev() {
            blocks.free(place, bytes);
        }
        (held.iter().map(|h| h.0).collect::<Vec<_>>(), blocks.usage())
    };
    let first = step();
    assert_eq!(first, step());
    assert_eq!(first, step());
}

#[test]
fn a_block_that_outgrows_the_tail_takes_only_the_rest() {
    let mut blocks = Blocks::new();
    let _low = place(&mut blocks, 64);
    let tail = place(&mut blocks, 640);
    blocks.free(tail, 640);
    let larger = place(&mut blocks, 1024);
    assert_eq!((larger.start, blocks.usage().reserved), (64, 64 + 1024));
}

#[test]
fn the_tightest_block_is_taken() {
    let mut blocks = Blocks::new();
    let held: Vec<_> = [1024, 64, 256, 64, 512, 64].map(|bytes| (place(&mut blocks, bytes), bytes)).into();
    for &i in &[0, 2, 4] {
        blocks.free(held[i].0, held[i].1);
    }
    assert_eq!(place(&mut blocks, 200).start, held[2].0.start);
    assert_eq!(place(&mut blocks, 500).start, held[4].0.start);
    assert_eq!(place(&mut blocks, 64).start, held[0].0.start);
}

#[test]
fn segments_grow_with_what_there_is_and_with_what_is_expected() {
    let mut blocks = Blocks::new();
    assert_eq!(blocks.next_segment(1), Some(SMALLEST_SEGMENT));
    assert_eq!(blocks.next_segment(1 << 40), Some(1 << 40));
    blocks.want(50 << 30);
    assert_eq!(blocks.next_segment(1), Some(51 << 30), "with room for gaps");
    blocks.add_segment(51 << 30);
    assert_eq!(blocks.next_segment(1), Some(51 << 29));
    assert_eq!(blocks.next_segment(u64::MAX), None);
}

#[test]
fn buffers_are_apart_aligned_zero_when_new_and_stale_when_reused() {
    let arena = Arena::default();
    let mut a = arena.buffer(100).unwrap();
    let mut b = arena.buffer(1).unwrap();
    assert!(a.bytes().iter().chain(b.bytes()).all(|&x| x == 0));
    assert_eq!(a.bytes().as_ptr().align_offset(ALIGNMENT as usize), 0);
    assert_eq!(b.bytes().as_ptr().align_offset(ALIGNMENT as usize), 0);
    a.bytes_mut().fill(7);
    b.bytes_mut().fill(9);
    assert!(a.bytes().iter().all(|&x| x == 7));
    assert_eq!(a.slice::<u64>().len(), 12);
    drop(a);
    assert!(arena.buffer(90).unwrap().bytes().iter().all(|&x| x == 7));
    assert!(arena.buffer(0).unwrap().slice::<f64>().is_empty());
    let usage = arena.usage();
    assert_eq!((usage.handed_out, usage.rounding, usage.reserved, usage.segments), (64, 63, 192, 1));
}

#[test]
fn memory_outlives_the_handle_and_goes_back_when_unused() {
    let arena = Arena::default();
    let mut buffer = arena.buffer(4).unwrap();
    arena.release_unused();
    assert_eq!(arena.usage().segments, 1);
    let other = arena.clone();
    drop(arena);
    buffer.bytes_mut().fill(1);
    drop(buffer);
    other.release_unused();
    assert_eq!((other.usage().mapped, other.usage().reserved), (0, 0));
    assert!(other.buffer(4).unwrap().bytes().iter().all(|&x| x == 0));
}

#[test]
fn more_than_there_can_be_is_refused() {
    let arena = Arena::default();
    assert!(arena.buffer(1 << 60).is_none());
    assert!(arena.buffer(u64::MAX).is_none());
    assert!(arena.buffer(8).is_some());
}

#[test]
fn without_caching_each_buffer_comes_from_the_system_and_goes_back_to_it() {
    let arena = Arena::default();
    let kept = arena.buffer(1000).unwrap();
    let before = arena.usage();
    arena.set_caching(false);
    let mut alone = arena.buffer(100).unwrap();
    assert!(alone.bytes().iter().all(|&x| x == 0));
    alone.bytes_mut().fill(7);
    let during = arena.usage();
    // 100 bytes in two cache lines, and a third to align them in.
    assert_eq!(during.handed_out - before.handed_out, 192);
    assert_eq!(during.rounding - before.rounding, 92);
    assert_eq!((during.segments, during.cached()), (before.segments + 1, before.cached()));
    assert_eq!((during.mapped - before.mapped, during.reserved - before.reserved), (192, 192));
    assert_eq!(arena.segments().len(), 1, "what comes alone is no segment");
    arena.set_caching(true);
    assert_eq!(arena.buffer(64).unwrap().bytes().len(), 64);
    drop(alone);
    assert_eq!(arena.usage().handed_out, before.handed_out);
    drop(kept);
}
