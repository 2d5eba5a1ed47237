//! Every bit pattern of the 8- and 16-bit formats, against the `half` crate, a brute-force search and `PyTorch`.

use std::collections::BTreeMap;

use half::{bf16, f16};

use super::convert::*;
use super::torch_reference::{CAST_HASHES, F8E4M3_TO_F32_BITS, F8E5M2_TO_F32_BITS, NON_SATURATING_E4M3_HASHES};
use super::*;

const NARROW: [FloatFormat; 4] = [FloatFormat::BF16, FloatFormat::FP16, FloatFormat::E4M3, FloatFormat::E5M2];

fn codes(format: &FloatFormat) -> std::ops::Range<u64> {
    0..1 << format.width()
}

/// All finite values with non-negative sign, ascending: codes count up with magnitude.
fn finite_magnitudes(format: &FloatFormat) -> Vec<f64> {
    (0..=format.max_finite_bits()).map(|c| format.decode(c)).collect()
}

#[test]
fn decode_then_encode_is_the_identity() {
    for format in NARROW {
        for code in codes(&format) {
            let value = format.decode(code);
            if value.is_nan() {
                let magnitude = format.encode(value) & !(1 << (format.width() - 1));
                assert_eq!(magnitude, format.nan_bits());
            } else {
                assert_eq!(format.encode(value), code, "{} {code:#x}", format.name);
            }
        }
    }
}

#[test]
fn nans_and_infinities_sit_where_the_specifications_say() {
    let count = |format: &FloatFormat, kind: fn(f64) -> bool| codes(format).filter(|c| kind(format.decode(*c))).count();
    // (format, NaN codes, infinities): mantissa not zero under the all-ones exponent, twice for the signs.
    for (format, nans, infinities) in [
        (FloatFormat::BF16, 2 * 127, 2),
        (FloatFormat::FP16, 2 * 1023, 2),
        (FloatFormat::E5M2, 2 * 3, 2),
        (FloatFormat::E4M3, 2, 0),
    ] {
        assert_eq!(count(&format, f64::is_nan), nans, "{}", format.name);
        assert_eq!(count(&format, f64::is_infinite), infinities, "{}", format.name);
    }
    assert!(FloatFormat::E4M3.decode(0x7F).is_nan() && FloatFormat::E4M3.decode(0xFF).is_nan());
}

#[test]
fn midpoints_tie_to_even_and_their_neighbours_do_not() {
    for format in NARROW {
        for (low_code, pair) in (0..).zip(finite_magnitudes(&format).windows(2)) {
            let middle = f64::midpoint(pair[0], pair[1]);
            let even = low_code + (low_code & 1);
            assert_eq!(format.encode(middle), even, "{} {middle}", format.name);
            assert_eq!(format.encode(middle.next_down()), low_code);
            assert_eq!(format.encode(middle.next_up()), low_code + 1);
            let sign = 1 << (format.width() - 1);
            assert_eq!(format.encode(-middle), sign | even);
        }
    }
}

#[test]
fn the_wide_formats_agree_with_the_hardware() {
    let mut state = 1_u64;
    for _ in 0..200_000 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let x = f64::from_bits(state);
        if x.is_nan() {
            continue;
        }
        // Half of the exponents lie outside fp32's range; scale a copy into it.
        for x in [x, f64::from_bits(state >> 12 | 0x3FF << 52), f64::from_bits(state >> 5) * 1e-44] {
            assert_eq!(FloatFormat::FP64.encode(x), x.to_bits());
            assert_eq!(FloatFormat::FP64.decode(x.to_bits()), x);
            assert_eq!(FloatFormat::FP32.encode(x), u64::from((x as f32).to_bits()));
            assert_eq!(FloatFormat::FP32.decode(u64::from((x as f32).to_bits())), f64::from(x as f32));
        }
    }
}

