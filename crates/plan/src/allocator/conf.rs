//! The settings of the allocator, as `PYTORCH_CUDA_ALLOC_CONF` writes them.

use std::fmt;
use std::str::FromStr;
use units::Diagnostic;

use super::size::MIDDLE_SEGMENT;
use crate::nearest::nearest;

/// Powers of two that have a number of divisions of their own: 1 MiB to 32 GiB (`kRoundUpPowerOfTwoIntervals`).
const INTERVALS: usize = 16;

/// Settings. Source: `c10/core/AllocatorConfig.cpp` and `c10/cuda/CUDAAllocatorConfig.cpp` of PyTorch.
#[derive(Clone, Debug, PartialEq)]
pub struct Conf {
    /// Segments grow page by page instead of being asked for one by one.
    pub expandable_segments: bool,
    /// Blocks of this size and above are never split, nor used for smaller requests.
    pub max_split_bytes: Option<u64>,
    /// How much larger a block that may not be split is than what is served from it.
    pub max_non_split_rounding_bytes: u64,
    /// From this share of the memory allowed on, old cached segments are given back before new ones are asked for. Only
    /// where [`memory_fraction`](Self::memory_fraction) is set.
    pub garbage_collection_threshold: Option<f64>,
    /// In how many steps each power of two from 1 MiB on is divided to round requests up; 0 and 1 for none.
    pub roundup_power2_divisions: [u64; INTERVALS],
    /// Segments that requests above 1 MiB and below 10 MiB share.
    pub large_segment_bytes: u64,
    /// Share of the device that the process may reserve.
    pub memory_fraction: Option<f64>,
}

impl Default for Conf {
    fn default() -> Self {
        Self {
            expandable_segments: false,
            max_split_bytes: None,
            max_non_split_rounding_bytes: MIDDLE_SEGMENT,
            garbage_collection_threshold: None,
            roundup_power2_divisions: [0; INTERVALS],
            large_segment_bytes: MIDDLE_SEGMENT,
            memory_fraction: None,
        }
    }
}

/// Settings that are simulated.
const KEYS: [&str; 7] = [
    "expandable_segments",
    "garbage_collection_threshold",
    "large_segment_size_mb",
    "max_non_split_rounding_mb",
    "max_split_size_mb",
    "per_process_memory_fraction",
    "roundup_power2_divisions",
];

/// Settings of PyTorch that change no byte of the device.
const NO_BYTES: [&str; 11] = [
    "expandable_segments_reserve",
    "expandable_segments_reserve_by_class",
    "graph_capture_record_stream_reuse",
    "pinned_free_catch_all",
    "pinned_max_cached_size_mb",
    "pinned_max_round_threshold_mb",
    "pinned_num_register_threads",
    "pinned_reserve_segment_size_mb",
    "pinned_use_background_threads",
    "pinned_use_cuda_host_register",
    "release_lock_on_cudamalloc",
];

impl fmt::Display for Conf {
    /// The settings that are not the default, in the form in which they are read.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = Self::default();
        let mut parts = Vec::new();
        if self.expandable_segments {
            parts.push("expandable_segments:True".to_owned());
        }
        if let Some(bytes) = self.max_split_bytes {
            parts.push(format!("max_split_size_mb:{}", bytes >> 20));
        }
        if self.max_non_split_rounding_bytes != plain.max_non_split_rounding_bytes {
            parts.push(format!("max_non_split_rounding_mb:{}", self.max_non_split_rounding_bytes >> 20));
        }
        if let Some(threshold) = self.garbage_collection_threshold {
            parts.push(format!("garbage_collection_threshold:{threshold}"));
        }
        let divisions = self.roundup_power2_divisions;
        if divisions != plain.roundup_power2_divisions {
            let each = divisions.iter().enumerate().map(|(i, n)| format!("{}:{n}", 1u64 << i)).collect::<Vec<_>>();
            parts.push(format!("roundup_power2_divisions:[{}]", each.join(",")));
        }
        if self.large_segment_bytes != plain.large_segment_bytes {
            parts.push(format!("large_segment_size_mb:{}", self.large_segment_bytes >> 20));
        }
        if let Some(fraction) = self.memory_fraction {
            parts.push(format!("per_process_memory_fraction:{fraction}"));
        }
        f.write_str(&parts.join(","))
    }
}

