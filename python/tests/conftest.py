# SPDX-License-Identifier: Apache-2.0
"""Temporary files on a real file system, a watchdog for each test, and the fixtures that many files share."""

from __future__ import annotations

import faulthandler
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
import headrace
import support

# A shell that runs the suite in the background starts it, and all that it starts, with SIGINT ignored; nohup
# does it with SIGHUP.
signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)  # still nothing here, but the default in what is started

STDERR = pytest.StashKey[TextIO]()
WATCHDOG_S = 60
LOCK_AGE_S = 1800  # a compile takes minutes


def pytest_configure(config: pytest.Config) -> None:
    config.stash[STDERR] = os.fdopen(os.dup(2), "w")  # while a test runs, 2 is what pytest captures
    config.add_cleanup(config.stash[STDERR].close)
    config.addinivalue_line(
        "markers", "watchdog(seconds): ends a test that hangs; 60 s where this is not given"
    )
    # DeepSpeed's ops are compiled by tests. A compile that was ended leaves a lock, and the next one waits
    # for it for ever.
    extensions = Path(
        os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(Path(sys.prefix) / "torch_extensions"))
    )
    for lock in extensions.glob("*/*/lock"):
        if time.time() - lock.stat().st_mtime > LOCK_AGE_S:
            lock.unlink(missing_ok=True)
    if config.option.basetemp is None:
        folder = support.disk_folder() / f"headrace-tests-{os.getpid()}"
        config.option.basetemp = str(folder)
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """A hang ends the run and shows where every thread was: better than a run that never ends."""
    marker = item.get_closest_marker("watchdog")
    faulthandler.dump_traceback_later(
        marker.args[0] if marker else WATCHDOG_S, exit=True, file=item.config.stash[STDERR]
    )
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.fixture
def handle() -> Iterator[headrace.Handle]:
    with headrace.Handle() as h:
        yield h


@pytest.fixture(params=support.ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    """Each engine that works here, by name."""
    return str(request.param)


@pytest.fixture
def engine_handle(engine: str) -> Iterator[headrace.Handle]:
    with headrace.Handle(engine=engine) as h:
        yield h


@pytest.fixture
def frozen(tmp_path: Path) -> Iterator[support.FrozenFileSystem]:
    """An ext4 on a loop device that can be frozen: writes to it hang until it thaws. The stuck device of
    these tests."""
    with support.loop_ext4(tmp_path, megabytes=64) as folder, support.FrozenFileSystem(folder) as file_system:
        yield file_system


@pytest.fixture(scope="module")
def package() -> Any:
    """safetensors.torch, the package."""
    return pytest.importorskip("safetensors.torch", reason="the package safetensors is not installed")


@pytest.fixture(scope="module")
def package_or_none() -> Any:
    """For tests that have something to say without it."""
    try:
        import safetensors.torch
    except ImportError:
        return None
    return safetensors.torch


@pytest.fixture
def its_open(package: Any) -> Any:
    """The package's safe_open."""
    import safetensors

    return safetensors.safe_open


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder that must be as empty after the test as it was before."""
    path = tmp_path / "scratch"
    path.mkdir()
    yield path
    assert list(path.iterdir()) == []
