use super::table::FILES;
use super::*;

fn tera(name: &str, precision: Precision) -> f64 {
    let hardware = find(name).unwrap_or_else(|error| panic!("{error}"));
    let peak = hardware.peak(precision).unwrap_or_else(|| panic!("{name} has no {precision}"));
    peak.rate.get() / 1e12
}

fn close(name: &str, got: f64, want: f64) {
    assert!((got / want - 1.0).abs() <= 0.01, "{name}: {got}, wanted {want}");
}

/// Cases hardware-01, -03 and -05: dense bf16 with fp32 accumulation, ± 1 %.
#[test]
fn bf16_peaks_of_the_cases() {
    for (name, want) in [
        ("RTX 3090", 71.2),
        ("RTX A6000", 154.8),
        ("A10", 125.0),
        ("RTX 4090", 165.2),
        ("RTX 5090", 209.5),
        ("B200", 2250.0),
        ("GB200", 2500.0),
        ("MI250X (device)", 191.5),
        ("MI300X", 1307.4),
        ("MI325X", 1307.4),
        ("MI350X", 2300.0),
        ("MI355X", 2500.0),
        ("H100 PCIe", 756.5),
        ("H100 NVL", 835.5),
        ("H100 SXM", 989.4),
        ("H800 SXM", 989.4),
        ("H20", 148.0),
        ("H200", 989.4),
        ("A100 SXM 80 GB", 312.0),
        ("A100 PCIe 40GB", 312.0),
    ] {
        close(name, tera(name, Precision::Bf16), want);
    }
}

#[test]
fn an_mi250x_module_is_two_devices() {
    let hardware = find("mi250x").unwrap();
    assert_eq!(hardware.devices_per_package, 2);
    close("module", 2.0 * tera("mi250x", Precision::Bf16), 383.0);
}

#[test]
fn memory_of_the_cases() {
    for (name, gigabytes) in
        [("H100 PCIe", 80), ("H100 NVL", 94), ("H100 SXM", 80), ("H20", 96), ("H200", 141), ("A100-SXM4-40GB", 40)]
    {
        assert_eq!(find(name).unwrap().capacity_nominal(), Bytes::gb(gigabytes), "{name}");
    }
    let h100 = find("h100-sxm").unwrap();
    assert_eq!(h100.capacity_reported(), Some(Bytes(85_520_809_984)));
    assert_eq!(h100.capacity_reported(), Some(Bytes::mib(81_559)));
    assert_eq!(h100.capacity(), Bytes::mib(81_559));
}

/// The numbers that the mock-ups and the cases mfu-01, mfu-05 and mfu-09 divide by.
#[test]
fn the_h100_of_the_lecture() {
    let h100 = find("h100-sxm").unwrap();
    let peak = |precision| h100.peak(precision).unwrap().rate.get();
    assert_eq!(peak(Precision::Bf16), 989.5e12);
    assert_eq!(peak(Precision::Fp8), 1979e12);
    assert_eq!(peak(Precision::Fp32), 67e12);
    assert_eq!(h100.peak(Precision::Fp32).unwrap().unit, Unit::Vector);
    assert_eq!(h100.peak(Precision::Bf16).unwrap().unit, Unit::Matrix);
    assert_eq!(h100.bandwidth().get(), 3.35e12);
    assert!((h100.ridge_point(Precision::Bf16).unwrap().get() - 295.4).abs() < 0.05);
    assert_eq!(h100.node_link().unwrap().per_direction.get(), 450e9);
    assert_eq!(h100.node_link().unwrap().devices, Some(8));

    close("mfu-01", 1.04 * tera("a100-sxm-80gb", Precision::Bf16) / tera("h100-sxm", Precision::Bf16), 0.328);
    let factor = tera("h100-nvl", Precision::Bf16) / tera("a100-sxm-80gb", Precision::Bf16);
    close("mfu-05", factor, 2.676);
    close("mfu-09", 13_000.0 * 4.687e10 / peak(Precision::Fp8), 0.308);
}

#[test]
fn rates_that_are_no_peaks_are_recognised() {
    let named = |name: &str, tera| -> Vec<_> {
        let hardware = find(name).unwrap();
        hardware.recognise(FlopPerSecond::tera(tera)).map(|rate| (rate.variant, rate.precision)).collect()
    };
    assert!(named("rtx-a6000", 309.7).contains(&(Variant::Sparse, Precision::Bf16)));
    assert!(named("rtx-3090", 142.0).contains(&(Variant::Fp16Accumulate, Precision::Fp16)));
    assert!(named("b200", 4500.0).contains(&(Variant::Sparse, Precision::Bf16)));
    assert!(named("h100-sxm", 1979.0).contains(&(Variant::Sparse, Precision::Bf16)));
    assert!(named("h100-sxm", 312.0).is_empty());
    let measured = find("h100-sxm").unwrap().other_rate(Variant::Measured, Precision::Bf16).unwrap();
    close("measured", measured.tera(), 795.0);
}

