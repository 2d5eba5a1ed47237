//! Mixtures of experts: routed experts on rows sorted by expert, shared experts.
//!
//! The `hf` profiles follow transformers' default for experts, one grouped product per weight over all routed rows
//! (`integrations/moe.py`); families whose code loops over experts (DBRX) are counted the same way, for the loop makes
//! the same products.

use super::block::scope;
use super::dispatch::Dispatched;
use super::expert_map::{ExpertMap, Formed};
use super::mlp::{gated, limited};
use super::{Linear, Mlp, Router, hf};
use crate::context::Forward;
use crate::param::{Builder, Init, ParamKind};
use crate::ranks::Share;
use crate::spec::{Activation, ExpertGate, ExpertLayout, LinearSpec, MoeSpec};
use std::rc::Rc;
use tensor::ops::matmul::Mask;
use tensor::{DType, Result, Tensor};

const NO_INPUT: tensor::Error = tensor::Error::Backward("experts without an input map");

/// A mixture of experts.
#[derive(Clone, Debug)]
pub struct Moe {
    spec: Rc<MoeSpec>,
    router: Router,
    experts: Experts,
    shared: Option<Shared>,
    /// Into the width of the experts and back.
    latent: Option<[Linear; 2]>,
}

#[derive(Clone, Debug)]
struct Shared {
    name: &'static str,
    mlp: Mlp,
    gate: Option<Linear>,
}

/// Weights of the routed experts.
#[derive(Clone, Debug)]
struct Experts {
    /// One weight for gate and value, or one for each.
    input: Vec<ExpertMap>,
    input_bias: Option<Tensor>,
    down: ExpertMap,
    down_bias: Option<Tensor>,
    /// On the sum over the experts of a token: `h`.
    sum_bias: Option<Tensor>,
}

/// Rows of the experts: who they are and where they came from.
pub(super) struct Rows {
    /// `r`: routed row at each sorted place.
    pub order: Tensor,
    /// `r`: expert of each sorted row.
    pub expert: Tensor,
    /// `e`: rows of each expert.
    pub sizes: Tensor,
    /// Lives as long in the reference.
    _counted: Option<Tensor>,
}

impl Moe {
    /// A mixture on a residual stream of width `h`, in the current module.
    ///
    /// # Errors
    /// If a weight is too large to count.
    pub fn new(b: &Builder<'_>, spec: &Rc<MoeSpec>, h: u64, layers: u64) -> Result<Self> {
        let router = Router::new(b, spec, h)?;
        let experts = {
            let _scope = scope(b.runtime(), spec.name);
            b.sharing(Share::Part, || Experts::new(b, spec, h, layers))?
        };
        let shared = match &spec.shared {
            None => None,
            Some(shared) => {
                let mlp = {
                    let _scope = b.runtime().scope(shared.name);
                    Mlp::new(b, &shared.mlp, h, layers)?
                };
                let map = |name| Linear::new(b, &LinearSpec::new(name, false), h, 1, Init::FanIn(h));
                let gate = |name| b.on_every_rank(|| map(name));
                Some(Shared { name: shared.name, mlp, gate: shared.gate.map(gate).transpose()? })
            }
        };
        let latent = spec.latent.as_ref().map(|latent| -> Result<_> {
            let into = LinearSpec::new("fc1_latent_proj", latent.bias);
            let back = LinearSpec::new("fc2_latent_proj", latent.bias);
            let out = Init::ScaledResidual { fan_in: latent.width, layers };
            Ok([Linear::new(b, &into, h, latent.width, Init::FanIn(h))?, Linear::new(b, &back, latent.width, h, out)?])
        });
        let latent = latent.transpose()?;
        Ok(Self { spec: spec.clone(), router, experts, shared, latent })
    }

    /// `b s h -> b s h`
    pub fn forward(&self, f: &Forward, x: &Tensor) -> Result<Tensor> {
        self.forward_chosen_by(f, x, None)
    }

