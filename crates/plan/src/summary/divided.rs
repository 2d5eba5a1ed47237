//! The main job of a run that is divided over devices by a layout: what it is, whether its fullest rank fits, how long a step
//! and the run take.

use tensor::Role;
use units::{Bytes, Diagnostics, Tokens};

use super::model_block;
use crate::fleet::Fleet;
use crate::flops;
use crate::inference::cache::{Cache, WIDTH};
use crate::layout::estimate::{Estimate, Run};
use crate::layout::rank::RankMemory;
use crate::layout::{answer, report as words};
use crate::ledger::{self, stretch};
use crate::params::{Counts, parameters};
use crate::phrase;
use crate::quant::Format;
use crate::report::{Block, Cell, Column, KeyValue, Report, Row, Table, Value, Verdict};
use crate::time::{self, Pace};
use crate::wall::Around;
use crate::work::Work;

/// The question.
#[derive(Debug)]
pub struct Question<'a> {
    /// How the run is divided, and what the layout does not say.
    pub request: words::Request<'a>,
    /// Where and by whom it is made.
    pub run: Run<'a>,
    /// Tokens of the run, if its time is asked for.
    pub tokens: Option<Tokens>,
    /// What is known of the speed; it is predicted where nothing is.
    pub pace: Pace,
    /// US dollars for one device and hour.
    pub price: Option<f64>,
    /// What there is around the steps of the run.
    pub around: Around,
}

/// Everything about a divided run, on one screen.
///
/// # Errors
/// As [`words::report`], [`Run::traces`] and [`time::Request::report`].
pub fn report(question: &Question<'_>) -> Result<Report, Diagnostics> {
    let Question { request, run, .. } = question;
    let (model, layout, hardware) = (request.model, request.layout, run.cluster.hardware);
    let said = words::report(request)?;
    let (traces, estimate) = run.whole(layout)?;
    let work = flops::work(model, &run.step)?;
    let time = question.time(&estimate, &work)?;
    let capacity = hardware.capacity();
    let fits = estimate.fits(capacity);

    let mut report = Report::new("plan", if fits { phrase!["fits"] } else { phrase!["does not fit"] });
    report.verdict = if fits { Verdict::Answered } else { Verdict::No };
    let device = hardware.display.as_str();
    report.headline.qualifiers.push(phrase![estimate.total(), " of ", capacity, " per ", device]);
    let fleet = question.fleet();
    if let Some(time) = &time {
        report.headline.qualifiers.push(time.headline.answer.clone().and(" on ").and(fleet.name()));
        if time.verdict == Verdict::No {
            report.verdict = Verdict::No;
            report.headline.qualifiers.extend(time.headline.qualifiers.iter().skip(1).cloned());
        }
    } else {
        let share = Cell::Percent(estimate.mfu.get());
        let step = phrase![estimate.seconds(), " a step on ", fleet.name(), ", ", share, " MFU"];
        report.headline.qualifiers.push(step);
    }

    let counts = Counts::of(&parameters(model)?);
    let kept = Cache::of(&model.spec, Format::bf16(), WIDTH)?;
    report.blocks.push(model_block(model, &counts, &work, &kept, run.step.seq_len));
    let devices = KeyValue::new("devices", layout.devices()).note(layout.to_string());
    report.blocks.push(Block::key_values("layout", std::iter::once(devices).chain(words::groups(request))));
    report.blocks.extend(fullest(&estimate).map(Block::from));
    if layout.pp > 1 {
        report.blocks.push(answer::memory(&estimate, hardware).into());
    }
    report.blocks.push(answer::time(&estimate).into());
    report.result = Value::map()
        .with("fits", fits)
        .with("params", counts.result())
        .with("flop_per_token", work.flop_per_token())
        .with("layout", words::result(layout, &layout.blocks_of(model.spec.depth() as u64), run.step.seq_len))
        .with("estimate", answer::value(&estimate))
        .with("time", time.as_ref().map_or(Value::Null, |time| time.result.clone()));
    if !fits {
        answer::changes(&mut report, run, layout, &estimate)?;
    }
    report.inputs =
        Value::map().with("model", model.inputs()).with("hardware", fleet.inputs()).with("tokens", question.tokens);
    report.assumptions = said.assumptions;
    report.assumptions.extend(answer::assumptions(run));
    report.assumptions.push(answer::allocator(&[&estimate], false));
    let filling = run.fullest(layout, &traces, &estimate);
    report.derivations = answer::derivations(run, layout, filling.as_ref(), &estimate);
    report.warnings = model.step_warnings(&run.step);
    if let Some(time) = time {
        report.blocks.extend(time.blocks);
        // What both parts rest on is said once.
        let more: Vec<_> = time.warnings.into_iter().filter(|one| !report.warnings.contains(one)).collect();
        report.warnings.extend(more);
        let said = |id| report.assumptions.iter().any(|one| one.id == id);
        let more: Vec<_> = time.assumptions.into_iter().filter(|one| !said(one.id)).collect();
        report.assumptions.extend(more);
        report.derivations.extend(time.derivations);
    } else {
        report.assumptions.extend(model.assumptions());
        report.notes.push(phrase!["--tokens 1T adds how long it takes"]);
    }
    Ok(report)
}

impl Question<'_> {
    /// The devices of the layout.
    fn fleet(&self) -> Fleet {
        Fleet {
            hardware: self.run.cluster.hardware.clone(),
            devices: self.request.layout.devices(),
            devices_given: true,
            precision: self.run.arithmetic(),
            precision_given: true,
        }
    }

    /// How long the run takes.
    fn time(&self, estimate: &Estimate, work: &Work) -> Result<Option<Report>, Diagnostics> {
        let Some(tokens) = self.tokens else { return Ok(None) };
        let pace = match self.pace {
            Pace::Unknown => Pace::Predicted(estimate.mfu),
            said => said,
        };
        let (price, around) = (self.price, self.around);
        let request = time::Request { work: work.clone(), tokens, fleet: self.fleet(), pace, price, around };
        request.report().map(Some)
    }
}

/// What fills the fullest rank at its peak.
fn fullest(estimate: &Estimate) -> Option<Table> {
    let rank: &RankMemory = estimate.memory.iter().max_by_key(|rank| rank.peak_bytes)?;
    let columns = [Column::left(""), Column::one_unit(""), Column::left(""), Column::right("")];
    let mut table = Table::new("memory of the fullest device", columns);
    let outside = estimate.outside.get();
    let total = estimate.total();
    let allocator = total.get().saturating_sub(estimate.device.get());
    let roles = Role::ALL.into_iter().map(|role| (role.name().replace('_', " "), rank.peak_by_role[role as usize]));
    let more =
        [("held by the engine", rank.beside), ("context and communicators", outside), (ledger::ALLOCATOR, allocator)];
    let mut lines: Vec<(String, u64)> = roles.chain(more.map(|(name, bytes)| (name.to_owned(), bytes))).collect();
    lines.retain(|(_, bytes)| *bytes > 0);
    lines.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    for (name, bytes) in lines {
        let share = bytes as f64 / total.get().max(1) as f64;
        table.rows.push(Row::new([name.into(), Bytes(bytes).into(), Cell::Bar(share), Cell::Percent(share)]));
    }
    let note = phrase![format!("a rank of stage {}, peak in {}", rank.place, stretch(&rank.phase))];
    table.total = Some(Row::new([Cell::from("device total"), total.into()]).note(note));
    Some(table)
}
