"""What a step of PyTorch really allocates, and how far that is from what was predicted."""

from __future__ import annotations

import io
import pickle
import sys
import weakref
from types import TracebackType
from typing import Any

from .answer import Answer, asked
from .model import Model, Plan


class Record:
    """Live allocations at the highest moment of a step, and how many bytes there were."""

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._snapshot: dict[str, Any] | None = None

    def snapshot(self) -> bytes:
        """The live blocks at the peak as a memory snapshot of PyTorch, a pickle of plain data."""
        if self._snapshot is None:
            raise RuntimeError("nothing is recorded yet: leave the `with` block first")
        out = io.BytesIO()
        pickle.dump(self._snapshot, out, protocol=4)
        return out.getvalue()

    def __repr__(self) -> str:
        return f"<napkin record: {self.peak_bytes:,} bytes at the peak>"


class measure:  # noqa: N801 (it is used as a function)
    """Records what is allocated while a block runs::

        with napkin.measure(module) as record:
            loss = module(**batch).loss
            loss.backward()
            optimizer.step()
        napkin.reconcile(run, record)

    On a GPU it is PyTorch's own memory history; on the CPU every storage that an operator makes is followed until it is
    freed. What ``module`` holds before the block counts as live.
    """

    def __init__(self, module: Any = None, *, optimizer: Any = None) -> None:
        import torch

        self._torch = torch
        self._record = Record()
        self._before = list(_tensors(module, optimizer))
        self._cuda = any(tensor.is_cuda for tensor in self._before)
        self._mode: Any = None

    def __enter__(self) -> Record:
        torch = self._torch
        if self._cuda:
            torch.cuda.reset_peak_memory_stats()
            torch.cuda.memory._record_memory_history(max_entries=100_000)
        else:
            self._mode = _follow(torch, self._record, self._before)
            self._mode.__enter__()
        return self._record

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        torch = self._torch
        if self._cuda:
            torch.cuda.synchronize()
            self._record.peak_bytes = torch.cuda.max_memory_allocated()
            self._record._snapshot = torch.cuda.memory._snapshot()
            torch.cuda.memory._record_memory_history(enabled=None)
        else:
            self._mode.__exit__(kind, error, trace)
            self._mode.close()


def _tensors(module: Any, optimizer: Any) -> Any:
    if module is not None:
        yield from module.parameters()
        yield from module.buffers()
        for parameter in module.parameters():
            if parameter.grad is not None:
                yield parameter.grad
    if optimizer is not None:
        for state in optimizer.state.values():
            yield from (value for value in state.values() if hasattr(value, "untyped_storage"))


def _follow(torch: Any, record: Record, before: list[Any]) -> Any:
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_iter

    live: dict[int, tuple[int, list[dict[str, Any]]]] = {}
    total = 0
    peak: dict[int, tuple[int, list[dict[str, Any]]]] = {}

    def freed(key: int) -> None:
        nonlocal total
        total -= live.pop(key, (0, []))[0]

    def seen(tensor: Any, frames: list[dict[str, Any]]) -> bool:
        nonlocal total
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in live or size == 0 or storage.device.type == "meta":
            return False
        live[key] = (size, frames)
        total += size
        weakref.finalize(storage, freed, key)
        return True

    class Follow(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal peak
            out = function(*args, **(kwargs or {}))
            new = False
            for value in tree_iter(out):
                if isinstance(value, torch.Tensor):
                    new |= seen(value, _stack(str(function)))
            if new and total > record.peak_bytes:
                record.peak_bytes = total
                peak = dict(live)
            return out

        def close(self) -> None:
            blocks = []
            address = 0
            for size, frames in peak.values():
                blocks.append(
                    {"address": address, "size": size, "requested_size": size, "state": "active_allocated", "frames": frames}
                )
                address += size
            segment = {
                "device": 0, "address": 0, "total_size": address, "stream": 0, "segment_type": "large",
                "allocated_size": address, "active_size": address, "blocks": blocks,
            }  # fmt: skip
            record._snapshot = {"segments": [segment], "device_traces": []}

    for tensor in before:
        seen(tensor, [])
    record.peak_bytes = total
    peak = dict(live)
    return Follow()


def _stack(function: str) -> list[dict[str, Any]]:
    frames = [{"filename": "", "line": 0, "name": function}]
    frame = sys._getframe(2)
    while frame is not None and len(frames) < 16:
        code = frame.f_code
        frames.append({"filename": code.co_filename, "line": frame.f_lineno, "name": code.co_name})
        frame = frame.f_back  # type: ignore[assignment]
    return frames


def reconcile(run: Plan | Model, record: Record, **options: Any) -> Answer:
    """Holds what was recorded against the step of a model: each live block at the peak with the predicted tensor it is, and
    what has no name. ``options`` are those of the step; of a :class:`Plan` they are its own."""
    if not isinstance(run, (Plan, Model)) or not isinstance(record, Record):
        raise TypeError("reconcile(run, record): a Plan or a Model, and what measure(...) recorded")
    model = run._model if isinstance(run, Plan) else run
    if isinstance(run, Plan):
        names = {"seq_len", "batch", "micro_batch_size", "profile", "precision", "optimizer", "recompute", "grad_accum", "set"}
        options = {**{name: value for name, value in run._options.items() if name in names}, **options}
    files = {**model._files, "record.pickle": record.snapshot()}
    return asked(["reconcile-snapshot", "record.pickle", model._name], files, options)
