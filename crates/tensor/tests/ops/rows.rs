//! The table. A row draws operands and applies an op; see `main.rs` for what is then checked.
//!
//! `g.float` and `g.range` give differentiable operands, `g.data`, `g.target` (to be written to), `g.index`, `g.mask`
//! the others; all may be strided, so that a row need not care. Values where a function has a kink or a pole are kept
//! away from it by `g.range`.

use crate::inputs::Inputs;
use napkin_tensor::autograd::{Back, Grads};
use napkin_tensor::kernel::Array;
use napkin_tensor::ops::custom::CustomOp;
use napkin_tensor::ops::scaled_matmul::{GradientCast, GradientScale};
use napkin_tensor::ops::{Outs, one_fresh, traffic};
use napkin_tensor::packed::FORMATS;
use napkin_tensor::{Cost, DType, Result, Spec, Tensor};
use std::rc::Rc;

/// An op on random operands.
pub struct Row {
    /// Name in failures.
    pub name: &'static str,
    /// Draws operands, applies the op, returns all results.
    pub program: fn(&mut Inputs) -> Result<Vec<Tensor>>,
}

/// A row.
pub const fn row(name: &'static str, program: fn(&mut Inputs) -> Result<Vec<Tensor>>) -> Row {
    Row { name, program }
}

/// A small shape of three dimensions.
fn shape3(g: &mut Inputs) -> [u64; 3] {
    [g.size(1..4), g.size(1..4), g.size(1..5)]
}

/// All rows.
pub fn rows() -> Vec<Row> {
    let fused = [
        crate::rows_fused::rows(),
        crate::rows_optim::rows(),
        crate::rows_recurrent::rows(),
        crate::rows_ranks::rows(),
    ];
    let small = [movement(), elementwise(), reductions(), by_index(), contractions()];
    small.into_iter().chain(fused).flatten().collect()
}

/// A vector from its end: a custom op that moves bytes and does no arithmetic.
struct Reversed;

impl CustomOp for Reversed {
    fn name(&self) -> &'static str {
        "reversed"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        one_fresh(inputs[0].shape(), inputs[0].dtype)
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        traffic(inputs, outputs)
    }

    fn run(&self, inputs: &[Array<f64>], outputs: &mut [Array<f64>]) -> Result<()> {
        outputs[0].data = inputs[0].data.iter().rev().copied().collect();
        Ok(())
    }

    fn differentiable(&self) -> u8 {
        1
    }

    fn gradient(&self, back: &Back<'_>) -> Result<Grads> {
        let grad = Tensor::custom(Rc::new(Self), &[back.grad()?])?.remove(0);
        Ok(std::iter::once(Some(grad)).collect())
    }
}

