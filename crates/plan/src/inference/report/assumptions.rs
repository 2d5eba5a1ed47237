//! What an answer rests on.

use units::Bytes;

use super::Holding;
use crate::inference::subject::Subject;
use crate::inference::{Request, Room};
use crate::phrase;
use crate::quant::{Covers, Storage};
use crate::report::{Assumption, Cell, Origin, Phrase};

impl Request<'_> {
    pub(super) fn assumptions(&self, subject: &Subject, kept: Option<&Holding<'_>>) -> Vec<Assumption> {
        let origin = |given: bool| if given { Origin::Given } else { Origin::Default };
        let weights = match self.stated {
            Some(Ok(())) if !self.weights.given => Origin::File,
            _ => origin(self.weights.given),
        };
        let mut all = vec![
            Assumption::new("weights", "weights", self.weights.value.to_string(), weights)
                .why(self.weights_why())
                .flag("--weights"),
        ];
        if let Some(kept) = kept {
            let engine = "blocks and windows as vLLM charges them";
            all.extend([
                Assumption::new("kv_dtype", "kv dtype", kept.cache.format.name, origin(self.cache.given))
                    .flag("--kv-dtype"),
                Assumption::new("seq_len", "seq_len", self.seq_len.value, origin(self.seq_len.given)).flag("--seq-len"),
                Assumption::new("block_size", "block_size", self.block.value, origin(self.block.given))
                    .why(engine)
                    .flag("--block-size"),
                Assumption::new("prefill_chunk", "prefill chunk", self.chunk.value, origin(self.chunk.given))
                    .why("tokens of prompts read in one step (max_num_batched_tokens)")
                    .flag("--prefill-chunk"),
            ]);
        }
        if let Some(positions) = self.encoded() {
            let from = origin(self.encoder_len.given);
            let why =
                "keys and values of the encoder are made once for each sequence, and its pass is part of the prompt";
            all.push(Assumption::new("encoder_len", "encoder_len", positions, from).why(why).flag("--encoder-len"));
        }
        if kept.is_some_and(|kept| kept.cache.state_bytes(1) > 0) {
            let from = if self.state.given { Origin::Given } else { Origin::Default };
            let why = "of a recurrent state; positions of convolutions in 16 bits";
            let each = format!("{} B per element", self.state.value);
            all.push(Assumption::new("state", "states", each, from).why(why).flag("--state-dtype"));
        }
        if matches!(self.room, Room::Memory(_)) {
            let share = Cell::Number { value: self.utilization.value, decimals: 2 };
            all.extend([
                Assumption::new(
                    "gpu_memory_utilization",
                    "gpu_memory_utilization",
                    share,
                    origin(self.utilization.given),
                )
                .why("share of the memory that the engine takes")
                .flag("--gpu-memory-utilization"),
                Assumption::new("runtime_bytes", "runtime", self.runtime.value, origin(self.runtime.given))
                    .why("driver context and library buffers; captured graphs are not counted")
                    .flag("--runtime"),
            ]);
            if subject.passes.activation_bytes > 0 {
                let why = "of a chunk of a prompt, traced with fused kernels; not divided over devices";
                let bytes = Bytes(subject.passes.activation_bytes);
                all.push(
                    Assumption::new("activations", "activations", bytes, Origin::Derived)
                        .why(why)
                        .flag("--prefill-chunk"),
                );
            }
        }
        if let Some(fleet) = &self.fleet {
            let share = |value: f64| Cell::Number { value, decimals: 2 };
            let bound = |given: bool| if given { "" } else { "the bound: no kernel is faster" };
            all.extend([
                Assumption::new("prompt", "prompt", self.prompt.value, origin(self.prompt.given)).flag("--prompt"),
                Assumption::new("mfu", "MFU", share(self.mfu.value), origin(self.mfu.given))
                    .why(bound(self.mfu.given))
                    .flag("--mfu"),
                Assumption::new("mbu", "MBU", share(self.mbu.value), origin(self.mbu.given))
                    .why(bound(self.mbu.given))
                    .flag("--mbu"),
            ]);
            all.extend(fleet.assumptions().into_iter().filter(|one| one.id != "devices"));
            if self.tp.value > 1 {
                let why = match self.link() {
                    Some(rate) => {
                        phrase!["two sums over the devices in each block, over ", rate, ", not overlapped; no latency"]
                    }
                    None => phrase!["no link is known: time between devices is not counted"],
                };
                all.push(Assumption::new("tp", "tp", self.tp.value, origin(self.tp.given)).why(why).flag("--tp"));
            }
            if subject.weights.is_sparse() {
                let why = phrase!["each expert is as likely as the others; memory holds all ", subject.weights.total];
                all.push(Assumption::new("experts", "experts", "by chance", Origin::Derived).why(why));
            }
        }
        all
    }

    fn weights_why(&self) -> Phrase {
        match self.weights.value {
            Storage::Format(format) => {
                let rest = match format.covers {
                    Covers::All => "",
                    Covers::Blocks => "; embeddings, head, norms and biases in 16 bits",
                    Covers::Experts => "; all but experts in 16 bits",
                };
                let stated =
                    if !self.weights.given && self.stated == Some(Ok(())) { "stated by the config: " } else { "" };
                phrase![stated, format!("{:.4} bits each", format.bits()).replace(".0000", ""), rest]
            }
            Storage::PerParameter(_) => Phrase::default(),
        }
    }
}
