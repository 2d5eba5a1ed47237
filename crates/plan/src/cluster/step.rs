//! How long a step takes: passes of a stage, the pipeline of them, what replicas exchange, the optimizer.
//!
//! Each is a list of what one rank does, or the seconds of one; frameworks differ in what they exchange when.

use super::collective_time::Collective;
use super::machine::{Cost, Item, Machine, Talk};
use super::pipeline::{Pipeline, StageTime};
use super::topology::Axis;
use crate::layout::Schedule;

/// When replicas exchange gradients or parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sync {
    /// Once the last backward pass, or the update, has ended.
    Behind,
    /// In buckets of that many bytes: gradients each as soon as they are there in the last backward pass, parameters each
    /// before they are used in the first forward pass.
    During {
        /// Bytes of a bucket.
        bucket: f64,
    },
}

/// What a rank exchanges with its replicas and does to its parameters once in a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Update {
    /// Exchanges of gradients.
    pub gradients: Vec<Talk>,
    /// When they are.
    pub sync: Sync,
    /// When those of parameters are.
    pub gather: Sync,
    /// The optimizer: by bytes.
    pub optimizer: Vec<Item>,
    /// Exchanges of parameters behind it.
    pub parameters: Vec<Talk>,
}

/// One rank of a pipeline.
#[derive(Clone, Debug, PartialEq)]
pub struct Rank {
    /// Passes of its stages, in the order of the model.
    pub stages: Vec<Passes>,
    /// Once in a step.
    pub update: Update,
}

/// Passes of one micro-batch through one stage.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Passes {
    /// Forward.
    pub forward: Cost,
    /// Gradients of what came in, and what is run again before.
    pub backward: Cost,
    /// Gradients of weights.
    pub weights: Cost,
}

/// A step of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Ranks of the pipeline, first stage first.
    pub ranks: Vec<Rank>,
    /// Order of passes.
    pub schedule: Schedule,
    /// Micro-batches of a step.
    pub micro_batches: u64,
    /// Bytes that a stage sends to the next for one micro-batch.
    pub boundary: f64,
    /// Whether the host waits for what a neighbour sends before it starts the next pass.
    pub waits: bool,
}

/// Seconds of a step, line by line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepTime {
    /// Passes of all micro-batches on the busiest rank.
    pub passes: f64,
    /// Idle time of that rank in the pipeline.
    pub bubble: f64,
    /// Exchanges of gradients that no pass hides.
    pub gradients: f64,
    /// The optimizer.
    pub optimizer: f64,
    /// Exchanges of parameters.
    pub parameters: f64,
    /// Waiting for the slowest node.
    pub stragglers: f64,
}

impl StepTime {
    /// All of it.
    pub fn seconds(&self) -> f64 {
        self.passes + self.bubble + self.gradients + self.optimizer + self.parameters + self.stragglers
    }
}

/// Idle time below this part of the passes is rounding.
const ROUNDING: f64 = 1e-12;

impl Step {
    /// Seconds of the step on a machine, line by line.
    pub fn time(&self, machine: &Machine) -> StepTime {
        self.lines(machine, self.pipeline(machine).seconds())
    }

    /// The same without running the pipeline, where there is a closed form that none exceeds
    /// ([`Pipeline::upper`]): for comparing many layouts.
    pub fn time_closed(&self, machine: &Machine) -> StepTime {
        let pipeline = self.pipeline(machine);
        self.lines(machine, pipeline.upper().unwrap_or_else(|| pipeline.seconds()))
    }

