//! Bytes in patches: what a model that reads them runs around its blocks.
//!
//! A text is cut where a small frozen model finds the next byte hard to tell, so that the number of patches depends on its
//! bytes. Here the first byte is a patch, as it always is, and each further one has [`PatchSpec::size`] bytes. Everything
//! else runs as in the reference.

use super::{Embedding, Linear, Norm, Stack, hf};
use crate::context::{Forward, Profile, Recompute};
use crate::param::{Builder, Init, ParamKind};
use crate::spec::{HashSpec, LinearSpec, PatchAttentionSpec, PatchSpec, StackSpec};
use std::rc::Rc;
use tensor::ops::attention::Attention as Core;
use tensor::ops::matmul::Mask;
use tensor::{DType, Result, Tensor, checkpoint};

/// Module of the tables of hashed bytes.
const HASHES: &str = "model.encoder_hash_tok_embedding";

/// Map of patches to the rows that stand for them, or back.
const PROJECTION: &str = "patch_embedding_projection";

/// List of attentions between bytes and patches.
const CROSSES: &str = "cross_attn_layers";

/// Every stack has a block, and with it an attention.
const NO_BLOCK: tensor::Error = tensor::Error::Backward("a local encoder without a block");

/// Bases of the hashes, one for each function.
///
/// Source: `compute_hash_embeddings` of transformers 5.24.
const BASES: [i64; 11] = [
    1_000_000_007,
    5_915_587_277,
    1_500_450_271,
    3_267_000_013,
    5_754_853_343,
    4_093_082_899,
    9_576_890_767,
    3_628_273_133,
    2_860_486_313,
    5_463_458_053,
    3_367_900_313,
];

/// Rows of the table number `table` for each byte of texts `s` long: polynomials of the bytes of the group that ends there,
/// with zeros in front of a text, in 64 bits that wrap, modulo the rows of a table.
fn hashed(spec: &HashSpec, table: u64, bytes: &[f64], s: u64) -> Vec<f64> {
    let count = spec.lengths.len().max(1);
    let (function, length) = (table as usize / count, table as usize % count);
    let (base, length) = (BASES[function % BASES.len()], spec.lengths.get(length).map_or(1, |n| *n as usize));
    let rows = spec.rows.max(1) as i64;
    let of = |text: &[f64], end: usize| {
        let first = (end + 1).saturating_sub(length);
        let sum = text[first..=end].iter().enumerate().fold(0i64, |sum, (i, byte)| {
            let power = base.wrapping_pow((first + i + length - 1 - end) as u32);
            sum.wrapping_add((*byte as i64).wrapping_mul(power))
        });
        (table as i64 * rows + sum.rem_euclid(rows)) as f64
    };
    bytes
        .chunks(s.max(1) as usize)
        .flat_map(|text| (0..text.len()).map(|end| of(text, end)).collect::<Vec<_>>())
        .collect()
}

/// What runs around the blocks of the local decoder.
#[derive(Clone, Debug)]
pub struct Patches {
    spec: Rc<PatchSpec>,
    /// Module of the decoder.
    body: &'static str,
    table: Tensor,
    hashes: Tensor,
    encoder: Stack,
    /// From a patch of the encoder to its rows.
    gather_rows: Linear,
    gather: Vec<PatchAttention>,
    /// To the width of the stack over patches, where that differs.
    widen: Option<Linear>,
    global: Stack,
    /// From a patch of that stack to its rows.
    spread_rows: Linear,
    spread: Vec<PatchAttention>,
    patcher: Option<Patcher>,
}

