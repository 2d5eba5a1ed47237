//! Operands for the rows: random, but the same on every device and in every repetition.

use napkin_tensor::{DType, Device, Result, Runtime, Tensor};
use std::ops::Range;

/// A source of operands on one runtime. Two sources of equal seed and setting give equal operands.
pub struct Inputs {
    /// Runtime the operands live on.
    pub rt: Runtime,
    /// dtype of float operands.
    pub dtype: DType,
    /// Operands that collect a gradient, in the order they were drawn: the contiguous bases of their views.
    pub leaves: Vec<Tensor>,
    state: u64,
    strided: bool,
    nudge: Option<(usize, usize, f64)>,
}

impl Inputs {
    /// Operands in row-major order or, if `strided`, each in a layout drawn at random.
    pub fn new(device: Device, seed: u64, dtype: DType, strided: bool) -> Self {
        let rt = Runtime::with_seed(device, seed);
        Self { rt, dtype, leaves: Vec::new(), state: seed, strided, nudge: None }
    }

    /// The same operands, with `by` added to one element of one leaf.
    pub fn nudged(mut self, leaf: usize, element: usize, by: f64) -> Self {
        self.nudge = Some((leaf, element, by));
        self
    }

    /// splitmix64: short, and independent of the generator under test.
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn uniform(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A size.
    pub fn size(&mut self, range: Range<u64>) -> u64 {
        range.start + self.next() % (range.end - range.start)
    }

    /// A differentiable operand with values in [-1.5, 1.5).
    pub fn float(&mut self, shape: &[u64]) -> Result<Tensor> {
        self.range(shape, -1.5, 1.5)
    }

    /// A differentiable operand with values in [low, high).
    pub fn range(&mut self, shape: &[u64], low: f64, high: f64) -> Result<Tensor> {
        self.lay_out(shape, true, |g, base| {
            let mut values = g.draw(base, |g| g.uniform(low, high));
            if let Some((leaf, element, by)) = g.nudge
                && leaf == g.leaves.len()
            {
                values[element] += by;
            }
            let leaf = g.rt.tensor(&values, base, g.dtype)?.require_grad()?;
            g.leaves.push(leaf.clone());
            Ok(leaf)
        })
    }

    /// An operand without gradient.
    pub fn data(&mut self, shape: &[u64]) -> Result<Tensor> {
        self.constant(shape, true)
    }

    /// An operand without gradient that may be written to: strided, but never expanded.
    pub fn target(&mut self, shape: &[u64]) -> Result<Tensor> {
        self.constant(shape, false)
    }

    fn constant(&mut self, shape: &[u64], expand: bool) -> Result<Tensor> {
        self.lay_out(shape, expand, |g, base| {
            let values = g.draw(base, |g| g.uniform(-1.5, 1.5));
            g.rt.tensor(&values, base, g.dtype)
        })
    }

    /// Integers below `below`.
    pub fn ints(&mut self, shape: &[u64], below: u64, dtype: DType) -> Result<Tensor> {
        self.lay_out(shape, true, |g, base| {
            let values = g.draw(base, |g| g.size(0..below) as f64);
            g.rt.tensor(&values, base, dtype)
        })
    }

    /// i64 indices below `below`.
    pub fn index(&mut self, shape: &[u64], below: u64) -> Result<Tensor> {
        self.ints(shape, below, DType::I64)
    }

    /// A bool mask.
    pub fn mask(&mut self, shape: &[u64]) -> Result<Tensor> {
        self.ints(shape, 2, DType::Bool)
    }

    fn draw(&mut self, shape: &[u64], mut value: impl FnMut(&mut Self) -> f64) -> Vec<f64> {
        (0..shape.iter().product::<u64>()).map(|_| value(self)).collect()
    }

    /// Makes a base tensor and a view of it that has `shape`.
    fn lay_out(
        &mut self,
        shape: &[u64],
        expand: bool,
        make: impl FnOnce(&mut Self, &[u64]) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let mut base = shape.to_vec();
        let style = if self.strided && !shape.is_empty() { self.size(0..5) } else { 0 };
        let at = if shape.is_empty() { 0 } else { self.size(0..shape.len() as u64) as usize };
        let dim = at as isize;
        match style {
            1 => {
                let other = self.size(0..shape.len() as u64) as usize;
                base.swap(at, other);
                make(self, &base)?.transpose(dim, other as isize)
            }
            2 => {
                base[at] += 2;
                make(self, &base)?.narrow(dim, 1, shape[at])
            }
            3 => {
                base[at] *= 2;
                make(self, &base)?.narrow_step(dim, 1, shape[at], 2)
            }
            4 if expand => {
                base[at] = 1;
                make(self, &base)?.expand(shape)
            }
            _ => make(self, &base),
        }
    }
}

/// A random weighting of all float results, summed: a scalar that depends on each element of each.
pub fn loss(g: &mut Inputs, outputs: &[Tensor]) -> Result<Option<Tensor>> {
    let mut total: Option<Tensor> = None;
    for out in outputs.iter().filter(|t| t.dtype().is_float()) {
        let weight = g.data(out.shape())?.to_dtype(out.dtype())?;
        let part = out.mul(&weight)?.sum_all()?.to_dtype(g.dtype)?;
        total = Some(match total {
            Some(sum) => sum.add(&part)?,
            None => part,
        });
    }
    Ok(total)
}
