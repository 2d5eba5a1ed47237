//! Sampling from a model, token by token.

use crate::cache::KvCache;
use crate::context::{Forward, Profile, Recompute};
use crate::model::Model;
use std::rc::Rc;
use tensor::rng::{Rng, Stream};
use tensor::{DType, Error, Result, Role};

/// How a token is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 takes the largest.
    pub temperature: f64,
    /// Only so many of the likeliest.
    pub top_k: Option<u64>,
    /// Only the likeliest that together have this probability. Source: Holtzman et al., arXiv:1904.09751.
    pub top_p: Option<f64>,
}

impl Sampling {
    /// The token that `uniform`, a number in `0..1`, picks.
    ///
    /// Candidates are taken in the order of their logits, the smaller id first among equals. `None` if no logit is a
    /// number.
    pub fn pick(&self, logits: &[f64], uniform: f64) -> Option<u64> {
        let mut order: Vec<usize> = (0..logits.len()).filter(|&i| logits[i] > f64::NEG_INFINITY).collect();
        order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
        let best = *order.first()?;
        if self.temperature <= 0.0 {
            return Some(best as u64);
        }
        order.truncate(self.top_k.map_or(usize::MAX, |k| usize::try_from(k.max(1)).unwrap_or(usize::MAX)));
        let weights: Vec<f64> = order.iter().map(|&i| ((logits[i] - logits[best]) / self.temperature).exp()).collect();
        let total: f64 = weights.iter().sum();
        let mut kept = total;
        let mut count = order.len();
        if let Some(p) = self.top_p {
            (kept, count) = (0.0, 0);
            for weight in &weights {
                kept += weight;
                count += 1;
                if kept >= p * total {
                    break;
                }
            }
        }
        let mut left = uniform * kept;
        for (&i, &weight) in order.iter().zip(&weights).take(count) {
            left -= weight;
            if left < 0.0 {
                return Some(i as u64);
            }
        }
        order[..count].last().map(|&i| i as u64)
    }
}

/// A text in the making.
pub struct Generator<'a> {
    model: &'a Model,
    cache: Rc<KvCache>,
    rng: Rng,
    drawn: u64,
}

impl<'a> Generator<'a> {
    /// Room for `capacity` tokens, prompt included.
    pub fn new(model: &'a Model, capacity: u64, seed: u64) -> Self {
        Self { model, cache: Rc::new(KvCache::new(capacity)), rng: Rng::new(seed, Stream::Sampling), drawn: 0 }
    }

    /// Keys and values kept so far.
    pub fn cache(&self) -> &KvCache {
        &self.cache
    }

    /// Reads tokens; gives the logits of the one that follows.
    ///
    /// # Errors
    /// [`Error::Argument`] for a model that continues no text from keys and values alone, for no tokens, more than there is room for, or ids beyond the vocabulary.
    pub fn read(&mut self, tokens: &[u64]) -> Result<Vec<f64>> {
        if tokens.is_empty() {
            return Err(Error::Argument { op: "generate", what: "at least one token is needed to go on from".into() });
        }
        if !self.model.spec().continues_from_keys() {
            let what =
                "the model continues no text from keys and values alone: it predicts no next token, or has states";
            return Err(Error::Argument { op: "generate", what: what.into() });
        }
        let rt = self.model.params()[0].tensor.runtime().clone();
        let new = tokens.len() as u64;
        rt.no_grad(|| {
            let ids: Vec<f64> = tokens.iter().map(|&id| id as f64).collect();
            let ids = rt.tensor(&ids, &[1, new], DType::I64)?.with_role(Role::Input);
            let mut f = Forward::new(&rt, Profile::Fused, Recompute::None, 1, new);
            f.training = false;
            f.cache = Some(self.cache.clone());
            let hidden = self.model.body(&f, &ids)?;
            let logits = self.model.logits(&f, &hidden.narrow(1, new - 1, 1)?)?;
            self.cache.advance(new);
            logits.to_vec()
        })
    }

    /// Chooses a token by its logits.
    ///
    /// # Errors
    /// [`Error::Argument`] if no logit is a number: the weights are damaged.
    pub fn choose(&mut self, logits: &[f64], sampling: &Sampling) -> Result<u64> {
        let uniform = self.rng.uniform_f64(0, self.drawn);
        self.drawn += 1;
        sampling.pick(logits, uniform).ok_or_else(|| Error::Argument {
            op: "generate",
            what: "no logit is a number: the weights have left the range of their type".into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f64; 4] = [1.0, 3.0, 2.0, f64::NEG_INFINITY];

    fn sampling(temperature: f64, top_k: Option<u64>, top_p: Option<f64>) -> Sampling {
        Sampling { temperature, top_k, top_p }
    }

    #[test]
    fn no_temperature_takes_the_largest() {
        for u in [0.0, 0.5, 0.999] {
            assert_eq!(sampling(0.0, None, None).pick(&LOGITS, u), Some(1));
            assert_eq!(sampling(1.0, Some(1), None).pick(&LOGITS, u), Some(1));
            assert_eq!(sampling(1.0, None, Some(1e-9)).pick(&LOGITS, u), Some(1));
        }
    }

    #[test]
    fn shares_are_those_of_the_softmax() {
        let count = 100_000;
        let picks =
            (0..count).map(|i| sampling(1.0, None, None).pick(&LOGITS, (f64::from(i) + 0.5) / f64::from(count)));
        let mut seen = [0u32; 4];
        for id in picks.flatten() {
            seen[id as usize] += 1;
        }
        let total: f64 = LOGITS.iter().map(|x| x.exp()).sum();
        for (seen, logit) in seen.iter().zip(LOGITS) {
            assert!((f64::from(*seen) / f64::from(count) - logit.exp() / total).abs() < 1e-4);
        }
    }

    #[test]
    fn the_unlikely_are_cut_off() {
        // e^3 / (e + e^2 + e^3) is 0.665, with e^2 0.909.
        for (k, p, never) in [(Some(2), None, 0), (None, Some(0.8), 0), (None, Some(0.6), 2)] {
            let picks = (0..1000).map(|i| sampling(1.0, k, p).pick(&LOGITS, f64::from(i) / 1000.0));
            assert!(picks.flatten().all(|id| id != never && id != 3), "{k:?} {p:?}");
        }
    }

    #[test]
    fn damaged_logits_pick_nothing() {
        assert_eq!(sampling(1.0, None, None).pick(&[f64::NAN, f64::NAN], 0.3), None);
        assert_eq!(sampling(1.0, None, None).pick(&[], 0.3), None);
    }
}
