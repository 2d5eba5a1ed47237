//! Linear maps in 8-bit floats: E4M3 for activations and weights, E5M2 for gradients, each tensor with its own scale.
//!
//! Scaling is delayed: a tensor is cast with the scale that its largest magnitudes of the last steps ask for, and what it
//! has now is noted for the steps to come. As long as nothing is known of a tensor, its own largest magnitude decides (where
//! Transformer Engine begins with a scale of 1). What is too large for the scale it meets is cut off at the largest number
//! of the type, as the casts of the hardware do it.
//! Sources: Micikevicius et al., arXiv:2209.05433; `transformer_engine.common.recipe.DelayedScaling` with its format
//! `HYBRID`.

use crate::context::Forward;
use crate::param::{Param, ParamKind};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use tensor::float_format::FloatFormat;
use tensor::meter::StorageId;
use tensor::ops::scaled_matmul::{GradientCast, GradientScale};
use tensor::tensor::Identity;
use tensor::{DType, Result, Role, Runtime, Tensor};

/// How a scale follows from largest magnitudes: it brings the largest of the last `amax_history_len` steps to the largest
/// number of the type, divided by `2^margin`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DelayedScaling {
    /// Steps that are looked back at; at least 1.
    pub amax_history_len: u64,
    /// Powers of two that are left free above.
    pub margin: i32,
}

impl Default for DelayedScaling {
    /// The defaults of Transformer Engine (2.15), by which it takes the maximum of the history, too.
    fn default() -> Self {
        Self { amax_history_len: 1024, margin: 0 }
    }
}

/// What the hardware asks of the sizes of a weight: multiples of this (cuBLAS, "Using the cublasLt API", FP8 kernels:
/// dimensions that meet an alignment of 16 bytes).
pub const MULTIPLE: u64 = 16;

/// Tensors of a linear map that are cast: input, weight, gradient of the result.
const ROLES: u64 = 3;
const INPUT: u64 = 0;
const WEIGHT: u64 = 1;
const GRADIENT: u64 = 2;

/// Forward in more precision, backward in more range.
const FORWARD: DType = DType::F8E4M3;
const BACKWARD: DType = DType::F8E5M2;

/// Largest number of a format.
fn largest(dtype: DType) -> f64 {
    FloatFormat::of(dtype).map_or(f64::MAX, |format| format.max_finite())
}

/// Whether a parameter takes part: matrices of linear maps in blocks, of sizes that the hardware has products for. The
/// head, tables and stacks of experts stay in 16 bits.
pub fn takes_part(kind: ParamKind, shape: &[u64]) -> bool {
    kind == ParamKind::Matrix && shape.len() == 2 && shape.iter().all(|n| n.is_multiple_of(MULTIPLE))
}

/// Scales of all tensors that are cast, and the magnitudes they follow from.
pub struct Fp8 {
    runtime: Runtime,
    /// 0 where nothing is known.
    scale: Tensor,
    /// Largest magnitudes of the step that runs.
    amax: Tensor,
    /// Largest magnitudes of the last steps: `steps tensors`.
    history: Tensor,
    /// What scales bring the largest magnitudes to.
    target: Tensor,
    maps: Rc<BTreeMap<StorageId, u64>>,
}

impl Fp8 {
    /// Scales for the weights among `params` that take part.
    ///
    /// # Errors
    /// None for a model of this crate.
    pub fn new(runtime: &Runtime, params: &[Param], recipe: DelayedScaling) -> Result<Self> {
        let maps: BTreeMap<StorageId, u64> = params
            .iter()
            .filter(|p| takes_part(p.kind, p.tensor.shape()))
            .map(|p| p.tensor.storage().id())
            .zip(0..)
            .collect();
        let count = maps.len() as u64 * ROLES;
        let buffer = |shape: &[u64]| Ok::<_, tensor::Error>(runtime.zeros(shape, DType::F32)?.with_role(Role::Buffer));
        let free = 2f64.powi(-recipe.margin);
        let targets = || {
            let of_map = [FORWARD, FORWARD, BACKWARD].map(|dtype| largest(dtype) * free);
            of_map.into_iter().cycle().take(count as usize).collect()
        };
        runtime.no_grad(|| {
            Ok(Self {
                scale: buffer(&[count])?,
                amax: buffer(&[count])?,
                history: buffer(&[recipe.amax_history_len.max(1), count])?,
                target: runtime.tensor_with(&[count], DType::F32, targets)?.with_role(Role::Buffer),
                maps: Rc::new(maps),
                runtime: runtime.clone(),
            })
        })
    }

    /// What a forward pass casts with. Without `training` the magnitudes it meets are forgotten.
    ///
    /// # Errors
    /// None for a model of this crate.
    pub fn casts(&self, training: bool) -> Result<Casts> {
        let amax = if training { self.amax.clone() } else { self.runtime.zeros(self.amax.shape(), DType::F32)? };
        Ok(Casts { scale: self.scale.clone(), amax, maps: self.maps.clone(), last: Rc::default() })
    }