impl Patches {
    /// Parts around a decoder of `blocks` blocks of width `h` in the module `body`.
    ///
    /// # Errors
    /// If a size is too large to count.
    pub fn new(b: &Builder<'_>, spec: &PatchSpec, body: &'static str, h: u64, blocks: usize) -> Result<Self> {
        let rt = b.runtime();
        let std = Init::TruncatedNormal(0.02);
        let map = |name, input: u64, output: u64| {
            Linear::new(b, &LinearSpec::new(name, false), input, output, Init::FanIn(input))
        };
        let crosses = |cross: &PatchAttentionSpec, width: u64, blocks: usize| -> Result<Vec<PatchAttention>> {
            let count = if cross.each { blocks } else { blocks.min(1) };
            (0..count).map(|i| PatchAttention::new(b, cross, width, i)).collect()
        };
        let width = spec.encoder.hidden_size;
        let rows = width.saturating_mul(spec.rows);
        let (table, encoder, gather_rows, gather) = {
            let _body = rt.scope(spec.encoder.names.body);
            let table = {
                let _scope = rt.scope(spec.encoder.names.embed);
                b.param("weight", &[spec.vocab_size, width], ParamKind::Embedding, std)?
            };
            let encoder = stack(b, &spec.encoder)?;
            let gather = crosses(&spec.gather, width, spec.encoder.layers.len())?;
            (table, encoder, map(PROJECTION, width, rows)?, gather)
        };
        let hashes = {
            let _scope = rt.scope(HASHES);
            let all = spec.hashes.rows.saturating_mul(spec.hashes.tables());
            b.param("weight", &[all, width], ParamKind::Embedding, std)?
        };
        let over = spec.global.hidden_size;
        let (widen, global) = {
            let _body = rt.scope(spec.global.names.body);
            let widen = (rows != over).then(|| map("token_embedding_projection", rows, over)).transpose()?;
            (widen, stack(b, &spec.global)?)
        };
        let (spread_rows, spread) = {
            let _body = rt.scope(body);
            (map(PROJECTION, over, h.saturating_mul(spec.rows))?, crosses(&spec.spread, h, blocks)?)
        };
        let patcher = spec.patcher.as_ref().map(|(stack, v)| b.freezing(|| Patcher::new(b, stack, *v))).transpose()?;
        let spec = Rc::new(spec.clone());
        Ok(Self {
            spec,
            body,
            table,
            hashes,
            encoder,
            gather_rows,
            gather,
            widen,
            global,
            spread_rows,
            spread,
            patcher,
        })
    }

    /// The table of bytes.
    pub fn table(&self) -> &Tensor {
        &self.table
    }

    /// Hidden states of bytes behind the local decoder, whose blocks are `decoder`.
    ///
    /// # Shapes
    /// bytes `b s` (integers) -> `b s h`
    ///
    /// # Errors
    /// If shapes do not fit.
    pub fn forward(&self, f: &Forward, bytes: &Tensor, decoder: &Stack) -> Result<Tensor> {
        let (rt, spec) = (&f.runtime, &self.spec);
        let (b, s) = (bytes.size(0), bytes.size(1));
        let n = PatchSpec::count(s, spec.size);
        let x = self.embedded(f, bytes)?;
        if let Some(patcher) = &self.patcher {
            patcher.forward(f, bytes)?;
        }
        let cut = Cut { bytes: s, patches: n, size: spec.size, rows: spec.rows };
        let (gathers, spreads) = (cut.gathers(f, x.dtype())?, cut.spreads(f, x.dtype())?);

        let (x, patches) = {
            let _body = rt.scope(spec.encoder.names.body);
            // The reference drops out twice.
            let dropout = spec.encoder.embedding.dropout;
            let x = dropped(f, dropped(f, x, dropout)?, dropout)?;
            // Each block may make patches, of which those of the last are read.
            let x = self.encoder.forward_between(f, x, &|i, x| {
                if let Some(cross) = i.checked_sub(1).and_then(|i| self.gather.get(i)).filter(|_| spec.gather.each) {
                    self.gathered(f, &x, &cut, cross, &gathers)?;
                }
                Ok(x)
            })?;
            let cross = self.gather.last().ok_or(NO_BLOCK)?;
            let patches = self.gathered(f, &x, &cut, cross, &gathers)?;
            (x, patches)
        };
        let patches = patches.reshape(&[b, n, spec.encoder.hidden_size.saturating_mul(spec.rows)])?;

        let patches = {
            let f = f.beside(n);
            let _body = rt.scope(spec.global.names.body);
            let patches = match &self.widen {
                Some(widen) => widen.forward(&f, &patches)?,
                None => patches,
            };
            let patches = self.global.forward(&f, dropped(&f, patches, spec.global.embedding.dropout)?)?;
            f.drop_tables();
            patches
        };

        let _body = rt.scope(self.body);
        let patches = self.spread_rows.forward(f, &patches)?;
        let patches = patches.reshape(&[b, n.saturating_mul(spec.rows), x.size(2)])?;
        let x = dropped(f, x, spec.dropout)?;
        let out = decoder.forward_between(f, x, &|i, x| match self.spread.get(i) {
            Some(cross) => x.add(&cross.forward(f, &x, &patches, &spreads)?),
            None => Ok(x),
        })?;
        f.drop_tables();
        Ok(out)
    }

