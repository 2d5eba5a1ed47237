//! Parameters by name, as a model is built.

use crate::ranks::{Ranks, Share};
use crate::spec::{Lora, Tuning};
use std::cell::{Cell, RefCell};
use tensor::layout::Layout;
use tensor::packed::Format;
use tensor::{DType, Result, Role, Runtime, Tensor};

/// What a parameter is, for counting and for weight decay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ParamKind {
    /// Token or position table: looked up, not multiplied.
    Embedding,
    /// Output projection to the vocabulary.
    Head,
    /// Matrix of a linear map.
    Matrix,
    /// Matrix of an adapter beside a linear map.
    Adapter,
    /// Matrix of the adapters beside a map of all experts.
    ExpertAdapter {
        /// Number of experts that have a part of it.
        experts: u64,
        /// Experts a token uses.
        top_k: u64,
    },
    /// Bias or norm weight.
    Vector,
    /// Part of a routed expert.
    Expert {
        /// Number of experts in the container.
        experts: u64,
        /// Experts a token uses.
        top_k: u64,
    },
}

/// A named parameter.
#[derive(Clone, Debug)]
pub struct Param {
    /// Full name, as in checkpoints.
    pub name: String,
    /// The tensor, a leaf of the graph; of a packed weight, its codes.
    pub tensor: Tensor,
    /// Sizes: those of the tensor, but for a packed weight.
    pub shape: Vec<u64>,
    /// Bytes that belong to a packed weight beside its codes: scales and what they need.
    pub constants: u64,
    /// What it is.
    pub kind: ParamKind,
    /// Other names under which the same tensor is used.
    pub tied: Vec<String>,
    /// Whether it is trained.
    pub trainable: bool,
    /// Whether each rank holds all of it where matrices are divided over tensor-parallel ranks.
    pub replicated: bool,
    /// What this rank holds of it.
    pub share: Share,
}

impl Param {
    /// A parameter that is trained.
    pub fn new(name: impl Into<String>, tensor: Tensor, kind: ParamKind) -> Self {
        let shape = tensor.shape().to_vec();
        Self {
            name: name.into(),
            tensor,
            shape,
            constants: 0,
            kind,
            tied: Vec::new(),
            trainable: true,
            replicated: false,
            share: Share::Whole,
        }
    }
}

/// How a parameter starts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// All zero.
    Zeros,
    /// All one.
    Ones,
    /// All this number.
    Constant(f64),
    /// The logarithm of 1, 2, ... along the last dimension: the decay rates of state spaces.
    LogOfPlace,
    /// Normal with a standard deviation, cut at three of them.
    TruncatedNormal(f64),
    /// Standard deviation `1 / sqrt(fan_in)`: keeps the variance of activations at any width.
    FanIn(u64),
    /// Uniform, by the mean of fan-in and fan-out (Glorot and Bengio 2010).
    Xavier {
        /// Inputs.
        fan_in: u64,
        /// Outputs.
        fan_out: u64,
    },
    /// [`Init::FanIn`] divided by `sqrt(2 layers)`: projections that write into the residual stream (GPT-2).
    ScaledResidual {
        /// Inputs.
        fan_in: u64,
        /// Blocks of the model.
        layers: u64,
    },
}

/// Collects the parameters of a model while its modules are made.
pub struct Builder<'a> {
    runtime: &'a Runtime,
    dtype: DType,
    frozen_dtype: DType,
    tuning: &'a Tuning,
    ranks: Ranks,
    frozen: Cell<bool>,
    replicated: Cell<bool>,
    share: Cell<Share>,
    params: RefCell<Vec<Param>>,
    buffers: RefCell<Vec<(String, Tensor)>>,
}

impl<'a> Builder<'a> {
    /// A builder of parameters of `dtype`, all of them trained.
    pub fn new(runtime: &'a Runtime, dtype: DType) -> Self {
        static PLAIN: Tuning = Tuning::PLAIN;
        Self::tuned(runtime, (dtype, dtype), &PLAIN, Ranks::ALONE)
    }

