"""The resource accountant for language-model training.

What a run costs in parameters, FLOP, bytes per device and days, from a model's own configuration, before it is paid for::

    import napkin_lm as napkin

    model = napkin.Model.from_config("config.json")     # a path, a dict, JSON, a preset, or anything with to_dict()
    run = model.plan(hardware="h100-sxm", devices=8, zero=3, seq_len=8192)
    run.fits, run.ledger.peak_bytes, run.time(tokens=15e12, mfu=0.4).days

Every answer is what the program ``napkin`` says to the same question: ``answer.command`` is that question.
"""

from ._native import __version__
from .answer import Answer, Rows
from .errors import ConfigError, NapkinError, NapkinWarning
from .measure import Record, measure, reconcile
from .model import Model, Plan
from .questions import afford, ask, compare, dtype, einsum, fit, hardware, layouts, presets

__all__ = [
    "Answer",
    "ConfigError",
    "Model",
    "NapkinError",
    "NapkinWarning",
    "Plan",
    "Record",
    "Rows",
    "__version__",
    "afford",
    "ask",
    "compare",
    "dtype",
    "einsum",
    "fit",
    "hardware",
    "layouts",
    "measure",
    "presets",
    "reconcile",
]
