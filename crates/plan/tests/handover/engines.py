"""Holds what `napkin layout --export` writes against the engines' own classes, where these are installed.

    python engines.py path/to/napkin

Megatron-LM: the configuration classes of megatron-core 0.16.1 take what its `core_transformer_config_from_args` makes of the
arguments, and check it by their own rules. torchtitan 0.2.2: every option is a field of `JobConfig`, with a value of its type. DeepSpeed 0.19.8: `DeepSpeedConfig` reads
the file and finds the batch, the stage and the degrees in it. accelerate 1.15.0: the launcher takes the file, and its
`ParallelismConfig` and FSDP plugin are what the layout says. Prints how many files each engine took; the first that is not
taken ends the script with the engine's own error.
"""

import dataclasses
import itertools
import json
import os
import subprocess
import sys
import tempfile
import tomllib
import types
import typing
import warnings

NAPKIN = sys.argv[1]
RECIPES = ["fp32", "bf16-master", "bf16-master-fp32-grads", "bf16-mixed", "fp16-mixed", "bf16-pure", "fp8"]
LAYOUTS = {
    "megatron": [
        ("llama-3.1-70b", "--zero 1 --tp 8 --sp --pp 4 --grad-accum 16 --recompute full"),
        ("llama-3.1-70b", "--zero 1 --tp 2 --sp --pp 4 --virtual-stages 5 --grad-accum 8 --recompute selective"),
        ("llama-3.1-70b", "--zero 1 --pp 8 --grad-accum 8 --blocks 9,10,10,11,10,10,10,10"),
        ("llama-3.1-8b", "--zero 3 --cp 2 --shard 16"),
        ("llama-3.1-8b", "--zero 1 --offload optimizer"),
        ("llama-3.1-8b", "--zero 1 --offload activations"),
        ("gpt2-xl", "--zero 2 --seq-len 1024"),
        ("mixtral-8x7b", "--zero 1 --ep 8 --tp 2 --sp"),
        ("qwen3-235b-a22b", "--zero 1 --ep 8 --tp 4 --sp --pp 2"),
        ("deepseek-v2-lite", "--zero 1 --ep 8 --pp 2 --grad-accum 4"),
        ("deepseek-v3", "--zero 1 --ep 8 --pp 8 --virtual-stages 2 --grad-accum 8"),
    ],
    "torchtitan": [
        ("llama-3.1-8b", "--zero 0"),
        ("llama-3.1-8b", "--zero 3 --tp 2 --sp --recompute full"),
        ("llama-3.1-8b", "--zero 3 --pp 4 --grad-accum 8"),
        ("llama-3.1-8b", "--zero 3 --pp 4 --virtual-stages 2 --grad-accum 8"),
        ("llama-3.1-8b", "--zero 3 --shard 8 --no-reshard"),
        ("llama-3.1-8b", "--zero 3 --cp 2"),
        ("llama-3.1-8b", "--zero 3 --offload optimizer"),
        ("deepseek-v3", "--zero 3 --ep 8 --tp 2 --sp"),
        ("deepseek-v3", "--zero 3 --ep 4 --etp 2 --tp 2 --sp --pp 2"),
    ],
    "deepspeed": [
        ("llama-3.1-8b", "--zero 0"),
        ("llama-3.1-8b", "--zero 1 --recompute full --grad-accum 4"),
        ("llama-3.1-8b", "--zero 2 --offload optimizer"),
        ("llama-3.1-8b", "--zero 3 --tp 2"),
        ("llama-3.1-8b", "--zero 3 --cp 4 --cp-all-to-all"),
        ("mixtral-8x7b", "--zero 1 --ep 8"),
        ("mixtral-8x7b", "--zero 1 --ep 8 --tp 2"),
    ],
    "fsdp": [
        ("llama-3.1-8b", "--zero 3"),
        ("llama-3.1-8b", "--zero 3 --no-reshard --tp 2"),
        ("llama-3.1-8b", "--zero 3 --cp 4"),
        ("llama-3.1-8b", "--zero 3 --shard 16 --cp 2 --tp 2"),
        ("llama-3.1-8b", "--zero 3 --offload optimizer"),
        ("llama-3.1-8b", "--zero 3 --offload activations --recompute full"),
    ],
}


def exports(engine):
    """The files of all layouts in all number formats that the engine has."""
    for (model, flags), recipe in itertools.product(LAYOUTS[engine], RECIPES):
        words = [NAPKIN, "layout", model, "-n", "64", *flags.split(), "--precision", recipe, "--export", engine]
        answer = subprocess.run(words, capture_output=True, text=True)
        if answer.returncode == 0:
            yield answer.stdout


def of_type(kind, value):
    """Whether a value of a TOML file is of the type of a field."""
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return value in inside
    if origin in (typing.Union, types.UnionType):
        return any(of_type(one, value) for one in inside)
    if origin is list:
        return isinstance(value, list) and all(of_type(inside[0], item) for item in value)
    if kind is float:
        return isinstance(value, (int, float))
    return isinstance(value, kind) and not (kind is int and isinstance(value, bool))


