//! A published measurement of a step as a step of this model of time.
//!
//! What a framework does and a row does not state (which exchanges run beside products, when gradients are exchanged, how
//! blocks are dealt to stages) is said here, once for each source.

use units::BytesPerSecond;

use super::collective_time::{BusBandwidth, Collective};
use super::constants::{Family, rules};
use super::experts::{self, Experts, Stage};
use super::machine::{Cost, Item, Machine, Parts, Talk};
use super::network;
use super::op_time::Piece;
use super::shape::{Accumulation, Again, Part, Shape, Share, block, embedding, head};
use super::step::{Passes, Rank, Step, StepTime, Sync, Update};
use super::topology::{Axis, Degrees, Order, Span};
use crate::handover::Engine;
use crate::hardware::{self, Hardware, Precision};
use crate::layout::Schedule;
use crate::layout::engine::blocks_by_cost;
use crate::layout::overlap::{self, Exchange};

/// The framework that a source measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framework {
    /// nanotron, of the benchmarks behind the Ultra-Scale Playbook.
    Nanotron,
    /// Megatron-DeepSpeed, of the measurements of vTrain.
    MegatronDeepSpeed,
    /// Megatron-LM with unfused attention, of the paper on sequence parallelism.
    Megatron,
    /// Megatron-LM with Transformer Engine, of the measurements of `SimuMax`.
    MegatronTransformerEngine,
}

impl Framework {
    /// Name in `data/time/rules.toml`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nanotron => "nanotron",
            Self::MegatronDeepSpeed => "megatron-deepspeed",
            Self::Megatron | Self::MegatronTransformerEngine => "megatron",
        }
    }

    fn rule(self, name: &str) -> f64 {
        rules().of_framework(self.name(), name)
    }
}

/// A row of a table of measured steps.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// Its name.
    pub id: String,
    /// Its table and part.
    pub set: String,
    /// Whether constants may be fitted on it.
    pub fit: bool,
    /// The accelerator.
    pub hardware: &'static Hardware,
    /// Arithmetic of its matrix products.
    pub precision: Precision,
    /// The model.
    pub shape: Shape,
    /// Its experts, if it has any.
    pub experts: Option<Experts>,
    /// How it is divided.
    pub degrees: Degrees,
    /// Runs of blocks of a rank.
    pub virtual_stages: u64,
    /// What a rank does of it.
    pub share: Share,
    /// Micro-batches of a step.
    pub micro_batches: u64,
    /// Whether optimizer states are divided over replicas.
    pub zero: bool,
    /// Devices of a node.
    pub per_node: u64,
    /// Rate of the network card of a device, where there is a network.
    pub network: Option<BytesPerSecond>,
    /// What its job measured of its network.
    pub bus: Option<BusBandwidth>,
    /// Whether its network was slower than it should be.
    pub slow: bool,
    /// Who ran it.
    pub framework: Framework,
    /// Seconds of the step.
    pub seconds: f64,
}

/// Parameters of a block: four maps of attention and of the feed-forward part, two norms, and what is alike.
const TENSORS: f64 = 7.0;

/// Bytes of the tensor that jobs of the Ultra-Scale Playbook measured bandwidths with.
const BUS_BYTES: f64 = 1_073_741_824.0;

/// Entry of the hardware table for a label of the tables. Those that say `A100` and no more have eight on a node with `NVLink`.
fn hardware_of(label: &str) -> Option<&'static Hardware> {
    let name = match label {
        "A100" => "a100-sxm-80gb",
        label if label.contains("A100") && label.contains("PCIe") => "a100-pcie-80gb",
        label => label,
    };
    hardware::find(name).ok()
}

/// Largest size and largest number of devices that a row may state.
const MOST: u64 = 1 << 24;
const MOST_RANKS: u64 = 1 << 17;

