//! Memory of one device in one bar, by bucket, against what the device has.

use plan::report::Stack;

use super::canvas::{Canvas, LETTER};
use super::style::{bucket_class, prepare};
use crate::format::{Units, memory};

const BAR: f64 = 44.0;
const TOP: f64 = 30.0;
const LINE: f64 = 18.0;

/// The drawing: the bar, the capacity as a line across it, and a key of all buckets with their bytes.
pub(super) fn draw(stack: &Stack, width: f64, units: Units) -> Canvas {
    let total = stack.total();
    let right = stack.capacity.unwrap_or(total).max(total).get().max(1) as f64 * 1.02;
    let x = |bytes: f64| bytes / right * width;
    let across = ((width / 220.0) as usize).clamp(1, 4);
    let shown = stack.segments.iter().filter(|(_, bytes)| !bytes.is_zero()).count();
    let height = TOP + BAR + 16.0 + LINE * shown.div_ceil(across) as f64 + 4.0;
    let words = memory(total, units);
    let title = match stack.capacity {
        Some(capacity) => format!("Memory of one device at the peak: {words} of {}", memory(capacity, units)),
        None => format!("Memory of one device at the peak: {words}"),
    };
    let each: Vec<String> =
        stack.segments.iter().map(|(name, bytes)| format!("{name} {}", memory(*bytes, units))).collect();
    let mut canvas = Canvas::new(width, height, "ledger", &title, &format!("{}.", each.join(", ")));
    if let Some(capacity) = stack.capacity {
        canvas.rect("free", false, (0.0, TOP), (x(capacity.get() as f64), BAR), "memory of the device", "");
    }
    let mut left = 0u64;
    let mut key = 0;
    for (place, (name, bytes)) in stack.segments.iter().enumerate() {
        if bytes.is_zero() {
            continue;
        }
        let class = bucket_class(name, place);
        let hatched = prepare(&mut canvas, class);
        let said = format!("{name}: {}, {}", memory(*bytes, units), units::percent(stack.share(*bytes)));
        let size = (x(bytes.get() as f64), BAR);
        canvas.rect(&format!("b{class}"), hatched, (x(left as f64), TOP), size, &said, name);
        left = left.saturating_add(bytes.get());
        let column = width / across as f64;
        let at = ((key % across) as f64 * column, TOP + BAR + 16.0 + (key / across) as f64 * LINE);
        canvas.rect(&format!("b{class}"), hatched, at, (12.0, 12.0), &said, "");
        let room = ((column - 22.0) / LETTER) as usize;
        let text = format!("{name}  {}", memory(*bytes, units));
        let text = if text.chars().count() > room { memory(*bytes, units) } else { text };
        canvas.text("", (at.0 + 18.0, at.1 + 10.5), &text);
        key += 1;
    }
    if let Some(capacity) = stack.capacity {
        let at = x(capacity.get() as f64);
        canvas.line("limit", (at, TOP - 8.0), (at, TOP + BAR + 6.0));
        canvas.text("end", (at, TOP - 12.0), &format!("{} of the device", memory(capacity, units)));
    }
    let fits = stack.capacity.is_none_or(|capacity| total <= capacity);
    let said = if fits { words } else { format!("{words}: does not fit") };
    // Where the device is full its own line has the right side.
    if stack.capacity.is_none() || width > 420.0 {
        canvas.text("bold", (0.0, TOP - 12.0), &said);
    }
    canvas
}

#[cfg(test)]
mod tests {
    use units::Bytes;

    use super::*;

    #[test]
    fn segments_share_the_bar_as_they_share_the_bytes() {
        let segments = vec![("activations".to_owned(), Bytes(3 << 30)), ("parameters".to_owned(), Bytes(1 << 30))];
        let stack = Stack { segments, capacity: Some(Bytes(8 << 30)) };
        let drawn = draw(&stack, 816.0, Units::Iec).finish();
        // 8 GiB and 2 % more are 816 pixels: a GiB is 100.
        assert!(drawn.contains("x=\"0\" y=\"30\" width=\"300\" height=\"44\" data-name=\"activations\""), "{drawn}");
        assert!(drawn.contains("x=\"300\" y=\"30\" width=\"100\" height=\"44\" data-name=\"parameters\""), "{drawn}");
        assert!(drawn.contains("x1=\"800\""), "{drawn}");
        assert!(drawn.contains("activations: 3.00 GiB, 75.0 %"), "{drawn}");
    }

    #[test]
    fn nothing_is_no_trouble() {
        assert!(draw(&Stack::default(), 300.0, Units::Iec).finish().ends_with("</svg>\n"));
    }
}
