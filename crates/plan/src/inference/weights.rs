//! Bytes of weights: all of them for memory, those a step reads for time.

use nn::ParamKind;
use nn::spec::{ModelSpec, Projection};
use nn::step::ParamInfo;
use units::{Bytes, Params};

use crate::params::Counts;
use crate::quant::{Format, Storage};

/// The weights of a model, as they are kept.
#[derive(Clone, Debug, PartialEq)]
pub struct Weights {
    /// How they are kept.
    pub storage: Storage,
    /// Parameters: what memory is asked for.
    pub total: Params,
    /// Parameters of a token: what bandwidth and arithmetic are asked for.
    pub active: Params,
    /// Bytes of all.
    pub bytes: u64,
    /// Parameters of parts that turn images or sounds into positions: in memory, and read by no token.
    pub beside: Params,
    /// Their bytes, in 16 bits.
    pub beside_bytes: u64,
    /// Bytes on each of the devices, of all parts.
    pub device_bytes: u64,
    /// Bytes that every step reads, on each of the devices.
    fixed: f64,
    /// Experts by the number of them and of those a token uses: bytes of all, on each of the devices.
    experts: Vec<(u64, u64, f64)>,
    /// A bare count, of which nobody said what experts are.
    bare: bool,
}

impl Weights {
    /// Those of a model whose matrices are divided over `tp` devices.
    pub fn of(spec: &ModelSpec, params: &[ParamInfo], storage: Storage, tp: u64) -> Self {
        let counts = Counts::of(params);
        let mut weights = Self {
            storage,
            total: counts.stored,
            active: counts.active,
            bytes: params.iter().map(|param| Bytes(storage.bytes_of(param))).sum::<Bytes>().get(),
            beside: Params(0),
            beside_bytes: 0,
            device_bytes: 0,
            fixed: 0.0,
            experts: Vec::new(),
            bare: false,
        };
        for param in params {
            let own = share(param, storage.bytes_of(param), tp);
            weights.device_bytes = weights.device_bytes.saturating_add(own);
            if made_once(spec, &param.name) {
                continue;
            }
            match param.kind {
                // Rows are looked up; a head that is the table is multiplied with.
                ParamKind::Embedding if param.tied.is_empty() => {}
                ParamKind::Expert { experts, top_k } => {
                    match weights.experts.iter_mut().find(|(e, k, _)| (*e, *k) == (experts, top_k)) {
                        Some((.., bytes)) => *bytes += own as f64,
                        None => weights.experts.push((experts, top_k, own as f64)),
                    }
                }
                _ => weights.fixed += own as f64,
            }
        }
        // Keys and values of the heads that several devices hold.
        let held = held_twice(spec, tp) as f64 * storage.bytes_per_parameter();
        weights.device_bytes = weights.device_bytes.saturating_add(held.round() as u64);
        weights.fixed += held;
        weights
    }

    /// The same beside parts that turn images or sounds into positions.
    #[must_use]
    pub fn with_parts(mut self, params: &[ParamInfo], tp: u64) -> Self {
        let wide = Storage::Format(Format::bf16());
        self.beside = Counts::of(params).stored;
        self.beside_bytes = params.iter().map(|param| Bytes(wide.bytes_of(param))).sum::<Bytes>().get();
        let own = params.iter().map(|param| Bytes(share(param, wide.bytes_of(param), tp))).sum::<Bytes>();
        self.device_bytes = self.device_bytes.saturating_add(own.get());
        self
    }

    /// Bytes of all parts in memory.
    pub const fn all_bytes(&self) -> u64 {
        self.bytes.saturating_add(self.beside_bytes)
    }

    /// A bare count: every parameter alike.
    pub fn bare(total: Params, active: Params, storage: Storage, tp: u64) -> Self {
        let bytes = storage.bytes(total).get();
        Self {
            storage,
            total,
            active,
            bytes,
            beside: Params(0),
            beside_bytes: 0,
            device_bytes: bytes.div_ceil(tp.max(1)),
            fixed: storage.bytes(active).as_f64() / tp.max(1) as f64,
            experts: Vec::new(),
            bare: true,
        }
    }

    /// Bytes that a step of `sequences` reads, on each of the devices: of experts those that are expected to be chosen by
    /// somebody, if each is as likely as the others.
    pub fn read_bytes(&self, sequences: u64) -> f64 {
        if self.bare {
            return (self.fixed * sequences as f64).min(self.device_bytes as f64).max(self.fixed);
        }
        let chosen = |(experts, top_k, bytes): &(u64, u64, f64)| {
            let idle = 1.0 - *top_k as f64 / (*experts).max(1) as f64;
            bytes * (1.0 - idle.max(0.0).powf(sequences as f64))
        };
        self.fixed + self.experts.iter().map(chosen).sum::<f64>()
    }

    /// Bytes if only the parameters of a token were in memory, which is a mistake.
    pub fn active_bytes(&self) -> Bytes {
        Bytes((self.bytes as f64 * (self.active.as_f64() / self.total.as_f64().max(1.0))).round() as u64)
    }

    /// Whether a token uses fewer parameters than there are.
    pub fn is_sparse(&self) -> bool {
        self.active != self.total
    }
}

/// Whether a parameter is read where a sequence begins alone: by the encoder, and for its keys and values.
fn made_once(spec: &ModelSpec, name: &str) -> bool {
    let Some(encoder) = &spec.encoder else { return false };
    let inside = |body: &str| !body.is_empty() && name.strip_prefix(body).is_some_and(|rest| rest.starts_with('.'));
    let crosses = |layer: &std::sync::Arc<nn::spec::LayerSpec>| {
        let Some(cross) = &layer.cross else { return false };
        let Projection::Separate { k, v, .. } = &cross.attention.projection else { return false };
        [k.name, v.name].iter().any(|map| name.contains(&format!(".{}.{map}.", cross.name)))
    };
    inside(encoder.names.body) || spec.layers.iter().any(crosses)
}

/// Bytes of a parameter on each of `tp` devices: matrices are divided, vectors are not, nor are the maps into compressed
/// streams and routers.
fn share(param: &ParamInfo, bytes: u64, tp: u64) -> u64 {
    if param.shape.len() < 2 || param.replicated { bytes } else { bytes.div_ceil(tp.max(1)) }
}

/// Elements of key and value projections beyond an even share, on each of `tp` devices that are more than the heads.
fn held_twice(spec: &ModelSpec, tp: u64) -> u64 {
    let more = |layer: &std::sync::Arc<nn::spec::LayerSpec>| {
        let Some(attention) = layer.attention() else { return 0 };
        if matches!(attention.projection, Projection::Latent(_)) || tp <= attention.kv_heads {
            return 0;
        }
        let all = spec.hidden_size * (attention.head_dim + attention.value_dim);
        all * attention.kv_heads.div_ceil(tp) - (all * attention.kv_heads).div_ceil(tp)
    };
    spec.layers.iter().map(more).sum()
}