fn movement() -> Vec<Row> {
    vec![
        row("custom", |g| Ok(Tensor::custom(Rc::new(Reversed), &[&g.float(&[5])?])?.into_vec())),
        row("view", |g| Ok(vec![g.float(&[2, 6])?.reshape(&[3, 4])?])),
        row("permute", |g| {
            let shape = shape3(g);
            Ok(vec![g.float(&shape)?.permute(&[2, 0, 1])?])
        }),
        row("expand", |g| Ok(vec![g.float(&[3, 1])?.expand(&[2, 3, 4])?])),
        row("narrow", |g| Ok(vec![g.float(&[2, 5])?.narrow(1, 1, 3)?])),
        row("narrow with a step", |g| Ok(vec![g.float(&[7, 2])?.narrow_step(0, 1, 3, 2)?])),
        row("select", |g| Ok(vec![g.float(&[2, 3, 2])?.select(1, 2)?])),
        row("diagonal", |g| Ok(vec![g.float(&[3, 2, 4])?.diagonal(0, 2)?])),
        row("squeeze, unsqueeze", |g| Ok(vec![g.float(&[2, 1, 3])?.squeeze(1)?.unsqueeze(-1)?])),
        row("split", |g| Ok(g.float(&[2, 6])?.split(&[1, 3, 2], 1)?.into_vec())),
        row("split, one piece unused", |g| Ok(vec![g.float(&[5, 2])?.split(&[1, 3, 1], 0)?.remove(1)])),
        row("copy", |g| Ok(vec![g.float(&[2, 3])?.copy()?])),
        row("contiguous", |g| Ok(vec![g.float(&[2, 3])?.t()?.contiguous()?])),
        row("copy_", |g| {
            let (x, y) = (g.target(&[2, 3])?, g.data(&[3])?);
            Ok(vec![x.copy_(&y)?])
        }),
        row("cast", |g| {
            let there = if g.dtype == DType::F64 { DType::F64 } else { DType::F16 };
            Ok(vec![g.float(&[2, 3])?.to_dtype(there)?])
        }),
        row("cast to integers", |g| Ok(vec![g.data(&[2, 3])?.to_dtype(DType::I32)?])),
        row("cat", |g| {
            let (b, f) = (g.size(1..3), g.size(1..3));
            let [x, y, z] = [g.float(&[b, 2, f])?, g.float(&[b, 1, f])?, g.float(&[b, 3, f])?];
            Ok(vec![Tensor::cat(&[&x, &y, &z], 1)?])
        }),
        row("cat of parts, some without gradient", |g| {
            let (x, y) = (g.data(&[2, 2])?, g.float(&[3, 2])?);
            Ok(vec![Tensor::cat(&[&x, &y, &x], 0)?])
        }),
        row("cat of 70", |g| {
            let parts = (0..70).map(|i| if i % 9 == 4 { g.float(&[1]) } else { g.data(&[1]) });
            let parts = parts.collect::<Result<Vec<_>>>()?;
            Ok(vec![Tensor::cat(&parts.iter().collect::<Vec<_>>(), 0)?])
        }),
        row("cat of integers", |g| {
            let (x, y) = (g.index(&[2], 5)?, g.index(&[3], 5)?);
            Ok(vec![Tensor::cat(&[&x, &y], 0)?])
        }),
        row("stack", |g| {
            let (x, y) = (g.float(&[2, 3])?, g.float(&[2, 3])?);
            Ok(vec![Tensor::stack(&[&x, &y], -1)?])
        }),
        row("triu", |g| Ok(vec![g.float(&[2, 3, 4])?.triu(1)?])),
        row("tril", |g| Ok(vec![g.float(&[4, 3])?.tril(-1)?])),
        row("create", |g| {
            let (rt, dtype) = (g.rt.clone(), g.dtype);
            Ok(vec![rt.randn(&[2, 2], dtype)?, rt.arange(3, 1.0, 2.0, dtype)?, rt.ones(&[], dtype)?])
        }),
    ]
}

/// Rows for functions of one operand with values in a range.
macro_rules! unary {
    ($($name:ident in $low:expr, $high:expr;)*) => {
        vec![$(row(stringify!($name), |g| {
            let shape = shape3(g);
            Ok(vec![g.range(&shape, $low, $high)?.$name()?])
        })),*]
    };
}

/// Rows for functions of two broadcast operands, the second one positive.
macro_rules! binary {
    ($($name:ident)*) => {
        vec![$(row(stringify!($name), |g| {
            let [b, s, h] = shape3(g);
            let (x, y) = (g.float(&[b, s, h])?, g.range(&[s, 1], 0.4, 1.5)?);
            Ok(vec![x.$name(&y)?, y.$name(&x.exp()?)?])
        })),*]
    };
}

/// Rows for functions that overwrite their first operand.
macro_rules! in_place {
    ($($name:ident)*) => {
        vec![$(row(stringify!($name), |g| {
            let (x, y) = (g.target(&[2, 3])?, g.data(&[3])?);
            Ok(vec![x.$name(&y)?])
        })),*]
    };
}

/// Rows for functions of an operand and a number.
macro_rules! scalar {
    ($($name:ident $value:expr;)*) => {
        vec![$(row(stringify!($name), |g| {
            let shape = shape3(g);
            Ok(vec![g.range(&shape, 0.3, 2.0)?.$name($value)?])
        })),*]
    };
}

