//! What a model keeps of the tokens it has read: keys and values, compressed streams, states.

use nn::ModelSpec;
use nn::spec::{AttentionSpec, CompressedSpec, KvSharing, LayerSpec, Mamba2Spec, Mixer, Projection};
use units::{Bytes, Diagnostic};

use crate::phrase;
use crate::quant::Format;
use crate::report::{Cell, Phrase};

/// Bytes of an element of the positions that a convolution looks back to, and of a state where nobody says otherwise.
pub const WIDTH: u64 = 2;

/// Most elements that a layer keeps of a token, or bytes of a state.
const MOST_ELEMENTS: u64 = 1 << 40;

/// What one layer keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kept {
    /// Keys and values of every head, for each token.
    Heads {
        /// Key/value heads.
        kv_heads: u64,
        /// Width of a key.
        key: u64,
        /// Width of a value.
        value: u64,
    },
    /// One vector for all heads, for each token: latent attention, or the keys of an indexer.
    Vector {
        /// Its width.
        width: u64,
        /// Whether it is that of an indexer, which reads all of them and chooses.
        index: bool,
    },
    /// One vector for all heads for each block of tokens (DeepSeek-V4). A token is charged its part, in whole bytes.
    Block {
        /// Its width.
        width: u64,
        /// Tokens of a block.
        of: u64,
        /// Whether it is that of an indexer, which reads all of them and chooses.
        index: bool,
    },
    /// A state of constant size for each sequence: recurrent and state-space layers.
    State {
        /// Its bytes.
        bytes: u64,
    },
}

/// How far back a layer looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reach {
    /// To the beginning.
    All,
    /// So many tokens, the new one included.
    Window(u64),
    /// To the beginning of a chunk of so many tokens.
    Chunk(u64),
    /// So many positions of an encoder, whatever the text is.
    Encoder(u64),
}

/// Equal layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerCache {
    /// How many.
    pub layers: u64,
    /// What each keeps.
    pub kept: Kept,
    /// Of which tokens.
    pub reach: Reach,
    /// Most tokens of which a new one reads it: those that an indexer chooses.
    pub reads: Option<u64>,
}

impl LayerCache {
    /// Bytes of one token in one layer, on each of `tp` devices: heads are divided, and held by several where they are
    /// fewer than devices; what is one vector for all heads is on every device. None for states.
    pub fn token_bytes(&self, format: &Format, tp: u64) -> u64 {
        match self.kept {
            Kept::Heads { kv_heads, key, value } => {
                let of_head = format.run_bytes(key).saturating_add(format.run_bytes(value));
                kv_heads.div_ceil(tp.max(1)).saturating_mul(of_head)
            }
            Kept::Vector { width, .. } => format.run_bytes(width),
            Kept::Block { width, of, .. } => format.run_bytes(width) / of.max(1),
            Kept::State { .. } => 0,
        }
    }

    /// Elements of one token in one layer, or bytes of its state.
    pub fn elements(&self) -> u64 {
        match self.kept {
            Kept::Heads { kv_heads, key, value } => kv_heads.saturating_mul(key.saturating_add(value)),
            Kept::Vector { width, .. } | Kept::Block { width, .. } => width,
            Kept::State { bytes } => bytes,
        }
    }

    /// Refuses what is too large to be counted in sums over layers and tokens.
    ///
    /// # Errors
    /// `T0305` for more than 2^40 elements of a token, or bytes of a state.
    pub fn check(&self) -> Result<(), Diagnostic> {
        if self.elements() <= MOST_ELEMENTS {
            return Ok(());
        }
        let what = if matches!(self.kept, Kept::State { .. }) { "bytes of a state" } else { "elements of a token" };
        let message = format!("{} {what} in one layer are more than is counted", self.elements());
        Err(Diagnostic::error("T0305", message).help("correct the largest of the sizes"))
    }

