//! How long prompts and tokens take: the longest of computing, reading memory and sending between devices.

use nn::ModelSpec;
use nn::reading::{self, Read, Reading};
use nn::spec::{LayerSpec, Projection};
use tensor::meter::MemoryChange;
use tensor::{DType, Role, Trace};
use units::{BytesPerSecond, Diagnostic, Diagnostics, FlopPerByte, FlopPerSecond, Seconds};

use super::cache::Cache;
use super::weights::Weights;

/// The two passes of a model, traced for one sequence.
#[derive(Clone, Debug)]
pub struct Passes {
    /// FLOP of reading a prompt; logits of its last token.
    pub prompt_flop: u128,
    /// FLOP of one token more at the full context.
    pub token_flop: u128,
    /// Most bytes of activations while a chunk of prompts is read.
    pub activation_bytes: u64,
    /// Width of the residual stream.
    pub hidden_size: u64,
    /// Blocks.
    pub layers: u64,
}

impl Passes {
    /// Traces them: a prompt of `prompt` tokens, a token at a context of `context`, a chunk of `chunk` tokens; with the prompt,
    /// `encoded` positions of an encoder.
    ///
    /// # Errors
    /// `T0305`, `T0306` for sizes that cannot be counted or have no positions.
    pub fn of(spec: &ModelSpec, [prompt, context, chunk]: [u64; 3], encoded: Option<u64>) -> Result<Self, Diagnostics> {
        let dtype = DType::BF16;
        let read = |past, new| read(spec, &Reading { batch: 1, past, new, encoded, dtype });
        let whole = read(0, prompt)?;
        let token = read(context.saturating_sub(1), 1)?;
        // The last chunk sees the most.
        let chunk = chunk.min(prompt);
        let activation_bytes =
            if chunk == prompt { peak(&whole.trace) } else { peak(&read(prompt - chunk, chunk)?.trace) };
        let flop = |read: &Read| read.trace.cost(|_| true).matmul;
        let absorbed: i128 = spec.layers.iter().map(|layer| absorbed(layer, context)).sum();
        Ok(Self {
            prompt_flop: flop(&whole),
            token_flop: u128::try_from(i128::try_from(flop(&token)).unwrap_or(i128::MAX).saturating_add(absorbed))
                .unwrap_or(0),
            activation_bytes,
            hidden_size: spec.hidden_size,
            layers: spec.layers.len() as u64,
        })
    }

    /// Those of a bare count: two FLOP for each parameter of a token, and nothing known of attention.
    pub fn bare(weights: &Weights, prompt: u64) -> Self {
        let token = 2 * u128::from(weights.active.get());
        Self {
            prompt_flop: token * u128::from(prompt),
            token_flop: token,
            activation_bytes: 0,
            hidden_size: 0,
            layers: 0,
        }
    }
}

fn read(spec: &ModelSpec, reading: &Reading) -> Result<Read, Diagnostics> {
    reading::trace(spec, reading).map_err(|error| {
        let problem = Diagnostic::error("T0306", error.to_string());
        problem.help("a smaller --seq-len or --prompt").into()
    })
}

/// Most bytes that live at the same time while tokens are read, without parameters and buffers, of which the cache is one.
fn peak(trace: &Trace) -> u64 {
    let start = trace.marks.iter().find(|mark| mark.name == reading::READ).map_or(0, |mark| mark.memory as usize);
    let mut live = vec![0_u64; trace.storages.len()];
    let (mut now, mut most) = (0_u64, 0_u64);
    for (i, event) in trace.memory.iter().enumerate() {
        let at = event.storage.0 as usize;
        now -= std::mem::take(&mut live[at]);
        if let MemoryChange::Alloc(role) | MemoryChange::Role(role) = event.change
            && !matches!(role, Role::Parameter | Role::Buffer)
        {
            live[at] = trace.storages[at].bytes;
            now += live[at];
        }
        if i >= start {
            most = most.max(now);
        }
    }
    most
}

/// What one token costs more where its attention works on compressed keys and values, as engines do, instead of on those of
/// each head, as the trace does; and the scores of an indexer over all keys, of which the trace has those of new tokens.
///
/// Projections into the compressed space cost what expanding one token does, so only scores and values differ.
fn absorbed(layer: &LayerSpec, context: u64) -> i128 {
    own_absorbed(layer, context) + layer.then().map_or(0, |then| absorbed(then, context))
}

fn own_absorbed(layer: &LayerSpec, context: u64) -> i128 {
    let Some(attention) = layer.attention() else { return 0 };
    let Projection::Latent(latent) = &attention.projection else { return 0 };
    let pairs = |context: u64, width: u64| i128::from(2 * attention.heads) * i128::from(context) * i128::from(width);
    let seen = latent.indexer.as_ref().map_or(context, |indexer| indexer.top_k.min(context));
    let compressed = pairs(seen, 2 * latent.kv_rank + latent.rope_dim);
    let expanded = pairs(context, attention.head_dim + attention.value_dim);
    let scores = |indexer: &nn::spec::IndexerSpec| {
        i128::from(2 * indexer.heads) * i128::from(context.saturating_sub(1)) * i128::from(indexer.head_dim + 1)
    };
    compressed - expanded + latent.indexer.as_ref().map_or(0, scores)
}

