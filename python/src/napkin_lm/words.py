"""Keyword arguments to the words of a command line, and names of Python to those of the program."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

#: Arguments whose flag has another name.
FLAGS = {
    "hardware": "hw",
    "micro_batch_size": "batch",
    "batch_size": "batch",
    "grad_accum_steps": "grad-accum",
    "global_batch_size": "gbs",
}


def number(value: Any) -> str:
    """A number as a flag takes it: ``15e12`` is a count, and has no point.

    >>> [number(value) for value in (15e12, 0.4, 8, True)]
    ['15000000000000', '0.4', '8', 'True']
    """
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
        return str(int(value))
    return str(value)


def flags(options: dict[str, Any]) -> list[str]:
    """The flags of keyword arguments, in their order; ``None`` and ``False`` are left out, ``True`` is a switch, a dict for
    ``set`` is one flag a key, and a list is joined by commas.

    >>> flags({"hardware": "h100-sxm", "zero": 3, "dropout": True, "recompute": None, "freeze": ["lm_head", "norm"]})
    ['--hw=h100-sxm', '--zero=3', '--dropout', '--freeze=lm_head,norm']
    """
    out: list[str] = []
    for name, value in options.items():
        if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
            raise TypeError(f"{name!r} is no option")
        flag = "--" + FLAGS.get(name, name.replace("_", "-"))
        if value is None or value is False:
            continue
        if value is True:
            out.append(flag)
        elif isinstance(value, dict):
            out.extend(f"{flag}={key}={_json(one)}" for key, one in value.items())
        elif isinstance(value, Iterable) and not isinstance(value, (str, bytes)):
            out.append(f"{flag}=" + ",".join(number(one) for one in value))
        else:
            out.append(f"{flag}={number(value)}")
    return out


def _json(value: Any) -> str:
    import json

    return value if isinstance(value, str) else json.dumps(value)
