//! One quantity over two degrees of a layout: darker is more, hatched does not fit.

use plan::report::{Heat, HeatCell};

use super::canvas::Canvas;

const LEFT: f64 = 64.0;
const TOP: f64 = 42.0;

/// The drawing.
pub(super) fn draw(heat: &Heat, width: f64) -> Canvas {
    let (across, down) = (heat.columns.len().max(1), heat.rows.len().max(1));
    let cell = (((width - LEFT) / across as f64).min(120.0), 34.0);
    let height = TOP + cell.1 * down as f64 + 30.0;
    let at = |row: usize, column: usize| heat.cells.get(row * heat.columns.len() + column);
    let shares: Vec<f64> = heat
        .cells
        .iter()
        .filter_map(|cell| if let HeatCell::Best { share, .. } = cell { Some(*share) } else { None })
        .collect();
    let most = shares.iter().copied().fold(0.0, f64::max);
    let best = heat.cells.iter().find_map(|cell| match cell {
        HeatCell::Best { share, layout } if *share >= most => Some(format!("{layout}, {}", units::percent(*share))),
        _ => None,
    });
    let description = format!(
        "{} by {} from left to right and {} from top to bottom; the highest is {}. {} of {} cells fit.",
        heat.title,
        heat.x,
        heat.y,
        best.unwrap_or_else(|| "nowhere".to_owned()),
        shares.len(),
        heat.cells.len()
    );
    let title = format!("{} by {} and {}", heat.title, heat.x, heat.y);
    let mut canvas = Canvas::new(width, height, "layouts", &title, &description);
    canvas.hatch("large", "M-2 2L2 -2M0 8L8 0M6 10L10 6");
    canvas.text("quiet", (LEFT, 14.0), &format!("{}; columns {}, rows {}", heat.title, heat.x, heat.y));
    for (column, value) in heat.columns.iter().enumerate() {
        let middle = LEFT + (column as f64 + 0.5) * cell.0;
        canvas.text("middle", (middle, TOP - 8.0), &format!("{} {value}", heat.x));
    }
    for (row, value) in heat.rows.iter().enumerate() {
        let y = TOP + row as f64 * cell.1;
        canvas.text("end", (LEFT - 8.0, y + 22.0), &format!("{} {value}", heat.y));
        for (column, across) in heat.columns.iter().enumerate() {
            let corner = (LEFT + column as f64 * cell.0, y);
            let size = (cell.0 - 2.0, cell.1 - 2.0);
            let middle = (corner.0 + size.0 / 2.0, y + 21.0);
            let name = format!("{}={across} {}={value}", heat.x, heat.y);
            match at(row, column) {
                None | Some(HeatCell::None) => {
                    canvas.rect("none", false, corner, size, &format!("{name}: no legal layout"), &name);
                }
                Some(HeatCell::TooLarge) => {
                    canvas.rect("large", true, corner, size, &format!("{name}: does not fit"), &name);
                }
                Some(HeatCell::Best { share, layout }) => {
                    let step = if most > 0.0 { (share / most * 5.0).round() as usize } else { 0 }.min(5);
                    let said = format!("{layout}: {}", units::percent(*share));
                    canvas.rect(&format!("h{step}"), false, corner, size, &said, &name);
                    let ink = if step >= 3 { "middle on-dark" } else { "middle on-light" };
                    if cell.0 >= 46.0 {
                        canvas.text(ink, middle, &units::percent(*share));
                    }
                }
            }
        }
    }
    let y = height - 10.0;
    canvas.rect("large", true, (LEFT, y - 11.0), (14.0, 14.0), "", "");
    canvas.text("quiet", (LEFT + 20.0, y), "does not fit");
    canvas.rect("none", false, (LEFT + 110.0, y - 11.0), (14.0, 14.0), "", "");
    canvas.text("quiet", (LEFT + 130.0, y), "no legal layout");
    canvas
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_is_darkest_and_what_does_not_fit_is_hatched() {
        let best = |share| HeatCell::Best { share, layout: "tp 1 pp 1".to_owned() };
        let heat = Heat {
            title: "best MFU".to_owned(),
            x: "tp".to_owned(),
            y: "pp".to_owned(),
            columns: vec![1, 2],
            rows: vec![1, 2],
            cells: vec![best(0.5), best(0.1), HeatCell::TooLarge, HeatCell::None],
        };
        let drawn = draw(&heat, 400.0).finish();
        let line = |name: &str| drawn.lines().find(|line| line.contains(&format!("data-name=\"{name}\""))).unwrap();
        assert!(line("tp=1 pp=1").contains("class=\"h5\"") && line("tp=2 pp=1").contains("class=\"h1\""), "{drawn}");
        assert!(line("tp=1 pp=2").contains("url(#layouts-large)") && line("tp=2 pp=2").contains("no legal layout"));
    }
}