/// Rows for comparisons.
macro_rules! compare {
    ($($name:ident)*) => {
        vec![$(row(stringify!($name), |g| {
            let (x, y) = (g.data(&[2, 3])?, g.data(&[3])?);
            Ok(vec![x.$name(&y)?])
        })),*]
    };
}

fn elementwise() -> Vec<Row> {
    let mut rows = unary! {
        neg in -1.0, 1.0;
        exp in -1.0, 1.0;
        log in 0.3, 2.0;
        sqrt in 0.3, 2.0;
        rsqrt in 0.3, 2.0;
        reciprocal in 0.3, 2.0;
        tanh in -2.0, 2.0;
        sigmoid in -2.0, 2.0;
        relu in -2.0, 2.0;
        softplus in -2.0, 2.0;
        sin in -2.0, 2.0;
        cos in -2.0, 2.0;
        erf in -2.0, 2.0;
    };
    rows.extend(binary! { add sub mul div maximum });
    rows.extend(in_place! { add_ sub_ mul_ div_ });
    rows.extend(compare! { less less_equal equal not_equal greater greater_equal logical_and logical_or });
    rows.extend(scalar! {
        add_scalar 0.5;
        mul_scalar -2.0;
        div_scalar 3.0;
        pow_scalar 2.0;
        pow_scalar 2.5;
        max_scalar 1.0;
    });
    rows.extend([
        row("add_scalar_", |g| Ok(vec![g.target(&[2, 3])?.add_scalar_(1.5)?])),
        row("mul_scalar_", |g| Ok(vec![g.target(&[2, 3])?.mul_scalar_(1.5)?])),
        row("add of integers", |g| {
            let (x, y) = (g.index(&[2, 3], 9)?, g.ints(&[3], 9, DType::U8)?);
            Ok(vec![x.add(&y)?])
        }),
        row("sign", |g| Ok(vec![g.data(&[2, 3])?.sign()?])),
        row("logical_not", |g| Ok(vec![g.mask(&[2, 3])?.logical_not()?])),
        row("add_reusing", |g| {
            let (x, y) = (g.data(&[2, 3])?, g.data(&[2, 3])?);
            Ok(vec![x.exp()?.add_reusing(&y)?])
        }),
        row("where", |g| {
            let [b, s, h] = shape3(g);
            let (mask, x, y) = (g.mask(&[b, 1, h])?, g.float(&[s, h])?, g.float(&[b, s, 1])?);
            Ok(vec![mask.where_cond(&x, &y)?])
        }),
        row("where, one side frozen", |g| {
            let (mask, x, y) = (g.mask(&[2, 3])?, g.data(&[2, 3])?, g.float(&[])?);
            Ok(vec![mask.where_cond(&x, &y)?])
        }),
        row("clamp", |g| {
            let x = g.float(&[4, 5])?;
            Ok(vec![x.clamp(-0.7, 0.9)?, x.clamp(f64::NEG_INFINITY, 0.4)?, x.clamp(0.1, f64::INFINITY)?])
        }),
        row("masked_fill", |g| {
            let (x, mask) = (g.float(&[3, 2])?, g.mask(&[2, 3, 1])?);
            Ok(vec![x.masked_fill(&mask, -3.0)?])
        }),
        row("masked_fill_", |g| {
            let (x, mask) = (g.target(&[3, 2])?, g.mask(&[3, 1])?);
            Ok(vec![x.masked_fill_(&mask, -3.0)?])
        }),
        row("one operand used twice", |g| {
            let x = g.float(&[2, 3])?;
            Ok(vec![x.mul(&x)?.add(&x)?, x.exp()?])
        }),
    ]);
    rows
}