    /// Bytes and the groups they end, looked up and added.
    fn embedded(&self, f: &Forward, bytes: &Tensor) -> Result<Tensor> {
        let rt = &f.runtime;
        let looked_up = |table: &Tensor, ids: &Tensor| {
            let rows = table.embedding(ids)?;
            match f.compute {
                Some(dtype) => rows.to_dtype(dtype),
                None => Ok(rows),
            }
        };
        let mut x = {
            let _body = rt.scope(self.spec.encoder.names.body);
            let _scope = rt.scope(self.spec.encoder.names.embed);
            looked_up(&self.table, bytes)?
        };
        let values = if rt.holds_data() { bytes.to_vec()? } else { Vec::new() };
        let _scope = rt.scope(HASHES);
        for i in 0..self.spec.hashes.tables() {
            let rows = || hashed(&self.spec.hashes, i, &values, bytes.size(1));
            let ids = rt.tensor_with(bytes.shape(), DType::I64, rows)?;
            x = x.add_reusing(&looked_up(&self.hashes, &ids)?)?;
        }
        Ok(x)
    }

    /// The rows of each patch, from the largest value of its bytes in each channel and attention to its bytes.
    fn gathered(&self, f: &Forward, x: &Tensor, cut: &Cut, cross: &PatchAttention, sight: &Sight) -> Result<Tensor> {
        let (b, h) = (x.size(0), x.size(2));
        let patches = self.gather_rows.forward(f, &cut.largest(x)?)?;
        let patches = patches.reshape(&[b, cut.patches.saturating_mul(cut.rows), h])?;
        patches.add(&cross.forward(f, &patches, x, sight)?)
    }
}

fn stack(b: &Builder<'_>, spec: &StackSpec) -> Result<Stack> {
    Stack::new(b, (&spec.layers, None, 0), spec.hidden_size, &spec.names, spec.final_norm.as_ref())
}

/// Dropout on a stream.
fn dropped(f: &Forward, x: Tensor, p: f64) -> Result<Tensor> {
    if !f.training || p <= 0.0 {
        return Ok(x);
    }
    if f.profile.is_hf() { x.dropout_composed(p) } else { x.dropout(p) }
}

/// How a text is cut.
#[derive(Clone, Copy, Debug)]
struct Cut {
    bytes: u64,
    patches: u64,
    size: u64,
    rows: u64,
}

impl Cut {
    /// The largest value of each channel in each patch.
    ///
    /// # Shapes
    /// `b s h -> b n h`
    fn largest(&self, x: &Tensor) -> Result<Tensor> {
        let (b, h) = (x.size(0), x.size(2));
        let whole = self.bytes.saturating_sub(1) / self.size;
        let covered = 1 + whole * self.size;
        let mut parts = vec![x.narrow(1, 0, 1)?];
        if whole > 0 {
            let rest = x.narrow(1, 1, whole * self.size)?.reshape(&[b, whole, self.size, h])?;
            parts.push(rest.max(2, false)?.0);
        }
        if covered < self.bytes {
            parts.push(x.narrow(1, covered, self.bytes - covered)?.max(1, true)?.0);
        }
        Tensor::cat(&parts.iter().collect::<Vec<_>>(), 1)
    }

    /// Additive mask of patches that read their own bytes: `b 1 (n r) s`
    fn gathers(&self, f: &Forward, dtype: DType) -> Result<Sight> {
        let (n, s) = (self.patches, self.bytes);
        f.runtime.no_grad(|| {
            // The first patch has one byte: the others begin at 1, 1 + size, ...
            let starts = f.runtime.arange(n, 1.0 - self.size as f64, self.size as f64, DType::I64)?.unsqueeze(1)?;
            let places = f.runtime.arange(s, 0.0, 1.0, DType::I64)?;
            let of = self.within(&starts, &places)?; // n s
            let rows = of.unsqueeze(1)?.expand(&[n, self.rows, s])?.reshape(&[n.saturating_mul(self.rows), s])?;
            self.sight(f, &rows, dtype)
        })
    }

