//! Storage and strides: what a view is, when a copy happens, and what it costs.
//!
//! A tensor is a storage (bytes) and a layout (shape, strides, offset). `transpose`, `narrow`, `select` and `view` make a
//! new layout over the same storage: no bytes, no FLOP. `view` is refused where no strides can express the result;
//! `reshape` copies there, and the meter sees the copy.
//!
//! Run: `cargo run --release --example strides`

#![allow(clippy::print_stdout)] // an example talks

use std::time::Instant;
use tensor::meter::CopyReason;
use tensor::{DType, Device, Result, Runtime};

fn main() -> Result<()> {
    let rt = Runtime::new(Device::Cpu);

    println!("a 4 x 4 matrix of f32");
    let values: Vec<f64> = (0..16).map(f64::from).collect();
    let x = rt.tensor(&values, &[4, 4], DType::F32)?;
    println!(
        "  stride {:?}: element (1, 2) is number 1 x 4 + 2 x 1 = {} of the storage",
        x.stride(),
        x.layout().position(&[1, 2])
    );
    assert_eq!((x.stride(), x.layout().position(&[1, 2])), (&[4, 1][..], 6));

    println!("views share the storage");
    let before = rt.live_bytes();
    let (row, column, turned, flat) = (x.select(0, 0)?, x.select(1, 1)?, x.transpose(0, 1)?, x.view(&[16])?);
    for (name, view) in [("row 0", &row), ("column 1", &column), ("transposed", &turned), ("flat", &flat)] {
        println!("  {name:<10} shape {:?} stride {:?} offset {}", view.shape(), view.stride(), view.storage_offset());
        assert!(view.shares_storage_with(&x));
    }
    assert_eq!(rt.live_bytes(), before, "a view allocates nothing");
    assert!(!turned.is_contiguous());

    println!("what is written through one is seen through all");
    row.add_scalar_(100.0)?;
    println!("  row 0 plus 100: the transposed view's column 0 is {:?}", turned.select(1, 0)?.to_vec()?);
    assert_eq!(turned.select(1, 0)?.to_vec()?, [100.0, 101.0, 102.0, 103.0]);

    println!("`view` after `transpose` is refused, and says which strides stand in the way");
    let refused = turned.view(&[16]).expect_err("the strides 1 and 4 cannot be one stride");
    println!("  {refused}");

    println!("`reshape` copies instead");
    let copied = turned.reshape(&[16])?;
    assert!(!copied.shares_storage_with(&x));
    assert_eq!(rt.live_bytes() - before, 64, "16 elements of 4 bytes");
    x.add_scalar_(1.0)?;
    assert_eq!(copied.to_vec()?[0], 100.0, "a copy does not follow its source");
    println!("  64 bytes more; the copy does not follow what is written to the source");

    println!("the meter lists the copies");
    let n = 2048;
    let large = rt.full(&[n, n], 1.0, DType::F32)?;
    let begun = Instant::now();
    let dense = large.t()?.contiguous()?;
    let seconds = begun.elapsed().as_secs_f64();
    let trace = rt.take_trace();
    for event in trace.ops.iter().filter(|e| e.copy.is_some()) {
        println!("  {:<10} {:?}: {} read and written", event.op.name(), event.copy, event.cost.traffic());
    }
    let last = trace.ops.iter().rev().find(|e| e.copy == Some(CopyReason::Contiguous)).expect("the copy just made");
    assert_eq!(last.cost.traffic().0, 2 * 4 * n * n, "read once, written once");
    assert_eq!(last.cost.matmul + last.cost.elementwise, 0, "moving bytes is no arithmetic");
    println!(
        "  {} in {:.2} ms: {:.1} GB/s",
        last.cost.traffic(),
        seconds * 1e3,
        last.cost.traffic().0 as f64 / seconds / 1e9
    );
    drop(dense);
    Ok(())
}