/// `f32` codes that exercise every rounding decision: the sets that `torch_reference.py` uses too.
fn f32_inputs(set: &str) -> Vec<u32> {
    let mut out = Vec::new();
    match set {
        "scattered" => out.extend((0..1_u32 << 16).map(|i| i.wrapping_mul(0x9E37_79B1))),
        "bf16_midpoints" => {
            for high in 0..1_u32 << 16 {
                out.extend([0x7FFF, 0x8000, 0x8001].map(|low| high << 16 | low));
            }
        }
        "f16_midpoints" | "fp8_midpoints" => {
            let (bits, lows) =
                if set == "f16_midpoints" { (10, [0x0FFF, 0x1000, 0x1001]) } else { (4, [0, 1, 0x7_FFFF]) };
            for sign in 0..2_u32 {
                for exponent in 100..145_u32 {
                    for mantissa in 0..1_u32 << bits {
                        let high = sign << 31 | exponent << 23 | mantissa << (23 - bits);
                        out.extend(lows.map(|low| high | low));
                    }
                }
            }
        }
        _ => panic!("no input set {set}"),
    }
    out
}

#[test]
fn generic_rounding_agrees_with_half_and_with_the_kernels_conversions() {
    for set in ["scattered", "bf16_midpoints", "f16_midpoints", "fp8_midpoints"] {
        for x in f32_inputs(set).into_iter().map(f32::from_bits) {
            let wide = f64::from(x);
            if x.is_nan() {
                assert!(bf16_bits_to_f32(f32_to_bf16_bits(x)).is_nan());
                assert!(f16_bits_to_f32(f32_to_f16_bits(x)).is_nan());
                assert_eq!(f32_to_f8e4m3_bits(x) & 0x7F, 0x7F);
                assert_eq!(f32_to_f8e4m3_bits_saturating(x) & 0x7F, 0x7F);
                assert!(f8e5m2_bits_to_f32(f32_to_f8e5m2_bits(x)).is_nan());
                assert!(f8e5m2_bits_to_f32(f32_to_f8e5m2_bits_saturating(x)).is_nan());
                continue;
            }
            let direct = Overflow::NonSaturating;
            let clamped = Overflow::Saturating;
            for (format, overflow, code) in [
                (FloatFormat::BF16, direct, f32_to_bf16_bits(x)),
                (FloatFormat::FP16, direct, f32_to_f16_bits(x)),
                (FloatFormat::E4M3, direct, f32_to_f8e4m3_bits(x).into()),
                (FloatFormat::E4M3, clamped, f32_to_f8e4m3_bits_saturating(x).into()),
                (FloatFormat::E5M2, direct, f32_to_f8e5m2_bits(x).into()),
                (FloatFormat::E5M2, clamped, f32_to_f8e5m2_bits_saturating(x).into()),
            ] {
                let expected = format.encode_with(wide, overflow);
                assert_eq!(u64::from(code), expected, "{} {overflow:?} {x:e}", format.name);
            }
        }
    }
}

#[test]
fn decoding_agrees_with_half() {
    for code in 0..=u16::MAX {
        for (format, theirs) in
            [(FloatFormat::FP16, f16::from_bits(code).to_f64()), (FloatFormat::BF16, bf16::from_bits(code).to_f64())]
        {
            let ours = format.decode(u64::from(code));
            assert!(
                ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan()),
                "{} {code:#x}",
                format.name
            );
        }
    }
}

/// Nearest by exhaustive search over the finite values and the one that would follow them, ties to the even code.
fn nearest_by_search(magnitudes: &[f64], x: f64) -> u64 {
    let mut best = 0;
    for (code, value) in magnitudes.iter().enumerate() {
        let (distance, least) = ((value - x).abs(), (magnitudes[best] - x).abs());
        if distance < least || (distance == least && code % 2 == 0) {
            best = code;
        }
    }
    best as u64
}

#[test]
fn every_f16_lands_on_the_nearest_fp8() {
    for (format, beyond) in [(FloatFormat::E4M3, 480.0), (FloatFormat::E5M2, 65536.0)] {
        let mut magnitudes = finite_magnitudes(&format);
        // The value that the next code would have if the exponent went on: nearest to it means overflow.
        magnitudes.push(beyond);
        for code in 0..=u16::MAX {
            let x = f16::from_bits(code).to_f64();
            if x.is_finite() {
                let expected = nearest_by_search(&magnitudes, x.abs());
                let sign = u64::from(x.is_sign_negative()) << 7;
                assert_eq!(format.encode(x), sign | expected, "{} {x}", format.name);
            }
        }
    }
}

