//! Parameters by name, as a model is built.

use std::cell::RefCell;
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
    /// The tensor, a leaf of the graph.
    pub tensor: Tensor,
    /// What it is.
    pub kind: ParamKind,
    /// Other names under which the same tensor is used.
    pub tied: Vec<String>,
    /// Whether it is trained.
    pub trainable: bool,
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
    params: RefCell<Vec<Param>>,
    buffers: RefCell<Vec<(String, Tensor)>>,
}

impl<'a> Builder<'a> {
    /// A builder of parameters of `dtype`.
    pub fn new(runtime: &'a Runtime, dtype: DType) -> Self {
        Self { runtime, dtype, params: RefCell::default(), buffers: RefCell::default() }
    }

    /// Runtime the model lives on.
    pub fn runtime(&self) -> &'a Runtime {
        self.runtime
    }

    /// A parameter named `name` in the current module.
    ///
    /// # Errors
    /// If the shape is too large to count.
    pub fn param(&self, name: &str, shape: &[u64], kind: ParamKind, init: Init) -> Result<Tensor> {
        self.param_in(name, shape, kind, init, self.dtype)
    }

    /// The same in a dtype of its own: weights that stay wide whatever the precision of the model.
    ///
    /// # Errors
    /// If the shape is too large to count.
    pub fn param_in(&self, name: &str, shape: &[u64], kind: ParamKind, init: Init, dtype: DType) -> Result<Tensor> {
        let tensor = self.initial(shape, init, dtype)?.with_role(Role::Parameter).require_grad()?;
        self.keep(name, tensor.clone(), kind, true);
        Ok(tensor)
    }

    fn keep(&self, name: &str, tensor: Tensor, kind: ParamKind, trainable: bool) {
        let path = self.runtime.module_path();
        let name = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
        self.params.borrow_mut().push(Param { name, tensor, kind, tied: Vec::new(), trainable });
    }

    /// A parameter that is not trained, under a path of names in the current module.
    ///
    /// # Errors
    /// If the shape is too large to count.
    pub fn frozen(&self, path: &str, shape: &[u64], kind: ParamKind, init: Init, dtype: DType) -> Result<Tensor> {
        let tensor = self.initial(shape, init, dtype)?.with_role(Role::Parameter);
        self.keep(path, tensor.clone(), kind, false);
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
        self.keep(path, tensor.clone(), kind, false);
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
        let path = self.runtime.module_path();
        self.buffers.borrow_mut().push((format!("{path}.{name}"), tensor.clone()));
        tensor
    }

    /// Notes that the parameter `tensor` is used under a second name.
    pub fn tie(&self, tensor: &Tensor, name: &str) {
        if let Some(p) = self.params.borrow_mut().iter_mut().find(|p| p.tensor.shares_storage_with(tensor)) {
            p.tied.push(name.to_owned());
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
