//! Memory snapshots of PyTorch: what is in them, whose blocks they are, and that nothing of them is executed.
#![allow(clippy::unwrap_used, missing_docs)]

use napkin_plan::ledger;
use napkin_plan::model::Model;
use napkin_plan::presets;
use napkin_plan::sharding::Sharding;
use napkin_plan::snapshot::Question;
use napkin_plan::snapshot::attribute::attribute;
use napkin_plan::snapshot::memory::{Snapshot, State};
use nn::step::{Precision, StepOptions, Until};
use nn::{Profile, Recompute};
use tensor::CastLists;
use units::Bytes;

/// Written by Python: see `snapshot/make.py`, which printed the numbers below.
const GPT2: &[u8] = include_bytes!("snapshot/gpt2.pickle");

fn read(bytes: &[u8]) -> Result<Snapshot, units::Diagnostic> {
    Snapshot::read("a.pickle", bytes)
}

fn small_gpt2() -> Model {
    let (name, text) = presets::find("gpt2").unwrap();
    let set = [
        ("n_layer", "2"),
        ("n_embd", "64"),
        ("n_head", "4"),
        ("vocab_size", "512"),
        ("n_positions", "128"),
        ("n_ctx", "128"),
    ];
    let set: Vec<_> = set.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    Model::from_text(name, name, text.as_bytes(), &set, None).unwrap()
}

fn request(batch: u64) -> ledger::Request<'static> {
    let options = StepOptions {
        batch,
        seq_len: 128,
        profile: Profile::HfSdpa,
        precision: Precision::Fp32,
        optimizer: "adamw-foreach".parse().unwrap(),
        recompute: Recompute::None,
        grad_accum_steps: 1,
        autocast: CastLists::Cuda,
        steps: 2,
        warm: false,
        dropout: false,
        until: Until::Optimizer,
        objective: nn::Objective::DEFAULT,
        offload: nn::Offload::NONE,
        in_backward: false,
    };
    let sharding = Sharding::default();
    ledger::Request {
        options,
        sharding,
        hardware: None,
        runtime: Bytes::ZERO,
        runtime_given: true,
        paged: false,
        process: None,
        depth: 1,
        timeline: false,
    }
}

#[test]
fn segments_and_blocks_are_those_that_were_written() {
    let snapshot = read(GPT2).unwrap();
    assert_eq!((snapshot.segments.len(), snapshot.reserved()), (3, 25_165_824));
    assert_eq!((snapshot.in_state(State::Allocated), snapshot.in_state(State::Waiting)), (14_130_688, 0));
    let requested: u64 = snapshot.blocks().filter_map(|block| block.requested).sum();
    assert_eq!(requested, 14_114_005);
    let own = snapshot.blocks().find(|block| block.requested == Some(3_333_333)).unwrap();
    assert_eq!(
        (own.frames[1].file.as_str(), own.frames[1].line, own.frames[1].name.as_str()),
        ("/home/me/data.py", 12, "preload")
    );
    for bytes in [
        &include_bytes!("snapshot/protocol2.pickle")[..],
        include_bytes!("snapshot/protocol3.pickle"),
        include_bytes!("snapshot/protocol5.pickle"),
        include_bytes!("snapshot/old.pickle"),
    ] {
        let bare = read(bytes).unwrap();
        assert_eq!((bare.segments.len(), bare.reserved(), bare.in_state(State::Allocated)), (2, 23_068_672, 9_324_544));
        assert_eq!(bare.blocks().filter_map(|block| block.requested).sum::<u64>(), 9_319_168);
    }
}

#[test]
fn blocks_are_given_to_what_the_step_has_and_the_rest_is_told() {
    let model = small_gpt2();
    let request = request(2);
    let traced = model.trace(&request.options).unwrap();
    let found = attribute(&read(GPT2).unwrap(), &model, &traced, &request);
    let of = |bucket: &str| {
        let lines = found.lines.iter().filter(|((name, _), _)| *name == bucket).map(|(_, found)| found.found);
        lines.fold((0, 0), |(bytes, count), (more, one)| (bytes + more, count + one))
    };
    // 28 parameters of 568,320 bytes in whole blocks, and as many gradients and twice as many moments.
    assert_eq!(
        (of("parameters"), of("gradients"), of("optimizer_states")),
        ((568_320, 28), (568_320, 28), (1_136_640, 56))
    );
    assert_eq!((of("inputs"), of("workspace")), ((4096, 2), (8_519_680, 1)));
    assert_eq!(found.moment, "at the end of the optimizer step of step 1");
    let rest: Vec<_> = found.unexplained.iter().map(|one| (one.bytes, one.count)).collect();
    assert_eq!(rest, [(3_333_632, 1)]);
    assert_eq!(found.unexplained[0].frame.as_ref().unwrap().name, "preload");
    assert_eq!(found.explained() + found.left(), 14_130_688);
    // Whatever the step is said to be, nothing is lost.
    let other = self::request(1);
    let traced = model.trace(&other.options).unwrap();
    let found = attribute(&read(GPT2).unwrap(), &model, &traced, &other);
    assert_eq!(found.explained() + found.left(), 14_130_688);
}

