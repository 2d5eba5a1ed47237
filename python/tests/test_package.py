"""The package against the program: the same numbers, and what is Python's own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import napkin_lm as napkin

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "data" / "models" / "llama-3.1-8b.json"


def program() -> str | None:
    """The program, where it is built."""
    found = os.environ.get("NAPKIN")
    return found if found and Path(found).exists() else None


def test_counts_of_a_model_from_everything_it_can_come_from() -> None:
    text = CONFIG.read_text()

    class Config:
        def to_dict(self) -> dict[str, object]:
            return json.loads(text)

    for config in (CONFIG, str(CONFIG), text, json.loads(text), Config(), "llama-3.1-8b"):
        assert napkin.Model.from_config(config).params == 8_030_261_248  # 2vh + l(had + 2hkd + adh + 3hf + 2h) + h


def test_a_plan_is_what_its_parts_are() -> None:
    model = napkin.Model.from_config("llama-3.1-8b")
    run = model.plan(hardware="h100-sxm", devices=8, zero=3, seq_len=8192)
    assert run.fits
    rows = run.ledger.rows()
    assert sum(row["bytes"] for row in rows) == run.ledger.peak_bytes
    # 3 x 140.549e12 FLOP a sequence (causal), by hand from the shape.
    assert model.flops(seq_len=8192).per_token == pytest.approx(421.646e12 / 8192, rel=1e-4)
    # 15e12 tokens x 51.470e9 FLOP over 8 x 989.5e12 x 0.4.
    assert run.time(tokens=15e12, mfu=0.4).days == pytest.approx(15e12 * 51.470e9 / (8 * 989.5e12 * 0.4) / 86400, rel=1e-3)
    assert "activations" in run.ledger.explain("activations")
    # Where nothing is said of ZeRO, the ledger is that of the plan.
    unsaid = model.plan(hardware="h100-sxm", devices=8, seq_len=8192)
    assert unsaid.ledger.peak_bytes == unsaid["ledger"]["peak_bytes"] == run.ledger.peak_bytes
    assert unsaid.flops.per_token == model.flops(seq_len=8192).per_token
    with pytest.raises(KeyError, match="activations"):
        run.ledger.explain("nothing")


def test_numbers_are_those_of_the_program() -> None:
    binary = program()
    if binary is None:
        pytest.skip("NAPKIN does not name the program")
    for preset in [row["name"] for row in napkin.presets()]:
        answer = napkin.Model.from_config(preset).ledger(hardware="h100-sxm", devices=8, zero=3, seq_len=1024)
        words = re.sub(r"^napkin ", "", answer.command).split()
        said = subprocess.run([binary, *words, "--json"], capture_output=True, check=False, text=True)
        theirs, ours = json.loads(said.stdout), answer.to_dict()
        # The program's command line has --json in it.
        del theirs["command"], ours["command"]
        assert ours == theirs, preset


def test_what_is_wrong_is_said_with_its_place() -> None:
    with pytest.raises(napkin.ConfigError) as caught:
        napkin.Model.from_config('{\n  "model_type": "llama",\n  "hidden_size": "large"\n}')
    assert caught.value.line == 3 and caught.value.problems
    with pytest.raises(napkin.ConfigError) as caught:
        napkin.Model.from_config("gpt2").plan(hardware="h100", devices=0, zero=7)
    assert len(caught.value.problems) >= 2 and caught.value.hint
    with pytest.raises(napkin.ConfigError, match="near presets: gpt2"):
        napkin.Model.from_config("gpt-2")
    with pytest.raises(TypeError):
        napkin.Model.from_config(12)
    for name in ("x" * 10_000, "a\0b"):
        with pytest.raises(napkin.ConfigError):
            napkin.Model.from_config(name)
    with pytest.raises(TypeError, match="recorded"):
        napkin.reconcile(None, None)  # type: ignore[arg-type]
    with pytest.raises(napkin.ConfigError, match="budget"):
        napkin.afford()
    with pytest.raises(napkin.ConfigError, match="napkin layout"):
        napkin.Model.from_config("gpt2").plan(hardware="h100-sxm", devices=8, tp=2)
    assert issubclass(napkin.ConfigError, ValueError)


def test_keys_that_are_not_understood_are_warnings() -> None:
    config = json.loads(CONFIG.read_text())
    with pytest.warns(napkin.NapkinWarning, match="sliding_wombat"):
        napkin.Model.from_config({**config, "sliding_wombat": 3})


def test_files_are_written_once(tmp_path: Path) -> None:
    ledger = napkin.Model.from_config("gpt2").ledger(hardware="a100-sxm-80gb")
    for name in ("a.svg", "a.html", "a.json", "a.csv", "a.md", "a.txt"):
        ledger.save(tmp_path / name)
        with pytest.raises(FileExistsError):
            ledger.save(tmp_path / name)
        ledger.save(tmp_path / name, overwrite=True)
    assert (tmp_path / "a.svg").read_text().startswith("<?xml")
    with pytest.raises(ValueError, match="extension"):
        ledger.save(tmp_path / "a.png")
    undrawn = napkin.ask("models")
    with pytest.raises(ValueError, match="drawn"):
        undrawn.save(tmp_path / "a2.svg")
    assert not (tmp_path / "a.png").exists() and not (tmp_path / "a2.svg").exists()


def test_notebooks_get_drawings_and_no_scripts() -> None:
    run = napkin.Model.from_config("gpt2").plan(hardware="a100-sxm-80gb", devices=2, tokens=1e9)
    shown = run._repr_html_()
    assert shown.count("<svg") == shown.count("</svg>") > 1
    assert "<script" not in shown and "http" not in shown.replace("http://www.w3.org/2000/svg", "")
    assert max(map(len, repr(run).splitlines())) <= 80
    assert {"ledger", "flop-tree", "roofline", "time"} <= set(run.charts)


def test_rows_are_a_table() -> None:
    pandas = pytest.importorskip("pandas")
    rows = napkin.Model.from_config("gpt2").ledger(hardware="a100-sxm-80gb").rows()
    frame = pandas.DataFrame(rows)
    assert len(frame) == len(rows) and frame["bytes"].sum() == sum(row["bytes"] for row in rows)


def test_budgets_with_and_without_a_model() -> None:
    alone = napkin.afford("64 h100-sxm for 14 days")
    # 64 x 14 days x 86,400 s x 989.5e12 FLOP/s, times the utilization it says it assumes.
    share = next(one["value"] for one in alone.assumptions if one["flag"] == "--mfu")
    assert alone["flop"] == pytest.approx(64 * 14 * 86_400 * 989.5e12 * share, rel=1e-2)
    of_model = napkin.afford("2 h100-sxm for 1 day", model="gpt2", tokens=1e9, gbs=8)
    assert of_model.command == "napkin afford gpt2 '--budget=2 h100-sxm for 1 day' --tokens=1000000000 --gbs=8"


def test_two_dicts_are_compared() -> None:
    config = json.loads(CONFIG.read_text())
    one = napkin.Model.from_config(config)
    other = napkin.Model.from_config({**config, "num_hidden_layers": 16})
    text = str(napkin.compare(one, other, hardware="h100-sxm"))
    assert "config.json" in text and "1-config.json" in text


def test_importing_is_quick() -> None:
    code = "import time; start = time.perf_counter(); import napkin_lm; print(time.perf_counter() - start)"
    times = [float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout) for _ in range(5)]
    loaded = subprocess.run([sys.executable, "-c", "import napkin_lm, sys; print([m for m in ('numpy', 'torch', 'pandas') if m in sys.modules])"], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"
    print(f"import: {min(times) * 1e3:.1f} ms")


def test_the_examples_of_the_readme_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    readme = (ROOT / "python" / "README.md").read_text()
    example = re.findall(r"```python\n(.*?)```", readme, flags=re.S)[0]
    space: dict[str, object] = {}
    exec(example, space)  # noqa: S102 (it is what the README tells people to run)
    model = space["model"]
    assert isinstance(model, napkin.Model)
    # What its comments promise.
    assert f"# {model.params}" in example and f"# {model.flops(seq_len=8192).per_token}" in example


def test_a_step_of_torch_is_reconciled() -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 256}
    config = transformers.LlamaConfig(**sizes, num_key_value_heads=2, tie_word_embeddings=False)
    module = transformers.LlamaForCausalLM(config)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", napkin.NapkinWarning)
        model = napkin.Model.from_torch(module)
        ids = torch.randint(0, 256, (2, 64))
        with napkin.measure(module) as record:
            module(input_ids=ids, labels=ids).loss.backward()
        answer = napkin.reconcile(model, record, seq_len=64, batch=2, precision="fp32", autocast="cpu")
    held = sum(parameter.numel() * 4 for parameter in module.parameters())
    assert record.peak_bytes > held
    assert answer["snapshot"]["allocated_bytes"] == record.peak_bytes


def test_answers_have_the_form_that_the_schema_says() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    referencing = pytest.importorskip("referencing")
    schemas = {name: json.loads((ROOT / "docs" / "schema" / name).read_text()) for name in ("report.schema.json", "error.schema.json")}
    known = [(name, referencing.Resource.from_contents(schema)) for name, schema in schemas.items()]
    known += [(schema["$id"], referencing.Resource.from_contents(schema)) for schema in schemas.values()]
    registry = referencing.Registry().with_resources(known)
    report = jsonschema.Draft202012Validator(schemas["report.schema.json"], registry=registry)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", napkin.NapkinWarning)
        for line in (
            "plan gpt2 --hw a100-sxm-80gb -n 2 --tokens 1B",
            "report gpt2 --hw a100-sxm-80gb -n 2 --gbs 8",
            "params qwen3-0.6b",
            "ledger gpt2 --set sliding_wombat=1",
            "fit dense:7B --states-only --hw h100-sxm",
            "infer gpt2 --hw h100-sxm",
            "dtype 0.1",
            "einsum 'a b, b c -> a c' a=2 b=3 c=4",
            "hw h100-sxm",
            "models",
            "explain 6nd N=1 D=1",
        ):
            report.validate(napkin.ask(line).to_dict())
    error = jsonschema.Draft202012Validator(schemas["error.schema.json"], registry=registry)
    for words in (["plan", "nothing"], ["ledger", "gpt2", "--hw=h100", "--zero=9"], ["paln"]):
        with pytest.raises(napkin._native.Problems) as caught:
            napkin._native.answer(words, {})
        error.validate(json.loads(str(caught.value)))
