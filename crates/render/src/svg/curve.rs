//! Time against a number of devices; both axes are logarithmic.

use plan::report::Curve;
use units::Seconds;

use super::canvas::Canvas;

const HEIGHT: f64 = 300.0;
const LEFT: f64 = 86.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 24.0;
const BOTTOM: f64 = 42.0;

/// The drawing: a line for each utilization, and a mark at the number that is asked for.
pub(super) fn draw(curve: &Curve, width: f64) -> Canvas {
    let points = || curve.lines.iter().flat_map(|(_, points)| points.iter());
    let counts: Vec<u64> =
        curve.lines.first().map_or_else(Vec::new, |(_, points)| points.iter().map(|p| p.0).collect());
    let (first, last) = (counts.first().copied().unwrap_or(1).max(1), counts.last().copied().unwrap_or(1).max(1));
    let times = points().map(|(_, time)| time.get()).filter(|time| *time > 0.0);
    let (low, high) = times.fold((f64::INFINITY, 0.0f64), |(low, high), time| (low.min(time), high.max(time)));
    let (low, high) = if low.is_finite() { (low / 1.3, high * 1.3) } else { (1.0, 10.0) };
    let wide = (last as f64 / first as f64).ln().max(f64::MIN_POSITIVE);
    let x = |count: u64| LEFT + (count.max(1) as f64 / first as f64).ln() / wide * (width - LEFT - RIGHT);
    let y = |time: f64| TOP + (high / time).ln() / (high / low).ln() * (HEIGHT - TOP - BOTTOM);
    let at_mark =
        |points: &[(u64, Seconds)]| points.iter().find(|(count, _)| *count == curve.at).map(|(_, time)| *time);
    let said: Vec<String> = curve
        .lines
        .iter()
        .filter_map(|(name, points)| Some(format!("{name}, on {} devices: {}", curve.at, at_mark(points)?)))
        .collect();
    let mut canvas = Canvas::new(width, HEIGHT, "time", &curve.title, &format!("{}.", said.join("; ")));
    // Every second count where all have no room.
    let every = (counts.len() * 52).div_ceil((width - LEFT - RIGHT).max(1.0) as usize).max(1);
    for (index, count) in counts.iter().enumerate() {
        canvas.line("grid", (x(*count), TOP), (x(*count), HEIGHT - BOTTOM));
        if index % every == 0 || *count == curve.at {
            let class = if *count == curve.at { "middle bold" } else { "middle" };
            canvas.text(class, (x(*count), HEIGHT - BOTTOM + 16.0), &units::group_digits(u128::from(*count)));
        }
    }
    canvas.text("end quiet", (width - RIGHT, HEIGHT - 6.0), "devices");
    for step in 0..5 {
        let time = low * (high / low).powf((f64::from(step) + 0.5) / 5.0);
        canvas.line("grid", (LEFT, y(time)), (width - RIGHT, y(time)));
        canvas.text("end", (LEFT - 8.0, y(time) + 4.0), &Seconds::new(time).unwrap_or_default().to_string());
    }
    canvas.line("mark", (x(curve.at), TOP), (x(curve.at), HEIGHT - BOTTOM));
    for (number, (name, points)) in curve.lines.iter().enumerate() {
        canvas
            .polyline(&format!("curve s{}", number % 3), points.iter().map(|(count, time)| (x(*count), y(time.get()))));
        for (count, time) in points {
            let title = format!("{} devices, {name}: {time}", units::group_digits(u128::from(*count)));
            canvas.dot("b1", (x(*count), y(time.get())), 3.0, &title);
        }
        let at = LEFT + number as f64 * 150.0;
        canvas.polyline(&format!("curve s{}", number % 3), [(at, TOP - 12.0), (at + 28.0, TOP - 12.0)]);
        canvas.text("", (at + 34.0, TOP - 8.0), name);
    }
    canvas
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_the_devices_take_as_much_longer_as_the_axis_says() {
        let time = |seconds: f64| Seconds::new(seconds).unwrap();
        let lines = vec![("at 40 %".to_owned(), vec![(1, time(400.0)), (2, time(200.0)), (4, time(100.0))])];
        let drawn = draw(&Curve { title: "t".to_owned(), lines, at: 2 }, 600.0).finish();
        let heights: Vec<f64> = drawn
            .lines()
            .filter(|line| line.starts_with("<circle"))
            .map(|line| line.split("cy=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap())
            .collect();
        assert_eq!(heights.len(), 3);
        assert!(((heights[1] - heights[0]) - (heights[2] - heights[1])).abs() < 0.02, "{heights:?}");
        assert!(drawn.contains("2 devices, at 40 %: 200 s") || drawn.contains("2 devices, at 40 %: 3."), "{drawn}");
    }
}
