//! The bits of a number in one or more formats: sign, exponent, fraction.

use plan::report::Bits;

use super::canvas::Canvas;

const LEFT: f64 = 60.0;
const LINE: f64 = 40.0;

/// The drawing: a strip for each format; a bit that is set is filled.
pub(super) fn draw(bits: &Bits, width: f64) -> Canvas {
    let longest = bits.strips.iter().map(|strip| strip.bits.len()).max().unwrap_or(1).max(1);
    let side = ((width - LEFT) / longest as f64).min(22.0);
    let height = LINE * bits.strips.len() as f64 + 26.0;
    let said = bits.strips.iter().map(|strip| {
        let digits: String = strip.bits.iter().map(|bit| if *bit { '1' } else { '0' }).collect();
        format!("{} {digits}, {}", strip.format, strip.value)
    });
    let description = format!("{}.", said.collect::<Vec<_>>().join("; "));
    let mut canvas = Canvas::new(width, height, "bits", "Bits of the number in each format", &description);
    for (row, strip) in bits.strips.iter().enumerate() {
        let y = row as f64 * LINE + 4.0;
        canvas.text("", (0.0, y + 14.0), &strip.format);
        for (place, bit) in strip.bits.iter().enumerate() {
            let (class, part) = match place {
                at if at < strip.sign => ("sign", "sign"),
                at if at < strip.sign + strip.exponent => ("exponent", "exponent"),
                _ => ("fraction", "fraction"),
            };
            let at = (LEFT + place as f64 * side, y);
            let size = (side - 2.0, 18.0);
            let name = format!("{}:{place}", strip.format);
            let title = format!("{part} bit {place}: {}", u8::from(*bit));
            canvas.rect(if *bit { class } else { "bit" }, false, at, size, &title, &name);
        }
        canvas.text("quiet", (LEFT, y + 31.0), &strip.value);
    }
    let y = height - 8.0;
    for (place, part) in ["sign", "exponent", "fraction"].into_iter().enumerate() {
        let x = LEFT + place as f64 * 90.0;
        canvas.rect(part, false, (x, y - 10.0), (12.0, 12.0), "", "");
        canvas.text("quiet", (x + 17.0, y), part);
    }
    canvas
}

#[cfg(test)]
mod tests {
    use plan::report::Strip;

    use super::*;

    #[test]
    fn one_square_for_each_bit_in_the_colour_of_its_part() {
        // 1.5 in bf16: 0 01111111 1000000.
        let bits = "0011111111000000".chars().map(|digit| digit == '1').collect();
        let strip = Strip { format: "bf16".to_owned(), value: "1.5".to_owned(), bits, sign: 1, exponent: 8 };
        let drawn = draw(&Bits { strips: vec![strip] }, 500.0).finish();
        let count = |what: &str| drawn.lines().filter(|line| line.contains("data-name") && line.contains(what)).count();
        assert_eq!([count("class=\"bit\""), count("class=\"exponent\""), count("class=\"fraction\"")], [8, 7, 1]);
    }
}
