//! How long a pipeline takes: every pass of every micro-batch through every stage, in the order of its schedule.
//!
//! A stage runs its passes in a fixed order and waits for what a pass needs: a forward pass for that of the stage before, a
//! backward pass for that of the stage behind. From that follow the time of a step, the idle time of each rank and the
//! micro-batches it holds at once, for stages of any lengths. For equal stages they are closed forms, which tests hold
//! against the simulation: idle time `(p − 1)(f + b)/v`, and `min(m, p − i)` micro-batches on rank `i` of 1F1B.

use crate::layout::Schedule;

/// Seconds of the passes of one micro-batch through one stage.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StageTime {
    /// Forward.
    pub forward: f64,
    /// Gradients of what came in. Schedules that do not put off weight gradients run both together.
    pub backward: f64,
    /// Gradients of weights.
    pub weights: f64,
}

/// A pipeline.
#[derive(Clone, Debug, PartialEq)]
pub struct Pipeline {
    /// Ranks.
    pub ranks: usize,
    /// Stages in the order of the model, a multiple of `ranks`: stage `s` is on rank `s mod ranks`.
    pub stages: Vec<StageTime>,
    /// Micro-batches of a step; of an interleaved schedule a multiple of the ranks.
    pub micro_batches: usize,
    /// Seconds from the end of a pass until the neighbour has its result.
    pub send: f64,
    /// The order of the passes.
    pub schedule: Schedule,
}

/// How a pipeline ran.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// Seconds from the first pass to the end of the last.
    pub seconds: f64,
    /// Of them, those in which each rank did nothing.
    pub idle: Vec<f64>,
    /// Most passes whose activations each rank held at once: micro-batches, of one of its stages each.
    pub in_flight: Vec<u64>,
    /// When each rank ended its last backward pass.
    pub last_backward: Vec<f64>,
}

/// One pass of a rank: which of its stages, which micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the fields say what they are
pub enum Pass {
    /// Forward.
    Forward { chunk: usize, micro_batch: usize },
    /// Backward, where weight gradients are put off: to what came in alone.
    Backward { chunk: usize, micro_batch: usize },
    /// Weight gradients of the next micro-batch that waits for them.
    Weights { chunk: usize },
}

/// A number of micro-batches beyond which a pipeline is periodic, in units of its ranks; see [`Pipeline::seconds`].
const PERIODIC: usize = 4;

impl Pipeline {
    fn chunks(&self) -> usize {
        self.stages.len() / self.ranks
    }

    /// Whether weight gradients are passes of their own.
    fn split(&self) -> bool {
        self.schedule == Schedule::ZeroBubble
    }

    /// Most micro-batches of which rank `rank` holds activations, without a simulation: exact, because the order of passes
    /// alone decides it.
    pub fn in_flight(&self, rank: usize) -> u64 {
        let (mut now, mut most) = (0u64, 0u64);
        for pass in self.order(rank) {
            match pass {
                Pass::Forward { .. } => now += 1,
                Pass::Backward { .. } if !self.split() => now -= 1,
                Pass::Backward { .. } => {}
                Pass::Weights { .. } => now -= 1,
            }
            most = most.max(now);
        }
        most
    }

    /// A time that no run of it can beat: the busiest rank works all the time, after its first input has come through the
    /// stages before and before its last result goes back through them.
    pub fn bound(&self) -> f64 {
        let m = self.micro_batches as f64;
        let whole = |stage: &StageTime| stage.forward + stage.backward + stage.weights;
        let mut before = 0.0;
        let mut bound: f64 = 0.0;
        for (rank, first) in self.stages.iter().enumerate().take(self.ranks) {
            let busy: f64 = self.stages.iter().skip(rank).step_by(self.ranks).map(whole).sum();
            bound = bound.max(before + m * busy);
            // Where weight gradients are put off, those of this rank may be what it ends with.
            before += first.forward + self.send;
            if !self.split() {
                before += first.backward + first.weights + self.send;
            }
        }
        bound
    }

