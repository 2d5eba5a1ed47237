//! Phase peaks of one traced run, for comparison with a reference.
use napkin_plan::{
    sharding::Sharding,
    timeline::{Device, Timeline},
};
use std::time::Instant;
#[allow(clippy::all, clippy::pedantic, clippy::print_stdout)]
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let bytes = std::fs::read(&a[1]).unwrap();
    let (config, d) = nn::config::Config::parse(&a[1], &bytes);
    if config.is_none() {
        panic!("{d}");
    }
    let loaded = match nn::families::load(&config.unwrap(), None) {
        Ok(l) => l,
        Err(e) => {
            println!("{e}");
            return;
        }
    };
    let get = |k: &str, d: &str| a.iter().position(|x| x == k).map_or(d.to_string(), |i| a[i + 1].clone());
    let o = nn::step::StepOptions {
        batch: get("--batch", "2").parse().unwrap(),
        seq_len: get("--seq", "512").parse().unwrap(),
        profile: get("--profile", "hf-sdpa").parse().unwrap(),
        precision: get("--precision", "fp32").parse().unwrap(),
        optimizer: get("--optimizer", "adamw-forloop").parse().unwrap(),
        recompute: get("--recompute", "none").parse().unwrap(),
        grad_accum_steps: 1,
        autocast: if get("--autocast", "cpu") == "cuda" { tensor::CastLists::Cuda } else { tensor::CastLists::Cpu },
        steps: get("--steps", "2").parse().unwrap(),
        warm: a.contains(&"--warm".to_string()),
        dropout: a.contains(&"--dropout".to_string()),
        until: Default::default(),
    };
    let t = Instant::now();
    let st = nn::step::trace(&loaded.spec, &o).unwrap();
    let el = t.elapsed();
    let tr = &st.trace;
    println!(
        "params {} ops {} mem {} in {:?}",
        st.params.iter().map(|p| p.elements).sum::<u64>(),
        tr.ops.len(),
        tr.memory.len(),
        el
    );
    let ln = loaded.spec.names.layers;
    let all = Timeline::of(&st, &o, Sharding::default(), ln).phases;
    for p in &all {
        let roles: Vec<String> = tensor::Role::ALL
            .iter()
            .filter(|r| p.peak_by_role[**r as usize] > 0)
            .map(|r| format!("{} {}", r.name(), p.peak_by_role[*r as usize]))
            .collect();
        let op = p.peak_op.and_then(|i| tr.ops.get(i)).map(|e| format!("{} in {}", e.op.name(), tr.module(e.module)));
        println!(
            "{:6} peak {:>14} end {:>14} | {} | {}",
            p.name,
            p.peak_bytes,
            p.end_bytes(),
            op.unwrap_or_default(),
            roles.join(", ")
        );
    }
    for ph in [tensor::Phase::Forward, tensor::Phase::Backward, tensor::Phase::Recompute] {
        let c = tr.cost(|e| e.phase == ph);
        println!("{} matmul {} dense {}", ph.name(), c.matmul, c.matmul_dense);
    }
    if a.contains(&"--log".to_string()) {
        let mut r = Device::new(&st, &o, Sharding::default(), ln);
        let mut m = 0;
        for (i, e) in tr.ops.iter().enumerate() {
            while m < tr.memory.len() && tr.memory[m].op as usize <= i {
                r.apply(m);
                m += 1;
            }
            println!(
                "{i} {} {} {} -> {:?} live {}",
                e.phase.name(),
                tr.module(e.module),
                e.op.name(),
                e.outputs.iter().map(|o| (o.dtype.name(), o.layout.shape().to_vec(), o.storage.0)).collect::<Vec<_>>(),
                r.live().iter().flatten().map(|x| x.1).sum::<u64>()
            );
        }
    }
    if let Some(i) = a.iter().position(|x| x == "--peak") {
        let p = all.iter().find(|p| p.name == a[i + 1]).unwrap();
        let mut r = Device::new(&st, &o, Sharding::default(), ln);
        for e in 0..p.peak_event {
            r.apply(e);
        }
        let mut rows = std::collections::BTreeMap::<String, (u64, u64)>::new();
        for (id, s) in tr.storages.iter().enumerate() {
            if let Some((role, _)) = r.live()[id] {
                let born = tr.ops.get(s.born as usize);
                let name = born.map_or("", |e| e.op.name());
                let path: String = tr
                    .module(s.module)
                    .split('.')
                    .map(|x| if x.parse::<u32>().is_ok() { "*" } else { x })
                    .collect::<Vec<_>>()
                    .join(".");
                let shape = born
                    .map(|e| {
                        format!(
                            "{:?}",
                            e.outputs.iter().map(|o| (o.dtype.name(), o.layout.shape().to_vec())).collect::<Vec<_>>()
                        )
                    })
                    .unwrap_or_default();
                let k = format!("{} {} {} {}", role.name(), path, name, shape);
                let x = rows.entry(k).or_default();
                x.0 += 1;
                x.1 += s.bytes;
            }
        }
        let mut v: Vec<_> = rows.into_iter().collect();
        v.sort_by_key(|x| std::cmp::Reverse(x.1.1));
        for (k, (n, b)) in v.iter().take(60) {
            println!("{b:>14} x{n:<4} {k}");
        }
    }
}
