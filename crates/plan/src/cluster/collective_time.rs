//! How long a collective takes, by latency and bandwidth, over the links of a node and the network between nodes.
//!
//! A ring moves `(n − 1)/n` of a tensor over every link in `n − 1` steps, and an all-reduce is two rings. A tree moves it up
//! and down once, in as many steps as the logarithm of the nodes, at a lower rate. The library picks whichever is faster;
//! gathers and scatters have rings only.
//!
//! Source: the cost model in NCCL's `src/graph/tuning.cc` (steps, latencies, tree and ring); Thakur, Rabenseifner and Gropp
//! 2005 (ring and tree).

use super::constants::rules;
use super::topology::Span;

/// What a group of ranks does together.
///
/// `bytes` of a collective is that of the whole tensor: what each rank holds before an all-reduce or a reduce-scatter, and
/// behind an all-gather; what one rank sends to all others together in an all-to-all; the message of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Collective {
    /// Every rank ends with the sum.
    AllReduce,
    /// Every rank ends with all parts.
    AllGather,
    /// Every rank ends with its part of the sum.
    ReduceScatter,
    /// Every rank ends with what all others had for it.
    AllToAll,
    /// Every rank ends with what one had.
    Broadcast,
    /// One rank ends with what another had.
    Send,
}

/// The links between the devices of a node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NodeLinks {
    /// Bytes per second and direction of a device, as rings reach it.
    pub ring: f64,
    /// Bytes per second on which an all-reduce inside a node is reckoned; above `ring` where switches add.
    pub reduce: f64,
    /// Bytes per second that a device takes part in a tree over nodes with: up and down each count.
    pub tree: f64,
    /// Seconds of one step.
    pub step: f64,
    /// Seconds before the first step.
    pub start: f64,
}

/// The network between nodes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Network {
    /// Bytes per second and direction of the network card of one device, as rings reach it.
    pub ring: f64,
    /// Seconds of one step of a ring.
    pub step: f64,
    /// Seconds of one step of a tree.
    pub tree_step: f64,
}

/// What devices talk over.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fabric {
    /// Devices of a node.
    pub per_node: u64,
    /// Inside a node.
    pub node: NodeLinks,
    /// Between nodes.
    pub network: Network,
    /// By how much a network is slower than it should be.
    pub late: Late,
}

/// Seconds by which every step of a ring over nodes is late.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Late {
    /// Of a gather or a scatter.
    pub gather: f64,
    /// Of an all-reduce.
    pub reduce: f64,
}

/// A bandwidth that somebody measured: of the bus, as `nccl-tests` defines it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BusBandwidth {
    /// Of an all-reduce, bytes per second.
    pub all_reduce: f64,
    /// Of an all-gather, bytes per second.
    pub all_gather: f64,
    /// Bytes of the tensor.
    pub bytes: f64,
}

const MIB: f64 = 1024.0 * 1024.0;

impl Fabric {
    /// Seconds of a collective of `bytes` over a group; see [`Collective`] for what `bytes` counts.
    pub fn seconds(&self, collective: Collective, bytes: f64, span: Span) -> f64 {
        if span.ranks <= 1 || bytes <= 0.0 {
            return 0.0;
        }
        if span.inside() { self.inside(collective, bytes, span) } else { self.across(collective, bytes, span) }
    }

    fn inside(&self, collective: Collective, bytes: f64, span: Span) -> f64 {
        let link = self.node;
        let n = span.ranks as f64;
        let part = bytes * (n - 1.0) / n;
        link.start
            + match collective {
                Collective::AllReduce => 2.0 * (n - 1.0) * link.step + 2.0 * part / link.reduce,
                Collective::AllGather | Collective::ReduceScatter => (n - 1.0) * link.step + part / link.ring,
                Collective::AllToAll => link.step + part / link.ring,
                Collective::Broadcast => (n - 1.0) * link.step + bytes / link.ring,
                Collective::Send => link.step + bytes / link.ring,
            }
    }

    fn across(&self, collective: Collective, bytes: f64, span: Span) -> f64 {
        let net = self.network;
        let n = span.ranks as f64;
        let part = bytes * (n - 1.0) / n;
        // Network cards that the ranks of this group have to themselves on a node.
        let cards = (span.local as f64).min(self.per_node as f64 / span.sharing as f64);
        let ring = self.node.ring.min(net.ring * cards);
        self.node.start
            + match collective {
                Collective::AllReduce => {
                    let ring = 2.0 * (n - 1.0) * net.step + 2.0 * part / ring;
                    ring.min(self.tree(bytes, span, cards))
                }
                Collective::AllGather | Collective::ReduceScatter => (n - 1.0) * net.step + part / ring,
                Collective::AllToAll => {
                    let elsewhere = bytes * (n - span.local as f64) / n;
                    let here = bytes * (span.local as f64 - 1.0) / n;
                    net.step + (elsewhere * span.local as f64 / (net.ring * cards)).max(here / self.node.ring)
                }
                Collective::Broadcast => (n - 1.0) * net.step + bytes / ring,
                Collective::Send => net.step + bytes / net.ring,
            }
    }

