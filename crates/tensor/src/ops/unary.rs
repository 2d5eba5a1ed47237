//! One operand: negation, exponentials, roots, trigonometry, activations without parameters.

use super::{Needs, Op, Out, Outs, Rule, Saves, elementwise};
use crate::autograd::{Back, Grads};
#[cfg(feature = "cpu")]
use crate::cpu::{Args, elementwise::{for_variant, map}};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel::{Data, Num};
use crate::layout::{Layout, elementwise_layout};
use crate::meter::Cost;
use crate::tensor::{Spec, Tensor};
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;

/// An elementwise op of one tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Unary {
    /// Which one.
    pub kind: UnaryKind,
}

/// The unary ops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnaryKind {
    /// `-x`
    Neg,
    /// `e^x`
    Exp,
    /// `ln x`
    Log,
    /// `sqrt x`
    Sqrt,
    /// `1 / sqrt x`
    Rsqrt,
    /// `1 / x`
    Reciprocal,
    /// `tanh x`
    Tanh,
    /// `1 / (1 + e^-x)`
    Sigmoid,
    /// `max(x, 0)`
    Relu,
    /// `ln(1 + e^x)`
    Softplus,
    /// `sin x`
    Sin,
    /// `cos x`
    Cos,
    /// `erf x`
    Erf,
    /// -1, 0 or 1; NaN stays NaN
    Sign,
    /// Logical not, as bool
    Not,
}

/// Above it softplus is the identity to f32 precision, and `e^x` would overflow further on.
const SOFTPLUS_LINEAR: f64 = 20.0;

impl UnaryKind {
    /// Arithmetic operations per element.
    const fn flops(self) -> u128 {
        match self {
            Self::Not | Self::Sign => 0, // selections
            Self::Rsqrt => 2,    // sqrt, divide
            Self::Sigmoid => 4,  // negate, exp, add, divide
            Self::Softplus => 3, // exp, add, ln
            _ => 1,
        }
    }

    #[inline(always)]
    fn compute<T: Num>(self, x: T) -> T {
        match self {
            Self::Neg => -x,
            Self::Exp => x.exp(),
            Self::Log => x.ln(),
            Self::Sqrt => x.sqrt(),
            Self::Rsqrt => T::one() / x.sqrt(),
            Self::Reciprocal => T::one() / x,
            Self::Tanh => x.tanh(),
            Self::Sigmoid => T::one() / (T::one() + (-x).exp()),
            Self::Relu => x.max(T::zero()),
            Self::Softplus => {
                let value = (T::one() + x.exp()).ln();
                if x.to_f64() > SOFTPLUS_LINEAR { x } else { value }
            }
            Self::Sin => x.sin(),
            Self::Cos => x.cos(),
            Self::Erf => x.erf(),
            Self::Sign => match x.to_f64() {
                value if value == 0.0 || value.is_nan() => x,
                value => T::from_f64(value.signum()),
            },
            Self::Not => {
                if x.to_f64() == 0.0 {
                    T::one()
                } else {
                    T::zero()
                }
            }
        }
    }
}

impl UnaryKind {
    /// The gradient from that of the result and what forward kept.
    #[inline(always)]
    fn backward<T: Num>(self, g: T, v: T) -> T {
        match self {
            Self::Tanh => g * (T::one() - v * v),
            Self::Sigmoid => g * ((T::one() - v) * v),
            Self::Softplus => {
                let e = v.exp();
                let slope = g * (e / (T::one() + e));
                if v.to_f64() > SOFTPLUS_LINEAR { g } else { slope }
            }
            _ if v.to_f64() <= 0.0 => T::zero(),
            _ => g,
        }
    }
}

