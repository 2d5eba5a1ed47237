//! What a rank of a pipeline holds while each of its passes runs: the order of the passes decides it, whatever a pass takes.

use super::Layout;
use super::cut::Cut;
use super::rank::{in_flight, schedule, traced_micro_batches};
use crate::cluster::pipeline::Pass;

/// A stretch of a step of one stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stretch {
    /// The forward pass of the first micro-batch.
    FirstForward,
    /// That of another.
    Forward,
    /// The first backward pass, which may make the gradients.
    FirstBackward,
    /// Another, which adds to them.
    Backward,
    /// The update.
    Update,
}

impl Stretch {
    /// Those of micro-batches, in the order of a trace of two.
    pub const PASSES: [Self; 4] = [Self::FirstForward, Self::FirstBackward, Self::Forward, Self::Backward];
}

/// A stretch of a rank, and what is there when it begins. Stages that are alike are counted together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The stretch.
    pub stretch: Stretch,
    /// Which of the rank's kinds of stages it is of.
    pub kind: usize,
    /// Of each kind, micro-batches that wait for their backward pass.
    pub held: Vec<u32>,
    /// Of each kind, stages that have seen a micro-batch.
    pub begun: Vec<u32>,
    /// Of each kind, stages that have gradients.
    pub added: Vec<u32>,
}

impl Standing {
    /// Whether in the same stretch at least as much is there.
    fn covers(&self, other: &Self) -> bool {
        let more = |a: &[u32], b: &[u32]| a.iter().zip(b).all(|(a, b)| a >= b);
        (self.stretch, self.kind) == (other.stretch, other.kind)
            && more(&self.held, &other.held)
            && more(&self.begun, &other.begun)
            && more(&self.added, &other.added)
    }
}

/// A rank over a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    /// Its kinds of stages, as positions among the pieces of the model, and how many it has of each.
    pub kinds: Vec<(usize, u64)>,
    /// Micro-batches of which a trace sees every moment.
    pub micro_batches: u64,
    /// Those of which it holds activations at once.
    pub in_flight: u64,
    /// Where it may hold most.
    pub standings: Vec<Standing>,
}

/// Each class of ranks of a layout over a step.
pub fn holdings(layout: &Layout, cut: &Cut) -> Vec<Holding> {
    let of = |class: &super::cut::Class| {
        let mut kinds: Vec<(usize, u64)> = Vec::new();
        let mut kind_of = Vec::with_capacity(class.pieces.len());
        for piece in &class.pieces {
            let at = kinds.iter().position(|(known, _)| known == piece).unwrap_or(kinds.len());
            match kinds.get_mut(at) {
                Some((_, count)) => *count += 1,
                None => kinds.push((*piece, 1)),
            }
            kind_of.push(at);
        }
        let in_flight = in_flight(layout, class.place);
        let micro_batches = traced_micro_batches(layout, in_flight);
        let order = schedule(layout, micro_batches).order(class.place as usize);
        Holding { standings: standings(&kind_of, kinds.len(), &order), kinds, micro_batches, in_flight }
    };
    cut.classes.iter().map(of).collect()
}

fn standings(kind_of: &[usize], kinds: usize, order: &[Pass]) -> Vec<Standing> {
    let mut all: Vec<Standing> = Vec::new();
    let (mut forward, mut backward) = (vec![0u32; kind_of.len()], vec![0u32; kind_of.len()]);
    let mut now = (vec![0u32; kinds], vec![0u32; kinds], vec![0u32; kinds]);
    let mut note = |stretch, kind, (held, begun, added): &(Vec<u32>, Vec<u32>, Vec<u32>)| {
        let standing = Standing { stretch, kind, held: held.clone(), begun: begun.clone(), added: added.clone() };
        if !all.iter().any(|known| known.covers(&standing)) {
            all.retain(|known| !standing.covers(known));
            all.push(standing);
        }
    };
    for pass in order {
        match *pass {
            Pass::Forward { chunk, .. } => {
                let (kind, first) = (kind_of[chunk], forward[chunk] == 0);
                note(if first { Stretch::FirstForward } else { Stretch::Forward }, kind, &now);
                forward[chunk] += 1;
                now.0[kind] += 1;
                now.1[kind] += u32::from(first);
            }
            Pass::Backward { chunk, .. } => {
                let (kind, first) = (kind_of[chunk], backward[chunk] == 0);
                note(if first { Stretch::FirstBackward } else { Stretch::Backward }, kind, &now);
                backward[chunk] += 1;
                now.0[kind] -= 1;
                now.2[kind] += u32::from(first);
            }
            Pass::Weights { .. } => {}
        }
    }
    // Stages are updated one after another, and what gradients are not kept are given up behind each.
    for kind in kind_of {
        note(Stretch::Update, *kind, &now);
        now.2[*kind] -= 1;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::cut::Pieces;
    use super::*;
    use crate::layout::Schedule;
    use crate::model::Model;

    #[test]
    fn ranks_of_1f1b_hold_as_many_as_there_are_stages_behind_them() {
        let text = r#"{"model_type": "llama", "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 16,
            "num_attention_heads": 4, "vocab_size": 64}"#;
        let model = Model::from_text("x", "x", text.as_bytes(), &[], None).unwrap();
        let of = |layout: &Layout| holdings(layout, &Pieces::new(&model.spec).cut(layout));
        let held = |holding: &Holding, stretch| {
            let all = holding.standings.iter().filter(|standing| standing.stretch == stretch);
            all.map(|standing| standing.held.iter().sum::<u32>()).max().unwrap()
        };
        let layout = Layout { pp: 4, grad_accum: 16, ..Layout::default() };
        let ranks = of(&layout);
        assert_eq!(ranks.len(), 3, "first, one between, last");
        for (rank, place) in ranks.iter().zip([0u32, 1, 3]) {
            assert_eq!(held(rank, Stretch::Forward), 3 - place);
            assert_eq!(held(rank, Stretch::Backward), 4 - place);
            assert!(rank.standings.len() <= 8, "{:?}", rank.standings);
        }
        // Of interleaved stages the first rank holds 2 (p − 1) + (v − 1) p + 1 passes when the first backward pass begins.
        let layout =
            Layout { pp: 4, virtual_stages: 2, schedule: Schedule::Interleaved, grad_accum: 16, ..Layout::default() };
        assert_eq!(held(&of(&layout)[0], Stretch::Backward), 2 * 3 + 4 + 1);
    }
}
