//! The log of a run, line by line: step times, tokens and rates under the names that training programs print.
//!
//! A line is a JSON object or plain text, such as `iter 100: loss 3.2, time 505.10ms, mfu 33.3%`.

use nn::config::Source;
use nn::config::json::{self, Kind};
use units::Diagnostic;

/// What a line says of a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Line {
    /// Number of the line, from 1.
    pub line: usize,
    /// Number of the step.
    pub step: Option<u64>,
    /// How long it took, in seconds.
    pub seconds: Option<f64>,
    /// A clock, in seconds from any moment.
    pub clock: Option<f64>,
    /// Its tokens, or all so far.
    pub tokens: Option<f64>,
    /// Tokens per second.
    pub rate: Option<f64>,
    /// True if the rate is said to be that of one device.
    pub rate_per_device: bool,
    /// A utilization, 1 is all.
    pub mfu: Option<f64>,
    /// Model FLOP of the step.
    pub flop: Option<f64>,
    /// Loss.
    pub loss: Option<f64>,
    /// Words about it.
    pub note: String,
}

/// What a number is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    Step,
    Seconds,
    Millis,
    Clock,
    Tokens,
    Rate,
    RatePerDevice,
    Mfu,
    Flop,
    Loss,
}

/// Names as they are printed, without what is neither letter nor digit.
const KEYS: &[(Key, &[&str])] = &[
    (Key::Step, &["step", "steps", "iter", "iteration", "it", "globalstep", "trainstep", "update"]),
    (
        Key::Seconds,
        &[
            "dt",
            "dts",
            "time",
            "seconds",
            "secs",
            "sec",
            "duration",
            "steptime",
            "steptimes",
            "stepseconds",
            "itertime",
            "iterationtime",
            "timeperstep",
            "secondsperstep",
            "secperstep",
            "timeperiteration",
            "secondsperiter",
            "seciter",
            "elapsedtimeperiteration",
            "elapsedtimeperiterations",
            "batchtime",
        ],
    ),
    (
        Key::Millis,
        &[
            "ms",
            "dtms",
            "timems",
            "steptimems",
            "itertimems",
            "msperstep",
            "msiter",
            "elapsedtimeperiterationms",
            "durationms",
        ],
    ),
    (Key::Clock, &["timestamp", "runtime", "walltime", "wallclock"]),
    (
        Key::Tokens,
        &[
            "tokens",
            "tokensperstep",
            "ntokens",
            "numtokens",
            "steptokens",
            "batchtokens",
            "tokensseen",
            "totaltokens",
            "numinputtokensseen",
        ],
    ),
    (
        Key::Rate,
        &[
            "tokenspersec",
            "tokenspersecond",
            "tokensec",
            "tokenssec",
            "tokenss",
            "toksec",
            "toks",
            "tokpersec",
            "tokspersec",
            "tps",
            "traintokenspersecond",
            "throughputtokens",
        ],
    ),
    (
        Key::RatePerDevice,
        &[
            "tgs",
            "tpsgpu",
            "tokenspersecpergpu",
            "tokenspersecondpergpu",
            "tokenspersecgpu",
            "tokensperseconddevice",
            "tokenssgpu",
            "toksgpu",
            "tokensgpusec",
            "tokenspergpupersec",
            "tokenspergpupersecond",
            "tokenspersecperdevice",
            "tokenspersecondperdevice",
        ],
    ),
    (Key::Mfu, &["mfu", "mfupercent"]),
    (Key::Flop, &["flop"]),
    (Key::Loss, &["loss", "trainloss", "lmloss"]),
];

/// Words before a name that make another thing of it: `total time`, `eval loss`.
const OTHERS: &[&str] = &[
    "total",
    "eval",
    "val",
    "valid",
    "validation",
    "test",
    "data",
    "wait",
    "waiting",
    "remaining",
    "eta",
    "load",
    "save",
    "saving",
    "forward",
    "backward",
    "optimizer",
    "cumulative",
    "elapsed",
    "best",
    "avg",
    "average",
    "mean",
    "next",
    "max",
    "min",
];

fn key_of(name: &str) -> Option<Key> {
    KEYS.iter().find(|(_, names)| names.contains(&name)).map(|(key, _)| *key)
}

fn plain(text: &str) -> String {
    text.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
}

