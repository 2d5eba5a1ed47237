//! The one door: every op of every program on every device passes through [`apply`].

use crate::autocast::{cast_inputs, widen};
use crate::autograd;
use crate::collective::Collective;
#[cfg(feature = "cpu")]
use crate::cpu::Args;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel::{self, Array, Counted, Data, Num};
use crate::meter::{Cost, OpEvent, Ran, Role};
use crate::ops::{Needs, Op, Out};
#[cfg(feature = "cpu")]
use crate::runtime::Kernels;
use crate::runtime::Runtime;
use crate::storage::Storage;
use crate::tensor::{Spec, Tensor};
use smallvec::SmallVec;
use std::rc::Rc;

/// Outputs of an applied op.
pub type Outputs = SmallVec<[Tensor; 1]>;

/// Applies an op to tensors of one runtime.
///
/// Infers shapes, aliases or allocates outputs, records the event, runs the kernel if the device holds data, and puts
/// the op on the tape if a gradient is wanted.
///
/// # Errors
/// Whatever the shape rule refuses; [`Error::NoGradient`] if an input wants a gradient the op cannot give.
///
/// # Panics
/// If `inputs` is empty: ops that create tensors take a runtime, see [`apply_on`].
pub fn apply(op: Op, inputs: &[&Tensor]) -> Result<Outputs> {
    apply_on(inputs[0].runtime(), op, inputs)
}

/// [`apply`] for ops that may have no inputs.
pub fn apply_on(runtime: &Runtime, op: Op, inputs: &[&Tensor]) -> Result<Outputs> {
    let op = widen(runtime, op, inputs);
    match cast_inputs(runtime, &op, inputs)? {
        None => run(runtime, op, inputs, None),
        Some(cast) => {
            let cast: SmallVec<[&Tensor; 4]> = cast.iter().collect();
            run(runtime, op, &cast, None)
        }
    }
}

/// [`apply`], writing into the storage of input `slot` where that is its last handle.
///
/// The caller gives the value of that input up; what decides is whether anybody else (the tape, another variable) still
/// holds the storage. Falls back to a fresh output.
pub(crate) fn apply_reusing(op: Op, inputs: &[&Tensor], slot: usize) -> Result<Outputs> {
    let runtime = inputs[0].runtime();
    let wants = needs_of(inputs);
    let keeps = runtime.grad_enabled() && wants.0 != 0 && op.saves(wants).inputs != 0;
    let free = Rc::strong_count(&inputs[slot].storage) == 1 && !keeps;
    run(runtime, op, inputs, free.then_some(slot))
}

fn run(runtime: &Runtime, op: Op, inputs: &[&Tensor], reuse: Option<usize>) -> Result<Outputs> {
    if inputs.iter().any(|t| !t.runtime().same(runtime)) {
        return Err(Error::OtherRuntime { op: op.name() });
    }
    let specs: SmallVec<[Spec; 4]> = inputs.iter().map(|t| t.spec()).collect();
    let outs = op.infer(&specs)?;

    check_in_place(runtime, &op, inputs, &outs)?;
    let wanted = autograd::needs(runtime, &op, inputs, &specs, &outs)?;
    if let Some(needs) = wanted {
        let saves = op.saves(needs);
        autograd::stop_if_complete(runtime, saves.inputs, saves.outputs, inputs)?;
    }

    if let Some(mut outputs) = autograd::replay(runtime, &op, inputs, &outs)? {
        if let Some(needs) = wanted {
            autograd::push(runtime, op, needs, inputs, &specs, &mut outputs)?;
        }
        return Ok(outputs);
    }

    let watch = runtime.op_watch();
    if let Some(watch) = &watch {
        watch.begins(runtime);
    }
    let mut outputs = Outputs::new();
    let mut reused = false;
    for out in &outs {
        outputs.push(match out {
            Out::Fresh(spec) => {
                let slot = reuse.filter(|&i| specs[i] == *spec && inputs[i].storage.bytes() == spec.bytes() && !reused);
                let storage = if let Some(i) = slot {
                    reused = true;
                    inputs[i].storage.clone()
                } else {
                    let bytes = spec.bytes();
                    if !runtime.meter().has_room(bytes) {
                        return Err(Error::TooLarge { shape: spec.shape().into() });
                    }
                    Storage::allocate(runtime, bytes, Role::Temporary)?
                };
                Tensor { storage, layout: spec.layout.clone(), dtype: spec.dtype, grad_ref: None }
            }
            Out::View(of, layout) => Tensor { layout: layout.clone(), grad_ref: None, ..inputs[*of].clone() },
            Out::InPlace(of) => inputs[*of].clone(),
        });
    }

    let cost = meter(runtime, &op, inputs, &specs, &outputs, reused)?;
    let is_view = matches!(outs[0], Out::View(..));
    if runtime.holds_data() && runtime.is_counting() {
        runtime.push_count(if is_view { 0 } else { count(&op, inputs, &outs, &outputs)? });
    }
    if runtime.holds_data() {
        match op.collective().filter(|collective| !collective.group().is_alone()) {
            Some(collective) => exchange(runtime, op.name(), collective, inputs, &outs, &outputs)?,
            None if is_view => {}
            None => compute(runtime, &op, inputs, &outs, &outputs, cost.matmul)?,
        }
    }
    if let Some(watch) = &watch {
        watch.ends(runtime);
    }
    for (out, output) in outs.iter().zip(&outputs) {
        let took_over = reused && inputs.iter().any(|t| t.shares_storage_with(output));
        if took_over || matches!(out, Out::InPlace(_)) {
            output.storage.bump_version();
        }
    }
    autograd::note(runtime, &op, inputs, &outs, &outputs);
    if let Some(needs) = wanted {
        autograd::push(runtime, op, needs, inputs, &specs, &mut outputs)?;
    }
    Ok(outputs)
}