impl FromStr for Conf {
    type Err = Diagnostic;

    /// Reads `expandable_segments:True,max_split_size_mb:512`; a variable's name and `=` before it are skipped.
    fn from_str(text: &str) -> Result<Self, Diagnostic> {
        let mut conf = Self::default();
        let after_name = text.split_once('=').map_or(text, |(_, settings)| settings);
        for setting in settings(after_name.trim().trim_matches(['"', '\''])) {
            let Some((key, value)) = setting.split_once(':') else {
                let problem = Diagnostic::error("", format!("`{setting}` is no KEY:VALUE"));
                return Err(problem.help("expandable_segments:True").help("max_split_size_mb:512"));
            };
            conf.set(key.trim(), value.trim())?;
        }
        Ok(conf)
    }
}

/// The parts between commas that stand outside of brackets.
fn settings(text: &str) -> impl Iterator<Item = &str> {
    let mut inside = false;
    text.split(move |c| {
        match c {
            '[' => inside = true,
            ']' => inside = false,
            _ => {}
        }
        c == ',' && !inside
    })
    .map(str::trim)
    .filter(|part| !part.is_empty())
}

impl Conf {
    fn set(&mut self, key: &str, value: &str) -> Result<(), Diagnostic> {
        match key {
            "expandable_segments" => self.expandable_segments = truth(key, value)?,
            "max_split_size_mb" => self.max_split_bytes = Some(megabytes(key, value, 20)?),
            "max_non_split_rounding_mb" => self.max_non_split_rounding_bytes = megabytes(key, value, 20)?,
            "large_segment_size_mb" => self.large_segment_bytes = megabytes(key, value, 11)?,
            "garbage_collection_threshold" => {
                self.garbage_collection_threshold = Some(share(value).filter(|n| *n < 1.0).ok_or_else(|| {
                    let problem = Diagnostic::error("", format!("{key}: `{value}` is no number between 0 and 1"));
                    problem.help("garbage_collection_threshold:0.8")
                })?);
            }
            "per_process_memory_fraction" => {
                let fraction = share(value).ok_or_else(|| {
                    let problem = Diagnostic::error("", format!("{key}: `{value}` is no share above 0 and up to 1"));
                    problem.help("per_process_memory_fraction:0.9")
                })?;
                // All of the device is no limit.
                self.memory_fraction = Some(fraction).filter(|fraction| *fraction < 1.0);
            }
            "roundup_power2_divisions" => self.roundup_power2_divisions = divisions(value)?,
            "backend" if value == "native" => {}
            "backend" => {
                let problem = Diagnostic::error("", format!("backend:{value} is not simulated"));
                return Err(problem
                    .why("its pool is the driver's, whose rules are not published")
                    .help("leave it out"));
            }
            _ if NO_BYTES.contains(&key) => {}
            _ => {
                let problem = Diagnostic::error("", format!("`{key}` is no setting of the allocator"));
                let near = nearest(key, KEYS);
                let none = near.is_empty().then(|| format!("known are {}", KEYS.join(", ")));
                return Err(near.into_iter().map(str::to_owned).chain(none).fold(problem, Diagnostic::help));
            }
        }
        Ok(())
    }
}

/// PyTorch refuses any other spelling.
fn truth(key: &str, value: &str) -> Result<bool, Diagnostic> {
    match value {
        "True" => Ok(true),
        "False" => Ok(false),
        _ => {
            let problem = Diagnostic::error("", format!("{key}: `{value}` is neither True nor False"));
            Err(problem.why("PyTorch takes these two spellings only").help(format!("{key}:True")))
        }
    }
}

fn megabytes(key: &str, value: &str, least: u64) -> Result<u64, Diagnostic> {
    let count: u64 = value.parse().map_err(|_| {
        let problem = Diagnostic::error("", format!("{key}: `{value}` is no whole number of MiB"));
        problem.help(format!("{key}:512"))
    })?;
    if count < least {
        let problem = Diagnostic::error("", format!("{key}:{count} is too small"));
        return Err(problem.why(format!("PyTorch refuses less than {least}")).help(format!("{key}:{least}")));
    }
    Ok(count.min(u64::MAX >> 20) << 20)
}

