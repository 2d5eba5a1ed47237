//! How long a prompt takes, and a token.

use units::{Diagnostics, Tokens, TokensPerSecond};

use super::Holding;
use super::derivations::{derive_decode, derive_prefill};
use crate::inference::Request;
use crate::inference::roofline::{Ceilings, Pass, Roofline};
use crate::inference::subject::Subject;
use crate::report::{Block, Cell, Column, KeyValue, Report, Row, Table, Value};

impl Request<'_> {
    pub(super) fn add_times(
        &self,
        report: &mut Report,
        subject: &Subject,
        kept: Option<&Holding<'_>>,
    ) -> Result<(), Diagnostics> {
        let Some(fleet) = &self.fleet else { return Ok(()) };
        let (tp, context) = (self.tp.value, self.seq_len.value);
        let ceilings = Ceilings {
            compute: fleet.peak()?.rate * self.mfu.value,
            memory: fleet.hardware.bandwidth() * self.mbu.value,
            link: self.link(),
            tp,
        };
        let roofline =
            Roofline { passes: &subject.passes, weights: &subject.weights, cache: subject.cache.as_ref(), ceilings };
        let replicas = self.replicas();
        let most = kept.and_then(|kept| kept.pool.map(|(_, blocks)| kept.layout.concurrency(blocks) as u64));
        let mut batches = vec![1, self.batch.value];
        batches.extend(most.filter(|most| *most > 0));
        batches.sort_unstable();
        batches.dedup();
        let prompt = roofline.prefill(self.prompt.value, self.chunk.value);
        let columns = [
            Column::left("one step"),
            Column::right("sequences"),
            Column::right("time"),
            Column::right("compute"),
            Column::right("memory"),
            Column::left("bound"),
            Column::right("FLOP/B"),
            Column::right("tokens/s"),
        ];
        let mut table = Table::new("", columns);
        let row = |name: String, sequences: u64, pass: &Pass, rate: TokensPerSecond| {
            Row::new([
                name.into(),
                sequences.into(),
                pass.time().into(),
                pass.compute.into(),
                pass.memory.into(),
                pass.bound().into(),
                Cell::Number { value: pass.intensity(tp).get(), decimals: 1 },
                rate.into(),
            ])
        };
        let rate = |tokens: u64, pass: &Pass| Tokens(tokens.saturating_mul(replicas)) / pass.time();
        let prompt_name = format!("prompt of {}", units::group_digits(u128::from(self.prompt.value)));
        table.rows.push(row(prompt_name, 1, &prompt, rate(self.prompt.value, &prompt)));
        let mut decode = Vec::new();
        for &sequences in &batches {
            let pass = roofline.decode(sequences, context);
            let note = if Some(sequences) == most { "the most that fit" } else { "" };
            table.rows.push(row("token".to_owned(), sequences, &pass, rate(sequences, &pass)).note(note));
            let value = pass_value(&pass, tp).with("sequences", sequences);
            decode.push(
                value
                    .with("tokens_per_second", rate(sequences, &pass))
                    .with("tokens_per_second_per_sequence", Tokens(1) / pass.time()),
            );
            if sequences == self.batch.value {
                report.derivations.push(derive_decode(&pass, ceilings));
            }
        }
        report.blocks.push(table.into());
        let turning = roofline.turning_point(context);
        let turn = match turning {
            Some(sequences) => {
                let from = format!("from {}", units::group_digits(u128::from(sequences)));
                KeyValue::new("compute-bound", from).note("sequences on, for a token")
            }
            None => KeyValue::new("compute-bound", "never")
                .note("at this context a token reads for longer than it computes, however many there are"),
        };
        report.blocks.push(Block::key_values("", [turn]));
        let single = roofline.decode(1, context);
        let answer = self.seq_len.value - self.prompt.value;
        report.derivations.push(derive_prefill(&prompt, ceilings));
        report.result.insert(
            "time",
            Value::map()
                .with("time_to_first_token_seconds", prompt.time())
                .with("time_per_output_token_seconds", single.time())
                .with("request_seconds", prompt.time() + single.time() * answer as f64)
                .with("prefill", pass_value(&prompt, tp).with("tokens", self.prompt.value))
                .with("decode", Value::List(decode))
                .with("compute_bound_from_sequences", turning)
                .with("replicas", replicas),
        );
        Ok(())
    }
}

fn pass_value(pass: &Pass, tp: u64) -> Value {
    Value::map()
        .with("seconds", pass.time())
        .with("compute_seconds", pass.compute)
        .with("memory_seconds", pass.memory)
        .with("link_seconds", pass.link)
        .with("bound", pass.bound())
        .with("flop", pass.flop as u128)
        .with("weight_bytes_device", pass.weight_bytes.round() as u64)
        .with("cache_bytes_device", pass.cache_bytes.round() as u64)
        .with("flop_per_byte", pass.intensity(tp))
}
