//! Shapes and words to the text of an SVG.

use std::fmt::Write as _;

/// Columns of pixels of a character of the small size, on average: what decides whether words have room.
pub(super) const LETTER: f64 = 6.6;

/// A drawing of a size, with what a screen reader says of it.
#[derive(Clone, Debug)]
pub(super) struct Canvas {
    body: String,
    id: String,
}

impl Canvas {
    /// An empty drawing; `id` makes the names of its title, description and patterns unique in a page.
    pub fn new(width: f64, height: f64, id: &str, title: &str, description: &str) -> Self {
        let mut body = String::new();
        let (width, height) = (number(width), number(height));
        let _ = write!(
            body,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"napkin\" viewBox=\"0 0 {width} {height}\" \
             width=\"{width}\" height=\"{height}\" role=\"img\" aria-labelledby=\"{id}-title {id}-desc\">\n\
             <title id=\"{id}-title\">{}</title>\n<desc id=\"{id}-desc\">{}</desc>\n",
            escape(title),
            escape(description)
        );
        Self { body, id: id.to_owned() }
    }

    /// Defines the hatching of a class: its colour with lines across it. Shapes that are filled with it are told apart by who
    /// sees no colours.
    pub fn hatch(&mut self, class: &str, lines: &str) {
        let id = &self.id;
        let _ = writeln!(
            self.body,
            "<defs><pattern id=\"{id}-{class}\" width=\"8\" height=\"8\" patternUnits=\"userSpaceOnUse\">\
             <rect class=\"{class}\" width=\"8\" height=\"8\"/><path class=\"hatch\" d=\"{lines}\"/></pattern></defs>"
        );
    }

    fn fill(&self, class: &str, hatched: bool) -> String {
        if hatched { format!("fill=\"url(#{}-{class})\"", self.id) } else { format!("class=\"{class}\"") }
    }

    /// A closed shape through points; `title` is shown where a pointer rests on it.
    pub fn area(&mut self, class: &str, hatched: bool, points: impl IntoIterator<Item = (f64, f64)>, title: &str) {
        let fill = self.fill(class, hatched);
        let path = path(points);
        let _ = writeln!(self.body, "<path {fill} d=\"{path}Z\"><title>{}</title></path>", escape(title));
    }

    /// A line through points.
    pub fn polyline(&mut self, class: &str, points: impl IntoIterator<Item = (f64, f64)>) {
        let path = path(points);
        let _ = writeln!(self.body, "<path class=\"{class}\" d=\"{path}\"/>");
    }

    /// A rectangle from its upper left corner. `name` is what a program finds it by (`data-name`), where it is not empty.
    pub fn rect(&mut self, class: &str, hatched: bool, at: (f64, f64), size: (f64, f64), title: &str, name: &str) {
        let fill = self.fill(class, hatched);
        let (x, y, w, h) = (number(at.0), number(at.1), number(size.0.max(0.0)), number(size.1.max(0.0)));
        let name = if name.is_empty() { String::new() } else { format!(" data-name=\"{}\"", escape(name)) };
        let _ = writeln!(
            self.body,
            "<rect {fill} x=\"{x}\" y=\"{y}\" width=\"{w}\" height=\"{h}\"{name}><title>{}</title></rect>",
            escape(title)
        );
    }

    /// A straight line.
    pub fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        let _ = writeln!(
            self.body,
            "<line class=\"{class}\" x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\"/>",
            number(from.0),
            number(from.1),
            number(to.0),
            number(to.1)
        );
    }

    /// A point, as a circle.
    pub fn dot(&mut self, class: &str, at: (f64, f64), radius: f64, title: &str) {
        let (x, y, r) = (number(at.0), number(at.1), number(radius));
        let _ = writeln!(
            self.body,
            "<circle class=\"{class}\" cx=\"{x}\" cy=\"{y}\" r=\"{r}\"><title>{}</title></circle>",
            escape(title)
        );
    }

    /// Words; the class decides on which side of `at` they stand.
    pub fn text(&mut self, class: &str, at: (f64, f64), words: &str) {
        let (x, y) = (number(at.0), number(at.1));
        let _ = writeln!(self.body, "<text class=\"{class}\" x=\"{x}\" y=\"{y}\">{}</text>", escape(words));
    }

    /// The drawing, to be put into a page.
    pub fn finish(mut self) -> String {
        self.body.push_str("</svg>\n");
        self.body
    }
}

/// A line through points, in tenths of a pixel: a step along one axis says only how far it goes, and points on its way are left
/// out. The line is the same, and that of a step has a quarter of the text.
fn path(points: impl IntoIterator<Item = (f64, f64)>) -> String {
    let mut path = String::new();
    let mut before: Option<(i64, i64)> = None;
    // A step that may go on: its axis, and how far it goes.
    let mut step: Option<(char, i64)> = None;
    for (x, y) in points {
        let to = (tenths(x), tenths(y));
        let next = match before.replace(to) {
            Some(at) if at == to => continue,
            Some(at) if at.1 == to.1 => ('h', to.0 - at.0),
            Some(at) if at.0 == to.0 => ('v', to.1 - at.1),
            at => {
                end(&mut path, step.take());
                path.push(if at.is_none() { 'M' } else { 'L' });
                decimal(&mut path, to.0 * 10);
                path.push(' ');
                decimal(&mut path, to.1 * 10);
                continue;
            }
        };
        step = match step {
            Some((axis, far)) if axis == next.0 && far.signum() == next.1.signum() => Some((axis, far + next.1)),
            other => {
                end(&mut path, other);
                Some(next)
            }
        };
    }
    end(&mut path, step);
    path
}

