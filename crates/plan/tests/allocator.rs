//! The simulated allocator against PyTorch's own, and what holds of it whatever is asked.
#![allow(clippy::unwrap_used, missing_docs)]

use napkin_plan::allocator::{Allocator, BlockId, Conf};
use proptest::prelude::*;

/// Counters of PyTorch's own allocator over drawn requests: see `allocator/README.md`.
const RANDOM: &str = include_str!("allocator/random.csv");

/// The same draws as `allocator/generate.py`.
struct Draw(u64);

impl Draw {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// What `generate.py` asks for, up to the event at which the counters are read.
struct Program {
    draw: Draw,
    largest: u64,
    event: u64,
    live: Vec<Option<BlockId>>,
    refused: u64,
}

impl Program {
    fn run(&mut self, allocator: &mut Allocator, until: u64) {
        while self.event < until {
            self.event += 1;
            let takes = if self.event % 200 < 100 { 70 } else { 30 };
            if self.live.is_empty() || self.draw.below(100) < takes {
                let power = self.draw.below(self.largest + 1);
                let block = allocator.alloc((1 << power) + self.draw.below(1 << power));
                self.refused += u64::from(block.is_err());
                self.live.push(block.ok());
            } else {
                let at = self.draw.below(self.live.len() as u64) as usize;
                if let Some(block) = self.live.swap_remove(at) {
                    allocator.free(block);
                }
            }
            if self.draw.below(1000) == 0 {
                allocator.empty_cache();
            }
        }
    }
}

#[test]
fn counters_are_those_of_pytorch() {
    let mut at: Option<(String, Allocator, Program)> = None;
    let mut refused = 0;
    for line in RANDOM.lines().skip(1) {
        let (conf, numbers) = line[1..].split_once("\",").unwrap();
        let numbers: Vec<u64> = numbers.split(',').map(|n| n.parse().unwrap()).collect();
        let [device, largest, seed, event, want @ ..] = numbers.as_slice() else { panic!("{line}") };
        let name = format!("{conf} {device} {seed}");
        if at.as_ref().is_none_or(|(now, ..)| *now != name) {
            let program = Program { draw: Draw(*seed), largest: *largest, event: 0, live: Vec::new(), refused: 0 };
            at = Some((name.clone(), Allocator::new(conf.parse().unwrap(), Some(*device)), program));
        }
        let (_, allocator, program) = at.as_mut().unwrap();
        program.run(allocator, *event);
        let is = allocator.usage();
        let is = [
            is.requested,
            is.allocated,
            is.peak_allocated,
            is.inactive_split,
            is.reserved,
            is.peak_reserved,
            is.segments,
            is.mallocs,
            is.frees,
            is.retries,
            program.refused,
        ];
        refused += program.refused;
        assert_eq!(is, want, "{name}, event {event}");
    }
    assert!(refused > 0, "no case where the device is too small");
}

/// Settings of every kind.
fn confs() -> impl Strategy<Value = Conf> {
    let sizes = proptest::option::of((20u64..200).prop_map(|mb| mb << 20));
    let collects = proptest::option::of((0.1f64..0.9, 0.3f64..1.0));
    (any::<bool>(), sizes, collects, 0u32..5).prop_map(|(expandable_segments, max_split_bytes, collects, power)| Conf {
        expandable_segments,
        max_split_bytes,
        garbage_collection_threshold: collects.map(|(threshold, _)| threshold),
        memory_fraction: collects.map(|(_, fraction)| fraction),
        roundup_power2_divisions: [1 << power; 16],
        ..Conf::default()
    })
}

proptest! {
    #[test]
    fn blocks_hold_what_was_asked_for_apart_from_each_other(
        conf in confs(),
        device in proptest::option::of((64u64..4096).prop_map(|mb| mb << 20)),
        requests in proptest::collection::vec((0u32..28, any::<u16>(), 0u8..10), 1..300),
    ) {
        let mut allocator = Allocator::new(conf, device);
        let mut live: Vec<(BlockId, u64)> = Vec::new();
        for (power, low, kind) in requests {
            if kind < 4 && !live.is_empty() {
                let (block, _) = live.swap_remove(usize::from(low) % live.len());
                allocator.free(block);
            } else {
                let bytes = (1u64 << power) + u64::from(low);
                match allocator.alloc(bytes) {
                    Ok(block) => live.push((block, bytes)),
                    Err(refused) => {
                        prop_assert!(refused.requested == bytes && refused.segment >= bytes);
                        prop_assert!(device.is_some(), "refused without a limit");
                    }
                }
            }
            let mut taken: Vec<_> = live.iter().map(|&(block, bytes)| (allocator.addresses_of(block), bytes)).collect();
            taken.sort_by_key(|(range, _)| range.start);
            prop_assert!(taken.iter().all(|(range, bytes)| range.end - range.start >= *bytes && range.start % 512 == 0));
            prop_assert!(taken.windows(2).all(|pair| pair[0].0.end <= pair[1].0.start), "overlap");
            let usage = allocator.usage();
            prop_assert_eq!(usage.allocated, taken.iter().map(|(range, _)| range.end - range.start).sum::<u64>());
            prop_assert_eq!(usage.requested, live.iter().map(|(_, bytes)| bytes).sum::<u64>());
            prop_assert!(usage.allocated + usage.inactive_split <= usage.reserved);
            prop_assert!(device.is_none_or(|device| usage.peak_reserved <= device));
        }
        for (block, _) in live {
            allocator.free(block);
        }
        allocator.empty_cache();
        let usage = allocator.usage();
        prop_assert_eq!((usage.requested, usage.allocated, usage.reserved, usage.segments), (0, 0, 0, 0));
    }
}
