//! Causal attention over a sequence that several ranks share: keys and values go round.
//!
//! The sequence is cut into twice as many parts as there are ranks. Rank `r` has part `r` and the part as far from the end, in
//! this order, so that every rank looks at as many pairs. With the keys of the ranks before it all its queries see the
//! first part; of the keys of those behind it the queries of its second part see both. The results of the steps are put
//! together by their log-sum-exp, in f32. Backward sends keys and values round again, and their gradients behind them.
//!
//! Source: Liu et al. 2023, arXiv:2310.01889. The parts and the masks: NVIDIA/TransformerEngine,
//! `transformer_engine/pytorch/attention/dot_product_attention/context_parallel.py`, `AttnFuncWithCPAndKVP2P`; pytorch/pytorch,
//! `torch/distributed/tensor/experimental/_attention.py`, `_RoundRobinLoadBalancer`.

use super::attention::{Attention, AttentionBackward};
use super::{Needs, Op, Out, Outs, Rule, Saves};
use crate::apply::apply;
use crate::autograd::{Back, Grads};
use crate::collective::Group;
use crate::error::{Error, Result};
use crate::kernel::{Data, Num};
use crate::meter::Cost;
use crate::tensor::{Spec, Tensor};
use smallvec::smallvec;

/// What stands on the tape for all steps of a ring, which are ops of their own.
///
/// Inputs: q `(b a s d)`, k `(b kv s d)`, v `(b kv s dv)`, the result `(b a s dv)` and the log-sum-exp `(b a s)` over all ranks.
/// Its output is the result.
#[derive(Clone, Debug, PartialEq)]
pub struct RingAttention {
    /// Ranks.
    pub group: Group,
    /// The attention that they do together; causal, without a window, a bias or sinks.
    pub of: Attention,
}

/// What of a rank's queries sees what of the keys that are here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sees {
    /// Each those up to itself: the keys are the rank's own.
    Own,
    /// All see the first part: the keys are of a rank before.
    Front,
    /// The second part sees all: the keys are of a rank behind.
    Back,
}

impl Sees {
    fn of(place: u64, source: u64) -> Self {
        match source.cmp(&place) {
            std::cmp::Ordering::Equal => Self::Own,
            std::cmp::Ordering::Less => Self::Front,
            std::cmp::Ordering::Greater => Self::Back,
        }
    }

    /// The queries that see anything, or what goes with them.
    fn queries(self, x: &Tensor) -> Result<Tensor> {
        let half = x.size(2) / 2;
        if self == Self::Back { x.narrow(2, half, half) } else { Ok(x.clone()) }
    }

    /// The keys that are seen, or what goes with them.
    fn keys(self, x: &Tensor) -> Result<Tensor> {
        if self == Self::Front { x.narrow(2, 0, x.size(2) / 2) } else { Ok(x.clone()) }
    }
}

impl RingAttention {
    fn step(&self, sees: Sees) -> Attention {
        Attention { causal: sees == Sees::Own, ..self.of.clone() }
    }

    /// A tensor to the next rank for that of the rank before.
    fn pass(&self, x: &Tensor) -> Result<Tensor> {
        x.send(self.group, 1)?;
        Tensor::recv(x.runtime(), self.group, -1, x.shape(), x.dtype())
    }

    /// Looks at the keys and values of every rank, the next ones on their way meanwhile.
    fn round(&self, k: &Tensor, v: &Tensor, mut look: impl FnMut(Sees, &Tensor, &Tensor) -> Result<()>) -> Result<()> {
        let (ranks, place) = (self.group.size.max(1), k.runtime().place(self.group.axis));
        let (mut k, mut v) = (k.clone(), v.clone());
        for step in 0..ranks {
            let next = if step + 1 < ranks { Some((self.pass(&k)?, self.pass(&v)?)) } else { None };
            look(Sees::of(place, (place + ranks - step) % ranks), &k, &v)?;
            if let Some(next) = next {
                (k, v) = next;
            }
        }
        Ok(())
    }

    /// The result and the log-sum-exp over all ranks.
    fn forward(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<(Tensor, Tensor)> {
        let mut all: Option<(Tensor, Tensor)> = None;
        self.round(k, v, |sees, k, v| {
            let (q, k, v) = (sees.queries(q)?, sees.keys(k)?, sees.keys(v)?);
            let mut made = q.attention_with_lse(&k, &v, None, None, self.step(sees))?.into_iter();
            let (Some(out), Some(lse)) = (made.next(), made.next()) else {
                return Err(Error::Backward("attention has two results"));
            };
            let Some((sum, weight)) = &all else {
                let out = if self.group.is_alone() { out } else { out.to_dtype(lse.dtype())? };
                all = Some((out, lse));
                return Ok(());
            };
            let (sum, weight) = (sees.queries(sum)?, sees.queries(weight)?);
            // Of exp(a) and exp(b), the second is sigmoid(b - a) of both, and both are exp(a + softplus(b - a)).
            let by = lse.sub(&weight)?;
            let change = out.to_dtype(lse.dtype())?.sub(&sum)?.mul(&by.sigmoid()?.unsqueeze(-1)?)?;
            sum.add_scaled_(&change, 1.0)?;
            weight.add_scaled_(&by.softplus()?, 1.0)?;
            Ok(())
        })?;
        let (out, lse) = all.ok_or(Error::Backward("a ring has a rank"))?;
        Ok((out.to_dtype(q.dtype())?, lse))
    }
}

impl Rule for RingAttention {
    fn name(&self) -> &'static str {
        "ring_attention"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        Ok(smallvec![Out::View(3, inputs[3].layout.clone())])
    }

