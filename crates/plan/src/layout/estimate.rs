//! A layout on a cluster: memory of its ranks and time of its step, from traces of the ranks.
//!
//! One of the ranks that hold the same is traced, the first in the pipeline: it holds most micro-batches.

use nn::step::StepOptions;
use units::{Bytes, Diagnostics, Flops, Mfu, Seconds};

use super::cut::Pieces;
use super::load::Load;
use super::rank::{RankMemory, RankTrace, trace};
use super::reserve::Reserved;
use super::terms::{Terms, host_room};
use super::{Layout, check};
use crate::cluster::network::NetworkKind;
use crate::cluster::step::{Rank, StepTime};
use crate::flops;
use crate::handover::Engine;
use crate::hardware::{self, Hardware};
use crate::ledger::Ledger;
use crate::model::Model;

/// Where a run is made.
#[derive(Clone, Copy, Debug)]
pub struct Cluster<'a> {
    /// The accelerator.
    pub hardware: &'a Hardware,
    /// Devices of a node.
    pub per_node: u64,
    /// What is between nodes.
    pub network: &'a NetworkKind,
}

/// What is divided, apart from how.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// The model.
    pub model: &'a Model,
    /// Length of sequences, precision, optimizer, profile: all that a layout does not say.
    pub step: StepOptions,
    /// Who runs it.
    pub engine: Option<Engine>,
    /// FLOP of the model for one token, causal.
    pub flop_per_token: Flops,
    /// Where.
    pub cluster: Cluster<'a>,
}

/// Memory and time of a layout.
#[derive(Clone, Debug, PartialEq)]
pub struct Estimate {
    /// Memory of the traced ranks, without what lies outside of the allocator.
    pub memory: Vec<RankMemory>,
    /// The fullest device by its tensors: its rank, and what lies outside.
    pub device: Bytes,
    /// What the allocators reserve, where they were simulated.
    pub reserved: Option<Reserved>,
    /// What lies outside of the allocators.
    pub outside: Bytes,
    /// Activations that the fullest rank keeps on its host.
    pub host: Bytes,
    /// The step, line by line.
    pub time: StepTime,
    /// Utilization of the model's own FLOP.
    pub mfu: Mfu,
    /// Tokens of a step.
    pub tokens: u64,
}

impl Estimate {
    /// Whether its devices have room for it, and their hosts.
    pub fn fits(&self, capacity: Bytes) -> bool {
        let refused = self.reserved.is_some_and(|reserved| reserved.refused);
        self.total() <= capacity && !refused && self.host <= host_room()
    }

    /// The fullest device in all: with its allocator where that was simulated, else by its tensors.
    pub fn total(&self) -> Bytes {
        let simulated = self.reserved.map(|reserved| Bytes(reserved.bytes.get().saturating_add(self.outside.get())));
        simulated.unwrap_or(self.device)
    }

    /// Seconds of a step.
    pub fn seconds(&self) -> Seconds {
        Seconds::new(self.time.seconds()).unwrap_or_default()
    }
}

impl<'a> Run<'a> {
    /// A run of a model on a cluster.
    ///
    /// # Errors
    /// If the model cannot be traced, or the hardware table has no rate for its arithmetic.
    pub fn new(
        model: &'a Model,
        step: StepOptions,
        engine: Option<Engine>,
        cluster: Cluster<'a>,
    ) -> Result<Self, Diagnostics> {
        // A layout is estimated by one step of its steady state.
        let step = step.steady();
        let one = StepOptions { batch: 1, grad_accum_steps: 1, recompute: nn::Recompute::None, ..step };
        let flop_per_token = flops::work(model, &one)?.flop_per_token();
        Ok(Self { model, step, engine, flop_per_token, cluster })
    }

    /// Arithmetic of the matrix products.
    pub fn arithmetic(&self) -> hardware::Precision {
        self.terms().arithmetic()
    }

