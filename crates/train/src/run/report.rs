//! The answer of `napkin train`.

use super::drive::Summary;
use super::predict::Predicted;
use super::settings::Settings;
use plan::model::Model;
use plan::phrase;
use plan::report::{Block, Cell, KeyValue, Report, Value};
use units::{FlopPerSecond, Flops, Mfu, Seconds, Tokens, TokensPerSecond};

/// What a run came to, beside what was predicted of it.
pub fn report(
    model: &Model,
    settings: &Settings,
    predicted: &Predicted,
    peak: Option<(FlopPerSecond, u64)>,
    summary: &Summary,
) -> Report {
    let steps = summary.step + 1 - summary.from.min(summary.step + 1);
    let loss = |loss: Option<f64>| loss.map_or(Cell::Empty, |value| Cell::Number { value, decimals: 4 });
    let answer = match (summary.first_loss, summary.last_loss) {
        (Some(first), Some(last)) => phrase![format!("loss {first:.3} to {last:.3}")],
        _ => phrase!["no step was left to make"],
    };
    let mut report = Report::new("train", answer)
        .qualified(phrase![format!("in {steps} steps of {} tokens", settings.tokens_per_step())]);
    if summary.stopped {
        report = report.qualified(phrase!["stopped before its end"]);
    }
    let seconds = |time: std::time::Duration| Seconds::new(time.as_secs_f64()).unwrap_or(Seconds::ZERO);
    let mut rows =
        vec![KeyValue::new("training loss", loss(summary.last_loss)).note(phrase!["mean of the last 10 steps"])];
    if let (Some(before), Some(after)) = summary.validation {
        rows.push(
            KeyValue::new("validation loss", loss(Some(after)))
                .note(phrase![format!("{before:.4} before; perplexity {:.2}", after.exp())]),
        );
    }
    let rate = summary.median_step.filter(|time| !time.is_zero()).map(|time| {
        let per_second = 1.0 / time.as_secs_f64();
        (settings.tokens_per_step() as f64 * per_second, predicted.model_flop.as_f64() * per_second)
    });
    let mfu = peak.zip(rate).map(|((peak, _), (_, flop))| flop / peak.get());
    if let Some((tokens, flop)) = rate {
        let tokens = TokensPerSecond::new(tokens).unwrap_or(TokensPerSecond::ZERO);
        rows.push(
            KeyValue::new("speed", Cell::TokenRate(tokens))
                .note(phrase!["median step ", Cell::Seconds(seconds(summary.median_step.unwrap_or_default()))]),
        );
        if let (Some(mfu), Some((peak, threads))) = (mfu, peak) {
            rows.push(KeyValue::new("MFU", Cell::Percent(mfu)).note(phrase![
                Cell::Rate(FlopPerSecond::new(flop).unwrap_or(FlopPerSecond::ZERO)),
                " of ",
                Cell::Rate(peak),
                format!(", the measured peak of {threads} threads")
            ]));
        }
    }
    rows.push(KeyValue::new("time", Cell::Seconds(seconds(summary.training))).note(phrase![
        "waiting for data ",
        Cell::Seconds(seconds(summary.waiting)),
        "; beside it evaluation ",
        Cell::Seconds(seconds(summary.evaluation)),
        ", checkpoints ",
        Cell::Seconds(seconds(summary.saving))
    ]));
    let difference = i128::from(summary.peak.get()) - i128::from(predicted.peak_bytes.get());
    if summary.median_step.is_some() {
        rows.push(KeyValue::new("peak memory", summary.peak).note(if difference == 0 {
            phrase!["allocated, as predicted to the byte; the allocator holds ", summary.reserved]
        } else {
            phrase!["allocated, predicted ", predicted.peak_bytes, "; the allocator holds ", summary.reserved]
        }));
    }
    if let Some(path) = &summary.checkpoint {
        rows.push(KeyValue::new("checkpoint", Cell::Text(path.display().to_string())));
        let dir = path.parent().unwrap_or(path).display().to_string();
        report.notes.push(phrase![format!("napkin generate {dir}")]);
        if summary.stopped {
            report.notes.push(phrase![format!("napkin train --resume {dir}")]);
        }
    }
    report.blocks.push(Block::key_values("", rows));
    report.inputs = settings.inputs(model);
    report.result = Value::map()
        .with("first_step", summary.from)
        .with("last_step", summary.step)
        .with("stopped", summary.stopped)
        .with("tokens", Tokens(summary.tokens))
        .with("first_loss", summary.first_loss)
        .with("last_loss", summary.last_loss)
        .with("validation_loss_before", summary.validation.0)
        .with("validation_loss", summary.validation.1)
        .with("tokens_per_second", rate.map(|(tokens, _)| tokens))
        .with("model_flop_per_step", predicted.model_flop)
        .with("hardware_flop_per_step", Flops(predicted.hardware_flop.0))
        .with("mfu", mfu.and_then(|mfu| Mfu::new(mfu).ok()))
        .with("training_seconds", summary.training.as_secs_f64())
        .with("waiting_seconds", summary.waiting.as_secs_f64())
        .with("evaluation_seconds", summary.evaluation.as_secs_f64())
        .with("saving_seconds", summary.saving.as_secs_f64())
        .with("predicted_peak_bytes", predicted.peak_bytes)
        .with("peak_bytes", summary.peak)
        .with("reserved_bytes", summary.reserved)
        .with("checkpoint", summary.checkpoint.as_ref().map(|path| path.display().to_string()));
    report.warnings = model.warnings();
    report.warnings.extend(model.precision_warning(settings.training.precision));
    report
}
