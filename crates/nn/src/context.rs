//! What the modules of one forward pass share: implementation profile, precision, tables computed once.

use crate::cache::KvCache;
use crate::fp8::Casts;
use crate::ranks::Ranks;
use crate::spec::{AttentionSpec, KvSharing, RotarySpec};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use tensor::{Axis, DType, KeepSet, Result, Runtime, Tensor, checkpoint};

/// Which implementation of the same mathematics runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Profile {
    /// Fused kernels: what Napkin's own engine and Transformer-Engine-like libraries run.
    Fused,
    /// transformers modules in PyTorch with fused attention.
    HfSdpa,
    /// transformers modules in PyTorch with explicit attention.
    HfEager,
}

impl Profile {
    /// Name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fused => "fused",
            Self::HfSdpa => "hf-sdpa",
            Self::HfEager => "hf-eager",
        }
    }

    /// Whether it follows transformers' modules op by op.
    pub fn is_hf(self) -> bool {
        self != Self::Fused
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Profile {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.replace('_', "-").as_str() {
            "fused" => Ok(Self::Fused),
            "hf-sdpa" | "sdpa" => Ok(Self::HfSdpa),
            "hf-eager" | "eager" => Ok(Self::HfEager),
            _ => Err(format!("unknown profile `{text}`: valid are fused, hf-sdpa, hf-eager")),
        }
    }
}

/// What is run again in backward instead of being kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Recompute {
    /// Nothing.
    #[default]
    None,
    /// The attention core: scores, softmax, weighted values.
    Selective,
    /// Every block.
    Full,
    /// Every block, but for the results of these of its ops: what costs most to redo for its bytes.
    Budget(KeepSet),
}

impl Recompute {
    /// Name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Selective => "selective",
            Self::Full => "full",
            Self::Budget(_) => "budget",
        }
    }

    /// What is kept of a block that is run again; `None` if blocks are not.
    pub fn whole_blocks(self) -> Option<KeepSet> {
        match self {
            Self::None | Self::Selective => None,
            Self::Full => Some(KeepSet::NONE),
            Self::Budget(keep) => Some(keep),
        }
    }
}

impl FromStr for Recompute {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self::None),
            "selective" => Ok(Self::Selective),
            "full" => Ok(Self::Full),
            _ => Err(format!("unknown recompute policy `{text}`: valid are none, selective, full")),
        }
    }
}

/// Settings and shared tables of one forward pass.
#[derive(Clone)]
pub struct Forward {
    /// Runtime.
    pub runtime: Runtime,
    /// Implementation.
    pub profile: Profile,
    /// Recompute policy.
    pub recompute: Recompute,
    /// Whether norms are single kernels under every profile.
    pub fused_norms: bool,
    /// Whether what was gathered for maps is gathered again in backward, whatever the profile.
    pub gathers_again: bool,
    /// Whether dropout is on.
    pub training: bool,
    /// The ranks among which the model is a part.
    pub ranks: Ranks,
    /// Whether adapters beside linear maps take part.
    pub adapters: bool,
    /// Batch.
    pub batch: u64,
    /// Sequence length.
    pub seq_len: u64,
    /// In the fused profile under mixed precision: the dtype weights are cast to.
    pub compute: Option<DType>,
    /// In 8-bit precision: what linear maps cast with.
    pub fp8: Option<Casts>,
    /// Keys and values of the tokens before, where a text is continued. Fused profile only.
    pub cache: Option<std::rc::Rc<KvCache>>,
    /// Outputs of the stack that blocks with attention to another one read, `b t h`.
    pub encoded: Option<Tensor>,
    /// Tokens `b s`, where the stack reads them beside the stream.
    pub tokens: Option<Tensor>,
    /// Embedded tokens `b s h`, where blocks read them beside the stream.
    pub embedded: Option<Tensor>,
    /// An input of the block's own, `b s p`.
    pub block_input: Option<Tensor>,
    tables: std::rc::Rc<RefCell<Tables>>,
}

