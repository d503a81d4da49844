# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E402
"""The names, links and permission bits of saved checkpoints."""

from __future__ import annotations

import os
import stat
import struct
import tempfile
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import headrace
from checkpoint_support import assert_same, only
from support import NOBODY, as_nobody, need_root, run_script

pytestmark = [
    pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental"),
    pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta"),
    pytest.mark.filterwarnings("ignore:.*[Qq]uantiz.*deprecated"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
    pytest.mark.filterwarnings("ignore:TypedStorage is deprecated"),
    pytest.mark.filterwarnings("ignore:Sparse invariant checks"),
]


NAMES = {
    "letters of everywhere": "модель 模型 🚀.pt",
    "spaces and quotes": " a 'b' \"c\" \\.pt",
    "a line break": "a\nb.pt",
    "a dot first": ".pt.pt",
    "no suffix before it": "archive.pt",
    "255 bytes": "n" * 252 + ".pt",
    "255 bytes of other letters": "é" * 126 + ".pt",
}


@pytest.mark.parametrize("name", NAMES)
def test_any_name_of_a_file_works(tmp_path: Path, name: str) -> None:
    """pytorch #98918, #103949, #116103."""
    obj = {"a": torch.arange(20_000)}
    folder = tmp_path / "ü 文"
    folder.mkdir()
    path = folder / NAMES[name]
    for given in (path, str(path), os.fsencode(path)):
        headrace.save(obj, given)
        assert_same(obj, headrace.load(given))
        assert_same(obj, headrace.load(given, mmap=True))
        only(folder, NAMES[name])
    assert_same(obj, torch.load(path))
    assert_same(obj, torch.load(path, mmap=True))


def test_names_that_are_no_text_work(tmp_path: Path) -> None:
    obj = {"a": torch.arange(20_000)}
    path = os.fsencode(tmp_path) + b"/\xff\xfe.pt"
    headrace.save(obj, path)
    assert_same(obj, headrace.load(path))
    assert_same(obj, headrace.load(path, mmap=True))
    assert_same(obj, headrace.load(os.fsdecode(path), mmap=True))
    with open(path, "rb") as file:
        assert_same(obj, torch.load(file))


def test_relative_paths_are_of_the_folder_at_the_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    headrace.save({"a": 1}, "a.pt")
    headrace.save({"a": 2}, "../b.pt")
    assert headrace.load("a.pt") == {"a": 1}
    assert torch.load("../b.pt") == {"a": 2}
    monkeypatch.chdir(tmp_path)
    assert headrace.load(b"b.pt") == {"a": 2}


def test_a_name_that_is_too_long_is_the_systems_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="ENAMETOOLONG"):
        headrace.save({}, tmp_path / ("n" * 253 + ".pt"))
    with pytest.raises(OSError, match="ENAMETOOLONG"):
        headrace.save({}, str(tmp_path) + "/x" * 2100 + ".pt")
    deep = tmp_path
    while len(str(deep)) < 3700:
        deep = deep / ("d" * 200)
    deep.mkdir(parents=True)
    headrace.save({"a": 1}, deep / "a.pt")
    assert headrace.load(deep / "a.pt", mmap=True) == {"a": 1}


def test_open_files_pipes_and_memory_are_refused_with_advice(tmp_path: Path) -> None:
    """pytorch #88320: data behind other data in an open file could not be read back."""
    import io

    for target in (io.BytesIO(), open(tmp_path / "x", "w+b"), 7):  # noqa: SIM115
        for call, advice in ((headrace.save, r"torch\.save"), (headrace.load, r"torch\.load")):
            arguments = ({}, target) if call is headrace.save else (target,)
            with pytest.raises(TypeError, match=advice):
                call(*arguments)  # type: ignore[arg-type,operator]
        if hasattr(target, "close"):
            target.close()  # type: ignore[union-attr]
    assert (tmp_path / "x").read_bytes() == b""


