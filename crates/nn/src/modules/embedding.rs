//! What stands in front of the first block: tokens or numbers, positions, kinds of tokens.

use super::{Linear, Norm, Sequence};
use crate::context::Forward;
use crate::param::{Builder, Init, ParamKind};
use crate::ranks::Share;
use crate::spec::{EmbeddingSpec, LinearSpec, ModelNames, PositionForm, PositionTable, SourceSpec};
use std::rc::Rc;
use tensor::{Combine, DType, Result, Tensor};

/// From what a stack reads to the first residual stream.
#[derive(Clone, Debug)]
pub struct Embedding {
    spec: Rc<EmbeddingSpec>,
    name: &'static str,
    table: Option<Tensor>,
    signal: Sequence,
    leading: Vec<Tensor>,
    registers: Option<Tensor>,
    types: Vec<Tensor>,
    positions: Option<Tensor>,
    project_in: Option<Linear>,
    norm: Option<Norm>,
    /// dtype of the parameters, which numbers are brought to.
    dtype: DType,
}

impl Embedding {
    /// The embedding of a stack of width `h`, in the current module; `table` is the token table where that stands outside
    /// of it, and is made here for `v` tokens otherwise.
    ///
    /// # Errors
    /// If a size is too large to count.
    pub fn new(
        b: &Builder<'_>,
        spec: &EmbeddingSpec,
        names: &ModelNames,
        (v, h): (u64, u64),
        table: Option<&Tensor>,
    ) -> Result<Self> {
        // It stands in front of where positions are divided.
        b.sharing(Share::Alike, || Self::build(b, spec, names, (v, h), table))
    }

