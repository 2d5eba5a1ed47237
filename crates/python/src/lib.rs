//! The extension module of the Python package: words in, answers out. All that is Python's own is in `python/`.

use std::collections::BTreeMap;

use ask::Given;
use mimalloc::MiMalloc;
use plan::report::{Report, Verdict};
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use render::{ChartOptions, TextOptions, Units};

#[global_allocator]
static HEAP: MiMalloc = MiMalloc;

pyo3::create_exception!(_native, Problems, PyException, "What is wrong with a question, as a JSON document.");

/// The answer to a question.
#[pyclass(frozen, module = "napkin_lm._native")]
struct Answer {
    report: Report,
}

fn units(si: bool) -> Units {
    if si { Units::Si } else { Units::Iec }
}

#[pymethods]
impl Answer {
    /// Whether the answer is not "no".
    #[getter]
    fn answered(&self) -> bool {
        self.report.verdict == Verdict::Answered
    }

    /// The command line that gives the same answer.
    #[getter]
    fn command(&self) -> &str {
        &self.report.command
    }

    /// Names of what is drawn of it.
    #[getter]
    fn charts(&self) -> Vec<&'static str> {
        self.report.charts.iter().map(plan::report::Chart::id).collect()
    }

    /// What `napkin --json` prints.
    fn json(&self) -> String {
        render::json(&self.report)
    }

    /// What `napkin` prints, in so many columns.
    #[pyo3(signature = (width=80, quiet=false, explain=false, si=false))]
    fn text(&self, width: usize, quiet: bool, explain: bool, si: bool) -> String {
        let options = TextOptions { width, quiet, explain, units: units(si), ..TextOptions::default() };
        render::text(&self.report, &options)
    }

    /// What `napkin -o FILE.md` writes.
    fn markdown(&self) -> String {
        render::markdown(&self.report, Units::Iec)
    }

    /// What `napkin -o FILE.csv` writes.
    fn csv(&self) -> String {
        render::csv(&self.report)
    }

    /// What `napkin -o FILE.html` writes.
    fn page(&self) -> String {
        render::html(&self.report, Units::Iec)
    }

    /// A part of a page, with charts of a width in pixels; it has no style of its own.
    #[pyo3(signature = (width=760.0))]
    fn fragment(&self, width: f64) -> String {
        render::fragment(&self.report, ChartOptions { width, ..ChartOptions::default() })
    }

    /// One chart as a file of its own, the most telling one where none is named; `None` if it is not there.
    #[pyo3(signature = (name=None, width=960.0))]
    fn svg(&self, name: Option<&str>, width: f64) -> Option<String> {
        let options = ChartOptions { width, ..ChartOptions::default() };
        let Some(name) = name else { return render::svg(&self.report, options) };
        let charts = self.report.charts.iter().filter(|chart| chart.id() == name).cloned().collect();
        render::svg(&Report { charts, ..self.report.clone() }, options)
    }
}

/// What `napkin WORDS` answers; `files` are read by the names they have there.
#[pyfunction]
fn answer(py: Python<'_>, words: Vec<String>, files: BTreeMap<String, Vec<u8>>) -> PyResult<Answer> {
    let report = py.detach(|| ask::answer(&words, &Given(files)));
    report.map(|report| Answer { report }).map_err(|problems| Problems::new_err(render::problems_json(&problems)))
}

/// The style sheet of charts.
#[pyfunction]
fn style() -> &'static str {
    render::style()
}

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Answer>()?;
    module.add("Problems", module.py().get_type::<Problems>())?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_function(wrap_pyfunction!(answer, module)?)?;
    module.add_function(wrap_pyfunction!(style, module)?)
}