def test_the_mode_is_that_of_the_old_file_or_of_the_umask(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    for mask, expected in ((0o022, 0o644), (0o077, 0o600), (0o000, 0o666)):
        before = os.umask(mask)
        try:
            headrace.save({}, path)
        finally:
            os.umask(before)
        assert stat.S_IMODE(path.stat().st_mode) == expected
        path.unlink()
    headrace.save({}, path)
    path.chmod(0o640)
    headrace.save({"new": 1}, path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


ANYONE = 0xFFFFFFFF
OWNER, USER, GROUP, MASK, OTHER = 1, 2, 4, 16, 32


def access_list(*entries: tuple[int, int, int]) -> bytes:
    """(tag, permissions, id) each, as Linux stores them: linux/posix_acl_xattr.h."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def set_access_list(path: Path, name: str, entries: bytes) -> None:
    try:
        os.setxattr(path, f"system.posix_acl_{name}", entries)
    except OSError as error:
        pytest.skip(f"no access lists here: {error}")


def test_a_new_file_has_what_its_folder_hands_down(tmp_path: Path) -> None:
    entries = [(OWNER, 7, ANYONE), (USER, 6, 1000), (GROUP, 4, ANYONE), (MASK, 6, ANYONE), (OTHER, 0, ANYONE)]
    set_access_list(tmp_path, "default", access_list(*entries))
    for save, name in ((torch.save, "theirs.pt"), (headrace.save, "ours.pt")):
        save({}, tmp_path / name)
    theirs, ours = tmp_path / "theirs.pt", tmp_path / "ours.pt"
    assert os.getxattr(ours, "system.posix_acl_access") == os.getxattr(theirs, "system.posix_acl_access")
    assert stat.S_IMODE(ours.stat().st_mode) == stat.S_IMODE(theirs.stat().st_mode) == 0o660
    # A file that is replaced keeps its own list, or that it has none.
    theirs.unlink()
    own = access_list(
        (OWNER, 6, ANYONE), (USER, 4, 1001), (GROUP, 0, ANYONE), (MASK, 4, ANYONE), (OTHER, 0, ANYONE)
    )
    os.setxattr(ours, "system.posix_acl_access", own)
    headrace.save({"new": 1}, ours)
    assert os.getxattr(ours, "system.posix_acl_access") == own
    os.removexattr(ours, "system.posix_acl_access")
    ours.chmod(0o640)
    headrace.save({"new": 2}, ours)
    assert "system.posix_acl_access" not in os.listxattr(ours)
    assert stat.S_IMODE(ours.stat().st_mode) == 0o640


def test_a_file_stays_its_owners(tmp_path: Path) -> None:
    need_root("to give files away")
    path = tmp_path / "a.pt"
    headrace.save({}, path)
    os.chown(path, 1000, 1001)
    path.chmod(0o4640)
    headrace.save({"new": 1}, path)
    found = path.stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (1000, 1001, 0o4640)


def test_who_cannot_keep_the_owner_gives_nobody_more_than_before() -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:  # where another user can come to
        path = Path(folder) / "a.pt"
        headrace.save({}, path)
        os.chmod(folder, 0o777)
        need_root("to give files away")
        os.chown(path, 1000, 1001)
        path.chmod(0o6674)
        as_nobody(lambda: headrace.save({"new": 1}, path))
        found = path.stat()
        assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (NOBODY, NOBODY, 0o644)


def test_a_symbolic_link_stays_and_its_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link.pt").symlink_to("real/a.pt")
    headrace.save({"a": 1}, tmp_path / "link.pt")
    headrace.save({"a": 2}, tmp_path / "link.pt")
    assert (tmp_path / "link.pt").is_symlink()
    assert torch.load(tmp_path / "real" / "a.pt") == {"a": 2}
    only(tmp_path, "real", "link.pt")
    only(tmp_path / "real", "a.pt")


def test_files_that_are_no_parts_of_one_checkpoint_are_not_put_together(tmp_path: Path) -> None:
    def put(*names: str) -> None:
        for i, name in enumerate(names):
            headrace.save({f"t{i}": torch.ones(2)}, tmp_path / name)

    put("model.pt", "optim.pt", "epoch-1.pt", "epoch-10.pt")
    with pytest.raises(
        ValueError, match=r"files of several checkpoints: epoch-1\.pt, epoch-10\.pt, model\.pt"
    ):
        headrace.load(tmp_path)
    assert list(headrace.load(tmp_path / "epoch-1")) == ["t2"]
    assert list(headrace.load(tmp_path / "model")) == ["t0"]
    for start in ("mod", "epoch", "epoch-", "model.p"):
        with pytest.raises(FileNotFoundError):
            headrace.load(tmp_path / start)
    put("model.safetensors")
    with pytest.raises(ValueError, match=r"several checkpoints: model\.pt, model\.safetensors; name one"):
        headrace.load(tmp_path / "model")
    put("w-00001-of-00003.safetensors", "w-00003-of-00003.safetensors")
    with pytest.raises(ValueError, match=r"2 of 3 parts are there .*number 2 is missing"):
        headrace.load(tmp_path / "w")
    put("w-00001-of-00003.safetensors", "w-00002-of-00003.safetensors", "w-00003-of-00003.safetensors")
    assert sorted(headrace.load(tmp_path / "w")) == ["t0", "t1", "t2"]
    put("w.safetensors")
    with pytest.raises(ValueError, match="several checkpoints"):
        headrace.load(tmp_path / "w")


def test_parts_are_told_apart_by_what_is_before_their_numbers(tmp_path: Path) -> None:
    headrace.save({"a": torch.ones(1)}, tmp_path / "run1-00001-of-00002.safetensors")
    headrace.save({"b": torch.ones(1)}, tmp_path / "run2-00002-of-00002.safetensors")
    with pytest.raises(ValueError, match=r"files of several checkpoints.*run1.*run2"):
        headrace.load(tmp_path)


def test_a_number_of_parts_costs_nothing(tmp_path: Path) -> None:
    headrace.save({"a": torch.ones(1)}, tmp_path / f"m-1-of-{10**15}.safetensors")
    with pytest.raises(ValueError, match=r"1 of 1000000000000000 parts are there .*; number 2 is missing"):
        headrace.load(tmp_path)


def test_an_index_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.safetensors.index.json")
    with pytest.raises(headrace.TransferError, match=r"index\.json.*this is no ordinary file"):
        headrace.load(tmp_path)


def test_an_open_file_without_a_name_is_not_replaced(tmp_path: Path) -> None:
    file = os.open(tmp_path / "a.pt", os.O_RDWR | os.O_CREAT)
    try:
        named = f"/proc/self/fd/{file}"
        headrace.save({"w": torch.ones(2)}, named, format="torch")
        assert os.path.getsize(tmp_path / "a.pt") > 0
        os.unlink(tmp_path / "a.pt")  # the new one; what is open has no name since the save
        with pytest.raises(headrace.InvalidRequestError, match="an open file without a name"):
            headrace.save({"w": torch.ones(2)}, named, format="torch")
    finally:
        os.close(file)
    assert os.listdir(tmp_path) == []


def test_wrong_arguments_are_refused_in_plain_words(tmp_path: Path) -> None:
    obj = {"w": torch.ones(2)}
    path = tmp_path / "a.pt"
    refusals: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"durability": None}, ValueError, "durability must be 'data' or 'none', not None"),
        ({"alignment": "4k"}, TypeError, "alignment must be a number"),
        ({"alignment": -1}, ValueError, "power of two from 64 to 32768, not -1"),
        ({"alignment": 1 << 70}, ValueError, "power of two from 64 to 32768"),
        ({"alignment": 32}, headrace.InvalidRequestError, "power of two from 64 to 32768"),
        ({"handle": 3}, TypeError, "handle must be a headrace.Handle or None, not int"),
    ]
    for arguments, kind, words in refusals:
        with pytest.raises(kind, match=words):
            headrace.save(obj, path, **arguments)
    assert os.listdir(tmp_path) == []
    headrace.save(obj, path)
    with pytest.raises(TypeError, match=r"into= must be a dict of tensors.*Linear holds none"):
        headrace.load(path, into=torch.nn.Linear(2, 2))
    for arrays in ({"w": [1.0, 2.0]}, memoryview(b"ab"), torch.ones(2).numpy()):
        with pytest.raises(TypeError, match=r"into= must be a dict of tensors"):
            headrace.load(path, into=arrays)
    with pytest.raises(KeyError, match="'w'"):
        headrace.load(path, into={})
    endless: dict[str, Any] = {"w": torch.zeros(2)}
    endless["again"] = [endless]
    with pytest.raises(ValueError, match=r"into= holds itself at 'again\.0'"):
        headrace.load(path, into=endless)
    with pytest.raises(ValueError, match="map_location has no meaning"):
        headrace.load(path, into=obj, map_location="cpu")
    with pytest.raises(ValueError, match="index of several files"):
        headrace.open(tmp_path / "model.safetensors.index.json")
    done = run_script(
        """
        import sys
        sys.modules["torch"] = None
        import importlib.util
        importlib.util.find_spec = lambda name: None
        import headrace
        for call in (lambda: headrace.save({}, "a.pt"), lambda: headrace.load("a.pt")):
            try:
                call()
            except ImportError as error:
                print(error)
        """
    )
    assert done.stdout.splitlines() == [
        f"headrace.{name} needs torch, which is not installed: pip install torch" for name in ("save", "load")
    ], done


def test_other_kinds_of_files_are_named(tmp_path: Path) -> None:
    import tarfile

    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.add(__file__, "storages")
    (tmp_path / "lfs").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    headrace.save({"w": torch.ones(200)}, tmp_path / "whole.safetensors")
    (tmp_path / "cut").write_bytes((tmp_path / "whole.safetensors").read_bytes()[:30])
    for name, words in (("a.tar", "tar archive"), ("lfs", "git lfs pull"), ("cut", "header is cut off")):
        with pytest.raises(headrace.FormatError, match=words):
            headrace.load(tmp_path / name)
