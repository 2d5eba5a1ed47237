//! What a paged engine charges a sequence: blocks of tokens, handed out by one pool to groups of layers.
//!
//! The rules are those of vLLM's V1 engine (`v1/kv_cache_interface.py`, `v1/core/kv_cache_utils.py`, looked up 2026-11):
//!
//! * A layer that sees everything holds every token. One with a window holds the window and the chunk of the prompt that is
//!   being read, and one block more, because a window begins anywhere in a block. A state is one block.
//! * Layers of one kind make groups of equally many; a block of the pool has room for one block of every layer of a group, so
//!   the last group of a kind may have layers that are not there.
//! * All blocks have the same bytes: layers that keep less of a token have more tokens in a block, and attention beside states
//!   has blocks as large as a state.

use super::cache::{Cache, Kept, LayerCache, Reach};

/// Attention blocks beside states are multiples of this many tokens.
const ALIGNMENT: u64 = 16;

/// How an engine divides its cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Engine {
    /// Tokens of a block (`block_size`).
    pub block: u64,
    /// Most tokens of prompts that are read in one step (`max_num_batched_tokens`).
    pub chunk: u64,
}

/// Layers that share a table of blocks, several times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// What the layers keep.
    pub kind: LayerCache,
    /// Layers in all of these groups.
    pub layers: u64,
    /// How many groups they make.
    pub groups: u64,
    /// Tokens of a block.
    pub block: u64,
    /// Blocks that a sequence is charged for each of them.
    pub blocks: u64,
}

/// The pool of an engine, as a sequence of some length sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Groups by kind.
    pub groups: Vec<Group>,
    /// Layers of a group, those that are not there included.
    pub group_layers: u64,
    /// Bytes of a block of the pool: of all layers of one group.
    pub block_bytes: u64,
    /// Blocks that a sequence is charged.
    pub blocks: u64,
}

impl Layout {
    /// How the layers of a model are grouped on each of `tp` devices, and what a sequence of `tokens` is charged. `None`
    /// if nothing is kept.
    pub fn of(cache: &Cache, engine: Engine, tp: u64, tokens: u64) -> Option<Self> {
        let format = cache.format;
        let pages: Vec<(LayerCache, u64, u64)> = pages(cache, engine.block, tp)?;
        let one_kind = pages.windows(2).all(|pair| same_kind(&pair[0].0, &pair[1].0));
        let charged = |kind: &LayerCache, block: u64| charge(kind, block, engine.chunk, tokens);
        if one_kind {
            // One table of blocks; layers may keep differently much.
            let (first, block) = (pages[0].0, engine.block);
            let layers = pages.iter().map(|(kind, ..)| kind.layers).sum();
            let page = |kind: &LayerCache| {
                kind.token_bytes(format, tp).saturating_mul(block).saturating_add(kind.state_bytes(tp))
            };
            let block_bytes =
                pages.iter().map(|(kind, ..)| kind.layers.saturating_mul(page(kind))).fold(0, u64::saturating_add);
            let blocks = charged(&first, block);
            let group = Group { kind: first, layers, groups: 1, block, blocks };
            return Some(Self { groups: vec![group], group_layers: layers, block_bytes, blocks });
        }
        // Layers of the same kind and the same block share groups, whatever they keep.
        let mut types: Vec<(LayerCache, u64, u64)> = Vec::new();
        for (kind, block, _) in &pages {
            match types
                .iter_mut()
                .find(|(known, size, _)| known.reach == kind.reach && known.kept == kind.kept && size == block)
            {
                Some(known) => known.2 += kind.layers,
                None => types.push((*kind, *block, kind.layers)),
            }
        }
        let counts = || types.iter().map(|(.., layers)| *layers);
        let (least, most) = (counts().min()?, counts().max()?);
        // Nearly as many of each: rather a few layers that are not there than twice the groups.
        let group_layers = if most * 4 < least * 5 { most } else { least };
        let page = pages.iter().map(|(.., page)| *page).max()?;
        let groups: Vec<Group> = types
            .iter()
            .map(|(kind, block, layers)| Group {
                kind: *kind,
                layers: *layers,
                groups: layers.div_ceil(group_layers),
                block: *block,
                blocks: charged(kind, *block),
            })
            .collect();
        let blocks = groups.iter().map(|group| group.groups * group.blocks).sum();
        Some(Self { groups, group_layers, block_bytes: page.saturating_mul(group_layers), blocks })
    }

