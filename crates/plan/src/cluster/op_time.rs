//! How long one op takes on one device: a roofline whose efficiency depends on the shape.
//!
//! A matrix product is cut into tiles, a wave of which runs on all processors at once: the last wave of a product of few
//! tiles leaves processors idle, small dimensions leave tiles partly empty, and a tall, thin product (the gradient of a small
//! weight over many tokens) is cut along what it sums over. Attention has its own tiles. Everything else takes as long as its
//! bytes. What the host needs to start an op is counted apart, because it runs ahead of the device.
//!
//! Source: NVIDIA, Matrix Multiplication Background User's Guide (tiles, waves); Dao 2023, arXiv:2307.08691 (attention).

/// What an op does, as far as its time depends on it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Work {
    /// `batch` products of `m × k` by `k × n` matrices.
    Product {
        /// Products.
        batch: u64,
        /// Rows of the result.
        m: u64,
        /// Columns of the result.
        n: u64,
        /// What is summed over.
        k: u64,
    },
    /// Fused attention.
    Attention {
        /// Heads of queries of all sequences.
        heads: u64,
        /// Queries of a sequence.
        queries: u64,
        /// Keys of a sequence.
        keys: u64,
        /// Width of a head: mean of that of queries and that of values.
        width: u64,
        /// Whether a query sees no later key.
        causal: bool,
        /// Whether it is the gradient.
        backward: bool,
    },
    /// Products of no one shape: small ones in a row, chunks, convolutions.
    Mixed {
        /// Multiplications and additions.
        flop: f64,
    },
    /// Anything that is as slow as memory.
    Moves,
}

/// An op, or several that are equal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Piece {
    /// What it does.
    pub work: Work,
    /// Bytes that it reads and writes in the memory of the device.
    pub bytes: f64,
    /// Ops that the host starts for it.
    pub launches: f64,
}

impl Piece {
    /// `batch` products of `m × k` by `k × n`, of operands of `width` bytes an element.
    pub fn product(batch: u64, m: u64, n: u64, k: u64, width: f64) -> Self {
        let elements = batch as f64 * (m as f64 * k as f64 + k as f64 * n as f64 + m as f64 * n as f64);
        Self { work: Work::Product { batch, m, n, k }, bytes: elements * width, launches: 1.0 }
    }

    /// An op that moves `bytes`, by one kernel.
    pub const fn moves(bytes: f64) -> Self {
        Self { work: Work::Moves, bytes, launches: 1.0 }
    }

    /// Multiplications and additions.
    pub fn flop(&self) -> f64 {
        match self.work {
            Work::Product { batch, m, n, k } => 2.0 * batch as f64 * m as f64 * n as f64 * k as f64,
            Work::Attention { heads, queries, keys, width, causal, backward } => {
                let pairs = if causal { pairs(queries, keys) } else { queries as f64 * keys as f64 };
                // Scores and values; backward does the scores again and four gradients.
                let products = if backward { 5.0 } else { 2.0 };
                products * 2.0 * heads as f64 * pairs * width as f64
            }
            Work::Mixed { flop } => flop,
            Work::Moves => 0.0,
        }
    }
}

/// Pairs of a query and a key that it sees, where the last query is as late as the last key.
fn pairs(queries: u64, keys: u64) -> f64 {
    tensor::ops::attention::pairs(queries, keys, true, None) as f64
}

/// What a device reaches in a training step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Device {
    /// FLOP per second of large matrix products.
    pub products: f64,
    /// FLOP per second of fused attention, forward, without a mask.
    pub attention: f64,
    /// Bytes per second of ops that move bytes.
    pub bandwidth: f64,
    /// Processors that tiles run on.
    pub processors: u64,
    /// Seconds from the start of a kernel until it works at full speed, and until the next can start.
    pub kernel: f64,
    /// Seconds of the host for one op.
    pub launch: f64,
    /// Elements of a tile's sides that are fetched while it does as many products as it has elements, in units of a
    /// processor's arithmetic: a tile of `a × b` needs `a + b` elements for `a × b` products, so smaller tiles are slower.
    pub fetch: f64,
    /// Steps of the sum that a tile spends on filling its pipeline and on writing its result.
    pub ramp: f64,
    /// How attention depends on its shape.
    pub shape: AttentionShape,
}

/// How the rate of fused attention depends on the shape of its work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionShape {
    /// Width at which a head's exponentials take as long as its products: a narrower one has fewer products for each.
    pub narrow: f64,
    /// Rate of the gradient over that of attention, at long sequences.
    pub backward: f64,
    /// Rate with a causal mask over that without one, beside what tiles on the diagonal lose.
    pub causal: f64,
    /// Keys in whose time a tile of queries fills its pipeline and writes its result, forward and backward.
    pub ramp: [f64; 2],
}

/// Rows and columns of the tiles of a product. The first is the one at which products reach their full rate.
const TILES: [(u64, u64); 8] =
    [(256, 128), (128, 256), (192, 128), (128, 192), (128, 128), (128, 64), (64, 128), (64, 64)];

