//! Sizes of blocks and segments. Source: the constants, `round_size` and `get_allocation_size` of PyTorch's
//! `c10/core/AllocatorConfig.h` and `c10/cuda/CUDACachingAllocator.cpp`.

use super::Conf;

/// Blocks are multiples of this (`kMinBlockSize`).
pub const BLOCK_STEP: u64 = 512;
/// Largest request served from the pool of small segments (`kSmallSize`).
pub const SMALL: u64 = 1 << 20;
/// Small requests are served from segments of this size (`kSmallBuffer`).
pub const SMALL_SEGMENT: u64 = 2 << 20;
/// Requests above [`SMALL`] and below this one share segments (`kMinLargeAlloc`).
pub const LARGE: u64 = 10 << 20;
/// Size of the segments they share, where the settings say nothing else (`kLargeBuffer`).
pub const MIDDLE_SEGMENT: u64 = 20 << 20;
/// Larger segments are multiples of this (`kRoundLarge`).
pub const SEGMENT_STEP: u64 = 2 << 20;

/// The smallest multiple of `step` that is no less than `bytes`; the largest number where 64 bits cannot hold it.
pub(super) const fn round_up(bytes: u64, step: u64) -> u64 {
    bytes.div_ceil(step).saturating_mul(step)
}

/// The block that a request of `bytes` takes, with the settings that are the default.
pub const fn block(bytes: u64) -> u64 {
    round_up(if bytes == 0 { 1 } else { bytes }, BLOCK_STEP)
}

/// What the driver is asked for where there is no free block for one of `block` bytes, with shared segments of `middle`.
pub const fn segment_of(block: u64, middle: u64) -> u64 {
    if block <= SMALL {
        SMALL_SEGMENT
    } else if block < LARGE {
        middle
    } else {
        round_up(block, SEGMENT_STEP)
    }
}

/// What the driver is asked for where there is no free block for a request of `bytes`, with the settings that are the
/// default: the number that an out-of-memory message prints.
pub const fn segment(bytes: u64) -> u64 {
    segment_of(block(bytes), MIDDLE_SEGMENT)
}

impl Conf {
    /// The block that a request of `bytes` takes: a multiple of 512, or of a part of the power of two below it where
    /// `roundup_power2_divisions` says so.
    pub fn block(&self, bytes: u64) -> u64 {
        if bytes < BLOCK_STEP {
            return BLOCK_STEP;
        }
        let divisions = self.divisions(bytes);
        if divisions > 1 && bytes > BLOCK_STEP.saturating_mul(divisions) {
            next_division(bytes, divisions)
        } else {
            round_up(bytes, BLOCK_STEP)
        }
    }

    /// The divisions between two powers of two that hold for a request: the settings have one number for each power from
    /// 1 MiB to 32 GiB; what is smaller or larger takes the nearest.
    fn divisions(&self, bytes: u64) -> u64 {
        const FIRST: u32 = 20;
        let last = self.roundup_power2_divisions.len() - 1;
        let index = bytes.ilog2().saturating_sub(FIRST) as usize;
        self.roundup_power2_divisions[index.min(last)]
    }
}

/// The next of `divisions` equal steps between the powers of two around `bytes`; both are at least 2.
fn next_division(bytes: u64, divisions: u64) -> u64 {
    if bytes.is_power_of_two() {
        return bytes;
    }
    let floor = 1u64 << bytes.ilog2();
    let step = floor >> divisions.ilog2();
    if step == 0 { floor.saturating_mul(2) } else { round_up(bytes, step) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_those_of_the_allocator() {
        let cases = [
            (1, 2 << 20),
            (1 << 20, 2 << 20),
            ((1 << 20) + 1, 20 << 20),
            ((10 << 20) - 512, 20 << 20),
            ((10 << 20) - 511, 10 << 20),
            ((10 << 20) + 1, 12 << 20),
            (786 << 20, 786 << 20),
            ((786 << 20) - 1, 786 << 20),
            (u64::MAX, u64::MAX),
        ];
        for (bytes, size) in cases {
            assert_eq!(segment(bytes), size, "{bytes}");
        }
    }

    /// The example of PyTorch's own comment: 1,200 with 4 divisions is 1,280.
    #[test]
    fn divisions_of_powers_of_two() {
        for (bytes, divisions, size) in [
            (1200, 4, 1280),
            (1024, 4, 1024),
            (1281, 4, 1536),
            (1 << 30, 8, 1 << 30),
            (3, 8, 4),
            ((1 << 30) + 1, 2, 3 << 29),
        ] {
            assert_eq!(next_division(bytes, divisions), size, "{bytes} {divisions}");
        }
        let conf: Conf = "roundup_power2_divisions:[1:1,2:2,>:8]".parse().unwrap();
        for (bytes, size) in [(700, 1024), ((2 << 20) + 1, 3 << 20), ((4 << 20) + 1, (4 << 20) + (512 << 10))] {
            assert_eq!(conf.block(bytes), size, "{bytes}");
        }
        // More divisions than there are bytes: blocks are those without.
        let conf: Conf = "roundup_power2_divisions:4611686018427387904".parse().unwrap();
        assert_eq!(conf.block((4 << 20) + 1), (4 << 20) + 512);
    }
}
