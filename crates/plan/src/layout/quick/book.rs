//! All that was traced for layouts of a run, whatever way they divide it.

use units::{Bytes, Diagnostic, Diagnostics};

use super::{Desk, Plans, Seen, Sheet, Way};
use crate::cluster::step::StepTime;
use crate::layout::estimate::Run;
use crate::layout::{Layout, check};

/// All that was traced for layouts of a run, whatever way they divide it: for looking at single ones.
#[derive(Debug)]
pub struct Book<'a> {
    run: &'a Run<'a>,
    plans: Plans,
    sheets: Vec<(Way, Sheet)>,
}

/// What was looked at of a layout.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Look {
    /// Memory, and bounds of the time.
    pub seen: Seen,
    /// The step, its pipeline pass by pass.
    pub time: StepTime,
    /// What lies on the fullest host.
    pub host: Bytes,
}

impl<'a> Book<'a> {
    /// An empty one.
    pub fn new(run: &'a Run<'a>) -> Self {
        Self { run, plans: Plans::new(run), sheets: Vec::new() }
    }

    /// Memory and bounds of the time of layouts, each looked at as [`look`](Self::look) does, those of one way at one desk; those
    /// that cannot be traced are left out.
    pub fn seen(&mut self, layouts: &[Layout]) -> Vec<Seen> {
        let mut all = Vec::with_capacity(layouts.len());
        for layouts in layouts.chunk_by(|a, b| Way::of(a) == Way::of(b)) {
            let (mut plans, mut at) = (Vec::with_capacity(layouts.len()), 0);
            for layout in layouts {
                let traced = self.trace(layout);
                if let Ok((sheet, plan)) = traced {
                    at = sheet;
                    plans.push((layout, plan));
                }
            }
            let Some((_, sheet)) = self.sheets.get(at) else { continue };
            let mut desk = Desk::new(self.run.terms(), &self.plans, sheet);
            all.extend(plans.into_iter().filter_map(|(layout, plan)| {
                let device = desk.memory(layout, plan).ok()?;
                desk.bounds(layout, plan, device).ok()
            }));
        }
        all
    }

    /// Looks at a layout whose stages are as even as can be, tracing what is not there yet.
    ///
    /// # Errors
    /// What [`check`] refuses; `T0484` for parts of models that are not divided.
    pub fn look(&mut self, layout: &Layout) -> Result<Look, Diagnostics> {
        check(layout, &self.run.model.spec, self.run.step.seq_len, None)?;
        let refused = |reason: String| Diagnostics::from(Diagnostic::error("T0484", reason));
        let (at, plan) = self.trace(layout).map_err(refused)?;
        let mut desk = Desk::new(self.run.terms(), &self.plans, &self.sheets[at].1);
        let device = desk.memory(layout, plan).map_err(refused)?;
        let seen = desk.bounds(layout, plan, device).map_err(refused)?;
        let host = desk.host(layout, plan).map_err(refused)?;
        Ok(Look { seen, time: desk.time(layout, plan).map_err(refused)?, host })
    }

    /// Traces what a layout needs; where its sheet is, and its plan.
    fn trace(&mut self, layout: &Layout) -> Result<(usize, usize), String> {
        let way = Way::of(layout);
        let plan = self.plans.add(layout);
        let known = self.sheets.iter().position(|(known, _)| *known == way);
        let at = known.unwrap_or_else(|| {
            self.sheets.push((way, Sheet::default()));
            self.sheets.len() - 1
        });
        let (pieces, alone) = (&self.plans.pieces, layout.grad_accum == 1);
        self.sheets[at].1.add(self.run, pieces, &way, self.plans.get(plan), (layout.micro_batch, alone))?;
        Ok((at, plan))
    }
}
