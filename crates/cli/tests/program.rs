//! The program as its users run it: text and JSON of every command that needs no traced model, streams and exit codes.
//!
//! Expected values come from the questions that the commands answer (lecture arithmetic, data sheets, cases of users), not
//! from the program.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

fn napkin(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_napkin"));
    command.args(words).env_remove("COLUMNS").env_remove("NO_COLOR");
    command
}

fn run(words: &[&str]) -> Output {
    napkin(words).output().expect("the program starts")
}

fn utf8(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("output is UTF-8")
}

/// Standard output of a question with an answer.
fn answer(words: &[&str]) -> String {
    let output = run(words);
    assert_eq!(output.status.code(), Some(0), "{words:?}: {}", utf8(&output.stderr));
    assert_eq!(utf8(&output.stderr), "", "{words:?}");
    utf8(&output.stdout).to_owned()
}

/// Standard error of a question that is wrong.
fn refusal(words: &[&str]) -> String {
    let output = run(words);
    assert_eq!(output.status.code(), Some(2), "{words:?}: {}", utf8(&output.stdout));
    assert_eq!(utf8(&output.stdout), "", "{words:?}");
    utf8(&output.stderr).to_owned()
}

fn split(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

/// The text after `"name": ` in a JSON document.
fn field<'a>(json: &'a str, name: &str) -> &'a str {
    let key = format!("\"{name}\": ");
    let from = json.find(&key).unwrap_or_else(|| panic!("no {name} in {json}")) + key.len();
    json[from..].split([',', '\n']).next().unwrap_or_default()
}

fn number(json: &str, name: &str) -> f64 {
    field(json, name).parse().unwrap_or_else(|_| panic!("{name} is {}", field(json, name)))
}

const LECTURE: [&str; 9] = ["time", "dense:70B", "--tokens", "15T", "--hw", "h100-sxm", "-n", "1024", "--mfu=0.5"];

#[test]
fn time_of_the_lecture() {
    assert_eq!(
        answer(&LECTURE),
        "\
143.9 days   on 1,024 × H100 SXM at 50 % MFU

  work          6.30e24 FLOP    6 × 70e9 params × 15e12 tokens
  peak          989.5 TFLOP/s   bf16, dense · NVIDIA H100 Tensor Core GPU datasheet, 2023
  rate          506.6 PFLOP/s   1,024 × 989.5 TFLOP/s × 0.50
  device-hours  3.54 M

assumed
  MFU 0.50            given by --mfu
  dtype bf16          arithmetic of the matrix multiplications  (--dtype)
  FLOP per token 6N   no config.json, so attention is not counted; pass a config.json to count it
                      (8B at 8k context: +6.8 %)
"
    );
    assert_eq!(answer(&[&LECTURE[..], &["-q"]].concat()), "143.9 days   on 1,024 × H100 SXM at 50 % MFU\n");
}

#[test]
fn time_as_json() {
    let json = answer(&[&LECTURE[..], &["--json", "--price", "2.5"]].concat());
    assert_eq!(field(&json, "schema"), "\"napkin.time/1\"");
    assert_eq!(field(&json, "napkin"), format!("\"{}\"", env!("CARGO_PKG_VERSION")));
    let result = &json[json.find("\"result\"").expect("a result")..];
    assert_eq!(field(result, "flop"), "6300000000000000000000000");
    assert!((number(result, "days") - 143.93).abs() < 0.01);
    assert!((number(result, "device_hours") - 3_537_140.0).abs() < 1.0);
    assert!((number(result, "mfu") - 0.5).abs() < f64::EPSILON);
    assert!((number(result, "cost_usd") - 8_842_850.0).abs() < 5.0);
    assert_eq!(json, answer(&[&LECTURE[..], &["--json", "--price", "2.5"]].concat()), "same inputs, same bytes");
}

/// 10 % of the run are saves of 6 min every hour; on 1,024 devices a failure every 50,000 h / 1,024 = 48.8 h.
#[test]
fn what_is_no_step_has_lines_of_its_own() {
    let around = ["--json", "--save", "6min/1h", "--mtbf", "50000h", "--restart", "15min", "--eval", "1h/10h"];
    let json = answer(&[&LECTURE[..], &around].concat());
    let wall = &json[json.find("\"wall\": {").expect("a wall clock")..];
    let training = number(wall, "training_seconds");
    assert!((training / 86_400.0 - 143.93).abs() < 0.01, "{training}");
    assert!((number(wall, "save_seconds") / training - 0.1).abs() < 1e-3);
    assert!((number(wall, "evaluation_seconds") / training - 0.1).abs() < 3e-3);
    let (failures, seconds) = (number(wall, "failures"), number(&json, "seconds"));
    assert!((failures / (seconds / 3600.0 / (50_000.0 / 1024.0)) - 1.0).abs() < 1e-9, "{failures} {seconds}");
    assert!((number(wall, "restart_seconds") / (900.0 * failures) - 1.0).abs() < 1e-9);
    // Half of an hour of training, with its share of saves and evaluations, is done again.
    assert!((number(wall, "lost_seconds") / failures / (0.5 * 3600.0 * 1.2) - 1.0).abs() < 0.01);
    let text = answer(&[&LECTURE[..], &around[1..], &["--loader", "1M"]].concat());
    for line in ["training", "waiting for data", "evaluation", "saves", "restarts", "work done again"] {
        assert!(text.lines().any(|row| row.trim_start().starts_with(line)), "{line}: {text}");
    }
    for (words, says) in [
        ("--save 6min", "--save: `6min` is not how long and how often"),
        ("--eval 5/6h", "--eval: `5` has no unit"),
        ("--save 1min/0s", "--save: `0s` is no time"),
        ("--restart 1h", "--restart changes nothing: no failures"),
        ("--mtbf 1h", "the run never ends"),
    ] {
        let text = refusal(&[&LECTURE[..], &split(words)].concat());
        assert!(text.contains(says), "{words}: {text}");
    }
}