    /// Tokens of a sequence of `tokens` that it keeps.
    pub fn tokens(&self, tokens: u64) -> u64 {
        match (self.kept, self.reach) {
            (Kept::State { .. }, _) => 0,
            (_, Reach::All) => tokens,
            (_, Reach::Window(most) | Reach::Chunk(most)) => tokens.min(most),
            (_, Reach::Encoder(positions)) => positions,
        }
    }

    /// Most tokens of which a new one reads it.
    fn most_read(&self) -> u64 {
        self.tokens(u64::MAX).min(self.reads.unwrap_or(u64::MAX))
    }

    /// Tokens of which it is read by the chunks of `chunk` tokens behind the first: `chunks` in all, each of which reads
    /// what those before it left, up to the most that is read.
    fn reads_of_chunks(&self, chunk: u64, chunks: u64) -> u128 {
        let (later, most) = (chunks.saturating_sub(1), self.most_read());
        if let Reach::Encoder(positions) = self.reach {
            return u128::from(later).saturating_mul(u128::from(positions));
        }
        // Chunks that read all before them; every one behind these reads the most.
        let whole = most.checked_div(chunk).unwrap_or(u64::MAX).min(later);
        let [chunk, later, most, whole] = [chunk, later, most, whole].map(u128::from);
        let growing = (whole * (whole + 1) / 2).saturating_mul(chunk);
        growing.saturating_add(most.saturating_mul(later - whole))
    }

    /// Bytes of the state of a sequence in one layer, on each of `tp` devices.
    pub fn state_bytes(&self, tp: u64) -> u64 {
        match self.kept {
            Kept::State { bytes } => bytes.div_ceil(tp.max(1)),
            _ => 0,
        }
    }

    /// `2 × 8 heads × 128`, `576`: on each of `tp` devices.
    fn width(&self, tp: u64) -> Phrase {
        let heads = |kv_heads: u64| kv_heads.div_ceil(tp.max(1));
        match self.kept {
            Kept::Heads { kv_heads, key, value } if key == value => {
                phrase!["2 × ", heads(kv_heads), " heads × ", key]
            }
            Kept::Heads { kv_heads, key, value } => phrase![heads(kv_heads), " heads × (", key, " + ", value, ")"],
            Kept::Vector { width, .. } => phrase![width],
            Kept::Block { width, of, .. } => phrase![width, " / ", of],
            Kept::State { bytes } => phrase![Bytes(bytes)],
        }
    }

    /// What it is, for people.
    pub fn name(&self) -> String {
        let what = match self.kept {
            Kept::Heads { .. } if matches!(self.reach, Reach::Encoder(_)) => "attention to the encoder",
            Kept::Heads { .. } => "attention",
            Kept::Vector { index: false, .. } => "latent attention",
            Kept::Vector { index: true, .. } | Kept::Block { index: true, .. } => "indexer keys",
            Kept::Block { .. } => "compressed blocks",
            Kept::State { .. } => "state",
        };
        match self.reach {
            Reach::All => what.to_owned(),
            Reach::Window(tokens) => format!("{what}, window {}", units::group_digits(u128::from(tokens))),
            Reach::Encoder(positions) => format!("{what}, {} positions", units::group_digits(u128::from(positions))),
            Reach::Chunk(tokens) => format!("{what}, chunks of {}", units::group_digits(u128::from(tokens))),
        }
    }
}

/// What all layers of a model keep, in one number format.
#[derive(Clone, Debug, PartialEq)]
pub struct Cache {
    /// Kinds of layers, in the order in which they come first.
    pub kinds: Vec<LayerCache>,
    /// Layers of the model, those that keep nothing included.
    pub layers: u64,
    /// Number format of keys and values.
    pub format: &'static Format,
    /// Layers that keep a state of which no rule says how large it is.
    pub uncounted: u64,
}