    /// Additive mask of bytes that read the last patch that ends no later: `b 1 s (n r)`
    fn spreads(&self, f: &Forward, dtype: DType) -> Result<Sight> {
        let (n, s) = (self.patches, self.bytes);
        f.runtime.no_grad(|| {
            let ends = f.runtime.arange(n, 0.0, self.size as f64, DType::I64)?;
            let places = f.runtime.arange(s, 0.0, 1.0, DType::I64)?.unsqueeze(1)?;
            let of = self.within(&ends, &places)?; // s n
            let rows = of.unsqueeze(2)?.expand(&[s, n, self.rows])?.reshape(&[s, n.saturating_mul(self.rows)])?;
            self.sight(f, &rows, dtype)
        })
    }

    /// Where `first <= place < first + size`.
    fn within(&self, first: &Tensor, places: &Tensor) -> Result<Tensor> {
        first.less_equal(places)?.logical_and(&places.less(&first.add_scalar(self.size as f64)?)?)
    }

    /// The `allowed` pairs `q t`, in a mask for each sequence as the reference has it, or for all in the fused profile.
    fn sight(&self, f: &Forward, allowed: &Tensor, dtype: DType) -> Result<Sight> {
        let mut allowed = allowed.unsqueeze(0)?.unsqueeze(0)?;
        if f.profile.is_hf() {
            allowed = allowed.expand(&[f.batch, 1, allowed.size(2), allowed.size(3)])?;
        }
        let (zero, low) = (f.runtime.zeros(&[], dtype)?, f.runtime.full(&[], hf::LOW, dtype)?);
        // Each byte meets the rows of one patch.
        Ok(Sight { mask: allowed.where_cond(&zero, &low)?, pairs: self.bytes.saturating_mul(self.rows) })
    }
}

/// Which rows meet.
struct Sight {
    /// Added to the scores, `b 1 q t`.
    mask: Tensor,
    /// Pairs that meet.
    pairs: u64,
}

/// Attention between bytes and patches.
#[derive(Clone, Debug)]
struct PatchAttention {
    spec: PatchAttentionSpec,
    index: usize,
    maps: [Linear; 3],
    out: Linear,
    norms: [Norm; 2],
}

impl PatchAttention {
    fn new(b: &Builder<'_>, spec: &PatchAttentionSpec, h: u64, index: usize) -> Result<Self> {
        let _list = b.runtime().scope(CROSSES);
        let _scope = b.runtime().scope(index.to_string());
        let [all, shared] = [spec.heads, spec.kv_heads].map(|heads| heads.saturating_mul(spec.head_dim));
        let map = |name, input: u64, output: u64| {
            Linear::new(b, &LinearSpec::new(name, false), input, output, Init::FanIn(input))
        };
        let norm = |name| Norm::new(b, name, &spec.norm, &[h]);
        Ok(Self {
            maps: [map("q_proj", h, all)?, map("k_proj", h, shared)?, map("v_proj", h, shared)?],
            out: map("o_proj", all, h)?,
            norms: [norm("q_norm")?, norm("k_norm")?],
            spec: spec.clone(),
            index,
        })
    }

