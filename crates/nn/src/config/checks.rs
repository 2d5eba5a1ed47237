//! What must hold between the keys of a configuration.

use units::diagnostic::Diagnostic;

use super::reader::Reader;
use super::record::Part;

/// Largest product of sizes: twice it still fits the counters for bytes.
const MAX_PRODUCT: u128 = 1 << 62;

impl Reader<'_> {
    /// Requires that `part` divides `whole`, as key/value heads divide query heads.
    pub fn require_divides(&mut self, whole: Part<'_>, part: Part<'_>, why: &str) {
        let unsure = self.bad.contains(whole.key) || self.bad.contains(part.key);
        if unsure || (part.value > 0 && whole.value.is_multiple_of(part.value)) {
            return;
        }
        let divisors = divisors(whole.value);
        let better = divisors.iter().find(|d| **d > part.value).or(divisors.last()).copied().unwrap_or(1);
        let valid: Vec<String> = divisors.iter().map(u64::to_string).collect();
        let message = format!("`{}` is not divisible by `{}`", whole.key, part.key);
        let mut error = Diagnostic::error("T0203", message);
        let places = [part, whole].map(|side| (self.place(side.key), side));
        for (place, side) in &places {
            let Some(place) = place else { continue };
            if error.location.is_none() {
                error = error.at(place.clone());
            }
            error = error.label(place.clone(), format!("{} {}", side.value, side.noun));
        }
        let error = error.why(why).help(format!("--set {}={better}   (valid: {})", part.key, shorten(&valid)));
        self.fail(part.key, error);
    }

    /// The product of sizes, `what` it counts; an error, and 1, if it is beyond 2^62.
    pub fn check_product(&mut self, what: &str, factors: &[(&str, u64)]) -> u64 {
        let product = factors.iter().try_fold(1u128, |product, (_, factor)| {
            Some(product * u128::from(*factor)).filter(|product| *product <= MAX_PRODUCT)
        });
        if let Some(product) = product {
            return product as u64;
        }
        let names: Vec<String> = factors.iter().map(|(key, _)| format!("`{key}`")).collect();
        let values: Vec<String> = factors.iter().map(|(_, value)| value.to_string()).collect();
        let mut error = Diagnostic::error("T0205", format!("{what} is beyond 2^62: {}", names.join(" x ")))
            .why(format!("{} is more than any memory holds", values.join(" x ")));
        let mut largest: Vec<&(&str, u64)> = factors.iter().collect();
        largest.sort_by_key(|(_, value)| std::cmp::Reverse(*value));
        for (key, value) in largest {
            let Some(place) = self.place(key) else {
                continue;
            };
            if error.location.is_none() {
                error = error.at(place.clone());
            }
            error = error.label(place, value.to_string());
        }
        self.fail(factors.first().map_or("", |(key, _)| *key), error.help("correct the largest of them"));
        1
    }

    /// Requires that the list under `key` has as many items as `other` says.
    pub fn require_len(&mut self, key: &str, len: usize, other: &str, expected: u64) {
        if len as u64 == expected || self.bad.contains(key) || self.bad.contains(other) {
            return;
        }
        let mut error = Diagnostic::error("T0207", format!("`{key}` has {len} items, but `{other}` is {expected}"));
        if let Some(place) = self.place(key) {
            error = error.at(place.clone()).label(place, format!("{len} items"));
        }
        if let Some(place) = self.place(other) {
            error = error.label(place, expected.to_string());
        }
        self.fail(key, error.why("the list has one item per layer").help(format!("--set {other}={len}")));
    }

    /// Records an error of the family's own about `key`.
    pub fn reject(&mut self, key: &str, message: impl Into<String>, why: &str, help: &str) {
        let mut error = Diagnostic::error("T0209", message).why(why).help(help);
        if let Some(place) = self.place(key) {
            error = error.at(place);
        }
        self.fail(key, error);
    }

    /// Requires that each of the `words` listed under `key` is one of those `known`.
    pub fn require_words(&mut self, key: &str, words: &[String], known: &[&str]) {
        if let Some(other) = words.iter().find(|word| !known.contains(&word.as_str())) {
            self.reject(
                key,
                format!("`{key}` has \"{other}\", which this family does not have"),
                "what such a layer costs cannot be said",
                &format!("known: {}", known.join(", ")),
            );
        }
    }

    /// Warns that `key` is there but not, or not fully, accounted for, and what that does to the result.
    pub fn not_applied(&mut self, key: &str, message: impl Into<String>, effect: &str, help: &str) {
        let mut warning = Diagnostic::warning("T0117", message).effect(effect).help(help);
        if let Some(place) = self.place(key) {
            warning = warning.at(place);
        }
        self.known(&[key]);
        self.note(warning);
    }
}

/// The divisors of `number` in order; those below 2^20 and their partners, which is all of them for a size.
fn divisors(number: u64) -> Vec<u64> {
    let small: Vec<u64> =
        (1..1u64 << 20).take_while(|d| d * d <= number).filter(|d| number.is_multiple_of(*d)).collect();
    let large: Vec<u64> = small.iter().rev().map(|d| number / d).collect();
    let mut all = [small, large].concat();
    all.dedup();
    all
}

/// At most twelve items, the middle left out.
fn shorten(items: &[String]) -> String {
    if items.len() <= 12 {
        return items.join(", ");
    }
    format!("{}, ..., {}", items[..8].join(", "), items[items.len() - 3..].join(", "))
}