    fn build(
        b: &Builder<'_>,
        spec: &EmbeddingSpec,
        names: &ModelNames,
        (v, h): (u64, u64),
        table: Option<&Tensor>,
    ) -> Result<Self> {
        let rt = b.runtime();
        let width = spec.width.unwrap_or(h);
        // Positions are added to the stream, unless all of it is projected behind the norm.
        let inner = if spec.projection.is_some() { width } else { h };
        let std = Init::TruncatedNormal(0.02);
        let named = |name: &'static str, count: u64, width: u64| {
            let _scope = rt.scope(name);
            b.param("weight", &[count, width], ParamKind::Embedding, std)
        };
        let (mut own, mut signal, mut leading, mut registers) = (None, Sequence::default(), Vec::new(), None);
        match &spec.source {
            SourceSpec::Tokens if table.is_some() => own = table.cloned(),
            SourceSpec::Tokens => {
                let rows = v.saturating_add(spec.extra).div_ceil(b.ranks().tp);
                own = Some(b.sharing(Share::Part, || named(names.embed, rows, width))?);
            }
            SourceSpec::Signal(numbers) => {
                signal = Sequence::new(b, &numbers.pieces)?;
                for one in &numbers.leading {
                    // Only what has rows counts as a table.
                    leading.push(if one.flat {
                        b.param(one.name, &[h], ParamKind::Vector, std)?
                    } else {
                        b.param(one.name, &[1, 1, h], ParamKind::Embedding, std)?
                    });
                }
                if let Some((name, count)) = numbers.registers {
                    registers = Some(b.param(name, &[1, count, h], ParamKind::Embedding, std)?);
                }
            }
        }
        let types = spec.types.iter().map(|one| named(one.name, one.count, inner)).collect::<Result<Vec<_>>>()?;
        let positions = spec.positions.as_ref().map(|p| positions(b, p, inner)).transpose()?;
        let project_in = match &spec.projection {
            None if width != h => {
                Some(Linear::new(b, &LinearSpec::new("project_in", false), width, h, Init::FanIn(width))?)
            }
            None => None,
            Some(map) => Some(Linear::new(b, map, width, h, Init::FanIn(width))?),
        };
        let norm = match &spec.norm {
            None => None,
            Some(norm) => Some(Norm::new(b, names.embed_norm, norm, &[if spec.norm_last { h } else { inner }])?),
        };
        let (spec, name) = (Rc::new(spec.clone()), names.embed);
        let dtype = b.dtype();
        Ok(Self { spec, name, table: own, signal, leading, registers, types, positions, project_in, norm, dtype })
    }

    /// The token table.
    pub fn table(&self) -> Option<&Tensor> {
        self.table.as_ref()
    }

    fn graded(&self) -> bool {
        matches!(&self.spec.source, SourceSpec::Signal(signal) if signal.graded)
    }

    /// The embedded input, and what the reference names beside it to the end of the body.
    ///
    /// # Shapes
    /// tokens `b s` (integers), or numbers `b n width` -> `b s h`
    ///
    /// # Errors
    /// [`tensor::Error::Argument`] if the sequence is longer than the learned positions.
    pub fn forward(&self, f: &Forward, input: &Tensor) -> Result<(Tensor, Vec<Tensor>)> {
        let spec = &self.spec;
        let last = spec.projection.is_some();
        let mut held = Vec::new();
        let mut x = match &self.table {
            Some(table) => {
                let _scope = f.runtime.scope(self.name);
                tokens(f, table, input)?
            }
            None if self.graded() && f.profile.is_hf() => input.detach().require_grad()?.to_dtype(self.dtype)?,
            None => input.to_dtype(self.dtype)?,
        };
        if let Some(compute) = f.compute {
            x = x.to_dtype(compute)?;
        }
        x = self.signal.forward(f, &x)?;
        if !self.leading.is_empty() {
            let shape = [x.size(0), 1, x.size(2)];
            let leading = self.leading.iter().map(|one| f.weight(one)?.to_dtype(x.dtype())?.expand(&shape));
            let parts = leading.chain([Ok(x.clone())]).collect::<Result<Vec<_>>>()?;
            x = Tensor::cat(&parts.iter().collect::<Vec<_>>(), 1)?;
        }
        if let Some(scale) = spec.scale {
            x = x.mul_scalar(scale)?;
        }
        if let (Some(project), false) = (&self.project_in, last) {
            x = project.forward(f, &x)?;
        }
        if f.profile.is_hf() {
            held.push(x.clone());
        }
        for (table, types) in self.types.iter().zip(&spec.types) {
            let _scope = f.runtime.scope(types.name);
            let (b, s) = (x.size(0), x.size(1));
            let first = f.runtime.no_grad(|| f.runtime.zeros(&[b, s], DType::I64))?;
            for _ in 0..types.reads {
                x = joined(f, &x, table.embedding(&first)?, &mut held)?;
            }
        }
        if let (Some(table), Some(p)) = (&self.positions, &spec.positions) {
            let s = f.start() + x.size(1);
            // Sines go on as far as one likes.
            if s > p.count && p.trained {
                return Err(tensor::Error::Argument {
                    op: "embedding",
                    what: format!("seq_len {s} is longer than the {} learned positions of this model", p.count),
                });
            }
            let scope = f.runtime.scope(p.name);
            let added = if matches!(p.form, PositionForm::Bare | PositionForm::Plain) {
                f.weight(table)?.narrow(-2, 0, x.size(1))?
            } else {
                let index = f.runtime.no_grad(|| position_index(f, p, &x))?;
                table.embedding(&index)?
            };
            drop(scope);
            x = joined(f, &x, added, &mut held)?;
        }
        if let Some(registers) = &self.registers {
            let (first, count) = (self.leading.len() as u64, x.size(1));
            let registers = f.weight(registers)?.to_dtype(x.dtype())?;
            let registers = registers.expand(&[x.size(0), registers.size(1), x.size(2)])?;
            let pieces = x.narrow(1, first, count.saturating_sub(first))?;
            x = Tensor::cat(&[&x.narrow(1, 0, first)?, &registers, &pieces], 1)?;
        }
        if let (Some(project), true) = (&self.project_in, last && spec.norm_last) {
            x = project.forward(f, &x)?;
        }
        if let Some(norm) = &self.norm {
            x = norm.forward(f, &x)?;
        }
        if f.training && spec.dropout > 0.0 {
            x = if f.profile.is_hf() { x.dropout_composed(spec.dropout)? } else { x.dropout(spec.dropout)? };
        }
        if let (Some(project), true) = (&self.project_in, last && !spec.norm_last) {
            x = project.forward(f, &x)?;
        }
        Ok((f.own_positions(&x)?, held))
    }
}

