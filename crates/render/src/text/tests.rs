use plan::phrase;
use plan::report::{Assumption, Block, Column, Derivation};
use units::{Bytes, Flops};

use super::*;

fn gib(value: f64) -> Cell {
    Cell::Bytes(Bytes((value * 1_073_741_824.0).round() as u64))
}

/// The ledger of the design, shortened.
fn ledger() -> Report {
    let mut report = Report::new("ledger", phrase![gib(69.264), " of ", gib(79.647)])
        .qualified(phrase!["fits, ", gib(10.383), " free"])
        .qualified(phrase!["peak at: loss backward"]);
    let columns = [Column::left(""), Column::one_unit(""), Column::left(""), Column::right("")];
    let mut table = Table::new("", columns);
    for (indent, name, size, share, note) in [
        (0, "activations", 41.033, Some(0.592), "32 blocks × 1.28"),
        (1, "mlp", 28.0, None, "gate, up, silu, product: 4 × s × f × 2 B"),
        (0, "parameters", 3.739, Some(0.054), "fp32, ÷ 8"),
    ] {
        let cells =
            [name.into(), gib(size), share.map_or(Cell::Empty, Cell::Bar), share.map_or(Cell::Empty, Cell::Percent)];
        table.rows.push(Row::new(cells).indent(indent).note(note));
    }
    report.blocks.push(table.into());
    report.assumptions.push(Assumption::new("runtime_bytes", "runtime", gib(1.0), Origin::Default).flag("--runtime"));
    report
}

#[test]
fn the_ledger_of_the_design() {
    let expected = "\
69.26 GiB of 79.65 GiB   fits, 10.38 GiB free   peak at: loss backward

  activations  41.03 GiB  ███████████████████████▋  59.2 %   32 blocks × 1.28
    mlp        28.00                                         gate, up, silu, product: 4 × s × f ×
                                                             2 B
  parameters    3.74      ██▏                        5.4 %   fp32, ÷ 8

assumed
  runtime 1.00 GiB   (--runtime)
";
    assert_eq!(text(&ledger(), &TextOptions::default()), expected);
}

#[test]
fn quiet_is_one_line_and_depth_cuts_the_tree() {
    let quiet = TextOptions { quiet: true, ..TextOptions::default() };
    assert_eq!(text(&ledger(), &quiet), "69.26 GiB of 79.65 GiB   fits, 10.38 GiB free   peak at: loss backward\n");
    let shallow = TextOptions { depth: Some(0), ..TextOptions::default() };
    assert!(!text(&ledger(), &shallow).contains("mlp"));
}

#[test]
fn narrow_and_plain_terminals() {
    for width in [0, 1, 40, 60, 80, 200] {
        let options = TextOptions { width, ascii: true, explain: true, ..TextOptions::default() };
        let page = text(&ledger(), &options);
        assert!(page.is_ascii());
        assert!(page.lines().all(|line| line == line.trim_end()));
    }
    let options = TextOptions { width: 60, ..TextOptions::default() };
    let expected = "\
69.26 GiB of 79.65 GiB   fits, 10.38 GiB free
  peak at: loss backward

  activations  41.03 GiB  ██████████████▎  59.2 %
      32 blocks × 1.28
    mlp        28.00
      gate, up, silu, product: 4 × s × f × 2 B
  parameters    3.74      █▎                5.4 %
      fp32, ÷ 8

assumed
  runtime 1.00 GiB   (--runtime)
";
    assert_eq!(text(&ledger(), &options), expected);
}

#[test]
fn colour_adds_nothing_but_colour() {
    let options = TextOptions { color: true, ..TextOptions::default() };
    let mut plain = String::new();
    let painted = text(&ledger(), &options);
    let mut rest = painted.as_str();
    while let Some((before, after)) = rest.split_once('\u{1b}') {
        plain.push_str(before);
        rest = after.split_once('m').unwrap().1;
    }
    plain.push_str(rest);
    assert_eq!(plain, text(&ledger(), &TextOptions::default()));
}

