//! Published vectors, independence of order, and moments.

use super::*;

/// Random123 1.14, `tests/kat_vectors`, the lines `philox4x32 10`: counter, key, result.
const KNOWN_ANSWERS: [([u32; 4], [u32; 2], [u32; 4]); 3] = [
    ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
    ([u32::MAX; 4], [u32::MAX; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
    (
        [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
        [0xa409_3822, 0x299f_31d0],
        [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
    ),
];

const N: u64 = 200_000;

fn init(seed: u64) -> Rng {
    Rng::new(seed, Stream::Init)
}

fn moments(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (mut n, mut sum, mut squares) = (0.0, 0.0, 0.0);
    for x in values {
        n += 1.0;
        sum += x;
        squares += x * x;
    }
    let mean = sum / n;
    (mean, squares / n - mean * mean)
}

#[test]
fn philox_gives_the_published_vectors() {
    for (counter, key, expected) in KNOWN_ANSWERS {
        assert_eq!(philox4x32_10(counter, key), expected);
    }
}

#[test]
fn filling_in_pieces_gives_the_single_numbers() {
    let rng = init(7);
    let single: Vec<f32> = (0..1000).map(|i| rng.normal(3, i) as f32).collect();
    let uniform: Vec<f32> = (0..1000).map(|i| rng.uniform_f32(3, i)).collect();
    for piece in [1, 2, 3, 4, 5, 64, 333, 1000] {
        let (mut z, mut u) = (vec![0.0; 1000], vec![0.0; 1000]);
        // Back to front, to show that order is nothing.
        for start in (0..1000).step_by(piece).rev() {
            let end = (start + piece).min(1000);
            rng.fill_normal(3, start as u64, &mut z[start..end]);
            rng.fill_uniform(3, start as u64, &mut u[start..end]);
        }
        assert_eq!(z, single, "pieces of {piece}");
        assert_eq!(u, uniform, "pieces of {piece}");
    }
    rng.fill_normal(3, 5, &mut []);
}

#[test]
fn filling_on_threads_gives_the_single_numbers() {
    let rng = init(7);
    let mut alone = vec![0.0; 4000];
    rng.fill_normal(9, 0, &mut alone);
    let mut shared = vec![0.0; 4000];
    std::thread::scope(|scope| {
        for (start, chunk) in (0..).step_by(777).zip(shared.chunks_mut(777)) {
            scope.spawn(move || rng.fill_normal(9, start, chunk));
        }
    });
    assert_eq!(alone, shared);
}

#[test]
fn seed_stream_site_and_element_all_matter() {
    let base = init(1);
    let others = [
        init(2).bits64(5, 11),
        init(1 << 32).bits64(5, 11),
        Rng::new(1, Stream::Dropout).bits64(5, 11),
        base.for_stream(Stream::DataOrder).bits64(5, 11),
        base.bits64(6, 11),
        base.bits64(5 + (1 << 32), 11),
        base.bits64(5, 10),
        base.bits64(5, 11 + (1 << 34)),
    ];
    assert!(others.iter().all(|bits| *bits != base.bits64(5, 11)));
    assert_eq!(init(1).bits64(5, 11), base.bits64(5, 11));
}

#[test]
fn numbers_of_a_seed_never_change() {
    // A change here changes every recorded training run. The values agree with a second implementation in Python, the
    // two normals to the last place of its mathematics library.
    let rng = Rng::new(42, Stream::Dropout);
    let interval = TruncatedNormal::new(-2.0, 2.0).expect("an interval");
    let n = NonZeroU64::new(50_257).expect("not zero");
    assert_eq!(rng.bits64(3, 5), 0x4336_1744_7fac_f60f);
    assert_eq!(rng.bits32(3, 5), 3_809_645_436);
    assert_eq!(rng.uniform_f32(3, 5), 0.887_002_17);
    assert_eq!(rng.uniform_f64(3, 5), 0.262_544_111_464_808_8);
    assert_eq!(rng.normal(3, 5), -1.581_171_769_305_783_4);
    assert_eq!(rng.truncated_normal(3, 5, &interval), -0.602_717_204_781_797_4);
    assert_eq!(rng.below(3, 5, n), 13_194);
}

#[test]
fn uniforms_are_uniform() {
    let rng = init(11);
    let all = |f: &dyn Fn(u64) -> f64| {
        let mut bins = [0_u32; 100];
        for x in (0..N).map(f) {
            assert!((0.0..1.0).contains(&x));
            bins[(x * 100.0) as usize] += 1;
        }
        let expected = N as f64 / 100.0;
        let chi_squared: f64 = bins.iter().map(|count| (f64::from(*count) - expected).powi(2) / expected).sum();
        // 99 degrees of freedom: the middle 99.9 % lie between these.
        assert!((55.0..158.0).contains(&chi_squared), "{chi_squared}");
    };
    all(&|i| f64::from(rng.uniform_f32(0, i)));
    all(&|i| rng.uniform_f64(1, i));
    // Along sites, too.
    all(&|site| rng.uniform_f64(site, 0));
    let n = NonZeroU64::new(100).expect("not zero");
    all(&|i| rng.below(2, i, n) as f64 / 100.0 + 0.001);
}

#[test]
fn normals_are_normal() {
    let rng = init(12);
    let sigma = 1.0 / (N as f64).sqrt();
    let (mean, variance) = moments((0..N).map(|i| rng.normal(0, i)));
    assert!(mean.abs() < 4.0 * sigma, "mean {mean}");
    assert!((variance - 1.0).abs() < 4.0 * sigma * 2.0_f64.sqrt(), "variance {variance}");
    // Neighbours are uncorrelated, though two of them share a radius.
    for lag in [1, 2, 3] {
        let (covariance, _) = moments((0..N).map(|i| rng.normal(0, i) * rng.normal(0, i + lag)));
        assert!(covariance.abs() < 4.0 * sigma, "lag {lag}: {covariance}");
    }
    // Kolmogorov-Smirnov, critical value at 0.1 %.
    let mut sorted: Vec<f64> = (0..N).map(|i| rng.normal(0, i)).collect();
    sorted.sort_by(f64::total_cmp);
    let distance = (0_u32..)
        .zip(&sorted)
        .map(|(rank, x)| (math::normal_cdf(*x) - f64::from(rank) / N as f64).abs())
        .fold(0.0, f64::max);
    assert!(distance < 1.95 * sigma, "{distance}");
}

#[test]
fn truncated_normals_stay_inside_and_have_the_right_moments() {
    let rng = init(13);
    let inf = f64::INFINITY;
    // (low, high, mean, variance) by the closed formulas with the density at the ends.
    for (low, high, mean, variance) in [
        (-2.0, 2.0, 0.0, 0.773_741_303_5),
        (-3.0, 3.0, 0.0, 0.973_336_924_7),
        (0.5, 2.0, 1.042_993_334, 0.150_281_521_5),
        (-inf, inf, 0.0, 1.0),
        (5.0, inf, 5.186_503_967, 0.032_696_434),
    ] {
        let interval = TruncatedNormal::new(low, high).expect("an interval");
        let draw = |i| rng.truncated_normal(0, i, &interval);
        assert!((0..N).all(|i| (low..=high).contains(&draw(i))), "{low} {high}");
        let (m, v) = moments((0..N).map(draw));
        let sigma = (variance / N as f64).sqrt();
        assert!((m - mean).abs() < 4.0 * sigma, "{low}..{high}: mean {m}");
        assert!((v / variance - 1.0).abs() < 0.02, "{low}..{high}: variance {v}");
    }
}

#[test]
fn intervals_without_probability_are_refused() {
    for (low, high, reason) in [
        (1.0, 1.0, "lower end must be below"),
        (2.0, -2.0, "lower end must be below"),
        (f64::NAN, 1.0, "lower end must be below"),
        (40.0, 50.0, "too far from the mean"),
        (-50.0, -40.0, "too far from the mean"),
    ] {
        let error = TruncatedNormal::new(low, high).expect_err("no probability").to_string();
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn bernoulli_keeps_its_probability_and_its_limits() {
    let rng = Rng::new(14, Stream::Dropout);
    for p in [0.1, 0.5, 0.9] {
        let hits = (0..N).filter(|i| rng.bernoulli(0, *i, p)).count() as f64;
        let sigma = (p * (1.0 - p) / N as f64).sqrt();
        assert!((hits / N as f64 - p).abs() < 4.0 * sigma, "{p}: {hits}");
    }
    for (p, always) in [(0.0, false), (-1.0, false), (f64::NAN, false), (1.0, true), (2.0, true)] {
        assert!((0..1000).all(|i| rng.bernoulli(0, i, p) == always), "{p}");
    }
}