impl Cache {
    /// Collects equal layers.
    pub fn new(each: impl IntoIterator<Item = LayerCache>, layers: u64, format: &'static Format) -> Self {
        let mut kinds: Vec<LayerCache> = Vec::new();
        for one in each {
            let same = kinds.iter_mut().find(|kind| LayerCache { layers: one.layers, ..**kind } == one);
            match same {
                Some(kind) => kind.layers += one.layers,
                None => kinds.push(one),
            }
        }
        Self { kinds, layers, format, uncounted: 0 }
    }

    /// What the layers of a model keep, elements of recurrent states in `state` bytes each.
    ///
    /// # Errors
    /// As [`LayerCache::check`].
    pub fn of(spec: &ModelSpec, format: &'static Format, state: u64) -> Result<Self, Diagnostic> {
        // A block that runs several times keeps what each of its runs makes.
        let once = || (0..spec.layers.len()).collect();
        let order: Vec<usize> = spec.order.clone().unwrap_or_else(once);
        let each = order
            .iter()
            .filter_map(|&i| spec.layers.get(i))
            // Keys and values that a block takes from another are kept there.
            .filter(|layer| !layer.attention().is_some_and(|a| matches!(a.sharing, KvSharing::Takes(_))))
            .flat_map(|layer| layer_caches(layer, spec.hidden_size, state));
        let mixers = order.iter().filter_map(|&i| spec.layers.get(i)).map(|layer| &layer.mixer);
        let uncounted = mixers.filter(|mixer| state_elements(mixer, spec.hidden_size).is_none()).count() as u64;
        Self { uncounted, ..Self::new(each, order.len() as u64, format) }.checked()
    }

    /// The same with the keys and values that blocks have of an encoder of `positions`: made once for each sequence.
    ///
    /// # Errors
    /// As [`LayerCache::check`].
    pub fn beside_encoder(self, spec: &ModelSpec, positions: u64) -> Result<Self, Diagnostic> {
        let crossing = spec.layers.iter().filter_map(|layer| layer.cross.as_ref());
        let of = crossing.map(|cross| LayerCache {
            layers: 1,
            kept: kept(&cross.attention),
            reach: Reach::Encoder(positions),
            reads: None,
        });
        let all: Vec<LayerCache> = self.kinds.iter().copied().chain(of).collect();
        Self { uncounted: self.uncounted, ..Self::new(all, self.layers, self.format) }.checked()
    }

    /// Itself, if every layer can be counted.
    ///
    /// # Errors
    /// As [`LayerCache::check`].
    pub fn checked(self) -> Result<Self, Diagnostic> {
        self.kinds.iter().try_for_each(LayerCache::check)?;
        Ok(self)
    }

    /// Bytes of one token in all layers of a kind.
    pub fn kind_bytes(&self, kind: &LayerCache, tp: u64) -> u64 {
        kind.layers.saturating_mul(kind.token_bytes(self.format, tp))
    }

    /// Bytes of one token on each of `tp` devices, windows apart.
    pub fn token_bytes(&self, tp: u64) -> u64 {
        let own = self.kinds.iter().filter(|kind| !matches!(kind.reach, Reach::Encoder(_)));
        sum(own.map(|kind| self.kind_bytes(kind, tp)))
    }

    /// Bytes of one more token of a sequence that is longer than every window.
    pub fn far_token_bytes(&self, tp: u64) -> u64 {
        let far = self.kinds.iter().filter(|kind| kind.reach == Reach::All);
        sum(far.map(|kind| self.kind_bytes(kind, tp)))
    }

    /// Bytes of the states of a sequence on each of `tp` devices.
    pub fn state_bytes(&self, tp: u64) -> u64 {
        sum(self.kinds.iter().map(|kind| kind.layers.saturating_mul(kind.state_bytes(tp))))
    }

    /// Bytes of a sequence of `tokens` on each of `tp` devices: what the model needs.
    pub fn sequence_bytes(&self, tokens: u64, tp: u64) -> u128 {
        let kept = |kind: &LayerCache| u128::from(self.kind_bytes(kind, tp)) * u128::from(kind.tokens(tokens));
        self.kinds.iter().map(kept).sum::<u128>() + u128::from(self.state_bytes(tp))
    }