impl Rule for Unary {
    fn name(&self) -> &'static str {
        match self.kind {
            UnaryKind::Neg => "neg",
            UnaryKind::Exp => "exp",
            UnaryKind::Log => "log",
            UnaryKind::Sqrt => "sqrt",
            UnaryKind::Rsqrt => "rsqrt",
            UnaryKind::Reciprocal => "reciprocal",
            UnaryKind::Tanh => "tanh",
            UnaryKind::Sigmoid => "sigmoid",
            UnaryKind::Relu => "relu",
            UnaryKind::Softplus => "softplus",
            UnaryKind::Sin => "sin",
            UnaryKind::Cos => "cos",
            UnaryKind::Erf => "erf",
            UnaryKind::Sign => "sign",
            UnaryKind::Not => "not",
        }
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        let dtype = match self.kind {
            UnaryKind::Not => DType::Bool,
            UnaryKind::Neg | UnaryKind::Sign if !inputs[0].dtype.is_bool() => inputs[0].dtype,
            _ if inputs[0].dtype.is_float() => inputs[0].dtype,
            _ => {
                return Err(Error::DType { op: self.name(), got: inputs[0].dtype, expected: "a floating-point dtype" });
            }
        };
        let layout = elementwise_layout(inputs[0].shape(), &[&inputs[0].layout]);
        Ok(smallvec![Out::Fresh(Spec { dtype, layout: Arc::new(layout) })])
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        elementwise(inputs, outputs, self.kind.flops() * u128::from(outputs[0].elements()))
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        for (i, x) in inputs[0].to_num().data.into_iter().enumerate() {
            let value = self.kind.compute(x);
            match &mut outputs[0] {
                Data::Num(out) => out.data[i] = value,
                Data::Int(out) => out.data[i] = value.to_f64() as i64,
            }
        }
        Ok(())
    }

    #[cfg(feature = "cpu")]
    fn run_cpu(&self, args: &mut Args<'_>) -> Result<bool> {
        Ok(for_variant!(
 self: Unary, self.kind in UnaryKind { Neg, Sign, Exp, Log, Sqrt, Rsqrt, Reciprocal, Tanh, Sigmoid, Relu, Softplus, Sin, Cos, Erf, Not },
 |_, kind, [x]| [kind.compute(x)], 1 to 1, f => map(args, &f)
))
    }

    fn saves(&self, _: Needs) -> Saves {
        match self.kind {
            UnaryKind::Neg | UnaryKind::Not | UnaryKind::Sign => Saves::NONE,
            UnaryKind::Log | UnaryKind::Sin | UnaryKind::Cos | UnaryKind::Erf | UnaryKind::Softplus => Saves::inputs(1),
            // Where the derivative is a function of the result, the result is kept: it often lives on anyway.
            _ => Saves::outputs(1),
        }
    }

    fn differentiable(&self) -> u8 {
        u8::from(!matches!(self.kind, UnaryKind::Not | UnaryKind::Sign))
    }

    fn gradient(&self, back: &Back<'_>) -> Result<Grads> {
        let g = back.grad()?;
        let out = match self.kind {
            UnaryKind::Neg => g.neg()?,
            UnaryKind::Exp => g.mul(back.output(0)?)?,
            UnaryKind::Log => g.div(back.input(0)?)?,
            UnaryKind::Sqrt => g.div(&back.output(0)?.mul_scalar(2.0)?)?,
            // d x^-1/2 = -1/2 x^-3/2
            UnaryKind::Rsqrt => g.mul_scalar(-0.5)?.mul(&back.output(0)?.pow_scalar(3.0)?)?,
            UnaryKind::Reciprocal => {
                let y = back.output(0)?;
                g.neg()?.mul(&y.mul(y)?)?
            }
            UnaryKind::Tanh | UnaryKind::Sigmoid | UnaryKind::Relu => {
                Tensor::op(UnaryBackward { kind: self.kind }, &[g, back.output(0)?])?
            }
            UnaryKind::Softplus => Tensor::op(UnaryBackward { kind: self.kind }, &[g, back.input(0)?])?,
            UnaryKind::Sin => g.mul(&back.input(0)?.cos()?)?,
            UnaryKind::Cos => g.neg()?.mul(&back.input(0)?.sin()?)?,
            UnaryKind::Erf => {
                let x = back.input(0)?;
                let slope = x.mul(x)?.neg()?.exp()?.mul_scalar(std::f64::consts::FRAC_2_SQRT_PI)?;
                g.mul(&slope)?
            }
            UnaryKind::Not | UnaryKind::Sign => return Err(Error::NoGradient { op: self.name(), input: 0 }),
        };
        Ok(smallvec![Some(out)])
    }
}

/// Gradient of tanh, sigmoid, relu or softplus in one pass: the reference has kernels for these, and composes the rest.
///
/// Inputs: gradient of the result, and what forward kept (softplus: its input; the others: their result).
#[derive(Clone, Debug, PartialEq)]
pub struct UnaryBackward {
    /// Op whose gradient it is.
    pub kind: UnaryKind,
}

