//! Muon: the momentum of a hidden matrix, orthogonalised, is the direction of its update. Sources: Keller Jordan 2024,
//! kellerjordan.github.io/posts/muon; the step length that shares a learning rate and a decay with `AdamW` from Liu et al.,
//! arXiv:2502.16982, section 2.2.

use super::update::Update;
use crate::param::ParamKind;
use tensor::{DType, Result, Tensor};

/// Running mean of gradients.
pub(super) const MOMENTUM: &str = "momentum_buffer";

/// Coefficients of `a x + b x³ + c x⁵`: steep at zero, and near 1 wherever it ends.
const A: f64 = 3.4445;
const B: f64 = -4.7750;
const C: f64 = 2.0315;
/// Iterations.
const STEPS: usize = 5;
/// Smallest norm that is divided by.
const EPS: f64 = 1e-7;
/// Root mean square of an update of AdamW, as far as it has one.
const RMS_OF_ADAMW: f64 = 0.2;

/// Whether Muon updates a parameter: matrices of blocks, experts as stacks of them; no tables, no head, no vectors.
pub(super) fn takes(kind: ParamKind, shape: &[u64]) -> bool {
    matches!(kind, ParamKind::Matrix | ParamKind::Adapter | ParamKind::ExpertAdapter { .. } | ParamKind::Expert { .. })
        && shape.len() >= 2
}

/// `m = momentum m + (1 - momentum) g`, `w -= 0.2 √max(rows, columns) lr O` for `O` the orthogonalised mix of `g` and `m`
/// (Nesterov).
pub(super) fn update(u: &Update<'_>) -> Result<Option<Tensor>> {
    let (h, buffer) = (&u.hyper, u.state.get(MOMENTUM));
    buffer.lerp_(u.grad, 1.0 - h.momentum)?;
    let ahead = buffer.mul_scalar(h.momentum)?;
    ahead.add_scaled_(u.grad, 1.0 - h.momentum)?;
    let direction = orthogonalize(ahead, DType::BF16)?;
    let longer = u.param.size(-1).max(u.param.size(-2));
    u.decay()?;
    u.weight().add_scaled_(&direction, -h.lr * RMS_OF_ADAMW * (longer as f64).sqrt())?;
    Ok(None)
}

/// An approximation of `U Vᵀ` for the singular value decomposition `U S Vᵀ` of each matrix, by Newton-Schulz iterations
/// in `dtype`: singular values end between 0.7 and 1.2.
///
/// # Shapes
/// `batch.. m n -> batch.. m n`
///
/// # Panics
/// For a vector.
///
/// # Errors
/// [`tensor::Error::DType`] for integers.
pub fn orthogonalize(matrix: Tensor, dtype: DType) -> Result<Tensor> {
    let tall = matrix.size(-2) > matrix.size(-1);
    let mut x = matrix.to_dtype(dtype)?;
    drop(matrix);
    if tall {
        x = x.t()?;
    }
    let norm = x.sum_squares(&[-2, -1], true)?.sqrt()?.max_scalar(EPS)?.to_dtype(dtype)?;
    x = x.div_reusing(&norm)?;
    drop(norm);
    for _ in 0..STEPS {
        let gram = x.matmul(&x.t()?)?;
        let polynomial = gram.matmul(&gram)?;
        polynomial.mul_scalar_(C)?;
        polynomial.add_scaled_(&gram, B)?;
        drop(gram);
        let next = polynomial.matmul(&x)?;
        drop(polynomial);
        next.add_scaled_(&x, A)?;
        x = next;
    }
    if tall { x.t() } else { Ok(x) }
}
