# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E402, PT012, PT031
"""headrace.torch.writer and reader under an unmodified torch.save and torch.load, and as plain files."""

from __future__ import annotations

import errno
import gc
import io
import os
import resource
import signal
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import headrace
import headrace.torch
from checkpoint_support import assert_same, only
from headrace._stream import AtomicStream
from support import in_child, loop_ext4, random_bytes, run_script

MIB = 1 << 20
ZIP, LEGACY = True, False


def state(mebibytes: int = 5) -> dict[str, Any]:
    whole = torch.frombuffer(bytearray(random_bytes(mebibytes * MIB)), dtype=torch.uint8)
    return {
        "whole": whole,
        "view": whole[1000:2000],
        "odd": torch.arange(12345.0)[::3],
        "small": [torch.tensor(i) for i in range(20)],
        "empty": torch.empty(0, 3),
        "conj": torch.arange(3).to(torch.complex64).conj(),
        "step": 7,
    }


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An ext4 of 24 MiB."""
    with loop_ext4(tmp_path_factory.mktemp("tiny"), megabytes=24) as folder:
        yield folder


# ---- under torch ----


@pytest.mark.parametrize("container", [ZIP, LEGACY])
@pytest.mark.parametrize("mebibytes", [1, 70])  # within the staging memory, and around it
def test_torch_saves_into_a_writer_and_loads_from_a_reader(
    tmp_path: Path, container: bool, mebibytes: int
) -> None:
    path, obj = tmp_path / "a.pt", state(mebibytes)
    with headrace.torch.writer(path) as file:
        torch.save(obj, file, _use_new_zipfile_serialization=container)
    assert_same(obj, torch.load(path))
    assert_same(obj, headrace.load(path, verify="require" if container else "auto"))
    with headrace.torch.reader(path) as source:
        assert_same(obj, torch.load(source))
    only(tmp_path, "a.pt")


@pytest.mark.parametrize("container", [ZIP, LEGACY])
def test_a_reader_takes_what_torch_wrote(tmp_path: Path, container: bool) -> None:
    obj = state()
    torch.save(obj, tmp_path / "a.pt", _use_new_zipfile_serialization=container)
    for weights_only in (True, False):
        with headrace.torch.reader(tmp_path / "a.pt") as file:
            assert_same(obj, torch.load(file, weights_only=weights_only))


def test_the_bytes_are_those_that_torch_writes_elsewhere(tmp_path: Path) -> None:
    obj, memory = state(), io.BytesIO()
    torch.save(obj, memory)
    with headrace.torch.writer(tmp_path / "a.pt", durability="none") as file:
        torch.save(obj, file)
    assert (tmp_path / "a.pt").read_bytes() == memory.getvalue()


def test_torch_may_leave_the_data_out(tmp_path: Path) -> None:
    with headrace.torch.writer(tmp_path / "a.pt") as file, torch.serialization.skip_data():
        torch.save({"w": torch.ones(MIB)}, file)
    assert_same({"w": torch.zeros(MIB)}, torch.load(tmp_path / "a.pt"))


def test_a_writer_is_a_binary_file_for_other_programs(tmp_path: Path) -> None:
    with (
        headrace.torch.writer(tmp_path / "a.zip") as file,
        io.BufferedWriter(file) as buffered,
        zipfile.ZipFile(buffered, "w") as archive,
    ):
        archive.writestr("one", b"1" * 100_000)
    with headrace.torch.reader(tmp_path / "a.zip") as source, zipfile.ZipFile(source) as archive:
        assert archive.testzip() is None
        assert archive.read("one") == b"1" * 100_000


# ---- whole or not at all ----


def test_the_file_appears_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old, and longer than what comes")
    file = headrace.torch.writer(path)
    assert file.write(b"new") == 3
    assert (file.tell(), file.name, file.writable(), file.readable()) == (3, path, True, False)
    file.flush()
    assert path.read_bytes() == b"old, and longer than what comes"
    file.close()
    file.close()
    assert file.closed
    assert path.read_bytes() == b"new"
    with pytest.raises(ValueError, match="closed file"):
        file.write(b"more")
    only(tmp_path, "a")


def test_sizes_around_the_parts_come_out_right(tmp_path: Path) -> None:
    path, part = tmp_path / "a", 4096
    for parts in (1, 2, 3):
        for total in (0, 1, part - 1, part, part + 1, 2 * part, 5 * part + 17):
            for piece in (1000, part, 3 * part, total or 1):
                data = random_bytes(total)
                stream = AtomicStream(path, staging=[memoryview(bytearray(part)) for _ in range(parts)])
                for start in range(0, total, piece):
                    stream.write(data[start : start + piece])
                assert stream.tell() == total
                stream.commit()
                assert path.read_bytes() == data, (parts, total, piece)


def test_memory_and_copies_keep_their_order(tmp_path: Path) -> None:
    a, b, c = random_bytes(10_000), random_bytes(70_001, seed=2), random_bytes(5, seed=3)
    stream = AtomicStream(tmp_path / "a", staging=[memoryview(bytearray(8192)) for _ in range(2)])
    stream.write(a)
    stream.write_memory([b, c], len(b) + len(c))
    stream.write_memory([], 0)
    stream.skip(100)
    stream.write(c)
    stream.commit()
    assert (tmp_path / "a").read_bytes() == a + b + c + bytes(100) + c


def test_bytes_may_change_after_write_returns(tmp_path: Path) -> None:
    data = bytearray(b"a" * (40 * MIB))
    with headrace.torch.writer(tmp_path / "a") as file:
        file.write(data)
        data[:] = b"b" * len(data)
        file.write(memoryview(data).cast("I"))
    assert (tmp_path / "a").read_bytes() == b"a" * (40 * MIB) + b"b" * (40 * MIB)


def test_an_exception_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with pytest.raises(KeyError), headrace.torch.writer(path) as file:
        file.write(bytes(20 * MIB))
        raise KeyError("mine")
    assert file.closed
    assert path.read_bytes() == b"old"
    only(tmp_path, "a")


def test_a_dropped_writer_leaves_nothing_and_says_so(tmp_path: Path) -> None:
    file = headrace.torch.writer(tmp_path / "a")
    file.write(b"half")
    with pytest.warns(ResourceWarning, match="was not saved"):
        del file
        gc.collect()
    assert os.listdir(tmp_path) == []
    other = headrace.torch.writer(tmp_path / "b")
    other.write(b"half")
    other.discard()
    other.discard()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del other
        gc.collect()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("container", [ZIP, LEGACY])
@pytest.mark.parametrize("mebibytes", [1, 60])
def test_a_full_disk_is_named_and_leaves_the_old_file(tiny: Path, container: bool, mebibytes: int) -> None:
    """torch's zip writer hides what a write raised behind 'unexpected pos'."""
    obj = {str(i): torch.full((mebibytes * MIB,), i, dtype=torch.uint8) for i in range(60 // mebibytes)}
    path = tiny / "a.pt"
    path.write_bytes(b"old")
    before = sorted(os.listdir(tiny))
    with (
        pytest.raises(headrace.TransferError, match="ENOSPC") as caught,
        headrace.torch.writer(path) as file,
    ):
        torch.save(obj, file, _use_new_zipfile_serialization=container)
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, path)
    file = headrace.torch.writer(path)
    with pytest.raises((headrace.TransferError, RuntimeError)):
        torch.save(obj, file, _use_new_zipfile_serialization=container)
    for _ in range(2):
        with pytest.raises(headrace.TransferError, match="ENOSPC"):
            file.write(b"more")
    with pytest.raises(headrace.TransferError, match="ENOSPC"):
        file.close()
    assert path.read_bytes() == b"old"
    assert sorted(os.listdir(tiny)) == before


def test_a_disk_with_room_for_the_bytes_but_not_for_more_takes_them(tiny: Path) -> None:
    """Space is taken ahead in large steps, and that must not refuse what fits."""
    obj = {"w": torch.arange(17 * MIB // 8)}
    with headrace.torch.writer(tiny / "a.pt") as file:
        torch.save(obj, file)
    assert_same(obj, headrace.load(tiny / "a.pt"))
    (tiny / "a.pt").unlink()


def test_a_limit_of_the_file_size_is_named(tmp_path: Path) -> None:
    def limited() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (8 * MIB, 8 * MIB))
        with headrace.torch.writer(tmp_path / "a") as file:  # 64 MiB ahead are not to be had
            file.write(bytes(7 * MIB))
        with pytest.raises(headrace.TransferError) as caught, headrace.torch.writer(tmp_path / "a") as file:
            file.write(bytes(70 * MIB))
        assert caught.value.errno == errno.EFBIG

    in_child(limited)
    assert (tmp_path / "a").stat().st_size == 7 * MIB
    only(tmp_path, "a")


def test_what_cannot_be_opened_says_why(tmp_path: Path) -> None:
    for call in (headrace.torch.writer, headrace.torch.reader):
        with pytest.raises(FileNotFoundError, match="missing"):
            call(tmp_path / "missing" / "a")
        with pytest.raises(IsADirectoryError):
            call(tmp_path)
    with pytest.raises(TypeError), headrace.torch.writer(tmp_path / "a") as file:
        file.write("text")  # type: ignore[arg-type]


def test_only_forward_seeks_are_possible_in_a_writer(tmp_path: Path) -> None:
    with headrace.torch.writer(tmp_path / "a") as file:
        file.write(b"abc")
        assert file.seek(5) == 5
        assert file.seek(2, os.SEEK_CUR) == 7
        assert file.seek(0, os.SEEK_END) == 7
        with pytest.raises(io.UnsupportedOperation, match="seek to 0"):
            file.seek(0)
        with pytest.raises(io.UnsupportedOperation):
            file.fileno()
        file.write(b"d")
    assert (tmp_path / "a").read_bytes() == b"abc\0\0\0\0d"


def test_nothing_is_left_in_memory_after_a_failure(tmp_path: Path) -> None:
    code = """
    import sys, headrace, headrace.torch
    file = headrace.torch.writer(sys.argv[1])
    file.write(bytes(1000))
    try:
        file.seek(-5, 1)
    except OSError:
        pass
    try:
        with headrace.torch.writer(sys.argv[1]) as other:
            other._stream.fill(10, lambda target, offset: 1 / 0)
    except ZeroDivisionError as error:
        kept = error
    try:
        other._stream.write(b"more")
    except ZeroDivisionError as error:
        also_kept = error
    """
    done = run_script(code, str(tmp_path / "a"))
    assert done.returncode == 0, done.stderr
    assert os.listdir(tmp_path) == []


# ---- reading ----


def test_a_reader_reads_as_a_file_does(tmp_path: Path) -> None:
    data = random_bytes(9 * MIB + 77)
    path = tmp_path / "a"
    path.write_bytes(data)
    with headrace.torch.reader(path) as file:
        assert (file.readable(), file.seekable(), file.name) == (True, True, path)
        assert file.read(10) == data[:10]
        assert file.seek(-77, os.SEEK_END) == len(data) - 77
        assert file.read() == data[-77:]
        assert file.read() == b""
        file.seek(1)
        target = bytearray(8 * MIB)
        assert file.readinto(target) == len(target)
        assert target == data[1 : 1 + len(target)]
        assert file.seek(5, os.SEEK_CUR) == 6 + len(target)
        assert file.read(3) == data[6 + len(target) : 9 + len(target)]
        file.seek(len(data) + 1000)
        assert file.read(1) == b""
        with pytest.raises(ValueError, match="seek"):
            file.raw.seek(-1)
    assert file.closed
    with pytest.raises(ValueError, match="closed"):
        file.read(1)
