//! Which blocks stand on which stage, as `parallelism.module_fqns_per_model_part` says it: lists of module names.
//!
//! Source: `generate_llm_fqn_per_model_part` of torchtitan 0.2.2, which also says what it does without that option.

use crate::handover::settings::Setting;

/// The modules of each stage. Stages of several on a rank go round the ranks.
pub fn write(blocks: &[u64]) -> Setting {
    let last = blocks.len().saturating_sub(1);
    let mut next = 0;
    let stages = blocks.iter().enumerate().map(|(stage, count)| {
        let mut modules: Vec<Setting> = Vec::new();
        if stage == 0 {
            modules.push("tok_embeddings".into());
        }
        modules.extend((next..next + count).map(|block| Setting::from(format!("layers.{block}"))));
        next += count;
        if stage == last {
            modules.extend(["norm".into(), "output".into()]);
        }
        Setting::List(modules)
    });
    Setting::List(stages.collect())
}

/// Blocks of each stage, and whether embedding, norm and head stand where they usually do; nothing for what is no such list.
pub fn read(parts: &Setting) -> Option<(Vec<u64>, bool)> {
    let Setting::List(parts) = parts else { return None };
    let mut blocks = Vec::with_capacity(parts.len());
    let (mut next, mut usual) = (0, true);
    for (stage, part) in parts.iter().enumerate() {
        let Setting::List(modules) = part else { return None };
        let mut count = 0;
        for module in modules {
            let Setting::Text(name) = module else { return None };
            match (name.as_str(), name.strip_prefix("layers.").and_then(|n| n.parse::<u64>().ok())) {
                ("tok_embeddings", _) => usual &= stage == 0,
                ("norm" | "output", _) => usual &= stage + 1 == parts.len(),
                (_, Some(block)) if block == next => {
                    next += 1;
                    count += 1;
                }
                _ => return None,
            }
        }
        blocks.push(count);
    }
    (!blocks.is_empty()).then_some((blocks, usual))
}

/// What torchtitan does by itself: embedding and head count as so many blocks, and the first stages get the rest.
pub fn generated(stages: u64, layers: u64, [input, output]: [u64; 2]) -> Option<Vec<u64>> {
    let slots = layers.checked_add(input)?.checked_add(output)?;
    let (each, more) = (slots.checked_div(stages)?, slots % stages);
    if stages == 1 {
        return Some(vec![layers]);
    }
    if each == 0 || input > each || output > each {
        return None;
    }
    let blocks = (0..stages).map(|stage| {
        let slots = each + u64::from(stage < more);
        match stage {
            0 => slots - input,
            stage if stage + 1 == stages => slots - output,
            _ => slots,
        }
    });
    Some(blocks.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_torchtitan_does() {
        // Worked out by the engine's own function.
        assert_eq!(generated(4, 32, [1, 1]), Some(vec![8, 9, 8, 7]));
        assert_eq!(generated(2, 3, [2, 2]), Some(vec![2, 1]));
        assert_eq!(generated(8, 126, [1, 1]), Some(vec![15, 16, 16, 16, 16, 16, 16, 15]));
        assert_eq!(generated(5, 2, [1, 1]), None);
        assert_eq!(generated(0, 2, [1, 1]), None);
        for blocks in [vec![3], vec![0, 2, 1], vec![4, 4]] {
            assert_eq!(read(&write(&blocks)), Some((blocks, true)));
        }
    }
}
