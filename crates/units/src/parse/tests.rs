use proptest::prelude::*;

use super::error::QUOTED;
use super::*;

#[test]
fn counts_are_exact() {
    for (text, value) in [
        ("15T", 15_000_000_000_000),
        ("70B", 70_000_000_000),
        ("70b", 70_000_000_000),
        ("70G", 70_000_000_000),
        ("1.5B", 1_500_000_000),
        ("8.030261248B", 8_030_261_248),
        ("1.5e12", 1_500_000_000_000),
        ("1.5E+12", 1_500_000_000_000),
        ("6.3e24", 6_300_000_000_000_000_000_000_000),
        ("1,024", 1_024),
        ("1,234,567", 1_234_567),
        ("1_000_000", 1_000_000),
        ("128k", 128_000),
        ("128 K", 128_000),
        ("1M", 1_000_000),
        ("2P", 2_000_000_000_000_000),
        (" +7 ", 7),
        ("-0", 0),
        (".5k", 500),
        ("5.", 5),
        ("1500e-2", 15),
        ("1.000000000000000000000000000000000000000000000", 1),
        ("0e999999999999999999999", 0),
        ("340282366920938463463374607431768211455", u128::MAX),
    ] {
        assert_eq!(parse_count(text), Ok(value), "{text}");
    }
    assert_eq!("6.3e24".parse(), Ok(Flops(6_300_000_000_000_000_000_000_000)));
    assert_eq!("6.30e24 FLOP".parse(), Ok(Flops(6_300_000_000_000_000_000_000_000)));
    assert_eq!("421.6 TFLOP".parse(), Ok(Flops(421_600_000_000_000)));
    assert_eq!("1EFLOP".parse(), Ok(Flops(1_000_000_000_000_000_000)));
    assert_eq!("70B".parse(), Ok(Params(70_000_000_000)));
    assert_eq!("15T".parse(), Ok(Tokens(15_000_000_000_000)));
}

#[test]
fn refused_counts() {
    for (text, problem) in [
        ("", Problem::Empty),
        ("  ", Problem::Empty),
        ("-5", Problem::Negative),
        ("−5", Problem::Negative),
        ("NaN", Problem::NotFinite),
        ("-inf", Problem::NotFinite),
        ("Infinity", Problem::NotFinite),
        ("many", Problem::NotANumber),
        (".", Problem::NotANumber),
        ("1.2.3", Problem::NotANumber),
        ("--1", Problem::NotANumber),
        ("1,5", Problem::MisplacedComma),
        ("1024,000", Problem::MisplacedComma),
        ("1.5,000", Problem::MisplacedComma),
        ("1.5", Problem::NotWhole),
        ("1.2345k", Problem::NotWhole),
        ("1e-999999999999999999999", Problem::NotWhole),
        ("1e39", Problem::TooLarge),
        ("1e99999999999999999999", Problem::TooLarge),
        ("340282366920938463463374607431768211456", Problem::TooLarge),
        ("0.12345678901234567890123456789012345678901", Problem::TooManyDigits),
        ("5 apples", Problem::UnknownUnit("apples".into())),
        ("5E", Problem::UnknownUnit("E".into())),
        ("1e", Problem::UnknownUnit("e".into())),
        ("70GB", Problem::UnknownUnit("GB".into())),
    ] {
        assert_eq!(parse_count(text).unwrap_err().problem, problem, "{text}");
    }
    assert_eq!("1e20".parse::<Tokens>().unwrap_err().problem, Problem::TooLarge);
    assert_eq!(
        "-5".parse::<Tokens>().unwrap_err().to_string(),
        format!("token count `-5` is negative; accepted: {COUNT_FORMS}")
    );
}

#[test]
fn memory_sizes() {
    for (text, value) in [
        ("80GB", 80_000_000_000),
        ("80gb", 80_000_000_000),
        ("80GiB", 85_899_345_920),
        ("80 gib", 85_899_345_920),
        ("786.00 MiB", 824_180_736),
        ("512B", 512),
        ("1.5TiB", 1_649_267_441_664),
        ("1024", 1024),
        ("81,559 MiB", 85_520_809_984),
        ("4kB", 4_000),
        ("4KB", 4_000),
        ("4 bytes", 4),
        ("0.3333333333333333333333333333333333333 PiB", 375_299_968_947_541),
        ("16 EiB", 0),
    ] {
        let parsed = text.parse::<Bytes>();
        if text == "16 EiB" {
            assert_eq!(parsed.unwrap_err().problem, Problem::TooLarge);
        } else {
            assert_eq!(parsed, Ok(Bytes(value)), "{text}");
        }
    }
}

