//! Rows of the ops that run along time: short convolutions and recurrences.

use crate::rows::{Row, row};

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
    ]
}