    /// What the estimate of a layout takes of the run.
    pub(super) fn terms(&self) -> Terms<'a> {
        let spec = &self.model.spec;
        Terms {
            step: self.step,
            flop_per_token: self.flop_per_token.get() as f64,
            cluster: self.cluster,
            hidden_size: spec.hidden_size,
            vocab_size: spec.vocab_size,
            tied: spec.head.tied,
            engine: self.engine,
        }
    }

    /// Traces what layouts like this one share: all but the replicas and what is divided over them.
    ///
    /// # Errors
    /// As [`trace`].
    pub fn traces(&self, layout: &Layout) -> Result<Vec<RankTrace>, Diagnostics> {
        check(layout, &self.model.spec, self.step.seq_len, None)?;
        self.traces_of(layout, &self.step)
    }

    /// A rank of every kind of stage in such a step.
    pub(super) fn traces_of(&self, layout: &Layout, step: &StepOptions) -> Result<Vec<RankTrace>, Diagnostics> {
        let cut = Pieces::new(&self.model.spec).cut(layout);
        let places = cut.classes.iter().map(|class| class.place);
        trace(&self.model.spec, layout, step, self.engine, places)
    }

    /// What fills the fullest rank of a layout at its peak.
    pub(crate) fn fullest(&self, layout: &Layout, traces: &[RankTrace], estimate: &Estimate) -> Option<Ledger> {
        let (_, trace) = estimate.memory.iter().zip(traces).max_by_key(|(rank, _)| rank.peak_bytes)?;
        let (names, beside) = (&self.model.spec.names, Bytes(trace.beside));
        Some(Ledger::of(&trace.traced, &trace.options, layout.sharding(), names, beside))
    }

    /// Memory and time of a layout, given its traces or those of one that differs in its replicas alone.
    ///
    /// # Errors
    /// If the hardware table has no rate for the arithmetic.
    pub fn estimate(&self, layout: &Layout, traces: &[RankTrace]) -> Result<Estimate, Diagnostics> {
        let terms = self.terms();
        let machine = terms.machine(layout)?;
        let memory: Vec<RankMemory> = traces.iter().map(|trace| trace.memory(layout)).collect();
        let fullest = memory.iter().map(|rank| rank.peak_bytes).max().unwrap_or(0);
        let cut = Pieces::new(&self.model.spec).cut(layout);
        let loads: Vec<Load> = traces.iter().map(|trace| Load::of(layout, trace, &machine)).collect();
        let on_host = loads.iter().zip(traces).map(|(load, trace)| terms.on_host(layout, load, trace.in_flight)).max();
        let ranks = loads.iter().map(|load| terms.rank(layout, load, &machine));
        let ranks = ranks.collect::<Result<Vec<Rank>, _>>()?;
        let place = |class: &usize| {
            let place = cut.classes[*class].place;
            traces.iter().position(|trace| trace.place == place).unwrap_or(0)
        };
        let step = terms.step(layout, cut.of.iter().map(|class| ranks[place(class)].clone()).collect());
        let time = step.time(&machine);
        let device = terms.device(layout, fullest);
        let outside = Bytes(device.get() - fullest);
        let (mfu, tokens) = (terms.mfu(layout, &time)?, terms.tokens(layout));
        Ok(Estimate { device, reserved: None, outside, memory, host: on_host.unwrap_or_default(), mfu, time, tokens })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::collective_time::Collective;
    use crate::cluster::machine::Talk;
    use crate::cluster::network;
    use crate::cluster::topology::Axis;
    use crate::layout::ContextParallel;
    use crate::presets;
    use nn::Profile;
    use nn::step::Precision;

    fn llama() -> Model {
        let (name, text) = presets::find("llama-3.1-8b").unwrap();
        Model::from_text(name, name, text.as_bytes(), &[], None).unwrap()
    }

    fn cluster(per_node: u64) -> Cluster<'static> {
        let (hardware, network) = (hardware::find("h100-sxm").unwrap(), network::find(network::USUAL).unwrap());
        Cluster { hardware, per_node, network }
    }

    /// Keys and values that go round leave the heads where they are: what attention makes is what the map behind it reads, where
    /// ranks that exchange heads hold both. Between nodes that takes longer than inside of one.
    #[test]
    fn keys_and_values_go_round() {
        let model = llama();
        let step = StepOptions::usual(32768, Profile::Fused, Precision::Bf16MasterFp32Grads);
        let of = |context, per_node| {
            let run = Run::new(&model, step, None, cluster(per_node)).unwrap();
            let layout = Layout { cp: 4, context, zero: 1, ..Layout::default() };
            run.estimate(&layout, &run.traces(&layout).unwrap()).unwrap()
        };
        let (ring, exchange) = (of(ContextParallel::Ring, 8), of(ContextParallel::AllToAll, 8));
        let activations = |one: &Estimate| one.memory[0].peak_by_role[tensor::Role::Activation as usize];
        // 32 blocks, 8,192 positions of a rank, a width of 4,096 in two bytes.
        assert_eq!(activations(&exchange) - activations(&ring), 32 * 8192 * 4096 * 2);
        let slow = of(ContextParallel::Ring, 1);
        assert_eq!(slow.memory, ring.memory);
        assert!(slow.time.passes > ring.time.passes, "{:?} {:?}", slow.time, ring.time);
    }

    /// States over 8 of 64 replicas: a device holds what one of 8 does; gradients are cut up inside of a node and an eighth of
    /// them is added up between nodes.
    #[test]
    fn states_over_some_of_the_replicas() {
        let model = llama();
        let step = StepOptions::usual(4096, Profile::Fused, Precision::Bf16MasterFp32Grads);
        let run = Run::new(&model, step, None, cluster(8)).unwrap();
        for zero in 1..=3 {
            let of = |dp, shard| {
                let layout = Layout { dp, zero, shard, ..Layout::default() };
                (run.estimate(&layout, &run.traces(&layout).unwrap()).unwrap(), run.terms().machine(&layout).unwrap())
            };
            let ((hybrid, machine), (node, _)) = (of(64, Some(8)), of(8, None));
            assert_eq!(hybrid.memory, node.memory, "zero {zero}");
            assert_eq!(of(64, Some(64)).0, of(64, None).0, "zero {zero}");
            let parameters = hybrid.memory[0].parameters as f64;
            let seconds = |collective, bytes, ranks, apart| {
                machine.talk(&Talk { collective, bytes, axis: Axis::Some { ranks, apart } })
            };
            let within = seconds(Collective::ReduceScatter, 4.0 * parameters, 8, 1);
            let between = seconds(Collective::AllReduce, 4.0 * parameters / 8.0, 8, 8);
            let close = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-9;
            if zero < 3 {
                assert!(close(hybrid.time.gradients, within + between), "zero {zero}: {:?}", hybrid.time);
                let back = seconds(Collective::AllGather, 2.0 * parameters, 8, 1);
                assert!(close(hybrid.time.parameters, back), "zero {zero}: {:?}", hybrid.time);
            } else {
                // In every pass inside of the node, as eight replicas alone do; between nodes beside the last pass.
                assert!(close(hybrid.time.passes, node.time.passes));
                assert!(hybrid.time.gradients > 0.0 && hybrid.time.gradients < between);
                assert_eq!(node.time.gradients, 0.0);
            }
        }
    }

    fn mixtral() -> Model {
        let text = r#"{"model_type": "mixtral", "hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 4,
            "num_attention_heads": 16, "num_key_value_heads": 8, "vocab_size": 4096, "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5, "num_local_experts": 8, "num_experts_per_tok": 2, "tie_word_embeddings": false}"#;
        Model::from_text("x", "x", text.as_bytes(), &[], None).unwrap()
    }

    /// Experts and all else over 8 of 32 replicas: a rank holds what one of 8 does, and parts are added up between nodes.
    #[test]
    fn states_of_experts_over_some_of_the_replicas() {
        let model = mixtral();
        let step = StepOptions::usual(4096, Profile::Fused, Precision::Bf16MasterFp32Grads);
        let run = Run::new(&model, step, None, cluster(8)).unwrap();
        for (zero, ep) in [(1, 1), (1, 4), (2, 8), (3, 4)] {
            let of = |dp, shard| {
                let layout = Layout { dp, ep, zero, shard, ..Layout::default() };
                run.estimate(&layout, &run.traces(&layout).unwrap()).unwrap()
            };
            let (hybrid, node, all) = (of(32, Some(8)), of(8, None), of(32, None));
            assert_eq!(hybrid.memory, node.memory, "zero {zero} ep {ep}");
            assert!(hybrid.time.gradients > node.time.gradients, "zero {zero} ep {ep}");
            assert!(all.memory[0].peak_bytes <= hybrid.memory[0].peak_bytes, "zero {zero} ep {ep}");
            assert_eq!(of(32, Some(32)), all, "zero {zero} ep {ep}");
        }
        let wrong = Layout { dp: 32, ep: 8, zero: 1, shard: Some(4), ..Layout::default() };
        let problems = run.traces(&wrong).unwrap_err().to_string();
        assert!(problems.contains("T0480") && problems.contains("shard: 8"), "{problems}");
    }

    /// Gradients cut up behind every backward pass: of four micro-batches three more exchanges, where ZeRO 1 has one in all.
    #[test]
    fn gradients_of_every_micro_batch_are_cut_up() {
        let model = llama();
        let step = StepOptions::usual(4096, Profile::Fused, Precision::Bf16MasterFp32Grads);
        let run = Run::new(&model, step, None, cluster(8)).unwrap();
        let of = |zero, grad_accum| {
            let layout = Layout { dp: 16, zero, grad_accum, ..Layout::default() };
            run.estimate(&layout, &run.traces(&layout).unwrap()).unwrap().time
        };
        let one = of(2, 1);
        assert_eq!(one, of(1, 1));
        let (cut, kept) = (of(2, 4), of(1, 4));
        assert_eq!(cut.gradients, kept.gradients);
        // The host is ahead by far, and hides nothing.
        let more = cut.passes - kept.passes;
        assert!((more / (3.0 * one.gradients) - 1.0).abs() < 0.01, "{more} {}", one.gradients);
    }

    /// An update on the host: 4 bytes of gradients and 2 of weights over the link, 12 of states read and written and those once more
    /// by processors that the devices of a node share.
    #[test]
    fn updates_on_the_host_take_their_time() {
        let model = llama();
        let step = StepOptions::usual(4096, Profile::Fused, Precision::Bf16MasterFp32Grads);
        let run = Run::new(&model, step, None, cluster(8)).unwrap();
        let of = |dp, optimizer| {
            let offload = nn::Offload { activations: false, optimizer };
            let layout = Layout { dp, zero: 1, offload, ..Layout::default() };
            run.estimate(&layout, &run.traces(&layout).unwrap()).unwrap()
        };
        for dp in [8, 16] {
            let (host, device) = (of(dp, true), of(dp, false));
            let each = device.memory[0].parameters as f64 / dp as f64;
            let (link, memory) = (64e9 * 0.87, 614e9 * 0.5);
            let expected = each * 6.0 / link + each * 8.0 * (24.0 + 6.0) / memory;
            assert!((host.time.optimizer / expected - 1.0).abs() < 1e-3, "{} {expected}", host.time.optimizer);
            assert!(host.time.optimizer > 10.0 * device.time.optimizer && host.device < device.device);
            assert!((host.host.get() as f64 / (each * 18.0) - 1.0).abs() < 1e-6, "{:?}", host.host);
            assert_eq!(host.time.passes, device.time.passes);
        }
    }

    /// An engine that exchanges beside passes waits for less of it, and no engine for more.
    #[test]
    fn exchanges_beside_passes_are_waited_for_less() {
        let (name, text) = presets::find("llama-3.1-8b").unwrap();
        let model = Model::from_text(name, name, text.as_bytes(), &[], None).unwrap();
        let cluster = Cluster {
            hardware: hardware::find("h100-sxm").unwrap(),
            per_node: 8,
            network: network::find(network::USUAL).unwrap(),
        };
        let step = StepOptions::usual(4096, Profile::Fused, Precision::Bf16MasterFp32Grads);
        let time = |engine, zero| {
            let run = Run::new(&model, step, engine, cluster).unwrap();
            let layout = Layout { dp: 16, zero, ..Layout::default() };
            run.estimate(&layout, &run.traces(&layout).unwrap()).unwrap().time
        };
        let behind = time(None, 1);
        let megatron = time(Some(Engine::Megatron), 1);
        assert!(megatron.gradients < 0.5 * behind.gradients && megatron.parameters < 0.5 * behind.parameters);
        let deepspeed = time(Some(Engine::DeepSpeed), 1);
        assert!(deepspeed.gradients < 0.5 * behind.gradients && deepspeed.parameters == behind.parameters);
        let nanotron = time(Some(Engine::Nanotron), 1);
        assert_eq!([nanotron.gradients, nanotron.parameters], [behind.gradients, behind.parameters]);
    }
}