#[test]
fn f64_is_rounded_once() {
    // A tie in f16 after rounding to f32, above the tie before it.
    let x = 1.0 + 2.0_f64.powi(-11) + 2.0_f64.powi(-40);
    assert_eq!(FloatFormat::FP16.round(x), 1.0 + 2.0_f64.powi(-10));
    assert_eq!(f16_bits_to_f32(f32_to_f16_bits(x as f32)), 1.0);
    let x = 1.0 + 2.0_f64.powi(-4) + 2.0_f64.powi(-40);
    assert_eq!(FloatFormat::E4M3.round(x), 1.125);
    assert_eq!(f8e4m3_bits_to_f32(f32_to_f8e4m3_bits(x as f32)), 1.0);
}

#[test]
fn overflow_rules() {
    let cases: [(FloatFormat, f64, f64, f64); 4] = [
        // format, largest finite, the tie beyond it, what the tie gives
        (FloatFormat::E4M3, 448.0, 464.0, 448.0),
        (FloatFormat::E5M2, 57344.0, 61440.0, f64::INFINITY),
        (FloatFormat::FP16, 65504.0, 65520.0, f64::INFINITY),
        (FloatFormat::BF16, 3.389_531_389_251_535_5e38, (2.0 - 2.0_f64.powi(-8)) * 2.0_f64.powi(127), f64::INFINITY),
    ];
    for (format, largest, tie, at_tie) in cases {
        assert_eq!(format.max_finite(), largest, "{}", format.name);
        assert_eq!(format.round(tie), at_tie, "{}", format.name);
        assert_eq!(format.round(-tie), -at_tie, "{}", format.name);
        assert_eq!(format.round(tie.next_down()), largest, "{}", format.name);
        for x in [tie.next_up(), f64::MAX, f64::INFINITY] {
            let beyond = format.round(x);
            assert_eq!(beyond.is_infinite(), format.has_infinity, "{}", format.name);
            assert_eq!(beyond.is_nan(), !format.has_infinity, "{}", format.name);
            let clamped = format.decode(format.encode_with(-x, Overflow::Saturating));
            assert_eq!(clamped, -largest, "{}", format.name);
        }
        assert!(format.decode(format.encode_with(f64::NAN, Overflow::Saturating)).is_nan());
    }
}

#[test]
fn table_facts() {
    // name, bits, max, smallest normal, smallest subnormal, epsilon, integers exact up to; from the IEEE 754 and OFP8
    // tables.
    let expected = [
        ("fp64", 64, f64::MAX, f64::MIN_POSITIVE, 5e-324, f64::EPSILON, 1 << 53),
        ("fp32", 32, f64::from(f32::MAX), 2.0_f64.powi(-126), 2.0_f64.powi(-149), 2.0_f64.powi(-23), 16_777_216),
        ("tf32", 19, 3.401_162_134_214_653_5e38, 2.0_f64.powi(-126), 2.0_f64.powi(-136), 2.0_f64.powi(-10), 2048),
        ("bf16", 16, 3.389_531_389_251_535_5e38, 2.0_f64.powi(-126), 2.0_f64.powi(-133), 0.007_812_5, 256),
        ("fp16", 16, 65504.0, 2.0_f64.powi(-14), 2.0_f64.powi(-24), 0.000_976_562_5, 2048),
        ("e4m3", 8, 448.0, 0.015_625, 0.001_953_125, 0.125, 16),
        ("e5m2", 8, 57344.0, 2.0_f64.powi(-14), 2.0_f64.powi(-16), 0.25, 8),
    ];
    let got = FloatFormat::ALL.map(|f| {
        (f.name, f.width(), f.max_finite(), f.min_normal(), f.min_subnormal(), f.epsilon(), f.max_exact_integer())
    });
    assert_eq!(got, expected);
    for format in FloatFormat::ALL {
        let limit = format.max_exact_integer() as f64;
        if limit < 1e8 {
            assert!((0..=limit as u32).all(|n| format.round(f64::from(n)) == f64::from(n)));
        }
        // The next odd number is a tie and falls back.
        assert_eq!(format.round(limit + 1.0), limit);
    }
}

