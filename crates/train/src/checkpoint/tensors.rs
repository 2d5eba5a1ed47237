//! Named tensors, and how they are written.

use super::disk::Output;
use super::manifest::FileEntry;
use crc32fast::Hasher;
use nn::Model;
use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use std::collections::{BTreeSet, HashMap};
use std::io;
use tensor::{DType, Tensor};
use units::Diagnostic;

/// A tensor under its name.
#[derive(Clone, Debug)]
pub struct NamedTensor {
    /// Full name, such as `model.layers.0.mlp.up_proj.weight`.
    pub name: String,
    /// The tensor, without history.
    pub tensor: Tensor,
}

impl NamedTensor {
    /// A tensor under a name.
    pub fn new(name: impl Into<String>, tensor: &Tensor) -> Self {
        Self { name: name.into(), tensor: tensor.detach() }
    }

    /// A state of a parameter, such as slot `exp_avg`: `PARAMETER.SLOT`.
    pub fn slot(parameter: &str, slot: &str, tensor: &Tensor) -> Self {
        Self::new(format!("{parameter}.{slot}"), tensor)
    }

    /// Bytes of its elements.
    pub fn bytes(&self) -> u64 {
        self.tensor.elements() * self.tensor.dtype().size_in_bytes()
    }
}

/// Buffers that are state and not derived from the config: balancing biases of routers, tables of experts by token id.
const STATE_BUFFERS: [&str; 2] = ["e_score_correction_bias", "tid2eid"];

/// What a model is: its parameters, each once, and the buffers that are state.
pub fn model_tensors(model: &Model) -> Vec<NamedTensor> {
    let params = model.params().iter().map(|p| NamedTensor::new(p.name.as_str(), &p.tensor));
    let is_state = |name: &str| STATE_BUFFERS.iter().any(|end| name.ends_with(end));
    let states = model.buffers().iter().filter(|(name, _)| is_state(name));
    params.chain(states.map(|(name, tensor)| NamedTensor::new(name.as_str(), tensor))).collect()
}

/// The name of a dtype in safetensors.
pub(crate) const fn to_safetensors(dtype: DType) -> Dtype {
    match dtype {
        DType::F64 => Dtype::F64,
        DType::F32 => Dtype::F32,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::F8E4M3 => Dtype::F8_E4M3,
        DType::F8E5M2 => Dtype::F8_E5M2,
        DType::I64 => Dtype::I64,
        DType::I32 => Dtype::I32,
        DType::U32 => Dtype::U32,
        DType::U16 => Dtype::U16,
        DType::U8 => Dtype::U8,
        DType::Bool => Dtype::BOOL,
    }
}

/// The dtype of that name, if there is one here.
pub(crate) fn from_safetensors(dtype: Dtype) -> Option<DType> {
    DType::ALL.into_iter().find(|own| to_safetensors(*own) == dtype)
}

/// Why tensors were not written.
pub(crate) enum WriteError {
    /// The filesystem refused.
    Io(io::Error),
    /// They cannot be written at all.
    Tensors(Box<Diagnostic>),
}

impl From<io::Error> for WriteError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Bytes handed to the file at once: large enough for the disk, small enough to be hashed from the cache.
const CHUNK: usize = 1 << 20;

/// Writes tensors as one safetensors file, straight from their own bytes.
///
/// Order: wide dtypes first, then by name, so that every tensor is aligned and equal tensors make equal files.
pub(crate) fn write(
    name: &'static str,
    out: &mut dyn Output,
    tensors: &[NamedTensor],
) -> Result<FileEntry, WriteError> {
    let broken = |what: String| WriteError::Tensors(Box::new(Diagnostic::error("T0601", what)));
    let mut order: Vec<&NamedTensor> = tensors.iter().collect();
    order.sort_by(|a, b| {
        let dtype = |t: &NamedTensor| to_safetensors(t.tensor.dtype());
        dtype(b).cmp(&dtype(a)).then_with(|| a.name.cmp(&b.name))
    });
    let mut names = BTreeSet::new();
    if let Some(twice) = order.iter().find(|t| !names.insert(t.name.as_str())) {
        return Err(broken(format!("two tensors are called `{}`", twice.name)));
    }
    let header = header(&order).map_err(|error| broken(format!("{name}: {error}")))?;

    let mut whole = Hasher::new();
    whole.update(&header);
    let header_crc32 = crc32fast::hash(&header);
    out.write_all(&header)?;
    let mut bytes = header.len() as u64;
    let mut checksums = Vec::with_capacity(order.len());
    for named in order {
        let refused = |error: tensor::Error| broken(format!("`{}`: {error}", named.name));
        let dense = named.tensor.runtime().no_grad(|| named.tensor.contiguous()).map_err(refused)?;
        let written = dense.with_bytes(|data| {
            let mut own = Hasher::new();
            for chunk in data.chunks(CHUNK) {
                own.update(chunk);
                out.write_all(chunk)?;
            }
            bytes += data.len() as u64;
            Ok::<_, io::Error>(own)
        });
        let own = written.map_err(refused)??;
        whole.combine(&own);
        checksums.push((named.name.clone(), own.finalize()));
    }
    Ok(FileEntry { file: name, bytes, crc32: whole.finalize(), header_crc32, tensors: checksums })
}

/// The length prefix and the header, with the order of the tensors as given.
fn header(tensors: &[&NamedTensor]) -> Result<Vec<u8>, safetensors::SafeTensorError> {
    let mut offset = 0;
    let infos = tensors.iter().map(|named| {
        let start = offset;
        offset += named.bytes() as usize;
        let info = TensorInfo {
            dtype: to_safetensors(named.tensor.dtype()),
            shape: named.tensor.shape().iter().map(|&size| size as usize).collect(),
            data_offsets: (start, offset),
        };
        (named.name.clone(), info)
    });
    let infos = infos.collect();
    // Readers of the field ask for this entry.
    let format = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let mut json = serde_json::to_vec(&Metadata::new(Some(format), infos)?)?;
    json.resize(json.len().next_multiple_of(8), b' ');
    let mut header = (json.len() as u64).to_le_bytes().to_vec();
    header.append(&mut json);
    Ok(header)
}
