//! The models torchtitan has, by their sizes: `data/engines/torchtitan_models.csv`.

use crate::handover::shape::Shape;

/// One size of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flavor {
    /// Its model.
    pub model: &'static str,
    /// Its own name.
    pub name: &'static str,
    sizes: [u64; 7],
}

/// All of them.
pub fn all() -> impl Iterator<Item = Flavor> {
    include_str!("../../../../../data/engines/torchtitan_models.csv").lines().skip(1).filter_map(|line| {
        let cells: Vec<&str> = line.split(',').collect();
        let mut sizes = [0; 7];
        for (size, cell) in sizes.iter_mut().zip(cells.get(2..9)?) {
            *size = cell.parse().ok()?;
        }
        Some(Flavor { model: cells[0], name: cells[1], sizes })
    })
}

/// The model of torchtitan that has the modules of a family, and whether it can be cut into stages.
pub fn model(family: &str) -> Option<(&'static str, bool)> {
    match family {
        "llama" => Some(("llama3", true)),
        "qwen3" | "qwen3_moe" => Some(("qwen3", false)),
        "deepseek_v2" | "deepseek_v3" => Some(("deepseek_v3", true)),
        _ => None,
    }
}

/// The flavor with these sizes.
pub fn find(model: &str, shape: &Shape) -> Option<Flavor> {
    let experts = shape.experts.map_or(0, |experts| experts.count);
    let width = shape.ffn.or(shape.experts.map(|experts| experts.width)).unwrap_or(0);
    let sizes = [shape.layers, shape.hidden, shape.heads, shape.kv_heads, width, shape.vocab, experts];
    all().find(|flavor| flavor.model == model && flavor.sizes == sizes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_read() {
        let text = include_str!("../../../../../data/engines/torchtitan_models.csv");
        assert_eq!(all().count() + 1, text.lines().count());
        for (line, flavor) in text.lines().skip(1).zip(all()) {
            let pipeline = line.split(',').nth(9).unwrap() == "yes";
            let of_family = ["llama", "qwen3", "deepseek_v3"].into_iter().filter_map(model);
            assert!(of_family.into_iter().any(|known| known == (flavor.model, pipeline)), "{line}");
        }
    }
}