impl Rule for UnaryBackward {
    fn name(&self) -> &'static str {
        match self.kind {
            UnaryKind::Tanh => "tanh_backward",
            UnaryKind::Sigmoid => "sigmoid_backward",
            UnaryKind::Relu => "relu_backward",
            UnaryKind::Softplus => "softplus_backward",
            _ => "unary_backward",
        }
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        match self.kind {
            UnaryKind::Tanh | UnaryKind::Sigmoid | UnaryKind::Relu | UnaryKind::Softplus => {
                one_like(self.name(), inputs)
            }
            _ => Err(Error::NoGradient { op: self.name(), input: 0 }),
        }
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        let per_element = match self.kind {
            UnaryKind::Relu => 0, // a selection
            UnaryKind::Softplus => 4,
            _ => 3,
        };
        elementwise(inputs, outputs, per_element * u128::from(outputs[0].elements()))
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let (grad, kept, out) = (inputs[0].num(), inputs[1].num(), outputs[0].num_mut());
        for ((out, &g), &v) in out.data.iter_mut().zip(&grad.data).zip(&kept.data) {
            *out = self.kind.backward(g, v);
        }
        Ok(())
    }

    #[cfg(feature = "cpu")]
    fn run_cpu(&self, args: &mut Args<'_>) -> Result<bool> {
        Ok(for_variant!(
 self: UnaryBackward, self.kind in UnaryKind { Neg, Sign, Exp, Log, Sqrt, Rsqrt, Reciprocal, Tanh, Sigmoid, Relu, Softplus, Sin, Cos, Erf, Not },
 |_, kind, [g, v]| [kind.backward(g, v)], 2 to 1, f => map(args, &f)
))
    }
}

/// Refuses what is not floating point.
pub(crate) fn need_float(op: &'static str, spec: &Spec) -> Result<()> {
    if spec.dtype.is_float() {
        Ok(())
    } else {
        Err(Error::DType { op, got: spec.dtype, expected: "a floating-point dtype" })
    }
}

/// A fresh output for an elementwise op without broadcasting: all inputs float, of one shape and dtype.
pub(crate) fn one_like(op: &'static str, inputs: &[Spec]) -> Result<Outs> {
    let first = &inputs[0];
    need_float(op, first)?;
    for other in &inputs[1..] {
        if other.shape() != first.shape() {
            let rule = "all operands must have one shape";
            return Err(Error::Shapes { op, a: first.shape().into(), b: other.shape().into(), rule });
        }
        if other.dtype != first.dtype {
            return Err(Error::NoPromotion { op, a: first.dtype, b: other.dtype });
        }
    }
    let layouts: SmallVec<[&Layout; 3]> = inputs.iter().map(|s| &*s.layout).collect();
    let layout = elementwise_layout(first.shape(), &layouts);
    Ok(smallvec![Out::Fresh(Spec { dtype: first.dtype, layout: Arc::new(layout) })])
}

macro_rules! methods {
    ($($(#[$doc:meta])* $name:ident = $kind:ident;)*) => {
        impl Tensor {
            $($(#[$doc])*
            pub fn $name(&self) -> Result<Self> {
                Self::op(Op::Unary(Unary { kind: UnaryKind::$kind }), &[self])
            })*
        }
    };
}

methods! {
    /// `-x`
    neg = Neg;
    /// `e^x`
    exp = Exp;
    /// `ln x`
    log = Log;
    /// `sqrt x`
    sqrt = Sqrt;
    /// `1 / sqrt x`
    rsqrt = Rsqrt;
    /// `1 / x`
    reciprocal = Reciprocal;
    /// `tanh x`
    tanh = Tanh;
    /// `1 / (1 + e^-x)`
    sigmoid = Sigmoid;
    /// `max(x, 0)`
    relu = Relu;
    /// `ln(1 + e^x)`
    softplus = Softplus;
    /// `sin x`
    sin = Sin;
    /// `cos x`
    cos = Cos;
    /// `erf x`
    erf = Erf;
    /// -1, 0 or 1; NaN stays NaN. No gradient goes through it.
    sign = Sign;
    /// Logical not.
    logical_not = Not;
}
