//! Charts as SVG: shapes with classes, so that a style sheet decides their colours, and words that a screen reader says.
//!
//! | file | draws |
//! |---|---|
//! | `bar.rs` | memory of a device in one bar, against what it has |
//! | `timeline.rs` | memory over one step |
//! | `tree.rs` | shares of a tree |
//! | `roofline.rs` | ops by work and intensity |
//! | `heat.rs` | a quantity over two degrees |
//! | `curve.rs` | time against devices |
//! | `bits.rs` | bits of numbers |
//! | `canvas.rs` | shapes and words to text |
//! | `style.rs` | colours, hatching, the style sheet |

mod bar;
mod bits;
mod canvas;
mod curve;
mod heat;
mod roofline;
mod style;
mod timeline;
mod tree;

use plan::report::{Chart, Report, StepTimeline};

use crate::format::Units;

pub(crate) use canvas::escape;
pub(crate) use style::{STYLE, bucket_class, swatch};

/// How wide a chart is drawn where nobody says, in pixels.
pub const WIDTH: f64 = 960.0;

/// Narrowest chart; what is given less room scrolls or shrinks.
const NARROWEST: f64 = 280.0;

/// How charts are drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChartOptions {
    /// Width in pixels; words keep their size.
    pub width: f64,
    /// Powers of memory.
    pub units: Units,
}

impl Default for ChartOptions {
    fn default() -> Self {
        Self { width: WIDTH, units: Units::Iec }
    }
}

/// A width that can be drawn.
fn fitting(width: f64) -> f64 {
    if width.is_finite() { width.clamp(NARROWEST, 10_000.0) } else { WIDTH }
}

/// A chart of a report as an `svg` element that takes the colour of the text around it; its style is [`style`].
pub fn chart(chart: &Chart, options: ChartOptions) -> String {
    let width = fitting(options.width);
    let units = options.units;
    match chart {
        Chart::Bar(stack) => bar::draw(stack, width, units),
        Chart::Timeline(timeline) => timeline::draw(timeline, width, units),
        Chart::Tree(tree) => tree::draw(tree, width, units),
        Chart::Roofline(roofline) => roofline::draw(roofline, width),
        Chart::Heat(heat) => heat::draw(heat, width),
        Chart::Curve(curve) => curve::draw(curve, width),
        Chart::Bits(bits) => bits::draw(bits, width),
    }
    .finish()
}

/// Where column `x` of the drawing of a step lies on its axis.
pub fn timeline_place(timeline: &StepTimeline, x: f64, width: f64) -> f64 {
    timeline::place(timeline, x, fitting(width))
}

/// The style sheet of charts.
pub const fn style() -> &'static str {
    STYLE
}

/// The first chart of a report as a file of its own; `None` where nothing is drawn of it. Where a step is told moment by
/// moment, that is what is drawn.
pub fn svg(report: &Report, options: ChartOptions) -> Option<String> {
    let told = report.charts.iter().find(|chart| matches!(chart, Chart::Timeline(_)));
    let drawn = chart(told.or(report.charts.first())?, options);
    // A file of its own has no text around it whose colour it could take.
    let ground = "svg.napkin { background: #fff; color: #1b1b1b; }\n\
                  @media (prefers-color-scheme: dark) { svg.napkin { background: #16181b; color: #e8e8e8; } }";
    let (head, body) = drawn.split_once('\n')?;
    Some(format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{head}\n<style>\n{ground}\n{STYLE}</style>\n{body}"))
}