fn reductions() -> Vec<Row> {
    vec![
        row("sum", |g| {
            let shape = shape3(g);
            Ok(vec![g.float(&shape)?.sum(&[0, 2], false)?])
        }),
        row("sum, kept", |g| Ok(vec![g.float(&[2, 3])?.sum(&[-1], true)?])),
        row("sum of integers", |g| Ok(vec![g.ints(&[2, 3], 9, DType::I32)?.sum(&[0], false)?])),
        row("sum of a mask", |g| Ok(vec![g.mask(&[2, 3])?.sum_all()?])),
        row("mean", |g| {
            let shape = shape3(g);
            Ok(vec![g.float(&shape)?.mean(&[1], false)?])
        }),
        row("mean, kept", |g| Ok(vec![g.float(&[2, 3, 2])?.mean(&[0, -1], true)?])),
        row("mean of all", |g| Ok(vec![g.float(&[2, 3])?.mean_all()?])),
        row("sum_squares", |g| {
            let shape = shape3(g);
            Ok(vec![g.float(&shape)?.sum_squares(&[1], false)?])
        }),
        row("sum_squares, kept", |g| Ok(vec![g.float(&[2, 3, 2])?.sum_squares(&[0, -1], true)?])),
        row("sum_squares of all, in parts", |g| {
            Ok(vec![g.float(&[2, 3])?.sum_squares_all()?, g.data(&[5, 1000])?.sum_squares_all()?])
        }),
        row("max", |g| {
            let (values, indices) = g.float(&[2, 4, 3])?.max(1, false)?;
            Ok(vec![values, indices])
        }),
        row("max, kept", |g| Ok(vec![g.float(&[3, 4])?.max(0, true)?.0])),
        row("max of integers", |g| {
            let (values, indices) = g.index(&[3, 4], 9)?.max(0, true)?;
            Ok(vec![values, indices])
        }),
        row("argmax", |g| Ok(vec![g.data(&[3, 4])?.argmax(-1, false)?])),
        row("logsumexp", |g| {
            let shape = shape3(g);
            Ok(vec![g.float(&shape)?.logsumexp(1, false)?])
        }),
        row("logsumexp, kept", |g| Ok(vec![g.float(&[2, 4])?.logsumexp(-1, true)?])),
        row("cumsum", |g| {
            let shape = shape3(g);
            Ok(vec![g.float(&shape)?.cumsum(1)?])
        }),
        row("cumsum of integers", |g| Ok(vec![g.ints(&[4, 3], 9, DType::U8)?.cumsum(0)?])),
        row("topk", |g| {
            let (values, indices) = g.float(&[2, 5, 2])?.topk(3, 1)?;
            Ok(vec![values, indices])
        }),
    ]
}