/// What the words before a number make of it: the longest name that they end in, unless the word before says otherwise.
fn label(words: &str) -> Option<Key> {
    let words: Vec<&str> =
        words.split(|c: char| !(c.is_ascii_alphanumeric() || c == '/' || c == '_')).filter(|w| !w.is_empty()).collect();
    for take in (1..=words.len().min(5)).rev() {
        let (before, last) = words.split_at(words.len() - take);
        let name: String = last.iter().map(|word| plain(word)).collect();
        // `train/step_time`: what stands before the slash is a group.
        let group = last.first().and_then(|word| word.rsplit_once('/')).filter(|_| take == 1);
        let found = key_of(&name).or_else(|| group.and_then(|(_, name)| key_of(&plain(name))));
        let Some(found) = found else { continue };
        let other = before.last().copied().or(group.map(|(group, _)| group));
        return (!other.is_some_and(|word| OTHERS.contains(&plain(word).as_str()))).then_some(found);
    }
    None
}

impl Line {
    fn set(&mut self, key: Key, value: f64) {
        if !value.is_finite() || value < 0.0 {
            return;
        }
        let slot = match key {
            Key::Step => {
                self.step.get_or_insert(value as u64);
                return;
            }
            // Seconds since 1970, not those of a step.
            Key::Seconds if value > 1e8 => &mut self.clock,
            Key::Seconds | Key::Millis => &mut self.seconds,
            Key::Clock => &mut self.clock,
            Key::Tokens => &mut self.tokens,
            Key::Rate => &mut self.rate,
            Key::RatePerDevice => {
                self.rate_per_device |= self.rate.is_none();
                &mut self.rate
            }
            Key::Mfu => &mut self.mfu,
            Key::Flop => &mut self.flop,
            Key::Loss => &mut self.loss,
        };
        let value = match key {
            Key::Millis => value / 1e3,
            // No utilization is above 1.5; what is larger is in percent.
            Key::Mfu if value > 1.5 => value / 100.0,
            _ => value,
        };
        slot.get_or_insert(value);
    }

    /// A number with what stands behind it.
    fn note_number(&mut self, key: Option<Key>, value: f64, unit: &str) {
        match (key, unit) {
            (_, "tok/s" | "tok/sec" | "tokens/s" | "tokens/sec" | "tokens/second") => self.set(Key::Rate, value),
            (_, "tok/s/gpu" | "tokens/s/gpu" | "tokens/sec/gpu") => self.set(Key::RatePerDevice, value),
            (Some(Key::Seconds), "ms") => self.set(Key::Millis, value),
            (Some(Key::Seconds), "us") => self.set(Key::Millis, value / 1e3),
            (Some(Key::Seconds), "m" | "min") => self.set(Key::Seconds, value * 60.0),
            // Some programs print a negative one for what they have not measured yet.
            (Some(Key::Mfu), "%") if value >= 0.0 => {
                self.mfu.get_or_insert(value / 100.0);
            }
            (Some(key), _) => self.set(key, value),
            (None, _) => {}
        }
    }

    /// Whether it says anything of speed.
    fn is_timed(&self) -> bool {
        self.seconds.is_some() || self.clock.is_some() || self.rate.is_some()
    }
}

/// The lines of a log that say how fast the run was.
///
/// # Errors
/// `T0420` where none does, with the names that are known.
pub fn read(text: &str) -> Result<Vec<Line>, Diagnostic> {
    let mut out: Vec<Line> = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let trimmed = line.trim();
        let read = if trimmed.starts_with('{') { object(trimmed) } else { None };
        let mut read = read.unwrap_or_else(|| words(trimmed));
        read.line = i + 1;
        if read.is_timed() {
            out.push(read);
        }
    }
    if out.is_empty() {
        return Err(Diagnostic::error("T0420", "no line of the log says how long a step took")
            .why("read are step times (dt, time, seconds, step_time, ms) and rates (tokens_per_sec, tok/s, tps), in JSON or plain text")
            .help("--tokens-per-second or --step-time give the speed without a log"));
    }
    clocks(&mut out);
    Ok(out)
}

/// A line that is a JSON object; members of inner objects count too. `None` if it is none.
fn object(line: &str) -> Option<Line> {
    // Longer ones are no step of a log.
    if line.len() > 1 << 20 {
        return None;
    }
    let (value, _) = json::parse(&Source::new("log", line.to_owned()), 0, 0);
    let value = value?;
    let mut out = Line::default();
    let mut todo = vec![(value.members(), true)];
    while let Some((members, outer)) = todo.pop() {
        for member in members {
            match &member.value.kind {
                Kind::Number(text) => {
                    if let (Some(key), Ok(value)) = (label(&member.key), text.parse::<f64>()) {
                        out.note_number(Some(key), value, "");
                    }
                }
                Kind::String(text) => match (label(&member.key), number(text, 0)) {
                    (Some(key), Some((value, unit, _))) => out.note_number(Some(key), value, unit),
                    _ if !text.is_empty() => {
                        out.note.push_str(if out.note.is_empty() { "" } else { " " });
                        out.note.push_str(text);
                    }
                    _ => {}
                },
                Kind::Bool(true) => {
                    out.note.push_str(if out.note.is_empty() { "" } else { " " });
                    out.note.push_str(&member.key);
                }
                Kind::Object(inner) if outer => todo.push((inner.as_slice(), false)),
                _ => {}
            }
        }
    }
    Some(out)
}

