//! Products with a weight that is stored in few bits: it is read into a buffer of the compute dtype each time, in forward
//! and again in backward, and never kept. It is not trained.
//!
//! Source: bitsandbytes `MatMul4Bit` (forward reads the weight, multiplies, keeps the packed weight; backward reads it
//! again for the gradient of the input).

use super::unary::need_float;
use super::{Needs, Op, Outs, Rule, Saves, matmul::MatMul, one_fresh, traffic};
use crate::autograd::{Back, Grads};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel::{Data, Num};
use crate::layout::Dims;
use crate::meter::Cost;
use crate::packed::{Format, Reader, Scale};
use crate::tensor::{Spec, Tensor};
use smallvec::{SmallVec, smallvec};

/// Inputs: `x (rows.. k)`, then the tensors of [`Format::parts`] without the group index.
#[derive(Clone, Debug, PartialEq)]
pub struct PackedLinear {
    /// How the weight `(n k)` is stored.
    pub format: &'static Format,
    /// Outputs n.
    pub outputs: u64,
    /// Inputs k.
    pub inputs: u64,
    /// Whether the input is kept for backward though no gradient asks for it.
    pub keeps_input: bool,
    /// `x W` with `x (rows.. n)` instead of `x Wᵀ`: the gradient of the input.
    pub transposed: bool,
}

impl PackedLinear {
    /// Width of the input and of the result.
    fn widths(&self) -> (u64, u64) {
        if self.transposed { (self.outputs, self.inputs) } else { (self.inputs, self.outputs) }
    }

    /// Elementwise FLOP of reading the weight: the scale times each code; a scale that is stored narrow is scaled itself,
    /// and its mean added.
    fn reading_flops(&self) -> u128 {
        let each = match self.format.scale {
            Scale::F32 | Scale::F16 | Scale::E8m0 => 0,
            Scale::E4m3 => 1,
            Scale::Bytes => 2,
        };
        let (n, k) = (self.outputs, self.inputs);
        u128::from(n) * u128::from(k) + each * u128::from(self.format.blocks(n, k))
    }
}

impl Rule for PackedLinear {
    fn name(&self) -> &'static str {
        "packed_linear"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        let op = self.name();
        need_float(op, &inputs[0])?;
        let (width, result) = self.widths();
        let x = inputs[0].shape();
        let refuse =
            |other: &Spec, rule| Err(Error::Shapes { op, a: x.into(), b: other.shape().into(), rule });
        if x.last() != Some(&width) {
            return refuse(&inputs[1], "the last size of the input must be the width of the packed weight");
        }
        let parts = self.format.parts(self.outputs, self.inputs);
        for (part, input) in parts.iter().zip(&inputs[1..]) {
            if input.shape() != [part.elements] {
                return refuse(input, "a part of the packed weight has another size than its format says");
            }
            if part.dtype == DType::U8 && input.dtype != DType::U8 {
                return Err(Error::DType { op, got: input.dtype, expected: "u8 for codes" });
            }
            if part.dtype != DType::U8 {
                need_float(op, input)?;
            }
        }
        if inputs.len() != 1 + self.format.operands() {
            return refuse(&inputs[1], "the format has another number of parts");
        }
        let mut shape: Dims = x[..x.len() - 1].into();
        shape.push(result);
        one_fresh(&shape, inputs[0].dtype)
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        let (width, result) = self.widths();
        let rows = inputs[0].elements() / width.max(1);
        let flops = MatMul::flops(1, rows, result, width);
        let elementwise = self.reading_flops();
        let workspace = self.outputs * self.inputs * inputs[0].dtype.size_in_bytes();
        Cost { matmul: flops, matmul_dense: flops, elementwise, workspace, ..traffic(inputs, outputs) }
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let (n, k) = (self.outputs as usize, self.inputs as usize);
        let reader = Reader::new(self.format, &inputs[1..], k);
        let weight: Vec<T> = (0..n * k).map(|i| reader.at(i / k, i % k)).collect();
        let (x, out) = (inputs[0].num(), outputs[0].num_mut());
        let (width, result) = if self.transposed { (n, k) } else { (k, n) };
        for r in 0..x.data.len() / width.max(1) {
            for j in 0..result {
                let mut sum = T::zero();
                for p in 0..width {
                    let at = if self.transposed { p * k + j } else { j * k + p };
                    sum = sum + x.data[r * width + p] * weight[at];
                }
                out.data[r * result + j] = sum;
            }
        }
        Ok(())
    }

    fn saves(&self, needs: Needs) -> Saves {
        let parts = ((1u8 << self.format.operands()) - 1) << 1;
        Saves::inputs(needs.then(0, parts | u8::from(self.keeps_input)))
    }

    fn differentiable(&self) -> u8 {
        1
    }

    fn gradient(&self, back: &Back<'_>) -> Result<Grads> {
        let mut out: Grads = smallvec![None; back.len()];
        if back.wants(0) {
            let op = Self { transposed: !self.transposed, ..self.clone() };
            let parts: Vec<Tensor> = (1..back.len()).map(|i| Ok(back.input(i)?.clone())).collect::<Result<_>>()?;
            let grad = back.grad()?;
            let mut inputs: SmallVec<[&Tensor; 4]> = smallvec![grad];
            inputs.extend(&parts);
            out[0] = Some(Tensor::op(Op::PackedLinear(op), &inputs)?);
        }
        Ok(out)
    }
}

impl Tensor {
    /// `x Wᵀ` with a weight `(n k)` stored as `format` says, in `parts`; `keeps_input`: as some implementations do, the input
    /// is held until backward has been through.
    ///
    /// # Shapes
    /// self `rows.. k` -> `rows.. n`
    ///
    /// # Errors
    /// Parts of other sizes or dtypes than [`Format::parts`] says.
    pub fn packed_linear(
        &self,
        format: &'static Format,
        parts: &[Self],
        [n, k]: [u64; 2],
        keeps_input: bool,
    ) -> Result<Self> {
        let mut inputs: SmallVec<[&Self; 4]> = smallvec![self];
        inputs.extend(parts);
        let op = PackedLinear { format, outputs: n, inputs: k, keeps_input, transposed: false };
        Self::op(Op::PackedLinear(op), &inputs)
    }
}
