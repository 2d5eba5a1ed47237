//! The numbers of an answer as formulas with their values.

use units::Bytes;

use super::{Holding, bytes_of};
use crate::formulas::known;
use crate::inference::Request;
use crate::inference::cache::Kept;
use crate::inference::roofline::{Ceilings, Pass};
use crate::inference::subject::Subject;
use crate::phrase;
use crate::report::{Cell, Derivation, Phrase};

impl Request<'_> {
    pub(super) fn derive_cache(&self, kept: &Holding<'_>) -> Vec<Derivation> {
        let (cache, tp, layout) = (kept.cache, self.tp.value, &kept.layout);
        let mut all =
            vec![derivation("per token", "kv-token", cache.token_sum(tp), Bytes(cache.token_bytes(tp)).into())];
        let mut sum = Phrase::default();
        for kind in &cache.kinds {
            let plus = if sum.is_empty() { "" } else { " + " };
            let part = match kind.kept {
                Kept::State { .. } => {
                    phrase![plus, kind.layers, " × ", Cell::Exact(u128::from(kind.state_bytes(tp))), " B"]
                }
                _ => phrase![
                    plus,
                    kind.layers,
                    " × ",
                    Cell::Exact(u128::from(kind.token_bytes(cache.format, tp))),
                    " B × ",
                    kind.tokens(self.seq_len.value)
                ],
            };
            sum = sum.and(part);
        }
        all.push(derivation("sequence", "kv-sequence", sum, bytes_of(self.sequence(cache))));
        let mut blocks = Phrase::default();
        for group in &layout.groups {
            let plus = if blocks.is_empty() { "" } else { " + " };
            blocks = blocks.and(phrase![plus, group.groups, " × ", Cell::Exact(u128::from(group.blocks))]);
        }
        let substituted =
            phrase!["("].and(blocks).and(phrase![") × ", Cell::Exact(u128::from(layout.block_bytes)), " B"]);
        all.push(derivation("paged engine", "kv-blocks", substituted, bytes_of(layout.sequence_bytes())));
        all
    }
}

fn derivation(of: &str, id: &'static str, substituted: Phrase, result: Cell) -> Derivation {
    let formula = known(id);
    Derivation {
        of: of.to_owned(),
        formula: id,
        expression: formula.expression.to_owned(),
        substituted,
        result,
        source: formula.source.to_owned(),
        anchor: formula.anchor,
    }
}

pub(super) fn derive_weights(subject: &Subject) -> Derivation {
    let weights = &subject.weights;
    let substituted = phrase![
        Cell::Exact(u128::from(weights.total.get())),
        " × ",
        format!("{} B", weights.bytes as f64 / weights.total.as_f64().max(1.0))
    ];
    derivation("weights", "weights", substituted, Bytes(weights.bytes).into())
}

pub(super) fn derive_prefill(pass: &Pass, ceilings: Ceilings) -> Derivation {
    let flop = units::Flops(pass.flop as u128);
    let substituted = phrase![flop, " ÷ (", ceilings.tp, " × ", ceilings.compute, ")"];
    derivation("prompt, compute", "prefill", substituted, pass.compute.into())
}

pub(super) fn derive_decode(pass: &Pass, ceilings: Ceilings) -> Derivation {
    let bytes = |count: f64| Cell::Traffic(Bytes(count.round() as u64));
    let substituted = phrase!["(", bytes(pass.weight_bytes), " + ", bytes(pass.cache_bytes), ") ÷ ", ceilings.memory];
    derivation("token, memory", "decode", substituted, pass.memory.into())
}
