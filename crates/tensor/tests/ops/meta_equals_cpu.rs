//! Invariant 1: both devices emit the same events for the same program, costs, lifetimes and all.

use crate::inputs::{Inputs, loss};
use crate::rows::{Row, rows};
use napkin_tensor::ops::create::Fill;
use napkin_tensor::{DType, Device, Op, Phase, Trace};
use std::fmt::Debug;

fn trace(row: &Row, device: Device, seed: u64, dtype: DType) -> Trace {
    let mut g = Inputs::new(device, seed, dtype, true);
    let rt = g.rt.clone();
    rt.begin("forward", Phase::Forward);
    {
        let _scope = rt.scope(row.name);
        let outputs = (row.program)(&mut g).unwrap_or_else(|e| panic!("{}: {e}", row.name));
        let total = loss(&mut g, &outputs).unwrap();
        drop(outputs);
        rt.begin("backward", Phase::Backward);
        if let Some(total) = total.filter(napkin_tensor::Tensor::requires_grad) {
            total.backward().unwrap_or_else(|e| panic!("{}: backward: {e}", row.name));
        }
    }
    drop(g);
    assert_eq!(rt.live_bytes(), 0, "{}: storages outlive their holders on {device:?}", row.name);
    let mut trace = rt.take_trace();
    for event in &mut trace.ops {
        // Given values are the one thing that only the device with data holds.
        if let Op::Create(create) = &mut event.ran_mut().op
            && let Fill::Data(data) = &mut create.fill
        {
            *data = None;
        }
    }
    trace
}

fn same<T: PartialEq + Debug>(row: &Row, what: &str, meta: &[T], cpu: &[T]) {
    if let Some(at) = (0..meta.len().max(cpu.len())).find(|&i| meta.get(i) != cpu.get(i)) {
        let (meta, cpu) = (meta.get(at), cpu.get(at));
        panic!("{}: {what} {at} differs\nmeta: {meta:?}\ncpu:  {cpu:?}", row.name);
    }
}

#[test]
fn both_devices_record_the_same_program() {
    for row in rows() {
        for (seed, dtype) in [(0, DType::F32), (1, DType::F32), (2, DType::BF16), (3, DType::BF16), (4, DType::F64)] {
            let [meta, cpu] = [Device::Meta, Device::Cpu].map(|device| trace(&row, device, seed, dtype));
            same(&row, "op", &meta.ops, &cpu.ops);
            same(&row, "memory event", &meta.memory, &cpu.memory);
            same(&row, "storage", &meta.storages, &cpu.storages);
            assert_eq!((meta.marks, meta.modules), (cpu.marks, cpu.modules), "{}", row.name);
        }
    }
}