/// Queries of a tile of attention.
const QUERIES: u64 = 128;

impl Device {
    /// Seconds of a piece on the device, once it is started.
    pub fn seconds(&self, piece: &Piece) -> f64 {
        let memory = piece.bytes / self.bandwidth;
        // What no kernel is started for belongs to one that is.
        let start = if piece.launches > 0.0 { self.kernel } else { 0.0 };
        start
            + match piece.work {
                Work::Moves => memory,
                Work::Product { batch, m, n, k } => self.product(batch, m, n, k).max(memory),
                Work::Mixed { flop } => (flop / self.products).max(memory),
                Work::Attention { .. } => self.fused_attention(piece).max(memory),
            }
    }

    /// Seconds of the host until a piece is started.
    pub const fn host(&self, piece: &Piece) -> f64 {
        self.launch * piece.launches
    }

    /// Seconds of matrix products by tiles and waves: of the tile and the number of cuts along the sum that are fastest.
    fn product(&self, batch: u64, m: u64, n: u64, k: u64) -> f64 {
        let mut best = f64::INFINITY;
        for (rows, columns) in TILES {
            let tiles = batch * m.div_ceil(rows) * n.div_ceil(columns);
            let mut cuts = 1;
            loop {
                let waves = (tiles * cuts).div_ceil(self.processors);
                let depth = (k as f64 / cuts as f64).max(1.0);
                // Parts of a sum are written and added up, at the price of one more ramp.
                let ramp = if cuts > 1 { 2.0 * self.ramp } else { self.ramp };
                best = best.min(waves as f64 * self.tile(rows, columns) * (depth + ramp));
                cuts *= 2;
                if tiles * cuts > self.processors * 2 || k / cuts < 256 {
                    break;
                }
            }
        }
        best
    }

    /// Seconds of one processor for one step of the sum of a tile.
    fn tile(&self, rows: u64, columns: u64) -> f64 {
        let slow = |rows: u64, columns: u64| 1.0 + self.fetch * (rows + columns) as f64 / (rows * columns) as f64;
        let per_processor = self.products / self.processors as f64;
        2.0 * (rows * columns) as f64 / per_processor * slow(rows, columns) / slow(TILES[0].0, TILES[0].1)
    }

