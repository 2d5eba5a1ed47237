//! The outlines of all stages of one way to divide a model, traced once each.

use nn::blocks::Blocks;
use nn::pipeline::{Pass, Rank};
use nn::spec::ModelSpec;
use nn::step::{StepOptions, StepTrace};
use std::collections::{BTreeSet, HashMap};

use super::{Plan, Way};
use crate::layout::cut::Pieces;
use crate::layout::engine;
use crate::layout::estimate::Run;
use crate::layout::outline::{Outline, Prices, read};

/// Which sequences of a micro-batch an outline is of. One and two may differ in their ops: over one sequence nothing is summed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Sequences {
    /// Any number from this on.
    From(u64),
    /// That number alone.
    Only(u64),
}

impl Sequences {
    /// Those that may be of a number, the likeliest first.
    fn of(batch: u64) -> impl Iterator<Item = Self> {
        let from = [1, 2].into_iter().filter(move |first| *first <= batch).map(Self::From);
        from.chain([Self::Only(batch)])
    }
}

/// Which outline of a short piece: of steps of one micro-batch alone or of several.
type Which = (usize, bool, Sequences);

/// The outlines of all stages of one way to divide a model.
#[derive(Clone, Debug, Default)]
pub struct Sheet {
    pub(super) prices: Prices,
    /// The share of the model that a rank has, or why it has none, once that was asked for.
    own: Option<Result<ModelSpec, String>>,
    outlines: HashMap<Which, Outline>,
    /// Of each short piece, shapes of weights of which the engine holds one more.
    pub(super) shapes: HashMap<usize, BTreeSet<[u64; 2]>>,
    pub(super) weight_bytes: u64,
}

impl Sheet {
    /// Traces those short pieces that a plan needs for micro-batches of these numbers of sequences, and that are not there yet.
    ///
    /// # Errors
    /// In words, where a part of the model cannot be divided so, or is not traced.
    pub fn add(
        &mut self,
        run: &Run<'_>,
        pieces: &Pieces,
        way: &Way,
        plan: &Plan,
        (batch, alone): (u64, bool),
    ) -> Result<(), String> {
        Self::add_to(&mut [(way, self)], run, pieces, plan, (batch, alone))
    }

    /// The same for the sheets of ways that differ in what lies on the host alone: of nothing there first, of activations behind
    /// it. Both are read out of the same traces.
    ///
    /// # Errors
    /// As [`add`](Self::add).
    pub fn add_to(
        sheets: &mut [(&Way, &mut Self)],
        run: &Run<'_>,
        pieces: &Pieces,
        plan: &Plan,
        (batch, alone): (u64, bool),
    ) -> Result<(), String> {
        for &short in &plan.shorts {
            let missing = |(_, sheet): &&mut (&Way, &mut Self)| sheet.outline(short, alone, batch).is_none();
            let mut sheets: Vec<(&Way, &mut Self)> =
                sheets.iter_mut().filter(missing).map(|(way, sheet)| (*way, &mut **sheet)).collect();
            let Some((way, sheet)) = sheets.first_mut() else { continue };
            let share = || run.model.spec.share(way.ranks).map_err(|problems| problems.join("; "));
            let own = sheet.own.take().unwrap_or_else(share);
            let traced = own.as_ref().map_err(String::clone);
            let traced = traced.and_then(|own| Self::trace(&mut sheets, run, pieces, own, (short, alone, batch)));
            if let Some((_, sheet)) = sheets.first_mut() {
                sheet.own = Some(own);
            }
            traced?;
        }
        Ok(())
    }

    fn trace(
        sheets: &mut [(&Way, &mut Self)],
        run: &Run<'_>,
        pieces: &Pieces,
        own: &ModelSpec,
        (short, alone, batch): (usize, bool, u64),
    ) -> Result<(), String> {
        let Some(way) = sheets.first().map(|(way, _)| **way) else { return Ok(()) };
        let spec = pieces.spec(own, short).map_err(|problems| problems.join("; "))?;
        let micro_batches = if alone { 1 } else { 2 };
        let pass = |micro_batch| [Pass::Forward { chunk: 0, micro_batch }, Pass::Backward { chunk: 0, micro_batch }];
        let passes: Vec<Pass> = (0..micro_batches as usize).flat_map(pass).collect();
        let options = |batch, offload| StepOptions {
            batch,
            seq_len: run.step.seq_len / way.ranks.cp,
            grad_accum_steps: micro_batches,
            recompute: way.recompute,
            offload,
            ..run.step
        };
        // Sends and receives are of a pipeline, whatever the number of its ranks.
        let ranks = if spec.stage.first && spec.stage.last { 1 } else { 2 };
        let trace = |batch| {
            let (stages, options) = (std::slice::from_ref(&spec), &options(batch, way.offload));
            let accumulation = engine::accumulation(run.engine);
            let rank = Rank { stages, ranks, options, passes: &passes, accumulation };
            rank.trace().map_err(|error| error.to_string())
        };
        let blocks = Blocks::of(&spec.names);
        let form = (&pieces.short[short], spec.stage.before);
        // Where one sequence and two do the same, all do; else two and four are tried, and then the number itself.
        for sequences in Sequences::of(batch) {
            let (first, mut two) = match sequences {
                Sequences::From(first) => (first, Some(trace(2 * first)?)),
                Sequences::Only(batch) => (batch, None),
            };
            let mut one = trace(first)?;
            let mut on_host = way.offload;
            let mut all = true;
            for (way, sheet) in sheets.iter_mut() {
                if way.offload != on_host {
                    on_host = way.offload;
                    one.offload_activations();
                    two.iter_mut().for_each(StepTrace::offload_activations);
                }
                if sheet.outline(short, alone, batch).is_some() {
                    continue;
                }
                let read = read((&one, two.as_ref()), &options(first, on_host), blocks, form, &mut sheet.prices)?;
                match read {
                    Some(outline) => drop(sheet.outlines.insert((short, alone, sequences), outline)),
                    None => all = false,
                }
            }
            if all {
                break;
            }
        }
        for (_, sheet) in sheets {
            sheet.weight_bytes = run.step.precision.gathered_dtype().size_in_bytes();
            sheet.shapes.entry(short).or_insert_with(|| engine::shapes(run.engine, std::slice::from_ref(&spec)));
        }
        Ok(())
    }

    /// Gives up what only tracing needs.
    pub fn close(&mut self) {
        self.own = None;
    }

    pub(super) fn outline(&self, short: usize, alone: bool, batch: u64) -> Option<&Outline> {
        Sequences::of(batch).find_map(|sequences| self.outlines.get(&(short, alone, sequences)))
    }
}