    /// The same if no layer had a window.
    pub fn uncapped_bytes(&self, tokens: u64, tp: u64) -> u128 {
        let encoder = self.kinds.iter().filter(|kind| matches!(kind.reach, Reach::Encoder(_)));
        let encoded = encoder.map(|kind| u128::from(self.kind_bytes(kind, tp)) * u128::from(kind.tokens(tokens)));
        let own = u128::from(self.token_bytes(tp)) * u128::from(tokens) + u128::from(self.state_bytes(tp));
        own + encoded.sum::<u128>()
    }

    /// Bytes that one new token reads at a context of `tokens`, on each of `tp` devices; states are read and written.
    pub fn read_bytes(&self, tokens: u64, tp: u64) -> u128 {
        let read = |kind: &LayerCache| {
            let tokens = match kind.reach {
                Reach::Encoder(positions) => positions,
                _ => tokens.min(kind.most_read()),
            };
            u128::from(self.kind_bytes(kind, tp)) * u128::from(tokens)
        };
        self.kinds.iter().map(read).sum::<u128>() + 2 * u128::from(self.state_bytes(tp))
    }

    /// Bytes that the chunks of `chunk` tokens of one prompt read of what earlier chunks left, `chunks` of them in all, on
    /// each of `tp` devices; states are read and written. The sum of [`read_bytes`](Self::read_bytes) at every multiple of
    /// `chunk` below `chunk * chunks`.
    pub fn prefill_read_bytes(&self, chunk: u64, chunks: u64, tp: u64) -> u128 {
        let read = |kind: &LayerCache| {
            kind.reads_of_chunks(chunk, chunks).saturating_mul(u128::from(self.kind_bytes(kind, tp)))
        };
        let states = 2 * u128::from(self.state_bytes(tp)) * u128::from(chunks.saturating_sub(1));
        self.kinds.iter().map(read).fold(states, u128::saturating_add)
    }

    /// The longest sequence whose cache is at most `bytes` on each of `tp` devices; `None` if there is no longest.
    pub fn longest(&self, bytes: u64, tp: u64) -> Option<u64> {
        let fits = |tokens: u64| self.sequence_bytes(tokens, tp) <= u128::from(bytes);
        // As long as sizes are counted: 2^48 tokens.
        let (mut low, mut high) = (0, 1_u64 << 48);
        if fits(high) {
            return None;
        }
        while high - low > 1 {
            let middle = low.midpoint(high);
            if fits(middle) { low = middle } else { high = middle }
        }
        Some(low)
    }

    /// Layers that keep keys and values of tokens.
    pub fn attention_layers(&self) -> u64 {
        let tokens = self.kinds.iter().filter(|kind| {
            !matches!(kind.kept, Kept::State { .. } | Kept::Vector { index: true, .. } | Kept::Block { .. })
        });
        tokens.map(|kind| kind.layers).sum()
    }

    /// `32 × 2 × 8 heads × 128 elements × 2 B`, width by width, on each of `tp` devices.
    pub fn token_sum(&self, tp: u64) -> Phrase {
        let mut widths: Vec<LayerCache> = Vec::new();
        let of_text =
            |kind: &&LayerCache| !matches!(kind.kept, Kept::State { .. }) && !matches!(kind.reach, Reach::Encoder(_));
        for kind in self.kinds.iter().filter(of_text) {
            match widths.iter_mut().find(|known| known.kept == kind.kept) {
                Some(known) => known.layers += kind.layers,
                None => widths.push(*kind),
            }
        }
        let mut sum = Phrase::default();
        for kind in &widths {
            let plus = if sum.is_empty() { "" } else { " + " };
            sum = sum.and(plus).and(phrase![kind.layers, " × "]).and(kind.width(tp));
        }
        let sum = if widths.len() > 1 { phrase!["("].and(sum).and(")") } else { sum };
        sum.and(phrase![" elements × ", self.element()])
    }

