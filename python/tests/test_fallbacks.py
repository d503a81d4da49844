# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: PT017
"""What the system refuses is replaced by the next best thing, said once, and shown by the route."""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import headrace
import pytest
from support import mounted, need_root, need_tool, random_bytes, run_script

MOVE = """
    import logging, sys
    import headrace
    class Keep(logging.Handler):
        def emit(self, record):
            print(f"log: {record.levelname} {record.getMessage()}")  # in one go: another thread prints too
    logging.getLogger("headrace").addHandler(Keep())
    logging.getLogger("headrace").setLevel(logging.INFO)
    data = bytes(range(256)) * 20_000
    with headrace.Handle() as h:
        h.write(sys.argv[1], data).result()
        target = bytearray(len(data))
        t = h.read(sys.argv[1], target)
        t.result()
        assert target == data
        print(f"engine: {h.facts()['engine']} why: {h.facts()['engine_detail']}")
    print("probe:", [(e.name, e.available) for e in headrace.probe_engines()])
    try:
        headrace.Handle(engine="uring")
    except headrace.UnavailableError as error:
        print("by name:", error)
"""


@pytest.mark.parametrize("number", ["EPERM", "ENOSYS", "ENOMEM"])
def test_a_kernel_that_refuses_io_uring_is_served_by_the_next_engine(tmp_path: Path, number: str) -> None:
    """modio-sdk #17, eio #695: default seccomp profiles refuse it, whatever version and sysctl say."""
    strace = need_tool("strace")
    before = (
        strace,
        "-f",
        "-o",
        os.devnull,
        "-e",
        "trace=io_uring_setup",
        "-e",
        f"inject=io_uring_setup:error={number}",
    )
    done = run_script(MOVE, str(tmp_path / "file"), before=before)
    if "ptrace" in done.stderr.lower():
        pytest.skip(f"strace cannot trace here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    assert "engine: aio" in done.stdout
    assert number in done.stdout.split("why:")[1]
    assert "('uring', False)" in done.stdout
    assert number in done.stdout.split("by name:")[1]
    logs = [line for line in done.stdout.splitlines() if line.startswith("log: WARNING")]
    assert len(logs) == 1, done.stdout
    assert number in logs[0]


def test_without_io_uring_and_aio_threads_do_the_work(tmp_path: Path) -> None:
    strace = need_tool("strace")
    inject = ("-e", "inject=io_uring_setup:error=EPERM", "-e", "inject=io_setup:error=ENOSYS")
    before = (strace, "-f", "-o", os.devnull, "-e", "trace=io_uring_setup,io_setup", *inject)
    done = run_script(MOVE, str(tmp_path / "file"), before=before)
    if "ptrace" in done.stderr.lower():
        pytest.skip(f"strace cannot trace here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    assert "engine: posix" in done.stdout


@pytest.fixture
def sysctl() -> Iterator[object]:
    """Sets kernel limits, and sets them back."""
    need_root("sysctl")
    old: dict[Path, str] = {}

    def set_(name: str, value: str) -> None:
        path = Path("/proc/sys") / name
        if not path.exists():
            pytest.skip(f"this kernel has no {name}")
        old.setdefault(path, path.read_text())
        try:
            path.write_text(value)
        except OSError as error:
            pytest.skip(f"{name} cannot be set: {error}")

    yield set_
    for path, value in old.items():
        path.write_text(value)


def test_io_uring_switched_off_by_sysctl(tmp_path: Path, sysctl: object) -> None:
    sysctl("kernel/io_uring_disabled", "2")  # type: ignore[operator]
    done = run_script(MOVE, str(tmp_path / "file"))
    assert done.returncode == 0, done.stderr
    assert "engine: aio" in done.stdout
    assert "EPERM" in done.stdout.split("by name:")[1]


def test_aio_contexts_used_up(tmp_path: Path, sysctl: object) -> None:
    """scylladb #922, DiskANN #456: io_setup answers EAGAIN once fs.aio-max-nr is used up."""
    sysctl("fs/aio-max-nr", "64")  # type: ignore[operator]
    data = random_bytes(3_000_001)
    try:
        with headrace.Handle(engine="aio") as h:
            assert h.write(tmp_path / "file", data).result() == len(data)
    except headrace.UnavailableError as error:
        assert "aio-max-nr" in str(error)


def test_more_depth_than_there_is(tmp_path: Path, engine: str) -> None:
    for options in ({"queue_depth": 4096, "workers": 8}, {"queue_depth": 65_536, "workers": 8}):
        try:
            with headrace.Handle(engine=engine, **options) as h:  # type: ignore[arg-type]
                assert h.write(tmp_path / "file", bytes(100_000)).result() == 100_000
        except (headrace.TransferError, ValueError) as error:
            assert "queue_depth" in str(error) or "aio-max-nr" in str(error)


def test_a_refusal_is_logged_once_per_handle(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with mounted("-t", "ramfs", "ramfs", folder=tmp_path / "ram") as folder:
        path = folder / "file"
        with caplog.at_level(logging.INFO, logger="headrace"), headrace.Handle() as h:
            for _ in range(20):
                h.write(path, bytes(100_000)).result()
            seen: list[object] = []
            h.write(path, b"x").add_done_callback(seen.append)
            while not seen:
                os.sched_yield()
    records = [r for r in caplog.records if r.name == "headrace"]
    assert len(records) <= 1, [r.getMessage() for r in records]


def test_an_engine_by_name_never_changes(tmp_path: Path, engine: str) -> None:
    with headrace.Handle(engine=engine) as h:
        assert h.facts()["engine"] == engine
        transfer = h.write(tmp_path / "file", bytes(5000))
        transfer.result()
        assert transfer.route is not None
        assert transfer.route.engine == engine


def test_direct_never_and_registered_never_show_in_the_route(tmp_path: Path, engine: str) -> None:
    with headrace.Handle(engine=engine, direct="never", registered="never") as h:
        transfer = h.write(tmp_path / "file", bytes(1 << 20))
        transfer.result()
    route = transfer.route
    assert route is not None
    assert (route.direct_bytes, route.buffered_bytes, route.registered_bytes) == (0, 1 << 20, 0)
    assert "direct=never" in route.why


def test_nothing_is_printed(tmp_path: Path) -> None:
    code = """
        import sys, headrace
        with headrace.Handle(registered="never") as h:
            h.write(sys.argv[1], bytes(100_000)).result()
            h.write("/dev/full", b"x").exception()
            h.write(sys.argv[2], b"x").exception()
    """
    shm = Path("/dev/shm") / f"headrace-{os.getpid()}"
    done = run_script(code, str(tmp_path / "file"), str(shm))
    shm.unlink(missing_ok=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert subprocess.run(["true"], check=True).returncode == 0
