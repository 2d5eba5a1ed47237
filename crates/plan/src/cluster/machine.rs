//! The devices of a run, what they talk over, and how long a list of what one rank does takes there.

use std::ops::{Add, AddAssign, Mul};

use super::collective_time::{Collective, Fabric, Late, NodeLinks};
use super::constants::{Family, Rules};
use super::network::NetworkKind;
use super::op_time::{AttentionShape, Device, Piece};
use super::topology::{Axis, Degrees, Order, Span};
use crate::hardware::{Hardware, Link, Precision, Scope, Variant};

/// One exchange of a group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Talk {
    /// What.
    pub collective: Collective,
    /// Of how much; see [`Collective`].
    pub bytes: f64,
    /// With whom.
    pub axis: Axis,
}

/// Something that a rank does in a pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Item {
    /// An op.
    Op(Piece),
    /// An exchange that the device waits for.
    Talk(Talk),
    /// An exchange while an op runs that does not need it.
    Both(Piece, Talk),
}

/// Seconds of a pass or a part of it.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Cost {
    /// Until the device has done it.
    pub device: f64,
    /// Until the host has started it.
    pub host: f64,
}

impl Add for Cost {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { device: self.device + other.device, host: self.host + other.host }
    }
}

impl AddAssign for Cost {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Mul<f64> for Cost {
    type Output = Self;

    fn mul(self, times: f64) -> Self {
        Self { device: self.device * times, host: self.host * times }
    }
}

/// Devices of a run and what they talk over.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    /// One device.
    pub device: Device,
    /// Links and network.
    pub fabric: Fabric,
    /// How the run is divided.
    pub degrees: Degrees,
    /// How ranks are numbered.
    pub order: Order,
    /// Part of a device's processors that an exchange beside an op takes.
    pub taken: f64,
    /// Relative deviation of the speed of one node from the mean of all.
    pub jitter: f64,
    /// How sharply the slower of host and device decides.
    pub evenness: f64,
    /// Part of the network cards of a node that groups reach between passes where several of a group are on a node.
    pub mixed_cards: f64,
}

/// What a machine is made of.
#[derive(Clone, Copy, Debug)]
pub struct Parts<'a> {
    /// The accelerator.
    pub hardware: &'a Hardware,
    /// What a step reaches of it.
    pub family: &'a Family,
    /// Rules that belong to no accelerator.
    pub rules: &'a Rules,
    /// Arithmetic of the matrix products.
    pub precision: Precision,
    /// Devices of a node.
    pub per_node: u64,
    /// What is between nodes.
    pub network: &'a NetworkKind,
}

impl Parts<'_> {
    /// Dense FLOP per second of large matrix products: measured, or as much of the peak as was measured in `bf16`.
    fn products(&self) -> f64 {
        let measured =
            |precision| self.hardware.other_rate(Variant::Measured, precision).map(|rate| rate.tera() * 1e12);
        let peak = |precision| self.hardware.peak(precision).map(|peak| peak.rate.get());
        let share = match (measured(Precision::Bf16), peak(Precision::Bf16)) {
            (Some(rate), Some(peak)) => rate / peak,
            _ => self.rules.get("usual_of_peak"),
        };
        measured(self.precision).or_else(|| peak(self.precision).map(|peak| peak * share)).unwrap_or(0.0)
    }

    /// The link that joins most devices of a node: of the node, or else over the host. A device alone needs none.
    fn node_link(&self) -> Option<f64> {
        let joins = |link: &&Link| {
            link.scope == Scope::Node && link.devices.is_none_or(|most| u64::from(most) >= self.per_node)
        };
        let links = &self.hardware.links;
        let link = links.iter().find(joins).or_else(|| links.iter().find(|link| link.scope == Scope::Host));
        let alone = if self.per_node == 1 { Some(f64::INFINITY) } else { None };
        link.map(|link| link.per_direction.get()).or(alone)
    }

    /// The machine of a layout; nothing if the hardware table has no rate for this arithmetic, or no link.
    pub fn machine(&self, degrees: Degrees, order: Order) -> Option<Machine> {
        let get = |name: &str| self.family.get(name).unwrap_or(0.0);
        let products = self.products();
        let link = self.node_link()?;
        let ring = link * get("node_ring");
        (products > 0.0).then(|| Machine {
            device: Device {
                products: products * get("products"),
                attention: products * get("attention"),
                bandwidth: self.hardware.memory.bandwidth.get() * get("bandwidth"),
                processors: get("processors") as u64,
                kernel: get("kernel_us") * 1e-6,
                launch: get("launch_us") * 1e-6,
                fetch: self.rules.get("fetch"),
                ramp: self.rules.get("ramp"),
                shape: AttentionShape {
                    narrow: self.rules.get("attention_narrow"),
                    backward: self.rules.get("attention_backward"),
                    causal: self.rules.get("attention_causal"),
                    ramp: ["attention_ramp", "attention_ramp_backward"].map(|name| self.rules.get(name)),
                },
            },
            fabric: Fabric {
                per_node: self.per_node,
                node: NodeLinks {
                    ring,
                    reduce: self.family.get("node_reduce").map_or(ring, |part| link * part),
                    tree: get("node_tree_gb_s") * 1e9,
                    step: get("node_step_us") * 1e-6,
                    start: get("node_start_us") * 1e-6,
                },
                network: self.network.network(),
                late: Late::default(),
            },
            degrees,
            order,
            taken: self.rules.get("taken"),
            jitter: self.rules.get("jitter"),
            evenness: self.rules.get("evenness"),
            mixed_cards: 1.0,
        })
    }
}

