//! Saving and loading: bit-equal, strict, and safe from failures between any two filesystem calls.

use super::disk::RealDisk;
use super::testing::{CONFIG, FailingDisk, Fault, contents, folder, snapshot};
use super::{Checkpoint, Keep, NamedTensor, Snapshot, Store, latest, list};
use nn::config::Config;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use tensor::{DType, Device, Runtime};

const KEEP: Keep = Keep { last: 2, best: false };

fn save(dir: &Path, snapshot: &Snapshot) -> std::path::PathBuf {
    Store::open(dir, KEEP).unwrap().save(snapshot).unwrap().path
}

/// Tensors of the same names and shapes, all zero.
fn blank(tensors: &[NamedTensor]) -> Vec<NamedTensor> {
    let runtime = Runtime::new(Device::Cpu);
    let zeros = |t: &NamedTensor| runtime.zeros(t.tensor.shape(), t.tensor.dtype()).unwrap();
    tensors.iter().map(|t| NamedTensor::new(t.name.as_str(), &zeros(t))).collect()
}

/// Checks that a checkpoint is bit for bit what was saved.
fn assert_holds(checkpoint: &Checkpoint, saved: &Snapshot) {
    assert_eq!(checkpoint.manifest(), &saved.manifest);
    let (model, optimizer) = (blank(&saved.model), blank(&saved.optimizer));
    checkpoint.load_model(&model).unwrap();
    checkpoint.load_optimizer(&optimizer).unwrap();
    assert_eq!(contents(&model), contents(&saved.model));
    assert_eq!(contents(&optimizer), contents(&saved.optimizer));
}

fn steps(dir: &Path) -> Vec<u64> {
    list(dir).unwrap().into_iter().map(|(step, _)| step).collect()
}

#[test]
fn what_is_saved_comes_back_bit_for_bit() {
    let dir = folder();
    let saved = snapshot(123);
    let path = save(dir.path(), &saved);
    assert_eq!(path, dir.path().join("step-00000123"));
    let checkpoint = Checkpoint::open(&path).unwrap();
    assert_holds(&checkpoint, &saved);
    assert_eq!(checkpoint.tool(), format!("napkin {}", env!("CARGO_PKG_VERSION")));
    assert_eq!(fs::read_to_string(path.join("config.json")).unwrap(), CONFIG);
}

#[test]
fn equal_snapshots_make_equal_files() {
    let (a, b) = (folder(), folder());
    let (a, b) = (save(a.path(), &snapshot(5)), save(b.path(), &snapshot(5)));
    for file in ["config.json", "model.safetensors", "optimizer.safetensors", "manifest.json"] {
        assert_eq!(fs::read(a.join(file)).unwrap(), fs::read(b.join(file)).unwrap(), "{file}");
    }
}

#[test]
fn the_files_are_safetensors_to_others() {
    let dir = folder();
    let saved = snapshot(1);
    let bytes = fs::read(save(dir.path(), &saved).join("model.safetensors")).unwrap();
    let read = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(read.len(), saved.model.len());
    for (name, data) in contents(&saved.model) {
        assert_eq!(read.tensor(&name).unwrap().data(), data, "{name}");
    }
    let (_, metadata) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    assert_eq!(metadata.metadata().as_ref().unwrap()["format"], "pt");
}

#[test]
fn a_view_that_is_not_dense_is_saved_as_its_elements() {
    let dir = folder();
    let mut saved = snapshot(1);
    let runtime = Runtime::new(Device::Cpu);
    let turned = runtime.tensor(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3], DType::F32).unwrap().t().unwrap();
    saved.model = vec![NamedTensor::new("turned", &turned)];
    let checkpoint = Checkpoint::open(&save(dir.path(), &saved)).unwrap();
    let target = blank(&saved.model);
    checkpoint.load_model(&target).unwrap();
    assert_eq!(target[0].tensor.to_vec().unwrap(), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
}

#[test]
fn the_newest_are_kept_and_the_best() {
    let dir = folder();
    let store = Store::open(dir.path(), Keep { last: 2, best: true }).unwrap();
    let losses = [3.0, 1.0, f64::NAN, 2.0, 1.5];
    for (step, loss) in (1..).zip(losses) {
        let mut one = snapshot(step);
        one.manifest.training.as_mut().unwrap().validation_loss = Some(loss);
        assert!(store.save(&one).unwrap().warnings.is_empty());
    }
    assert_eq!(steps(dir.path()), [5, 4, 2]);
    // What was just saved stays, though two of a later step, from the run before, are there.
    let saved = store.save(&snapshot(3)).unwrap();
    assert_eq!(saved.removed, [dir.path().join("step-00000004")]);
    assert_eq!(steps(dir.path()), [5, 3, 2]);
}

