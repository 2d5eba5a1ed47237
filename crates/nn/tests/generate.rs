//! A text that is continued token by token has the logits of one that is read at once.

#![allow(clippy::unwrap_used)]

use napkin_nn as nn;

use nn::config::Config;
use nn::generate::Generator;
use nn::{Forward, Model, Profile, Recompute, families};
use std::path::Path;
use tensor::{DType, Device, Runtime};

fn last_logits(model: &Model, runtime: &Runtime, tokens: &[u64]) -> Vec<f64> {
    let ids: Vec<f64> = tokens.iter().map(|&t| t as f64).collect();
    runtime.no_grad(|| {
        let ids = runtime.tensor(&ids, &[1, tokens.len() as u64], DType::I64).unwrap();
        let mut f = Forward::new(runtime, Profile::Fused, Recompute::None, 1, tokens.len() as u64);
        f.training = false;
        let logits = model.forward(&f, &ids).unwrap();
        logits.narrow(1, tokens.len() as u64 - 1, 1).unwrap().to_vec().unwrap()
    })
}

#[test]
fn every_family_continues_what_it_has_read() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiny");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|f| f.unwrap().path()).collect();
    files.sort();
    let mut continued = 0;
    for file in files {
        let name = file.file_stem().unwrap().to_string_lossy().into_owned();
        let (config, _) = Config::parse(&name, &std::fs::read(&file).unwrap());
        let spec = families::load(&config.unwrap(), None).unwrap().spec;
        let runtime = Runtime::with_seed(Device::Cpu, 7);
        runtime.set_recording(false);
        let model = Model::build(&runtime, &spec, DType::F32).unwrap();
        let tokens: Vec<u64> = (0..7u64).map(|i| (i * i + 3) % spec.vocab_size.max(1)).collect();
        let mut generator = Generator::new(&model, 7, 0);
        // Five at once, then one by one.
        if !spec.continues_from_keys() {
            let error = generator.read(&tokens[..5]).unwrap_err().to_string();
            assert!(error.contains("continues no text"), "{name}: {error}");
            continue;
        }
        continued += 1;
        let mut logits = generator.read(&tokens[..5]).unwrap_or_else(|e| panic!("{name}: {e}"));
        for end in 5..=7 {
            let whole = last_logits(&model, &runtime, &tokens[..end]);
            let scale = whole.iter().fold(1e-3, |max: f64, x| max.max(x.abs()));
            for (a, b) in logits.iter().zip(&whole) {
                assert!((a - b).abs() <= 2e-5 * scale, "{name} after {end} tokens: {a} against {b}");
            }
            if end < 7 {
                logits = generator.read(&tokens[end..=end]).unwrap_or_else(|e| panic!("{name}: {e}"));
            }
        }
        assert_eq!(generator.cache().len(), 7, "{name}");
        let error = generator.read(&[1]).unwrap_err().to_string();
        assert!(error.contains("room") || error.contains("positions"), "{name}: {error}");
    }
    assert!(continued > 60, "{continued}");
}