    /// A time that no run exceeds, but for interleaved ones, where it is none. That of `GPipe` is exact; that of 1F1B is exact for
    /// equal stages without sends, and a good estimate where stages are nearly equal.
    ///
    /// One micro-batch goes through all stages and back; each of the others follows at the pace of the slowest pass forward
    /// and the slowest pass backward (`GPipe`), or of the slowest ring: a stage and those behind it, up to another, pass on one
    /// micro-batch for each place between them and one more, in the time of all their passes and of the sends between.
    pub fn upper(&self) -> Option<f64> {
        if self.schedule == Schedule::Interleaved && self.chunks() > 1 {
            return None;
        }
        let whole = |stage: &StageTime| stage.forward + stage.backward + stage.weights;
        let pace = if self.schedule == Schedule::GPipe {
            let most = |of: fn(&StageTime) -> f64| self.stages.iter().map(of).fold(0.0, f64::max);
            most(|stage| stage.forward) + most(|stage| stage.backward + stage.weights)
        } else {
            let mut pace: f64 = 0.0;
            for first in 0..self.stages.len() {
                let mut sum = 0.0;
                for (more, stage) in self.stages[first..].iter().enumerate() {
                    sum += whole(stage);
                    pace = pace.max((sum + 2.0 * self.send * more as f64) / (more + 1) as f64);
                }
            }
            pace
        };
        let through = self.stages.iter().map(whole).sum::<f64>() + 2.0 * self.send * (self.ranks - 1) as f64;
        Some(through + (self.micro_batches.max(1) - 1) as f64 * pace)
    }

    /// A time that no run exceeds, whatever the schedule: [`upper`](Self::upper), and of interleaved stages that of equal ones as
    /// long as the longest, each pass as much longer as a send takes.
    pub fn longest(&self) -> f64 {
        self.upper().unwrap_or_else(|| {
            let most = |of: fn(&StageTime) -> f64| self.stages.iter().map(of).fold(0.0, f64::max) + self.send;
            let each = most(|stage| stage.forward) + most(|stage| stage.backward + stage.weights);
            each * (self.micro_batches * self.chunks() + self.ranks - 1) as f64
        })
    }

    /// Seconds of a step, fast. As [`run`](Self::run) has it while micro-batches are few. Of many, a beginning is run and the
    /// rest is added as periods: exact once the pipeline has become periodic, and within 2 % where two stages are so nearly
    /// equal that it takes longer.
    pub fn seconds(&self) -> f64 {
        let (p, m) = (self.ranks, self.micro_batches);
        if self.schedule == Schedule::GPipe
            && let Some(exact) = self.upper()
        {
            return exact;
        }
        if p == 1 {
            let whole: f64 = self.stages.iter().map(|stage| stage.forward + stage.backward + stage.weights).sum();
            return whole * m as f64;
        }
        let short = PERIODIC * p + m % p;
        if m <= short + p {
            return self.simulate().end();
        }
        let of = |micro_batches| Self { micro_batches, ..self.clone() }.simulate().end();
        let (less, more) = (of(short), of(short + p));
        (less + (more - less) * ((m - short) / p) as f64).max(self.bound())
    }