impl Measured {
    /// Reads a row, cell by column; nothing for one without a time, or of a device that is not known here, or of degrees
    /// that do not go together.
    pub fn read<'a>(cell: impl Fn(&str) -> Option<&'a str>) -> Option<Self> {
        let text = |name: &str| cell(name).unwrap_or("").trim();
        let count = |name: &str| text(name).parse::<u64>().ok().filter(|number| (1..=MOST).contains(number));
        let positive = |name: &str| text(name).parse::<f64>().ok().filter(|number| *number > 0.0);
        let seconds = positive("iteration_s")?;
        let set = text("set").to_owned();
        let framework = match set.split('_').next()? {
            "ultrascale" => Framework::Nanotron,
            "vtrain" => Framework::MegatronDeepSpeed,
            "calculon" => Framework::Megatron,
            "simumax" => Framework::MegatronTransformerEngine,
            _ => return None,
        };
        let tp = count("tp")?;
        // Frameworks divide the rows of the embedding evenly, in multiples of 128 where they are Megatron's.
        let padding = if framework == Framework::Nanotron { tp } else { 128 * tp };
        let shape = Shape {
            layers: count("n_layers")?,
            width: count("d_model")?,
            heads: count("n_heads")?,
            kv_heads: count("n_kv_heads")?,
            head: count("head_dim")?,
            inner: count("d_ff")?,
            llama: text("ffn_gated") == "yes",
            vocab: count("vocab")?.next_multiple_of(padding),
            tied: text("tied") == "yes",
            seq: count("seq_len")?,
        };
        let cp = count("cp").unwrap_or(1);
        let share = Share {
            micro_batch: count("micro_batch")?,
            tp,
            sp: text("sp") == "yes",
            cp,
            again: match text("recompute") {
                "full" => Again::Blocks,
                "selective" => Again::Attention,
                _ => Again::Nothing,
            },
            fused_attention: text("attention") == "fused",
            beside: framework != Framework::MegatronTransformerEngine,
            own_first: framework == Framework::Nanotron,
            plain: framework == Framework::Nanotron,
            accumulation: match framework {
                Framework::Nanotron => Accumulation::Wide,
                Framework::MegatronDeepSpeed => Accumulation::Narrow,
                Framework::Megatron | Framework::MegatronTransformerEngine => Accumulation::Fused,
            },
            // Logits are cast to 32 bits and passed over by the largest, the difference, the exponential, the sum and the
            // quotient; backward multiplies and casts back. A fused loss reads and writes them once each way.
            loss_bytes: if framework == Framework::MegatronTransformerEngine { [4.0, 4.0] } else { [38.0, 14.0] },
        };
        let experts = match count("n_experts") {
            None => None,
            Some(number) => Some(Experts {
                count: number,
                top_k: count("topk")?,
                width: count("d_ff_expert")?,
                shared: count("d_ff_shared")?,
                dense: count("n_dense_layers")?,
                q_rank: count("q_lora_rank")?,
                kv_rank: count("kv_lora_rank")?,
                nope: count("qk_nope")?,
                rope: count("qk_rope")?,
                value: count("v_head_dim")?,
            }),
        };
        let rate = |name: &str| positive(name).map(|rate| rate * 1e9);
        let bus = rate("ar_busbw_world_GBps").zip(rate("ag_busbw_world_GBps"));
        let row = Self {
            id: text("row_id").to_owned(),
            fit: text("split") == "fit",
            hardware: hardware_of(text("gpu"))?,
            precision: if framework == Framework::MegatronDeepSpeed { Precision::Fp16 } else { Precision::Bf16 },
            shape,
            experts,
            degrees: Degrees { tp, cp, dp: count("dp")?, pp: count("pp")?, ep: count("ep").unwrap_or(1), etp: 1 },
            virtual_stages: count("vp").unwrap_or(1),
            share,
            micro_batches: count("grad_accum")?,
            zero: text("zero") == "1",
            per_node: count("gpus_per_node").unwrap_or(8),
            network: rate("inter_node_GBps_per_gpu").and_then(|rate| BytesPerSecond::new(rate).ok()),
            bus: bus.map(|(all_reduce, all_gather)| BusBandwidth { all_reduce, all_gather, bytes: BUS_BYTES }),
            slow: text("notes").split(';').any(|note| note == "slow_fabric"),
            framework,
            seconds,
            set,
        };
        row.is_sound().then_some(row)
    }

    /// Whether its degrees go together and its sizes can be reckoned with.
    fn is_sound(&self) -> bool {
        let Degrees { tp, cp, dp, pp, ep, .. } = self.degrees;
        let product = |all: &[u64]| all.iter().fold(1u64, |product, one| product.saturating_mul(*one));
        let (shape, share) = (&self.shape, &self.share);
        let stages = product(&[pp, self.virtual_stages]);
        product(&[tp, cp, dp, pp]) <= MOST_RANKS
            && product(&[tp, cp, dp]).is_multiple_of(ep)
            && self.per_node <= 256
            && stages <= 1024
            && shape.layers <= 1024
            && (self.virtual_stages == 1 || self.micro_batches.is_multiple_of(pp))
            && shape.heads.is_multiple_of(tp)
            && (shape.inner.is_multiple_of(tp) && shape.seq.is_multiple_of(cp))
            && product(&[share.micro_batch, shape.seq]) <= 1 << 32
            && product(&[share.micro_batch, shape.heads]) <= 1 << 24
            && self.experts.is_none_or(|experts| {
                experts.count <= 4096 && experts.count.is_multiple_of(ep) && experts.top_k <= experts.count
            })
    }

    /// The devices that it ran on, with constants of a family: on the network of its source, as its job measured that where
    /// it was slower than it should be.
    ///
    /// Nothing if the hardware table has no rate for its arithmetic.
    pub fn machine(&self, family: &Family) -> Option<Machine> {
        let name = if self.framework == Framework::Nanotron { "efa-p5" } else { "infiniband-hdr" };
        let kind = network::find(name).ok()?;
        let kind = self.network.map_or_else(|| kind.clone(), |rate| kind.at(rate));
        let parts = Parts {
            hardware: self.hardware,
            family,
            rules: rules(),
            precision: self.precision,
            per_node: self.per_node,
            network: &kind,
        };
        let mut machine = parts.machine(self.degrees, Order::PipelineOutermost)?;
        machine.mixed_cards = self.framework.rule("mixed_cards");
        if let Some(bus) = self.bus.filter(|_| self.slow) {
            let ranks = self.degrees.ranks();
            machine.fabric = machine.fabric.as_measured(bus, Span::of(ranks, 1, ranks, self.per_node));
        }
        Some(machine)
    }

    /// Seconds of its step, line by line.
    pub fn predict(&self, family: &Family) -> Option<StepTime> {
        let machine = self.machine(family)?;
        Some(self.step(&machine)?.time(&machine))
    }

    /// Tokens of a step.
    pub fn tokens(&self) -> f64 {
        [self.degrees.dp, self.share.micro_batch, self.micro_batches, self.shape.seq].map(|n| n as f64).iter().product()
    }

    /// FLOP of a step: six for each parameter of a matrix product that a token goes through, and attention in full.
    pub fn model_flop(&self) -> Option<f64> {
        let shape = &self.shape;
        let (products, head) = match &self.experts {
            None => (shape.layers as f64 * shape.block_parameters() + shape.embedding_parameters(), shape.head as f64),
            Some(experts) => {
                let (_, active) = experts::totals(shape, experts)?;
                let head = (experts.nope + experts.rope + experts.value) as f64 / 2.0;
                (active - shape.embedding_parameters(), head)
            }
        };
        let attention = 12.0 * (shape.layers * shape.heads * shape.seq) as f64 * head;
        Some(self.tokens() * (6.0 * products + attention))
    }

    /// Parameters that a token goes through, without norms and biases where there are no experts.
    pub fn parameters(&self) -> Option<f64> {
        if let Some(experts) = &self.experts {
            return experts::totals(&self.shape, experts).map(|(_, active)| active);
        }
        let copies = if self.shape.tied { 1.0 } else { 2.0 };
        Some(self.shape.layers as f64 * self.shape.block_parameters() + copies * self.shape.embedding_parameters())
    }

    /// Blocks of each stage in the order of the model.
    fn blocks(&self) -> Vec<u64> {
        let stages = (self.degrees.pp * self.virtual_stages) as usize;
        if self.framework != Framework::Nanotron {
            let (layers, stages) = (self.shape.layers, stages as u64);
            return (0..stages).map(|stage| layers / stages + u64::from(stage < layers % stages)).collect();
        }
        let (width, layers) = (self.shape.width, self.shape.layers as usize);
        let block = 4 * width * width + 3 * width * self.shape.inner;
        blocks_by_cost(std::iter::repeat_n(block, layers), self.shape.vocab * width, stages as u64)
    }

    /// What each rank of the pipeline does: blocks, embedding, head, and once in a step its update.
    ///
    /// Nothing where the layout cannot divide the model.
    pub fn step(&self, machine: &Machine) -> Option<Step> {
        let blocks = self.blocks();
        let pp = self.degrees.pp as usize;
        let stages = match &self.experts {
            None => self.ops_of_stages(&blocks, machine),
            Some(experts) => experts::stages(&self.shape, experts, &self.share, self.degrees.ep, &blocks, machine)?,
        };
        let ranks = (0..pp)
            .map(|rank| {
                let held = || stages.iter().skip(rank).step_by(pp);
                let sum = |of: fn(&Stage) -> f64| held().map(of).sum::<f64>();
                let (parameters, experts) = (sum(|stage| stage.parameters), sum(|stage| stage.experts));
                let both_ends = self.shape.tied && pp > 1 && (rank == 0 || rank + 1 == pp);
                Rank {
                    stages: held().map(|stage| stage.passes).collect(),
                    update: self.update(parameters, experts, blocks.iter().skip(rank).step_by(pp).sum(), both_ends),
                }
            })
            .collect();
        let tokens = self.share.micro_batch * self.shape.seq / self.share.cp;
        Some(Step {
            ranks,
            schedule: if self.virtual_stages > 1 { Schedule::Interleaved } else { Schedule::OneFOneB },
            micro_batches: self.micro_batches,
            boundary: tokens as f64 * self.shape.width as f64 * 2.0 / self.share.tp as f64,
            waits: self.framework.rule("messages_wait") > 0.0,
        })
    }

    /// The stages of a model without experts, in closed form.
    fn ops_of_stages(&self, blocks: &[u64], machine: &Machine) -> Vec<Stage> {
        let (shape, share) = (&self.shape, &self.share);
        let passes = |part: &Part| Passes {
            forward: machine.cost(&part.forward),
            backward: machine.cost(&part.backward),
            weights: machine.cost(&part.weights),
        };
        let (one, first, last) =
            (passes(&block(shape, share)), passes(&embedding(shape, share)), passes(&head(shape, share)));
        let last = times(&last, self.framework.rule("head"));
        let (first, last) =
            if self.framework.rule("ends_wait") > 0.0 { (in_turn(&first), in_turn(&last)) } else { (first, last) };
        let table = shape.embedding_parameters();
        let ends = blocks.len() - 1;
        let stage = |(stage, count): (usize, &u64)| {
            let mut held = Stage {
                passes: times(&one, *count as f64),
                parameters: *count as f64 * shape.block_parameters(),
                experts: 0.0,
            };
            if stage == 0 {
                held.passes = plus(&held.passes, &first);
                held.parameters += table;
            }
            if stage == ends {
                held.passes = plus(&held.passes, &last);
                held.parameters += if shape.tied && ends == 0 { 0.0 } else { table };
            }
            Stage { parameters: held.parameters / share.tp as f64, ..held }
        };
        blocks.iter().enumerate().map(stage).collect()
    }

    /// What a rank of `parameters`, and of `experts` of them in experts of its own, does once in a step.
    fn update(&self, parameters: f64, experts: f64, blocks: u64, both_ends: bool) -> Update {
        let replicas = (self.degrees.dp * self.degrees.cp) as f64;
        let talk = |collective, bytes| Talk { collective, bytes, axis: Axis::Replicas };
        let mut gradients = Vec::new();
        let mut gathered = Vec::new();
        let mut sync = Sync::Behind;
        let mut slices = 0.0;
        let divided = if self.zero { replicas } else { 1.0 };
        match self.framework {
            Framework::Nanotron => {
                gradients.push(talk(Collective::AllReduce, 4.0 * parameters));
                if self.zero {
                    gathered.push(talk(Collective::AllGather, 2.0 * parameters));
                    let slice = self.framework.rule("slice_ops");
                    slices = TENSORS * blocks as f64 * replicas * slice;
                } else {
                    let replicas = self.degrees.dp * self.degrees.cp;
                    sync = overlap::sync(Some(Engine::Nanotron), 0, Exchange::Gradients, replicas, 4);
                }
            }
            Framework::MegatronDeepSpeed | Framework::Megatron => {
                gradients.push(talk(Collective::AllReduce, 2.0 * parameters));
            }
            Framework::MegatronTransformerEngine => {
                gradients.push(talk(Collective::ReduceScatter, 4.0 * parameters));
                gathered.push(talk(Collective::AllGather, 2.0 * parameters));
                let of_experts = |collective, bytes| Talk { collective, bytes, axis: Axis::ExpertDp };
                gradients.push(of_experts(Collective::ReduceScatter, 4.0 * experts));
                gathered.push(of_experts(Collective::AllGather, 2.0 * experts));
            }
        }
        if both_ends {
            // Both copies of the embedding get the sum of their gradients.
            let bytes = 2.0 * self.shape.embedding_parameters() / self.share.tp as f64;
            gradients.push(Talk { collective: Collective::Send, bytes, axis: Axis::Pp });
        }
        // Gradient norm; then parameter, gradient and two states are read, the first and the states written, and the 16-bit
        // copy; the buffer of gradients is cleared.
        let copies = if self.zero { replicas / self.degrees.ep as f64 } else { 1.0 };
        let bytes = 8.0 * (parameters + experts) + (16.0 + 12.0 + 2.0) * (parameters / divided + experts / copies);
        let tensors = TENSORS * blocks as f64 + 2.0;
        let optimizer = vec![Item::Op(Piece { launches: tensors + slices, ..Piece::moves(bytes) })];
        Update { gradients, sync, gather: Sync::Behind, optimizer, parameters: gathered }
    }
}

