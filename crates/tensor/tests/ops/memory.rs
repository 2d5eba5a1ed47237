//! What ops keep for backward and which buffers their backward makes, against the reference framework (torch 2.15, its
//! dispatch log and saved-tensor hooks on the same shapes).

use napkin_tensor::meter::MemoryChange;
use napkin_tensor::{Accumulate, DType, Device, Phase, Result, Role, Runtime, Tensor, Trace};

/// Sizes of the buffers made from the mark `name` to the next one.
fn buffers(trace: &Trace, name: &str) -> Vec<u64> {
    let at = trace.marks.iter().position(|m| m.name == name).unwrap();
    let end = trace.marks.get(at + 1).map_or(trace.memory.len(), |m| m.memory as usize);
    let events = &trace.memory[trace.marks[at].memory as usize..end];
    let allocated = events.iter().filter(|e| matches!(e.change, MemoryChange::Alloc(_)));
    allocated.map(|e| trace.storages[e.storage.0 as usize].bytes).collect()
}

/// Operands of the table: x and y `3 4` f32 (48 B each), s `3 2` f32, index `3 2` i64 (48 B), rows `3` i64 (24 B), mask
/// `3 4` bool (12 B).
struct Operands {
    x: Tensor,
    y: Tensor,
    s: Tensor,
    index: Tensor,
    rows: Tensor,
    mask: Tensor,
}

/// Name, program, bytes newly held for backward besides operands, operands held, and bytes of each buffer that backward
/// makes.
type Case = (&'static str, fn(&Operands) -> Result<Tensor>, &'static [u64], &'static str, &'static [u64]);

const CASES: &[Case] = &[
    ("sum", |o| o.x.sum(&[1], false), &[], "", &[]),
    ("mean", |o| o.x.mean(&[1], false), &[], "", &[48]),
    ("max", |o| Ok(o.x.max(1, false)?.0), &[24], "", &[48]),
    ("logsumexp", |o| o.x.logsumexp(1, false), &[12], "x", &[48, 48, 48]),
    // The reference flips twice around the sum: 48, 48, 48.
    ("cumsum", |o| o.x.cumsum(1), &[], "", &[48]),
    ("topk", |o| Ok(o.x.topk(2, 1)?.0), &[48], "", &[48]),
    ("cat", |o| Tensor::cat(&[&o.x, &o.y], 1), &[], "", &[]),
    ("stack", |o| Tensor::stack(&[&o.x, &o.y], 1), &[], "", &[]),
    ("gather", |o| o.x.gather(1, &o.index), &[], "x index", &[48]),
    ("embedding", |o| o.x.embedding(&o.index), &[], "index", &[48]),
    ("scatter_add", |o| o.x.scatter_add(1, &o.index, &o.s), &[], "index", &[24]),
    ("index_add", |o| o.x.index_add(&o.rows, &o.y), &[], "y rows", &[48]),
    ("where", |o| o.mask.where_cond(&o.x, &o.y), &[], "mask", &[48, 48]),
    ("masked_fill", |o| o.x.masked_fill(&o.mask, 1.0), &[], "mask", &[48]),
    ("tril", |o| o.x.tril(0), &[], "", &[48]),
];

