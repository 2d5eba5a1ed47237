//! Root-mean-square norms with a gate, over groups of channels.

use crate::context::Forward;
use crate::param::{Builder, Init, ParamKind};
use crate::spec::{GateOrder, GatedNormSpec};
use std::rc::Rc;
use tensor::{DType, Result, Tensor};

/// A norm and its gate.
#[derive(Clone, Debug)]
pub struct GatedNorm {
    spec: Rc<GatedNormSpec>,
    weight: Tensor,
}

impl GatedNorm {
    /// A norm over `width` channels in the module `spec.name`.
    ///
    /// # Errors
    /// If the width is too large to count.
    pub fn new(b: &Builder<'_>, spec: &GatedNormSpec, width: u64) -> Result<Self> {
        let _scope = b.runtime().scope(spec.name);
        let weight = b.param("weight", &[width], ParamKind::Vector, Init::Ones)?;
        Ok(Self { spec: Rc::new(spec.clone()), weight })
    }

    /// `rows.. c`, gate `rows.. c` -> `rows.. c`
    pub fn forward(&self, f: &Forward, x: &Tensor, gate: &Tensor) -> Result<Tensor> {
        let _scope = f.runtime.scope(self.spec.name);
        let dtype = x.dtype();
        let open = || super::hf::activate(f, self.spec.act, gate.to_dtype(DType::F32)?);
        let wide = x.to_dtype(DType::F32)?;
        match self.spec.order {
            GateOrder::First => {
                let normal = self.normalised(f, &wide.mul(&open()?)?)?;
                f.weight(&self.weight)?.mul(&normal.to_dtype(dtype)?)
            }
            GateOrder::Last => self.weight.mul(&self.normalised(f, &wide)?)?.mul(&open()?)?.to_dtype(dtype),
            GateOrder::LastNarrowWeight => {
                let normal = self.normalised(f, &wide)?.to_dtype(dtype)?;
                f.weight(&self.weight)?.mul(&normal)?.mul(&open()?)?.to_dtype(dtype)
            }
        }
    }

    /// Each group over its root mean square.
    fn normalised(&self, f: &Forward, x: &Tensor) -> Result<Tensor> {
        let groups = self.spec.groups;
        let mut shape = x.shape().to_vec();
        if let Some(last) = shape.pop() {
            shape.extend([groups, last / groups]);
        }
        let cut = if groups == 1 { x.clone() } else { x.reshape(&shape)? };
        let normal = if f.profile.is_hf() {
            let variance = cut.pow_scalar(2.0)?.mean(&[-1], true)?;
            cut.mul(&variance.add_scalar(self.spec.eps)?.rsqrt()?)?
        } else {
            cut.rms_norm(None, self.spec.eps)?
        };
        normal.reshape(x.shape())
    }
}