    /// The same, experts being chosen by another stream.
    ///
    /// # Shapes
    /// `b s h`, `b s h -> b s h`
    ///
    /// # Errors
    /// If shapes do not fit.
    pub fn forward_chosen_by(&self, f: &Forward, x: &Tensor, chooser: Option<&Tensor>) -> Result<Tensor> {
        let (b, s, h) = (x.size(0), x.size(1), x.size(2));
        let rows = x.view(&[b * s, h])?;
        let chooser = chooser.map(|chooser| chooser.view(&[b * s, h])).transpose()?;
        let early = match &self.shared {
            Some(shared) if shared.gate.is_some() => Some(shared.forward(f, &rows)?),
            _ => None,
        };
        if self.spec.everywhere && f.profile.is_hf() {
            return self.everywhere(f, &rows)?.view(&[b, s, h]);
        }
        let routed = self.router.forward(f, chooser.as_ref().unwrap_or(&rows))?;
        let inner = self.latent.as_ref().map(|[into, _]| into.forward(f, &rows)).transpose()?;
        let mut out = {
            let _scope = scope(&f.runtime, self.spec.name);
            self.routed(f, inner.as_ref().unwrap_or(&rows), &routed.weights, &routed.chosen)?
        };
        if let Some([_, back]) = &self.latent {
            out = back.forward(f, &out)?;
        }
        let Some(shared) = &self.shared else { return out.view(&[b, s, h]) };
        if let (Some(early), Some(gate)) = (early, &shared.gate) {
            let early = gate.forward(f, &rows)?.sigmoid()?.mul(&early)?;
            return out.add(&early)?.view(&[b, s, h]);
        }
        let out = out.view(&[b, s, h])?;
        out.add(&shared.forward(f, x)?)
    }

    /// Every expert on every token, the products of those that were not chosen on zeros.
    ///
    /// # Shapes
    /// `t h -> t h`
    fn everywhere(&self, f: &Forward, rows: &Tensor) -> Result<Tensor> {
        let (e, tokens, h) = (self.spec.experts, rows.size(0), rows.size(1));
        // The model needs the products of the chosen alone.
        let needed = Mask { pairs: self.spec.top_k, square: e };
        let scores = self.router.forward_everywhere(f, rows)?; // t e
        let copies = rows.unsqueeze(0)?.expand(&[e, tokens, h])?.contiguous()?;
        let input = copies.mul(&scores.transpose(0, 1)?.unsqueeze(-1)?)?; // e t h
        drop(copies);
        let out = {
            let _scope = scope(&f.runtime, self.spec.name);
            let map = self.experts.input.first().ok_or(NO_INPUT)?;
            let width = self.spec.intermediate_size;
            let (mut down, mut into) = (self.experts.down.begin(f)?, map.begin(f)?);
            let both = input.matmul_masked(&map.weight(f, &mut into)?, needed)?; // e t 2f
            let halves = both.split(&[width, width], -1)?;
            drop(both);
            let inner = halves[1].mul(&hf::activate(f, self.spec.act, halves[0].clone())?)?;
            inner.matmul_masked(&self.experts.down.weight(f, &mut down)?, needed)? // e t h
        };
        let summed = out.sum(&[0], false)?;
        match &self.shared {
            Some(shared) => shared.forward(f, rows)?.add_reusing(&summed),
            None => Ok(summed),
        }
    }

