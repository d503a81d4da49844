# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E402, PT012, PT031
"""headrace.fastpersist: the names, methods and statistics of deepspeed.io, whole files, any torch."""

from __future__ import annotations

import ast
import dataclasses
import errno
import gc
import importlib.util
import inspect
import os
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import headrace
from checkpoint_support import assert_same, only
from headrace import deepnvme
from headrace.fastpersist import FastFileWriter, FastFileWriterConfig, MockFileWriter, PyFileWriter
from support import loop_ext4, random_bytes

MIB = 1 << 20
BASE_KEYS = ["close", "fileno", "flush", "write", "bytes", "write_secs", "write_GB/s"]
FAST_KEYS = [
    *BASE_KEYS,
    *("aio_write_secs", "aio_bytes", "aio_GB/s", "slow_bytes", "slow_write_secs"),
    *("fill_buffer_count", "fill_buffer_secs", "fill_buffer_GB/s", "save_storage", "save_storage_bytes"),
]


def state(mebibytes: int = 3) -> dict[str, Any]:
    whole = torch.frombuffer(bytearray(random_bytes(mebibytes * MIB)), dtype=torch.float16)
    return {
        "whole": whole,
        "view": whole[100:200],
        "empty": torch.empty(0),
        "scalar": torch.tensor(3),
        "n": 1,
    }


def config(pinned: Any = None, double_buffer: bool = True, **others: Any) -> FastFileWriterConfig:
    handle = deepnvme.aio_handle(block_size=8 * MIB, queue_depth=8)
    return FastFileWriterConfig(handle, pinned, double_buffer, **others)


def hooked_legacy_save() -> Callable[..., None]:
    """torch's own _legacy_save, with the loop over storages replaced as the guide does it."""
    hook = textwrap.indent(
        textwrap.dedent(
            """\
            if hasattr(f, "save_torch_storage_object_list"):
                sorted_storages = [serialized_storages[key] for key in serialized_storage_keys]
                f.save_torch_storage_object_list(sorted_storages, True)
                return
            """
        ),
        "    ",
    )
    source = inspect.getsource(torch.serialization._legacy_save)
    before, loop, after = source.partition("    for key in serialized_storage_keys:\n")
    assert loop, "this torch's _legacy_save has another loop than the hook replaces"
    names: dict[str, Any] = {}
    exec(compile(before + hook + loop + after, "hooked", "exec"), vars(torch.serialization), names)
    found: Callable[..., None] = names["_legacy_save"]
    return found


