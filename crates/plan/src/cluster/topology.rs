//! Which links the ranks of a group talk over.
//!
//! Ranks are numbered along the axes of a layout, one axis inside another, and fill one node after another. A group of an axis
//! is then a run of ranks a constant stride apart, and stride, size and devices per node say how many of its ranks share a
//! node, how many nodes it spans, and how many such groups share the network cards of a node.

/// What a group of ranks has in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Axis {
    /// Ranks that share matrices.
    Tp,
    /// Ranks that share a sequence.
    Cp,
    /// Replicas: ranks that see other sequences.
    Dp,
    /// Ranks that hold the same parameters: replicas and the ranks of their sequences.
    Replicas,
    /// Ranks that share the experts of a block.
    Ep,
    /// Ranks that share the matrices of an expert.
    Etp,
    /// Ranks that hold the same experts.
    ExpertDp,
    /// Pipeline stages.
    Pp,
    /// Some of the ranks that hold the same parameters, a constant number of them apart: those that states are divided over, or
    /// those of the same part (hybrid sharding).
    Some {
        /// How many.
        ranks: u64,
        /// How far apart two neighbours are among all that hold the same parameters.
        apart: u64,
    },
}

impl Axis {
    /// All axes of a layout by themselves.
    pub const ALL: [Self; 8] =
        [Self::Tp, Self::Cp, Self::Dp, Self::Replicas, Self::Ep, Self::Etp, Self::ExpertDp, Self::Pp];
}

/// Which axis lies inside which, where ranks are numbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Order {
    /// Tensor, context, data, pipeline: stages are farthest apart (Megatron-Core's default, nanotron).
    #[default]
    PipelineOutermost,
    /// Tensor, context, pipeline, data: replicas are farthest apart (Megatron-DeepSpeed, torchtitan).
    DataOutermost,
}

/// Degrees of a layout, each at least 1; `etp × ep` divides `tp × cp × dp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Degrees {
    /// Ranks that share matrices.
    pub tp: u64,
    /// Ranks that share a sequence.
    pub cp: u64,
    /// Replicas.
    pub dp: u64,
    /// Pipeline stages.
    pub pp: u64,
    /// Ranks that share the experts of a block.
    pub ep: u64,
    /// Ranks that share the matrices of an expert.
    pub etp: u64,
}

impl Degrees {
    /// Ranks of the run.
    pub const fn ranks(&self) -> u64 {
        self.tp * self.cp * self.dp * self.pp
    }

    /// Ranks of a group, and how far apart two neighbours of it are.
    ///
    /// Where replicas lie outside stages, the ranks of one stage are a run of `tp × cp` ranks for every replica. Groups that
    /// reach over replicas (experts, their copies) are then no plain run; they are described by the stride between replicas,
    /// which is the farthest that any two neighbours are apart.
    fn group(&self, axis: Axis, order: Order) -> (u64, u64) {
        let inner = self.tp * self.cp;
        let (data, pipeline) = match order {
            Order::PipelineOutermost => (inner, inner * self.dp),
            Order::DataOutermost => (inner * self.pp, inner),
        };
        let across = |size: u64, stride: u64| match order {
            Order::PipelineOutermost => (size, stride),
            Order::DataOutermost if stride * size <= inner => (size, stride),
            Order::DataOutermost if stride >= inner => (size, stride / inner * data),
            Order::DataOutermost => (size, data),
        };
        match axis {
            Axis::Tp => (self.tp, 1),
            Axis::Cp => (self.cp, self.tp),
            Axis::Dp => (self.dp, data),
            Axis::Replicas => across(self.cp * self.dp, self.tp),
            Axis::Etp => (self.etp, 1),
            Axis::Ep => across(self.ep, self.etp),
            Axis::ExpertDp => across(inner * self.dp / (self.ep * self.etp), self.ep * self.etp),
            Axis::Pp => (self.pp, pipeline),
            Axis::Some { ranks, apart } => across(ranks, self.tp * apart),
        }
    }