    /// Goes on to the next step: what update number `step` (from 1) has met takes the place of what is oldest, and scales
    /// follow from what is left.
    ///
    /// # Errors
    /// None for a model of this crate.
    pub fn advance(&self, step: u64) -> Result<()> {
        if self.maps.is_empty() {
            return Ok(());
        }
        let rt = &self.runtime;
        rt.no_grad(|| {
            let (zero, infinity) = (rt.zeros(&[], DType::F32)?, rt.full(&[], f64::INFINITY, DType::F32)?);
            let row = step.saturating_sub(1) % self.history.size(0);
            // What is not finite says nothing of the numbers to come.
            let met = self.amax.less(&infinity)?.where_cond(&self.amax, &zero)?;
            self.history.select(0, row)?.copy_(&met)?;
            self.amax.copy_(&zero)?;
            let (top, _) = self.history.max(0, false)?;
            let scale = self.target.div(&top)?;
            // Where nothing but zeros was met, or numbers too small for a scale, it stays as it is.
            let known = top.greater(&zero)?.logical_and(&scale.less(&infinity)?)?;
            self.scale.copy_(&known.where_cond(&scale, &self.scale)?)?;
            Ok(())
        })
    }

    /// What a resumed run needs beside the number of steps: names and tensors.
    pub fn state_tensors(&self) -> [(&'static str, Tensor); 2] {
        [("scale", self.scale.clone()), ("amax_history", self.history.clone())]
    }
}

/// A cast input of linear maps: what it was, the narrow numbers and their inverse scale.
type Shared = Option<(Identity, Tensor, Tensor)>;

/// What a forward pass casts with.
#[derive(Clone)]
pub struct Casts {
    scale: Tensor,
    amax: Tensor,
    maps: Rc<BTreeMap<StorageId, u64>>,
    /// The input cast last: maps side by side (queries, keys, values; gate and up) share it.
    last: Rc<RefCell<Shared>>,
}

impl Casts {
    /// Scale and largest magnitude of a tensor of a map.
    fn slot(&self, map: u64, role: u64) -> Result<(Tensor, Tensor)> {
        let at = map * ROLES + role;
        Ok((self.scale.select(0, at)?, self.amax.select(0, at)?))
    }

    /// Lets go of the input cast last.
    pub fn forget(&self) {
        self.last.borrow_mut().take();
    }

    /// `x Wᵀ + b` (or `x W + b`) in 8 bits; `None` if this weight does not take part.
    ///
    /// # Shapes
    /// x `rows.. k`, weight `n k` (`k n` if transposed), bias `n` -> `rows.. n`
    ///
    /// # Errors
    /// As for a linear map.
    pub fn linear(
        &self,
        f: &Forward,
        x: &Tensor,
        weight: &Tensor,
        bias: Option<&Tensor>,
        transposed: bool,
    ) -> Result<Option<Tensor>> {
        let Some(&map) = self.maps.get(&weight.storage().id()) else { return Ok(None) };
        let to = f.compute.unwrap_or(DType::BF16);
        let (narrow, inverse) = self.input(map, x)?;
        let (scale, amax) = self.slot(map, WEIGHT)?;
        let (w, w_inverse) = weight.scaled_cast(FORWARD, &scale, &amax)?;
        let w = w.with_role(Role::WeightCast);
        let w = if transposed { w.t()? } else { w }; // n k
        let (scale, amax) = self.slot(map, GRADIENT)?;
        let cast = GradientCast { narrow: BACKWARD, factors: [to, weight.dtype()] };
        let gradient = GradientScale { cast, scale: &scale, amax: &amax };
        let k = narrow.size(-1);
        let rows = narrow.view(&[narrow.elements() / k.max(1), k])?;
        let out = rows.scaled_linear(&inverse, (&w, &w_inverse), bias, to, gradient)?;
        let mut shape = x.shape().to_vec();
        if let Some(last) = shape.last_mut() {
            *last = w.size(0);
        }
        out.view(&shape).map(Some)
    }

    fn input(&self, map: u64, x: &Tensor) -> Result<(Tensor, Tensor)> {
        let identity = x.identity();
        if let Some((last, narrow, inverse)) = &*self.last.borrow()
            && *last == identity
        {
            return Ok((narrow.clone(), inverse.clone()));
        }
        self.forget();
        let (scale, amax) = self.slot(map, INPUT)?;
        let (narrow, inverse) = x.scaled_cast(FORWARD, &scale, &amax)?;
        *self.last.borrow_mut() = Some((identity, narrow.clone(), inverse.clone()));
        Ok((narrow, inverse))
    }
}