def statistics(writer: Any, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """What _dump_state prints."""
    capsys.readouterr()
    writer._dump_state()
    name, _, value = capsys.readouterr().out.partition(" = ")
    assert name == "stats"
    found: dict[str, Any] = ast.literal_eval(value.replace(repr(writer.file_path()), repr("PATH")))
    return found


# ---- the names ----


def test_constructors_have_deepspeeds_arguments() -> None:
    fields = {field.name: field.default for field in dataclasses.fields(FastFileWriterConfig)}
    assert fields == {
        "dnvme_handle": dataclasses.MISSING,
        "pinned_tensor": dataclasses.MISSING,
        "double_buffer": True,
        "num_parallel_writers": 1,
        "writer_rank": 0,
        "global_rank": 0,
    }
    assert list(inspect.signature(FastFileWriter).parameters) == ["file_path", "config"]
    assert list(inspect.signature(MockFileWriter).parameters) == ["file_path"]
    assert list(inspect.signature(PyFileWriter).parameters) == ["file_path"]


def test_deepspeeds_own_have_the_same_names() -> None:
    if importlib.util.find_spec("deepspeed") is None:
        pytest.skip("deepspeed is not installed")
    import deepspeed.io as theirs

    for ours in (FastFileWriter, FastFileWriterConfig, MockFileWriter, PyFileWriter):
        other = getattr(theirs, ours.__name__)
        assert list(inspect.signature(ours).parameters) == list(inspect.signature(other).parameters)
        public = {name for name in dir(other) if not name.startswith("_")} - {"split_index_list"}
        assert public <= set(dir(ours)) | {field.name for field in dataclasses.fields(FastFileWriterConfig)}


# ---- files ----


@pytest.mark.parametrize("zipfile", [True, False])
@pytest.mark.parametrize("pinned_bytes", [4096, 64 * MIB, None])
@pytest.mark.parametrize("double_buffer", [True, False])
def test_torch_saves_through_it_over_a_longer_file(
    tmp_path: Path, zipfile: bool, pinned_bytes: int | None, double_buffer: bool
) -> None:
    """DeepSpeed neither cuts an older file nor syncs it: a shorter checkpoint over it cannot be read."""
    path, obj = str(tmp_path / "a.pt"), state()
    Path(path).write_bytes(random_bytes(5 * MIB, seed=9))
    pinned = None if pinned_bytes is None else torch.empty(pinned_bytes, dtype=torch.uint8)
    writer = FastFileWriter(file_path=path, config=config(pinned, double_buffer))
    torch.save(f=writer, obj=obj, _use_new_zipfile_serialization=zipfile)
    assert Path(path).stat().st_size == 5 * MIB  # the old one
    writer.close()
    assert_same(obj, torch.load(path))
    assert_same(obj, headrace.load(path))
    only(tmp_path, "a.pt")


@pytest.mark.parametrize("pinned_bytes", [4096, None])
def test_the_guides_hook_hands_over_all_storages(
    tmp_path: Path,
    pinned_bytes: int | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(torch.serialization, "_legacy_save", hooked_legacy_save())
    path, obj = tmp_path / "a.pt", state()
    pinned = None if pinned_bytes is None else torch.empty(pinned_bytes, dtype=torch.uint8)
    writer = FastFileWriter(path, config(pinned))
    torch.save(obj, writer, _use_new_zipfile_serialization=False)
    writer.close()
    assert_same(obj, torch.load(path))
    stats = statistics(writer, capsys)
    assert list(stats) == [*FAST_KEYS, "path"]
    assert stats["save_storage"] == 3
    assert stats["save_storage_bytes"] == 3 * 8 + 3 * MIB + 8
    assert stats["bytes"] == stats["aio_bytes"] + stats["slow_bytes"] == path.stat().st_size
    torch.save(obj, tmp_path / "plain.pt", _use_new_zipfile_serialization=False)
    assert_same(obj, torch.load(tmp_path / "plain.pt"))  # other files go the old way


def test_storages_are_written_as_pairs_or_typed_with_or_without_their_size(tmp_path: Path) -> None:
    tensors = [torch.arange(7), torch.arange(5.0).half(), torch.empty(0), torch.arange(100_000)]
    for save_size in (True, False):
        writer = FastFileWriter(tmp_path / "a", config())
        pairs = [(tensor.untyped_storage(), tensor.dtype) for tensor in tensors]
        expected = b"".join(
            (tensor.numel().to_bytes(8, "little") if save_size else b"") + tensor.numpy().tobytes()
            for tensor in tensors
        )
        assert writer.save_torch_storage_object_list(pairs, save_size) == len(expected)
        writer.close()
        assert (tmp_path / "a").read_bytes() == expected
        mock = MockFileWriter(tmp_path / "mock")
        assert mock.save_torch_storage_object_list(pairs, save_size) == len(expected)
        mock.close()
    typed = torch.storage.TypedStorage(
        wrap_storage=tensors[0].untyped_storage(), dtype=torch.int64, _internal=True
    )
    writer = FastFileWriter(tmp_path / "a", config())
    writer.write(b"head")
    assert writer.save_torch_storage_object_list(storage_obj_list=[typed], save_size=True) == 8 + 56
    writer.close()
    assert (tmp_path / "a").read_bytes()[4:] == (7).to_bytes(8, "little") + tensors[0].numpy().tobytes()


def test_thousands_of_storages_go_in_few_requests(tmp_path: Path) -> None:
    tensors = [torch.full((i % 50,), i) for i in range(10_000)]
    with headrace.Handle() as handle:
        writer = FastFileWriter(tmp_path / "a", FastFileWriterConfig(handle, None))
        writer.save_torch_storage_object_list([(t.untyped_storage(), t.dtype) for t in tensors], True)
        writer.close()
        assert handle.stats()["writes"]["requests"] < 10
    expected = b"".join(t.numel().to_bytes(8, "little") + t.numpy().tobytes() for t in tensors)
    assert (tmp_path / "a").read_bytes() == expected


def test_any_handle_will_do(tmp_path: Path) -> None:
    with headrace.Handle(engine="posix") as own:
        for handle in (own, deepnvme.aio_handle(), None, object()):
            writer = FastFileWriter(tmp_path / "a", FastFileWriterConfig(handle, None))
            writer.write(b"abc")
            writer.close()
            assert (tmp_path / "a").read_bytes() == b"abc"


# ---- whole or not at all ----


def test_close_makes_the_file_appear_and_dropping_does_not(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    writer = FastFileWriter(path, config())
    writer.write(b"new")
    with pytest.warns(ResourceWarning, match="was not saved"):
        del writer
        gc.collect()
    assert path.read_bytes() == b"old"
    with pytest.raises(KeyError), FastFileWriter(path, config()) as writer:
        writer.write(b"new")
        raise KeyError("mine")
    assert path.read_bytes() == b"old"
    with FastFileWriter(path, config()) as writer:
        writer.write(memoryview(bytearray(b"newer")))
    writer.close()
    assert path.read_bytes() == b"newer"
    with pytest.raises(ValueError, match="closed file"):
        writer.write(b"more")
    only(tmp_path, "a")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An ext4 of 24 MiB."""
    with loop_ext4(tmp_path_factory.mktemp("tiny"), megabytes=24) as folder:
        yield folder


@pytest.mark.parametrize("zipfile", [True, False])
def test_a_full_disk_leaves_the_old_file(tiny: Path, zipfile: bool) -> None:
    path = tiny / "a.pt"
    path.write_bytes(b"old")
    names = sorted(os.listdir(tiny))
    writer = FastFileWriter(path, config())
    with pytest.raises(
        (headrace.TransferError, RuntimeError)
    ):  # the latter is how torch's zip writer tells it
        torch.save(
            {"w": torch.ones(40 * MIB, dtype=torch.uint8)}, writer, _use_new_zipfile_serialization=zipfile
        )
    for _ in range(2):
        with pytest.raises(headrace.TransferError, match="ENOSPC") as caught:
            writer.close()
        assert caught.value.errno == errno.ENOSPC
    storage = torch.ones(40 * MIB, dtype=torch.uint8).untyped_storage()
    with (
        pytest.raises(headrace.TransferError, match="ENOSPC"),
        FastFileWriter(path, config()) as second,
    ):
        second.save_torch_storage_object_list([(storage, torch.uint8)], True)
    assert path.read_bytes() == b"old"
    assert sorted(os.listdir(tiny)) == names


def test_what_cannot_be_kept_is_refused(tmp_path: Path) -> None:
    for others in ({"num_parallel_writers": 2}, {"num_parallel_writers": 0}, {"writer_rank": 1}):
        with pytest.raises(ValueError, match="not supported yet"):
            FastFileWriter(tmp_path / "a", config(**others))
    for pinned in (torch.empty(4096, 2).t(), torch.empty(100, device="meta"), b"text"):
        with pytest.raises(ValueError, match="contiguous CPU tensor"):
            FastFileWriter(tmp_path / "a", config(pinned))
    with pytest.raises(ValueError, match="at least 4096"):
        FastFileWriter(tmp_path / "a", config(torch.empty(7)))
    for kind in (MockFileWriter, PyFileWriter):
        with pytest.raises(FileNotFoundError):
            kind(tmp_path / "missing" / "a")
    with pytest.raises(FileNotFoundError):
        FastFileWriter(tmp_path / "missing" / "a", config())
    assert os.listdir(tmp_path) == []


# ---- statistics, and the two that write nothing fast ----


def test_the_statistics_have_deepspeeds_keys_and_add_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.pt"
    writer = FastFileWriter(path, config(torch.empty(1 * MIB, dtype=torch.uint8)))
    torch.save(state(), writer)
    writer.flush()
    assert writer.fileno() == -1
    writer.close()
    stats = statistics(writer, capsys)
    assert list(stats) == [*FAST_KEYS, "path"]
    assert (stats["close"], stats["fileno"]) == (1, 1)
    assert stats["flush"] >= 1
    assert stats["bytes"] == stats["aio_bytes"] + stats["slow_bytes"] == path.stat().st_size
    assert stats["write"] > 1
    assert stats["fill_buffer_count"] >= stats["write"]
    for seconds, rate in (("write_secs", "write_GB/s"), ("fill_buffer_secs", "fill_buffer_GB/s")):
        assert stats[seconds] > 0
        assert stats[rate] > 0


def test_py_and_mock_writers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    obj = state()
    for zipfile in (True, False):
        py, mock = PyFileWriter(tmp_path / "py"), MockFileWriter(str(tmp_path / "mock"))
        for writer in (py, mock):
            torch.save(obj, writer, _use_new_zipfile_serialization=zipfile)  # type: ignore[arg-type]
            writer.flush()
            writer.close()
        assert_same(obj, torch.load(tmp_path / "py"))
        assert (tmp_path / "mock").stat().st_size == 0
        stats = statistics(py, capsys)
        assert list(stats) == [*BASE_KEYS, "path"]
        assert stats["bytes"] == (tmp_path / "py").stat().st_size
        stats = statistics(mock, capsys)
        assert list(stats) == [*BASE_KEYS, "save_storage", "save_storage_bytes", "path"]
        assert stats["bytes"] == pytest.approx((tmp_path / "py").stat().st_size, abs=1000)  # names differ
        assert stats["write_secs"] == 0
