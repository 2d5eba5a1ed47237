//! What a model keeps of the tokens it has read: keys and values, compressed streams, states.

use nn::ModelSpec;
use nn::spec::{AttentionSpec, KvSharing, LayerSpec, Mamba2Spec, Mixer, Projection};
use units::Bytes;

use crate::phrase;
use crate::quant::Format;
use crate::report::{Cell, Phrase};

/// Bytes of an element of the positions that a convolution looks back to, and of a state where nobody says otherwise.
pub const WIDTH: u64 = 2;

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
            Kept::State { .. } => 0,
        }
    }

    /// Elements of one token in one layer, or bytes of its state.
    pub fn elements(&self) -> u64 {
        match self.kept {
            Kept::Heads { kv_heads, key, value } => kv_heads.saturating_mul(key.saturating_add(value)),
            Kept::Vector { width, .. } => width,
            Kept::State { bytes } => bytes,
        }
    }

    /// Tokens of a sequence of `tokens` that it keeps.
    pub fn tokens(&self, tokens: u64) -> u64 {
        match (self.kept, self.reach) {
            (Kept::State { .. }, _) => 0,
            (_, Reach::All) => tokens,
            (_, Reach::Window(most) | Reach::Chunk(most)) => tokens.min(most),
        }
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
            Kept::State { bytes } => phrase![Bytes(bytes)],
        }
    }

    /// What it is, for people.
    pub fn name(&self) -> String {
        let what = match self.kept {
            Kept::Heads { .. } => "attention",
            Kept::Vector { index: false, .. } => "latent attention",
            Kept::Vector { index: true, .. } => "indexer keys",
            Kept::State { .. } => "state",
        };
        match self.reach {
            Reach::All => what.to_owned(),
            Reach::Window(tokens) => format!("{what}, window {}", units::group_digits(u128::from(tokens))),
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
    pub fn of(spec: &ModelSpec, format: &'static Format, state: u64) -> Self {
        let chunked = spec.family.starts_with("llama4");
        // A block that runs several times keeps what each of its runs makes.
        let once = || (0..spec.layers.len()).collect();
        let order: Vec<usize> = spec.order.clone().unwrap_or_else(once);
        let each = order
            .iter()
            .filter_map(|&i| spec.layers.get(i))
            // Keys and values that a block takes from another are kept there.
            .filter(|layer| !layer.attention().is_some_and(|a| matches!(a.sharing, KvSharing::Takes(_))))
            .flat_map(|layer| layer_caches(layer, spec.hidden_size, state, chunked));
        let mixers = order.iter().filter_map(|&i| spec.layers.get(i)).map(|layer| &layer.mixer);
        let uncounted = mixers.filter(|mixer| state_elements(mixer, spec.hidden_size).is_none()).count() as u64;
        Self { uncounted, ..Self::new(each, order.len() as u64, format) }
    }

    /// Bytes of one token in all layers of a kind.
    pub fn kind_bytes(&self, kind: &LayerCache, tp: u64) -> u64 {
        kind.layers.saturating_mul(kind.token_bytes(self.format, tp))
    }

    /// Bytes of one token on each of `tp` devices, windows apart.
    pub fn token_bytes(&self, tp: u64) -> u64 {
        sum(self.kinds.iter().map(|kind| self.kind_bytes(kind, tp)))
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
        u128::from(self.token_bytes(tp)) * u128::from(tokens) + u128::from(self.state_bytes(tp))
    }

    /// Bytes that one new token reads at a context of `tokens`, on each of `tp` devices; states are read and written.
    pub fn read_bytes(&self, tokens: u64, tp: u64) -> u128 {
        let read = |kind: &LayerCache| {
            let tokens = kind.tokens(tokens).min(kind.reads.unwrap_or(u64::MAX));
            u128::from(self.kind_bytes(kind, tp)) * u128::from(tokens)
        };
        self.kinds.iter().map(read).sum::<u128>() + 2 * u128::from(self.state_bytes(tp))
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
        let tokens = self
            .kinds
            .iter()
            .filter(|kind| !matches!(kind.kept, Kept::State { .. } | Kept::Vector { index: true, .. }));
        tokens.map(|kind| kind.layers).sum()
    }

    /// `32 × 2 × 8 heads × 128 elements × 2 B`, width by width, on each of `tp` devices.
    pub fn token_sum(&self, tp: u64) -> Phrase {
        let mut widths: Vec<LayerCache> = Vec::new();
        for kind in self.kinds.iter().filter(|kind| !matches!(kind.kept, Kept::State { .. })) {
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

/// The sum, as large as can be counted.
fn sum(bytes: impl Iterator<Item = u64>) -> u64 {
    bytes.fold(0, u64::saturating_add)
}

/// What a layer keeps; nothing if it mixes no positions.
fn layer_caches(layer: &LayerSpec, h: u64, state: u64, chunked: bool) -> Vec<LayerCache> {
    // Attention in both directions reads a text once and keeps nothing.
    let mut all = match layer.attention().filter(|attention| attention.causal) {
        Some(attention) => attention_caches(attention, chunked),
        None => Vec::new(),
    };
    if let Some([recurrent, taps]) = state_elements(&layer.mixer, h) {
        let bytes = recurrent.saturating_mul(state).saturating_add(taps.saturating_mul(WIDTH));
        if bytes > 0 {
            all.push(LayerCache { layers: 1, kept: Kept::State { bytes }, reach: Reach::All, reads: None });
        }
    }
    if let Some(then) = layer.then() {
        all.extend(layer_caches(then, h, state, chunked));
    }
    all
}

/// Elements of the state of a layer on a stream of width `h`: of its recurrence, and of the positions its convolution looks
/// back to. `None` if no rule says them.
fn state_elements(mixer: &Mixer, h: u64) -> Option<[u64; 2]> {
    let with_taps = |state: u64, taps: u64, channels: u64| [state, taps.saturating_sub(1) * channels];
    let mamba2 = |mamba: &Mamba2Spec| with_taps(mamba.inner() * mamba.state, mamba.conv.taps, mamba.conv_channels());
    if let Mixer::Mamba(mamba) = mixer {
        Some(with_taps(mamba.inner * mamba.state, mamba.conv.taps, mamba.inner))
    } else if let Mixer::Mamba2(mamba) = mixer {
        Some(mamba2(mamba))
    } else if let Mixer::Parallel(both) = mixer {
        Some(mamba2(&both.mamba))
    } else if let Mixer::Hybrid(both) = mixer {
        state_elements(&both.mamba, h)
    } else if let Mixer::ShortConv(short) = mixer {
        Some(with_taps(0, short.conv.taps, h))
    } else if let Mixer::Lightning(lightning) = mixer {
        Some([lightning.heads * lightning.head_dim * lightning.head_dim, 0])
    } else if let Mixer::Mlstm(m) = mixer {
        // The memory, the sum of keys, and the largest gate of each head.
        Some([m.key_width * m.value_width / m.heads.max(1) + m.key_width + m.heads, 0])
    } else if let Mixer::TimeMix(mix) = mixer {
        // Numerator, denominator and largest key, and the stream of the position before for both parts.
        Some([3 * mix.width, 2 * h])
    } else if let Mixer::RgLru(unit) = mixer {
        Some(with_taps(unit.width, unit.conv.taps, unit.width))
    } else if let Mixer::Delta(delta) = mixer {
        let channels = 2 * delta.key_heads * delta.key_dim + delta.value_heads * delta.value_dim;
        Some(with_taps(delta.value_heads * delta.key_dim * delta.value_dim, delta.conv.taps, channels))
    } else if matches!(mixer, Mixer::Attention(_) | Mixer::None) {
        Some([0, 0])
    } else {
        None
    }
}

fn attention_caches(attention: &AttentionSpec, chunked: bool) -> Vec<LayerCache> {
    let reach = match attention.window {
        Some(most) if chunked => Reach::Chunk(most),
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
        Projection::Latent(latent) => Kept::Vector { width: latent.kv_rank + latent.rope_dim, index: false },
        _ => Kept::Heads { kv_heads: attention.kv_heads, key: attention.head_dim, value: attention.value_dim },
    }
}