    /// The lines of a step whose pipeline takes `seconds`. Ranks that are alike need to be there only once.
    pub fn lines(&self, machine: &Machine, seconds: f64) -> StepTime {
        let busy = |rank: &Rank| -> f64 { once(&rank.stages, |passes| self.whole(machine, passes)).sum() };
        let busiest = self.ranks.iter().map(busy).fold(0.0, f64::max) * self.micro_batches as f64;
        let updates = self.ranks.iter().map(|rank| {
            let last = || once(&rank.stages, |passes| machine.seconds(passes.backward + passes.weights)).sum();
            let first = || once(&rank.stages, |passes| machine.seconds(passes.forward)).sum();
            let Update { gradients, sync, gather, optimizer, parameters } = &rank.update;
            [
                sync.exposed(machine, gradients, last),
                machine.seconds(machine.cost(optimizer)),
                gather.exposed(machine, parameters, first),
            ]
        });
        // The step ends with the rank whose update takes longest.
        let longest =
            |most: [f64; 3], now: [f64; 3]| if now.iter().sum::<f64>() > most.iter().sum() { now } else { most };
        let [gradients, optimizer, parameters] = updates.fold([0.0; 3], longest);
        StepTime {
            passes: busiest,
            bubble: if seconds - busiest > ROUNDING * busiest { seconds - busiest } else { 0.0 },
            gradients,
            optimizer,
            parameters,
            stragglers: (seconds.max(busiest) + gradients + optimizer + parameters) * (machine.straggler() - 1.0),
        }
    }

    /// The pipeline of its passes.
    pub fn pipeline(&self, machine: &Machine) -> Pipeline {
        let chunks = self.ranks.first().map_or(0, |rank| rank.stages.len());
        let of_ranks: Vec<Vec<StageTime>> =
            self.ranks.iter().map(|rank| once(&rank.stages, |passes| self.stage(machine, passes)).collect()).collect();
        let stages = (0..chunks).flat_map(|chunk| of_ranks.iter().map(move |stages| stages[chunk])).collect();
        let talk = Talk { collective: Collective::Send, bytes: self.boundary, axis: Axis::Pp };
        Pipeline {
            ranks: self.ranks.len(),
            stages,
            micro_batches: self.micro_batches as usize,
            send: machine.talk(&talk),
            schedule: self.schedule,
        }
    }

    /// Whether the host runs ahead from one pass into the next.
    const fn ahead(&self) -> bool {
        self.ranks.len() == 1 || !self.waits
    }

    /// Seconds of a micro-batch on a stage.
    fn whole(&self, machine: &Machine, passes: &Passes) -> f64 {
        let Passes { forward, backward, weights } = *passes;
        if self.ahead() {
            machine.seconds(forward + backward + weights)
        } else {
            machine.seconds(forward) + machine.seconds(backward + weights)
        }
    }

    fn stage(&self, machine: &Machine, passes: &Passes) -> StageTime {
        let Passes { forward, backward, weights } = *passes;
        let whole = self.whole(machine, passes);
        let device = (forward + backward + weights).device;
        // What the host adds is spread over the passes as their work is.
        let first = if !self.ahead() {
            machine.seconds(forward)
        } else if device > 0.0 {
            whole * forward.device / device
        } else {
            0.0
        };
        let share = weights.device / (backward + weights).device.max(f64::MIN_POSITIVE);
        StageTime { forward: first, backward: (whole - first) * (1.0 - share), weights: (whole - first) * share }
    }
}

/// A number for each of these stages, worked out once for stages that are alike and follow each other.
fn once<T: Copy>(stages: &[Passes], of: impl Fn(&Passes) -> T) -> impl Iterator<Item = T> {
    let mut last: Option<(&Passes, T)> = None;
    stages.iter().map(move |passes| match last {
        Some((known, value)) if known == passes => value,
        _ => last.insert((passes, of(passes))).1,
    })
}

impl Sync {
    /// Seconds of exchanges that a pass of so many seconds does not hide.
    pub fn exposed(self, machine: &Machine, talks: &[Talk], pass: impl Fn() -> f64) -> f64 {
        let exposed = |talk: &Talk| match self {
            Self::Behind => machine.talk(talk),
            Self::During { bucket } => {
                let pass = pass();
                let buckets = (talk.bytes / bucket).ceil().max(1.0);
                let one = machine.talk(&Talk { bytes: talk.bytes / buckets, ..*talk });
                // The last gradients are there only when the pass has ended, and the pass waits for its first parameters;
                // beside the other buckets it is slower.
                let hidden = ((buckets - 1.0) * one).min(pass);
                (buckets * one - pass).max(one) + machine.taken * hidden
            }
        };
        // An empty sum would be -0.
        talks.iter().map(exposed).fold(0.0, |sum, one| sum + one)
    }
}

#[cfg(test)]
mod tests {
    use super::super::machine::tests::machine;
    use super::super::op_time::Piece;
    use super::super::topology::Degrees;
    use super::*;

