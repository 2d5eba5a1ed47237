"""Questions that begin with no model."""

from __future__ import annotations

from typing import Any

from .answer import Answer, Rows, asked
from .model import Layouts, Model


def ask(line: str, files: dict[str, bytes] | None = None) -> Answer:
    """The answer to a command line, such as ``ask("einsum 'b s h, h v -> b s v' b=8 s=1024 h=4096 v=32000")``."""
    import shlex

    words = shlex.split(line)
    return asked(words[1:] if words[:1] == ["napkin"] else words, files)


def fit(*, hardware: str, devices: int = 1, like: Model | str | None = None, **options: Any) -> Answer:
    """The largest sizes of a model that fit: ``like`` is the model whose shape is kept; without it the largest bare count by
    its states."""
    given = {"hardware": hardware, "devices": devices, **options}
    if like is None:
        return asked(["fit"], None, {"states_only": True, **given})
    model = like if isinstance(like, Model) else Model.from_config(like)
    return asked(["fit", model._name], model._files, given)


def layouts(model: Model | str, *, hardware: str, devices: int, gbs: int, **options: Any) -> Layouts:
    """The best ways to divide a run of a model over devices."""
    model = model if isinstance(model, Model) else Model.from_config(model)
    return model.layouts(hardware=hardware, devices=devices, gbs=gbs, **options)


def compare(*models: Model | str, **options: Any) -> Answer:
    """Set-ups side by side: several models, or one with ``vary="recompute=none,full"``."""
    all_ = [model if isinstance(model, Model) else Model.from_config(model) for model in models]
    files: dict[str, bytes] = {}
    names = []
    for number, model in enumerate(all_):
        name = model._name
        if model._files:
            # Two dicts would have one name.
            name = model._name if model._name not in files else f"{number}-{model._name}"
            files[name] = next(iter(model._files.values()))
        names.append(name)
    return asked(["compare", *names], files, options)


def afford(budget: str | None = None, *, model: Model | str | None = None, **options: Any) -> Answer:
    """The model that a budget such as ``"64 h100-sxm for 14 days"`` trains best; with a ``model`` and ``tokens``, what
    that model needs: the shortest time for a budget, the cheapest hardware for ``days``."""
    options = {"budget": budget, **options}
    if model is None:
        return asked(["afford"], None, options)
    model = model if isinstance(model, Model) else Model.from_config(model)
    return asked(["afford", model._name], model._files, options)


def einsum(pattern: str, *, dtype: str | None = None, hardware: str | None = None, **sizes: int) -> Answer:
    """FLOP, bytes and bound of an einsum of these sizes."""
    words = ["einsum", pattern, *[f"{name}={size}" for name, size in sizes.items()]]
    return asked(words, None, {"dtype": dtype, "hardware": hardware})


def dtype(*numbers: float, **options: Any) -> Answer:
    """Bits, value and error of numbers in each format."""
    return asked(["dtype", *[repr(float(one)) for one in numbers]], None, options)


def presets() -> Rows:
    """Models that are known by name."""
    return Rows(list(asked(["models"])["presets"]))


def hardware(*names: str) -> Answer:
    """Accelerators, with sources."""
    return asked(["hw", *names])