    /// Where the ranks of a group of an axis are: the worst placed of all its groups.
    ///
    /// `per_node` is the number of devices of a node, at least 1.
    pub fn span(&self, axis: Axis, order: Order, per_node: u64) -> Span {
        let (size, stride) = self.group(axis, order);
        Span::of(size, stride, self.ranks(), per_node)
    }
}

/// Where the ranks of a group are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// Ranks of the group.
    pub ranks: u64,
    /// Most of them that share a node.
    pub local: u64,
    /// Nodes they are on.
    pub nodes: u64,
    /// Groups of the same axis that have ranks on a node with others elsewhere, and so share its network cards.
    pub sharing: u64,
}

impl Span {
    /// One rank, which talks to nobody.
    pub const ALONE: Self = Self { ranks: 1, local: 1, nodes: 1, sharing: 1 };

    /// Where `size` ranks are that lie `stride` apart, of `world` ranks in all, with `per_node` on a node.
    pub fn of(size: u64, stride: u64, world: u64, per_node: u64) -> Self {
        if size <= 1 {
            return Self::ALONE;
        }
        let reach = stride * size;
        if reach <= per_node && per_node.is_multiple_of(reach) {
            return Self { ranks: size, local: size, nodes: 1, sharing: 1 };
        }
        let on_node = per_node.min(world);
        let (local, nodes) = if stride.is_multiple_of(per_node) {
            (1, size)
        } else if per_node.is_multiple_of(stride) && reach.is_multiple_of(per_node) {
            (per_node / stride, reach / per_node)
        } else {
            // Groups begin at other places of a node than others do: the one over most nodes is the slowest.
            (0..per_node.min(world))
                .map(|first| {
                    let mut counts: Vec<(u64, u64)> = Vec::new();
                    for rank in 0..size {
                        let node = (first + rank * stride) / per_node;
                        match counts.last_mut() {
                            Some((last, count)) if *last == node => *count += 1,
                            _ => counts.push((node, 1)),
                        }
                    }
                    (counts.iter().map(|(_, count)| *count).max().unwrap_or(1), counts.len() as u64)
                })
                .max_by_key(|(local, nodes)| (*nodes, *local))
                .unwrap_or((1, size))
        };
        let sharing = if nodes > 1 { on_node.div_ceil(local) } else { 1 };
        Self { ranks: size, local, nodes, sharing }
    }