/// Refuses writes whose result would depend on the order of elements, or would go unseen by the tape.
fn check_in_place(runtime: &Runtime, op: &Op, inputs: &[&Tensor], outs: &[Out]) -> Result<()> {
    let targets =
        || outs.iter().filter_map(|out| if let Out::InPlace(of) = out { Some((*of, inputs[*of])) } else { None });
    for (i, (of, target)) in targets().enumerate() {
        let twice = targets().take(i).any(|(_, t)| t.elements() > 0 && t.data_ptr() == target.data_ptr());
        if target.layout.overlaps() || twice {
            return Err(Error::OverlappingWrite { op: op.name(), shape: target.shape().into() });
        }
        // An op with a rule for what it overwrites goes on the tape; a leaf has no value from before to go on from.
        let recorded = !target.is_leaf() && op.differentiable() & (1 << of) != 0;
        if runtime.grad_enabled() && target.requires_grad() && !recorded {
            return Err(Error::InPlaceOnGraph { op: op.name() });
        }
    }
    Ok(())
}

/// Counts the scratch of the kernel, and records the event if the runtime records. What the op costs.
fn meter(
    runtime: &Runtime,
    op: &Op,
    inputs: &[&Tensor],
    specs: &[Spec],
    outputs: &Outputs,
    reused: bool,
) -> Result<Cost> {
    let out_specs: SmallVec<[Spec; 2]> = outputs.iter().map(Tensor::spec).collect();
    let cost = op.cost(specs, &out_specs);
    let (module, phase) = (runtime.module(), runtime.phase());
    let mut meter = runtime.meter();
    if cost.workspace > 0 {
        if !meter.has_room(cost.workspace) {
            return Err(Error::TooLarge { shape: outputs[0].shape().into() });
        }
        meter.workspace(cost.workspace, module, phase);
    }
    if !meter.recording {
        return Ok(cost);
    }
    meter.trace.ops.push(OpEvent {
        ran: Rc::new(Ran { op: op.clone(), cost, copy: op.copy_reason(), reused }),
        module,
        phase,
        inputs: inputs.iter().map(|t| t.event_ref()).collect(),
        outputs: outputs.iter().map(Tensor::event_ref).collect(),
    });
    Ok(cost)
}

/// Runs the fast kernel if there is one, else the plain one; `matmul` is what the op costs in products.
fn compute(
    runtime: &Runtime,
    op: &Op,
    inputs: &[&Tensor],
    outs: &[Out],
    outputs: &Outputs,
    matmul: u128,
) -> Result<()> {
    #[cfg(feature = "cpu")]
    if runtime.kernels() != Kernels::Plain {
        if let Some(mut args) = Args::borrow(inputs, outs, outputs)
            && op.run_cpu(&mut args)?
        {
            return Ok(());
        }
        if runtime.kernels() == Kernels::OnlyFast {
            let what = "there is no fast kernel for these dtypes and layouts".into();
            return Err(Error::Argument { op: op.name(), what });
        }
        crate::cpu::work::count_plain(matmul);
    }
    #[cfg(not(feature = "cpu"))]
    let _ = (runtime, matmul);
    compute_plainly(op, inputs, outs, outputs)
}

/// A page traces on the meta device. Kernels, one for each type of number, would be most of what it loads.
const NO_ARITHMETIC: bool = cfg!(target_family = "wasm");

fn no_arithmetic(op: &Op) -> Error {
    Error::Argument { op: op.name(), what: "there is no arithmetic on data in WebAssembly".into() }
}

