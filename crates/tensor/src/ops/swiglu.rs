//! Gated activations `act(gate) * up`: the inner half of a gated MLP. Source: Shazeer, arXiv:2002.05202.

use super::gelu::GeluForm;
use super::silu::{SILU_FLOPS, SILU_SLOPE_FLOPS, silu, silu_and_slope};
use super::unary::{need_float, one_like};
use super::{Needs, Op, Outs, Rule, Saves, elementwise, one_fresh};
use crate::autograd::{Back, Grads};
#[cfg(feature = "cpu")]
use crate::cpu::{Args, elementwise::{for_variant, map, map_views}};
use crate::error::{Error, Result};
use crate::kernel::{Data, Num};
use crate::layout::Dims;
#[cfg(feature = "cpu")]
use crate::layout::Layout;
use crate::meter::Cost;
use crate::tensor::{Spec, Tensor};
use smallvec::{SmallVec, smallvec};

/// The function of the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// `x σ(x)`: `SwiGLU`
    Silu,
    /// `x Φ(x)`: `GeGLU`
    GeluErf,
    /// `GeGLU` with the tanh approximation
    GeluTanh,
    /// `max(x, 0)`: `ReGLU`
    Relu,
    /// `σ(x)`: `GLU`
    Sigmoid,
}

impl Act {
    const fn value_flops(self) -> u128 {
        match self {
            Self::Silu => SILU_FLOPS,
            Self::GeluErf => GeluForm::Erf.value_flops(),
            Self::GeluTanh => GeluForm::Tanh.value_flops(),
            Self::Relu => 1,
            Self::Sigmoid => 4,
        }
    }

    #[inline(always)]
    fn value<T: Num>(self, x: T) -> T {
        match self {
            Self::Silu => silu(x),
            Self::GeluErf => GeluForm::Erf.value(x),
            Self::GeluTanh => GeluForm::Tanh.value(x),
            Self::Relu => x.max(T::zero()),
            Self::Sigmoid => T::one() / (T::one() + (-x).exp()),
        }
    }

    const fn slope_flops(self) -> u128 {
        match self {
            Self::Silu => SILU_SLOPE_FLOPS,
            Self::GeluErf => GeluForm::Erf.slope_flops(),
            Self::GeluTanh => GeluForm::Tanh.slope_flops(),
            Self::Relu => 1, // the slope is a selection
            Self::Sigmoid => 6,
        }
    }

    #[inline(always)]
    fn value_and_slope<T: Num>(self, x: T) -> (T, T) {
        match self {
            Self::Silu => silu_and_slope(x),
            Self::GeluErf => GeluForm::Erf.value_and_slope(x),
            Self::GeluTanh => GeluForm::Tanh.value_and_slope(x),
            Self::Relu => (x.max(T::zero()), if x.to_f64() > 0.0 { T::one() } else { T::zero() }),
            Self::Sigmoid => {
                let s = self.value(x);
                (s, s * (T::one() - s))
            }
        }
    }
}

/// `act(gate) * up`. Inputs: gate and up of one shape, or one packed `(.. 2f)` tensor, gate first. Keeps its inputs.
#[derive(Clone, Debug, PartialEq)]
pub struct GatedAct {
    /// Function of the gate.
    pub act: Act,
    /// Whether the one input holds both.
    pub packed: bool,
}

/// Position of the gate and of the up value that belong to output element `i`, in a packed array.
fn packed(i: usize, f: usize) -> (usize, usize) {
    let at = i / f * 2 * f + i % f;
    (at, at + f)
}

/// Layouts of the gate and of up in a packed tensor.
#[cfg(feature = "cpu")]
fn halves(both: &Layout) -> Result<[Layout; 2]> {
    let last = both.rank() - 1;
    let f = both.shape()[last] / 2;
    Ok([both.slice(last, 0, f, 1)?, both.slice(last, f, f, 1)?])
}

/// Shape with the last size replaced.
fn with_last(shape: &[u64], last: u64) -> Dims {
    shape[..shape.len() - 1].iter().copied().chain([last]).collect()
}

