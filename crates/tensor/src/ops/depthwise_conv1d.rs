//! Convolution over time with one filter per channel: the short convolutions of state-space and linear-attention layers.

use super::{Needs, Outs, Rule, Saves, one_fresh, traffic};
use crate::autograd::{Back, Grads};
use crate::error::{Error, Result};
use crate::kernel::{Array, Data, Num};
use crate::meter::Cost;
use crate::tensor::{Spec, Tensor};
use smallvec::{SmallVec, smallvec};

/// Inputs: `x (b c s)`, filters `(c k)`, and a bias `(c)` if there is one. Output `(b c o)`, `o = s + 2 padding - k + 1`.
///
/// `matmul` counts the taps that fall on the sequence, `matmul_dense` those on the zeros beside it too, as common
/// counters do. Keeps input and filters.
#[derive(Clone, Debug, PartialEq)]
pub struct DepthwiseConv1d {
    /// Zeros on either side.
    pub padding: u64,
}

/// Gradient of the input. Inputs: gradient `(b c o)`, filters `(c k)`. Output `(b c s)`.
#[derive(Clone, Debug, PartialEq)]
pub struct DepthwiseConv1dInput {
    /// Zeros on either side.
    pub padding: u64,
}

/// Gradient of the filters. Inputs: gradient `(b c o)`, input `(b c s)`. Output `(c k)`.
#[derive(Clone, Debug, PartialEq)]
pub struct DepthwiseConv1dWeight {
    /// Zeros on either side.
    pub padding: u64,
}

/// Taps of one channel: `(those on the sequence, all)`, of `o = s + 2 padding - k + 1` outputs of `k` taps.
///
/// Tap j of output t reads element t + j - padding. Those before the sequence have t + j < padding; those behind it are as
/// many, by reading both backwards.
fn taps(k: u64, o: u64, padding: u64) -> (u128, u128) {
    // Pairs of numbers from 0 on whose sum is below n.
    let pairs = |n: u64| u128::from(n) * (u128::from(n) + 1) / 2;
    let (beyond_o, beyond_k) = (padding.saturating_sub(o), padding.saturating_sub(k));
    let before = pairs(padding) + pairs(beyond_o.saturating_sub(k)) - pairs(beyond_o) - pairs(beyond_k);
    let all = u128::from(o) * u128::from(k);
    (all - 2 * before, all)
}

/// The products of all channels as a cost.
fn products(b: u64, c: u64, taps: (u128, u128)) -> (u128, u128) {
    let flop = |taps: u128| 2 * u128::from(b) * u128::from(c) * taps;
    (flop(taps.0), flop(taps.1))
}

/// Calls `f` with the places of output, input and filter of every tap that falls on the sequence.
fn each_tap(x: [usize; 3], k: usize, o: usize, padding: usize, mut f: impl FnMut(usize, usize, usize)) {
    let [b, c, s] = x;
    for row in 0..b * c {
        let channel = row % c;
        for t in 0..o {
            for j in 0..k {
                if (padding..s + padding).contains(&(t + j)) {
                    f(row * o + t, row * s + t + j - padding, channel * k + j);
                }
            }
        }
    }
}

fn three<T>(x: &Array<T>) -> [usize; 3] {
    [x.shape[0], x.shape[1], x.shape[2]]
}