#[test]
fn neighbours_and_spacing() {
    for format in NARROW {
        for pair in finite_magnitudes(&format).windows(2) {
            let [low, high] = [pair[0], pair[1]];
            assert_eq!(format.spacing_at(low), Some(high - low));
            assert_eq!(format.spacing_at(-low), Some(high - low));
            assert_eq!(format.next_up(low), Some(high));
            assert_eq!(format.next_down(high), Some(low));
            assert_eq!(format.next_up(-high), Some(-low));
            let between = low + (high - low) * 0.75;
            assert_eq!(format.next_up(between), Some(high));
            assert_eq!(format.next_down(between), Some(low));
        }
        let largest = format.max_finite();
        assert_eq!(format.next_up(largest), None);
        assert_eq!(format.next_up(f64::NEG_INFINITY), Some(-largest));
        assert_eq!(format.next_down(f64::INFINITY), Some(largest));
        assert_eq!(format.next_up(f64::NAN), None);
        assert_eq!(format.spacing_at(f64::INFINITY), None);
        assert_eq!(format.next_down(0.0), Some(-format.min_subnormal()));
    }
    assert_eq!(FloatFormat::FP64.spacing_at(1.0), Some(f64::EPSILON));
    assert_eq!(FloatFormat::FP64.spacing_at(5e-324), Some(5e-324));
}

fn fnv1a(bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes
        .into_iter()
        .fold(0xCBF2_9CE4_8422_2325, |state, byte| (state ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3))
}

fn f32_of(source: &str, code: u32) -> f32 {
    match source {
        "f16" => f16_bits_to_f32(code as u16),
        "bf16" => bf16_bits_to_f32(code as u16),
        _ => f32::from_bits(code),
    }
}

fn format_of(name: &str) -> FloatFormat {
    FloatFormat::of(name.parse().expect("a dtype")).expect("a float")
}

/// The kernels' conversion to `target`.
fn kernel_code(target: &str, overflow: Overflow, x: f32) -> u64 {
    match (target, overflow) {
        ("f32", _) => u64::from(x.to_bits()),
        ("f16", _) => u64::from(f32_to_f16_bits(x)),
        ("bf16", _) => u64::from(f32_to_bf16_bits(x)),
        ("f8e5m2", _) => u64::from(f32_to_f8e5m2_bits(x)),
        (_, Overflow::NonSaturating) => u64::from(f32_to_f8e4m3_bits(x)),
        (_, Overflow::Saturating) => u64::from(f32_to_f8e4m3_bits_saturating(x)),
    }
}

fn assert_casts(reference: &[(&str, &str, &str, u64)], e4m3: Overflow) {
    for &(source, target, set, expected) in reference {
        let inputs = match set {
            "all" => (0..1 << 16).collect(),
            _ => f32_inputs(set),
        };
        let format = format_of(target);
        let overflow = match target {
            "f8e4m3" => e4m3,
            _ => Overflow::NonSaturating,
        };
        let hash = |code: &dyn Fn(f32) -> u64| {
            fnv1a(inputs.iter().flat_map(|i| {
                let code = code(f32_of(source, *i));
                // The script makes NaN canonical; so must this.
                let nan = format.decode(code).is_nan();
                let code = if nan { format.nan_bits() } else { code };
                code.to_le_bytes().into_iter().take(format.width() as usize / 8)
            }))
        };
        let case = format!("{source} -> {target}, {set}");
        let kernel = hash(&|x| kernel_code(target, overflow, x));
        assert_eq!(kernel, expected, "{case}");
        let generic = hash(&|x| format.encode_with(f64::from(x), overflow));
        assert_eq!(generic, expected, "generic {case}");
    }
}

#[test]
fn casts_are_pytorchs() {
    assert_casts(&CAST_HASHES, Overflow::Saturating);
}

#[test]
fn casts_to_e4m3_without_saturation_are_those_of_ml_dtypes() {
    assert_casts(&NON_SATURATING_E4M3_HASHES, Overflow::NonSaturating);
}

