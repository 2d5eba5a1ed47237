//! The two passes of inference, traced: reading a prompt, and saying one token more.
//!
//! They run the program that [`crate::generate`] runs, on the device without data, so that what a prompt and a token cost
//! is what the engine does for them. Recurrent layers go on from a state of zeros: which one it is changes no cost.

use crate::cache::KvCache;
use crate::context::{Forward, Profile, Recompute};
use crate::model::Model;
use crate::spec::{ModelSpec, SourceSpec};
use crate::step::numbers;
use std::rc::Rc;
use tensor::{DType, Device, Error, Phase, Result, Role, Runtime, Trace};

/// Mark of a recording where the model is built and reading begins.
pub const READ: &str = "read";

/// A pass of inference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Sequences that are read at the same time.
    pub batch: u64,
    /// Tokens of each that the cache holds.
    pub past: u64,
    /// Tokens of each that are read.
    pub new: u64,
    /// Positions of the encoder, where there is one: it runs where nothing is past, and its keys and values are kept.
    pub encoded: Option<u64>,
    /// dtype of parameters, activations and the cache.
    pub dtype: DType,
}

/// What a pass comes to.
#[derive(Clone, Debug)]
pub struct Read {
    /// The recording; what is read begins at the mark [`READ`]. Logits are those of the last position.
    pub trace: Trace,
    /// Bytes of the cache, with room for past and new tokens.
    pub cache_bytes: u64,
}

/// Traces a pass of inference on the meta device.
///
/// # Errors
/// If no token is read, a size is too large to count, or the sequence is longer than the model's learned positions.
pub fn trace(spec: &ModelSpec, reading: &Reading) -> Result<Read> {
    let Reading { batch, past, new, encoded, dtype } = *reading;
    let last = new.checked_sub(1).ok_or_else(|| argument("a pass that reads no token has no logits"))?;
    let room = past.checked_add(new).ok_or_else(|| argument("more tokens than 64 bits count"))?;
    let rt = Runtime::new(Device::Meta);
    rt.begin("init", Phase::Init);
    let model = Model::build(&rt, spec, dtype)?;
    rt.begin(READ, Phase::Forward);
    let cache = Rc::new(KvCache::after(past, room));
    rt.no_grad(|| {
        let ids = rt.tensor_with(&[batch, new], DType::I64, Vec::new)?.with_role(Role::Input);
        let mut f = Forward::new(&rt, Profile::Fused, Recompute::None, batch, new);
        f.training = false;
        if let (Some(encoder), Some(positions)) = (&spec.encoder, encoded) {
            f.encoded = Some(if past == 0 {
                let input = match &encoder.embedding.source {
                    SourceSpec::Tokens => rt.tensor_with(&[batch, positions], DType::I64, Vec::new)?,
                    SourceSpec::Signal(signal) => numbers(&rt, signal, batch)?,
                };
                let encoded = model.encode(&f, &input.with_role(Role::Input))?;
                encoded.ok_or(Error::Backward("a pass with an encoder of a model without one"))?
            } else {
                // Its outputs are gone: what blocks keep of them is read instead.
                rt.zeros(&[batch, positions, encoder.hidden_size], dtype)?.with_role(Role::Buffer)
            });
        }
        f.cache = Some(cache.clone());
        let hidden = model.body(&f, &ids)?;
        model.logits(&f, &hidden.narrow(1, last, 1)?)
    })?;
    Ok(Read { cache_bytes: cache.bytes(), trace: rt.take_trace() })
}

fn argument(what: &str) -> Error {
    Error::Argument { op: "reading", what: what.to_owned() }
}