impl Rule for DepthwiseConv1d {
    fn name(&self) -> &'static str {
        "depthwise_conv1d"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        let (x, w) = (inputs[0].shape(), inputs[1].shape());
        let refuse = |rule| Err(Error::Shapes { op: "depthwise_conv1d", a: x.into(), b: w.into(), rule });
        let (&[b, c, s], &[filters, k]) = (x, w) else {
            return refuse("the input must be (batch, channels, time) and the filters (channels, taps)");
        };
        if c != filters {
            return refuse("there must be one filter per channel");
        }
        if k == 0 || k > s + 2 * self.padding {
            return refuse("the filters must be no longer than the padded sequence");
        }
        if let Some(bias) = inputs.get(2).filter(|bias| bias.shape() != [c]) {
            let rule = "the bias must have one element per channel";
            return Err(Error::Shapes { op: "depthwise_conv1d", a: x.into(), b: bias.shape().into(), rule });
        }
        if let Some(other) = inputs[1..].iter().find(|other| other.dtype != inputs[0].dtype) {
            return Err(Error::NoPromotion { op: "depthwise_conv1d", a: inputs[0].dtype, b: other.dtype });
        }
        one_fresh(&[b, c, s + 2 * self.padding - k + 1], inputs[0].dtype)
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        let (x, o, k) = (inputs[0].shape(), outputs[0].shape()[2], inputs[1].shape()[1]);
        let (matmul, matmul_dense) = products(x[0], x[1], taps(k, o, self.padding));
        let bias = if inputs.len() > 2 { u128::from(outputs[0].elements()) } else { 0 };
        Cost { matmul, matmul_dense, elementwise: bias, ..traffic(inputs, outputs) }
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let (x, w, out) = (inputs[0].num(), inputs[1].num(), outputs[0].num_mut());
        let (k, o) = (w.shape[1], out.shape[2]);
        each_tap(three(x), k, o, self.padding as usize, |at, from, tap| {
            out.data[at] = out.data[at] + x.data[from] * w.data[tap];
        });
        if let Some(bias) = inputs.get(2) {
            let bias = bias.num();
            for (row, line) in out.data.chunks_mut(o.max(1)).enumerate() {
                for y in line {
                    *y = *y + bias.data[row % bias.data.len()];
                }
            }
        }
        Ok(())
    }

    fn saves(&self, needs: Needs) -> Saves {
        Saves::inputs(needs.then(0, 0b10) | needs.then(1, 0b01))
    }

    fn differentiable(&self) -> u8 {
        0b111
    }

    fn gradient(&self, back: &Back<'_>) -> Result<Grads> {
        let (grad, padding) = (back.grad()?, self.padding);
        let mut out: Grads = SmallVec::new();
        out.push(if back.wants(0) {
            Some(Tensor::op(DepthwiseConv1dInput { padding }, &[grad, back.input(1)?])?)
        } else {
            None
        });
        out.push(if back.wants(1) {
            Some(Tensor::op(DepthwiseConv1dWeight { padding }, &[grad, back.input(0)?])?)
        } else {
            None
        });
        if back.len() > 2 {
            out.push(if back.wants(2) { Some(grad.sum(&[0, 2], false)?) } else { None });
        }
        Ok(out)
    }
}

impl Rule for DepthwiseConv1dInput {
    fn name(&self) -> &'static str {
        "depthwise_conv1d_input"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        let (grad, k) = (inputs[0].shape(), inputs[1].shape()[1]);
        one_fresh(&[grad[0], grad[1], grad[2] + k - 1 - 2 * self.padding], inputs[0].dtype)
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        let (grad, k) = (inputs[0].shape(), inputs[1].shape()[1]);
        let (matmul, matmul_dense) = products(grad[0], grad[1], taps(k, grad[2], self.padding));
        Cost { matmul, matmul_dense, ..traffic(inputs, outputs) }
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let (grad, w, out) = (inputs[0].num(), inputs[1].num(), outputs[0].num_mut());
        each_tap(three(out), w.shape[1], grad.shape[2], self.padding as usize, |at, from, tap| {
            out.data[from] = out.data[from] + grad.data[at] * w.data[tap];
        });
        Ok(())
    }
}

impl Rule for DepthwiseConv1dWeight {
    fn name(&self) -> &'static str {
        "depthwise_conv1d_weight"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        let (grad, x) = (inputs[0].shape(), inputs[1].shape());
        one_fresh(&[x[1], x[2] + 2 * self.padding + 1 - grad[2]], inputs[0].dtype)
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        let (grad, x, k) = (inputs[0].shape(), inputs[1].shape(), outputs[0].shape()[1]);
        let (matmul, matmul_dense) = products(x[0], x[1], taps(k, grad[2], self.padding));
        Cost { matmul, matmul_dense, ..traffic(inputs, outputs) }
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let (grad, x, out) = (inputs[0].num(), inputs[1].num(), outputs[0].num_mut());
        each_tap(three(x), out.shape[1], grad.shape[2], self.padding as usize, |at, from, tap| {
            out.data[tap] = out.data[tap] + grad.data[at] * x.data[from];
        });
        Ok(())
    }
}

impl Tensor {
    /// Each channel convolved with its own filter, between `padding` zeros on either side.
    ///
    /// # Shapes
    /// self `b c s`, filters `c k`, bias `c` -> `b c (s + 2 padding - k + 1)`
    pub fn depthwise_conv1d(&self, filters: &Self, bias: Option<&Self>, padding: u64) -> Result<Self> {
        let mut inputs: SmallVec<[&Self; 3]> = smallvec![self, filters];
        inputs.extend(bias);
        Self::op(DepthwiseConv1d { padding }, &inputs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against the taps counted one by one.
    #[test]
    fn taps_on_the_sequence() {
        for (s, k, padding) in (0..6).flat_map(|s| (1..6).flat_map(move |k| (0..7).map(move |p| (s, k, p)))) {
            if k > s + 2 * padding {
                continue;
            }
            let o = s + 2 * padding - k + 1;
            let sums = (0..o).flat_map(|t| (0..k).map(move |j| t + j));
            let on = sums.filter(|sum| (padding..s + padding).contains(sum)).count() as u128;
            assert_eq!(taps(k, o, padding), (on, u128::from(o * k)), "{s} {k} {padding}");
        }
    }
}
