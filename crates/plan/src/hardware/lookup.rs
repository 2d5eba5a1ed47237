//! From what people type to an entry.

use nn::config::edit_distance;

use super::{Hardware, HardwareError, table};

/// Words that say who made a device and never which one it is.
const NOISE: [&str; 12] =
    ["nvidia", "amd", "intel", "google", "aws", "habana", "cloud", "tesla", "geforce", "instinct", "radeon", "gpu"];

/// Shortest text that is taken for the beginning of a family's names: `h1` would list half the table.
const SHORTEST_PREFIX: usize = 3;

/// Most names proposed for an unknown one.
const MOST_NEAR: usize = 5;

/// The entry of that name or alias.
///
/// Case, spaces, underscores, the order of words and the maker's name do not matter: `NVIDIA A100-SXM4-80GB` and
/// `a100_80gb_sxm4` are the same. A name that fits several entries is refused with the list of them, and an unknown one
/// with those that look like it; nothing is guessed.
///
/// # Errors
/// [`HardwareError::Ambiguous`] and [`HardwareError::Unknown`].
pub fn find(name: &str) -> Result<&'static Hardware, HardwareError> {
    let table = table();
    let query = Name::new(name);
    if let Some(hardware) = table.iter().find(|hardware| names(hardware).any(|known| known.is(&query))) {
        return Ok(hardware);
    }
    let family: Vec<_> =
        table.iter().filter(|hardware| query.names_family_of(hardware)).map(|hardware| &*hardware.name).collect();
    let query_text = name.trim().to_owned();
    if family.len() > 1 {
        return Err(HardwareError::Ambiguous { query: query_text, candidates: family });
    }
    let near = if family.is_empty() { near(&query, table) } else { family };
    Err(HardwareError::Unknown { query: query_text, near })
}

/// The canonical name and the aliases of an entry.
pub(super) fn names(hardware: &Hardware) -> impl Iterator<Item = Name> {
    std::iter::once(&hardware.name).chain(&hardware.aliases).map(|name| Name::new(name))
}

/// A name with everything that does not matter taken out.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Name {
    words: Vec<String>,
    sorted: Vec<String>,
    joined: String,
}

impl Name {
    fn new(text: &str) -> Self {
        let lower = text.to_lowercase();
        let mut words: Vec<String> = Vec::new();
        for word in lower.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()) {
            match words.last_mut() {
                // `80 gb` is one word.
                Some(last) if word == "gb" && last.bytes().all(|b| b.is_ascii_digit()) => {
                    last.push_str(word);
                }
                _ if NOISE.contains(&word) => {}
                _ => words.push(word.to_owned()),
            }
        }
        let mut sorted = words.clone();
        sorted.sort();
        Self { joined: words.concat(), words, sorted }
    }

    pub(super) fn is(&self, other: &Self) -> bool {
        !self.words.is_empty() && (self.joined == other.joined || self.sorted == other.sorted)
    }

    /// True if an entry has all words of this name, or a name that begins with it.
    fn names_family_of(&self, hardware: &Hardware) -> bool {
        if self.words.is_empty() {
            return false;
        }
        let known: Vec<_> = names(hardware).collect();
        let prefix =
            self.joined.len() >= SHORTEST_PREFIX && known.iter().any(|known| known.joined.starts_with(&self.joined));
        prefix || self.words.iter().all(|word| known.iter().any(|known| known.words.contains(word)))
    }
}

fn near(query: &Name, table: &'static [Hardware]) -> Vec<&'static str> {
    let mut near: Vec<_> = table
        .iter()
        .filter_map(|hardware| {
            let distance = names(hardware).map(|known| beginning_distance(&query.joined, &known.joined)).min()?;
            // A third of the letters may be wrong.
            (!query.joined.is_empty() && distance.0 * 3 <= query.joined.chars().count())
                .then_some((distance, &*hardware.name))
        })
        .collect();
    near.sort_by_key(|(distance, _)| *distance);
    near.into_iter().take(MOST_NEAR).map(|(_, name)| name).collect()
}

/// The edit distance to a name, or to as much of it as was typed: `h1000` is one letter from `h100sxm`'s beginning.
///
/// The second number is the distance to the whole name, which decides between equals.
fn beginning_distance(query: &str, known: &str) -> (usize, usize) {
    let beginning: String = known.chars().take(query.chars().count()).collect();
    let whole = edit_distance(query, known);
    (whole.min(edit_distance(query, &beginning)), whole)
}
