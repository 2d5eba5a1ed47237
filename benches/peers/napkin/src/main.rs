//! Training steps of a GPT-2 in Napkin's own engine, through the same meter as the others.

use meter::Sizes;
use nn::config::Config;
use nn::optim::Hyper;
use nn::training::{Labels, Training, TrainingOptions};
use nn::{Profile, Recompute, families};
use tensor::{CastLists, DType, Device, Runtime};

fn main() {
    let sizes = Sizes::from_args();
    let config = serde_json::json!({
        "model_type": "gpt2",
        "n_layer": sizes.layers,
        "n_embd": sizes.width,
        "n_head": sizes.heads,
        "n_positions": sizes.positions,
        "vocab_size": sizes.vocab,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "resid_pdrop": 0.0,
    });
    let (config, problems) = Config::parse("config.json", config.to_string().as_bytes());
    let loaded = families::load(&config.unwrap_or_else(|| panic!("{problems}")), None);
    let spec = loaded.unwrap_or_else(|problems| panic!("{problems}")).spec;
    let options = TrainingOptions {
        profile: Profile::Fused,
        precision: sizes.precision.parse().expect("a precision of Napkin"),
        optimizer: "adamw".parse().expect("AdamW"),
        hyper: Hyper { lr: 3e-4, weight_decay: 0.1, ..Hyper::default() },
        recompute: Recompute::None,
        grad_accum_steps: 1,
        autocast: CastLists::Cpu,
        dropout: false,
        clip_norm: None,
        stochastic_rounding: false,
    };
    let (tokens, targets) = sizes.tokens();
    let shape = [sizes.batch as u64, sizes.seq_len as u64];
    meter::measure(env!("CARGO_PKG_VERSION"), &sizes, || {
        let runtime = Runtime::new(Device::Cpu);
        runtime.set_recording(false);
        let input = |ids: Vec<u32>| {
            let ids: Vec<f64> = ids.into_iter().map(f64::from).collect();
            runtime.input(&ids, &shape, DType::I64).expect("ids of the right shape")
        };
        let (tokens, targets) = (input(tokens), input(targets));
        let mut training = Training::new(&runtime, &spec, &options).expect("a model");
        let parameters = training.model().params().iter().map(|p| p.tensor.elements() as usize).sum();
        (parameters, move || {
            let loss = training.forward(&tokens, Labels::Targets(&targets)).expect("forward");
            let value = loss.item().expect("a number");
            training.backward(loss, 1.0).expect("backward");
            training.update(options.hyper.lr).expect("update");
            value
        })
    });
}