    /// Rows sorted by expert through the experts' maps, weighted and summed back per token.
    ///
    /// # Shapes
    /// rows `t h`, weights `t k`, chosen `t k` -> `t h`
    fn routed(&self, f: &Forward, rows: &Tensor, weights: &Tensor, chosen: &Tensor) -> Result<Tensor> {
        let (tokens, h, k) = (rows.size(0), rows.size(1), self.spec.top_k);
        let routed = tokens * k;
        let weights = weights.reshape(&[routed])?;
        let (sorted, owner) = sort_rows(f, &chosen.reshape(&[routed])?, k, self.spec.experts + self.spec.zero_experts)?;
        let real = self.real_rows(f, &sorted)?;
        let mut input = pick(f, rows, &owner)?; // r h
        drop(owner);
        let scale = pick(f, &weights, &sorted.order)?; // r
        if self.spec.everywhere {
            input = input.mul(&scale.unsqueeze(-1)?)?;
        }

        let elsewhere = f.ranks.ep > 1 || f.ranks.etp > 1;
        let sent = elsewhere.then(|| Dispatched::of(f, &input, &sorted.sizes)).transpose()?;
        if let Some(sent) = &sent {
            input = sent.rows.clone();
        }
        let (expert, sizes) = sent.as_ref().map_or((&sorted.expert, &sorted.sizes), |sent| (&sent.expert, &sent.sizes));
        let input_bias = self.experts.input_bias.as_ref().map(|b| pick(f, &f.weight(b)?, expert)).transpose()?;
        // The map that is wrapped last is the first to be formed.
        let mut down_formed = self.experts.down.begin(f)?;
        let mut formed = Vec::with_capacity(2);
        let mut maps = Vec::with_capacity(2);
        for map in &self.experts.input {
            let mut weight = map.begin(f)?;
            maps.push(self.map(f, &input, (map, &mut weight), false, sizes)?);
            formed.push(weight);
        }
        if let Some(bias) = &input_bias {
            maps = vec![maps.remove(0).add(bias)?];
        }
        let between = self.weights_between(f);
        let inner = if between {
            let column = scale.unsqueeze(-1)?;
            maps.push(sent.as_ref().map_or(Ok(column.clone()), |sent| sent.follow(f, &column))?);
            let (act, width) = (self.spec.act, self.spec.intermediate_size);
            f.fused(&maps, move |t| weighted_gate(act, width, t))?
        } else {
            self.gate(f, maps)?
        }; // r f
        let down_bias = self.experts.down_bias.as_ref().map(|b| pick(f, &f.weight(b)?, expert)).transpose()?;
        let down_sizes = real.as_ref().map_or(sizes, |(_, sizes)| sizes);
        let mut out = self.map(f, &inner, (&self.experts.down, &mut down_formed), true, down_sizes)?; // r h
        drop((inner, input_bias));
        if let Some((mask, _)) = &real {
            out = mask.unsqueeze(-1)?.where_cond(&out, &input.to_dtype(out.dtype())?)?;
        }
        if let Some(bias) = &down_bias {
            out = out.add(bias)?;
        }
        if let Some(sent) = sent {
            drop(input);
            out = sent.back(f, out)?;
        }
        // The reference's `proj_out` lives to the end of its function.
        let mut weighted = if self.spec.everywhere || between { out } else { out.mul(&scale.unsqueeze(-1)?)? };
        // Back to the order of tokens: a sum over k, where adding rows would have to keep them.
        let inverse = f.runtime.no_grad(|| sorted.order.argsort())?;
        weighted = pick(f, &weighted, &inverse)?;
        let summed = weighted.view(&[tokens, k, h])?.sum(&[1], false)?.to_dtype(rows.dtype())?;
        drop((formed, down_formed));
        match &self.experts.sum_bias {
            Some(bias) => summed.add(&f.weight(bias)?),
            None => Ok(summed),
        }
    }

    /// Whether the weights of routed rows are applied between their maps, in the kernel of the gate: the second one is linear,
    /// and what it makes is then not kept for their gradient.
    ///
    /// Source: NVIDIA/Megatron-LM, `megatron/core/fusions/fused_bias_swiglu.py` (00caa53), `WeightedSwiGLUFunction`, which keeps
    /// the map and the weights.
    fn weights_between(&self, f: &Forward) -> bool {
        let gated = self.experts.input.len() == 2 || self.spec.gate == ExpertGate::Halves;
        let linear = self.experts.down_bias.is_none() && self.spec.zero_experts == 0 && !self.spec.everywhere;
        !f.profile.is_hf() && gated && linear
    }

