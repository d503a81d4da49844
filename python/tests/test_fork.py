# SPDX-License-Identifier: Apache-2.0
"""fork: the child has no threads and no ring of its parent, says so, and can make its own."""

from __future__ import annotations

import gc
import os
import warnings
from pathlib import Path
from typing import Any

import headrace
import pytest
from support import FrozenFileSystem, evict, in_child, random_bytes


def test_a_child_that_uses_its_parents_handle_gets_a_clear_error(tmp_path: Path, engine: str) -> None:
    """liburing #731, tensorstore #206: rings shared by two processes, and waits for threads that do not
    exist."""
    path = tmp_path / "file"
    with headrace.Handle(engine=engine) as h:
        h.write(path, b"abc").result()

        def work() -> None:
            for start in (
                lambda: h.read(path, bytearray(3)),
                lambda: h.write_many([(path, b"xyz")]),
                lambda: h.replace(path, size=3),
            ):
                with pytest.raises(headrace.ClosedError, match="forked"):
                    start()
            h.close()
            repr(h)

        in_child(work, timeout_s=5)
        target = bytearray(3)
        assert h.read(path, target).result() == 3
        assert target == b"abc"


def test_a_child_can_make_a_handle_of_its_own(tmp_path: Path, engine: str) -> None:
    path = tmp_path / "file"
    data = random_bytes(3_000_001)
    with headrace.Handle(engine=engine) as h:
        h.write(path, data).result()

        def work() -> None:
            with headrace.Handle(engine=engine) as own:
                target = bytearray(len(data))
                assert own.read(path, target).result() == len(data)
                assert target == data
                seen: list[object] = []
                transfer = own.write(path.with_suffix(".child"), data)
                transfer.add_done_callback(seen.append)
                transfer.result()
                while not seen:
                    os.sched_yield()

        for _ in range(3):
            in_child(work)
        assert h.read(path, bytearray(3)).result() == 3


def refused_in_a_child(t: headrace.Transfer) -> None:
    waits = (
        lambda: t.add_done_callback(print),
        lambda: headrace.wait([t]),
        lambda: headrace.as_completed([t]),
    )
    for ask in (t.result, t.exception, t.cancel, t.abort, *waits):
        with pytest.raises(headrace.ClosedError, match="forked"):
            ask()
    assert not t.done()
    assert "pending" in repr(t) or "running" in repr(t)


def test_a_child_neither_waits_for_nor_disturbs_its_parents_transfers(
    frozen: FrozenFileSystem, engine: str
) -> None:
    path = frozen.folder / "file"
    path.write_bytes(b"")
    data = random_bytes(1 << 20)
    h = headrace.Handle(engine=engine)
    held: dict[str, Any] = {"h": h, "r": h.read("/dev/zero", bytearray(10))}
    held["r"].result()
    frozen.freeze()
    held["w"] = h.write(path, data)

    def work() -> None:
        assert held["r"].result() == 10, "what was done before the fork is known"
        refused_in_a_child(held["w"])
        held.clear()
        gc.collect()

    in_child(work, timeout_s=5)
    frozen.thaw()
    assert held["w"].result() == len(data)
    h.close()
    assert path.read_bytes() == data


def test_a_child_that_exits_normally_leaves_its_parents_files_alone(
    tmp_path: Path, handle: headrace.Handle
) -> None:
    file = handle.replace(tmp_path / "file", size=3)
    handle.write(file, b"abc").result()

    def work() -> None:
        nonlocal file
        with pytest.raises(headrace.ClosedError, match="forked"):
            handle.write(file, b"xyz")
        file = None  # type: ignore[assignment]
        gc.collect()

    in_child(work)
    assert os.path.exists(file.temporary_path)
    file.commit()
    assert (tmp_path / "file").read_bytes() == b"abc"


def test_forks_during_direct_reads_never_change_the_bytes(tmp_path: Path, engine: str) -> None:
    """rocksdb #11233: open(2) forbids fork during direct reads into private memory; so the bytes are
    compared."""
    path = tmp_path / "file"
    data = random_bytes(1 << 20)
    path.write_bytes(data)
    target = bytearray(len(data))
    buffer = headrace.Buffer(len(data))
    with headrace.Handle(engine=engine) as h, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        for round_ in range(334):
            evict(path)
            memory = buffer if round_ % 2 else target
            memory[:] = bytes(len(data))
            read = h.read(path, memory, copy="never" if round_ % 4 == 2 else "auto", cache="bypass")
            child = os.fork()
            if child == 0:
                try:
                    target[:] = b"\xff" * len(data)
                    if round_ % 2 == 0:
                        buffer[:] = b"\xff" * len(data)
                finally:
                    os._exit(0)
            assert read.result() == len(data)
            assert bytes(memory) == data
            os.waitpid(child, 0)


def test_buffers_can_be_used_in_a_child(tmp_path: Path) -> None:
    buffer = headrace.Buffer(5 << 20)
    buffer[:3] = b"abc"

    def work() -> None:
        assert bytes(buffer[:3]) == b"abc"
        buffer[:3] = b"xyz"
        with headrace.Handle() as h:
            h.write(tmp_path / "file", buffer).result()

    in_child(work)
    assert bytes(buffer[:3]) == b"abc"
    assert (tmp_path / "file").read_bytes()[:3] == b"xyz"


def test_a_forked_data_loader_worker_gets_an_error_or_its_own_handle(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    data = torch.arange(16, dtype=torch.float32)
    with headrace.Handle() as h:
        h.write(tmp_path / "file", data).result()

        class Records(torch.utils.data.Dataset):  # type: ignore[misc,name-defined]
            def __init__(self, own: bool) -> None:
                self.own = own
                self.handle = h

            def __len__(self) -> int:
                return 4

            def __getitem__(self, index: int) -> Any:
                target = torch.zeros(4)
                if self.own and os.getpid() != parent:
                    self.handle = headrace.Handle()
                    self.own = False
                self.handle.read(tmp_path / "file", target, offset=index * 16).result()
                return target

        parent = os.getpid()
        options = {"num_workers": 2, "multiprocessing_context": "fork", "batch_size": 4, "timeout": 20}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            (batch,) = torch.utils.data.DataLoader(Records(own=True), **options)
            assert torch.equal(batch.reshape(-1), data)
            with pytest.raises(headrace.ClosedError, match="forked"):
                list(torch.utils.data.DataLoader(Records(own=False), **options))
        assert h.read(tmp_path / "file", torch.zeros(4)).result() == 16