    /// What `x` reads of `memory`, added to `x`.
    ///
    /// # Shapes
    /// `b q h`, `b t h` -> `b q h`
    fn forward(&self, f: &Forward, x: &Tensor, memory: &Tensor, sight: &Sight) -> Result<Tensor> {
        let _list = f.runtime.scope(CROSSES);
        let _scope = f.runtime.scope(self.index.to_string());
        let (b, d) = (x.size(0), self.spec.head_dim);
        let heads = |made: Tensor, heads: u64| made.view(&[b, made.size(1), heads, d])?.transpose(1, 2);
        let [queries, keys] = [&self.norms[0], &self.norms[1]];
        let q = heads(self.maps[0].forward(f, &queries.forward(f, x)?)?, self.spec.heads)?;
        let normal = keys.forward(f, memory)?;
        let k = heads(self.maps[1].forward(f, &normal)?, self.spec.kv_heads)?;
        let v = heads(self.maps[2].forward(f, &normal)?, self.spec.kv_heads)?;
        drop(normal);
        let mixed = if f.recompute == Recompute::Selective {
            let (this, forward, mask, pairs) = (self.clone(), f.held(None), sight.mask.clone(), sight.pairs);
            let region = move |t: &[Tensor]| {
                let out = this.core(&forward, [&t[0], &t[1], &t[2]], &mask, pairs)?;
                Ok(std::iter::once(out).collect())
            };
            checkpoint(&[&q, &k, &v], region)?.remove(0)
        } else {
            self.core(f, [&q, &k, &v], &sight.mask, sight.pairs)?
        };
        let merged = mixed.transpose(1, 2)?.reshape(&[b, x.size(1), self.spec.heads.saturating_mul(d)])?;
        drop(mixed);
        self.out.forward(f, &merged)?.add(x)
    }

    /// `b a q d`, `b k t d`, `b k t d -> b a q d`
    fn core(&self, f: &Forward, [q, k, v]: [&Tensor; 3], mask: &Tensor, pairs: u64) -> Result<Tensor> {
        let spec = &self.spec;
        let scale = 1.0 / (spec.head_dim as f64).sqrt();
        let drops = f.training && spec.dropout > 0.0;
        let groups = spec.heads / spec.kv_heads.max(1);
        if f.profile == Profile::HfEager || (f.profile.is_hf() && drops) {
            let (k, v) = (hf::repeat_kv(k, groups)?, hf::repeat_kv(v, groups)?);
            let needed = Mask { pairs, square: q.size(2).saturating_mul(k.size(2)) };
            let scores = hf::matmul(f, q, &k.t()?, needed)?.mul_scalar(scale)?.add(mask)?;
            let mut weights = scores.to_dtype(DType::F32)?.softmax(-1)?.to_dtype(q.dtype())?;
            drop(scores);
            if drops {
                weights = weights.dropout_composed(spec.dropout)?;
            }
            return hf::matmul(f, &weights, &v, needed)?.transpose(1, 2)?.contiguous()?.transpose(1, 2);
        }
        let groups = if f.profile.is_hf() { groups } else { 1 };
        let (k, v) = (hf::repeat_kv(k, groups)?, hf::repeat_kv(v, groups)?);
        let low = f.runtime.autocast_setting().map_or(q.dtype(), |(low, _)| low);
        let core = Core { seen: Some(pairs), ..Core::full(scale) };
        q.attention(&k, &v, Some(&mask.to_dtype(low)?), None, core)
    }
}

/// The frozen model that finds where the next byte is hard to tell.
#[derive(Clone, Debug)]
struct Patcher {
    body: &'static str,
    embed: Embedding,
    stack: Stack,
    head: Linear,
}

impl Patcher {
    fn new(b: &Builder<'_>, spec: &StackSpec, v: u64) -> Result<Self> {
        let _body = b.runtime().scope(spec.names.body);
        let h = spec.hidden_size;
        let embed = Embedding::new(b, &spec.embedding, &spec.names, (v, h), None)?;
        let head = Linear::new(b, &LinearSpec::new(spec.names.head, false), h, v, Init::FanIn(h))?;
        Ok(Self { body: spec.names.body, embed, stack: stack(b, spec)?, head })
    }