#[test]
fn weights_alone_are_no_run() {
    let dir = folder();
    let mut saved = snapshot(0);
    saved.manifest.training = None;
    let refused = Store::open(dir.path(), KEEP).unwrap().save(&saved).unwrap_err();
    assert!(refused[0].message.contains("without the state of training"));
    assert_eq!(steps(dir.path()), [0; 0]);

    saved.optimizer.clear();
    let checkpoint = Checkpoint::open(&save(dir.path(), &saved)).unwrap();
    let model = blank(&saved.model);
    checkpoint.load_model(&model).unwrap();
    assert_eq!(contents(&model), contents(&saved.model));
    assert_eq!(checkpoint.training().unwrap_err().code, "T0617");
    assert_eq!(checkpoint.load_optimizer(&[]).unwrap_err()[0].code, "T0617");
}

#[test]
fn all_that_does_not_match_is_said_at_once() {
    let dir = folder();
    let saved = snapshot(1);
    let checkpoint = Checkpoint::open(&save(dir.path(), &saved)).unwrap();
    let runtime = Runtime::new(Device::Cpu);
    let mut targets = blank(&saved.model);
    let at = |name: &str| targets.iter().position(|t| t.name == name).unwrap();
    let (wide, half, scalar, byte) = (at("h.0.f64"), at("h.0.f16"), at("scalar"), at("h.0.u8"));
    targets[wide].tensor = runtime.zeros(&[3, 2], DType::F64).unwrap();
    targets[half].tensor = runtime.zeros(&[2, 3], DType::BF16).unwrap();
    targets[scalar].name = "scaler".to_owned();
    targets.remove(byte);
    targets.push(NamedTensor::new("lm_head.weight", &runtime.zeros(&[7, 4], DType::F32).unwrap()));

    let problems = checkpoint.load_model(&targets).unwrap_err();
    let said: Vec<String> = problems.iter().map(|p| format!("{} {}{}", p.code, p.message, p.help.concat())).collect();
    assert_eq!(
        said,
        [
            "T0614 tensor `h.0.f64` has shape [2, 3]; the model has [3, 2]",
            "T0615 tensor `h.0.f16` is stored as F16; the model has it as bf16",
            "T0612 no tensor `scaler`, which the model has as f32 []there is `scalar`: is that a misspelling?",
            "T0612 no tensor `lm_head.weight`, which the model has as f32 [7, 4]",
            "T0613 tensor `h.0.u8` (u8 [2, 3]), which the model does not have",
            "T0613 tensor `scalar` (f32 []), which the model does not have",
        ]
    );
    // Nothing was written.
    assert!(contents(&targets).iter().all(|(_, bytes)| bytes.iter().all(|b| *b == 0)));
    assert_eq!(checkpoint.load_optimizer(&blank(&saved.model)).unwrap_err()[0].code, "T0612");
}

#[test]
fn another_config_is_refused_by_the_keys_that_differ() {
    let dir = folder();
    let checkpoint = Checkpoint::open(&save(dir.path(), &snapshot(1))).unwrap();
    let check = |text: &str| {
        let config = Config::parse("given.json", text.as_bytes()).0.unwrap();
        checkpoint.check_config(&config).map_err(|problems| problems.iter().map(|p| p.message.clone()).collect())
    };
    assert_eq!(check(CONFIG), Ok(()));
    // Written otherwise, with a default said and a key that is about no model.
    let same =
        CONFIG.replace("1e-05", "0.00001, \"n_inner\": 16, \"_name_or_path\": \"x\", \"initializer_range\": 0.5");
    assert_eq!(check(&same), Ok(()));
    let other = CONFIG.replace("\"n_embd\": 4", "\"n_embd\": 6, \"_name_or_path\": \"x\"").replace("1e-05", "1e-06");
    let expected = [
        "`layer_norm_epsilon` is 1e-05 in the checkpoint and 1e-06 in the config",
        "`n_embd` is 4 in the checkpoint and 6 in the config",
    ];
    assert_eq!(check(&other), Err::<(), Vec<String>>(expected.map(str::to_owned).into()));
    let wider = CONFIG.replace("\"n_layer\": 1", "\"n_layer\": 1, \"n_inner\": 20");
    let expected = ["`n_inner` is absent in the checkpoint and 20 in the config".to_owned()];
    assert_eq!(check(&wider), Err(expected.into()));
    let llama = r#"{"model_type": "llama", "hidden_size": 4, "intermediate_size": 8, "num_hidden_layers": 1,
        "num_attention_heads": 2, "vocab_size": 7}"#;
    assert_eq!(
        check(llama),
        Err(vec!["the checkpoint is of a `gpt2` model, the config of a `llama` model".to_owned()])
    );
}

#[test]
fn two_runs_do_not_share_a_folder() {
    let dir = folder();
    let first = Store::open(dir.path(), KEEP).unwrap();
    assert_eq!(Store::open(dir.path(), KEEP).unwrap_err()[0].code, "T0603");
    drop(first);
    Store::open(dir.path(), KEEP).unwrap();
}

#[test]
fn a_folder_that_is_not_there_holds_nothing() {
    let dir = folder();
    let found = latest(&dir.path().join("none")).unwrap();
    assert!(found.checkpoint.is_none() && found.skipped.is_empty());
}