impl Machine {
    /// Where the ranks of a group are.
    pub fn span(&self, axis: Axis) -> Span {
        self.degrees.span(axis, self.order, self.fabric.per_node)
    }

    /// Seconds of an exchange between passes.
    pub fn talk(&self, talk: &Talk) -> f64 {
        let span = self.span(talk.axis);
        let mut fabric = self.fabric;
        if span.local > 1 && talk.collective != Collective::Send {
            fabric.network.ring *= self.mixed_cards;
        }
        fabric.seconds(talk.collective, talk.bytes, span) + fabric.lateness(talk.collective, talk.bytes, span)
    }

    /// Seconds of an exchange in a pass, of device and of host: the host runs ahead, and it is the host that is late.
    ///
    /// A host that waits for messages of a pipeline over nodes is as late for exchanges inside a node, as far as published
    /// jobs show: where the ranks that share matrices are on one node, each of their exchanges is delayed by as much as one
    /// over nodes if stages are on several nodes, and not at all if they are not. The last rank learns of the end one message
    /// later.
    fn in_pass(&self, talk: &Talk) -> Cost {
        let group = self.span(talk.axis);
        let seconds = self.fabric.seconds(talk.collective, talk.bytes, group);
        if seconds <= 0.0 {
            return Cost::default();
        }
        let late = if !group.inside() {
            self.fabric.lateness(talk.collective, talk.bytes, group) + self.fabric.late.gather
        } else if !self.span(Axis::Pp).inside() {
            self.fabric.late.gather * group.ranks as f64
        } else {
            0.0
        };
        Cost { device: seconds, host: self.device.launch + late }
    }

    /// Seconds of a list of what a rank does.
    pub fn cost(&self, items: &[Item]) -> Cost {
        let mut cost = Cost::default();
        for item in items {
            match item {
                Item::Op(piece) => {
                    cost += Cost { device: self.device.seconds(piece), host: self.device.host(piece) };
                }
                Item::Talk(talk) => cost += self.in_pass(talk),
                Item::Both(piece, talk) => {
                    let (alone, talk) = (self.device.seconds(piece), self.in_pass(talk));
                    // Beside an exchange the op has fewer processors, for as long as that lasts.
                    let slowed = alone + self.taken * talk.device.min(alone / (1.0 - self.taken));
                    cost += Cost { device: slowed.max(talk.device), host: self.device.host(piece) + talk.host };
                }
            }
        }
        cost
    }

    /// Seconds that a pass takes: those of host or device, whichever is slower, and more where both are nearly as slow: then
    /// ops on which one waits alternate with ops on which the other does.
    pub fn seconds(&self, cost: Cost) -> f64 {
        let (more, less) = (cost.device.max(cost.host), cost.device.min(cost.host));
        if more > 0.0 { more * (1.0 + (less / more).powf(self.evenness)).powf(1.0 / self.evenness) } else { 0.0 }
    }

