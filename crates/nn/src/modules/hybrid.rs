//! Blocks of Zamba: a Transformer block with shared weights in front of a state space.

use super::block::Mixer;
use super::linear::Branch;
use super::{Attention, Linear, Mlp, Norm};
use crate::context::Forward;
use crate::param::{Builder, Init};
use crate::spec::{HybridSpec, LinearSpec};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use tensor::{Error, Result, Tensor};

/// The stack hands the embedded tokens to the blocks that read them.
const NO_EMBEDDED: Error = Error::Backward("a block that reads the embedded tokens, in a stack that has none");

/// Sets of weights that blocks of one stack share, as they are made.
#[derive(Debug, Default)]
pub struct Sharing(RefCell<BTreeMap<u64, (Shared, String)>>);

/// A Transformer block on the stream beside the embedded tokens, and the low-rank maps of all its places.
#[derive(Clone, Debug)]
struct Shared {
    first: Norm,
    attention: Attention,
    second: Norm,
    mlp: Mlp,
    branches: BTreeMap<u64, Branches>,
}

/// Low-rank maps of one place: of queries, keys and values, and of the feed-forward part.
#[derive(Clone, Debug)]
struct Branches {
    attention: Option<[Rc<Branch>; 3]>,
    mlp: Rc<Branch>,
}

/// A block: the shared part as it is at this place, its map into the stream, the state space behind both.
#[derive(Clone, Debug)]
pub struct Hybrid {
    name: &'static str,
    shared: Shared,
    into: Linear,
    norm: Norm,
    mamba: Box<Mixer>,
}

impl Hybrid {
    /// A block on a residual stream of width `h`, in the current module.
    ///
    /// # Errors
    /// If a weight is too large to count.
    pub fn new(b: &Builder<'_>, spec: &HybridSpec, h: u64, layers: u64, sharing: &Sharing) -> Result<Self> {
        let shared = {
            let _scope = b.runtime().scope(spec.name);
            Shared::get(b, spec, h, layers, sharing)?
        };
        let into = Linear::new(b, &LinearSpec::new("linear", false), h, h, Init::FanIn(h))?;
        let _scope = b.runtime().scope("mamba_decoder");
        let norm = Norm::new(b, "input_layernorm", &spec.norm, &[h])?;
        let _scope = b.runtime().scope("mamba");
        let mamba = Box::new(Mixer::new(b, &spec.mamba, h, layers, sharing)?);
        Ok(Self { name: spec.name, shared: shared.at(spec.place), into, norm, mamba })
    }

    /// What joins the stream, and the attention weights that the reference returns beside it.
    ///
    /// # Shapes
    /// `b s h -> b s h`, with the embedded tokens `b s h` beside it
    pub fn forward(&self, f: &Forward, x: &Tensor) -> Result<(Tensor, Option<Tensor>)> {
        let (made, weights) = {
            let _scope = f.runtime.scope(self.name);
            self.shared.forward(f, x)?
        };
        let made = self.into.forward(f, &made)?;
        let _scope = f.runtime.scope("mamba_decoder");
        let inner = self.norm.forward(f, &x.add(&made)?)?;
        drop(made);
        let _scope = f.runtime.scope("mamba");
        Ok((self.mamba.forward(f, &inner)?.0, weights))
    }
}

impl Shared {
    /// The set of the block, made by the first that uses it.
    fn get(b: &Builder<'_>, spec: &HybridSpec, h: u64, layers: u64, sharing: &Sharing) -> Result<Self> {
        let path = b.runtime().module_path();
        if let Some((shared, first)) = sharing.0.borrow().get(&spec.set) {
            b.tie_all(first, &path);
            return Ok(shared.clone());
        }
        let first = Norm::new(b, "input_layernorm", &spec.norm, &[2 * h])?;
        let list = |name, place: u64, from: u64, rank: u64, to: u64| Branch::new(b, name, place, [from, rank, to]);
        let mut attention_branches = BTreeMap::new();
        let attention = {
            let _scope = b.runtime().scope("self_attn");
            if let Some(branch) = spec.branches.filter(|branch| branch.attention) {
                for &place in &spec.places {
                    let one = |name| Ok::<_, Error>(Rc::new(list(name, place, 2 * h, branch.rank, 2 * h)?));
                    let three =
                        [one("linear_q_adapter_list")?, one("linear_k_adapter_list")?, one("linear_v_adapter_list")?];
                    attention_branches.insert(place, three);
                }
            }
            Attention::between(b, &Rc::new(spec.attention.clone()), 2 * h, h, layers)?
        };
        let second = Norm::new(b, "pre_ff_layernorm", &spec.norm, &[h])?;
        let mut branches = BTreeMap::new();
        let mlp = {
            let _scope = b.runtime().scope("feed_forward");
            if let Some(branch) = spec.branches {
                for &place in &spec.places {
                    let width = 2 * spec.mlp.intermediate_size;
                    let mlp = Rc::new(list("gate_up_proj_adapter_list", place, h, branch.rank, width)?);
                    let attention = attention_branches.remove(&place);
                    branches.insert(place, Branches { attention, mlp });
                }
            }
            Mlp::new(b, &spec.mlp, h, layers)?
        };
        let shared = Self { first, attention, second, mlp, branches };
        sharing.0.borrow_mut().insert(spec.set, (shared.clone(), path));
        Ok(shared)
    }

    /// As it is at one of its places.
    fn at(mut self, place: u64) -> Self {
        if let Some(own) = self.branches.remove(&place) {
            self.mlp = self.mlp.with_branch(own.mlp);
            if let Some(three) = own.attention {
                self.attention = self.attention.with_branches(three);
            }
        }
        self
    }

    fn forward(&self, f: &Forward, x: &Tensor) -> Result<(Tensor, Option<Tensor>)> {
        let embedded = f.embedded.as_ref().ok_or(NO_EMBEDDED)?;
        let inner = self.first.forward(f, &Tensor::cat(&[x, embedded], -1)?)?;
        let (attended, weights) = {
            let _scope = f.runtime.scope("self_attn");
            self.attention.forward(f, &inner)?
        };
        drop(inner);
        let inner = self.second.forward(f, &attended)?;
        drop(attended);
        let _scope = f.runtime.scope("feed_forward");
        Ok((self.mlp.forward(f, &inner)?, weights))
    }
}