def make(kind, table):
    """The dataclass a table describes."""
    fields = typing.get_type_hints(kind)
    made = {}
    for key, value in table.items():
        if dataclasses.is_dataclass(fields[key]):
            made[key] = make(fields[key], value)
        else:
            assert of_type(fields[key], value), (key, value, fields[key])
            made[key] = value
    return kind(**made)


# What `core_transformer_config_from_args` calls otherwise.
FIELDS = {
    "norm_epsilon": "layernorm_epsilon",
    "num_experts": "num_moe_experts",
    "fp8_format": "fp8",
}


def megatron():
    import shlex

    import torch
    from megatron.core.transformer import MLATransformerConfig, TransformerConfig, transformer_config

    # Its rules ask for the version of Transformer Engine, which need not be here.
    transformer_config.is_te_min_version = lambda *_: True
    warnings.simplefilter("ignore")
    count = 0
    for text in exports("megatron"):
        words = shlex.split(text.split("pretrain_gpt.py", 1)[1].replace("\\\n", " "))[:-1]
        given, name = {}, None
        for word in words:
            if word.startswith("--"):
                name = word[2:].replace("-", "_")
                given[name] = []
            else:
                given[name].append(word)
        kind = MLATransformerConfig if "multi_latent_attention" in given else TransformerConfig
        fields = {field.name: field for field in dataclasses.fields(kind)}
        made = {"add_bias_linear": "disable_bias_linear" not in given, "params_dtype": torch.bfloat16}
        for name, values in given.items():
            field = FIELDS.get(name, name)
            if field not in fields:
                continue
            if name == "recompute_modules":
                made[field] = values
            elif name == "moe_layer_freq":
                made[field] = json.loads(values[0])
            elif not values:
                made[field] = True
            else:
                value = values[0]
                for read in (int, float):
                    try:
                        value = read(values[0])
                        break
                    except ValueError:
                        pass
                made[field] = value
        made["pipeline_dtype"] = torch.bfloat16
        if "swiglu" in given:
            made.update(gated_linear_unit=True, activation_func=torch.nn.functional.silu)
        if "group_query_attention" not in given:
            made.pop("num_query_groups", None)
        if "num_layers_per_virtual_pipeline_stage" in given:
            stages = made["pipeline_model_parallel_size"] * int(given["num_layers_per_virtual_pipeline_stage"][0])
            made["virtual_pipeline_model_parallel_size"] = made["num_layers"] // stages
        made["cpu_offloading"] = made.get("cpu_offloading_num_layers", 0) > 0
        read = kind(**made)
        assert read.num_layers == int(given["num_layers"][0])
        count += 1
    return count


def torchtitan():
    from torchtitan.config.job_config import JobConfig

    return sum(make(JobConfig, tomllib.loads(text)) is not None for text in exports("torchtitan"))


def deepspeed():
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    from deepspeed.runtime import config

    config.dist.get_rank = lambda *_: 0
    count = 0
    for text in exports("deepspeed"):
        told = json.loads(text)
        at_once = told["train_micro_batch_size_per_gpu"] * told["gradient_accumulation_steps"]

        class Replicas:
            get_data_parallel_world_size = staticmethod(lambda: told["train_batch_size"] // at_once)

        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            file.write(text)
            file.flush()
            read = config.DeepSpeedConfig(file.name, mpu=Replicas())
        assert read.zero_config.stage == told["zero_optimization"]["stage"]
        assert read.tensor_parallel_config.autotp_size == told.get("tensor_parallel", {}).get("autotp_size", 0)
        assert read.expert_parallel_config.autoep_size == told.get("expert_parallel", {}).get("autoep_size", 1)
        count += 1
    return count


def fsdp():
    import yaml
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.parallelism_config import ParallelismConfig
    from accelerate.utils.dataclasses import FullyShardedDataParallelPlugin
    from accelerate.utils.launch import prepare_multi_gpu_env

    count = 0
    for text in exports("fsdp"):
        told = yaml.safe_load(text)
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write(text)
            file.flush()
            given = launch_command_parser().parse_args(["--config_file", file.name, "train.py"])
            given, *_ = _validate_launch_command(given)
        before = dict(os.environ)
        os.environ.update({name: value for name, value in prepare_multi_gpu_env(given).items() if value is not None})
        try:
            assert ParallelismConfig().total_size == told["num_processes"] == 64
            plugin = FullyShardedDataParallelPlugin()
        finally:
            os.environ.clear()
            os.environ.update(before)
        assert plugin.fsdp_version == 2
        assert plugin.reshard_after_forward == told["fsdp_config"]["fsdp_reshard_after_forward"]
        assert plugin.activation_checkpointing == told["fsdp_config"]["fsdp_activation_checkpointing"]
        count += 1
    return count


for engine in (megatron, torchtitan, deepspeed, fsdp):
    try:
        print(f"{engine.__name__}: {engine()} files taken")
    except ModuleNotFoundError as missing:
        print(f"{engine.__name__}: left out, {missing}")
