//! Rows of the ops that run along time: short convolutions and recurrences.

use crate::inputs::Inputs;
use crate::rows::{Row, row};
use napkin_tensor::ops::chunk_scan::Chunks;
use napkin_tensor::{Result, Tensor};

/// Two rows of `n` chunks of three positions.
fn chunks(g: &mut Inputs, n: u64) -> Result<Vec<Tensor>> {
    let chunks = Chunks {
        q: g.float(&[2, n, 3, 2])?,
        k: g.float(&[2, n, 3, 2])?,
        w: g.float(&[2, n, 3, 2])?,
        u: g.float(&[2, n, 3, 4])?,
        a: g.float(&[2, n, 3, 3])?,
        g: g.range(&[2, n, 2], 0.2, 1.0)?,
    };
    Ok(vec![chunks.scan()?])
}

/// All rows of this file.
pub fn rows() -> Vec<Row> {
    vec![
        row("depthwise_conv1d", |g| {
            let (x, w, bias) = (g.float(&[2, 3, 5])?, g.float(&[3, 4])?, g.float(&[3])?);
            Ok(vec![x.depthwise_conv1d(&w, Some(&bias), 3)?])
        }),
        row("depthwise_conv1d, shorter than its filters", |g| {
            let (x, w) = (g.float(&[1, 2, 2])?, g.float(&[2, 4])?);
            Ok(vec![x.depthwise_conv1d(&w, None, 3)?])
        }),
        row("depthwise_conv1d without padding", |g| {
            let (x, w) = (g.float(&[2, 2, 5])?, g.float(&[2, 3])?);
            Ok(vec![x.depthwise_conv1d(&w, None, 0)?])
        }),
        row("depthwise_conv1d, frozen filters", |g| {
            let (x, w) = (g.float(&[2, 2, 4])?, g.data(&[2, 3])?);
            Ok(vec![x.depthwise_conv1d(&w, None, 2)?])
        }),
        row("linear_scan", |g| {
            let (a, x) = (g.range(&[2, 4, 3], 0.2, 1.0)?, g.float(&[2, 4, 3])?);
            Ok(vec![a.linear_scan(&x, 1)?])
        }),
        row("linear_scan over the last dimension", |g| {
            let (a, x) = (g.range(&[3, 5], 0.2, 1.0)?, g.float(&[3, 5])?);
            Ok(vec![a.linear_scan(&x, -1)?])
        }),
        row("linear_scan of one step", |g| {
            let (a, x) = (g.data(&[3, 1, 2])?, g.float(&[3, 1, 2])?);
            Ok(vec![a.linear_scan(&x, 1)?])
        }),
        row("chunk_scan", |g| chunks(g, 4)),
        row("chunk_scan of two chunks", |g| chunks(g, 2)),
        row("chunk_scan of one chunk", |g| chunks(g, 1)),
        row("decayed_scores", |g| {
            let (x, y, decay) = (g.float(&[2, 4, 3])?, g.float(&[2, 4, 3])?, g.float(&[2, 4, 3])?);
            Ok(vec![x.decayed_scores(&y, &decay)?])
        }),
        row("solve_triangular", |g| {
            let (a, b) = (g.float(&[2, 4, 4])?, g.float(&[2, 4, 3])?);
            Ok(vec![b.solve_unit_lower(&a)?])
        }),
        row("solve_triangular, frozen matrix", |g| {
            let (a, b) = (g.data(&[3, 3])?, g.float(&[3, 2])?);
            Ok(vec![b.solve_unit_lower(&a)?])
        }),
        row("lower_inverse", |g| Ok(vec![g.float(&[2, 4, 4])?.unit_lower_inverse()?])),
    ]
}