    /// Whether all its ranks are on one node.
    pub const fn inside(&self) -> bool {
        self.nodes == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    const PLAIN: Degrees = Degrees { tp: 1, cp: 1, dp: 1, pp: 1, ep: 1, etp: 1 };

    /// Groups of an axis, by writing down the coordinates of every rank.
    fn groups(degrees: &Degrees, axis: Axis, order: Order) -> Vec<Vec<u64>> {
        let mut groups: BTreeMap<Vec<u64>, Vec<u64>> = BTreeMap::new();
        for rank in 0..degrees.ranks() {
            let (tp, rest) = (rank % degrees.tp, rank / degrees.tp);
            let (cp, rest) = (rest % degrees.cp, rest / degrees.cp);
            let (dp, pp) = match order {
                Order::PipelineOutermost => (rest % degrees.dp, rest / degrees.dp),
                Order::DataOutermost => (rest / degrees.pp, rest % degrees.pp),
            };
            // Position among the ranks of the stage, and its coordinates along the axes of experts.
            let place = tp + degrees.tp * (cp + degrees.cp * dp);
            let (etp, ep, copy) =
                (place % degrees.etp, place / degrees.etp % degrees.ep, place / (degrees.etp * degrees.ep));
            let others = match axis {
                Axis::Tp => vec![cp, dp, pp],
                Axis::Cp => vec![tp, dp, pp],
                Axis::Dp => vec![tp, cp, pp],
                Axis::Replicas => vec![tp, pp],
                Axis::Etp => vec![ep, copy, pp],
                Axis::Ep => vec![etp, copy, pp],
                Axis::ExpertDp => vec![etp, ep, pp],
                Axis::Pp => vec![tp, cp, dp],
                Axis::Some { ranks, apart } => {
                    let replica = cp + degrees.cp * dp;
                    vec![tp, pp, replica % apart, replica / (apart * ranks)]
                }
            };
            groups.entry(others).or_default().push(rank);
        }
        groups.into_values().collect()
    }

    fn by_counting(degrees: &Degrees, axis: Axis, order: Order, per_node: u64) -> Span {
        let groups = groups(degrees, axis, order);
        let nodes_of = |group: &[u64]| group.iter().map(|rank| rank / per_node).collect::<BTreeSet<_>>();
        let worst = groups.iter().max_by_key(|group| nodes_of(group).len()).unwrap();
        if worst.len() == 1 {
            return Span::ALONE;
        }
        let nodes = nodes_of(worst);
        let local =
            nodes.iter().map(|node| worst.iter().filter(|rank| **rank / per_node == *node).count()).max().unwrap();
        let crossing = groups.iter().filter(|group| nodes_of(group).len() > 1 && nodes_of(group).contains(&0)).count();
        Span {
            ranks: worst.len() as u64,
            local: local as u64,
            nodes: nodes.len() as u64,
            sharing: crossing.max(1) as u64,
        }
    }

    #[test]
    fn spans_equal_those_of_ranks_written_down() {
        let powers = [1, 2, 4, 8, 16];
        for order in [Order::PipelineOutermost, Order::DataOutermost] {
            for tp in powers {
                for cp in [1, 2] {
                    for dp in powers {
                        for pp in [1, 2, 8] {
                            let degrees = Degrees { tp, cp, dp, pp, ..PLAIN };
                            for axis in [Axis::Tp, Axis::Cp, Axis::Dp, Axis::Pp] {
                                let expected = by_counting(&degrees, axis, order, 8);
                                assert_eq!(degrees.span(axis, order, 8), expected, "{degrees:?} {axis:?} {order:?}");
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn groups_of_experts_and_of_equal_parameters_lie_inside_a_stage() {
        for (tp, cp, dp, pp, ep, etp) in
            [(1, 1, 8, 2, 8, 1), (2, 1, 16, 1, 4, 2), (4, 2, 4, 2, 8, 1), (1, 1, 32, 2, 16, 1)]
        {
            let degrees = Degrees { tp, cp, dp, pp, ep, etp };
            for axis in [Axis::Replicas, Axis::Ep, Axis::Etp, Axis::ExpertDp] {
                let expected = by_counting(&degrees, axis, Order::PipelineOutermost, 8);
                assert_eq!(degrees.span(axis, Order::PipelineOutermost, 8), expected, "{degrees:?} {axis:?}");
            }
            // Ranks that share states, and those of the same part, of two groups or more of the former.
            let replicas = cp * dp;
            for ranks in [2, 4, 8].into_iter().filter(|ranks| replicas % ranks == 0 && ranks * 2 <= replicas) {
                for axis in [Axis::Some { ranks, apart: 1 }, Axis::Some { ranks: replicas / ranks, apart: ranks }] {
                    let expected = by_counting(&degrees, axis, Order::PipelineOutermost, 8);
                    assert_eq!(degrees.span(axis, Order::PipelineOutermost, 8), expected, "{degrees:?} {axis:?}");
                }
            }
        }
    }

    #[test]
    fn groups_that_do_not_fill_nodes_are_placed_at_their_worst() {
        // Three ranks a group on nodes of eight: the group of ranks 6, 7, 8 is on two nodes.
        let span = Degrees { tp: 3, dp: 8, ..PLAIN }.span(Axis::Tp, Order::PipelineOutermost, 8);
        assert_eq!((span.local, span.nodes), (2, 2));
    }
}