/// Marks the key of a boolean mask beside the additive one of the same window.
pub const WHOLE: u64 = 1 << 63;

/// Tables that are made once in a forward pass.
#[derive(Clone, Default)]
struct Tables {
    rotary: BTreeMap<(u8, u64), (Tensor, Tensor)>,
    masks: BTreeMap<u64, Tensor>,
    shared: BTreeMap<&'static str, Tensor>,
    heads: BTreeMap<u8, (Tensor, Tensor)>,
}

impl Forward {
    /// A forward pass over `batch` sequences of `seq_len` tokens.
    pub fn new(runtime: &Runtime, profile: Profile, recompute: Recompute, batch: u64, seq_len: u64) -> Self {
        Self {
            runtime: runtime.clone(),
            profile,
            recompute,
            fused_norms: false,
            gathers_again: false,
            training: true,
            adapters: true,
            ranks: Ranks::ALONE,
            batch,
            seq_len,
            compute: None,
            fp8: None,
            cache: None,
            encoded: None,
            tokens: None,
            embedded: None,
            block_input: None,
            tables: std::rc::Rc::default(),
        }
    }

    /// The same settings for another stack that runs in this pass, over `seq_len` positions, with tables of its own.
    #[must_use]
    pub fn beside(&self, seq_len: u64) -> Self {
        Self {
            seq_len,
            encoded: None,
            tokens: None,
            embedded: None,
            block_input: None,
            tables: std::rc::Rc::default(),
            ..self.clone()
        }
    }

    /// What blocks read beside the stream.
    pub(crate) fn read_by_blocks(&self) -> impl Iterator<Item = &Tensor> {
        [&self.encoded, &self.embedded, &self.block_input].into_iter().flatten()
    }

    /// Other tensors in the place of [`Forward::read_by_blocks`], in the same order.
    pub(crate) fn replace_read_by_blocks(&mut self, tensors: &[Tensor]) {
        let slots = [&mut self.encoded, &mut self.embedded, &mut self.block_input];
        for (slot, tensor) in slots.into_iter().flatten().zip(tensors) {
            slot.clone_from(tensor);
        }
    }

    /// Position of the first token.
    pub fn start(&self) -> u64 {
        let before = self.runtime.place(Axis::Cp) * if self.ranks.cp > 1 { self.seq_len } else { 0 };
        before + self.cache.as_ref().map_or(0, |cache| cache.len())
    }

    /// The positions of a rank, as runs with a first and a length: one, or two of equal length where keys and values go round.
    pub fn runs(&self) -> Vec<(u64, u64)> {
        if self.ranks.around().is_none() {
            return vec![(self.start(), self.seq_len)];
        }
        let (place, half) = (self.runtime.place(Axis::Cp), self.seq_len / 2);
        [place, 2 * self.ranks.cp - 1 - place].map(|part| (part * half, half)).to_vec()
    }

    /// The same pass with a hold of its own on the tables a layer uses: what a checkpointed region keeps until it runs
    /// again.
    #[must_use]
    pub fn held(&self, layer: Option<&AttentionSpec>) -> Self {
        let all = self.tables.borrow();
        let Some(layer) = layer else {
            let tables = Tables { shared: all.shared.clone(), ..Tables::default() };
            return Self { tables: std::rc::Rc::new(RefCell::new(tables)), ..self.clone() };
        };
        let mask = layer.mask_key();
        let rotary = layer.rotary.as_ref().map(|r| (r.table, r.dim));
        // A layer that does not rotate is handed the tables all the same.
        let rotary = all.rotary.iter().filter(|(key, _)| rotary.is_none_or(|own| **key == own));
        let masks = all.masks.iter().filter(|(key, _)| *key & !WHOLE == mask);
        let tables = Tables {
            rotary: rotary.map(|(key, tables)| (*key, tables.clone())).collect(),
            shared: all.shared.clone(),
            masks: masks.map(|(key, mask)| (*key, mask.clone())).collect(),
            heads: BTreeMap::new(),
        };
        Self { tables: std::rc::Rc::new(RefCell::new(tables)), ..self.clone() }
    }