fn end(path: &mut String, step: Option<(char, i64)>) {
    let Some((axis, far)) = step else { return };
    path.push(axis);
    if far.abs() >= 10 {
        return decimal(path, far * 10);
    }
    path.push_str(if far < 0 { "-." } else { "." });
    path.push(char::from(b'0' + far.unsigned_abs() as u8));
}

fn tenths(value: f64) -> i64 {
    (value * 10.0).round() as i64
}

fn hundredths(value: f64) -> i64 {
    (value * 100.0).round() as i64
}

/// Hundredths as a number with two decimals, and none where it is whole: written by hand, since half of a drawing is numbers.
fn decimal(out: &mut String, hundredths: i64) {
    if hundredths < 0 {
        out.push('-');
    }
    let all = hundredths.unsigned_abs();
    let (whole, rest) = (all / 100, all % 100);
    let mut digits = [0; 20];
    let mut first = digits.len();
    let mut left = whole;
    while left > 0 || first == digits.len() {
        first -= 1;
        digits[first] = b'0' + (left % 10) as u8;
        left /= 10;
    }
    out.extend(digits[first..].iter().map(|digit| char::from(*digit)));
    if rest > 0 {
        out.push('.');
        out.push(char::from(b'0' + (rest / 10) as u8));
        if rest % 10 > 0 {
            out.push(char::from(b'0' + (rest % 10) as u8));
        }
    }
}

/// A coordinate: two decimals, and none where it is whole.
fn number(value: f64) -> String {
    let mut text = String::new();
    decimal(&mut text, hundredths(value));
    text
}

/// Text as text of XML, and of attributes between double quotes.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            // XML has no way to write these.
            c if c.is_control() && !matches!(c, '\n' | '\t') => {}
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_formatter() {
        for value in [0.0, -0.5, 3.0, 10.1, 99.994, 99.996, 1234.56, -0.001, -12.34, 1e9, 0.07] {
            let text = format!("{value:.2}");
            let text = text.trim_end_matches('0').trim_end_matches('.');
            assert_eq!(number(value), if text == "-0" { "0" } else { text }, "{value}");
        }
    }

    #[test]
    fn steps_are_short_and_no_corner_is_lost() {
        let line = |points: &[(f64, f64)]| path(points.iter().copied());
        assert_eq!(line(&[(0.0, 0.0), (1.0, 0.0), (2.0, 0.0), (2.0, 5.0), (2.0, 5.0), (3.0, 4.0)]), "M0 0h2v5L3 4");
        // There and back along the same axis: the tip stays.
        assert_eq!(line(&[(0.0, 0.0), (0.0, 9.0), (0.0, 3.0), (1.0, 3.0)]), "M0 0v9v-6h1");
        assert_eq!(line(&[(1.0, 2.0), (1.26, 2.0), (1.26, 1.1), (12.0, 1.1)]), "M1 2h.3v-.9h10.7");
        assert_eq!(line(&[(1.0, 2.0)]), "M1 2");
        assert_eq!(line(&[]), "");
    }

    #[test]
    fn shapes_with_titles_and_no_markup_of_others() {
        let mut canvas = Canvas::new(10.0, 2.5, "a", "a <b>", "\"c\" & d\u{1}");
        canvas.area("x", false, [(0.0, 0.0), (1.0, 2.0 / 3.0)], "e");
        canvas.line("l", (0.0, 1.0), (2.0, 1.0));
        canvas.text("t", (1.0, 1.0), "</svg>");
        canvas.rect("r", true, (0.0, 0.0), (1.0, -2.0), "f", "g\"");
        assert_eq!(
            canvas.finish(),
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"napkin\" viewBox=\"0 0 10 2.5\" \
             width=\"10\" height=\"2.5\" role=\"img\" aria-labelledby=\"a-title a-desc\">\n\
             <title id=\"a-title\">a &lt;b&gt;</title>\n<desc id=\"a-desc\">&quot;c&quot; &amp; d</desc>\n\
             <path class=\"x\" d=\"M0 0L1 0.7Z\"><title>e</title></path>\n\
             <line class=\"l\" x1=\"0\" y1=\"1\" x2=\"2\" y2=\"1\"/>\n\
             <text class=\"t\" x=\"1\" y=\"1\">&lt;/svg&gt;</text>\n\
             <rect fill=\"url(#a-r)\" x=\"0\" y=\"0\" width=\"1\" height=\"0\" data-name=\"g&quot;\"><title>f</title></rect>\n\
             </svg>\n"
        );
    }
}