#[test]
fn names() {
    for (text, want) in [
        ("H100-SXM", "h100-sxm"),
        (" h100_sxm ", "h100-sxm"),
        ("h100sxm5", "h100-sxm"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("h100-80gb-sxm", "h100-sxm"),
        ("h100-sxm-80gb", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm-80gb"),
        ("a100-80gb-sxm", "a100-sxm-80gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        ("A100 SXM 40 GB", "a100-sxm-40gb"),
        ("Tesla V100-SXM2-32GB", "v100-sxm2-32gb"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("4090", "rtx-4090"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("AMD Instinct MI300X", "mi300x"),
        ("TPU v5e", "tpu-v5e"),
        ("v5p", "tpu-v5p"),
        ("Gaudi 2", "gaudi2"),
        ("trn1", "trainium1"),
        ("CPU", "cpu"),
    ] {
        assert_eq!(find(text).map(|hardware| &*hardware.name), Ok(want), "{text}");
    }
}

#[test]
fn an_ambiguous_name_is_refused_with_the_candidates() {
    for (text, want) in [
        ("h100", "`--hw h100` is ambiguous: h100-sxm, h100-pcie, h100-nvl"),
        ("H100 80GB", "`--hw H100 80GB` is ambiguous: h100-sxm, h100-pcie"),
        ("a100", "`--hw a100` is ambiguous: a100-sxm-80gb, a100-sxm-40gb, a100-pcie-80gb, a100-pcie-40gb"),
        ("a100-sxm", "`--hw a100-sxm` is ambiguous: a100-sxm-80gb, a100-sxm-40gb"),
        ("a100-80gb", "`--hw a100-80gb` is ambiguous: a100-sxm-80gb, a100-pcie-80gb"),
        ("rtx", "`--hw rtx` is ambiguous: rtx-5090, rtx-4090, rtx-3090, rtx-6000-ada, rtx-a6000"),
        ("v100-16gb", "`--hw v100-16gb` is ambiguous: v100-sxm2-16gb, v100-pcie-16gb"),
        ("tpu", "`--hw tpu` is ambiguous: tpu-v7, tpu-v6e, tpu-v5p, tpu-v5e, tpu-v4"),
        ("gaudi", "`--hw gaudi` is ambiguous: gaudi3, gaudi2"),
        ("trainium", "`--hw trainium` is ambiguous: trainium2, trainium1"),
    ] {
        let error = find(text).unwrap_err();
        assert!(matches!(error, HardwareError::Ambiguous { .. }), "{text}: {error:?}");
        assert_eq!(error.to_string(), want);
    }
}

#[test]
fn an_unknown_name_is_refused_without_a_default() {
    for (text, near) in [
        ("h101-sxm", Some("h100-sxm")),
        ("mi300", Some("mi300x")),
        ("rtx-4080", Some("rtx-4090")),
        ("a100-sxm-80gb-x", Some("a100-sxm-80gb")),
        ("m4-max", None),
        ("", None),
        ("nvidia", None),
        ("日本", None),
    ] {
        match find(text).unwrap_err() {
            HardwareError::Unknown { near: names, .. } => {
                assert_eq!(names.first().copied(), near, "{text}: {names:?}");
            }
            other => panic!("{text}: {other:?}"),
        }
    }
    let error = find("h101-sxm").unwrap_err();
    assert_eq!(error.to_string(), "`--hw h101-sxm` is not in the hardware table");
    assert!(error.help().starts_with("did you mean h100-sxm"), "{}", error.help());

    let diagnostic = units::Diagnostic::from(find("gaudi").unwrap_err());
    assert_eq!(diagnostic.severity, units::Severity::Error);
    assert_eq!(diagnostic.message, "`--hw gaudi` is ambiguous: gaudi3, gaudi2");
    assert_eq!(diagnostic.help, ["give one of them, such as `--hw gaudi3`: they differ in rate or memory"]);
}

#[test]
fn a_processor_is_cores_times_clock_times_flop_per_cycle() {
    let generic = find("cpu").unwrap();
    assert!(generic.assumed);
    assert_eq!(generic.peak(Precision::Fp32).unwrap().rate.to_string(), "166.4 GFLOP/s");
    assert_eq!(generic.peak(Precision::Fp32).unwrap().unit, Unit::Vector);
    assert_eq!(generic.peak(Precision::Fp8), None);

    let overrides =
        CpuOverrides { cores: Some(64), clock_ghz: Some(3.0), flop_per_cycle: Some(64.0), ..CpuOverrides::default() };
    let server = Hardware::generic_cpu(overrides).unwrap();
    assert_eq!(server.peak(Precision::Fp32).unwrap().rate, FlopPerSecond::giga(64.0 * 3.0 * 64.0));
    assert_eq!(server.peak(Precision::Fp64).unwrap().rate, FlopPerSecond::giga(64.0 * 3.0 * 32.0));
    assert!(server.assumed, "its memory is still generic");

    for bad in [
        CpuOverrides { cores: Some(0), ..CpuOverrides::default() },
        CpuOverrides { clock_ghz: Some(-1.0), ..CpuOverrides::default() },
        CpuOverrides { clock_ghz: Some(f64::MAX), ..CpuOverrides::default() },
        CpuOverrides { flop_per_cycle: Some(f64::NAN), ..CpuOverrides::default() },
        CpuOverrides { memory: Some(Bytes(0)), ..CpuOverrides::default() },
    ] {
        assert!(matches!(Hardware::generic_cpu(bad), Err(HardwareError::BadOverride { .. })), "{bad:?}");
    }
}

#[test]
fn a_peak_of_the_user_replaces_the_table() {
    let hardware = find("tpu-v5e").unwrap().clone().with_peak(Precision::Fp32, FlopPerSecond::tera(50.0));
    assert_eq!(hardware.peak(Precision::Fp32).unwrap().source.document, "given by the user");
    let hardware = hardware.with_peak(Precision::Bf16, FlopPerSecond::tera(180.0));
    assert_eq!(hardware.peak(Precision::Bf16).unwrap().rate, FlopPerSecond::tera(180.0));
    assert_eq!(hardware.peaks().iter().filter(|peak| peak.precision == Precision::Bf16).count(), 1);
}

#[test]
fn precisions_have_the_names_of_dtypes() {
    for precision in Precision::ALL {
        assert_eq!(precision.name().parse(), Ok(precision));
    }
    for (text, want) in [("f32", Precision::Fp32), ("bfloat16", Precision::Bf16), ("f8e4m3", Precision::Fp8)] {
        assert_eq!(text.parse(), Ok(want));
    }
    assert!("fp80".parse::<Precision>().is_err());
}

/// The files: parsing is strict, so what is left to check is what relates one number to another.
#[test]
fn every_file_is_sound() {
    let in_folder = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/hardware")).unwrap();
    let in_folder = in_folder.filter(|file| file.as_ref().unwrap().path().extension().is_some_and(|e| e == "toml"));
    assert_eq!(in_folder.count(), FILES.len(), "a file is missing in table.rs");

    for ((stem, _), hardware) in FILES.iter().zip(table()) {
        assert_eq!(hardware.name, *stem);
        let name = &hardware.name;
        let sources = hardware
            .peaks()
            .iter()
            .map(|peak| &peak.source)
            .chain(hardware.other_rates().iter().map(|rate| &rate.source))
            .chain(hardware.links.iter().map(|link| &link.source))
            .chain(hardware.memory.reported.iter().map(|(_, source)| source))
            .chain([&hardware.memory.source]);
        for source in sources {
            let date = source.date.strip_prefix("read ").unwrap_or(&source.date);
            let (year, month) = date.split_once('-').unwrap_or((date, "01"));
            assert!((2017..=2030).contains(&year.parse::<u32>().unwrap()), "{name}: {source}");
            assert!((1..=12).contains(&month.parse::<u32>().unwrap()), "{name}: {source}");
            assert!(!source.document.contains("://"), "{name}: {source}");
        }

        assert!(hardware.peaks().iter().all(|peak| peak.dense), "{name}");
        for rate in hardware.other_rates() {
            let Some(peak) = hardware.peak(rate.precision) else {
                panic!("{name}: {:?} rate without a dense peak for {}", rate.variant, rate.precision);
            };
            let dense = peak.rate.get() / 1e12;
            match rate.variant {
                Variant::Sparse => assert!(rate.tera() > 1.3 * dense, "{name} {}: {}", rate.precision, rate.tera()),
                Variant::Fp16Accumulate => close(name, rate.tera(), 2.0 * dense),
                Variant::Measured => assert!(rate.tera() < dense, "{name} {}", rate.precision),
            }
        }
        // A narrower format is never slower on the matrix units.
        let matrix: Vec<_> = [Precision::Tf32, Precision::Bf16, Precision::Fp8, Precision::Fp4]
            .into_iter()
            .filter_map(|precision| hardware.peak(precision))
            .map(|peak| peak.rate)
            .collect();
        assert!(matrix.is_sorted(), "{name}: {matrix:?}");

        let nominal = hardware.capacity_nominal().as_f64();
        if let Some(reported) = hardware.capacity_reported() {
            let ratio = reported.as_f64() / nominal;
            assert!((0.9..=1.1).contains(&ratio), "{name}: reports {ratio} of its nominal memory");
        }
        for link in &hardware.links {
            assert!(link.per_direction < hardware.bandwidth(), "{name}: {}", link.kind);
            assert!(link.scope != Scope::Node || link.devices.is_some_and(|devices| devices > 1), "{name}");
        }
        assert_eq!(hardware.cpu.is_some(), hardware.kind == Kind::Cpu, "{name}");
    }
}

#[test]
fn no_name_has_two_owners() {
    let names: Vec<_> =
        table().iter().flat_map(|hardware| lookup::names(hardware).map(move |name| (&hardware.name, name))).collect();
    for (i, (owner, name)) in names.iter().enumerate() {
        for (other, same) in &names[i + 1..] {
            assert!(!name.is(same), "{owner} and {other} both answer to {name:?}");
        }
    }
    for hardware in table() {
        for name in [&hardware.name, &hardware.display].into_iter().chain(&hardware.aliases) {
            assert_eq!(find(name).map(|found| &found.name), Ok(&hardware.name), "{name}");
        }
    }
}

#[test]
fn a_mistake_in_a_file_is_found() {
    let (_, good) = FILES[0];
    assert!(data::read(good).is_ok());
    for (from, to, message) in [
        ("vendor =", "vender =", "unknown key `vender` in the file"),
        ("bf16 = 989.5", "bf16 = -989.5", "`bf16` in dense is no number above zero"),
        ("bf16 = 989.5", "bfl6 = 989.5", "unknown key `bfl6` in dense"),
        ("kind = \"gpu\"", "kind = \"cow\"", "unknown kind `cow`"),
        ("scope = \"node\"", "scope = \"moon\"", "unknown scope `moon`"),
        (
            "nominal_bytes = 80_000_000_000",
            "nominal_bytes = 80.0",
            "`nominal_bytes` in memory is no whole number above zero",
        ),
        ("date = \"2023\"", "date = \" \"", "`date` in memory is no text"),
        ("display = \"H100 SXM\"\n", "", "no `display` in the file"),
    ] {
        assert!(good.contains(from), "{from}");
        assert_eq!(data::read(&good.replace(from, to)).unwrap_err(), message);
    }
}

#[test]
fn a_measured_processor_is_written_and_read_back() {
    let source = |document: &str| Source { document: document.to_owned(), date: "2026-11".to_owned() };
    let cpu = Cpu {
        cores: 2,
        clock_ghz: 3.7123,
        vector_bits: 512,
        flop_per_cycle: vec![(Precision::Fp32, 32.0), (Precision::Bf16, 64.0), (Precision::Fp16, 31.25)],
        source: source("a \"loop\" of \\ and\ttab"),
    };
    let memory = Memory {
        kind: "main memory".to_owned(),
        nominal: Bytes(25_276_559_360),
        reported: Some((Bytes(25_276_559_360), source("MemTotal"))),
        bandwidth: BytesPerSecond::new(41.5e9).unwrap(),
        source: source("triad"),
    };
    let others = vec![OtherRate::new(Precision::Fp32, Variant::Measured, source("matrix product"), 0.2187)];
    let hardware = Hardware::measured_cpu("AMD EPYC", "x86_64", cpu.clone(), memory.clone(), others).unwrap();
    assert_eq!(hardware.peak(Precision::Bf16).unwrap().rate.get(), 2.0 * 3.7123 * 1e9 * 64.0);
    let text = to_toml(&hardware).unwrap();
    assert_eq!(Hardware::from_toml("cpu.toml", &text).unwrap(), hardware, "{text}");
    let error = Hardware::from_toml("cpu.toml", &text.replace("cores", "core")).unwrap_err();
    assert_eq!(error.to_string(), "`cpu.toml` describes no device: unknown key `core` in cpu");
    let stopped = Cpu { clock_ghz: 0.0, ..cpu };
    assert!(Hardware::measured_cpu("", "", stopped, memory, Vec::new()).is_err());
}

#[test]
fn processors_of_the_table_are_written_and_read_back_and_accelerators_are_not() {
    for hardware in table() {
        match to_toml(hardware) {
            Some(text) => assert_eq!(Hardware::from_toml(&hardware.name, &text).as_ref(), Ok(hardware)),
            None => assert_ne!(hardware.kind, Kind::Cpu, "{}", hardware.name),
        }
    }
}
