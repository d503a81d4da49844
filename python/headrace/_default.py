# SPDX-License-Identifier: Apache-2.0
"""The handle that save, load and open use when they are given none: one per process, made at first need."""

from __future__ import annotations

import importlib.util
import os
import threading

from ._core import Handle

_lock = threading.Lock()
_handle: Handle | None = None
_process = 0


def default_handle() -> Handle:
    """The handle of this process; a new one after fork. It is closed when the interpreter exits."""
    global _handle, _process
    # Without the lock first: in a forked child another thread of the parent may hold it for ever.
    if _handle is not None and _process == os.getpid():
        return _handle
    with _lock:
        if _handle is None or _process != os.getpid():
            _handle, _process = Handle(), os.getpid()
        return _handle


def need_torch(what: str) -> None:
    """ImportError that says what to do, where there is no torch."""
    if importlib.util.find_spec("torch") is None:
        raise ImportError(f"{what} needs torch, which is not installed: pip install torch", name="torch")


def _forget_lock() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_lock)
