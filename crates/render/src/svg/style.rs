//! Colours that people who do not tell all colours apart tell apart (Okabe and Ito), each darker once more; neighbours are
//! hatched in turn, so that they differ without any.

use super::canvas::Canvas;

/// The style sheet of charts. Words and rules take the colour of the text around the chart.
pub(crate) const STYLE: &str = "\
svg.napkin { max-width: 100%; height: auto; font: 12px system-ui, sans-serif; }
svg.napkin text { fill: currentColor; font: 12px system-ui, sans-serif; } svg.napkin text.end { text-anchor: end; }
svg.napkin text.middle { text-anchor: middle; } svg.napkin text.bold { font-weight: 600; } svg.napkin text.quiet { opacity: .7; }
svg.napkin .grid { stroke: currentColor; opacity: .18; } svg.napkin .mark { stroke: currentColor; opacity: .5; stroke-dasharray: 2 3; }
svg.napkin .limit { stroke: #d55e00; stroke-width: 2; stroke-dasharray: 6 4; fill: none; }
svg.napkin .peak { fill: none; stroke: currentColor; stroke-width: 2; } svg.napkin .curve { fill: none; stroke-width: 2; }
svg.napkin .roof { fill: none; stroke: currentColor; stroke-width: 2; } svg.napkin .hatch { stroke: #000; stroke-opacity: .4; fill: none; }
svg.napkin .free { fill: currentColor; opacity: .08; } svg.napkin .track { fill: currentColor; opacity: .06; }
svg.napkin .b0 { fill: #999999; } svg.napkin .b1 { fill: #0072b2; } svg.napkin .b2 { fill: #56b4e9; } svg.napkin .b3 { fill: #009e73; }
svg.napkin .b4 { fill: #f0e442; } svg.napkin .b5 { fill: #e69f00; } svg.napkin .b6 { fill: #cc79a7; } svg.napkin .b7 { fill: #d55e00; }
svg.napkin .b8 { fill: #00557f; } svg.napkin .b9 { fill: #6b4c9a; } svg.napkin .b10 { fill: #7f6a00; } svg.napkin .b11 { fill: #b0b0b0; }
svg.napkin .b12 { fill: #a7d8ce; }
svg.napkin .s0 { stroke: #0072b2; } svg.napkin .s1 { stroke: #d55e00; stroke-dasharray: 7 3; } svg.napkin .s2 { stroke: #009e73; stroke-dasharray: 2 3; }
svg.napkin .h0 { fill: #deebf7; } svg.napkin .h1 { fill: #b5d3ea; } svg.napkin .h2 { fill: #7fb5da; } svg.napkin .h3 { fill: #4590c4; }
svg.napkin .h4 { fill: #1c6bab; } svg.napkin .h5 { fill: #08427c; } svg.napkin .none { fill: none; stroke: currentColor; stroke-opacity: .15; }
svg.napkin text.on-dark { fill: #fff; } svg.napkin text.on-light { fill: #1b1b1b; }
svg.napkin .large { fill: #e3d3cb; } svg.napkin .sign { fill: #d55e00; } svg.napkin .exponent { fill: #56b4e9; } svg.napkin .fraction { fill: #009e73; }
svg.napkin .bit { fill: none; stroke: currentColor; stroke-opacity: .4; }
";

/// Lines of the hatchings, in turn.
const LINES: [&str; 3] = ["M-2 2L2 -2M0 8L8 0M6 10L10 6", "M-2 6L2 10M0 0L8 8M6 -2L10 2", "M0 4L8 4"];

/// What a bucket of memory is called and in which class it is drawn: the same in every chart.
const BUCKETS: [(&str, usize); 13] = [
    ("runtime", 0),
    ("parameters", 1),
    ("buffers", 2),
    ("optimizer states", 3),
    ("gradients", 4),
    ("inputs", 5),
    ("communication", 6),
    ("weight casts", 7),
    ("activations", 8),
    ("recomputed activations", 9),
    ("logits and loss", 10),
    ("temporaries", 11),
    ("allocator", 12),
];

/// The number of the class of a bucket; of one that is not known, that of its place.
pub(crate) fn bucket_class(name: &str, place: usize) -> usize {
    let words = name.replace('_', " ");
    BUCKETS.iter().find(|(known, _)| *known == words).map_or(place % 12, |(_, class)| *class)
}

/// Whether shapes of a class are hatched, with which lines.
fn lines(class: usize) -> Option<&'static str> {
    (class % 2 == 1).then(|| LINES[class / 2 % LINES.len()])
}

/// Defines the hatching of a class of buckets, and says whether it has one.
pub(super) fn prepare(canvas: &mut Canvas, class: usize) -> bool {
    let lines = lines(class);
    if let Some(lines) = lines {
        canvas.hatch(&format!("b{class}"), lines);
    }
    lines.is_some()
}

/// The colour and hatching of a bucket in a square, for the key of a table.
pub(crate) fn swatch(class: usize) -> String {
    let hatch = lines(class).map(|lines| format!("<path class=\"hatch\" d=\"{lines}\"/>")).unwrap_or_default();
    format!(
        "<svg class=\"napkin key\" viewBox=\"0 0 8 8\" width=\"12\" height=\"12\" aria-hidden=\"true\">\
         <rect class=\"b{class}\" width=\"8\" height=\"8\"/>{hatch}</svg>"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_of_a_bucket_has_a_colour() {
        for (_, class) in BUCKETS {
            assert!(STYLE.contains(&format!(".b{class} ")), "{class}");
        }
    }
}
