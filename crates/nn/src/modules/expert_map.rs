//! A linear map of every expert in one tensor, and the low-rank adapters beside it.

use crate::context::Forward;
use crate::param::{Builder, Init, ParamKind};
use tensor::{Result, Tensor};

/// A linear map of every expert.
#[derive(Clone, Debug)]
pub struct ExpertMap {
    /// `e out in`, `e in out`, or all experts in one matrix.
    weight: Tensor,
    adapter: Option<Adapters>,
}

/// An adapter for every expert, as `target_parameters` of PEFT makes them.
#[derive(Clone, Debug)]
struct Adapters {
    /// `(e rank) in`
    a: Tensor,
    /// `out (rank e)`
    b: Tensor,
    /// Experts, rank, inputs, outputs.
    sizes: [u64; 4],
    /// Whether the weight lies as `e out in`.
    out_in: bool,
    scale: f64,
}

/// What one pass of the `hf` profiles makes of the weight of a map with adapters: it lives until the experts are left.
#[derive(Debug, Default)]
pub struct Formed {
    /// `e m rank`, `e rank n`, in the dtype of the weight.
    factors: Option<[Tensor; 2]>,
    /// The weight with what the adapters add.
    weight: Option<Tensor>,
}

impl ExpertMap {
    /// The map `name` of the current module for `experts` of `kind`, of which the weight lies as `e out in` or as `e in out`.
    ///
    /// # Errors
    /// If a weight is too large to count.
    pub fn new(
        b: &Builder<'_>,
        name: &'static str,
        (experts, kind): (u64, ParamKind),
        [input, output]: [u64; 2],
        out_in: bool,
        init: Init,
    ) -> Result<Self> {
        let shape = if out_in { [experts, output, input] } else { [experts, input, output] };
        let weight = b.param(name, &shape, kind, init)?;
        let given = b.stack_adapter(name);
        let _scope = b.runtime().scope(name);
        let adapter =
            given.map(|given| Adapters::new(b, given, (experts, kind), [input, output], out_in)).transpose()?;
        Ok(Self { weight, adapter })
    }

    /// The map of a weight that has all experts in one matrix: it has no adapters.
    pub fn of_matrix(weight: Tensor) -> Self {
        Self { weight, adapter: None }
    }

    /// The beginning of a pass through the experts.
    ///
    /// Where there are adapters, PEFT (0.21) makes the weight a parametrized one for the time of the pass. Registering it forms
    /// it once to look at its shape; the experts form it again when they read it.
    ///
    /// # Errors
    /// If shapes do not fit.
    pub fn begin(&self, f: &Forward) -> Result<Formed> {
        let Some(adapters) = self.adapter.as_ref().filter(|_| f.adapters && f.profile.is_hf()) else {
            return Ok(Formed::default());
        };
        let factors = adapters.factors(&self.weight)?;
        drop(adapters.fold(&self.weight, &factors)?);
        Ok(Formed { factors: Some(factors), weight: None })
    }

    /// The weight that rows are multiplied with.
    ///
    /// # Errors
    /// If shapes do not fit.
    pub fn weight(&self, f: &Forward, formed: &mut Formed) -> Result<Tensor> {
        let (Some(adapters), Some(factors)) = (&self.adapter, &formed.factors) else { return f.weight(&self.weight) };
        let weight = adapters.fold(&self.weight, factors)?;
        formed.weight = Some(weight.clone());
        f.weight(&weight)
    }

    /// What the map made of rows sorted by expert, with what its adapters add where that is not in its weight: two grouped
    /// products of low rank.
    ///
    /// # Shapes
    /// x `r in`, out `r out`, sizes `e` -> `r out`
    ///
    /// # Errors
    /// If shapes do not fit.
    pub fn beside(&self, f: &Forward, x: &Tensor, out: Tensor, sizes: &Tensor) -> Result<Tensor> {
        let Some(adapters) = self.adapter.as_ref().filter(|_| f.adapters && !f.profile.is_hf()) else {
            return Ok(out);
        };
        let a = adapters.down(&f.weight(&adapters.a)?)?;
        let low = x.grouped_linear(&a, sizes)?.mul_scalar(adapters.scale)?; // r rank
        let added = low.grouped_linear(&adapters.up(&f.weight(&adapters.b)?)?, sizes)?;
        out.add(&added)
    }
}

impl Adapters {
    fn new(
        b: &Builder<'_>,
        (rank, scale): (u64, f64),
        (experts, kind): (u64, ParamKind),
        [input, output]: [u64; 2],
        out_in: bool,
    ) -> Result<Self> {
        let kind = match kind {
            ParamKind::Expert { experts, top_k } => ParamKind::ExpertAdapter { experts, top_k },
            _ => ParamKind::Adapter,
        };
        let make = |name, shape: [u64; 2], init| {
            let _scope = b.runtime().scope(name);
            b.adapter("weight", &shape, kind, init)
        };
        let all = rank.saturating_mul(experts);
        Ok(Self {
            a: make("lora_A", [all, input], Init::FanIn(input))?,
            b: make("lora_B", [output, all], Init::Zeros)?,
            sizes: [experts, rank, input, output],
            out_in,
            scale,
        })
    }

    /// `(e rank) in -> e rank in`
    fn down(&self, a: &Tensor) -> Result<Tensor> {
        let [experts, rank, input, _] = self.sizes;
        a.view(&[experts, rank, input])
    }

    /// `out (rank e) -> e out rank`
    fn up(&self, b: &Tensor) -> Result<Tensor> {
        let [experts, rank, _, output] = self.sizes;
        b.view(&[output, rank, experts])?.permute(&[2, 0, 1])
    }

    /// Factors of what is added to `weight`, in its dtype.
    ///
    /// # Shapes
    /// `e out rank`, `e rank in`, or `e in rank`, `e rank out`
    fn factors(&self, weight: &Tensor) -> Result<[Tensor; 2]> {
        let (down, up) = (self.down(&self.a)?, self.up(&self.b)?);
        let [left, right] = if self.out_in { [up, down] } else { [down.t()?, up.t()?] };
        Ok([left.to_dtype(weight.dtype())?, right.to_dtype(weight.dtype())?])
    }

    /// `weight` with what is added to it.
    fn fold(&self, weight: &Tensor, [left, right]: &[Tensor; 2]) -> Result<Tensor> {
        weight.add_matmul(left, right, self.scale)
    }
}