/// A line of words and numbers.
fn words(line: &str) -> Line {
    let mut out = Line::default();
    let bytes = line.as_bytes();
    let (mut from, mut at) = (0, 0);
    while at < bytes.len() {
        let starts = bytes[at].is_ascii_digit()
            && (at == 0 || !(bytes[at - 1].is_ascii_alphanumeric() || matches!(bytes[at - 1], b'_' | b'.')));
        match if starts { number(line, at) } else { None } {
            Some((value, unit, end)) => {
                let negative =
                    at > 0 && bytes[at - 1] == b'-' && (at < 2 || matches!(bytes[at - 2], b' ' | b':' | b'='));
                // Only what stands between two numbers names the second; only ASCII stands on either side of the cut.
                let before = line[from..at].rsplit(['|', ',', ';']).next().unwrap_or_default();
                out.note_number(label(before), if negative { -value } else { value }, unit);
                (from, at) = (end, end);
            }
            None => at += 1,
        }
    }
    // Where numbers are read, words are a remark only if they say what kind of pause it was.
    let lower = line.to_ascii_lowercase();
    if let Some(word) = ["compil", "eval", "checkpoint", "warmup"].into_iter().find(|word| lower.contains(word)) {
        out.note = match word {
            "compil" => "compilation".to_owned(),
            "eval" => "evaluation".to_owned(),
            other => other.to_owned(),
        };
    }
    out
}

/// Units that stand behind a number, longest first.
const UNITS: [&str; 16] = [
    "tokens/sec/gpu",
    "tokens/second",
    "tokens/s/gpu",
    "tokens/sec",
    "tok/s/gpu",
    "tokens/s",
    "tok/sec",
    "tok/s",
    "seconds",
    "secs",
    "sec",
    "min",
    "ms",
    "us",
    "s",
    "%",
];

/// The number that starts at byte `at`, its unit, and where both end. `None` if none does.
fn number(text: &str, at: usize) -> Option<(f64, &str, usize)> {
    let bytes = text.as_bytes();
    let digits = |from: usize| from + bytes[from.min(bytes.len())..].iter().take_while(|b| b.is_ascii_digit()).count();
    let mut end = digits(at);
    if end == at {
        return None;
    }
    // `5,231` but not `3.2, time`: a comma counts between threes of digits.
    while bytes.get(end) == Some(&b',') && digits(end + 1) == end + 4 {
        end += 4;
    }
    if bytes.get(end) == Some(&b'.') && digits(end + 1) > end + 1 {
        end = digits(end + 1);
    }
    if matches!(bytes.get(end), Some(b'e' | b'E')) {
        let sign = end + 1 + usize::from(matches!(bytes.get(end + 1), Some(b'+' | b'-')));
        if digits(sign) > sign {
            end = digits(sign);
        }
    }
    let value: f64 = text[at..end].replace(',', "").parse().ok()?;
    let (value, end) = match bytes.get(end) {
        Some(b'k' | b'K') if !bytes.get(end + 1).is_some_and(u8::is_ascii_alphabetic) => (value * 1e3, end + 1),
        Some(b'M') if !bytes.get(end + 1).is_some_and(u8::is_ascii_alphabetic) => (value * 1e6, end + 1),
        _ => (value, end),
    };
    let space = end + bytes[end..].iter().take_while(|b| **b == b' ').count();
    let found = UNITS.iter().find(|unit| {
        let to = space + unit.len();
        let same = bytes.get(space..to).is_some_and(|word| word.eq_ignore_ascii_case(unit.as_bytes()));
        same && (**unit == "%" || !bytes.get(to).is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'_' || *b == b'/'))
    });
    Some(match found {
        Some(unit) => (value, unit, space + unit.len()),
        None => (value, "", end),
    })
}