    /// Which sorted rows belong to experts with weights, and how many to each of these, where there are others: rows of
    /// those run with the last expert, and what it makes of them is not used.
    ///
    /// # Shapes
    /// `r` (bool), `e` (i32)
    fn real_rows(&self, f: &Forward, sorted: &Rows) -> Result<Option<(Tensor, Tensor)>> {
        let (e, rt) = (self.spec.experts, &f.runtime);
        if self.spec.zero_experts == 0 {
            return Ok(None);
        }
        rt.no_grad(|| {
            let last = rt.full(&[], e.saturating_sub(1) as f64, DType::I64)?;
            let mask = sorted.expert.less_equal(&last)?;
            let sizes = mask.where_cond(&sorted.expert, &last)?.bincount(e)?.to_dtype(DType::I32)?;
            Ok(Some((mask, sizes)))
        })
    }

    /// One grouped product. The reference's is on none of autocast's lists: it runs in the dtype of the weight.
    fn map(
        &self,
        f: &Forward,
        x: &Tensor,
        (map, formed): (&ExpertMap, &mut Formed),
        down: bool,
        sizes: &Tensor,
    ) -> Result<Tensor> {
        let weight = map.weight(f, formed)?;
        let (e, width) = (self.spec.experts, self.spec.intermediate_size);
        let product = || {
            if self.spec.layout == ExpertLayout::Stacked {
                let weight = weight.view(&[e / f.ranks.ep, width, weight.size(1)])?;
                return if down {
                    x.grouped_linear_transposed(&weight, sizes)
                } else {
                    x.grouped_linear(&weight, sizes)
                };
            }
            let x = x.to_dtype(weight.dtype())?;
            let out = if self.spec.layout == ExpertLayout::InOut {
                x.grouped_linear_transposed(&weight, sizes)?
            } else {
                x.grouped_linear(&weight, sizes)?
            };
            map.beside(f, &x, out, sizes)
        };
        if f.profile.is_hf() && !matches!(self.spec.layout, ExpertLayout::Stacked | ExpertLayout::Modules) {
            f.runtime.without_autocast(product)
        } else {
            product()
        }
    }

    /// Gate and value joined: `r 2f`, or `r f` twice, -> `r f`.
    fn gate(&self, f: &Forward, mut maps: Vec<Tensor>) -> Result<Tensor> {
        let (act, width) = (self.spec.act, self.spec.intermediate_size);
        let last = maps.pop().ok_or(NO_INPUT)?;
        if let Some(gate) = maps.pop() {
            if !f.profile.is_hf() {
                return gated(act, &gate, &last);
            }
            return hf::activate(f, act, gate)?.mul(&last);
        }
        match self.spec.gate {
            ExpertGate::None => hf::activate(f, act, last),
            ExpertGate::Halves => {
                let halves = last.split(&[width, width], -1)?;
                drop(last);
                if f.profile.is_hf() {
                    hf::activate(f, act, halves[0].clone())?.mul(&halves[1])
                } else {
                    gated(act, &halves[0], &halves[1])
                }
            }
            ExpertGate::Limited { limit } => f.fused(&[last], move |t| {
                let halves = t[0].split(&[width, width], -1)?;
                limited(act, &halves[0], &halves[1], limit)
            }),
            ExpertGate::Clamped { limit, slope } => f.fused(&[last], move |t| clamped_gate(&t[0], width, limit, slope)),
        }
    }
}

impl Shared {
    fn forward(&self, f: &Forward, x: &Tensor) -> Result<Tensor> {
        let _scope = f.runtime.scope(self.name);
        self.mlp.forward(f, x)
    }
}

