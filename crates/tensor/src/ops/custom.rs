//! An op from outside of this crate. It brings its own cost: there is no silent zero.

use super::{Needs, Op, Outs, Rule, Saves};
use crate::apply::{Outputs, apply};
use crate::autograd::{Back, Grads};
use crate::error::{Error, Result};
use crate::kernel::{Array, Data, Num};
use crate::meter::Cost;
use crate::tensor::{Spec, Tensor};
use std::fmt;
use std::rc::Rc;

/// What a custom op answers; the meanings are those of [`Rule`].
pub trait CustomOp {
    /// Name in events, errors and reports.
    fn name(&self) -> &'static str;

    /// Shape rule.
    ///
    /// # Errors
    /// Whatever operands the op does not take.
    fn infer(&self, inputs: &[Spec]) -> Result<Outs>;

    /// Cost rule. Required: an op whose cost is unknown cannot be metered.
    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost;

    /// The kernel, over dense row-major numbers.
    ///
    /// # Errors
    /// Values the op does not take.
    fn run(&self, inputs: &[Array<f64>], outputs: &mut [Array<f64>]) -> Result<()>;

    /// What is kept for backward.
    fn saves(&self, _: Needs) -> Saves {
        Saves::NONE
    }

    /// Inputs with a gradient rule, as a bit set. None by default: an input that wants a gradient is then an error.
    fn differentiable(&self) -> u8 {
        0
    }

    /// The gradients of the inputs.
    ///
    /// # Errors
    /// [`Error::NoGradient`] unless the op overrides it.
    fn gradient(&self, _: &Back<'_>) -> Result<Grads> {
        Err(Error::NoGradient { op: self.name(), input: 0 })
    }
}

/// A custom op as an op.
#[derive(Clone)]
pub struct Custom(pub Rc<dyn CustomOp>);

impl fmt::Debug for Custom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Custom({})", self.0.name())
    }
}

impl PartialEq for Custom {
    /// Two programs that use an op of one name use the same op.
    fn eq(&self, other: &Self) -> bool {
        self.0.name() == other.0.name()
    }
}

impl Rule for Custom {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        self.0.infer(inputs)
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        self.0.cost(inputs, outputs)
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        let plain = |data: &Data<T>| {
            let array = data.to_num();
            Array { shape: array.shape, data: array.data.into_iter().map(T::to_f64).collect() }
        };
        let inputs: Vec<Array<f64>> = inputs.iter().map(plain).collect();
        let mut results: Vec<Array<f64>> = outputs.iter().map(plain).collect();
        self.0.run(&inputs, &mut results)?;
        for (output, result) in outputs.iter_mut().zip(results) {
            match output {
                Data::Num(a) => a.data = result.data.into_iter().map(T::from_f64).collect(),
                Data::Int(a) => a.data = result.data.into_iter().map(|x| x as i64).collect(),
            }
        }
        Ok(())
    }

    fn saves(&self, needs: Needs) -> Saves {
        self.0.saves(needs)
    }

    fn differentiable(&self) -> u8 {
        self.0.differentiable()
    }

    fn gradient(&self, back: &Back<'_>) -> Result<Grads> {
        self.0.gradient(back)
    }
}

impl Tensor {
    /// Applies a custom op; it is metered, traced and differentiated like any other.
    ///
    /// # Errors
    /// Whatever the op refuses.
    pub fn custom(op: Rc<dyn CustomOp>, inputs: &[&Self]) -> Result<Outputs> {
        apply(Op::Custom(Custom(op)), inputs)
    }
}