    const DEGREES: Degrees = Degrees { tp: 1, cp: 1, dp: 4, pp: 4, ep: 1, etp: 1 };

    fn passes(device: f64) -> Passes {
        let cost = |device| Cost { device, host: 0.0 };
        Passes { forward: cost(device), backward: cost(device), weights: cost(device) }
    }

    fn step(sync: Sync) -> Step {
        let talk = Talk { collective: Collective::AllReduce, bytes: 4e9, axis: Axis::Replicas };
        let optimizer = vec![Item::Op(Piece::moves(3.015e9))];
        let update = Update { gradients: vec![talk], sync, gather: Sync::Behind, optimizer, parameters: Vec::new() };
        Step {
            ranks: vec![Rank { stages: vec![passes(0.1)], update }; 4],
            schedule: Schedule::OneFOneB,
            micro_batches: 16,
            boundary: 0.0,
            waits: false,
        }
    }

    #[test]
    fn lines_are_those_of_the_closed_forms() {
        let machine = machine(DEGREES);
        let time = step(Sync::Behind).time(&machine);
        assert!((time.passes - 16.0 * 0.3).abs() < 1e-9);
        assert!((time.bubble - 3.0 * 0.3).abs() < 1e-9);
        // 3.015 GB at nine tenths of 3,350 GB/s, and one kernel.
        assert!((time.optimizer - 1e-3 - 4e-6).abs() < 1e-6, "{}", time.optimizer);
        assert!(time.stragglers > 0.0 && time.seconds() > time.passes + time.bubble);
    }

    #[test]
    fn the_closed_form_is_that_of_equal_stages_and_never_shorter() {
        let machine = machine(DEGREES);
        let mut step = step(Sync::Behind);
        let seconds = |step: &Step| (step.time(&machine).seconds(), step.time_closed(&machine).seconds());
        let (run, closed) = seconds(&step);
        assert!((run / closed - 1.0).abs() < 1e-3, "{run} {closed}");
        step.ranks[2].stages[0] = passes(0.2);
        let (run, closed) = seconds(&step);
        assert!(closed >= run && closed < 1.1 * run, "{run} {closed}");
    }

    #[test]
    fn buckets_hide_behind_the_last_backward_pass_but_for_one() {
        let machine = machine(DEGREES);
        let (behind, during) = (step(Sync::Behind), step(Sync::During { bucket: 25e6 }));
        let (behind, during) = (behind.time(&machine), during.time(&machine));
        assert!(during.gradients < 0.3 * behind.gradients, "{} {}", during.gradients, behind.gradients);
        // A pass too short to hide them leaves the rest.
        let mut short = step(Sync::During { bucket: 25e6 });
        for rank in &mut short.ranks {
            rank.stages = vec![passes(1e-6)];
        }
        assert!(short.time(&machine).gradients > behind.gradients * 0.9);
    }

    #[test]
    fn parameters_hide_behind_the_first_forward_pass_but_for_one_bucket() {
        let machine = machine(DEGREES);
        let talk = Talk { collective: Collective::AllGather, bytes: 2e9, axis: Axis::Replicas };
        let time = |gather| {
            let mut step = step(Sync::Behind);
            for rank in &mut step.ranks {
                (rank.update.gather, rank.update.parameters) = (gather, vec![talk]);
            }
            step.time(&machine).parameters
        };
        let (behind, during) = (time(Sync::Behind), time(Sync::During { bucket: 160e6 }));
        assert!((behind - machine.talk(&talk)).abs() < 1e-12);
        // One of thirteen buckets, and what the others take of the pass.
        assert!(during > behind / 13.0 && during < 0.3 * behind, "{during} {behind}");
    }

    #[test]
    fn a_host_that_does_not_run_ahead_makes_each_pass_wait() {
        let machine = machine(DEGREES);
        let mut step = step(Sync::Behind);
        for rank in &mut step.ranks {
            // Forward waits for the host, backward for the device.
            rank.stages[0].forward.host = 0.25;
        }
        let ahead = step.time(&machine).passes;
        step.waits = true;
        let waits = step.time(&machine).passes;
        assert!(waits > 16.0 * 0.45 && ahead < 16.0 * 0.36, "{waits} {ahead}");
    }
}