#[test]
fn sizes_without_a_clear_unit_are_refused_with_both_readings() {
    for (text, message) in [
        ("80G", "memory size `80G` has no clear unit: write `80GB` (80e9 bytes) or `80GiB` (85.9e9 bytes)"),
        ("80g", "memory size `80g` has no clear unit: write `80GB` (80e9 bytes) or `80GiB` (85.9e9 bytes)"),
        ("1.5 T", "memory size `1.5 T` has no clear unit: write `1.5TB` (1.5e12 bytes) or `1.5TiB` (1.65e12 bytes)"),
        ("512K", "memory size `512K` has no clear unit: write `512kB` (512e3 bytes) or `512KiB` (524e3 bytes)"),
        ("80M", "memory size `80M` has no clear unit: write `80MB` (80e6 bytes) or `80MiB` (83.9e6 bytes)"),
        ("0G", "memory size `0G` has no clear unit: write `0GB` (0 bytes) or `0GiB` (0 bytes)"),
    ] {
        assert_eq!(text.parse::<Bytes>().unwrap_err().to_string(), message);
    }
    for (text, problem) in [
        ("80Gb", Problem::Bits),
        ("80Gib", Problem::Bits),
        ("8 bits", Problem::Bits),
        ("1.5B", Problem::NotWhole),
        ("80XB", Problem::UnknownUnit("XB".into())),
        ("80GBB", Problem::UnknownUnit("GBB".into())),
        ("GB", Problem::NotANumber),
        ("-80GB", Problem::Negative),
        ("1e30GB", Problem::TooLarge),
    ] {
        assert_eq!(text.parse::<Bytes>().unwrap_err().problem, problem, "{text}");
    }
}

#[test]
fn times() {
    for (text, value) in [
        ("0.16", 0.16),
        ("30ms", 0.03),
        ("14d", 1_209_600.0),
        ("14 days", 1_209_600.0),
        ("6h", 21_600.0),
        ("90s", 90.0),
        ("10us", 1e-5),
        ("2.17 µs", 2.17e-6),
        ("2.17 μs", 2.17e-6),
        ("5min", 300.0),
        ("1e-3", 1e-3),
    ] {
        assert_eq!(text.parse::<Seconds>().unwrap().get(), value, "{text}");
    }
    for (text, problem) in [
        ("", Problem::Empty),
        ("-1s", Problem::Negative),
        ("inf", Problem::NotFinite),
        ("1e400", Problem::TooLarge),
        ("1e308 days", Problem::TooLarge),
        ("3 moons", Problem::UnknownUnit("moons".into())),
    ] {
        assert_eq!(text.parse::<Seconds>().unwrap_err().problem, problem, "{text}");
    }
}

#[test]
fn shares() {
    assert_eq!("0.4".parse(), Mfu::new(0.4).map_err(|_| unreachable!()));
    assert_eq!("40%".parse::<Mfu>().unwrap().get(), 0.4);
    assert_eq!("104 %".parse::<Hfu>().unwrap().get(), 1.04);
    assert_eq!(
        "40".parse::<Mfu>().unwrap_err().to_string(),
        "MFU `40` is above 1: write `40%` if it is a percentage; accepted: 0.4, 40%"
    );
}

#[test]
fn errors_quote_no_more_than_a_line_and_no_escapes() {
    let error = "\u{1b}[31m".repeat(1000).parse::<Bytes>().unwrap_err();
    assert_eq!(error.input.chars().count(), QUOTED + 1);
    assert!(!error.to_string().contains('\u{1b}'));
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 0.005_001 * a.abs().max(b.abs())
}

proptest! {
    #[test]
    fn no_string_panics(text in any::<String>(), tail in "[-+0-9.,_eE]{0,50}[kKMGTPEiBbFLOPsmdhµ% ]{0,5}") {
        for text in [&text, &tail, &format!("{tail}{text}")] {
            let _ = parse_count(text).map_err(|e| e.to_string());
            let _ = text.parse::<Flops>().map_err(|e| e.to_string());
            let _ = text.parse::<Bytes>().map_err(|e| e.to_string());
            let _ = text.parse::<Seconds>().map_err(|e| e.to_string());
            let _ = text.parse::<Mfu>().map_err(|e| e.to_string());
        }
    }

    #[test]
    fn integers_are_exact(value in any::<u128>(), bytes in any::<u64>()) {
        prop_assert_eq!(parse_count(&value.to_string()), Ok(value));
        prop_assert_eq!(parse_count(&group_digits(value)), Ok(value));
        prop_assert_eq!(bytes.to_string().parse(), Ok(Bytes(bytes)));
        prop_assert_eq!(format!("{bytes} B").parse(), Ok(Bytes(bytes)));
    }

    #[test]
    fn fractions_of_a_suffix_are_exact(millis in 0_u64..u64::MAX / 1_000_000_000) {
        let text = format!("{}.{:03}B", millis / 1000, millis % 1000);
        prop_assert_eq!(parse_count(&text), Ok(u128::from(millis) * 1_000_000));
    }

    #[test]
    fn display_reads_back(bits in 0_u32..64, low in any::<u64>(), flops in any::<u128>()) {
        let value = (1_u64 << bits) | (low & ((1_u64 << bits) - 1));
        prop_assume!(value < 15 << 60);
        let read = Params(value).to_string().parse::<Params>().unwrap();
        prop_assert!(close(read.as_f64(), value as f64), "{}", Params(value));
        for text in [Bytes(value).iec(), Bytes(value).iec_fixed(2), Bytes(value).si()] {
            let read = text.parse::<Bytes>().unwrap();
            prop_assert!(close(read.as_f64(), value as f64), "{}", text);
        }
        let flops = Flops(flops >> (2 * bits));
        prop_assume!(flops.0 < 3 * 10_u128.pow(38));
        let read = flops.to_string().parse::<Flops>().unwrap();
        prop_assert!(close(read.as_f64(), flops.as_f64()), "{}", flops);
        let seconds = Seconds::new(value as f64 * 1e-12).unwrap();
        let read = seconds.to_string().parse::<Seconds>().unwrap();
        prop_assert!(close(read.get(), seconds.get()), "{}", seconds);
    }
}