#[test]
fn time_without_an_mfu_is_a_range() {
    let text = answer(&LECTURE[..8]);
    let first = text.lines().next().unwrap_or_default();
    assert_eq!(first, "143.9 days to 239.9 days   on 1,024 × H100 SXM at 50 % to 30 % MFU");
    assert!(text.contains("MFU 0.30 to 0.50    what well-run training reaches"), "{text}");
}

/// plan-01: 130 B parameters and 400 B tokens in 60 days on 768 A100.
#[test]
fn a_deadline_asks_for_an_mfu() {
    let words = ["time", "dense:130B", "--tokens", "400B", "--hw", "a100-sxm-40gb", "-n", "768", "--days"];
    let text = answer(&[&words[..], &["60"]].concat());
    assert!(text.starts_with("25.1 % MFU   for 60 days on 768 × A100 SXM 40 GB\n"), "{text}");
    assert!(text.lines().any(|line| split(line).starts_with(&["HFU", "33.5", "%"])), "{text}");
    let output = run(&[&words[..], &["7"]].concat());
    assert_eq!(output.status.code(), Some(1));
    assert!(utf8(&output.stdout).contains("not possible: more than the dense peak"));
}

#[test]
fn eight_cards_hold_forty_billion_parameters() {
    let words = ["fit", "--hw", "h100-sxm", "-n", "8", "--optimizer", "adamw", "--zero", "3", "--states-only"];
    let text = answer(&words);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "42.8 B parameters   states fill 8 × 79.65 GiB exactly; nothing is left for activations");
    assert_eq!(
        lines[2],
        "  per parameter     16 B     parameter 4 + gradient 4 + exp_avg 4 + exp_avg_sq 4   (fp32, adamw)"
    );
    assert!(text.contains("  by nominal size   40.0 B   8 × 80e9 B"), "{text}");
    let master = answer(&[&words[..], &["--precision", "bf16-master", "--json"]].concat());
    assert_eq!(field(&master, "parameters_nominal"), "40000000000");
    assert_eq!(field(&master, "total"), "16");
}

/// plan-07: ZeRO-2 does not fit, full sharding does.
#[test]
fn what_does_not_fit_is_a_no() {
    let words =
        ["fit", "dense:23572403200", "--states-only", "--memory", "80GiB", "-n", "8", "--precision", "bf16-master"];
    let output = run(&[&words[..], &["--zero", "2"]].concat());
    assert_eq!(output.status.code(), Some(1));
    let text = utf8(&output.stdout);
    assert!(text.starts_with("82.33 GiB of 80.00 GiB   does not fit, 2.33 GiB over"), "{text}");
    let yes = answer(&[&words[..], &["--zero", "3"]].concat());
    assert!(yes.starts_with("43.91 GiB of 80.00 GiB   states fit, 36.09 GiB left for activations"), "{yes}");
}

#[test]
fn a_shape_grows_by_its_blocks() {
    let like = ["fit", "--hw", "h100-sxm", "-n", "8", "--zero", "3", "--shape-like", "llama-3.1-8b"];
    let grown = ["fit", "llama-3.1-8b", "--hw", "h100-sxm", "-n", "8", "--zero", "3", "--grow", "layers"];
    assert_eq!(answer(&like), answer(&grown));
    // With nothing but states, blocks say nothing.
    assert!(refusal(&[&like[..], &["--states-only"]].concat()).contains("--states-only"));
}

#[test]
fn mfu_of_a_multiplication() {
    let words = ["mfu", "--matmul", "16384x32768x8192", "--hw", "h100-sxm"];
    let text = answer(&[&words[..], &["--seconds", "0.16", "--dtype", "fp32"]].concat());
    assert!(text.starts_with("82.1 % MFU   of 67.0 TFLOP/s (fp32, dense) on 1 × H100 SXM\n"), "{text}");
    assert!(text.contains("2 × 16,384 × 32,768 × 8,192 = 8.796 TFLOP in 160 ms"), "{text}");
    let json = answer(&[&words[..], &["--seconds", "0.03", "--dtype", "bf16", "--json"]].concat());
    assert_eq!(field(&json, "flop"), "8796093022208");
    let result = &json[json.find("\"result\"").expect("a result")..];
    assert!((number(result, "mfu") - 0.296).abs() < 0.001);
}

/// mfu-01, mfu-03, mfu-05, mfu-09 and mfu-11: the right value each time, and each mistake named.
#[test]
fn mfu_of_training() {
    for (words, starts) in [
        ("--printed 104% --printed-peak 312TFLOP/s --hw h100-sxm", "32.8 % MFU"),
        ("--printed 15% --printed-peak 835TFLOP/s --hw a100-sxm-80gb", "40.1 % MFU"),
        ("--flops-per-token 46.87GFLOP --tokens-per-second 9600 --hw h100-sxm", "45.5 % MFU"),
        ("--flops-per-token 46.87GFLOP --tokens-per-second 13000 --hw h100-sxm --dtype fp8", "30.8 % MFU"),
        ("--flops-per-token 854.8MFLOP --step-time 505ms --tokens-per-step 61440 --hw a100-sxm-40gb", "33.3 % MFU"),
    ] {
        let words: Vec<&str> = std::iter::once("mfu").chain(words.split(' ')).collect();
        let text = answer(&words);
        assert!(text.starts_with(starts), "{words:?}: {text}");
    }
    let fp8 = answer(&split("mfu --flops-per-token 46.87GFLOP --tokens-per-second 13000 --hw h100-sxm --dtype fp8"));
    assert!(fp8.lines().any(|line| split(line).starts_with(&["of", "bf16", "61.6", "%"])), "{fp8}");
    let sparse = refusal(&split("mfu dense:7B --tokens-per-second 9600 --hw h100-sxm --peak 1979TFLOP/s"));
    assert!(sparse.starts_with("error[T0402]: 1.98 PFLOP/s is the sparse bf16 rate of H100 SXM"), "{sparse}");
    let card = refusal(&split("mfu --printed 104% --printed-peak 312TFLOP/s --hw a100-sxm-80gb"));
    assert!(card.starts_with("error[T0404]: 104.0 % of the peak cannot be"), "{card}");
    assert!(card.contains("--hw h100-sxm (32.8 %)"), "{card}");
    let one = refusal(&split(
        "mfu --flops-per-token 854.8MFLOP --step-time 505ms --tokens-per-step 491520 --hw a100-sxm-40gb",
    ));
    assert!(one.contains("-n 8, if the tokens are those of a node of 8 devices: 33.3 %"), "{one}");
}

