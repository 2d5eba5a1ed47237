//! From one rank to another.

use super::{Op, Out, Outs, Rule, one_fresh};
use crate::apply::apply_on;
use crate::collective::{Collective, Group, Peers};
use crate::dtype::DType;
use crate::error::Result;
use crate::kernel::{Array, Data, Num};
use crate::layout::Dims;
use crate::meter::Cost;
use crate::runtime::Runtime;
use crate::tensor::{Spec, Tensor};
use smallvec::smallvec;

/// Hands a tensor to the rank `to` places behind this one, round the ring. Its result is the tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Send {
    /// Ranks.
    pub group: Group,
    /// Places.
    pub to: i64,
}

/// A tensor from the rank `from` places behind this one, round the ring.
#[derive(Clone, Debug, PartialEq)]
pub struct Recv {
    /// Ranks.
    pub group: Group,
    /// Places.
    pub from: i64,
    /// What comes.
    pub shape: Dims,
    /// Its dtype.
    pub dtype: DType,
}

impl Rule for Send {
    fn name(&self) -> &'static str {
        "send"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Outs> {
        Ok(smallvec![Out::View(0, inputs[0].layout.clone())])
    }

    fn cost(&self, inputs: &[Spec], _: &[Spec]) -> Cost {
        let bytes = if self.group.is_alone() { 0 } else { inputs[0].bytes() };
        Cost { read: bytes, sent: bytes, ..Cost::default() }
    }

    fn run<T: Num>(&self, inputs: &[Data<T>], outputs: &mut [Data<T>]) -> Result<()> {
        outputs[0] = inputs[0].clone();
        Ok(())
    }

    fn collective(&self) -> Option<&dyn Collective> {
        Some(self)
    }
}

impl Collective for Send {
    fn group(&self) -> Group {
        self.group
    }

    fn exchange(&self, peers: &dyn Peers, input: Option<Array<f64>>) -> Result<Option<Array<f64>>> {
        input.map_or(Ok(()), |x| peers.send(self.group, self.to, x.data))?;
        Ok(None)
    }
}

impl Rule for Recv {
    fn name(&self) -> &'static str {
        "recv"
    }

    fn infer(&self, _: &[Spec]) -> Result<Outs> {
        one_fresh(&self.shape, self.dtype)
    }

    fn cost(&self, _: &[Spec], outputs: &[Spec]) -> Cost {
        let bytes = if self.group.is_alone() { 0 } else { outputs[0].bytes() };
        Cost { written: bytes, received: bytes, ..Cost::default() }
    }

    fn run<T: Num>(&self, _: &[Data<T>], _: &mut [Data<T>]) -> Result<()> {
        Ok(())
    }

    fn collective(&self) -> Option<&dyn Collective> {
        Some(self)
    }
}

impl Collective for Recv {
    fn group(&self) -> Group {
        self.group
    }

    fn exchange(&self, peers: &dyn Peers, _: Option<Array<f64>>) -> Result<Option<Array<f64>>> {
        let shape = self.shape.iter().map(|&n| n as usize).collect();
        Ok(Some(Array { shape, data: peers.receive(self.group, self.from)? }))
    }
}

impl Tensor {
    /// Hands this tensor to the rank `to` places behind this one in `group`, round the ring.
    ///
    /// # Errors
    /// If that rank is gone.
    pub fn send(&self, group: Group, to: i64) -> Result<()> {
        Self::op(Op::Send(Send { group, to }), &[&self.detach()]).map(drop)
    }

    /// A tensor from the rank `from` places behind this one in `group`, round the ring.
    ///
    /// # Errors
    /// If that rank is gone, or the shape is too large to count.
    pub fn recv(runtime: &Runtime, group: Group, from: i64, shape: &[u64], dtype: DType) -> Result<Self> {
        let op = Op::Recv(Recv { group, from, shape: shape.into(), dtype });
        Ok(apply_on(runtime, op, &[])?.swap_remove(0))
    }
}
