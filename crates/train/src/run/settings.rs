//! What decides the numbers of a run: written into checkpoints, and compared when a run goes on.

use crate::checkpoint::{Fields, exact};
use crate::data::Order;
use nn::optim::Hyper;
use nn::step::{Precision, StepOptions};
use nn::{Objective, Profile, Recompute, Reference, Schedule, TrainingOptions};
use plan::model::Model;
use plan::report;
use serde_json::{Map, Value, json};
use std::str::FromStr;
use tensor::CastLists;
use units::{Diagnostic, Diagnostics};

/// What decides the numbers of a run, beside the model and the data.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// How the model is trained.
    pub training: TrainingOptions,
    /// Learning rate of every step, and how many steps there are.
    pub schedule: Schedule,
    /// Sequences in a micro-batch.
    pub batch: u64,
    /// Tokens in a sequence.
    pub seq_len: u64,
    /// In which order sequences are taken.
    pub order: Order,
    /// Seed of every random stream.
    pub seed: u64,
    /// Share of the data at its end that is for validation.
    pub val_fraction: f64,
}

impl Settings {
    /// Of steps as analyses describe them, made at the optimizer's own learning rate.
    pub fn of_steps(options: &StepOptions, steps: u64) -> Self {
        let hyper = Hyper::of(options.optimizer.kind);
        let training = TrainingOptions {
            profile: options.profile,
            precision: options.precision,
            optimizer: options.optimizer,
            hyper,
            recompute: options.recompute,
            grad_accum_steps: options.grad_accum_steps,
            autocast: options.autocast,
            dropout: options.dropout,
            clip_norm: None,
            objective: options.objective,
            stochastic_rounding: false,
        };
        Self {
            training,
            schedule: Schedule::constant(hyper.lr, steps),
            batch: options.batch,
            seq_len: options.seq_len,
            order: Order::default(),
            seed: 0,
            val_fraction: 0.0,
        }
    }

    /// Tokens of one optimizer step; as many as 64 bits hold where settings that a manifest states multiply to more.
    pub const fn tokens_per_step(&self) -> u64 {
        self.batch.saturating_mul(self.seq_len).saturating_mul(self.training.grad_accum_steps)
    }

    /// What a report on a run with them says it was asked for.
    pub fn inputs(&self, model: &Model) -> report::Value {
        let training = &self.training;
        report::Value::map()
            .with("model", model.inputs())
            .with("batch", self.batch)
            .with("seq_len", self.seq_len)
            .with("grad_accum_steps", training.grad_accum_steps)
            .with("precision", training.precision.name())
            .with("optimizer", training.optimizer.to_string().as_str())
            .with("recompute", training.recompute.name())
            .with("loss", training.objective.head.to_string().as_str())
            .with("dpo", training.objective.preference.map(Reference::name))
            .with("seed", self.seed)
    }

    /// For a manifest.
    pub fn to_json(&self) -> Value {
        let (t, s, h) = (&self.training, &self.schedule, &self.training.hyper);
        json!({
            "profile": t.profile.name(),
            "precision": t.precision.name(),
            "optimizer": t.optimizer.to_string(),
            "recompute": t.recompute.name(),
            "objective": {
                "loss": t.objective.head.to_string(), "dpo": t.objective.preference.map(Reference::name),
            },
            "grad_accum_steps": t.grad_accum_steps,
            "dropout": t.dropout,
            "clip_norm": t.clip_norm.map(exact),
            "stochastic_rounding": t.stochastic_rounding,
            "hyper": {
                "beta1": exact(h.beta1), "beta2": exact(h.beta2), "eps": exact(h.eps),
                "weight_decay": exact(h.weight_decay), "momentum": exact(h.momentum),
            },
            "schedule": {
                "decay": s.decay.name(), "peak": exact(s.peak), "floor": exact(s.floor),
                "warmup_steps": s.warmup_steps, "steps": s.steps, "decay_steps": s.decay_steps,
            },
            "batch": self.batch,
            "seq_len": self.seq_len,
            "order": self.order.name(),
            "seed": self.seed,
            "val_fraction": exact(self.val_fraction),
        })
    }