    /// A builder of parameters of one of `ranks`, of the first dtype; of those that are frozen, of the second.
    pub fn tuned(
        runtime: &'a Runtime,
        (dtype, frozen_dtype): (DType, DType),
        tuning: &'a Tuning,
        ranks: Ranks,
    ) -> Self {
        let (params, buffers) = (RefCell::default(), RefCell::default());
        let (frozen, replicated, share) = (Cell::new(false), Cell::new(false), Cell::default());
        Self { runtime, dtype, frozen_dtype, tuning, ranks, frozen, replicated, share, params, buffers }
    }

    /// The ranks among which the model is a part.
    pub fn ranks(&self) -> Ranks {
        self.ranks
    }

    /// What `make` makes, with parameters of which the rank holds this much.
    pub fn sharing<T>(&self, share: Share, make: impl FnOnce() -> T) -> T {
        let outside = self.share.replace(share);
        let made = make();
        self.share.set(outside);
        made
    }

    /// What `make` makes, with parameters that are never trained, whatever else is, and have no adapters.
    pub fn freezing<T>(&self, make: impl FnOnce() -> T) -> T {
        let outside = self.frozen.replace(true);
        let made = make();
        self.frozen.set(outside);
        made
    }

    /// What is trained.
    pub fn tuning(&self) -> &'a Tuning {
        self.tuning
    }

    /// Whether the parameter `name` of the current module is trained.
    pub fn trains(&self, name: &str) -> bool {
        !self.frozen.get() && self.tuning.trains(&self.path(name))
    }

    /// The adapter of the linear map that is the current module.
    pub fn adapter_here(&self) -> Option<&'a Lora> {
        self.tuning.adapter(&self.runtime.module_path()).filter(|_| !self.frozen.get())
    }

    /// Rank and scale of the adapters of the experts that the parameter `name` of the current module holds in a stack.
    pub fn stack_adapter(&self, name: &str) -> Option<(u64, f64)> {
        self.tuning.stack_adapter(&self.path(name)).filter(|_| !self.frozen.get())
    }

    /// Whether the parameter `name` of the current module is trained in a copy.
    pub fn copies(&self, name: &str) -> bool {
        !self.frozen.get() && self.tuning.copies(&self.path(name))
    }

    fn path(&self, name: &str) -> String {
        let path = self.runtime.module_path();
        if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
    }

    /// Runtime the model lives on.
    pub fn runtime(&self) -> &'a Runtime {
        self.runtime
    }

    /// What `make` makes, with parameters that each rank holds whole where matrices are divided over tensor-parallel ranks:
    /// engines do not divide what is small or feeds a norm.
    pub fn on_every_rank<T>(&self, make: impl FnOnce() -> T) -> T {
        let outside = self.replicated.replace(true);
        let made = make();
        self.replicated.set(outside);
        made
    }

    /// A parameter named `name` in the current module.
    ///
    /// # Errors
    /// If the shape is too large to count.
    pub fn param(&self, name: &str, shape: &[u64], kind: ParamKind, init: Init) -> Result<Tensor> {
        let copied = self.copies(name);
        let dtype = if self.trains(name) && !copied { self.dtype } else { self.frozen_dtype };
        if copied {
            let original = self.initial(shape, init, dtype)?.with_role(Role::Parameter);
            self.keep(&format!("{name}.original"), original, shape, kind, false);
        }
        self.param_in(name, shape, kind, init, dtype)
    }

    /// The same in a dtype of its own: weights that stay wide whatever the precision of the model.
    ///
    /// # Errors
    /// If the shape is too large to count.
    pub fn param_in(&self, name: &str, shape: &[u64], kind: ParamKind, init: Init, dtype: DType) -> Result<Tensor> {
        let tensor = self.initial(shape, init, dtype)?.with_role(Role::Parameter);
        let trainable = self.trains(name);
        let tensor = if trainable { tensor.require_grad()? } else { tensor };
        self.keep(name, tensor.clone(), shape, kind, trainable);
        Ok(tensor)
    }

    /// A matrix of an adapter: trained, whatever of the model is.
    ///
    /// # Errors
    /// If the shape is too large to count.
    pub fn adapter(&self, name: &str, shape: &[u64], kind: ParamKind, init: Init) -> Result<Tensor> {
        let tensor = self.initial(shape, init, self.dtype)?.with_role(Role::Parameter).require_grad()?;
        self.keep(name, tensor.clone(), shape, kind, true);
        Ok(tensor)
    }

    /// The same with values, which are made only where the device holds data.
    ///
    /// # Errors
    /// If the shape is too large to count.
    pub fn adapter_with(&self, name: &str, shape: &[u64], values: impl FnOnce() -> Result<Vec<f64>>) -> Result<Tensor> {
        let values = if self.runtime.holds_data() { values()? } else { Vec::new() };
        let tensor = self.runtime.tensor_with(shape, self.dtype, || values)?;
        let tensor = tensor.with_role(Role::Parameter).require_grad()?;
        self.keep(name, tensor.clone(), shape, ParamKind::Adapter, true);
        Ok(tensor)
    }

    /// A frozen matrix `(out in)` in codes and scales, in the order of [`Format::parts`].
    ///
    /// # Errors
    /// If the shape is too large to count.
    pub fn packed(&self, name: &str, format: &'static Format, [n, k]: [u64; 2], init: Init) -> Result<Vec<Tensor>> {
        let rt = self.runtime;
        // Codes are counted in bits: the weight itself must be countable before.
        Layout::contiguous(&[n, k])?;
        let values = if rt.holds_data() {
            let weight = rt.no_grad(|| self.initial(&[n, k], init, DType::F32)?.to_vec())?;
            format.pack(n, k, &weight)
        } else {
            Vec::new()
        };
        let mut tensors = Vec::new();
        for (i, part) in format.parts(n, k).into_iter().enumerate() {
            let tensor = rt.tensor_with(&[part.elements], part.dtype, || values[i].clone())?;
            tensors.push(if i == 0 {
                let tensor = tensor.with_role(Role::Parameter);
                self.keep(name, tensor.clone(), &[n, k], ParamKind::Matrix, false);
                tensor
            } else {
                self.keep_buffer(&format!("{name}.{}", part.name), tensor)
            });
        }
        if let Some(param) = self.params.borrow_mut().last_mut() {
            param.constants = tensors[1..].iter().map(|t| t.storage().bytes()).sum();
        }
        Ok(tensors)
    }

    fn keep(&self, name: &str, tensor: Tensor, shape: &[u64], kind: ParamKind, trainable: bool) {
        let (replicated, share) = (self.replicated.get(), self.share.get());
        let plain = Param::new(self.path(name), tensor, kind);
        let param = Param { shape: shape.to_vec(), trainable, replicated, share, ..plain };
        self.params.borrow_mut().push(param);
    }

    /// A parameter that is not trained, under a path of names in the current module.
    ///
    /// # Errors
    /// If the shape is too large to count.
    pub fn frozen(&self, path: &str, shape: &[u64], kind: ParamKind, init: Init, dtype: DType) -> Result<Tensor> {
        let tensor = self.initial(shape, init, dtype)?.with_role(Role::Parameter);
        self.keep(path, tensor.clone(), shape, kind, false);
        Ok(tensor)
    }

    /// The same with values, which are made only where the device holds data, in the dtype of the model.
    ///
    /// # Errors
    /// If the shape is too large to count.
    pub fn frozen_with(
        &self,
        path: &str,
        shape: &[u64],
        kind: ParamKind,
        values: impl FnOnce() -> Vec<f64>,
    ) -> Result<Tensor> {
        let tensor = self.runtime.tensor_with(shape, self.dtype, values)?.with_role(Role::Parameter);
        self.keep(path, tensor.clone(), shape, kind, false);
        Ok(tensor)
    }

    /// dtype of the parameters.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// A tensor of the model that gradients do not train.
    pub fn buffer(&self, name: &str, shape: &[u64], dtype: DType) -> Result<Tensor> {
        Ok(self.keep_buffer(name, self.runtime.zeros(shape, dtype)?))
    }

    /// The same with values, which are made only where the device holds data.
    ///
    /// # Errors
    /// As [`Builder::buffer`].
    pub fn buffer_with(
        &self,
        name: &str,
        shape: &[u64],
        dtype: DType,
        values: impl FnOnce() -> Vec<f64>,
    ) -> Result<Tensor> {
        Ok(self.keep_buffer(name, self.runtime.tensor_with(shape, dtype, values)?))
    }

    fn keep_buffer(&self, name: &str, tensor: Tensor) -> Tensor {
        let tensor = tensor.with_role(Role::Buffer);
        self.buffers.borrow_mut().push((self.path(name), tensor.clone()));
        tensor
    }

    /// What the parameter `tensor` is a copy of, or itself.
    pub fn original(&self, tensor: &Tensor) -> Tensor {
        let params = self.params.borrow();
        let copy = params.iter().find(|p| p.tensor.shares_storage_with(tensor));
        let name = copy.map(|p| format!("{}.original", p.name));
        let original = params.iter().find(|p| name.as_ref() == Some(&p.name));
        original.map_or(tensor, |p| &p.tensor).clone()
    }

    /// Notes that the parameter `tensor` is used under a second name.
    pub fn tie(&self, tensor: &Tensor, name: &str) {
        if let Some(p) = self.params.borrow_mut().iter_mut().find(|p| p.tensor.shares_storage_with(tensor)) {
            p.tied.push(name.to_owned());
        }
    }

    /// Notes that all parameters under the module path `first` are used under `second` too.
    pub fn tie_all(&self, first: &str, second: &str) {
        for p in self.params.borrow_mut().iter_mut() {
            if let Some(rest) = p.name.strip_prefix(first).filter(|rest| rest.starts_with('.')) {
                let name = format!("{second}{rest}");
                p.tied.push(name);
            }
        }
    }

    /// The parameters and buffers made.
    pub fn finish(self) -> (Vec<Param>, Vec<(String, Tensor)>) {
        (self.params.into_inner(), self.buffers.into_inner())
    }

    fn initial(&self, shape: &[u64], init: Init, dtype: DType) -> Result<Tensor> {
        use tensor::ops::create::Random;
        use tensor::rng::Stream;
        let rt = self.runtime;
        let normal = |std: f64| rt.truncated_normal(shape, std, 3.0, dtype);
        match init {
            Init::Zeros => rt.zeros(shape, dtype),
            Init::Ones => rt.ones(shape, dtype),
            Init::Constant(value) => rt.full(shape, value, dtype),
            Init::LogOfPlace => {
                let count = shape.last().copied().unwrap_or(1);
                rt.arange(count, 1.0, 1.0, DType::F32)?.log()?.to_dtype(dtype)?.expand(shape)?.copy()
            }
            Init::TruncatedNormal(std) => normal(std),
            Init::FanIn(fan_in) => normal(1.0 / (fan_in as f64).sqrt()),
            Init::ScaledResidual { fan_in, layers } => normal(1.0 / (fan_in as f64 * 2.0 * layers as f64).sqrt()),
            Init::Xavier { fan_in, fan_out } => {
                let limit = (6.0 / (fan_in + fan_out) as f64).sqrt();
                rt.random(shape, Random::Uniform(-limit, limit), Stream::Init, dtype)
            }
        }
    }
}
