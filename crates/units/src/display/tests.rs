use super::*;

#[test]
fn counts() {
    for (value, text) in [
        (0, "0"),
        (1_024, "1,024"),
        (9_999, "9,999"),
        (131_072, "131 K"),
        (999_950, "1.00 M"),
        (3_540_000, "3.54 M"),
        (8_030_261_248, "8.03 B"),
        (42_800_000_000, "42.8 B"),
        (15_000_000_000_000, "15.0 T"),
        (u64::MAX, "1.84e19"),
    ] {
        assert_eq!(Params(value).to_string(), text);
        assert_eq!(Tokens(value).to_string(), text);
    }
    assert_eq!(Params(8_030_261_248).with_digits(5), "8.0303 B");
    assert_eq!(format!("[{:>8}]", Params(8_030_261_248)), "[  8.03 B]");
}

#[test]
fn flops() {
    for (value, digits, text) in [
        (0, 3, "0 FLOP"),
        (496, 3, "496 FLOP"),
        (1_000, 3, "1.00 kFLOP"),
        (51_470_000_000, 3, "51.5 GFLOP"),
        (51_470_000_000, 4, "51.47 GFLOP"),
        (421_600_000_000_000, 3, "422 TFLOP"),
        (421_600_000_000_000, 4, "421.6 TFLOP"),
        (999_999, 3, "1.00 MFLOP"),
        (999_000_000_000_000_000_000, 3, "999 EFLOP"),
        (999_999_000_000_000_000_000, 3, "1.00e21 FLOP"),
        (6_300_000_000_000_000_000_000_000, 3, "6.30e24 FLOP"),
        (u128::MAX, 3, "3.40e38 FLOP"),
        (1_234_567, 0, "1 MFLOP"),
        (123_456, 1, "100 kFLOP"),
        (1_234, 9, "1.23400000 kFLOP"),
    ] {
        assert_eq!(Flops(value).with_digits(digits), text);
    }
}

#[test]
fn memory() {
    for (value, iec, fixed, si) in [
        (0, "0 B", "0 B", "0 B"),
        (496, "496 B", "496 B", "496 B"),
        (1_000, "1,000 B", "1,000 B", "1.00 kB"),
        (1_024, "1.00 KiB", "1.00 KiB", "1.02 kB"),
        (824_180_736, "786 MiB", "786.00 MiB", "824 MB"),
        (74_371_858_432, "69.3 GiB", "69.26 GiB", "74.4 GB"),
        (85_520_809_984, "79.6 GiB", "79.65 GiB", "85.5 GB"),
        (1_047_552, "1,023 KiB", "1,023.00 KiB", "1.05 MB"),
        (1_048_575, "1.00 MiB", "1.00 MiB", "1.05 MB"),
        (u64::MAX, "16.0 EiB", "16.00 EiB", "18.4 EB"),
    ] {
        assert_eq!(Bytes(value).iec(), iec);
        assert_eq!(Bytes(value).to_string(), iec);
        assert_eq!(Bytes(value).iec_fixed(2), fixed);
        assert_eq!(Bytes(value).si(), si);
    }
    assert_eq!(Bytes(20_971_520).si_with_digits(4), "20.97 MB");
}

#[test]
fn times() {
    for (value, text) in [
        (0.0, "0 s"),
        (2.17e-6, "2.17 µs"),
        (6.5e-8, "65 ns"),
        (0.1581, "158.1 ms"),
        (0.01970, "19.7 ms"),
        (0.99996, "1.00 s"),
        (1.31, "1.31 s"),
        (38.0, "38 s"),
        (59.96, "60.0 s"),
        (60.0, "1 min"),
        (90.0, "1.50 min"),
        (51_120.0, "14.2 h"),
        (143.92 * 86_400.0, "143.9 days"),
        (1_209_600.0, "14 days"),
        (1234.56 * 86_400.0, "1,234.6 days"),
        (1e-15, "1.00e-6 ns"),
        (f64::MAX, "2.08e303 days"),
    ] {
        assert_eq!(Seconds::new(value).unwrap().to_string(), text, "{value:e}");
    }
}

#[test]
fn rates() {
    for (value, text) in [
        (0.0, "0 FLOP/s"),
        (12.0, "12.0 FLOP/s"),
        (989.5e12, "989.5 TFLOP/s"),
        (506.624e15, "506.6 PFLOP/s"),
        (102.9e9, "102.9 GFLOP/s"),
        (999.99e9, "1.00 TFLOP/s"),
        (999.96, "1.00 kFLOP/s"),
        (1e21, "1.00e21 FLOP/s"),
    ] {
        assert_eq!(FlopPerSecond::new(value).unwrap().to_string(), text, "{value:e}");
    }
    assert_eq!(BytesPerSecond::tera(3.35).to_string(), "3.35 TB/s");
    for (value, text) in
        [(4_812.3, "4,812 tok/s"), (33.14, "33.1 tok/s"), (0.5, "0.500 tok/s"), (1.5e6, "1.50 M tok/s")]
    {
        assert_eq!(TokensPerSecond::new(value).unwrap().to_string(), text);
    }
}

#[test]
fn shares() {
    for (value, text) in
        [(0.4, "40.0 %"), (1.04, "104.0 %"), (-0.545, "-54.5 %"), (-0.0001, "0.0 %"), (f64::NAN, "n/a")]
    {
        assert_eq!(percent(value), text);
    }
    assert_eq!(Mfu::new(0.331).unwrap().to_string(), "33.1 %");
}

#[test]
fn thousands() {
    for (value, text) in [(0, "0"), (999, "999"), (1_024, "1,024"), (8_912_896_000, "8,912,896,000")] {
        assert_eq!(group_digits(value), text);
    }
}