/// Where a clock is logged and no step time, the time of a step is the difference to the line before.
fn clocks(lines: &mut Vec<Line>) {
    if lines.iter().any(|line| line.seconds.is_some() || line.rate.is_some()) {
        return;
    }
    for i in (1..lines.len()).rev() {
        let (Some(before), Some(now)) = (lines[i - 1].clock, lines[i].clock) else { continue };
        let steps = match (lines[i - 1].step, lines[i].step) {
            (Some(a), Some(b)) if b > a => (b - a) as f64,
            _ => 1.0,
        };
        if now > before {
            lines[i].seconds = Some((now - before) / steps);
        }
    }
    // The first has nothing before it.
    lines.retain(|line| line.seconds.is_some());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(text: &str) -> Line {
        read(text).unwrap_or_else(|problem| panic!("{text}: {problem}")).remove(0)
    }

    #[track_caller]
    fn near(is: Option<f64>, right: f64) {
        assert!(is.is_some_and(|is| (is - right).abs() <= right.abs() * 1e-9), "{is:?} is not {right}");
    }

    #[test]
    fn lines_as_programs_print_them() {
        for (text, step, seconds, rate, mfu) in [
            ("iter 100: loss 3.2345, time 505.10ms, mfu 33.30%", 100, Some(0.5051), None, Some(0.333)),
            (
                "step 100/19073 | loss 3.4 | lr 1e-3 | dt: 505.10ms | tok/sec: 121663.37",
                100,
                Some(0.5051),
                Some(121_663.37),
                None,
            ),
            (
                "step 00100/21400 (0.47%) | loss: 4.5 | lrm: 1.00 | dt: 989.51ms | tok/sec: 529,882 | mfu: 74.13 | total time: 1.2m",
                100,
                Some(0.98951),
                Some(529_882.0),
                Some(0.7413),
            ),
            (
                "[2024-05-01 10:00:00] iteration      100/  500 | consumed samples: 12800 | elapsed time per iteration (ms): 505.1 | learning rate: 1.5E-04 | lm loss: 3.2E+00",
                100,
                Some(0.5051),
                None,
                None,
            ),
            (
                "INFO - step: 10  loss: 7.1  memory: 30.1GiB(38%)  tps: 5,231  tflops: 100.2  mfu: 33.1%",
                10,
                None,
                Some(5231.0),
                Some(0.331),
            ),
            ("step 137/500 loss 2.413 4,812 tok/s MFU 33.1 %", 137, None, Some(4812.0), Some(0.331)),
            (
                r#"{"step": 7, "train": {"loss": 3.1, "step_time": 0.5}, "perf/tokens_per_sec": 122880}"#,
                7,
                Some(0.5),
                Some(122_880.0),
                None,
            ),
            ("{'step': 7, 'loss': 3.1, 'dt': 0.5, 'tokens_per_second': 100}", 7, Some(0.5), Some(100.0), None),
        ] {
            let line = one(text);
            assert_eq!(line.step, Some(step), "{text}");
            for (is, right) in [(line.seconds, seconds), (line.rate, rate), (line.mfu, mfu)] {
                match right {
                    Some(right) => near(is, right),
                    None => assert_eq!(is, None, "{text}"),
                }
            }
        }
    }

    #[test]
    fn what_is_no_step_time_is_left_out() {
        let line = one("step 5 total time 100s, eval time 3s, data wait 0.1s, time 505ms, mfu -100.00%");
        near(line.seconds, 0.505);
        assert_eq!(line.mfu, None);
        assert!(read("loss 3.2\n\nsaving checkpoint\n{\"step\": 3}").is_err());
        assert!(read("").is_err());
        // Lines without a time stand between steps, as those of a validation loss.
        let text =
            "{\"step\": 1, \"seconds\": 0.5}\n{\"step\": 1, \"validation_loss\": 4.0}\n{\"step\": 2, \"seconds\": 0.6}";
        assert_eq!(read(text).unwrap().len(), 2);
    }

    #[test]
    fn a_rate_of_one_device_says_so() {
        assert!(one("step 1 tgs 5000").rate_per_device);
        assert!(one(r#"{"step": 1, "tokens_per_sec_per_gpu": 5000}"#).rate_per_device);
        assert!(!one("step 1 tok/s 5000").rate_per_device);
    }

    #[test]
    fn clocks_give_differences() {
        let text = "{\"_step\": 0, \"_timestamp\": 1700000000.0}\n{\"_step\": 10, \"_timestamp\": 1700000005.0}\n{\"_step\": 20, \"_timestamp\": 1700000010.0}";
        let lines = read(text).unwrap();
        assert_eq!(lines.len(), 2);
        near(lines[0].seconds, 0.5);
    }

    #[test]
    fn own_log() {
        let line = one(
            "{\"step\":3,\"loss\":5.1,\"tokens\":2048,\"seconds\":0.0737,\"wait_seconds\":0.0001,\"tokens_per_second\":27786.0,\
             \"flop\":10273947648,\"mfu\":0.592,\"skipped_batches\":0,\"rounding\":null}",
        );
        near(line.seconds, 0.0737);
        near(line.tokens, 2048.0);
        near(line.flop, 10_273_947_648.0);
        near(line.mfu, 0.592);
    }
}
