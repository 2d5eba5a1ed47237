//! Which blocks stand on which stage, as `--pipeline-model-parallel-layout` says it.
//!
//! Source: `PipelineParallelLayerLayout` of megatron-core 0.16.1: stages are separated by `|` in the order of the model, `E`
//! is the embedding, `t` a block, `L` the loss; `x*n` repeats a letter and `(...)*n` a run.

use std::fmt::Write as _;

/// Longest layout that is unrolled.
const MOST: usize = 1 << 16;

/// The blocks of each stage as a layout.
pub fn write(blocks: &[u64]) -> String {
    let last = blocks.len().saturating_sub(1);
    let mut out = String::new();
    for (stage, count) in blocks.iter().enumerate() {
        if stage > 0 {
            out.push('|');
        }
        if stage == 0 {
            out.push('E');
        }
        match count {
            0 => {}
            1 => out.push('t'),
            n => drop(write!(out, "t*{n}")),
        }
        if stage == last {
            out.push('L');
        }
    }
    out
}

/// Blocks of each stage, and those of them that predict further tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stages {
    /// Blocks of each stage.
    pub blocks: Vec<u64>,
    /// Whether embedding and loss stand on the first and the last stage.
    pub usual: bool,
}

/// Reads a layout; nothing for what is none.
pub fn read(text: &str) -> Option<Stages> {
    let flat: Vec<char> = text.chars().filter(|c| !matches!(c, ',' | ' ')).collect();
    let unrolled = letters(&runs(&flat)?)?;
    let (mut blocks, mut embedding, mut loss) = (vec![0u64], None, None);
    for letter in unrolled {
        let stage = blocks.len() - 1;
        match letter {
            '|' => blocks.push(0),
            't' => blocks[stage] += 1,
            'm' => {}
            'E' => embedding = Some(stage),
            'L' => loss = Some(stage),
            _ => return None,
        }
    }
    let usual = embedding == Some(0) && loss == Some(blocks.len() - 1);
    Some(Stages { blocks, usual })
}

/// Unrolls `(...)*n`, which do not stand in one another.
fn runs(text: &[char]) -> Option<Vec<char>> {
    let (mut out, mut at) = (Vec::new(), 0);
    while at < text.len() {
        if text[at] == '(' {
            let close = at + text[at..].iter().position(|c| *c == ')')?;
            let (times, next) = factor(text, close + 1)?;
            repeat(&mut out, &text[at + 1..close], times)?;
            at = next;
        } else {
            out.push(text[at]);
            at += 1;
        }
    }
    Some(out)
}

/// Unrolls `x*n`.
fn letters(text: &[char]) -> Option<Vec<char>> {
    let (mut out, mut at) = (Vec::new(), 0);
    while at < text.len() {
        let (times, next) = factor(text, at + 1).unwrap_or((1, at + 1));
        repeat(&mut out, &text[at..=at], times)?;
        at = next;
    }
    Some(out)
}

/// The number behind a `*`, and where it ends.
fn factor(text: &[char], star: usize) -> Option<(usize, usize)> {
    if text.get(star) != Some(&'*') {
        return None;
    }
    let digits: String = text[star + 1..].iter().take_while(|c| c.is_ascii_digit()).collect();
    let times = digits.parse().ok()?;
    Some((times, star + 1 + digits.len()))
}

fn repeat(out: &mut Vec<char>, part: &[char], times: usize) -> Option<()> {
    if part.len().checked_mul(times)?.checked_add(out.len())? > MOST {
        return None;
    }
    for _ in 0..times {
        out.extend(part);
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_of_the_engine() {
        // The examples of the engine's own help and docstring.
        let first = read("Ettt|(tt|)*29,m|L").unwrap();
        assert_eq!(first.blocks, [vec![3], vec![2; 29], vec![0, 0]].concat());
        assert!(first.usual);
        assert_eq!(read("E|(t|)*3,m|m||L").unwrap().blocks, [0, 1, 1, 1, 0, 0, 0, 0]);
        assert_eq!(read("Et*3|(t*2|)*2tL").unwrap().blocks, [3, 2, 2, 1]);
        assert!(!read("t|EtL").unwrap().usual);
        for bad in ["x", "(t", "(t)*", "t*99999999", "(t|)*18446744073709551616", "*", "(tt|)*99999", "t**2"] {
            assert!(read(bad).is_none_or(|stages| stages.blocks.len() <= MOST && !stages.usual), "{bad}");
        }
        for blocks in [vec![3, 4, 4, 2], vec![1], vec![0, 2], vec![5, 0, 1]] {
            assert_eq!(read(&write(&blocks)), Some(Stages { blocks, usual: true }));
        }
    }
}