/// Rows of the table of tokens, of which each rank has a part: the others' tokens are zeros here.
///
/// # Shapes
/// table `v / tp h`, tokens `b s` -> `b s h`
fn tokens(f: &Forward, table: &Tensor, tokens: &Tensor) -> Result<Tensor> {
    let group = f.ranks.tensor();
    if group.is_alone() {
        return table.embedding(tokens);
    }
    let (rt, rows) = (&f.runtime, table.size(0));
    let (outside, own) = rt.no_grad(|| {
        let own = tokens.add_scalar(-((rt.place(group.axis) * rows) as f64))?;
        let (zero, last) = (rt.zeros(&[], DType::I64)?, rt.full(&[], rows.saturating_sub(1) as f64, DType::I64)?);
        let inside = zero.less_equal(&own)?.logical_and(&own.less_equal(&last)?)?;
        Ok::<_, tensor::Error>((inside.logical_not()?.unsqueeze(-1)?, inside.where_cond(&own, &zero)?))
    })?;
    table.embedding(&own)?.masked_fill(&outside, 0.0)?.all_reduce(group, Combine::Sum)
}

/// `x + added` in the precision of the pass; `held` gets what the reference names.
fn joined(f: &Forward, x: &Tensor, mut added: Tensor, held: &mut Vec<Tensor>) -> Result<Tensor> {
    if let Some(compute) = f.compute {
        added = added.to_dtype(compute)?;
    }
    let sum = x.add(&added)?;
    if f.profile.is_hf() {
        held.push(added);
    }
    Ok(sum)
}

/// The table of positions of a stream `h` wide.
fn positions(b: &Builder<'_>, p: &PositionTable, h: u64) -> Result<Tensor> {
    let shape = [p.count + p.offset, h];
    let std = Init::TruncatedNormal(0.02);
    if p.form == PositionForm::Bare {
        return b.param(p.name, &[1, shape[0], h], ParamKind::Embedding, std);
    }
    if p.form == PositionForm::Plain {
        return b.param(p.name, &shape, ParamKind::Matrix, std);
    }
    let _scope = b.runtime().scope(p.name);
    match (p.form, p.trained) {
        (PositionForm::Frozen, _) => b.frozen_with("weight", &shape, ParamKind::Embedding, || sinusoids(shape[0], h)),
        (PositionForm::Pairs, _) => {
            let step = 10_000f64.ln() * 2.0 / h as f64;
            b.buffer_with("weights", &shape, b.dtype(), || sinusoids_of(shape[0], h, step))
        }
        (_, true) => b.param("weight", &shape, ParamKind::Embedding, std),
        (_, false) => b.buffer_with("weights", &shape, b.dtype(), || sinusoids(shape[0], h)),
    }
}

/// Sines, then cosines of `rows` positions, row-major: `rows h`.
///
/// Source: tensor2tensor's form of Vaswani et al. 2017, the last frequency being exactly 1/10000.
fn sinusoids(rows: u64, h: u64) -> Vec<f64> {
    sinusoids_of(rows, h, 10_000f64.ln() / ((h / 2) as f64 - 1.0).max(1.0))
}

/// The same, each frequency smaller than the one before by `e^-step`.
fn sinusoids_of(rows: u64, h: u64, step: f64) -> Vec<f64> {
    let half = h / 2;
    let angle = |row: u64, i: u64| row as f64 * (-step * i as f64).exp();
    let row = |row: u64| {
        let sines = (0..half).map(move |i| angle(row, i).sin());
        let cosines = (0..half).map(move |i| angle(row, i).cos());
        sines.chain(cosines).chain((2 * half..h).map(|_| 0.0))
    };
    (0..rows).flat_map(row).collect()
}

/// Positions of an embedded input: `1 s`, or `b s` where the reference in question makes them from a mask of the batch.
fn position_index(f: &Forward, p: &PositionTable, x: &Tensor) -> Result<Tensor> {
    let (b, s) = (x.size(0), x.size(1));
    let one = f.runtime.arange(s, (f.start() + p.offset) as f64, 1.0, DType::I64)?.unsqueeze(0)?;
    if p.per_sequence && f.profile.is_hf() { one.expand(&[b, s])?.contiguous() } else { Ok(one) }
}
