//! How much kernels multiply, counted where it is done: a witness of what cost rules say.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// FLOP of all threads.
static DONE: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// FLOP of this thread that are not in [`DONE`] yet: the threads of a kernel would wait for each other there.
    static HERE: Cell<u64> = const { Cell::new(0) };
}

/// FLOP of matrix products and attention that kernels have made in this process so far. Fast ones count what they multiply;
/// plain ones, which tests run over numbers that count themselves, are taken at the word of their cost rule.
pub fn products_flop() -> u64 {
    DONE.load(Ordering::Relaxed)
}

/// Counts a product of an `m k` by a `k n` matrix on this thread.
#[inline]
pub(crate) fn count(m: usize, n: usize, k: usize) {
    HERE.set(HERE.get() + 2 * (m * n * k) as u64);
}

/// Counts what a plain kernel does.
pub(crate) fn count_plain(flop: u128) {
    DONE.fetch_add(u64::try_from(flop).unwrap_or(u64::MAX), Ordering::Relaxed);
}

/// Makes known to all what this thread has counted.
pub(crate) fn publish() {
    DONE.fetch_add(HERE.take(), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::attention::{Attention, AttentionBackward};
    use crate::runtime::{Device, Runtime};
    use crate::{DType, apply::apply};

    /// What a program counts. Other tests count at the same time, so this takes the least of several runs.
    fn counted(mut program: impl FnMut()) -> u64 {
        let run = |_| {
            let before = products_flop();
            program();
            products_flop() - before
        };
        (0..20).map(run).min().unwrap()
    }

    #[test]
    fn kernels_count_what_they_multiply() {
        let rt = Runtime::new(Device::Cpu);
        let [a, b] = [[33, 20], [20, 47]].map(|shape| rt.randn(&shape, DType::F32).unwrap());
        assert_eq!(counted(|| drop(a.matmul(&b).unwrap())), 2 * 33 * 20 * 47);

        // 128 queries and keys in tiles of 64, width 32: without a mask all four tiles, with one the three that are seen,
        // of which those at the diagonal may leave out what is not seen.
        let heads: [_; 3] = std::array::from_fn(|_| rt.randn(&[1, 2, 128, 32], DType::F32).unwrap());
        let [q, k, v] = &heads;
        let tile = 2 * 64 * 64 * 32;
        for causal in [false, true] {
            let op = Attention { causal, ..Attention::full(0.2) };
            let mut outs = None;
            let forward = counted(|| outs = Some(apply(op.clone().into(), &[q, k, v]).unwrap()));
            let outs = outs.unwrap();
            let inputs = [q, k, v, &outs[0], &outs[1], &outs[0]];
            let backward = counted(|| drop(apply(AttentionBackward { of: op.clone() }.into(), &inputs).unwrap()));
            let pairs: u64 = if causal { 128 * 129 / 2 } else { 128 * 128 };
            let (least, most) = (2 * 2 * pairs * 32, 2 * tile * if causal { 3 } else { 4 });
            assert!((2 * least..=2 * most).contains(&forward), "{causal}: {forward}");
            assert!((5 * least..=5 * most).contains(&backward), "{causal}: {backward}");
        }
    }
}
