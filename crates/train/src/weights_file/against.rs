//! Stored weights against the parameters that a config makes.

use super::entry::{Format, Header};
use super::group::Group;
use super::packed::Weight;
use crate::checkpoint::{Names, is_derived};
use nn::step::ParamInfo;
use nn::{Model, Param};
use std::collections::BTreeMap;

/// A parameter or tensor that has no counterpart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lone {
    /// Its name.
    pub name: String,
    /// Its elements, if they can be counted.
    pub elements: u64,
    /// Bytes stored; 0 for what is missing.
    pub bytes: u64,
}

/// What differs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Against {
    /// Parameters the config makes, of all parts that are compared.
    pub predicted: u64,
    /// Parameters stored, each tied tensor once, without what follows from the config.
    pub stored: u64,
    /// Whether names could be compared; else only totals are, and of the language model alone.
    pub by_name: bool,
    /// Parameters of the config that are not stored.
    pub missing: Vec<Lone>,
    /// Stored tensors that the config has no parameter for.
    pub extra: Vec<Lone>,
    /// Name, stored shape and shape of the config.
    pub shapes: Vec<(String, String, String)>,
    /// Where other names have as many elements: the prefix, and the elements.
    pub renamed: Vec<(String, u64)>,
    /// Tied tensors that are stored twice: name, other name, bytes of the second.
    pub twice: Vec<(String, String, u64)>,
    /// Stored tensors that follow from the config or are no parameters.
    pub derived: Vec<Lone>,
    /// Parameters the config makes, by part.
    pub groups: BTreeMap<Group, u64>,
}

impl Against {
    /// Whether everything is there, once, and nothing else.
    pub fn agrees(&self) -> bool {
        self.missing.is_empty() && self.extra.is_empty() && self.shapes.is_empty() && self.predicted == self.stored
    }

    /// Compares with a language model and the `parts` of its wrapper, such as an image encoder.
    pub fn of(files: &[Header], weights: &[Weight], model: &Model, parts: &[ParamInfo]) -> Self {
        let mut predicted: Vec<Predicted<'_>> = model.params().iter().map(Predicted::of).collect();
        let by_name = files.iter().all(|file| file.format != Format::Gguf);
        if by_name {
            predicted.extend(parts.iter().map(Predicted::part));
        }
        let mut out = Self { by_name, ..Self::default() };
        for param in &predicted {
            out.predicted = out.predicted.saturating_add(param.elements);
            let group = out.groups.entry(Group::of(param.name)).or_default();
            *group = group.saturating_add(param.elements);
        }
        if by_name {
            out.names(weights, &Names::with(model, parts), &predicted);
        } else {
            out.totals(weights, model);
        }
        out
    }

    /// llama.cpp has names of its own: totals are compared.
    fn totals(&mut self, weights: &[Weight], model: &Model) {
        let tied = model.params().iter().find(|param| !param.tied.is_empty());
        for weight in weights {
            let (elements, bytes) = (weight.elements.unwrap_or(0), weight.all_bytes());
            // Factors of the rotation, and the balancing biases of routers, which are no parameters.
            if weight.name.starts_with("rope_f") || weight.name.contains(".exp_probs_b") {
                self.derived.push(Lone { name: weight.name.clone(), elements, bytes });
            } else if let (Some(_), "output.weight") = (tied, weight.name.as_str()) {
                self.twice.push(("token_embd.weight".to_owned(), weight.name.clone(), bytes));
            } else {
                self.stored = self.stored.saturating_add(elements);
            }
        }
    }