    /// What `region` makes of `inputs`. In the fused profile it stands for one kernel, which keeps its inputs alone and makes
    /// what lies between anew in backward.
    ///
    /// # Errors
    /// Those of `region`.
    pub fn fused(&self, inputs: &[Tensor], region: impl Fn(&[Tensor]) -> Result<Tensor> + 'static) -> Result<Tensor> {
        if self.profile.is_hf() {
            return region(inputs);
        }
        let inputs: Vec<&Tensor> = inputs.iter().collect();
        Ok(checkpoint(&inputs, move |t| Ok(std::iter::once(region(t)?).collect()))?.remove(0))
    }

    /// The weight in the precision the module computes in.
    ///
    /// # Errors
    /// None beyond those of a cast.
    pub fn weight(&self, w: &Tensor) -> Result<Tensor> {
        match self.compute {
            Some(dtype) => self.runtime.cast_weight(w, dtype),
            None => Ok(w.clone()),
        }
    }

    /// Dtype activations are computed in, given the dtype of the residual stream.
    pub fn activation_dtype(&self, x: &Tensor) -> DType {
        self.compute.unwrap_or(x.dtype())
    }

    /// Cosine and sine tables of a rotary embedding, made once per pass.
    ///
    /// # Shapes
    /// fused: `seq dim`; hf: `1 seq dim`
    pub fn rotary(
        &self,
        spec: &RotarySpec,
        make: impl FnOnce() -> Result<(Tensor, Tensor)>,
    ) -> Result<(Tensor, Tensor)> {
        let key = (spec.table, spec.dim);
        if let Some(hit) = self.tables.borrow().rotary.get(&key) {
            return Ok(hit.clone());
        }
        let made = make()?;
        self.tables.borrow_mut().rotary.insert(key, made.clone());
        Ok(made)
    }

    /// A mask shared by layers of equal [`AttentionSpec::mask_key`], made once per pass; the key of one that is not
    /// additive has [`WHOLE`] set.
    pub fn mask(&self, key: u64, make: impl FnOnce() -> Result<Tensor>) -> Result<Tensor> {
        if let Some(hit) = self.tables.borrow().masks.get(&key) {
            return Ok(hit.clone());
        }
        let made = make()?;
        self.tables.borrow_mut().masks.insert(key, made.clone());
        Ok(made)
    }

    /// A table under a name of its own, made once per pass.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn shared(&self, name: &'static str, make: impl FnOnce() -> Result<Tensor>) -> Result<Tensor> {
        if let Some(hit) = self.tables.borrow().shared.get(name) {
            return Ok(hit.clone());
        }
        let made = make()?;
        self.tables.borrow_mut().shared.insert(name, made.clone());
        Ok(made)
    }

    /// Keeps keys and values for the blocks that share them.
    pub fn give(&self, sharing: KvSharing, k: &Tensor, v: &Tensor) {
        if let KvSharing::Gives(number) = sharing {
            self.tables.borrow_mut().heads.insert(number, (k.clone(), v.clone()));
        }
    }

    /// Keys and values that another block has given.
    ///
    /// # Errors
    /// If there are none.
    pub fn taken(&self, sharing: KvSharing) -> Result<(Tensor, Tensor)> {
        const NONE: tensor::Error = tensor::Error::Backward("keys and values of another block before they are made");
        let KvSharing::Takes(number) = sharing else { return Err(NONE) };
        self.tables.borrow().heads.get(&number).cloned().ok_or(NONE)
    }

    /// Drops the tables: the end of the body of the model, where the reference lets go of them too.
    pub fn drop_tables(&self) {
        let old = std::mem::take(&mut *self.tables.borrow_mut());
        drop(old);
    }
}