    /// Bytes of an element, for people.
    fn element(&self) -> Cell {
        let bytes = self.format.bits() / 8.0;
        Cell::Text(format!("{bytes} B"))
    }
}

/// The sum, as large as can be counted, which [`LayerCache::check`] refuses.
fn sum(parts: impl IntoIterator<Item = u64>) -> u64 {
    parts.into_iter().fold(0, u64::saturating_add)
}

/// The product, as large as can be counted, which [`LayerCache::check`] refuses.
fn product<const N: usize>(factors: [u64; N]) -> u64 {
    factors.into_iter().fold(1, u64::saturating_mul)
}

/// What a layer keeps; nothing if it mixes no positions.
fn layer_caches(layer: &LayerSpec, h: u64, state: u64) -> Vec<LayerCache> {
    // Attention in both directions reads a text once and keeps nothing.
    let mut all = match layer.attention().filter(|attention| attention.causal) {
        Some(attention) => attention_caches(attention),
        None => Vec::new(),
    };
    if let Some([recurrent, taps]) = state_elements(&layer.mixer, h) {
        let bytes = recurrent.saturating_mul(state).saturating_add(taps.saturating_mul(WIDTH));
        if bytes > 0 {
            all.push(LayerCache { layers: 1, kept: Kept::State { bytes }, reach: Reach::All, reads: None });
        }
    }
    if let Mixer::Compressed(attention) = &layer.mixer {
        all.extend(compressed_caches(attention));
    }
    if let Some(then) = layer.then() {
        all.extend(layer_caches(then, h, state));
    }
    all
}

/// Elements of the state of a layer on a stream of width `h`: of its recurrence, and of the positions its convolution looks
/// back to. `None` if no rule says them.
fn state_elements(mixer: &Mixer, h: u64) -> Option<[u64; 2]> {
    let with_taps = |state: u64, taps: u64, channels: u64| [state, product([taps.saturating_sub(1), channels])];
    let mamba2 =
        |mamba: &Mamba2Spec| with_taps(product([mamba.inner(), mamba.state]), mamba.conv.taps, mamba.conv_channels());
    if let Mixer::Mamba(mamba) = mixer {
        Some(with_taps(product([mamba.inner, mamba.state]), mamba.conv.taps, mamba.inner))
    } else if let Mixer::Mamba2(mamba) = mixer {
        Some(mamba2(mamba))
    } else if let Mixer::Parallel(both) = mixer {
        Some(mamba2(&both.mamba))
    } else if let Mixer::Hybrid(both) = mixer {
        state_elements(&both.mamba, h)
    } else if let Mixer::ShortConv(short) = mixer {
        Some(with_taps(0, short.conv.taps, h))
    } else if let Mixer::Lightning(lightning) = mixer {
        Some([product([lightning.heads, lightning.head_dim, lightning.head_dim]), 0])
    } else if let Mixer::Mlstm(m) = mixer {
        // The memory, the sum of keys, and the largest gate of each head.
        Some([sum([product([m.key_width, m.value_width]) / m.heads.max(1), m.key_width, m.heads]), 0])
    } else if let Mixer::TimeMix(mix) = mixer {
        // Numerator, denominator and largest key, and the stream of the position before for both parts.
        Some([product([3, mix.width]), product([2, h])])
    } else if let Mixer::RgLru(unit) = mixer {
        Some(with_taps(unit.width, unit.conv.taps, unit.width))
    } else if let Mixer::Delta(delta) = mixer {
        let keys = product([2, delta.key_heads, delta.key_dim]);
        let channels = sum([keys, product([delta.value_heads, delta.value_dim])]);
        let state = product([delta.value_heads, delta.key_dim, delta.value_dim]);
        Some(with_taps(state, delta.conv.taps, channels))
    } else if let Mixer::Compressed(attention) = mixer {
        // Maps of the block that is not over: keys and gates of each of its positions, and of the block before where they
        // overlap; the same for the indexer.
        let parts = attention.blocks.as_ref().map_or(0, |blocks| {
            let index = blocks.indexer.as_ref().map_or(0, |indexer| indexer.head_dim);
            let overlap = 1 + u64::from(blocks.indexer.is_some());
            product([2, overlap, blocks.rate, sum([attention.head_dim, index])])
        });
        Some([0, parts])
    } else if matches!(mixer, Mixer::Attention(_) | Mixer::None) {
        Some([0, 0])
    } else {
        None
    }
}