    fn names(&mut self, weights: &[Weight], names: &Names<'_>, predicted: &[Predicted<'_>]) {
        let mut stored: BTreeMap<String, &Weight> = BTreeMap::new();
        let mut extra: Vec<&Weight> = Vec::new();
        for weight in weights {
            let name = names.canonical(&weight.name);
            let shape = weight.shape.as_deref().unwrap_or_default();
            let follows = is_derived(&weight.name, shape) || is_buffer(&weight.name);
            if !names.knows(&name) && weight.packing.is_none() && follows {
                self.derived.push(lone(weight));
            } else if names.knows(&name) {
                if let Some(other) = stored.insert(name, weight) {
                    self.twice.push((other.name.clone(), weight.name.clone(), weight.all_bytes()));
                }
            } else {
                extra.push(weight);
            }
        }
        let mut missing: Vec<Lone> = Vec::new();
        for param in predicted {
            let own = stored.remove(param.name);
            let tied: Vec<&Weight> = param.tied.iter().filter_map(|alias| stored.remove(alias)).collect();
            let mut present = own.into_iter().chain(tied);
            let Some(first) = present.next() else {
                missing.push(Lone { name: param.name.to_owned(), elements: param.elements, bytes: 0 });
                continue;
            };
            for second in present {
                self.twice.push((first.name.clone(), second.name.clone(), second.all_bytes()));
            }
            self.stored = self.stored.saturating_add(first.elements.unwrap_or(param.elements));
            let (here, there) = (param.shape, first.shape.as_deref());
            // Packed weights may have lost their shape and not their number.
            let equal = match (there, first.elements) {
                (Some(shape), _) => shape == here,
                (None, Some(elements)) => elements == param.elements,
                (None, None) => true,
            };
            if !equal {
                let said =
                    there.map_or_else(|| format!("{} elements", first.elements.unwrap_or(0)), |s| format!("{s:?}"));
                self.shapes.push((first.name.clone(), said, format!("{here:?}")));
            }
        }
        // What is left of known names are buffers: they are no parameters.
        for weight in &extra {
            self.stored = self.stored.saturating_add(weight.elements.unwrap_or(0));
        }
        self.regroup(&names.body, &missing, &extra.into_iter().map(lone).collect::<Vec<_>>());
    }

    /// Takes out of what is missing and extra the blocks where both have as many elements: other programs name and cut
    /// the same weights in another way, such as one matrix for each expert where the model has one for all.
    fn regroup(&mut self, body: &str, missing: &[Lone], extra: &[Lone]) {
        let block = |name: &str| block(name.strip_prefix(body).unwrap_or(name));
        let mut sums: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        for lone in missing {
            let sum = sums.entry(block(&lone.name)).or_default();
            sum.0 = sum.0.saturating_add(lone.elements);
        }
        for lone in extra {
            let sum = sums.entry(block(&lone.name)).or_default();
            sum.1 = sum.1.saturating_add(lone.elements);
        }
        let equal = |name: &str| sums.get(&block(name)).is_some_and(|(one, other)| one == other);
        self.missing = missing.iter().filter(|lone| !equal(&lone.name)).cloned().collect();
        self.extra = extra.iter().filter(|lone| !equal(&lone.name)).cloned().collect();
        self.renamed =
            sums.iter().filter(|(_, (one, other))| one == other).map(|(key, sum)| (key.clone(), sum.0)).collect();
    }
}

/// A parameter that the config makes.
struct Predicted<'a> {
    name: &'a str,
    shape: &'a [u64],
    elements: u64,
    tied: &'a [String],
}

impl<'a> Predicted<'a> {
    fn of(param: &'a Param) -> Self {
        let (shape, elements) = (param.tensor.shape(), param.tensor.elements());
        Self { name: &param.name, shape, elements, tied: &param.tied }
    }

    fn part(param: &'a ParamInfo) -> Self {
        Self { name: &param.name, shape: &param.shape, elements: param.elements, tied: &param.tied }
    }
}

/// Gives modules of a list that are built under one name the numbers they have in files: `merger_list.norm` twice is
/// `merger_list.0.norm` and `merger_list.1.norm`.
pub(crate) fn number_lists(parts: &mut [ParamInfo]) {
    let mut found: BTreeMap<String, usize> = BTreeMap::new();
    for param in parts {
        let Some((list, rest)) = param.name.split_once("_list.").filter(|(_, rest)| !rest.starts_with(is_digit)) else {
            continue;
        };
        let name = (format!("{list}_list."), format!(".{rest}"));
        let number = found.entry(std::mem::take(&mut param.name)).or_default();
        param.name = format!("{}{number}{}", name.0, name.1);
        *number += 1;
    }
}

fn is_digit(letter: char) -> bool {
    letter.is_ascii_digit()
}

fn lone(weight: &Weight) -> Lone {
    let bytes = weight.all_bytes();
    Lone { name: weight.name.clone(), elements: weight.elements.unwrap_or(0), bytes }
}

/// Whether a tensor is one of the numbers that Gemma 4 stores beside its parameters: scales of blocks, and the statistics
/// of what its image encoder makes.
fn is_buffer(name: &str) -> bool {
    ["layer_scalar", "vision_tower.std_bias", "vision_tower.std_scale"].iter().any(|end| name.ends_with(end))
}

/// The block a tensor is in: its name up to the first number; the whole name outside of blocks. A weight that is a parameter
/// of the module above, as `x_weight`, is that of a module `x`.
fn block(name: &str) -> String {
    let name = name.strip_suffix("_weight").map_or_else(|| name.to_owned(), |stem| format!("{stem}.weight"));
    let mut out = String::new();
    for part in name.split('.') {
        out.push_str(part);
        if !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()) {
            break;
        }
        out.push('.');
    }
    out
}