#[test]
fn a_number_in_each_format() {
    assert_eq!(
        answer(&["dtype", "0.1"]),
        "\
0.1 in 5 formats

  format  bits                                stored               relative error
  fp32    0 01111011 10011001100110011001101  0.10000000149011612          1.5e-8
  bf16    0 01111011 1001101                  0.10009765625                9.8e-4
  fp16    0 01011 1001100110                  0.0999755859375             -2.4e-4
  e4m3    0 0011 101                          0.1015625                    1.6e-2
  e5m2    0 01011 10                          0.09375                     -6.3e-2
"
    );
    let small = answer(&["dtype", "1e-8"]);
    assert!(small.contains("1.0011717677116394e-08"), "{small}");
    assert!(small.contains("below the smallest subnormal 6.0e-08"), "{small}");
    // dtype-01: the smallest steps that move a bf16 weight of 1.
    let one = answer(&["dtype", "1.0", "--format", "bf16"]);
    assert!(one.contains("moved up by more than 0.00390625"), "{one}");
    assert!(one.contains("moved down by more than 0.001953125"), "{one}");
    let table = answer(&["dtype", "--table"]);
    let max =
        |format| table.lines().map(split).find(|words| words.first() == Some(&format)).map(|words| words[4].to_owned());
    assert_eq!((max("e4m3").as_deref(), max("e5m2").as_deref()), (Some("448"), Some("57344")));
}

#[test]
fn einsum_of_the_design() {
    let words = [
        "einsum",
        "b s1 h, b s2 h -> b s1 s2",
        "b=8",
        "s1=1024",
        "s2=1024",
        "h=128",
        "--dtype",
        "bf16",
        "--hw",
        "h100-sxm",
    ];
    assert_eq!(
        answer(&words),
        "\
2.147 GFLOP   20.97 MB moved   102.4 FLOP/B   memory-bound on H100 SXM (ridge 295.4 FLOP/B)

  compute      2.17 µs   at 989.5 TFLOP/s (bf16, dense)
  memory       6.26 µs   at 3.35 TB/s
  upper bound  34.7 %    of the peak: no MFU above it

  contracted h · batch b · output b s1 s2 · lowers to 8 matmuls 1024 × 128 × 1024 · output 16.78 MB

assumed
  traffic   each operand read once, each result written once
"
    );
    let json = answer(&[&words[..], &["--json"]].concat());
    assert_eq!(field(&json, "bytes_moved"), "20971520");
    assert_eq!(field(&json[json.find("\"result\"").expect("a result")..], "flop"), "2147483648");
}

/// Three operands: (10 × 1000) (1000 × 10) (10 × 1000) is 200 k + 200 k FLOP from the left, 20 M + 20 M from the right.
#[test]
fn einsum_finds_the_order() {
    let text = answer(&["einsum", "ij,kl,jk->il", "i=10", "j=1000", "k=10", "l=1000"]);
    assert!(text.starts_with("400.0 kFLOP"), "{text}");
    assert!(text.contains("operand 1 × operand 3"), "{text}");
    assert!(text.contains("left to right"), "{text}");
    let wrong = refusal(&["einsum", "a b, b c -> a d", "a=1", "b=2", "c=3"]);
    assert!(wrong.contains("error[T0431]") && wrong.contains('^'), "{wrong}");
}

#[test]
fn hardware_with_sources() {
    let list = answer(&["hw"]);
    let row =
        |name| list.lines().map(split).find(|words| words.first() == Some(&name)).map(|words| words[1].to_owned());
    // hardware-01, hardware-03, hardware-05: dense, fp32-accumulating peaks.
    for (name, bf16) in [
        ("h100-sxm", "989.5"),
        ("h100-pcie", "756.5"),
        ("h100-nvl", "835.5"),
        ("h20", "148.0"),
        ("b200", "2,250.0"),
        ("mi250x", "191.5"),
        ("rtx-4090", "165.2"),
        ("a10", "125.0"),
    ] {
        assert_eq!(row(name).as_deref(), Some(bf16), "{name}");
    }
    let one = answer(&["hw", "h100-sxm"]);
    assert!(
        one.contains("NVIDIA H100 Tensor Core GPU datasheet, 2023") && one.contains("never a denominator"),
        "{one}"
    );
    assert!(answer(&["hw", "h100-sxm", "b200"]).starts_with("H100 SXM · B200"));
    assert_eq!(
        refusal(&["hw", "h100"]),
        "error: `--hw h100` is ambiguous: h100-sxm, h100-pcie, h100-nvl     try: give one of them, such as `--hw \
         h100-sxm`: they differ in rate or memory\n"
    );
}

#[test]
fn formulas_are_explained() {
    let text = answer(&["explain", "6nd", "N=70B", "D=15T"]);
    assert!(
        text.starts_with("6,300,000,000,000,000,000,000,000 FLOP = 6.30e24 FLOP   FLOP of a training run\n"),
        "{text}"
    );
    assert!(text.contains("Kaplan et al. 2020") && text.contains("crates/plan/src/formulas/flop.rs:"), "{text}");
    assert!(refusal(&["explain", "6ndd"]).contains("did you mean 6nd"));
    let explained = answer(&[&LECTURE[..], &["--explain"]].concat());
    assert!(explained.contains("work = 6·N·D = 6 × 70e9 × 15e12 = 6.30e24 FLOP"), "{explained}");
}