impl Rule for GatedAct {
    fn name(&self) -> &'static str {
        match self.act {
            Act::Silu => "swiglu",
            Act::GeluErf | Act::GeluTanh => "geglu",
            Act::Relu => "reglu",
            Act::Sigmoid => "glu",
        }
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        if !self.packed {
            return one_like(self.name(), inputs);
        }
        let x = &inputs[0];
        need_float(self.name(), x)?;
        match x.shape().last() {
            Some(last) if last % 2 == 0 => one_fresh(&with_last(x.shape(), last / 2), x.dtype),
            _ => Err(Error::Argument {
                op: self.name(),
                what: format!("a packed gate and up need an even last size, not shape {:?}", x.shape()),
            }),
        }
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        elementwise(inputs, outputs, (self.act.value_flops() + 1) * u128::from(outputs[0].elements()))
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let (first, out) = (inputs[0].num(), outputs[0].num_mut());
        let f = out.last();
        for (i, out) in out.data.iter_mut().enumerate() {
            let (gate, up) = if self.packed {
                let (gate, up) = packed(i, f);
                (first.data[gate], first.data[up])
            } else {
                (first.data[i], inputs[1].num().data[i])
            };
            *out = self.act.value(gate) * up;
        }
        Ok(())
    }

    #[cfg(feature = "cpu")]
    fn run_cpu(&self, args: &mut Args<'_>) -> Result<bool> {
        let output = args.outputs[0].layout;
        let halves = if self.packed { Some(halves(args.inputs[0].layout)?) } else { None };
        let [gate, up] = match &halves {
            Some([gate, up]) => [(0, gate), (0, up)],
            None => [0, 1].map(|i| (i, args.inputs[i].layout)),
        };
        Ok(for_variant!(
            self: GatedAct, self.act in Act { Silu, GeluErf, GeluTanh, Relu, Sigmoid },
            |_, act, [gate, up]| [act.value(gate) * up], 2 to 1,
            f => map_views(args, [gate, up], output, &f)
        ))
    }

    fn saves(&self, needs: Needs) -> Saves {
        if self.packed {
            return Saves::inputs(1);
        }
        // d gate needs both; d up needs the gate only.
        Saves::inputs(needs.then(0, 0b11) | needs.then(1, 0b01))
    }

    fn differentiable(&self) -> u8 {
        if self.packed { 0b01 } else { 0b11 }
    }

    fn gradient(&self, back: &Back<'_>) -> Result<Grads> {
        let (grad, two) = (back.grad()?, !self.packed);
        let op = GatedActBackward { act: self.act, packed: self.packed, gate: back.wants(0), up: two && back.wants(1) };
        let mut inputs: SmallVec<[&Tensor; 3]> = smallvec![grad, back.input(0)?];
        if two && op.gate {
            inputs.push(back.input(1)?);
        }
        let mut made = crate::apply::apply(Op::GatedActBackward(op.clone()), &inputs)?.into_iter();
        let mut out = Grads::new();
        out.push(if op.gate { made.next() } else { None });
        if two {
            out.push(if op.up { made.next() } else { None });
        }
        Ok(out)
    }
}

/// Gradients of [`GatedAct`] in one pass. Inputs: gradient, gate, and up if the gradient of the gate is wanted; or
/// gradient and packed input, whose gradient is packed too.
#[derive(Clone, Debug, PartialEq)]
pub struct GatedActBackward {
    /// Function of the gate.
    pub act: Act,
    /// Whether gate and up lie in one tensor.
    pub packed: bool,
    /// Whether the gradient of the gate (or of the packed input) is wanted.
    pub gate: bool,
    /// Whether the gradient of up is wanted, as an output of its own.
    pub up: bool,
}

