"""A model, and the questions that begin with one."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

from .answer import Answer, Rows, asked
from .errors import ConfigError

#: What a model that is handed over is called among files.
_FILE = "config.json"


class Model:
    """A model as its configuration describes it."""

    def __init__(self, name: str, files: dict[str, bytes]) -> None:
        self._name = name
        self._files = files
        # A configuration that is wrong is told at once.
        self._counts = self._ask("params")

    @classmethod
    def from_config(cls, config: Any) -> Model:
        """The model of a configuration.

        Args:
            config: a path of a ``config.json`` or of its folder, JSON text, a dict, the name of a preset, or an object with
                ``to_dict()`` such as a transformers config.

        Raises:
            ConfigError: all that is wrong with it, each problem with its line.
        """
        if hasattr(config, "to_dict"):
            config = config.to_dict()
        if isinstance(config, Mapping):
            text = json.dumps(dict(config), default=_plain)
            return cls(_FILE, {_FILE: text.encode()})
        if isinstance(config, str) and config.lstrip().startswith("{"):
            return cls(_FILE, {_FILE: config.encode()})
        if isinstance(config, (str, PathLike)):
            file = _file(Path(config))
            # Where there is no such file it is a name: that of a preset, or the error says which are near.
            return cls(str(config), {}) if file is None else cls(str(file), {str(file): file.read_bytes()})
        raise TypeError(f"{type(config).__name__} is no configuration: a path, a dict, JSON, or something with to_dict()")

    @classmethod
    def from_torch(cls, module: Any) -> Model:
        """The model of a PyTorch module, by the configuration it carries; the meta device is enough.

        Its parameters are held against those that the configuration predicts, by number.

        Raises:
            TypeError: if the module carries no configuration: name one with :meth:`from_config`.
            ConfigError: if the module has other parameters than its configuration says.
        """
        config = getattr(module, "config", None)
        if config is None or not hasattr(config, "to_dict"):
            raise TypeError(f"{type(module).__name__} has no .config with to_dict(): use Model.from_config(...)")
        model = cls.from_config(config)
        seen: dict[int, int] = {}
        for parameter in module.parameters():
            seen[id(parameter)] = parameter.numel()
        held = sum(seen.values())
        if held != model.params:
            problem = f"the module has {held:,} parameters, its configuration says {model.params:,}"
            why = "parts were added to it or left out, or this class has another head"
            raise ConfigError([{"code": None, "message": problem, "why": why, "help": ["Model.from_config(module.config)"]}])
        return model

    def _ask(self, command: str, **options: Any) -> Answer:
        return asked([command, self._name], self._files, options)

    @property
    def params(self) -> int:
        """Parameters, each tensor once."""
        return int(self._counts["stored"])

    @property
    def counts(self) -> Answer:
        """Parameters in all their counts, by module."""
        return self._counts

    def flops(self, **options: Any) -> Flops:
        """FLOP of a training step: ``seq_len``, ``batch``, ``recompute``, ``profile``, ... as the program's flags."""
        return Flops(self._ask("flops", **options)._native)

    def ledger(self, **options: Any) -> Ledger:
        """Memory of one device at the peak of a step: ``hardware``, ``devices``, ``zero``, ``seq_len``, ..."""
        return Ledger(self._ask("ledger", **options)._native)

    def plan(self, *, hardware: str, devices: int = 1, **options: Any) -> Plan:
        """Everything about a run on one screen."""
        return Plan(self, {"hardware": hardware, "devices": devices, **options})

    def layouts(self, *, hardware: str, devices: int, gbs: int, **options: Any) -> Layouts:
        """The best ways to divide a run with ``gbs`` sequences a step over so many devices."""
        given = {"hardware": hardware, "devices": devices, "gbs": gbs, **options}
        return Layouts(self._ask("layout", **given)._native)

    def infer(self, **options: Any) -> Answer:
        """Bytes and time of inference."""
        return self._ask("infer", **options)

    def explain_oom(self, message: str, **options: Any) -> Answer:
        """Which tensor an out-of-memory message means, and what frees enough."""
        return asked(["explain-oom", message, self._name], self._files, options)

    def __repr__(self) -> str:
        return f"<napkin model {self._name}: {self.params:,} parameters>"


class Flops(Answer):
    """FLOP of a step."""

    @property
    def per_token(self) -> int:
        """FLOP of one trained token, with exactly the pairs that the mask leaves."""
        return int(self["per_token"])


class Ledger(Answer):
    """Memory of one device."""

    @property
    def peak_bytes(self) -> int:
        """Highest bytes of a step, runtime included."""
        return int(self["peak_bytes"])

    def rows(self) -> Rows:
        """Lines of the ledger: bucket, part, bytes; they sum to :attr:`peak_bytes`."""
        return Rows(list(self["lines"]))


class Layouts(Answer):
    """Layouts of a run."""

    def rows(self) -> Rows:
        """The best layouts, the fastest first."""
        return Rows(list(self["best"]))


class Plan(Answer):
    """A run of a model on devices."""

    def __init__(self, model: Model, options: dict[str, Any]) -> None:
        super().__init__(model._ask("plan", **options)._native)
        self._model = model
        self._options = options

    @property
    def fits(self) -> bool:
        """Whether a step fits in a device."""
        return bool(self["fits"])

    @cached_property
    def ledger(self) -> Ledger:
        """Memory of one device, line by line."""
        return Ledger(self._part("ledger")._native)

    @cached_property
    def flops(self) -> Flops:
        """FLOP of a step."""
        return Flops(self._part("flops")._native)

    @cached_property
    def report(self) -> Answer:
        """The same with ledger and FLOP as parts of one page: ``run.report.save("report.html")``."""
        return self._model._ask("report", **self._options)

    def _part(self, kind: str) -> Answer:
        # The report knows which of these options a part has, and what of the rest it takes for granted.
        parts = self.report.to_dict()["parts"]
        command = next(part["command"] for part in parts if part["schema"].startswith(f"napkin.{kind}/"))
        return asked(shlex.split(command)[1:], self._model._files)

    def time(self, *, tokens: float, **options: Any) -> Time:
        """How long it takes to train on so many tokens: ``mfu``, ``days`` or ``price`` as the program's flags."""
        names = {"hardware", "devices", "seq_len", "dtype", "peak", "set"}
        given = {name: value for name, value in self._options.items() if name in names}
        return Time(self._model._ask("time", tokens=tokens, **{**given, **options})._native)

    def layouts(self, *, gbs: int, **options: Any) -> Layouts:
        """The best ways to divide it with ``gbs`` sequences a step."""
        names = {"hardware", "devices", "seq_len", "precision", "set"}
        given = {name: value for name, value in self._options.items() if name in names}
        return self._model.layouts(gbs=gbs, **{**given, **options})


class Time(Answer):
    """Time of a run."""

    @property
    def seconds(self) -> float:
        """Seconds on the wall clock."""
        return float(self["seconds"])

    @property
    def days(self) -> float:
        """The same in days."""
        return self.seconds / 86_400


def _file(path: Path) -> Path | None:
    """The configuration that a path names, if there is one."""
    try:
        file = path / "config.json" if path.is_dir() else path
        return file if file.is_file() else None
    except (OSError, ValueError):
        # Too long for a path, or with a character that none has.
        return None


def _plain(value: Any) -> str:
    """dtypes and other objects of a configuration, as it would be written to a file."""
    return str(value).removeprefix("torch.")
