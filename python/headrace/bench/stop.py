# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C, SIGTERM and SIGHUP end a command as they end the program's others: it removes what it made, says
so, and ends by the signal; a second one ends it at once.

Python runs handlers between two steps of its main thread alone, and torch may spend seconds in one. So a
thread waits here that the signal wakes whatever the main thread does. It can act as soon as it gets the
interpreter's lock, which long calls let go of.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from .command import draws_over, failure, print_error, printable

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
HELD_WITHIN_S = 0.2  # how long the main thread is waited for; it may be inside of torch
REMOVALS_MAX = 20  # a call that still runs may make a file meanwhile


class Stop:
    """``with Stop(...) as stop, stop.folder(parent, prefix) as folder:``. In another thread than the main one
    signals stay as they are."""

    def __init__(self, operation: str, *, as_json: bool) -> None:
        self._operation = operation
        self._as_json = as_json
        self._folders: list[Path] = []
        self._before: dict[int, Any] = {}
        self._held = threading.Event()
        self._watcher: threading.Thread | None = None

    def __enter__(self) -> Stop:
        if threading.current_thread() is not threading.main_thread():
            return self
        self._read_end, self._write_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._write_end, False)
        self._watcher = threading.Thread(target=self._watch, daemon=True, name="headrace-stop")
        self._watcher.start()
        self._wakeup_before = signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        for number in SIGNALS:
            # What was ignored stays so: nohup, or a shell that runs this in the background.
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._hold)
        return self

    def __exit__(self, *_: object) -> None:
        if self._watcher is None:
            return
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_before)
        os.close(self._write_end)
        self._watcher.join()
        os.close(self._read_end)

    @contextlib.contextmanager
    def folder(self, parent: Path, prefix: str) -> Iterator[Path]:
        """A new folder that nobody else has, removed on any exit but SIGKILL; it stays after keep()."""
        path = parent.resolve() / f"{prefix}{secrets.token_hex(6)}"
        self._folders.append(path)  # first, so that a signal in between finds it
        try:
            path.mkdir(mode=0o700)
        except BaseException:
            self._folders.remove(path)
            raise
        try:
            yield path
        finally:
            if path in self._folders:
                shutil.rmtree(path, ignore_errors=True)
                self._folders.remove(path)

    def keep(self, path: Path) -> None:
        """The folder stays, from now on."""
        self._folders.remove(path)

    def _hold(self, _number: int, _frame: FrameType | None) -> None:
        """In the main thread: it makes nothing any more. The watcher ends the process."""
        self._held.set()
        while True:
            time.sleep(3600)

    def _watch(self) -> None:
        numbers = {int(number) for number in SIGNALS}
        while data := os.read(self._read_end, 1):
            if data[0] in numbers:
                self._end(data[0])

    def _end(self, number: int) -> NoReturn:
        libc = ctypes.CDLL(None)
        libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
        for one in SIGNALS:
            if one in self._before:
                libc.signal(one, None)  # the default: a second one ends it at once
        self._held.wait(HELD_WITHIN_S)
        _stop_children()
        for _ in range(REMOVALS_MAX):
            for folder in list(self._folders):
                shutil.rmtree(folder, ignore_errors=True)
            if not any(folder.exists() for folder in self._folders):
                break
            time.sleep(0.01)
        message = f"interrupted by {signal.Signals(number).name}; nothing is left behind"
        left = [str(folder) for folder in self._folders if folder.exists()]
        if left:
            message = f"interrupted by {signal.Signals(number).name}; could not remove {', '.join(left)}"
        with contextlib.suppress(OSError):
            start = "\r\033[K" if draws_over() else ""
            os.write(2, f"{start}headrace: {self._operation}: {printable(message)}\n".encode())
        if self._as_json:
            with contextlib.suppress(OSError, ValueError), contextlib.redirect_stdout(sys.__stdout__):
                print_error(failure("interrupted", self._operation, message))
        end_by_signal(number)


def _stop_children() -> None:
    """Such as fio or a compiler: a signal from elsewhere than the terminal does not reach them."""
    for task in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for word in task.read_text().split():
                with contextlib.suppress(OSError):
                    os.kill(int(word), signal.SIGTERM)


def end_by_signal(number: int) -> NoReturn:
    """Ends the process as the signal does where nobody handles it. Any thread."""
    libc = ctypes.CDLL(None)
    libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    libc.signal(number, None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    os.kill(os.getpid(), number)
    time.sleep(1)
    os._exit(128 + number)