    /// Seconds of an all-reduce by a tree over nodes.
    fn tree(&self, bytes: f64, span: Span, cards: f64) -> f64 {
        let net = self.network;
        let (local, nodes) = (span.local as f64, span.nodes as f64);
        let latency = 2.0 * ((local - 1.0) * self.node.step + nodes.log2().ceil() * net.tree_step);
        let rate = (net.ring * cards).min(if span.local > 1 { self.node.tree } else { f64::INFINITY });
        latency + tree_bytes(bytes, span) / rate
    }

    /// Seconds by which a collective is late, on a network that is slower than it should be.
    ///
    /// Large all-reduces are rings there; small ones go by tree, each level of which is one message up and one down.
    pub fn lateness(&self, collective: Collective, bytes: f64, span: Span) -> f64 {
        let steps = span.ranks as f64 - 1.0;
        match collective {
            _ if span.inside() || self.late == Late::default() => 0.0,
            // A tree, however slow the network is.
            Collective::AllReduce if bytes < rules().get("tree_below_mib") * MIB => {
                2.0 * (span.nodes as f64).log2().ceil() * self.late.gather
            }
            Collective::AllReduce => 2.0 * steps * self.late.reduce,
            Collective::AllGather | Collective::ReduceScatter | Collective::Broadcast => steps * self.late.gather,
            Collective::AllToAll | Collective::Send => self.late.gather,
        }
    }

    /// The same fabric as it was when bandwidths were measured over a group: the measured collectives take as long as they
    /// did, unless they were faster than this fabric is.
    ///
    /// Inside a node that is a matter of rates. Networks are slow by messages, not by bytes, as far as published jobs show: at
    /// twice the ranks a gather of the same bytes takes twice as long.
    #[must_use]
    pub fn as_measured(&self, measured: BusBandwidth, span: Span) -> Self {
        let mut fabric = *self;
        let n = span.ranks as f64;
        if span.ranks <= 1 {
            return fabric;
        }
        let part = measured.bytes * (n - 1.0) / n;
        let (gather, reduce) = (part / measured.all_gather, 2.0 * part / measured.all_reduce);
        if span.inside() {
            let rate = |moved: f64, seconds: f64, steps: f64| {
                let latency = self.node.start + steps * self.node.step;
                moved / (seconds - latency).max(seconds / 2.0)
            };
            fabric.node.reduce = rate(2.0 * part, reduce, 2.0 * (n - 1.0));
            fabric.node.ring = rate(part, gather, n - 1.0);
        } else {
            let late = |collective, seconds: f64, steps: f64| {
                ((seconds - self.seconds(collective, measured.bytes, span)) / steps).max(0.0)
            };
            fabric.late = Late {
                gather: late(Collective::AllGather, gather, n - 1.0),
                reduce: late(Collective::AllReduce, reduce, 2.0 * (n - 1.0)),
            };
        }
        fabric
    }
}

