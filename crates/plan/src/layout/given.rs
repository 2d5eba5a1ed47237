//! Parts of a layout that are given: the search does not look along these axes.

use nn::context::Recompute;
use nn::offload::Offload;
use units::{Diagnostic, Diagnostics};

use super::{ContextParallel, Layout, Schedule, check};
use nn::spec::ModelSpec;

/// What is given of a layout; everything else is looked for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Given {
    /// Replicas.
    pub dp: Option<u64>,
    /// Ranks that share matrices.
    pub tp: Option<u64>,
    /// Whether what lies between shared matrices is divided.
    pub sp: Option<bool>,
    /// Ranks that share a sequence.
    pub cp: Option<u64>,
    /// How attention sees the rest of a sequence.
    pub context: Option<ContextParallel>,
    /// Ranks that share the experts of a block.
    pub ep: Option<u64>,
    /// Ranks that share the matrices of one expert.
    pub etp: Option<u64>,
    /// Pipeline stages.
    pub pp: Option<u64>,
    /// Runs of blocks on a pipeline rank.
    pub virtual_stages: Option<u64>,
    /// Order of passes, where there is a pipeline.
    pub schedule: Option<Schedule>,
    /// What is divided over replicas.
    pub zero: Option<u8>,
    /// Sequences of a micro-batch.
    pub micro_batch: Option<u64>,
    /// Micro-batches of a step.
    pub grad_accum: Option<u64>,
    /// What is run again in backward.
    pub recompute: Option<Recompute>,
    /// What lies on the host.
    pub offload: Option<Offload>,
}

impl Given {
    /// The smallest layout that has all of it.
    fn least(&self) -> Layout {
        let plain = Layout::default();
        let pp = self.pp.unwrap_or(if self.virtual_stages.is_some_and(|chunks| chunks > 1) { 2 } else { 1 });
        let virtual_stages = self.virtual_stages.unwrap_or(1);
        Layout {
            dp: self.dp.unwrap_or(1),
            tp: self.tp.unwrap_or(if self.sp == Some(true) { 2 } else { 1 }),
            sp: self.sp.unwrap_or(false),
            cp: self.cp.unwrap_or(1),
            context: self.context.unwrap_or(plain.context),
            etp: self.etp.unwrap_or(1),
            ep: self.ep.unwrap_or(1),
            pp,
            virtual_stages,
            schedule: if virtual_stages > 1 { Schedule::Interleaved } else { plain.schedule },
            zero: self.zero.unwrap_or(0),
            micro_batch: self.micro_batch.unwrap_or(1),
            grad_accum: self.grad_accum.unwrap_or(pp),
            ..plain
        }
    }

    /// What is wrong with it, whatever the rest.
    ///
    /// # Errors
    /// As [`check`]; `T0480` where the degrees do not divide the devices.
    pub fn check(&self, model: &ModelSpec, seq_len: u64, devices: u64) -> Result<(), Diagnostics> {
        let mut least = self.least();
        let shared = least.tp.saturating_mul(least.cp).saturating_mul(least.pp).max(1);
        // Experts are divided over all ranks of a stage.
        least.dp = self.dp.unwrap_or((devices / shared).max(1));
        let mut problems = check(&least, model, seq_len, None).err().unwrap_or_default();
        let of = shared.saturating_mul(self.dp.unwrap_or(1)).max(1);
        if !devices.is_multiple_of(of) {
            let message = format!("{devices} devices are no multiple of the {of} of the degrees given");
            let above = (devices / of + 1).saturating_mul(of);
            let choices = if devices < of { above.to_string() } else { format!("{} or {above}", devices / of * of) };
            problems.push(Diagnostic::error("T0480", message).help(format!("{choices} devices would do")));
        }
        if problems.has_errors() { Err(problems) } else { Ok(()) }
    }
}