#[test]
fn the_answer_says_how_much_has_a_name() {
    let model = small_gpt2();
    let question = |step, tolerance| Question { snapshot: read(GPT2).unwrap(), step, tolerance }.report().unwrap();
    let report = question(Some((&model, request(2))), Some(0.5));
    assert_eq!(report.result.get("unexplained_bytes").unwrap().as_uint(), Some(3_333_632));
    assert_eq!(report.verdict, napkin_plan::report::Verdict::Answered);
    assert_eq!(question(Some((&model, request(2))), Some(0.05)).verdict, napkin_plan::report::Verdict::No);
    let bare = question(None, None);
    assert!(bare.result.get("blocks").is_some());
    let snapshot = bare.result.get("snapshot").unwrap();
    assert_eq!(snapshot.get("allocated_bytes").unwrap().as_uint(), Some(14_130_688));
}

/// Every opcode that imports, calls or builds, where a program would have run.
#[test]
fn programs_are_refused_and_not_run() {
    let witness = std::env::temp_dir().join(format!("napkin-snapshot-{}", std::process::id()));
    let command = format!("touch {}", witness.display());
    let mut call = b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c".to_vec();
    call.push(u8::try_from(command.len()).unwrap());
    call.extend(command.as_bytes());
    call.extend(b"\x85R.");
    let cases: [(&[u8], &str, usize); 12] = [
        (&call, "STACK_GLOBAL", 17),
        (b"\x80\x02cposix\nsystem\nX\x04\x00\x00\x00true\x85R.", "GLOBAL", 2),
        (b"\x80\x02N)R.", "REDUCE", 4),
        (b"\x80\x02N}b.", "BUILD", 4),
        (b"\x80\x02(iposix\nsystem\n.", "INST", 3),
        (b"\x80\x02(No.", "OBJ", 4),
        (b"\x80\x02N)\x81.", "NEWOBJ", 4),
        (b"\x80\x04N)}\x92.", "NEWOBJ_EX", 5),
        (b"\x80\x02\x82\x01.", "EXT1", 2),
        (b"\x80\x02\x83\x01\x00.", "EXT2", 2),
        (b"\x80\x02\x84\x01\x00\x00\x00.", "EXT4", 2),
        (b"\x80\x02NQ.", "BINPERSID", 3),
    ];
    for (bytes, name, offset) in cases {
        let problem = read(bytes).unwrap_err();
        assert!(problem.message.contains(&format!("at byte {offset}, opcode {name},")), "{}", problem.message);
        assert!(problem.why.unwrap().contains("nothing in this file was executed"));
    }
    assert!(!witness.exists(), "it was executed");
}

#[test]
fn hostile_files_are_refused_in_little_memory() {
    // Cut short anywhere.
    for end in (0..GPT2.len()).step_by(7) {
        assert!(read(&GPT2[..end]).is_err(), "{end}");
    }
    let million = 1_000_000;
    let deep = [&b"\x80\x04"[..], &b"]".repeat(million), &b"a".repeat(million - 1), b"."].concat();
    let open = [&b"\x80\x04"[..], &b"(".repeat(million), b"."].concat();
    let tuples = [&b"\x80\x04N"[..], &b"\x85".repeat(million), b"."].concat();
    // A list that holds itself, and 40 lists of which each holds the one before twice.
    let itself = b"\x80\x04]\x94h\x00a.".to_vec();
    let doubles = [
        &b"\x80\x04]\x94"[..],
        &(0..40).flat_map(|i| [b']', 0x94, b'(', b'h', i, b'h', i, b'e']).collect::<Vec<_>>(),
        b".",
    ]
    .concat();
    for (bytes, says) in [
        (&b""[..], "does not begin like a pickle"),
        (b"PK\x03\x04", "does not begin like a pickle"),
        (b"\x80\x01.", "protocol 1"),
        (b"\x80\x07.", "protocol 7"),
        (b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xff", "cut short"),
        (b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f", "cut short"),
        (b"\x80\x04\x8b\xff\xff\xff\x7f", "cut short"),
        (b"\x80\x04h\x05.", "nothing is remembered as 5"),
        (b"\x80\x04a.", "without a value"),
        (b"\x80\x04e.", "without a mark"),
        (b"\x80\x04N(Nu.", "no dict"),
        (b"\x80\x04}(Nu.", "a key without a value"),
        (b"\x80\x04.", "without a value"),
        (b"\x80\x04N.", "no list of `segments`"),
        (b"\x80\x04].", "no segment"),
        (&deep, "segment 0 has no `total_size`"),
        (&open, "without a value"),
        (&tuples, "segment 0 has no `total_size`"),
        (&itself, "segment 0 has no `total_size`"),
        (&doubles, "segment 0 has no `total_size`"),
    ] {
        let problem = read(bytes).unwrap_err();
        assert!(problem.message.contains(says), "{says}: {}", problem.message);
        assert!(problem.location.is_some());
    }
}

/// A segment with 65,536 blocks, named 65,536 times by three bytes each.
#[test]
fn a_bomb_of_names_is_bounded() {
    let text = |text: &str| [&[0x8c, u8::try_from(text.len()).unwrap()][..], text.as_bytes()].concat();
    let block = [&b"}("[..], &text("size"), b"M\x00\x02", &text("state"), &text("inactive"), b"u\x94"].concat();
    let blocks = [&b"](h\x00"[..], &b"h\x00".repeat(65_535), b"e"].concat();
    // The block stays below the list, which no dict or list takes: it is only remembered.
    let segment = [&b"}("[..], &text("total_size"), b"J\x00\x00\x00\x02", &text("blocks"), &blocks, b"u\x94"].concat();
    let all = [&b"\x80\x04"[..], &block, &segment, b"](h\x01", &b"h\x01".repeat(65_535), b"e."].concat();
    let problem = read(&all).unwrap_err();
    assert!(problem.message.contains("more blocks and frames than are read"), "{}", problem.message);
}