impl Rule for GatedActBackward {
    fn name(&self) -> &'static str {
        match self.act {
            Act::Silu => "swiglu_backward",
            Act::GeluErf | Act::GeluTanh => "geglu_backward",
            Act::Relu => "reglu_backward",
            Act::Sigmoid => "glu_backward",
        }
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        let (grad, gate) = (&inputs[0], &inputs[1]);
        if self.packed {
            need_float(self.name(), gate)?;
            if !self.gate || self.up || grad.dtype != gate.dtype {
                return Err(Error::Argument { op: self.name(), what: "a packed input has one gradient".into() });
            }
            let fits =
                gate.shape().last().is_some_and(|last| with_last(gate.shape(), last / 2).as_slice() == grad.shape());
            if !fits {
                let rule = "the packed input must be twice as wide as the gradient";
                return Err(Error::Shapes { op: self.name(), a: grad.shape().into(), b: gate.shape().into(), rule });
            }
            return one_fresh(gate.shape(), gate.dtype);
        }
        if inputs.len() != 2 + usize::from(self.gate) || !(self.gate || self.up) {
            let what = "needs gradient, gate, and up exactly if the gradient of the gate is wanted".into();
            return Err(Error::Argument { op: self.name(), what });
        }
        let one = one_like(self.name(), inputs)?.swap_remove(0);
        Ok(std::iter::repeat_n(one, usize::from(self.gate) + usize::from(self.up)).collect())
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        let up = u128::from(self.up || self.packed);
        let per_element = self.act.slope_flops() + 2 * u128::from(self.gate) + up;
        elementwise(inputs, outputs, per_element * u128::from(inputs[0].elements()))
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let (grad, first) = (inputs[0].num(), inputs[1].num());
        let f = grad.last();
        for (i, &g) in grad.data.iter().enumerate() {
            let (at_gate, at_up) = if self.packed { packed(i, f) } else { (i, i) };
            let (value, slope) = self.act.value_and_slope(first.data[at_gate]);
            if self.gate {
                let up = if self.packed { first.data[at_up] } else { inputs[2].num().data[i] };
                outputs[0].num_mut().data[at_gate] = g * up * slope;
            }
            if self.packed {
                outputs[0].num_mut().data[at_up] = g * value;
            } else if self.up {
                outputs[usize::from(self.gate)].num_mut().data[i] = g * value;
            }
        }
        Ok(())
    }

    #[cfg(feature = "cpu")]
    fn run_cpu(&self, args: &mut Args<'_>) -> Result<bool> {
        if self.packed {
            let [gate, up] = halves(args.inputs[1].layout)?;
            let [to_gate, to_up] = halves(args.outputs[0].layout)?;
            let grad = (0, args.inputs[0].layout);
            // A pass for each half: two outputs cannot lie in one tensor.
            return Ok(for_variant!(
                self: GatedActBackward, self.act in Act { Silu, GeluErf, GeluTanh, Relu, Sigmoid },
                |_, act, [g, gate, up]| [g * up * act.value_and_slope(gate).1], 3 to 1,
                f => map_views(args, [grad, (1, &gate), (1, &up)], &to_gate, &f)
            ) && for_variant!(
                self: GatedActBackward, self.act in Act { Silu, GeluErf, GeluTanh, Relu, Sigmoid },
                |_, act, [g, gate]| [g * act.value_and_slope(gate).0], 2 to 1,
                f => map_views(args, [grad, (1, &gate)], &to_up, &f)
            ));
        }
        Ok(match (self.gate, self.up) {
            (true, true) => for_variant!(
                self: GatedActBackward, self.act in Act { Silu, GeluErf, GeluTanh, Relu, Sigmoid },
                |_, act, [g, gate, up]| {
                    let (value, slope) = act.value_and_slope(gate);
                    [g * up * slope, g * value]
                }, 3 to 2,
                f => map(args, &f)
            ),
            (true, false) => for_variant!(
                self: GatedActBackward, self.act in Act { Silu, GeluErf, GeluTanh, Relu, Sigmoid },
                |_, act, [g, gate, up]| [g * up * act.value_and_slope(gate).1], 3 to 1,
                f => map(args, &f)
            ),
            _ => for_variant!(
                self: GatedActBackward, self.act in Act { Silu, GeluErf, GeluTanh, Relu, Sigmoid },
                |_, act, [g, gate]| [g * act.value_and_slope(gate).0], 2 to 1,
                f => map(args, &f)
            ),
        })
    }
}

impl Tensor {
    /// `act(self) * up`: this tensor is the gate.
    ///
    /// # Shapes
    /// `.. f`, `.. f` -> `.. f`
    pub fn gated(&self, act: Act, up: &Self) -> Result<Self> {
        Self::op(Op::GatedAct(GatedAct { act, packed: false }), &[self, up])
    }

    /// `act(gate) * up` of a tensor that holds both, gate first.
    ///
    /// # Shapes
    /// `.. (2 f)` -> `.. f`
    pub fn gated_packed(&self, act: Act) -> Result<Self> {
        Self::op(Op::GatedAct(GatedAct { act, packed: true }), &[self])
    }

    /// `silu(self) * up`
    pub fn swiglu(&self, up: &Self) -> Result<Self> {
        self.gated(Act::Silu, up)
    }
}
