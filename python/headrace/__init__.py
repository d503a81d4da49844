# SPDX-License-Identifier: Apache-2.0
"""headrace moves tensors between NVMe storage and memory at the speed of the device.

    import headrace
    with headrace.Handle() as h:
        n = h.read("weights.bin", tensor).result()

Handle starts transfers, Transfer is the future of one, Buffer is memory that the disk likes: see their
docstrings. headrace.torch and headrace.numpy make arrays over such memory; torch and numpy are imported
when those are used, not before.
"""

from __future__ import annotations

from ._core import (
    AtomicFile,
    Buffer,
    EngineInfo,
    File,
    Handle,
    Route,
    Transfer,
    __version__,
    probe_engines,
)
from ._errors import (
    AbortedError,
    ClosedError,
    DirectoryError,
    EndOfFileError,
    ExistsError,
    FormatError,
    InvalidRequestError,
    LimitError,
    NotDirectoryError,
    NotFoundError,
    PermissionDeniedError,
    TransferError,
    UnavailableError,
)
from ._futures import (
    ALL_COMPLETED,
    FIRST_COMPLETED,
    FIRST_EXCEPTION,
    DoneAndNotDone,
    as_completed,
    wait,
)

TYPE_CHECKING = False  # importing typing would take longer than everything else here
if TYPE_CHECKING:
    from types import ModuleType

    from . import numpy as numpy
    from . import safetensors as safetensors
    from . import torch as torch
    from ._load import load as load
    from ._open import open as open
    from ._report import report as report
    from ._save import save as save

__all__ = [
    "save",
    "load",
    "Handle",
    "Transfer",
    "File",
    "AtomicFile",
    "Buffer",
    "Route",
    "EngineInfo",
    "probe_engines",
    "report",
    "wait",
    "as_completed",
    "DoneAndNotDone",
    "FIRST_COMPLETED",
    "FIRST_EXCEPTION",
    "ALL_COMPLETED",
    "TransferError",
    "EndOfFileError",
    "NotFoundError",
    "PermissionDeniedError",
    "DirectoryError",
    "NotDirectoryError",
    "ExistsError",
    "FormatError",
    "InvalidRequestError",
    "UnavailableError",
    "LimitError",
    "AbortedError",
    "ClosedError",
    "__version__",
]

_LAZY_MODULES = ("torch", "numpy", "safetensors", "demo", "deepnvme", "fastpersist", "integrations")
_LAZY_FUNCTIONS = {"save": "_save", "load": "_load", "open": "_open", "report": "_report"}


def __getattr__(name: str) -> ModuleType | object:
    if name in _LAZY_MODULES:
        import importlib

        return importlib.import_module(f"{__name__}.{name}")
    if name in _LAZY_FUNCTIONS:
        import importlib

        found: object = getattr(importlib.import_module(f"{__name__}.{_LAZY_FUNCTIONS[name]}"), name)
        globals()[name] = found
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), "torch", "numpy", "safetensors", *_LAZY_FUNCTIONS})
