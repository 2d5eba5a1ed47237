"""Writes wrappers.csv: the tensors that transformers saves of small wrappers of an image encoder and a language model.

    pip install torch transformers==5.24.0 safetensors
"""

import pathlib
import shutil
import tempfile

import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForImageTextToText

here = pathlib.Path(__file__).parent
configs = here.parents[2] / "plan/tests/truth/towers"

rows = ["config,name,shape"]
for name in "gemma3 gemma4 llama4 llava llava-siglip mistral3 mllama qwen2_5_vl qwen3_vl".split():
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(configs / f"{name}.json", f"{folder}/config.json")
        config = AutoConfig.from_pretrained(folder)
        with torch.device("meta"):
            model = AutoModelForImageTextToText.from_config(config)
        model.to_empty(device="cpu").save_pretrained(f"{folder}/saved")
        with safe_open(f"{folder}/saved/model.safetensors", "pt") as file:
            for tensor in sorted(file.keys()):
                shape = file.get_slice(tensor).get_shape()
                rows.append(f"{name},{tensor},{' '.join(map(str, shape))}")
(here / "wrappers.csv").write_text("\n".join(rows) + "\n")
