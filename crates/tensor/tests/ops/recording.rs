//! Recordings that are paused, taken, or off: what the next trace says, and that nothing grows.

use napkin_tensor::meter::{MemoryChange, Trace};
use napkin_tensor::ops::attention::Attention;
use napkin_tensor::{DType, Device, Error, Phase, Role, Runtime, Tensor};
use std::collections::BTreeMap;

const BOTH: [Device; 2] = [Device::Meta, Device::Cpu];

fn zeros(rt: &Runtime, count: u64) -> Tensor {
    rt.zeros(&[count], DType::F32).unwrap()
}

/// Replays a trace: bytes live and role of each storage at its end, and the highest bytes live.
fn replay(trace: &Trace) -> (BTreeMap<u32, (u64, Role)>, u64) {
    let mut live = BTreeMap::new();
    let mut peak = 0;
    for event in &trace.memory {
        let (id, bytes) = (event.storage.0, trace.storages[event.storage.0 as usize].bytes);
        match event.change {
            MemoryChange::Alloc(role) => assert!(live.insert(id, (bytes, role)).is_none(), "{id} is alive already"),
            MemoryChange::Free => assert!(live.remove(&id).is_some(), "{id} is not alive"),
            MemoryChange::Role(role) => live.get_mut(&id).expect("alive").1 = role,
        }
        peak = peak.max(live.values().map(|(bytes, _)| bytes).sum());
    }
    (live, peak)
}

#[test]
fn a_trace_that_begins_late_begins_with_what_is_alive() {
    for device in BOTH {
        let rt = Runtime::new(device);
        rt.set_recording(false);
        let kept = zeros(&rt, 10).with_role(Role::Parameter);
        drop(zeros(&rt, 1000));
        let also = zeros(&rt, 3);
        rt.set_recording(true);
        rt.begin("late", Phase::Forward);
        drop(also);
        let fresh = zeros(&rt, 5);
        let trace = rt.take_trace();
        let (live, peak) = replay(&trace);
        let expected =
            [(kept.storage().id().0, (40, Role::Parameter)), (fresh.storage().id().0, (20, Role::Temporary))];
        assert_eq!((live, peak), (expected.into(), 60));
        assert_eq!((trace.ops.len(), trace.marks[0].memory), (1, 2), "what was alive comes before the mark");
    }
}

#[test]
fn after_a_pause_the_trace_says_what_changed() {
    let rt = Runtime::new(Device::Meta);
    let (a, b) = (zeros(&rt, 1), zeros(&rt, 2));
    rt.set_recording(false);
    drop(a);
    let b = b.with_role(Role::Gradient);
    drop(zeros(&rt, 100));
    let c = zeros(&rt, 4);
    rt.set_recording(true);
    let d = zeros(&rt, 8);
    let (live, peak) = replay(&rt.take_trace());
    let of = |t: &Tensor, role| (t.storage().id().0, (t.storage().bytes(), role));
    let expected = [of(&b, Role::Gradient), of(&c, Role::Temporary), of(&d, Role::Temporary)];
    assert_eq!((live, peak), (expected.into(), 8 + 16 + 32));
}

#[test]
fn the_trace_after_one_taken_begins_with_what_is_alive() {
    let rt = Runtime::new(Device::Meta);
    let (a, b) = (zeros(&rt, 1), zeros(&rt, 2));
    assert_eq!(replay(&rt.take_trace()).0.len(), 2);
    drop(a);
    let (live, peak) = replay(&rt.take_trace());
    assert_eq!((live.values().copied().collect::<Vec<_>>(), peak), (vec![(8, Role::Temporary)], 8));
    drop(b);
    assert_eq!(replay(&rt.take_trace()).0.len(), 0);
}

#[test]
fn nothing_is_recorded_and_ids_do_not_grow_while_recording_is_off() {
    let rt = Runtime::new(Device::Meta);
    rt.set_recording(false);
    let x = zeros(&rt, 4).require_grad().unwrap();
    let mut highest = 0;
    for _ in 0..1000 {
        rt.begin("step", Phase::Forward);
        let y = x.mul(&x).unwrap();
        highest = highest.max(y.storage().id().0);
        y.sum(&[0], false).unwrap().backward().unwrap();
        x.zero_grad();
    }
    assert!(highest < 10, "{highest}");
    assert_eq!(rt.take_trace(), Trace { modules: vec![String::new()], ..Trace::default() });
}

#[test]
fn peak_bytes_can_begin_anew_and_do_not_depend_on_recording() {
    let peaks = |recording| {
        let rt = Runtime::new(Device::Meta);
        rt.set_recording(recording);
        let zeros4 = |s: u64| rt.zeros(&[1, 1, s, 1], DType::F32).unwrap();
        let (q, k, v) = (zeros4(1), zeros4(100), zeros4(100));
        let op =
            Attention { causal: true, window: None, seen: None, scale: 1.0, softcap: None, bias: false, sinks: false };
        drop(q.attention(&k, &v, None, None, op).unwrap());
        let whole = rt.peak_bytes();
        // q, k, v, the output, its log-sum-exp, and one row of scores as scratch of the kernel.
        assert_eq!(whole, 4 + 400 + 400 + 4 + 4 + 400);
        rt.reset_peak();
        assert_eq!(rt.peak_bytes(), rt.live_bytes());
        let after = rt.live_bytes();
        drop(zeros(&rt, 6));
        assert_eq!(rt.peak_bytes(), after + 24);
        (whole, after)
    };
    assert_eq!(peaks(true), peaks(false));
}

#[test]
fn reserved_bytes_are_apart_from_live_ones() {
    let rt = Runtime::new(Device::Cpu);
    let a = zeros(&rt, 1);
    let held = rt.memory();
    assert_eq!((rt.live_bytes(), held.handed_out, held.rounding, held.reserved, held.cached()), (4, 64, 60, 64, 0));
    drop(a);
    let held = rt.memory();
    assert_eq!((rt.live_bytes(), held.handed_out, held.rounding, held.reserved, held.cached()), (0, 0, 0, 64, 64));
    rt.release_cached();
    assert_eq!((rt.reserved_bytes(), rt.memory().mapped, rt.memory().peak_reserved), (0, 0, 64));
    let rt = Runtime::new(Device::Meta);
    let _a = zeros(&rt, 1);
    assert_eq!((rt.live_bytes(), rt.reserved_bytes()), (4, 0));
}

#[test]
fn what_the_system_does_not_have_is_an_error_that_leaves_everything_as_it_was() {
    let rt = Runtime::new(Device::Cpu);
    let a = zeros(&rt, 3);
    let error = rt.zeros(&[1 << 58], DType::F32).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory { bytes, live: 12, reserved: 64 } if bytes == 1 << 60), "{error}");
    assert_eq!(rt.live_bytes(), 12);
    assert_eq!(a.to_vec().unwrap(), [0.0; 3]);
}