    /// The passes of a rank, in their order.
    pub fn order(&self, rank: usize) -> Vec<Pass> {
        let (p, m, v) = (self.ranks, self.micro_batches, self.chunks());
        let forwards = in_groups(p, m, v, false);
        let backwards = in_groups(p, m, v, true);
        let forward = |index: usize| Pass::Forward { chunk: forwards[index].0, micro_batch: forwards[index].1 };
        let backward = |index: usize| Pass::Backward { chunk: backwards[index].0, micro_batch: backwards[index].1 };
        let weights = |index: usize| Pass::Weights { chunk: backwards[index].0 };
        let total = m * v;
        let warm_up = match self.schedule {
            Schedule::GPipe => total,
            Schedule::OneFOneB | Schedule::ZeroBubble => (p - rank - 1).min(total),
            Schedule::Interleaved if v == 1 => (p - rank - 1).min(total),
            Schedule::Interleaved => ((p - rank - 1) * 2 + (v - 1) * p).min(total),
        };
        let mut order = Vec::with_capacity(3 * total);
        order.extend((0..warm_up).map(forward));
        let mut written = 0;
        for index in 0..total {
            if warm_up + index < total {
                order.push(forward(warm_up + index));
            }
            order.push(backward(index));
            // A rank that is `rank` stages from the first has that many passes of its weights to put off.
            if self.split() && index >= rank {
                order.push(weights(written));
                written += 1;
            }
        }
        if self.split() {
            order.extend((written..total).map(weights));
        }
        order
    }

    /// Runs the pipeline, pass by pass.
    pub fn run(&self) -> Run {
        let Clock { now, busy, last_backward } = self.simulate();
        let seconds = now.iter().copied().fold(0.0, f64::max);
        Run {
            seconds,
            idle: busy.iter().map(|busy| seconds - busy).collect(),
            in_flight: (0..self.ranks).map(|rank| self.in_flight(rank)).collect(),
            last_backward,
        }
    }

    fn simulate(&self) -> Clock {
        let (p, m) = (self.ranks, self.micro_batches);
        let stages = self.stages.len();
        let split = self.split();
        let orders: Vec<Vec<Pass>> = (0..p).map(|rank| self.order(rank)).collect();
        let mut forward = vec![f64::NAN; stages * m];
        let mut backward = vec![f64::NAN; stages * m];
        let mut next = vec![0usize; p];
        let mut clock = Clock { now: vec![0.0; p], busy: vec![0.0; p], last_backward: vec![0.0; p] };
        loop {
            let mut moved = false;
            for rank in 0..p {
                let mut now = clock.now[rank];
                while let Some(pass) = orders[rank].get(next[rank]) {
                    let (ready, seconds, done) = match *pass {
                        Pass::Forward { chunk, micro_batch } => {
                            let stage = chunk * p + rank;
                            let before =
                                stage.checked_sub(1).map(|before| forward[before * m + micro_batch] + self.send);
                            let done = Some(&mut forward[stage * m + micro_batch]);
                            (before.unwrap_or(0.0), self.stages[stage].forward, done)
                        }
                        Pass::Backward { chunk, micro_batch } => {
                            let stage = chunk * p + rank;
                            let ready = if stage + 1 == stages {
                                forward[stage * m + micro_batch]
                            } else {
                                backward[(stage + 1) * m + micro_batch] + self.send
                            };
                            let time = &self.stages[stage];
                            let seconds = if split { time.backward } else { time.backward + time.weights };
                            (ready, seconds, Some(&mut backward[stage * m + micro_batch]))
                        }
                        Pass::Weights { chunk } => (0.0, self.stages[chunk * p + rank].weights, None),
                    };
                    if ready.is_nan() {
                        break;
                    }
                    now = now.max(ready) + seconds;
                    if let Some(done) = done {
                        *done = now;
                    }
                    if !matches!(pass, Pass::Forward { .. }) {
                        clock.last_backward[rank] = now;
                    }
                    clock.busy[rank] += seconds;
                    next[rank] += 1;
                    moved = true;
                }
                clock.now[rank] = now;
            }
            if !moved {
                break;
            }
        }
        debug_assert!((0..p).all(|rank| next[rank] == orders[rank].len()), "a schedule waits for itself");
        clock
    }
}

/// Where each rank is: its time, how much of it was work, when its last backward pass ended.
struct Clock {
    now: Vec<f64>,
    busy: Vec<f64>,
    last_backward: Vec<f64>,
}

impl Clock {
    fn end(&self) -> f64 {
        self.now.iter().copied().fold(0.0, f64::max)
    }
}