    fn cost(&self, _: &[Spec], _: &[Spec]) -> Cost {
        // Its steps are ops.
        Cost::default()
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        outputs[0] = inputs[3].clone();
        Ok(())
    }

    fn saves(&self, _: Needs) -> Saves {
        Saves { inputs: 0b1_1111, outputs: 0 }
    }

    fn differentiable(&self) -> u8 {
        0b111
    }

    fn gradient(&self, back: &Back<'_>) -> Result<Grads> {
        let (q, out, lse, grad) = (back.input(0)?, back.input(3)?, back.input(4)?, back.grad()?);
        let mut dq: Option<Tensor> = None;
        // Of the keys and values that are here, what all ranks that have looked at them add up to.
        let mut behind: Option<[Tensor; 2]> = None;
        self.round(back.input(1)?, back.input(2)?, |sees, k, v| {
            let of = AttentionBackward { of: self.step(sees) };
            let [q, out, lse, grad] = [sees.queries(q)?, sees.queries(out)?, sees.queries(lse)?, sees.queries(grad)?];
            let (k, v) = (sees.keys(k)?, sees.keys(v)?);
            let mut made = apply(Op::AttentionBackward(of), &[&q, &k, &v, &out, &lse, &grad])?.into_iter();
            let (Some(by_q), Some(by_k), Some(by_v)) = (made.next(), made.next(), made.next()) else {
                return Err(Error::Backward("attention has three gradients"));
            };
            match &dq {
                None => dq = Some(by_q),
                Some(all) => drop(sees.queries(all)?.add_scaled_(&by_q, 1.0)?),
            }
            behind = Some(match behind.take() {
                None => [by_k, by_v],
                Some([dk, dv]) => {
                    let (dk, dv) = (self.pass(&dk)?, self.pass(&dv)?);
                    sees.keys(&dk)?.add_scaled_(&by_k, 1.0)?;
                    sees.keys(&dv)?.add_scaled_(&by_v, 1.0)?;
                    [dk, dv]
                }
            });
            Ok(())
        })?;
        let Some([mut dk, mut dv]) = behind else { return Err(Error::Backward("a ring has a rank")) };
        if !self.group.is_alone() {
            // The last that were here are those of the next rank.
            (dk, dv) = (self.pass(&dk)?, self.pass(&dv)?);
        }
        Ok([dq, Some(dk), Some(dv)].into_iter().enumerate().map(|(i, grad)| grad.filter(|_| back.wants(i))).collect())
    }
}

impl Tensor {
    /// Causal attention of this rank's queries over the keys and values of all ranks of `group`, of which each has one part
    /// from the front of the sequence and the one as far from its end.
    ///
    /// # Shapes
    /// self `b a s d`, k `b kv s d`, v `b kv s dv` -> `b a s dv`
    ///
    /// # Errors
    /// An odd number of positions; a window, which no step of the ring could keep to; what [`Tensor::attention`] refuses.
    pub fn ring_attention(&self, k: &Self, v: &Self, group: Group, op: Attention) -> Result<Self> {
        let refuse = |what: &str| Err(Error::Argument { op: "ring_attention", what: what.to_owned() });
        if self.rank() == 4 && !group.is_alone() && !self.size(2).is_multiple_of(2) {
            return refuse("positions of a rank must be two parts of equal length");
        }
        if op.window.is_some() || !op.causal {
            return refuse("keys and values go round for causal attention without a window only");
        }
        // As autocast would for attention.
        let low = self.runtime().autocast_setting().map_or(self.dtype(), |(low, _)| low);
        let (this, k, v) = (&self.to_dtype(low)?, &k.to_dtype(low)?, &v.to_dtype(low)?);
        let ring = RingAttention { group, of: Attention { bias: false, sinks: false, ..op } };
        let (q, keys, values) = (this.detach(), k.detach(), v.detach());
        let (out, lse) = this.runtime().no_grad(|| ring.forward(&q, &keys, &values))?;
        Self::op(Op::RingAttention(ring), &[this, k, v, &out, &lse])
    }
}