    fn fused_attention(&self, piece: &Piece) -> f64 {
        let Work::Attention { heads, queries, keys, width, causal, backward } = piece.work else { return 0.0 };
        let AttentionShape { narrow, backward: slower, causal: masked, ramp } = self.shape;
        let pairs = if causal { pairs(queries, keys) } else { queries as f64 * keys as f64 };
        // Tiles on the diagonal are computed whole.
        let diagonal =
            if causal { queries.min(keys) as f64 / queries.max(1) as f64 * QUERIES as f64 / 2.0 } else { 0.0 };
        let lost = (diagonal + ramp[usize::from(backward)]) * queries as f64 / pairs.max(1.0);
        let tiles = heads * queries.div_ceil(QUERIES);
        let waves = tiles.div_ceil(self.processors) as f64 * self.processors as f64 / tiles.max(1) as f64;
        // Causal tiles differ in length, which fills the gaps of the last wave.
        let idle = if tiles < self.processors || !causal { waves } else { 1.0 };
        let rate = self.attention * if backward { slower } else { 1.0 } * if causal { masked } else { 1.0 };
        // The rate is that of heads of 128.
        let narrow = (1.0 + narrow / width as f64) / (1.0 + narrow / 128.0);
        piece.flop() / rate * (1.0 + lost) * idle * narrow
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: Device = Device {
        products: 800e12,
        attention: 400e12,
        bandwidth: 3e12,
        processors: 132,
        kernel: 0.0,
        launch: 1e-5,
        fetch: 12.0,
        ramp: 96.0,
        shape: AttentionShape { narrow: 22.0, backward: 0.87, causal: 1.0, ramp: [0.0, 0.0] },
    };

    fn rate(m: u64, n: u64, k: u64) -> f64 {
        let piece = Piece::product(1, m, n, k, 2.0);
        piece.flop() / DEVICE.seconds(&piece)
    }

    #[test]
    fn pairs_equal_those_counted_one_by_one() {
        for (queries, keys) in [(1u64, 1u64), (4, 4), (3, 7), (7, 7), (5, 2)] {
            // Query `q` is at position `keys − queries + q`; keys up to that are seen.
            let counted: i64 =
                (0..queries as i64).map(|q| (keys as i64 - queries as i64 + q + 1).clamp(0, keys as i64)).sum();
            assert!((pairs(queries, keys) - counted as f64).abs() < 1e-9, "{queries} {keys}");
        }
    }

    #[test]
    fn flop_are_those_of_the_field() {
        assert!((Piece::product(2, 3, 5, 7, 2.0).flop() - 420.0).abs() < 1e-9);
        let work = |causal, backward| {
            let work = Work::Attention { heads: 4, queries: 64, keys: 64, width: 128, causal, backward };
            Piece { work, bytes: 0.0, launches: 1.0 }.flop()
        };
        // Two products of 64 × 64 × 128 for each of four heads; backward makes five.
        assert!((work(false, false) - 4.0 * 4.0 * 64.0 * 64.0 * 128.0).abs() < 1e-6);
        assert!((work(false, true) / work(false, false) - 2.5).abs() < 1e-12);
        assert!((work(true, false) / work(false, false) - 65.0 / 128.0).abs() < 1e-12);
    }

    #[test]
    fn large_products_come_near_the_rate_and_none_beats_it() {
        assert!(rate(16384, 16384, 16384) > 0.95 * 800e12);
        for m in [1, 100, 128, 1000, 4096] {
            for n in [64, 1024, 5000, 16384] {
                for k in [32, 128, 4096] {
                    assert!(rate(m, n, k) <= 800e12, "{m} {n} {k}");
                }
            }
        }
    }

    #[test]
    fn a_wave_more_costs_a_wave() {
        // 132 tiles of 256 × 128 fill the processors once, 133 do not fit.
        let device = Device { bandwidth: 1e30, ..DEVICE };
        let tiles = |count: u64| device.product(1, 256, 128 * count, 1 << 20);
        let one = 2.0 * 256.0 * 128.0 * (f64::from(1 << 20) + 96.0) / (800e12 / 132.0);
        assert!((tiles(132) / one - 1.0).abs() < 1e-9);
        assert!(tiles(133) > 1.2 * tiles(132));
        assert!(tiles(131) > 0.95 * tiles(132));
    }

    #[test]
    fn tall_thin_products_are_cut_along_the_sum() {
        // The gradient of a 512 × 512 weight over 65,536 tokens has 8 large tiles for 132 processors: whole, it would run at
        // 8/132 of the rate.
        let cut = rate(512, 512, 65536);
        assert!(cut > 0.4 * 800e12 && cut < 0.95 * 800e12, "{cut:e}");
    }

    #[test]
    fn what_moves_bytes_takes_as_long_as_its_bytes() {
        assert!((DEVICE.seconds(&Piece::moves(6e9)) - 2e-3).abs() < 1e-12);
        // One row of a large matrix: all of the matrix is read for it.
        let piece = Piece::product(1, 1, 16384, 16384, 2.0);
        assert!((DEVICE.seconds(&piece) / (piece.bytes / 3e12) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn attention_has_its_rate_at_long_sequences_and_wastes_the_diagonal_at_short_ones() {
        let rate = |queries: u64, heads: u64| {
            let work = Work::Attention { heads, queries, keys: queries, width: 128, causal: true, backward: false };
            let piece = Piece { work, bytes: 0.0, launches: 1.0 };
            piece.flop() / DEVICE.seconds(&piece)
        };
        assert!(rate(65536, 32) > 0.99 * 400e12);
        // Tiles of 128 queries on a sequence of 128 compute 128² pairs for 128 · 129/2.
        assert!((rate(128, 1320) / 400e12 - 1.0 / (1.0 + 127.0 / 129.0)).abs() < 0.01, "{}", rate(128, 1320));
        // One head of one tile leaves 131 processors idle.
        assert!(rate(128, 1) < rate(128, 132) / 100.0);
    }

    #[test]
    fn attention_is_as_fast_as_was_published_at_every_length() {
        // FlashAttention-2 on H100, in TFLOP/s, with 16,384 tokens of width 2,048: arXiv:2407.08608, figures 5 and 6.
        let hopper = Device {
            attention: 370e12,
            shape: AttentionShape { narrow: 22.0, backward: 0.87, causal: 0.93, ramp: [96.0, 240.0] },
            ..DEVICE
        };
        for (width, causal, backward, published) in [
            (128, true, false, [191.0, 260.0, 298.0, 319.0, 333.0, 335.0]),
            (128, false, false, [309.0, 350.0, 362.0, 368.0, 370.0, 370.0]),
            (64, false, false, [282.0, 306.0, 318.0, 321.0, 322.0, 324.0]),
            (128, false, true, [214.0, 260.0, 291.0, 310.0, 318.0, 322.0]),
            (64, false, true, [198.0, 238.0, 264.0, 279.0, 287.0, 291.0]),
        ] {
            for (doublings, speed) in published.into_iter().enumerate() {
                let keys = 512 << doublings;
                let heads = (16384 / keys) * (2048 / width);
                let work = Work::Attention { heads, queries: keys, keys, width, causal, backward };
                let piece = Piece { work, bytes: 0.0, launches: 1.0 };
                let found = piece.flop() / hopper.seconds(&piece) / 1e12;
                assert!((found / speed - 1.0).abs() < 0.12, "{width} {causal} {backward} {keys}: {found} {speed}");
            }
        }
    }
}
