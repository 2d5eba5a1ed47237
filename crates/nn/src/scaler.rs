//! Dynamic loss scaling: the loss is multiplied so that small gradients do not vanish in f16, by as much as large ones
//! allow. Source: Micikevicius et al., arXiv:1710.03740; growth and backoff as `torch.amp.GradScaler` sets them.

use std::fmt;

/// How the scale moves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScalerOptions {
    /// First scale.
    pub initial: f64,
    /// Factor after [`ScalerOptions::interval`] updates in a row.
    pub growth: f64,
    /// Factor after an update that was skipped.
    pub backoff: f64,
    /// Updates in a row before the scale grows.
    pub interval: u64,
    /// The scale never falls below it: at a scale of 1 it is not the scale that makes gradients infinite.
    pub floor: f64,
    /// Skips in a row, after the first update, that are no search for the scale any more.
    pub patience: u64,
}

impl Default for ScalerOptions {
    fn default() -> Self {
        Self { initial: 65536.0, growth: 2.0, backoff: 0.5, interval: 2000, floor: 1.0, patience: 5 }
    }
}

/// Why an update was skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Skip {
    /// The scale was too large, as it is at the start and after it has grown: it is halved, and training goes on.
    Calibration,
    /// A smaller scale does not help: the gradients themselves are not finite.
    Disaster,
}

impl fmt::Display for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Calibration => "calibration",
            Self::Disaster => "disaster",
        })
    }
}

/// What a scaler has come to: all that a resumed run needs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScalerState {
    /// The scale.
    pub scale: f64,
    /// Updates since the scale last changed.
    pub good_steps: u64,
    /// Skips in a row up to now.
    pub skips: u64,
    /// Whether there has been an update.
    pub found: bool,
    /// Skips of the whole run.
    pub skipped: u64,
}

/// A loss scale that grows while gradients are finite and backs off when they are not.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossScaler {
    options: ScalerOptions,
    state: ScalerState,
}

impl LossScaler {
    /// A scaler at its first scale.
    pub fn new(options: ScalerOptions) -> Self {
        let state = ScalerState { scale: options.initial, good_steps: 0, skips: 0, found: false, skipped: 0 };
        Self { options, state }
    }

    /// What the loss is multiplied by, and gradients divided by before anybody looks at them.
    pub fn scale(&self) -> f64 {
        self.state.scale
    }

    /// Everything that moves.
    pub fn state(&self) -> ScalerState {
        self.state
    }

    /// Goes on from where another scaler was.
    pub fn restore(&mut self, state: ScalerState) {
        self.state = state;
    }

    /// Takes note of gradients that were finite, or were not: then the update must be skipped, and this says why.
    pub fn note(&mut self, finite: bool) -> Option<Skip> {
        let (o, s) = (self.options, &mut self.state);
        if finite {
            s.skips = 0;
            s.found = true;
            s.good_steps += 1;
            if s.good_steps >= o.interval {
                s.good_steps = 0;
                // Beyond the range of f32 the scale itself would be infinite.
                let grown = s.scale * o.growth;
                s.scale = if grown <= f64::from(f32::MAX) { grown } else { s.scale };
            }
            return None;
        }
        let at_floor = s.scale <= o.floor;
        s.skips += 1;
        s.skipped += 1;
        s.good_steps = 0;
        s.scale = (s.scale * o.backoff).max(o.floor);
        let hopeless = at_floor || (s.found && s.skips >= o.patience);
        Some(if hopeless { Skip::Disaster } else { Skip::Calibration })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scaler() -> LossScaler {
        LossScaler::new(ScalerOptions { interval: 3, ..ScalerOptions::default() })
    }

    /// `torch.amp.GradScaler` with a growth interval of 3 on the same finite and infinite gradients.
    #[test]
    fn the_scale_moves_as_the_reference_does() {
        let mut s = scaler();
        let finite = [false, true, true, true, true, false, true, true, true, false, false, true];
        let scales = finite.map(|finite| {
            s.note(finite);
            s.scale()
        });
        let half = 32768.0;
        let want =
            [half, half, half, 2.0 * half, 2.0 * half, half, half, half, 2.0 * half, half, half / 2.0, half / 2.0];
        assert_eq!(scales, want);
    }

    #[test]
    fn a_search_is_calibration_and_a_run_of_skips_is_not() {
        let mut s = scaler();
        // From 65536 to 2^7: nine halvings, all before the first update.
        for _ in 0..9 {
            assert_eq!(s.note(false), Some(Skip::Calibration));
        }
        assert_eq!(s.note(true), None);
        for _ in 0..4 {
            assert_eq!(s.note(false), Some(Skip::Calibration), "a search again");
        }
        assert_eq!(s.note(false), Some(Skip::Disaster), "five in a row");
        assert_eq!(s.note(true), None);
        assert_eq!(s.note(false), Some(Skip::Calibration), "counted anew");
    }

    #[test]
    fn the_scale_stops_at_its_floor() {
        let mut s = scaler();
        let skips: Vec<Skip> = (0..18).filter_map(|_| s.note(false)).collect();
        assert_eq!(s.scale(), 1.0);
        // Sixteen halvings reach 1; what is infinite there is not the scale's doing.
        assert_eq!(skips[..16], [Skip::Calibration; 16]);
        assert_eq!(skips[16..], [Skip::Disaster; 2]);
    }

    #[test]
    fn growth_stays_in_the_range_of_f32() {
        let mut s = LossScaler::new(ScalerOptions { initial: 2f64.powi(127), interval: 1, ..ScalerOptions::default() });
        s.note(true);
        assert_eq!(s.scale(), 2f64.powi(127));
    }
}