    /// The entropy of the next byte at each position, which decides nothing here.
    fn forward(&self, f: &Forward, bytes: &Tensor) -> Result<()> {
        let _body = f.runtime.scope(self.body);
        let mut f = f.beside(bytes.size(1));
        // Nothing is kept for a backward pass that does not come.
        f.recompute = Recompute::None;
        f.runtime.no_grad(|| {
            let (x, _) = self.embed.forward(&f, bytes)?;
            let logits = self.head.forward(&f, &self.stack.forward(&f, x)?)?;
            let logits = logits.sub(&logits.logsumexp(-1, true)?)?;
            let shares = logits.softmax(-1)?;
            shares.mul(&logits)?.sum(&[-1], false)?.mul_scalar(-1.0)
        })?;
        f.drop_tables();
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use tensor::{Device, Runtime};

    /// Values of `byte_group_hash_function` in transformers 5.24.
    #[test]
    fn groups_of_bytes_have_the_hashes_of_the_reference() {
        let bytes = [1, 200, 3, 17, 255, 0, 9, 77, 5, 5, 130, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 255].map(f64::from);
        let table: [(u64, u64, u64, [u32; 22]); 3] = [
            (
                0,
                3,
                500_002,
                [
                    443_987, 354_527, 33_360, 132_468, 499_323, 481_808, 496_124, 36_916, 412_477, 200_039, 373_604,
                    495_869, 15_945, 75_962, 135_969, 195_976, 255_983, 315_990, 375_997, 436_004, 496_011, 67_200,
                ],
            ),
            (
                1,
                8,
                500_002,
                [
                    137_875, 273_987, 252_758, 411_317, 108_408, 270_544, 463_969, 78_608, 52_544, 358_909, 91_918,
                    144_373, 378_443, 73_450, 338_844, 482_395, 337_935, 412_178, 350_282, 288_376, 226_470, 47_982,
                ],
            ),
            (10, 4, 23, [6, 22, 10, 18, 21, 20, 20, 13, 17, 15, 7, 8, 11, 5, 16, 11, 12, 13, 8, 9, 4, 12]),
        ];
        for (function, length, rows, expected) in table {
            let spec = HashSpec { rows, functions: 11, lengths: vec![length] };
            let expected: Vec<f64> = expected.iter().map(|row| f64::from(*row) + (function * rows) as f64).collect();
            assert_eq!(hashed(&spec, function, &bytes, 11), expected, "function {function}, {length} bytes");
        }
    }

    /// Patches are made of their own bytes, and read by no byte before their last.
    #[test]
    fn bytes_and_patches_meet_as_the_text_is_cut() {
        let runtime = Runtime::new(Device::Cpu);
        for (s, size, rows) in (1..12).flat_map(|s| (1..6).map(move |size| (s, size, 1 + (s + size) % 2))) {
            let (n, f) = (PatchSpec::count(s, size), Forward::new(&runtime, Profile::Fused, Recompute::None, 1, s));
            let cut = Cut { bytes: s, patches: n, size, rows };
            let gathers = cut.gathers(&f, DType::F32).unwrap();
            let spreads = cut.spreads(&f, DType::F32).unwrap();
            assert_eq!(gathers.mask.shape(), [1, 1, n * rows, s]);
            assert_eq!(spreads.mask.shape(), [1, 1, s, n * rows]);
            let (gathers, spreads) = (gathers.mask.to_vec().unwrap(), spreads.mask.to_vec().unwrap());
            // The patch that each byte is in: the first alone, then `size` together.
            let of: Vec<u64> = (0..s).map(|byte| byte.div_ceil(size)).collect();
            for (byte, row) in (0..s).flat_map(|byte| (0..n * rows).map(move |row| (byte, row))) {
                let patch = row / rows;
                let last = of.iter().rposition(|own| *own == patch).unwrap() as u64;
                let ended = (0..n).filter(|other| other * size <= byte).max().unwrap();
                assert_eq!(gathers[(row * s + byte) as usize] == 0.0, of[byte as usize] == patch, "{byte} in {patch}");
                assert_eq!(spreads[(byte * n * rows + row) as usize] == 0.0, patch == ended, "{byte} reads {patch}");
                assert!(patch != ended || last <= byte, "{byte} of {s} reads {patch}, which ends at {last}");
            }
            let values: Vec<f64> = (0..s).map(|byte| ((byte * 7) % 11) as f64).collect();
            let x = runtime.tensor(&values, &[1, s, 1], DType::F32).unwrap();
            let largest = |patch: u64| {
                let own = values.iter().zip(&of).filter(|(_, own)| **own == patch);
                own.map(|(value, _)| *value).fold(f64::MIN, f64::max)
            };
            assert_eq!(cut.largest(&x).unwrap().to_vec().unwrap(), (0..n).map(largest).collect::<Vec<_>>());
        }
    }
}