/// What the devices reach.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ceilings {
    /// Arithmetic of one device.
    pub compute: FlopPerSecond,
    /// Memory of one device.
    pub memory: BytesPerSecond,
    /// The link between devices, one direction; `None` if there is one device, or nobody knows.
    pub link: Option<BytesPerSecond>,
    /// Devices that share the matrices.
    pub tp: u64,
}

/// The time of one pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pass {
    /// FLOP of all devices.
    pub flop: f64,
    /// Bytes of one device: weights.
    pub weight_bytes: f64,
    /// Bytes of one device: keys, values and states.
    pub cache_bytes: f64,
    /// Time if only computing took any.
    pub compute: Seconds,
    /// Time if only memory took any.
    pub memory: Seconds,
    /// Time between devices, which nothing hides.
    pub link: Seconds,
}

impl Pass {
    /// Its time.
    pub fn time(&self) -> Seconds {
        self.compute.max(self.memory) + self.link
    }

    /// What decides it.
    pub fn bound(&self) -> &'static str {
        match (self.link > self.compute.max(self.memory), self.compute >= self.memory) {
            (true, _) => "link",
            (_, true) => "compute",
            (_, false) => "memory",
        }
    }

    /// FLOP of a byte that is read, on one device.
    pub fn intensity(&self, tp: u64) -> FlopPerByte {
        let bytes = self.weight_bytes + self.cache_bytes;
        FlopPerByte::new(self.flop / tp.max(1) as f64 / bytes.max(1.0)).unwrap_or(FlopPerByte::ZERO)
    }
}

/// The passes of a model on given devices.
#[derive(Clone, Debug)]
pub struct Roofline<'a> {
    /// FLOP.
    pub passes: &'a Passes,
    /// Bytes of weights.
    pub weights: &'a Weights,
    /// Bytes of the cache, if it is known.
    pub cache: Option<&'a Cache>,
    /// Rates.
    pub ceilings: Ceilings,
}

impl Roofline<'_> {
    /// Reading one prompt of `tokens`: weights once for each `chunk` of it.
    pub fn prefill(&self, tokens: u64, chunk: u64) -> Pass {
        let chunks = tokens.div_ceil(chunk.max(1)).max(1);
        let weights = self.weights.read_bytes(tokens.min(chunk)) * chunks as f64;
        let tp = self.ceilings.tp;
        // Written once; what came before is read by every later chunk.
        let cache = self.cache.map_or(0.0, |cache| {
            cache.sequence_bytes(tokens, tp).saturating_add(cache.prefill_read_bytes(chunk, chunks, tp)) as f64
        });
        self.pass(self.passes.prompt_flop as f64, weights, cache, tokens)
    }

    /// One token more for each of `sequences` that have read `context` tokens.
    pub fn decode(&self, sequences: u64, context: u64) -> Pass {
        let cache = self.cache.map_or(0.0, |cache| cache.read_bytes(context, self.ceilings.tp) as f64);
        let flop = self.passes.token_flop as f64 * sequences as f64;
        self.pass(flop, self.weights.read_bytes(sequences), cache * sequences as f64, sequences)
    }

    /// The fewest sequences at which computing a token takes longer than reading memory; `None` if that never comes.
    pub fn turning_point(&self, context: u64) -> Option<u64> {
        let computes = |sequences: u64| {
            let pass = self.decode(sequences, context);
            pass.compute >= pass.memory
        };
        let mut high = 1;
        while !computes(high) {
            high *= 2;
            if high > 1 << 30 {
                return None;
            }
        }
        let mut low = high / 2;
        while high - low > 1 {
            let middle = low.midpoint(high);
            if computes(middle) { high = middle } else { low = middle }
        }
        Some(high)
    }

    fn pass(&self, flop: f64, weight_bytes: f64, cache_bytes: f64, tokens: u64) -> Pass {
        let Ceilings { compute, memory, link, tp } = self.ceilings;
        let seconds = |time: f64| Seconds::new(time).unwrap_or(Seconds::ZERO);
        // Two sums over the devices in each block, of 16-bit streams: a ring sends (p - 1) / p of them twice.
        let sent = |rate: BytesPerSecond| {
            let bytes = 2.0 * self.passes.layers as f64 * 2.0 * tokens as f64 * self.passes.hidden_size as f64;
            2.0 * (tp as f64 - 1.0) / tp as f64 * bytes / rate.get()
        };
        Pass {
            flop,
            weight_bytes,
            cache_bytes,
            compute: seconds(flop / tp as f64 / compute.get()),
            memory: seconds((weight_bytes + cache_bytes) / memory.get()),
            link: seconds(link.filter(|_| tp > 1).map_or(0.0, sent)),
        }
    }
}
