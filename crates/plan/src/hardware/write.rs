//! From an entry to the text of a data file: the form of `data/hardware`, which the program reads back.

use std::fmt::Write;

use super::{Cpu, Hardware, Precision, Source, Variant};

/// The entry of a processor as the text of a file.
///
/// `None` for what is no processor: of an accelerator the table holds more than is written here.
pub fn to_toml(hardware: &Hardware) -> Option<String> {
    let cpu = hardware.cpu.as_ref().filter(|_| hardware.links.is_empty())?;
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write(&mut text, hardware, cpu);
    Some(text)
}

fn write(text: &mut String, hardware: &Hardware, cpu: &Cpu) -> std::fmt::Result {
    writeln!(text, "name = {}", quoted(&hardware.name))?;
    writeln!(text, "display = {}", quoted(&hardware.display))?;
    writeln!(text, "aliases = {}", list(&hardware.aliases))?;
    writeln!(text, "vendor = {}", quoted(&hardware.vendor))?;
    writeln!(text, "kind = {}", quoted(hardware.kind.name()))?;
    writeln!(text, "form_factor = {}", quoted(&hardware.form_factor))?;
    writeln!(text, "architecture = {}", quoted(&hardware.architecture))?;
    writeln!(text, "device = {}", quoted(&hardware.device))?;
    writeln!(text, "devices_per_package = {}", hardware.devices_per_package)?;
    if hardware.assumed {
        writeln!(text, "assumed = true")?;
    }
    if !hardware.notes.is_empty() {
        writeln!(text, "notes = {}", list(&hardware.notes))?;
    }

    writeln!(text, "\n# peak = cores x clock x FLOP per cycle and core.\n[cpu]")?;
    source(text, &cpu.source)?;
    writeln!(text, "cores = {}", cpu.cores)?;
    writeln!(text, "clock_ghz = {}", cpu.clock_ghz)?;
    writeln!(text, "vector_bits = {}", cpu.vector_bits)?;
    writeln!(text, "\n[cpu.flop_per_cycle]")?;
    for (precision, flop) in &cpu.flop_per_cycle {
        writeln!(text, "{} = {flop}", precision.name())?;
    }

    // Rates of one document stand together; a file has one table of each kind.
    for (variant, key) in
        [(Variant::Sparse, "sparse"), (Variant::Fp16Accumulate, "fp16_accumulate"), (Variant::Measured, "measured")]
    {
        let rates: Vec<_> = hardware.others.iter().filter(|rate| rate.variant == variant).collect();
        let Some(first) = rates.first() else { continue };
        writeln!(text, "\n# In TFLOP/s.\n[peak.{key}]")?;
        source(text, &first.source)?;
        for precision in Precision::ALL {
            if let Some(rate) = rates.iter().find(|rate| rate.precision == precision) {
                writeln!(text, "{} = {}", precision.name(), rate.tera())?;
            }
        }
    }

    let memory = &hardware.memory;
    writeln!(text, "\n[memory]")?;
    source(text, &memory.source)?;
    writeln!(text, "kind = {}", quoted(&memory.kind))?;
    writeln!(text, "nominal_bytes = {}", memory.nominal.get())?;
    writeln!(text, "bandwidth_gb_s = {}", memory.bandwidth.get() / 1e9)?;
    if let Some((bytes, from)) = &memory.reported {
        writeln!(text, "\n[memory.reported]")?;
        source(text, from)?;
        writeln!(text, "bytes = {}", bytes.get())?;
    }
    Ok(())
}

fn source(text: &mut String, source: &Source) -> std::fmt::Result {
    writeln!(text, "source = {}\ndate = {}", quoted(&source.document), quoted(&source.date))
}

fn list(texts: &[String]) -> String {
    let texts: Vec<_> = texts.iter().map(|text| quoted(text)).collect();
    format!("[{}]", texts.join(", "))
}

/// A basic string of TOML: quotation marks, backslashes and control characters are escaped.
fn quoted(text: &str) -> String {
    let escaped = text.chars().map(|c| match c {
        '"' | '\\' => format!("\\{c}"),
        c if c.is_control() => format!("\\u{:04X}", c as u32),
        c => c.to_string(),
    });
    format!("\"{}\"", escaped.collect::<String>())
}