impl Experts {
    fn new(b: &Builder<'_>, spec: &MoeSpec, h: u64, layers: u64) -> Result<Self> {
        let (e, f) = (spec.experts / b.ranks().ep, spec.intermediate_size);
        let h = spec.latent.as_ref().map_or(h, |latent| latent.width);
        let kind = ParamKind::Expert { experts: spec.experts, top_k: spec.top_k };
        let (into, out) = (Init::FanIn(h), Init::ScaledResidual { fan_in: f, layers });
        let bias = |name, width| -> Result<Option<Tensor>> {
            spec.expert_bias.then(|| b.param(name, &[e, width], kind, Init::Zeros)).transpose()
        };
        if spec.layout == ExpertLayout::Stacked {
            let _scope = b.runtime().scope("mlp");
            let stacked = |name, init| b.param(name, &[e * f, h], kind, init).map(ExpertMap::of_matrix);
            let input = vec![stacked("w1", into)?, stacked("v1", into)?];
            return Ok(Self { input, input_bias: None, down: stacked("w2", out)?, down_bias: None, sum_bias: None });
        }
        // The reference gives those that return their input a part of the input map too, which nothing reads.
        let (all, all_kind) =
            (e + spec.zero_experts, ParamKind::Expert { experts: e + spec.zero_experts, top_k: spec.top_k });
        let modules = spec.layout == ExpertLayout::Modules;
        let out_in = modules || spec.layout == ExpertLayout::OutIn;
        let map = |name, of, sizes, init| ExpertMap::new(b, name, of, sizes, out_in, init);
        let (name, bias_name, width) = match spec.gate {
            ExpertGate::None => ("up_proj", "up_proj_bias", f),
            ExpertGate::Halves | ExpertGate::Limited { .. } | ExpertGate::Clamped { .. } => {
                ("gate_up_proj", "gate_up_proj_bias", 2 * f)
            }
        };
        let (name, down) = if modules { ("input_linear.weight", "output_linear.weight") } else { (name, "down_proj") };
        let sum_bias = || b.sharing(Share::Whole, || b.param("bias", &[h], ParamKind::Vector, Init::Zeros));
        let sum_bias = modules.then(sum_bias).transpose()?;
        Ok(Self {
            input: vec![map(name, (all, all_kind), [h, width], into)?],
            input_bias: bias(bias_name, width)?,
            down: map(down, (e, kind), [f, h], out)?,
            down_bias: bias("down_proj_bias", h)?,
            sum_bias,
        })
    }
}

/// Rows of a table by index; the reference's indexing and a fused permutation differ in their gradient.
pub(super) fn pick(f: &Forward, table: &Tensor, index: &Tensor) -> Result<Tensor> {
    if f.profile.is_hf() { table.index(index) } else { table.embedding(index) }
}

/// Sorts routed rows by their expert; the token of each sorted row beside it.
///
/// # Shapes
/// `r` (i64) -> `r` (i64)
pub(super) fn sort_rows(f: &Forward, chosen: &Tensor, k: u64, experts: u64) -> Result<(Rows, Tensor)> {
    f.runtime.no_grad(|| {
        let order = chosen.argsort()?;
        let expert = chosen.gather(0, &order)?;
        let owner = order.div_scalar(k as f64)?.to_dtype(DType::I64)?;
        // PyTorch's histogram wants floats on a CPU.
        let counted = f.profile.is_hf().then(|| expert.to_dtype(DType::F32)).transpose()?;
        let sizes = expert.bincount(experts)?.to_dtype(DType::I32)?;
        Ok((Rows { order, expert, sizes, _counted: counted }, owner))
    })
}

/// Gate and value joined, times the weight of the row, in the dtype of the maps.
///
/// # Shapes
/// `r 2f`, or `r f` twice, then `r 1` -> `r f`
fn weighted_gate(act: Activation, width: u64, tensors: &[Tensor]) -> Result<Tensor> {
    let inner = if let [gate, up, _] = tensors {
        gated(act, gate, up)?
    } else {
        let halves = tensors[0].split(&[width, width], -1)?;
        gated(act, &halves[0], &halves[1])?
    };
    inner.mul(&tensors[tensors.len() - 1])?.to_dtype(inner.dtype())
}

/// `(min(up, limit) + 1) * gate σ(slope gate)`, `gate` held below `limit`, `up` between both; they are neighbours.
fn clamped_gate(both: &Tensor, width: u64, limit: f64, slope: f64) -> Result<Tensor> {
    let (gate, up) = (both.narrow_step(-1, 0, width, 2)?, both.narrow_step(-1, 1, width, 2)?);
    let gate = gate.clamp(f64::NEG_INFINITY, limit)?;
    let up = up.clamp(-limit, limit)?;
    let open = gate.mul_scalar(slope)?.sigmoid()?;
    let glu = gate.mul(&open)?;
    up.add_scalar(1.0)?.mul(&glu)
}