    /// Bytes that a sequence is charged.
    pub fn sequence_bytes(&self) -> u128 {
        u128::from(self.blocks) * u128::from(self.block_bytes)
    }

    /// Blocks of a pool of so many bytes.
    pub fn pool_blocks(&self, bytes: u64) -> u64 {
        bytes.checked_div(self.block_bytes).unwrap_or(0)
    }

    /// Blocks of a pool that the engine says has room for so many tokens.
    pub fn blocks_of_tokens(&self, tokens: u64) -> u64 {
        (tokens / self.smallest_block()).saturating_mul(self.tables())
    }

    /// The tokens that the engine says a pool of so many blocks has room for.
    pub fn tokens_of_blocks(&self, blocks: u64) -> u64 {
        (blocks / self.tables()).saturating_mul(self.smallest_block())
    }

    /// Sequences that a pool of so many blocks serves at a time, as the engine prints it.
    pub fn concurrency(&self, blocks: u64) -> f64 {
        if self.blocks == 0 { 0.0 } else { blocks as f64 / self.blocks as f64 }
    }

    /// Tokens that a sequence is charged, where all layers are charged the same.
    pub fn charged_tokens(&self) -> Option<u64> {
        match self.groups[..] {
            [only] if !matches!(only.kind.kept, Kept::State { .. }) => Some(only.blocks.saturating_mul(only.block)),
            _ => None,
        }
    }

    /// Tables of blocks.
    pub fn tables(&self) -> u64 {
        self.groups.iter().map(|group| group.groups).sum::<u64>().max(1)
    }

    fn smallest_block(&self) -> u64 {
        self.groups.iter().map(|group| group.block).min().unwrap_or(1).max(1)
    }
}

/// Blocks that a sequence of `tokens` is charged in a layer.
fn charge(kind: &LayerCache, block: u64, chunk: u64, tokens: u64) -> u64 {
    if matches!(kind.kept, Kept::State { .. }) {
        return 1;
    }
    match kind.reach {
        Reach::All => tokens.div_ceil(block),
        Reach::Encoder(positions) => positions.div_ceil(block),
        Reach::Window(window) => window.saturating_sub(1).saturating_add(chunk).min(tokens).div_ceil(block) + 1,
        Reach::Chunk(most) => most.saturating_add(chunk).min(tokens).div_ceil(block),
    }
}

/// Layers that may share one table of blocks though they keep differently much.
fn same_kind(a: &LayerCache, b: &LayerCache) -> bool {
    let state = |kind: &LayerCache| matches!(kind.kept, Kept::State { .. });
    a.reach == b.reach && state(a) == state(b)
}