/// The order in which a rank takes the micro-batches of its chunks: as many as there are ranks through the first chunk, the
/// same through the next, and so on; backward begins with the last chunk.
fn in_groups(ranks: usize, micro_batches: usize, chunks: usize, backward: bool) -> Vec<(usize, usize)> {
    let group = if chunks == 1 { micro_batches } else { ranks };
    let mut order = Vec::with_capacity(micro_batches * chunks);
    for first in (0..micro_batches).step_by(group.max(1)) {
        for index in 0..chunks {
            let chunk = if backward { chunks - 1 - index } else { index };
            order.extend((first..(first + group).min(micro_batches)).map(|micro_batch| (chunk, micro_batch)));
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    fn equal(schedule: Schedule, ranks: usize, chunks: usize, micro_batches: usize, time: StageTime) -> Pipeline {
        Pipeline { ranks, stages: vec![time; ranks * chunks], micro_batches, send: 0.0, schedule }
    }

    const TIME: StageTime = StageTime { forward: 1.0, backward: 1.25, weights: 0.75 };

    fn close(left: f64, right: f64) -> bool {
        (left - right).abs() < 1e-9 * right.abs().max(1.0)
    }

    #[test]
    fn equal_stages_idle_as_long_as_the_closed_forms_say() {
        for p in [1, 2, 4, 8] {
            for m in [p, 2 * p, 5 * p] {
                for schedule in [Schedule::GPipe, Schedule::OneFOneB] {
                    let run = equal(schedule, p, 1, m, TIME).run();
                    assert!(close(run.seconds, (m + p - 1) as f64 * 3.0), "{schedule} {p} {m}: {}", run.seconds);
                    assert!(run.idle.iter().all(|idle| close(*idle, (p - 1) as f64 * 3.0)));
                }
                for v in [2, 3, 4] {
                    let run = equal(Schedule::Interleaved, p, v, m, TIME).run();
                    let expected = (m * v) as f64 * 3.0 + (p - 1) as f64 * 3.0;
                    assert!(close(run.seconds, expected), "{p} {m} {v}: {} {expected}", run.seconds);
                }
                // Put-off weight gradients leave `(p − 1)(f + b − w)`; source: Qi et al. 2023, table 2.
                let run = equal(Schedule::ZeroBubble, p, 1, m, TIME).run();
                let expected = m as f64 * 3.0 + (p - 1) as f64 * (1.0 + 1.25 - 0.75);
                assert!(close(run.seconds, expected), "zero bubble {p} {m}: {} {expected}", run.seconds);
            }
        }
    }

    #[test]
    fn micro_batches_in_flight_are_those_of_the_closed_forms() {
        for p in [1usize, 2, 4, 8] {
            for m in [1usize, 2, p, 3 * p] {
                for rank in 0..p {
                    let held = |schedule, chunks| equal(schedule, p, chunks, m, TIME).run().in_flight[rank];
                    assert_eq!(held(Schedule::GPipe, 1), m as u64);
                    assert_eq!(held(Schedule::OneFOneB, 1), m.min(p - rank) as u64);
                    let total = m * 2;
                    let expected = if p == 1 && m > 0 { total.min(2) } else { total.min((p - rank - 1) * 2 + p + 1) };
                    assert_eq!(held(Schedule::Interleaved, 2), expected as u64, "{p} {m} {rank}");
                    // No rank of ZB-H1 holds more than the first of 1F1B.
                    assert!(held(Schedule::ZeroBubble, 1) <= m.min(p + 1) as u64);
                }
            }
        }
    }

    /// Uneven stages from a small generator of numbers.
    fn uneven(seed: u64, schedule: Schedule, ranks: usize, chunks: usize, micro_batches: usize) -> Pipeline {
        let mut state = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let mut number = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            0.5 + (state >> 40) as f64 / (1u64 << 24) as f64
        };
        let stages = (0..ranks * chunks)
            .map(|_| StageTime { forward: number(), backward: number(), weights: number() })
            .collect();
        Pipeline { ranks, stages, micro_batches, send: 0.1 * number(), schedule }
    }

    #[test]
    fn no_run_beats_the_bound_and_long_runs_are_periodic() {
        for seed in 0..60 {
            for schedule in Schedule::ALL {
                let chunks = if schedule == Schedule::Interleaved { 2 } else { 1 };
                for (p, m) in [(2usize, 3usize), (3, 30), (4, 50), (8, 100)] {
                    let m = if chunks > 1 { m.next_multiple_of(p) } else { m };
                    let pipeline = uneven(seed, schedule, p, chunks, m);
                    let run = pipeline.run();
                    assert!(run.seconds >= pipeline.bound() * (1.0 - 1e-12), "{schedule} {p} {m} {seed}");
                    assert!(run.seconds <= pipeline.longest() * (1.0 + 1e-12), "{schedule} {p} {m} {seed}");
                    assert!(run.idle.iter().all(|idle| *idle >= -1e-9));
                    let fast = pipeline.seconds();
                    assert!(
                        (fast / run.seconds - 1.0).abs() < 0.02,
                        "{schedule} {p} {m} {seed}: {fast} {}",
                        run.seconds
                    );
                }
            }
        }
    }

    #[test]
    fn one_slow_stage_sets_the_pace() {
        let mut pipeline = equal(Schedule::OneFOneB, 4, 1, 64, TIME);
        pipeline.stages[2] = StageTime { forward: 2.0, backward: 2.5, weights: 1.5 };
        // The slow stage works behind one micro-batch of the two stages before it, and waits once: the stage behind needs 3
        // until the first gradient is back, and it has one forward pass of 2 to fill that.
        let run = pipeline.run();
        assert!(close(run.seconds, 64.0 * 6.0 + 2.0 * 3.0 + (3.0 - 2.0)), "{}", run.seconds);
    }

    #[test]
    fn runs_lie_between_their_bounds() {
        for seed in 0..200 {
            for schedule in [Schedule::GPipe, Schedule::OneFOneB, Schedule::ZeroBubble] {
                for (p, m) in [(1, 1), (2, 1), (2, 9), (4, 3), (4, 40), (8, 64)] {
                    let pipeline = uneven(seed, schedule, p, 1, m);
                    let (run, upper) = (pipeline.run().seconds, pipeline.upper().unwrap());
                    assert!(run <= upper * (1.0 + 1e-12), "{schedule} {p} {m} {seed}: {run} {upper}");
                    assert!(schedule != Schedule::GPipe || close(run, upper), "{p} {m} {seed}: {run} {upper}");
                }
            }
        }
        for (p, m) in [(1, 5), (4, 8), (8, 64)] {
            let pipeline = equal(Schedule::OneFOneB, p, 1, m, TIME);
            let upper = pipeline.upper().unwrap();
            assert!(close(upper, pipeline.run().seconds) && close(pipeline.bound(), upper));
        }
        assert_eq!(equal(Schedule::Interleaved, 4, 2, 8, TIME).upper(), None);
    }

    #[test]
    fn many_micro_batches_of_equal_stages_are_exact() {
        for schedule in Schedule::ALL {
            for (p, m) in [(2, 64), (4, 1024), (8, 512)] {
                let chunks = if schedule == Schedule::Interleaved { 2 } else { 1 };
                let pipeline = Pipeline { send: 0.25, ..equal(schedule, p, chunks, m, TIME) };
                assert!(close(pipeline.seconds(), pipeline.run().seconds), "{schedule} {p} {m}");
            }
        }
    }

    #[test]
    fn sends_delay_what_waits_for_them() {
        let pipeline = Pipeline { send: 0.5, ..equal(Schedule::GPipe, 4, 1, 8, TIME) };
        // Three stages lie between first and last; each micro-batch crosses them once in each direction.
        assert!(close(pipeline.run().seconds, 11.0 * 3.0 + 6.0 * 0.5));
    }
}