#[test]
fn all_problems_at_once() {
    let words =
        ["time", "dense:70X", "--tokens", "15Q", "--hw", "h100", "-n", "some", "--mfu", "40", "--price", "free"];
    let text = refusal(&words);
    for part in ["70X", "15Q", "--hw h100", "--devices: ", "--mfu: MFU `40` is above 1", "price `free`"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let json = refusal(&[&words[..], &["--json"]].concat());
    assert!(json.starts_with("{\n  \"schema\": \"napkin.error/1\""), "{json}");
    assert_eq!(json.matches("\"severity\": \"error\"").count(), 6, "{json}");
    assert!(refusal(&["time", "dense:70B"]).contains("`--tokens` is needed"));
    assert!(refusal(&["fit", "--states-only", "--memory", "80G"]).contains("80e9 bytes"));
    assert!(refusal(&["timee"]).contains("'time'"));
    assert!(refusal(&["time", "--json", "--bogus"]).starts_with('{'));
}

/// No words make it panic: exit code 3 is for mistakes of the program.
#[test]
fn odd_words_are_refused_or_answered() {
    for words in [
        "time dense:0 --tokens 1 --hw h100-sxm",
        "time dense:70B --tokens 0 --hw h100-sxm",
        "time dense:18446744073709551615 --tokens 18446744073709551615 --hw h100-sxm -n 18446744073709551615",
        "time dense:70B --tokens 15T --hw h100-sxm -n 0",
        "time dense:70B --tokens 15T --hw h100-sxm --mfu 0",
        "time dense:70B --tokens 15T --hw h100-sxm --days 0",
        "time dense:70B --tokens 15T --hw h100-sxm --days 1e-300",
        "time dense:70B --tokens 15T --hw t4 --dtype bf16",
        "fit --states-only --hw h100-sxm -n 18446744073709551615 --zero 3",
        "fit --states-only --memory 0 -n 1",
        "mfu --matmul 0x0x0 --seconds 0 --hw h100-sxm",
        "mfu --matmul 1x1 --seconds 1 --hw h100-sxm",
        "mfu dense:7B --tokens-per-second 1e300 --hw h100-sxm",
        "dtype nan inf -inf 1e400 -- -1",
        "einsum ij,jk->ik i=18446744073709551615 j=18446744073709551615 k=18446744073709551615",
        "einsum i-> i=0",
        "explain 6nd N=1e38 D=1e38",
        "plan gpt2 --hw h100-sxm --tokens 1e9 --runtime 18446744073709551615",
        "infer gpt2 --bytes-per-param 1e40 --kv-tokens 18446744073709551615",
        "explain time C=1 n=0 P=0 MFU=0",
    ] {
        let output = run(&split(words));
        assert!(matches!(output.status.code(), Some(0..=2)), "{words}: {}", utf8(&output.stderr));
    }
}

/// A negative number is refused by the flag it is given to, and not as a flag that nobody gave.
#[test]
fn negative_numbers_are_values() {
    for (words, part) in [
        ("params gpt2 --tp -1", "--tp: count `-1` is negative"),
        ("bench step gpt2 --steps -2", "--steps: count `-2` is negative"),
        ("infer --params -1e9", "--params: parameter count `-1e9` is negative"),
    ] {
        let text = refusal(&split(words));
        assert!(text.contains(part), "{words}: {text}");
    }
    assert!(answer(&["dtype", "-3", "-q"]).starts_with("-3 in "));
}

/// mfu-07: a utilization that is possible and hardly true; plan-03: what four days on eight cards imply.
#[test]
fn rare_and_usual_utilizations() {
    let rare = answer(&split("mfu --flops-per-token 3.4918GFLOP --tokens-per-second 529882 --hw a100-sxm-80gb -n 8"));
    assert!(rare.starts_with("74.1 % MFU") && rare.contains("warning[T0403]"), "{rare}");
    let usual = answer(&split("time --flops-per-token 854.8MFLOP --tokens 294.912B --hw a100-sxm-40gb -n 8 --days 4"));
    assert!(usual.starts_with("29.2 % MFU") && !usual.contains("warning"), "{usual}");
}

const PLAN: &str = "plan llama-3.1-8b --hw h100-sxm -n 8";

/// Who made a choice is said, in text and JSON; nothing is assumed in silence.
#[test]
fn choices_and_who_made_them() {
    let text = answer(&split(&format!("{PLAN} --batch 2 --seq-len 8192 --precision bf16-master --recompute full")));
    let lines = text.lines().map(str::trim).collect::<Vec<_>>();
    assert!(
        lines.contains(&"given    --batch 2 · --seq-len 8,192 · --precision bf16-master · --recompute full"),
        "{text}"
    );
    assert!(lines.contains(&"default  --optimizer adamw-fused · --zero 3 · --dp 8"), "{text}");
    let json = answer(&split(&format!("{PLAN} --batch 2 --json")));
    let from = |label: &str| {
        let at = json.find(&format!("\"label\": \"{label}\"")).unwrap_or_else(|| panic!("no {label} in {json}"));
        field(&json[at..], "from")
    };
    assert_eq!((from("batch"), from("seq_len"), from("profile")), ("\"given\"", "\"default\"", "\"default\""));
    for command in ["flops llama-3.1-8b", "ledger gpt2", "time llama-3.1-8b --tokens 1T --hw h100-sxm"] {
        assert!(answer(&split(command)).contains("--seq-len"), "{command}");
    }
}

/// The arithmetic of a run is that of its precision, unless somebody says otherwise.
#[test]
fn time_follows_the_precision() {
    for (more, peak) in [
        ("", "989.5"),
        ("--precision fp32", "67.0"),
        ("--precision fp32 --dtype tf32", "494.5"),
        ("--precision fp8", "1.98"),
    ] {
        let output = run(&split(&format!("{PLAN} --tokens 1T {more}")));
        let text = utf8(&output.stdout);
        let row = text.lines().map(split).find(|words| words.first() == Some(&"peak") && words.contains(&"dense"));
        assert_eq!(row.expect("a peak")[1], peak, "{text}");
    }
    assert!(answer(&split("plan gpt2 --hw t4")).contains("--precision fp16-mixed"));
    assert!(answer(&split("plan gpt2 --hw a100-sxm-80gb --precision fp8")).contains("--precision bf16-mixed"));
    let odd = "ledger gpt2 --precision fp8 --set n_embd=36 --set n_head=4";
    assert!(answer(&split(odd)).contains("no weight of a block has sizes that are multiples of 16"));
}

/// What does not fit comes with what would.
#[test]
fn levers_that_fit() {
    let output = run(&split("plan llama-3.1-8b --hw h100-sxm"));
    assert_eq!(output.status.code(), Some(1));
    assert!(utf8(&output.stdout).contains("-n 2 --zero 3"), "{}", utf8(&output.stdout));
    assert!(answer(&split("plan llama-3.1-8b --hw h100-sxm -n 2 -q")).starts_with("fits"));
    let late = run(&split(&format!("{PLAN} --tokens 1T --days 0.001")));
    assert_eq!(late.status.code(), Some(1));
    assert!(utf8(&late.stdout).contains("not possible"));
}

#[test]
fn layouts_that_cannot_be() {
    for (words, says) in [
        ("plan llama-3.1-8b --hw h100-sxm -n 0", "--devices: at least 1 is needed"),
        ("plan llama-3.1-8b --hw h100-sxm -n 8 --dp 0", "--dp: at least 1 is needed"),
        ("plan llama-3.1-8b --hw h100-sxm -n 8 --dp 3", "--dp 3 does not divide -n 8"),
        ("plan llama-3.1-8b --hw h100-sxm -n 8 --dp 16", "--dp 16 does not divide -n 8"),
        ("ledger gpt2 --seq-len 2000", "--seq-len 1024"),
        ("ledger gpt2 --grad-accum 1000000000000", "--grad-accum"),
        ("ledger bloom-560m --profile hf-sdpa", "--profile hf-eager"),
        ("params dense:70B", "napkin time dense:70B"),
        ("params lama-3", "llama-3.1-8b"),
        ("params gpt2 --assume foo", "--assume foo"),
        ("ledger gpt2 --set n_positions=99999999999 --seq-len 99999999999", "--seq-len"),
        ("params mixtral-8x7b --set num_local_experts=10000000000", "correct the largest size"),
    ] {
        let text = refusal(&split(words));
        assert!(text.contains(says), "{words}: {text}");
    }
    // Only the model is wrong, and a flag: both are said.
    let both = refusal(&split("plan llama-3.1-8b --set num_hidden_layers=-1 --hw h1000 --zero 9"));
    assert_eq!(both.matches("error").count(), 3, "{both}");
    // Data-parallel devices are devices.
    assert!(answer(&split("plan llama-3.1-8b --hw h100-sxm --dp 16 -q")).starts_with("fits"));
}

/// A new folder under the target folder of this build.
/// A flag acts or is refused: none is read and forgotten.
#[test]
fn flags_that_change_nothing_are_refused() {
    for (words, says) in [
        ("explain-oom 786MiB --zero 3", "without a model"),
        ("explain-oom 786MiB --hw h100-sxm", "without a model"),
        ("explain-oom 786MiB --lora 8", "without a model"),
        ("fit --states-only --hw h100-sxm --batch 4 --recompute full", "--batch, --recompute changes nothing"),
        ("fit gpt2 --states-only --hw h100-sxm --grow layers", "--grow changes nothing"),
        ("fit gpt2 --states-only --hw h100-sxm --runtime 1GiB", "--runtime changes nothing"),
        ("fit dense:7B --states-only --hw h100-sxm --set n_layer=2", "--set changes nothing"),
        ("fit dense:7B --states-only --hw h100-sxm --lora 8", "no linear maps"),
        ("time dense:7B --seq-len 8192 --tokens 1T --hw h100-sxm", "--seq-len changes nothing"),
        ("time dense:7B --set n_layer=2 --tokens 1T --hw h100-sxm", "--set changes nothing"),
        ("einsum ij,jk->ik i=8 j=8 k=8 --peak 1TFLOP/s", "--peak changes nothing: no device is named by --hw"),
        ("infer gpt2 --dtype bf16", "--dtype changes nothing"),
        ("infer dense:7B --set n_layer=2", "--set changes nothing"),
        ("ledger gpt2 --hw h100-sxm --dtype bf16", "--dtype"),
        ("ledger gpt2 --frozen-dtype bf16", "nothing is frozen"),
        ("layout gpt2 -n 8 --zero 0 --shard 8", "--shard changes nothing: zero 0"),
        ("layout gpt2 -n 8 --cp-all-to-all", "--cp-all-to-all changes nothing"),
        ("layout gpt2 -n 8 --schedule gpipe", "--schedule changes nothing"),
        ("layout gpt2 -n 8 --zero 1 --no-reshard", "--no-reshard changes nothing"),
        ("layout gpt2 --hw h100-sxm -n 8 --dp 8 --devices-per-node 3", "8 devices are not whole nodes of 3"),
        ("plan gpt2 --hw h100-sxm --mfu 0.4 --price 2", "--mfu, --price changes nothing: without --tokens"),
        ("params gpt2 -o no-such-folder/x.svg", "this answer has no drawing"),
        ("hw h100-sxm -o no-such-folder/x.svg", "this answer has no drawing"),
        ("plan gpt2 --hw h100-sxm -o no-such-folder/x.trace.json", "this answer has no step"),
        ("reconcile --torch-snapshot no-file --batch 4", "--batch changes nothing: without a model"),
        ("reconcile gpt2 --torch-snapshot no-file --threads 2", "--threads changes nothing"),
        ("mfu --matmul 8x8x8 --seconds 1 --per-device --doc-len 8 --hw h100-sxm", "--per-device, --doc-len changes"),
        ("train --schedule cosine --decay-steps 10 --no-save", "--decay-steps changes nothing"),
        ("train --schedule constant --min-lr 0.1 --no-save", "--min-lr changes nothing"),
        ("params gpt2 --json -o no-such-folder/x.md", "`--json` is for the terminal"),
        ("time dense:7B --tokens 1T --hw h100-sxm --peak 990", "try: 990TFLOP/s"),
        ("mfu --matmul 0x8x8 --seconds 1 --hw h100-sxm", "`0x8x8` is no m × k × n"),
        ("layout gpt2 --hw h100-sxm -n 8", "--dp 8, or another degree"),
        ("afford --hw h100-sxm -n 1024", "napkin afford --help lists what it takes"),
        ("flops gpt2 --hw h100-sxm", "napkin plan MODEL --hw NAME"),
    ] {
        let text = refusal(&split(words));
        assert!(text.contains(says), "{words}: {text}");
    }
}

/// What several set-ups share is wrong once.
#[test]
fn a_mistake_is_said_once() {
    let text = refusal(&split("compare gpt2 --vary recompute=none,full --batch x --lora y"));
    assert_eq!(text.matches("error").count(), 2, "{text}");
}

/// Adapters, packed weights, forms of the loss and what is offloaded can be varied; `none` leaves the flag out.
#[test]
fn what_can_be_varied() {
    let parameters = |json: &str| -> Vec<String> {
        let setups = json.split("\"label\": ").filter(|part| part.starts_with("\"lora "));
        setups.map(|setup| field(setup, "parameters").to_owned()).collect()
    };
    let json = answer(&split("compare gpt2 --seq-len 128 --vary lora=none,8 --json"));
    let adapted = answer(&split("params gpt2 --lora 8 --json"));
    assert_eq!(parameters(&json), ["124439808", field(&adapted, "stored")], "{json}");
    for vary in [
        "quant=none,nf4,int8 --lora 8",
        "loss=whole,fused,chunked:4",
        "offload=none,activations,optimizer",
        "no-sync=off,on --grad-accum 2 --zero 3 --dp 8",
    ] {
        let text = answer(&split(&format!("compare gpt2 --seq-len 128 --vary {vary}")));
        let values = vary.split([' ', '=']).nth(1).expect("values");
        for value in values.split(',') {
            assert!(text.contains(value), "{vary}: {text}");
        }
    }
    assert!(refusal(&split("compare gpt2 --vary lora=none,x")).contains("--lora: "));
    assert!(refusal(&split("compare gpt2 --vary colour=red,blue")).contains("cannot be varied"));
    assert!(refusal(&split("compare gpt2 --dp 8 --zero 3 --vary no-reshard=yes")).contains("is on or off, not `yes`"));
}

/// A range of blocks that ends behind the last one is a mistake, not all of them.
#[test]
fn ranges_end_at_the_last_block() {
    let text = refusal(&split("ledger gpt2 --freeze h.0-99"));
    assert!(text.contains("which is 11") && text.contains("--freeze h.0-11"), "{text}");
    assert!(refusal(&split("params gpt2 --lora 8 --lora-targets h.4-12.attn.c_attn")).contains("h.4-11.attn.c_attn"));
    assert!(!answer(&split("ledger gpt2 --freeze h.0-11")).is_empty());
}

/// Experts in one stack are not adapted, or not packed, or neither: each is said of itself, with a number that can be read.
#[test]
fn experts_that_are_left_alone() {
    for (flags, says) in [
        ("--lora 8", "parameters in stacks of experts have no adapter\n"),
        ("--quant nf4 --train-only lm_head", "parameters in stacks of experts are not packed\n"),
        ("--lora 8 --quant nf4", "parameters in stacks of experts have no adapter and are not packed\n"),
    ] {
        let text = answer(&split(&format!("params mixtral-8x7b {flags}")));
        assert!(text.contains("45,097,156,608") && text.contains(says), "{flags}: {text}");
        let named = text.contains("--lora-target-parameters gate_up_proj,down_proj");
        assert_eq!(named, flags.contains("lora"), "{flags}: {text}");
    }
    let stacks = "--lora 8 --lora-target-parameters gate_up_proj,down_proj";
    assert!(!answer(&split(&format!("params mixtral-8x7b {stacks}"))).contains("in stacks of experts"));
    let text = answer(&split(&format!("params mixtral-8x7b {stacks} --quant nf4")));
    assert!(text.contains("parameters in stacks of experts are not packed\n"), "{text}");
}

/// By hand, of 32 blocks with 8 experts: 8 of rank times 4096 and 2 * 14336 beside one stack, 14336 and 4096 beside the other.
#[test]
fn adapters_of_experts_are_counted_or_refused() {
    let base = "params mixtral-8x7b --lora 8 --lora-targets none --lora-target-parameters";
    let json = answer(&split(&format!("{base} gate_up_proj,down_proj --json")));
    let by_hand = 32 * 8 * 8 * ((4096 + 2 * 14336) + (14336 + 4096));
    assert_eq!(field(&json, "trainable"), by_hand.to_string(), "{json}");
    for (flags, says) in [
        ("gate_up_proj --lora-dropout 0.1", "--lora-dropout with --lora-target-parameters: PEFT refuses it"),
        ("gate_up_proj --dora", "--dora with --lora-target-parameters: PEFT refuses it"),
        ("q_proj", "--lora-targets q_proj, for the linear map"),
        ("gate_up_proj:0", "a rank of at least 1"),
        ("down_proj:30000", "no map of an expert is wider than 28672"),
        ("gate_up_prj", "--lora-target-parameters gate_up_proj"),
        ("layers.0-40.mlp.experts.down_proj", "which is 31"),
        ("gate_up_proj --tp 2 --ep 2", "adapters of stacks of experts are not divided over ranks"),
    ] {
        let text = refusal(&split(&format!("{base} {flags}")));
        assert!(text.contains(says), "{flags}: {text}");
    }
    assert!(refusal(&split("params mixtral-8x7b --lora 8 --lora-targets none")).contains("nothing has an adapter"));
    let text = refusal(&split("params mixtral-8x7b --lora 8 --lora-targets q_proj,w1,w2,w3"));
    assert!(text.contains("--lora-targets q_proj --lora-target-parameters gate_up_proj:16,down_proj"), "{text}");
    let text = refusal(&split("params gpt-oss-120b --lora 8 --lora-target-parameters down_proj_bias"));
    assert!(text.contains("is no stack of matrices"), "{text}");
}

/// Few device-hours have decimals: 1e15 FLOP at half of 989.5 TFLOP/s are 2.02 s.
#[test]
fn device_hours_of_short_runs() {
    let hours = |tokens: &str| {
        let text = answer(&split(&format!("time --flops-per-token 1GFLOP --tokens {tokens} --hw h100-sxm --mfu 0.5")));
        let row = text.lines().map(split).find(|words| words.first() == Some(&"device-hours"));
        row.expect("a row")[1].to_owned()
    };
    assert_eq!(["1M", "1G", "10G", "100G"].map(hours), ["5.6e-4", "0.561", "5.61", "56.1"]);
}

/// Without attention there is no mask of which a share is left.
#[test]
fn state_spaces_are_not_causal_in_percent() {
    let folder = folder("mamba");
    let config =
        r#"{"model_type": "mamba", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 100, "state_size": 16}"#;
    std::fs::write(folder.join("config.json"), config).expect("a file");
    let text = answer(&["flops", folder.to_str().expect("UTF-8")]);
    assert!(!text.contains("causal:"), "{text}");
    assert!(answer(&["flops", "gpt2"]).contains("causal: 50.0 % of full attention"));
}

/// Where what comes back from the host leaves gaps, the step takes more with it than without, and the way out is named.
#[test]
fn offloading_that_leaves_gaps() {
    let step = "ledger gpt2-medium --batch 8 --profile hf-sdpa --recompute full --hw h100-sxm";
    let total = |more: &str| number(&answer(&split(&format!("{step} {more} --json"))), "total_bytes");
    assert!(total("--offload activations") > total(""));
    let text = answer(&split(&format!("{step} --offload activations")));
    assert!(text.contains("leaves gaps") && text.contains("--alloc-conf expandable_segments:True"), "{text}");
    for quiet in ["", "--offload activations --alloc-conf expandable_segments:True"] {
        assert!(!answer(&split(&format!("{step} {quiet}"))).contains("leaves gaps"), "{quiet}");
    }
}

/// No table is wider than the terminal: bars are shorter, words are wrapped, columns go below.
#[test]
fn tables_fit_the_terminal() {
    for words in [
        "params mixtral-8x7b",
        "flops llama-3.1-8b",
        "ledger llama-3.1-8b --hw h100-sxm -n 8",
        "plan llama-3.1-8b --hw h100-sxm -n 8 --tokens 1T",
        "infer llama-3.1-8b --hw h100-sxm",
        "hw",
        "hw h100-sxm",
        "compare gpt2 --seq-len 64 --vary batch=1,2,3,4,5,6,7,8",
        "time llama-3.1-8b --tokens 1T --hw h100-sxm",
        "dtype 0.1",
        "models",
    ] {
        for width in ["80", "100"] {
            let output = napkin(&split(words)).env("COLUMNS", width).output().expect("the program starts");
            let text = utf8(&output.stdout);
            let most: usize = width.parse().expect("a number");
            let wide: Vec<&str> = text.lines().filter(|line| line.chars().count() > most).collect();
            assert!(!text.is_empty() && wide.is_empty(), "{words} at {width}:\n{}", wide.join("\n"));
        }
    }
    // Nothing is left out: the last set-up is there at any width.
    let compare = "compare gpt2 --seq-len 64 --vary batch=1,2,3,4,5,6,7,8";
    let narrow = napkin(&split(compare)).env("COLUMNS", "60").output().expect("the program starts");
    assert!((1..9).all(|batch| utf8(&narrow.stdout).contains(&format!("batch {batch}"))));
}

/// Dropout in front of adapters is counted without another flag.
#[test]
fn dropout_of_adapters_counts_by_itself() {
    let peak = |more: &str| number(&answer(&split(&format!("ledger gpt2 --lora 8 --json {more}"))), "peak_bytes");
    assert!(peak("--lora-dropout 0.1") > peak(""));
    assert!((peak("--lora-dropout 0.1") - peak("--lora-dropout 0.1 --dropout")).abs() < 0.5);
}

fn folder(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

#[test]
fn files_by_extension_and_never_overwritten() {
    let folder = folder("files");
    for (name, begins) in [
        ("a.txt", "143.9 days"),
        ("a.md", "**143.9 days**"),
        ("a.csv", "section,item,quantity,value,unit\n,answer,,143.9 days,\n"),
        ("a.json", "{\n  \"schema\": \"napkin.time/1\""),
        ("a.html", "<!doctype html>\n"),
        ("a.svg", "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg "),
    ] {
        let path = folder.join(name);
        let path = path.to_str().expect("a path in UTF-8");
        assert_eq!(answer(&[&LECTURE[..], &["-o", path]].concat()), "");
        let text = std::fs::read_to_string(path).expect("a file");
        assert!(text.starts_with(begins), "{text}");
        assert!(refusal(&[&LECTURE[..], &["-o", path]].concat()).contains("exists already"));
        answer(&[&LECTURE[..], &["-o", path, "--force"]].concat());
    }
    assert!(refusal(&[&LECTURE[..], &["-o", "a.docx"]].concat()).contains(".txt, .md, .csv, .json, .html or .svg"));
    assert!(refusal(&[&LECTURE[..], &["-o", "a.trace.json"]].concat()).contains("napkin ledger MODEL --timeline"));
    assert!(refusal(&["models", "-o", "a.svg"]).contains("has no drawing"));
    // What was read stays, even by force.
    let path = folder.join("config.json");
    let config = plan::presets::find("gpt2").expect("the preset").1;
    std::fs::write(&path, config).expect("a file");
    let path = path.to_str().expect("a path in UTF-8");
    assert!(refusal(&["params", path, "-o", path, "--force"]).contains("was read for this answer"));
    assert_eq!(std::fs::read_to_string(path).expect("the file"), config);
}

/// A snapshot of PyTorch's memory is named by the step it was taken in, and a pickle that would run something is refused.
#[test]
fn a_torch_snapshot_is_explained() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../plan/tests/snapshot/gpt2.pickle");
    let step = "gpt2 --set n_layer=2 --set n_embd=64 --set n_head=4 --set vocab_size=512 --set n_positions=128 --batch 2 \
                --seq-len 128 --precision fp32";
    let explain = ["reconcile", "--torch-snapshot", file];
    let text = answer(&[&explain[..], &split(step)].concat());
    assert!(text.contains("76.4 % of what is allocated has a name") && text.contains("data.py:12 preload"), "{text}");
    assert_eq!(run(&[&explain[..], &split(step), &["--tolerance", "0.05"]].concat()).status.code(), Some(1));
    assert!(answer(&explain).contains("give the model to name the blocks"));
    assert!(refusal(&[&explain[..], &["--threads", "2"]].concat()).contains("nothing is run on this one"));
    let path = folder("pickle").join("a.pickle");
    std::fs::write(&path, b"\x80\x02cposix\nsystem\n.").expect("a file");
    let path = path.to_str().expect("a path in UTF-8");
    assert!(refusal(&["reconcile", "--torch-snapshot", path]).contains("opcode GLOBAL"));
}

#[test]
fn a_step_is_drawn() {
    let folder = folder("step");
    for (name, begins, holds) in [
        ("a.html", "<!doctype html>", "forward"),
        ("a.trace.json", "{\"traceEvents\":[", "\"axis\":\"predicted time (roofline)\""),
    ] {
        let path = folder.join(name);
        let path = path.to_str().expect("a path in UTF-8");
        assert_eq!(answer(&[&split("ledger gpt2 --hw a100-sxm-40gb --timeline"), &["-o", path][..]].concat()), "");
        let text = std::fs::read_to_string(path).expect("a file");
        assert!(text.starts_with(begins) && text.contains(holds), "{}", &text[..200]);
    }
    let text = answer(&split("ledger gpt2 --timeline"));
    assert!(text.contains("over the step") && text.contains("optimizer step"), "{text}");
}

#[test]
fn streams() {
    // Nobody reads: no complaint.
    let mut child = napkin(&["hw"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    assert_eq!((output.status.code(), utf8(&output.stderr)), (Some(0), ""));
    // Colour on demand only.
    assert!(!answer(&LECTURE).contains('\u{1b}'));
    assert!(answer(&[&LECTURE[..], &["--color", "always"]].concat()).contains("\u{1b}[1m143.9 days\u{1b}[0m"));
    assert!(answer(&[&LECTURE[..], &["--ascii"]].concat()).is_ascii());
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        assert!(answer(&["completions", shell]).contains("napkin"), "{shell}");
    }
    assert!(answer(&["--help"]).contains("Usage: napkin"));
    assert!(answer(&["--version"]).starts_with("napkin "));
}

#[test]
fn a_measured_machine_can_be_planned_with() {
    let folder = std::env::temp_dir().join(format!("napkin-bench-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let file = folder.join("cpu.toml");
    let file = file.to_str().expect("UTF-8");
    // However busy the machine is, all products are begun.
    let sizes = ["bench", "--dtype", "f32,bf16", "--sizes", "64,96", "-j", "1", "--seconds", "3600"];
    let words = [&sizes[..], &["--json", "--save", file]].concat();
    let output = run(&words);
    assert_eq!(output.status.code(), Some(0), "{}", utf8(&output.stderr));
    let json = utf8(&output.stdout);
    assert_eq!(field(json, "schema"), "\"napkin.bench/1\"");
    assert_eq!(json.matches("\"share_of_peak\"").count(), 4);
    assert!(number(json, "clock_hertz") > 1e8 && number(json, "ridge_point_flop_per_byte") > 0.0, "{json}");
    let peak = number(json, "flop_per_second");
    let message = refusal(&words);
    assert!(message.contains("exists already") && message.contains("--force"), "{message}");

    let planned =
        answer(&["time", "dense:1M", "--tokens", "1M", "--hw", file, "--dtype", "fp32", "--mfu", "1", "--json"]);
    let seconds = 6e12 / peak;
    assert!((number(&planned, "seconds") / seconds - 1.0).abs() < 1e-4, "{seconds} {planned}");
    assert!(answer(&["hw", file]).contains("napkin bench"));
    std::fs::write(file, "name = 3").expect("written");
    let message = refusal(&["plan", "gpt2", "--hw", file]);
    assert!(message.contains("describes no device") && message.contains("`name` in the file is no text"), "{message}");
    assert!(refusal(&["plan", "gpt2", "--hw", "none.toml"]).contains("cannot be read"));
    assert!(refusal(&["bench", "--save", "cpu.json"]).contains("does not end in .toml"));
    std::fs::remove_dir_all(&folder).expect("removed");
}

#[test]
fn whole_steps_are_timed() {
    let json = answer(&[
        "bench",
        "step",
        "gpt2",
        "--set",
        "n_layer=2",
        "--set",
        "n_embd=32",
        "--set",
        "n_head=2",
        "--set",
        "vocab_size=64",
        "--batch",
        "2",
        "--seq-len",
        "16",
        "--steps",
        "3",
        "-j",
        "2",
        "--peak",
        "1TFLOP/s",
        "--json",
    ]);
    for (name, value) in
        [("engine", "\"napkin\""), ("precision", "\"fp32\""), ("batch", "2"), ("seq_len", "16"), ("threads", "2")]
    {
        assert_eq!(field(&json, name), value, "{json}");
    }
    let list = |name: &str| {
        let from = json.find(&format!("\"{name}\": [")).unwrap_or_else(|| panic!("no {name} in {json}"));
        let list = json[from..].split_once('[').expect("a list").1.split(']').next().expect("an end");
        list.split(',').map(|x| x.trim().parse::<f64>().expect("a number")).collect::<Vec<_>>()
    };
    assert_eq!((list("seconds").len(), list("loss").len()), (3, 4));
    assert!(list("loss").is_sorted_by(|a, b| a > b), "the batch is learned: {json}");
    assert_eq!(number(&json, "allocated_peak_bytes"), number(&json, "predicted_peak_bytes"));
    assert!(number(&json, "reserved_bytes") >= number(&json, "allocated_peak_bytes"));
    assert!(number(&json, "mfu") > 0.0 && number(&json, "mfu") < 1.0);
}