fn by_index() -> Vec<Row> {
    vec![
        row("embedding", |g| {
            let (b, s) = (g.size(1..4), g.size(1..4));
            let (table, indices) = (g.float(&[5, 3])?, g.index(&[b, s], 5)?);
            Ok(vec![table.embedding(&indices)?])
        }),
        row("embedding, the table used again later", |g| {
            let (table, indices) = (g.float(&[5, 3])?, g.index(&[2, 4], 5)?);
            Ok(vec![table.embedding(&indices)?.linear(&table, None)?])
        }),
        row("embedding by u16", |g| {
            let (table, indices) = (g.float(&[4, 2])?, g.ints(&[6], 4, DType::U16)?);
            Ok(vec![table.embedding(&indices)?])
        }),
        row("embedding by u32, rows of rank 2", |g| {
            let (table, indices) = (g.float(&[4, 2, 2])?, g.ints(&[3], 4, DType::U32)?);
            Ok(vec![table.embedding(&indices)?])
        }),
        row("embedding by one i32", |g| {
            let (table, indices) = (g.float(&[4, 2])?, g.ints(&[], 4, DType::I32)?);
            Ok(vec![table.embedding(&indices)?])
        }),
        row("index", |g| {
            let (table, indices) = (g.float(&[5, 3])?, g.index(&[2, 4], 5)?);
            Ok(vec![table.index(&indices)?])
        }),
        row("index of a vector", |g| {
            let (table, indices) = (g.float(&[5])?, g.index(&[7], 5)?);
            Ok(vec![table.index(&indices)?])
        }),
        row("embedding of integers", |g| {
            let (table, indices) = (g.index(&[4, 2], 9)?, g.index(&[3], 4)?);
            Ok(vec![table.embedding(&indices)?])
        }),
        row("index_add", |g| {
            let (x, indices, source) = (g.float(&[4, 2])?, g.index(&[3], 4)?, g.float(&[3, 2])?);
            Ok(vec![x.index_add(&indices, &source)?])
        }),
        row("index_add_ in turn", |g| {
            let mut out = g.target(&[4, 2])?;
            for _ in 0..2 {
                let (indices, source) = (g.index(&[3], 4)?, g.float(&[3, 2])?);
                out = out.index_add_(&indices, &source)?;
            }
            Ok(vec![out])
        }),
        row("gather", |g| {
            let (x, index) = (g.float(&[3, 4, 2])?, g.index(&[2, 5, 2], 4)?);
            Ok(vec![x.gather(1, &index)?])
        }),
        row("gather along the last", |g| {
            let (x, index) = (g.float(&[3, 4])?, g.ints(&[3, 2], 4, DType::I32)?);
            Ok(vec![x.gather(-1, &index)?])
        }),
        row("scatter", |g| {
            // Distinct places: of several writers to one place only the last has a gradient.
            let index = g.data(&[3, 4])?.topk(2, 1)?.1;
            let (x, source) = (g.float(&[3, 4])?, g.float(&[3, 2])?);
            Ok(vec![x.scatter(1, &index, &source)?])
        }),
        row("scatter_", |g| {
            let (x, index, source) = (g.target(&[3, 4])?, g.index(&[2, 4], 3)?, g.data(&[2, 4])?);
            Ok(vec![x.scatter_(0, &index, &source)?])
        }),
        row("scatter_add", |g| {
            let (x, index, source) = (g.float(&[3, 4])?, g.index(&[3, 5], 4)?, g.float(&[3, 5])?);
            Ok(vec![x.scatter_add(1, &index, &source)?])
        }),
        row("scatter_add_", |g| {
            let (x, index, source) = (g.target(&[3, 4])?, g.index(&[3, 2], 4)?, g.data(&[3, 2])?);
            Ok(vec![x.scatter_add_(1, &index, &source)?])
        }),
        row("one_hot", |g| Ok(vec![g.index(&[2, 3], 4)?.one_hot(4)?])),
    ]
}

/// A narrow dtype, or f64 where gradients are held against differences.
fn narrow(g: &Inputs) -> DType {
    if g.dtype == DType::F64 { DType::F64 } else { DType::F8E4M3 }
}

/// `x Wᵀ + b` of scaled casts.
fn scaled_linear(g: &mut Inputs, bias: bool, trained: bool) -> Result<Vec<Tensor>> {
    let (narrow, wide) = (narrow(g), g.dtype);
    let one = |g: &Inputs, x: f64| g.rt.full(&[], x, DType::F32);
    let x = if trained { g.float(&[3, 4])? } else { g.data(&[3, 4])? };
    let (w, b) = (g.float(&[2, 4])?, if bias { Some(g.float(&[2])?) } else { None });
    let (x, x_inverse) = x.scaled_cast(narrow, &one(g, 4.0)?, &one(g, 0.0)?)?;
    let (w, w_inverse) = w.scaled_cast(narrow, &one(g, 2.0)?, &one(g, 0.0)?)?;
    let cast = GradientCast { narrow: if narrow == DType::F64 { narrow } else { DType::F8E5M2 }, factors: [wide; 2] };
    let (scale, amax) = (one(g, 8.0)?, one(g, 0.0)?);
    let gradient = GradientScale { cast, scale: &scale, amax: &amax };
    Ok(vec![x.scaled_linear(&x_inverse, (&w, &w_inverse), b.as_ref(), wide, gradient)?])
}

