//! In which order to contract many operands: pairs only, each pair one batched matmul.
//!
//! Up to six operands every order is weighed (dynamic programming over subsets, outer products included); beyond that
//! the cheapest pair is taken at each step, or the user's order if that is cheaper.

use super::einsum::Axes;

/// Largest number of operands for which every order is weighed; each operand more makes it three times the work.
pub const EXHAUSTIVE_OPERANDS: usize = 6;

/// A set of indices, one bit each.
pub(crate) type Mask = u128;

/// Sizes of one pairwise contraction as a batched matmul: `batch` times `m k, k n -> m n`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PairSize {
    /// Product of the indices that both operands have and the result keeps.
    pub batch: u128,
    /// Product of the indices that only the left operand has.
    pub m: u128,
    /// Product of the indices that only the right operand has.
    pub n: u128,
    /// Product of the indices that both have and that are summed over.
    pub k: u128,
    /// False when nothing is summed over: then it is an elementwise product and no matmul.
    pub contracts: bool,
}

impl PairSize {
    /// FLOP: 2 for each multiply-add, 1 for each multiplication that nothing is added to.
    pub fn flops(&self) -> u128 {
        let each = if self.contracts { 2 } else { 1 };
        self.output().saturating_mul(self.k).saturating_mul(each)
    }

    /// Elements of the result.
    pub fn output(&self) -> u128 {
        self.batch.saturating_mul(self.m).saturating_mul(self.n)
    }
}

/// What an order costs; compared left to right.
pub type PathCost = (u128, u128);

/// The default rule: FLOP, then elements of the results (equal dtype makes elements as good as bytes).
pub fn flops_then_size(pair: &PairSize) -> PathCost {
    (pair.flops(), pair.output())
}

/// One contraction of two operands. Operands are numbered as passed, results after them in order of steps.
///
/// The groups are in the order in which the holder stores them: `batch`, `m` and `k` as in `lhs`, `n` as in `rhs`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PairStep {
    /// Number of the left operand.
    pub lhs: usize,
    /// Number of the right operand.
    pub rhs: usize,
    /// Indices of both that the result keeps.
    pub batch: Axes,
    /// Indices of `lhs` only.
    pub m: Axes,
    /// Indices of `rhs` only.
    pub n: Axes,
    /// Indices of both that are summed over.
    pub k: Axes,
    /// Indices of the result: `batch`, `m`, `n`.
    pub output: Axes,
    /// The products of the four groups.
    pub size: PairSize,
}

/// The pairwise steps of an einsum, with what they cost and what the order saves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContractionPath {
    /// Steps in order. Empty for a single operand.
    pub steps: Vec<PairStep>,
    /// FLOP of all steps (sums over axes that one operand alone has are elementwise work and not counted here).
    pub flops: u128,
    /// FLOP of the same einsum contracted left to right.
    pub left_to_right_flops: u128,
    /// Elements of the largest result that is not the last.
    pub largest_intermediate: u128,
}

/// What the search knows of an einsum: the indices of each operand (those no one else needs already summed out), the
/// output, the sizes.
pub(crate) struct Problem<'a> {
    /// Indices of each operand, in the order they are stored.
    pub operands: Vec<Axes>,
    /// Indices of the output, in order.
    pub output: &'a [u8],
    /// Size of each index.
    pub sizes: &'a [u64],
}

/// A binary tree over operands, as the list of pairs to contract (numbers as in [`PairStep`]).
type Tree = Vec<(usize, usize)>;

