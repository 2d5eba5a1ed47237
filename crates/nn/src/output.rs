//! The end of a model: what makes scores of hidden states.

use crate::context::Forward;
use crate::modules::{Sequence, hf};
use crate::param::{Builder, Init, ParamKind};
use crate::ranks::Share;
use crate::spec::ModelSpec;
use std::rc::Rc;
use tensor::ops::linear_cross_entropy::LinearCrossEntropy;
use tensor::{Result, Tensor};

/// The head, with what runs in front of it.
#[derive(Clone)]
pub struct Output {
    spec: Rc<ModelSpec>,
    transform: Sequence,
    head: Option<Head>,
}

/// The output projection; `None` for a weight that is the token table.
#[derive(Clone)]
struct Head {
    weight: Tensor,
    bias: Option<Tensor>,
    offsets: Option<Tensor>,
}

impl Output {
    /// The end of the model that `spec` describes, `table` being its tokens.
    pub(crate) fn new(b: &Builder<'_>, spec: &Rc<ModelSpec>, table: Option<&Tensor>) -> Result<Self> {
        let transform = Sequence::new(b, &spec.head.transform)?;
        let head = if spec.head.absent { None } else { Some(Head::new(b, spec, table)?) };
        Ok(Self { spec: spec.clone(), transform, head })
    }

    /// The weight of the projection.
    pub fn weight(&self) -> Option<&Tensor> {
        self.head.as_ref().map(|head| &head.weight)
    }

    /// Hidden states as the projection reads them.
    fn prepared(&self, f: &Forward, hidden: &Tensor) -> Result<Tensor> {
        let scaled = self.spec.head.input_scale.map(|scale| hidden.mul_scalar(scale)).transpose()?;
        let hidden = scaled.as_ref().unwrap_or(hidden);
        if self.transform.is_empty() { Ok(hidden.clone()) } else { self.transform.forward(f, hidden) }
    }

    /// What the head makes of hidden states.
    ///
    /// # Shapes
    /// `.. h -> .. v`
    ///
    /// # Errors
    /// If shapes do not fit.
    pub fn logits(&self, f: &Forward, hidden: &Tensor) -> Result<Tensor> {
        let spec = &self.spec.head;
        let hidden = self.prepared(f, hidden)?;
        let Some(head) = &self.head else { return Ok(hidden) };
        let hidden = f.enter(&hidden)?;
        let mut logits = {
            let _scope = f.runtime.scope(self.spec.names.head);
            let weight = f.weight(&head.weight)?;
            let bias = head.bias.as_ref().map(|b| f.weight(b)).transpose()?;
            let hidden =
                if f.runtime.autocast_setting().is_none() { &hidden.to_dtype(weight.dtype())? } else { &hidden };
            hidden.linear(&weight, bias.as_ref())?
        };
        if let Some(offsets) = head.offsets.as_ref().filter(|_| f.profile.is_hf()) {
            logits = logits.add(offsets)?;
        }
        if let Some(scale) = spec.scale {
            logits = logits.mul_scalar(scale)?;
        }
        if let Some(cap) = spec.softcap {
            logits = hf::softcap(logits, cap)?;
        }
        Ok(logits)
    }

    /// Mean cross-entropy of hidden states against targets without their logits ever being there together; `None` where
    /// the head is more than a product.
    ///
    /// # Shapes
    /// hidden `b s h`, targets `n = b s` (integers) -> scalar
    ///
    /// # Errors
    /// If shapes do not fit.
    pub fn fused_loss(&self, f: &Forward, hidden: &Tensor, targets: &Tensor) -> Result<Option<Tensor>> {
        let Some(head) = self.head.as_ref().filter(|_| self.spec.has_plain_head()) else { return Ok(None) };
        let hidden = self.prepared(f, hidden)?;
        let _scope = f.runtime.scope(self.spec.names.head);
        let weight = f.weight(&head.weight)?;
        let (rows, width, v) = (targets.elements(), weight.size(1), weight.size(0));
        let hidden = hidden.to_dtype(weight.dtype())?.view(&[rows, width])?;
        let chunk = LinearCrossEntropy::rows_of_chunk(rows, width, v);
        hidden.linear_cross_entropy(&weight, targets, chunk).map(Some)
    }
}

impl ModelSpec {
    /// Whether the head is a product with the hidden states and nothing more.
    pub fn has_plain_head(&self) -> bool {
        let head = &self.head;
        !head.absent && !head.bias && head.scale.is_none() && head.softcap.is_none()
    }
}

impl Head {
    fn new(b: &Builder<'_>, spec: &ModelSpec, table: Option<&Tensor>) -> Result<Self> {
        let (h, v, names) = (spec.hidden_size, spec.vocab_size, &spec.names);
        let width = spec.head.width.or(spec.embedding.width).unwrap_or(h);
        let rows = v.div_ceil(b.ranks().tp);
        let _scope = b.runtime().scope(names.head);
        let weight = match table.filter(|_| spec.head.tied) {
            Some(table) => {
                // Copies that are trained are tied no more (PEFT 0.21, `modules_to_save` without `ensure_weight_tying`).
                let table = b.original(table);
                if b.copies("weight") {
                    b.param_in("weight", table.shape(), ParamKind::Head, Init::FanIn(h), table.dtype())?
                } else {
                    b.tie(&table, &format!("{}.weight", names.head));
                    table
                }
            }
            None => b.sharing(Share::Part, || b.param("weight", &[rows, width], ParamKind::Head, Init::FanIn(h)))?,
        };
        let bias = || b.sharing(Share::Part, || b.param("bias", &[rows], ParamKind::Head, Init::Zeros));
        let bias = spec.head.bias.then(bias).transpose()?;
        if let (Some(bias), Some(name)) = (&bias, spec.head.bias_tie) {
            b.tie(bias, name);
        }
        let offsets = spec.head.offsets.then(|| b.buffer("final_logits_bias", &[1, v], b.dtype())).transpose()?;
        Ok(Self { weight, bias, offsets })
    }
}
