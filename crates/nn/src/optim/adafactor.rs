//! Adafactor: the mean of squares of a matrix is kept as a row and a column. Source: Shazeer and Stern, arXiv:1804.04235,
//! algorithms 4 to 6 (relative step size, update clipping, increasing decay).

use super::state::Slot;
use super::update::Update;
use tensor::{DType, Result, Tensor};

/// Mean of squares over each row, `.. m 1`.
const ROWS: &str = "row_var";
/// Mean of squares over each column, `.. 1 n`.
const COLUMNS: &str = "col_var";
/// Running mean of squares of a vector.
const SQUARES: &str = "variance";

/// Added to squares: keeps a gradient of zero from a division by zero.
const EPS_SQUARE: f64 = 1e-30;
/// Smallest root mean square of a weight that its step is relative to.
const EPS_SCALE: f64 = 1e-3;
/// Root mean square above which an update is scaled down to it.
const CLIP: f64 = 1.0;
/// The running mean takes in `t^-0.8` of what is new.
const DECAY: f64 = -0.8;

/// A row and a column of each matrix, which are the last two dimensions; a vector's squares in full.
pub(super) fn slots(shape: &[u64], dtype: DType) -> Vec<Slot> {
    let [.., m, n] = *shape else { return vec![Slot::new(SQUARES, shape, dtype)] };
    let outer = &shape[..shape.len() - 2];
    let with = |last: [u64; 2]| [outer, &last].concat();
    vec![Slot::new(ROWS, &with([m, 1]), dtype), Slot::new(COLUMNS, &with([1, n]), dtype)]
}

/// `w -= max(eps, rms w) min(lr, 1 / √t) u / max(1, rms u)` for `u = g / √v`.
pub(super) fn update(u: &Update<'_>) -> Result<Option<Tensor>> {
    u.count()?;
    let (grad, weight) = (u.grad, u.weight());
    let fresh = (u.step as f64).powf(DECAY);
    let change = if grad.rank() < 2 {
        let squares = u.state.get(SQUARES);
        let new = grad.mul(grad)?;
        new.add_scalar_(EPS_SQUARE)?;
        squares.lerp_(&new, fresh)?;
        drop(new);
        grad.div(&squares.sqrt()?)?
    } else {
        let (rows, columns) = (u.state.get(ROWS), u.state.get(COLUMNS));
        for (mean, dim) in [(rows, -1), (columns, -2)] {
            let new = grad.sum_squares(&[dim], true)?.div_scalar(grad.size(dim) as f64)?;
            new.add_scalar_(EPS_SQUARE)?;
            mean.lerp_(&new, fresh)?;
        }
        // v = rows columns / mean of rows; the roots of its factors are small tensors.
        let rows = rows.div(&rows.mean(&[-2], true)?)?;
        let change = grad.mul(&rows.rsqrt()?)?;
        change.mul_(&columns.rsqrt()?)?;
        change
    };
    let step = u.hyper.lr.min((u.step as f64).sqrt().recip());
    let scale = rms(weight)?.max_scalar(EPS_SCALE)?.mul_scalar(step)?;
    let scale = scale.div(&rms(&change)?.div_scalar(CLIP)?.max_scalar(1.0)?)?;
    change.mul_(&scale)?;
    u.decay()?;
    weight.sub_(&change)?;
    Ok(None)
}

/// Root mean square, an f32 scalar.
fn rms(t: &Tensor) -> Result<Tensor> {
    t.sum_squares_all()?.div_scalar(t.elements().max(1) as f64)?.sqrt()
}