/// Keys of a window, which are their own values, and those of the blocks behind it.
fn compressed_caches(attention: &CompressedSpec) -> Vec<LayerCache> {
    let one = |kept, reach, reads| LayerCache { layers: 1, kept, reach, reads };
    let window = Kept::Vector { width: attention.head_dim, index: false };
    let mut all = vec![one(window, Reach::Window(attention.window), None)];
    if let Some(blocks) = &attention.blocks {
        let of = blocks.rate;
        let reads = blocks.indexer.as_ref().map(|indexer| product([indexer.top_k, of]));
        all.push(one(Kept::Block { width: attention.head_dim, of, index: false }, Reach::All, reads));
        if let Some(indexer) = &blocks.indexer {
            all.push(one(Kept::Block { width: indexer.head_dim, of, index: true }, Reach::All, None));
        }
    }
    all
}

fn attention_caches(attention: &AttentionSpec) -> Vec<LayerCache> {
    let reach = match attention.window {
        Some(most) if attention.chunked => Reach::Chunk(most),
        Some(most) => Reach::Window(most),
        None => Reach::All,
    };
    let mut all = vec![LayerCache { layers: 1, kept: kept(attention), reach, reads: None }];
    if let Projection::Latent(latent) = &attention.projection
        && let Some(indexer) = &latent.indexer
    {
        all[0].reads = Some(indexer.top_k);
        let kept = Kept::Vector { width: indexer.head_dim, index: true };
        all.push(LayerCache { layers: 1, kept, reach, reads: None });
    }
    all
}

fn kept(attention: &AttentionSpec) -> Kept {
    match &attention.projection {
        Projection::Latent(latent) => Kept::Vector { width: sum([latent.kv_rank, latent.rope_dim]), index: false },
        _ => Kept::Heads { kv_heads: attention.kv_heads, key: attention.head_dim, value: attention.value_dim },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Chunk by chunk, for every kind of cache.
    #[test]
    fn chunks_read_what_those_before_them_left() {
        let heads = Kept::Heads { kv_heads: 2, key: 3, value: 5 };
        let index = Kept::Vector { width: 7, index: true };
        let kinds = [
            (heads, Reach::All, None),
            (heads, Reach::Window(10), None),
            (heads, Reach::Chunk(12), None),
            (Kept::Vector { width: 11, index: false }, Reach::All, Some(9)),
            (index, Reach::Window(8), Some(20)),
            (Kept::State { bytes: 13 }, Reach::All, None),
        ];
        let layer = |(kept, reach, reads)| LayerCache { layers: 3, kept, reach, reads };
        let format = Format::bf16();
        let each = kinds.iter().map(|kind| Cache::new([layer(*kind)], 3, format));
        for cache in each.chain([Cache::new(kinds.map(layer), 18, format)]) {
            for (chunk, chunks) in (1..=13).flat_map(|chunk| (0..=14).map(move |chunks| (chunk, chunks))) {
                let by_hand = (1..chunks).map(|i| cache.read_bytes(i * chunk, 2)).sum::<u128>();
                assert_eq!(cache.prefill_read_bytes(chunk, chunks, 2), by_hand, "{cache:?}: {chunks} of {chunk}");
            }
            // As many as flags allow, at once.
            assert!(cache.prefill_read_bytes(1, 1 << 31, 1) > cache.prefill_read_bytes(1 << 4, 1 << 27, 1));
        }
    }
}