impl Problem<'_> {
    fn mask(axes: &[u8]) -> Mask {
        axes.iter().fold(0, |mask, &axis| mask | 1 << axis)
    }

    fn size(&self, mask: Mask) -> u128 {
        let sizes = self.sizes.iter().enumerate().filter(|(index, _)| mask >> index & 1 == 1);
        sizes.fold(1, |product: u128, (_, &size)| product.saturating_mul(u128::from(size)))
    }

    /// The groups of contracting `lhs` with `rhs` when `needed` are the indices anything else wants.
    fn pair(&self, lhs: Mask, rhs: Mask, needed: Mask) -> PairSize {
        let both = lhs & rhs;
        PairSize {
            batch: self.size(both & needed),
            m: self.size(lhs & !rhs),
            n: self.size(rhs & !lhs),
            k: self.size(both & !needed),
            contracts: both & !needed != 0,
        }
    }

    /// Finds an order and lowers it.
    pub fn solve(&self, cost: &dyn Fn(&PairSize) -> PathCost) -> ContractionPath {
        let count = self.operands.len();
        let tree = match count {
            0 | 1 => Tree::new(),
            2..=EXHAUSTIVE_OPERANDS => self.exhaustive(cost),
            _ => self.greedy(cost),
        };
        let naive = self.lower(&left_to_right(count));
        let mut steps = self.lower(&tree);
        // Greedy promises nothing; the user's own order is the least it must beat.
        if count > EXHAUSTIVE_OPERANDS && price(&naive, cost) <= price(&steps, cost) {
            steps.clone_from(&naive);
        }
        let flops = |steps: &[PairStep]| steps.iter().fold(0_u128, |sum, step| sum.saturating_add(step.size.flops()));
        let inner = steps.len().saturating_sub(1);
        ContractionPath {
            flops: flops(&steps),
            left_to_right_flops: flops(&naive),
            largest_intermediate: steps[..inner].iter().map(|step| step.size.output()).max().unwrap_or(0),
            steps,
        }
    }

    fn exhaustive(&self, cost: &dyn Fn(&PairSize) -> PathCost) -> Tree {
        let count = self.operands.len();
        let leaves: Vec<Mask> = self.operands.iter().map(|axes| Self::mask(axes)).collect();
        let members = |set: usize| (0..count).filter(move |operand| set >> operand & 1 == 1);
        let union = |set: usize| members(set).fold(0, |mask, operand| mask | leaves[operand]);
        let full = (1_usize << count) - 1;
        let needed = |set: usize| Self::mask(self.output) | union(full & !set);
        let kept: Vec<Mask> = (0..=full).map(|set| union(set) & needed(set)).collect();
        // Best split of each subset; subsets of a subset have smaller numbers, so one pass will do.
        let mut best: Vec<(PathCost, usize)> = vec![((0, 0), 0); full + 1];
        for set in 1..=full {
            if set.count_ones() < 2 {
                continue;
            }
            let price = |part: usize| {
                let rest = set & !part;
                let pair = cost(&self.pair(kept[part], kept[rest], kept[set]));
                let sum = |a: u128, b: u128, c: u128| a.saturating_add(b).saturating_add(c);
                let ((a0, a1), (b0, b1)) = (best[part].0, best[rest].0);
                ((sum(a0, b0, pair.0), sum(a1, b1, pair.1)), part)
            };
            // Left to right comes first and only a strictly better order replaces it: ties keep the user's order.
            let last = 1 << (usize::BITS - 1 - set.leading_zeros());
            let mut winner = price(set & !last);
            let lowest = set & set.wrapping_neg();
            for part in (1..set).filter(|part| part & set == *part && part & lowest != 0) {
                let candidate = price(part);
                if candidate.0 < winner.0 {
                    winner = candidate;
                }
            }
            best[set] = winner;
        }
        let mut tree = Tree::new();
        unfold(full, &best, count, &mut tree);
        tree
    }

    fn greedy(&self, cost: &dyn Fn(&PairSize) -> PathCost) -> Tree {
        let count = self.operands.len();
        let mut live: Vec<(usize, Mask)> =
            self.operands.iter().enumerate().map(|(operand, axes)| (operand, Self::mask(axes))).collect();
        let mut tree = Tree::new();
        while live.len() > 1 {
            let mut winner: Option<((bool, PathCost), usize, usize, Mask)> = None;
            for left in 0..live.len() {
                for right in left + 1..live.len() {
                    let others = live.iter().enumerate().filter(|(at, _)| *at != left && *at != right);
                    let needed = others.fold(Self::mask(self.output), |mask, (_, (_, axes))| mask | axes);
                    // A pair that shares nothing is cheap now and dear later: only when there is no other.
                    let apart = live[left].1 & live[right].1 == 0;
                    let price = (apart, cost(&self.pair(live[left].1, live[right].1, needed)));
                    if winner.is_none_or(|(best, ..)| price < best) {
                        winner = Some((price, left, right, (live[left].1 | live[right].1) & needed));
                    }
                }
            }
            let Some((_, left, right, result)) = winner else {
                break;
            };
            let (rhs, _) = live.remove(right);
            let (lhs, _) = live.remove(left);
            live.push((count + tree.len(), result));
            tree.push((lhs, rhs));
        }
        tree
    }

    /// The steps of a tree, each with its four groups.
    fn lower(&self, tree: &[(usize, usize)]) -> Vec<PairStep> {
        let mut held: Vec<Axes> = self.operands.clone();
        let mut used = vec![false; held.len() + tree.len()];
        let mut steps = Vec::with_capacity(tree.len());
        for (position, &(first, second)) in tree.iter().enumerate() {
            (used[first], used[second]) = (true, true);
            let waiting = held.iter().enumerate().filter(|(operand, _)| !used[*operand]);
            let needed = waiting.fold(Self::mask(self.output), |mask, (_, axes)| mask | Self::mask(axes));
            let last = position + 1 == tree.len();
            let swap = last && self.reads_better_swapped(&held[first], &held[second]);
            let (lhs, rhs) = if swap { (second, first) } else { (first, second) };
            let (left, right) = (&held[lhs], &held[rhs]);
            let (in_left, in_right) = (Self::mask(left), Self::mask(right));
            let has = |mask: Mask, axis: u8| mask >> axis & 1 == 1;
            let of = |axes: &[u8], want: &dyn Fn(u8) -> bool| -> Axes {
                axes.iter().copied().filter(|&axis| want(axis)).collect()
            };
            let batch = of(left, &|axis| has(in_right, axis) && has(needed, axis));
            let m = of(left, &|axis| !has(in_right, axis));
            let n = of(right, &|axis| !has(in_left, axis));
            let k = of(left, &|axis| has(in_right, axis) && !has(needed, axis));
            let output: Axes = batch.iter().chain(&m).chain(&n).copied().collect();
            let size = self.pair(in_left, in_right, needed);
            held.push(output.clone());
            steps.push(PairStep { lhs, rhs, batch, m, n, k, output, size });
        }
        steps
    }

    /// The result comes out as batch, m, n. If the output wants the indices of the second operand before those of the
    /// first, swapping the two makes the result contiguous instead of a transposed view.
    fn reads_better_swapped(&self, first: &[u8], second: &[u8]) -> bool {
        let only = |of: &[u8], other: &[u8]| {
            let own = |axis: &&u8| of.contains(axis) && !other.contains(axis);
            self.output.iter().position(|axis| own(&axis))
        };
        matches!((only(first, second), only(second, first)), (Some(a), Some(b)) if b < a)
    }
}

/// What all steps cost together.
fn price(steps: &[PairStep], cost: &dyn Fn(&PairSize) -> PathCost) -> PathCost {
    steps
        .iter()
        .map(|step| cost(&step.size))
        .fold((0, 0), |sum, one| (sum.0.saturating_add(one.0), sum.1.saturating_add(one.1)))
}

/// The tree that folds operands from left to right.
fn left_to_right(count: usize) -> Tree {
    (1..count).map(|next| (if next == 1 { 0 } else { count + next - 2 }, next)).collect()
}

/// Writes the steps of the best tree of `set`, depth first; returns the number of its result.
fn unfold(set: usize, best: &[(PathCost, usize)], count: usize, tree: &mut Tree) -> usize {
    if set.is_power_of_two() {
        return set.trailing_zeros() as usize;
    }
    let part = best[set].1;
    let pair = (unfold(part, best, count, tree), unfold(set & !part, best, count, tree));
    tree.push(pair);
    count + tree.len() - 1
}