/// Bytes that a tree moves over the cards of a node in each direction: up and down, but two nodes exchange what they have.
fn tree_bytes(bytes: f64, span: Span) -> f64 {
    if span.nodes == 2 { bytes } else { 2.0 * bytes }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FABRIC: Fabric = Fabric {
        per_node: 8,
        node: NodeLinks { ring: 200e9, reduce: 400e9, tree: 150e9, step: 3e-6, start: 10e-6 },
        network: Network { ring: 40e9, step: 20e-6, tree_step: 30e-6 },
        late: Late { gather: 0.0, reduce: 0.0 },
    };

    /// Seconds of a ring all-gather, by moving every block from neighbour to neighbour, step by step.
    fn ring_by_steps(ranks: usize, bytes: f64, rate: f64, step: f64) -> f64 {
        let mut has: Vec<Vec<usize>> = (0..ranks).map(|rank| vec![rank]).collect();
        let mut seconds = 0.0;
        while has.iter().any(|blocks| blocks.len() < ranks) {
            let sent: Vec<usize> = has.iter().map(|blocks| blocks[blocks.len() - 1]).collect();
            for rank in 0..ranks {
                has[(rank + 1) % ranks].push(sent[rank]);
            }
            seconds += step + bytes / ranks as f64 / rate;
        }
        seconds
    }

    #[test]
    fn rings_take_as_long_as_their_steps() {
        for (ranks, bytes) in [(2, 1e6), (4, 3e8), (8, 1e9)] {
            let span = Span::of(ranks, 1, 8, 8);
            let expected = 10e-6 + ring_by_steps(ranks as usize, bytes, 200e9, 3e-6);
            let gather = FABRIC.seconds(Collective::AllGather, bytes, span);
            assert!((gather / expected - 1.0).abs() < 1e-12, "{ranks}: {gather} {expected}");
            assert_eq!(gather, FABRIC.seconds(Collective::ReduceScatter, bytes, span));
        }
        // Sixteen ranks on two nodes: eight network cards of 40 GB/s carry more than a device's 200 GB/s.
        let span = Span::of(16, 1, 16, 8);
        let expected = 10e-6 + ring_by_steps(16, 1e9, 200e9, 20e-6);
        assert!((FABRIC.seconds(Collective::AllGather, 1e9, span) / expected - 1.0).abs() < 1e-12);
    }

    #[test]
    fn groups_of_one_rank_a_node_have_one_card_each() {
        // Eight groups over four nodes: each moves 3/4 of 1 GB over its own card of 40 GB/s.
        let span = Span::of(4, 8, 32, 8);
        assert_eq!((span.local, span.sharing), (1, 8));
        let expected = 10e-6 + 3.0 * 20e-6 + 0.75 * 1e9 / 40e9;
        assert!((FABRIC.seconds(Collective::ReduceScatter, 1e9, span) - expected).abs() < 1e-12);
    }

    #[test]
    fn an_all_to_all_over_nodes_sends_the_part_of_other_nodes_by_one_card_a_device() {
        // 32 ranks on 4 nodes: 24 of 32 parts go to other nodes.
        let span = Span::of(32, 1, 32, 8);
        let expected = 10e-6 + 20e-6 + 1e9 * 24.0 / 32.0 / 40e9;
        assert!((FABRIC.seconds(Collective::AllToAll, 1e9, span) - expected).abs() < 1e-12);
    }

    #[test]
    fn small_all_reduces_over_many_nodes_go_by_tree_and_large_ones_by_ring() {
        let span = Span::of(512, 1, 512, 8);
        let small = FABRIC.seconds(Collective::AllReduce, 1e6, span);
        // Seven steps inside, six levels of nodes, up and down.
        let expected = 10e-6 + 2.0 * (7.0 * 3e-6 + 6.0 * 30e-6) + 2e6 / 150e9;
        assert!((small - expected).abs() < 1e-9, "{small} {expected}");
        let mut fast_ring = FABRIC;
        fast_ring.network.step = 1e-6;
        fast_ring.node.ring = 400e9;
        let large = fast_ring.seconds(Collective::AllReduce, 1e12, span);
        assert!((large / (2.0 * 511.0 / 512.0 * 1e12 / 320e9) - 1.0).abs() < 1e-3, "{large}");
    }

    #[test]
    fn one_rank_and_no_bytes_take_no_time() {
        assert_eq!(FABRIC.seconds(Collective::AllReduce, 1e9, Span::ALONE), 0.0);
        assert_eq!(FABRIC.seconds(Collective::AllToAll, 0.0, Span::of(16, 1, 16, 8)), 0.0);
    }

    #[test]
    fn a_measured_fabric_takes_as_long_as_was_measured() {
        for (all_reduce, all_gather) in [(13e9, 6.5e9), (50e9, 27e9), (150e9, 120e9), (400e9, 190e9)] {
            let span = Span::of(64, 1, 64, 8);
            let bytes = 1_073_741_824.0;
            let fabric = FABRIC.as_measured(BusBandwidth { all_reduce, all_gather, bytes }, span);
            for (collective, moved, bus) in
                [(Collective::AllGather, 1.0, all_gather), (Collective::AllReduce, 2.0, all_reduce)]
            {
                let seconds = fabric.seconds(collective, bytes, span) + fabric.lateness(collective, bytes, span);
                let measured = moved * bytes * 63.0 / 64.0 / bus;
                // Faster than this network can be: then it stays what it is.
                let expected = measured.max(FABRIC.seconds(collective, bytes, span));
                assert!((seconds / expected - 1.0).abs() < 1e-9, "{collective:?} {bus}: {seconds} {expected}");
            }
        }
    }
}
