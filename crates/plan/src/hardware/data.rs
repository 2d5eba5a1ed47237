//! From the text of a data file to an entry. Strict: a missing key, a key it does not know and a number out of range are
//! errors, so that a typing mistake cannot become a fact.

use toml::Table;
use units::{Bytes, FlopPerSecond};

use crate::section::Section;

use super::{Cpu, Hardware, Kind, Link, Memory, OtherRate, Peak, Precision, Scope, Variant};

/// Reads one file of `data/hardware`.
pub(super) fn read(text: &str) -> Result<Hardware, String> {
    let table: Table = text.parse().map_err(|error: toml::de::Error| error.to_string())?;
    let top = Section::new(
        "the file",
        &table,
        &[
            "name",
            "display",
            "aliases",
            "vendor",
            "kind",
            "form_factor",
            "architecture",
            "device",
            "devices_per_package",
            "assumed",
            "notes",
            "peak",
            "memory",
            "link",
            "cpu",
        ],
    )?;
    let mut hardware = Hardware {
        name: top.text("name")?,
        display: top.text("display")?,
        aliases: top.texts("aliases")?,
        vendor: top.text("vendor")?,
        kind: kind(&top.text("kind")?)?,
        form_factor: top.text("form_factor")?,
        architecture: top.text("architecture")?,
        device: top.text("device")?,
        devices_per_package: top.count("devices_per_package")?,
        assumed: top.has("assumed") && top.flag("assumed")?,
        notes: if top.has("notes") { top.texts("notes")? } else { Vec::new() },
        memory: memory(
            &top.section("memory", &["source", "date", "kind", "nominal_bytes", "bandwidth_gb_s", "reported"])?,
        )?,
        links: links(&top)?,
        cpu: None,
        peaks: Vec::new(),
        others: Vec::new(),
    };
    if top.has("cpu") {
        let cpu = cpu(&top)?;
        hardware.peaks = cpu.peaks().map_err(|error| error.to_string())?;
        hardware.cpu = Some(cpu);
    }
    if top.has("peak") {
        let peak = top.section("peak", &["dense", "sparse", "fp16_accumulate", "measured"])?;
        if peak.has("dense") {
            dense(&peak, &mut hardware)?;
        }
        for (key, variant) in
            [("sparse", Variant::Sparse), ("fp16_accumulate", Variant::Fp16Accumulate), ("measured", Variant::Measured)]
        {
            if peak.has(key) {
                others(&peak, key, variant, &mut hardware.others)?;
            }
        }
    }
    if hardware.peaks.is_empty() { Err("no dense peak".to_owned()) } else { Ok(hardware) }
}

/// The keys of a table of rates: where they come from, one key for each precision, and what else is allowed.
fn rate_keys(more: &[&'static str]) -> Vec<&'static str> {
    let names = Precision::ALL.iter().map(|precision| precision.name());
    ["source", "date"].into_iter().chain(more.iter().copied()).chain(names).collect()
}

fn dense(peak: &Section<'_>, hardware: &mut Hardware) -> Result<(), String> {
    let section = peak.section("dense", &rate_keys(&["fp32_on"]))?;
    let source = section.source()?;
    let fp32_on_matrix = match section.has("fp32_on").then(|| section.text("fp32_on")).transpose()?.as_deref() {
        None => false,
        Some("matrix") => true,
        Some(other) => {
            return Err(format!("`fp32_on = \"{other}\"`: only \"matrix\" needs saying"));
        }
    };
    for (precision, tera) in section.rates()? {
        let rate = FlopPerSecond::new(tera * 1e12).map_err(|error| error.to_string())?;
        let unit = hardware.unit_of(precision, fp32_on_matrix);
        hardware.peaks.push(Peak { precision, rate, unit, source: source.clone(), dense: true });
    }
    Ok(())
}

fn others(peak: &Section<'_>, key: &'static str, variant: Variant, into: &mut Vec<OtherRate>) -> Result<(), String> {
    let section = peak.section(key, &rate_keys(&[]))?;
    let source = section.source()?;
    for (precision, tera) in section.rates()? {
        into.push(OtherRate::new(precision, variant, source.clone(), tera));
    }
    Ok(())
}

fn memory(section: &Section<'_>) -> Result<Memory, String> {
    let reported = if section.has("reported") {
        let reported = section.section("reported", &["source", "date", "bytes"])?;
        Some((Bytes(reported.integer("bytes")?), reported.source()?))
    } else {
        None
    };
    Ok(Memory {
        kind: section.text("kind")?,
        nominal: Bytes(section.integer("nominal_bytes")?),
        reported,
        bandwidth: section.gigabytes("bandwidth_gb_s")?,
        source: section.source()?,
    })
}

fn links(top: &Section<'_>) -> Result<Vec<Link>, String> {
    let Some(value) = top.table.get("link") else {
        return Ok(Vec::new());
    };
    let links = value.as_array().ok_or("`link` is not a list of tables")?;
    links
        .iter()
        .map(|link| {
            let table = link.as_table().ok_or("`link` is not a list of tables")?;
            let keys = ["source", "date", "kind", "scope", "gb_s_per_direction", "devices", "note"];
            let section = Section::new("[[link]]", table, &keys)?;
            Ok(Link {
                kind: section.text("kind")?,
                scope: scope(&section.text("scope")?)?,
                per_direction: section.gigabytes("gb_s_per_direction")?,
                devices: if section.has("devices") { Some(section.count("devices")?) } else { None },
                note: if section.has("note") { Some(section.text("note")?) } else { None },
                source: section.source()?,
            })
        })
        .collect()
}

fn cpu(top: &Section<'_>) -> Result<Cpu, String> {
    let section = top.section("cpu", &["source", "date", "cores", "clock_ghz", "vector_bits", "flop_per_cycle"])?;
    let names: Vec<_> = Precision::ALL.iter().map(|precision| precision.name()).collect();
    Ok(Cpu {
        cores: section.count("cores")?,
        clock_ghz: section.positive("clock_ghz")?,
        vector_bits: section.count("vector_bits")?,
        flop_per_cycle: section.section("flop_per_cycle", &names)?.rates()?,
        source: section.source()?,
    })
}

fn kind(text: &str) -> Result<Kind, String> {
    [Kind::Gpu, Kind::Tpu, Kind::Npu, Kind::Cpu]
        .into_iter()
        .find(|kind| kind.name() == text)
        .ok_or_else(|| format!("unknown kind `{text}`"))
}

fn scope(text: &str) -> Result<Scope, String> {
    match text {
        "node" => Ok(Scope::Node),
        "network" => Ok(Scope::Network),
        "host" => Ok(Scope::Host),
        _ => Err(format!("unknown scope `{text}`")),
    }
}