#[test]
fn the_newest_that_opens_is_found_and_the_others_are_named() {
    let dir = folder();
    let store = Store::open(dir.path(), Keep { last: 9, best: false }).unwrap();
    (1..=3).for_each(|step| drop(store.save(&snapshot(step)).unwrap()));
    fs::remove_file(dir.path().join("step-00000003/optimizer.safetensors")).unwrap();
    let found = latest(dir.path()).unwrap();
    assert_holds(&found.checkpoint.unwrap(), &snapshot(2));
    assert!(found.skipped[0].location.as_ref().unwrap().file.ends_with("step-00000003/optimizer.safetensors"));
    for step in [1, 2] {
        fs::write(dir.path().join(format!("step-0000000{step}/manifest.json")), "{}").unwrap();
    }
    // Never silently fresh.
    assert_eq!(latest(dir.path()).unwrap_err().last().unwrap().code, "T0618");
}

/// Saves step 2 over a folder that holds steps 1 and (another) 2, with the fault at call `at`, and checks what is left.
/// False once the call comes after the end.
fn survives(fault: Fault, at: usize) -> bool {
    let dir = folder();
    let (one, other, two) = (snapshot(1), snapshot(70), snapshot(2));
    let mut before = two.clone();
    (before.model, before.optimizer) = (other.model, other.optimizer);
    save(dir.path(), &one);
    save(dir.path(), &before);

    let disk = FailingDisk::new(fault, at);
    let keep = Keep { last: 1, best: false };
    let store = Store::on(Box::new(disk.handle()), dir.path(), keep).unwrap();
    let saved = store.save(&two);
    drop(store);
    if !disk.has_failed() {
        assert!(saved.is_ok());
        return false;
    }
    // The newest loads, before anything is cleaned and after: the one that was saved, if it says so.
    let check = || {
        let newest = latest(dir.path()).unwrap();
        assert!(newest.skipped.is_empty(), "{fault:?} at {at}: {}", newest.skipped);
        let newest = newest.checkpoint.unwrap();
        let model = blank(&two.model);
        newest.load_model(&model).unwrap();
        let is_new = contents(&model) == contents(&two.model);
        assert_holds(&newest, if is_new { &two } else { &before });
        assert!(is_new || saved.is_err(), "{fault:?} at {at}: saved, and not there");
    };
    check();
    if let Fault::Error(_) = fault {
        let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        let partial = left.iter().any(|name| name.to_string_lossy().ends_with(".partial"));
        assert!(!partial, "{fault:?} at {at}: {left:?}");
    }
    let store = Store::on(Box::new(RealDisk), dir.path(), keep).unwrap();
    check();
    store.save(&two).unwrap();
    check();
    let mut left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, [".lock", "step-00000002"], "{fault:?} at {at}");
    true
}

#[test]
fn a_failure_at_any_call_leaves_the_last_good_checkpoint() {
    for fault in [Fault::Kill, Fault::PowerLoss, Fault::Error(ErrorKind::StorageFull)] {
        let calls = (0..1000).take_while(|&at| survives(fault, at)).count();
        // Four files are created, written and made durable.
        assert!(calls > 30, "only {calls} calls can fail");
    }
}

#[test]
fn a_full_disk_is_said_and_nothing_is_left_of_the_attempt() {
    let dir = folder();
    save(dir.path(), &snapshot(1));
    for at in 1..=20 {
        let disk = FailingDisk::new(Fault::Error(ErrorKind::StorageFull), at);
        let store = Store::on(Box::new(disk), dir.path(), KEEP).unwrap();
        let problems = store.save(&snapshot(2)).unwrap_err();
        assert_eq!(problems[0].code, "T0602", "{problems}");
        assert!(problems[0].help[0].contains("free space"));
        // One tensor of each dtype with 6 elements, 38 bytes each over all of them; a scalar; two states.
        assert!(problems[0].why.as_ref().unwrap().contains("take 264 B"), "{problems}");
        assert_eq!(steps(dir.path()), [1]);
        assert!(!dir.path().join("step-00000002.partial").exists());
        assert_holds(&latest(dir.path()).unwrap().checkpoint.unwrap(), &snapshot(1));
    }
}

#[test]
fn a_step_that_is_not_a_step_is_left_alone() {
    let dir = folder();
    for name in ["step-1", "step-00000001x", "step-000000001", "step-", "notes", "step-00000001.partially"] {
        fs::create_dir(dir.path().join(name)).unwrap();
    }
    let store = Store::open(dir.path(), KEEP).unwrap();
    assert!(store.cleaned().is_empty());
    assert_eq!(steps(dir.path()), [0; 0]);
    store.save(&snapshot(100_000_000)).unwrap();
    assert_eq!(steps(dir.path()), [100_000_000]);
}

#[test]
fn leftovers_of_a_killed_save_are_named_and_gone() {
    let dir = folder();
    for name in ["step-00000003.partial", "step-00000001.removed"] {
        fs::create_dir(dir.path().join(name)).unwrap();
        fs::write(dir.path().join(name).join("model.safetensors"), "x").unwrap();
    }
    let store = Store::open(dir.path(), KEEP).unwrap();
    assert_eq!(store.cleaned(), ["step-00000001.removed", "step-00000003.partial"]);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}
