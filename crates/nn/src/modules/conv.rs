//! Convolution over positions.

use super::written_out;
use crate::context::Forward;
use crate::param::{Builder, Init, ParamKind};
use crate::spec::Conv1dSpec;
use tensor::{Result, Tensor};

/// Filters over neighbouring positions: one product for each tap, over views of the padded input.
#[derive(Clone, Debug)]
pub struct Conv {
    spec: Conv1dSpec,
    weight: Tensor,
    length: Option<Tensor>,
    bias: Option<Tensor>,
}

impl Conv {
    /// The filters, in the module `spec.map.name`: weight `output (input / groups) taps`.
    ///
    /// # Errors
    /// If the weight is too large to count.
    pub fn new(b: &Builder<'_>, spec: &Conv1dSpec) -> Result<Self> {
        let _scope = b.runtime().scope(spec.map.name);
        let inputs = spec.input / spec.groups.max(1);
        let init = Init::FanIn((inputs * spec.taps).max(1));
        let [weight, length] = if spec.normed {
            ["parametrizations.weight.original1", "parametrizations.weight.original0"]
        } else {
            ["weight", ""]
        };
        let weight = b.param(weight, &[spec.output, inputs, spec.taps], ParamKind::Matrix, init)?;
        let vector = |name: &str, shape: &[u64]| b.param(name, shape, ParamKind::Vector, Init::Ones);
        let length = spec.normed.then(|| vector(length, &[1, 1, spec.taps])).transpose()?;
        let zeros = || b.param("bias", &[spec.output], ParamKind::Vector, Init::Zeros);
        let bias = spec.map.bias.then(zeros).transpose()?;
        Ok(Self { spec: spec.clone(), weight, length, bias })
    }

    /// `b s c -> b o n`
    ///
    /// # Errors
    /// If the input is shorter than the filters.
    pub fn forward(&self, f: &Forward, x: &Tensor) -> Result<Tensor> {
        let spec = &self.spec;
        let _scope = f.runtime.scope(spec.map.name);
        let (b, c, o) = (x.size(0), x.size(2), spec.positions(x.size(1)));
        let padded = if spec.padding == 0 {
            x.clone()
        } else {
            let zeros = f.runtime.no_grad(|| f.runtime.zeros(&[b, spec.padding, c], x.dtype()))?;
            Tensor::cat(&[&zeros, x, &zeros], 1)?
        };
        let mut weight = f.weight(&self.weight)?;
        if let Some(length) = &self.length {
            let norm = weight.mul(&weight)?.sum(&[0, 1], true)?.sqrt()?;
            weight = weight.mul(&f.weight(length)?.div(&norm)?)?;
        }
        written_out("convolution", "taps", spec.taps)?;
        let mut sum: Option<Tensor> = None;
        for tap in 0..spec.taps {
            let seen = padded.narrow_step(1, tap, o, spec.stride)?; // b o c
            let filter = weight.select(2, tap)?; // n c/g
            let part = if spec.groups == 1 { seen.linear(&filter, None)? } else { self.grouped(&seen, &filter)? };
            sum = Some(match sum {
                Some(sum) => sum.add(&part)?,
                None => part,
            });
        }
        let sum = sum.ok_or(tensor::Error::Backward("a convolution without taps"))?;
        match &self.bias {
            Some(bias) => sum.add(&f.weight(bias)?),
            None => Ok(sum),
        }
    }

    /// One tap where the channels are in groups: `b o c`, `n c/g -> b o n`
    fn grouped(&self, seen: &Tensor, filter: &Tensor) -> Result<Tensor> {
        let g = self.spec.groups;
        let (b, o, c, n) = (seen.size(0), seen.size(1), seen.size(2), filter.size(0));
        let rows = seen.reshape(&[b * o, g, c / g])?.transpose(0, 1)?; // g (b o) c/g
        let maps = filter.reshape(&[g, n / g, c / g])?.transpose(1, 2)?; // g c/g n/g
        rows.matmul(&maps)?.transpose(0, 1)?.reshape(&[b, o, n])
    }
}
