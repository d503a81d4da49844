# SPDX-License-Identifier: Apache-2.0
"""What failed, refused and aborted writes leave behind: what others wrote, and nothing of their own."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import headrace
import pytest
from support import FrozenFileSystem, random_bytes, wait_until

MIB = 1 << 20


def one_at_a_time(**options: object) -> headrace.Handle:
    return headrace.Handle(engine="posix", workers=1, queue_depth=1, block_bytes=MIB, **options)  # type: ignore[arg-type]


def test_an_aborted_shard_takes_no_other_with_it(tmp_path: Path) -> None:
    path, size = tmp_path / "file", 16 * MIB
    shards = [bytes([number + 1]) * size for number in range(4)]
    with one_at_a_time() as h:
        transfers = [
            h.write(path, shard, offset=number * size, priority=number) for number, shard in enumerate(shards)
        ]
        for transfer in transfers[1:]:
            assert transfer.result() == size
        transfers[0].abort()
        try:
            transfers[0].result()
        except headrace.AbortedError:
            h.write(path, shards[0]).result()
    assert path.read_bytes() == b"".join(shards)


def test_a_forked_childs_bytes_stay(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with one_at_a_time() as h:
        file = headrace.File(path, "update")
        child = os.fork()
        if child == 0:
            with headrace.Handle(engine="posix") as own:
                own.write(path, b"the child's", offset=100 * MIB).result()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        transfer = h.write(file, bytes(64 * MIB))
        transfer.abort()
        transfer.exception()
        file.close()
    assert path.stat().st_size == 100 * MIB + len(b"the child's")


@pytest.mark.parametrize("mode", ["truncate", "create", "update"])
def test_a_refused_write_changes_nothing(frozen: FrozenFileSystem, tmp_path: Path, mode: str) -> None:
    busy, path = frozen.folder / "busy", tmp_path / "file"
    old = random_bytes(5000)
    if mode == "truncate":
        path.write_bytes(old)
    with one_at_a_time(requests_max=1, when_full="raise") as h:
        file = headrace.File(busy, "update")
        frozen.freeze()
        waits = h.write(file, bytes(100_000))
        with pytest.raises(headrace.LimitError):
            h.write(path, b"new", mode=mode)
        frozen.thaw()
        assert waits.result() == 100_000
        if mode == "truncate":
            assert path.read_bytes() == old
        else:
            assert not path.exists()
        assert h.write(path, b"new", mode=mode).result() == 3
    assert path.read_bytes() == b"new"


def test_a_bulk_call_that_cannot_open_all_files_changes_none(tmp_path: Path, handle: headrace.Handle) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_bytes(b"precious")
    with pytest.raises(FileNotFoundError):
        handle.write_many([(old, b"x"), (tmp_path / "no" / "such", b"x")], mode="truncate")
    assert old.read_bytes() == b"precious"
    with pytest.raises(FileExistsError):
        handle.write_many([(new, b"x"), (old, b"x")], mode="create")
    assert not new.exists()


def test_a_symbolic_link_survives_a_failed_write_through_it(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("target")
    with one_at_a_time() as h:
        transfer = h.write(link, bytes(64 * MIB))
        transfer.abort()
        if transfer.exception() is not None:
            assert (tmp_path / "target").stat().st_size < 64 * MIB
    assert link.is_symlink()


def test_an_atomic_file_may_be_discarded_while_another_thread_commits(frozen: FrozenFileSystem) -> None:
    path = frozen.folder / "file"
    before = sorted(os.listdir(frozen.folder))
    with one_at_a_time() as h:
        file = h.replace(path, size=8 * MIB)
        frozen.freeze()
        for number in range(8):
            h.write(file, bytes(MIB), offset=number * MIB)
        outcome: list[BaseException | None] = []

        def commit() -> None:
            try:
                file.commit()
                outcome.append(None)
            except headrace.TransferError as error:
                outcome.append(error)

        def is_closed() -> bool:
            try:
                return not file.temporary_path
            except headrace.ClosedError:
                return True

        thread = threading.Thread(target=commit)
        thread.start()
        wait_until(is_closed)
        file.discard()  # the other thread has it
        with pytest.raises(headrace.ClosedError):
            h.write(file, bytes(10))
        with pytest.raises(headrace.ClosedError):
            file.commit()
        frozen.thaw()
        thread.join()
    assert outcome == [None]
    assert sorted(os.listdir(frozen.folder)) == sorted([*before, "file"])


def test_as_completed_in_a_callback_is_refused(tmp_path: Path, handle: headrace.Handle) -> None:
    seen: list[object] = []

    def callback(transfer: headrace.Transfer) -> None:
        try:
            seen.extend(headrace.as_completed([transfer], timeout=1))
        except RuntimeError as error:
            seen.append(str(error))

    handle.write(tmp_path / "file", b"x").add_done_callback(callback)
    wait_until(lambda: bool(seen))
    assert "headrace.wait" in str(seen[0])


@pytest.mark.parametrize("wrong", [1, None, "x"])
def test_waiting_for_something_else_is_a_type_error(wrong: object) -> None:
    with pytest.raises(TypeError, match="Transfer"):
        headrace.wait([wrong])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="Transfer"):
        list(headrace.as_completed([wrong]))  # type: ignore[list-item]