/// Passes of which host and device each do their part while the other waits.
fn in_turn(passes: &Passes) -> Passes {
    let both = |cost: Cost| Cost { device: cost.device + cost.host, host: cost.device + cost.host };
    Passes { forward: both(passes.forward), backward: both(passes.backward), weights: both(passes.weights) }
}

fn times(passes: &Passes, times: f64) -> Passes {
    Passes { forward: passes.forward * times, backward: passes.backward * times, weights: passes.weights * times }
}

fn plus(a: &Passes, b: &Passes) -> Passes {
    Passes { forward: a.forward + b.forward, backward: a.backward + b.backward, weights: a.weights + b.weights }
}

/// Reads a table of measured steps: a line of column names, then rows of plain cells. Rows that [`Measured::read`] cannot
/// take are passed over.
pub fn table(text: &str) -> Vec<Measured> {
    let mut lines = text.lines();
    let columns: Vec<&str> = lines.next().unwrap_or("").split(',').collect();
    lines
        .filter_map(|line| {
            let cells: Vec<&str> = line.split(',').collect();
            Measured::read(|name| cells.get(columns.iter().position(|column| *column == name)?).copied())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: [(&str, &str); 21] = [
        ("row_id", "x"),
        ("set", "ultrascale"),
        ("gpu", "H100 SXM 80GB"),
        ("n_layers", "16"),
        ("d_model", "2048"),
        ("n_heads", "32"),
        ("n_kv_heads", "32"),
        ("head_dim", "64"),
        ("d_ff", "8192"),
        ("ffn_gated", "yes"),
        ("vocab", "131072"),
        ("tied", "yes"),
        ("seq_len", "4096"),
        ("tp", "1"),
        ("pp", "1"),
        ("dp", "8"),
        ("zero", "1"),
        ("micro_batch", "1"),
        ("grad_accum", "32"),
        ("attention", "fused"),
        ("iteration_s", "3.5"),
    ];

    fn row(cells: &[(&str, &str)]) -> Measured {
        let find = |name: &str| cells.iter().chain(&USUAL).find(|(key, _)| *key == name).map(|(_, value)| *value);
        Measured::read(find).unwrap()
    }

    #[test]
    fn blocks_of_the_first_stage_are_those_that_jobs_logged() {
        let llama8 = [("n_layers", "32"), ("d_model", "4096"), ("d_ff", "14336"), ("tied", "no")];
        let llama80 = [("n_layers", "80"), ("d_model", "8192"), ("d_ff", "28672"), ("tied", "no")];
        let llama3 = [("n_layers", "28"), ("d_model", "3072"), ("d_ff", "8192")];
        for (model, pp, first) in [
            (&[][..], "8", 3),
            (&llama3[..], "2", 16),
            (&llama3[..], "4", 8),
            (&llama3[..], "16", 2),
            (&llama8[..], "2", 18),
            (&llama8[..], "8", 5),
            (&llama80[..], "4", 21),
            (&llama80[..], "32", 3),
        ] {
            let blocks = row(&[model, &[("pp", pp)]].concat()).blocks();
            assert_eq!(blocks[0], first, "{model:?} {pp}");
            assert_eq!(blocks.iter().sum::<u64>(), row(model).shape.layers);
        }
    }

    #[test]
    fn parameters_are_those_of_the_source() {
        // 1.34 G: without norms, 16 blocks and one table.
        assert!((row(&[]).parameters().unwrap() / 1.342e9 - 1.0).abs() < 1e-3);
    }

    #[test]
    fn more_work_takes_longer_and_more_devices_less() {
        let seconds = |cells: &[(&str, &str)]| {
            let row = row(cells);
            row.predict(Family::of(row.hardware)).unwrap().seconds()
        };
        assert!(seconds(&[("grad_accum", "64")]) > 1.9 * seconds(&[]));
        assert!(seconds(&[("dp", "16"), ("grad_accum", "16")]) < 0.6 * seconds(&[]));
        // Tensor parallelism over two nodes is slower than inside one: 8 micro-batches at 2 replicas.
        let over = seconds(&[("tp", "16"), ("sp", "yes"), ("dp", "1"), ("grad_accum", "8")]);
        let inside = seconds(&[("tp", "8"), ("sp", "yes"), ("dp", "2"), ("grad_accum", "8")]);
        assert!(over > 1.5 * inside, "{over} {inside}");
    }

    #[test]
    fn what_host_and_device_do_in_turn_is_not_hidden() {
        let row = row(&[]);
        let machine = row.machine(Family::of(row.hardware)).unwrap();
        let seconds = |device: f64, host: f64, ends: Passes| machine.seconds(Cost { device, host } + ends.forward);
        let ends = Passes { forward: Cost { device: 0.2, host: 0.1 }, ..Passes::default() };
        for (device, host) in [(1.0, 0.1), (0.1, 1.0)] {
            assert!((seconds(device, host, in_turn(&ends)) - 1.3).abs() < 1e-3, "{device} {host}");
        }
        // Beside blocks that the host is slower with, what the device does at the ends would be hidden.
        assert!(seconds(0.1, 1.0, ends) < 1.101);
    }

    #[test]
    fn rows_that_mean_nothing_are_passed_over() {
        let usual = |cells: &[(&str, &str)]| {
            let find = |name: &str| cells.iter().chain(&USUAL).find(|(key, _)| *key == name).map(|(_, value)| *value);
            Measured::read(find).and_then(|row| row.predict(Family::of(row.hardware)))
        };
        assert!(usual(&[]).is_some());
        for name in
            ["tp", "pp", "dp", "micro_batch", "grad_accum", "n_layers", "d_model", "n_heads", "vocab", "seq_len"]
        {
            for value in ["0", "-1", "x", "", "99999999999999999999", "16777217"] {
                assert!(usual(&[(name, value)]).is_none(), "{name} {value}");
            }
            // The largest that is read is reckoned with or passed over, without a panic.
            let _ = usual(&[(name, "16777216")]);
        }
        let _ = usual(&[("pp", "16"), ("grad_accum", "16777216"), ("dp", "4096")]);
        assert!(usual(&[("pp", "1025")]).is_none() && usual(&[("tp", "3")]).is_none());
        // Stages without a block pass on what comes.
        assert!(usual(&[("pp", "20")]).is_some());
    }

    #[test]
    fn rows_that_say_too_little_are_passed_over() {
        assert!(table("row_id,set\nx,ultrascale\n").is_empty());
        assert!(table("").is_empty());
    }
}