#[test]
fn explanations_show_values_and_sources() {
    let mut report = Report::new("time", "144 days");
    report.blocks.push(Block::key_values("", [KeyValue::new("work", Flops(6_300)).note("6 × 70 × 15")]));
    report.derivations.push(Derivation {
        of: "work".into(),
        formula: "6nd",
        expression: "6·N·D".into(),
        substituted: phrase!["6 × ", Cell::Exact(70), " × ", Cell::Exact(15)],
        result: Flops(6_300).into(),
        source: "Kaplan et al. 2020".into(),
        anchor: "crates/plan/src/formulas/flop.rs:1",
    });
    let options = TextOptions { explain: true, ..TextOptions::default() };
    let expected = "\
144 days

  work  6.300 kFLOP   6 × 70 × 15

explained
  work = 6·N·D = 6 × 70 × 15 = 6.300 kFLOP
      Kaplan et al. 2020 · crates/plan/src/formulas/flop.rs:1 · napkin explain 6nd
";
    assert_eq!(text(&report, &options), expected);
}

#[test]
fn plain_choices_are_written_as_they_are_typed() {
    let mut report = Report::new("plan", "fits");
    for (label, value, flag, from) in [
        ("precision", "bf16-mixed", "--precision", Origin::Default),
        ("seq_len", "8192", "--seq-len", Origin::Given),
        ("zero", "3", "--zero", Origin::Default),
    ] {
        report.assumptions.push(Assumption::new("choice", label, value, from).flag(flag));
    }
    report
        .assumptions
        .push(Assumption::new("why", "optimizer", "adamw", Origin::Default).why("usual").flag("--optimizer"));
    let expected = "\
fits

assumed
  optimizer adamw   usual  (--optimizer)
  default  --precision bf16-mixed · --zero 3
  given    --seq-len 8192
";
    assert_eq!(text(&report, &TextOptions::default()), expected);
}

/// Eight numbers beside each other, as set-ups that are compared.
#[test]
fn columns_that_do_not_fit_stand_below() {
    let mut report = Report::new("compare", "least memory: A");
    let names = ["A", "B", "C", "D", "E", "F", "G", "H"];
    let mut table = Table::new("", std::iter::once(Column::left("")).chain(names.map(Column::right)));
    for (name, from) in [("peak memory", 100), ("fits", 200)] {
        let numbers = (0..8).map(|i| Cell::Exact(from + i));
        table.rows.push(Row::new(std::iter::once(name.into()).chain(numbers)));
    }
    report.blocks.push(table.into());
    let expected = "\
least memory: A

                 A    B    C    D    E
  peak memory  100  101  102  103  104
  fits         200  201  202  203  204

                 F    G    H
  peak memory  105  106  107
  fits         205  206  207
";
    assert_eq!(text(&report, &TextOptions { width: 40, ..TextOptions::default() }), expected);
    let wide = text(&report, &TextOptions::default());
    assert_eq!(wide.lines().count(), 5, "{wide}");
}

/// Sources behind numbers are wrapped as remarks are; bars take what is left, and none is better than a stump.
#[test]
fn words_wrap_and_bars_shrink() {
    let mut report = Report::new("hw", "H100");
    let mut table = Table::new("", [Column::left("rate"), Column::right("value"), Column::left("source")]);
    table.rows.push(Row::new(["bf16".into(), Cell::Exact(989), "a data sheet of the maker with many words".into()]));
    report.blocks.push(table.into());
    let expected = "\
H100

  rate  value   source
  bf16    989   a data sheet of the maker with
                many words
";
    assert_eq!(text(&report, &TextOptions { width: 46, ..TextOptions::default() }), expected);
    let longest = |width: usize| {
        let page = text(&ledger(), &TextOptions { width, ..TextOptions::default() });
        page.lines().map(|line| line.chars().filter(|c| *c == '█').count()).max().unwrap()
    };
    assert!(longest(100) > longest(60) && longest(60) > longest(46) && longest(46) > 0);
    assert_eq!(longest(36), 0);
}