    /// By what a step of many nodes is longer than that of a mean one: all wait for the slowest.
    ///
    /// The largest of `n` independent normal deviations is `√(2 ln n)` of them, for large `n`.
    pub fn straggler(&self) -> f64 {
        let nodes = (self.degrees.ranks() as f64 / self.fabric.per_node as f64).max(1.0);
        1.0 + self.jitter * (2.0 * nodes.ln()).sqrt()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::cluster::{constants, network};
    use crate::hardware;

    /// Eight-device nodes of H100 on InfiniBand.
    pub(in crate::cluster) fn machine(degrees: Degrees) -> Machine {
        let hardware = hardware::find("h100-sxm").unwrap();
        let parts = Parts {
            hardware,
            family: Family::of(hardware),
            rules: constants::rules(),
            precision: Precision::Bf16,
            per_node: 8,
            network: network::find("infiniband-ndr").unwrap(),
        };
        parts.machine(degrees, Order::PipelineOutermost).unwrap()
    }

    const DEGREES: Degrees = Degrees { tp: 8, cp: 1, dp: 4, pp: 1, ep: 1, etp: 1 };

    #[test]
    fn an_exchange_beside_an_op_hides_but_slows_it() {
        let machine = machine(DEGREES);
        let piece = Piece::product(1, 8192, 8192, 8192, 2.0);
        let talk = Talk { collective: Collective::AllGather, bytes: 1e8, axis: Axis::Tp };
        let (op, exchange) = (machine.cost(&[Item::Op(piece)]), machine.cost(&[Item::Talk(talk)]));
        let both = machine.cost(&[Item::Both(piece, talk)]);
        assert!(exchange.device < op.device);
        assert!((both.device - (op.device + 0.1 * exchange.device)).abs() < 1e-12);
        assert!((both.host - op.host - exchange.host).abs() < 1e-15);
    }

    #[test]
    fn host_and_device_overlap_but_not_wholly() {
        let machine = machine(DEGREES);
        let seconds = |device: f64, host: f64| machine.seconds(Cost { device, host });
        assert!((seconds(1.0, 0.0) - 1.0).abs() < 1e-12);
        assert!((seconds(1.0, 1.0) - 2f64.powf(0.2)).abs() < 1e-12);
        assert!(seconds(1.0, 0.3) < 1.001 && seconds(0.3, 1.0) == seconds(1.0, 0.3));
    }

    #[test]
    fn one_node_waits_for_no_other() {
        assert!((machine(Degrees { dp: 1, ..DEGREES }).straggler() - 1.0).abs() < 1e-12);
        // Four nodes: one per cent of √(2 ln 4).
        assert!((machine(DEGREES).straggler() - 1.0 - 0.01 * 1.665_109).abs() < 1e-6);
    }

    #[test]
    fn a_late_network_delays_the_host_inside_a_node_only_if_the_pipeline_leaves_it() {
        let mut inside = machine(DEGREES);
        inside.fabric.late.gather = 1e-3;
        let mut outside = Machine { degrees: Degrees { pp: 2, ..DEGREES }, ..inside };
        outside.fabric.late.gather = 1e-3;
        let talk = Item::Talk(Talk { collective: Collective::AllGather, bytes: 1e6, axis: Axis::Tp });
        assert!((inside.cost(&[talk]).host - inside.device.launch).abs() < 1e-12);
        assert!((outside.cost(&[talk]).host - inside.device.launch - 8e-3).abs() < 1e-12);
    }

    #[test]
    fn an_arithmetic_without_a_measured_rate_reaches_as_much_of_its_peak() {
        let hardware = hardware::find("a100-sxm-80gb").unwrap();
        let network = network::find("infiniband-hdr").unwrap();
        let family = Family::of(hardware);
        let parts =
            Parts { hardware, family, rules: constants::rules(), precision: Precision::Fp16, per_node: 8, network };
        // fp16 and bf16 have the same peak, and only bf16 was measured.
        assert!((parts.products() - 271.2e12).abs() < 1e6);
        assert!(Parts { precision: Precision::Fp4, ..parts }.machine(DEGREES, Order::PipelineOutermost).is_none());
    }
}