fn contractions() -> Vec<Row> {
    vec![
        row("matmul", |g| {
            let (b, m, k, n) = (g.size(1..3), g.size(1..4), g.size(1..4), g.size(1..4));
            let (x, y) = (g.float(&[b, m, k])?, g.float(&[b, k, n])?);
            Ok(vec![x.matmul(&y)?])
        }),
        row("matmul, broadcast batch", |g| {
            let (x, y) = (g.float(&[2, 1, 2, 3])?, g.float(&[2, 3, 2])?);
            Ok(vec![x.matmul(&y)?])
        }),
        row("matmul_add", |g| {
            let (b, m, k, n) = (g.size(1..3), g.size(1..4), g.size(1..4), g.size(1..4));
            let (base, x, y) = (g.float(&[b, m, n])?, g.float(&[b, m, k])?, g.float(&[b, k, n])?);
            Ok(vec![base.add_matmul(&x, &y, 0.5)?])
        }),
        row("matmul_add, frozen base and strided factors", |g| {
            let (base, x, y) = (g.data(&[2, 3, 4])?, g.float(&[2, 5, 3])?, g.float(&[4, 5, 2])?);
            Ok(vec![base.add_matmul(&x.t()?, &y.permute(&[2, 1, 0])?, 2.0)?])
        }),
        row("scaled_cast", |g| {
            let narrow = narrow(g);
            let (x, scale, amax) = (g.data(&[3, 4])?, g.rt.full(&[], 2.0, DType::F32)?, g.rt.zeros(&[1], DType::F32)?);
            let (cast, inverse) = x.scaled_cast(narrow, &scale, &amax)?;
            Ok(vec![cast, inverse, amax])
        }),
        row("scaled_cast without a scale", |g| {
            let (x, zero) = (g.data(&[3, 4])?, g.rt.zeros(&[], DType::F32)?);
            let amax = g.rt.zeros(&[], DType::F32)?;
            let (cast, inverse) = x.scaled_cast(DType::F8E5M2, &zero, &amax)?;
            Ok(vec![cast, inverse, amax])
        }),
        row("scaled_cast of what is not finite", |g| {
            let x = g.rt.tensor(&[f64::NAN, 1.0, f64::NEG_INFINITY, -0.5], &[4], g.dtype)?;
            let (scale, amax) = (g.rt.full(&[], 2.0, DType::F32)?, g.rt.zeros(&[], DType::F32)?);
            let (cast, inverse) = x.scaled_cast(narrow(g), &scale, &amax)?;
            Ok(vec![cast, inverse, amax])
        }),
        row("scaled_linear", |g| scaled_linear(g, true, true)),
        row("scaled_linear without bias", |g| scaled_linear(g, false, true)),
        row("scaled_linear, frozen input", |g| scaled_linear(g, true, false)),
        row("packed_linear", |g| {
            let (n, k) = (3, 130);
            let x = g.float(&[2, k])?;
            let mut outputs = Vec::new();
            for format in FORMATS {
                let weight: Vec<f64> = (0..n * k).map(|_| f64::from(g.size(0..2001) as u32) / 1000.0 - 1.0).collect();
                let stored = format.pack(n, k, &weight);
                let parts = format.parts(n, k).into_iter().zip(stored).take(format.operands());
                let parts = parts.map(|(part, values)| g.rt.tensor(&values, &[part.elements], part.dtype));
                outputs.push(x.packed_linear(
                    format,
                    &parts.collect::<Result<Vec<_>>>()?,
                    [n, k],
                    format.keeps_input,
                )?);
            }
            Ok(outputs)
        }),
        row("linear", |g| {
            let (x, w, b) = (g.float(&[2, 2, 3])?, g.float(&[4, 3])?, g.float(&[4])?);
            Ok(vec![x.linear(&w, Some(&b))?, x.linear(&w, None)?])
        }),
        row("linear, transposed weight", |g| {
            let (x, w, b) = (g.float(&[2, 3])?, g.float(&[3, 4])?, g.float(&[4])?);
            Ok(vec![x.linear_transposed(&w, Some(&b))?])
        }),
        row("linear, frozen input", |g| {
            let (x, w) = (g.data(&[2, 3])?, g.float(&[4, 3])?);
            Ok(vec![x.linear(&w, None)?])
        }),
    ]
}