#[test]
fn fp8_tables_are_pytorchs() {
    for (format, values, reference) in [
        (FloatFormat::E4M3, &F8E4M3_VALUES, &F8E4M3_TO_F32_BITS),
        (FloatFormat::E5M2, &F8E5M2_VALUES, &F8E5M2_TO_F32_BITS),
    ] {
        for (code, (value, bits)) in (0..).zip(values.iter().zip(reference)) {
            let reference = f32::from_bits(*bits);
            if reference.is_nan() {
                assert!(value.is_nan() && format.decode(code).is_nan());
            } else {
                assert_eq!(value.to_bits(), *bits, "{} {code:#x}", format.name);
                assert_eq!(format.decode(code).to_bits(), f64::from(reference).to_bits());
            }
        }
    }
}

/// `(format, start, operation, operand, times, result)`: results that users ran into, exact.
#[test]
fn repeated_updates_in_low_precision() {
    let apply: BTreeMap<&str, fn(f32, f32) -> f32> =
        BTreeMap::from([("+", (|a, b| a + b) as fn(f32, f32) -> f32), ("-", |a, b| a - b), ("*", |a, b| a * b)]);
    let bf = FloatFormat::BF16;
    let half = FloatFormat::FP16;
    for (format, start, op, operand, times, result) in [
        // Half a spacing below 1 is 2^-9, so a weight of 1 does not see an update of 0.0006.
        (bf, 1.0_f32, "-", 0.0006_f32, 100, 1.0),
        (bf, 1.0, "-", 0.003_906_25, 1, 0.996_093_75),
        // Sums of ones stop where n + 1 is a tie that goes back to n.
        (bf, 0.0, "+", 1.0, 1024, 256.0),
        (bf, 0.0, "+", 1.0, 5000, 256.0),
        (half, 0.0, "+", 1.0, 1024, 1024.0),
        (half, 0.0, "+", 1.0, 5000, 2048.0),
        // A second moment in bf16 never decays with beta2 = 0.999, and with 0.95 stops at ten smallest subnormals,
        // 9.2e-40, as `PyTorch` does: 9.5 is a tie that goes back to 10.
        (bf, 1.0, "*", 0.999, 5000, 1.0),
        (bf, 1.0, "*", 0.95, 5000, 10.0 * FloatFormat::BF16.min_subnormal()),
    ] {
        let mut stored = f64::from(start);
        for _ in 0..times {
            stored = format.round(f64::from(apply[op](stored as f32, operand)));
        }
        assert_eq!(stored, result, "{} {start} {op} {operand} x {times}", format.name);
    }
    for (format, value, result) in [
        (half, 1e-8, 0.0),
        (half, 65519.0, 65504.0),
        (bf, 36.1, 36.0),
        // 2^-25 is a tie with zero, and zero is even.
        (half, 2.980_232_238_769_531_2e-8, 0.0),
    ] {
        assert_eq!(format.round(value), result, "{} {value}", format.name);
    }
}

#[test]
fn the_smallest_update_that_moves_a_bf16_weight_of_one() {
    let bf = FloatFormat::BF16;
    let down = 2.0_f64.powi(-9);
    assert_eq!(bf.next_down(1.0).map(|below| (1.0 - below) / 2.0), Some(down));
    assert_eq!(bf.round(1.0 - down), 1.0);
    assert_eq!(bf.round(1.0 - down * (1.0 + 2.0_f64.powi(-40))), 1.0 - 2.0 * down);
    let up = 2.0_f64.powi(-8);
    assert_eq!(bf.spacing_at(1.0), Some(2.0 * up));
    assert_eq!(bf.round(1.0 + up), 1.0);
    assert_eq!(bf.round(1.0 + up + f64::EPSILON), 1.0 + 2.0 * up);
}

#[test]
fn a_bf16_second_moment_is_a_ratchet() {
    // The unfused update stores v * beta2, then adds (1 - beta2) * g^2; from v = 1 it rises only when that exceeds
    // 2^-8.
    let bf = FloatFormat::BF16;
    let step = |g_squared: f64| bf.round(bf.round(1.0 * 0.999) + 0.001 * g_squared);
    assert_eq!(step(3.90), 1.0);
    assert_eq!(step(3.91), 1.007_812_5);
    // No mantissa decays: 0.001 v is less than half a spacing everywhere in the normal range.
    assert!((0x80..=bf.max_finite_bits()).all(|code| bf.encode(bf.decode(code) * 0.999) == code));
}