/// A number above 0 and up to 1.
fn share(value: &str) -> Option<f64> {
    value.parse().ok().filter(|n: &f64| *n > 0.0 && *n <= 1.0)
}

/// One number for all sizes, or `[256:1,512:2,>:8]`: sizes in MiB, in rising order; the first also holds for what is below
/// it, `>` for what is above the one before, or above 2 MiB where it is the first.
fn divisions(value: &str) -> Result<[u64; INTERVALS], Diagnostic> {
    let wrong = |what: &str| {
        let problem = Diagnostic::error("", format!("roundup_power2_divisions: {what}"));
        problem.help("roundup_power2_divisions:4").help("roundup_power2_divisions:[256:1,512:2,>:8]")
    };
    let power = |text: &str| text.trim().parse::<u64>().ok().filter(|n| n.is_power_of_two());
    let Some(list) = value.strip_prefix('[') else {
        let one = power(value).ok_or_else(|| wrong(&format!("`{value}` is no power of two")))?;
        return Ok([one; INTERVALS]);
    };
    let list = list.strip_suffix(']').ok_or_else(|| wrong("the list has no end"))?;
    let mut out = [0; INTERVALS];
    let mut last = None;
    for pair in list.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
        let (size, count) = pair.split_once(':').ok_or_else(|| wrong(&format!("`{pair}` is no SIZE:DIVISIONS")))?;
        let none = (count.trim() == "0").then_some(0);
        let count =
            none.or_else(|| power(count)).ok_or_else(|| wrong(&format!("`{count}` is no power of two, nor 0")))?;
        if size.trim() == ">" {
            out[last.unwrap_or(0) + 1..].fill(count);
        } else {
            let size = power(size).ok_or_else(|| wrong(&format!("`{size}` MiB is no power of two")))?;
            let index = (size.ilog2() as usize).min(INTERVALS - 1);
            if last.is_none() {
                out[..index].fill(count);
            }
            out[index] = count;
            last = Some(index);
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_pytorch_are_read_and_written_again() {
        let text = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, max_split_size_mb:512,\
                    garbage_collection_threshold:0.8,pinned_use_background_threads:True,backend:native";
        let conf: Conf = text.parse().unwrap();
        let want = Conf {
            expandable_segments: true,
            max_split_bytes: Some(512 << 20),
            garbage_collection_threshold: Some(0.8),
            ..Conf::default()
        };
        assert_eq!(conf, want);
        assert_eq!("".parse::<Conf>().unwrap(), Conf::default());
        for text in
            ["", "expandable_segments:True,large_segment_size_mb:64", "roundup_power2_divisions:[256:1,512:2,>:8]"]
        {
            let conf: Conf = text.parse().unwrap();
            assert_eq!(conf.to_string().parse::<Conf>().unwrap(), conf, "{text}");
        }
        let conf: Conf = "roundup_power2_divisions:[256:1,512:2,>:8]".parse().unwrap();
        assert_eq!(conf.roundup_power2_divisions, [1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 8, 8, 8, 8, 8, 8]);
    }

    /// Each is refused by PyTorch 2.15 too, but for the backend, which is not simulated.
    #[test]
    fn what_pytorch_refuses_is_refused() {
        for (text, says) in [
            ("expandable_segments:true", "neither True nor False"),
            ("expandable_segments", "no KEY:VALUE"),
            ("expandable_segment:True", "no setting of the allocator"),
            ("max_split_size_mb:5", "too small"),
            ("max_split_size_mb:", "no whole number"),
            ("max_split_size_mb:-1", "no whole number"),
            ("garbage_collection_threshold:1.5", "between 0 and 1"),
            ("garbage_collection_threshold:nan", "between 0 and 1"),
            ("roundup_power2_divisions:3", "no power of two"),
            ("roundup_power2_divisions:[3:4]", "no power of two"),
            ("roundup_power2_divisions:[256:1", "no end"),
            ("backend:cudaMallocAsync", "not simulated"),
        ] {
            let problem = text.parse::<Conf>().unwrap_err();
            assert!(problem.message.contains(says), "{text}: {}", problem.message);
            assert!(!problem.help.is_empty(), "{text}");
        }
    }
}