#[test]
fn backward_holds_and_makes_what_the_reference_does() {
    for &(name, program, fresh_kept, operands_kept, made) in CASES {
        let rt = Runtime::new(Device::Meta);
        let leaf = |shape: &[u64]| rt.zeros(shape, DType::F32).unwrap().require_grad().unwrap();
        let given = |shape: &[u64], dtype| rt.zeros(shape, dtype).unwrap();
        let o = Operands {
            x: leaf(&[3, 4]),
            y: leaf(&[3, 4]),
            s: leaf(&[3, 2]),
            index: given(&[3, 2], DType::I64),
            rows: given(&[3], DType::I64),
            mask: given(&[3, 4], DType::Bool),
        };
        let named = [("x", &o.x), ("y", &o.y), ("s", &o.s), ("index", &o.index), ("rows", &o.rows), ("mask", &o.mask)];
        let before = rt.live_bytes();
        let out = program(&o).unwrap();
        let held: Vec<&str> =
            named.iter().filter(|(_, t)| t.storage().role() == Role::Activation).map(|(n, _)| *n).collect();
        assert_eq!(held.join(" "), operands_kept, "{name}: operands held");
        let grad = rt.zeros(out.shape(), DType::F32).unwrap();
        let own = out.storage().role() == Role::Activation;
        let out_bytes = out.storage().bytes();
        let kept = rt.live_bytes() - before - grad.storage().bytes() - if own { 0 } else { out_bytes };
        assert_eq!(kept, fresh_kept.iter().sum::<u64>(), "{name}: bytes kept besides operands");
        rt.begin("backward", Phase::Backward);
        out.backward_with(grad).unwrap();
        let trace = rt.take_trace();
        let buffers = buffers(&trace, "backward");
        // Copies that only collect a gradient into its leaf are the leaf's, not the op's.
        let copies = trace.ops.iter().filter(|e| e.phase == Phase::Backward && e.op.name() == "copy").count();
        assert_eq!(&buffers[..buffers.len() - copies], made, "{name}: buffers of backward");
    }
}

/// How the table is made of the leaf.
type MakeTable = fn(Tensor) -> Tensor;

/// What is held on to of the leaf between two backward passes.
type Hold = fn(&Tensor) -> Option<Tensor>;

/// A table that is also the head behind it, run twice: the gradient of the leaf, and how many buffers as large as the table
/// each backward pass made.
fn tied(device: Device, how: Accumulate, make_table: MakeTable, hold: Hold) -> (Vec<f64>, [usize; 2]) {
    let rt = Runtime::with_seed(device, 3);
    rt.set_accumulate(how);
    let leaf = rt.randn(&[50, 6], DType::F64).unwrap().require_grad().unwrap();
    let ids = rt.input(&[4.0, 7.0, 4.0, 49.0], &[2, 2], DType::I64).unwrap();
    let pass = |name: &str| {
        let table = make_table(leaf.clone());
        let y = table.embedding(&ids).unwrap().linear(&table, None).unwrap();
        let loss = y.mul(&y).unwrap().sum_all().unwrap();
        drop((table, y));
        rt.begin(name, Phase::Backward);
        loss.backward().unwrap();
        rt.begin("after", Phase::Forward);
    };
    pass("first");
    let held = hold(&leaf);
    pass("second");
    let grad = leaf.grad().unwrap();
    drop(held);
    let trace = rt.take_trace();
    let made = ["first", "second"].map(|pass| buffers(&trace, pass).iter().filter(|&&b| b == 50 * 6 * 8).count());
    (if rt.holds_data() { grad.to_vec().unwrap() } else { Vec::new() }, made)
}

#[test]
fn an_embedding_adds_its_rows_to_the_gradient_that_is_there() {
    let nothing: Hold = |_| None;
    let leaf: MakeTable = |leaf| leaf;
    let scaled: MakeTable = |leaf| leaf.mul_scalar(0.5).unwrap();
    let cases: [(MakeTable, Hold, [usize; 2]); 3] = [
        // That of the head, which the second time is itself added to what is there.
        (leaf, nothing, [1, 1]),
        // Collected for the scaled table, then scaled in a buffer of its own.
        (scaled, nothing, [2, 2]),
        // A gradient that somebody holds is not taken away: rows in a buffer of their own, and the sum of both.
        (leaf, Tensor::grad, [1, 3]),
    ];
    for (make_table, hold, made) in cases {
        let (expected, apart) = tied(Device::Cpu, Accumulate::OutOfPlace, make_table, nothing);
        assert!(apart[0] > made[0], "{apart:?}");
        let (grad, buffers) = tied(Device::Cpu, Accumulate::InPlace, make_table, hold);
        assert_eq!(buffers, made);
        assert_eq!(tied(Device::Meta, Accumulate::InPlace, make_table, hold).1, made);
        for (a, b) in grad.iter().zip(&expected) {
            assert!((a - b).abs() < 1e-12 * (1.0 + b.abs()), "{a} {b}");
        }
    }
}