/// Runs the plain kernel in the widest float type among the operands, or in integers if there is none.
fn compute_plainly(op: &Op, inputs: &[&Tensor], outs: &[Out], outputs: &Outputs) -> Result<()> {
    if NO_ARITHMETIC {
        return Err(no_arithmetic(op));
    }
    let dtypes = || inputs.iter().copied().chain(outputs.iter()).map(Tensor::dtype);
    if dtypes().any(|d| d == DType::F64) {
        compute_in::<f64>(op, inputs, outs, outputs)
    } else if dtypes().any(DType::is_float) {
        compute_in::<f32>(op, inputs, outs, outputs)
    } else {
        compute_in::<i64>(op, inputs, outs, outputs)
    }
}

/// Has the other ranks take part.
fn exchange(
    runtime: &Runtime,
    op: &'static str,
    collective: &dyn Collective,
    inputs: &[&Tensor],
    outs: &[Out],
    outputs: &Outputs,
) -> Result<()> {
    let axis = collective.group().axis.name();
    let peers = runtime.peers().ok_or(Error::NoPeers { op, axis })?;
    let read = |t: &&Tensor| -> Result<Array<f64>> {
        Ok(kernel::load::<f64>(&*t.storage.read(op)?, t.dtype, &t.layout, true).to_num())
    };
    let result = collective.exchange(&*peers, inputs.first().map(read).transpose()?)?;
    if let (Some(result), false) = (result, matches!(outs[0], Out::View(..))) {
        let (tensor, data) = (&outputs[0], kernel::numbers_as_integers(Data::Num(result)));
        kernel::store(&mut *tensor.storage.write(op)?, tensor.dtype, &tensor.layout, &data);
    }
    Ok(())
}

fn compute_in<T: Num>(op: &Op, inputs: &[&Tensor], outs: &[Out], outputs: &Outputs) -> Result<()> {
    let name = op.name();
    let (arguments, mut results) = operands::<T>(op, inputs, outs, outputs)?;
    let arguments: Vec<_> = arguments.into_iter().map(kernel::integers_as_numbers).collect();
    results = results.into_iter().map(kernel::integers_as_numbers).collect();
    op.run(&arguments, &mut results)?;
    for (tensor, result) in outputs.iter().zip(results) {
        kernel::store(
            &mut *tensor.storage.write(name)?,
            tensor.dtype,
            &tensor.layout,
            &kernel::numbers_as_integers(result),
        );
    }
    Ok(())
}

/// Arguments and results of a kernel.
type Operands<T> = (Vec<Data<T>>, Vec<Data<T>>);

/// Arguments and results of a kernel before it runs: fresh results are zero, the others hold what is overwritten.
fn operands<T: Num>(op: &Op, inputs: &[&Tensor], outs: &[Out], outputs: &Outputs) -> Result<Operands<T>> {
    let read = |t: &Tensor| Ok(kernel::load(&*t.storage.read(op.name())?, t.dtype, &t.layout, true));
    let arguments = inputs.iter().map(|t| read(t)).collect::<Result<Vec<_>>>()?;
    let result = |(t, out): (&Tensor, &Out)| match out {
        Out::InPlace(_) => read(t),
        _ if t.dtype.is_float() => Ok(Data::Num(Array::full(t.shape(), T::zero()))),
        _ => Ok(Data::Int(Array::full(t.shape(), 0i64))),
    };
    let results = outputs.iter().zip(outs).map(result).collect::<Result<Vec<_>>>()?;
    Ok((arguments, results))
}

/// Arithmetic operations of the kernel on these operands, counted by running it over [`Counted`].
fn count(op: &Op, inputs: &[&Tensor], outs: &[Out], outputs: &Outputs) -> Result<u64> {
    if NO_ARITHMETIC {
        return Err(no_arithmetic(op));
    }
    let (mut arguments, mut results) = operands::<Counted>(op, inputs, outs, outputs)?;
    if !inputs.iter().copied().chain(outputs.iter()).any(|t| t.dtype.is_float()) {
        // As in `compute`: without floats the integers are the numbers.
        let numbers = |data: Vec<Data<Counted>>| data.iter().map(|d| Data::Num(d.to_num())).collect::<Vec<_>>();
        (arguments, results) = (numbers(arguments), numbers(results));
    }
    let (result, counted) = Counted::count(|| op.run(&arguments, &mut results));
    result.map(|()| counted)
}

/// Which inputs want a gradient through `op`, if any: see [`autograd::needs`].
pub(crate) fn needs_of(inputs: &[&Tensor]) -> Needs {
    Needs::of(inputs.iter().map(|t| t.requires_grad()))
}