    /// From a manifest.
    ///
    /// # Errors
    /// Every key that is absent, unknown or of another type.
    pub fn from_json(file: &str, value: &Value) -> Result<Self, Diagnostics> {
        let mut f = Fields::new(file, value);
        let hyper = f.object("hyper", |f| Hyper {
            lr: 0.0,
            beta1: f.float("beta1"),
            beta2: f.float("beta2"),
            eps: f.float("eps"),
            weight_decay: f.float("weight_decay"),
            momentum: f.float("momentum"),
        });
        let schedule = f.object("schedule", |f| {
            Some(Schedule {
                decay: word(f, "decay")?,
                peak: f.float("peak"),
                floor: f.float("floor"),
                warmup_steps: f.count("warmup_steps"),
                steps: f.count("steps"),
                decay_steps: f.count("decay_steps"),
            })
        });
        let words = (
            word::<Profile>(&mut f, "profile"),
            word::<Precision>(&mut f, "precision"),
            word(&mut f, "optimizer"),
            word::<Recompute>(&mut f, "recompute"),
            word::<Order>(&mut f, "order"),
        );
        // Settings that were written before there was a choice have none.
        let objective = match value.get("objective") {
            Some(_) => f.object("objective", objective),
            None => Some(Objective::DEFAULT),
        };
        let (grad_accum_steps, dropout) = (f.count("grad_accum_steps"), f.flag("dropout"));
        let (clip_norm, stochastic_rounding) = (f.float_or_null("clip_norm"), f.flag("stochastic_rounding"));
        let (batch, seq_len, seed) = (f.count("batch"), f.count("seq_len"), f.count("seed"));
        let val_fraction = f.float("val_fraction");
        for (key, count) in [("batch", batch), ("seq_len", seq_len), ("grad_accum_steps", grad_accum_steps)] {
            if count == 0 {
                f.reject(key, "is 0: a step has at least one");
            }
        }
        f.finish()?;
        let (Some(profile), Some(precision), Some(optimizer), Some(recompute), Some(order)) = words else {
            return Err(Diagnostics::new());
        };
        let (Some(schedule), Some(objective)) = (schedule, objective) else { return Err(Diagnostics::new()) };
        let training = TrainingOptions {
            profile,
            precision,
            optimizer,
            hyper,
            recompute,
            grad_accum_steps,
            autocast: CastLists::Cpu,
            dropout,
            clip_norm,
            objective,
            stochastic_rounding,
        };
        Ok(Self { training, schedule, batch, seq_len, order, seed, val_fraction })
    }

    /// How these differ from `saved` in what changes the numbers of a run; more or fewer steps may be asked for.
    pub fn differences(&self, saved: &Self) -> Vec<Diagnostic> {
        fn flat(prefix: &str, value: &Value, into: &mut Map<String, Value>) {
            match value {
                Value::Object(map) => map.iter().for_each(|(k, v)| flat(&format!("{prefix}{k}."), v, into)),
                other => {
                    into.insert(prefix.trim_end_matches('.').to_owned(), other.clone());
                }
            }
        }
        let (mut own, mut theirs) = (Map::new(), Map::new());
        flat("", &self.to_json(), &mut own);
        flat("", &saved.to_json(), &mut theirs);
        let differs = |key: &String| key != "schedule.steps" && own.get(key) != theirs.get(key);
        let keys = own.keys().filter(|key| differs(key));
        keys.map(|key| {
            let (now, then) = (&own[key], theirs.get(key).unwrap_or(&Value::Null));
            Diagnostic::error("T0701", format!("`{key}` is {now}, but the run was begun with {then}"))
                .help("leave the flag away to go on with the run's own setting, or begin another run: --dir")
        })
        .collect()
    }
}

/// What a step minimises.
fn objective(f: &mut Fields<'_>) -> Option<Objective> {
    let head = word(f, "loss");
    let preference = f.converted("dpo", "model, base, stored or null", |value| match value {
        Value::Null => Some(None),
        value => value.as_str()?.parse::<Reference>().ok().map(Some),
    });
    Some(Objective { head: head?, preference: preference? })
}

/// A word of a closed set.
fn word<T: FromStr>(fields: &mut Fields<'_>, key: &'static str) -> Option<T>
where
    T::Err: Into<Problem>,
{
    let text = fields.text(key);
    text.parse().map_err(|error: T::Err| fields.reject(key, error.into().0)).ok()
}

/// What was wrong with a word, in words.
struct Problem(String);

impl From<String> for Problem {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl From<Diagnostic> for Problem {
    fn from(problem: Diagnostic) -> Self {
        Self(problem.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nn::HeadLoss;
    use nn::step::Until;

    fn settings(objective: Objective) -> Settings {
        let options = StepOptions {
            batch: 2,
            seq_len: 8,
            grad_accum_steps: 1,
            profile: Profile::Fused,
            precision: Precision::Fp32,
            optimizer: "adamw".parse().unwrap(),
            recompute: Recompute::None,
            autocast: CastLists::Cpu,
            steps: 1,
            warm: false,
            dropout: false,
            objective,
            offload: nn::Offload::NONE,
            in_backward: false,
            until: Until::Optimizer,
        };
        Settings::of_steps(&options, 10)
    }

    #[test]
    fn the_objective_is_written_and_compared() {
        let plain = settings(Objective::DEFAULT);
        let mut all = Vec::new();
        for head in [HeadLoss::Whole, HeadLoss::Fused, HeadLoss::Chunked(8)] {
            for preference in [None, Some(Reference::Model), Some(Reference::Base), Some(Reference::Stored)] {
                all.push(settings(Objective { head, preference }));
            }
        }
        for one in &all {
            let back = Settings::from_json("manifest.json", &one.to_json()).unwrap();
            assert_eq!(back.training.objective, one.training.objective);
            assert_eq!(one.differences(&plain).is_empty(), one.training.objective == Objective::DEFAULT);
        }
        let mut older = plain.to_json();
        older.as_object_mut().unwrap().remove("objective");
        assert_eq!(Settings::from_json("manifest.json", &older).unwrap().training.objective, Objective::DEFAULT);
        let mut wrong = plain.to_json();
        wrong["objective"]["loss"] = "halved".into();
        assert!(Settings::from_json("manifest.json", &wrong).unwrap_err().to_string().contains("halved"));
    }
}
