//! Shares of a tree: a bar for each branch, indented by its level.

use plan::report::Tree;

use super::canvas::{Canvas, LETTER};
use crate::format::{Units, piece};

const LINE: f64 = 20.0;
const INDENT: f64 = 14.0;

/// The drawing.
pub(super) fn draw(tree: &Tree, width: f64, units: Units) -> Canvas {
    let sizes: Vec<String> = tree.branches.iter().map(|branch| piece(&branch.size, units).joined()).collect();
    let size_width = sizes.iter().map(String::len).max().unwrap_or(0) as f64 * LETTER + 8.0;
    let name_width = tree
        .branches
        .iter()
        .map(|branch| f64::from(branch.level) * INDENT + branch.name.chars().count() as f64 * LETTER)
        .fold(0.0, f64::max)
        .min(width * 0.45)
        + 10.0;
    let (left, right) = (name_width + size_width, width - 58.0);
    let height = LINE * tree.branches.len() as f64 + 8.0;
    let said = tree.branches.iter().zip(&sizes).filter(|(branch, _)| branch.level <= 1);
    let said: Vec<String> =
        said.map(|(branch, size)| format!("{} {size}, {}", branch.name, units::percent(branch.share))).collect();
    let mut canvas = Canvas::new(width, height, "flop-tree", &tree.title, &format!("{}.", said.join("; ")));
    for (row, (branch, size)) in tree.branches.iter().zip(&sizes).enumerate() {
        let y = row as f64 * LINE + 4.0;
        let base = y + 13.0;
        let title = format!("{}: {size}, {}", branch.name, units::percent(branch.share));
        canvas.text("", (f64::from(branch.level) * INDENT, base), &branch.name);
        canvas.text("end", (left - 8.0, base), size);
        canvas.rect("track", false, (left, y + 2.0), (right - left, LINE - 6.0), "", "");
        let class = ["b1", "b2", "b3", "b6", "b5"][usize::from(branch.level).min(4)];
        canvas.rect(class, false, (left, y + 2.0), ((right - left) * branch.share, LINE - 6.0), &title, &branch.name);
        canvas.text("", (right + 6.0, base), &units::percent(branch.share));
    }
    canvas
}

#[cfg(test)]
mod tests {
    use plan::report::{Branch, Cell};
    use units::Flops;

    use super::*;

    #[test]
    fn a_branch_has_its_share_of_the_room() {
        let branch = |level, name: &str, share| Branch {
            level,
            name: name.to_owned(),
            size: Cell::Flops(Flops((share * 1e12) as u128)),
            share,
        };
        let branches = vec![branch(0, "model", 1.0), branch(1, "mlp", 0.25)];
        let tree = Tree { title: "t".to_owned(), branches };
        let drawn = draw(&tree, 500.0, Units::Iec).finish();
        let wide = |name: &str| -> f64 {
            let line = drawn.lines().find(|line| line.contains(&format!("data-name=\"{name}\""))).unwrap();
            line.split("width=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap()
        };
        assert!((wide("mlp") / wide("model") - 0.25).abs() < 0.01, "{drawn}");
    }
}