/// Each kind with the tokens of its block and the bytes of its page, all pages being made equal.
fn pages(cache: &Cache, block: u64, tp: u64) -> Option<Vec<(LayerCache, u64, u64)>> {
    let token = |kind: &LayerCache| kind.token_bytes(cache.format, tp);
    let widest = cache.kinds.iter().map(token).max()?;
    let state = cache.kinds.iter().map(|kind| kind.state_bytes(tp)).max().unwrap_or(0);
    // As many aligned tokens as are as large as a state.
    let as_large = state.div_ceil(ALIGNMENT.saturating_mul(widest).max(1)).saturating_mul(ALIGNMENT);
    let block = if state > 0 && widest > 0 { block.max(as_large) } else { block };
    let page = widest.saturating_mul(block).max(state);
    let each = cache.kinds.iter().map(|kind| {
        let own = token(kind).saturating_mul(block);
        // What does not divide the page keeps its tokens, and some bytes of its page stay unused.
        let times = if own > 0 && page.is_multiple_of(own) { page / own } else { 1 };
        (*kind, block.saturating_mul(times), page)
    });
    Some(each.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::Format;

    const ENGINE: Engine = Engine { block: 16, chunk: 8192 };

    fn attention(layers: u64, reach: Reach) -> LayerCache {
        LayerCache { layers, kept: Kept::Heads { kv_heads: 2, key: 128, value: 128 }, reach, reads: None }
    }

    fn cache(kinds: &[LayerCache]) -> Cache {
        Cache::new(kinds.iter().copied(), kinds.iter().map(|kind| kind.layers).sum(), Format::bf16())
    }

    fn layout(kinds: &[LayerCache], tokens: u64) -> Layout {
        Layout::of(&cache(kinds), ENGINE, 1, tokens).unwrap()
    }

    /// inference-07: both log lines of the engine, before and after it knew of windows.
    #[test]
    fn windows_hold_the_chunk_that_is_read() {
        let windowed = layout(&[attention(30, Reach::Window(4096))], 16_384);
        assert_eq!((windowed.blocks, windowed.charged_tokens()), (769, Some(12_304)));
        let blocks = windowed.blocks_of_tokens(2_198_512);
        assert!((windowed.concurrency(blocks) - 178.68).abs() < 0.005);
        assert_eq!(windowed.tokens_of_blocks(blocks), 2_198_512);
        let full = layout(&[attention(30, Reach::All)], 16_384);
        assert!((full.concurrency(full.blocks_of_tokens(2_198_512)) - 134.19).abs() < 0.005);
    }

    /// A short sequence never takes more than its tokens and the block in which a window may begin.
    #[test]
    fn a_sequence_shorter_than_its_window() {
        assert_eq!(layout(&[attention(4, Reach::Window(4096))], 100).blocks, 7 + 1);
        assert_eq!(layout(&[attention(4, Reach::Chunk(64))], 100).blocks, 7);
        assert_eq!(layout(&[attention(4, Reach::All)], 1).blocks, 1);
        let small = Engine { chunk: 32, ..ENGINE };
        let chunked = Layout::of(&cache(&[attention(4, Reach::Chunk(64))]), small, 1, 1000).unwrap();
        assert_eq!(chunked.blocks, 6);
    }

    /// The engine's own examples: 52 layers with a window and 10 without make seven groups of ten; 12 and 13 make one group
    /// of each kind.
    #[test]
    fn groups_of_equally_many_layers() {
        let gemma = layout(&[attention(52, Reach::Window(1024)), attention(10, Reach::All)], 4096);
        assert_eq!((gemma.group_layers, gemma.tables()), (10, 7));
        assert_eq!(gemma.block_bytes, 10 * 16 * 2 * 2 * 128 * 2);
        assert_eq!(gemma.blocks, 6 * (256 + 1) + 256);
        let near = layout(&[attention(12, Reach::Window(128)), attention(13, Reach::All)], 4096);
        assert_eq!((near.group_layers, near.tables()), (13, 2));
    }

    /// Layers of one kind that keep differently much share a table; their pages are added.
    #[test]
    fn one_table_for_widths_of_one_kind() {
        let wide = LayerCache { kept: Kept::Heads { kv_heads: 4, key: 128, value: 128 }, ..attention(3, Reach::All) };
        let both = layout(&[attention(5, Reach::All), wide], 160);
        assert_eq!((both.blocks, both.group_layers), (10, 8));
        assert_eq!(both.block_bytes, (5 * 2 + 3 * 4) * 2 * 128 * 2 * 16);
    }

    /// Attention beside states: its blocks grow until they are as large as a state.
    #[test]
    fn blocks_as_large_as_a_state() {
        let state = LayerCache { layers: 6, kept: Kept::State { bytes: 1_000_000 }, reach: Reach::All, reads: None };
        let hybrid = layout(&[attention(2, Reach::All), state], 4096);
        // 1024 bytes of a token: 976.6 tokens, and the next multiple of 16 is 992.
        let groups: Vec<_> = hybrid.groups.iter().map(|group| (group.groups, group.block, group.blocks)).collect();
        assert_eq!(groups, [(1, 992, 5), (3, 992, 1)]);
        assert_eq!((hybrid.group_layers, hybrid.block_bytes, hybrid.blocks), (2, 2 * 992 * 1024, 8));
        let alone = layout(&[state], 1 << 20);
        assert_eq!((alone.blocks, alone.block_bytes, alone.charged_tokens()), (1, 6_000_000, None));
    }

    /// Heads are divided until there is one on each device; what is one vector for all heads is on every device.
    #[test]
    fn devices_that_share_heads() {
        for (tp, heads) in [(1, 8), (2, 4), (8, 1), (16, 1), (64, 1)] {
            let kept = Kept::Heads { kv_heads: 8, key: 128, value: 128 };
            let all = cache(&[LayerCache { layers: 80, kept, reach: Reach::All, reads: None }]);
            assert_eq!(all.token_bytes(tp), 80 * heads * 2 * 128 * 2, "tp {tp}");
            let kept = Kept::Vector { width: 576, index: false };
            let latent = cache(&[LayerCache { layers: 61, kept, reach: Reach::All, reads: None }]);
            assert_eq!(latent.token_bytes(tp), 61 * 576 * 2, "tp {tp}");
        }
    }
}
